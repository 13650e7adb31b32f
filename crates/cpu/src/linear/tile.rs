//! What integer and float kernels share: the walk over rows in tiles, and the end of a result.

use super::PANEL_ROWS;
use super::matrix::Job;
use crate::simd::Simd;

/// Rows of activations whose unfinished sums are kept while a panel is staged in parts.
pub(super) const ROWS_MAX: usize = 256;

/// Unfinished sums, one panel wide.
#[repr(align(64))]
pub(super) struct Sums {
    _values: [[f32; PANEL_ROWS]; ROWS_MAX],
}

/// Rows that are walked together over all panels, so that their encoded bytes stay in cache.
pub(super) fn chunk_rows<S: Simd>(job: &Job) -> usize {
    (S::CHUNK_BYTES / job.enc_stride).clamp(S::TILE, ROWS_MAX) / S::TILE * S::TILE
}

/// Calls `$body` with a constant `$t` for tiles that cover rows `0..$rows`: as many of the largest
/// size as fit, then smaller ones.
macro_rules! for_tiles {
    ($simd:ty, $rows:expr, |$at:ident, $t:ident| $body:expr) => {{
        let (rows, mut $at) = ($rows, 0usize);
        if <$simd>::TILE == 8 {
            while rows - $at >= 8 {
                const $t: usize = 8;
                $body;
                $at += 8;
            }
        }
        while rows - $at >= 4 {
            const $t: usize = 4;
            $body;
            $at += 4;
        }
        if rows - $at >= 2 {
            const $t: usize = 2;
            $body;
            $at += 2;
        }
        if rows - $at >= 1 {
            const $t: usize = 1;
            $body;
        }
    }};
}
pub(super) use for_tiles;

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
