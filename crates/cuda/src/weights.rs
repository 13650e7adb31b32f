//! Stored tensors into their regions, at load.

use std::sync::Mutex;

use arrayvec::ArrayVec;
use ignis_backend::DeviceError;
use ignis_formats::quant;
use ignis_ops::{RowOrder, WeightKind, WeightSpec};

use crate::blocks::{GROUP_ROWS, group_bytes, write_group};
use crate::driver::Context;
use crate::memory::Memory;

/// Bytes that are converted and copied at once.
const PIECE_BYTES: usize = 64 << 20;

/// Converts one weight into its region, which starts at `at`.
pub(crate) fn put(
    context: &Context,
    memory: &Memory,
    weight: &WeightSpec,
    stored: &[&[u8]],
    at: u64,
) -> Result<(), DeviceError> {
    let &[stored] = stored else {
        return Err(wrong_bytes(weight, stored.len() as u64, 1));
    };
    if let Err(block) = quant::check_finite(weight.dtype, stored) {
        return Err(DeviceError::NotFinite { name: weight.name.clone(), block: block as u64 });
    }
    match weight.kind {
        WeightKind::Vector => memory.write(context, at, &vector(weight, stored)?),
        _ => put_matrix(context, memory, weight, stored, at),
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
    let step = (PIECE_BYTES / group).max(1) * GROUP_ROWS;
    let mut piece = vec![0; group * rows.min(step).div_ceil(GROUP_ROWS)];
    for first in (0..rows).step_by(step) {
        let count = step.min(rows - first);
        let used = &mut piece[..group * count.div_ceil(GROUP_ROWS)];
        fill(used, group, |at, out| {
            let rows = first + at * GROUP_ROWS..(first + (at + 1) * GROUP_ROWS).min(first + count);
            let stored = rows.map(|row| {
                let from = weight.order.stored_row(row as u32) as usize * stored_row;
                &stored[from..from + stored_row]
            });
            let stored: ArrayVec<&[u8], GROUP_ROWS> = stored.collect();
            write_group(weight.dtype, &stored, out);
        });
        memory.write(context, at + (first / GROUP_ROWS * group) as u64, used)?;
    }
    Ok(())
}

/// Has `write` fill every group of `piece`, shared among the processors. A group holds zeros before.
fn fill(piece: &mut [u8], group: usize, write: impl Fn(usize, &mut [u8]) + Sync) {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let groups = Mutex::new(piece.chunks_exact_mut(group).enumerate());
    let work = || {
        loop {
            let next = groups.lock().expect("writing does not panic").next();
            let Some((at, out)) = next else { return };
            out.fill(0);
            write(at, out);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(work);
        }
        work();
    });
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
