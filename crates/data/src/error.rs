//! What can go wrong with data: one enum whose messages name the file, value or offset and end with what to do.

use std::io;
use std::path::{Path, PathBuf};

/// The result of everything in this crate that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// The kind of a failure, from which a program chooses its exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Class {
    /// The input was read and is wrong: bad text, a bad row, a damaged file.
    BadData,
    /// There is no input: a missing file, a pattern without matches, a corpus without documents.
    NoInput,
    /// The output cannot be created or written.
    CannotWrite,
    /// Reading failed on the way.
    Io,
    /// The caller asked to stop.
    Stopped,
    /// Two things do not belong together, for example shards and a tokenizer.
    Mismatch,
    /// A setting has a value that cannot be used.
    BadSetting,
}

/// A failure of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A named input does not exist.
    #[error("cannot find {path}: check the name, or give a folder or a pattern such as 'texts/*.txt'")]
    MissingInput {
        /// The name as given.
        path: String,
    },
    /// A pattern matched nothing, or a folder holds no file of a known kind.
    #[error(
        "no text files match {spec}: known kinds are .txt, .md and .jsonl, each also .gz, .zst and .bz2, and .parquet"
    )]
    NoMatch {
        /// The pattern or folder as given.
        spec: String,
    },
    /// All inputs together hold no document.
    #[error("the input holds no text ({inputs}): give at least one file with a document in it")]
    EmptyCorpus {
        /// The inputs, shortened for display.
        inputs: String,
    },
    /// A file kind that is recognised but cannot be read.
    #[error("cannot read {path}: {reason}")]
    UnsupportedFormat {
        /// The file.
        path: String,
        /// Why not, and what to do.
        reason: String,
    },
    /// Text that is not UTF-8.
    #[error(
        "{file} is not UTF-8 at byte {offset}: convert the file, or pass --on-bad-utf8 replace (or skip)"
    )]
    BadUtf8 {
        /// The file.
        file: String,
        /// Where the first bad byte is, counted in the decompressed file.
        offset: u64,
    },
    /// A row of a JSON lines or CSV file that cannot be used.
    #[error("{file}, line {line}: {reason}; correct the row or choose another field with --text-key")]
    BadRow {
        /// The file.
        file: String,
        /// The line, counted from 1.
        line: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// Something in a structured file that cannot be used.
    #[error("{file}, byte {position}: {reason}; correct the file, or choose another field with --text-key")]
    BadElement {
        /// The file.
        file: String,
        /// Where it starts, in bytes after decompression.
        position: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// A parquet file that is none that can be used.
    #[error("{file}: {reason}; choose another column with --text-key, or convert it to .jsonl")]
    BadParquet {
        /// The file.
        file: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A compressed file that does not decompress.
    #[error(
        "{file} is truncated or damaged after {offset} decompressed bytes ({reason}): fetch or compress it again"
    )]
    DamagedInput {
        /// The file.
        file: String,
        /// How many decompressed bytes were good.
        offset: u64,
        /// What the decompressor said.
        reason: String,
    },
    /// An input that is another one than it was when the work began.
    #[error("{file} changed while it was read: run the same command again once it stays as it is")]
    ChangedInput {
        /// The file.
        file: String,
    },
    /// A document, row or page that is longer than what is held at once.
    #[error("{file}: {what} at byte {position} is longer than {} MiB: split it, or leave it out", max_bytes >> 20)]
    TooLong {
        /// The file.
        file: String,
        /// What is too long.
        what: &'static str,
        /// Where it starts, in bytes after decompression.
        position: u64,
        /// The most that is held.
        max_bytes: u64,
    },
    /// A token file of another program that is none, or does not fit.
    #[error("{}: {reason} (at byte {offset}); check --from and that the file is whole", path.display())]
    BadTokenFile {
        /// The file.
        path: PathBuf,
        /// Where it is wrong.
        offset: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// Something that must be held at once and does not fit the memory.
    #[error(
        "{file}: {what} at byte {position} takes {} MiB, and {} MiB fit the memory; allow at least {} MiB with --memory",
        n_bytes.div_ceil(1 << 20),
        max_bytes >> 20,
        n_bytes.saturating_mul(crate::documents::HELD_SHARE).div_ceil(1 << 20)
    )]
    TooLarge {
        /// The file.
        file: String,
        /// What is too large.
        what: &'static str,
        /// Where it starts, in bytes after decompression.
        position: u64,
        /// What it takes, as far as that is known.
        n_bytes: u64,
        /// How much may be held.
        max_bytes: u64,
    },
    /// A setting whose value cannot be used.
    #[error("{name} cannot be {value}: {advice}")]
    BadSetting {
        /// The setting.
        name: &'static str,
        /// Its value as given.
        value: String,
        /// What would be right.
        advice: String,
    },
    /// A shard that is truncated or damaged.
    #[error("shard {} is damaged at byte {offset}: {reason}; prepare the data again", path.display())]
    BadShard {
        /// The shard.
        path: PathBuf,
        /// Where in the file.
        offset: u64,
        /// What was found.
        reason: String,
    },
    /// A manifest that is truncated, damaged, or of an unknown version.
    #[error("manifest {} cannot be used: {reason}; prepare the data again", path.display())]
    BadManifest {
        /// The manifest.
        path: PathBuf,
        /// What was found.
        reason: String,
    },
    /// A folder that holds a data set already.
    #[error("{} already holds a data set: choose another folder, or remove it", path.display())]
    AlreadyADataset {
        /// The folder.
        path: PathBuf,
    },
    /// A folder without a manifest.
    #[error("{} holds no prepared data (no manifest.json): run `ironmill data prepare` with --out {}", path.display(), path.display())]
    NotADataset {
        /// The folder.
        path: PathBuf,
    },
    /// Shards of one tokenizer used with another.
    #[error("shards in {} were written with another tokenizer ({found}, not {expected}): prepare again or pass --tokenizer", path.display())]
    TokenizerMismatch {
        /// The data set.
        path: PathBuf,
        /// The start of the hash in the manifest.
        found: String,
        /// The start of the hash of the tokenizer at hand.
        expected: String,
    },
    /// A split without tokens.
    #[error("the {split} split holds no tokens: prepare more text, or choose another validation share")]
    EmptySplit {
        /// Which split.
        split: String,
    },
    /// A read beyond the end of a stream or tensor.
    #[error("asked for {asked} {unit} at {position}, but there are {available}: ask for less")]
    OutOfRange {
        /// What is counted.
        unit: &'static str,
        /// How many were asked for.
        asked: u64,
        /// From where.
        position: u64,
        /// How many there are in all.
        available: u64,
    },
    /// A safetensors file that breaks the format's rules.
    #[error("{} is not a valid safetensors file: {reason}; fetch or write it again", path.display())]
    BadSafetensors {
        /// The file.
        path: PathBuf,
        /// Which rule is broken.
        reason: String,
    },
    /// A GGUF file that breaks the format's rules.
    #[error("{} is not a valid GGUF file: {reason}; fetch or write it again", path.display())]
    BadGguf {
        /// The file.
        path: PathBuf,
        /// Which rule is broken.
        reason: String,
    },
    /// A checkpoint of llm.c that breaks the format's rules.
    #[error("{} is not a checkpoint of llm.c that can be read: {reason}; write it again", path.display())]
    BadLlmc {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A model of llama2.c that breaks the format's rules.
    #[error("{} is not a model of llama2.c that can be read: {reason}; write it again", path.display())]
    BadLlama2c {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Weights in a pickle.
    #[error(
        "{} is a pickle, which can run any program when it is read, so it never is: convert it where you trust it, with \
         python -c 'import transformers as t; t.AutoModelForCausalLM.from_pretrained(\"FOLDER\").save_pretrained(\"NEW\")'",
        path.display()
    )]
    Pickle {
        /// The file.
        path: PathBuf,
    },
    /// A tensor that a safetensors file does not hold, or holds in another form.
    #[error("{}: tensor {name} {reason}; check that the file belongs to this model", path.display())]
    BadTensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Reading failed.
    #[error("cannot read {} ({source}): check the disk and the permissions", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Writing failed.
    #[error("cannot write {} ({source}): check the permissions and the free space", path.display())]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another process prepares the same folder.
    #[error("{} is being prepared by another ironmill: wait until it ends, or choose another folder", path.display())]
    InUse {
        /// The folder.
        path: PathBuf,
    },
    /// The caller asked to stop.
    #[error("stopped before the work was done: run the same command again")]
    Stopped,
    /// The tokenizer refused a document.
    #[error("{file}, document at byte {position}: {source}")]
    Encode {
        /// The file.
        file: String,
        /// Where the document starts in it, in bytes after decompression.
        position: u64,
        /// What the tokenizer said.
        source: ironmill_text::Error,
    },
}

impl Error {
    /// The kind of this failure.
    pub fn class(&self) -> Class {
        match self {
            Error::MissingInput { .. }
            | Error::NoMatch { .. }
            | Error::EmptyCorpus { .. }
            | Error::NotADataset { .. } => Class::NoInput,
            Error::UnsupportedFormat { .. }
            | Error::BadUtf8 { .. }
            | Error::BadRow { .. }
            | Error::BadElement { .. }
            | Error::ChangedInput { .. }
            | Error::TooLong { .. }
            | Error::BadTokenFile { .. }
            | Error::DamagedInput { .. }
            | Error::TooLarge { .. }
            | Error::BadParquet { .. }
            | Error::BadShard { .. }
            | Error::BadManifest { .. }
            | Error::EmptySplit { .. }
            | Error::Encode { .. }
            | Error::Pickle { .. }
            | Error::BadGguf { .. }
            | Error::BadLlama2c { .. }
            | Error::BadLlmc { .. }
            | Error::BadSafetensors { .. } => Class::BadData,
            Error::TokenizerMismatch { .. } | Error::BadTensor { .. } => Class::Mismatch,
            Error::BadSetting { .. } | Error::OutOfRange { .. } => Class::BadSetting,
            Error::Read { source, .. } if source.kind() == io::ErrorKind::NotFound => Class::NoInput,
            Error::Read { .. } => Class::Io,
            Error::Write { .. } | Error::InUse { .. } | Error::AlreadyADataset { .. } => Class::CannotWrite,
            Error::Stopped => Class::Stopped,
        }
    }

    /// Makes the error of a failed read, to be used with `map_err`.
    pub(crate) fn read(path: &Path) -> impl FnOnce(io::Error) -> Error + '_ {
        move |source| Error::Read { path: path.to_path_buf(), source }
    }

    /// Makes the error of a failed write, to be used with `map_err`.
    pub(crate) fn write(path: &Path) -> impl FnOnce(io::Error) -> Error + '_ {
        move |source| Error::Write { path: path.to_path_buf(), source }
    }
}
