//! `ironmill chat`: a conversation in the terminal.

use super::{Context, parse_count};
use crate::chat::{Conversation, Speech, Templates, read_file};
use crate::failure::{Code, Failure, Result};
use crate::show::numbers::{counted, grouped};
use crate::stages::chatting::{Answer, Settings, Speaker};
use crate::stages::model::{self, Storage};
use crate::stages::sampling::check_can_write;
use serde_json::{Value, json};
use signal_hook::consts::SIGINT;
use std::borrow::Cow;
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a person can type instead of a message.
const COMMANDS: &str = "\
/system TEXT   what the model is told before everything else; without text, shows it
/clear         forgets everything but the system text
/save FILE     writes the conversation as JSON
/load FILE     goes on with a conversation that was saved
/stats         tokens and times so far
/help          this list
/exit          the end, like Ctrl-D
Ctrl-C stops an answer; what was said of it stays.";

/// The flags of `chat`.
#[derive(clap::Args)]
#[command(after_help = "\
A line is a message; its answer is streamed to stdout. Lines that begin with / are commands, /help lists them. When the
context is full the oldest messages are left out and the system text stays. Where stdin is no terminal, lines are read
until its end, so a conversation can be scripted.

Examples:
  ironmill chat smollm2-135m-instruct
  ironmill chat my-model --system 'You answer in one sentence.' --temperature 0
  ironmill chat runs/mine --template chatml --max-tokens 200")]
pub struct Args {
    /// A run folder, a checkpoint or a Hugging Face folder
    #[arg(value_name = "RUN|MODEL")]
    model: PathBuf,
    /// What the model is told before everything else, or @ and a file
    #[arg(long, value_name = "TEXT|@FILE")]
    system: Option<String>,
    /// Another chat template than the model's own: the name of one, chatml, or @ and a file
    #[arg(long, value_name = "NAME|@FILE")]
    template: Option<String>,
    /// The longest answer [default: what the model says, else 512]
    #[arg(long, value_name = "N", value_parser = parse_count)]
    max_tokens: Option<u64>,
    /// Below 1 likely tokens become likelier; 0 takes the likeliest [default: what the model says, else 0.8]
    #[arg(long, value_name = "T")]
    temperature: Option<f64>,
    /// Draw only from so many of the likeliest tokens; 0 is all
    #[arg(long, value_name = "K")]
    top_k: Option<u64>,
    /// Draw only from the likeliest tokens that make up this share
    #[arg(long, value_name = "P")]
    top_p: Option<f64>,
    /// Where the draws begin
    #[arg(long, default_value_t = 1, value_name = "S")]
    seed: u64,
    /// The tokenizer [default: the model's]
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    #[command(flatten)]
    storage: Storage,
    /// Where to run: auto, cpu, cuda, cuda:1 … or reference
    #[arg(long, default_value = "auto", value_name = "DEVICE")]
    device: String,
}

/// A conversation at a terminal, or with whatever is at the other end of stdin.
struct Session<'a> {
    context: &'a Context,
    speaker: Speaker<'a>,
    conversation: Conversation,
    /// Set by Ctrl-C.
    stop: Arc<AtomicBool>,
}

/// Whether the conversation goes on.
#[derive(PartialEq)]
enum Next {
    Line,
    End,
}

/// Converses until there are no more lines.
pub fn run(context: &Context, args: &Args) -> Result<()> {
    context.refuse_overrides("chat")?;
    let found = model::find(&args.model, &context.show)?;
    let templates = Templates::read(&found.weights)?;
    // Whether there is a template is known before the weights are read.
    let template = args.template(&templates)?;
    let (tokenizer, file) = found.tokenizer(args.tokenizer.as_deref())?;
    let engine = found.engine_in(args.storage, &args.device, context.threads)?;
    check_can_write(&engine, &args.model)?;
    found.check_vocabulary(&engine, &tokenizer, &file)?;
    let speech = Speech { template: &template, special: templates.special(), tokenizer: &tokenizer };
    let settings = args.settings(Settings::of_model(&found.weights, &templates, &tokenizer)?)?;
    let mut session = Session {
        context,
        speaker: Speaker::new(engine, speech, settings)?,
        conversation: Conversation::new(args.system()?),
        stop: stop_flag()?,
    };
    session.converse()
}

/// A flag that Ctrl-C sets, as often as it is pressed.
fn stop_flag() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGINT, Arc::clone(&stop))
        .map_err(|error| Failure::new(Code::Failed, format!("cannot listen for Ctrl-C ({error})")))?;
    Ok(stop)
}

impl Args {
    fn template<'t>(&self, templates: &'t Templates) -> Result<Cow<'t, str>> {
        match self.template.as_deref().and_then(|asked| asked.strip_prefix('@')) {
            Some(file) => read_file(Path::new(file)).map(Cow::Owned),
            None => templates.choose(self.template.as_deref(), &self.model).map(Cow::Borrowed),
        }
    }

    fn system(&self) -> Result<Option<String>> {
        match self.system.as_deref().map(|system| (system, system.strip_prefix('@'))) {
            Some((_, Some(file))) => read_file(Path::new(file)).map(|text| Some(text.trim_end().to_owned())),
            Some((text, None)) => Ok(Some(text.to_owned())),
            None => Ok(None),
        }
    }

    /// The model's own settings with the flags over them.
    fn settings(&self, own: Settings) -> Result<Settings> {
        let mut settings = own;
        settings.max_tokens = self.max_tokens.map_or(settings.max_tokens, |tokens| tokens as usize);
        settings.sampling.temperature =
            self.temperature.map_or(settings.sampling.temperature, |value| value as f32);
        settings.sampling.top_k = self.top_k.map_or(settings.sampling.top_k, |value| value as usize);
        settings.sampling.top_p = self.top_p.map_or(settings.sampling.top_p, |value| value as f32);
        settings.sampling.seed = self.seed;
        let usage = |message: &str| Err(Failure::new(Code::Usage, message));
        if settings.max_tokens == 0 {
            return usage("--max-tokens 0 leaves no answer: use at least 1");
        }
        if !(0.0..=100.0).contains(&settings.sampling.temperature) {
            return usage("--temperature is out of range: use 0 to 100");
        }
        if !(0.0..=1.0).contains(&settings.sampling.top_p) {
            return usage("--top-p is out of range: use a number above 0 and at most 1");
        }
        Ok(settings)
    }
}

impl Session<'_> {
    fn converse(&mut self) -> Result<()> {
        let is_terminal = io::stdin().is_terminal() && !self.context.show.is_json();
        if is_terminal {
            self.context.show.note("Type a message, /help for commands, Ctrl-D to end.");
        }
        let mut lines = io::stdin().lock();
        loop {
            if is_terminal {
                // The prompt is for eyes only; nowhere to show it is no reason to stop.
                let _ = io::stderr().write_all(b"> ").and_then(|()| io::stderr().flush());
            }
            let mut line = Vec::new();
            let read = lines.read_until(b'\n', &mut line);
            let read = read.map_err(|error| {
                Failure::new(Code::Io, format!("cannot read from stdin ({error}): check where it comes from"))
            })?;
            if read == 0 {
                break;
            }
            let line = String::from_utf8_lossy(&line);
            if self.take(line.trim())? == Next::End {
                break;
            }
        }
        if self.context.show.is_json() {
            return self.context.show.result("", &self.stats());
        }
        Ok(())
    }

    fn take(&mut self, line: &str) -> Result<Next> {
        let Some(command) = line.strip_prefix('/') else {
            return if line.is_empty() { Ok(Next::Line) } else { self.say(line).map(|()| Next::Line) };
        };
        let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        if ["exit", "quit", "bye"].contains(&name) {
            return Ok(Next::End);
        }
        match self.command(name, rest.trim()) {
            Err(failure) if failure.is_unread() => Err(failure),
            // A file that cannot be read or a mistyped command does not end a conversation.
            Err(failure) => {
                self.context.show.warn(&failure.to_string());
                Ok(Next::Line)
            }
            Ok(()) => Ok(Next::Line),
        }
    }

    fn command(&mut self, name: &str, rest: &str) -> Result<()> {
        let show = &self.context.show;
        let file = || match rest {
            "" => Err(Failure::new(Code::Usage, format!("/{name} needs the name of a file"))),
            file => Ok(Path::new(file)),
        };
        match name {
            "help" => show.result(COMMANDS, &json!({ "commands": COMMANDS })),
            "stats" => {
                let stats = self.stats();
                show.result(&self.stats_text(), &stats)
            }
            "clear" => {
                self.conversation.clear();
                show.note("forgotten");
                Ok(())
            }
            "system" if rest.is_empty() => {
                let system = self.conversation.system.as_deref();
                show.result(system.unwrap_or("(no system text)"), &json!({ "system": system }))
            }
            "system" => {
                self.conversation.system = Some(rest.to_owned());
                Ok(())
            }
            "save" => {
                let file = file()?;
                self.conversation.save(file)?;
                show.note(&format!(
                    "{}: {} messages",
                    file.display(),
                    grouped(self.conversation.len() as u64)
                ));
                Ok(())
            }
            "load" => {
                self.conversation = Conversation::load(file()?)?;
                show.note(&format!("{} messages", grouped(self.conversation.len() as u64)));
                Ok(())
            }
            other => {
                Err(Failure::new(Code::Usage, format!("there is no command /{other}: /help lists them")))
            }
        }
    }

    /// Asks the model and shows what it says.
    fn say(&mut self, question: &str) -> Result<()> {
        let Session { context, speaker, conversation, stop } = self;
        let show = &context.show;
        conversation.ask(question.to_owned());
        let prompt = match conversation.prompt(speaker.speech(), speaker.room()) {
            Ok(prompt) => prompt,
            // The template may refuse, or the message be too long: the next one may be better.
            Err(failure) => {
                conversation.take_back();
                show.warn(&failure.to_string());
                return Ok(());
            }
        };
        if prompt.newly_hidden > 0 {
            show.note(&format!(
                "the context is full: the model no longer sees the first {} of {} messages",
                grouped(conversation.hidden() as u64),
                grouped(conversation.len() as u64)
            ));
        }
        stop.store(false, Ordering::Relaxed);
        let mut shown = Ok(());
        let answer = speaker.answer(&prompt, &mut |text| {
            if !show.is_json() && shown.is_ok() {
                shown = show.output(text.as_bytes());
            }
            shown.is_ok() && !stop.load(Ordering::Relaxed)
        })?;
        shown?;
        conversation.answer(answer.text.clone());
        self.finish(&answer)
    }

    fn finish(&self, answer: &Answer) -> Result<()> {
        let show = &self.context.show;
        if !show.is_json() {
            show.output(b"\n")?;
            if answer.finish == "length" {
                show.note("the answer was cut off: --max-tokens allows longer ones");
            }
            return Ok(());
        }
        let object = json!({
            "role": "assistant",
            "content": answer.text,
            "finish": answer.finish,
            "tokens": answer.tokens,
            "prompt_tokens": answer.prompt_tokens,
            "seconds": answer.seconds,
            "answers": self.speaker.totals().answers,
        });
        show.result("", &object)
    }

    fn stats(&self) -> Value {
        let totals = self.speaker.totals();
        let counts = self.speaker.counts();
        json!({
            "answers": totals.answers,
            "messages": self.conversation.len(),
            "hidden_messages": self.conversation.hidden(),
            "tokens": totals.tokens,
            "seconds": totals.seconds,
            "tokens_per_second": totals.tokens as f64 / totals.seconds.max(1e-9),
            "prompt_tokens_read": counts.prefilled,
            "prompt_tokens_remembered": counts.reused,
            "last_prompt_tokens": totals.last_prompt,
            "context": self.speaker.context(),
        })
    }

    fn stats_text(&self) -> String {
        let (totals, counts) = (self.speaker.totals(), self.speaker.counts());
        format!(
            "{}, {} of them no longer seen\n{}: {} in {:.1} s, {:.1} tokens a second\n\
             prompts: {} read, {} remembered; the last one has {} of {} that fit",
            counted(self.conversation.len() as u64, "message"),
            grouped(self.conversation.hidden() as u64),
            counted(totals.answers, "answer"),
            counted(totals.tokens, "token"),
            totals.seconds,
            totals.tokens as f64 / totals.seconds.max(1e-9),
            counted(counts.prefilled, "token"),
            grouped(counts.reused),
            grouped(totals.last_prompt as u64),
            grouped(self.speaker.context() as u64),
        )
    }
}
