//! Which documents have been seen, in memory that does not grow.
//!
//! A document is known by 64 bits of a keyed hash of its text: of ten million documents that are all different, one is taken for
//! another with a probability of three in a million. The hashes lie in a table; when it is full they are sorted and written to a
//! scratch file as a run, of which only the first hash of every 4 KiB stays in memory, and the table starts anew. A document is looked
//! for in the table and, with one positioned read each, in the runs.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use hashbrown::HashTable;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::error::{Error, Result};
use crate::positioned::read_exact_at;

/// The hashes of all documents so far.
pub(super) struct Seen {
    dir: PathBuf,
    table: HashTable<u64>,
    max_entries: usize,
    runs: Vec<Run>,
}

/// Sorted hashes in a file that nobody else sees.
struct Run {
    path: PathBuf,
    file: File,
    n_entries: usize,
    /// The first hash of every block.
    firsts: Vec<u64>,
}

const ENTRY_BYTES: usize = 8;
const BLOCK_ENTRIES: usize = 512;

/// Texts are hashed with this, so that no text made for the plain hash collides.
const KEY: u64 = 0x1d8e_4e27_c47d_124f;

impl Seen {
    /// None so far; the table may take `memory` bytes, and runs go to files in `dir`.
    pub(super) fn new(dir: &Path, memory: usize) -> Seen {
        // A full table takes nine bytes an entry at seven eighths of its places, and while it grows half as much again.
        let max_entries = (memory / 16).max(1);
        Seen { dir: dir.to_path_buf(), table: HashTable::new(), max_entries, runs: Vec::new() }
    }

    /// Notes a document; says whether one of the same text was noted before.
    pub(super) fn insert(&mut self, text: &[u8]) -> Result<bool> {
        let hash = xxh3_64_with_seed(text, KEY);
        if self.table.find(hash, |&entry| entry == hash).is_some() {
            return Ok(true);
        }
        for run in &self.runs {
            if run.contains(hash).map_err(Error::read(&run.path))? {
                return Ok(true);
            }
        }
        if self.table.len() == self.max_entries {
            self.spill()?;
        }
        self.table.insert_unique(hash, hash, |&entry| entry);
        Ok(false)
    }

    fn spill(&mut self) -> Result<()> {
        let mut hashes: Vec<u64> = self.table.drain().collect();
        hashes.sort_unstable();
        let path = self.dir.join(format!(".seen-{}", self.runs.len()));
        let run = Run::write(&path, &hashes).map_err(Error::write(&path))?;
        self.runs.push(run);
        Ok(())
    }
}

impl Drop for Seen {
    fn drop(&mut self) {
        for run in &self.runs {
            // What stays is swept away by the next run.
            let _ = std::fs::remove_file(&run.path);
        }
    }
}

impl Run {
    fn write(path: &Path, hashes: &[u64]) -> io::Result<Run> {
        let mut file = File::options().read(true).write(true).create(true).truncate(true).open(path)?;
        let mut block = Vec::with_capacity(BLOCK_ENTRIES * ENTRY_BYTES);
        for hashes in hashes.chunks(BLOCK_ENTRIES) {
            block.clear();
            block.extend(hashes.iter().flat_map(|hash| hash.to_le_bytes()));
            file.write_all(&block)?;
        }
        let firsts = hashes.iter().copied().step_by(BLOCK_ENTRIES).collect();
        Ok(Run { path: path.to_path_buf(), file, n_entries: hashes.len(), firsts })
    }

    fn contains(&self, hash: u64) -> io::Result<bool> {
        let Some(block) = self.firsts.partition_point(|&first| first <= hash).checked_sub(1) else {
            return Ok(false);
        };
        let first = block * BLOCK_ENTRIES;
        let mut bytes = [0; BLOCK_ENTRIES * ENTRY_BYTES];
        let bytes = &mut bytes[..(self.n_entries - first).min(BLOCK_ENTRIES) * ENTRY_BYTES];
        read_exact_at(&self.file, bytes, (first * ENTRY_BYTES) as u64)?;
        Ok(bytes
            .as_chunks::<ENTRY_BYTES>()
            .0
            .binary_search_by_key(&hash, |eight| u64::from_le_bytes(*eight))
            .is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn duplicates_are_found_in_the_table_and_in_runs_and_nothing_else_is() {
        let folder = tempfile::tempdir().unwrap();
        for memory in [16, 16 * 100, 16 * 1_000, 1 << 20] {
            let mut seen = Seen::new(folder.path(), memory);
            let mut known = HashSet::new();
            let rounds = if memory == 16 { 300 } else { 20_000u64 };
            for i in 0..rounds {
                let text = format!("document {}", i * i % (rounds / 2 + 1));
                assert_eq!(seen.insert(text.as_bytes()).unwrap(), !known.insert(text), "{memory} {i}");
            }
            assert_eq!(seen.runs.is_empty(), memory == 1 << 20);
            drop(seen);
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        }
    }
}
