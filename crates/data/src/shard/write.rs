//! Writing shards in one pass and bounded memory: aside, synced, then renamed.

use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use bytemuck::NoUninit;
use ironmill_text::durable::{Disk, StagedFile};
use xxhash_rust::xxh3::xxh3_64;

use super::{BLOCK_BYTES, HEADER_BYTES, Header, OFFSET_BYTES, token_bytes};
use crate::error::{Error, Result};

/// Writes one shard. Dropping it before [`ShardWriter::finish`] removes what was written.
#[derive(Debug)]
pub struct ShardWriter {
    header: Header,
    written: Written,
    /// The block that is being filled, with room for all of it.
    block: Box<[u8]>,
    /// How much of it is there.
    filled: usize,
    offsets: Vec<u64>,
}

/// The blocks that are in the file.
#[derive(Debug)]
struct Written {
    path: PathBuf,
    file: StagedFile,
    checksums: Vec<u64>,
    hasher: blake3::Hasher,
}

impl Written {
    fn push(&mut self, block: &[u8]) -> Result<()> {
        self.checksums.push(xxh3_64(block));
        self.hasher.update(block);
        self.file.write_all(block).map_err(Error::write(&self.path))
    }
}

/// What a finished shard holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenShard {
    /// The shard's header.
    pub header: Header,
    /// The BLAKE3 that ends the file.
    pub hash: [u8; 32],
}

impl ShardWriter {
    /// Starts a shard that will appear at `path` when it is finished.
    pub fn create(path: &Path, tokenizer_hash: [u8; 32], vocab_size: u64) -> Result<ShardWriter> {
        ShardWriter::create_on(&Disk::default(), path, tokenizer_hash, vocab_size)
    }

    /// Starts a shard on a disk that may be watched.
    pub fn create_on(
        disk: &Disk,
        path: &Path,
        tokenizer_hash: [u8; 32],
        vocab_size: u64,
    ) -> Result<ShardWriter> {
        let mut file = StagedFile::create_on(disk, path).map_err(Error::write(path))?;
        file.write_all(&[0; HEADER_BYTES as usize]).map_err(Error::write(path))?;
        let header = Header {
            token_bytes: token_bytes(vocab_size),
            tokens: 0,
            documents: 0,
            raw_bytes: 0,
            tokenizer_hash,
            vocab_size,
        };
        let written =
            Written { path: path.to_path_buf(), file, checksums: Vec::new(), hasher: blake3::Hasher::new() };
        let block = vec![0; BLOCK_BYTES as usize].into_boxed_slice();
        Ok(ShardWriter { header, written, block, filled: 0, offsets: Vec::new() })
    }

    /// How many tokens have been written.
    pub fn tokens(&self) -> u64 {
        self.header.tokens
    }

    /// Says that the next token begins a document of `raw_bytes` bytes of text.
    pub fn start_document(&mut self, raw_bytes: u64) {
        self.offsets.push(self.header.tokens);
        self.header.documents += 1;
        self.header.raw_bytes += raw_bytes;
    }

    /// Says that the next token goes on with a document, by `raw_bytes` bytes of its text.
    pub fn continue_document(&mut self, raw_bytes: u64) {
        self.header.raw_bytes += raw_bytes;
    }

    /// Appends tokens, which may be held in wider or narrower numbers than the shard's.
    pub fn push<T: Copy + Default + Ord + Into<u32> + NoUninit>(&mut self, tokens: &[T]) -> Result<()> {
        let width = self.header.token_bytes as usize;
        let mut rest = tokens;
        while !rest.is_empty() {
            let room = (self.block.len() - self.filled) / width;
            let (now, later) = rest.split_at(room.min(rest.len()));
            // A whole block that lies in memory as it will in the file goes there from where it is.
            let whole = as_stored(now, width).filter(|bytes| bytes.len() == self.block.len());
            let end = self.filled + now.len() * width;
            let places = &mut self.block[self.filled..end];
            // A maximum and a loop over places that are there already are done in vectors, which a search and a push are not.
            let largest = match whole {
                Some(_) => now.iter().fold(T::default(), |largest, &token| largest.max(token)).into(),
                None if width == 2 => {
                    write(now, places.as_chunks_mut().0, |token| (token as u16).to_le_bytes())
                }
                None => write(now, places.as_chunks_mut().0, u32::to_le_bytes),
            };
            if u64::from(largest) >= self.header.vocab_size {
                let reason =
                    format!("token {largest} is outside the vocabulary of {}", self.header.vocab_size);
                let offset = HEADER_BYTES + self.header.tokens * width as u64;
                return Err(Error::BadShard { path: self.written.path.clone(), offset, reason });
            }
            self.header.tokens += now.len() as u64;
            match whole {
                Some(block) => self.written.push(block)?,
                None => {
                    self.filled = end;
                    if end == self.block.len() {
                        self.end_block()?;
                    }
                }
            }
            rest = later;
        }
        Ok(())
    }

    /// Completes the shard: it is synced and then appears under its name.
    pub fn finish(mut self) -> Result<WrittenShard> {
        self.end_block()?;
        let offsets = std::mem::take(&mut self.offsets);
        for block in offsets.chunks((BLOCK_BYTES / OFFSET_BYTES) as usize) {
            for offset in block {
                let end = self.filled + OFFSET_BYTES as usize;
                self.block[self.filled..end].copy_from_slice(&offset.to_le_bytes());
                self.filled = end;
            }
            self.end_block()?;
        }
        let Written { path, mut file, checksums, mut hasher, .. } = self.written;
        let table: Vec<u8> = checksums.iter().flat_map(|checksum| checksum.to_le_bytes()).collect();
        hasher.update(&table);
        let header = self.header.to_bytes();
        hasher.update(&header);
        let hash = *hasher.finalize().as_bytes();
        file.write_all(&table)
            .and_then(|()| file.write_all(&hash))
            .and_then(|()| file.seek(SeekFrom::Start(0)))
            .and_then(|_| file.write_all(&header))
            .and_then(|()| file.commit())
            .map_err(Error::write(&path))?;
        Ok(WrittenShard { header: self.header, hash })
    }

    /// Writes the block with what is in it, unless that is nothing, and begins the next.
    fn end_block(&mut self) -> Result<()> {
        let filled = std::mem::take(&mut self.filled);
        if filled == 0 { Ok(()) } else { self.written.push(&self.block[..filled]) }
    }
}

/// Tokens as the bytes that a shard has of them, if they are held in numbers of that width whose lowest byte comes first.
fn as_stored<T: NoUninit>(tokens: &[T], width: usize) -> Option<&[u8]> {
    (size_of::<T>() == width && cfg!(target_endian = "little")).then(|| bytemuck::cast_slice(tokens))
}

/// Writes tokens to their places and gives the largest.
fn write<T: Copy + Default + Ord + Into<u32>, const WIDTH: usize>(
    tokens: &[T],
    places: &mut [[u8; WIDTH]],
    to_bytes: impl Fn(u32) -> [u8; WIDTH],
) -> u32 {
    let mut largest = T::default();
    for (place, &token) in places.iter_mut().zip(tokens) {
        largest = largest.max(token);
        *place = to_bytes(token.into());
    }
    largest.into()
}
