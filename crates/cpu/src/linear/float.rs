//! Values times values: the kernels of `Encoding::F32`, for every form.
//!
//! Few rows read float weights as they are. Otherwise a part of a panel is expanded to f32 in the
//! first-level cache, then all rows walk over it.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::form::{Form, codes_bytes, scales};
use super::matrix::Job;
use super::tile::{
    AHEAD_BYTES, AHEAD_FAR_BYTES, PANELS_MAX, Place, Sums, chunk_rows, finish, for_tiles,
};
use super::{GROUP_COLS, PANEL_ROWS};
use crate::simd::{Isa, Kernel, Simd, codes};

/// Columns that are expanded at a time: 16 KB.
const PART_COLS: usize = 256;

/// Runs `job` on weights in `form`.
///
/// # Safety
/// As `matrix::run`.
pub(super) unsafe fn run(isa: Isa, form: Form, job: Job) {
    // SAFETY: the caller's promises are the kernel's.
    unsafe { isa.run(Product { form, job }) }
}

struct Product {
    form: Form,
    job: Job,
}

/// Parts of panels, in f32.
#[repr(align(64))]
struct Expanded {
    _values: [[[f32; PANEL_ROWS]; PART_COLS]; PANELS_MAX],
}

impl Kernel for Product {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let is_few = self.job.m <= 2 * S::FEW;
        // SAFETY: the caller's promises; `DTYPE` is the form's.
        unsafe {
            match self.form {
                Form::F16 if is_few => self.few::<S, F16>(),
                Form::BF16 if is_few => self.few::<S, BF16>(),
                Form::F32 if is_few => self.few::<S, F32>(),
                _ => self.many::<S>(),
            }
        }
    }
}

const F16: u8 = 0;
const BF16: u8 = 1;
const F32: u8 = 2;

impl Product {
    /// One or two tiles of rows over float weights: straight from the packed bytes, at the speed of
    /// memory.
    #[inline(always)]
    unsafe fn few<S: Simd, const DTYPE: u8>(&self) {
        let job = &self.job;
        for panel in 0..job.panels {
            for_tiles!(S::FEW, job.m, |row, T| {
                // SAFETY: the panel and the rows are the job's. What is prefetched need not exist.
                unsafe {
                    let w = job.w.add(panel * job.panel_bytes);
                    let x = rows::<T>(job, row, 0);
                    let mut acc = [S::splat(0.0); T];
                    for col in 0..job.cols {
                        let at = w.add(self.form.step_bytes() * col);
                        // F16 and BF16 ask for each line twice, which costs less than a branch.
                        S::prefetch_far(at.wrapping_add(AHEAD_FAR_BYTES));
                        S::prefetch(at.wrapping_add(AHEAD_BYTES));
                        let w = match DTYPE {
                            F16 => S::load_f16(at.cast()),
                            BF16 => S::load_bf16(at.cast()),
                            _ => S::load(at.cast()),
                        };
                        for t in 0..T {
                            let x = S::splat(x[t].add(col).read_unaligned());
                            acc[t] = S::fma(w, x, acc[t]);
                        }
                    }
                    finish::<S, T>(job, panel, row, acc);
                }
            });
        }
    }

    #[inline(always)]
    unsafe fn many<S: Simd>(&self) {
        let job = &self.job;
        let mut expanded = MaybeUninit::<Expanded>::uninit();
        let mut sums = MaybeUninit::<Sums>::uninit();
        let (expanded, sums) = (expanded.as_mut_ptr().cast(), sums.as_mut_ptr().cast::<f32>());
        let chunk = chunk_rows::<S>(job, S::MANY.1);
        for start in (0..job.m).step_by(chunk) {
            let rows = start..job.m.min(start + chunk);
            let mut panel = 0;
            // SAFETY: rows and panels are the job's.
            unsafe {
                if S::MANY.0 == 2 {
                    while panel + 2 <= job.panels {
                        self.walk::<S, 2>(panel, rows.clone(), expanded, sums);
                        panel += 2;
                    }
                }
                while panel < job.panels {
                    self.walk::<S, 1>(panel, rows.clone(), expanded, sums);
                    panel += 1;
                }
            }
        }
    }

    /// All of `rows_here` over `P` panels, from `panel` on. `expanded` and `sums` are scratch.
    #[inline(always)]
    unsafe fn walk<S: Simd, const P: usize>(
        &self,
        panel: usize,
        rows_here: Range<usize>,
        expanded: *mut f32,
        sums: *mut f32,
    ) {
        let job = &self.job;
        for from in (0..job.cols).step_by(PART_COLS) {
            let to = job.cols.min(from + PART_COLS);
            // SAFETY: panels, columns and rows are the job's; a part fits `expanded`. Sums of a row
            // are written by its first part and read by later ones.
            unsafe {
                let mut w = [expanded.cast_const(); P];
                for p in 0..P {
                    let step = from / self.form.step_cols() * self.form.step_bytes();
                    let packed = job.w.add((panel + p) * job.panel_bytes + step);
                    if self.form == Form::F32 {
                        w[p] = packed.cast();
                    } else {
                        let expanded = expanded.add(p * PART_COLS * PANEL_ROWS);
                        expand::<S>(self.form, packed, to - from, expanded);
                        w[p] = expanded;
                    }
                }
                for_tiles!(S::MANY.1, rows_here.len(), |row, T| {
                    S::call(Tile::<P, T> {
                        place: Place {
                            job,
                            panel,
                            row: rows_here.start + row,
                            sums: sums.add(PANEL_ROWS * row),
                            is_first: from == 0,
                            is_last: to == job.cols,
                        },
                        w,
                        x: rows::<T>(job, rows_here.start + row, from),
                        cols: to - from,
                    });
                });
            }
        }
    }
}

/// Where `T` rows of activations start, `col` values in.
#[inline(always)]
unsafe fn rows<const T: usize>(job: &Job, row: usize, col: usize) -> [*const f32; T] {
    let mut x = [job.enc.cast::<f32>(); T];
    for t in 0..T {
        // SAFETY: the rows are the job's, and `col` is inside of a row.
        x[t] = unsafe { job.enc.add((row + t) * job.enc_stride).cast::<f32>().add(col) };
    }
    x
}

/// `T` rows over the same part of `P` panels, in f32.
struct Tile<'a, const P: usize, const T: usize> {
    place: Place<'a>,
    w: [*const f32; P],
    x: [*const f32; T],
    cols: usize,
}

impl<const P: usize, const T: usize> Kernel for Tile<'_, P, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: whoever made the tile answers for its pointers.
        unsafe {
            let mut acc = self.place.begin::<S, P, T>();
            for col in 0..self.cols {
                let mut w = [S::splat(0.0); P];
                for p in 0..P {
                    w[p] = S::load(self.w[p].add(PANEL_ROWS * col));
                }
                for t in 0..T {
                    let x = S::splat(self.x[t].add(col).read_unaligned());
                    for p in 0..P {
                        acc[p][t] = S::fma(w[p], x, acc[p][t]);
                    }
                }
            }
            self.place.end::<S, P, T>(acc);
        }
    }
}

/// Writes `cols` packed columns as f32.
#[inline(always)]
unsafe fn expand<S: Simd>(form: Form, packed: *const u8, cols: usize, to: *mut f32) {
    // SAFETY: `packed` has these columns in `form`, `to` has room for them.
    unsafe {
        match form {
            Form::F16 => {
                for col in 0..cols {
                    let x = S::load_f16(packed.cast::<u16>().add(PANEL_ROWS * col));
                    S::store(to.add(PANEL_ROWS * col), x);
                }
            }
            Form::BF16 => {
                for col in 0..cols {
                    let x = S::load_bf16(packed.cast::<u16>().add(PANEL_ROWS * col));
                    S::store(to.add(PANEL_ROWS * col), x);
                }
            }
            Form::F32 => unreachable!("used in place"),
            Form::Codes { codes, scales, zero } => {
                for g in 0..cols / GROUP_COLS {
                    let group = packed.add(g * form.step_bytes());
                    let mut wide = [0u8; 512];
                    let bytes = if codes == codes::NIBBLES {
                        S::widen(group, wide.as_mut_ptr());
                        wide.as_ptr()
                    } else {
                        group
                    };
                    for half in 0..2 {
                        let behind = group.add(codes_bytes(codes));
                        let (d, m) = scales_of::<S>(scales, zero, behind, half);
                        for col in 16 * half..16 * half + 16 {
                            let u = S::column(bytes.add(64 * (col / 4)), col as u32 % 4);
                            let x = S::fma(d, u, m);
                            S::store(to.add(PANEL_ROWS * (GROUP_COLS * g + col)), x);
                        }
                    }
                }
            }
        }
    }
}

/// `d` and `m` of one half of a group's columns.
#[inline(always)]
unsafe fn scales_of<S: Simd>(scales: u8, zero: u8, behind: *const u8, half: usize) -> (S::F, S::F) {
    let (short, long) = (behind.cast::<u16>(), behind.cast::<f32>());
    // SAFETY: `behind` are the scales of a group in the layout that `scales` names.
    unsafe {
        match scales {
            scales::CENTRED => {
                let d = S::load_f16(short);
                (d, S::mul(d, S::splat(-f32::from(zero))))
            }
            scales::MINS => (S::load_f16(short), S::load_f16(short.add(16))),
            scales::WIDE => (S::load(long), S::load(long.add(16))),
            _ => (S::load(long.add(16 * half)), S::load(long.add(32 + 16 * half))),
        }
    }
}
