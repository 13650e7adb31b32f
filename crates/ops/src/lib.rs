//! Contracts of every op, and the program that a model writes with them.
//!
//! Purpose: a model is a list of ops over typed buffers ([`Program`]). One file per op states its
//! mathematics, shapes, aliasing and errors; a device fulfils the contract in its own way.
//!
//! Key properties:
//! - A program is data. Laying it out (counting) and binding it (running) read the same value, so
//!   no second formula can drift.
//! - Every activation is f32 and row-major; a row is one token of the round (or one row of logits).
//! - An op is *row-local* when row `r` of its outputs reads nothing but row `r` of its inputs
//!   ([`Op::is_row_local`]); a device may chain such ops without waiting in between.
//!
//! Leaves out: how any device runs an op, who asks for it, and what memory it lives in.
#![forbid(unsafe_code)]

mod add_rows;
mod attention;
mod embed;
mod error;
mod gather;
mod kv_append;
mod linear;
mod program;
mod rms_norm;
mod rope;
mod round;
mod sample;
mod swiglu;

pub use add_rows::AddRows;
pub use attention::PagedAttention;
pub use embed::Embed;
pub use error::ShapeError;
pub use gather::GatherRows;
pub use kv_append::KvAppend;
pub use linear::{Linear, LinearPart};
pub use program::{
    BufferId, BufferSpec, KvShape, Op, Program, ProgramBuilder, RowOrder, Rows, WeightId,
    WeightKind, WeightSpec,
};
pub use rms_norm::RmsNorm;
pub use rope::{Rope, RopeScaling, RopeTable};
pub use round::{Round, Segment};
pub use sample::{LOGIT_BIAS_MAX, SampleOut, Sampling, TOP_LOGPROBS_MAX, uniform};
pub use swiglu::SwiGlu;
