//! Reading safetensors files by name, with positioned reads.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use half::{bf16, f16};

use super::header::{Entry, Header};
use super::{CHUNK_BYTES, Dtype, MAX_HEADER_BYTES, TensorInfo, bad};
use crate::error::{Error, Result};
use crate::positioned::read_exact_at;

/// An open safetensors file.
#[derive(Debug)]
pub struct SafeTensors {
    path: PathBuf,
    file: File,
    data_at: u64,
    metadata: Vec<(String, String)>,
    entries: Vec<Entry>,
    by_name: BTreeMap<String, usize>,
}

impl SafeTensors {
    /// Opens a file and checks its whole header.
    pub fn open(path: &Path) -> Result<SafeTensors> {
        let file = File::open(path).map_err(Error::read(path))?;
        let file_bytes = file.metadata().map_err(Error::read(path))?.len();
        if file_bytes < 8 {
            return Err(bad(path, format!("it has {file_bytes} bytes and so no header")));
        }
        let mut length = [0; 8];
        read_exact_at(&file, &mut length, 0).map_err(Error::read(path))?;
        let header_bytes = u64::from_le_bytes(length);
        if header_bytes > MAX_HEADER_BYTES || header_bytes > file_bytes - 8 {
            let reason = format!("its header claims {header_bytes} bytes, the file has {file_bytes}");
            return Err(bad(path, reason));
        }
        let mut json = vec![0; header_bytes as usize];
        read_exact_at(&file, &mut json, 8).map_err(Error::read(path))?;
        let data_at = 8 + header_bytes;
        let header = Header::parse(&json, file_bytes - data_at).map_err(|reason| bad(path, reason))?;
        let by_name =
            header.entries.iter().enumerate().map(|(idx, entry)| (entry.info.name.clone(), idx)).collect();
        Ok(SafeTensors {
            path: path.to_path_buf(),
            file,
            data_at,
            metadata: header.metadata,
            entries: header.entries,
            by_name,
        })
    }

    /// The names of all tensors, in the order of their data.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|entry| entry.info.name.as_str())
    }

    /// Name, type and shape of all tensors, in the order of their data.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorInfo> {
        self.entries.iter().map(|entry| &entry.info)
    }

    /// Whether the file holds a tensor of that name.
    pub fn contains(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// Type and shape of a tensor; an error if there is none of that name.
    pub fn info(&self, name: &str) -> Result<&TensorInfo> {
        Ok(&self.entry(name)?.info)
    }

    /// The shape of a tensor.
    pub fn shape(&self, name: &str) -> Result<&[u64]> {
        Ok(&self.info(name)?.shape)
    }

    /// The pairs of `__metadata__`, in the order of the file.
    pub fn metadata(&self) -> &[(String, String)] {
        &self.metadata
    }

    /// Fills `out`, which must have the tensor's number of elements, converting F16, BF16 and F64 to f32.
    pub fn read_f32(&self, name: &str, out: &mut [f32]) -> Result<()> {
        let dtype = self.info(name)?.dtype;
        match dtype {
            Dtype::F32 => self.convert(name, out, |bytes| f32::from_le_bytes(*bytes)),
            Dtype::F16 => self.convert(name, out, |bytes| f16::from_le_bytes(*bytes).to_f32()),
            Dtype::BF16 => self.convert(name, out, |bytes| bf16::from_le_bytes(*bytes).to_f32()),
            Dtype::F64 => self.convert(name, out, |bytes| f64::from_le_bytes(*bytes) as f32),
            _ => Err(self.bad_tensor(name, format!("is {} and cannot be read as f32", dtype.name()))),
        }
    }

    /// Fills `out` with a tensor's bytes as they are stored: little-endian, row by row.
    pub fn read_bytes(&self, name: &str, out: &mut [u8]) -> Result<()> {
        let entry = self.entry(name)?;
        let stored = entry.end - entry.begin;
        if out.len() as u64 != stored {
            return Err(self.bad_tensor(name, format!("has {stored} bytes, not {}", out.len())));
        }
        self.read_at(out, entry.begin)
    }

    fn convert<const N: usize>(
        &self,
        name: &str,
        out: &mut [f32],
        to_f32: impl Fn(&[u8; N]) -> f32,
    ) -> Result<()> {
        let entry = self.entry(name)?;
        let elements = (entry.end - entry.begin) / N as u64;
        if out.len() as u64 != elements {
            let shape = &entry.info.shape;
            return Err(
                self.bad_tensor(name, format!("has {elements} elements {shape:?}, not {}", out.len()))
            );
        }
        let mut chunk = [0; CHUNK_BYTES];
        let mut at = entry.begin;
        for part in out.chunks_mut(CHUNK_BYTES / N) {
            let bytes = &mut chunk[..part.len() * N];
            self.read_at(bytes, at)?;
            at += bytes.len() as u64;
            for (value, stored) in part.iter_mut().zip(bytes.as_chunks::<N>().0) {
                *value = to_f32(stored);
            }
        }
        Ok(())
    }

    fn read_at(&self, out: &mut [u8], at: u64) -> Result<()> {
        read_exact_at(&self.file, out, self.data_at + at).map_err(Error::read(&self.path))
    }

    fn entry(&self, name: &str) -> Result<&Entry> {
        match self.by_name.get(name) {
            Some(&idx) => Ok(&self.entries[idx]),
            None => Err(self.bad_tensor(name, "is missing".into())),
        }
    }

    fn bad_tensor(&self, name: &str, reason: String) -> Error {
        Error::BadTensor { path: self.path.clone(), name: name.into(), reason }
    }
}
