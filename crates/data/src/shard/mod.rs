//! Token shards, version 1: the tokens of many documents in one file.
//!
//! # Layout
//!
//! All numbers are little-endian and unsigned. `W` is the token width, `T` the token count, `D` the document count.
//!
//! | offset | bytes | content |
//! |---|---|---|
//! | 0 | 8 | magic: `IRONSHRD` |
//! | 8 | 4 | version: 1 |
//! | 12 | 4 | `W`, the token width in bytes: 2 if the vocabulary holds at most 65,536 tokens, else 4 |
//! | 16 | 8 | `T`, how many tokens the shard holds |
//! | 24 | 8 | `D`, how many documents start in the shard |
//! | 32 | 8 | raw bytes: the UTF-8 length, before encoding, of the documents that start in the shard (a document of more than 2 MiB counts part by part) |
//! | 40 | 32 | hash of the tokenizer |
//! | 72 | 8 | vocabulary size: every token is below it |
//! | 80 | 8 | zero |
//! | 88 | 8 | xxh3-64 of the bytes 0..88 |
//! | 96 | `T·W` | the tokens |
//! | … | `8·D` | document offsets: the position in this shard of each document's first token, never decreasing |
//! | … | `8·B` | checksum table: one xxh3-64 for every block |
//! | … | 32 | BLAKE3 of everything from byte 96 to here, followed by the bytes 0..96 |
//!
//! The token section and the offset section are each cut into blocks of 65,536 bytes, of which the last may be shorter; the
//! table lists the token blocks first. `B` follows from `T`, `W` and `D`, so the length of the file follows from the
//! header. The BLAKE3 takes the header last because its counts are known last: a shard is written in one pass.
//!
//! A document may go on in the next shard, whose first offset is then above zero.
//!
//! # Trust
//!
//! A reader believes nothing before it is checked: the header by its checksum, the lengths against the size of the file, and each
//! block against the table when it is first touched. A flipped bit in the table makes its block unreadable, never wrong.

mod read;
mod write;

pub use read::Shard;
pub use write::{ShardWriter, WrittenShard};

/// How many bytes a checksummed block holds.
pub const BLOCK_BYTES: u64 = 65_536;

/// The largest vocabulary whose tokens are stored in two bytes.
const MAX_NARROW_VOCAB: u64 = 65_536;
const MAGIC: &[u8; 8] = b"IRONSHRD";
const VERSION: u32 = 1;
const HEADER_BYTES: u64 = 96;
const HEADER_CHECKED_BYTES: usize = 88;
const OFFSET_BYTES: u64 = 8;
const CHECKSUM_BYTES: u64 = 8;
const TRAILER_BYTES: u64 = 32;

/// What the first bytes of a shard say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Bytes a token takes, 2 or 4.
    pub token_bytes: u64,
    /// How many tokens the shard holds.
    pub tokens: u64,
    /// How many documents start in the shard.
    pub documents: u64,
    /// The UTF-8 length of those documents.
    pub raw_bytes: u64,
    /// The hash of the tokenizer that wrote the tokens.
    pub tokenizer_hash: [u8; 32],
    /// Every token is below this.
    pub vocab_size: u64,
}

/// How many bytes a token takes in a shard of that vocabulary.
pub fn token_bytes(vocab_size: u64) -> u64 {
    if vocab_size <= MAX_NARROW_VOCAB { 2 } else { 4 }
}

impl Header {
    fn to_bytes(&self) -> [u8; HEADER_BYTES as usize] {
        let mut bytes = [0; HEADER_BYTES as usize];
        bytes[0..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&(self.token_bytes as u32).to_le_bytes());
        bytes[16..24].copy_from_slice(&self.tokens.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.documents.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.raw_bytes.to_le_bytes());
        bytes[40..72].copy_from_slice(&self.tokenizer_hash);
        bytes[72..80].copy_from_slice(&self.vocab_size.to_le_bytes());
        let checksum = xxhash_rust::xxh3::xxh3_64(&bytes[..HEADER_CHECKED_BYTES]);
        bytes[88..96].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Reads a header, or says at which offset it is wrong and why.
    fn from_bytes(bytes: &[u8; HEADER_BYTES as usize]) -> Result<Header, (u64, String)> {
        if &bytes[0..8] != MAGIC {
            return Err((0, "it does not start with the bytes of a shard".into()));
        }
        let version = le_u32(&bytes[8..12]);
        let checksum = xxhash_rust::xxh3::xxh3_64(&bytes[..HEADER_CHECKED_BYTES]);
        if checksum != le_u64(&bytes[88..96]) {
            return Err((88, "the header does not match its checksum".into()));
        }
        if version != VERSION {
            return Err((8, format!("version {version} is unknown, this program reads version {VERSION}")));
        }
        let header = Header {
            token_bytes: u64::from(le_u32(&bytes[12..16])),
            tokens: le_u64(&bytes[16..24]),
            documents: le_u64(&bytes[24..32]),
            raw_bytes: le_u64(&bytes[32..40]),
            tokenizer_hash: bytes[40..72].try_into().expect("the slice has 32 bytes"),
            vocab_size: le_u64(&bytes[72..80]),
        };
        if header.token_bytes != token_bytes(header.vocab_size) {
            return Err((12, format!("{} bytes a token do not fit the vocabulary", header.token_bytes)));
        }
        if bytes[80..88] != [0; 8] {
            return Err((80, "reserved bytes are not zero".into()));
        }
        Ok(header)
    }

    /// Where each section starts; `None` if the counts cannot be true of any file.
    fn sections(&self) -> Option<Sections> {
        let token_section = self.tokens.checked_mul(self.token_bytes)?;
        let offset_section = self.documents.checked_mul(OFFSET_BYTES)?;
        let token_blocks = token_section.div_ceil(BLOCK_BYTES);
        let blocks = token_blocks.checked_add(offset_section.div_ceil(BLOCK_BYTES))?;
        let offsets_at = HEADER_BYTES.checked_add(token_section)?;
        let table_at = offsets_at.checked_add(offset_section)?;
        let trailer_at = table_at.checked_add(blocks.checked_mul(CHECKSUM_BYTES)?)?;
        let file_bytes = trailer_at.checked_add(TRAILER_BYTES)?;
        Some(Sections { token_blocks, blocks, offsets_at, table_at, trailer_at, file_bytes })
    }
}

/// Where the sections of a shard start, from its header.
#[derive(Clone, Copy, Debug)]
struct Sections {
    token_blocks: u64,
    blocks: u64,
    offsets_at: u64,
    table_at: u64,
    trailer_at: u64,
    file_bytes: u64,
}

impl Sections {
    /// The bytes of a block: its start in the file and its length.
    fn block(&self, block_idx: u64) -> (u64, u64) {
        let (first, start, end) = if block_idx < self.token_blocks {
            (0, HEADER_BYTES, self.offsets_at)
        } else {
            (self.token_blocks, self.offsets_at, self.table_at)
        };
        let at = start + (block_idx - first) * BLOCK_BYTES;
        (at, BLOCK_BYTES.min(end - at))
    }
}

fn le_u32(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes.try_into().expect("the slice has 4 bytes"))
}

fn le_u64(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("the slice has 8 bytes"))
}

#[cfg(test)]
mod tests;
