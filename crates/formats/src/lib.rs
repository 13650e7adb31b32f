//! Checkpoint files: names, shapes, dtypes, metadata and block layouts of GGUF and safetensors.
//!
//! Key properties:
//! - Every byte of a file is taken for hostile. Parsers work over `&[u8]`, check each count against
//!   the bytes that remain before they reserve for it, and answer damage with a [`FormatError`]
//!   that names file, key or tensor, what was expected and what was found. None panics, and none
//!   holds more than a small multiple of the file's own size.
//! - A checkpoint can be opened by its headers alone ([`Checkpoint::open_header`]): enough to plan
//!   memory, with no weights on the machine.
//! - Weights are never copied here: [`Checkpoint::data`] is a slice of the mapped file.
//!
//! Knows nothing of devices and models: whether a tensor is needed, and what shape it should have,
//! is for the caller to say.
#![deny(unsafe_code)]

mod checkpoint;
mod config;
mod error;
pub mod gguf;
mod json;
mod mmap;
pub mod quant;
pub mod safetensors;
mod tensor;
#[cfg(test)]
mod test_folder;
#[cfg(any(test, feature = "test-writer"))]
pub mod writer;

pub use checkpoint::Checkpoint;
pub use config::ConfigJson;
pub use error::FormatError;
pub use gguf::{Gguf, MetaArray, MetaValue};
pub use safetensors::Safetensors;
pub use tensor::TensorInfo;

/// How much of a file has to be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Header and every tensor's bytes.
    Whole,
    /// The header; the file may end anywhere after it.
    Header,
}
