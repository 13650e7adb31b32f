//! Stored rows to panels, once, at load.

use half::f16;
use ignis_formats::quant;
use ignis_types::DType;

use super::form::{Form, codes_bytes, packed_bytes, panels, scales, supports};
use super::{GROUP_COLS, PANEL_ROWS};
use crate::simd::codes;

/// Why a matrix could not be packed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PackError {
    /// `supports` is false for this dtype and number of columns.
    #[error("no kernel for {cols} columns of {dtype}")]
    Unsupported {
        /// Stored dtype.
        dtype: DType,
        /// Columns.
        cols: u32,
    },
    /// The stored bytes are not those of the shape.
    #[error("{found} B stored, the shape asks for {expected} B")]
    StoredBytes {
        /// Bytes of the shape.
        expected: u64,
        /// Bytes given.
        found: u64,
    },
    /// The output is not `packed_bytes` long.
    #[error("{found} B to pack into, the shape asks for {expected} B")]
    PackedBytes {
        /// Bytes of the shape.
        expected: u64,
        /// Bytes given.
        found: u64,
    },
    /// A stored value is NaN or infinite.
    #[error("block {block} holds a value that is not finite")]
    NotFinite {
        /// Index of the first bad block, in stored order.
        block: u64,
    },
    /// A row is picked that is not stored, or not every row has a pick.
    #[error("row {row} is picked, {stored} rows are stored")]
    RowMissing {
        /// The pick; `u32::MAX` where there is none.
        row: u32,
        /// Rows that are stored.
        stored: u32,
    },
    /// A size is beyond what memory can hold.
    #[error(transparent)]
    Overflow(#[from] ignis_types::Overflow),
}

/// Packs a stored matrix `[rows, cols]`: the same values, in panels, rows in the program's order.
///
/// Row `i` is stored row `picks[i]`; without picks the stored rows are all taken as they lie.
/// Every byte of `out` is written; rows that fill up the last panel are zeros. No heap is used.
pub fn pack(
    dtype: DType,
    rows: u32,
    cols: u32,
    picks: Option<&[u32]>,
    stored: &[u8],
    out: &mut [u8],
) -> Result<(), PackError> {
    let form = match Form::of(dtype) {
        Some(form) if supports(dtype, cols) => form,
        _ => return Err(PackError::Unsupported { dtype, cols }),
    };
    let row_bytes = dtype.bytes_of(u64::from(cols))?.expect("supported columns are whole blocks").0;
    let rows_stored = u32::try_from(stored.len() as u64 / row_bytes).unwrap_or(u32::MAX);
    let rows_needed = if picks.is_some() { rows_stored } else { rows };
    let expected = row_bytes * u64::from(rows_needed);
    if stored.len() as u64 != expected {
        return Err(PackError::StoredBytes { expected, found: stored.len() as u64 });
    }
    let expected = packed_bytes(dtype, rows, cols)?.0;
    if out.len() as u64 != expected {
        return Err(PackError::PackedBytes { expected, found: out.len() as u64 });
    }
    if let Some(picks) = picks {
        let bad = picks.iter().copied().find(|&pick| pick >= rows_stored);
        let bad = bad.or((picks.len() != rows as usize).then_some(u32::MAX));
        if let Some(row) = bad {
            return Err(PackError::RowMissing { row, stored: rows_stored });
        }
    }
    if rows == 0 {
        return Ok(());
    }

    out.fill(0);
    let row_bytes = row_bytes as usize;
    let row_blocks = row_bytes as u64 / dtype.block_bytes();
    let panel_bytes = out.len() / panels(rows) as usize;
    for row in 0..rows {
        let from = picks.map_or(row, |picks| picks[row as usize]) as usize;
        let first_block = from as u64 * row_blocks;
        let panel = row as usize / PANEL_ROWS * panel_bytes;
        let (from, to) =
            (&stored[from * row_bytes..][..row_bytes], &mut out[panel..][..panel_bytes]);
        quant::check_finite(dtype, from)
            .map_err(|block| PackError::NotFinite { block: first_block + block as u64 })?;
        let lane = row as usize % PANEL_ROWS;
        match form {
            Form::Codes { codes, scales, .. } => pack_codes(dtype, codes, scales, lane, from, to),
            Form::F16 | Form::BF16 => pack_floats::<2>(lane, from, to),
            Form::F32 => pack_floats::<4>(lane, from, to),
        }
    }
    Ok(())
}

fn pack_floats<const N: usize>(lane: usize, row: &[u8], panel: &mut [u8]) {
    let (values, _) = row.as_chunks::<N>();
    let (places, _) = panel.as_chunks_mut::<N>();
    for (col, value) in values.iter().enumerate() {
        places[col * PANEL_ROWS + lane] = *value;
    }
}

fn pack_codes(dtype: DType, codes: u8, scales: u8, lane: usize, row: &[u8], panel: &mut [u8]) {
    const ELEMENTS_MAX: usize = 256;
    let block = dtype.block_elements() as usize;
    let shape = quant::code_shape(dtype).expect("only quantised types are packed as codes");
    let step_bytes = Form::Codes { codes, scales, zero: 0 }.step_bytes();
    let (mut unpacked, mut d, mut m) = ([0; ELEMENTS_MAX], [0.0; 16], [0.0; 16]);
    let scales_of_block = block / shape.group;
    let mut groups = panel.chunks_exact_mut(step_bytes);
    for stored in row.chunks_exact(dtype.block_bytes() as usize) {
        let (d, m) = (&mut d[..scales_of_block], &mut m[..scales_of_block]);
        quant::unpack_codes(dtype, stored, &mut unpacked[..block], d, m)
            .expect("whole blocks and outputs of their shape");
        let per_group = GROUP_COLS / shape.group;
        for (g, columns) in unpacked[..block].chunks_exact(GROUP_COLS).enumerate() {
            let group = groups.next().expect("a panel has a step for every group");
            let (to, behind) = group.split_at_mut(codes_bytes(codes));
            put_codes(codes, lane, columns, to);
            let at = g * per_group;
            put_scales(scales, lane, &d[at..at + per_group], &m[at..at + per_group], behind);
        }
    }
}

fn put_codes(codes: u8, lane: usize, columns: &[u8], to: &mut [u8]) {
    if codes == codes::NIBBLES {
        for col in 0..16 {
            to[64 * (col / 4) + 4 * lane + col % 4] = columns[col] | columns[16 + col] << 4;
        }
    } else {
        for col in 0..GROUP_COLS {
            to[64 * (col / 4) + 4 * lane + col % 4] = columns[col];
        }
    }
}

fn put_scales(scales: u8, lane: usize, d: &[f32], m: &[f32], to: &mut [u8]) {
    let mut put_f16 = |array: usize, x: f32| {
        // Exact: these formats store half precision.
        to[32 * array + 2 * lane..][..2].copy_from_slice(&f16::from_f32(x).to_le_bytes());
    };
    match scales {
        scales::CENTRED => put_f16(0, d[0]),
        scales::MINS => {
            put_f16(0, d[0]);
            put_f16(1, m[0]);
        }
        _ => {
            for (array, x) in d.iter().chain(m).enumerate() {
                to[64 * array + 4 * lane..][..4].copy_from_slice(&x.to_le_bytes());
            }
        }
    }
}
