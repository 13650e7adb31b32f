//! What can be wrong with a model whose files are sound.

use ignis_formats::FormatError;
use ignis_ops::ShapeError;

/// Why no program could be written for a checkpoint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The file itself is damaged, or lacks a key or a tensor.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The architecture has no program here.
    #[error("architecture {found:?} is not supported; supported: {supported}")]
    ArchitectureUnsupported {
        /// Name in the file.
        found: String,
        /// Names that are known.
        supported: &'static str,
    },
    /// A value of the header lies outside what a program can have.
    #[error("{key} is {found}, expected {expected}")]
    ValueOutOfRange {
        /// The dimension or option.
        key: &'static str,
        /// Its value.
        found: String,
        /// What is possible.
        expected: String,
    },
    /// A tensor's shape disagrees with the header.
    #[error("tensor {tensor:?} has shape {found:?}, expected {expected:?}")]
    TensorShape {
        /// Its name.
        tensor: String,
        /// Shape in the file, outermost first.
        found: Vec<u64>,
        /// Shape that the header implies.
        expected: Vec<u64>,
    },
    /// The parts of the program do not fit together.
    #[error(transparent)]
    Shape(#[from] ShapeError),
}
