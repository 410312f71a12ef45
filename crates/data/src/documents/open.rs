//! Files as streams of decompressed bytes, with the count of bytes taken from the disk.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bzip2::bufread::MultiBzDecoder;
use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use crate::error::{Error, Result};

/// How a file is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
    None,
    Gzip,
    Zstd,
    Bzip2,
}

/// What names the standard input.
pub(super) const STDIN: &str = "-";

/// A file being read: its decompressed bytes, and where in them we are.
pub(super) struct OpenFile {
    name: String,
    reader: Box<dyn Read + Send>,
    compression: Compression,
    from_disk: Arc<AtomicU64>,
    position: u64,
}

impl OpenFile {
    /// Opens a file; one whose compression has to look back over more than `max_bytes` is refused when it is read.
    pub(super) fn open(
        path: &Path,
        name: &str,
        compression: Compression,
        max_bytes: usize,
    ) -> Result<OpenFile> {
        let file: Box<dyn Read + Send> = if path.as_os_str() == STDIN {
            Box::new(io::stdin())
        } else {
            Box::new(File::open(path).map_err(|source| match source.kind() {
                io::ErrorKind::NotFound => Error::MissingInput { path: name.into() },
                _ => Error::Read { path: path.to_path_buf(), source },
            })?)
        };
        let from_disk = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&from_disk);
        let buffered = |file| BufReader::with_capacity(READ_BYTES, Counted { file, count });
        let reader: Box<dyn Read + Send> = match compression {
            // Nothing lies between us and the system, which needs no clean memory to read into as other readers do.
            Compression::None => file,
            Compression::Gzip => Box::new(MultiGzDecoder::new(buffered(file))),
            Compression::Bzip2 => Box::new(MultiBzDecoder::new(buffered(file))),
            Compression::Zstd => Box::new(zstd_reader(buffered(file), max_bytes)),
        };
        Ok(OpenFile { name: name.into(), reader, compression, from_disk, position: 0 })
    }

    /// The name for messages.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// How many bytes have been taken from the disk.
    pub(super) fn bytes_from_disk(&self) -> u64 {
        self.from_disk.load(Ordering::Relaxed)
    }

    /// Counts the bytes taken from the disk, for who gives the file away.
    pub(super) fn disk_counter(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.from_disk)
    }

    /// Reads some bytes into `out`; zero at the end of the file.
    pub(super) fn read_some(&mut self, out: &mut [u8]) -> Result<usize> {
        loop {
            match self.reader.read(out) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(self.error(source)),
                Ok(count) => {
                    self.advance(count);
                    return Ok(count);
                }
            }
        }
    }

    fn advance(&mut self, n_bytes: usize) {
        self.position += n_bytes as u64;
        if self.compression == Compression::None {
            self.from_disk.fetch_add(n_bytes as u64, Ordering::Relaxed);
        }
    }

    /// Appends up to [`READ_BYTES`] more bytes to `buffer`; zero at the end of the file.
    pub(super) fn read_more(&mut self, buffer: &mut Vec<u8>) -> Result<usize> {
        let start = buffer.len();
        buffer.resize(start + READ_BYTES, 0);
        let result = self.read_some(&mut buffer[start..]);
        buffer.truncate(start + *result.as_ref().unwrap_or(&0));
        result
    }

    /// Appends up to `n_bytes` more bytes to `buffer`; zero at the end of the file.
    pub(super) fn read_up_to(&mut self, n_bytes: usize, buffer: &mut Vec<u8>) -> Result<usize> {
        let start = buffer.len();
        buffer.reserve_exact(n_bytes);
        let result = (&mut self.reader).take(n_bytes as u64).read_to_end(buffer);
        let count = buffer.len() - start;
        self.advance(count);
        result.map_err(|source| self.error(source))?;
        Ok(count)
    }

    fn error(&self, source: io::Error) -> Error {
        let cause = source.get_ref().and_then(|cause| cause.downcast_ref::<FrameDecoderError>());
        if let Some(&FrameDecoderError::WindowSizeTooBig { requested, max }) = cause {
            let (file, what) = (self.name.clone(), "a zstd window");
            return Error::TooLarge {
                file,
                what,
                position: self.position,
                n_bytes: requested,
                max_bytes: max,
            };
        }
        // Errors of the disk carry a system code; those of a decompressor do not.
        if self.compression == Compression::None || source.raw_os_error().is_some() {
            return Error::Read { path: self.name.clone().into(), source };
        }
        Error::DamagedInput { file: self.name.clone(), offset: self.position, reason: source.to_string() }
    }
}

/// The largest window that zstd itself makes; a file that asks for more is damaged.
const MAX_WINDOW_BYTES: u64 = 2 << 30;

/// How much is read at once.
const READ_BYTES: usize = 256 * 1024;

/// Counts what a decompressor reads from a file.
struct Counted {
    file: Box<dyn Read + Send>,
    count: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(out)?;
        self.count.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

/// Reads what zstd has packed; a window of more than `max_bytes` is an error.
pub(super) fn zstd_reader<R: BufRead>(source: R, max_bytes: usize) -> impl Read + use<R> {
    let mut decoder = FrameDecoder::new();
    decoder.set_max_window_size(MAX_WINDOW_BYTES.min(max_bytes as u64));
    Zstd { source, decoder, in_frame: false }
}

/// Decompresses all frames of a zstd file, skips its skippable ones, and checks the frames' checksums.
struct Zstd<R> {
    source: R,
    decoder: FrameDecoder,
    in_frame: bool,
}

impl<R: BufRead> Zstd<R> {
    /// Starts the next frame; `false` at the end of the file.
    fn start_frame(&mut self) -> io::Result<bool> {
        while !self.source.fill_buf()?.is_empty() {
            match self.decoder.reset(&mut self.source) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let length = u64::from(length);
                    if io::copy(&mut self.source.by_ref().take(length), &mut io::sink())? != length {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        Ok(false)
    }
}

impl<R: BufRead> Read for Zstd<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.in_frame {
                self.in_frame = self.start_frame()?;
                if !self.in_frame {
                    return Ok(0);
                }
            }
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                self.decoder
                    .decode_blocks(&mut self.source, BlockDecodingStrategy::UptoBlocks(1))
                    .map_err(io::Error::other)?;
            }
            let count = self.decoder.read(out)?;
            if count > 0 || out.is_empty() {
                return Ok(count);
            }
            let stored = self.decoder.get_checksum_from_data();
            if stored.is_some() && stored != self.decoder.get_calculated_checksum() {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "a frame does not match its checksum",
                ));
            }
            self.in_frame = false;
        }
    }
}
