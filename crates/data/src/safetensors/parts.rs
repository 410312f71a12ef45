//! The weights of a Hugging Face folder: one file, or several and an index that says which tensor is where.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::{MAX_HEADER_BYTES, SafeTensors, TensorInfo, bad};
use crate::error::{Error, Result};

const WHOLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The open weights of a folder, however many files they are.
#[derive(Debug)]
pub struct Parts {
    folder: PathBuf,
    files: Vec<SafeTensors>,
    /// The file of each tensor.
    places: BTreeMap<String, usize>,
}

#[derive(serde::Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Parts {
    /// Opens `model.safetensors`, or the files that `model.safetensors.index.json` names, and checks their headers.
    pub fn open(folder: &Path) -> Result<Parts> {
        let whole = folder.join(WHOLE);
        if whole.is_file() {
            let file = SafeTensors::open(&whole)?;
            let places = file.names().map(|name| (name.to_string(), 0)).collect();
            return Ok(Parts { folder: folder.to_path_buf(), files: vec![file], places });
        }
        let path = folder.join(INDEX);
        if !path.is_file() {
            return Err(without_weights(folder));
        }
        let index = read_index(&path)?;
        let names: BTreeSet<&str> = index.weight_map.values().map(String::as_str).collect();
        let names: Vec<&str> = names.into_iter().collect();
        let mut files = Vec::with_capacity(names.len());
        for name in &names {
            if Path::new(name).file_name().is_none_or(|plain| plain != *name) {
                return Err(bad(&path, format!("it names the file {name:?}, which is not in its folder")));
            }
            files.push(SafeTensors::open(&folder.join(name))?);
        }
        let mut places = BTreeMap::new();
        for (tensor, name) in &index.weight_map {
            let place = names.binary_search(&name.as_str()).unwrap_or_default();
            if !files[place].contains(tensor) {
                return Err(bad(&path, format!("it says that {tensor} is in {name}, where it is not")));
            }
            places.insert(tensor.clone(), place);
        }
        Ok(Parts { folder: folder.to_path_buf(), files, places })
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The names of all tensors, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.places.keys().map(String::as_str)
    }

    /// Whether there is a tensor of that name.
    pub fn contains(&self, name: &str) -> bool {
        self.places.contains_key(name)
    }

    /// Type and shape of a tensor; an error if there is none of that name.
    pub fn info(&self, name: &str) -> Result<&TensorInfo> {
        self.file_of(name)?.info(name)
    }

    /// Fills `out`, which must have the tensor's number of elements, as [`SafeTensors::read_f32`] does.
    pub fn read_f32(&self, name: &str, out: &mut [f32]) -> Result<()> {
        self.file_of(name)?.read_f32(name, out)
    }

    fn file_of(&self, name: &str) -> Result<&SafeTensors> {
        let missing =
            || Error::BadTensor { path: self.folder.clone(), name: name.into(), reason: "is missing".into() };
        self.places.get(name).map(|&place| &self.files[place]).ok_or_else(missing)
    }
}

fn read_index(path: &Path) -> Result<Index> {
    let mut text = Vec::new();
    let file = File::open(path).map_err(Error::read(path))?;
    file.take(MAX_HEADER_BYTES + 1).read_to_end(&mut text).map_err(Error::read(path))?;
    if text.len() as u64 > MAX_HEADER_BYTES {
        return Err(bad(path, format!("it has more than {MAX_HEADER_BYTES} bytes")));
    }
    serde_json::from_slice(&text).map_err(|error| bad(path, format!("it cannot be read ({error})")))
}

/// Why a folder has no weights that can be read: pickles are told from nothing at all.
fn without_weights(folder: &Path) -> Error {
    let pickle =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).find(|path| {
            let extension = path.extension().and_then(|extension| extension.to_str());
            matches!(extension, Some("bin" | "pt" | "pth" | "ckpt" | "pkl"))
        });
    match pickle {
        Some(path) => Error::Pickle { path },
        None => {
            let source = std::io::Error::from(std::io::ErrorKind::NotFound);
            Error::Read { path: folder.join(WHOLE), source }
        }
    }
}
