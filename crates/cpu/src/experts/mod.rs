//! Routing and the products of experts.
//!
//! The pairs (row, choice) of a round are sorted by expert once; products then see each expert's
//! pairs as rows that lie together, in that order, and never scatter. A pair's arithmetic is that
//! of any row of a product, so which rows share an expert does not show.

mod groups;

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use ignis_backend::DeviceError;
use ignis_ops::{BufferId, ExpertLinear, ExpertSum, Route, Rows, WeightKind};
use ignis_types::Bytes;

use crate::layout::{expert_encoding, rows_max};
use crate::linear::{
    self, Encoding, Matrix, encoded_row_bytes, encoding_for, packed_bytes, panels,
};
use crate::pool::Worker;
use crate::program::{Compiler, Place, RowOp, Step};
use crate::rows::{load, runs, store};
use crate::vector::{Vector, by_isa, exp};
use crate::walk::{PIECES, RoundJob};

pub(crate) use groups::{GroupMap, Groups};

/// A row op of this file.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ExpertOp {
    Route {
        scores: Place,
        ids: Place,
        weights: Place,
        renormalise: bool,
    },
    /// The pairs at a row's place: each from the row that it belongs to, or from its own part of x.
    Encode {
        x: Place,
        cols: usize,
        used: usize,
        encoding: Encoding,
        to: *mut u8,
        row_bytes: usize,
    },
    Sum {
        x: Place,
        weights: Place,
        y: Place,
    },
}

/// One matrix of every expert.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpertPart {
    /// The first expert's; the others follow.
    first: *const u8,
    bytes: usize,
    shape: Matrix,
    encoding: Encoding,
    encoded: *const u8,
    row_bytes: usize,
    y: *mut f32,
    panels: u32,
}

impl ExpertPart {
    fn matrix(&self, expert: usize) -> Matrix {
        let (dtype, rows, cols) = (self.shape.dtype(), self.shape.rows(), self.shape.cols());
        // SAFETY: `put_weight` packed a matrix of this shape for every expert of the weight.
        unsafe { Matrix::new(dtype, rows, cols, self.first.wrapping_add(expert * self.bytes)) }
    }
}

impl Compiler<'_> {
    /// Chooses, row by row; then one worker sorts.
    pub(crate) fn route(&mut self, op: &Route) -> Result<(), DeviceError> {
        self.needs_round_rows(op.ids)?;
        // The tables of an earlier route may still be read in the present chain.
        self.end_chain();
        let (scores, ids, weights) =
            (self.place(op.scores), self.place(op.ids), self.place(op.weights));
        let route = ExpertOp::Route { scores, ids, weights, renormalise: op.renormalise };
        self.chain_op(Rows::Round, &[op.scores, op.weights], Some(op.ids), RowOp::Expert(route));
        self.end_chain();
        self.out.steps.push(Step::Group { ids, experts: scores.width });
        self.routed = Some(op.ids);
        Ok(())
    }

    pub(crate) fn expert_linear(&mut self, op: &ExpertLinear) -> Result<(), DeviceError> {
        self.check_routed(op.ids)?;
        let want = expert_encoding(self.layout.options().activations);
        let used = self.program.buffer(op.ids).width as usize;
        let rows = rows_max(Rows::Round, self.limits);
        let first = self.out.expert_parts.len();
        let mut at = self.addresses.scratch.0;
        let mut encoded: Vec<(Encoding, *const u8)> = vec![];
        for part in &op.parts {
            let weight = self.program.weight(part.w);
            let WeightKind::Experts { count } = weight.kind else {
                unreachable!("checked when the program was built")
            };
            let (rows_each, cols) = (weight.rows / count, weight.cols);
            let encoding = encoding_for(weight.dtype, want);
            let row_bytes = encoded_row_bytes(cols, encoding);
            let known = encoded.iter().find(|(known, _)| *known == encoding).map(|known| known.1);
            let from = known.unwrap_or_else(|| {
                let (x, to) = (self.place(op.x), self.address(at));
                let cols = cols as usize;
                if x.width == cols {
                    // It reads rows that other workers have written.
                    self.end_chain();
                }
                let encode = ExpertOp::Encode { x, cols, used, encoding, to, row_bytes };
                self.chain_op(Rows::Round, &[op.x], None, RowOp::Expert(encode));
                at += (row_bytes * used) as u64 * rows;
                encoded.push((encoding, to));
                to.cast_const()
            });
            let start = self.address(self.addresses.weights[part.w.0 as usize]);
            let bytes = packed_bytes(weight.dtype, rows_each, cols).expect("it was laid out").0;
            self.out.expert_parts.push(ExpertPart {
                first: start,
                bytes: Bytes(bytes).as_usize(),
                // SAFETY: the region of the weight holds `count` such matrices.
                shape: unsafe { Matrix::new(weight.dtype, rows_each, cols, start) },
                encoding,
                encoded: from,
                row_bytes,
                y: self.place(part.y).at,
                panels: panels(rows_each),
            });
        }
        self.end_chain();
        let parts = first..self.out.expert_parts.len();
        let panels = self.out.expert_parts[parts.clone()].iter().map(|part| part.panels).sum();
        self.out.steps.push(Step::Experts { parts, panels });
        Ok(())
    }

    pub(crate) fn expert_sum(&mut self, op: &ExpertSum) -> Result<(), DeviceError> {
        self.check_routed(op.ids)?;
        // It reads pairs that other workers have written.
        self.end_chain();
        let (x, weights, y) = (self.place(op.x), self.place(op.weights), self.place(op.y));
        let sum = RowOp::Expert(ExpertOp::Sum { x, weights, y });
        self.chain_op(Rows::Round, &[op.x, op.weights], Some(op.y), sum);
        Ok(())
    }

    fn check_routed(&self, ids: BufferId) -> Result<(), DeviceError> {
        if self.routed == Some(ids) {
            return Ok(());
        }
        let (what, expected) = ("ids of an expert op", "those of the last route");
        Err(DeviceError::ShapeUnsupported { what, found: u64::from(ids.0), expected })
    }
}

impl RoundJob<'_> {
    /// # Safety
    /// One worker; routes are complete.
    pub(crate) unsafe fn group(&self, ids: Place, experts: usize) {
        // SAFETY: `Route` wrote ids of experts for every row; the caller's promises.
        unsafe { self.groups.sort(ids.at, self.tokens.len(), ids.width, experts) };
    }

    /// Claims panels of the experts that have pairs until none are left.
    ///
    /// # Safety
    /// All workers are at step `at`, whose input was encoded before the last barrier.
    pub(crate) unsafe fn experts(
        &self,
        at: usize,
        parts: Range<usize>,
        panels: u32,
        worker: &Worker<'_>,
    ) {
        // SAFETY: the tables were written before the last barrier and stand until the next route.
        let active = unsafe { *self.groups.count };
        let pieces_wanted = (worker.count() as u32 * PIECES).div_ceil(active.max(1));
        let piece = panels.div_ceil(pieces_wanted.clamp(1, panels.max(1)));
        let pieces = panels.div_ceil(piece.max(1));
        loop {
            let next = self.compiled.claimed[at].fetch_add(1, Relaxed);
            if next >= active * pieces {
                break;
            }
            let from = next % pieces * piece;
            let span = from..(from + piece).min(panels);
            // SAFETY: this worker alone claimed these panels of this expert.
            unsafe {
                let expert = *self.groups.active.add((next / pieces) as usize) as usize;
                self.expert_product(expert, parts.clone(), span);
            }
        }
    }

    unsafe fn expert_product(&self, expert: usize, parts: Range<usize>, span: Range<u32>) {
        // SAFETY: the tables were written before the last barrier.
        let (start, end) =
            unsafe { (*self.groups.starts.add(expert), *self.groups.starts.add(expert + 1)) };
        let (start, pairs) = (start as usize, (end - start) as usize);
        let mut first = 0;
        for part in &self.compiled.expert_parts[parts] {
            let panels = first..first + part.panels;
            let own = span.start.max(panels.start)..span.end.min(panels.end);
            first = panels.end;
            if own.is_empty() {
                continue;
            }
            let (matrix, width) = (part.matrix(expert), part.shape.rows() as usize);
            // SAFETY: the pairs were encoded before the last barrier; `y` holds every pair; the
            // panels belong to this worker.
            unsafe {
                linear::run(
                    self.isa,
                    &matrix,
                    part.encoding,
                    part.encoded.add(start * part.row_bytes),
                    pairs,
                    part.y.add(start * width),
                    width,
                    None,
                    false,
                    own.start - panels.start..own.end - panels.start,
                );
            }
        }
    }

    /// # Safety
    /// As for the ops of a row.
    pub(crate) unsafe fn expert_op(&self, op: &ExpertOp, row: usize) {
        // SAFETY: shapes were checked when the program was built; the tables name pairs and rows
        // of the round.
        unsafe {
            match *op {
                ExpertOp::Route { scores, ids, weights, renormalise } => {
                    softmax(self.isa, scores.row(row), scores.width);
                    choose(scores, ids, weights, row, renormalise);
                }
                ExpertOp::Encode { x, cols, used, encoding, to, row_bytes } => {
                    for pair in row * used..(row + 1) * used {
                        let from = if x.width == cols {
                            x.row(*self.groups.row_of.add(pair) as usize)
                        } else {
                            x.at.add(pair * cols)
                        };
                        let values = std::slice::from_raw_parts(from, cols);
                        let to = to.add(pair * row_bytes);
                        let out = std::slice::from_raw_parts_mut(to, row_bytes);
                        linear::encode_row_on(self.isa, values, encoding, out);
                    }
                }
                ExpertOp::Sum { x, weights, y } => {
                    let used = weights.width;
                    let pairs = self.groups.pair_of.add(row * used);
                    sum(self.isa, x.at, pairs, weights.row(row), used, y.row(row), y.width);
                }
            }
        }
    }
}

/// The largest probabilities of a row, of equals the lowest id.
unsafe fn choose(scores: Place, ids: Place, weights: Place, row: usize, renormalise: bool) {
    // SAFETY: the three rows hold their widths.
    let (p, ids, weights) = unsafe {
        (
            std::slice::from_raw_parts_mut(scores.row(row), scores.width),
            std::slice::from_raw_parts_mut(ids.row(row), ids.width),
            std::slice::from_raw_parts_mut(weights.row(row), weights.width),
        )
    };
    // A taken expert has -1; NaN counts as 0, so that ids stay those of experts.
    for p in p.iter_mut().filter(|p| p.is_nan()) {
        *p = 0.0;
    }
    let mut total = 0.0;
    for (id, weight) in ids.iter_mut().zip(weights.iter_mut()) {
        let mut best = 0;
        for expert in 1..p.len() {
            if p[expert] > p[best] {
                best = expert;
            }
        }
        *id = best as f32;
        *weight = p[best];
        total += p[best];
        p[best] = -1.0;
    }
    if renormalise {
        weights.iter_mut().for_each(|weight| *weight /= total);
    }
}

#[inline(always)]
unsafe fn softmax_row<V: Vector>(x: *mut f32, width: usize) {
    // SAFETY: x holds width floats.
    unsafe {
        let values = std::slice::from_raw_parts_mut(x, width);
        let largest = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let largest = V::splat(largest);
        runs!(width, |at, n| {
            store(exp(load::<V>(x.add(at), n).sub(largest)), x.add(at), n);
        });
        let total: f32 = values.iter().sum();
        values.iter_mut().for_each(|value| *value /= total);
    }
}
by_isa! {
    /// Softmax of `[width]` values in place, summed in order.
    ///
    /// # Safety
    /// x `[width]`.
    unsafe fn softmax(x: *mut f32, width: usize) => softmax_row
}

#[inline(always)]
unsafe fn sum_row<V: Vector>(
    x: *const f32,
    pairs: *const u32,
    weights: *const f32,
    used: usize,
    y: *mut f32,
    width: usize,
) {
    // SAFETY: x holds `width` floats for each pair, pairs and weights hold `used`, y holds width.
    unsafe {
        runs!(width, |at, n| {
            let mut sum = load::<V>(y.add(at), n);
            for choice in 0..used {
                let from = x.add(*pairs.add(choice) as usize * width + at);
                sum = load::<V>(from, n).mul_add(V::splat(*weights.add(choice)), sum);
            }
            store(sum, y.add(at), n);
        });
    }
}
by_isa! {
    /// `ExpertSum` of one row.
    ///
    /// # Safety
    /// x `[pairs, width]`, pairs and weights `[used]`, y `[width]`.
    unsafe fn sum(
        x: *const f32, pairs: *const u32, weights: *const f32, used: usize, y: *mut f32,
        width: usize,
    ) => sum_row
}
