//! The most frequent pieces of a corpus, kept beside a tokenizer so that the first text is encoded as fast as the second.
//!
//! The file has no say in the tokens: pieces are encoded when the tokenizer is first used. Pieces of other text, or of another
//! tokenizer, cost speed and nothing else.
//!
//! It holds the magic `IMPIECES`, a version and the number of pieces as 32-bit little-endian numbers, each piece as a length
//! byte and its bytes, the most frequent first, and the BLAKE3 of all that.

use std::cmp::Reverse;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::count::key::MAX_PACKED;
use crate::{Error, PieceSource, Result, durable};

/// Pieces of up to 15 bytes, the most frequent first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FrequentPieces {
    pieces: Vec<Box<[u8]>>,
}

const MAGIC: &[u8; 8] = b"IMPIECES";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 16;
const HASH_BYTES: usize = 32;

impl FrequentPieces {
    /// As many as are worth their place: a quarter of an encoder's table.
    pub const USUAL: usize = 1 << 17;

    /// The most pieces of a file.
    const MAX: usize = 1 << 20;

    /// The `n_wanted` most frequent pieces of a corpus; of equally frequent ones the smaller by bytes.
    pub fn of(source: &impl PieceSource, n_wanted: usize) -> Result<Self> {
        let n_wanted = n_wanted.min(Self::MAX);
        let mut best: Vec<(Reverse<u64>, Box<[u8]>)> = Vec::new();
        source.for_each(&mut |piece, count| {
            if (1..=MAX_PACKED).contains(&piece.len()) {
                best.push((Reverse(count), piece.into()));
            }
            if best.len() > 2 * n_wanted {
                best.select_nth_unstable(n_wanted);
                best.truncate(n_wanted);
            }
            Ok(())
        })?;
        best.sort_unstable();
        best.truncate(n_wanted);
        Ok(Self { pieces: best.into_iter().map(|(_, piece)| piece).collect() })
    }

    /// Where the pieces of a tokenizer file are: beside it, with `.pieces` added to its name.
    pub fn path_beside(tokenizer: &Path) -> PathBuf {
        let mut name = tokenizer.as_os_str().to_owned();
        name.push(".pieces");
        name.into()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.pieces.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    pub(crate) fn into_pieces(self) -> Vec<Box<[u8]>> {
        self.pieces
    }

    /// Writes the pieces to `path`, which after a crash has its old or its new content.
    pub fn save(&self, path: &Path) -> Result<()> {
        durable::write(path, &self.to_bytes())
            .map_err(|source| Error::Write { path: path.to_owned(), source })
    }

    /// Reads what [`save`](Self::save) wrote.
    pub fn load(path: &Path) -> Result<Self> {
        let read = |source| Error::Read { path: path.to_owned(), source };
        let max_bytes = HEADER_BYTES + Self::MAX * (MAX_PACKED + 1) + HASH_BYTES;
        let mut bytes = Vec::new();
        File::open(path).map_err(read)?.take(max_bytes as u64 + 1).read_to_end(&mut bytes).map_err(read)?;
        let broken =
            || Error::Format("it is no whole file of pieces: delete it, or write it anew".to_owned());
        Self::from_bytes(&bytes).ok_or_else(broken).map_err(|error| error.in_file(path))
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend((self.pieces.len() as u32).to_le_bytes());
        for piece in &self.pieces {
            bytes.push(piece.len() as u8);
            bytes.extend_from_slice(piece);
        }
        bytes.extend(blake3::hash(&bytes).as_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (content, hash) = bytes.split_last_chunk::<HASH_BYTES>()?;
        if blake3::hash(content).as_bytes() != hash {
            return None;
        }
        let rest = content.strip_prefix(MAGIC)?.strip_prefix(&VERSION.to_le_bytes())?;
        let (n_pieces, mut rest) = rest.split_first_chunk::<4>()?;
        let mut pieces = Vec::new();
        while let Some((&n_bytes, behind)) = rest.split_first() {
            let n_bytes = Some(usize::from(n_bytes)).filter(|n_bytes| (1..=MAX_PACKED).contains(n_bytes))?;
            let (piece, behind) = behind.split_at_checked(n_bytes)?;
            pieces.push(piece.into());
            rest = behind;
        }
        (pieces.len() == u32::from_le_bytes(*n_pieces) as usize && pieces.len() <= Self::MAX)
            .then_some(Self { pieces })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Pattern, PieceCounts};

    fn pieces(text: &str, n_wanted: usize) -> FrequentPieces {
        let mut counts = PieceCounts::new(&Pattern::Gpt2, &[]).unwrap();
        counts.add_document(text.as_bytes()).unwrap();
        FrequentPieces::of(&&counts, n_wanted).unwrap()
    }

    #[test]
    fn the_most_frequent_come_first_and_long_ones_not_at_all() {
        let text = "the cat the dog the cat a-very-long incomprehensibilities incomprehensibilities";
        let found = pieces(text, 4).into_pieces();
        let found: Vec<_> = found.iter().map(|piece| String::from_utf8_lossy(piece)).collect();
        assert_eq!(found, [" cat", " the", "-", " a"]);
    }

    #[test]
    fn a_file_reads_back_and_any_change_is_noticed() {
        let saved = pieces("one two three two three three", 9);
        let bytes = saved.to_bytes();
        assert_eq!(FrequentPieces::from_bytes(&bytes), Some(saved));
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 4;
            assert_eq!(FrequentPieces::from_bytes(&changed), None, "{at}");
            assert_eq!(FrequentPieces::from_bytes(&bytes[..at]), None, "{at}");
        }
    }

    #[test]
    fn a_file_with_a_right_hash_and_wrong_lengths_is_refused() {
        for body in
            [&b"\x01\0\0\0\x10aaaaaaaaaaaaaaaa"[..], b"\x01\0\0\0\0", b"\x02\0\0\0\x01a", b"\x01\0\0\0\x05ab"]
        {
            let mut bytes = [MAGIC, &VERSION.to_le_bytes()[..], body].concat();
            bytes.extend(blake3::hash(&bytes).as_bytes());
            assert_eq!(FrequentPieces::from_bytes(&bytes), None, "{body:?}");
        }
    }
}
