//! `eval --choices` and `eval --answers`.

use crate::chat::{Speech, Templates, read_file};
use crate::cli::{Context, parse_count};
use crate::failure::{Code, Failure, Result};
use crate::scoring::{self, AnswerExample, ChoiceExample, Framing};
use crate::show::numbers::grouped;
use crate::stages::chatting::Settings;
use crate::stages::cuda::cache_folder;
use crate::stages::model::Found;
use crate::stages::sampling::check_can_write;
use ironmill_data::TokenCache;
use ironmill_model::Engine;
use ironmill_text::{Tokenizer, durable};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Tokens of a row that goes through the model with others; longer ones go with fewer.
const ROW_TOKENS: usize = 256;
/// The longest answer where none is given.
const MAX_TOKENS: u64 = 32;

/// The flags that only scores have.
#[derive(clap::Args)]
pub struct ScoreArgs {
    /// The most questions, from the first on [default: all]
    #[arg(long, value_name = "N", value_parser = parse_count)]
    examples: Option<u64>,
    /// Ask by the model's chat template: a question is a message
    #[arg(long)]
    chat: bool,
    /// Another chat template than the model's own: the name of one, chatml, or @ and a file
    #[arg(long, value_name = "NAME|@FILE", requires = "chat")]
    template: Option<String>,
    /// The longest answer [default: 32]
    #[arg(long, value_name = "N", value_parser = parse_count, requires = "answers")]
    max_tokens: Option<u64>,
    /// Write what was found for every question, a JSON object a line
    #[arg(long, value_name = "FILE")]
    details: Option<PathBuf>,
}

impl ScoreArgs {
    /// Refuses flags that mean nothing without questions.
    pub fn refuse(&self) -> Result<()> {
        let given = [
            ("--examples", self.examples.is_some()),
            ("--chat", self.chat),
            ("--details", self.details.is_some()),
        ];
        match given.into_iter().find(|(_, is_given)| *is_given) {
            Some((flag, _)) => Err(Failure::new(
                Code::Usage,
                format!("{flag} is about questions: give --choices or --answers too"),
            )),
            None => Ok(()),
        }
    }

    fn most(&self) -> usize {
        self.examples.map_or(usize::MAX, |examples| usize::try_from(examples).unwrap_or(usize::MAX))
    }
}

/// A model that is asked.
struct Asked {
    engine: Engine,
    templates: Templates,
    template: Option<String>,
}

/// What both kinds of scores need.
fn ask(
    context: &Context,
    args: &super::Args,
    found: &Found,
    (tokenizer, file): (&Tokenizer, &Path),
) -> Result<Asked> {
    let templates = Templates::read(&found.weights)?;
    let asked = args.scores.template.as_deref();
    let template = match asked.and_then(|asked| asked.strip_prefix('@')) {
        Some(file) => Some(read_file(Path::new(file))?),
        None if args.scores.chat => Some(templates.choose(asked, &args.model)?.to_owned()),
        None => None,
    };
    let engine = found.engine_in(args.storage, &args.device, context.threads)?;
    check_can_write(&engine, &args.model)?;
    found.check_vocabulary(&engine, tokenizer, file)?;
    Ok(Asked { engine, templates, template })
}

/// Questions as messages in a template, or as plain text where there is none.
fn framing<'f>(
    context: &Context,
    template: Option<&'f str>,
    templates: &'f Templates,
    tokenizer: &'f Tokenizer,
) -> Framing<'f> {
    let speech = template.map(|template| Speech { template, special: templates.special(), tokenizer });
    // What a template makes of the time is not what it will make of it in another run.
    let is_lasting = template.is_some_and(|template| !template.contains("strftime_now"));
    let folder = cache_folder().filter(|_| is_lasting).map(|folder| folder.join("tokens"));
    let messages = folder.and_then(|folder| {
        let opened = TokenCache::open(&folder, &tokenizer.hash());
        opened
            .inspect_err(|error| {
                context.show.warn(&format!("nothing is kept of this run's questions: {error}"))
            })
            .ok()
    });
    Framing { tokenizer, speech, messages }
}

/// Keeps the tokens of the questions for the next run, which also does without.
fn keep_messages(context: &Context, framing: &mut Framing<'_>) {
    if let Some(Err(error)) = framing.messages.as_mut().map(TokenCache::save) {
        context.show.warn(&format!("nothing is kept of this run's questions: {error}"));
    }
}

/// Which choices a model finds likeliest.
pub fn choices(
    context: &Context,
    args: &super::Args,
    found: &Found,
    (tokenizer, file): (&Tokenizer, &Path),
    questions: &Path,
) -> Result<()> {
    let examples: Vec<ChoiceExample> = scoring::read(questions, args.scores.most())?;
    let Asked { mut engine, templates, template } = ask(context, args, found, (tokenizer, file))?;
    let mut framed = framing(context, template.as_deref(), &templates, tokenizer);
    let tokens = usize::from(args.rows) * ROW_TOKENS;
    let scores = scoring::score_choices(&mut engine, &mut framed, &examples, tokens, &context.show)?;
    keep_messages(context, &mut framed);
    warn_truncated(context, scores.truncated, "choices");
    write_details(args, &scores.details)?;
    let text = format!(
        "{}: accuracy {}, by length {}, over {} questions (95 % by Wilson); the right choice has {:.3} nats, {:.4} a token",
        found.weights.display(),
        scores.accuracy,
        scores.normalised,
        grouped(examples.len() as u64),
        -scores.log_likelihood,
        scores.nats_per_token,
    );
    let object = json!({
        "model": found.weights,
        "choices": questions,
        "examples": examples.len(),
        "accuracy": scores.accuracy.to_json(),
        "accuracy_by_length": scores.normalised.to_json(),
        "log_likelihood": scores.log_likelihood,
        "nats_per_token": scores.nats_per_token,
        "truncated": scores.truncated,
    });
    context.show.result(&text, &object)
}

/// How well a model answers.
pub fn answers(
    context: &Context,
    args: &super::Args,
    found: &Found,
    (tokenizer, file): (&Tokenizer, &Path),
    questions: &Path,
) -> Result<()> {
    let examples: Vec<AnswerExample> = scoring::read(questions, args.scores.most())?;
    let Asked { mut engine, templates, template } = ask(context, args, found, (tokenizer, file))?;
    let mut framed = framing(context, template.as_deref(), &templates, tokenizer);
    let mut stop = Settings::of_model(&found.weights, &templates, tokenizer)?.stop;
    if let Some(speech) = &framed.speech {
        stop.extend(speech.end_of_turn()?);
    }
    let most = usize::try_from(args.scores.max_tokens.unwrap_or(MAX_TOKENS)).unwrap_or(usize::MAX);
    if most == 0 {
        return Err(Failure::new(Code::Usage, "--max-tokens 0 leaves no answer: use at least 1"));
    }
    let how = (usize::from(args.rows), most, &stop[..]);
    let scores = scoring::score_answers(&mut engine, &mut framed, &examples, how, &context.show)?;
    keep_messages(context, &mut framed);
    warn_truncated(context, scores.truncated, "questions");
    write_details(args, &scores.details)?;
    let text = format!(
        "{}: exact match {} (95 % by Wilson), F1 {} (95 % by bootstrap), over {} questions",
        found.weights.display(),
        scores.exact_match,
        scores.f1,
        grouped(examples.len() as u64),
    );
    let object = json!({
        "model": found.weights,
        "answers": questions,
        "examples": examples.len(),
        "exact_match": scores.exact_match.to_json(),
        "f1": scores.f1.to_json(),
        "tokens": scores.tokens,
        "truncated": scores.truncated,
    });
    context.show.result(&text, &object)
}

fn warn_truncated(context: &Context, truncated: usize, what: &str) {
    if truncated > 0 {
        let message = format!(
            "{} {what} do not fit the context: their beginning is left out",
            grouped(truncated as u64)
        );
        context.show.warn(&message);
    }
}

fn write_details(args: &super::Args, details: &[Value]) -> Result<()> {
    let Some(path) = &args.scores.details else { return Ok(()) };
    let lines: String = details.iter().map(|line| format!("{line}\n")).collect();
    durable::write(path, lines.as_bytes()).map_err(|error| Failure::write(path, &error))
}
