//! How a stored dtype looks when packed, in bytes.

use ignis_types::{Bytes, DType, Overflow};

use super::{GROUP_COLS, PANEL_ROWS};

/// What stands behind the codes of a group. Lane `r` of every array is a row of the panel.
pub(crate) mod scales {
    /// `d` [16] f16; `m = -zero * d`.
    pub(crate) const CENTRED: u8 = 0;
    /// `d` [16] f16, `m` [16] f16.
    pub(crate) const MINS: u8 = 1;
    /// `d` [16] f32, `m` [16] f32.
    pub(crate) const WIDE: u8 = 2;
    /// `d` [2, 16] f32, `m` [2, 16] f32: low and high half of the columns.
    pub(crate) const HALVES: u8 = 3;
}

/// The packed form of a dtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Groups of 32 columns, each contiguous: codes as `crate::simd::codes` lays them out, then
    /// scales as `scales` does. `zero` is the code that means 0, for `scales::CENTRED`.
    Codes { codes: u8, scales: u8, zero: u8 },
    /// Column by column, [16] rows of f16.
    F16,
    /// As `F16`, in bfloat16.
    BF16,
    /// As `F16`, in f32.
    F32,
}

impl Form {
    /// The form of `dtype`; `None` for integers.
    pub(crate) const fn of(dtype: DType) -> Option<Form> {
        use crate::simd::codes::{BYTES, NIBBLES};
        use scales::{CENTRED, HALVES, MINS, WIDE};
        Some(match dtype {
            DType::F32 => Form::F32,
            DType::F16 => Form::F16,
            DType::BF16 => Form::BF16,
            DType::I32 => return None,
            DType::Q4_0 => Form::Codes { codes: NIBBLES, scales: CENTRED, zero: 8 },
            DType::Q4_1 => Form::Codes { codes: NIBBLES, scales: MINS, zero: 0 },
            DType::Q4K => Form::Codes { codes: NIBBLES, scales: WIDE, zero: 0 },
            DType::Q5_0 => Form::Codes { codes: BYTES, scales: CENTRED, zero: 16 },
            DType::Q5_1 => Form::Codes { codes: BYTES, scales: MINS, zero: 0 },
            DType::Q8_0 => Form::Codes { codes: BYTES, scales: CENTRED, zero: 128 },
            DType::Q5K => Form::Codes { codes: BYTES, scales: WIDE, zero: 0 },
            DType::Q2K | DType::Q3K | DType::Q6K => {
                Form::Codes { codes: BYTES, scales: HALVES, zero: 0 }
            }
        })
    }

    /// Bytes of 16 rows of a group, or of one column for floats.
    pub(crate) const fn step_bytes(self) -> usize {
        match self {
            Form::Codes { codes, scales, .. } => codes_bytes(codes) + scales_bytes(scales),
            Form::F16 | Form::BF16 => 2 * PANEL_ROWS,
            Form::F32 => 4 * PANEL_ROWS,
        }
    }

    /// Columns of one step.
    pub(crate) const fn step_cols(self) -> usize {
        match self {
            Form::Codes { .. } => GROUP_COLS,
            Form::F16 | Form::BF16 | Form::F32 => 1,
        }
    }

    /// Bytes from one panel to the next: a multiple of 64.
    pub(crate) const fn panel_bytes(self, cols: u32) -> u64 {
        let steps = (cols as u64).div_ceil(self.step_cols() as u64);
        (steps * self.step_bytes() as u64).next_multiple_of(64)
    }
}

/// Bytes of the codes of a group.
pub(crate) const fn codes_bytes(codes: u8) -> usize {
    if codes == crate::simd::codes::NIBBLES { 256 } else { 512 }
}

/// Bytes of the scales of a group.
pub(crate) const fn scales_bytes(scales: u8) -> usize {
    match scales {
        scales::CENTRED => 32,
        scales::MINS => 64,
        scales::WIDE => 128,
        _ => 256,
    }
}

/// Whether a matrix of `cols` columns stored as `dtype` can be packed: whole blocks, no integers.
pub fn supports(dtype: DType, cols: u32) -> bool {
    Form::of(dtype).is_some() && cols > 0 && u64::from(cols).is_multiple_of(dtype.block_elements())
}

/// Panels of a matrix; the last may be partly filled.
pub fn panels(rows: u32) -> u32 {
    rows.div_ceil(PANEL_ROWS as u32)
}

/// Bytes of the packed matrix, to be aligned to 64.
///
/// Asserts [`supports`].
pub fn packed_bytes(dtype: DType, rows: u32, cols: u32) -> Result<Bytes, Overflow> {
    assert!(supports(dtype, cols), "{dtype} with {cols} columns cannot be packed");
    let form = Form::of(dtype).expect("a supported dtype has a form");
    Bytes(form.panel_bytes(cols)).times(u64::from(panels(rows)))
}
