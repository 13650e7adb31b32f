//! Values times values: the kernels of `Encoding::F32`, for every form.
//!
//! A part of a panel is expanded to f32 in the first-level cache, then all rows walk over it.

use std::mem::MaybeUninit;

use super::form::{Form, codes_bytes, scales};
use super::matrix::Job;
use super::tile::{Sums, chunk_rows, finish, for_tiles};
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

/// Part of a panel, in f32.
#[repr(align(64))]
struct Expanded {
    _values: [[f32; PANEL_ROWS]; PART_COLS],
}

impl Kernel for Product {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let job = &self.job;
        let mut expanded = MaybeUninit::<Expanded>::uninit();
        let expanded = expanded.as_mut_ptr().cast::<f32>();
        let mut sums = MaybeUninit::<Sums>::uninit();
        let sums = sums.as_mut_ptr().cast::<f32>();
        let chunk = chunk_rows::<S>(job, S::FEW);
        for chunk_at in (0..job.m).step_by(chunk) {
            let rows_here = chunk.min(job.m - chunk_at);
            for panel in 0..job.panels {
                for from in (0..job.cols).step_by(PART_COLS) {
                    let to = job.cols.min(from + PART_COLS);
                    // SAFETY: panel, columns and rows are the job's; a part fits `expanded`. Sums
                    // of a row are written by its first part and read by later ones.
                    unsafe {
                        let packed = job.w.add(
                            panel * job.panel_bytes
                                + from / self.form.step_cols() * self.form.step_bytes(),
                        );
                        let w = if self.form == Form::F32 {
                            packed.cast::<f32>()
                        } else {
                            expand::<S>(self.form, packed, to - from, expanded);
                            expanded.cast_const()
                        };
                        for_tiles!(S::FEW, rows_here, |row, T| {
                            let mut acc = [S::splat(0.0); T];
                            let sums = sums.add(PANEL_ROWS * row);
                            if from > 0 {
                                for t in 0..T {
                                    acc[t] = S::load(sums.add(PANEL_ROWS * t));
                                }
                            }
                            let mut x = [job.enc.cast::<f32>(); T];
                            for t in 0..T {
                                let row = job.enc.add((chunk_at + row + t) * job.enc_stride);
                                x[t] = row.cast::<f32>().add(from);
                            }
                            for col in 0..to - from {
                                let w = S::load(w.add(PANEL_ROWS * col));
                                for t in 0..T {
                                    let x = S::splat(x[t].add(col).read_unaligned());
                                    acc[t] = S::fma(w, x, acc[t]);
                                }
                            }
                            if to == job.cols {
                                finish::<S, T>(job, panel, chunk_at + row, acc);
                            } else {
                                for t in 0..T {
                                    S::store(sums.add(PANEL_ROWS * t), acc[t]);
                                }
                            }
                        });
                    }
                }
            }
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
