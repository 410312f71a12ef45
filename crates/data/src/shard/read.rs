//! Reading shards: checked headers, positioned reads, every block verified when it is first touched.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use xxhash_rust::xxh3::Xxh3Default;

use super::{
    BLOCK_BYTES, CHECKSUM_BYTES, HEADER_BYTES, Header, OFFSET_BYTES, Sections, TRAILER_BYTES, le_u64,
};
use crate::batch::RowTokens;
use crate::error::{Error, Result};
use crate::positioned::read_exact_at;

/// An open shard. Many threads may read it at once; a read allocates nothing.
#[derive(Debug)]
pub struct Shard {
    path: PathBuf,
    file: File,
    header: Header,
    sections: Sections,
    checksums: Vec<u64>,
    hash: [u8; 32],
    /// One bit a block: whether it has been found to match its checksum.
    verified: Vec<AtomicU64>,
    /// How often bytes were read, for the tests that bound what a batch costs.
    #[cfg(test)]
    pub(crate) reads: AtomicU64,
}

impl Shard {
    /// Opens a shard: checks its header, and its lengths against the size of the file.
    pub fn open(path: &Path) -> Result<Shard> {
        let bad = |offset, reason| Error::BadShard { path: path.to_path_buf(), offset, reason };
        let file = File::open(path).map_err(Error::read(path))?;
        let file_bytes = file.metadata().map_err(Error::read(path))?.len();
        if file_bytes < HEADER_BYTES {
            return Err(bad(file_bytes, format!("it ends inside its header of {HEADER_BYTES} bytes")));
        }
        let mut bytes = [0; HEADER_BYTES as usize];
        read_exact_at(&file, &mut bytes, 0).map_err(Error::read(path))?;
        let header = Header::from_bytes(&bytes).map_err(|(offset, reason)| bad(offset, reason))?;
        let sections =
            header.sections().ok_or_else(|| bad(16, "its counts are too large for any file".into()))?;
        if sections.file_bytes != file_bytes {
            let expected = sections.file_bytes;
            return Err(bad(
                file_bytes.min(expected),
                format!("the file has {file_bytes} bytes, its header promises {expected}"),
            ));
        }
        let mut table = vec![0; to_usize(sections.blocks * CHECKSUM_BYTES)];
        read_exact_at(&file, &mut table, sections.table_at).map_err(Error::read(path))?;
        let checksums: Vec<u64> = table.chunks_exact(CHECKSUM_BYTES as usize).map(le_u64).collect();
        let mut hash = [0; TRAILER_BYTES as usize];
        read_exact_at(&file, &mut hash, sections.trailer_at).map_err(Error::read(path))?;
        let verified = (0..checksums.len().div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Ok(Shard {
            path: path.to_path_buf(),
            file,
            header,
            sections,
            checksums,
            hash,
            verified,
            #[cfg(test)]
            reads: AtomicU64::new(0),
        })
    }

    /// The shard's header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The file that is read.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The size of the file.
    pub fn file_bytes(&self) -> u64 {
        self.sections.file_bytes
    }

    /// The BLAKE3 that the shard's last bytes hold. It is compared with the content by `verify` only.
    pub fn hash(&self) -> [u8; 32] {
        self.hash
    }

    /// Fills `out` with the tokens from `position` on.
    pub fn read(&self, position: u64, out: &mut [u32]) -> Result<()> {
        let width = self.header.token_bytes;
        let (start, end) = self.range("tokens", position, out.len() as u64, self.header.tokens)?;
        self.verify_blocks(0, start * width, end * width)?;
        let mut chunk = [0; CHUNK_BYTES];
        let mut at = HEADER_BYTES + start * width;
        for part in out.chunks_mut(CHUNK_BYTES / width as usize) {
            let bytes = &mut chunk[..part.len() * width as usize];
            self.read_bytes(bytes, at)?;
            decode(bytes, width, part);
            at += bytes.len() as u64;
        }
        Ok(())
    }

    /// Fills the ids with the tokens from `position` on and the targets with those behind each of them.
    pub(crate) fn read_shifted(&self, position: u64, row: RowTokens<'_>) -> Result<()> {
        let RowTokens { ids, targets, stored } = row;
        let width = self.header.token_bytes;
        let (start, end) = self.range("tokens", position, ids.len() as u64 + 1, self.header.tokens)?;
        self.verify_blocks(0, start * width, end * width)?;
        stored.resize((ids.len() + 1) * width as usize, 0);
        self.read_bytes(stored, HEADER_BYTES + start * width)?;
        decode(&stored[..ids.len() * width as usize], width, ids);
        decode(&stored[width as usize..], width, targets);
        Ok(())
    }

    /// Fills `out` with the first tokens' positions of the documents from number `first` on: each at most the number of tokens,
    /// none before the one before it.
    pub fn document_offsets(&self, first: u64, out: &mut [u64]) -> Result<()> {
        let (start, end) = self.range("documents", first, out.len() as u64, self.header.documents)?;
        self.verify_blocks(self.sections.token_blocks, start * OFFSET_BYTES, end * OFFSET_BYTES)?;
        let mut at = self.sections.offsets_at + start * OFFSET_BYTES;
        let mut chunk = [0; CHUNK_BYTES];
        let mut previous = 0;
        for part in out.chunks_mut(CHUNK_BYTES / OFFSET_BYTES as usize) {
            let bytes = &mut chunk[..part.len() * OFFSET_BYTES as usize];
            self.read_bytes(bytes, at)?;
            for (offset, eight) in part.iter_mut().zip(bytes.as_chunks::<8>().0) {
                *offset = u64::from_le_bytes(*eight);
                self.check_offset(at, previous, *offset)?;
                previous = *offset;
            }
            at += bytes.len() as u64;
        }
        Ok(())
    }

    /// Checks every byte: all blocks, the order of the document offsets, and the BLAKE3 of the whole. Says how many blocks
    /// there are; `advance` hears of every block's length.
    pub(crate) fn check(&self, advance: &dyn Fn(u64)) -> Result<u64> {
        let mut hasher = blake3::Hasher::new();
        let mut previous = 0;
        for block_idx in 0..self.sections.blocks {
            let is_offsets = block_idx >= self.sections.token_blocks;
            self.check_block(block_idx, |at, bytes| {
                hasher.update(bytes);
                if is_offsets {
                    for eight in bytes.as_chunks::<8>().0 {
                        let offset = u64::from_le_bytes(*eight);
                        self.check_offset(at, previous, offset)?;
                        previous = offset;
                    }
                }
                Ok(())
            })?;
            advance(self.sections.block(block_idx).1);
        }
        let table: Vec<u8> = self.checksums.iter().flat_map(|checksum| checksum.to_le_bytes()).collect();
        hasher.update(&table);
        hasher.update(&self.header.to_bytes());
        if hasher.finalize().as_bytes() != &self.hash {
            return Err(
                self.bad(self.sections.trailer_at, "the content does not match the BLAKE3 at its end".into())
            );
        }
        Ok(self.sections.blocks)
    }

    fn check_offset(&self, at: u64, previous: u64, offset: u64) -> Result<()> {
        if offset < previous || offset > self.header.tokens {
            return Err(self.bad(at, format!("document offset {offset} is out of order or out of range")));
        }
        Ok(())
    }

    fn range(&self, unit: &'static str, position: u64, asked: u64, available: u64) -> Result<(u64, u64)> {
        match position.checked_add(asked) {
            Some(end) if end <= available => Ok((position, end)),
            _ => Err(Error::OutOfRange { unit, asked, position, available }),
        }
    }

    /// Verifies the blocks of a section that hold the bytes `start..end` of it, unless that was done before.
    fn verify_blocks(&self, first_block: u64, start: u64, end: u64) -> Result<()> {
        for block_idx in first_block + start / BLOCK_BYTES..first_block + end.div_ceil(BLOCK_BYTES) {
            let (word, bit) = (&self.verified[to_usize(block_idx / 64)], 1 << (block_idx % 64));
            // Two threads may verify the same block at once: both find the same, and nothing else is published
            // through the bit, so relaxed order is enough.
            if word.load(Ordering::Relaxed) & bit == 0 {
                self.check_block(block_idx, |_, _| Ok(()))?;
                word.fetch_or(bit, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Reads one block in pieces, gives them to `visit` with their offset, and compares checksum and token range.
    fn check_block(&self, block_idx: u64, mut visit: impl FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
        let (block_at, block_bytes) = self.sections.block(block_idx);
        let mut hasher = Xxh3Default::new();
        let mut chunk = [0; CHUNK_BYTES];
        let mut largest = 0;
        let mut done = 0;
        while done < block_bytes {
            let length = (block_bytes - done).min(CHUNK_BYTES as u64);
            let bytes = &mut chunk[..length as usize];
            self.read_bytes(bytes, block_at + done)?;
            hasher.update(bytes);
            largest = largest.max(self.largest_token(block_idx, bytes));
            visit(block_at + done, bytes)?;
            done += length;
        }
        if hasher.digest() != self.checksums[to_usize(block_idx)] {
            return Err(self.bad(block_at, format!("block {block_idx} does not match its checksum")));
        }
        if largest >= self.header.vocab_size && block_idx < self.sections.token_blocks {
            let vocab_size = self.header.vocab_size;
            let reason = format!("block {block_idx} holds token {largest}, the vocabulary has {vocab_size}");
            return Err(self.bad(block_at, reason));
        }
        Ok(())
    }

    fn largest_token(&self, block_idx: u64, bytes: &[u8]) -> u64 {
        if block_idx >= self.sections.token_blocks {
            0
        } else if self.header.token_bytes == 2 {
            // In as few bits as they have, so that vectors hold many.
            let tokens = bytes.as_chunks::<2>().0.iter().map(|pair| u16::from_le_bytes(*pair));
            u64::from(tokens.fold(0, u16::max))
        } else {
            let tokens = bytes.as_chunks::<4>().0.iter().map(|four| u32::from_le_bytes(*four));
            u64::from(tokens.fold(0, u32::max))
        }
    }

    fn read_bytes(&self, out: &mut [u8], at: u64) -> Result<()> {
        #[cfg(test)]
        self.reads.fetch_add(1, Ordering::Relaxed);
        read_exact_at(&self.file, out, at).map_err(|source| match source.kind() {
            std::io::ErrorKind::UnexpectedEof => {
                self.bad(at, "the file was cut short while it was open".into())
            }
            _ => Error::Read { path: self.path.clone(), source },
        })
    }

    fn bad(&self, offset: u64, reason: String) -> Error {
        Error::BadShard { path: self.path.clone(), offset, reason }
    }
}

/// How much is read at once, into a buffer on the stack; it divides [`BLOCK_BYTES`].
const CHUNK_BYTES: usize = 8_192;

/// Tokens of two or four bytes as numbers.
fn decode(bytes: &[u8], width: u64, tokens: &mut [u32]) {
    if width == 2 {
        for (token, pair) in tokens.iter_mut().zip(bytes.as_chunks::<2>().0) {
            *token = u32::from(u16::from_le_bytes(*pair));
        }
    } else {
        for (token, four) in tokens.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *token = u32::from_le_bytes(*four);
        }
    }
}

/// Lengths were compared with the size of an existing file, which 64-bit and 32-bit targets can both index in parts.
fn to_usize(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}
