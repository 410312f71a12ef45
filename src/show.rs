//! Everything a person sees. Results go to stdout; progress, notes, warnings and errors go to stderr.
//!
//! On a terminal a phase is one live line with a bar, a rate and the time left. Elsewhere it is a plain line every
//! five seconds or hundred files, and with `--json` a JSON object a line. `--quiet` leaves only results, warnings and errors.

pub mod numbers;
mod training;

pub use training::StepLine;

use crate::failure::{Code, Failure, Result};
use anstream::{AutoStream, ColorChoice};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use ironmill_text::Progress;
use serde_json::{Value, json};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How much time passes between two plain lines of one phase.
const PLAIN_INTERVAL: Duration = Duration::from_secs(5);

/// How many files pass between two plain lines at most.
const PLAIN_FILES: u64 = 100;

/// The one place that writes to the terminal.
pub struct Show {
    json: bool,
    quiet: bool,
    verbose: bool,
    color: ColorChoice,
    live: bool,
    phase: Mutex<Option<Phase>>,
    log: Mutex<Option<File>>,
}

/// What the global flags say about output.
#[derive(Clone, Copy, Debug, Default)]
pub struct Style {
    /// JSON lines instead of text.
    pub json: bool,
    /// No progress and no notes.
    pub quiet: bool,
    /// More notes.
    pub verbose: bool,
    /// No colour, whatever the terminal.
    pub no_color: bool,
}

struct Phase {
    name: String,
    total: Option<u64>,
    unit: String,
    done: u64,
    files: Option<Files>,
    started: Instant,
    last_line: Instant,
    bar: Option<ProgressBar>,
}

/// Where a phase is among its files.
struct Files {
    number: u64,
    total: u64,
    /// Where it was when the last line was written.
    told: u64,
}

impl Show {
    /// Looks at the terminal once.
    pub fn new(style: Style) -> Show {
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Show {
            json: style.json,
            quiet: style.quiet,
            verbose: style.verbose,
            color: if style.no_color { ColorChoice::Never } else { ColorChoice::Auto },
            live: !style.json && !style.quiet && !is_dumb && io::stderr().is_terminal(),
            phase: Mutex::new(None),
            log: Mutex::new(None),
        }
    }

    /// From now on, appends what is told on stderr to a file too.
    pub fn log_to(&self, path: &Path) -> Result<()> {
        let file = OpenOptions::new().create(true).append(true).open(path);
        let file = file.map_err(|error| Failure::write(path, &error))?;
        *self.log.lock().unwrap_or_else(PoisonError::into_inner) = Some(file);
        Ok(())
    }

    /// Whether results are wanted as JSON.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// A result, on stdout: the text, or the object with `--json`.
    pub fn result(&self, text: &str, object: &Value) -> Result<()> {
        let line = if self.json { object.to_string() } else { text.trim_end().to_string() };
        self.output((line + "\n").as_bytes())
    }

    /// Bytes of a result, on stdout, as they are.
    pub fn output(&self, bytes: &[u8]) -> Result<()> {
        let mut stdout = io::stdout().lock();
        stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::unread(),
            _ => Failure::new(Code::Io, format!("cannot write to stdout ({error}): check where it goes")),
        })
    }

    /// Something worth knowing.
    pub fn note(&self, text: &str) {
        if !self.quiet {
            self.line(text, || json!({"event": "note", "message": text}));
        }
    }

    /// Something worth knowing for those who asked with `-v`.
    pub fn detail(&self, text: &str) {
        if self.verbose {
            self.note(text);
        }
    }

    /// A text that the model wrote on the way.
    pub fn sample(&self, step: u64, prompt: &str, completion: &str) {
        if self.quiet {
            return;
        }
        let text = format!("sample at step {}:\n{prompt}{completion}\n", numbers::grouped(step));
        let text = text.replace('\n', "\n    ");
        let object = || json!({"event": "sample", "step": step, "prompt": prompt, "completion": completion});
        self.line(text.trim_end(), object);
    }

    /// Something that may be wrong.
    pub fn warn(&self, text: &str) {
        let colored = format!("\x1b[1;33mwarning:\x1b[0m {text}");
        self.line(&colored, || json!({"event": "warning", "message": text}));
    }

    /// The end of a program that failed.
    pub fn failure(&self, failure: &Failure) {
        if failure.is_unread() {
            return;
        }
        let text = format!("\x1b[1;31merror:\x1b[0m {failure}{}", self.snippet(failure));
        self.line(&text, || {
            let code = failure.code();
            let mut object = json!({
                "event": "error",
                "code": code.name(),
                "exit_code": code as u8,
                "message": failure.to_string(),
            });
            if let Some(place) = failure.place() {
                object["file"] = place.source.name().into();
                object["line"] = place.line.into();
            }
            object
        });
    }

    /// One step of training. A validation loss is always shown; other steps every so often.
    pub fn step(&self, line: &StepLine) {
        if self.quiet {
            return;
        }
        let mut guard = self.phase();
        let Some(phase) = guard.as_mut() else { return };
        phase.done = line.step;
        if let Some(bar) = &phase.bar {
            bar.set_position(line.step);
            bar.set_message(line.to_string());
        }
        let is_due = phase.bar.is_none() && phase.last_line.elapsed() >= PLAIN_INTERVAL;
        if line.validation.is_some() || is_due || line.step == line.steps {
            phase.last_line = Instant::now();
            self.write_line(guard.as_ref(), &line.to_string(), || line.to_json());
        }
    }

    /// Begins the phase that [`Show::step`] reports to; `done` steps were taken before.
    pub fn start_training(&self, steps: u64, done: u64) {
        let bar = self.live.then(|| {
            let style = bar_style("{bar:24} {msg}");
            ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr())
                .with_style(style)
                .with_position(done)
        });
        let (name, unit, total) = ("train".into(), "steps".into(), Some(steps));
        let now = Instant::now();
        *self.phase() =
            Some(Phase { name, total, unit, done, files: None, started: now, last_line: now, bar });
    }

    /// Ends the phase of [`Show::start_training`].
    pub fn finish_training(&self) {
        if let Some(bar) = self.phase().take().and_then(|phase| phase.bar) {
            bar.finish_and_clear();
        }
    }

    fn phase(&self) -> MutexGuard<'_, Option<Phase>> {
        // A panic elsewhere must not keep its own message from being shown.
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn line(&self, text: &str, object: impl FnOnce() -> Value) {
        self.write_line(self.phase().as_ref(), text, object);
    }

    /// Writes a line to stderr, above the live line if there is one.
    fn write_line(&self, phase: Option<&Phase>, text: &str, object: impl FnOnce() -> Value) {
        let write = || {
            let mut stderr = AutoStream::new(io::stderr(), self.color).lock();
            // There is nowhere left to report a broken stderr to.
            let _ = if self.json { writeln!(stderr, "{}", object()) } else { writeln!(stderr, "{text}") };
        };
        if let Some(log) = self.log.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            // The log repeats what stderr has shown; a full disk will be told by what matters more.
            let _ = writeln!(log, "{}", anstream::adapter::strip_str(text));
        }
        match phase.and_then(|phase| phase.bar.as_ref()) {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }

    /// The lines of the configuration that a failure is about.
    fn snippet(&self, failure: &Failure) -> String {
        if failure.place().is_none() {
            return String::new();
        }
        let theme = miette::GraphicalTheme::unicode();
        let handler =
            miette::GraphicalReportHandler::new_themed(theme).with_context_lines(1).with_links(false);
        let mut report = String::new();
        if handler.render_report(&mut report, failure).is_err() {
            return String::new();
        }
        // The first lines repeat the message; the frame with the source begins at its corner.
        let frame: Vec<&str> = report.trim_end().lines().skip_while(|line| !line.contains('╭')).collect();
        frame.iter().map(|line| format!("\n{line}")).collect()
    }
}

impl Progress for Show {
    fn start(&self, phase: &str, total: Option<u64>, unit: &str) {
        let bar = self.live.then(|| {
            let template = match total {
                Some(_) => "{prefix:10} {bar:24} {done}, {msg}{rate}, {eta} left",
                None => "{prefix:10} {spinner} {done}, {msg}{rate}",
            };
            let (done_unit, rate_unit) = (unit.to_string(), unit.to_string());
            let style = bar_style(template)
                .with_key("done", move |state: &ProgressState, out: &mut dyn fmt::Write| {
                    // A bar that cannot be drawn is no reason to stop the work.
                    let _ = write!(out, "{}", numbers::amount(state.pos(), &done_unit));
                })
                .with_key("rate", move |state: &ProgressState, out: &mut dyn fmt::Write| {
                    let _ = write!(out, "{}/s", numbers::amount(state.per_sec() as u64, &rate_unit));
                });
            ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr())
                .with_style(style)
                .with_prefix(phase.to_string())
        });
        let now = Instant::now();
        let (name, unit) = (phase.to_string(), unit.to_string());
        *self.phase() =
            Some(Phase { name, total, unit, done: 0, files: None, started: now, last_line: now, bar });
    }

    fn at_file(&self, number: u64, total: u64) {
        let mut guard = self.phase();
        let Some(phase) = guard.as_mut() else { return };
        let files = phase.files.get_or_insert(Files { number, total, told: 0 });
        if let Some(bar) = phase.bar.as_ref().filter(|_| files.number != number || number == 1) {
            bar.set_message(format!("file {} of {}, ", numbers::grouped(number), numbers::grouped(total)));
        }
        files.number = number;
    }

    fn advance(&self, amount: u64) {
        let mut guard = self.phase();
        let Some(phase) = guard.as_mut() else { return };
        phase.done += amount;
        if let Some(bar) = &phase.bar {
            bar.inc(amount);
        }
        if !self.quiet && phase.bar.is_none() && phase.is_line_due() {
            phase.note_line();
            self.write_line(None, &phase.progress_line(), || phase.to_json("progress"));
        }
    }

    fn finish(&self) {
        let Some(mut phase) = self.phase().take() else { return };
        if let Some(bar) = phase.bar.take() {
            bar.finish_and_clear();
        }
        if !self.quiet {
            self.write_line(None, &phase.finish_line(), || phase.to_json("finished"));
        }
    }
}

impl Phase {
    fn is_line_due(&self) -> bool {
        self.last_line.elapsed() >= PLAIN_INTERVAL
            || self.files.as_ref().is_some_and(|files| files.number >= files.told + PLAIN_FILES)
    }

    fn note_line(&mut self) {
        self.last_line = Instant::now();
        if let Some(files) = &mut self.files {
            files.told = files.number;
        }
    }

    /// Where it is among its files, for the middle of a line.
    fn file(&self) -> String {
        self.files.as_ref().map_or(String::new(), |files| {
            format!(", file {} of {}", numbers::grouped(files.number), numbers::grouped(files.total))
        })
    }

    fn per_s(&self) -> f64 {
        self.done as f64 / self.started.elapsed().as_secs_f64().max(1e-9)
    }

    fn rate(&self) -> String {
        numbers::amount(self.per_s() as u64, &self.unit) + "/s"
    }

    fn progress_line(&self) -> String {
        let done = numbers::amount(self.done, &self.unit);
        let Some(total) = self.total.filter(|&total| total > 0) else {
            return format!("{}: {done}{}, {}", self.name, self.file(), self.rate());
        };
        let percent = self.done.min(total) * 100 / total;
        let left = self.time_left(total);
        let total = numbers::amount(total, &self.unit);
        format!(
            "{}: {done} of {total} ({percent} %){}, {}, {} left",
            self.name,
            self.file(),
            self.rate(),
            numbers::time(left)
        )
    }

    fn time_left(&self, total: u64) -> Duration {
        // A phase that has not begun to move may take for ever, but not longer than can be said.
        let seconds = total.saturating_sub(self.done) as f64 / self.per_s().max(1e-9);
        Duration::from_secs_f64(seconds.min(1e9))
    }

    fn finish_line(&self) -> String {
        let done = numbers::amount(self.done, &self.unit);
        format!("{}: {done} in {} ({})", self.name, numbers::time(self.started.elapsed()), self.rate())
    }

    fn to_json(&self, event: &str) -> Value {
        json!({
            "event": event,
            "phase": self.name,
            "done": self.done,
            "total": self.total,
            "unit": self.unit,
            "seconds": self.started.elapsed().as_secs_f64(),
            "per_second": self.per_s(),
            "seconds_left": self.total.map(|total| self.time_left(total).as_secs_f64()),
            "file": self.files.as_ref().map(|files| files.number),
            "files": self.files.as_ref().map(|files| files.total),
        })
    }
}

fn bar_style(template: &str) -> ProgressStyle {
    // A template that does not parse is our own typo; the default still shows progress.
    ProgressStyle::with_template(template)
        .map(|style| style.progress_chars("━╸─"))
        .unwrap_or_else(|_| ProgressStyle::default_bar())
}
