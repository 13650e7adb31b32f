//! The steps of a bound program, put on the stream for a round.

use ignis_backend::{DeviceError, FEW_ROWS};
use ignis_ops::Rows;

use crate::abi::{Encoded, PoolView, Prepare, Product, Queries};
use crate::kernels::{AttentionKernels, SplitKernel};
use crate::launch::Launcher;
use crate::program::{Compiled, NormStep, Step};
use crate::round::Counts;

/// What launches need beside their step; addresses of device memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fixed {
    pub(crate) tokens: u64,
    pub(crate) positions: u64,
    pub(crate) inv_freq: u64,
    pub(crate) cos: u64,
    pub(crate) sin: u64,
    /// Rotary frequencies, and what multiplies cosines and sines.
    pub(crate) half: u32,
    pub(crate) magnitude: f32,
    pub(crate) head_dim: u32,
    pub(crate) attention: AttentionKernels,
}

/// Puts the steps of the body or the head on the stream.
///
/// The first of them begins when all before it has ended, and so are all others behind that: they
/// read the round's inputs without waiting for each other.
pub(crate) fn walk(
    run: Launcher<'_>,
    fixed: &Fixed,
    compiled: &Compiled,
    counts: &Counts,
    (body, head): (bool, bool),
) -> Result<(), DeviceError> {
    let steps = &compiled.steps;
    let from = if body { 0 } else { compiled.head };
    let to = if head { steps.len() } else { compiled.head };
    let Some((first, others)) = steps[from..to].split_first() else { return Ok(()) };
    Walker { run: Launcher { overlaps: false, ..run }, fixed, counts }.step(first)?;
    let walker = Walker { run, fixed, counts };
    others.iter().try_for_each(|step| walker.step(step))
}

struct Walker<'a> {
    run: Launcher<'a>,
    fixed: &'a Fixed,
    counts: &'a Counts,
}

impl Walker<'_> {
    fn rows(&self, rows: Rows) -> u32 {
        match rows {
            Rows::Round => self.counts.rows,
            Rows::Logits => self.counts.logit_rows,
        }
    }

    fn values(&self, rows: Rows, width: u32) -> u64 {
        u64::from(self.rows(rows)) * u64::from(width)
    }

    fn step(&self, step: &Step) -> Result<(), DeviceError> {
        let Walker { run, fixed, counts } = *self;
        let angles = (fixed.cos, fixed.sin);
        let encoded = |rows, to| self.encoded(rows, to);
        match *step {
            Step::Angles => run.rope_angles(
                fixed.positions,
                fixed.inv_freq,
                fixed.half,
                fixed.magnitude,
                angles,
                counts.rows,
            ),
            Step::Embed { format, table, y } => {
                run.embed(format, table, fixed.tokens, y, counts.rows)
            }
            Step::NormEncode(ref norm) => self.norm(norm),
            Step::Encode { rows, x, to } => run.encode(x, to.cols, encoded(rows, to)),
            Step::SwiGluEncode { rows, gate, up, to } => {
                run.swiglu_encode((gate, up), to.cols, encoded(rows, to))
            }
            Step::Product { rows, format, ref product, ref then } => {
                let x = encoded(rows, product.x);
                let to = encoded(rows, product.to);
                self.product(format, &Product { x, to, ..*product }, then.as_ref())
            }
            Step::Prepare(ref prepare) => run.prepare(prepare, counts.rows),
            Step::Attention { queries, pool, ref prepare } => {
                self.attention(queries, pool, prepare.as_ref())
            }
            Step::Add { rows, x, y, width } => run.add_rows(x, y, self.values(rows, width)),
        }
    }

    fn encoded(&self, rows: Rows, to: Encoded) -> Encoded {
        Encoded { rows: self.rows(rows), ..to }
    }

    fn norm(&self, step: &NormStep) -> Result<(), DeviceError> {
        let to = self.encoded(step.rows, step.to);
        self.run.norm_encode((step.x, step.gain), step.rows_from, to, step.norm)
    }

    /// Products, and the norm that follows: of few rows one launch makes both.
    fn product(
        &self,
        format: usize,
        product: &Product,
        then: Option<&NormStep>,
    ) -> Result<(), DeviceError> {
        match then {
            Some(norm) if product.x.rows > FEW_ROWS => {
                self.run.product(format, &Product { gain: 0, ..*product })?;
                self.norm(norm)
            }
            _ => self.run.product(format, product),
        }
    }

    /// Tiles of rows that are reduced whole, then rows that are cut into runs.
    ///
    /// On tensor cores rows that are cut make ready what they read, each its own; rows of a tile
    /// read each other's keys, so where there is one a launch before makes all rows ready.
    fn attention(
        &self,
        queries: Queries,
        pool: PoolView,
        prepare: Option<&Prepare>,
    ) -> Result<(), DeviceError> {
        let Walker { run, fixed, counts } = *self;
        let queries = Queries { to: self.encoded(Rows::Round, queries.to), ..queries };
        let kernels = &fixed.attention;
        let prepares = counts.tiles == 0 && matches!(kernels.split, SplitKernel::Tensor { .. });
        if let (Some(prepare), false) = (prepare, prepares) {
            run.prepare(prepare, counts.rows)?;
        }
        if counts.tiles > 0 {
            run.attention(&kernels.tiles, queries, pool, (counts.tiles, 1))?;
        }
        if counts.split == 0 {
            return Ok(());
        }
        let tiles = queries.tiles + 8 * u64::from(counts.tiles);
        let cut = Queries { tiles, ..queries };
        let over = (counts.split, counts.runs);
        match &kernels.split {
            SplitKernel::Scalar { kernel, join } => {
                run.attention(kernel, cut, pool, over)?;
                run.attention_join(*join, cut, fixed.head_dim, counts.split)
            }
            SplitKernel::Tensor { kernel, ctas } => {
                let fresh = prepare.filter(|_| prepares).copied().unwrap_or_default();
                run.attend_split((kernel, *ctas), cut, pool, fresh, over)
            }
        }
    }
}
