//! Stored tensors into their regions, at load.

use arrayvec::ArrayVec;
use ignis_backend::DeviceError;
use ignis_formats::quant;
use ignis_ops::{RowOrder, WeightKind, WeightSpec};

use crate::blocks::{GROUP_ROWS, group_bytes, write_group};
use crate::driver::Context;
use crate::loading::{PIECE_BYTES, Uploader, check_finite, share};
use crate::memory::Memory;

/// Converts one weight into its region, which starts at `at`.
pub(crate) fn put(
    context: &Context,
    memory: &Memory,
    uploader: &mut Uploader,
    weight: &WeightSpec,
    stored: &[&[u8]],
    at: u64,
) -> Result<(), DeviceError> {
    let &[stored] = stored else {
        return Err(wrong_bytes(weight, stored.len() as u64, 1));
    };
    if let Err(block) = check_finite(weight.dtype, stored) {
        return Err(DeviceError::NotFinite { name: weight.name.clone(), block: block as u64 });
    }
    match weight.kind {
        WeightKind::Vector => memory.write(context, at, &vector(weight, stored)?),
        _ => put_matrix(context, memory, uploader, weight, stored, at),
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
    stored: &[u8],
    at: u64,
) -> Result<(), DeviceError> {
    let group = group_bytes(weight.dtype, weight.cols).ok_or_else(|| unsupported(weight))?;
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
                &stored[from..from + stored_row]
            });
            let stored: ArrayVec<&[u8], GROUP_ROWS> = stored.collect();
            out.fill(0);
            write_group(weight.dtype, &stored, out);
        });
        uploader.send(context, memory, at + (first * group) as u64)?;
    }
    Ok(())
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
