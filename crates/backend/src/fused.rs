//! A program as a GPU load runs it: a list of steps, each of one op or of a few side by side.
//!
//! Purpose: one list for planning, which counts from it, and for the device, which resolves it to
//! launches. Inputs of products are encoded; a buffer that only lived between two ops of a step is
//! never in memory. `fuse` makes the list.
//!
//! A norm before products is finished by them: W (x / rms(x) * gain) is W (x * gain) / rms(x). So
//! what is encoded of a row, x * gain, can be made where a part of the row is known, and by the
//! products that write it.
//!
//! Leaves out: addresses, kernels, which dtypes there are kernels for.

use ignis_ops::{BufferId, LinearPart, PagedAttention, Program, Rows, WeightId};
use ignis_types::DType;

/// What products of a GPU load read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredActivations {
    /// Inputs and weights rounded to bf16, once; the default.
    Bf16,
    /// Both as pairs of bf16, 16 bits in all: slower, for tests and for those who want it.
    F32,
}

impl StoredActivations {
    /// What options and formats call it.
    pub fn name(self) -> &'static str {
        match self {
            StoredActivations::Bf16 => "bf16",
            StoredActivations::F32 => "f32",
        }
    }

    /// bf16 values that hold one encoded value.
    pub fn images(self) -> u64 {
        match self {
            StoredActivations::Bf16 => 1,
            StoredActivations::F32 => 2,
        }
    }

    /// How a matrix or a table of `dtype` in the file is kept.
    ///
    /// Plain weights are kept as bf16 where products round them to it anyway, and so are the values
    /// of an embedding table, which may be the output's matrix too.
    pub fn kept_dtype(self, dtype: DType) -> DType {
        match (self, dtype) {
            (StoredActivations::Bf16, DType::F16 | DType::F32) => DType::BF16,
            _ => dtype,
        }
    }
}

/// How products of many rows on a GPU load are summed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoredProducts {
    /// As those of few rows, to the bit; the default.
    #[default]
    Same,
    /// Where a card has a kernel for it, each sum in one chain: faster, and of other bits than few
    /// rows have.
    Fast,
}

/// Encoded rows, in one of two regions: products read one while they write the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodedRows {
    /// 0 for rows of a buffer, as they are or times the gain of a norm; 1 for results of attention
    /// and of SwiGLU. A gated product writes the one that it does not read.
    pub region: usize,
    /// Which rows.
    pub rows: Rows,
    /// Values a row.
    pub cols: u32,
}

/// Matrices of one kept dtype that share an input.
#[derive(Clone, Debug)]
pub struct Products {
    /// Their input.
    pub x: EncodedRows,
    /// The `eps` of the norm that they finish: `x` was encoded times its gain only.
    pub norm: Option<f32>,
    /// At most [`PARTS_MAX`].
    pub parts: Vec<LinearPart>,
    /// Adds to what is there.
    pub accumulate: bool,
    /// The norm of the rows that they write.
    pub then: Option<NormAfter>,
}

/// A norm right behind products of one part that write the whole of its rows; a step of its own
/// ([`FusedStep::NormEncode`]) elsewhere.
#[derive(Clone, Copy, Debug)]
pub struct NormAfter {
    /// Gain.
    pub w: WeightId,
    /// Added to the mean square.
    pub eps: f32,
    /// Result, in the region that the products do not read.
    pub to: EncodedRows,
}

/// Norm and rotation of queries and keys, and the slot of the pool.
#[derive(Clone, Copy, Debug)]
pub struct Prepare {
    /// Queries, in place.
    pub q: BufferId,
    /// Keys, in place.
    pub k: BufferId,
    /// Values.
    pub v: BufferId,
    /// Gain of the queries' norm.
    pub q_norm: Option<WeightId>,
    /// Gain of the keys' norm.
    pub k_norm: Option<WeightId>,
    /// Of both norms.
    pub eps: f32,
    /// Attention layer.
    pub layer: u32,
}

/// One step.
#[derive(Clone, Debug)]
pub enum FusedStep {
    /// `to` = x times the gain of a norm, and what else the products of `to` need to finish it; of
    /// the rows of logits where `gathered`, else of all.
    NormEncode {
        /// Input.
        x: BufferId,
        /// Gain.
        w: WeightId,
        /// Added to the mean square.
        eps: f32,
        /// Whether `to` holds the rows of logits, and `x` all rows.
        gathered: bool,
        /// Result.
        to: EncodedRows,
    },
    /// `to` = x.
    Encode {
        /// Input.
        x: BufferId,
        /// Result.
        to: EncodedRows,
    },
    /// `to` = silu(gate) * up.
    SwiGluEncode {
        /// Goes through the sigmoid.
        gate: BufferId,
        /// Multiplies it.
        up: BufferId,
        /// Result.
        to: EncodedRows,
    },
    /// Products of one input.
    Products(Products),
    /// `to` = silu(gate x) * (up x).
    Glu {
        /// Input.
        x: EncodedRows,
        /// As of [`Products`].
        norm: Option<f32>,
        /// Matrix whose product goes through the sigmoid.
        gate: WeightId,
        /// Matrix whose product multiplies it.
        up: WeightId,
        /// Result.
        to: EncodedRows,
    },
    /// Queries and keys made ready, and the keys and values stored.
    Prepare(Prepare),
    /// Attention that writes the input of the product behind it.
    Attention {
        /// The op.
        op: PagedAttention,
        /// What makes its queries and keys ready, where nothing else reads those.
        prepare: Option<Prepare>,
        /// Result.
        to: EncodedRows,
    },
    /// The op with this index, as it stands.
    Op(usize),
}

/// Most matrices of one launch.
pub const PARTS_MAX: usize = 3;

/// A program's steps.
#[derive(Clone, Debug)]
pub struct FusedProgram {
    /// In order.
    pub steps: Vec<FusedStep>,
    /// First step of the head.
    pub head: usize,
}

impl FusedProgram {
    /// Which buffers of `program` a step reads or writes in memory, by `BufferId`.
    pub fn buffers_in_memory(&self, program: &Program) -> Vec<bool> {
        let mut touched = vec![false; program.buffers.len()];
        touched[program.logits.0 as usize] = true;
        let mut touch = |id: BufferId| touched[id.0 as usize] = true;
        for step in &self.steps {
            match step {
                FusedStep::NormEncode { x, .. } | FusedStep::Encode { x, .. } => touch(*x),
                FusedStep::SwiGluEncode { gate, up, .. } => {
                    [*gate, *up].into_iter().for_each(&mut touch)
                }
                FusedStep::Products(products) => {
                    products.parts.iter().for_each(|part| touch(part.y));
                }
                FusedStep::Glu { .. } => {}
                FusedStep::Prepare(p) => [p.q, p.k, p.v].into_iter().for_each(&mut touch),
                FusedStep::Attention { op, prepare, .. } => {
                    touch(op.q);
                    if let Some(p) = prepare {
                        [p.q, p.k, p.v].into_iter().for_each(&mut touch);
                    }
                }
                FusedStep::Op(at) => program.ops[*at].buffers(&mut touch),
            }
        }
        touched
    }

    /// What each step encodes.
    pub fn encoded(&self) -> impl Iterator<Item = EncodedRows> + '_ {
        self.steps.iter().filter_map(|step| match step {
            FusedStep::NormEncode { to, .. }
            | FusedStep::Encode { to, .. }
            | FusedStep::SwiGluEncode { to, .. }
            | FusedStep::Glu { to, .. }
            | FusedStep::Attention { to, .. } => Some(*to),
            FusedStep::Products(products) => products.then.map(|norm| norm.to),
            FusedStep::Prepare(_) | FusedStep::Op(_) => None,
        })
    }

    /// Those of [`FusedProgram::encoded`] that hold rows of a norm.
    pub fn normed(&self) -> impl Iterator<Item = EncodedRows> + '_ {
        self.steps.iter().filter_map(|step| match step {
            FusedStep::NormEncode { to, .. } => Some(*to),
            FusedStep::Products(products) => products.then.map(|norm| norm.to),
            _ => None,
        })
    }
}
