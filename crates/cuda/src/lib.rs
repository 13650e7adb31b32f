//! The CUDA device: programs run on an NVIDIA card.
//!
//! Purpose: `ops` fulfilled by kernels in CUDA C++ (`kernels/`), which NVRTC compiles for the card
//! found; weights keep the bits of their file and their size; one allocation holds the whole plan.
//!
//! Key properties:
//! - No library is linked. The driver, NVRTC and NVML are loaded when they are first asked for, so
//!   the same build serves machines without a card.
//! - `memory` and `host` alone allocate; only they, `card`, `driver` and `stream` speak to it.
//! - A row's result does not depend on the rows beside it: one arithmetic for any number of rows
//!   (`kernels/linear.cu`), runs of keys cut by position (`kernels/attention.cuh`).
//! - A round copies its arrays in one piece, launches, and waits only where tokens are handed over.
//! - Decode rounds are recorded at load (`graph`) and run as one launch; others step by step, where
//!   a kernel may begin before the one ahead has ended and waits for it by itself.
//!
//! Leaves out: policy, files, which weights are where.

mod abi;
mod blocks;
mod bound;
mod cache;
mod card;
mod copies;
mod device;
mod driver;
mod found;
mod graph;
mod host;
mod judge;
mod kernels;
mod launch;
mod loading;
mod look;
mod memory;
mod nvml;
mod nvrtc;
mod open;
mod products;
mod program;
mod round;
mod runs;
mod sampling;
mod sources;
mod steps;
mod stream;
mod suits;
mod sums;
mod tables;
mod units;
mod weights;

pub use cache::kernels_made;
pub use device::CudaDevice;
pub use found::{CardFacts, ComputeMode, CudaFacts, DriverFact, Holder, probe};
pub use judge::{CudaFound, judge};
pub use nvrtc::{NvrtcFacts, NvrtcFile};
pub use open::{
    CudaKernels, CudaOptions, Libraries, ModelFacts, check, close, free_bytes, measured,
    process_bytes,
};
pub use runs::check_program;
pub use suits::suiting_nvrtc;
pub use units::{Unit, units};
