//! The text of a corpus in chunks of bounded size, for whoever counts pieces and needs no whole documents.
//!
//! A document that is longer than a chunk is cut where that changes no piece; what cannot be cut is held whole. A file that is
//! text is never held whole otherwise.

use std::ops::Range;

use ironmill_text::TextCuts;
use memchr::memmem::Finder;

use super::open::OpenFile;
use super::{BadUtf8, Format, Inputs, RawDocument, Reading, SourceKind};
use crate::error::{Error, Result};

/// A stretch of text from one input.
#[derive(Debug, Default)]
pub struct Chunk {
    text: String,
    parts: Vec<ChunkPart>,
    file_idx: usize,
}

/// A document, or a part of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChunkPart {
    /// Its place in the chunk's text. It may be empty where nothing is left of a document but its end.
    pub(crate) range: Range<usize>,
    /// Where in its file it starts.
    pub(crate) position: u64,
    /// Whether a document starts with it.
    pub(crate) starts: bool,
    /// Whether its document ends with it.
    pub(crate) ends: bool,
}

impl Chunk {
    /// The documents, or parts of documents, and where in its file each starts.
    pub fn parts(&self) -> impl Iterator<Item = (&str, u64)> {
        self.parts.iter().map(|part| (&self.text[part.range.clone()], part.position))
    }

    /// The text of all parts.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The parts with what is known of them.
    pub(crate) fn pieces(&self) -> &[ChunkPart] {
        &self.parts
    }

    /// Which of the inputs it comes from.
    pub fn file_idx(&self) -> usize {
        self.file_idx
    }
}

/// The chunks of a corpus, in order. After an error it is not to be used.
pub struct TextChunks<'a> {
    inputs: &'a Inputs,
    cuts: TextCuts,
    sizes: ChunkSizes,
    next_source: usize,
    end_source: usize,
    refuses_empty: bool,
    current: Option<Current>,
    bytes_before: u64,
    documents: u64,
    skipped: u64,
}

/// How text is shared out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChunkSizes {
    /// How much text makes a chunk.
    pub(crate) chunk_bytes: usize,
    /// The longest document that is never cut.
    pub(crate) whole_bytes: usize,
    /// The most text that is held whole because it cannot be cut.
    pub(crate) max_bytes: usize,
}

enum Current {
    /// Cut wherever that is allowed.
    Streamed(Box<Streamed>),
    /// By whole documents, of which a long one is cut when it is there.
    Whole { reading: Box<Reading>, long: Option<LongDocument> },
}

/// A document that is given out in parts.
struct LongDocument {
    text: String,
    /// How much of it was given out.
    given: usize,
    position: u64,
}

/// A text file being read.
struct Streamed {
    file: OpenFile,
    finder: Option<Finder<'static>>,
    /// What was read and not given out with the last chunk.
    pending: Vec<u8>,
    /// Where in the file that starts.
    position: u64,
    /// Whether a part of the document that `pending` begins with was given out.
    in_document: bool,
    ended: bool,
}

/// The part of the memory that text may take which must be held at once, and so may a window, page or row.
pub const HELD_SHARE: u64 = 8;

/// How much is read at once.
const READ_BYTES: usize = 1 << 20;

impl Inputs {
    /// The text of all inputs in chunks of about `chunk_bytes`, cut by `cuts`. More than the
    /// [share](HELD_SHARE) of `memory` for it that must be held at once, because it cannot be cut, is an error.
    pub fn chunks(&self, cuts: TextCuts, chunk_bytes: usize, memory: usize) -> TextChunks<'_> {
        let max_bytes = memory / HELD_SHARE as usize;
        let sizes = ChunkSizes { chunk_bytes, whole_bytes: 0, max_bytes };
        let chunks = self.chunks_of(0..self.sources.len(), cuts, sizes);
        TextChunks { refuses_empty: !self.may_be_empty, ..chunks }
    }

    /// The text of some of the inputs, which may have none.
    pub(crate) fn chunks_of(
        &self,
        sources: Range<usize>,
        cuts: TextCuts,
        sizes: ChunkSizes,
    ) -> TextChunks<'_> {
        TextChunks {
            inputs: self,
            cuts,
            sizes,
            next_source: sources.start,
            end_source: sources.end,
            refuses_empty: false,
            current: None,
            bytes_before: 0,
            documents: 0,
            skipped: 0,
        }
    }
}

impl TextChunks<'_> {
    /// Goes to the next chunk, whose memory is used again; `false` at the end.
    pub fn next(&mut self, chunk: &mut Chunk) -> Result<bool> {
        loop {
            chunk.parts.clear();
            let Some(current) = &mut self.current else {
                if self.next_source == self.end_source {
                    let is_empty = self.documents == 0 && self.refuses_empty;
                    return if is_empty { Err(self.inputs.empty()) } else { Ok(false) };
                }
                let source = &self.inputs.sources[self.next_source];
                let options = &self.inputs.options;
                self.current = Some(match &source.kind {
                    // Whether a document is left out is known only at its end.
                    SourceKind::File { path, format: Format::Text, compression }
                        if options.on_bad_utf8 != BadUtf8::Skip =>
                    {
                        let max_bytes = self.sizes.max_bytes;
                        let file = OpenFile::open(path, &source.record.name, *compression, max_bytes)?;
                        Current::Streamed(Box::new(Streamed::new(
                            file,
                            options.document_separator.as_deref(),
                        )))
                    }
                    _ => Current::Whole {
                        reading: Box::new(Reading::open(source, options, self.sizes.max_bytes)?),
                        long: None,
                    },
                });
                self.next_source += 1;
                continue;
            };
            let file_idx = self.next_source - 1;
            let source = &self.inputs.sources[file_idx];
            chunk.file_idx = file_idx;
            let policy = self.inputs.options.on_bad_utf8;
            let has_more = match current {
                Current::Streamed(streamed) => {
                    let (n_documents, has_more) = streamed.next(chunk, &self.cuts, self.sizes, policy)?;
                    self.documents += n_documents;
                    has_more
                }
                Current::Whole { reading, long } => {
                    chunk.text.clear();
                    let mut has_more = true;
                    while chunk.text.len() < self.sizes.chunk_bytes {
                        if let Some(document) = long {
                            if document.next(chunk, &self.cuts, self.sizes.chunk_bytes) {
                                *long = None;
                            }
                            break;
                        }
                        let Some(RawDocument { position, bytes }) = reading.next()? else {
                            has_more = false;
                            break;
                        };
                        let max_bytes = self.sizes.max_bytes;
                        if bytes.len() > max_bytes {
                            return Err(too_long(&source.record.name, position, bytes.len(), max_bytes));
                        }
                        let Some(document) = policy.apply(bytes, &source.record.name, position)? else {
                            self.skipped += 1;
                            continue;
                        };
                        if is_blank(&document) {
                            continue;
                        }
                        self.documents += 1;
                        if document.len() > self.sizes.whole_bytes.max(self.sizes.chunk_bytes) {
                            *long = Some(LongDocument { text: document, given: 0, position });
                            // It starts a chunk of its own.
                            if chunk.parts.is_empty() { continue } else { break }
                        }
                        let start = chunk.text.len();
                        chunk.text.push_str(&document);
                        let range = start..chunk.text.len();
                        chunk.parts.push(ChunkPart { range, position, starts: true, ends: true });
                    }
                    has_more
                }
            };
            if !has_more {
                self.current = None;
                self.bytes_before += source.record.bytes;
            }
            if !chunk.parts.is_empty() {
                return Ok(true);
            }
        }
    }

    /// How many bytes of the inputs, as they lie on disk, have been read so far.
    pub fn bytes_read(&self) -> u64 {
        let current = match &self.current {
            None => 0,
            Some(Current::Streamed(streamed)) => streamed.file.bytes_from_disk(),
            Some(Current::Whole { reading, .. }) => reading.bytes_read(),
        };
        self.bytes_before + current
    }

    /// How many files have been begun.
    pub fn files_begun(&self) -> u64 {
        self.next_source as u64
    }

    /// How many documents have been given out so far.
    pub fn documents(&self) -> u64 {
        self.documents
    }

    /// How many documents have been left out so far because they are not UTF-8.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }
}

impl LongDocument {
    /// Makes the next part of it the chunk's text; says whether that was the last one.
    fn next(&mut self, chunk: &mut Chunk, cuts: &TextCuts, chunk_bytes: usize) -> bool {
        let rest = &self.text[self.given..];
        let mut wanted = chunk_bytes;
        let length = loop {
            if wanted >= rest.len() {
                break rest.len();
            }
            match cuts.last(&rest[..rest.floor_char_boundary(wanted)]) {
                Some(cut) => break cut,
                None => wanted *= 2,
            }
        };
        chunk.text.clear();
        chunk.text.push_str(&rest[..length]);
        let (starts, ends) = (self.given == 0, length == rest.len());
        let position = self.position + self.given as u64;
        chunk.parts.push(ChunkPart { range: 0..length, position, starts, ends });
        self.given += length;
        ends
    }
}

impl Streamed {
    fn new(file: OpenFile, separator: Option<&str>) -> Self {
        let finder = separator.map(|separator| Finder::new(separator.as_bytes()).into_owned());
        Self { file, finder, pending: Vec::new(), position: 0, in_document: false, ended: false }
    }

    /// Fills the chunk; says how many documents ended in it, and whether there may be more.
    fn next(
        &mut self,
        chunk: &mut Chunk,
        cuts: &TextCuts,
        sizes: ChunkSizes,
        policy: BadUtf8,
    ) -> Result<(u64, bool)> {
        let max_bytes = sizes.max_bytes;
        let mut wanted = sizes.chunk_bytes;
        // Text is read into the chunk's own memory, which is near to the core that asks for it.
        let mut bytes = std::mem::take(&mut chunk.text).into_bytes();
        bytes.clear();
        bytes.append(&mut self.pending);
        loop {
            self.read_until(wanted, &mut bytes)?;
            // A character that the end of what was read cuts in two waits for its other half.
            let n_waiting = if self.ended { 0 } else { n_incomplete(&bytes) };
            let waiting = bytes.split_off(bytes.len() - n_waiting);
            let text = self.valid_text(bytes, policy)?;
            let (given, n_documents) = self.cut(&text, chunk, cuts, sizes.whole_bytes);
            if given == 0 && !self.ended {
                if text.len() > max_bytes {
                    return Err(too_long(self.file.name(), self.position, text.len(), max_bytes));
                }
                bytes = text.into_bytes();
                bytes.extend_from_slice(&waiting);
                wanted = bytes.len() * 2;
                continue;
            }
            chunk.text = text;
            self.pending.extend_from_slice(&chunk.text.as_bytes()[given..]);
            self.pending.extend_from_slice(&waiting);
            self.position += given as u64;
            return Ok((n_documents, !self.ended || !self.pending.is_empty()));
        }
    }

    fn read_until(&mut self, wanted: usize, bytes: &mut Vec<u8>) -> Result<()> {
        while !self.ended && bytes.len() < wanted {
            self.ended = self.file.read_up_to(READ_BYTES.min(wanted), bytes)? == 0;
            if self.position == 0 && bytes.starts_with(BYTE_ORDER_MARK) {
                bytes.drain(..BYTE_ORDER_MARK.len());
                self.position = BYTE_ORDER_MARK.len() as u64;
            }
        }
        Ok(())
    }

    /// What was read as text under the policy. Where something was replaced, later positions are those after replacing.
    fn valid_text(&self, bytes: Vec<u8>, policy: BadUtf8) -> Result<String> {
        String::from_utf8(bytes).or_else(|error| match policy {
            BadUtf8::Replace => Ok(String::from_utf8_lossy(error.as_bytes()).into_owned()),
            _ => {
                let offset = self.position + error.utf8_error().valid_up_to() as u64;
                Err(Error::BadUtf8 { file: self.file.name().into(), offset })
            }
        })
    }

    /// Notes the documents in `text`, and the part of the last one up to where it may be cut if it is not complete. Gives how
    /// much of the text that is, and how many documents ended.
    fn cut(&mut self, text: &str, chunk: &mut Chunk, cuts: &TextCuts, whole_bytes: usize) -> (usize, u64) {
        let mut start = 0;
        let mut n_documents = 0;
        let mut note = |range: Range<usize>, is_whole: bool, in_document: &mut bool| {
            let position = self.position + range.start as u64;
            if *in_document || !is_blank(&text[range.clone()]) {
                chunk.parts.push(ChunkPart { range, position, starts: !*in_document, ends: is_whole });
                n_documents += u64::from(is_whole);
                *in_document = !is_whole;
            }
        };
        if let Some(finder) = &self.finder {
            for found in finder.find_iter(text.as_bytes()) {
                note(start..found, true, &mut self.in_document);
                start = found + finder.needle().len();
            }
        }
        if self.ended {
            if start < text.len() || self.in_document {
                note(start..text.len(), true, &mut self.in_document);
            }
            return (text.len(), n_documents);
        }
        // A separator may begin in the last bytes.
        let overlap = self.finder.as_ref().map_or(0, |finder| finder.needle().len() - 1);
        let end = text.floor_char_boundary(text.len().saturating_sub(overlap)).max(start);
        let open = &text[start..end];
        if !self.in_document && open.len() <= whole_bytes {
            return (start, n_documents);
        }
        if let Some(cut) = cuts.last(open).filter(|&cut| !is_blank(&open[..cut])) {
            note(start..start + cut, false, &mut self.in_document);
            start += cut;
        }
        (start, n_documents)
    }
}

const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// How many bytes at the end may be the start of a character.
fn n_incomplete(bytes: &[u8]) -> usize {
    let last = &bytes[bytes.len().saturating_sub(3)..];
    match std::str::from_utf8(last) {
        Ok(_) => 0,
        // The first of these bytes may be in the middle of a character, which is no concern here.
        Err(_) => (1..=last.len())
            .find(|&n| {
                let end = &last[last.len() - n..];
                end[0] >= 0xc0
                    && std::str::from_utf8(end)
                        .is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
            })
            .unwrap_or(0),
    }
}

fn too_long(file: &str, position: u64, n_bytes: usize, max_bytes: usize) -> Error {
    let (n_bytes, max_bytes) = (n_bytes as u64, max_bytes as u64);
    Error::TooLarge { file: file.into(), what: "text that cannot be cut", position, n_bytes, max_bytes }
}

fn is_blank(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_whitespace())
}
