//! Where a CUDA card's libraries and compiled kernels are on this machine.

use ironmill_compute::CudaOptions;
use ironmill_compute::cuda::{CardReport, LibraryReport, Places, probe};
use std::path::{Path, PathBuf};

/// What is there of CUDA.
pub struct Found {
    pub libraries: Vec<LibraryReport>,
    pub cards: Vec<CardReport>,
}

impl Found {
    /// Whether a run can use a card.
    pub fn is_usable(&self) -> bool {
        !self.cards.is_empty() && self.missing().is_none()
    }

    /// The first library that is needed and not there.
    pub fn missing(&self) -> Option<&LibraryReport> {
        self.libraries.iter().find(|library| library.needed.is_required() && library.found.is_err())
    }
}

/// Looks for the driver, the libraries and the cards.
pub fn find() -> Found {
    let (libraries, cards) = probe(&places());
    Found { libraries, cards }
}

/// How a run opens a card. The algorithms that it chooses are kept in `choices`, for a resumed run to use again.
pub fn options(ordinal: usize, choices: Option<PathBuf>) -> CudaOptions {
    let kernel_cache = cache_folder().map(|folder| folder.join("kernels"));
    CudaOptions { ordinal, places: places(), kernel_cache, choices, ..CudaOptions::default() }
}

/// What the driver's and the libraries' own memory comes to on a card, as measured beside a run's plan: kernels, working memory of
/// products, the ring of uploads.
const LIBRARY_BYTES: usize = 200 << 20;

/// Bytes that a device's own libraries take.
pub fn library_bytes(device: &str) -> usize {
    if ordinal(device).is_some() { LIBRARY_BYTES } else { 0 }
}

/// The card that a device's name means: 0 for `cuda`, 1 for `cuda:1`.
pub fn ordinal(name: &str) -> Option<usize> {
    match name.strip_prefix("cuda")? {
        "" => Some(0),
        rest => rest.strip_prefix(':')?.parse().ok(),
    }
}

/// Where things that can be made again are kept.
pub fn cache_folder() -> Option<PathBuf> {
    let base = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")))?;
    Some(base.join("ironmill"))
}

/// Folders that may hold the vendor's libraries besides those of the system's loader: of a toolkit that the user names, which comes first,
/// of others and of Python wheels.
pub fn places() -> Places {
    let named = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(absolute).map(|home| home.join("lib64"));
    let mut folders =
        ["/usr/local/cuda/lib64", "/opt/cuda/lib64", "/usr/lib/wsl/lib"].map(PathBuf::from).to_vec();
    let environments = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(absolute);
    let homes = absolute("HOME").map(|home| home.join(".local"));
    let systems = ["/usr", "/usr/local"].map(PathBuf::from);
    for prefix in environments.chain(homes).chain(systems) {
        folders.push(prefix.join("lib"));
        for python in children(&prefix.join("lib"), "python3") {
            for packages in ["site-packages", "dist-packages"] {
                // A wheel is a folder of `nvidia`; its libraries lie in `lib`.
                let wheels = children(&python.join(packages).join("nvidia"), "");
                folders.extend(wheels.into_iter().map(|wheel| wheel.join("lib")));
            }
        }
    }
    Places { first: named.collect(), last: folders }
}

/// The folders inside a folder whose names begin so, sorted.
fn children(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let named = |path: &PathBuf| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(prefix))
    };
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(named).collect();
    found.sort();
    found
}

fn absolute(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_may_carry_a_number() {
        let cases =
            [("cuda", Some(0)), ("cuda:0", Some(0)), ("cuda:3", Some(3)), ("cuda:x", None), ("cpu", None)];
        for (name, expected) in cases {
            assert_eq!(ordinal(name), expected, "{name}");
        }
    }

    #[test]
    fn folders_are_found_by_the_beginning_of_their_names() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["python3.12", "python3.11", "perl"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        let names: Vec<_> = children(folder.path(), "python3");
        assert_eq!(names, ["python3.11", "python3.12"].map(|name| folder.path().join(name)));
        assert!(children(&folder.path().join("missing"), "").is_empty());
    }
}
