//! Host memory of the tiers: from the heap, or from a device that copies best there.

use ignis_backend::{BLOCK_BYTES, Blocks, DeviceError};

use crate::error::TierError;

/// Gives pieces of host memory of so many bytes each: `Device::host_memory`.
pub type TakeMemory<'a> = &'a mut dyn FnMut(usize, usize) -> Result<Vec<Blocks>, DeviceError>;

/// Memory of the heap.
pub(crate) fn heap(pieces: usize, bytes: usize) -> Result<Vec<Blocks>, DeviceError> {
    Blocks::pieces(pieces, bytes.div_ceil(BLOCK_BYTES))
        .ok_or(DeviceError::Fault { what: "the heap, which does not have it" })
}

/// Pieces of memory, or what they were for.
pub(crate) fn take_named(
    what: &'static str,
    take: TakeMemory<'_>,
    pieces: usize,
    bytes: u32,
) -> Result<Vec<Blocks>, TierError> {
    let all = pieces as u64 * u64::from(bytes);
    take(pieces, bytes as usize).map_err(|error| TierError::Reserve {
        bytes: all,
        what,
        reason: error.to_string(),
    })
}
