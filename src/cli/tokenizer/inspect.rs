//! `ironmill tokenizer inspect`: what a tokenizer is, and how well it fits a text.

use super::{in_file, read_input, shown};
use crate::cli::Context;
use crate::failure::Result;
use crate::show::numbers::{bytes, counted, grouped, hexadecimal};
use ironmill_text::{Inspection, Sample, Tokenizer, inspect};
use serde_json::{Value, json};
use std::path::PathBuf;

/// The flags of `tokenizer inspect`.
#[derive(clap::Args)]
pub struct InspectArgs {
    /// The tokenizer
    #[arg(value_name = "FILE")]
    tokenizer: PathBuf,
    /// Texts to measure the compression on; - is stdin
    #[arg(long, num_args = 1.., value_name = "FILE")]
    text: Vec<PathBuf>,
    /// How many of the longest tokens to show
    #[arg(long, default_value_t = 10, value_name = "N")]
    longest: u16,
}

/// Describes the tokenizer.
pub fn run(context: &Context, args: &InspectArgs) -> Result<()> {
    let tokenizer = Tokenizer::load(&args.tokenizer)?;
    let found = inspect(&tokenizer, usize::from(args.longest), None)?;
    let mut samples = Vec::new();
    for path in &args.text {
        let sample =
            Sample::of(&tokenizer, &read_input(path)?).map_err(|error| in_file(path, error.into()))?;
        samples.push((shown(path), sample));
    }
    if samples.len() > 1 {
        let mut all = Sample::default();
        samples.iter().for_each(|(_, sample)| all.add(*sample));
        samples.push(("all texts".into(), all));
    }
    let object = json!({
        "file": args.tokenizer,
        "kind": found.kind.name(),
        "vocab_size": found.vocab_size,
        "special": found.special.iter().map(|(text, id)| json!({"id": id, "text": text})).collect::<Vec<_>>(),
        "pattern": found.pattern.as_ref().map(|p| json!({"name": p.name(), "regex": p.regex()})),
        "merges": found.merges,
        "longest": found.longest.iter().map(|(id, token)| json!({
            "id": id, "bytes": token.len(), "text": String::from_utf8_lossy(token)
        })).collect::<Vec<_>>(),
        "missing_bytes": found.missing_bytes,
        "texts": samples.iter().map(|(name, sample)| sample_object(name, sample)).collect::<Vec<_>>(),
    });
    let mut text = format!("{}: {}", args.tokenizer.display(), describe(&found));
    for (name, sample) in &samples {
        text += &format!("\n{name}: {}", describe_sample(sample));
    }
    context.show.result(&text, &object)
}

fn describe(found: &Inspection) -> String {
    let mut text = format!("{}, {}", found.kind, counted(found.vocab_size as u64, "token"));
    if let Some(pattern) = &found.pattern {
        text += &format!("\n{:10}  {}", "pattern", pattern.name().unwrap_or(pattern.regex()));
    }
    if found.merges > 0 {
        text += &format!("\n{:10}  {}", "merges", grouped(found.merges as u64));
    }
    if !found.missing_bytes.is_empty() {
        let (count, listed) =
            (counted(found.missing_bytes.len() as u64, "byte"), hexadecimal(&found.missing_bytes));
        text += &format!("\n{:10}  {count} without a token, left out of a text: {listed}", "missing");
    }
    let mut label = "special";
    for (special, id) in &found.special {
        text += &format!("\n{label:10}  {id:>7}  {special}");
        label = "";
    }
    let mut label = "longest";
    for (id, token) in &found.longest {
        let size = bytes(token.len() as u64);
        text += &format!("\n{label:10}  {id:>7}  {:?} ({size})", String::from_utf8_lossy(token));
        label = "";
    }
    text
}

fn describe_sample(sample: &Sample) -> String {
    let mut text = format!(
        "{} in {}, {:.2} bytes a token, {:.1} % of them single bytes",
        bytes(sample.bytes),
        counted(sample.tokens, "token"),
        sample.bytes_per_token(),
        100.0 * sample.single_byte_share()
    );
    if sample.unknown > 0 {
        let share = 100.0 * sample.unknown_share();
        text += &format!(", {} unknown ({share:.2} %)", grouped(sample.unknown));
    }
    text
}

fn sample_object(name: &str, sample: &Sample) -> Value {
    json!({
        "file": name,
        "bytes": sample.bytes,
        "tokens": sample.tokens,
        "bytes_per_token": sample.bytes_per_token(),
        "single_byte_tokens": sample.single_byte_tokens,
        "single_byte_share": sample.single_byte_share(),
        "unknown": sample.unknown,
        "unknown_share": sample.unknown_share(),
    })
}
