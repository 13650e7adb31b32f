//! The driver: context, stream, modules, launches, graphs. Only this file, `card`, `stream` and the
//! two that allocate speak to it.
//!
//! Every call is checked; a failure names the call and the driver's word for it.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex};

use cudarc::driver::sys::{self, CUresult};
use ignis_backend::DeviceError;

use crate::card::Card;
use crate::look::Look;
use crate::stream::Stream;

/// A kernel of a loaded module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Function(sys::CUfunction);

// SAFETY: a handle of a module, which lives as long as its context, for any thread that made that
// current.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

#[cfg(test)]
impl Function {
    /// One that is told apart by its number and never launched.
    pub(crate) fn fake(number: usize) -> Function {
        Function(std::ptr::without_provenance_mut(number))
    }
}

/// An error of the call `what`, or nothing.
pub(crate) fn check(what: &'static str, result: CUresult) -> Result<(), DeviceError> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    Err(DeviceError::Driver { what, code: error_name(result) })
}

fn error_name(result: CUresult) -> String {
    let mut name: *const c_char = std::ptr::null();
    // SAFETY: the driver writes a pointer to a static string, or leaves it null.
    let known = unsafe { sys::cuGetErrorName(result, &mut name) } == CUresult::CUDA_SUCCESS;
    if !known || name.is_null() {
        return format!("error {}", result as u32);
    }
    // SAFETY: the driver's names are static, zero-terminated strings.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}

/// The first card generation whose kernels may begin before the one ahead has ended, and the first
/// driver that can record that.
const OVERLAP_MIN: (u32, (u32, u32)) = (9, (12, 3));

/// Held while something is recorded.
static RECORDING: Mutex<()> = Mutex::new(());

/// A card's primary context, which its last holder releases: with it go its streams and modules,
/// and the driver's part of the card.
#[derive(Debug)]
struct Primary {
    card: Card,
    context: sys::CUcontext,
}

// SAFETY: a context may be used from any thread that made it current.
unsafe impl Send for Primary {}
// SAFETY: as above; the driver locks what threads share.
unsafe impl Sync for Primary {}

impl Drop for Primary {
    fn drop(&mut self) {
        let mut current = null_mut();
        // SAFETY: writes one handle.
        let known = unsafe { sys::cuCtxGetCurrent(&mut current) } == CUresult::CUDA_SUCCESS;
        if known && current == self.context {
            // SAFETY: no context is one that a thread may have.
            let _ = unsafe { sys::cuCtxSetCurrent(null_mut()) };
        }
        // SAFETY: it was retained once; every user of its streams and modules held it, and there is
        // none left. A thread that still has it current enters another before its next call.
        let _ = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.card.handle) };
    }
}

/// A card's primary context, and the stream that rounds run on.
#[derive(Clone, Debug)]
pub(crate) struct Context {
    primary: Arc<Primary>,
    pub(crate) stream: sys::CUstream,
    /// Whether a kernel may begin while the one ahead still runs; it then waits for it by itself.
    overlap: bool,
    /// For copies beside the rounds: to the host, and from it.
    pub(crate) copy_streams: [Stream; 2],
    /// For the sums of what either has copied.
    pub(crate) sum_streams: [Stream; 2],
    /// For recordings, which take in all that the stream is given: no other thread has this one.
    recorder: Stream,
}

// SAFETY: contexts and streams may be used from any thread that made the context current, which
// `enter` does before every use.
unsafe impl Send for Context {}
// SAFETY: as above; the driver locks what threads share.
unsafe impl Sync for Context {}

/// A kernel's grid, CTA and dynamic shared memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) grid: (u32, u32, u32),
    pub(crate) threads: u32,
    pub(crate) shared_bytes: u32,
}

impl Context {
    /// Retains the primary context of `card` and makes a stream in it. `driver`: its version.
    pub(crate) fn new(card: &Card, driver: (u32, u32)) -> Result<Context, DeviceError> {
        let (mut context, mut stream) = (null_mut(), null_mut());
        // SAFETY: the handle comes from the driver.
        let retained = unsafe { sys::cuDevicePrimaryCtxRetain(&mut context, card.handle) };
        check("cuDevicePrimaryCtxRetain", retained)?;
        let primary = Arc::new(Primary { card: card.clone(), context });
        // SAFETY: the context is current when the stream is made.
        unsafe {
            check("cuCtxSetCurrent", sys::cuCtxSetCurrent(context))?;
            let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
            check("cuStreamCreate", sys::cuStreamCreate(&mut stream, flags))?;
        }
        let overlap = card.capability.0 >= OVERLAP_MIN.0 && driver >= OVERLAP_MIN.1;
        let copy_streams = [Stream::new()?, Stream::new()?];
        let sum_streams = [Stream::new()?, Stream::new()?];
        let recorder = Stream::new()?;
        Ok(Context { primary, stream, overlap, copy_streams, sum_streams, recorder })
    }

    /// Makes the context current on this thread.
    pub(crate) fn enter(&self) -> Result<(), DeviceError> {
        // SAFETY: the context is held.
        check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.primary.context) })
    }

    /// Waits until everything on the stream is done; reports what failed in it.
    pub(crate) fn wait(&self) -> Result<(), DeviceError> {
        // SAFETY: the stream lives as long as its context, which is held.
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.stream) })
    }

    /// Loads a module from machine code.
    pub(crate) fn load(&self, cubin: &[u8]) -> Result<Module, DeviceError> {
        let mut module = null_mut();
        // SAFETY: the image is a whole cubin that NVRTC made; the driver copies it.
        let result = unsafe { sys::cuModuleLoadData(&mut module, cubin.as_ptr().cast()) };
        check("cuModuleLoadData", result)?;
        Ok(Module(module))
    }

    /// Lets a kernel use this much dynamic shared memory.
    pub(crate) fn allow_shared(&self, f: Function, bytes: u32) -> Result<(), DeviceError> {
        let which = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function's module lives as long as its context, which is held.
        let result = unsafe { sys::cuFuncSetAttribute(f.0, which, bytes as c_int) };
        check("cuFuncSetAttribute", result)
    }

    /// CTAs of a kernel that one processor runs at a time.
    pub(crate) fn ctas_at_a_time(
        &self,
        f: Function,
        threads: u32,
        shared_bytes: u32,
    ) -> Result<u32, DeviceError> {
        let mut count = 0;
        // SAFETY: writes one number; the function's module lives as long as its context.
        let result = unsafe {
            sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(
                &mut count,
                f.0,
                threads as c_int,
                shared_bytes as usize,
            )
        };
        check("cuOccupancyMaxActiveBlocksPerMultiprocessor", result)?;
        Ok(count as u32)
    }

    /// Starts a kernel on the stream; where it `overlaps` and the card can, it may begin while the
    /// one ahead still runs.
    ///
    /// # Safety
    /// `args` point to values of the kernel's parameter types, in order; the device memory that
    /// they name is large enough for what the kernel does with this shape, and alive.
    pub(crate) unsafe fn launch(
        &self,
        f: Function,
        shape: Shape,
        overlaps: bool,
        args: &mut [*mut c_void],
    ) -> Result<(), DeviceError> {
        // SAFETY: the caller's contract.
        unsafe { self.launch_on((self.stream, self.overlap && overlaps), f, shape, args) }
    }

    /// Starts a kernel on another stream.
    ///
    /// # Safety
    /// As of [`Context::launch`].
    pub(crate) unsafe fn launch_beside(
        &self,
        stream: &Stream,
        f: Function,
        shape: Shape,
        args: &mut [*mut c_void],
    ) -> Result<(), DeviceError> {
        // SAFETY: the caller's contract.
        unsafe { self.launch_on((stream.raw(), false), f, shape, args) }
    }

    /// # Safety
    /// As of [`Context::launch`].
    unsafe fn launch_on(
        &self,
        (stream, may_overlap): (sys::CUstream, bool),
        f: Function,
        shape: Shape,
        args: &mut [*mut c_void],
    ) -> Result<(), DeviceError> {
        let (x, y, z) = shape.grid;
        let mut overlap = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let config = sys::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: shape.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shape.shared_bytes,
            hStream: stream,
            attrs: &mut overlap,
            numAttrs: u32::from(may_overlap),
        };
        // SAFETY: the caller's contract; the driver copies arguments and attributes before it
        // returns.
        let result = unsafe { sys::cuLaunchKernelEx(&config, f.0, args.as_mut_ptr(), null_mut()) };
        check("cuLaunchKernelEx", result)
    }

    /// The card's memory now.
    pub(crate) fn look(&self) -> Look {
        Look::at(&self.primary.card)
    }

    /// Records what `work` puts on the stream of the context that it is given, instead of running
    /// it.
    pub(crate) fn record(
        &self,
        work: impl FnOnce(&Context) -> Result<(), DeviceError>,
    ) -> Result<Graph, DeviceError> {
        let alone = RECORDING.lock().unwrap_or_else(|error| error.into_inner());
        let onto = Context { stream: self.recorder.raw(), ..self.clone() };
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives as long as its context, and nothing else uses it until the end
        // below, as the lock is held.
        check("cuStreamBeginCapture", unsafe { sys::cuStreamBeginCapture_v2(onto.stream, mode) })?;
        let worked = work(&onto);
        let mut recorded = null_mut();
        // SAFETY: writes one handle; ends the recording whatever happened in it.
        let ended = unsafe { sys::cuStreamEndCapture(onto.stream, &mut recorded) };
        drop(alone);
        worked?;
        check("cuStreamEndCapture", ended)?;
        let mut graph = null_mut();
        // SAFETY: the recording was ended well; the ready graph does not need it afterwards.
        let (made, _) = unsafe {
            let made = sys::cuGraphInstantiateWithFlags(&mut graph, recorded, 0);
            (made, sys::cuGraphDestroy(recorded))
        };
        check("cuGraphInstantiateWithFlags", made)?;
        let graph = Graph(graph);
        // SAFETY: both handles are alive.
        check("cuGraphUpload", unsafe { sys::cuGraphUpload(graph.0, self.stream) })?;
        self.wait()?;
        Ok(graph)
    }

    /// Puts a recorded run on the stream.
    pub(crate) fn launch_graph(&self, graph: &Graph) -> Result<(), DeviceError> {
        // SAFETY: both handles are alive; what the kernels were recorded with lies in the sealed
        // reservation, which is dropped after the graph.
        check("cuGraphLaunch", unsafe { sys::cuGraphLaunch(graph.0, self.stream) })
    }
}

/// A recorded run of launches, ready on the card.
#[derive(Debug)]
pub(crate) struct Graph(sys::CUgraphExec);

// SAFETY: a graph may be used from any thread that made the context current, one at a time.
unsafe impl Send for Graph {}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: the handle is this value's; a run of it that is under way keeps what it needs.
        let _ = unsafe { sys::cuGraphExecDestroy(self.0) };
    }
}

/// A loaded module; it lives as long as its context.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Module(sys::CUmodule);

// SAFETY: a module is a handle that any thread with the context current may use.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    /// A kernel by name.
    pub(crate) fn function(&self, name: &CStr) -> Result<Function, DeviceError> {
        let mut f = null_mut();
        // SAFETY: the module is loaded and the name is zero-terminated.
        let result = unsafe { sys::cuModuleGetFunction(&mut f, self.0, name.as_ptr()) };
        check("cuModuleGetFunction", result)?;
        Ok(Function(f))
    }

    /// A constant of `N` words, by name.
    pub(crate) fn words<const N: usize>(&self, name: &CStr) -> Result<[u32; N], DeviceError> {
        let (mut at, mut bytes) = (0, 0);
        // SAFETY: the module is loaded and the name is zero-terminated.
        let result =
            unsafe { sys::cuModuleGetGlobal_v2(&mut at, &mut bytes, self.0, name.as_ptr()) };
        check("cuModuleGetGlobal", result)?;
        assert_eq!(bytes, 4 * N, "{} has other words than its reader", name.to_string_lossy());
        let mut words = [0u32; N];
        // SAFETY: both sides have `bytes` bytes.
        let result = unsafe { sys::cuMemcpyDtoH_v2(words.as_mut_ptr().cast(), at, bytes) };
        check("cuMemcpyDtoH", result)?;
        Ok(words)
    }
}
