//! The compiler of kernels, and the folder that keeps what it made.
#![expect(unsafe_code, reason = "calls into a C library")]

use std::{
    ffi::{CString, c_char, c_int},
    path::{Path, PathBuf},
    ptr,
};

use super::{
    aside::write_aside,
    driver::missing,
    library::{self, Needed, Places},
    symbols::symbols,
};
use crate::error::{Error, Result};

symbols! {
    /// The compiler's functions.
    Api {
        nvrtcVersion(major: *mut c_int, minor: *mut c_int);
        nvrtcCreateProgram(
            program: *mut usize, source: *const c_char, name: *const c_char, headers: c_int,
            header_sources: *const *const c_char, header_names: *const *const c_char,
        );
        nvrtcCompileProgram(program: usize, count: c_int, options: *const *const c_char);
        nvrtcGetProgramLogSize(program: usize, bytes: *mut usize);
        nvrtcGetProgramLog(program: usize, log: *mut c_char);
        nvrtcGetCUBINSize(program: usize, bytes: *mut usize);
        nvrtcGetCUBIN(program: usize, image: *mut c_char);
        nvrtcDestroyProgram(program: *mut usize);
    }
}

/// A file of kernels and the headers that it may include.
pub(super) struct Program<'a> {
    pub name: &'a str,
    pub text: &'a str,
    /// Names and texts.
    pub headers: &'a [(&'a str, &'a str)],
}

/// The compiler, opened.
pub(super) struct Nvrtc {
    api: Api,
    version: [c_int; 2],
    path: PathBuf,
}

impl Nvrtc {
    pub fn open(places: &Places) -> Result<Self> {
        let found =
            library::open(Needed::Nvrtc, places).ok_or_else(|| missing(Needed::Nvrtc, "it was not found"))?;
        let api = Api::load(found.library)
            .map_err(|symbol| missing(Needed::Nvrtc, &format!("the one found has no {symbol}")))?;
        let mut version = [0; 2];
        // SAFETY: the library writes two ints.
        unsafe { (api.nvrtcVersion)(&mut version[0], &mut version[1]) };
        Ok(Nvrtc { api, version, path: found.path })
    }

    /// The version and where it was found, for people.
    pub fn describe(&self) -> String {
        format!("{}.{} ({})", self.version[0], self.version[1], self.path.display())
    }

    /// Compiles for an architecture such as `sm_90a`, or takes what an earlier run left in `cache`.
    pub fn compile(
        &self,
        program: &Program<'_>,
        architecture: &str,
        defines: &[(&str, usize)],
        cache: Option<&Path>,
    ) -> Result<Vec<u8>> {
        let mut options = vec![format!("--gpu-architecture={architecture}"), "--std=c++17".into()];
        options.extend(defines.iter().map(|(name, value)| format!("-D{name}={value}")));
        let key = self.key(program, &options);
        let file = cache.map(|folder| folder.join(format!("{}-{:016x}.cubin", program.name, fnv(&key))));
        if let Some(image) = file.as_deref().and_then(|file| read_cached(file, &key)) {
            return Ok(image);
        }
        let image = self.compile_anew(program, &options)?;
        if let Some(file) = file {
            // A cache that cannot be written costs time, not results.
            let _ = write_cached(&file, &key, &image);
        }
        Ok(image)
    }

    /// Everything that the result depends on.
    fn key(&self, program: &Program<'_>, options: &[String]) -> Vec<u8> {
        let mut key =
            format!("nvrtc {}.{}\n{}\n", self.version[0], self.version[1], options.join(" ")).into_bytes();
        for (name, text) in program.headers.iter().copied().chain([(program.name, program.text)]) {
            key.extend_from_slice(format!("{name} {}\n{text}", text.len()).as_bytes());
        }
        key
    }

    fn compile_anew(&self, program: &Program<'_>, options: &[String]) -> Result<Vec<u8>> {
        let spelled = |text: &str| CString::new(text).expect("kernels hold no zero byte");
        let (text, name) = (spelled(program.text), spelled(program.name));
        let header_names: Vec<CString> = program.headers.iter().map(|(name, _)| spelled(name)).collect();
        let header_texts: Vec<CString> = program.headers.iter().map(|(_, text)| spelled(text)).collect();
        let options: Vec<CString> = options.iter().map(|option| spelled(option)).collect();
        let addresses =
            |of: &[CString]| -> Vec<*const c_char> { of.iter().map(|text| text.as_ptr()).collect() };
        let mut handle = 0;
        // SAFETY: every string ends with a zero and outlives the calls; the library is told the true lengths of all lists,
        // and buffers have the sizes that it asked for.
        unsafe {
            let status = (self.api.nvrtcCreateProgram)(
                &mut handle,
                text.as_ptr(),
                name.as_ptr(),
                header_names.len() as c_int,
                addresses(&header_texts).as_ptr(),
                addresses(&header_names).as_ptr(),
            );
            self.check(program, "nvrtcCreateProgram", status, handle)?;
            let options = addresses(&options);
            let status = (self.api.nvrtcCompileProgram)(handle, options.len() as c_int, options.as_ptr());
            self.check(program, "nvrtcCompileProgram", status, handle)?;
            let mut bytes = 0;
            (self.api.nvrtcGetCUBINSize)(handle, &mut bytes);
            let mut image = vec![0u8; bytes];
            let status = (self.api.nvrtcGetCUBIN)(handle, image.as_mut_ptr().cast());
            self.check(program, "nvrtcGetCUBIN", status, handle)?;
            (self.api.nvrtcDestroyProgram)(&mut handle);
            Ok(image)
        }
    }

    fn check(&self, program: &Program<'_>, call: &'static str, status: c_int, handle: usize) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        let mut bytes = 0;
        let mut log = Vec::new();
        if handle != 0 {
            // SAFETY: the buffer has the size that the library asked for.
            unsafe {
                (self.api.nvrtcGetProgramLogSize)(handle, &mut bytes);
                log.resize(bytes, 0u8);
                if bytes > 0 {
                    (self.api.nvrtcGetProgramLog)(handle, log.as_mut_ptr().cast());
                }
                (self.api.nvrtcDestroyProgram)(ptr::from_ref(&handle).cast_mut());
            }
        }
        let log = String::from_utf8_lossy(&log).trim_end_matches('\0').trim().to_owned();
        Err(Error::KernelCompile { file: program.name.into(), call, status, log })
    }
}

const MAGIC: &[u8; 8] = b"IMcubin1";

/// FNV-1a: only a name for a file, whose whole key is compared.
fn fnv(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

fn read_cached(file: &Path, key: &[u8]) -> Option<Vec<u8>> {
    let stored = std::fs::read(file).ok()?;
    let rest = stored.strip_prefix(MAGIC)?;
    let (lengths, rest) = rest.split_at_checked(16)?;
    let length = |at: usize| -> Option<usize> {
        usize::try_from(u64::from_le_bytes(lengths[at..at + 8].try_into().ok()?)).ok()
    };
    let (stored_key, image) = rest.split_at_checked(length(0)?)?;
    (stored_key == key && image.len() == length(8)?).then(|| image.to_vec())
}

fn write_cached(file: &Path, key: &[u8], image: &[u8]) -> std::io::Result<()> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&(key.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&(image.len() as u64).to_le_bytes());
    bytes.extend_from_slice(key);
    bytes.extend_from_slice(image);
    write_aside(file, &bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cached_kernel_is_taken_only_for_its_own_key() {
        let folder = std::env::temp_dir().join(format!("ironmill-cubin-{}", std::process::id()));
        let file = folder.join("add.cubin");
        write_cached(&file, b"key", b"image").unwrap();
        assert_eq!(read_cached(&file, b"key").as_deref(), Some(&b"image"[..]));
        assert_eq!(read_cached(&file, b"other"), None);
        let whole = std::fs::read(&file).unwrap();
        for length in 0..whole.len() {
            std::fs::write(&file, &whole[..length]).unwrap();
            assert_eq!(read_cached(&file, b"key"), None, "{length} bytes");
        }
        std::fs::remove_dir_all(folder).unwrap();
    }
}
