//! `ironmill import` and `ironmill export`: models in and out.

use super::Context;
use crate::failure::Result;
use crate::show::numbers::grouped;
use crate::stages::interchange::{self, Checked, Companions, Elements};
use crate::stages::model;
use ironmill_model::Stored;
use serde_json::json;
use std::path::{Path, PathBuf};

/// The flags of `import`.
#[derive(clap::Args)]
#[command(after_help = "\
Reads a GGUF file (F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1 and Q2_K to Q6_K, dequantised), a model of llm.c or llama2.c, or a
Hugging Face folder, with its tokenizer and chat template, and writes a Hugging Face folder that every other command takes. One tensor is
in memory at a time. Pickles (.bin, .pt) are never read.

Examples:
  ironmill import SmolLM2-135M-Instruct.Q4_1.gguf --out smollm2 --check
  ironmill import gpt2_124M.bin --tokenizer gpt2/tokenizer.json --out gpt2
  ironmill import stories260K.bin --tokenizer tok512.bin --out stories
  ironmill import gemma-3-270m.gguf --out gemma --dtype bf16")]
pub struct ImportArgs {
    /// A GGUF file, a checkpoint of llm.c, a model of llama2.c or a Hugging Face folder
    #[arg(value_name = "FILE|FOLDER")]
    source: PathBuf,
    /// The folder to make
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    #[command(flatten)]
    way: Way,
}

/// The flags of `export`.
#[derive(clap::Args)]
#[command(after_help = "\
A name that ends in .gguf makes a GGUF file, any other a Hugging Face folder that `transformers` loads, with tokenizer, chat
template and generation config.

Examples:
  ironmill export runs/quickstart --out quickstart-model
  ironmill export runs/quickstart --out quickstart.gguf --dtype q8_0
  ironmill export smollm2 --out smollm2-bf16 --dtype bf16 --check")]
pub struct ExportArgs {
    /// A run folder, a checkpoint, a Hugging Face folder or a GGUF file
    #[arg(value_name = "RUN|MODEL")]
    model: PathBuf,
    /// The folder or the .gguf file to make
    #[arg(long, value_name = "PATH")]
    out: PathBuf,
    #[command(flatten)]
    way: Way,
}

/// How a model is written: what both have.
#[derive(clap::Args)]
struct Way {
    /// The tokenizer [default: the model's own]
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// The type of the weights; q8_0 is for GGUF files
    #[arg(long, value_enum, default_value = "f32", value_name = "TYPE")]
    dtype: Elements,
    /// Read the result again, and compare logits and greedy tokens with the model's
    #[arg(long)]
    check: bool,
}

/// Makes a folder of whatever holds a model.
pub fn import(context: &Context, args: &ImportArgs) -> Result<()> {
    context.refuse_overrides("import")?;
    let companions = Companions::of(&args.source, args.way.tokenizer.as_deref())?;
    if companions.tokenizer().is_none() {
        let advice = "give one with --tokenizer, here or to the commands that need text";
        context.show.warn(&format!("{} has no tokenizer: {advice}", args.source.display()));
    }
    write(context, &args.source, &companions, &args.out, &args.way)
}

/// Makes a folder or a GGUF file of a model.
pub fn export(context: &Context, args: &ExportArgs) -> Result<()> {
    context.refuse_overrides("export")?;
    let source = match args.model.is_file() {
        true => args.model.clone(),
        false => model::find(&args.model, &context.show)?.weights,
    };
    let companions = Companions::of(&source, args.way.tokenizer.as_deref())?;
    write(context, &source, &companions, &args.out, &args.way)
}

fn write(
    context: &Context,
    source: &Path,
    companions: &Companions,
    out: &Path,
    &Way { dtype, check: is_checked, .. }: &Way,
) -> Result<()> {
    let stored = Stored::open(source)?;
    let parameters = stored.model().layout().count() as u64;
    let sizes = stored.model().config().to_string();
    match out.extension().is_some_and(|extension| extension == "gguf") {
        true => interchange::write_gguf(&stored, companions, out, dtype)?,
        false => interchange::write_folder(&stored, companions, out, dtype)?,
    }
    let mut text = format!("{}: {} parameters, {sizes}", out.display(), grouped(parameters));
    let mut object = json!({"out": out, "source": source, "parameters": parameters});
    if is_checked {
        let Checked { difference, largest, greedy: (tokens, same) } =
            interchange::check(source, out, dtype, context.threads)?;
        text += &format!(
            "\nchecked: logits differ by at most {difference:.2e} (the largest is {largest:.2}), {same} of {tokens} greedy tokens agree"
        );
        object["check"] =
            json!({"difference": difference, "largest": largest, "tokens": tokens, "same_tokens": same});
    }
    context.show.result(&text, &object)
}
