//! `ironmill run` and `ironmill train`.

use super::Context;
use crate::config::{Config, Override, TokenizerConfig, keys_of};
use crate::failure::{Code, Failure, Result};
use crate::show::numbers::{grouped, time};
use crate::signals;
use crate::stages::corpus;
use crate::stages::model::check_device;
use crate::stages::plan::Plan;
use crate::stages::run_folder::RunFolder;
use crate::stages::training::{Outcome, train};
use ironmill_data::Yardsticks;
use ironmill_model::Stored;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The flags of `run`.
#[derive(clap::Args)]
#[command(after_help = "\
Any key of the configuration is a flag too: --train.steps 500, --data.input my.txt.

Examples:
  ironmill run examples/quickstart.toml
  ironmill run examples/quickstart.toml --data.input my.txt --out runs/mine
  ironmill run examples/quickstart.toml --train.learning-rate 3e-4 --train.steps 500")]
pub struct RunArgs {
    #[command(flatten)]
    common: CommonArgs,
}

/// The flags of `train`.
#[derive(clap::Args)]
#[command(after_help = "\
Trains on prepared data: that of an earlier `ironmill run`, or a prepared folder named by data.input.
Any key of the configuration is a flag too: --train.steps 500.

Examples:
  ironmill train config.toml --data.input data --out runs/first
  ironmill train config.toml --out runs/first --train.steps 2000
  ironmill train config.toml --dry-run")]
pub struct TrainArgs {
    #[command(flatten)]
    common: CommonArgs,
    /// Begin with the weights of another model, whose sizes the run takes too, all but context and dropout; needs a new run
    /// folder
    #[arg(long, value_name = "MODEL")]
    init_from: Option<PathBuf>,
    /// Print parameters, FLOPs and the memory plan, and train nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(clap::Args)]
struct CommonArgs {
    /// The TOML file
    #[arg(value_name = "CONFIG")]
    config: PathBuf,
    /// The run folder [default: runs/ and the name of the configuration]
    #[arg(long, value_name = "RUN")]
    out: Option<PathBuf>,
    /// Refuse a folder that already holds a run, instead of going on with it
    #[arg(long)]
    fresh: bool,
    /// Where to train: auto, cpu, cuda, cuda:1 … or reference (train.device)
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,
    /// Blocks and heads, each head 64 wide: one dial for the size (model.depth)
    #[arg(long, value_name = "N")]
    depth: Option<String>,
    /// Where random choices begin (the key seed)
    #[arg(long, value_name = "N")]
    seed: Option<String>,
}

/// The whole pipeline: tokenizer, data, training, sampling.
pub fn run(context: &Context, args: &RunArgs) -> Result<()> {
    let stop = signals::stop_flag()?;
    let config = args.common.load(context, None)?;
    let (folder, config) = args.common.open(config, context)?;
    let corpus = corpus::make(&folder, &config, context, &stop)?;
    let bars = corpus::show_yardsticks(&corpus, context)?;
    let outcome = train(&folder, &config, &corpus, None, context, &stop)?;
    show_outcome(context, &folder, &outcome, bars)
}

/// Training alone, on prepared data.
pub fn run_train(context: &Context, args: &TrainArgs) -> Result<()> {
    let config = args.common.load(context, args.init_from.as_deref())?;
    if args.dry_run {
        return dry_run(context, &config, &args.common.folder());
    }
    if let Some(path) = &args.init_from
        && args.common.folder().has_checkpoint()?
    {
        let message = format!(
            "{} already has checkpoints, so --init-from {} cannot begin it: choose a new --out",
            args.common.folder().path().display(),
            path.display()
        );
        return Err(Failure::new(Code::Usage, message));
    }
    let stop = signals::stop_flag()?;
    let folder = args.common.folder();
    let found = corpus::find(&folder, &config)?;
    let (folder, config) = args.common.open(config, context)?;
    let bars = corpus::show_yardsticks(&found, context)?;
    let outcome = train(&folder, &config, &found, args.init_from.as_deref(), context, &stop)?;
    show_outcome(context, &folder, &outcome, bars)
}

impl CommonArgs {
    fn load(&self, context: &Context, init_from: Option<&Path>) -> Result<Config> {
        self.device.as_deref().map_or(Ok(()), check_device)?;
        // The sizes of the model to begin with are those of the run, unless a flag says otherwise.
        let mut overrides = match init_from {
            Some(path) => keys_of(Stored::open(path)?.model().config()),
            None => Vec::new(),
        };
        overrides.retain(|key| !context.overrides.iter().any(|flag| flag.path == key.path));
        overrides.extend(context.overrides.iter().cloned());
        let flags = [("train.device", &self.device), ("seed", &self.seed), ("model.depth", &self.depth)];
        for (path, value) in flags {
            overrides.extend(value.iter().map(|value| Override { path: path.into(), value: value.clone() }));
        }
        Config::load(&self.config, &overrides)
    }

    fn folder(&self) -> RunFolder {
        let stem = self.config.file_stem().unwrap_or("run".as_ref());
        RunFolder::at(&self.out.clone().unwrap_or_else(|| Path::new("runs").join(stem)))
    }

    fn open(&self, config: Config, context: &Context) -> Result<(RunFolder, Config)> {
        check_device(&config.train.device)?;
        let folder = self.folder();
        if self.fresh && folder.exists() {
            let message = format!(
                "{} already holds a run: choose another --out, or leave out --fresh to go on with it",
                folder.path().display()
            );
            return Err(Failure::new(Code::CannotWrite, message));
        }
        let (folder, config) = RunFolder::open_or_create(folder.path(), config, &context.show)?;
        context.show.log_to(&folder.log())?;
        context.show.note(&format!("run: {}", folder.path().display()));
        Ok((folder, config))
    }
}

fn show_outcome(
    context: &Context,
    run: &RunFolder,
    outcome: &Outcome,
    bars: Option<Yardsticks>,
) -> Result<()> {
    let mut text = format!("{}: {} steps", run.path().display(), grouped(outcome.steps));
    let mut object = json!({"run": run.path(), "steps": outcome.steps, "epochs": outcome.epochs});
    if let Some(evaluation) = &outcome.evaluation {
        text += &format!(", validation loss {:.4}", evaluation.loss);
        text += &format!(" (perplexity {:.2}", evaluation.perplexity());
        if let Some(bits) = evaluation.bits_per_byte {
            text += &format!(", {bits:.4} bits per byte");
        }
        text += ")";
        object["validation_loss"] = evaluation.loss.into();
        object["perplexity"] = evaluation.perplexity().into();
        object["bits_per_byte"] = evaluation.bits_per_byte.into();
    }
    if let Some(bars) = bars {
        text += &format!("; unigram {:.4}, bigram {:.4}", bars.unigram, bars.bigram);
        object["unigram"] = bars.unigram.into();
        object["bigram"] = bars.bigram.into();
    }
    let (account, numbers) = (outcome.account, |seconds| time(Duration::from_secs_f64(seconds)));
    text += &format!("\ntime: {}; goodput {:.1} %", numbers(account.total()), account.goodput() * 100.0);
    for (name, seconds) in account.parts().into_iter().filter(|(name, _)| *name != "steps") {
        if seconds >= 0.0005 * account.total() {
            text += &format!(", {name} {:.1} %", seconds / account.total() * 100.0);
        }
    }
    text += &format!("\nreport: {}", run.report().display());
    object["goodput"] = account.goodput().into();
    object["seconds"] = account.to_json();
    object["report"] = json!(run.report());
    for made in &outcome.completions {
        text += &format!("\n\n{}{}", made.prompt, made.text);
    }
    let completions: Vec<_> =
        outcome.completions.iter().map(|made| json!({"prompt": made.prompt, "text": made.text})).collect();
    object["completions"] = completions.into();
    context.show.result(&text, &object)
}

/// What a run would take, without touching a device or writing a file.
fn dry_run(context: &Context, config: &Config, folder: &RunFolder) -> Result<()> {
    let found = corpus::find(folder, config);
    let vocab_size = match (&found, &config.tokenizer) {
        (Ok(found), _) => found.tokenizer.vocab_size() as u64,
        (Err(_), TokenizerConfig::File { file }) => ironmill_text::Tokenizer::load(file)?.vocab_size() as u64,
        (Err(_), TokenizerConfig::Train(settings)) => match settings.expected_vocab_size() {
            Some(vocab_size) => vocab_size,
            None => return found.map(|_| ()),
        },
    };
    let plan = Plan::expected(config, found.as_ref().ok(), vocab_size)?;
    context.show.result(&plan.table(config.train.batch_tokens), &plan.to_json())
}
