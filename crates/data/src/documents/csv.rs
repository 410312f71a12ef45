//! The rows of a CSV file: one column of text, found by the name in the first row.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use csv::{ByteRecord, Reader, ReaderBuilder};

use super::RawDocument;
use super::open::OpenFile;
use crate::error::{Error, Result};

/// The rows of one file, as RFC 4180 has them: quotes keep commas and line ends, two quotes are one.
pub(super) struct CsvRows {
    reader: Reader<Bounded>,
    name: String,
    from_disk: Arc<AtomicU64>,
    /// What the parser took since the last row ended.
    taken: Arc<AtomicU64>,
    max_bytes: usize,
    column: usize,
    record: ByteRecord,
}

impl CsvRows {
    pub(super) fn open(file: OpenFile, text_key: &str, max_bytes: usize) -> Result<CsvRows> {
        let (name, from_disk) = (file.name().to_string(), file.disk_counter());
        let taken = Arc::new(AtomicU64::new(0));
        let bounded = Bounded { file, taken: Arc::clone(&taken), max_bytes: max_bytes as u64 };
        let reader = ReaderBuilder::new().buffer_capacity(BUFFER_BYTES).from_reader(bounded);
        let record = ByteRecord::new();
        let mut rows = CsvRows { reader, name, from_disk, taken, max_bytes, column: 0, record };
        let names = match rows.reader.byte_headers() {
            Ok(names) => names.clone(),
            Err(error) => return Err(rows.failed(error, 0)),
        };
        let found = names.iter().position(|name| name == text_key.as_bytes());
        rows.column = found.ok_or_else(|| {
            let names: Vec<_> = names.iter().take(20).map(String::from_utf8_lossy).collect();
            let reason = format!("there is no column \"{text_key}\" among {}", names.join(", "));
            Error::BadRow { file: rows.name.clone(), line: 1, reason }
        })?;
        Ok(rows)
    }

    pub(super) fn bytes_read(&self) -> u64 {
        self.from_disk.load(Ordering::Relaxed)
    }

    pub(super) fn next(&mut self) -> Result<Option<RawDocument>> {
        self.taken.store(0, Ordering::Relaxed);
        let position = self.reader.position().byte();
        match self.reader.read_byte_record(&mut self.record) {
            Ok(true) => {
                let bytes = self.record.get(self.column).unwrap_or_default().to_vec();
                Ok(Some(RawDocument { position, bytes }))
            }
            Ok(false) => Ok(None),
            Err(error) => Err(self.failed(error, position)),
        }
    }

    fn failed(&self, error: csv::Error, position: u64) -> Error {
        let line = error.position().map_or(1, csv::Position::line);
        match error.into_kind() {
            csv::ErrorKind::Io(source) => match source.downcast::<TooLong>() {
                Ok(TooLong) => Error::TooLarge {
                    file: self.name.clone(),
                    what: "a row",
                    position,
                    n_bytes: self.taken.load(Ordering::Relaxed),
                    max_bytes: self.max_bytes as u64,
                },
                Err(source) => match source.downcast::<Error>() {
                    Ok(error) => error,
                    Err(source) => Error::Read { path: self.name.clone().into(), source },
                },
            },
            csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
                let reason = format!("the row has {len} fields and the first row {expected_len}");
                Error::BadRow { file: self.name.clone(), line, reason }
            }
            other => {
                let reason = format!("the row cannot be read ({other:?})");
                Error::BadRow { file: self.name.clone(), line, reason }
            }
        }
    }
}

/// How much the parser reads ahead.
const BUFFER_BYTES: usize = 64 << 10;

/// A file that refuses to give more than a row may take.
struct Bounded {
    file: OpenFile,
    taken: Arc<AtomicU64>,
    max_bytes: u64,
}

impl Read for Bounded {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.taken.load(Ordering::Relaxed) > self.max_bytes {
            return Err(io::Error::other(TooLong));
        }
        let count = self.file.read_some(out).map_err(io::Error::other)?;
        self.taken.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

/// The row does not end where it should have.
#[derive(Debug, thiserror::Error)]
#[error("the row is too long")]
struct TooLong;
