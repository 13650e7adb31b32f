//! Sizes for a device that reads weights as the file stores them: what a GPU load is planned with.

use ignis_ops::{
    ExpertLinear, KvShape, LOGIT_BIAS_MAX, Linear, Op, Program, Rows, SectionSpec, WeightKind,
    WeightSpec,
};
use ignis_types::{Bytes, DType, Limits, Overflow};

use crate::layout::{DeviceLayout, KvFormat};

/// Most runs that attention cuts a row's keys into.
pub const RUNS_MAX: u64 = 64;

/// Bytes of one lane's parameters of sampling.
pub const DRAW_BYTES: u64 = 64;

const ALIGN: u64 = 256;

/// Sizes of a GPU load: weights in their stored blocks, products and attention in registers.
#[derive(Clone, Copy, Debug)]
pub struct StoredLayout {
    /// Format of the pool.
    pub kv_format: KvFormat,
}

/// What lies where in the ops' scratch; offsets from its start.
///
/// From `tokens` to `inv_freq` are a round's inputs, which the host sends in one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredScratch {
    /// Encoded input of products: pairs of bf16, `[rows, cols, 2]`, then sums `[rows, cols / 32]`.
    pub encoded: u64,
    /// `[rows]` u32, like the next two.
    pub tokens: u64,
    /// Position of each row in its sequence.
    pub positions: u64,
    /// Lane of each row.
    pub lanes: u64,
    /// `[lanes_max]` u32.
    pub logit_rows: u64,
    /// Rows that attention takes together, `[rows + lanes_max, 2 (first, count)]` u32.
    pub tiles: u64,
    /// Block tables, `[lanes_max, pages of a sequence]` u32.
    pub tables: u64,
    /// Rotary frequencies, `[rotary_dim / 2]` f32.
    pub inv_freq: u64,
    /// `[rows, rotary_dim / 2]` f32, like the next.
    pub cos: u64,
    /// Sines.
    pub sin: u64,
    /// Runs of rows that are cut: `[lanes_max, heads, RUNS_MAX, 2 + head_dim]` f32.
    pub partials: u64,
    /// One behind the last byte.
    pub end: u64,
}

impl StoredScratch {
    /// Places everything behind `encoded` bytes of encoded activations.
    pub fn new(program: &Program, limits: &Limits, encoded: Bytes) -> Result<Self, Overflow> {
        let rows = u64::from(limits.round_rows_max());
        let lanes = u64::from(limits.lanes_max);
        let half = program.rope.inv_freq.len() as u64;
        let heads = program.ops.iter().filter_map(|op| match op {
            Op::PagedAttention(op) => {
                u64::from(program.buffer(op.q).width).checked_div(program.kv.head_dim.into())
            }
            _ => None,
        });
        let heads = heads.max().unwrap_or(0);
        let run = Bytes(4 * (2 + u64::from(program.kv.head_dim)));
        let mut end = encoded.aligned(ALIGN)?;
        let mut part = |bytes: Bytes| -> Result<u64, Overflow> {
            let start = end;
            end = start.plus(bytes)?.aligned(ALIGN)?;
            Ok(start.0)
        };
        let pages = u64::from(limits.sequence_pages_max());
        Ok(StoredScratch {
            encoded: 0,
            tokens: part(Bytes(4 * rows))?,
            positions: part(Bytes(4 * rows))?,
            lanes: part(Bytes(4 * rows))?,
            logit_rows: part(Bytes(4 * lanes))?,
            tiles: part(Bytes(8 * (rows + lanes)))?,
            tables: part(Bytes(4 * lanes).times(pages)?)?,
            inv_freq: part(Bytes(4 * half))?,
            cos: part(Bytes(4 * half).times(rows)?)?,
            sin: part(Bytes(4 * half).times(rows)?)?,
            partials: part(run.times(lanes)?.times(heads)?.times(RUNS_MAX)?)?,
            end: end.0,
        })
    }

    /// Bytes of the widest encoded input of `program`.
    pub fn encoded_bytes(program: &Program, limits: &Limits) -> Result<Bytes, Overflow> {
        program.ops.iter().try_fold(Bytes::ZERO, |widest, op| {
            let Op::Linear(op) = op else { return Ok(widest) };
            let x = program.buffer(op.x);
            let rows = match x.rows {
                Rows::Round => limits.round_rows_max(),
                Rows::Logits => limits.lanes_max,
            };
            Ok(widest.max(encoded(rows.into(), x.width.into())?))
        })
    }
}

/// Bytes of encoded rows: two bf16 a value, and a sum for each group of 32.
fn encoded(rows: u64, cols: u64) -> Result<Bytes, Overflow> {
    Bytes(4).times(rows)?.times(cols)?.plus(Bytes(4).times(rows)?.times(cols.div_ceil(32))?)
}

impl DeviceLayout for StoredLayout {
    fn align(&self) -> u64 {
        ALIGN
    }

    fn weight_bytes(&self, weight: &WeightSpec) -> Result<Bytes, Overflow> {
        let dtype = if weight.kind == WeightKind::Vector { DType::F32 } else { weight.dtype };
        let blocks = u64::from(weight.cols).div_ceil(dtype.block_elements());
        Bytes(dtype.block_bytes()).times(blocks)?.times(u64::from(weight.rows))
    }

    fn linear_scratch(&self, _: &Linear, rows: u64, cols: u64) -> Result<Bytes, Overflow> {
        encoded(rows, cols)
    }

    fn expert_scratch(&self, _: &ExpertLinear, _: u64, _: u64, _: u64) -> Result<Bytes, Overflow> {
        Ok(Bytes::ZERO)
    }

    fn section_bytes(&self, section: &SectionSpec) -> Result<Bytes, Overflow> {
        self.kv_format.section_bytes(section)
    }

    /// The round's inputs, rotary angles, and runs of keys that are joined afterwards.
    fn attention_scratch(&self, program: &Program, limits: &Limits) -> Result<Bytes, Overflow> {
        Ok(Bytes(StoredScratch::new(program, limits, Bytes::ZERO)?.end))
    }

    /// A sortable key and an adjusted logit for each id, parameters, and a bias list.
    fn sampling_lane_bytes(&self, vocab: u32) -> Result<Bytes, Overflow> {
        let lists = Bytes(DRAW_BYTES + 8 * LOGIT_BIAS_MAX as u64);
        Bytes(8 + 4).times(u64::from(vocab))?.aligned(16)?.plus(lists)
    }

    fn kv_page_bytes(&self, shape: &KvShape) -> Result<Bytes, Overflow> {
        self.kv_format.page_bytes(shape)
    }

    /// Pages are `[layers, 2 (K, V), kv_heads, PAGE_TOKENS, head_dim]`; the number names the
    /// arithmetic of the kernels.
    fn state_format(&self) -> String {
        format!("cuda 1 {}", self.kv_format.dtype())
    }
}
