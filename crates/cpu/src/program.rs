//! A program made ready to run: a flat list of steps with every address resolved.
//!
//! Workers wait for each other only between steps. Row-local ops that follow each other form one
//! step, in which a worker takes whole rows through all of them; the encoding of a product's input
//! is the last of them. A chain is cut where an op would write bytes that the chain has used under
//! another name, since another worker may still be at an earlier op of another row.

use std::ops::Range;
use std::sync::atomic::AtomicU32;

use ignis_backend::{Addresses, DeviceError};
use ignis_ops::{BufferId, Linear, Op, Program, Rows, WeightId};
use ignis_types::{Bytes, Limits};

use crate::experts::{ExpertOp, ExpertPart};
use crate::gates::GateOp;
use crate::layout::{CpuLayout, linear_encoding, rows_max};
use crate::linear::{Encoding, Matrix, encoded_row_bytes, encoding_for, panels};
use crate::state::Scan;

/// An activation buffer or a part of the scratch: `[rows, width]` f32 from an address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) at: *mut f32,
    pub(crate) width: usize,
}

impl Place {
    /// Start of a row.
    pub(crate) fn row(&self, row: usize) -> *mut f32 {
        self.at.wrapping_add(row * self.width)
    }
}

/// What happens to one row.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RowOp {
    Angles,
    Embed {
        table: Matrix,
        y: Place,
    },
    RmsNorm {
        x: Place,
        w: *const f32,
        y: Place,
        width: usize,
        eps: f32,
    },
    Rope {
        x: Place,
        head_dim: usize,
    },
    KvAppend {
        layer: u32,
        k: Place,
        v: Place,
    },
    SwiGlu {
        gate: Place,
        up: Place,
        y: Place,
    },
    Add {
        x: Place,
        y: Place,
    },
    Gather {
        x: Place,
        y: Place,
    },
    Gate(GateOp),
    Expert(ExpertOp),
    /// Joins the runs of a row that attention has split.
    Join {
        attention: usize,
    },
    Encode {
        x: Place,
        encoding: Encoding,
        to: *mut u8,
        row_bytes: usize,
    },
}

/// One matrix of a product.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) matrix: Matrix,
    pub(crate) encoding: Encoding,
    pub(crate) encoded: *const u8,
    pub(crate) bias: Option<*const f32>,
    pub(crate) y: Place,
    pub(crate) panels: u32,
}

/// One attention op.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attention {
    pub(crate) layer: u32,
    pub(crate) q: Place,
    pub(crate) o: Place,
    pub(crate) scale: f32,
}

/// What all workers do between two barriers.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// `row_ops` of each row; workers share the rows.
    Rows { rows: Rows, ops: Range<usize> },
    /// All `parts`; workers share the panels.
    Linear { rows: Rows, parts: Range<usize>, panels: u32, accumulate: bool },
    /// Workers share the items of the round's plan.
    Attention { attention: usize },
    /// Workers share the segments and the parts of their state.
    Scan(Scan),
    /// One worker sorts the round's pairs by expert.
    Group { ids: Place, experts: usize },
    /// Workers share the panels of the experts that have pairs.
    Experts { parts: Range<usize>, panels: u32 },
}

/// A bound program.
#[derive(Debug)]
pub(crate) struct Compiled {
    pub(crate) steps: Vec<Step>,
    /// First step of the head.
    pub(crate) head: usize,
    pub(crate) row_ops: Vec<RowOp>,
    pub(crate) parts: Vec<Part>,
    pub(crate) expert_parts: Vec<ExpertPart>,
    pub(crate) attentions: Vec<Attention>,
    /// Work handed out so far, by step.
    pub(crate) claimed: Vec<AtomicU32>,
    /// Ids that the embedding accepts.
    pub(crate) vocab: u32,
}

/// Resolves `program` against the reservation that starts at `base`.
pub(crate) fn compile(
    program: &Program,
    addresses: &Addresses,
    limits: &Limits,
    layout: &CpuLayout,
    base: *mut u8,
) -> Result<Compiled, DeviceError> {
    let mut compiler = Compiler {
        program,
        addresses,
        limits,
        layout,
        base,
        out: Compiled {
            steps: vec![],
            head: 0,
            row_ops: vec![],
            parts: vec![],
            expert_parts: vec![],
            attentions: vec![],
            claimed: vec![],
            vocab: u32::MAX,
        },
        chain: None,
        routed: None,
    };
    if !program.rope.inv_freq.is_empty() {
        compiler.chain_op(Rows::Round, &[], None, RowOp::Angles);
    }
    for (at, op) in program.ops.iter().enumerate() {
        if at == program.head {
            compiler.end_chain();
            compiler.out.head = compiler.out.steps.len();
        }
        compiler.op(op)?;
    }
    compiler.end_chain();
    let mut compiled = compiler.out;
    compiled.claimed = compiled.steps.iter().map(|_| AtomicU32::new(0)).collect();
    Ok(compiled)
}

/// The row-local ops that are being collected.
struct Chain {
    rows: Rows,
    from: usize,
    /// Buffers used so far.
    used: Vec<BufferId>,
}

pub(crate) struct Compiler<'a> {
    pub(crate) program: &'a Program,
    pub(crate) addresses: &'a Addresses,
    pub(crate) limits: &'a Limits,
    pub(crate) layout: &'a CpuLayout,
    pub(crate) base: *mut u8,
    pub(crate) out: Compiled,
    chain: Option<Chain>,
    /// Ids of the last route.
    pub(crate) routed: Option<BufferId>,
}

impl Compiler<'_> {
    fn op(&mut self, op: &Op) -> Result<(), DeviceError> {
        let program = self.program;
        let rows = |id: BufferId| program.buffer(id).rows;
        match op {
            Op::Embed(op) => {
                self.needs_round_rows(op.y)?;
                self.out.vocab = self.out.vocab.min(program.weight(op.table).rows);
                let (table, y) = (self.matrix(op.table), self.place(op.y));
                self.chain_op(rows(op.y), &[], Some(op.y), RowOp::Embed { table, y });
            }
            Op::RmsNorm(op) => {
                let width = program.weight(op.w).cols as usize;
                let (x, w, y) = (self.place(op.x), self.vector(op.w), self.place(op.y));
                let norm = RowOp::RmsNorm { x, w, y, width, eps: op.eps };
                self.chain_op(rows(op.y), &[op.x], Some(op.y), norm);
            }
            Op::Rope(op) => {
                self.needs_round_rows(op.x)?;
                let rope = RowOp::Rope { x: self.place(op.x), head_dim: op.head_dim as usize };
                self.chain_op(rows(op.x), &[], Some(op.x), rope);
            }
            Op::KvAppend(op) => {
                self.needs_round_rows(op.k)?;
                let (k, v) = (self.place(op.k), self.place(op.v));
                let append = RowOp::KvAppend { layer: op.layer, k, v };
                self.chain_op(rows(op.k), &[op.k, op.v], None, append);
            }
            Op::SwiGlu(op) => {
                let (gate, up, y) = (self.place(op.gate), self.place(op.up), self.place(op.y));
                let gated = RowOp::SwiGlu { gate, up, y };
                self.chain_op(rows(op.y), &[op.gate, op.up], Some(op.y), gated);
            }
            Op::AddRows(op) => {
                let add = RowOp::Add { x: self.place(op.x), y: self.place(op.y) };
                self.chain_op(rows(op.y), &[op.x], Some(op.y), add);
            }
            Op::GatherRows(op) => {
                // It reads rows that other workers have written: nothing may be pending.
                self.end_chain();
                let gather = RowOp::Gather { x: self.place(op.x), y: self.place(op.y) };
                self.chain_op(rows(op.y), &[op.x], Some(op.y), gather);
            }
            Op::PagedAttention(op) => {
                self.needs_round_rows(op.q)?;
                self.end_chain();
                let attention = self.out.attentions.len();
                let (q, o) = (self.place(op.q), self.place(op.o));
                self.out.attentions.push(Attention { layer: op.layer, q, o, scale: op.scale });
                self.out.steps.push(Step::Attention { attention });
                self.chain_op(Rows::Round, &[], Some(op.o), RowOp::Join { attention });
            }
            Op::Linear(op) => self.linear(op),
            Op::Gate(_)
            | Op::AddScaled(_)
            | Op::L2NormHeads(_)
            | Op::DeltaGates(_)
            | Op::GatedNorm(_) => self.gate_op(op),
            Op::CausalConv(op) => self.conv(op)?,
            Op::DeltaRule(op) => self.delta(op)?,
            Op::Route(op) => self.route(op)?,
            Op::ExpertLinear(op) => self.expert_linear(op)?,
            Op::ExpertSum(op) => self.expert_sum(op)?,
        }
        Ok(())
    }

    /// Appends the encodings of the input to the chain, then the product.
    fn linear(&mut self, op: &Linear) {
        let x = self.program.buffer(op.x);
        let want = linear_encoding(op, self.layout.options().activations);
        let first = self.out.parts.len();
        let mut at = self.addresses.scratch.0;
        let mut encoded: Vec<(Encoding, *const u8)> = vec![];
        for part in &op.parts {
            let weight = self.program.weight(part.w);
            let encoding = encoding_for(weight.dtype, want);
            let known = encoded.iter().find(|(known, _)| *known == encoding).map(|known| known.1);
            let from = known.unwrap_or_else(|| {
                let (to, row_bytes) = (self.address(at), encoded_row_bytes(x.width, encoding));
                let encode = RowOp::Encode { x: self.place(op.x), encoding, to, row_bytes };
                self.chain_op(x.rows, &[op.x], None, encode);
                at += row_bytes as u64 * rows_max(x.rows, self.limits);
                encoded.push((encoding, to));
                to.cast_const()
            });
            self.out.parts.push(Part {
                matrix: self.matrix(part.w),
                encoding,
                encoded: from,
                bias: part.bias.map(|bias| self.vector(bias)),
                y: self.place(part.y),
                panels: panels(weight.rows),
            });
        }
        self.end_chain();
        let parts = first..self.out.parts.len();
        let panels = self.out.parts[parts.clone()].iter().map(|part| part.panels).sum();
        let accumulate = op.accumulate;
        self.out.steps.push(Step::Linear { rows: x.rows, parts, panels, accumulate });
    }

    /// Adds a row-local op to the chain, or starts a new one where it does not fit.
    pub(crate) fn chain_op(
        &mut self,
        rows: Rows,
        reads: &[BufferId],
        writes: Option<BufferId>,
        op: RowOp,
    ) {
        let fits = self.chain.as_ref().is_none_or(|chain| {
            let clash =
                |&used: &BufferId| writes.is_some_and(|id| id != used && self.overlap(id, used));
            chain.rows == rows && !chain.used.iter().any(clash)
        });
        if !fits {
            self.end_chain();
        }
        let from = self.out.row_ops.len();
        let chain = self.chain.get_or_insert(Chain { rows, from, used: vec![] });
        chain.used.extend(reads.iter().copied().chain(writes));
        self.out.row_ops.push(op);
    }

    pub(crate) fn end_chain(&mut self) {
        if let Some(chain) = self.chain.take() {
            let ops = chain.from..self.out.row_ops.len();
            self.out.steps.push(Step::Rows { rows: chain.rows, ops });
        }
    }

    fn overlap(&self, a: BufferId, b: BufferId) -> bool {
        let span = |id: BufferId| {
            let spec = self.program.buffer(id);
            let from = self.addresses.buffers[id.0 as usize];
            from..from + 4 * u64::from(spec.width) * rows_max(spec.rows, self.limits)
        };
        let (a, b) = (span(a), span(b));
        a.start < b.end && b.start < a.end
    }

    pub(crate) fn needs_round_rows(&self, id: BufferId) -> Result<(), DeviceError> {
        match self.program.buffer(id).rows {
            Rows::Round => Ok(()),
            Rows::Logits => Err(DeviceError::ShapeUnsupported {
                what: "op on rows of logits that reads positions",
                found: u64::from(id.0),
                expected: "a buffer of round rows",
            }),
        }
    }

    pub(crate) fn address(&self, offset: u64) -> *mut u8 {
        self.base.wrapping_add(Bytes(offset).as_usize())
    }

    pub(crate) fn place(&self, id: BufferId) -> Place {
        let at = self.address(self.addresses.buffers[id.0 as usize]).cast();
        Place { at, width: self.program.buffer(id).width as usize }
    }

    pub(crate) fn vector(&self, id: WeightId) -> *const f32 {
        self.address(self.addresses.weights[id.0 as usize]).cast_const().cast()
    }

    fn matrix(&self, id: WeightId) -> Matrix {
        let weight = self.program.weight(id);
        let at = self.address(self.addresses.weights[id.0 as usize]);
        // SAFETY: the region of the weight holds `packed_bytes` bytes, which `put_weight` fills
        // before the first round and nobody writes after it.
        unsafe { Matrix::new(weight.dtype, weight.rows, weight.cols, at) }
    }
}
