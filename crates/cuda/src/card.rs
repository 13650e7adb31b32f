//! The driver, before any context: whether it is there, and what its cards are.

use std::ffi::{CStr, c_char, c_int};

use cudarc::driver::sys::{self, CUdevice_attribute, CUresult};
use ignis_backend::DeviceError;

use crate::driver::check;
use crate::nvml::CardId;

/// What a card says of itself. No context is needed to ask.
#[derive(Clone, Debug)]
pub(crate) struct Card {
    pub(crate) handle: sys::CUdevice,
    pub(crate) name: String,
    pub(crate) capability: (u32, u32),
    /// As NVML looks cards up.
    pub(crate) id: CardId,
    /// The most shared memory that a CTA can have.
    pub(crate) shared_bytes_max: u32,
    /// Streaming multiprocessors.
    pub(crate) processors: u32,
    /// Bytes of memory that it can have; of a slice of a card, the slice's.
    pub(crate) total: u64,
    /// Whether its memory is the host's.
    pub(crate) is_integrated: bool,
}

/// Whether the driver's library can be loaded.
pub(crate) fn is_present() -> bool {
    // SAFETY: loading the driver runs its initialisers, which is what using it means.
    unsafe { sys::is_culib_present() }
}

/// Starts the driver; (version as the driver counts: 13000 for 13.0, cards).
pub(crate) fn start() -> Result<(u32, u32), DeviceError> {
    let (mut version, mut count) = (0, 0);
    // SAFETY: plain calls that write one integer each.
    unsafe {
        check("cuInit", sys::cuInit(0))?;
        check("cuDriverGetVersion", sys::cuDriverGetVersion(&mut version))?;
        check("cuDeviceGetCount", sys::cuDeviceGetCount(&mut count))?;
    }
    Ok((version as u32, count as u32))
}

/// The card with this number, after [`start`].
pub(crate) fn card(ordinal: u32) -> Result<Card, DeviceError> {
    let mut handle = 0;
    let mut text = [0 as c_char; 256];
    // SAFETY: the buffers are as long as the calls are told, and come back zero-terminated.
    let (name, pci_bus_id) = unsafe {
        check("cuDeviceGet", sys::cuDeviceGet(&mut handle, ordinal as c_int))?;
        check("cuDeviceGetName", sys::cuDeviceGetName(text.as_mut_ptr(), 256, handle))?;
        let name = CStr::from_ptr(text.as_ptr()).to_string_lossy().into_owned();
        check("cuDeviceGetPCIBusId", sys::cuDeviceGetPCIBusId(text.as_mut_ptr(), 256, handle))?;
        (name, CStr::from_ptr(text.as_ptr()).to_string_lossy().into_owned())
    };
    let attribute = |which| -> Result<u32, DeviceError> {
        let mut value = 0;
        // SAFETY: writes one integer.
        let result = unsafe { sys::cuDeviceGetAttribute(&mut value, which, handle) };
        check("cuDeviceGetAttribute", result)?;
        Ok(value as u32)
    };
    let mut uuid = sys::CUuuid { bytes: [0; 16] };
    // SAFETY: writes sixteen bytes.
    check("cuDeviceGetUuid", unsafe { sys::cuDeviceGetUuid_v2(&mut uuid, handle) })?;
    let uuid = uuid.bytes.map(|byte| byte as u8);
    let mut total = 0;
    // SAFETY: writes one size.
    check("cuDeviceTotalMem", unsafe { sys::cuDeviceTotalMem_v2(&mut total, handle) })?;
    use CUdevice_attribute as A;
    Ok(Card {
        handle,
        name,
        id: CardId { pci_bus_id, uuid },
        capability: (
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        shared_bytes_max: attribute(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        processors: attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        total: total as u64,
        is_integrated: attribute(A::CU_DEVICE_ATTRIBUTE_INTEGRATED)? != 0,
    })
}

/// Who may compute on a card, as the driver counts: 0 all, 2 nobody, 3 one process.
pub(crate) fn compute_mode(card: &Card) -> u32 {
    let mut value = 0;
    let which = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE;
    // SAFETY: writes one integer; the handle comes from the driver.
    let result = unsafe { sys::cuDeviceGetAttribute(&mut value, which, card.handle) };
    if result == CUresult::CUDA_SUCCESS { value as u32 } else { 0 }
}
