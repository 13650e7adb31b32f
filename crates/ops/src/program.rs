//! A model as a list of ops over typed buffers and weights.

use ignis_types::DType;

use crate::error::{ShapeError, equal, multiple};
use crate::{
    AddRows, Embed, GatherRows, KvAppend, Linear, PagedAttention, RmsNorm, Rope, RopeTable, SwiGlu,
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

/// What a weight is used for; a device chooses its layout by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightKind {
    /// `[out, in]`, read by [`Linear`].
    Matrix,
    /// `[vocab, hidden]`, read by [`Embed`] a row at a time.
    Table,
    /// A [`WeightKind::Matrix`] that is read as a table too: tied embeddings.
    TableAndMatrix,
    /// `[n]`, expanded to f32.
    Vector,
}

/// The order of a matrix's rows in the file, and so what the loader does to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowOrder {
    /// As the program wants them.
    AsStored,
    /// llama GGUF: each head's rotary pairs are adjacent (`[heads, head_dim/2, 2]`); the program
    /// wants halves (`[heads, 2, head_dim/2]`).
    AdjacentPairs {
        /// Rows of one head.
        head_dim: u32,
    },
}

/// One weight of a program and where it comes from.
#[derive(Clone, Debug)]
pub struct WeightSpec {
    /// Name in the checkpoint.
    pub name: String,
    /// Stored dtype.
    pub dtype: DType,
    /// Rows (`out`, `vocab`); 1 for a vector.
    pub rows: u32,
    /// Columns (`in`, `hidden`, the vector's length).
    pub cols: u32,
    /// How it is used.
    pub kind: WeightKind,
    /// How its rows are ordered in the file.
    pub order: RowOrder,
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
            | Op::AddRows(_) => true,
            Op::Linear(_) | Op::PagedAttention(_) | Op::GatherRows(_) => false,
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
        }
    }
}

/// A model, complete: weights, buffers, ops, and the shape of its KV pool.
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

/// Collects a program op by op and checks every shape on the way.
#[derive(Debug)]
pub struct ProgramBuilder {
    weights: Vec<WeightSpec>,
    buffers: Vec<BufferSpec>,
    ops: Vec<Op>,
    kv: KvShape,
    rope: RopeTable,
    head: Option<usize>,
}

impl ProgramBuilder {
    /// An empty program over a pool of `kv` and the frequencies of `rope`.
    pub fn new(kv: KvShape, rope: RopeTable) -> Self {
        ProgramBuilder { weights: vec![], buffers: vec![], ops: vec![], kv, rope, head: None }
    }

    /// Declares a weight.
    pub fn weight(&mut self, spec: WeightSpec) -> WeightId {
        self.weights.push(spec);
        WeightId(self.weights.len() as u32 - 1)
    }

    /// Declares a buffer; it lives from its first to its last op.
    pub fn buffer(&mut self, name: &'static str, rows: Rows, width: u32) -> BufferId {
        self.buffers.push(BufferSpec { name, rows, width });
        BufferId(self.buffers.len() as u32 - 1)
    }

    /// Appends an op, after checking it against its contract.
    pub fn push(&mut self, op: Op) -> Result<(), ShapeError> {
        self.check(&op)?;
        self.ops.push(op);
        Ok(())
    }

    /// Everything pushed from here on belongs to the head.
    pub fn begin_head(&mut self) {
        self.head = Some(self.ops.len());
    }

    /// The program, whose logits are in `logits`.
    pub fn finish(self, logits: BufferId) -> Program {
        let vocab = self.buffers[logits.0 as usize].width;
        Program {
            head: self.head.expect("every program has a head"),
            weights: self.weights,
            buffers: self.buffers,
            ops: self.ops,
            logits,
            vocab,
            kv: self.kv,
            rope: self.rope,
        }
    }

    fn width(&self, id: BufferId) -> u64 {
        u64::from(self.buffers[id.0 as usize].width)
    }

    fn spec(&self, id: WeightId) -> &WeightSpec {
        &self.weights[id.0 as usize]
    }

    fn check(&self, op: &Op) -> Result<(), ShapeError> {
        let kv_width = u64::from(self.kv.kv_heads) * u64::from(self.kv.head_dim);
        match op {
            Op::Embed(op) => {
                let table = self.spec(op.table);
                equal("embed", "width of y", self.width(op.y), u64::from(table.cols))
            }
            Op::RmsNorm(op) => {
                let gain = u64::from(self.spec(op.w).cols);
                equal("rms_norm", "width of y", self.width(op.y), self.width(op.x))?;
                multiple("rms_norm", "width of x", self.width(op.x), gain)
            }
            Op::Linear(op) => op.parts.iter().try_for_each(|part| {
                let w = self.spec(part.w);
                equal("linear", "width of x", self.width(op.x), u64::from(w.cols))?;
                equal("linear", "width of y", self.width(part.y), u64::from(w.rows))?;
                if let Some(bias) = part.bias {
                    equal("linear", "bias", u64::from(self.spec(bias).cols), u64::from(w.rows))?;
                }
                Ok(())
            }),
            Op::Rope(op) => {
                multiple("rope", "width of x", self.width(op.x), u64::from(op.head_dim))?;
                let rotary = self.rope.rotary_dim() as u64;
                if rotary > u64::from(op.head_dim) {
                    return equal("rope", "rotary_dim", rotary, u64::from(op.head_dim));
                }
                Ok(())
            }
            Op::KvAppend(op) => {
                equal("kv_append", "width of k", self.width(op.k), kv_width)?;
                equal("kv_append", "width of v", self.width(op.v), kv_width)
            }
            Op::PagedAttention(op) => {
                equal("attention", "width of o", self.width(op.o), self.width(op.q))?;
                multiple("attention", "width of q", self.width(op.q), kv_width)
            }
            Op::SwiGlu(op) => {
                equal("swiglu", "width of up", self.width(op.up), self.width(op.gate))?;
                equal("swiglu", "width of y", self.width(op.y), self.width(op.gate))
            }
            Op::AddRows(op) => equal("add_rows", "width of x", self.width(op.x), self.width(op.y)),
            Op::GatherRows(op) => {
                equal("gather_rows", "width of y", self.width(op.y), self.width(op.x))
            }
        }
    }
}
