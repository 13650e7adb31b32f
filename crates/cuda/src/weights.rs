//! Stored tensors into their regions, at load.

use std::borrow::Cow;

use arrayvec::ArrayVec;
use half::bf16;
use ignis_backend::DeviceError;
use ignis_formats::quant;
use ignis_ops::{RowOrder, WeightKind, WeightSpec};
use ignis_types::DType;

use crate::blocks::{GROUP_ROWS, group_bytes, write_group};
use crate::driver::Context;
use crate::loading::{PIECE_BYTES, Uploader, check_finite, share};
use crate::memory::Memory;

/// Converts one weight into its region, which starts at `at`, where it is kept as `kept`.
pub(crate) fn put(
    context: &Context,
    memory: &Memory,
    uploader: &mut Uploader,
    weight: &WeightSpec,
    kept: DType,
    stored: &[&[u8]],
    at: u64,
) -> Result<(), DeviceError> {
    let &[stored] = stored else {
        return Err(wrong_bytes(weight, stored.len() as u64, 1));
    };
    if let Err(block) = check_finite(weight.dtype, stored) {
        return Err(DeviceError::NotFinite { name: weight.name.clone(), block: block as u64 });
    }
    let is_rounded = weight.kind != WeightKind::Vector && kept != weight.dtype;
    if is_rounded && let Some(at) = first_too_large(weight.dtype, stored) {
        return Err(DeviceError::TooLarge { name: weight.name.clone(), at: at as u64, kept });
    }
    match weight.kind {
        WeightKind::Vector => memory.write(context, at, &vector(weight, stored)?),
        _ => put_matrix(context, memory, uploader, weight, kept, stored, at),
    }
}

fn wrong_bytes(weight: &WeightSpec, found: u64, expected: u64) -> DeviceError {
    DeviceError::WeightBytes { name: weight.name.clone(), found, expected }
}

fn unsupported(weight: &WeightSpec) -> DeviceError {
    DeviceError::DTypeUnsupported { name: weight.name.clone(), dtype: weight.dtype }
}

fn put_matrix(
    context: &Context,
    memory: &Memory,
    uploader: &mut Uploader,
    weight: &WeightSpec,
    kept: DType,
    stored: &[u8],
    at: u64,
) -> Result<(), DeviceError> {
    let group = group_bytes(kept, weight.cols).ok_or_else(|| unsupported(weight))?;
    let stored_row = weight.dtype.bytes_of(u64::from(weight.cols)).ok().flatten();
    let stored_row = stored_row.ok_or_else(|| unsupported(weight))?.as_usize();
    let rows = weight.rows as usize;
    let as_stored = matches!(weight.order, RowOrder::AsStored);
    if as_stored && stored.len() != rows * stored_row {
        return Err(wrong_bytes(weight, stored.len() as u64, (rows * stored_row) as u64));
    }
    if let RowOrder::Picked(picks) = &weight.order {
        let needed = picks.iter().max().map_or(0, |&row| (row as usize + 1) * stored_row);
        if picks.len() != rows || stored.len() < needed {
            return Err(wrong_bytes(weight, stored.len() as u64, needed as u64));
        }
    }
    let at_once = (PIECE_BYTES / group).max(1);
    let groups = rows.div_ceil(GROUP_ROWS);
    for first in (0..groups).step_by(at_once) {
        let piece = uploader.piece(group * at_once.min(groups - first))?;
        share(piece, group, |i, out| {
            let from = (first + i) * GROUP_ROWS;
            let stored = (from..rows.min(from + GROUP_ROWS)).map(|row| {
                let from = weight.order.stored_row(row as u32) as usize * stored_row;
                keep_row(weight.dtype, kept, &stored[from..from + stored_row])
            });
            let rows: ArrayVec<Cow<'_, [u8]>, GROUP_ROWS> = stored.collect();
            let rows: ArrayVec<&[u8], GROUP_ROWS> = rows.iter().map(|row| &**row).collect();
            out.fill(0);
            write_group(kept, &rows, out);
        });
        uploader.send(context, memory, at + (first * group) as u64)?;
    }
    Ok(())
}

/// The first plain value that bf16 has only infinity for; f16 has none.
fn first_too_large(stored: DType, values: &[u8]) -> Option<usize> {
    if stored != DType::F32 {
        return None;
    }
    let is_finite = |value: &[u8]| {
        let value = f32::from_le_bytes(value.try_into().expect("a value has four bytes"));
        bf16::from_f32(value).is_finite()
    };
    values.chunks_exact(4).position(|value| !is_finite(value))
}

/// A stored row as it is kept: as it is, or its values rounded to nearest even in bf16.
fn keep_row(stored: DType, kept: DType, row: &[u8]) -> Cow<'_, [u8]> {
    if stored == kept {
        return Cow::Borrowed(row);
    }
    assert_eq!(kept, DType::BF16, "plain values are kept as bf16 or as they are");
    let mut values = vec![0f32; row.len() / stored.block_bytes() as usize];
    quant::dequantize(stored, row, &mut values).expect("a whole row of plain values");
    let mut rounded = vec![0u8; 2 * values.len()];
    for (to, &value) in rounded.chunks_exact_mut(2).zip(&values) {
        to.copy_from_slice(&bf16::from_f32(value).to_le_bytes());
    }
    Cow::Owned(rounded)
}

/// A vector's values as the program wants them, f32.
fn vector(weight: &WeightSpec, stored: &[u8]) -> Result<Vec<u8>, DeviceError> {
    let dtype = weight.dtype;
    let cols = weight.cols as usize;
    let blocks = stored.len() / dtype.block_bytes() as usize;
    let mut all = vec![0f32; blocks * dtype.block_elements() as usize];
    quant::dequantize(dtype, stored, &mut all).map_err(|_| unsupported(weight))?;
    let picked = matches!(weight.order, RowOrder::Picked(_));
    if weight.rows != 1 || all.len() < cols || (!picked && all.len() != cols) {
        return Err(wrong_bytes(weight, all.len() as u64 * 4, cols as u64 * 4));
    }
    let mut out = Vec::with_capacity(4 * cols);
    for i in 0..weight.cols {
        let value = all.get(weight.order.stored_row(i) as usize).map(|&x| weight.map.apply(x));
        match value {
            Some(value) if value.is_finite() => out.extend(value.to_le_bytes()),
            Some(_) => {
                return Err(DeviceError::NotFinite { name: weight.name.clone(), block: 0 });
            }
            None => return Err(wrong_bytes(weight, all.len() as u64 * 4, cols as u64 * 4)),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_rows_are_rounded_to_even_or_left() {
        // Ties of bf16, which keeps seven bits of the fraction: down and up to the even one.
        let values = [1.0f32, -2.5, 1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, 1.0 + 1.0 / 200.0];
        let expected = [1.0f32, -2.5, 1.0, 1.0 + 4.0 / 256.0, 1.0 + 2.0 / 256.0];
        let bf16_row: Vec<u8> =
            expected.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect();
        let f32_row: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        let f16_row: Vec<u8> =
            values.iter().flat_map(|&x| half::f16::from_f32(x).to_le_bytes()).collect();
        assert_eq!(keep_row(DType::F32, DType::BF16, &f32_row), bf16_row);
        assert_eq!(keep_row(DType::F16, DType::BF16, &f16_row), bf16_row);
        for (dtype, row) in
            [(DType::F32, &f32_row), (DType::F16, &f16_row), (DType::Q8_0, &f16_row)]
        {
            assert!(matches!(keep_row(dtype, dtype, row), Cow::Borrowed(same) if same == row));
        }
    }

    #[test]
    fn values_that_would_be_kept_as_infinity_are_found() {
        let values = [f32::MIN_POSITIVE, 3.38e38, -3.40e38, 1.0];
        let row: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        assert_eq!(first_too_large(DType::F32, &row), Some(2));
        assert_eq!(first_too_large(DType::F32, &row[..8]), None);
        assert_eq!(first_too_large(DType::F16, &row), None);
    }
}
