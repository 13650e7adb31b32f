//! Model families: what the headers of a checkpoint say, and the program of ops that runs it.
//!
//! Key properties: everything here is computed from headers; weights are named, never read (but
//! for the short vector of rotary factors that some GGUF files carry). A family is written once,
//! for both file formats. A `config.json` alone implies its tensors, which is enough for a plan.
//!
//! Knows nothing of Python, HTTP, devices or who runs a program.
#![forbid(unsafe_code)]

mod attention;
mod delta;
mod error;
mod family;
mod gguf_shape;
mod hf_shape;
mod mlp;
mod names;
mod program;
mod shape;
mod writer;

pub use error::ModelError;
pub use family::Family;
pub use shape::{DeltaShape, ExpertShape, ModelShape};

use ignis_formats::{Checkpoint, ConfigJson};
use ignis_ops::{Program, WeightKind};
use ignis_types::DType;

/// A checkpoint understood: its shape and its program.
#[derive(Debug)]
pub struct Model {
    /// Dimensions and options.
    pub shape: ModelShape,
    /// Ops over buffers and weights.
    pub program: Program,
}

impl Model {
    /// Reads the headers of `checkpoint` and writes the program of its family.
    ///
    /// Errors: a family that is not known; keys or tensors that are missing or disagree.
    pub fn of(checkpoint: &Checkpoint) -> Result<Model, ModelError> {
        let shape = match checkpoint {
            Checkpoint::Gguf(gguf) => gguf_shape::read(checkpoint, gguf)?,
            Checkpoint::Safetensors { config, .. } | Checkpoint::Config(config) => {
                hf_shape::read(checkpoint, config)?
            }
        };
        shape.check()?;
        let implied = match checkpoint {
            Checkpoint::Config(config) => Some(hf_shape::implied_dtype(config)?),
            _ => None,
        };
        let program = program::program(checkpoint, &shape, implied)?;
        Ok(Model { shape, program })
    }

    /// The model that a `config.json` alone describes, every matrix of it in `matrices` and every
    /// vector in f32.
    ///
    /// Errors: as of [`Model::of`]; a matrix whose rows do not fill whole blocks.
    pub fn of_config(config: &ConfigJson, matrices: DType) -> Result<Model, ModelError> {
        let mut model = Model::of(&Checkpoint::Config(config.clone()))?;
        let block = matrices.block_elements();
        for weight in &mut model.program.weights {
            if weight.kind == WeightKind::Vector {
                weight.dtype = DType::F32;
                continue;
            }
            if !u64::from(weight.cols).is_multiple_of(block) {
                return Err(ModelError::ValueOutOfRange {
                    key: "columns of a matrix",
                    found: weight.cols.to_string(),
                    expected: format!("a multiple of {block}, the values of a {matrices} block"),
                });
            }
            weight.dtype = matrices;
        }
        Ok(model)
    }

    /// Values in all matrices and vectors of the program.
    pub fn parameters(&self) -> u64 {
        let weights = self.program.weights.iter();
        weights.map(|weight| u64::from(weight.rows) * u64::from(weight.cols)).sum()
    }
}
