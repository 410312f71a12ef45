//! Where the vendor's libraries are: nothing is linked, so that one binary runs with and without a GPU.
//!
//! A library is looked for by the names that its versions have: in folders that somebody named, then where the system's loader looks, then in
//! folders that often have it, such as the CUDA toolkit's and those of Python wheels.
#![expect(unsafe_code, reason = "opens libraries at run time")]

use std::path::{Path, PathBuf};

use libloading::Library;

/// A library of the vendor's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needed {
    /// The driver.
    Driver,
    /// The compiler of kernels.
    Nvrtc,
    /// Matrix products.
    BlasLt,
    /// Attention and convolutions; not needed, used where it is there.
    Cudnn,
    /// Utilisation and power; not needed, told where it is there.
    Nvml,
}

impl Needed {
    /// All of them, in the order in which they are needed.
    pub const ALL: [Needed; 5] = [Needed::Driver, Needed::Nvrtc, Needed::BlasLt, Needed::Cudnn, Needed::Nvml];

    /// The name for people.
    pub fn name(self) -> &'static str {
        match self {
            Needed::Driver => "NVIDIA driver",
            Needed::Nvrtc => "NVRTC",
            Needed::BlasLt => "cuBLASLt",
            Needed::Cudnn => "cuDNN",
            Needed::Nvml => "NVML",
        }
    }

    /// Whether nothing runs without it.
    pub fn is_required(self) -> bool {
        !matches!(self, Needed::Cudnn | Needed::Nvml)
    }

    /// How the names of libraries begin that it opens itself by name alone.
    fn opens_by_name(self) -> Option<&'static str> {
        (self == Needed::Nvrtc).then_some("libnvrtc-builtins.so")
    }

    /// The command that gets it.
    pub fn advice(self) -> &'static str {
        match self {
            Needed::Driver => "install NVIDIA's driver 580 or newer, or use --device cpu",
            Needed::Nvrtc => "install the CUDA 13 toolkit, or: pip install nvidia-cuda-nvrtc",
            Needed::BlasLt => "install the CUDA 13 toolkit, or: pip install nvidia-cublas",
            Needed::Cudnn => "pip install nvidia-cudnn-cu13",
            Needed::Nvml => "it comes with NVIDIA's driver; without it utilisation and power are left out",
        }
    }

    /// File names, the newest version first.
    fn files(self) -> &'static [&'static str] {
        if cfg!(windows) {
            return match self {
                Needed::Driver => &["nvcuda.dll"],
                Needed::Nvrtc => &["nvrtc64_130_0.dll", "nvrtc64_120_0.dll"],
                Needed::BlasLt => &["cublasLt64_13.dll", "cublasLt64_12.dll"],
                Needed::Cudnn => &["cudnn64_9.dll"],
                Needed::Nvml => &["nvml.dll"],
            };
        }
        match self {
            Needed::Driver => &["libcuda.so.1", "libcuda.so"],
            Needed::Nvrtc => &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"],
            Needed::BlasLt => &["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"],
            Needed::Cudnn => &["libcudnn.so.9", "libcudnn.so"],
            Needed::Nvml => &["libnvidia-ml.so.1", "libnvidia-ml.so"],
        }
    }
}

/// Where libraries are looked for besides the system's own places.
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// Folders that come before those.
    pub first: Vec<PathBuf>,
    /// Folders that come behind them.
    pub last: Vec<PathBuf>,
}

/// A library that was found.
pub(super) struct Found {
    pub library: Library,
    /// Its name as the system's loader knows it, or its full path.
    pub path: PathBuf,
}

/// Opens a library, or gives nothing where none of its names is anywhere.
pub(super) fn open(needed: Needed, places: &Places) -> Option<Found> {
    let here = needed.files().iter().map(PathBuf::from);
    let there = |folders: &[PathBuf]| {
        let paths =
            folders.iter().flat_map(|folder| needed.files().iter().map(move |file| folder.join(file)));
        paths.filter(|path| path.exists()).collect::<Vec<_>>()
    };
    there(&places.first).into_iter().chain(here).chain(there(&places.last)).find_map(|path| {
        if let Some(beginning) = needed.opens_by_name() {
            open_beside(&path, beginning);
        }
        load(&path).map(|library| Found { library, path })
    })
}

/// Opens the libraries beside one in a folder of the caller's whose names begin so. The vendor's libraries open each other by name
/// alone: one that is open already is found, wherever it lies.
fn open_beside(path: &Path, beginning: &str) {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let entries = folder.and_then(|folder| std::fs::read_dir(folder).ok()).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries
        .filter(|entry| entry.file_name().to_str().is_some_and(|name| name.starts_with(beginning)))
        .map(|entry| entry.path())
        .collect();
    paths.sort();
    paths.iter().for_each(|path| drop(load(path)));
}

fn load(path: &Path) -> Option<Library> {
    // SAFETY: opening runs the library's initialisers. These are the vendor's own, made to be opened by any program.
    let open = || unsafe { Library::new(path) }.ok();
    // A second handle is never closed: threads of the vendor's and what it keeps for ours may outlive the last user, and must
    // find the code where it was.
    std::mem::forget(open()?);
    open()
}
