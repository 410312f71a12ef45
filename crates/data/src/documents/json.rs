//! The rows of a JSON file: the elements of one array, or values one after the other, each an object or a text.

use super::open::OpenFile;
use super::split::text_of_value;
use super::{BadUtf8, RawDocument};
use crate::error::{Error, Result};

/// The rows of one file, of which one at a time is held.
pub(super) struct JsonValues {
    file: OpenFile,
    text_key: String,
    on_bad_utf8: BadUtf8,
    max_bytes: usize,
    buffer: Vec<u8>,
    /// Where in the buffer the next thing starts.
    start: usize,
    /// Where in the file the buffer starts.
    buffer_position: u64,
    ended: bool,
    place: Place,
}

/// What may come next.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    /// A value, an array of rows, or the end.
    Top,
    /// The first row of an array, or its end.
    First,
    /// A row, because a comma was there.
    Row,
    /// A comma, or the end of the array.
    AfterRow,
}

/// Where the scan of a value stands.
#[derive(Default)]
struct Scan {
    depth: u64,
    in_text: bool,
    escaped: bool,
}

impl JsonValues {
    pub(super) fn new(file: OpenFile, text_key: &str, on_bad_utf8: BadUtf8, max_bytes: usize) -> JsonValues {
        let (buffer, start, buffer_position) = (Vec::new(), 0, 0);
        let (ended, place, text_key) = (false, Place::Top, text_key.into());
        JsonValues { file, text_key, on_bad_utf8, max_bytes, buffer, start, buffer_position, ended, place }
    }

    pub(super) fn bytes_read(&self) -> u64 {
        self.file.bytes_from_disk()
    }

    /// The next row's text. A row that is not UTF-8 is passed on unread where the policy will refuse or skip it.
    pub(super) fn next(&mut self) -> Result<Option<RawDocument>> {
        loop {
            let Some(byte) = self.next_sign()? else {
                return match self.place {
                    Place::Top => Ok(None),
                    _ => Err(self.bad("the file ends inside the array".into())),
                };
            };
            match (self.place, byte) {
                (Place::Top, b'[') => (self.place, self.start) = (Place::First, self.start + 1),
                (Place::First | Place::AfterRow, b']') => {
                    (self.place, self.start) = (Place::Top, self.start + 1);
                }
                (Place::AfterRow, b',') => (self.place, self.start) = (Place::Row, self.start + 1),
                (Place::AfterRow, _) => return Err(self.bad("a comma is missing between two rows".into())),
                (_, b'{' | b'"') => {
                    if self.place != Place::Top {
                        self.place = Place::AfterRow;
                    }
                    return self.value().map(Some);
                }
                _ => return Err(self.bad("a row is neither an object nor a text".into())),
            }
        }
    }

    /// The next byte that is no white space, which is not taken.
    fn next_sign(&mut self) -> Result<Option<u8>> {
        loop {
            let rest = &self.buffer[self.start..];
            if let Some(found) = rest.iter().position(|byte| !byte.is_ascii_whitespace()) {
                self.start += found;
                return Ok(Some(self.buffer[self.start]));
            }
            self.start = self.buffer.len();
            if self.ended {
                return Ok(None);
            }
            self.read_more()?;
        }
    }

    /// Takes the object or text that starts here.
    fn value(&mut self) -> Result<RawDocument> {
        let mut scan = Scan::default();
        let mut scanned = 0;
        let length = loop {
            if let Some(length) = scan.end(&self.buffer[self.start + scanned..]) {
                break scanned + length;
            }
            scanned = self.buffer.len() - self.start;
            if self.ended {
                return Err(self.bad("the file ends inside a row".into()));
            }
            if scanned > self.max_bytes {
                return Err(Error::TooLarge {
                    file: self.file.name().into(),
                    what: "a row",
                    position: self.position(),
                    n_bytes: scanned as u64,
                    max_bytes: self.max_bytes as u64,
                });
            }
            self.read_more()?;
        };
        let position = self.position();
        let bytes = &self.buffer[self.start..self.start + length];
        let replaced = match (std::str::from_utf8(bytes), self.on_bad_utf8) {
            (Ok(_), _) => None,
            (Err(_), BadUtf8::Replace) => Some(String::from_utf8_lossy(bytes).into_owned()),
            (Err(_), _) => {
                let bytes = bytes.to_vec();
                self.start += length;
                return Ok(RawDocument { position, bytes });
            }
        };
        let row = replaced.as_deref().map_or(bytes, str::as_bytes);
        let bytes = text_of_value(row, &self.text_key).map_err(|reason| self.bad(reason))?;
        self.start += length;
        Ok(RawDocument { position, bytes })
    }

    fn read_more(&mut self) -> Result<()> {
        self.buffer.drain(..self.start);
        self.buffer_position += self.start as u64;
        self.start = 0;
        self.ended = self.file.read_more(&mut self.buffer)? == 0;
        if self.buffer_position == 0 && self.buffer.starts_with(BYTE_ORDER_MARK) {
            self.start = BYTE_ORDER_MARK.len();
        }
        Ok(())
    }

    fn position(&self) -> u64 {
        self.buffer_position + self.start as u64
    }

    fn bad(&self, reason: String) -> Error {
        Error::BadElement { file: self.file.name().into(), position: self.position(), reason }
    }
}

const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

impl Scan {
    /// How many of the bytes belong to the value, if it ends in them.
    fn end(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        while at < bytes.len() {
            if self.in_text {
                if self.escaped {
                    self.escaped = false;
                    at += 1;
                    continue;
                }
                // Text is most of a file, and nearly all of it is neither.
                at += memchr::memchr2(b'"', b'\\', &bytes[at..])?;
                self.escaped = bytes[at] == b'\\';
                self.in_text = self.escaped;
            } else {
                match bytes[at] {
                    b'"' => self.in_text = true,
                    b'{' | b'[' => self.depth += 1,
                    b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                    _ => {}
                }
            }
            at += 1;
            if self.depth == 0 && !self.in_text {
                return Some(at);
            }
        }
        None
    }
}
