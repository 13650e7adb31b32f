//! Memory of the card, and pinned memory of the host for a round's own: this file and `host` alone
//! allocate.
//!
//! Nothing here knows what the memory is for.

use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};

use cudarc::driver::sys;
use ignis_backend::{CopyWay, DeviceError};
use ignis_types::Bytes;

use crate::driver::{Context, check};
use crate::host::Region;
use crate::stream::Stream;

/// Offsets from here on lie in the tables on the host, and not in the reservation.
pub(crate) const TABLES_AT: u64 = 1 << 60;

/// The one allocation of device memory, and tables that stay on the host.
pub(crate) struct Memory {
    base: u64,
    bytes: u64,
    /// Where the card finds them, and where the host does.
    tables: Option<(u64, Region)>,
}

/// Turns places in the reservation into addresses.
pub(crate) trait Resolve {
    /// Address of `len` bytes that lie `at` bytes from the start.
    fn address(&self, at: u64, len: u64) -> u64;
}

impl Resolve for Memory {
    fn address(&self, at: u64, len: u64) -> u64 {
        Memory::address(self, at, len)
    }
}

impl Memory {
    /// Allocates `bytes` and fills them with zeros.
    pub(crate) fn new(context: &Context, bytes: Bytes) -> Result<Memory, DeviceError> {
        let mut base = 0;
        let len = bytes.as_usize().max(1);
        // SAFETY: writes one address.
        check("cuMemAlloc", unsafe { sys::cuMemAlloc_v2(&mut base, len) }).map_err(|error| {
            let reason = format!(
                "{error}; see in nvidia-smi who took memory since the plan, and start again"
            );
            DeviceError::Reserve { bytes, space: "device memory", reason }
        })?;
        let memory = Memory { base, bytes: bytes.0, tables: None };
        // SAFETY: the allocation has `len` bytes.
        let result = unsafe { sys::cuMemsetD8Async(base, 0, len, context.stream) };
        check("cuMemsetD8Async", result)?;
        context.wait()?;
        Ok(memory)
    }

    /// Has offsets from [`TABLES_AT`] on lie in pinned host memory.
    pub(crate) fn place_tables(&mut self, tables: Region) -> Result<(), DeviceError> {
        self.tables = Some((tables.device_address()?, tables));
        Ok(())
    }

    /// Address of `len` bytes that lie `at` bytes from the start; outside is a bug.
    pub(crate) fn address(&self, at: u64, len: u64) -> u64 {
        if let (Some(at), Some((base, tables))) = (at.checked_sub(TABLES_AT), &self.tables) {
            let inside = at.checked_add(len).is_some_and(|end| end <= tables.len() as u64);
            assert!(inside, "{len} bytes at {at} are not in the tables of {} B", tables.len());
            return base + at;
        }
        let inside = at.checked_add(len).is_some_and(|end| end <= self.bytes);
        assert!(inside, "{len} bytes at {at} are not in the reservation of {} B", self.bytes);
        self.base + at
    }

    /// Copies from the host and waits.
    pub(crate) fn write(&self, context: &Context, at: u64, from: &[u8]) -> Result<(), DeviceError> {
        let to = self.address(at, from.len() as u64);
        if let (Some(at), Some((_, tables))) = (at.checked_sub(TABLES_AT), &self.tables) {
            // What the stream has may read the table.
            context.wait()?;
            // SAFETY: the span lies in the tables, as `address` found, which nothing reads now and
            // no reference points into.
            unsafe {
                let to = tables.base().add(at as usize);
                to.copy_from_nonoverlapping(from.as_ptr(), from.len());
            }
            return Ok(());
        }
        // SAFETY: the span lies in the allocation; `from` outlives the wait below.
        let result = unsafe {
            sys::cuMemcpyHtoDAsync_v2(to, from.as_ptr().cast(), from.len(), context.stream)
        };
        check("cuMemcpyHtoDAsync", result)?;
        context.wait()
    }

    /// Copies to the host and waits.
    pub(crate) fn read(
        &self,
        context: &Context,
        at: u64,
        to: &mut [u8],
    ) -> Result<(), DeviceError> {
        let from = self.address(at, to.len() as u64);
        // SAFETY: the span lies in the allocation; `to` outlives the wait below.
        let result = unsafe {
            sys::cuMemcpyDtoHAsync_v2(to.as_mut_ptr().cast(), from, to.len(), context.stream)
        };
        check("cuMemcpyDtoHAsync", result)?;
        context.wait()
    }

    /// Copies inside the allocation, in the order of the stream.
    pub(crate) fn copy(
        &self,
        context: &Context,
        from: u64,
        to: u64,
        len: u64,
    ) -> Result<(), DeviceError> {
        let (from, to) = (self.address(from, len), self.address(to, len));
        // SAFETY: both spans lie in the allocation.
        let result = unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, len as usize, context.stream) };
        check("cuMemcpyDtoDAsync", result)
    }

    /// Starts a copy between a span of the allocation and `host`, on a stream of its own.
    ///
    /// # Safety
    /// Until the stream has done it, `host` stays where it is and nobody reads or writes it.
    pub(crate) unsafe fn travel(
        &self,
        stream: &Stream,
        way: CopyWay,
        at: u64,
        host: &mut [u8],
    ) -> Result<(), DeviceError> {
        let (device, len) = (self.address(at, host.len() as u64), host.len());
        // SAFETY: the span lies in the allocation; the caller keeps `host`.
        unsafe {
            let (stream, host) = (stream.raw(), host.as_mut_ptr().cast::<c_void>());
            match way {
                CopyWay::Out => {
                    let result = sys::cuMemcpyDtoHAsync_v2(host, device, len, stream);
                    check("cuMemcpyDtoHAsync", result)
                }
                CopyWay::In => {
                    let result = sys::cuMemcpyHtoDAsync_v2(device, host, len, stream);
                    check("cuMemcpyHtoDAsync", result)
                }
            }
        }
    }

    /// Zeros a span, in the order of a stream.
    pub(crate) fn zero(&self, stream: sys::CUstream, at: u64, len: u64) -> Result<(), DeviceError> {
        let to = self.address(at, len);
        // SAFETY: the span lies in the allocation.
        let result = unsafe { sys::cuMemsetD8Async(to, 0, len as usize, stream) };
        check("cuMemsetD8Async", result)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the allocation is this value's; freeing waits for kernels that use it.
        let _ = unsafe { sys::cuMemFree_v2(self.base) };
    }
}

/// Page-locked host memory that the card copies from, and reads and writes itself; zeroed.
#[derive(Debug)]
pub(crate) struct Pinned {
    base: NonNull<u8>,
    len: usize,
    device: u64,
}

// SAFETY: plain memory; who may touch it when is the owner's business.
unsafe impl Send for Pinned {}

impl Pinned {
    /// Pins `len` bytes.
    pub(crate) fn new(len: usize) -> Result<Pinned, DeviceError> {
        let mut base: *mut c_void = null_mut();
        let len = len.max(1);
        let flags = sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: writes one address.
        let result = unsafe { sys::cuMemHostAlloc(&mut base, len, flags) };
        check("cuMemHostAlloc", result).map_err(|error| DeviceError::Reserve {
            bytes: Bytes(len as u64),
            space: "pinned memory",
            reason: error.to_string(),
        })?;
        let mut device = 0;
        // SAFETY: the block is pinned and mapped; writes one address.
        let result = unsafe { sys::cuMemHostGetDevicePointer_v2(&mut device, base, 0) };
        let base = NonNull::new(base.cast::<u8>()).expect("the driver gave an address");
        // SAFETY: the block has `len` bytes.
        unsafe { base.write_bytes(0, len) };
        let pinned = Pinned { base, len, device };
        check("cuMemHostGetDevicePointer", result).map(|()| pinned)
    }

    /// As the card addresses it.
    pub(crate) fn device_address(&self) -> u64 {
        self.device
    }

    /// All of it.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: `len` initialised bytes, borrowed with `self`.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }

    /// All of it, to be written.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; `&mut self` keeps others away.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }

    /// The u64 at byte `at`, which the card may have written since it was last read.
    pub(crate) fn word(&self, at: usize) -> u64 {
        let span = &self.bytes()[at..at + 8];
        // SAFETY: eight bytes of the block, which is aligned to a page.
        unsafe { span.as_ptr().cast::<u64>().read_volatile() }
    }

    /// Starts copying the first `len` bytes to `at`. They must not be written before the copy is
    /// done: an [`Event`](crate::stream::Event) tells.
    pub(crate) fn send(
        &self,
        context: &Context,
        memory: &Memory,
        at: u64,
        len: usize,
    ) -> Result<(), DeviceError> {
        assert!(len <= self.len, "{len} bytes of {} to send", self.len);
        let to = memory.address(at, len as u64);
        // SAFETY: the block has `len` bytes and lives as long as its owner, which drops it after
        // the stream is idle; the span lies in the allocation.
        let result = unsafe {
            sys::cuMemcpyHtoDAsync_v2(to, self.base.as_ptr().cast(), len, context.stream)
        };
        check("cuMemcpyHtoDAsync", result)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: the block is this value's.
        let _ = unsafe { sys::cuMemFreeHost(self.base.as_ptr().cast()) };
    }
}
