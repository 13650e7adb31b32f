//! Tables that stay in pinned host memory, and whether all that is pinned was planned.

use std::sync::Arc;

use ignis_backend::{Addresses, DeviceError, DeviceLayout, StoredLayout};
use ignis_ops::Program;
use ignis_types::{Bytes, Limits};

use crate::device::too_large;
use crate::driver::Context;
use crate::host::Region;
use crate::memory::{Memory, TABLES_AT};

/// Puts tables where the layout wants them: the addresses of a program, of which some then name
/// places on the host, and the bytes pinned.
pub(crate) fn place(
    context: &Arc<Context>,
    layout: StoredLayout,
    memory: &mut Memory,
    program: &Program,
    addresses: &Addresses,
) -> Result<(Addresses, u64), DeviceError> {
    let mut addresses = addresses.clone();
    let (places, bytes) = layout.tables(program).map_err(too_large)?;
    if bytes > Bytes::ZERO {
        memory.place_tables(Region::new(context, bytes.as_usize())?)?;
    }
    for (at, place) in addresses.weights.iter_mut().zip(places) {
        *at = place.map_or(*at, |place| TABLES_AT + place);
    }
    Ok((addresses, bytes.0))
}

/// Compares what a device has pinned for itself with what was planned.
pub(crate) fn check_pinned(
    layout: StoredLayout,
    program: &Program,
    limits: &Limits,
    found: u64,
) -> Result<(), DeviceError> {
    let planned = layout.pinned_bytes(program, limits).map_err(too_large)?;
    if planned.0 == found {
        return Ok(());
    }
    Err(DeviceError::ShapeUnsupported {
        what: "pinned memory in bytes",
        found,
        expected: "what the layout says",
    })
}
