//! The lanes of a round, shared among the workers: one lane each at a time.

use std::slice;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use ignis_backend::LaneSampling;
use ignis_ops::SampleOut;

use super::ID_BYTES;
use crate::pool::{Poisoned, Worker};
use crate::simd::Isa;

/// What the workers read while they sample.
pub(crate) struct SampleJob<'a> {
    pub(crate) isa: Isa,
    pub(crate) vocab: usize,
    pub(crate) logits: *const f32,
    pub(crate) counts: *mut u32,
    pub(crate) scratch: *mut u8,
    pub(crate) lane_bytes: usize,
    pub(crate) lanes: &'a [LaneSampling<'a>],
    pub(crate) out: *mut SampleOut,
    pub(crate) next: AtomicU32,
}

impl SampleJob<'_> {
    /// Samples entry `i`.
    ///
    /// # Safety
    /// `i` is in range, and no other thread samples the same lane.
    pub(crate) unsafe fn one(&self, i: usize) {
        let lane = &self.lanes[i];
        let (at, row) = (lane.lane as usize, lane.logit_row as usize);
        let ids = self.vocab.min(lane.ids as usize);
        // SAFETY: the regions hold `lanes_max` rows each, lanes and rows were checked against it,
        // and this lane is this thread's; keys come first and keep their alignment.
        unsafe {
            let logits = slice::from_raw_parts(self.logits.add(row * self.vocab), ids);
            let keys = self.scratch.add(at * self.lane_bytes).cast::<u64>();
            let adjusted = keys.add(self.vocab).cast::<f32>();
            const { assert!(ID_BYTES == 8 + 4) };
            *self.out.add(i) = super::sample(
                self.isa,
                logits,
                lane.params,
                lane.logit_bias,
                lane.position,
                super::Scratch {
                    keys: slice::from_raw_parts_mut(keys, ids),
                    adjusted: slice::from_raw_parts_mut(adjusted, ids),
                    counts: slice::from_raw_parts_mut(self.counts.add(at * self.vocab), ids),
                },
            );
        }
    }
}

/// Entry of the workers.
///
/// # Safety
/// `context` is a [`SampleJob`] whose lanes are distinct and in range.
pub(crate) unsafe fn sample_lanes(context: *const (), _: Worker<'_>) -> Result<(), Poisoned> {
    // SAFETY: `sample` passes its job, which outlives the call.
    let job = unsafe { &*context.cast::<SampleJob<'_>>() };
    loop {
        let i = job.next.fetch_add(1, Relaxed) as usize;
        if i >= job.lanes.len() {
            return Ok(());
        }
        // SAFETY: the claim is this worker's; lanes are distinct.
        unsafe { job.one(i) };
    }
}
