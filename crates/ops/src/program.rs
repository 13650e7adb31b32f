//! A model as a list of ops over typed buffers, weights and sections.

use crate::section::SectionSpec;
use crate::weight::WeightSpec;
use crate::{
    AddRows, AddScaled, CausalConv, DeltaGates, DeltaRule, Embed, ExpertLinear, ExpertSum, Gate,
    GatedNorm, GatherRows, KvAppend, L2NormHeads, Linear, PagedAttention, RmsNorm, Rope, RopeTable,
    Route, SwiGlu,
};

/// An activation buffer of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BufferId(pub u32);

/// A weight of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WeightId(pub u32);

/// How many rows a buffer has in the widest round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// One a token of the round.
    Round,
    /// One a row of logits.
    Logits,
}

/// One activation buffer: `[rows, width]` f32, row-major.
#[derive(Clone, Debug)]
pub struct BufferSpec {
    /// For errors and dumps.
    pub name: &'static str,
    /// Which rows.
    pub rows: Rows,
    /// Values a row.
    pub width: u32,
}

/// Shape of the KV pool that a program's attention layers share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Attention layers.
    pub layers: u32,
    /// Key/value heads.
    pub kv_heads: u32,
    /// Values a head.
    pub head_dim: u32,
}

/// One step of a program.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub enum Op {
    Embed(Embed),
    RmsNorm(RmsNorm),
    Linear(Linear),
    Rope(Rope),
    KvAppend(KvAppend),
    PagedAttention(PagedAttention),
    SwiGlu(SwiGlu),
    AddRows(AddRows),
    GatherRows(GatherRows),
    Gate(Gate),
    CausalConv(CausalConv),
    L2NormHeads(L2NormHeads),
    DeltaGates(DeltaGates),
    DeltaRule(DeltaRule),
    GatedNorm(GatedNorm),
    Route(Route),
    ExpertLinear(ExpertLinear),
    ExpertSum(ExpertSum),
    AddScaled(AddScaled),
}

impl Op {
    /// Row `r` of every output reads only row `r` of the inputs.
    pub fn is_row_local(&self) -> bool {
        match self {
            Op::Embed(_)
            | Op::RmsNorm(_)
            | Op::Rope(_)
            | Op::KvAppend(_)
            | Op::SwiGlu(_)
            | Op::AddRows(_)
            | Op::Gate(_)
            | Op::L2NormHeads(_)
            | Op::DeltaGates(_)
            | Op::GatedNorm(_)
            | Op::Route(_)
            | Op::AddScaled(_) => true,
            Op::Linear(_)
            | Op::PagedAttention(_)
            | Op::GatherRows(_)
            | Op::CausalConv(_)
            | Op::DeltaRule(_)
            | Op::ExpertLinear(_)
            | Op::ExpertSum(_) => false,
        }
    }

    /// Whether the op reads or writes a buffer.
    pub fn touches(&self, id: BufferId) -> bool {
        let mut touched = false;
        self.buffers(|other| touched |= other == id);
        touched
    }

    /// Whether the op writes all of a buffer and reads nothing of it; `false` where it says nothing
    /// about that.
    pub fn overwrites(&self, id: BufferId) -> bool {
        self.touches(id)
            && match self {
                Op::Embed(_) => true,
                Op::RmsNorm(op) => op.x != id,
                Op::Linear(op) => op.x != id && !op.accumulate,
                Op::PagedAttention(op) => op.q != id,
                Op::SwiGlu(op) => op.gate != id && op.up != id,
                Op::GatherRows(op) => op.x != id,
                _ => false,
            }
    }

    /// Calls `visit` with every activation buffer that the op reads or writes.
    pub fn buffers(&self, mut visit: impl FnMut(BufferId)) {
        match self {
            Op::Embed(op) => visit(op.y),
            Op::RmsNorm(op) => [op.x, op.y].into_iter().for_each(visit),
            Op::Linear(op) => {
                visit(op.x);
                op.parts.iter().for_each(|part| visit(part.y));
            }
            Op::Rope(op) => visit(op.x),
            Op::KvAppend(op) => [op.k, op.v].into_iter().for_each(visit),
            Op::PagedAttention(op) => [op.q, op.o].into_iter().for_each(visit),
            Op::SwiGlu(op) => [op.gate, op.up, op.y].into_iter().for_each(visit),
            Op::AddRows(op) => [op.x, op.y].into_iter().for_each(visit),
            Op::GatherRows(op) => [op.x, op.y].into_iter().for_each(visit),
            Op::Gate(op) => [op.gate, op.y].into_iter().for_each(visit),
            Op::CausalConv(op) => [op.x, op.y].into_iter().for_each(visit),
            Op::L2NormHeads(op) => visit(op.x),
            Op::DeltaGates(op) => [op.a, op.b].into_iter().for_each(visit),
            Op::DeltaRule(op) => [op.qkv, op.a, op.b, op.y].into_iter().for_each(visit),
            Op::GatedNorm(op) => [op.x, op.gate, op.y].into_iter().for_each(visit),
            Op::Route(op) => [op.scores, op.ids, op.weights].into_iter().for_each(visit),
            Op::ExpertLinear(op) => {
                [op.x, op.ids].into_iter().for_each(&mut visit);
                op.parts.iter().for_each(|part| visit(part.y));
            }
            Op::ExpertSum(op) => [op.x, op.ids, op.weights, op.y].into_iter().for_each(visit),
            Op::AddScaled(op) => [op.x, op.scale, op.y].into_iter().for_each(visit),
        }
    }
}

/// A model, complete: weights, buffers, ops, and what it keeps of a sequence.
///
/// `ops[..head]` turn tokens into the last hidden state of every row; `ops[head..]` start with a
/// [`GatherRows`] and end with the logits. A device may run the head again for other rows of the
/// same round.
#[derive(Clone, Debug)]
pub struct Program {
    /// Every weight, by [`WeightId`].
    pub weights: Vec<WeightSpec>,
    /// Every buffer, by [`BufferId`].
    pub buffers: Vec<BufferSpec>,
    /// State of a sequence beside its pages, by [`SectionId`](crate::SectionId).
    pub sections: Vec<SectionSpec>,
    /// The steps, in order.
    pub ops: Vec<Op>,
    /// First op of the head.
    pub head: usize,
    /// `[logit rows, vocab]`: what sampling reads.
    pub logits: BufferId,
    /// Rows of the vocabulary, padding included: the width of `logits`.
    pub vocab: u32,
    /// Shape of the pool.
    pub kv: KvShape,
    /// Rotary frequencies of every [`Rope`].
    pub rope: RopeTable,
}

impl Program {
    /// The spec of a weight.
    pub fn weight(&self, id: WeightId) -> &WeightSpec {
        &self.weights[id.0 as usize]
    }

    /// The spec of a buffer.
    pub fn buffer(&self, id: BufferId) -> &BufferSpec {
        &self.buffers[id.0 as usize]
    }

    /// Ops that a buffer lives through, first to last, both included.
    pub fn lifetimes(&self) -> Vec<(usize, usize)> {
        let mut spans = vec![(usize::MAX, 0); self.buffers.len()];
        for (at, op) in self.ops.iter().enumerate() {
            op.buffers(|id| {
                let span = &mut spans[id.0 as usize];
                span.0 = span.0.min(at);
                span.1 = span.1.max(at);
            });
        }
        // The head may run again for other rows, so what it reads outlives the round.
        for span in &mut spans {
            if span.0 < self.head && span.1 >= self.head {
                span.1 = self.ops.len();
            }
        }
        spans[self.logits.0 as usize].1 = self.ops.len();
        spans
    }
}
