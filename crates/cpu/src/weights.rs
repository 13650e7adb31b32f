//! Stored weights into the arena, once, at load.

use std::slice;

use ignis_backend::DeviceError;
use ignis_formats::quant;
use ignis_ops::{RowOrder, WeightKind, WeightSpec};

use crate::linear::{self, PackError};

/// Expands or packs one weight into its region.
pub(crate) fn put(weight: &WeightSpec, stored: &[u8], out: &mut [u8]) -> Result<(), DeviceError> {
    let &WeightSpec { dtype, rows, cols, order, .. } = weight;
    let name = || weight.name.clone();
    if weight.kind != WeightKind::Vector {
        return linear::pack(dtype, rows, cols, order, stored, out).map_err(|error| match error {
            PackError::NotFinite { block } => DeviceError::NotFinite { name: name(), block },
            PackError::StoredBytes { expected, found } => {
                DeviceError::WeightBytes { name: name(), found, expected }
            }
            _ => DeviceError::DTypeUnsupported { name: name(), dtype },
        });
    }
    let elements = u64::from(rows) * u64::from(cols);
    let expected = dtype.bytes_of(elements).ok().flatten();
    let expected = expected.ok_or_else(|| DeviceError::DTypeUnsupported { name: name(), dtype })?.0;
    let found = stored.len() as u64;
    if found != expected || rows != 1 {
        return Err(DeviceError::WeightBytes { name: name(), found, expected });
    }
    if let Err(block) = quant::check_finite(dtype, stored) {
        return Err(DeviceError::NotFinite { name: name(), block: block as u64 });
    }
    // SAFETY: the region of a vector holds `cols` aligned floats, and any bits are a float.
    let values =
        unsafe { slice::from_raw_parts_mut(out.as_mut_ptr().cast::<f32>(), cols as usize) };
    quant::dequantize(dtype, stored, values)
        .map_err(|_| DeviceError::DTypeUnsupported { name: name(), dtype })?;
    if let RowOrder::AdjacentPairs { head_dim } = order {
        pairs_to_halves(values, head_dim as usize);
    }
    Ok(())
}

/// Reorders each head of a bias from `[half, 2]` to `[2, half]`. At load, so it may use the heap.
fn pairs_to_halves(values: &mut [f32], head_dim: usize) {
    for head in values.chunks_exact_mut(head_dim.max(2)) {
        let stored = head.to_vec();
        let half = head.len() / 2;
        for i in 0..half {
            (head[i], head[half + i]) = (stored[2 * i], stored[2 * i + 1]);
        }
    }
}
