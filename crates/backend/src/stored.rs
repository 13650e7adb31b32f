//! Sizes for a device that reads weights as the file stores them: what a GPU load is planned with.

use ignis_ops::{
    ExpertLinear, KvShape, LOGIT_BIAS_MAX, Linear, Op, Program, Rows, SectionSpec, WeightKind,
    WeightSpec,
};
use ignis_types::{Bytes, DType, Limits, Overflow};

use crate::device::COPIES_MAX;
use crate::fused::{EncodedRows, FusedProgram, FusedStep, StoredActivations, StoredProducts};
use crate::layout::{DeviceLayout, KvFormat};

/// Most runs that attention cuts a row's keys into.
pub const RUNS_MAX: u64 = 64;

/// Most rows that lie as lanes of a tensor core read them, and that products take whole: `FEW_ROWS`
/// of `encoded.cuh`.
pub const FEW_ROWS: u32 = 32;

/// Widest decode round that is recorded; in wider ones launches cost little beside the work.
pub const GRAPH_LANES_MAX: u32 = 64;

/// Most runs of a row in each kind of recorded round.
const RUN_CLASSES: [u32; 3] = [4, 16, RUNS_MAX as u32];

/// What the driver takes for recorded rounds: at most this, for each of them, and for each launch.
/// Calibrated on an H200: 24 recordings of about 256 launches took 16.3 MiB, 16 of a tiny model
/// 2 MiB, and 152 of another, of some 14 launches, 16 MiB.
const GRAPHS_BYTES: u64 = 4 << 20;
const GRAPH_BYTES: u64 = 96 << 10;
const LAUNCH_BYTES: u64 = 5 << 9;

/// Whether products over so many columns are cut into sixteen slices, and not eight:
/// `BLOCKS_LONG` of `products.cuh`.
pub fn is_long(cols: u32) -> bool {
    cols.div_ceil(64) >= 128
}

/// Bytes of one lane's parameters of sampling.
pub const DRAW_BYTES: u64 = 64;

/// Ids of a lane that one CTA of sampling takes.
pub const SAMPLE_PART_IDS: u64 = 2048;

/// Launches of sampling.
const SAMPLE_LAUNCHES: u64 = 3;

/// What they leave each other of a lane: 1,024 bins, and a key and a sum for each part.
const SAMPLE_BINS_BYTES: u64 = 32 + 16 * 1024;
const SAMPLE_PART_BYTES: u64 = 16;

/// Bytes in which the sum of copies is made on a device: the sum, and a count.
pub const SUM_SLOT_BYTES: u64 = 16;

/// Copies in flight, both ways.
pub(crate) const SUM_SLOTS: u64 = 2 * COPIES_MAX as u64;

const ALIGN: u64 = 256;

/// Sizes of a GPU load: weights in their stored blocks, products and attention in registers.
#[derive(Clone, Copy, Debug)]
pub struct StoredLayout {
    /// Format of the pool.
    pub kv_format: KvFormat,
    /// What products read.
    pub activations: StoredActivations,
    /// How products of many rows are summed.
    pub products: StoredProducts,
    /// Whether tables that are no product's stay in host memory, where the card reads their rows.
    pub tables_on_host: bool,
}

impl StoredLayout {
    /// How a weight is kept: vectors in f32, others as [`StoredActivations::kept_dtype`] says.
    pub fn kept_dtype(&self, weight: &WeightSpec) -> DType {
        match weight.kind {
            WeightKind::Vector => DType::F32,
            _ => self.activations.kept_dtype(weight.dtype),
        }
    }

    /// Whether attention runs on tensor cores: where all that it multiplies is bf16.
    pub fn attends_on_tensor_cores(&self) -> bool {
        self.kv_format == KvFormat::Bf16 && self.activations == StoredActivations::Bf16
    }

    /// Launches of a step in a decode round of `width` lanes.
    fn decode_launches(&self, program: &Program, step: &FusedStep, width: u32) -> u64 {
        // On tensor cores attention joins the runs of a row itself, and makes ready what it reads.
        let apart = u64::from(!self.attends_on_tensor_cores());
        match step {
            FusedStep::Attention { prepare: Some(_), .. } => 1 + 2 * apart,
            FusedStep::Attention { prepare: None, .. } => 1 + apart,
            FusedStep::Op(at) if matches!(program.ops[*at], Op::PagedAttention(_)) => 1 + apart,
            FusedStep::Products(products) if products.then.is_some() && width > FEW_ROWS => 2,
            _ => 1,
        }
    }
}

/// Pages of a run of a row that sees `pages` pages: `run_pages` of `attention.cuh`.
fn run_pages(pages: u32) -> u32 {
    if pages <= 64 { 2 } else { pages.div_ceil(256) * 4 }
}

/// Runs that the keys of a row are cut into that sees `pages` pages.
pub fn runs(pages: u32) -> u32 {
    pages.div_ceil(run_pages(pages))
}

/// Kinds of recorded rounds, by the most runs of a row, up to the longest context.
pub fn run_classes(limits: &Limits) -> &'static [u32] {
    // From 256 pages on there is a row with `RUNS_MAX` runs.
    let most = (1..=limits.sequence_pages_max().min(256)).map(runs).max().unwrap_or(1);
    let count = RUN_CLASSES.iter().position(|&class| most <= class).unwrap_or(2) + 1;
    &RUN_CLASSES[..count]
}

/// Bytes that the launches of sampling leave each other of one lane.
pub fn sample_state_bytes(vocab: u32) -> u64 {
    SAMPLE_BINS_BYTES + SAMPLE_PART_BYTES * u64::from(vocab).div_ceil(SAMPLE_PART_IDS)
}

/// What lies where in the ops' scratch; offsets from its start.
///
/// From `tokens` to `inv_freq` are a round's inputs, which the host sends in one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredScratch {
    /// Encoded rows, by [`EncodedRows::region`].
    pub encoded: [u64; 2],
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
    /// Runs of a row that are done, `[lanes_max, kv_heads]` u32; zero between launches.
    pub arrived: u64,
    /// Of the rows of a norm, in region 0 of `encoded`, up to [`FEW_ROWS`]: the squares of each
    /// sixteen columns, summed, `[rows, ceil(cols / 16)]` f32.
    pub squares: u64,
    /// Of more rows of a norm: what products of them are multiplied with, `[rows]` f32.
    pub scales: u64,
    /// Where sums of what travels meet, `[COPIES_MAX, 2 (out, in)]` of [`SUM_SLOT_BYTES`].
    pub sums: u64,
    /// One behind the last byte.
    pub end: u64,
}

impl StoredScratch {
    /// Places everything.
    pub fn new(
        program: &Program,
        limits: &Limits,
        activations: StoredActivations,
    ) -> Result<Self, Overflow> {
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
        let fused = FusedProgram::new(program, activations);
        let mut encoded = [Bytes::ZERO; 2];
        for one in fused.encoded() {
            let bytes = encoded_image(&one, limits)?.times(activations.images())?;
            encoded[one.region] = encoded[one.region].max(bytes);
        }
        let normed_cols = fused.normed().map(|rows| rows.cols).max();
        let sixteens = u64::from(normed_cols.unwrap_or(0).div_ceil(16));
        let scaled = if normed_cols.is_some() { rows } else { 0 };
        let mut end = Bytes::ZERO;
        let mut part = |bytes: Bytes| -> Result<u64, Overflow> {
            let start = end;
            end = start.plus(bytes)?.aligned(ALIGN)?;
            Ok(start.0)
        };
        let pages = u64::from(limits.sequence_pages_max());
        Ok(StoredScratch {
            encoded: [part(encoded[0])?, part(encoded[1])?],
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
            arrived: part(Bytes(4 * lanes).times(program.kv.kv_heads.into())?)?,
            squares: part(Bytes(4 * rows.min(FEW_ROWS.into())).times(sixteens)?)?,
            scales: part(Bytes(4 * scaled))?,
            sums: part(Bytes(SUM_SLOT_BYTES * SUM_SLOTS))?,
            end: end.0,
        })
    }
}

/// Bytes of one image of encoded rows: two a value, rows padded to 128, columns to 64. Few rows,
/// which are not padded, take less.
pub fn encoded_image(encoded: &EncodedRows, limits: &Limits) -> Result<Bytes, Overflow> {
    let rows = match encoded.rows {
        Rows::Round => limits.round_rows_max(),
        Rows::Logits => limits.lanes_max,
    };
    let cols = u64::from(encoded.cols).next_multiple_of(64);
    Bytes(2).times(u64::from(rows).next_multiple_of(128))?.times(cols)
}

impl DeviceLayout for StoredLayout {
    fn align(&self) -> u64 {
        ALIGN
    }

    /// Matrices in groups of 128 rows and 64 columns, at the bits of their kept dtype.
    fn weight_bytes(&self, weight: &WeightSpec) -> Result<Bytes, Overflow> {
        if self.is_on_host(weight) {
            return Ok(Bytes::ZERO);
        }
        let (rows, cols) = (u64::from(weight.rows), u64::from(weight.cols));
        let (rows, cols) = match weight.kind {
            WeightKind::Vector => (rows, cols),
            _ => (rows.next_multiple_of(128), cols.next_multiple_of(64)),
        };
        let dtype = self.kept_dtype(weight);
        let blocks = cols.div_ceil(dtype.block_elements());
        Bytes(dtype.block_bytes()).times(blocks)?.times(rows)
    }

    fn linear_scratch(&self, _: &Linear, _: u64, _: u64) -> Result<Bytes, Overflow> {
        Ok(Bytes::ZERO)
    }

    fn expert_scratch(&self, _: &ExpertLinear, _: u64, _: u64, _: u64) -> Result<Bytes, Overflow> {
        Ok(Bytes::ZERO)
    }

    fn section_bytes(&self, section: &SectionSpec) -> Result<Bytes, Overflow> {
        self.kv_format.section_bytes(section)
    }

    /// Encoded rows, the round's inputs, rotary angles, and runs of keys that are joined
    /// afterwards.
    fn attention_scratch(&self, program: &Program, limits: &Limits) -> Result<Bytes, Overflow> {
        Ok(Bytes(StoredScratch::new(program, limits, self.activations)?.end))
    }

    fn buffers_in_memory(&self, program: &Program) -> Vec<bool> {
        FusedProgram::new(program, self.activations).buffers_in_memory(program)
    }

    /// Decode rounds of each width and kind, counted by their launches: a bound, to which a load
    /// holds the driver.
    fn graph_bytes(&self, program: &Program, limits: &Limits) -> Result<Bytes, Overflow> {
        let steps = FusedProgram::new(program, self.activations).steps;
        let recorded = |width| -> Result<Bytes, Overflow> {
            let of_steps = steps.iter().map(|step| self.decode_launches(program, step, width));
            // Inputs and rotary angles take one each.
            let launches = of_steps.sum::<u64>() + 2 + SAMPLE_LAUNCHES;
            Bytes(LAUNCH_BYTES).times(launches)?.plus(Bytes(GRAPH_BYTES))
        };
        let widths = 1..=limits.lanes_max.min(GRAPH_LANES_MAX);
        let one_class = widths.map(recorded).try_fold(Bytes::ZERO, |sum, one| sum.plus(one?))?;
        one_class.times(run_classes(limits).len() as u64)?.plus(Bytes(GRAPHS_BYTES))
    }

    /// A sortable key and an adjusted logit for each id, parameters, a bias list, and bins.
    fn sampling_lane_bytes(&self, vocab: u32) -> Result<Bytes, Overflow> {
        let lists = Bytes(DRAW_BYTES + 8 * LOGIT_BIAS_MAX as u64 + sample_state_bytes(vocab));
        Bytes(8 + 4).times(u64::from(vocab))?.aligned(16)?.plus(lists)
    }

    fn pinned_bytes(&self, program: &Program, limits: &Limits) -> Result<Bytes, Overflow> {
        let scratch = StoredScratch::new(program, limits, self.activations)?;
        self.pinned_rounds(&scratch, limits)?.plus(self.tables(program)?.1)
    }

    fn kv_page_bytes(&self, shape: &KvShape) -> Result<Bytes, Overflow> {
        self.kv_format.page_bytes(shape)
    }

    /// Pages are `[layers, 2 (K, V), kv_heads, PAGE_TOKENS, head_dim]`; the number names the
    /// arithmetic of the kernels.
    fn state_format(&self) -> String {
        let fast = if self.products == StoredProducts::Fast { " fast" } else { "" };
        format!("cuda 3 {}{fast} {}", self.activations.name(), self.kv_format.dtype())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_never_more_than_there_is_room_for() {
        for pages in [1u32, 2, 3, 64, 65, 255, 256, 257, 512, 513, 100_000] {
            assert!(u64::from(runs(pages)) <= RUNS_MAX, "{pages} pages, {} runs", runs(pages));
        }
        assert_eq!([64, 65, 256, 257].map(run_pages), [2, 4, 4, 8]);
        assert_eq!([64, 65, 256, 257].map(runs), [32, 17, 64, 33]);
    }

    #[test]
    fn every_row_of_a_context_has_a_class() {
        for context in [1u32, 512, 513, 2048, 2049, 4096, 4097, 16_384, 1 << 20] {
            let limits = Limits {
                lanes_max: 1,
                chunk_tokens_max: 1,
                context_tokens_max: context,
                pages: 1,
                retained_device: 0,
                retained_host: 0,
            };
            let classes = run_classes(&limits);
            let most = (1..=limits.sequence_pages_max()).map(runs).max().unwrap();
            assert!(most <= *classes.last().unwrap(), "{context}: {most} runs, {classes:?}");
            let smaller = classes.len().checked_sub(2).map_or(0, |i| classes[i]);
            assert!(most > smaller, "{context}: {most} runs, {classes:?}");
        }
    }
}
