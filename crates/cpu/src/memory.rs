//! The device's memory: one mapping for the whole plan, and how much the machine can still give.

use std::fs;
use std::path::Path;
use std::ptr::{NonNull, null_mut};

use ignis_backend::DeviceError;
use ignis_types::Bytes;
use rustix::mm;

/// Alignment of the mapping: a huge page, so that the kernel can back it with them.
const HUGE_PAGE: usize = 2 << 20;
/// Stride at which pages are touched.
const SMALL_PAGE: usize = 4096;

/// One private anonymous mapping, zeroed, that lives until it is dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is plain memory that nothing ties to the thread that made it; who may access
// which part when is the device's business.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `bytes` and asks for huge pages. Nothing is resident before [`Mapping::touch`].
    pub(crate) fn new(bytes: Bytes) -> Result<Mapping, DeviceError> {
        let refused = |reason: String| DeviceError::Reserve { bytes, space: "device", reason };
        let len = bytes.as_usize().max(1).next_multiple_of(SMALL_PAGE);
        let whole = len.checked_add(HUGE_PAGE).ok_or_else(|| refused("too large".into()))?;
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice aliases nothing.
        let start = unsafe {
            mm::mmap_anonymous(
                null_mut(),
                whole,
                mm::ProtFlags::READ | mm::ProtFlags::WRITE,
                mm::MapFlags::PRIVATE,
            )
        }
        .map_err(|errno| refused(errno.to_string()))?
        .cast::<u8>();
        let skip = start.align_offset(HUGE_PAGE);
        // SAFETY: skip <= HUGE_PAGE, so all three parts lie inside the mapping just made; the parts
        // given back are page-aligned and nothing points into them.
        let base = unsafe {
            let base = start.add(skip);
            if skip > 0 {
                let _ = mm::munmap(start.cast(), skip);
            }
            if skip < HUGE_PAGE {
                let _ = mm::munmap(base.add(len).cast(), HUGE_PAGE - skip);
            }
            // A kernel without huge pages refuses the advice, and serves as well with small ones.
            #[cfg(target_os = "linux")]
            let _ = mm::madvise(base.cast(), len, mm::Advice::LinuxHugepage);
            base
        };
        let base = NonNull::new(base).ok_or_else(|| refused("null mapping".into()))?;
        Ok(Mapping { base, len })
    }

    /// Start of the mapping.
    pub(crate) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Makes part `part` of `parts` equal ones resident, by writing a zero to each page.
    ///
    /// # Safety
    /// Nothing else accesses the mapping meanwhile but calls for other parts, and its bytes are
    /// still zero.
    pub(crate) unsafe fn touch(&self, part: usize, parts: usize) {
        let pages = self.len.div_ceil(HUGE_PAGE);
        let (from, to) = (pages * part / parts, pages * (part + 1) / parts);
        for at in (from * HUGE_PAGE..(to * HUGE_PAGE).min(self.len)).step_by(SMALL_PAGE) {
            // SAFETY: `at` is below `len`.
            unsafe { self.base().add(at).write_volatile(0) };
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new`; the owner is gone, so nothing points into it.
        let _ = unsafe { mm::munmap(self.base().cast(), self.len) };
    }
}

/// RAM that can be taken now without pushing anything out: what the kernel calls available, less
/// where a control group allows less. `None` where the system does not say.
pub fn free_bytes() -> Option<Bytes> {
    free_bytes_under(Path::new("/proc"), Path::new("/sys/fs/cgroup"))
}

fn free_bytes_under(proc: &Path, groups: &Path) -> Option<Bytes> {
    let meminfo = fs::read_to_string(proc.join("meminfo")).ok()?;
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    let mut free = kib.saturating_mul(1024);
    let membership = fs::read_to_string(proc.join("self/cgroup")).unwrap_or_default();
    for line in membership.lines() {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next(), fields.next(), fields.next());
        let (Some(controllers), Some(path)) = (controllers, path) else { continue };
        if controllers.is_empty() {
            let names = ["memory.max", "memory.current", "inactive_file "];
            free = free.min(room(groups, path, names));
        } else if controllers.split(',').any(|name| name == "memory") {
            let names = ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "];
            free = free.min(room(&groups.join("memory"), path, names));
        }
    }
    Some(Bytes(free))
}

/// The least room of a group and those above it. File pages that can be dropped count as room.
fn room(mount: &Path, path: &str, [limit, usage, droppable]: [&str; 3]) -> u64 {
    let number = |file: &Path| fs::read_to_string(file).ok()?.trim().parse::<u64>().ok();
    let mut least = u64::MAX;
    let mut group = mount.join(path.trim_start_matches('/'));
    while group.starts_with(mount) {
        if let (Some(limit), Some(usage)) = (number(&group.join(limit)), number(&group.join(usage)))
        {
            let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
            let cached = stat.lines().find_map(|line| line.strip_prefix(droppable)?.parse().ok());
            least = least.min(limit.saturating_sub(usage.saturating_sub(cached.unwrap_or(0))));
        }
        if !group.pop() {
            break;
        }
    }
    least
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapping_is_zero_aligned_and_writable_to_its_end() {
        let mapping = Mapping::new(Bytes(3 << 20)).unwrap();
        assert_eq!(mapping.base() as usize % HUGE_PAGE, 0);
        // SAFETY: nothing else knows the mapping; offsets are below its length.
        unsafe {
            mapping.touch(0, 2);
            mapping.touch(1, 2);
            let last = mapping.base().add(mapping.len - 1);
            assert_eq!(*last, 0);
            *last = 7;
            assert_eq!(*last, 7);
        }
    }

    #[test]
    fn impossible_mapping_is_an_error() {
        assert!(matches!(Mapping::new(Bytes(1 << 62)), Err(DeviceError::Reserve { .. })));
    }

    #[test]
    fn tightest_group_above_wins() {
        let dir = std::env::temp_dir().join(format!("ignis-groups-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = dir.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:   8000 kB\n");
        write("proc/self/cgroup", "0::/a/b\n");
        let free = || free_bytes_under(&dir.join("proc"), &dir.join("cg")).unwrap().0;
        assert_eq!(free(), 8000 * 1024);
        write("cg/a/b/memory.max", "max\n");
        write("cg/a/b/memory.current", "10\n");
        write("cg/a/memory.max", "5000\n");
        write("cg/a/memory.current", "3000\n");
        assert_eq!(free(), 2000);
        write("cg/a/memory.stat", "active_file 9\ninactive_file 500\n");
        assert_eq!(free(), 2500);
        write("proc/self/cgroup", "4:cpu,memory:/v1\n");
        write("cg/memory/v1/memory.limit_in_bytes", "700\n");
        write("cg/memory/v1/memory.usage_in_bytes", "800\n");
        assert_eq!(free(), 0);
        fs::remove_dir_all(&dir).unwrap();
    }
}
