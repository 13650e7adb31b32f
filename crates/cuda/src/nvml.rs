//! Free memory of a card before any context exists, from the driver's management library.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;

use libloading::{Library, Symbol};

/// `nvmlMemory_t`, bytes.
#[repr(C)]
#[derive(Default)]
struct MemoryInfo {
    total: u64,
    free: u64,
    used: u64,
}

/// Bytes of the card with this PCI bus id: (total, free). `None` where the library or the card is
/// not there.
pub(crate) fn memory(pci_bus_id: &str) -> Option<(u64, u64)> {
    let id = CString::new(pci_bus_id).ok()?;
    // SAFETY: loading the library runs its initialisers; the signatures are those of nvml.h, whose
    // names carry their version; the library is shut down only after the last call.
    unsafe {
        let library =
            Library::new("libnvidia-ml.so.1").or_else(|_| Library::new("libnvidia-ml.so")).ok()?;
        let init: Symbol<'_, unsafe extern "C" fn() -> c_int> = library.get(b"nvmlInit_v2").ok()?;
        let shutdown: Symbol<'_, unsafe extern "C" fn() -> c_int> =
            library.get(b"nvmlShutdown").ok()?;
        let by_bus: Symbol<'_, unsafe extern "C" fn(*const c_char, *mut *mut c_void) -> c_int> =
            library.get(b"nvmlDeviceGetHandleByPciBusId_v2").ok()?;
        let info: Symbol<'_, unsafe extern "C" fn(*mut c_void, *mut MemoryInfo) -> c_int> =
            library.get(b"nvmlDeviceGetMemoryInfo").ok()?;
        if init() != 0 {
            return None;
        }
        let mut device = null_mut();
        let mut memory = MemoryInfo::default();
        let read = by_bus(id.as_ptr(), &mut device) == 0 && info(device, &mut memory) == 0;
        shutdown();
        read.then_some((memory.total, memory.free))
    }
}

/// `nvmlProcessInfo_v2_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct ProcessInfo {
    pid: c_uint,
    used: u64,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

/// Bytes of the card that the driver counts to this process; `None` where it does not say.
pub(crate) fn process_bytes(pci_bus_id: &str) -> Option<u64> {
    let id = CString::new(pci_bus_id).ok()?;
    let mut processes = [ProcessInfo::default(); 64];
    let mut count = processes.len() as c_uint;
    // SAFETY: as in `memory`; the array holds `count` entries.
    let read = unsafe {
        let library =
            Library::new("libnvidia-ml.so.1").or_else(|_| Library::new("libnvidia-ml.so")).ok()?;
        let init: Symbol<'_, unsafe extern "C" fn() -> c_int> = library.get(b"nvmlInit_v2").ok()?;
        let shutdown: Symbol<'_, unsafe extern "C" fn() -> c_int> =
            library.get(b"nvmlShutdown").ok()?;
        let by_bus: Symbol<'_, unsafe extern "C" fn(*const c_char, *mut *mut c_void) -> c_int> =
            library.get(b"nvmlDeviceGetHandleByPciBusId_v2").ok()?;
        let list: Symbol<
            '_,
            unsafe extern "C" fn(*mut c_void, *mut c_uint, *mut ProcessInfo) -> c_int,
        > = library.get(b"nvmlDeviceGetComputeRunningProcesses_v3").ok()?;
        if init() != 0 {
            return None;
        }
        let mut device = null_mut();
        let read = by_bus(id.as_ptr(), &mut device) == 0
            && list(device, &mut count, processes.as_mut_ptr()) == 0;
        shutdown();
        read
    };
    let known = processes.get(..count as usize).filter(|_| read)?;
    known.iter().find(|one| one.pid == std::process::id()).map(|one| one.used)
}
