//! The counts file: the distinct pieces of a corpus and their counts, in one canonical order.
//!
//! However a corpus is shared out between tasks, the merged file has the same bytes. Layout, all numbers little-endian:
//!
//! - `IMPIECES`, version (u32), length of the settings (u32), the settings as JSON: the regular expression, the special
//!   tokens in sorted order, whether lines were counted as documents.
//! - 256 partitions by a fixed hash ([`partition`]), in each the pieces in the order of their bytes: length, bytes, count;
//!   length and count in seven bits a byte, lowest first, the top bit set on all but the last.
//! - For each partition its number of pieces and its length in bytes (u64 each); then how many pieces were counted and how
//!   many documents (u64 each).
//! - BLAKE3 of everything before.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::key::{N_PARTITIONS, hash, partition};
use super::record;
use crate::durable::StagedFile;
use crate::pattern::Pattern;
use crate::special::Specials;
use crate::{Error, Progress, Result};

const MAGIC: &[u8; 8] = b"IMPIECES";
const VERSION: u32 = 1;
const FOOTER_BYTES: u64 = (N_PARTITIONS as u64 + 1) * 16;
const SUM_BYTES: u64 = 32;

/// More settings than this are none.
const MAX_SETTINGS_BYTES: u32 = 1 << 20;

/// How text was cut into the pieces that were counted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CountSettings {
    pattern: String,
    special: Vec<String>,
    lines: bool,
}

impl CountSettings {
    /// The settings of a count; the order of the special tokens does not matter.
    pub fn new(pattern: &Pattern, special: &[String], lines: bool) -> Self {
        let mut special = special.to_vec();
        special.sort_unstable();
        Self { pattern: pattern.regex().to_owned(), special, lines }
    }

    /// The pattern of the pieces.
    pub fn pattern(&self) -> Pattern {
        Pattern::from_regex(&self.pattern)
    }

    /// The special tokens that were taken out, in sorted order.
    pub fn special(&self) -> &[String] {
        &self.special
    }

    /// Whether every line was a document.
    pub fn lines(&self) -> bool {
        self.lines
    }

    /// Refuses to use counts with these settings for others.
    pub fn check_same(&self, wanted: &Self) -> Result<()> {
        if self.pattern != wanted.pattern {
            let counted = format!("the pattern {}", self.pattern());
            return Err(Error::CountsDiffer { counted, wanted: format!("the pattern {}", wanted.pattern()) });
        }
        if self.lines != wanted.lines {
            let said = |lines| if lines { "lines as documents" } else { "whole documents" };
            return Err(Error::CountsDiffer {
                counted: said(self.lines).into(),
                wanted: said(wanted.lines).into(),
            });
        }
        Specials::numbered(&self.special)?.check_same(wanted.special.iter().map(String::as_str))
    }
}

/// What was counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CountTotals {
    /// Distinct pieces.
    pub distinct: u64,
    /// Pieces.
    pub pieces: u64,
    /// Documents.
    pub documents: u64,
}

/// Writes a counts file from pieces in canonical order.
pub(crate) struct CountsWriter {
    path: PathBuf,
    staged: StagedFile,
    hasher: blake3::Hasher,
    /// For each partition, pieces and bytes.
    index: Vec<[u64; 2]>,
    total: u64,
    buffer: Vec<u8>,
}

impl CountsWriter {
    pub(crate) fn create(path: &Path, settings: &CountSettings) -> Result<Self> {
        let staged =
            StagedFile::create(path).map_err(|source| Error::Write { path: path.to_owned(), source })?;
        let mut writer = Self {
            path: path.to_owned(),
            staged,
            hasher: blake3::Hasher::new(),
            index: vec![[0; 2]; N_PARTITIONS],
            total: 0,
            buffer: Vec::new(),
        };
        let json = serde_json::to_string(settings).map_err(|error| Error::Format(error.to_string()))?;
        writer.buffer.extend_from_slice(MAGIC);
        writer.buffer.extend_from_slice(&VERSION.to_le_bytes());
        writer.buffer.extend_from_slice(&(json.len() as u32).to_le_bytes());
        writer.buffer.extend_from_slice(json.as_bytes());
        writer.flush()?;
        Ok(writer)
    }

    /// Adds the next piece; pieces come by partition and in each in the order of their bytes, none twice.
    pub(crate) fn add(&mut self, idx: usize, piece: &[u8], count: u64) -> Result<()> {
        let before = self.buffer.len();
        record::write(piece, count, &mut self.buffer);
        self.index[idx][0] += 1;
        self.index[idx][1] += (self.buffer.len() - before) as u64;
        self.total =
            self.total.checked_add(count).ok_or_else(|| Error::CountOverflow("all pieces".to_owned()))?;
        if self.buffer.len() >= 1 << 16 { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        self.hasher.update(&self.buffer);
        let written = self.staged.write_all(&self.buffer);
        self.buffer.clear();
        self.buffer.shrink_to(1 << 17);
        written.map_err(|source| Error::Write { path: self.path.clone(), source })
    }

    /// Ends the file and gives it its name.
    pub(crate) fn finish(mut self, documents: u64) -> Result<CountTotals> {
        let distinct = self.index.iter().map(|[pieces, _]| pieces).sum();
        let numbers = self.index.iter().flatten().chain([&self.total, &documents]);
        self.buffer.extend(numbers.flat_map(|number| number.to_le_bytes()));
        self.flush()?;
        let failed = |source| Error::Write { path: self.path.clone(), source };
        self.staged.write_all(self.hasher.finalize().as_bytes()).map_err(failed)?;
        self.staged.commit().map_err(failed)?;
        Ok(CountTotals { distinct, pieces: self.total, documents })
    }
}

/// A counts file, opened and its ends checked. Its checksum is checked while its pieces are read, so what they were used for
/// must be thrown away if reading them ends in an error.
#[derive(Debug)]
pub struct CountsFile {
    path: PathBuf,
    settings: CountSettings,
    totals: CountTotals,
    index: Vec<[u64; 2]>,
    n_bytes: u64,
    body_start: u64,
}

impl CountsFile {
    /// Opens a counts file and reads what it says about itself.
    pub fn open(path: &Path) -> Result<Self> {
        let mut file = File::open(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
        Self::read_ends(&mut file, path).map_err(|source| bad(path, source))
    }

    fn read_ends(file: &mut File, path: &Path) -> io::Result<Self> {
        let damaged = |reason: &'static str| io::Error::new(io::ErrorKind::InvalidData, reason);
        let n_bytes = file.metadata()?.len();
        let mut start = [0; 16];
        file.read_exact(&mut start)?;
        if &start[..8] != MAGIC {
            return Err(damaged("it does not start as a counts file does"));
        }
        let number =
            |at: usize| start[at..at + 4].iter().rev().fold(0, |number, &byte| number << 8 | u32::from(byte));
        if number(8) != VERSION {
            return Err(damaged("it was written by another version"));
        }
        let n_settings = number(12);
        let body_start = 16 + u64::from(n_settings);
        if n_settings > MAX_SETTINGS_BYTES || body_start + FOOTER_BYTES + SUM_BYTES > n_bytes {
            return Err(damaged("it is cut short"));
        }
        let mut json = vec![0; n_settings as usize];
        file.read_exact(&mut json)?;
        let settings = serde_json::from_slice(&json).map_err(|_| damaged("its settings are malformed"))?;
        let footer_start = n_bytes - SUM_BYTES - FOOTER_BYTES;
        file.seek(SeekFrom::Start(footer_start))?;
        let mut footer = vec![0; FOOTER_BYTES as usize];
        file.read_exact(&mut footer)?;
        let mut pairs = footer.chunks_exact(16).map(|pair| {
            let number =
                |bytes: &[u8]| bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte));
            [number(&pair[..8]), number(&pair[8..])]
        });
        let index: Vec<[u64; 2]> = pairs.by_ref().take(N_PARTITIONS).collect();
        let [pieces, documents] = pairs.next().unwrap_or_default();
        let sum = |column: usize| index.iter().try_fold(0u64, |sum, pair| sum.checked_add(pair[column]));
        if sum(1) != Some(footer_start - body_start) {
            return Err(damaged("its partitions do not fill it; it may be cut short"));
        }
        let distinct = sum(0).ok_or_else(|| damaged("its index is malformed"))?;
        let totals = CountTotals { distinct, pieces, documents };
        Ok(Self { path: path.to_owned(), settings, totals, index, n_bytes, body_start })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How its pieces were cut.
    pub fn settings(&self) -> &CountSettings {
        &self.settings
    }

    /// How much was counted.
    pub fn totals(&self) -> CountTotals {
        self.totals
    }

    /// Its size in bytes.
    pub fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    /// Its checksum, in hexadecimal: equal for equal counts.
    pub fn checksum(&self) -> Result<String> {
        let read = || {
            let mut file = File::open(&self.path)?;
            file.seek(SeekFrom::Start(self.n_bytes - SUM_BYTES))?;
            let mut sum = [0; SUM_BYTES as usize];
            file.read_exact(&mut sum)?;
            Ok(blake3::Hash::from(sum).to_hex().to_string())
        };
        read().map_err(|source| Error::Read { path: self.path.clone(), source })
    }

    /// Its pieces from the beginning.
    pub(crate) fn pieces(&self) -> Result<Pieces<'_>> {
        let open = || {
            let mut file = BufReader::with_capacity(1 << 18, File::open(&self.path)?);
            let mut header = vec![0; self.body_start as usize];
            file.read_exact(&mut header)?;
            let mut hasher = blake3::Hasher::new();
            hasher.update(&header);
            Ok(Pieces {
                file: self,
                source: Hashed { source: file, hasher, pending: Vec::new() },
                idx: 0,
                left: self.index[0],
                piece: Vec::new(),
                previous: Vec::new(),
                count: 0,
                total: 0,
            })
        };
        open().map_err(|source| Error::Read { path: self.path.clone(), source })
    }
}

/// The pieces of a counts file, one after the other.
pub(crate) struct Pieces<'f> {
    file: &'f CountsFile,
    source: Hashed,
    idx: usize,
    /// What is left of the partition: pieces and bytes.
    left: [u64; 2],
    piece: Vec<u8>,
    previous: Vec<u8>,
    count: u64,
    total: u64,
}

impl Pieces<'_> {
    /// Goes to the next piece; `false` at the end, once the checksum has been found right.
    pub(crate) fn advance(&mut self) -> Result<bool> {
        self.try_advance().map_err(|source| bad(&self.file.path, source))
    }

    /// The partition, bytes and count of the piece that `advance` went to.
    pub(crate) fn current(&self) -> (usize, &[u8], u64) {
        (self.idx, &self.piece, self.count)
    }

    fn try_advance(&mut self) -> io::Result<bool> {
        let damaged = |reason: &'static str| io::Error::new(io::ErrorKind::InvalidData, reason);
        while self.left[0] == 0 {
            if self.left[1] != 0 {
                return Err(damaged("a partition is longer than its pieces"));
            }
            self.idx += 1;
            self.piece.clear();
            match self.file.index.get(self.idx) {
                Some(&left) => self.left = left,
                None => return self.check_end().map(|()| false),
            }
        }
        std::mem::swap(&mut self.piece, &mut self.previous);
        let before = self.source.n_taken();
        self.count = record::read(&mut self.source, &mut self.piece, self.left[1])?;
        let taken = self.source.n_taken() - before;
        self.left[0] -= 1;
        self.left[1] = self.left[1].checked_sub(taken).ok_or_else(|| damaged("a partition is too short"))?;
        if partition(hash(&self.piece)) != self.idx
            || !self.previous.is_empty() && self.previous >= self.piece
        {
            return Err(damaged("its pieces are not in order"));
        }
        if self.previous.capacity() > 1 << 20 {
            self.previous = Vec::new();
        }
        self.total =
            self.total.checked_add(self.count).ok_or_else(|| damaged("its counts exceed 64 bits"))?;
        Ok(true)
    }

    fn check_end(&mut self) -> io::Result<()> {
        let damaged = |reason: &'static str| io::Error::new(io::ErrorKind::InvalidData, reason);
        let mut footer = vec![0; FOOTER_BYTES as usize];
        self.source.read_exact(&mut footer)?;
        let found = self.source.finish();
        let mut sum = [0; SUM_BYTES as usize];
        self.source.source.read_exact(&mut sum)?;
        if *found.as_bytes() != sum || self.total != self.file.totals.pieces {
            return Err(damaged("its checksum is wrong"));
        }
        Ok(())
    }
}

/// Hashes what is read.
struct Hashed {
    source: BufReader<File>,
    hasher: blake3::Hasher,
    pending: Vec<u8>,
}

impl Hashed {
    fn n_taken(&self) -> u64 {
        self.hasher.count() + self.pending.len() as u64
    }

    fn finish(&mut self) -> blake3::Hash {
        self.hasher.update(&self.pending);
        self.pending.clear();
        self.hasher.finalize()
    }
}

impl Read for Hashed {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let count = self.source.read(out)?;
        self.pending.extend_from_slice(&out[..count]);
        if self.pending.len() >= 1 << 16 {
            self.hasher.update(&self.pending);
            self.pending.clear();
            self.pending.shrink_to(1 << 17);
        }
        Ok(count)
    }
}

/// Adds up counts files into one. They must have been made with the same settings.
pub fn merge_counts(files: &[CountsFile], out: &Path, progress: &dyn Progress) -> Result<CountTotals> {
    let Some(first) = files.first() else {
        return Err(Error::EmptyCorpus("counts files"));
    };
    for file in files {
        file.settings.check_same(&first.settings).map_err(|error| error.in_file(&file.path))?;
    }
    progress.start("merge", Some(files.iter().map(CountsFile::n_bytes).sum()), "bytes");
    let mut writer = CountsWriter::create(out, &first.settings)?;
    let mut sources = Vec::new();
    for file in files {
        let mut pieces = file.pieces()?;
        if pieces.advance()? {
            sources.push(pieces);
        }
    }
    let mut told = 0;
    while let Some(least) = sources.iter().map(|source| (source.idx, &source.piece)).min() {
        let (idx, piece) = (least.0, least.1.clone());
        let mut count = 0u64;
        let mut at = 0;
        while at < sources.len() {
            let source = &mut sources[at];
            if source.idx != idx || source.piece != piece {
                at += 1;
                continue;
            }
            count = count
                .checked_add(source.count)
                .ok_or_else(|| Error::CountOverflow(piece.escape_ascii().to_string()))?;
            let before = source.source.n_taken();
            if source.advance()? {
                told += source.source.n_taken() - before;
                at += 1;
            } else {
                sources.swap_remove(at);
            }
        }
        writer.add(idx, &piece, count)?;
        if told > 1 << 20 {
            progress.advance(told);
            told = 0;
        }
    }
    let documents = files.iter().try_fold(0u64, |sum, file| sum.checked_add(file.totals.documents));
    let totals = writer.finish(documents.ok_or_else(|| Error::CountOverflow("all documents".to_owned()))?);
    progress.finish();
    totals
}

fn bad(path: &Path, source: io::Error) -> Error {
    Error::BadCounts { path: path.to_owned(), reason: source.to_string() }
}
