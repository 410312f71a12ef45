//! `ironmill sample`: text from a model.

use super::{Context, parse_count};
use crate::config::{Config, SampleConfig, Typed};
use crate::failure::{Code, Failure, Result};
use crate::stages::model;
use crate::stages::sampling::{check_can_write, complete};
use serde_json::json;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// The flags of `sample`.
#[derive(clap::Args)]
#[command(after_help = "\
What is not said comes from the run's own [sample] section.

Examples:
  ironmill sample runs/quickstart
  ironmill sample runs/quickstart --prompt 'Once there was a fox' --temperature 0.5
  ironmill sample runs/quickstart --prompt @begin.txt -n 3 --max-tokens 400 --seed 7")]
pub struct Args {
    /// A run folder, a checkpoint or a Hugging Face folder
    #[arg(value_name = "RUN|MODEL")]
    model: PathBuf,
    /// What to continue, or @ and a file; may be repeated
    #[arg(long, value_name = "TEXT|@FILE")]
    prompt: Vec<String>,
    /// Completions of each prompt
    #[arg(short = 'n', long = "samples", default_value_t = 1, value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..))]
    n: u16,
    /// The longest completion
    #[arg(long, value_name = "N", value_parser = parse_count)]
    max_tokens: Option<u64>,
    /// Below 1 likely tokens become likelier; 0 takes the likeliest
    #[arg(long, value_name = "T")]
    temperature: Option<f64>,
    /// Draw only from so many of the likeliest tokens; 0 is all
    #[arg(long, value_name = "K")]
    top_k: Option<u64>,
    /// Draw only from the likeliest tokens that make up this share
    #[arg(long, value_name = "P")]
    top_p: Option<f64>,
    /// Where the draws begin
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// The tokenizer [default: the model's]
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// Where to run: auto, cpu, cuda, cuda:1 … or reference
    #[arg(long, default_value = "auto", value_name = "DEVICE")]
    device: String,
}

/// Writes completions of the prompts to stdout.
pub fn run(context: &Context, args: &Args) -> Result<()> {
    context.refuse_overrides("sample")?;
    let found = model::find(&args.model, &context.show)?;
    let mut engine = found.engine(&args.device, context.threads)?;
    check_can_write(&engine, &args.model)?;
    let settings = args.settings(found.config()?)?;
    let prompts = repeated(&args.prompts(&settings)?, args.n);
    let (tokenizer, file) = found.tokenizer(args.tokenizer.as_deref())?;
    found.check_vocabulary(&engine, &tokenizer, &file)?;

    // A single text is shown while it is written; several would mix.
    let is_streamed = prompts.len() == 1 && !context.show.is_json();
    let mut shown = Ok(());
    if is_streamed {
        context.show.output(prompts[0].as_bytes())?;
    }
    let completions = complete(&mut engine, &tokenizer, &prompts, &settings, &mut |_, text| {
        if is_streamed && shown.is_ok() {
            shown = context.show.output(text.as_bytes());
        }
        if shown.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    shown?;
    if is_streamed {
        return context.show.output(b"\n");
    }
    for (idx, made) in completions.iter().enumerate() {
        let gap = if idx == 0 { "" } else { "\n" };
        let object = json!({"prompt": made.prompt, "text": made.text, "tokens": made.tokens});
        context.show.result(&format!("{gap}{}{}", made.prompt, made.text), &object)?;
    }
    Ok(())
}

impl Args {
    /// The run's settings, or the defaults, with the flags over them.
    fn settings(&self, config: Option<Config>) -> Result<SampleConfig> {
        let mut settings = match config {
            Some(config) => config.sample,
            None => SampleConfig { prompts: Vec::new(), ..Config::resolve(Typed::default())?.sample },
        };
        settings.max_tokens = self.max_tokens.unwrap_or(settings.max_tokens);
        settings.temperature = self.temperature.unwrap_or(settings.temperature);
        settings.top_k = self.top_k.unwrap_or(settings.top_k);
        settings.top_p = self.top_p.unwrap_or(settings.top_p);
        settings.seed = self.seed.unwrap_or(settings.seed);
        let usage = |message: String| Err(Failure::new(Code::Usage, message));
        if !(0.0..=100.0).contains(&settings.temperature) {
            return usage(format!("--temperature {} is out of range: use 0 to 100", settings.temperature));
        }
        if !(settings.top_p > 0.0 && settings.top_p <= 1.0) {
            return usage(format!(
                "--top-p {} is out of range: use a number above 0 and at most 1",
                settings.top_p
            ));
        }
        Ok(settings)
    }

    fn prompts(&self, settings: &SampleConfig) -> Result<Vec<String>> {
        let given = if self.prompt.is_empty() { &settings.prompts } else { &self.prompt };
        if given.is_empty() {
            return Err(Failure::new(Code::Usage, "there is nothing to continue: give --prompt"));
        }
        given.iter().map(|prompt| read_prompt(prompt)).collect()
    }
}

fn read_prompt(prompt: &str) -> Result<String> {
    let Some(file) = prompt.strip_prefix('@') else { return Ok(prompt.to_string()) };
    std::fs::read_to_string(file).map_err(|error| Failure::read(Path::new(file), &error))
}

fn repeated(prompts: &[String], n: u16) -> Vec<String> {
    prompts.iter().flat_map(|prompt| std::iter::repeat_n(prompt.clone(), usize::from(n))).collect()
}
