//! What the driver's management library says, before any context exists: memory, processes.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
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

/// `nvmlProcessInfo_v2_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct ProcessInfo {
    pid: c_uint,
    used: u64,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

/// A process that computes on a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// Bytes of the card that are counted to it.
    pub(crate) used: u64,
    /// Its program's file, or nothing where that is not told.
    pub(crate) name: String,
}

/// The library, started; shut down when it is dropped.
struct Nvml(Library);

impl Drop for Nvml {
    fn drop(&mut self) {
        // SAFETY: nvml.h: takes nothing; nothing of the library is used after it.
        unsafe {
            if let Ok(shutdown) = self.0.get::<unsafe extern "C" fn() -> c_int>(b"nvmlShutdown") {
                shutdown();
            }
        }
    }
}

impl Nvml {
    fn start() -> Option<Nvml> {
        // SAFETY: loading the library runs its initialisers; the signature is that of nvml.h, whose
        // names carry their version.
        unsafe {
            let library = Library::new("libnvidia-ml.so.1")
                .or_else(|_| Library::new("libnvidia-ml.so"))
                .ok()?;
            let init: Symbol<'_, unsafe extern "C" fn() -> c_int> =
                library.get(b"nvmlInit_v2").ok()?;
            if init() != 0 {
                return None;
            }
            Some(Nvml(library))
        }
    }

    fn device(&self, pci_bus_id: &str) -> Option<*mut c_void> {
        let id = CString::new(pci_bus_id).ok()?;
        let mut device = null_mut();
        // SAFETY: as in `start`; writes one handle, which lives as long as the library is started.
        unsafe {
            let by_bus: Symbol<'_, unsafe extern "C" fn(*const c_char, *mut *mut c_void) -> c_int> =
                self.0.get(b"nvmlDeviceGetHandleByPciBusId_v2").ok()?;
            (by_bus(id.as_ptr(), &mut device) == 0).then_some(device)
        }
    }

    /// The program of a process.
    fn process_name(&self, pid: c_uint) -> Option<String> {
        let mut text = [0 as c_char; 256];
        // SAFETY: as in `start`; the buffer has the length that is told, and ends in a zero.
        unsafe {
            let name: Symbol<'_, unsafe extern "C" fn(c_uint, *mut c_char, c_uint) -> c_int> =
                self.0.get(b"nvmlSystemGetProcessName").ok()?;
            (name(pid, text.as_mut_ptr(), 256) == 0)
                .then(|| CStr::from_ptr(text.as_ptr()).to_string_lossy().into_owned())
        }
    }
}

/// Bytes of the card with this PCI bus id: (total, free). `None` where the library or the card is
/// not there.
pub(crate) fn memory(pci_bus_id: &str) -> Option<(u64, u64)> {
    let nvml = Nvml::start()?;
    let device = nvml.device(pci_bus_id)?;
    let mut memory = MemoryInfo::default();
    // SAFETY: the signature is that of nvml.h; the handle comes from the library.
    unsafe {
        let info: Symbol<'_, unsafe extern "C" fn(*mut c_void, *mut MemoryInfo) -> c_int> =
            nvml.0.get(b"nvmlDeviceGetMemoryInfo").ok()?;
        (info(device, &mut memory) == 0).then_some((memory.total, memory.free))
    }
}

/// The processes that compute on the card; `None` where the driver does not say.
pub(crate) fn processes(pci_bus_id: &str) -> Option<Vec<Process>> {
    let nvml = Nvml::start()?;
    let device = nvml.device(pci_bus_id)?;
    let mut known = [ProcessInfo::default(); 64];
    let mut count = known.len() as c_uint;
    // SAFETY: as in `memory`; the array holds `count` entries.
    let read = unsafe {
        let list: Symbol<
            '_,
            unsafe extern "C" fn(*mut c_void, *mut c_uint, *mut ProcessInfo) -> c_int,
        > = nvml.0.get(b"nvmlDeviceGetComputeRunningProcesses_v3").ok()?;
        list(device, &mut count, known.as_mut_ptr()) == 0
    };
    let known = known.get(..count as usize).filter(|_| read)?;
    let named = known.iter().map(|one| Process {
        pid: one.pid,
        used: one.used,
        name: nvml.process_name(one.pid).unwrap_or_default(),
    });
    Some(named.collect())
}

/// Bytes of the card that the driver counts to a process; `None` where it does not say.
pub(crate) fn process_bytes(pci_bus_id: &str, pid: u32) -> Option<u64> {
    processes(pci_bus_id)?.iter().find(|one| one.pid == pid).map(|one| one.used)
}

/// The driver's release, such as 580.159.04.
pub(crate) fn driver_release() -> Option<String> {
    let nvml = Nvml::start()?;
    let mut text = [0 as c_char; 80];
    // SAFETY: as in `memory`; the buffer has the length that is told, and ends in a zero.
    unsafe {
        let version: Symbol<'_, unsafe extern "C" fn(*mut c_char, c_uint) -> c_int> =
            nvml.0.get(b"nvmlSystemGetDriverVersion").ok()?;
        (version(text.as_mut_ptr(), 80) == 0)
            .then(|| CStr::from_ptr(text.as_ptr()).to_string_lossy().into_owned())
    }
}
