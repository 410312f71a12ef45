//! Pieces that do not fit memory, on disk one after the other: written and read from the beginning to the end, never in between.
//!
//! An epoch needs only those pieces in memory that have a hot pair: merging changes no others, and new pairs arise nowhere else.
//! So when an epoch begins, the pieces with hot pairs move from here to the arena, and when it ends they come back.

use std::io::{BufReader, Read, Seek, SeekFrom, Write};
use std::marker::PhantomData;
use std::path::Path;

use super::arena::{Arena, Symbol};
use crate::Result;
use crate::scratch::{ScratchFile, check_free};

/// How much is read and written at once.
const BUFFER_BYTES: usize = 1 << 18;

/// A count and a length in front of the symbols.
const HEADER_BYTES: usize = 12;

/// All pieces of two symbols or more that are not in the arena.
pub(super) struct ColdPieces<S> {
    scratch: ScratchFile,
    buffer: Vec<u8>,
    n_pieces: u64,
    n_bytes: u64,
    symbol: PhantomData<S>,
}

impl<S: Symbol> ColdPieces<S> {
    /// None yet; about `wanted` bytes are to come, for which the disk must have room.
    pub(super) fn create(folder: &Path, wanted: u64) -> Result<Self> {
        let scratch = ScratchFile::create(folder)?;
        check_free(folder, wanted)?;
        let buffer = Vec::with_capacity(BUFFER_BYTES);
        Ok(Self { scratch, buffer, n_pieces: 0, n_bytes: 0, symbol: PhantomData })
    }

    /// What they take on disk.
    pub(super) fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    /// Adds a piece; one of a single symbol has no pair and is left out.
    pub(super) fn push(&mut self, symbols: &[S], count: u64) -> Result<()> {
        if symbols.len() < 2 {
            return Ok(());
        }
        self.n_pieces += 1;
        self.buffer.extend_from_slice(&count.to_le_bytes());
        self.buffer.extend_from_slice(&(symbols.len() as u32).to_le_bytes());
        for part in symbols.chunks(BUFFER_BYTES / 8) {
            for symbol in part {
                self.buffer.extend_from_slice(&symbol.id().to_le_bytes()[..S::N_BYTES]);
            }
            if self.buffer.len() >= BUFFER_BYTES / 2 {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.scratch.file().write_all(&self.buffer).map_err(|source| self.scratch.failed(source))?;
        self.n_bytes += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Takes back what the arena has.
    pub(super) fn take(&mut self, arena: &mut Arena<S>) -> Result<()> {
        let mut result = Ok(());
        arena.compact(|symbols, count| {
            if result.is_ok() {
                result = self.push(symbols, count);
            }
        });
        arena.clear();
        result
    }

    /// Every piece and its count, in the order of writing. Symbols may be changed, which changes nothing here.
    pub(super) fn for_each(&mut self, mut visit: impl FnMut(&mut Vec<S>, u64) -> Result<()>) -> Result<()> {
        self.flush()?;
        let mut file = self.scratch.file();
        let failed = |source| self.scratch.failed(source);
        file.seek(SeekFrom::Start(0)).map_err(failed)?;
        let mut reader = BufReader::with_capacity(BUFFER_BYTES, file);
        let (mut bytes, mut symbols) = (Vec::new(), Vec::new());
        for _ in 0..self.n_pieces {
            let mut header = [0; HEADER_BYTES];
            reader.read_exact(&mut header).map_err(failed)?;
            let number =
                |bytes: &[u8]| bytes.iter().rev().fold(0u64, |sum, &byte| sum << 8 | u64::from(byte));
            let (count, len) = (number(&header[..8]), number(&header[8..]) as usize);
            bytes.resize(len * S::N_BYTES, 0);
            reader.read_exact(&mut bytes).map_err(failed)?;
            symbols.clear();
            symbols.extend(bytes.chunks_exact(S::N_BYTES).map(|bytes| S::new(number(bytes) as u32)));
            visit(&mut symbols, count)?;
        }
        // Where writing goes on.
        file.seek(SeekFrom::End(0)).map_err(failed)?;
        Ok(())
    }

    /// Moves pieces to where `keep` does not want them, and keeps the rest.
    pub(super) fn rewrite(&mut self, mut keep: impl FnMut(&mut Vec<S>, u64) -> Result<bool>) -> Result<()> {
        let mut kept = Self::create(self.scratch.folder(), self.n_bytes)?;
        self.for_each(
            |symbols, count| if keep(symbols, count)? { kept.push(symbols, count) } else { Ok(()) },
        )?;
        *self = kept;
        Ok(())
    }
}

/// Replaces every pair of `left` and `right`, from the left, by `made`.
pub(super) fn replace_pair<S: Symbol>(symbols: &mut Vec<S>, left: S, right: S, made: S) {
    let (mut read, mut written) = (0, 0);
    while read < symbols.len() {
        let is_pair = symbols[read] == left && symbols.get(read + 1) == Some(&right);
        symbols[written] = if is_pair { made } else { symbols[read] };
        read += if is_pair { 2 } else { 1 };
        written += 1;
    }
    symbols.truncate(written);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_come_back_as_they_went_and_go_where_they_are_wanted() {
        let folder = tempfile::tempdir().unwrap();
        let mut cold = ColdPieces::<u16>::create(folder.path(), 0).unwrap();
        let long = vec![7; 100_000];
        let all: [(&[u16], u64); 4] = [(&[1, 2, 3], 5), (&[9], 1), (&long, 1 << 50), (&[4, 5], u64::MAX)];
        for (symbols, count) in all {
            cold.push(symbols, count).unwrap();
        }
        let contents = |cold: &mut ColdPieces<u16>| {
            let mut found = Vec::new();
            cold.for_each(|symbols, count| {
                found.push((symbols.clone(), count));
                Ok(())
            })
            .unwrap();
            found
        };
        let expected = vec![(vec![1, 2, 3], 5), (long.clone(), 1 << 50), (vec![4, 5], u64::MAX)];
        assert_eq!(contents(&mut cold), expected);
        cold.push(&[1, 1], 2).unwrap();
        cold.rewrite(|symbols, _| {
            replace_pair(symbols, 1, 2, 8);
            Ok(symbols.len() < 1000)
        })
        .unwrap();
        assert_eq!(contents(&mut cold), [(vec![8, 3], 5), (vec![4, 5], u64::MAX), (vec![1, 1], 2)]);
    }
}
