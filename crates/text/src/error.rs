//! The one error type of this crate. Every message names the thing at fault and ends with what to do.

use std::io;
use std::path::{Path, PathBuf};

use crate::pattern::{Pattern, nearest_name};

/// Result of this crate's fallible calls.
pub type Result<T> = std::result::Result<T, Error>;

/// Everything that can go wrong between text and tokens.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A tokenizer file could not be read.
    #[error("cannot read {path}: {source}; check that the path is a tokenizer file and is readable")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A tokenizer file could not be written.
    #[error("cannot write {path}: {source}; check that the folder exists, is writable and has space")]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A tokenizer file was read but what it holds was refused.
    #[error("{path}: {source}")]
    InFile {
        /// The file.
        path: PathBuf,
        /// Why its content was refused.
        source: Box<Error>,
    },
    /// The JSON is not a tokenizer in a form that is read here.
    #[error(
        "not a tokenizer that can be read: {0}; use a tokenizer.json of BPE or WordPiece, or train a new tokenizer"
    )]
    Format(String),
    /// The file is a tokenizer, but with a feature that is not read here.
    #[error(
        "the tokenizer uses {0}, which is not supported; export it without that, or train a new tokenizer"
    )]
    Unsupported(String),
    /// Token ids that do not fit 16 bits.
    #[error("the vocabulary has {0} tokens, and 16 bits hold 65536: use 32-bit ids")]
    VocabularyTooWide(usize),
    /// A tiktoken rank file that is none of the published ones, without the settings that such a file does not hold.
    #[error(
        "the rank file is none of those known ({known}), and does not say how text is cut: give the pattern and the special \
         tokens"
    )]
    UnknownRankFile {
        /// The names of those known.
        known: String,
    },
    /// A pattern name that is not known and does not look like a regular expression.
    #[error("unknown pattern `{0}`; {advice}", advice = pattern_advice(_0))]
    UnknownPattern(String),
    /// A regular expression that does not compile.
    #[error("the pattern `{pattern}` does not compile: {reason}; correct it, or use {}", names())]
    BadPattern {
        /// The regular expression.
        pattern: String,
        /// What the regex engine said.
        reason: String,
    },
    /// The regex engine gave up, so the pieces of this text are not known.
    #[error(
        "the pattern `{pattern}` failed on the text: {reason}; \
         use a simpler pattern, or break up runs of a million spaces"
    )]
    PatternFailed {
        /// The pattern's name or regular expression.
        pattern: String,
        /// What the regex engine said.
        reason: String,
    },
    /// A special token that cannot be one.
    #[error("special token {text:?} {problem}; choose another text such as <|endoftext|>")]
    BadSpecial {
        /// The special token.
        text: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The wanted vocabulary cannot hold what must be in it.
    #[error("a vocabulary of {wanted} is too small: {needs}; ask for at least {minimum}")]
    VocabularyTooSmall {
        /// What was asked for.
        wanted: usize,
        /// The smallest size that works.
        minimum: usize,
        /// What takes the room.
        needs: String,
    },
    /// Token ids are 32 bits wide.
    #[error("a vocabulary of {0} does not fit 32-bit token ids; ask for at most 4294967295")]
    VocabularyTooLarge(usize),
    /// There was nothing to learn from.
    #[error("the corpus is empty: no {0} were counted; check that the input files hold text")]
    EmptyCorpus(&'static str),
    /// Counts made with other settings cannot be used together.
    #[error(
        "the counts were made with {counted} but {wanted} was asked for; count again with the same settings"
    )]
    CountsDiffer {
        /// The setting of the counts.
        counted: String,
        /// The setting asked for.
        wanted: String,
    },
    /// A counts file that cannot be used.
    #[error("{path} is no counts file that can be used: {reason}; count again")]
    BadCounts {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The scratch folder failed.
    #[error("cannot use the scratch folder {folder}: {source}; choose another one with --scratch")]
    Scratch {
        /// The folder.
        folder: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The scratch folder's disk has no room.
    #[error(
        "the scratch folder {folder} has {} MiB free where {} MiB are needed; \
         free some space, choose another folder with --scratch, or allow more memory with --memory",
        free >> 20,
        wanted.div_ceil(1 << 20)
    )]
    ScratchFull {
        /// The folder.
        folder: PathBuf,
        /// Bytes needed.
        wanted: u64,
        /// Bytes free.
        free: u64,
    },
    /// The memory is spent and there is no folder for what does not fit.
    #[error(
        "the distinct pieces do not fit {} MiB of memory, and there is no scratch folder; \
         name one with --scratch, or allow more memory with --memory",
        memory >> 20
    )]
    NoScratch {
        /// Bytes allowed.
        memory: u64,
    },
    /// One of 256 partitions of the pieces does not fit the memory.
    #[error(
        "a 256th part of the distinct pieces takes more than {} MiB of memory; \
         allow at least {} MiB more with --memory",
        memory >> 20,
        wanted.div_ceil(1 << 20)
    )]
    PartitionTooLarge {
        /// Bytes allowed.
        memory: u64,
        /// Bytes wanted.
        wanted: u64,
    },
    /// Learning needs more memory than allowed.
    #[error(
        "learning from {distinct} distinct pieces needs {} MiB of memory, and {} MiB are left; \
         allow at least {} MiB with --memory",
        wanted.div_ceil(1 << 20),
        left >> 20,
        total.div_ceil(1 << 20)
    )]
    ArenaTooLarge {
        /// How many distinct pieces there are.
        distinct: u64,
        /// Bytes needed.
        wanted: u64,
        /// Bytes left of what is allowed.
        left: u64,
        /// What to allow.
        total: u64,
    },
    /// More text in distinct pieces than places can be numbered.
    #[error("the distinct pieces take more than {} GiB; train on less text", max_bytes >> 30)]
    CorpusTooLarge {
        /// The most bytes.
        max_bytes: u64,
    },
    /// A count left the range of 64 bits.
    #[error("the count of {0} exceeds 64 bits; train on less text")]
    CountOverflow(String),
    /// Text of a kind that needs characters has bytes that are none.
    #[error(
        "byte {offset} is not valid UTF-8, which a tokenizer of characters needs; \
         convert the text, or use a bpe tokenizer"
    )]
    InvalidUtf8 {
        /// Where the first bad byte is.
        offset: usize,
    },
    /// A character that the vocabulary does not have.
    #[error(
        "character {character:?} (U+{code:04X}) at byte {offset} is not in the vocabulary; \
         train the char tokenizer on text that has it, give it the special token <|unknown|>, \
         or use a bpe tokenizer",
        code = u32::from(*character)
    )]
    UnknownCharacter {
        /// The character.
        character: char,
        /// Where it is in the text.
        offset: usize,
    },
    /// A word that the vocabulary does not have.
    #[error(
        "the word {word:?} at byte {offset} is not in the vocabulary; \
         train the word tokenizer on text that has it, give it the special token <|unknown|>, \
         or use a bpe tokenizer"
    )]
    UnknownWord {
        /// The word, cut short if it is long.
        word: String,
        /// Where it is in the text.
        offset: usize,
    },
    /// A token id that the vocabulary does not have.
    #[error(
        "token id {id} is not in the vocabulary of {vocab_size}; decode with the tokenizer that made the ids"
    )]
    UnknownId {
        /// The id.
        id: u32,
        /// The size of the vocabulary.
        vocab_size: usize,
    },
}

fn pattern_advice(word: &str) -> String {
    let guess = nearest_name(word).map(|name| format!("did you mean {name}? ")).unwrap_or_default();
    format!("{guess}use {} or a regular expression", Pattern::NAMES.join(", "))
}

fn names() -> String {
    Pattern::NAMES.join(", ")
}

impl Error {
    /// The same error, naming the file whose content caused it.
    pub(crate) fn in_file(self, path: &Path) -> Self {
        Self::InFile { path: path.to_owned(), source: Box::new(self) }
    }
}
