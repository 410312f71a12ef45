//! `ironmill tokenizer`: train, count, merge, encode, decode, convert, inspect.

mod convert;
mod counts;
mod inspect;

use super::{Context, parse_count};
use crate::config::TokenizerTraining;
use crate::failure::{Code, Failure, Result};
use crate::show::numbers::{bytes, counted};
use crate::stages::tokenizer::{Budget, Counting, Origin, kind_name, peak_memory, train, train_on_counts};
use clap::ValueEnum;
use ironmill_text::{CountsFile, FrequentPieces, Tokenizer, durable};
use serde_json::json;
use std::io::{Read, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

/// The commands on tokenizers.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Learn a tokenizer from text
    #[command(after_help = "\
Examples:
  ironmill tokenizer train texts/ --vocab-size 8192 --out tokenizer.json
  ironmill tokenizer train 'wiki/*.jsonl.zst' --vocab-size 32K --pattern cl100k --out tokenizer.json
  ironmill tokenizer train poems.txt --kind char --out chars.json
  ironmill tokenizer train 'web/*.jsonl.gz' --vocab-size 64K --memory 2GiB --scratch work --out tokenizer.json
  ironmill tokenizer train --counts all.counts --vocab-size 32K --out tokenizer.json

--memory is the most that the whole program takes: text is read in pieces, and counts that do not fit go to --scratch. The
tokenizer does not depend on it, nor on --threads. With --scratch the finished counts stay there until the tokenizer is
written, so that a run that was stopped goes on from them. FILE.origin.json beside the tokenizer says what it was made of;
FILE.pieces holds the most frequent pieces, with which encoding is fast from the start: tokens do not depend on it.")]
    Train(TrainArgs),
    /// Count the pieces of text, or a part of them, for `tokenizer train --counts`
    #[command(after_help = "\
A task of several takes every N-th file. However the files are shared out, the merged counts are the same file. A task that
is done is not done again.

Examples:
  ironmill tokenizer count texts/ --out all.counts
  ironmill tokenizer count 'web/*.jsonl.gz' --pattern cl100k --task 0 --of 2 --out part0.counts
  ironmill tokenizer count 'web/*.jsonl.gz' --pattern cl100k --task 1 --of 2 --out part1.counts")]
    Count(counts::CountArgs),
    /// Add up counts files
    #[command(after_help = "\
Examples:
  ironmill tokenizer merge part0.counts part1.counts --out all.counts
  ironmill tokenizer merge monday.counts tuesday.counts --out week.counts --json")]
    Merge(counts::MergeArgs),
    /// Turn text into token ids
    #[command(after_help = "\
Without --out the ids are written as text, a line an input; with it as raw little-endian numbers.

Examples:
  echo 'Once upon a time' | ironmill tokenizer encode --tokenizer tokenizer.json
  ironmill tokenizer encode --tokenizer tokenizer.json book.txt --out book.u32
  ironmill tokenizer encode --tokenizer tokenizer.json book.txt --out book.bin --width u16
  echo 'Once upon a time' | ironmill tokenizer encode --tokenizer llama2/tokenizer.json --framed")]
    Encode(EncodeArgs),
    /// Turn token ids back into text
    #[command(after_help = "\
Reads ids as text, or the raw numbers that `encode --out` writes; --width says that they are raw.

Examples:
  echo '464 3290' | ironmill tokenizer decode --tokenizer tokenizer.json
  ironmill tokenizer decode --tokenizer tokenizer.json book.u32 --out book.txt
  ironmill tokenizer decode --tokenizer tokenizer.json book.bin --width u16")]
    Decode(DecodeArgs),
    /// Turn a tokenizer of one file format into another
    #[command(after_help = "\
The published rank files r50k, p50k, cl100k, o200k and those of Llama 3 and Qwen are known by their content; any other needs
--pattern and its special tokens. A tokenizer.json may be of byte-level BPE, of SentencePiece's kind (Llama 2, Gemma) or WordPiece.
What a format cannot say is refused.

Examples:
  ironmill tokenizer convert cl100k_base.tiktoken --out tokenizer.json
  ironmill tokenizer convert tokenizer.json --out mine.tiktoken
  ironmill tokenizer convert vocab.json --merges merges.txt --special '<|endoftext|>' --out tokenizer.json
  ironmill tokenizer convert my.tiktoken --pattern cl100k --special '<|end|>=100000' --out tokenizer.json
  ironmill tokenizer convert gpt2/tokenizer.json --pieces-from texts/ --out tokenizer.json")]
    Convert(convert::ConvertArgs),
    /// Show what a tokenizer is, and how well it compresses a text
    #[command(after_help = "\
Examples:
  ironmill tokenizer inspect tokenizer.json
  ironmill tokenizer inspect tokenizer.json --text book.txt poems.txt
  ironmill tokenizer inspect tokenizer.json --longest 50 --json")]
    Inspect(inspect::InspectArgs),
}

/// The flags of `tokenizer train`.
#[derive(clap::Args)]
pub struct TrainArgs {
    /// Files, folders, patterns such as 'texts/*.txt', builtin:stories:20MB, or - for stdin
    #[arg(required_unless_present = "counts", value_name = "INPUT")]
    inputs: Vec<String>,
    /// Learn from this file of `tokenizer count` or `tokenizer merge` instead of text
    #[arg(long, value_name = "FILE", conflicts_with = "inputs")]
    counts: Option<PathBuf>,
    /// The file to write
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// The number of tokens, special ones included; needed for bpe
    #[arg(long, value_name = "N", value_parser = parse_count)]
    vocab_size: Option<u64>,
    /// What a token is
    #[arg(long, value_enum, default_value = "bpe")]
    kind: KindName,
    /// How text is cut into pieces: gpt2, cl100k, o200k, llama3, qwen2 or a regular expression
    #[arg(long, default_value = "gpt2", value_name = "NAME|REGEX")]
    pattern: String,
    /// A text that is one token; may be repeated
    #[arg(long, default_value = "<|endoftext|>", value_name = "TEXT")]
    special: Vec<String>,
    /// Leave out pairs, or characters, that occur less often
    #[arg(long, default_value_t = 1, value_name = "N")]
    min_count: u64,
    /// Which of two equally frequent pairs comes first
    #[arg(long, value_enum, default_value = "hf")]
    ties: TiesName,
    /// The longest token, in bytes
    #[arg(long, value_name = "N")]
    max_token_length: Option<NonZeroUsize>,
    /// Train line by line, as Hugging Face's file reader does
    #[arg(long)]
    lines: bool,
    /// Leave out the rarest pieces when they do not fit the memory, instead of counting all on disk; tells how much that is
    #[arg(long, conflicts_with = "counts")]
    approximate: bool,
    #[command(flatten)]
    room: Room,
    #[command(flatten)]
    reading: super::data::Reading,
}

/// The memory and disk that counting and learning may take.
#[derive(clap::Args)]
struct Room {
    /// The most memory that the whole program takes, such as 300MiB
    #[arg(long, default_value = "4GiB", value_name = "SIZE", value_parser = parse_count)]
    memory: u64,
    /// The folder for what does not fit the memory [default: that of --out]
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
}

impl Room {
    fn budget(&self, context: &Context, out: &Path) -> Result<Budget> {
        let scratch = self.scratch.clone().or_else(|| folder_of(out));
        Budget::new(self.memory, context.threads, scratch, self.scratch.is_some())
    }
}

/// The flags of `tokenizer encode`.
#[derive(clap::Args)]
pub struct EncodeArgs {
    /// Files to encode; none, or -, is stdin
    #[arg(value_name = "INPUT")]
    inputs: Vec<PathBuf>,
    /// The tokenizer
    #[arg(long, value_name = "FILE")]
    tokenizer: PathBuf,
    /// Write raw numbers to this file
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// The width of a raw number
    #[arg(long, value_enum, default_value = "u32")]
    width: Width,
    /// Recognise special tokens in the text
    #[arg(long)]
    allow_special: bool,
    /// Put around every input the special tokens that the vocabulary's makers put around a text, such as <s> or [CLS] and [SEP]
    #[arg(long)]
    framed: bool,
}

/// The flags of `tokenizer decode`.
#[derive(clap::Args)]
pub struct DecodeArgs {
    /// Files to decode; none, or -, is stdin
    #[arg(value_name = "INPUT")]
    inputs: Vec<PathBuf>,
    /// The tokenizer
    #[arg(long, value_name = "FILE")]
    tokenizer: PathBuf,
    /// Write the text to this file
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// The input is raw numbers of this width [default: text, or raw u32 if it is no text]
    #[arg(long, value_enum)]
    width: Option<Width>,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum KindName {
    /// Byte-pair encoding
    Bpe,
    /// A token a character
    Char,
    /// A token a word, or whatever else the pattern cuts
    Word,
    /// A token a byte, with nothing to learn
    Byte,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum TiesName {
    /// Hugging Face's order
    Hf,
    /// The order of plain byte ids
    Raw,
    /// The greatest bytes first
    Bytes,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Width {
    U32,
    U16,
}

/// Runs one of the commands.
pub fn run(context: &Context, command: Command) -> Result<()> {
    context.refuse_overrides("tokenizer")?;
    match command {
        Command::Train(args) => run_train(context, &args),
        Command::Count(args) => counts::run_count(context, &args),
        Command::Merge(args) => counts::run_merge(context, &args),
        Command::Encode(args) => run_encode(context, &args),
        Command::Decode(args) => run_decode(context, &args),
        Command::Convert(args) => convert::run(context, &args),
        Command::Inspect(args) => inspect::run(context, &args),
    }
}

fn run_train(context: &Context, args: &TrainArgs) -> Result<()> {
    let is_bpe = args.kind == KindName::Bpe;
    if is_bpe && args.vocab_size.is_none() {
        return Err(Failure::new(Code::Usage, "--vocab-size is missing: say how many tokens, such as 8192"));
    }
    let name = |value: Option<clap::builder::PossibleValue>| value.map(|value| value.get_name().to_string());
    let has_pieces = is_bpe || args.kind == KindName::Word;
    let settings = TokenizerTraining {
        kind: name(args.kind.to_possible_value()).unwrap_or_default(),
        vocab_size: args.vocab_size,
        pattern: has_pieces.then(|| args.pattern.clone()),
        special: args.special.clone(),
        ties: name(args.ties.to_possible_value()).filter(|_| is_bpe),
        min_count: Some(args.min_count),
        // The memory is no part of what a tokenizer is made of.
        memory: None,
    };
    check_can_write(&args.out)?;
    let counting = Counting {
        by_lines: args.lines,
        max_token_length: args.max_token_length.map(NonZeroUsize::get),
        budget: args.room.budget(context, &args.out)?.approximate(args.approximate),
    };
    if args.approximate && !is_bpe {
        let message =
            "--approximate is about the pieces of a bpe tokenizer: leave it out, or leave out --kind";
        return Err(Failure::new(Code::Usage, message));
    }
    // There is nothing to save half-way, so a signal ends the program in the system's own way.
    let never = AtomicBool::new(false);
    let (trained, origin) = match &args.counts {
        Some(_) if !is_bpe => {
            let message = "--counts holds pieces, from which only a bpe tokenizer is learnt: leave out --kind, or give text";
            return Err(Failure::new(Code::Usage, message));
        }
        Some(file) => {
            let counts = CountsFile::open(file)?;
            let origin = Origin::of_counts(&settings, counting.max_token_length, &counts)?;
            (train_on_counts(counts, &settings, &counting, &context.show)?, origin)
        }
        None => {
            let inputs = args.reading.find(&args.inputs)?;
            let origin = Origin::of_inputs(&settings, &counting, &inputs);
            (train(&inputs, &settings, &counting, &context.show, &never)?, origin)
        }
    };
    trained.tokenizer.save(&args.out)?;
    let beside = FrequentPieces::path_beside(&args.out);
    if trained.frequent.is_empty() {
        remove_stale(&beside)?;
    } else {
        trained.frequent.save(&beside)?;
    }
    origin.save(&args.out)?;
    counting.budget.forget_counts();
    let object = json!({
        "file": args.out,
        "kind": kind_name(&trained.tokenizer),
        "vocab_size": trained.tokenizer.vocab_size(),
        "documents": trained.documents,
        "origin": origin.hash(),
        "peak_memory_bytes": peak_memory(),
    });
    context.show.result(&format!("{}: {}", args.out.display(), trained.summary), &object)
}

fn run_encode(context: &Context, args: &EncodeArgs) -> Result<()> {
    let tokenizer = Tokenizer::load(&args.tokenizer)?;
    let mut ids = Vec::new();
    let mut file = args.out.as_deref().map(OutputFile::create).transpose()?;
    let (mut n_bytes, mut n_tokens) = (0, 0);
    for input in or_stdin(&args.inputs) {
        let text = read_input(&input)?;
        ids.clear();
        let (before, after) = if args.framed { tokenizer.around() } else { (&[][..], &[][..]) };
        ids.extend_from_slice(before);
        tokenizer
            .encode_parallel(&text, args.allow_special, context.threads, &mut ids)
            .map_err(|error| in_file(&input, error.into()))?;
        ids.extend_from_slice(after);
        n_bytes += text.len() as u64;
        n_tokens += ids.len() as u64;
        match &mut file {
            Some(file) => file.write(&raw_numbers(&ids, args.width)?)?,
            None => {
                let line: Vec<String> = ids.iter().map(u32::to_string).collect();
                context.show.result(&line.join(" "), &json!({"input": shown(&input), "ids": ids}))?;
            }
        }
    }
    let Some(file) = file else { return Ok(()) };
    let written = file.commit()?;
    let text = format!("{}: {} from {}", written.display(), counted(n_tokens, "token"), bytes(n_bytes));
    context.show.result(&text, &json!({"file": written, "tokens": n_tokens, "bytes": n_bytes}))
}

fn run_decode(context: &Context, args: &DecodeArgs) -> Result<()> {
    let tokenizer = Tokenizer::load(&args.tokenizer)?;
    let mut file = args.out.as_deref().map(OutputFile::create).transpose()?;
    let (mut n_bytes, mut n_tokens) = (0, 0);
    for input in or_stdin(&args.inputs) {
        let ids = parse_ids(&read_input(&input)?, args.width).map_err(|failure| in_file(&input, failure))?;
        let text = tokenizer.decode(&ids).map_err(|error| in_file(&input, error.into()))?;
        n_bytes += text.len() as u64;
        n_tokens += ids.len() as u64;
        match &mut file {
            Some(file) => file.write(&text)?,
            None if context.show.is_json() => {
                let text = String::from_utf8_lossy(&text);
                context.show.result("", &json!({"input": shown(&input), "text": text}))?;
            }
            None => context.show.output(&text)?,
        }
    }
    let Some(file) = file else { return Ok(()) };
    let written = file.commit()?;
    let text = format!("{}: {} from {}", written.display(), bytes(n_bytes), counted(n_tokens, "token"));
    context.show.result(&text, &json!({"file": written, "tokens": n_tokens, "bytes": n_bytes}))
}

/// The same failure, with the input that it is about.
fn in_file(input: &Path, failure: Failure) -> Failure {
    Failure::new(failure.code(), format!("{}: {failure}", shown(input)))
}

fn raw_numbers(ids: &[u32], width: Width) -> Result<Vec<u8>> {
    match width {
        Width::U32 => Ok(ids.iter().flat_map(|id| id.to_le_bytes()).collect()),
        Width::U16 => {
            let mut bytes = Vec::with_capacity(ids.len() * 2);
            for &id in ids {
                let narrow = u16::try_from(id).map_err(|_| {
                    Failure::new(
                        Code::BadData,
                        format!("token id {id} does not fit 16 bits: use --width u32"),
                    )
                })?;
                bytes.extend(narrow.to_le_bytes());
            }
            Ok(bytes)
        }
    }
}

fn parse_ids(bytes: &[u8], width: Option<Width>) -> Result<Vec<u32>> {
    let is_text =
        bytes.iter().all(|byte| byte.is_ascii_digit() || byte.is_ascii_whitespace() || *byte == b',');
    if width.is_none() && is_text {
        let text = String::from_utf8_lossy(bytes);
        let words = text.split(|c: char| c.is_ascii_whitespace() || c == ',').filter(|word| !word.is_empty());
        let parse = |word: &str| {
            let message = || format!("{word} is no token id: ids are below 4294967296");
            word.parse().map_err(|_| Failure::new(Code::BadData, message()))
        };
        return words.map(parse).collect();
    }
    let width = width.unwrap_or(Width::U32);
    let n_bytes = if width == Width::U32 { 4 } else { 2 };
    if !bytes.len().is_multiple_of(n_bytes) {
        let message = format!(
            "{} bytes are not a whole number of {n_bytes}-byte ids: check the file and --width",
            bytes.len()
        );
        return Err(Failure::new(Code::BadData, message));
    }
    let id = |chunk: &[u8]| chunk.iter().rev().fold(0u32, |id, &byte| id << 8 | u32::from(byte));
    Ok(bytes.chunks_exact(n_bytes).map(id).collect())
}

fn or_stdin(inputs: &[PathBuf]) -> Vec<PathBuf> {
    if inputs.is_empty() { vec!["-".into()] } else { inputs.to_vec() }
}

fn shown(input: &Path) -> String {
    if input == Path::new("-") { "stdin".into() } else { input.display().to_string() }
}

fn read_input(input: &Path) -> Result<Vec<u8>> {
    if input != Path::new("-") {
        return std::fs::read(input).map_err(|error| Failure::read(input, &error));
    }
    let mut bytes = Vec::new();
    std::io::stdin()
        .lock()
        .read_to_end(&mut bytes)
        .map_err(|error| Failure::read(Path::new("stdin"), &error))?;
    Ok(bytes)
}

/// The folder that a file is in.
fn folder_of(file: &Path) -> Option<PathBuf> {
    let folder = file.parent()?;
    Some(if folder.as_os_str().is_empty() { ".".into() } else { folder.into() })
}

/// Removes what an earlier run has left, if it has.
fn remove_stale(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Failure::write(path, &error)),
        _ => Ok(()),
    }
}

/// Finds out before long work whether its result can be written.
fn check_can_write(path: &Path) -> Result<()> {
    durable::StagedFile::create(path).map(drop).map_err(|error| Failure::write(path, &error))
}

/// A file that appears whole or not at all.
struct OutputFile {
    path: PathBuf,
    staged: durable::StagedFile,
}

impl OutputFile {
    fn create(path: &Path) -> Result<OutputFile> {
        let staged = durable::StagedFile::create(path).map_err(|error| Failure::write(path, &error))?;
        Ok(OutputFile { path: path.into(), staged })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.staged.write_all(bytes).map_err(|error| Failure::write(&self.path, &error))
    }

    /// Gives the file its name, and says which that is.
    fn commit(self) -> Result<PathBuf> {
        self.staged.commit().map_err(|error| Failure::write(&self.path, &error))?;
        Ok(self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_numbers_read_back_in_both_widths() {
        let ids = [0, 1, 300, 65_535];
        for width in [Width::U32, Width::U16] {
            let raw = raw_numbers(&ids, width).unwrap();
            assert_eq!(parse_ids(&raw, Some(width)).unwrap(), ids);
        }
        assert_eq!(raw_numbers(&[65_536], Width::U16).unwrap_err().code(), Code::BadData);
    }

    #[test]
    fn ids_are_read_as_text_or_as_raw_numbers() {
        assert_eq!(parse_ids(b"1 2,3\n4", None).unwrap(), [1, 2, 3, 4]);
        assert_eq!(parse_ids(&[7, 0, 0, 0], None).unwrap(), [7]);
        assert_eq!(parse_ids(b"", None).unwrap(), Vec::<u32>::new());
        assert_eq!(parse_ids(&[7, 0, 0], None).unwrap_err().code(), Code::BadData);
        assert_eq!(parse_ids(b"99999999999", None).unwrap_err().code(), Code::BadData);
    }
}
