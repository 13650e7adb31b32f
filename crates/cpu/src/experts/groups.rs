//! The round's pairs (row, choice) by expert.

use ignis_ops::{Op, Program};
use ignis_types::{Bytes, Limits, Overflow};

use crate::layout::{ALIGN, rows_max};

/// Where the grouping of a round lies in the scratch; offsets from its start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupMap {
    start: u64,
    pairs: u64,
    experts: u64,
}

impl GroupMap {
    /// For the widest round and the most experts of `program`.
    pub(crate) fn new(program: &Program, limits: &Limits, start: Bytes) -> GroupMap {
        let (mut pairs, mut experts) = (0, 0);
        for op in &program.ops {
            if let Op::Route(op) = op {
                let ids = program.buffer(op.ids);
                pairs = pairs.max(u64::from(ids.width) * rows_max(ids.rows, limits));
                experts = experts.max(u64::from(program.buffer(op.scores).width));
            }
        }
        GroupMap { start: start.0, pairs, experts }
    }

    /// Its bytes: none for a program without experts.
    pub(crate) fn bytes(&self) -> Result<Bytes, Overflow> {
        if self.pairs == 0 {
            return Ok(Bytes::ZERO);
        }
        Bytes(4).times(2 * self.pairs + 2 * self.experts + 2)?.aligned(ALIGN)
    }

    pub(crate) fn at(&self, scratch: *mut u8) -> Groups {
        let start = scratch.wrapping_add(Bytes(self.start).as_usize()).cast::<u32>();
        let (pairs, experts) = (self.pairs as usize, self.experts as usize);
        let starts = start.wrapping_add(2 * pairs);
        let active = starts.wrapping_add(experts + 1);
        Groups {
            row_of: start,
            pair_of: start.wrapping_add(pairs),
            starts,
            active,
            count: active.wrapping_add(experts),
        }
    }
}

/// The pairs of a round, sorted by expert, then by row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Groups {
    /// Row of each pair, `[pairs]`.
    pub(super) row_of: *mut u32,
    /// Pair of each (row, choice), `[rows, used]`.
    pub(super) pair_of: *mut u32,
    /// First pair of each expert, and the end, `[experts + 1]`.
    pub(super) starts: *mut u32,
    /// Experts that have pairs, ascending, `[experts]`.
    pub(super) active: *mut u32,
    /// How many they are.
    pub(super) count: *mut u32,
}

impl Groups {
    /// Sorts by counting.
    ///
    /// # Safety
    /// `ids` holds whole numbers below `experts`, `[rows, used]`; the tables have room; nobody
    /// reads them meanwhile.
    pub(super) unsafe fn sort(&self, ids: *const f32, rows: usize, used: usize, experts: usize) {
        let pairs = rows * used;
        // SAFETY: the caller's promises.
        unsafe {
            let starts = std::slice::from_raw_parts_mut(self.starts, experts + 1);
            let ids = std::slice::from_raw_parts(ids, pairs);
            starts.fill(0);
            for &id in ids {
                starts[id as usize + 1] += 1;
            }
            let mut count = 0;
            for expert in 0..experts {
                if starts[expert + 1] > 0 {
                    *self.active.add(count) = expert as u32;
                    count += 1;
                }
                starts[expert + 1] += starts[expert];
            }
            *self.count = count as u32;
            // Each start moves to its end, which is the next one's start: shifted back below.
            for (at, &id) in ids.iter().enumerate() {
                let pair = starts[id as usize];
                starts[id as usize] += 1;
                *self.pair_of.add(at) = pair;
                *self.row_of.add(pair as usize) = (at / used) as u32;
            }
            starts.copy_within(0..experts, 1);
            starts[0] = 0;
        }
    }
}
