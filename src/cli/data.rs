//! `ironmill data`: prepare, verify, inspect, convert.

use super::{Context, parse_count};
use crate::failure::{Code, Failure, Result};
use crate::faults::Faults;
use crate::show::numbers::{bytes, counted, grouped};
use crate::signals;
use crate::stages::data::{PreparedData, prepare, write_tokenizer};
use clap::ValueEnum;
use ironmill_data::manifest::TOKENIZER_NAME;
use ironmill_data::{
    BadUtf8, InputOptions, Inputs, PrepareOptions, Split, Summary, TokenFormat, export, import, inspect,
    verify,
};
use ironmill_text::Tokenizer;
use serde_json::json;
use std::path::{Path, PathBuf};

/// The commands on data sets.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Turn text into token shards
    #[command(after_help = "\
Inputs are .txt, .md, .csv, .jsonl, .json and .parquet files, MediaWiki dumps (.xml) and WikiExtractor's folders, all but
parquet also as .gz, .zst or .bz2; `-` is the standard input. Memory does not grow with them. Whatever ends the work, the
same command goes on behind the last complete shard; where some inputs changed, only their part is done again. Documents end
with the vocabulary's end of text and, where its makers put a token such as <bos> before a text, begin with that.

Examples:
  ironmill data prepare texts/ --tokenizer tokenizer.json --out data
  ironmill data prepare 'wiki/*.jsonl.zst' --tokenizer tokenizer.json --out data --validation 0.01
  ironmill data prepare enwiki-latest-pages-articles.xml.bz2 --tokenizer tokenizer.json --out data
  ironmill data prepare reviews.csv --text-key review --drop-duplicates --tokenizer tokenizer.json --out data
  ironmill data prepare all.txt --document-separator '<|endoftext|>' --tokenizer tokenizer.json --out data")]
    Prepare(PrepareArgs),
    /// Check every checksum and count
    #[command(after_help = "\
Examples:
  ironmill data verify data
  ironmill data verify runs/stories/data --json")]
    Verify(VerifyArgs),
    /// Show what is inside, with the beginnings of a few documents
    #[command(after_help = "\
Examples:
  ironmill data inspect data
  ironmill data inspect data --tokenizer tokenizer.json")]
    Inspect(InspectArgs),
    /// Write or read the token files of nanoGPT, llm.c and Megatron
    #[command(after_help = "\
nanogpt: train.bin and val.bin, raw 16-bit tokens. llmc: numbered files with llm.c's header, 16 or 32 bits. megatron: .bin and
.idx. Tokens stay as they are. Reading needs the --tokenizer that made them, because none of these files names it.

Examples:
  ironmill data convert data --to nanogpt --out nanogpt/
  ironmill data convert data --to megatron --out megatron/
  ironmill data convert fineweb10B/ --from llmc --tokenizer gpt2.json --out data
  ironmill data convert openwebtext/ --from nanogpt --tokenizer gpt2.json --out data")]
    Convert(ConvertArgs),
}

/// How text inputs are found and read.
#[derive(clap::Args)]
pub struct Reading {
    /// The text between documents of one file
    #[arg(long, value_name = "TEXT")]
    document_separator: Option<String>,
    /// The field of a JSON row, or the column of a CSV or parquet file, that holds the text
    #[arg(long, default_value = "text", value_name = "NAME")]
    text_key: String,
    /// What to do with text that is not UTF-8
    #[arg(long, value_enum, default_value = "error")]
    on_bad_utf8: BadUtf8Name,
    /// Take only so many of the files, chosen by the seed
    #[arg(long, value_name = "N")]
    sample: Option<u64>,
    /// The seed of the split, of --sample and of built-in corpora
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
}

/// The flags of `data prepare`.
#[derive(clap::Args)]
pub struct PrepareArgs {
    /// Files, folders, patterns such as 'texts/*.txt', builtin:stories:20MB, or - for the standard input
    #[arg(required = true, value_name = "INPUT")]
    inputs: Vec<String>,
    /// The tokenizer
    #[arg(long, value_name = "FILE")]
    tokenizer: PathBuf,
    /// The folder to write
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// The share of documents kept for measuring
    #[arg(long, default_value_t = 0.005, value_name = "SHARE")]
    validation: f64,
    /// Tokens of a shard
    #[arg(long, default_value = "100M", value_name = "N", value_parser = parse_count)]
    shard_tokens: u64,
    /// Leave out documents with the text of an earlier one (those of more than 2 MiB are always kept)
    #[arg(long)]
    drop_duplicates: bool,
    #[command(flatten)]
    reading: Reading,
}

/// The flags of `data verify`.
#[derive(clap::Args)]
pub struct VerifyArgs {
    /// A prepared folder
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// The flags of `data inspect`.
#[derive(clap::Args)]
pub struct InspectArgs {
    /// A prepared folder
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// The tokenizer [default: the one in the folder]
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
}

/// The flags of `data convert`.
#[derive(clap::Args)]
pub struct ConvertArgs {
    /// A prepared folder, or with --from a token file or a folder of them
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// Read files of this program
    #[arg(long, value_enum, value_name = "FORM", requires = "tokenizer", conflicts_with = "to")]
    from: Option<FormatName>,
    /// Write files for this program
    #[arg(long, value_enum, value_name = "FORM", required_unless_present = "from")]
    to: Option<FormatName>,
    /// The folder to write
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// The tokenizer that made the tokens
    #[arg(long, value_name = "FILE", conflicts_with = "to")]
    tokenizer: Option<PathBuf>,
    /// Tokens of a shard
    #[arg(long, default_value = "100M", value_name = "N", value_parser = parse_count, conflicts_with = "to")]
    shard_tokens: u64,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum FormatName {
    /// Raw 16-bit tokens
    Nanogpt,
    /// llm.c's numbered files
    Llmc,
    /// Megatron-LM's .bin and .idx
    Megatron,
}

impl From<FormatName> for TokenFormat {
    fn from(name: FormatName) -> TokenFormat {
        match name {
            FormatName::Nanogpt => TokenFormat::NanoGpt,
            FormatName::Llmc => TokenFormat::LlmC,
            FormatName::Megatron => TokenFormat::Megatron,
        }
    }
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum BadUtf8Name {
    /// Stop, and name the file and the offset
    Error,
    /// Put U+FFFD in place of what is wrong
    Replace,
    /// Leave the document out
    Skip,
}

impl Reading {
    /// Finds the inputs, of which one may be the standard input.
    pub fn find(&self, specs: &[String]) -> Result<Inputs> {
        let options = InputOptions {
            document_separator: self.document_separator.clone(),
            text_key: self.text_key.clone(),
            on_bad_utf8: match self.on_bad_utf8 {
                BadUtf8Name::Error => BadUtf8::Error,
                BadUtf8Name::Replace => BadUtf8::Replace,
                BadUtf8Name::Skip => BadUtf8::Skip,
            },
            sample: self.sample,
            seed: self.seed,
            may_read_stdin: true,
        };
        Ok(Inputs::from_specs(specs, &options)?)
    }
}

/// Runs one of the commands.
pub fn run(context: &Context, command: Command) -> Result<()> {
    context.refuse_overrides("data")?;
    match command {
        Command::Prepare(args) => run_prepare(context, &args),
        Command::Verify(args) => run_verify(context, &args),
        Command::Inspect(args) => run_inspect(context, &args),
        Command::Convert(args) => run_convert(context, &args),
    }
}

/// Refuses what is no folder in words that say what is wanted.
fn check_is_folder(dir: &Path) -> Result<()> {
    if !dir.exists() || dir.is_dir() {
        return Ok(());
    }
    let message = format!("{} is not a folder: give the --out of `ironmill data prepare`", dir.display());
    Err(Failure::new(Code::NoInput, message))
}

fn run_prepare(context: &Context, args: &PrepareArgs) -> Result<()> {
    let tokenizer = Tokenizer::load(&args.tokenizer)?;
    let mut inputs = args.reading.find(&args.inputs)?;
    let options = PrepareOptions {
        validation: args.validation,
        shard_tokens: args.shard_tokens,
        drop_duplicates: args.drop_duplicates,
        threads: context.threads,
        disk: Faults::from_environment()?.disk(),
    };
    let stop = signals::stop_flag()?;
    let held = hold_stdin(&mut inputs, &args.out)?;
    let prepared = prepare(&inputs, &tokenizer, &args.out, &options, &context.show, &stop);
    if let Some(copy) = held {
        // What is left of it is written over by the next one.
        let _ = std::fs::remove_file(copy);
    }
    let prepared = prepared?;
    let object = json!({
        "dir": args.out,
        "reused": prepared.reused,
        "sections": prepared.manifest.sections.len(),
        "reused_sections": prepared.reused_sections,
        "skipped_documents": prepared.manifest.skipped_documents,
        "duplicate_documents": prepared.manifest.duplicate_documents,
        "train": split_counts(&prepared, Split::Train),
        "validation": split_counts(&prepared, Split::Validation),
    });
    context.show.result(&format!("{}: {}", args.out.display(), prepared.summary()), &object)
}

/// The name of the copy of the standard input in the folder that is being prepared.
const STDIN_COPY: &str = ".stdin.txt";

/// Copies the standard input to where it can be read again, if it is one of the inputs; says where.
fn hold_stdin(inputs: &mut Inputs, out: &Path) -> Result<Option<PathBuf>> {
    if inputs.are_repeatable() {
        return Ok(None);
    }
    std::fs::create_dir_all(out).map_err(|error| Failure::write(out, &error))?;
    let copy = out.join(STDIN_COPY);
    inputs.hold_stdin(&copy)?;
    Ok(Some(copy))
}

fn split_counts(prepared: &PreparedData, split: Split) -> serde_json::Value {
    let record = prepared.manifest.split(split);
    json!({"tokens": record.tokens, "documents": record.documents, "raw_bytes": record.raw_bytes})
}

fn run_verify(context: &Context, args: &VerifyArgs) -> Result<()> {
    check_is_folder(&args.dir)?;
    let report = verify(&args.dir, &context.show)?;
    let text = format!(
        "{}: all right; {}, {}, {}, {} tokens in {}",
        args.dir.display(),
        counted(report.shards, "shard"),
        counted(report.blocks, "block"),
        bytes(report.bytes),
        grouped(report.tokens),
        counted(report.documents, "document")
    );
    let object = json!({
        "dir": args.dir,
        "shards": report.shards,
        "blocks": report.blocks,
        "bytes": report.bytes,
        "tokens": report.tokens,
        "documents": report.documents,
        "raw_bytes": report.raw_bytes,
    });
    context.show.result(&text, &object)
}

fn run_inspect(context: &Context, args: &InspectArgs) -> Result<()> {
    check_is_folder(&args.dir)?;
    let summary = inspect(&args.dir)?;
    let tokenizer = find_tokenizer(context, args, &summary)?;
    let samples = decode_samples(&summary, tokenizer.as_ref())?;
    let object =
        json!({"dir": args.dir, "manifest": summary.manifest, "bytes": summary.bytes, "samples": samples});
    context.show.result(&describe(args, &summary, &samples), &object)
}

fn run_convert(context: &Context, args: &ConvertArgs) -> Result<()> {
    let (what, converted) = match (args.to, args.from, &args.tokenizer) {
        (Some(to), ..) => {
            check_is_folder(&args.path)?;
            ("written", export(&args.path, to.into(), &args.out, &context.show)?)
        }
        (_, Some(from), Some(tokenizer)) => {
            if args.shard_tokens == 0 {
                return Err(Failure::new(Code::Usage, "--shard-tokens 0 leaves no room: give at least 1"));
            }
            let tokenizer = Tokenizer::load(tokenizer)?;
            let show = &context.show;
            let converted = import(&args.path, from.into(), &tokenizer, &args.out, args.shard_tokens, show)?;
            write_tokenizer(&args.out, &tokenizer)?;
            ("read", converted)
        }
        // The grammar asks for one direction, and for the tokenizer of the other.
        _ => return Err(Failure::new(Code::Usage, "give --to, or --from with --tokenizer")),
    };
    let text = format!(
        "{}: {} tokens in {}; {} {what}",
        args.out.display(),
        grouped(converted.tokens),
        counted(converted.documents, "document"),
        counted(converted.files.len() as u64, "file")
    );
    let (tokens, documents) = (converted.tokens, converted.documents);
    let object = json!({"out": args.out, "files": converted.files, "tokens": tokens, "documents": documents});
    context.show.result(&text, &object)
}

/// The tokenizer asked for, or the one beside the shards if it is theirs.
fn find_tokenizer(context: &Context, args: &InspectArgs, summary: &Summary) -> Result<Option<Tokenizer>> {
    let is_theirs = |tokenizer: &Tokenizer| hex(&tokenizer.hash()) == summary.manifest.tokenizer_hash;
    if let Some(path) = &args.tokenizer {
        let tokenizer = Tokenizer::load(path)?;
        if !is_theirs(&tokenizer) {
            let message = format!(
                "{} has {} tokens but is not the tokenizer that {} was prepared with ({} tokens): pass that one, or prepare again",
                path.display(),
                grouped(tokenizer.vocab_size() as u64),
                args.dir.display(),
                grouped(summary.manifest.vocab_size)
            );
            return Err(Failure::new(Code::BadData, message));
        }
        return Ok(Some(tokenizer));
    }
    let found = Tokenizer::load(&args.dir.join(TOKENIZER_NAME)).ok().filter(is_theirs);
    if found.is_none() {
        context.show.note("samples are shown as token ids: pass --tokenizer to see their text");
    }
    Ok(found)
}

fn decode_samples(summary: &Summary, tokenizer: Option<&Tokenizer>) -> Result<Vec<serde_json::Value>> {
    let mut samples = Vec::new();
    for sample in &summary.samples {
        let mut object =
            json!({"split": sample.split.name(), "position": sample.position, "tokens": sample.tokens});
        if let Some(tokenizer) = tokenizer {
            let text = tokenizer.decode(&sample.tokens)?;
            object["text"] = String::from_utf8_lossy(&text).into();
        }
        samples.push(object);
    }
    Ok(samples)
}

fn describe(args: &InspectArgs, summary: &Summary, samples: &[serde_json::Value]) -> String {
    let manifest = &summary.manifest;
    let mut text = format!(
        "{}: {} on disk, a vocabulary of {} (tokenizer {})\n",
        args.dir.display(),
        bytes(summary.bytes),
        grouped(manifest.vocab_size),
        &manifest.tokenizer_hash[..manifest.tokenizer_hash.len().min(12)]
    );
    for split in Split::ALL {
        let record = manifest.split(split);
        let per_token = record.raw_bytes as f64 / record.tokens.max(1) as f64;
        text += &format!(
            "{:10}  {} tokens, {}, {} of text ({per_token:.2} bytes a token), {}\n",
            split.name(),
            grouped(record.tokens),
            counted(record.documents, "document"),
            bytes(record.raw_bytes),
            counted(record.shards.len() as u64, "shard")
        );
    }
    for (count, why) in [
        (manifest.skipped_documents, "left out because they are not UTF-8"),
        (manifest.duplicate_documents, "left out as duplicates"),
    ] {
        if count > 0 {
            text += &format!("{:10}  {} {why}\n", "documents", grouped(count));
        }
    }
    let names: Vec<&str> = manifest.inputs.iter().map(|input| input.name.as_str()).collect();
    let more = if names.len() > 3 { format!(" and {} more", names.len() - 3) } else { String::new() };
    text += &format!("{:10}  {}{more}\n", "inputs", names[..names.len().min(3)].join(", "));
    for sample in samples {
        let shown = match sample.get("text").and_then(|text| text.as_str()) {
            Some(text) => format!("{text:?}"),
            None => sample["tokens"].to_string(),
        };
        text += &format!(
            "\n{} at {}: {shown}\n",
            sample["split"].as_str().unwrap_or_default(),
            sample["position"]
        );
    }
    text
}

fn hex(hash: &[u8]) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}
