//! Cutting a file into documents: whole, at a separator, or by JSON lines.

use std::fmt;

use memchr::memmem::Finder;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};

use super::open::OpenFile;
use super::{BadUtf8, RawDocument};
use crate::error::{Error, Result};

/// The documents of a text file.
pub(super) struct Pieces {
    chunks: Chunks,
}

impl Pieces {
    pub(super) fn new(file: OpenFile, separator: Option<&str>, max_bytes: usize) -> Pieces {
        Pieces { chunks: Chunks::new(file, separator.map(str::as_bytes), "a document", max_bytes) }
    }

    pub(super) fn bytes_read(&self) -> u64 {
        self.chunks.file.bytes_from_disk()
    }

    pub(super) fn next(&mut self) -> Result<Option<RawDocument>> {
        Ok(self
            .chunks
            .next()?
            .map(|chunk| RawDocument { position: chunk.position, bytes: chunk.bytes.to_vec() }))
    }
}

/// The rows of a JSON lines file.
pub(super) struct JsonLines {
    chunks: Chunks,
    text_key: String,
    on_bad_utf8: BadUtf8,
    line: u64,
}

impl JsonLines {
    pub(super) fn new(file: OpenFile, text_key: &str, on_bad_utf8: BadUtf8, max_bytes: usize) -> JsonLines {
        JsonLines::of(Chunks::new(file, Some(b"\n"), "a row", max_bytes), text_key, on_bad_utf8)
    }

    /// The rows of a file that is already in lines.
    pub(super) fn of(chunks: Chunks, text_key: &str, on_bad_utf8: BadUtf8) -> JsonLines {
        JsonLines { chunks, text_key: text_key.into(), on_bad_utf8, line: 0 }
    }

    pub(super) fn bytes_read(&self) -> u64 {
        self.chunks.file.bytes_from_disk()
    }

    /// The next row's text. A row that is not UTF-8 is passed on unread where the policy will refuse or skip it.
    pub(super) fn next(&mut self) -> Result<Option<RawDocument>> {
        loop {
            let Some(chunk) = self.chunks.next()? else {
                return Ok(None);
            };
            self.line += 1;
            let position = chunk.position;
            if chunk.bytes.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let replaced = match (std::str::from_utf8(chunk.bytes), self.on_bad_utf8) {
                (Ok(_), _) => None,
                (Err(_), BadUtf8::Replace) => Some(String::from_utf8_lossy(chunk.bytes).into_owned()),
                (Err(_), _) => {
                    return Ok(Some(RawDocument { position, bytes: chunk.bytes.to_vec() }));
                }
            };
            let row = replaced.as_deref().map_or(chunk.bytes, str::as_bytes);
            let bytes = text_of_row(row, &self.text_key).map_err(|reason| Error::BadRow {
                file: self.chunks.file.name().into(),
                line: self.line,
                reason,
            })?;
            return Ok(Some(RawDocument { position, bytes }));
        }
    }
}

/// A file in chunks that a separator divides; the separator belongs to none of them.
pub(super) struct Chunks {
    file: OpenFile,
    finder: Option<Finder<'static>>,
    buffer: Vec<u8>,
    /// Where in the buffer the next chunk starts.
    start: usize,
    /// Where in the buffer a separator may still start.
    searched: usize,
    /// Where in the file the buffer starts.
    buffer_position: u64,
    ended: bool,
    /// What a chunk is called, and the most that one may take.
    noun: &'static str,
    max_bytes: usize,
}

pub(super) struct Chunk<'a> {
    pub(super) position: u64,
    pub(super) bytes: &'a [u8],
    /// Whether the separator followed, and not the end of the file.
    pub(super) is_closed: bool,
}

impl Chunks {
    pub(super) fn new(
        file: OpenFile,
        separator: Option<&[u8]>,
        noun: &'static str,
        max_bytes: usize,
    ) -> Chunks {
        let finder = separator.map(|separator| Finder::new(separator).into_owned());
        let (buffer, start, searched, buffer_position) = (Vec::new(), 0, 0, 0);
        Chunks { file, finder, buffer, start, searched, buffer_position, ended: false, noun, max_bytes }
    }

    /// The same file cut at a separator that was chosen after a look at its beginning.
    pub(super) fn separated_by(mut self, separator: &[u8]) -> Chunks {
        self.finder = Some(Finder::new(separator).into_owned());
        self
    }

    /// The first bytes of the file, without taking them.
    pub(super) fn peek(&mut self) -> Result<&[u8]> {
        while !self.ended && self.buffer.len() < PEEK_BYTES {
            self.read_more()?;
        }
        Ok(&self.buffer[self.start..])
    }

    pub(super) fn name(&self) -> &str {
        self.file.name()
    }

    pub(super) fn bytes_read(&self) -> u64 {
        self.file.bytes_from_disk()
    }

    pub(super) fn next(&mut self) -> Result<Option<Chunk<'_>>> {
        loop {
            if let Some(finder) = &self.finder
                && let Some(found) = finder.find(&self.buffer[self.searched..])
            {
                let end = self.searched + found;
                let after = end + finder.needle().len();
                return Ok(Some(self.take(end, after, true)));
            }
            if self.ended {
                let end = self.buffer.len();
                return Ok(if self.start < end { Some(self.take(end, end, false)) } else { None });
            }
            let overlap = self.finder.as_ref().map_or(0, |finder| finder.needle().len() - 1);
            self.searched = self.start.max(self.buffer.len().saturating_sub(overlap));
            self.discard_taken();
            if self.buffer.len() > self.max_bytes {
                return Err(Error::TooLarge {
                    file: self.file.name().into(),
                    what: self.noun,
                    position: self.buffer_position,
                    n_bytes: self.buffer.len() as u64,
                    max_bytes: self.max_bytes as u64,
                });
            }
            self.read_more()?;
        }
    }

    fn read_more(&mut self) -> Result<()> {
        self.ended = self.file.read_more(&mut self.buffer)? == 0;
        if self.buffer_position == 0 && self.start == 0 && self.buffer.starts_with(BYTE_ORDER_MARK) {
            self.start = BYTE_ORDER_MARK.len();
            self.searched = self.searched.max(self.start);
        }
        Ok(())
    }

    fn take(&mut self, end: usize, after: usize, is_closed: bool) -> Chunk<'_> {
        let start = self.start;
        (self.start, self.searched) = (after, after);
        let position = self.buffer_position + start as u64;
        Chunk { position, bytes: &self.buffer[start..end], is_closed }
    }

    fn discard_taken(&mut self) {
        self.buffer.drain(..self.start);
        self.buffer_position += self.start as u64;
        self.searched -= self.start;
        self.start = 0;
    }
}

const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// How much is read at least to see what a file is.
const PEEK_BYTES: usize = 64;

/// The text under `key` in a row, as bytes: an escaped lone surrogate makes them invalid UTF-8, which the policy handles.
fn text_of_row(row: &[u8], key: &str) -> std::result::Result<Vec<u8>, String> {
    let mut deserializer = serde_json::Deserializer::from_slice(row);
    let found =
        RowText { key }.deserialize(&mut deserializer).and_then(|text| deserializer.end().map(|()| text));
    match found {
        Ok(Some(text)) => Ok(text),
        Ok(None) => Err(format!("the row has no field \"{key}\"")),
        Err(error) => Err(format!("the row is not an object with a string under \"{key}\" ({error})")),
    }
}

/// The text of a value that is one itself, or of the field `key` of an object.
pub(super) fn text_of_value(value: &[u8], key: &str) -> std::result::Result<Vec<u8>, String> {
    if value.first() != Some(&b'"') {
        return text_of_row(value, key);
    }
    let mut deserializer = serde_json::Deserializer::from_slice(value);
    StringBytes.deserialize(&mut deserializer).map_err(|error| format!("the text is malformed ({error})"))
}

/// Finds one field of an object; of a repeated field the last counts, as everywhere in JSON.
struct RowText<'a> {
    key: &'a str,
}

impl<'de> DeserializeSeed<'de> for RowText<'_> {
    type Value = Option<Vec<u8>>;

    fn deserialize<D: Deserializer<'de>>(
        self,
        deserializer: D,
    ) -> std::result::Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for RowText<'_> {
    type Value = Option<Vec<u8>>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> std::result::Result<Self::Value, M::Error> {
        let mut text = None;
        while let Some(key) = map.next_key::<String>()? {
            if key == self.key {
                text = Some(map.next_value_seed(StringBytes)?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(text)
    }
}

/// A JSON string as bytes.
struct StringBytes;

impl<'de> DeserializeSeed<'de> for StringBytes {
    type Value = Vec<u8>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<Vec<u8>, D::Error> {
        deserializer.deserialize_bytes(self)
    }
}

impl Visitor<'_> for StringBytes {
    type Value = Vec<u8>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a string")
    }

    fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> std::result::Result<Vec<u8>, E> {
        Ok(bytes.to_vec())
    }
}
