//! CUDA C++ to machine code, with NVRTC.

use std::ffi::{CStr, CString, c_char};
use std::path::Path;
use std::ptr::null_mut;

use cudarc::nvrtc::sys::{self, nvrtcResult};
use ignis_backend::DeviceError;

/// Loads the library at `path`, so that later look-ups by name find it. Stays loaded.
pub(crate) fn load_from(path: &Path) -> bool {
    // SAFETY: loading a library runs its initialisers; the caller names NVRTC.
    match unsafe { libloading::Library::new(path) } {
        Ok(library) => {
            std::mem::forget(library);
            true
        }
        Err(_) => false,
    }
}

/// Whether NVRTC can be loaded.
pub(crate) fn is_present() -> bool {
    // SAFETY: as in `load_from`.
    unsafe { sys::is_culib_present() }
}

/// The compiler's version, such as (13, 0).
pub(crate) fn version() -> Result<(u32, u32), DeviceError> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: writes two integers.
    let result = unsafe { sys::nvrtcVersion(&mut major, &mut minor) };
    if result != nvrtcResult::NVRTC_SUCCESS {
        return Err(failed("nvrtcVersion", result));
    }
    Ok((major as u32, minor as u32))
}

fn failed(what: &'static str, result: nvrtcResult) -> DeviceError {
    DeviceError::Driver { what, code: format!("{result:?}") }
}

/// A program that is destroyed when it is dropped.
struct Program(sys::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: the program is this value's.
        let _ = unsafe { sys::nvrtcDestroyProgram(&mut self.0) };
    }
}

/// Machine code of `source`, called `name` in messages, under `options`. It may include `headers`,
/// names and texts.
///
/// Errors: what the compiler says, whole.
pub(crate) fn compile(
    name: &str,
    source: &str,
    headers: &[(&str, &str)],
    options: &[String],
) -> Result<Vec<u8>, DeviceError> {
    let text = |s: &str| CString::new(s).expect("sources and options hold no zero byte");
    let (name, source) = (text(name), text(source));
    let options: Vec<CString> = options.iter().map(|option| text(option)).collect();
    let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
    let headers: Vec<[CString; 2]> =
        headers.iter().map(|(name, source)| [text(name), text(source)]).collect();
    let of_headers = |i: usize| -> Vec<*const c_char> {
        headers.iter().map(|header| header[i].as_ptr()).collect()
    };
    let (names, texts) = (of_headers(0), of_headers(1));
    let mut program = null_mut();
    // SAFETY: every string outlives the call; there are as many names as texts.
    let result = unsafe {
        sys::nvrtcCreateProgram(
            &mut program,
            source.as_ptr(),
            name.as_ptr(),
            headers.len() as i32,
            texts.as_ptr(),
            names.as_ptr(),
        )
    };
    if result != nvrtcResult::NVRTC_SUCCESS {
        return Err(failed("nvrtcCreateProgram", result));
    }
    let program = Program(program);
    // SAFETY: the program is alive; so are the options.
    let result =
        unsafe { sys::nvrtcCompileProgram(program.0, pointers.len() as i32, pointers.as_ptr()) };
    if result != nvrtcResult::NVRTC_SUCCESS {
        return Err(DeviceError::Driver { what: "nvrtcCompileProgram", code: log(&program) });
    }
    let mut len = 0;
    // SAFETY: writes one size.
    let result = unsafe { sys::nvrtcGetCUBINSize(program.0, &mut len) };
    if result != nvrtcResult::NVRTC_SUCCESS {
        return Err(failed("nvrtcGetCUBINSize", result));
    }
    let mut cubin = vec![0u8; len];
    // SAFETY: the buffer has the size that was asked for.
    let result = unsafe { sys::nvrtcGetCUBIN(program.0, cubin.as_mut_ptr().cast()) };
    if result != nvrtcResult::NVRTC_SUCCESS {
        return Err(failed("nvrtcGetCUBIN", result));
    }
    Ok(cubin)
}

fn log(program: &Program) -> String {
    let mut len = 0;
    // SAFETY: writes one size; the buffer then has that size and comes back zero-terminated.
    unsafe {
        if sys::nvrtcGetProgramLogSize(program.0, &mut len) != nvrtcResult::NVRTC_SUCCESS {
            return "the compiler gives no reason".into();
        }
        let mut text = vec![0 as c_char; len.max(1)];
        if sys::nvrtcGetProgramLog(program.0, text.as_mut_ptr()) != nvrtcResult::NVRTC_SUCCESS {
            return "the compiler gives no reason".into();
        }
        CStr::from_ptr(text.as_ptr()).to_string_lossy().into_owned()
    }
}
