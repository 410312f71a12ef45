//! Files for what does not fit memory, gone when nobody needs them any more.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// What must stay free on the disk.
const SPARE_BYTES: u64 = 64 << 20;

/// A file in a scratch folder.
///
/// On Unix it has no name any more once it is open, so that nothing is left of it however the process ends.
#[derive(Debug)]
pub(crate) struct ScratchFile {
    file: File,
    folder: PathBuf,
    /// The name to remove at the end, where it cannot be removed at once.
    name: Option<PathBuf>,
}

impl ScratchFile {
    /// A new, empty file; the folder is made if need be.
    pub(crate) fn create(folder: &Path) -> Result<Self> {
        let failed = |source| Error::Scratch { folder: folder.to_owned(), source };
        fs::create_dir_all(folder).map_err(failed)?;
        for attempt in 0..u32::MAX {
            let path = folder.join(format!(".ironmill-spill-{}-{attempt}", std::process::id()));
            match OpenOptions::new().read(true).write(true).create_new(true).open(&path) {
                Ok(file) => {
                    let removed = cfg!(unix) && fs::remove_file(&path).is_ok();
                    return Ok(Self { file, folder: folder.to_owned(), name: (!removed).then_some(path) });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Err(failed(io::ErrorKind::AlreadyExists.into()))
    }

    /// What reads and writes it.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// The folder it is in.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The error of something that the system refused.
    pub(crate) fn failed(&self, source: io::Error) -> Error {
        Error::Scratch { folder: self.folder.clone(), source }
    }
}

impl Drop for ScratchFile {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            // Nothing can be reported from here, and a leftover is never read.
            let _ = fs::remove_file(name);
        }
    }
}

/// Refuses to write what the disk of `folder` has no room for.
pub(crate) fn check_free(folder: &Path, wanted: u64) -> Result<()> {
    // Where the system does not tell, writing will.
    #[cfg(unix)]
    if let Ok(disk) = rustix::fs::statvfs(folder) {
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        if free < wanted.saturating_add(SPARE_BYTES) {
            return Err(Error::ScratchFull { folder: folder.to_owned(), wanted: wanted + SPARE_BYTES, free });
        }
    }
    #[cfg(not(unix))]
    let _ = (folder, wanted);
    Ok(())
}
