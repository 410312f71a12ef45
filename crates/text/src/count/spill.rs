//! Entries that do not fit memory, on disk by partition until they are summed up.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::key::{N_PARTITIONS, hash, partition};
use super::record;
use super::table::Table;
use crate::{Error, Result};

/// How much of a partition is gathered before it is written.
const BUFFER_BYTES: usize = 8 << 10;

/// Memory that a spill takes: its buffers, each with room for the record that overfills it.
pub(super) const SPILL_BYTES: usize = N_PARTITIONS * (BUFFER_BYTES + 1024);

/// What must stay free on the disk.
const SPARE_BYTES: u64 = 64 << 20;

/// One file with the entries of one counter, in chunks of one partition each.
///
/// On Unix the file has no name any more once it is open, so that nothing is left of it however the process ends.
#[derive(Debug)]
pub(super) struct Spill {
    file: File,
    folder: PathBuf,
    /// The name to remove at the end, where it cannot be removed at once.
    name: Option<PathBuf>,
    buffers: Vec<Vec<u8>>,
    /// For each partition, where its chunks start and how long they are.
    chunks: Vec<Vec<(u64, u64)>>,
    n_bytes: u64,
}

impl Spill {
    pub(super) fn create(folder: &Path) -> Result<Self> {
        let failed = |source| Error::Scratch { folder: folder.to_owned(), source };
        fs::create_dir_all(folder).map_err(failed)?;
        for attempt in 0..u32::MAX {
            let path = folder.join(format!(".ironmill-spill-{}-{attempt}", std::process::id()));
            match OpenOptions::new().read(true).write(true).create_new(true).open(&path) {
                Ok(file) => {
                    let removed = cfg!(unix) && fs::remove_file(&path).is_ok();
                    return Ok(Self {
                        file,
                        folder: folder.to_owned(),
                        name: (!removed).then_some(path),
                        buffers: vec![Vec::new(); N_PARTITIONS],
                        chunks: vec![Vec::new(); N_PARTITIONS],
                        n_bytes: 0,
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Err(failed(io::ErrorKind::AlreadyExists.into()))
    }

    /// Takes everything out of the table.
    pub(super) fn take(&mut self, table: &mut Table) -> Result<()> {
        check_free(&self.folder, table.n_bytes() as u64)?;
        table.for_each(|piece, count| self.add(piece, count))?;
        table.clear();
        Ok(())
    }

    fn add(&mut self, piece: &[u8], count: u64) -> Result<()> {
        let idx = partition(hash(piece));
        let buffer = &mut self.buffers[idx];
        if buffer.capacity() == 0 {
            buffer.reserve_exact(BUFFER_BYTES + 1024);
        }
        record::write(piece, count, buffer);
        if buffer.len() < BUFFER_BYTES {
            return Ok(());
        }
        self.file
            .write_all(buffer)
            .map_err(|source| Error::Scratch { folder: self.folder.clone(), source })?;
        self.chunks[idx].push((self.n_bytes, buffer.len() as u64));
        self.n_bytes += buffer.len() as u64;
        buffer.clear();
        buffer.shrink_to(BUFFER_BYTES + 1024);
        Ok(())
    }

    /// Adds the entries of one partition to a table.
    pub(super) fn read(&mut self, idx: usize, table: &mut Table) -> Result<()> {
        let failed = |source| Error::Scratch { folder: self.folder.clone(), source };
        let mut piece = Vec::new();
        for &(start, n_bytes) in &self.chunks[idx] {
            self.file.seek(SeekFrom::Start(start)).map_err(failed)?;
            let mut chunk = BufReader::with_capacity(BUFFER_BYTES, (&self.file).take(n_bytes));
            while chunk.get_ref().limit() > 0 || !chunk.buffer().is_empty() {
                let count = record::read(&mut chunk, &mut piece, n_bytes).map_err(failed)?;
                table.add(&piece, count);
            }
        }
        let mut rest = &self.buffers[idx][..];
        while !rest.is_empty() {
            let count = record::read(&mut rest, &mut piece, u64::MAX).map_err(failed)?;
            table.add(&piece, count);
        }
        Ok(())
    }
}

impl Drop for Spill {
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
