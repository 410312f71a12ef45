//! `ironmill eval`: how well a model predicts a prepared data set or a text, chooses and answers.

mod scores;
mod text;

use super::{Context, parse_count};
use crate::failure::{Code, Failure, Result};
use crate::show::numbers::grouped;
use crate::stages::corpus::check_match;
use crate::stages::model::{self, Storage};
use clap::ValueEnum;
use ironmill_data::{Dataset, Split};
use ironmill_model::{EvaluationSet, Objective};
use ironmill_text::Tokenizer;
use serde_json::json;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

/// The flags of `eval`.
#[derive(clap::Args)]
#[command(after_help = "\
Measures one of four things: the loss on prepared data; with --text the loss of a text that fits the context, and its logits;
with --choices which of some texts the model finds likeliest, a line each of {\"prompt\", \"choices\", \"answer\"}; with --answers
how well it answers, a line each of {\"prompt\", \"answers\"}, by SQuAD's exact match and F1 of the first line that it writes.

Examples:
  ironmill eval runs/quickstart
  ironmill eval smollm2 --text 'The capital of France is Paris.' --logits logits.safetensors
  ironmill eval smollm2 --choices arc.jsonl --examples 500
  ironmill eval smollm2 --answers squad.jsonl --chat --details found.jsonl --json
  ironmill eval runs/quickstart/checkpoints/step-00000500 --tokens 1M
  ironmill eval gpt2-folder --data data --split train")]
pub struct Args {
    /// A run folder, a checkpoint or a Hugging Face folder
    #[arg(value_name = "RUN|MODEL")]
    model: PathBuf,
    /// A prepared folder [default: the run's]
    #[arg(long, value_name = "DIR", conflicts_with_all = ["choices", "answers"])]
    data: Option<PathBuf>,
    /// Which tokens to predict
    #[arg(long, value_enum, default_value = "validation", conflicts_with_all = ["choices", "answers"])]
    split: SplitName,
    /// The most tokens to predict [default: all]
    #[arg(long, value_name = "N", value_parser = parse_count, conflicts_with_all = ["choices", "answers"])]
    tokens: Option<u64>,
    /// The longest sequence [default: the model's context]
    #[arg(long, value_name = "N", value_parser = parse_count, conflicts_with_all = ["choices", "answers"])]
    context: Option<u64>,
    /// Measure the loss of this text, or of @ and a file, as one sample
    #[arg(long, value_name = "TEXT|@FILE", allow_hyphen_values = true,
          conflicts_with_all = ["data", "split", "tokens", "context", "rows", "choices", "answers"])]
    text: Option<String>,
    /// With --text: write its tokens and the logits behind each of them as safetensors
    #[arg(long, value_name = "FILE", requires = "text")]
    logits: Option<PathBuf>,
    /// Questions with choices, a JSON object a line
    #[arg(long, value_name = "FILE", conflicts_with = "answers")]
    choices: Option<PathBuf>,
    /// Questions with answers, a JSON object a line
    #[arg(long, value_name = "FILE")]
    answers: Option<PathBuf>,
    #[command(flatten)]
    scores: scores::ScoreArgs,
    /// Sequences that go through the model at once
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    rows: u16,
    /// The tokenizer [default: the model's]
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    #[command(flatten)]
    storage: Storage,
    /// Where to run: auto, cpu, cuda, cuda:1 … or reference
    #[arg(long, default_value = "auto", value_name = "DEVICE")]
    device: String,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum SplitName {
    Train,
    Validation,
}

/// Measures a model.
pub fn run(context: &Context, args: &Args) -> Result<()> {
    context.refuse_overrides("eval")?;
    if args.tokens.is_some_and(|tokens| tokens < 2) {
        let message = "--tokens is too small: a token is predicted from one before it, so use at least 2";
        return Err(Failure::new(Code::Usage, message));
    }
    let found = model::find(&args.model, &context.show)?;
    let (tokenizer, file) = found.tokenizer(args.tokenizer.as_deref())?;
    if let Some(text) = &args.text {
        args.scores.refuse()?;
        return text::run(context, args, &found, (&tokenizer, &file), text);
    }
    match (&args.choices, &args.answers) {
        (Some(questions), _) => {
            return scores::choices(context, args, &found, (&tokenizer, &file), questions);
        }
        (None, Some(questions)) => {
            return scores::answers(context, args, &found, (&tokenizer, &file), questions);
        }
        (None, None) => args.scores.refuse()?,
    }
    let dir = match (&args.data, &found.run) {
        (Some(dir), _) => dir.clone(),
        (None, Some(run)) => match found.config()? {
            Some(config) if !run.data().exists() && config.data.input.len() == 1 => {
                PathBuf::from(&config.data.input[0])
            }
            _ => run.data(),
        },
        (None, None) => {
            let message =
                format!("{} is not a run folder: say what to measure on with --data", args.model.display());
            return Err(Failure::new(Code::Usage, message));
        }
    };
    let dataset = Dataset::open(&dir)?;
    // A folder may say to put something else around a text than its file, which alone may be what made the tokens.
    check_match(&tokenizer, &file, &dataset, &dir)
        .or_else(|_| check_match(&Tokenizer::load(&file)?, &file, &dataset, &dir))?;
    let split = if args.split == SplitName::Train { Split::Train } else { Split::Validation };
    let stream = dataset.split(split);
    if stream.is_empty() {
        return Err(ironmill_data::Error::EmptySplit { split: split.name().into() }.into());
    }
    let mut engine = found.engine_cut_to(args.context, args.storage, &args.device, context.threads)?;
    found.check_vocabulary(&engine, &tokenizer, &file)?;
    let objective = model::objective_of(engine.model().config().architecture, &tokenizer)?;
    // A run is measured as it was trained: prepared tokens and nothing else. Other models are used to what their makers put
    // before a text.
    let is_text = found.run.is_none() && objective == Objective::NextToken;
    let before = if is_text { tokenizer.around().0 } else { &[] };
    let set = args.tokens.map_or(EvaluationSet::Complete, EvaluationSet::First);
    let never = AtomicBool::new(false);
    let evaluation =
        engine.evaluate_behind(before, stream, objective, set, usize::from(args.rows), &never)?;
    let bits = evaluation.bits_per_byte.map_or(String::new(), |bits| format!(", {bits:.4} bits per byte"));
    let text = format!(
        "{}: loss {:.4} nats a token, perplexity {:.2}{bits}, over {} {}{} tokens",
        found.weights.display(),
        evaluation.loss,
        evaluation.perplexity(),
        grouped(evaluation.tokens),
        if objective == Objective::NextToken { "" } else { "masked " },
        split.name()
    );
    let object = json!({
        "model": found.weights,
        "data": dir,
        "split": split.name(),
        "loss": evaluation.loss,
        "perplexity": evaluation.perplexity(),
        "bits_per_byte": evaluation.bits_per_byte,
        "objective": if objective == Objective::NextToken { "next token" } else { "masked token" },
        "tokens": evaluation.tokens,
        "before": before,
    });
    context.show.result(&text, &object)
}
