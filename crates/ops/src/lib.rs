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
mod add_scaled;
mod attention;
mod builder;
mod causal_conv;
mod check;
mod delta_gates;
mod delta_rule;
mod embed;
mod error;
mod expert_linear;
mod expert_sum;
mod gate;
mod gated_norm;
mod gather;
mod kv_append;
mod l2_norm_heads;
mod linear;
mod program;
mod rms_norm;
mod rope;
mod round;
mod route;
mod sample;
mod section;
mod swiglu;
mod weight;

pub use add_rows::AddRows;
pub use add_scaled::AddScaled;
pub use attention::PagedAttention;
pub use builder::ProgramBuilder;
pub use causal_conv::CausalConv;
pub use delta_gates::DeltaGates;
pub use delta_rule::{DeltaRule, HeadMap};
pub use embed::Embed;
pub use error::ShapeError;
pub use expert_linear::{ExpertLinear, ExpertPart};
pub use expert_sum::ExpertSum;
pub use gate::Gate;
pub use gated_norm::{GateFunction, GatedNorm};
pub use gather::GatherRows;
pub use kv_append::KvAppend;
pub use l2_norm_heads::L2NormHeads;
pub use linear::{Linear, LinearPart};
pub use program::{BufferId, BufferSpec, KvShape, Op, Program, Rows, WeightId};
pub use rms_norm::RmsNorm;
pub use rope::{Rope, RopeScaling, RopeTable};
pub use round::{Round, Segment};
pub use route::Route;
pub use sample::{LOGIT_BIAS_MAX, SampleOut, Sampling, TOP_LOGPROBS_MAX, uniform};
pub use section::{SectionFormat, SectionId, SectionSpec};
pub use swiglu::SwiGlu;
pub use weight::{RowOrder, VectorMap, WeightKind, WeightSpec};
