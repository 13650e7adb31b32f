//! Stored tensors into the regions of their weights, at load.

use std::slice;

use ignis_backend::DeviceError;
use ignis_formats::quant;
use ignis_ops::{RowOrder, WeightKind, WeightSpec};

use crate::linear::{self, PackError};

/// Expands or packs one weight into its region: `stored` are its tensors.
pub(crate) fn put(
    weight: &WeightSpec,
    stored: &[&[u8]],
    out: &mut [u8],
) -> Result<(), DeviceError> {
    let tensors = 1 + weight.joined.len();
    if stored.len() != tensors {
        return Err(wrong_bytes(weight, stored.len() as u64, tensors as u64));
    }
    match weight.kind {
        WeightKind::Vector => put_vector(weight, stored[0], out),
        WeightKind::Experts { count } => put_experts(weight, count, stored, out),
        _ => put_matrix(weight, weight.rows, picks(weight), stored[0], out),
    }
}

fn picks(weight: &WeightSpec) -> Option<&[u32]> {
    match &weight.order {
        RowOrder::AsStored => None,
        RowOrder::Picked(picks) => Some(picks),
    }
}

fn wrong_bytes(weight: &WeightSpec, found: u64, expected: u64) -> DeviceError {
    DeviceError::WeightBytes { name: weight.name.clone(), found, expected }
}

fn put_matrix(
    weight: &WeightSpec,
    rows: u32,
    picks: Option<&[u32]>,
    stored: &[u8],
    out: &mut [u8],
) -> Result<(), DeviceError> {
    let name = || weight.name.clone();
    linear::pack(weight.dtype, rows, weight.cols, picks, stored, out).map_err(|error| match error {
        PackError::NotFinite { block } => DeviceError::NotFinite { name: name(), block },
        PackError::StoredBytes { expected, found } => wrong_bytes(weight, found, expected),
        PackError::RowMissing { row, stored } => {
            wrong_bytes(weight, u64::from(stored), u64::from(row) + 1)
        }
        _ => DeviceError::DTypeUnsupported { name: name(), dtype: weight.dtype },
    })
}

/// One matrix after another: each from a tensor of its own, or from rows of the one tensor.
fn put_experts(
    weight: &WeightSpec,
    count: u32,
    stored: &[&[u8]],
    out: &mut [u8],
) -> Result<(), DeviceError> {
    let rows = weight.rows / count;
    let own_tensors = stored.len() > 1;
    if own_tensors && stored.len() != count as usize {
        return Err(wrong_bytes(weight, stored.len() as u64, u64::from(count)));
    }
    let whole = stored[0];
    if !own_tensors && picks(weight).is_none() && !whole.len().is_multiple_of(count as usize) {
        let expected = whole.len().next_multiple_of(count as usize);
        return Err(wrong_bytes(weight, whole.len() as u64, expected as u64));
    }
    let expert_bytes = out.len() / count as usize;
    for (expert, out) in out.chunks_exact_mut(expert_bytes).enumerate() {
        let (tensor, picks) = match picks(weight) {
            _ if own_tensors => (stored[expert], None),
            None => (
                &whole[whole.len() / count as usize * expert..][..whole.len() / count as usize],
                None,
            ),
            Some(picks) => (whole, picks.get(rows as usize * expert..rows as usize * (expert + 1))),
        };
        put_matrix(weight, rows, picks, tensor, out)?;
    }
    Ok(())
}

fn put_vector(weight: &WeightSpec, stored: &[u8], out: &mut [u8]) -> Result<(), DeviceError> {
    let &WeightSpec { dtype, rows, cols, ref order, map, .. } = weight;
    let unsupported = || DeviceError::DTypeUnsupported { name: weight.name.clone(), dtype };
    let expected = dtype.bytes_of(u64::from(cols)).ok().flatten().ok_or_else(unsupported)?.0;
    let found = stored.len() as u64;
    let picked = matches!(order, RowOrder::Picked(_));
    if rows != 1 || (if picked { found < expected } else { found != expected }) {
        return Err(wrong_bytes(weight, found, expected));
    }
    if let Err(block) = quant::check_finite(dtype, stored) {
        return Err(DeviceError::NotFinite { name: weight.name.clone(), block: block as u64 });
    }
    // SAFETY: the region of a vector holds `cols` aligned floats, and any bits are a float.
    let values =
        unsafe { slice::from_raw_parts_mut(out.as_mut_ptr().cast::<f32>(), cols as usize) };
    match order {
        RowOrder::AsStored => {
            quant::dequantize(dtype, stored, values).map_err(|_| unsupported())?;
        }
        RowOrder::Picked(picks) => {
            let elements = found / dtype.block_bytes() * dtype.block_elements();
            let mut all = vec![0.0; elements as usize];
            quant::dequantize(dtype, stored, &mut all).map_err(|_| unsupported())?;
            for (i, value) in values.iter_mut().enumerate() {
                let pick = picks.get(i).and_then(|&pick| all.get(pick as usize));
                *value = *pick.ok_or_else(|| wrong_bytes(weight, found, expected))?;
            }
        }
    }
    for value in values {
        *value = map.apply(*value);
        if !value.is_finite() {
            return Err(DeviceError::NotFinite { name: weight.name.clone(), block: 0 });
        }
    }
    Ok(())
}
