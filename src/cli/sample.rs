//! `ironmill sample`: text from a model.

use super::{Context, parse_count};
use crate::config::{Config, SampleConfig, Typed};
use crate::failure::{Code, Failure, Result};
use crate::show::numbers::{counted, grouped};
use crate::stages::interchange::end_ids;
use crate::stages::model::{self, Storage};
use crate::stages::quality::Quality;
use crate::stages::sampling::{Completion, Settings, check_can_write, complete};
use ironmill_model::{Finish, Sampling};
use serde_json::{Value, json};
use std::io::Read;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// The flags of `sample`.
#[derive(clap::Args)]
#[command(after_help = "\
What is not said comes from the run's own [sample] section. A single text is shown while it is written. Penalties, limits
and least lengths that are 0 are off. When the context is full, its last half is kept and the text goes on; a note says so.

Examples:
  ironmill sample runs/quickstart
  ironmill sample runs/quickstart --prompt 'Once there was a fox' --temperature 0.5
  ironmill sample runs/quickstart --prompt @begin.txt -n 3 --max-tokens 400 --seed 7
  echo 'The lantern' | ironmill sample runs/quickstart --prompt - --stop '. ' --top-p 0.9
  ironmill sample runs/quickstart --json --log-probabilities 3 --quality
  ironmill sample smollm2 --prompt 'The capital of France is' --weights int8")]
pub struct Args {
    /// A run folder, a checkpoint or a Hugging Face folder
    #[arg(value_name = "RUN|MODEL")]
    model: PathBuf,
    /// What to continue, @ and a file, or - for stdin without its last line's end; may be repeated
    #[arg(long, value_name = "TEXT|@FILE|-", allow_hyphen_values = true)]
    prompt: Vec<String>,
    /// Completions of each prompt
    #[arg(short = 'n', long = "samples", default_value_t = 1, value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..))]
    n: u16,
    /// The longest completion
    #[arg(long, value_name = "N", value_parser = parse_count)]
    max_tokens: Option<u64>,
    /// The shortest: the end of the text is not drawn before
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = parse_count)]
    min_tokens: u64,
    /// Below 1 likely tokens become likelier; 0 takes the likeliest
    #[arg(long, value_name = "T")]
    temperature: Option<f64>,
    /// Draw only from so many of the likeliest tokens; 0 is all
    #[arg(long, value_name = "K")]
    top_k: Option<u64>,
    /// Draw only from the likeliest tokens that make up this share; 0 is all
    #[arg(long, value_name = "P")]
    top_p: Option<f64>,
    /// Draw only tokens that are at least this share as likely as the likeliest
    #[arg(long, default_value_t = 0.0, value_name = "P")]
    min_p: f64,
    /// Above 1: makes tokens that are in the prompt or were written less likely
    #[arg(long, default_value_t = 0.0, value_name = "R")]
    repetition_penalty: f64,
    /// Taken off the logits of tokens that were written
    #[arg(long, default_value_t = 0.0, value_name = "P", allow_negative_numbers = true)]
    presence_penalty: f64,
    /// Taken off the logit of a token for every time that it was written
    #[arg(long, default_value_t = 0.0, value_name = "P", allow_negative_numbers = true)]
    frequency_penalty: f64,
    /// Added to the logit of a token, as in 42=-5; may be repeated
    #[arg(long, value_name = "ID=X", value_parser = parse_bias)]
    bias: Vec<(u32, f32)>,
    /// A text that ends a completion and is not shown; may be repeated
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Where the draws begin
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// With --json: the probability of every token, and the N likeliest
    #[arg(long, value_name = "N")]
    log_probabilities: Option<u16>,
    /// How much a text repeats itself
    #[arg(long)]
    quality: bool,
    /// The tokenizer [default: the model's]
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    #[command(flatten)]
    storage: Storage,
    /// Where to run: auto, cpu, cuda, cuda:1 … or reference
    #[arg(long, default_value = "auto", value_name = "DEVICE")]
    device: String,
}

/// Writes completions of the prompts to stdout.
pub fn run(context: &Context, args: &Args) -> Result<()> {
    context.refuse_overrides("sample")?;
    let found = model::find(&args.model, &context.show)?;
    let mut engine = found.engine_in(args.storage, &args.device, context.threads)?;
    check_can_write(&engine, &args.model)?;
    let config = args.config(found.config()?)?;
    let mut settings = args.settings(&config)?;
    let prompts = repeated(&args.prompts(&config)?, args.n);
    let (tokenizer, file) = found.tokenizer(args.tokenizer.as_deref())?;
    found.check_vocabulary(&engine, &tokenizer, &file)?;
    settings.ends = end_ids(&found.weights);

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
    for (idx, made) in completions.iter().enumerate() {
        if is_streamed {
            context.show.output(b"\n")?;
        } else {
            let gap = if idx == 0 { "" } else { "\n" };
            context.show.result(&format!("{gap}{}{}", made.prompt, made.text), &args.object(made))?;
        }
        args.note(context, made);
    }
    Ok(())
}

impl Args {
    /// The run's settings, or the defaults, with the flags over them.
    fn config(&self, config: Option<Config>) -> Result<SampleConfig> {
        let mut settings = match config {
            Some(config) => config.sample,
            None => SampleConfig { prompts: Vec::new(), ..Config::resolve(Typed::default())?.sample },
        };
        settings.max_tokens = self.max_tokens.unwrap_or(settings.max_tokens);
        settings.temperature = self.temperature.unwrap_or(settings.temperature);
        settings.top_k = self.top_k.unwrap_or(settings.top_k);
        settings.top_p = self.top_p.unwrap_or(settings.top_p);
        settings.seed = self.seed.unwrap_or(settings.seed);
        for (flag, value, highest) in [
            ("temperature", settings.temperature, 100.0),
            ("top-p", settings.top_p, 1.0),
            ("min-p", self.min_p, 1.0),
            ("repetition-penalty", self.repetition_penalty, 100.0),
        ] {
            check_range(flag, value, 0.0, highest)?;
        }
        check_range("presence-penalty", self.presence_penalty, -100.0, 100.0)?;
        check_range("frequency-penalty", self.frequency_penalty, -100.0, 100.0)?;
        Ok(settings)
    }

    fn settings(&self, config: &SampleConfig) -> Result<Settings> {
        let from_config = Settings::from(config);
        Ok(Settings {
            sampling: Sampling {
                min_p: self.min_p as f32,
                repetition_penalty: self.repetition_penalty as f32,
                presence_penalty: self.presence_penalty as f32,
                frequency_penalty: self.frequency_penalty as f32,
                bias: self.bias.clone(),
                ..from_config.sampling
            },
            min_tokens: self.min_tokens as usize,
            stop: self.stop.clone(),
            log_probabilities: self.log_probabilities.map(usize::from),
            ..from_config
        })
    }

    fn prompts(&self, config: &SampleConfig) -> Result<Vec<String>> {
        let given = if self.prompt.is_empty() { &config.prompts } else { &self.prompt };
        if given.is_empty() {
            return Err(Failure::new(Code::Usage, "there is nothing to continue: give --prompt"));
        }
        given.iter().map(|prompt| read_prompt(prompt)).collect()
    }

    /// A completion for programs.
    fn object(&self, made: &Completion) -> Value {
        let mut object = json!({
            "prompt": made.prompt,
            "text": made.text,
            "tokens": made.ids.len(),
            "ids": made.ids,
            "prompt_tokens": made.prompt_tokens,
            "finish": finish_name(made.finish),
            "weights": self.storage.name(),
            "first_token_s": made.first_token_s,
            "seconds": made.seconds,
            "dropped_tokens": made.refills.iter().map(|refill| refill.dropped).sum::<usize>(),
        });
        if self.log_probabilities.is_some() {
            let chosen: Vec<f32> = made.log_probabilities.iter().map(|of| of.chosen).collect();
            let likeliest: Vec<&[(u32, f32)]> =
                made.log_probabilities.iter().map(|of| &of.likeliest[..]).collect();
            object["log_probabilities"] = json!({"chosen": chosen, "likeliest": likeliest});
        }
        if self.quality {
            object["quality"] = Quality::of(&made.ids).to_json();
        }
        object
    }

    /// What is worth knowing of a completion besides its text.
    fn note(&self, context: &Context, made: &Completion) {
        if let Some(last) = made.refills.last() {
            let dropped: usize = made.refills.iter().map(|refill| refill.dropped).sum();
            context.show.note(&format!(
                "the context was full {}: the model last went on from {} and no longer saw {} before them",
                counted(made.refills.len() as u64, "time"),
                counted(last.kept as u64, "token"),
                grouped(dropped as u64)
            ));
        }
        if !context.show.is_json() {
            let rate = made.ids.len() as f64 / made.seconds.max(1e-9);
            context.show.detail(&format!(
                "{} in {:.2} s ({rate:.1} tok/s), the first after {:.3} s; finish: {}",
                counted(made.ids.len() as u64, "token"),
                made.seconds,
                made.first_token_s,
                finish_name(made.finish)
            ));
            if self.quality {
                context.show.note(&Quality::of(&made.ids).line());
            }
        }
    }
}

fn finish_name(finish: Finish) -> &'static str {
    match finish {
        Finish::Length => "length",
        Finish::Stop => "stop",
        Finish::Cancelled => "cancelled",
    }
}

fn check_range(flag: &str, value: f64, lowest: f64, highest: f64) -> Result<()> {
    if (lowest..=highest).contains(&value) {
        return Ok(());
    }
    let message = format!("--{flag} {value} is out of range: use {lowest} to {highest}");
    Err(Failure::new(Code::Usage, message))
}

fn parse_bias(text: &str) -> std::result::Result<(u32, f32), String> {
    let parts = text.split_once('=').and_then(|(id, bias)| Some((id.parse().ok()?, bias.parse().ok()?)));
    parts.ok_or_else(|| "use a token's id and a number, as in 42=-5".into())
}

fn read_prompt(prompt: &str) -> Result<String> {
    if prompt == "-" {
        let mut text = String::new();
        std::io::stdin()
            .read_to_string(&mut text)
            .map_err(|error| Failure::read(Path::new("stdin"), &error))?;
        // What a shell's echo ends with.
        let end = text.strip_suffix('\n').map_or(text.len(), str::len);
        text.truncate(end);
        return Ok(text);
    }
    let Some(file) = prompt.strip_prefix('@') else { return Ok(prompt.to_string()) };
    std::fs::read_to_string(file).map_err(|error| Failure::read(Path::new(file), &error))
}

fn repeated(prompts: &[String], n: u16) -> Vec<String> {
    prompts.iter().flat_map(|prompt| std::iter::repeat_n(prompt.clone(), usize::from(n))).collect()
}
