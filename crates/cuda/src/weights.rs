//! Stored tensors into their regions, at load.

use std::sync::atomic::{AtomicUsize, Ordering};

use ignis_backend::DeviceError;
use ignis_formats::quant;
use ignis_ops::{RowOrder, WeightKind, WeightSpec};

use crate::driver::Context;
use crate::memory::Memory;
use crate::planes::{Row, RowBytes, row_bytes, write_row};

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
    let sizes = row_bytes(weight.dtype, weight.cols).ok_or_else(|| unsupported(weight))?;
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
    let planes = [sizes.codes, sizes.high, sizes.scales, sizes.supers];
    let mut starts = [at; 4];
    for i in 1..4 {
        starts[i] = starts[i - 1] + (planes[i - 1] * rows) as u64;
    }
    let step = (PIECE_BYTES / stored_row.max(1)).clamp(1, rows.max(1));
    let mut piece = Piece::new(sizes, step);
    for first in (0..rows).step_by(step) {
        let count = step.min(rows - first);
        piece.fill(count, |row, out| {
            let from = weight.order.stored_row((first + row) as u32) as usize * stored_row;
            write_row(weight.dtype, &stored[from..from + stored_row], out);
        });
        for (i, plane) in piece.planes.iter().enumerate() {
            let start = starts[i] + (planes[i] * first) as u64;
            memory.write(context, start, &plane[..planes[i] * count])?;
        }
    }
    Ok(())
}

/// Rows of all planes on their way to the card.
struct Piece {
    sizes: RowBytes,
    planes: [Vec<u8>; 4],
}

impl Piece {
    fn new(sizes: RowBytes, rows: usize) -> Piece {
        let planes = [sizes.codes, sizes.high, sizes.scales, sizes.supers]
            .map(|bytes| vec![0; bytes * rows]);
        Piece { sizes, planes }
    }

    /// Writes `count` rows, shared among the processors.
    fn fill(&mut self, count: usize, write: impl Fn(usize, Row<'_>) + Sync) {
        const ROWS: usize = 64;
        let RowBytes { codes, high, scales, supers } = self.sizes;
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let runs = count.div_ceil(ROWS);
        let next = AtomicUsize::new(0);
        let bases = self.planes.each_mut().map(|plane| Shared(plane.as_mut_ptr()));
        let work = || {
            loop {
                let run = next.fetch_add(1, Ordering::Relaxed);
                if run >= runs {
                    return;
                }
                for row in run * ROWS..((run + 1) * ROWS).min(count) {
                    // SAFETY: each row is claimed by one thread, lies inside its plane, and the
                    // planes are borrowed until the threads have ended.
                    let part = |i: usize, bytes: usize| unsafe {
                        std::slice::from_raw_parts_mut(bases[i].at(row * bytes), bytes)
                    };
                    let out = Row {
                        codes: part(0, codes),
                        high: part(1, high),
                        scales: part(2, scales),
                        supers: part(3, supers),
                    };
                    write(row, out);
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..threads.min(runs) {
                scope.spawn(work);
            }
            work();
        });
    }
}

/// Start of a plane that several threads write to, each its own rows.
#[derive(Clone, Copy)]
struct Shared(*mut u8);

// SAFETY: `Piece::fill` gives each row to one thread.
unsafe impl Sync for Shared {}

impl Shared {
    fn at(&self, offset: usize) -> *mut u8 {
        self.0.wrapping_add(offset)
    }
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
