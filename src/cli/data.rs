//! `ironmill data`: prepare, verify, inspect.

use super::{Context, parse_count};
use crate::failure::{Code, Failure, Result};
use crate::show::numbers::{bytes, counted, grouped};
use crate::signals;
use crate::stages::data::{PreparedData, TOKENIZER_NAME, prepare};
use clap::ValueEnum;
use ironmill_data::{BadUtf8, InputOptions, Inputs, PrepareOptions, Split, Summary, inspect, verify};
use ironmill_text::Tokenizer;
use serde_json::json;
use std::path::{Path, PathBuf};

/// The commands on data sets.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Turn text into token shards
    #[command(after_help = "\
Examples:
  ironmill data prepare texts/ --tokenizer tokenizer.json --out data
  ironmill data prepare 'wiki/*.jsonl.zst' --tokenizer tokenizer.json --out data --validation 0.01
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
}

/// How text inputs are found and read.
#[derive(clap::Args)]
pub struct Reading {
    /// The text between documents of one file
    #[arg(long, value_name = "TEXT")]
    document_separator: Option<String>,
    /// The field of a JSON lines row, or the column of a parquet file, that holds the text
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
    /// Files, folders, patterns such as 'texts/*.txt', or builtin:stories:20MB
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
    /// Finds the inputs.
    pub fn find(&self, specs: &[String]) -> Result<Inputs> {
        self.find_with(specs, false)
    }

    /// The inputs, of which one may be the standard input.
    pub fn find_or_stdin(&self, specs: &[String]) -> Result<Inputs> {
        self.find_with(specs, true)
    }

    fn find_with(&self, specs: &[String], may_read_stdin: bool) -> Result<Inputs> {
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
            may_read_stdin,
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
    let inputs = args.reading.find(&args.inputs)?;
    let options = PrepareOptions {
        validation: args.validation,
        shard_tokens: args.shard_tokens,
        threads: context.threads,
    };
    let stop = signals::stop_flag()?;
    let prepared = prepare(&inputs, &tokenizer, &args.out, &options, &context.show, &stop)?;
    let object = json!({
        "dir": args.out,
        "reused": prepared.reused,
        "train": split_counts(&prepared, Split::Train),
        "validation": split_counts(&prepared, Split::Validation),
    });
    context.show.result(&format!("{}: {}", args.out.display(), prepared.summary()), &object)
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
