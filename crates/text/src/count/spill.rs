//! Entries that do not fit memory, on disk by partition until they are summed up.

use std::io::{BufReader, Read, Seek, SeekFrom, Write};
use std::path::Path;

use super::key::{N_PARTITIONS, hash, partition};
use super::record;
use super::table::Table;
use crate::Result;
use crate::scratch::{ScratchFile, check_free};

/// How much of a partition is gathered before it is written.
const BUFFER_BYTES: usize = 8 << 10;

/// Memory that a spill takes: its buffers, each with room for the record that overfills it.
pub(super) const SPILL_BYTES: usize = N_PARTITIONS * (BUFFER_BYTES + 1024);

/// One file with the entries of one counter, in chunks of one partition each.
#[derive(Debug)]
pub(super) struct Spill {
    scratch: ScratchFile,
    buffers: Vec<Vec<u8>>,
    /// For each partition, where its chunks start and how long they are.
    chunks: Vec<Vec<(u64, u64)>>,
    n_bytes: u64,
}

impl Spill {
    pub(super) fn create(folder: &Path) -> Result<Self> {
        Ok(Self {
            scratch: ScratchFile::create(folder)?,
            buffers: vec![Vec::new(); N_PARTITIONS],
            chunks: vec![Vec::new(); N_PARTITIONS],
            n_bytes: 0,
        })
    }

    /// Takes everything out of the table.
    pub(super) fn take(&mut self, table: &mut Table) -> Result<()> {
        check_free(self.scratch.folder(), table.n_bytes() as u64)?;
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
        self.scratch.file().write_all(buffer).map_err(|source| self.scratch.failed(source))?;
        self.chunks[idx].push((self.n_bytes, buffer.len() as u64));
        self.n_bytes += buffer.len() as u64;
        buffer.clear();
        buffer.shrink_to(BUFFER_BYTES + 1024);
        Ok(())
    }

    /// Adds the entries of one partition to a table.
    pub(super) fn read(&mut self, idx: usize, table: &mut Table) -> Result<()> {
        let failed = |source| self.scratch.failed(source);
        let mut file = self.scratch.file();
        let mut piece = Vec::new();
        for &(start, n_bytes) in &self.chunks[idx] {
            file.seek(SeekFrom::Start(start)).map_err(failed)?;
            let mut chunk = BufReader::with_capacity(BUFFER_BYTES, file.take(n_bytes));
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
