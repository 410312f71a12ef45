//! `ironmill tokenizer convert`: from one file format to another.

use super::{check_can_write, in_file};
use crate::cli::Context;
use crate::config::DEFAULT_MEMORY;
use crate::failure::{Code, Failure, Result};
use crate::show::numbers::grouped;
use crate::stages::tokenizer::{Budget, count_pieces};
use clap::ValueEnum;
use ironmill_text::{CountSettings, FrequentPieces, Pattern, RankFileSettings, Tokenizer, durable};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

/// The flags of `tokenizer convert`.
#[derive(clap::Args)]
pub struct ConvertArgs {
    /// A tokenizer.json, a rank file of tiktoken, or a vocab.json with --merges
    #[arg(value_name = "FILE")]
    input: PathBuf,
    /// The file to write
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// The format to write [default: ranks for a name that ends in .tiktoken, otherwise json]
    #[arg(long, value_enum)]
    to: Option<Form>,
    /// The merges.txt that belongs to a vocab.json
    #[arg(long, value_name = "FILE")]
    merges: Option<PathBuf>,
    /// How text is cut, which rank files and vocab.json do not say: gpt2, cl100k, o200k, llama3, qwen2 or a regular expression
    #[arg(long, value_name = "NAME|REGEX")]
    pattern: Option<String>,
    /// A special token of a rank file, or the name of one in a vocab.json; may be repeated
    #[arg(long, value_name = "TEXT=ID|TEXT")]
    special: Vec<String>,
    /// Text whose most frequent pieces are kept beside the tokenizer, so that similar text is encoded fast from the start
    #[arg(long, num_args = 1.., value_name = "INPUT")]
    pieces_from: Vec<String>,
    #[command(flatten)]
    reading: crate::cli::data::Reading,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Form {
    /// tokenizer.json of Hugging Face
    Json,
    /// A rank file of tiktoken, without pattern and special tokens
    Ranks,
}

/// Converts the tokenizer.
pub fn run(context: &Context, args: &ConvertArgs) -> Result<()> {
    check_can_write(&args.out)?;
    let tokenizer = read(args)?;
    let is_ranks = args.out.extension().is_some_and(|extension| extension == "tiktoken");
    let form = args.to.unwrap_or(if is_ranks { Form::Ranks } else { Form::Json });
    match form {
        Form::Json => tokenizer.save(&args.out)?,
        Form::Ranks => {
            let ranks = tokenizer.to_ranks().map_err(|error| in_file(&args.input, error.into()))?;
            durable::write(&args.out, ranks.as_bytes()).map_err(|error| Failure::write(&args.out, &error))?;
        }
    }
    let n_pieces = keep_pieces(context, args, &tokenizer)?;
    let mut text = format!(
        "{}: {}, {} tokens",
        args.out.display(),
        tokenizer.kind(),
        grouped(tokenizer.vocab_size() as u64)
    );
    if n_pieces > 0 {
        text += &format!(", {} pieces beside it", grouped(n_pieces as u64));
    }
    let object = json!({
        "file": args.out,
        "kind": tokenizer.kind().name(),
        "vocab_size": tokenizer.vocab_size(),
        "pieces": n_pieces,
    });
    context.show.result(&text, &object)
}

fn read(args: &ConvertArgs) -> Result<Tokenizer> {
    let pattern = args.pattern.as_deref().map(str::parse::<Pattern>).transpose()?;
    if let Some(merges) = &args.merges {
        let (vocab, merges) = (read_text(&args.input)?, read_text(merges)?);
        let pattern = pattern.unwrap_or(Pattern::Gpt2);
        return Tokenizer::from_vocab_and_merges(&vocab, &merges, &pattern, &args.special)
            .map_err(|error| in_file(&args.input, error.into()));
    }
    let Some(pattern) = pattern else {
        if !args.special.is_empty() {
            let message = "--special is for rank files with --pattern and for a vocab.json with --merges";
            return Err(Failure::new(Code::Usage, message));
        }
        return Ok(Tokenizer::load(&args.input)?);
    };
    let special = args.special.iter().map(|text| special(text)).collect::<Result<Vec<_>>>()?;
    let ranks = read_text(&args.input)?;
    Tokenizer::from_ranks(ranks.as_bytes(), Some(&RankFileSettings { pattern, special }))
        .map_err(|error| in_file(&args.input, error.into()))
}

/// The text and the id of `TEXT=ID`.
fn special(argument: &str) -> Result<(String, u32)> {
    let parsed = argument.rsplit_once('=').and_then(|(text, id)| Some((text.to_owned(), id.parse().ok()?)));
    parsed.ok_or_else(|| {
        let message =
            format!("--special {argument}: a rank file needs TEXT=ID, such as '<|endoftext|>=50256'");
        Failure::new(Code::Usage, message)
    })
}

fn read_text(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(|error| Failure::read(path, &error))
}

/// Writes the most frequent pieces of the text that was given, and says how many they are.
fn keep_pieces(context: &Context, args: &ConvertArgs, tokenizer: &Tokenizer) -> Result<usize> {
    let Some(pattern) = tokenizer.pattern().filter(|_| !args.pieces_from.is_empty()) else {
        return Ok(0);
    };
    let special: Vec<String> = tokenizer.special_tokens().iter().map(|(text, _)| text.clone()).collect();
    let settings = CountSettings::new(pattern, &special, false);
    let inputs = args.reading.find(&args.pieces_from)?;
    let budget = Budget::new(DEFAULT_MEMORY, context.threads, None, false)?;
    let counted = count_pieces(&inputs, &settings, &budget, &context.show, &AtomicBool::new(false))?;
    let pieces = FrequentPieces::of(&counted, FrequentPieces::USUAL)?;
    pieces.save(&FrequentPieces::path_beside(&args.out))?;
    Ok(pieces.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_special_token_is_a_text_and_an_id() {
        assert_eq!(special("<a=b>=7").unwrap(), ("<a=b>".to_owned(), 7));
        assert_eq!(special("<a>").unwrap_err().code(), Code::Usage);
        assert_eq!(special("<a>=x").unwrap_err().code(), Code::Usage);
    }
}
