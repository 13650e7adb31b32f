//! One worker's walk through the steps of a bound program.

use std::ops::Range;
use std::slice;
use std::sync::atomic::Ordering::Relaxed;

use ignis_ops::{RopeTable, Rows, Segment};
use ignis_types::PAGE_TOKENS;

use crate::attention::{self, AttentionPlan, Call, NO_SPLIT, Sizes};
use crate::experts::Groups;
use crate::kv::{self, KvPool};
use crate::linear;
use crate::pool::{Poisoned, Worker};
use crate::program::{Attention, Compiled, RowOp, Step};
use crate::rows;
use crate::simd::Isa;

/// Pieces of a product that each worker gets on average: enough to even out a slow one.
pub(crate) const PIECES: u32 = 6;

/// Which token a row is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token {
    pub(crate) id: u32,
    pub(crate) lane: u32,
    pub(crate) position: u32,
}

/// What every worker reads during a round.
pub(crate) struct RoundJob<'a> {
    pub(crate) isa: Isa,
    pub(crate) base: *mut u8,
    pub(crate) compiled: &'a Compiled,
    pub(crate) steps: Range<usize>,
    pub(crate) rope: &'a RopeTable,
    pub(crate) pool: KvPool,
    pub(crate) sizes: Sizes,
    pub(crate) plan: &'a AttentionPlan,
    pub(crate) tokens: &'a [Token],
    pub(crate) segments: &'a [Segment],
    pub(crate) groups: Groups,
    pub(crate) logit_rows: &'a [u32],
    pub(crate) block_tables: &'a [u32],
    pub(crate) stride: usize,
    pub(crate) cos: *mut f32,
    pub(crate) sin: *mut f32,
    pub(crate) partials: *mut f32,
    /// Scratch of worker 0; the others follow `worker_bytes` apart.
    pub(crate) workers: *mut u8,
    pub(crate) worker_bytes: usize,
}

// SAFETY: workers share it for reading; what they write through its pointers is theirs by the
// division of work in `walk`.
unsafe impl Sync for RoundJob<'_> {}

/// Entry of a round.
///
/// # Safety
/// `context` is a `RoundJob` whose addresses were checked at bind and whose round was checked
/// against the limits; no work has been claimed.
pub(crate) unsafe fn walk(context: *const (), worker: Worker<'_>) -> Result<(), Poisoned> {
    // SAFETY: by the contract above.
    let job = unsafe { &*context.cast::<RoundJob<'_>>() };
    for at in job.steps.clone() {
        // SAFETY: all workers are at this step; the barrier below ends it for all.
        unsafe { job.step(at, &worker) };
        worker.barrier()?;
    }
    Ok(())
}

impl RoundJob<'_> {
    fn rows(&self, rows: Rows) -> usize {
        match rows {
            Rows::Round => self.tokens.len(),
            Rows::Logits => self.logit_rows.len(),
        }
    }

    unsafe fn step(&self, at: usize, worker: &Worker<'_>) {
        match &self.compiled.steps[at] {
            Step::Rows { rows, ops } => {
                let (rows, count) = (self.rows(*rows), worker.count());
                let own = rows * worker.index / count..rows * (worker.index + 1) / count;
                for row in own {
                    for op in &self.compiled.row_ops[ops.clone()] {
                        // SAFETY: this worker alone has this row.
                        unsafe { self.row_op(op, row, worker) };
                    }
                }
            }
            Step::Linear { rows, parts, panels, accumulate } => {
                let piece = panels.div_ceil(worker.count() as u32 * PIECES);
                loop {
                    let from = self.compiled.claimed[at].fetch_add(piece, Relaxed);
                    if from >= *panels {
                        break;
                    }
                    let span = from..(from + piece).min(*panels);
                    // SAFETY: this worker alone claimed these panels.
                    unsafe { self.product(self.rows(*rows), parts.clone(), span, *accumulate) };
                }
            }
            Step::Attention { attention } => {
                let call = self.call(&self.compiled.attentions[*attention], worker);
                let heads = self.pool.heads;
                loop {
                    let next = self.compiled.claimed[at].fetch_add(1, Relaxed) as usize;
                    let Some(item) = self.plan.items.get(next / heads) else { break };
                    // SAFETY: this worker alone claimed the item for this head; keys and values of
                    // the round were appended before the last barrier.
                    unsafe { attention::run_item(self.isa, &call, item, next % heads) };
                }
            }
            Step::Scan(scan) => {
                let parts = scan.parts(self.isa);
                loop {
                    let next = self.compiled.claimed[at].fetch_add(1, Relaxed) as usize;
                    let Some(segment) = self.segments.get(next / parts) else { break };
                    // SAFETY: this worker alone claimed this part of the segment.
                    unsafe { scan.run(self.isa, segment, next % parts) };
                }
            }
            Step::Group { ids, experts } => {
                if worker.index == 0 {
                    // SAFETY: one worker; the routes were written before the last barrier.
                    unsafe { self.group(*ids, *experts) };
                }
            }
            Step::Experts { parts, panels } => {
                // SAFETY: all workers are at this step.
                unsafe { self.experts(at, parts.clone(), *panels, worker) };
            }
        }
    }

    /// Panels `span` of the parts laid end to end.
    unsafe fn product(&self, rows: usize, parts: Range<usize>, span: Range<u32>, accumulate: bool) {
        let mut first = 0;
        for part in &self.compiled.parts[parts] {
            let panels = first..first + part.panels;
            let own = span.start.max(panels.start)..span.end.min(panels.end);
            first = panels.end;
            if own.is_empty() {
                continue;
            }
            // SAFETY: the input was encoded before the last barrier, for `rows` rows; `y` is a
            // buffer of at least as many; the panels belong to this worker.
            unsafe {
                linear::run(
                    self.isa,
                    &part.matrix,
                    part.encoding,
                    part.encoded,
                    rows,
                    part.y.at,
                    part.y.width,
                    part.bias,
                    accumulate,
                    own.start - panels.start..own.end - panels.start,
                );
            }
        }
    }

    fn call(&self, op: &Attention, worker: &Worker<'_>) -> Call {
        Call {
            base: self.base,
            pool: self.pool,
            sizes: self.sizes,
            layer: op.layer,
            heads: op.q.width / self.sizes.head_dim,
            scale: op.scale,
            q: op.q.at,
            o: op.o.at,
            block_tables: self.block_tables.as_ptr(),
            stride: self.stride,
            scratch: self.workers.wrapping_add(worker.index * self.worker_bytes).cast(),
            partials: self.partials,
        }
    }

    unsafe fn row_op(&self, op: &RowOp, row: usize, worker: &Worker<'_>) {
        let half = self.rope.inv_freq.len();
        let isa = self.isa;
        // SAFETY: shapes were checked when the program was built and addresses at bind; `row` is
        // one of the round's, and only this worker touches it in this step.
        unsafe {
            match *op {
                RowOp::Angles => rows::angles(
                    self.tokens[row].position,
                    &self.rope.inv_freq,
                    self.rope.magnitude,
                    self.cos.add(row * half),
                    self.sin.add(row * half),
                ),
                RowOp::Embed { table, y } => {
                    let out = slice::from_raw_parts_mut(y.row(row), y.width);
                    linear::table_row(&table, self.tokens[row].id, out);
                }
                RowOp::RmsNorm { x, w, y, width, eps } => {
                    rows::rms_norm(isa, x.row(row), w, y.row(row), width, x.width / width, eps);
                }
                RowOp::Rope { x, head_dim } => {
                    let (cos, sin) = (self.cos.add(row * half), self.sin.add(row * half));
                    rows::rope(isa, x.row(row), cos, sin, half, head_dim, x.width / head_dim);
                }
                RowOp::KvAppend { layer, k, v } => {
                    let Token { lane, position, .. } = self.tokens[row];
                    let index = (position / PAGE_TOKENS) as usize;
                    let page = self.block_tables[lane as usize * self.stride + index];
                    let offset = (position % PAGE_TOKENS) as usize;
                    kv::append(&self.pool, self.base, page, layer, offset, k.row(row), v.row(row));
                }
                RowOp::SwiGlu { gate, up, y } => {
                    rows::swiglu(isa, gate.row(row), up.row(row), y.row(row), y.width);
                }
                RowOp::Add { x, y } => rows::add(isa, x.row(row), y.row(row), y.width),
                RowOp::Gather { x, y } => {
                    let from = x.row(self.logit_rows[row] as usize);
                    y.row(row).copy_from_nonoverlapping(from, y.width);
                }
                RowOp::Gate(ref op) => op.run(isa, row),
                RowOp::Expert(ref op) => self.expert_op(op, row),
                RowOp::Join { attention } => {
                    let slot = self.plan.split[row];
                    if slot != NO_SPLIT {
                        let call = self.call(&self.compiled.attentions[attention], worker);
                        let position = self.tokens[row].position;
                        attention::join_row(isa, &call, row, position, slot as usize);
                    }
                }
                RowOp::Encode { x, encoding, to, row_bytes } => {
                    let values = slice::from_raw_parts(x.row(row), x.width);
                    let out = slice::from_raw_parts_mut(to.add(row * row_bytes), row_bytes);
                    linear::encode_row_on(isa, values, encoding, out);
                }
            }
        }
    }
}
