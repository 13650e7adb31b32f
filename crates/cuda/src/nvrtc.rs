//! CUDA C++ to machine code, with NVRTC: which libraries of it there are, and the one in use.
//!
//! Several may be installed, of which the driver and the card fit some only, so each is loaded by
//! its own file and asked. What was loaded stays so.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::{Mutex, OnceLock};

use ignis_backend::DeviceError;
use libloading::Library;

/// Names that the system's search is asked for, the newest first.
const SYSTEM_NAMES: [&str; 3] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];

/// One library of NVRTC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvrtcFile {
    /// Its file, or its name where the system does not tell the file.
    pub path: PathBuf,
    /// Its version, such as (13, 0).
    pub version: (u32, u32),
    /// Compute capabilities that it makes code for.
    pub capabilities: Vec<(u32, u32)>,
}

/// Every one that was found: those that were named first, then the system's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NvrtcFacts {
    /// Those that answer.
    pub files: Vec<NvrtcFile>,
    /// Candidates that cannot be loaded, or lack what is needed.
    pub broken: Vec<PathBuf>,
}

/// Asks every library there is.
pub(crate) fn probe(candidates: &[PathBuf]) -> NvrtcFacts {
    let ask = |path: &Path| load(path).and_then(|compiler| compiler.describe(path));
    // First, as a name also finds what was loaded by its file.
    let searched: Vec<_> = SYSTEM_NAMES.iter().filter_map(|name| ask(Path::new(name))).collect();
    let mut facts = NvrtcFacts::default();
    for path in candidates {
        match ask(path) {
            Some(file) => facts.files.push(file),
            None => facts.broken.push(path.clone()),
        }
    }
    for file in searched {
        if facts.files.iter().all(|known| known.path != file.path) {
            facts.files.push(file);
        }
    }
    facts
}

/// The library that compiles from now on. Errors: `Driver` for one that cannot be loaded.
pub(crate) fn choose(file: &NvrtcFile) -> Result<(), DeviceError> {
    let compiler = load(&file.path).ok_or_else(|| DeviceError::Driver {
        what: "loading NVRTC",
        code: file.path.display().to_string(),
    })?;
    load_builtins(&file.path);
    // The first choice stays: the context that follows is made once too.
    let _ = CHOSEN.set((compiler, file.version));
    Ok(())
}

/// The compiler's version, such as (13, 0).
pub(crate) fn version() -> Result<(u32, u32), DeviceError> {
    Ok(chosen().1)
}

static CHOSEN: OnceLock<(&'static Nvrtc, (u32, u32))> = OnceLock::new();

fn chosen() -> (&'static Nvrtc, (u32, u32)) {
    *CHOSEN.get().expect("a compiler is chosen before the context is made")
}

/// A `nvrtcProgram`.
type Handle = *mut c_void;

/// Functions of `nvrtc.h`; a result of 0 is success.
struct Nvrtc {
    version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int,
    arch_count: unsafe extern "C" fn(*mut c_int) -> c_int,
    archs: unsafe extern "C" fn(*mut c_int) -> c_int,
    error: unsafe extern "C" fn(c_int) -> *const c_char,
    create: unsafe extern "C" fn(
        *mut Handle,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> c_int,
    destroy: unsafe extern "C" fn(*mut Handle) -> c_int,
    compile: unsafe extern "C" fn(Handle, c_int, *const *const c_char) -> c_int,
    cubin_size: unsafe extern "C" fn(Handle, *mut usize) -> c_int,
    cubin: unsafe extern "C" fn(Handle, *mut c_char) -> c_int,
    log_size: unsafe extern "C" fn(Handle, *mut usize) -> c_int,
    log: unsafe extern "C" fn(Handle, *mut c_char) -> c_int,
}

/// The library at `path`; one that was loaded before is not loaded again.
fn load(path: &Path) -> Option<&'static Nvrtc> {
    static LOADED: Mutex<Vec<(PathBuf, &'static Nvrtc)>> = Mutex::new(vec![]);
    let mut loaded = LOADED.lock().expect("loading a library does not panic");
    if let Some((_, known)) = loaded.iter().find(|(known, _)| known == path) {
        return Some(known);
    }
    let compiler: &'static Nvrtc = Box::leak(Box::new(Nvrtc::load(path)?));
    loaded.push((path.to_owned(), compiler));
    Some(compiler)
}

/// Loads what the compiler opens by name at its first program: beside a wheel's library, where
/// the system's search does not look.
fn load_builtins(path: &Path) {
    let Some(entries) = path.parent().and_then(|folder| folder.read_dir().ok()) else { return };
    for entry in entries.flatten() {
        if entry.file_name().to_string_lossy().starts_with("libnvrtc-builtins.so") {
            // SAFETY: as in `Nvrtc::load`; one that cannot be loaded is looked for by name later.
            if let Ok(library) = unsafe { Library::new(entry.path()) } {
                std::mem::forget(library);
            }
        }
    }
}

impl Nvrtc {
    fn load(path: &Path) -> Option<Nvrtc> {
        // SAFETY: loading a library runs its initialisers, and the caller names NVRTC; signatures
        // are those of nvrtc.h since 11.2. The library is never unloaded.
        unsafe {
            let library = Library::new(path).ok()?;
            let functions = Nvrtc {
                version: *library.get(b"nvrtcVersion").ok()?,
                arch_count: *library.get(b"nvrtcGetNumSupportedArchs").ok()?,
                archs: *library.get(b"nvrtcGetSupportedArchs").ok()?,
                error: *library.get(b"nvrtcGetErrorString").ok()?,
                create: *library.get(b"nvrtcCreateProgram").ok()?,
                destroy: *library.get(b"nvrtcDestroyProgram").ok()?,
                compile: *library.get(b"nvrtcCompileProgram").ok()?,
                cubin_size: *library.get(b"nvrtcGetCUBINSize").ok()?,
                cubin: *library.get(b"nvrtcGetCUBIN").ok()?,
                log_size: *library.get(b"nvrtcGetProgramLogSize").ok()?,
                log: *library.get(b"nvrtcGetProgramLog").ok()?,
            };
            std::mem::forget(library);
            Some(functions)
        }
    }

    fn describe(&self, path: &Path) -> Option<NvrtcFile> {
        let (mut major, mut minor, mut count) = (0, 0, 0);
        // SAFETY: writes two integers.
        let known = unsafe { (self.version)(&mut major, &mut minor) } == 0;
        // SAFETY: writes one integer.
        if !known || unsafe { (self.arch_count)(&mut count) } != 0 {
            return None;
        }
        let mut archs = vec![0; usize::try_from(count).ok()?];
        // SAFETY: the array holds as many as were counted.
        if unsafe { (self.archs)(archs.as_mut_ptr()) } != 0 {
            return None;
        }
        let pair = |arch: c_int| (arch as u32 / 10, arch as u32 % 10);
        let path = if path.is_absolute() { None } else { file_of(self.version as usize) }
            .unwrap_or_else(|| path.to_owned());
        Some(NvrtcFile {
            path: path.canonicalize().unwrap_or(path),
            version: (major as u32, minor as u32),
            capabilities: archs.into_iter().map(pair).collect(),
        })
    }

    fn check(&self, what: &'static str, result: c_int) -> Result<(), DeviceError> {
        if result == 0 {
            return Ok(());
        }
        // SAFETY: any number gives a static, zero-terminated string.
        let code = unsafe { CStr::from_ptr((self.error)(result)) };
        Err(DeviceError::Driver { what, code: code.to_string_lossy().into_owned() })
    }
}

/// The file that the code at `address` was loaded from.
fn file_of(address: usize) -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    maps.lines().find_map(|line| {
        let (from, to) = line.split_once(' ')?.0.split_once('-')?;
        let [from, to] = [from, to].map(|text| usize::from_str_radix(text, 16).unwrap_or(0));
        let path = line.find('/').map(|at| PathBuf::from(&line[at..]));
        path.filter(|_| (from..to).contains(&address))
    })
}

/// A program that is destroyed when it is dropped.
struct Program(&'static Nvrtc, Handle);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: the program is this value's.
        let _ = unsafe { (self.0.destroy)(&mut self.1) };
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
    let nvrtc = chosen().0;
    let program = create(nvrtc, name, source, headers)?;
    let text = |s: &String| CString::new(s.as_str()).expect("options hold no zero byte");
    let options: Vec<CString> = options.iter().map(text).collect();
    let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
    // SAFETY: the program is alive; so are the options.
    let result = unsafe { (nvrtc.compile)(program.1, pointers.len() as c_int, pointers.as_ptr()) };
    if result != 0 {
        return Err(DeviceError::Driver { what: "nvrtcCompileProgram", code: log(&program) });
    }
    let mut len = 0;
    // SAFETY: writes one size.
    nvrtc.check("nvrtcGetCUBINSize", unsafe { (nvrtc.cubin_size)(program.1, &mut len) })?;
    let mut cubin = vec![0u8; len];
    // SAFETY: the buffer has the size that was asked for.
    let result = unsafe { (nvrtc.cubin)(program.1, cubin.as_mut_ptr().cast()) };
    nvrtc.check("nvrtcGetCUBIN", result)?;
    Ok(cubin)
}

fn create(
    nvrtc: &'static Nvrtc,
    name: &str,
    source: &str,
    headers: &[(&str, &str)],
) -> Result<Program, DeviceError> {
    let text = |s: &str| CString::new(s).expect("sources hold no zero byte");
    let (name, source) = (text(name), text(source));
    let headers: Vec<[CString; 2]> =
        headers.iter().map(|(name, source)| [text(name), text(source)]).collect();
    let of_headers = |i: usize| -> Vec<*const c_char> {
        headers.iter().map(|header| header[i].as_ptr()).collect()
    };
    let (names, texts) = (of_headers(0), of_headers(1));
    let mut program = null_mut();
    // SAFETY: every string outlives the call; there are as many names as texts.
    let result = unsafe {
        (nvrtc.create)(
            &mut program,
            source.as_ptr(),
            name.as_ptr(),
            headers.len() as c_int,
            texts.as_ptr(),
            names.as_ptr(),
        )
    };
    nvrtc.check("nvrtcCreateProgram", result)?;
    Ok(Program(nvrtc, program))
}

fn log(program: &Program) -> String {
    let Program(nvrtc, handle) = *program;
    let mut len = 0;
    // SAFETY: writes one size; the buffer then has that size and comes back zero-terminated.
    unsafe {
        if (nvrtc.log_size)(handle, &mut len) != 0 {
            return "the compiler gives no reason".into();
        }
        let mut text = vec![0 as c_char; len.max(1)];
        if (nvrtc.log)(handle, text.as_mut_ptr()) != 0 {
            return "the compiler gives no reason".into();
        }
        CStr::from_ptr(text.as_ptr()).to_string_lossy().into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_loaded_is_named_and_what_is_no_compiler_is_not_taken() {
        let here = std::env::current_exe().unwrap();
        let facts = probe(&["/nowhere/libnvrtc.so.13".into(), here.clone()]);
        assert_eq!(facts.broken, [PathBuf::from("/nowhere/libnvrtc.so.13"), here]);
    }

    #[test]
    fn code_is_found_in_the_file_that_it_was_loaded_from() {
        let here = std::env::current_exe().unwrap().canonicalize().unwrap();
        assert_eq!(file_of(probe as fn(&[PathBuf]) -> NvrtcFacts as usize), Some(here));
        assert_eq!(file_of(1), None);
    }
}
