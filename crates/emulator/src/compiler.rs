//! The compiler's interface: what a program that opens `libnvrtc.so` finds here. The real one does the work, whose wheel needs no card; it
//! is asked for assembly instead of machine code.
#![expect(unsafe_code, reason = "an interface of C")]

use std::{
    ffi::{CStr, CString, c_char, c_int},
    path::{Path, PathBuf},
    sync::LazyLock,
};

use libloading::{Library, Symbol};

use crate::driver::functions;

type Status = i32;
const INTERNAL_ERROR: Status = 11;

/// Where libraries are looked for, as the program's own.
const FOLDERS: &str = "IRONMILL_CUDA_LIBRARIES";

/// The real compiler.
static REAL: LazyLock<Option<Library>> = LazyLock::new(|| open(&find()?));

/// Whether there is one.
pub fn is_there() -> bool {
    find().is_some()
}

fn find() -> Option<PathBuf> {
    let folders = std::env::var_os(FOLDERS)?;
    std::env::split_paths(&folders).find_map(|folder| library_of(&folder))
}

/// The compiler in a folder, unless it is this library under another name.
fn library_of(folder: &Path) -> Option<PathBuf> {
    let path = folder.join("libnvrtc.so.13");
    let real = path.canonicalize().ok()?;
    let is_this = real.file_name()?.to_str()?.contains("ironmill_emulator");
    (!is_this).then_some(path)
}

/// Opens it with what it opens itself by name alone.
fn open(path: &Path) -> Option<Library> {
    for entry in std::fs::read_dir(path.parent()?).ok()?.flatten() {
        if entry.file_name().to_str().is_some_and(|name| name.starts_with("libnvrtc-builtins.so")) {
            // SAFETY: the vendor's library, made to be opened by any program.
            std::mem::forget(unsafe { Library::new(entry.path()) });
        }
    }
    // SAFETY: as above.
    unsafe { Library::new(path) }.ok()
}

/// A function of the real compiler by its name.
fn real<F>(name: &CStr) -> Option<Symbol<'static, F>> {
    // SAFETY: callers name the type that the vendor's header declares.
    unsafe { REAL.as_ref()?.get(name.to_bytes_with_nul()) }.ok()
}

/// Calls a function of the real compiler with these arguments.
macro_rules! forward {
    ($name:literal, ($($argument:ident: $of:ty),*)) => {
        match real::<unsafe extern "C" fn($($of),*) -> Status>($name) {
            // SAFETY: the arguments are the caller's, who promises what the header asks.
            Some(function) => unsafe { function($($argument),*) },
            None => INTERNAL_ERROR,
        }
    };
}

functions! {
    /// The version, which is not that of the real one: what is compiled is not the same.
    fn nvrtcVersion(major: *mut c_int, minor: *mut c_int) {
        const ASSEMBLY: c_int = 1000;
        let status = forward!(c"nvrtcVersion", (major: *mut c_int, minor: *mut c_int));
        if status == 0 {
            // SAFETY: the real compiler wrote there.
            unsafe { *minor += ASSEMBLY };
        }
        status
    }

    /// A program.
    fn nvrtcCreateProgram(
        program: *mut usize, source: *const c_char, name: *const c_char, headers: c_int,
        header_sources: *const *const c_char, header_names: *const *const c_char,
    ) {
        forward!(c"nvrtcCreateProgram", (
            program: *mut usize, source: *const c_char, name: *const c_char, headers: c_int,
            header_sources: *const *const c_char, header_names: *const *const c_char
        ))
    }

    /// Compiles it to assembly.
    fn nvrtcCompileProgram(program: usize, count: c_int, options: *const *const c_char) {
        let mut spelled = Vec::new();
        for index in 0..count as usize {
            // SAFETY: there are as many options as the caller says, each of which ends with a zero.
            let option = unsafe { CStr::from_ptr(*options.add(index)) }.to_string_lossy();
            let option = option.replace("--gpu-architecture=sm_", "--gpu-architecture=compute_");
            spelled.push(CString::new(option).unwrap_or_default());
        }
        let places: Vec<*const c_char> = spelled.iter().map(|option| option.as_ptr()).collect();
        let options = places.as_ptr();
        forward!(c"nvrtcCompileProgram", (program: usize, count: c_int, options: *const *const c_char))
    }

    /// How long its log is.
    fn nvrtcGetProgramLogSize(program: usize, bytes: *mut usize) {
        forward!(c"nvrtcGetProgramLogSize", (program: usize, bytes: *mut usize))
    }

    /// Its log.
    fn nvrtcGetProgramLog(program: usize, log: *mut c_char) {
        forward!(c"nvrtcGetProgramLog", (program: usize, log: *mut c_char))
    }

    /// How long the assembly is that stands for machine code.
    fn nvrtcGetCUBINSize(program: usize, bytes: *mut usize) {
        forward!(c"nvrtcGetPTXSize", (program: usize, bytes: *mut usize))
    }

    /// The assembly.
    fn nvrtcGetCUBIN(program: usize, image: *mut c_char) {
        forward!(c"nvrtcGetPTX", (program: usize, image: *mut c_char))
    }

    /// Gives a program back.
    fn nvrtcDestroyProgram(program: *mut usize) {
        if program.is_null() || program.is_null() {
            return INTERNAL_ERROR;
        }
        forward!(c"nvrtcDestroyProgram", (program: *mut usize))
    }
}
