//! Streams beside the one that rounds run on, marks on all of them, and who waits for whom.

use std::ptr::null_mut;

use cudarc::driver::sys::{self, CUresult};
use ignis_backend::DeviceError;

use crate::driver::{Context, check};

/// A stream; it lives as long as its context.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream(sys::CUstream);

// SAFETY: streams may be used from any thread that made the context current.
unsafe impl Send for Stream {}
// SAFETY: as above; the driver locks what threads share.
unsafe impl Sync for Stream {}

impl Stream {
    /// A stream in the current context.
    pub(crate) fn new() -> Result<Stream, DeviceError> {
        let mut stream = null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: writes one handle.
        check("cuStreamCreate", unsafe { sys::cuStreamCreate(&mut stream, flags) })?;
        Ok(Stream(stream))
    }

    /// As the driver names it.
    pub(crate) fn raw(&self) -> sys::CUstream {
        self.0
    }

    /// What is put on the stream from now on runs behind the event's mark.
    pub(crate) fn wait_for(&self, event: &Event) -> Result<(), DeviceError> {
        // SAFETY: both handles are alive.
        check("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(self.0, event.0, 0) })
    }

    /// Waits until everything on the stream is done.
    pub(crate) fn wait(&self) -> Result<(), DeviceError> {
        // SAFETY: the stream lives as long as its context, which its user holds.
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.0) })
    }
}

/// A mark on a stream.
#[derive(Debug)]
pub(crate) struct Event(sys::CUevent);

// SAFETY: events may be used from any thread that made the context current.
unsafe impl Send for Event {}

impl Event {
    /// An event that counts as passed.
    pub(crate) fn new() -> Result<Event, DeviceError> {
        let mut event = null_mut();
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: writes one handle.
        check("cuEventCreate", unsafe { sys::cuEventCreate(&mut event, flags) })?;
        Ok(Event(event))
    }

    /// Puts the mark behind everything on the stream.
    pub(crate) fn record(&self, context: &Context) -> Result<(), DeviceError> {
        // SAFETY: both handles are alive.
        check("cuEventRecord", unsafe { sys::cuEventRecord(self.0, context.stream) })
    }

    /// Puts the mark behind everything on another stream.
    pub(crate) fn record_on(&self, stream: &Stream) -> Result<(), DeviceError> {
        // SAFETY: both handles are alive.
        check("cuEventRecord", unsafe { sys::cuEventRecord(self.0, stream.raw()) })
    }

    /// Whether the stream has passed the mark.
    pub(crate) fn is_over(&self) -> Result<bool, DeviceError> {
        // SAFETY: the handle is alive.
        match unsafe { sys::cuEventQuery(self.0) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            result => check("cuEventQuery", result).map(|()| true),
        }
    }

    /// Waits until the stream has passed the mark.
    pub(crate) fn wait(&self) -> Result<(), DeviceError> {
        // SAFETY: the handle is alive.
        check("cuEventSynchronize", unsafe { sys::cuEventSynchronize(self.0) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the handle is this value's.
        let _ = unsafe { sys::cuEventDestroy_v2(self.0) };
    }
}
