//! Writing safetensors files as a stream: aside, synced, then renamed.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use ironmill_text::durable::{Disk, StagedFile};

use super::header::{Entry, Header};
use super::{Dtype, MAX_HEADER_BYTES, TensorInfo, bad};
use crate::error::{Error, Result};

/// A tensor to write.
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    /// The name.
    pub name: &'a str,
    /// The type of the elements.
    pub dtype: Dtype,
    /// The extent of each dimension.
    pub shape: &'a [u64],
    /// The elements, little-endian, row by row.
    pub bytes: &'a [u8],
}

/// Writes a file of these tensors in this order. `metadata` gets `format: pt` unless it has a format.
pub fn write(path: &Path, tensors: &[TensorView<'_>], metadata: &[(String, String)]) -> Result<()> {
    write_on(&Disk::default(), path, tensors, metadata)
}

/// Writes a file of these tensors in this order, on a disk that may be watched.
pub fn write_on(
    disk: &Disk,
    path: &Path,
    tensors: &[TensorView<'_>],
    metadata: &[(String, String)],
) -> Result<()> {
    let infos = tensors
        .iter()
        .map(|tensor| TensorInfo {
            name: tensor.name.into(),
            dtype: tensor.dtype,
            shape: tensor.shape.to_vec(),
        })
        .collect();
    let mut writer = Writer::create_on(disk, path, infos, metadata)?;
    for tensor in tensors {
        writer.tensor(tensor.name, tensor.bytes)?;
    }
    writer.finish()
}

/// Writes a file whose tensors are declared first and then given one after the other.
///
/// Dropping it before [`Writer::finish`] removes what was written.
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    file: StagedFile,
    entries: Vec<Entry>,
    next: usize,
    written: u64,
}

impl Writer {
    /// Starts a file that will appear at `path` when it is finished.
    pub fn create(path: &Path, tensors: Vec<TensorInfo>, metadata: &[(String, String)]) -> Result<Writer> {
        Self::create_on(&Disk::default(), path, tensors, metadata)
    }

    /// Starts a file on a disk that may be watched.
    pub fn create_on(
        disk: &Disk,
        path: &Path,
        tensors: Vec<TensorInfo>,
        metadata: &[(String, String)],
    ) -> Result<Writer> {
        let mut metadata = metadata.to_vec();
        if !metadata.iter().any(|(key, _)| key == "format") {
            metadata.insert(0, ("format".into(), "pt".into()));
        }
        let mut end = 0u64;
        let mut entries = Vec::with_capacity(tensors.len());
        for info in tensors {
            let begin = end;
            let bytes = info.bytes();
            end = bytes.and_then(|bytes| begin.checked_add(bytes)).ok_or_else(|| {
                bad(path, format!("tensor {} of shape {:?} is too large", info.name, info.shape))
            })?;
            entries.push(Entry { info, begin, end });
        }
        let header = Header { metadata, entries };
        let json = header.to_json().map_err(|error| bad(path, error.to_string()))?;
        if json.len() as u64 > MAX_HEADER_BYTES {
            return Err(bad(path, format!("its header would have {} bytes", json.len())));
        }
        // What is written must be readable: this finds repeated and reserved names before anything is on disk.
        Header::parse(&json, end).map_err(|reason| bad(path, reason))?;
        let mut file = StagedFile::create_on(disk, path).map_err(Error::write(path))?;
        file.write_all(&(json.len() as u64).to_le_bytes())
            .and_then(|()| file.write_all(&json))
            .map_err(Error::write(path))?;
        Ok(Writer { path: path.to_path_buf(), file, entries: header.entries, next: 0, written: 0 })
    }

    /// Writes the whole of the next declared tensor, whose name must be this.
    pub fn tensor(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        self.part(name, bytes)?;
        match self.written {
            0 => Ok(()),
            written => Err(self.bad_tensor(name, format!("was given only {written} bytes"))),
        }
    }

    /// Writes some more bytes of the next declared tensor, whose name must be this.
    pub fn part(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        let Some(entry) = self.entries.get(self.next) else {
            return Err(self.bad_tensor(name, "was given but not declared".into()));
        };
        if entry.info.name != name {
            return Err(self.bad_tensor(name, format!("was given, but the next one is {}", entry.info.name)));
        }
        let declared = entry.end - entry.begin;
        let written = self.written + bytes.len() as u64;
        if written > declared {
            return Err(self.bad_tensor(name, format!("has {declared} bytes, but was given {written}")));
        }
        self.file.write_all(bytes).map_err(Error::write(&self.path))?;
        self.written = written;
        if written == declared {
            self.next += 1;
            self.written = 0;
        }
        Ok(())
    }

    /// Completes the file: it is synced and then appears under its name.
    pub fn finish(self) -> Result<()> {
        if let Some(entry) = self.entries.get(self.next) {
            return Err(self.bad_tensor(&entry.info.name, "was declared but not given in full".into()));
        }
        self.file.commit().map_err(Error::write(&self.path))
    }

    fn bad_tensor(&self, name: &str, reason: String) -> Error {
        Error::BadTensor { path: self.path.clone(), name: name.into(), reason }
    }
}
