//! The command line: a file per command, and the way from arguments to an exit code.

mod bench;
mod chat;
mod completions;
mod config;
mod data;
mod doctor;
mod embed;
mod eval;
mod interchange;
mod key_flags;
mod man;
mod overrides;
mod report;
mod sample;
mod sweep;
mod tokenizer;
mod train;

use crate::config::Override;
use crate::failure::{Code, Failure, Result};
use crate::show::{Show, Style};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

/// Raw text to a trained language model.
#[derive(Parser)]
#[command(name = "ironmill", version, long_version = long_version(), about, long_about = None)]
#[command(max_term_width = 110, subcommand_required = true)]
#[command(after_help = "\
Examples:
  ironmill run examples/quickstart.toml
  ironmill run examples/quickstart.toml --data.input my.txt --out runs/mine
  ironmill sample runs/quickstart --prompt 'Once there was'

Results go to stdout; progress, notes, warnings and errors go to stderr. With --json every line of both is a JSON
object; those on stderr have an \"event\": progress, finished, step, sample, note, warning or error, and an error has
a \"code\", an \"exit_code\" and a \"message\".

Exit codes: 0 done; 1 failed; 2 usage; 65 bad data; 66 no input; 69 device missing; 70 our bug;
73 cannot write; 74 I/O; 75 stopped by a signal, can be resumed; 78 bad configuration; 80 diverged;
81 out of memory.")]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Args)]
struct Global {
    /// Threads to use [default: one a core]
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// No progress and no notes
    #[arg(long, short, global = true)]
    quiet: bool,
    /// Results as JSON lines on stdout, and progress, notes and errors as JSON lines on stderr
    #[arg(long, global = true)]
    json: bool,
    /// No colour (also NO_COLOR)
    #[arg(long, global = true)]
    no_color: bool,
    /// More notes
    #[arg(long, short, global = true)]
    verbose: bool,
}

#[derive(Subcommand)]
enum Command {
    /// The whole pipeline of a configuration: tokenizer, data, training, sampling
    Run(train::RunArgs),
    /// Train a tokenizer, encode and decode
    #[command(subcommand)]
    Tokenizer(tokenizer::Command),
    /// Prepare token shards, verify them, look inside, convert from and to other programs
    #[command(subcommand)]
    Data(data::Command),
    /// Train a model on prepared data, or go on with a run
    Train(train::TrainArgs),
    /// Loss, perplexity and bits per byte of a model
    Eval(eval::Args),
    /// Text from a model
    Sample(sample::Args),
    /// A conversation with a model, in the terminal
    Chat(chat::Args),
    /// Texts as vectors
    Embed(embed::Args),
    /// A model from a GGUF file, llm.c or a Hugging Face folder
    Import(interchange::ImportArgs),
    /// A model as a Hugging Face folder or a GGUF file
    Export(interchange::ExportArgs),
    /// Train many runs over lists and ranges of keys, and compare them
    Sweep(sweep::Args),
    /// A page of one or more runs: curves, speed, memory, samples
    Report(report::Args),
    /// What a configuration comes to
    #[command(subcommand)]
    Config(config::Command),
    /// Figures against the machine's own limits, measured in the same run
    #[command(subcommand)]
    Bench(bench::Command),
    /// What this machine has, and what this program makes of it
    Doctor(doctor::Args),
    /// A script that completes commands, flags and keys in a shell
    Completions(completions::Args),
    /// Manual pages, one a command
    Man(man::Args),
}

/// What every command is given.
pub struct Context {
    /// Where everything that a person sees goes.
    pub show: Show,
    /// How many threads to use.
    pub threads: usize,
    /// Keys of the configuration given as flags.
    pub overrides: Vec<Override>,
}

impl Context {
    /// Refuses overrides in a command that reads no configuration.
    fn refuse_overrides(&self, command: &str) -> Result<()> {
        let Some(Override { path, .. }) = self.overrides.first() else { return Ok(()) };
        let message =
            format!("--{path} sets a key of a configuration, and `ironmill {command}` reads none: remove it");
        Err(Failure::new(Code::Usage, message))
    }
}

/// Runs the program on its arguments.
pub fn main(arguments: Vec<OsString>) -> ExitCode {
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let early = Style { json: has("--json"), no_color: has("--no-color"), ..Style::default() };
    let fail = |failure: &Failure| {
        Show::new(early).failure(failure);
        failure.code().into()
    };
    let (arguments, overrides) = match overrides::split(arguments.clone()) {
        Ok(split) => split,
        Err(failure) => return fail(&failure),
    };
    let mut grammar = Cli::command();
    if early.no_color {
        grammar = grammar.color(clap::ColorChoice::Never);
    }
    let cli =
        match grammar.try_get_matches_from_mut(arguments).and_then(|found| Cli::from_arg_matches(&found)) {
            Ok(cli) => cli,
            Err(error) if early.json && error.use_stderr() => {
                return fail(&Failure::new(Code::Usage, error.render().to_string().trim()));
            }
            Err(error) => {
                // Help goes to stdout and is no failure; a closed pipe there is nobody's concern.
                let _ = error.print();
                return if error.use_stderr() { Code::Usage.into() } else { ExitCode::SUCCESS };
            }
        };
    let global = &cli.global;
    let style =
        Style { json: global.json, quiet: global.quiet, verbose: global.verbose, no_color: global.no_color };
    let cores = || std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let threads = global.threads.map_or_else(cores, usize::from);
    let context = Context { show: Show::new(style), threads, overrides };
    run(&context, cli.command)
}

/// Runs a command; a panic in it is our bug, and says so.
fn run(context: &Context, command: Command) -> ExitCode {
    let result = without_panic(|| match command {
        Command::Run(args) => train::run(context, &args),
        Command::Tokenizer(command) => tokenizer::run(context, command),
        Command::Data(command) => data::run(context, command),
        Command::Train(args) => train::run_train(context, &args),
        Command::Eval(args) => eval::run(context, &args),
        Command::Sample(args) => sample::run(context, &args),
        Command::Chat(args) => chat::run(context, &args),
        Command::Embed(args) => embed::run(context, &args),
        Command::Import(args) => interchange::import(context, &args),
        Command::Export(args) => interchange::export(context, &args),
        Command::Sweep(args) => sweep::run(context, &args),
        Command::Report(args) => report::run(context, &args),
        Command::Config(command) => config::run(context, command),
        Command::Bench(command) => bench::run(context, command),
        Command::Doctor(args) => doctor::run(context, &args),
        Command::Completions(args) => completions::run(context, &args),
        Command::Man(args) => man::run(context, &args),
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) if failure.is_unread() => ExitCode::SUCCESS,
        Err(failure) => {
            context.show.failure(&failure);
            failure.code().into()
        }
    }
}

fn without_panic(work: impl FnOnce() -> Result<()>) -> Result<()> {
    // The hook only remembers; the message is shown once, by whoever shows all failures.
    let told = std::sync::Arc::new(std::sync::Mutex::new(None));
    let remember = std::sync::Arc::clone(&told);
    std::panic::set_hook(Box::new(move |info| {
        if let Ok(mut told) = remember.lock() {
            told.get_or_insert_with(|| info.to_string());
        }
    }));
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        let told = told.lock().ok().and_then(|mut told| told.take()).unwrap_or_default();
        let message = format!(
            "ironmill has a bug ({}): please report it with the command you ran at {}/issues",
            told.replace('\n', " "),
            env!("CARGO_PKG_REPOSITORY")
        );
        Err(Failure::new(Code::OurBug, message))
    })
}

/// The version, what it was built for, and what it can run on.
fn long_version() -> String {
    format!("{}\n{}\ndevices: cpu, cuda, reference", env!("CARGO_PKG_VERSION"), target())
}

/// What this program was built for: the platform, the instructions that every part of it may use, and how.
fn target() -> String {
    let mut always = Vec::new();
    for (name, is_on) in [
        ("sse4.2", cfg!(target_feature = "sse4.2")),
        ("avx2", cfg!(target_feature = "avx2")),
        ("avx512f", cfg!(target_feature = "avx512f")),
        ("neon", cfg!(target_feature = "neon")),
    ] {
        always.extend(is_on.then_some(name));
    }
    let always = if always.is_empty() { String::new() } else { format!(" with {}", always.join(", ")) };
    let build = if cfg!(debug_assertions) { "debug build" } else { "release build" };
    format!("target: {}-{}{always}, {build}", std::env::consts::ARCH, std::env::consts::OS)
}

/// Reads a count or size of a flag.
fn parse_count(text: &str) -> std::result::Result<u64, String> {
    ironmill_data::parse_size(text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grammar_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_panic_becomes_a_failure_that_asks_for_a_report() {
        let failure = without_panic(|| panic!("the sky fell")).unwrap_err();
        assert_eq!(failure.code(), Code::OurBug);
        let said = failure.to_string();
        assert!(said.contains("the sky fell") && said.contains("please report"), "{said}");
    }

    /// The lines of a help text that call the program, each from its name on and without where the output goes.
    fn examples(command: &clap::Command) -> Vec<String> {
        let help = command.get_after_help().map(|help| help.to_string()).unwrap_or_default();
        let lines = help.lines().filter(|line| line.starts_with("  ") && line.contains("ironmill "));
        let call = |line: &str| {
            let from_name = line.split_once("ironmill ").map_or("", |(_, rest)| rest);
            format!("ironmill {}", from_name.split(" > ").next().unwrap_or_default())
        };
        lines.map(call).collect()
    }

    /// The words of a line as a shell reads them, for the quoting that examples use.
    fn words(line: &str) -> Vec<String> {
        let parts: Vec<&str> = line.split('\'').collect();
        let mut words = Vec::new();
        for (idx, part) in parts.iter().enumerate() {
            if idx % 2 == 1 {
                words.push(part.to_string());
            } else {
                words.extend(part.split_whitespace().map(String::from));
            }
        }
        words
    }

    #[test]
    fn every_help_page_has_examples_that_the_program_takes() {
        fn check(command: &clap::Command) {
            let examples = examples(command);
            assert!(
                command.has_subcommands() || examples.len() >= 2,
                "{} has {} examples",
                command.get_name(),
                examples.len()
            );
            for example in examples {
                // With the flags of keys, so that a key that is no more is found here.
                let words = words(&example);
                if let Err(error) = key_flags::grammar().try_get_matches_from(&words) {
                    panic!("{example}: {error}");
                }
                for file in words.iter().filter(|word| word.starts_with("examples/")) {
                    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
                    assert!(path.is_file(), "{example} names a file that is not shipped");
                }
            }
            command.get_subcommands().for_each(check);
        }
        check(&Cli::command());
    }
}
