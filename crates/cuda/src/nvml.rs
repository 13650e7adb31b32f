//! What the driver's management library says, before any context exists: memory, processes.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;

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

/// How a card, or a slice of one, is looked up.
#[derive(Clone, Debug)]
pub(crate) struct CardId {
    pub(crate) pci_bus_id: String,
    pub(crate) uuid: [u8; 16],
}

impl CardId {
    /// Its name if it is a slice; there is no device of this name if it is a whole card.
    fn slice_uuid(&self) -> String {
        let mut text = String::from("MIG-");
        for (at, byte) in self.uuid.iter().enumerate() {
            let dash = if [4, 6, 8, 10].contains(&at) { "-" } else { "" };
            text += &format!("{dash}{byte:02x}");
        }
        text
    }
}

/// A process that has memory of a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// Bytes of the card that are counted to it; `None` where the driver does not say.
    pub(crate) used: Option<u64>,
    /// Its program's file, or nothing where that is not told.
    pub(crate) name: String,
    /// Whether it computes; others draw.
    pub(crate) computes: bool,
}

/// `NVML_VALUE_NOT_AVAILABLE`.
const NOT_AVAILABLE: u64 = u64::MAX;
/// `NVML_ERROR_INSUFFICIENT_SIZE`.
const INSUFFICIENT_SIZE: c_int = 7;

fn counted(bytes: u64) -> Option<u64> {
    (bytes != NOT_AVAILABLE).then_some(bytes)
}

/// Those that compute and those that draw, each once: one may do both, and is counted once then.
fn joined(computing: Vec<ProcessInfo>, drawing: Vec<ProcessInfo>) -> Vec<(ProcessInfo, bool)> {
    let both = |one: &ProcessInfo| computing.iter().any(|other| other.pid == one.pid);
    let drawing: Vec<_> = drawing.into_iter().filter(|one| !both(one)).collect();
    let computing = computing.into_iter().map(|one| (one, true));
    computing.chain(drawing.into_iter().map(|one| (one, false))).collect()
}

/// The library, started; it stays so until the process ends, as starting takes some milliseconds.
struct Nvml(Library);

impl Nvml {
    /// `None` where it is not there or does not start.
    fn get() -> Option<&'static Nvml> {
        static STARTED: OnceLock<Option<Nvml>> = OnceLock::new();
        STARTED.get_or_init(Nvml::start).as_ref()
    }

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

    /// The slice of a card with this id, or else the whole card.
    fn device(&self, id: &CardId) -> Option<*mut c_void> {
        let of_slice = self.look_up(b"nvmlDeviceGetHandleByUUID", &id.slice_uuid());
        of_slice.or_else(|| self.look_up(b"nvmlDeviceGetHandleByPciBusId_v2", &id.pci_bus_id))
    }

    fn look_up(&self, call: &[u8], key: &str) -> Option<*mut c_void> {
        let key = CString::new(key).ok()?;
        let mut device = null_mut();
        // SAFETY: as in `start`; writes one handle, which lives as long as the library is started.
        unsafe {
            let by_key: Symbol<'_, unsafe extern "C" fn(*const c_char, *mut *mut c_void) -> c_int> =
                self.0.get(call).ok()?;
            (by_key(key.as_ptr(), &mut device) == 0).then_some(device)
        }
    }

    /// Processes of one kind, by the call that lists them.
    fn list(&self, device: *mut c_void, call: &[u8]) -> Option<Vec<ProcessInfo>> {
        let mut known = vec![ProcessInfo::default(); 64];
        let mut count = known.len() as c_uint;
        // SAFETY: the signature is that of nvml.h; the handle comes from the library; the array
        // holds `count` entries, of which the library says how many it wrote or would have.
        let result = unsafe {
            let list: Symbol<
                '_,
                unsafe extern "C" fn(*mut c_void, *mut c_uint, *mut ProcessInfo) -> c_int,
            > = self.0.get(call).ok()?;
            let mut result = list(device, &mut count, known.as_mut_ptr());
            if result == INSUFFICIENT_SIZE {
                known.resize(count as usize + 64, ProcessInfo::default());
                count = known.len() as c_uint;
                result = list(device, &mut count, known.as_mut_ptr());
            }
            result
        };
        known.truncate(count as usize);
        (result == 0).then_some(known)
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

/// Bytes of the card or slice: (total, free). `None` where the library or the card is
/// not there.
pub(crate) fn memory(id: &CardId) -> Option<(u64, u64)> {
    let nvml = Nvml::get()?;
    let device = nvml.device(id)?;
    let mut memory = MemoryInfo::default();
    // SAFETY: the signature is that of nvml.h; the handle comes from the library.
    unsafe {
        let info: Symbol<'_, unsafe extern "C" fn(*mut c_void, *mut MemoryInfo) -> c_int> =
            nvml.0.get(b"nvmlDeviceGetMemoryInfo").ok()?;
        (info(device, &mut memory) == 0).then_some(())?;
    }
    Some((counted(memory.total)?, counted(memory.free)?))
}

/// The processes that have memory of the card; `None` where the driver does not say.
pub(crate) fn processes(id: &CardId) -> Option<Vec<Process>> {
    let nvml = Nvml::get()?;
    let device = nvml.device(id)?;
    let computing = nvml.list(device, b"nvmlDeviceGetComputeRunningProcesses_v3")?;
    let drawing = nvml.list(device, b"nvmlDeviceGetGraphicsRunningProcesses_v3");
    let named = joined(computing, drawing.unwrap_or_default()).into_iter();
    let named = named.map(|(one, computes)| Process {
        pid: one.pid,
        used: counted(one.used),
        name: nvml.process_name(one.pid).unwrap_or_default(),
        computes,
    });
    Some(named.collect())
}

/// Bytes of the card that the driver counts to a process; `None` where it does not say.
pub(crate) fn process_bytes(id: &CardId, pid: u32) -> Option<u64> {
    processes(id)?.iter().find(|one| one.pid == pid)?.used
}

/// The driver's release, such as 580.159.04.
pub(crate) fn driver_release() -> Option<String> {
    let nvml = Nvml::get()?;
    let mut text = [0 as c_char; 80];
    // SAFETY: as in `memory`; the buffer has the length that is told, and ends in a zero.
    unsafe {
        let version: Symbol<'_, unsafe extern "C" fn(*mut c_char, c_uint) -> c_int> =
            nvml.0.get(b"nvmlSystemGetDriverVersion").ok()?;
        (version(text.as_mut_ptr(), 80) == 0)
            .then(|| CStr::from_ptr(text.as_ptr()).to_string_lossy().into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_is_looked_up_by_its_own_name() {
        let uuid = std::array::from_fn(|at| 16 * at as u8 + 1);
        let id = CardId { pci_bus_id: String::new(), uuid };
        assert_eq!(id.slice_uuid(), "MIG-01112131-4151-6171-8191-a1b1c1d1e1f1");
    }

    #[test]
    fn a_count_that_is_not_available_is_no_number() {
        assert_eq!(counted(u64::MAX), None);
        assert_eq!(counted(5), Some(5));
    }

    #[test]
    fn a_process_that_computes_and_draws_is_counted_once() {
        let info = |pid| ProcessInfo { pid, ..ProcessInfo::default() };
        let found = joined(vec![info(1), info(2)], vec![info(2), info(3)]);
        let found: Vec<_> = found.iter().map(|(one, computes)| (one.pid, *computes)).collect();
        assert_eq!(found, [(1, true), (2, true), (3, false)]);
    }
}
