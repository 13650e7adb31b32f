//! Which queries go together, and which long rows are split, in one round.

use ignis_ops::{KvShape, Op, Program, Segment};
use ignis_types::{Bytes, Limits, Overflow, PAGE_TOKENS};

use super::{RUN_PAGES, TILE_QUERIES};
use crate::kv::TOKENS;
use crate::vector::LANES;

/// `Item::slot` and `AttentionPlan::split` of rows that one thread reduces alone.
pub(crate) const NO_SPLIT: u32 = u32::MAX;

/// Rows that may be split at once when there are fewer threads.
const SPLIT_ROWS: usize = 4;

/// What one thread reduces at a time, for one KV head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    /// Row of the block tables.
    pub(crate) lane: u32,
    /// First row of the round.
    pub(crate) row: u32,
    /// Rows; 1 when split.
    pub(crate) rows: u32,
    /// Position of the first row.
    pub(crate) position: u32,
    /// First run.
    pub(crate) run_from: u32,
    /// One behind the last run.
    pub(crate) run_to: u32,
    /// Where the one run of a split item is kept, or [`NO_SPLIT`].
    pub(crate) slot: u32,
}

/// The sizes that attention's scratch follows from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Most query heads of any layer.
    pub(crate) heads: usize,
    /// Most query heads that share a KV head.
    pub(crate) group: usize,
    /// Values a head, rounded up to whole vectors.
    pub(crate) width: usize,
    /// Values a head.
    pub(crate) head_dim: usize,
    /// Partial sums that can be kept at once, each one run of one row.
    pub(crate) slots: usize,
    /// Most rows of a round.
    pub(crate) rows: usize,
}

impl Sizes {
    pub(crate) fn new(program: &Program, limits: &Limits, threads: usize) -> Sizes {
        let KvShape { kv_heads, head_dim, .. } = program.kv;
        let widths = program.ops.iter().filter_map(|op| match op {
            Op::PagedAttention(op) => Some(program.buffer(op.q).width),
            _ => None,
        });
        let heads = (widths.max().unwrap_or(0) / head_dim.max(1)) as usize;
        let runs = limits.sequence_pages_max().div_ceil(RUN_PAGES as u32) as usize;
        let split_rows = (limits.lanes_max as usize).min(threads.max(SPLIT_ROWS));
        Sizes {
            heads,
            group: heads.div_ceil((kv_heads as usize).max(1)),
            width: (head_dim as usize).next_multiple_of(LANES),
            head_dim: head_dim as usize,
            slots: if threads > 1 && runs > 1 { runs * split_rows } else { 0 },
            rows: limits.round_rows_max() as usize,
        }
    }

    /// Most rows of a tile.
    pub(crate) fn tile_rows(&self) -> usize {
        (TILE_QUERIES / self.group.max(1)).max(1)
    }

    /// Queries of the largest tile, rounded up so that parts stay aligned.
    pub(crate) fn queries(&self) -> usize {
        (self.tile_rows() * self.group).next_multiple_of(LANES)
    }

    /// Floats of one head's partial sum: the values, then the largest score and the weights' sum.
    pub(crate) fn partial_head(&self) -> usize {
        self.width + LANES
    }

    /// Bytes of all partial sums.
    pub(crate) fn partial_bytes(&self) -> Result<Bytes, Overflow> {
        Bytes(4)
            .times(self.slots as u64)?
            .times(self.heads as u64)?
            .times(self.partial_head() as u64)
    }

    /// Bytes of one worker's own scratch.
    pub(crate) fn worker_bytes(&self) -> Result<Bytes, Overflow> {
        let queries = self.queries() as u64;
        let (width, tokens) = (self.width as u64, TOKENS as u64);
        // Queries, sums of a run and sums of all runs; scores; two statistics each; a K and a V
        // page.
        let values = Bytes(3 * width + tokens + 4).times(queries)?;
        let pages = Bytes(width).times(2 * tokens)?;
        values.plus(pages)?.times(4)?.aligned(64)
    }
}

/// The items of one round; every layer uses the same.
#[derive(Debug)]
pub(crate) struct AttentionPlan {
    sizes: Sizes,
    threads: usize,
    kv_heads: usize,
    /// What there is to do, for each KV head.
    pub(crate) items: Vec<Item>,
    /// First slot of each row that is split, [`NO_SPLIT`] for the others.
    pub(crate) split: Vec<u32>,
}

impl AttentionPlan {
    /// An empty plan with room for the widest round.
    pub(crate) fn new(sizes: Sizes, kv_heads: usize, threads: usize) -> AttentionPlan {
        AttentionPlan {
            sizes,
            threads,
            kv_heads,
            items: Vec::with_capacity(sizes.rows + sizes.slots),
            split: Vec::with_capacity(sizes.rows),
        }
    }

    /// Plans a round. Allocates nothing.
    pub(crate) fn fill(&mut self, segments: &[Segment]) {
        self.items.clear();
        self.split.clear();
        let rows: u32 = segments.iter().map(|segment| segment.rows).sum();
        assert!(rows as usize <= self.sizes.rows, "more rows than the plan was made for");
        // Enough tiles that no thread waits long for the last one.
        let share = rows as usize * self.kv_heads / (4 * self.threads);
        let tile = share.clamp(1, self.sizes.tile_rows()) as u32;
        let mut slots = 0;
        for segment in segments {
            let runs = runs_of(segment.position);
            let fits = slots + runs as usize <= self.sizes.slots;
            if segment.rows == 1 && runs > 1 && fits {
                self.split.push(slots as u32);
                for run in 0..runs {
                    self.items.push(Item {
                        lane: segment.lane,
                        row: segment.row,
                        rows: 1,
                        position: segment.position,
                        run_from: run,
                        run_to: run + 1,
                        slot: (slots as u32) + run,
                    });
                }
                slots += runs as usize;
                continue;
            }
            // The last tile reads most keys; it goes first so that the short ones fill the gaps.
            for first in (0..segment.rows).step_by(tile as usize).rev() {
                let rows = tile.min(segment.rows - first);
                let position = segment.position + first;
                self.items.push(Item {
                    lane: segment.lane,
                    row: segment.row + first,
                    rows,
                    position,
                    run_from: 0,
                    run_to: runs_of(position + rows - 1),
                    slot: NO_SPLIT,
                });
            }
            for _ in 0..segment.rows {
                self.split.push(NO_SPLIT);
            }
        }
    }
}

/// Runs that a row at `position` reduces.
pub(crate) fn runs_of(position: u32) -> u32 {
    position / (PAGE_TOKENS * RUN_PAGES as u32) + 1
}
