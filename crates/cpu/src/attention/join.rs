//! Runs of one row, reduced apart, joined in order.

use super::plan::runs_of;
use super::reduce::{Call, Scratch};
use crate::vector::{LANES, Vector, by_isa, exp};

/// The largest score and the sum of the weights relative to it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Stats {
    pub(super) largest: f32,
    pub(super) sum: f32,
}

/// Joins a run to those before it; the first is taken as it is.
#[inline(always)]
pub(super) unsafe fn join<V: Vector>(
    first: bool,
    totals: *mut f32,
    all: &mut Stats,
    sums: *const f32,
    run: Stats,
    width: usize,
) {
    // SAFETY: both hold `width` floats, by the caller.
    unsafe {
        if first {
            for at in (0..width).step_by(LANES) {
                V::load(sums.add(at)).store(totals.add(at));
            }
            *all = run;
            return;
        }
        let largest = if all.largest > run.largest { all.largest } else { run.largest };
        let old = exp(V::splat(all.largest - largest));
        let new = exp(V::splat(run.largest - largest));
        for at in (0..width).step_by(LANES) {
            let joined = V::load(totals.add(at)).mul(old);
            V::load(sums.add(at)).mul_add(new, joined).store(totals.add(at));
        }
        *all = Stats { largest, sum: all.sum * old.lane0() + run.sum * new.lane0() };
    }
}

/// Divides by the sum of the weights.
#[inline(always)]
pub(super) unsafe fn finish<V: Vector>(
    totals: *const f32,
    sum: f32,
    to: *mut f32,
    head_dim: usize,
) {
    // SAFETY: totals holds whole vectors, `to` head_dim floats, by the caller.
    unsafe {
        let scale = V::splat(1.0 / sum);
        for at in (0..head_dim).step_by(LANES) {
            let n = (head_dim - at).min(LANES);
            V::load(totals.add(at)).mul(scale).store_first(to.add(at), n);
        }
    }
}

/// Keeps a split run's sums in its slot.
#[inline(always)]
pub(super) unsafe fn keep<V: Vector>(
    call: &Call,
    slot: usize,
    head: usize,
    sums: *const f32,
    run: Stats,
) {
    let (width, partial) = (call.sizes.width, call.sizes.partial_head());
    // SAFETY: slot and head lie in the partial sums, by the plan.
    unsafe {
        let to = call.partials.add((slot * call.sizes.heads + head) * partial);
        for at in (0..width).step_by(LANES) {
            V::load(sums.add(at)).store(to.add(at));
        }
        *to.add(width).cast::<Stats>() = run;
    }
}

by_isa! {
    /// Joins the runs of a split row and writes its row of `o`.
    ///
    /// # Safety
    /// As for [`super::run_item`]; all items of the row are done.
    pub(crate) unsafe fn join_row(call: &Call, row: usize, position: u32, slot: usize) => join_runs
}

#[inline(always)]
unsafe fn join_runs<V: Vector>(call: &Call, row: usize, position: u32, slot: usize) {
    let (width, head_dim) = (call.sizes.width, call.sizes.head_dim);
    let partial = call.sizes.partial_head();
    for head in 0..call.heads {
        // SAFETY: the plan gave the row one slot a run; totals are this worker's scratch.
        unsafe {
            let totals = Scratch::new(call).totals;
            let mut all = Stats { largest: f32::NEG_INFINITY, sum: 0.0 };
            for run in 0..runs_of(position) as usize {
                let from = call.partials.add(((slot + run) * call.sizes.heads + head) * partial);
                let stats = *from.add(width).cast::<Stats>();
                join::<V>(run == 0, totals, &mut all, from, stats, width);
            }
            let to = call.o.add(row * call.heads * head_dim + head * head_dim);
            finish::<V>(totals, all.sum, to, head_dim);
        }
    }
}
