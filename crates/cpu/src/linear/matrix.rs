//! A packed matrix, and the way in to its kernels.

use std::ops::Range;

use half::{bf16, f16};
use ignis_types::DType;

use super::encode::{Encoding, encoded_row_bytes, encoding_for};
use super::form::{Form, codes_bytes, panels, scales, supports};
use super::{GROUP_COLS, PANEL_ROWS, float, integer};
use crate::simd::{Isa, codes};

/// A view of a packed matrix `[rows, cols]`. It borrows nothing: whoever makes it answers for the
/// bytes.
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    pub(crate) form: Form,
    dtype: DType,
    rows: u32,
    cols: u32,
    base: *const u8,
}

// SAFETY: the bytes are only ever read, and `Matrix::new` asks that nobody writes them.
unsafe impl Send for Matrix {}
// SAFETY: as above.
unsafe impl Sync for Matrix {}

impl Matrix {
    /// A view of the `packed_bytes(dtype, rows, cols)` bytes at `base`.
    ///
    /// # Safety
    /// As long as the view or a copy of it is used, these bytes are readable, nobody writes them,
    /// and they hold what `pack` wrote for the same `dtype`, `rows` and `cols`. `base` should be
    /// aligned to 64, for speed.
    pub unsafe fn new(dtype: DType, rows: u32, cols: u32, base: *const u8) -> Matrix {
        assert!(supports(dtype, cols), "{dtype} with {cols} columns cannot be packed");
        let form = Form::of(dtype).expect("a supported dtype has a form");
        Matrix { form, dtype, rows, cols, base }
    }

    /// The dtype it was stored in.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Results of one product.
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// Values that one product reads.
    pub fn cols(&self) -> u32 {
        self.cols
    }

    fn panel_bytes(&self) -> usize {
        self.form.panel_bytes(self.cols) as usize
    }
}

/// What one call of a kernel does; the fields keep the names of [`run`].
#[derive(Clone, Copy)]
pub(crate) struct Job {
    /// First panel of the call.
    pub(crate) w: *const u8,
    pub(crate) panel_bytes: usize,
    /// Columns.
    pub(crate) cols: usize,
    pub(crate) enc: *const u8,
    pub(crate) enc_stride: usize,
    pub(crate) m: usize,
    /// First column of the results that the call writes.
    pub(crate) y: *mut f32,
    pub(crate) y_stride: usize,
    /// As `y`; null for none.
    pub(crate) bias: *const f32,
    pub(crate) accumulate: bool,
    /// Panels of the call.
    pub(crate) panels: usize,
    /// Results in the last panel, 1..=16.
    pub(crate) last_rows: usize,
}

/// Products of `m` rows of activations with some panels of `w`:
/// `y[t, n] = (accumulate ? y[t, n] : 0) + bias[n] + sum_k x[t, k] * w[n, k]`, by the contract of
/// the module.
///
/// `enc` holds rows written by `encode_row` in `encoding`, `encoded_row_bytes` apart; `y_stride`
/// counts values. Writes `y[t, n]` for `n` in the rows of `panels` and nothing else, so threads may
/// share `y` and split the panels. Asserts that `encoding` suits the dtype and that the panels
/// exist.
///
/// # Safety
/// `isa` is available. `enc` has `m` encoded rows of `w.cols()` values. `y` is valid for writes
/// (and reads, if `accumulate`) at `t * y_stride + n` for `t < m` and every `n` in the panels;
/// `bias` is readable at those `n`. Nobody else touches these parts of `y` during the call.
pub unsafe fn run(
    isa: Isa,
    w: &Matrix,
    encoding: Encoding,
    enc: *const u8,
    m: usize,
    y: *mut f32,
    y_stride: usize,
    bias: Option<*const f32>,
    accumulate: bool,
    panels: Range<u32>,
) {
    let panels_max = self::panels(w.rows);
    assert!(panels.end <= panels_max, "panels {panels:?} of {panels_max}");
    assert_eq!(encoding, encoding_for(w.dtype, encoding), "encoding of {}", w.dtype);
    if m == 0 || panels.is_empty() {
        return;
    }
    let first_row = panels.start as usize * PANEL_ROWS;
    let job = Job {
        w: w.base.wrapping_add(panels.start as usize * w.panel_bytes()),
        panel_bytes: w.panel_bytes(),
        cols: w.cols as usize,
        enc,
        enc_stride: encoded_row_bytes(w.cols, encoding),
        m,
        y: y.wrapping_add(first_row),
        y_stride,
        bias: bias.map_or(std::ptr::null(), |bias| bias.wrapping_add(first_row)),
        accumulate,
        panels: panels.len(),
        last_rows: (w.rows as usize).min(panels.end as usize * PANEL_ROWS)
            - (panels.end as usize - 1) * PANEL_ROWS,
    };
    // SAFETY: the caller's promises; the view's own hold its panels, which were checked to exist.
    unsafe {
        match encoding {
            Encoding::Int8 => integer::run::<false>(isa, w.form, job),
            Encoding::Int16 => integer::run::<true>(isa, w.form, job),
            Encoding::F32 => float::run(isa, w.form, job),
        }
    }
}

/// Row `row` of `w` as values: what stored bytes mean, rounded to f32 once.
///
/// Asserts that the row exists and that `out` has `w.cols()` values.
pub fn table_row(w: &Matrix, row: u32, out: &mut [f32]) {
    assert!(row < w.rows, "row {row} of {}", w.rows);
    assert_eq!(out.len(), w.cols as usize, "values of a row");
    let (panel, lane) = (row as usize / PANEL_ROWS, row as usize % PANEL_ROWS);
    // SAFETY: `Matrix::new` promised the bytes of every panel, and the panel exists.
    let panel =
        unsafe { std::slice::from_raw_parts(w.base.add(panel * w.panel_bytes()), w.panel_bytes()) };
    let two = |at: usize| [panel[at], panel[at + 1]];
    let four = |at: usize| [panel[at], panel[at + 1], panel[at + 2], panel[at + 3]];
    match w.form {
        Form::F16 => {
            for (col, out) in out.iter_mut().enumerate() {
                *out = f16::from_le_bytes(two(2 * (col * PANEL_ROWS + lane))).to_f32();
            }
        }
        Form::BF16 => {
            for (col, out) in out.iter_mut().enumerate() {
                *out = bf16::from_le_bytes(two(2 * (col * PANEL_ROWS + lane))).to_f32();
            }
        }
        Form::F32 => {
            for (col, out) in out.iter_mut().enumerate() {
                *out = f32::from_le_bytes(four(4 * (col * PANEL_ROWS + lane)));
            }
        }
        Form::Codes { codes, scales, zero } => {
            let steps = panel.chunks_exact(w.form.step_bytes());
            for (group, out) in steps.zip(out.chunks_exact_mut(GROUP_COLS)) {
                let (group, behind) = group.split_at(codes_bytes(codes));
                for (col, out) in out.iter_mut().enumerate() {
                    let (d, m) = scale_of(scales, zero, behind, lane, col / 16);
                    let at = 64 * (col / 4) + 4 * lane + col % 4;
                    let u = match codes {
                        codes::NIBBLES => group[at % 256] >> (at / 256 * 4) & 15,
                        _ => group[at],
                    };
                    *out = d.mul_add(f32::from(u), m);
                }
            }
        }
    }
}

/// `d` and `m` of one row and half of a group's columns.
fn scale_of(scales: u8, zero: u8, behind: &[u8], lane: usize, half: usize) -> (f32, f32) {
    let short = |array: usize| {
        let at = 32 * array + 2 * lane;
        f16::from_le_bytes([behind[at], behind[at + 1]]).to_f32()
    };
    let long = |array: usize| {
        let at = 64 * array + 4 * lane;
        f32::from_le_bytes([behind[at], behind[at + 1], behind[at + 2], behind[at + 3]])
    };
    match scales {
        scales::CENTRED => (short(0), -f32::from(zero) * short(0)),
        scales::MINS => (short(0), short(1)),
        scales::WIDE => (long(0), long(1)),
        _ => (long(half), long(2 + half)),
    }
}
