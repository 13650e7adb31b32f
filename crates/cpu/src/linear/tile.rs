//! What integer and float kernels share: the walk over rows in tiles, and the end of a result.

use super::PANEL_ROWS;
use super::matrix::Job;
use crate::simd::Simd;

/// How far a read of packed weights runs ahead of their use: from memory to the second-level cache,
/// and from there to the first. Beside each other they reach the bandwidth of a plain read; the
/// hardware's own prefetch, which starts anew with every 4 KB, reaches two thirds of it.
pub(super) const AHEAD_FAR_BYTES: usize = 4096;
pub(super) const AHEAD_BYTES: usize = 512;
/// Rows of activations whose unfinished sums are kept while a panel is staged in parts.
pub(super) const ROWS_MAX: usize = 192;
/// Panels that are walked together at most.
pub(super) const PANELS_MAX: usize = 2;

/// Unfinished sums, one panel after the other.
#[repr(align(64))]
pub(super) struct Sums {
    _values: [[[f32; PANEL_ROWS]; ROWS_MAX]; PANELS_MAX],
}

/// Rows that are walked together over all panels: a multiple of `tile` whose encoded bytes stay in
/// cache, in equal parts of all rows.
pub(super) fn chunk_rows<S: Simd>(job: &Job, tile: usize) -> usize {
    let rows_max = (S::CHUNK_BYTES / job.enc_stride).clamp(tile, ROWS_MAX) / tile * tile;
    job.m.div_ceil(job.m.div_ceil(rows_max)).next_multiple_of(tile)
}

/// Evaluates `$body` for tiles that cover rows `0..$rows`, `$t` a constant: as many tiles of
/// `$most` (at most 8) rows as fit, then smaller ones.
macro_rules! for_tiles {
    ($most:expr, $rows:expr, |$at:ident, $t:ident| $body:expr) => {{
        let (rows, mut $at) = ($rows, 0usize);
        $crate::linear::tile::for_tiles!(@ 8, $most, rows, $at, $t, $body);
        $crate::linear::tile::for_tiles!(@ 6, $most, rows, $at, $t, $body);
        $crate::linear::tile::for_tiles!(@ 4, $most, rows, $at, $t, $body);
        $crate::linear::tile::for_tiles!(@ 2, $most, rows, $at, $t, $body);
        $crate::linear::tile::for_tiles!(@ 1, $most, rows, $at, $t, $body);
    }};
    (@ $size:literal, $most:expr, $rows:ident, $at:ident, $t:ident, $body:expr) => {
        // A 6 is a size of its own, not a step on the way down from 8.
        if $size <= $most && ($size != 6 || $most == 6) {
            while $rows - $at >= $size {
                const $t: usize = $size;
                $body;
                $at += $size;
            }
        }
    };
}
pub(super) use for_tiles;

/// Where a tile of rows stands in a product: which results it makes, and which part of their sums.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) job: &'a Job,
    /// First panel and row.
    pub(super) panel: usize,
    pub(super) row: usize,
    /// Unfinished sums of the first row, in a [`Sums`].
    pub(super) sums: *mut f32,
    /// The part begins the sums: nothing is read.
    pub(super) is_first: bool,
    /// The part ends the sums: they become results.
    pub(super) is_last: bool,
}

impl Place<'_> {
    /// The sums of `T` rows and `P` panels before this part.
    ///
    /// # Safety
    /// The instructions of `S`; unless `is_first`, an earlier part was ended here.
    #[inline(always)]
    pub(super) unsafe fn begin<S: Simd, const P: usize, const T: usize>(&self) -> [[S::F; T]; P] {
        // SAFETY: rows and panels are at most those of `Sums`.
        unsafe {
            let mut acc = [[S::splat(0.0); T]; P];
            if !self.is_first {
                for p in 0..P {
                    for t in 0..T {
                        acc[p][t] = S::load(self.sums.add(PANEL_ROWS * (p * ROWS_MAX + t)));
                    }
                }
            }
            acc
        }
    }

    /// Keeps the sums for the next part, or makes results of them.
    ///
    /// # Safety
    /// The instructions of `S`; the rows and panels are the job's.
    #[inline(always)]
    pub(super) unsafe fn end<S: Simd, const P: usize, const T: usize>(&self, acc: [[S::F; T]; P]) {
        // SAFETY: as in `begin`, and the caller's promises.
        unsafe {
            for p in 0..P {
                if self.is_last {
                    finish::<S, T>(self.job, self.panel + p, self.row, acc[p]);
                } else {
                    for t in 0..T {
                        S::store(self.sums.add(PANEL_ROWS * (p * ROWS_MAX + t)), acc[p][t]);
                    }
                }
            }
        }
    }
}

/// Writes the results of rows `row..row + T` for panel `panel` of the job.
///
/// # Safety
/// The instructions of `S`; the rows and the panel are the job's.
#[inline(always)]
pub(super) unsafe fn finish<S: Simd, const T: usize>(
    job: &Job,
    panel: usize,
    row: usize,
    acc: [S::F; T],
) {
    let lanes = if panel + 1 == job.panels { job.last_rows } else { PANEL_ROWS };
    // SAFETY: `y` and `bias` are valid for the `lanes` rows of this panel, as `run` was promised; a
    // partial panel goes through a copy of full width.
    unsafe {
        let copy_in = |from: *const f32| {
            let mut copy = [0.0f32; PANEL_ROWS];
            std::ptr::copy_nonoverlapping(from, copy.as_mut_ptr(), lanes);
            copy
        };
        for t in 0..T {
            let y = job.y.add((row + t) * job.y_stride + panel * PANEL_ROWS);
            let mut out = acc[t];
            if lanes == PANEL_ROWS {
                if !job.bias.is_null() {
                    out = S::add(out, S::load(job.bias.add(panel * PANEL_ROWS)));
                }
                if job.accumulate {
                    out = S::add(S::load(y), out);
                }
                S::store(y, out);
            } else {
                if !job.bias.is_null() {
                    let bias = copy_in(job.bias.add(panel * PANEL_ROWS));
                    out = S::add(out, S::load(bias.as_ptr()));
                }
                if job.accumulate {
                    out = S::add(S::load(copy_in(y).as_ptr()), out);
                }
                let mut copy = [0.0f32; PANEL_ROWS];
                S::store(copy.as_mut_ptr(), out);
                std::ptr::copy_nonoverlapping(copy.as_ptr(), y, lanes);
            }
        }
    }
}
