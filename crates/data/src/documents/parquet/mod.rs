//! The rows of a parquet file: one column of text, read page by page.
//!
//! Nothing is read but the pages of that column. A page, with the dictionary it may need, is what is held at once.

mod thrift;
mod values;

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use thrift::{Value, read_struct};
use values::Span;

use super::RawDocument;
use super::open::zstd_reader;
use crate::error::{Error, Result};
use crate::positioned::read_exact_at;

/// What a file starts and ends with.
const MAGIC: &[u8; 4] = b"PAR1";

/// How much is read to find the header of a page, and how long one can be.
const HEADER_BYTES: usize = 4 << 10;
const MAX_HEADER_BYTES: usize = 16 << 20;

/// The kind of a column that holds bytes of any length.
const BYTE_ARRAY: i64 = 6;

/// The rows of one file.
pub(super) struct ParquetRows {
    source: Source,
    /// The column's part in every row group.
    chunks: std::vec::IntoIter<ColumnChunk>,
    /// The level at which a text is there.
    max_level: u32,
    dictionary: Texts,
    page: Page,
    row: u64,
}

/// The file, and what may be held of it.
struct Source {
    file: File,
    name: String,
    max_bytes: usize,
    /// Where the next page starts, and where the column ends.
    offset: u64,
    end: u64,
    codec: Codec,
    /// Values of the column's part that no page has given yet.
    n_left: u64,
}

struct ColumnChunk {
    codec: Codec,
    n_values: u64,
    start: u64,
    n_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Codec {
    None,
    Snappy,
    Gzip,
    Zstd,
}

/// Texts in one buffer.
#[derive(Default)]
struct Texts {
    bytes: Vec<u8>,
    spans: Vec<Span>,
}

/// A page being given out.
#[derive(Default)]
struct Page {
    texts: Texts,
    /// For each value its place in the dictionary, if that has the texts.
    indices: Option<Vec<u32>>,
    /// Which rows have a text; all where this is empty.
    levels: Vec<u32>,
    n_rows: usize,
    next_row: usize,
    next_value: usize,
}

impl ParquetRows {
    /// Opens a file and finds the column.
    pub(super) fn open(path: &Path, name: &str, text_key: &str, max_bytes: usize) -> Result<ParquetRows> {
        let file = File::open(path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => Error::MissingInput { path: name.into() },
            _ => Error::Read { path: path.to_path_buf(), source },
        })?;
        let (name, codec) = (name.to_string(), Codec::None);
        let source = Source { file, name, max_bytes, offset: 0, end: 0, codec, n_left: 0 };
        let metadata = source.metadata()?;
        let max_level = source.level_of(&metadata, text_key)?;
        let chunks = metadata
            .list(4)
            .iter()
            .map(|group| source.chunk(group, text_key))
            .collect::<Result<Vec<_>>>()?
            .into_iter();
        Ok(ParquetRows {
            source,
            chunks,
            max_level,
            dictionary: Texts::default(),
            page: Page::default(),
            row: 0,
        })
    }

    /// How far in the file it is.
    pub(super) fn bytes_read(&self) -> u64 {
        self.source.offset
    }

    /// The next row that has a text. Its position is its number.
    pub(super) fn next(&mut self) -> Result<Option<RawDocument>> {
        loop {
            let Self { page, max_level, dictionary, .. } = self;
            if page.next_row < page.n_rows {
                let level = page.levels.get(page.next_row).copied().unwrap_or(*max_level);
                page.next_row += 1;
                self.row += 1;
                if level != *max_level {
                    continue;
                }
                let value = page.next_value;
                page.next_value += 1;
                let text = match &page.indices {
                    None => page.texts.get(value),
                    Some(indices) => indices.get(value).and_then(|&idx| dictionary.get(idx as usize)),
                };
                let bytes = text.ok_or_else(|| self.source.damaged("a page has fewer values than rows"))?;
                return Ok(Some(RawDocument { position: self.row - 1, bytes: bytes.to_vec() }));
            }
            if self.source.n_left > 0 {
                self.next_page()?;
                continue;
            }
            let Some(chunk) = self.chunks.next() else { return Ok(None) };
            let source = &mut self.source;
            (source.offset, source.codec, source.n_left) = (chunk.start, chunk.codec, chunk.n_values);
            source.end = chunk.start.saturating_add(chunk.n_bytes);
            self.dictionary = Texts::default();
        }
    }

    fn next_page(&mut self) -> Result<()> {
        let source = &mut self.source;
        // What is over makes room for what comes.
        self.page = Page::default();
        let header = source.page_header()?;
        let damaged = |source: &Source| source.damaged("the header of a page is malformed");
        let size = |field| header.number(field).and_then(|size| usize::try_from(size).ok());
        let (Some(n_unpacked), Some(n_packed)) = (size(2), size(3)) else { return Err(damaged(source)) };
        let (kind, details) = match header.number(1) {
            Some(0) => (0, header.field(5)),
            Some(2) => (2, header.field(7)),
            Some(3) => (3, header.field(8)),
            _ => {
                // An index, which is not needed.
                source.offset += n_packed as u64;
                return Ok(());
            }
        };
        let Some(details) = details else { return Err(damaged(source)) };
        let n_values = details.number(1).and_then(|count| usize::try_from(count).ok());
        let Some(n_values) = n_values else { return Err(damaged(source)) };
        // A value takes a span and a level besides.
        let held = n_unpacked
            .saturating_add(n_packed)
            .saturating_add(n_values.saturating_mul(16))
            .saturating_add(self.dictionary.n_bytes());
        source.check_fits("a parquet page", held)?;
        let n_levels = match kind {
            3 => source.level_bytes(details, n_packed)?,
            _ => [0; 2],
        };
        let is_packed = kind != 3 || details.number(7) != Some(0);
        let bytes = source.page(n_packed, n_unpacked, n_levels.iter().sum(), is_packed)?;
        let encoding = details.number(if kind == 3 { 4 } else { 2 }).unwrap_or(-1);
        if kind == 2 {
            let spans = values::plain(&bytes, n_values).ok_or_else(|| damaged(source))?;
            self.dictionary = Texts { bytes, spans };
            return Ok(());
        }
        source.n_left = source.n_left.saturating_sub(n_values as u64);
        self.page =
            source.decode(bytes, encoding, n_values, self.max_level, (kind == 3).then_some(n_levels))?;
        Ok(())
    }
}

impl Source {
    fn damaged(&self, reason: &str) -> Error {
        Error::DamagedInput { file: self.name.clone(), offset: self.offset, reason: reason.into() }
    }

    fn refuse(&self, reason: String) -> Error {
        Error::BadParquet { file: self.name.clone(), reason }
    }

    fn check_fits(&self, what: &'static str, n_bytes: usize) -> Result<()> {
        if n_bytes <= self.max_bytes {
            return Ok(());
        }
        let (file, position) = (self.name.clone(), self.offset);
        Err(Error::TooLarge {
            file,
            what,
            position,
            n_bytes: n_bytes as u64,
            max_bytes: self.max_bytes as u64,
        })
    }

    fn read(&self, n_bytes: usize, offset: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; n_bytes];
        read_exact_at(&self.file, &mut bytes, offset).map_err(|source| match source.kind() {
            io::ErrorKind::UnexpectedEof => self.damaged("the file ends too early"),
            _ => Error::Read { path: self.name.clone().into(), source },
        })?;
        Ok(bytes)
    }

    /// What the file says about itself, which is at its end.
    fn metadata(&self) -> Result<Value> {
        let n_bytes = self.file.metadata().map_err(Error::read(Path::new(&self.name)))?.len();
        let not_parquet = || self.damaged("it does not end as a parquet file does");
        let tail_at = n_bytes.checked_sub(8).ok_or_else(not_parquet)?;
        let tail = self.read(8, tail_at)?;
        let length = tail[..4].iter().rev().fold(0u64, |sum, &byte| sum << 8 | u64::from(byte));
        if &tail[4..] != MAGIC || length > tail_at {
            return Err(not_parquet());
        }
        self.check_fits("the parquet footer", usize::try_from(length).unwrap_or(usize::MAX))?;
        let footer = self.read(length as usize, tail_at - length)?;
        read_struct(&mut &footer[..]).ok_or_else(|| self.damaged("its footer is malformed"))
    }

    /// The level at which the column's text is there: how many of the fields on the way to it may be missing.
    fn level_of(&self, metadata: &Value, text_key: &str) -> Result<u32> {
        let mut elements = metadata.list(2).iter();
        let n_columns = elements.next().and_then(|root| root.number(5)).unwrap_or(0);
        let (mut names, mut found) = (Vec::new(), None);
        let mut open = vec![(String::new(), n_columns, 0u32, false)];
        for element in elements {
            while open.last().is_some_and(|(_, n_left, ..)| *n_left == 0) {
                open.pop();
            }
            let Some((path, n_left, level, is_repeated)) = open.last_mut() else { break };
            *n_left -= 1;
            let name = element.field(4).and_then(Value::text).unwrap_or_default();
            let path = if path.is_empty() { name } else { format!("{path}.{name}") };
            let repetition = element.number(3).unwrap_or(0);
            let level = *level + u32::from(repetition != 0);
            let is_repeated = *is_repeated || repetition == 2;
            match element.number(5).filter(|&n_children| n_children > 0) {
                Some(n_children) => open.push((path, n_children, level, is_repeated)),
                None => {
                    if path == text_key {
                        found = Some((element.number(1), is_repeated, level));
                    }
                    names.push(path);
                }
            }
        }
        match found {
            Some((Some(BYTE_ARRAY), false, level)) => Ok(level),
            Some(_) => Err(self.refuse(format!("the column \"{text_key}\" does not hold one text a row"))),
            None => Err(self.refuse(format!(
                "there is no column \"{text_key}\", only {}",
                names.iter().take(20).map(String::as_str).collect::<Vec<_>>().join(", ")
            ))),
        }
    }

    /// The column's part in a row group.
    fn chunk(&self, group: &Value, text_key: &str) -> Result<ColumnChunk> {
        let is_column = |column: &&Value| {
            let path: Vec<String> = column.list(3).iter().filter_map(Value::text).collect();
            path.join(".") == text_key
        };
        let column = group.list(1).iter().filter_map(|chunk| chunk.field(3)).find(is_column);
        let read = |column: &Value| {
            let number = |field| column.number(field).and_then(|number| u64::try_from(number).ok());
            // A dictionary comes before the pages that need it; zero is how some writers say that there is none.
            let data = number(9)?;
            let start = number(11).filter(|&start| start > 0).map_or(data, |start| start.min(data));
            Some((number(4)?, number(5)?, start, number(7)?))
        };
        let Some((codec, n_values, start, n_bytes)) = column.and_then(read) else {
            return Err(self.damaged("a row group lacks the column"));
        };
        let codec = match codec {
            0 => Codec::None,
            1 => Codec::Snappy,
            2 => Codec::Gzip,
            6 => Codec::Zstd,
            _ => {
                let name =
                    ["lzo", "brotli", "lz4", "", "lz4"].get(codec as usize - 3).unwrap_or(&"an unknown way");
                return Err(self.refuse(format!(
                    "the column \"{text_key}\" is compressed by {name}, which is not read here"
                )));
            }
        };
        Ok(ColumnChunk { codec, n_values, start, n_bytes })
    }

    /// The header of the next page; goes behind it.
    fn page_header(&mut self) -> Result<Value> {
        let left = usize::try_from(self.end.saturating_sub(self.offset)).unwrap_or(usize::MAX);
        let mut wanted = HEADER_BYTES;
        loop {
            let bytes = self.read(wanted.min(left), self.offset)?;
            let mut rest = &bytes[..];
            if let Some(header) = read_struct(&mut rest) {
                self.offset += (bytes.len() - rest.len()) as u64;
                return Ok(header);
            }
            if wanted >= left.min(MAX_HEADER_BYTES) {
                return Err(self.damaged("the header of a page is malformed"));
            }
            wanted *= 8;
        }
    }

    /// The lengths of the two kinds of levels before the values of a page, which are never compressed.
    fn level_bytes(&self, details: &Value, n_packed: usize) -> Result<[usize; 2]> {
        let length = |field| details.number(field).and_then(|length| usize::try_from(length).ok());
        match (length(6), length(5)) {
            (Some(repeated), Some(defined)) if repeated.saturating_add(defined) <= n_packed => {
                Ok([repeated, defined])
            }
            _ => Err(self.damaged("the levels of a page do not fit it")),
        }
    }

    /// The bytes of a page, of which the first `n_plain` are not compressed; goes behind it.
    fn page(
        &mut self,
        n_packed: usize,
        n_unpacked: usize,
        n_plain: usize,
        is_packed: bool,
    ) -> Result<Vec<u8>> {
        if self.offset.saturating_add(n_packed as u64) > self.end {
            return Err(self.damaged("a page reaches beyond its column"));
        }
        let packed = self.read(n_packed, self.offset)?;
        let codec = if is_packed { self.codec } else { Codec::None };
        let mut bytes = match codec {
            Codec::None => packed,
            _ => {
                let mut bytes = packed[..n_plain].to_vec();
                let unpacked =
                    n_unpacked.checked_sub(n_plain).and_then(|n| unpack(codec, &packed[n_plain..], n));
                bytes.extend(unpacked.ok_or_else(|| self.damaged("a page does not decompress"))?);
                bytes
            }
        };
        bytes.truncate(n_unpacked);
        self.offset += n_packed as u64;
        Ok(bytes)
    }

    fn decode(
        &self,
        bytes: Vec<u8>,
        encoding: i64,
        n_rows: usize,
        max_level: u32,
        n_levels: Option<[usize; 2]>,
    ) -> Result<Page> {
        let damaged = || self.damaged("the values of a page are malformed");
        let width = u32::BITS - max_level.leading_zeros();
        let (start, level_bytes) = match n_levels {
            Some([repeated, defined]) => (repeated + defined, repeated..repeated + defined),
            None if max_level == 0 => (0, 0..0),
            None => {
                let length = bytes.get(..4).ok_or_else(damaged)?;
                let length = length.iter().rev().fold(0usize, |sum, &byte| sum << 8 | usize::from(byte));
                (4 + length, 4..4 + length)
            }
        };
        let levels = match bytes.get(level_bytes) {
            Some(_) if max_level == 0 => Vec::new(),
            Some(level_bytes) => values::hybrid(level_bytes, width, n_rows).ok_or_else(damaged)?,
            None => return Err(damaged()),
        };
        let n_values =
            if max_level == 0 { n_rows } else { levels.iter().filter(|&&level| level == max_level).count() };
        let body = bytes.get(start..).ok_or_else(damaged)?;
        let (spans, indices) = match encoding {
            0 => (values::plain(body, n_values).ok_or_else(damaged)?, None),
            6 => (values::after_lengths(body, n_values).ok_or_else(damaged)?, None),
            2 | 8 => {
                let indices = match body.split_first() {
                    Some((&width, packed)) => values::hybrid(packed, u32::from(width), n_values),
                    None => (n_values == 0).then(Vec::new),
                };
                (Vec::new(), Some(indices.ok_or_else(damaged)?))
            }
            _ => {
                return Err(self.refuse(format!(
                    "a page is encoded in way {encoding}, which is not read here: only plain, by dictionary and by lengths"
                )));
            }
        };
        let texts = Texts { spans: spans.into_iter().map(|(at, n)| (at + start as u32, n)).collect(), bytes };
        Ok(Page { texts, indices, levels, n_rows, next_row: 0, next_value: 0 })
    }
}

impl Texts {
    fn get(&self, idx: usize) -> Option<&[u8]> {
        let &(start, length) = self.spans.get(idx)?;
        self.bytes.get(start as usize..start as usize + length as usize)
    }

    fn n_bytes(&self) -> usize {
        self.bytes.len() + self.spans.len() * size_of::<Span>()
    }
}

/// Exactly `n_bytes` from what a codec has packed.
fn unpack(codec: Codec, packed: &[u8], n_bytes: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; n_bytes];
    match codec {
        Codec::None => return Some(packed.to_vec()),
        Codec::Snappy => {
            let count = snap::raw::Decoder::new().decompress(packed, &mut bytes).ok()?;
            return (count == n_bytes).then_some(bytes);
        }
        Codec::Gzip => MultiGzDecoder::new(packed).read_exact(&mut bytes).ok()?,
        // What a page unpacks to fits the memory, and a window that is larger than its page is not filled.
        Codec::Zstd => zstd_reader(packed, usize::MAX).read_exact(&mut bytes).ok()?,
    }
    Some(bytes)
}

#[cfg(test)]
mod tests;
