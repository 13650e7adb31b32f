//! The CPU device: worker threads that run a whole program with a barrier between ops, weights
//! repacked at load, and kernels that give the same bits on every instruction set.
//!
//! Key properties:
//! - One mapping for the whole plan, resident before the first round; a round touches no heap.
//! - A row's result depends on nothing but that row: not on its batch, the chunking of its prompt,
//!   the number of threads or the instruction set.
//! - Results of attention and sampling are reduced in fixed orders, so threads only share work.
//!
//! Leaves out: policy, files, models. `linear` is the arithmetic of products, `simd` its lanes;
//! `vector` the float lanes of everything else.

mod attention;
mod device;
mod experts;
mod gates;
mod kv;
mod layout;
pub mod linear;
mod memory;
mod pool;
mod program;
mod rows;
mod sample;
pub mod simd;
mod state;
#[cfg(test)]
mod testing;
mod vector;
mod walk;
mod weights;

pub use device::CpuDevice;
pub use layout::{CpuLayout, CpuOptions};
pub use memory::free_bytes;
