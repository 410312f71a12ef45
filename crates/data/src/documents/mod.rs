//! Documents from what people have: files, folders, patterns and built-in corpora, as one stream in a fixed order.
//!
//! A text file (`.txt`, `.md`, or any other file that is named outright) is one document unless a separator splits it. A row
//! of a `.jsonl` or `.csv` file is one, and so are an element of the array in a `.json` file, a row of a `.parquet` file, an
//! article of a MediaWiki dump (`.xml`), and a `<doc>` or row of WikiExtractor's files (`wiki_00` and so on). All but parquet may
//! be compressed (`.gz`, `.zst`, `.bz2`). A document of nothing but white space is none, and a byte order mark at the start of
//! a file is dropped.
//!
//! [`Documents`] holds one document at a time. [`TextChunks`] holds less: it cuts long texts on the way.

mod chunks;
mod csv;
mod json;
mod open;
mod parquet;
mod specs;
mod split;
mod wiki;

use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::Xxh3Default;

use crate::builtin::Stories;
use crate::error::{Error, Result};
use crate::manifest::InputRecord;
pub(crate) use chunks::ChunkSizes;
pub use chunks::{Chunk, HELD_SHARE, TextChunks};
use csv::CsvRows;
use json::JsonValues;
use open::{Compression, OpenFile};
use parquet::ParquetRows;
pub(crate) use specs::record;
use split::{Chunks, JsonLines, Pieces};
use wiki::{Extracted, WikiDump};

/// What to do with text that is not UTF-8.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BadUtf8 {
    /// Stop with an error that names the file and the offset.
    #[default]
    Error,
    /// Put U+FFFD in place of what is wrong.
    Replace,
    /// Leave the document out and count it.
    Skip,
}

impl BadUtf8 {
    /// The policy of that name (`error`, `replace` or `skip`).
    pub fn from_name(name: &str) -> Result<BadUtf8> {
        [BadUtf8::Error, BadUtf8::Replace, BadUtf8::Skip]
            .into_iter()
            .find(|policy| policy.name() == name)
            .ok_or_else(|| Error::BadSetting {
                name: "on_bad_utf8",
                value: format!("'{name}'"),
                advice: "choose error, replace or skip".into(),
            })
    }

    /// The name in configurations and manifests.
    pub fn name(self) -> &'static str {
        match self {
            BadUtf8::Error => "error",
            BadUtf8::Replace => "replace",
            BadUtf8::Skip => "skip",
        }
    }
}

/// How inputs are found and read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputOptions {
    /// The text that separates documents inside a text file; it belongs to no document.
    pub document_separator: Option<String>,
    /// The field of a JSON row, or the column of a CSV or parquet file, that holds the text.
    pub text_key: String,
    /// What to do with text that is not UTF-8.
    pub on_bad_utf8: BadUtf8,
    /// Take only so many of the files, chosen by the seed and kept in order.
    pub sample: Option<u64>,
    /// The seed of built-in corpora and of the choice of files.
    pub seed: u64,
    /// Whether `-` is the standard input, which can be read only once. Otherwise it is a file of that name.
    pub may_read_stdin: bool,
}

impl Default for InputOptions {
    fn default() -> InputOptions {
        InputOptions {
            document_separator: None,
            text_key: "text".into(),
            on_bad_utf8: BadUtf8::Error,
            sample: None,
            seed: 1,
            may_read_stdin: false,
        }
    }
}

/// The inputs of a corpus, found and ready to be read as often as needed.
#[derive(Clone, Debug)]
pub struct Inputs {
    sources: Vec<Source>,
    options: InputOptions,
    ignored_files: u64,
    /// A task may have nothing to do, which is no mistake.
    may_be_empty: bool,
    section_bytes: u64,
}

/// The size of a section of inputs, on average.
const SECTION_BYTES: u64 = 256 << 20;

/// One file or built-in corpus.
#[derive(Clone, Debug)]
struct Source {
    record: InputRecord,
    kind: SourceKind,
}

#[derive(Clone, Debug)]
enum SourceKind {
    File { path: PathBuf, format: Format, compression: Compression },
    Stories { bytes: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Text,
    JsonLines,
    Json,
    Csv,
    Parquet,
    WikiDump,
    WikiExtracted,
}

/// One document of a corpus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// Which of the inputs it comes from; [`Inputs::names`] has its name.
    pub file_idx: usize,
    /// Where it starts in that file, in bytes after decompression: where its row, element or page starts; for parquet, the
    /// number of its row.
    pub position: u64,
    /// The text.
    pub text: String,
}

impl Inputs {
    /// Finds the inputs that the specs name, in the order of the specs.
    ///
    /// A spec is a file, a folder (all files of known kinds below it, sorted by path, without hidden ones), a pattern with `*`,
    /// `?` or `**` (sorted likewise), or `builtin:stories:SIZE`, a generated corpus.
    pub fn from_specs(specs: &[String], options: &InputOptions) -> Result<Inputs> {
        if options.document_separator.as_deref() == Some("") {
            return Err(Error::BadSetting {
                name: "document_separator",
                value: "empty".into(),
                advice: "give a text such as <|endoftext|>, or leave it out".into(),
            });
        }
        if specs.is_empty() {
            return Err(Error::EmptyCorpus { inputs: "none is named".into() });
        }
        let mut found = specs::Found::default();
        for spec in specs {
            specs::resolve(spec, options.may_read_stdin, &mut found)?;
        }
        if let Some(wanted) = options.sample {
            specs::sample(&mut found.sources, wanted, options.seed)?;
        }
        Ok(Inputs {
            sources: found.sources,
            options: options.clone(),
            ignored_files: found.ignored,
            may_be_empty: false,
            section_bytes: SECTION_BYTES,
        })
    }

    /// The share of one of several tasks: every `of`-th input, from the `task`-th on. It may be empty.
    #[must_use]
    pub fn task(mut self, task: u64, of: u64) -> Inputs {
        let mut idx = 0;
        self.sources.retain(|_| {
            idx += 1;
            (idx - 1) % of == task
        });
        self.may_be_empty |= of > 1;
        self
    }

    /// The names of all inputs; a document's `file_idx` points here.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.sources.iter().map(|source| source.record.name.as_str())
    }

    /// The inputs with sizes and times, as a manifest keeps them.
    pub fn records(&self) -> Vec<InputRecord> {
        self.sources.iter().map(|source| source.record.clone()).collect()
    }

    /// How the inputs are read.
    pub fn options(&self) -> &InputOptions {
        &self.options
    }

    /// The size of all inputs on disk, the total of [`Documents::bytes_read`].
    pub fn total_bytes(&self) -> u64 {
        self.sources.iter().map(|source| source.record.bytes).sum()
    }

    /// Whether reading them again would give the same, so that what was made of them need not be made again.
    pub fn are_repeatable(&self) -> bool {
        !self.options.may_read_stdin || !self.names().any(|name| name == open::STDIN)
    }

    /// How large a section of them is on average, when they are prepared.
    pub(crate) fn section_bytes(&self) -> u64 {
        self.section_bytes
    }

    /// The same inputs in smaller sections.
    #[cfg(test)]
    pub(crate) fn with_section_bytes(self, section_bytes: u64) -> Inputs {
        Inputs { section_bytes, ..self }
    }

    /// The length of the corpus if it is surely one document, and a length can be told without reading it.
    pub(crate) fn only_document_bytes(&self) -> Option<u64> {
        let [Source { record, kind: SourceKind::File { format, compression, .. } }] = &self.sources[..]
        else {
            return None;
        };
        let is_one = *format == Format::Text
            && *compression == Compression::None
            && self.options.document_separator.is_none()
            && self.options.on_bad_utf8 != BadUtf8::Skip;
        is_one.then_some(record.bytes)
    }

    /// An error if one of these inputs is not what it was when it was found.
    pub(crate) fn check_unchanged(&self, sources: Range<usize>) -> Result<()> {
        for Source { record, kind } in &self.sources[sources] {
            let SourceKind::File { path, .. } = kind else { continue };
            if record.name == open::STDIN {
                continue;
            }
            if specs::record(path)? != *record {
                return Err(Error::ChangedInput { file: record.name.clone() });
            }
        }
        Ok(())
    }

    /// Copies what comes from the standard input to a file, so that it can be read more than once; a no-op if none does.
    ///
    /// The copy is known by its content: the same text is the same input.
    pub fn hold_stdin(&mut self, copy: &Path) -> Result<()> {
        let is_stdin = |source: &&mut Source| matches!(&source.kind, SourceKind::File { path, .. } if path.as_os_str() == open::STDIN);
        let Some(source) = self.sources.iter_mut().find(is_stdin).filter(|_| self.options.may_read_stdin)
        else {
            return Ok(());
        };
        let mut stdin = OpenFile::open(Path::new(open::STDIN), open::STDIN, Compression::None, usize::MAX)?;
        let mut file = File::create(copy).map_err(Error::write(copy))?;
        let (mut hasher, mut buffer, mut bytes) = (Xxh3Default::new(), Vec::new(), 0);
        while stdin.read_more(&mut buffer)? > 0 {
            hasher.update(&buffer);
            file.write_all(&buffer).map_err(Error::write(copy))?;
            bytes += buffer.len() as u64;
            buffer.clear();
        }
        source.record = InputRecord { name: open::STDIN.into(), bytes, modified_ns: hasher.digest() };
        let (path, format, compression) = (copy.to_path_buf(), Format::Text, Compression::None);
        source.kind = SourceKind::File { path, format, compression };
        Ok(())
    }

    /// How many files in folders were passed over because their kind is not known.
    pub fn ignored_files(&self) -> u64 {
        self.ignored_files
    }

    /// All documents, in order, from the beginning.
    pub fn documents(&self) -> Documents<'_> {
        Documents { inputs: self, next_source: 0, current: None, bytes_before: 0, skipped: 0, failed: false }
    }

    /// Gives every document to `visit`, in order, and says how many there were; stops at the first error.
    ///
    /// A corpus without any document is an error.
    pub fn for_each(&self, mut visit: impl FnMut(Document) -> Result<()>) -> Result<u64> {
        let mut count = 0;
        for document in self.documents() {
            visit(document?)?;
            count += 1;
        }
        if count == 0 { Err(self.empty()) } else { Ok(count) }
    }

    /// The error of a corpus that has no document.
    pub(crate) fn empty(&self) -> Error {
        let names: Vec<&str> = self.names().take(3).collect();
        let more = if self.sources.len() > 3 { ", …" } else { "" };
        Error::EmptyCorpus { inputs: format!("{}{more}", names.join(", ")) }
    }
}

/// The documents of a corpus, one after the other. After an error it ends.
pub struct Documents<'a> {
    inputs: &'a Inputs,
    next_source: usize,
    current: Option<Reading>,
    /// The sizes of the inputs that have been read to their end.
    bytes_before: u64,
    skipped: u64,
    failed: bool,
}

/// The input that is being read.
enum Reading {
    Pieces(Pieces),
    JsonLines(JsonLines),
    Json(JsonValues),
    Csv(Box<CsvRows>),
    Parquet(Box<ParquetRows>),
    WikiDump(Box<WikiDump>),
    WikiExtracted(Extracted),
    Stories { stories: Box<Stories>, position: u64 },
}

/// The bytes of a document before its UTF-8 has been looked at.
struct RawDocument {
    position: u64,
    bytes: Vec<u8>,
}

impl Documents<'_> {
    /// How many bytes of the inputs, as they lie on disk, have been read so far.
    pub fn bytes_read(&self) -> u64 {
        self.bytes_before + self.current.as_ref().map_or(0, Reading::bytes_read)
    }

    /// How many documents have been left out so far because they are not UTF-8.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    fn advance(&mut self) -> Result<Option<Document>> {
        loop {
            let Some(reading) = &mut self.current else {
                let Some(source) = self.inputs.sources.get(self.next_source) else {
                    return Ok(None);
                };
                self.current = Some(Reading::open(source, &self.inputs.options, usize::MAX)?);
                self.next_source += 1;
                continue;
            };
            let file_idx = self.next_source - 1;
            let source = &self.inputs.sources[file_idx];
            let Some(raw) = reading.next()? else {
                self.current = None;
                self.bytes_before += source.record.bytes;
                continue;
            };
            let Some(text) =
                self.inputs.options.on_bad_utf8.apply(raw.bytes, &source.record.name, raw.position)?
            else {
                self.skipped += 1;
                continue;
            };
            if text.bytes().all(|byte| byte.is_ascii_whitespace()) {
                continue;
            }
            return Ok(Some(Document { file_idx, position: raw.position, text }));
        }
    }
}

impl Iterator for Documents<'_> {
    type Item = Result<Document>;

    fn next(&mut self) -> Option<Result<Document>> {
        if self.failed {
            return None;
        }
        let result = self.advance().transpose();
        self.failed = matches!(result, Some(Err(_)));
        result
    }
}

impl Reading {
    fn open(source: &Source, options: &InputOptions, max_bytes: usize) -> Result<Reading> {
        let (path, format, compression) = match &source.kind {
            SourceKind::Stories { bytes } => {
                let stories = Box::new(Stories::new(options.seed, *bytes));
                return Ok(Reading::Stories { stories, position: 0 });
            }
            SourceKind::File { path, format, compression } => (path, *format, *compression),
        };
        let name = &source.record.name;
        let open = || OpenFile::open(path, name, compression, max_bytes);
        Ok(match format {
            Format::Text => {
                Reading::Pieces(Pieces::new(open()?, options.document_separator.as_deref(), max_bytes))
            }
            Format::JsonLines => {
                Reading::JsonLines(JsonLines::new(open()?, &options.text_key, options.on_bad_utf8, max_bytes))
            }
            Format::Json => {
                Reading::Json(JsonValues::new(open()?, &options.text_key, options.on_bad_utf8, max_bytes))
            }
            Format::Csv => Reading::Csv(Box::new(CsvRows::open(open()?, &options.text_key, max_bytes)?)),
            Format::WikiDump => {
                let chunks = Chunks::new(open()?, None, "a page", max_bytes);
                Reading::WikiDump(Box::new(WikiDump::new(chunks, options.on_bad_utf8)))
            }
            Format::WikiExtracted => {
                let chunks = Chunks::new(open()?, None, "a document", max_bytes);
                Reading::WikiExtracted(Extracted::new(chunks, &options.text_key, options.on_bad_utf8)?)
            }
            Format::Parquet => {
                let rows = ParquetRows::open(path, name, &options.text_key, max_bytes)?;
                Reading::Parquet(Box::new(rows))
            }
        })
    }

    fn bytes_read(&self) -> u64 {
        match self {
            Reading::Pieces(pieces) => pieces.bytes_read(),
            Reading::JsonLines(lines) => lines.bytes_read(),
            Reading::Json(values) => values.bytes_read(),
            Reading::Csv(rows) => rows.bytes_read(),
            Reading::WikiDump(dump) => dump.bytes_read(),
            Reading::WikiExtracted(extracted) => extracted.bytes_read(),
            Reading::Parquet(rows) => rows.bytes_read(),
            Reading::Stories { position, .. } => *position,
        }
    }

    fn next(&mut self) -> Result<Option<RawDocument>> {
        match self {
            Reading::Pieces(pieces) => pieces.next(),
            Reading::JsonLines(lines) => lines.next(),
            Reading::Json(values) => values.next(),
            Reading::Csv(rows) => rows.next(),
            Reading::WikiDump(dump) => dump.next(),
            Reading::WikiExtracted(extracted) => extracted.next(),
            Reading::Parquet(rows) => rows.next(),
            Reading::Stories { stories, position } => Ok(stories.next().map(|story| {
                let at = *position;
                *position += story.len() as u64;
                RawDocument { position: at, bytes: story.into_bytes() }
            })),
        }
    }
}

impl BadUtf8 {
    /// The text of these bytes under this policy; `None` to leave them out.
    fn apply(self, bytes: Vec<u8>, file: &str, position: u64) -> Result<Option<String>> {
        match (String::from_utf8(bytes), self) {
            (Ok(text), _) => Ok(Some(text)),
            (Err(_), BadUtf8::Skip) => Ok(None),
            (Err(error), BadUtf8::Replace) => {
                Ok(Some(String::from_utf8_lossy(error.as_bytes()).into_owned()))
            }
            (Err(error), BadUtf8::Error) => {
                let offset = position + error.utf8_error().valid_up_to() as u64;
                Err(Error::BadUtf8 { file: file.into(), offset })
            }
        }
    }
}

#[cfg(test)]
mod tests;
