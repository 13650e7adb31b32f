//! Pinned host memory that rounds and moves share with the card: one region, cut into pieces.
//!
//! A region is memory of this process that the driver pins where it lies, so that files are read
//! into it like into any other; where the driver cannot, it is memory that the driver gives.

use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use cudarc::driver::sys;
use ignis_backend::{BLOCK_BYTES, Blocks, DeviceError, HostBytes};
use ignis_types::Bytes;
use rustix::mm;

use crate::driver::{Context, check};

/// Alignment: a huge page, so that the kernel can back the memory with them.
const HUGE_PAGE: usize = 2 << 20;
/// Stride at which memory is touched.
const SMALL_PAGE: usize = 4096;

/// Who has the memory.
enum Holder {
    /// This process: a mapping of so many bytes from here.
    Mapped(*mut c_void, usize),
    Driver,
}

/// Pinned memory, zeroed, that the card can address.
pub(crate) struct Region {
    base: NonNull<u8>,
    len: usize,
    holder: Holder,
    context: Arc<Context>,
}

// SAFETY: plain memory; who may touch which part when is the owner's business.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Pins `len` bytes, at least one.
    pub(crate) fn new(context: &Arc<Context>, len: usize) -> Result<Region, DeviceError> {
        context.enter()?;
        let len = len.max(1).next_multiple_of(BLOCK_BYTES);
        let refused = |reason: String| {
            let (bytes, space) = (Bytes(len as u64), "pinned memory");
            DeviceError::Reserve { bytes, space, reason }
        };
        if let Some((base, holder)) = register(len) {
            return Ok(Region { base, len, holder, context: context.clone() });
        }
        let mut base: *mut c_void = null_mut();
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: writes one address.
        let result = unsafe { sys::cuMemHostAlloc(&mut base, len, flags) };
        check("cuMemHostAlloc", result).map_err(|error| refused(error.to_string()))?;
        let base = NonNull::new(base.cast::<u8>()).expect("the driver gave an address");
        // SAFETY: the block has `len` bytes.
        unsafe { base.write_bytes(0, len) };
        Ok(Region { base, len, holder: Holder::Driver, context: context.clone() })
    }

    /// As the card addresses it.
    pub(crate) fn device_address(&self) -> Result<u64, DeviceError> {
        self.context.enter()?;
        let mut address = 0;
        // SAFETY: the region is pinned and mapped; writes one address.
        let result = unsafe {
            sys::cuMemHostGetDevicePointer_v2(&mut address, self.base.as_ptr().cast(), 0)
        };
        check("cuMemHostGetDevicePointer", result)?;
        Ok(address)
    }

    /// As the host addresses it.
    pub(crate) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// How long it is.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let _ = self.context.enter();
        // SAFETY: the memory is this value's, and no piece of it is left; copies that are in flight
        // own their pieces.
        unsafe {
            match self.holder {
                Holder::Mapped(start, whole) => {
                    let _ = sys::cuMemHostUnregister(self.base.as_ptr().cast());
                    let _ = mm::munmap(start, whole);
                }
                Holder::Driver => {
                    let _ = sys::cuMemFreeHost(self.base.as_ptr().cast());
                }
            }
        }
    }
}

/// Maps memory, makes it resident and pins it; nothing where the system or the driver will not.
fn register(len: usize) -> Option<(NonNull<u8>, Holder)> {
    let whole = len.checked_add(HUGE_PAGE)?;
    let access = mm::ProtFlags::READ | mm::ProtFlags::WRITE;
    // SAFETY: a fresh anonymous mapping at an address of the kernel's choice aliases nothing.
    let start =
        unsafe { mm::mmap_anonymous(null_mut(), whole, access, mm::MapFlags::PRIVATE) }.ok()?;
    let base = start.cast::<u8>().wrapping_add(start.cast::<u8>().align_offset(HUGE_PAGE));
    // SAFETY: `base + len` lies in the mapping, which nothing else knows. A kernel without huge
    // pages refuses the advice, and serves as well with small ones.
    let pinned = unsafe {
        #[cfg(target_os = "linux")]
        let _ = mm::madvise(base.cast(), len, mm::Advice::LinuxHugepage);
        for at in (0..len).step_by(SMALL_PAGE) {
            base.add(at).write_volatile(0);
        }
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        check("cuMemHostRegister", sys::cuMemHostRegister_v2(base.cast(), len, flags))
    };
    match (pinned, NonNull::new(base)) {
        (Ok(()), Some(base)) => Some((base, Holder::Mapped(start, whole))),
        _ => {
            // SAFETY: the mapping was made above, and nothing points into it.
            let _ = unsafe { mm::munmap(start, whole) };
            None
        }
    }
}

/// A part of a region that has one owner.
struct Piece {
    region: Arc<Region>,
    at: usize,
    len: usize,
}

impl HostBytes for Piece {
    fn bytes(&self) -> &[u8] {
        // SAFETY: the part lies in the region, which lives as long as the piece, and is no other
        // piece's; it is initialised.
        unsafe { std::slice::from_raw_parts(self.region.base().add(self.at), self.len) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; `&mut self` keeps others away.
        unsafe { std::slice::from_raw_parts_mut(self.region.base().add(self.at), self.len) }
    }
}

/// `pieces` pieces of pinned memory of `bytes` each, in whole blocks.
pub(crate) fn pieces(
    context: &Arc<Context>,
    pieces: usize,
    bytes: usize,
) -> Result<Vec<Blocks>, DeviceError> {
    let len = bytes.next_multiple_of(BLOCK_BYTES);
    let whole = len.checked_mul(pieces).ok_or_else(|| DeviceError::Reserve {
        bytes: Bytes(u64::MAX),
        space: "pinned memory",
        reason: "more than can be counted".into(),
    })?;
    if whole == 0 {
        return Ok((0..pieces).filter_map(|_| Blocks::zeroed(0)).collect());
    }
    let region = Arc::new(Region::new(context, whole)?);
    let piece = |i| Piece { region: region.clone(), at: i * len, len };
    Ok((0..pieces).map(|i| Blocks::given(Box::new(piece(i)))).collect())
}
