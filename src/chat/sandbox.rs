//! A process of its own for every rendering, with little memory and little time.
//!
//! A template can double a string in every line, so counting its instructions does not bound what it holds. The system's own
//! limits do: the program calls itself with [`ARGUMENT`], the child lowers its limits, renders and writes the result; whatever a
//! template does to it, the parent only sees that it ended.

use super::template::{Problem, render};
use jiff::Zoned;
use rustix::process::{Resource, Rlimit, setrlimit};
use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write};
use std::process::{Command, ExitCode, Stdio};

/// The only argument of the child.
pub const ARGUMENT: &str = "--render-a-chat-template";

/// Bytes of address space that a rendering may take, the program itself included.
const MEMORY: u64 = 1 << 30;

/// Seconds of processor time that a rendering may take.
const SECONDS: u64 = 5;

/// What the child reads.
#[derive(Serialize, Deserialize)]
struct Question {
    template: String,
    variables: serde_json::Value,
}

/// Renders a template that is not trusted.
pub fn render_apart(template: &str, variables: &serde_json::Value) -> io::Result<Result<String, Problem>> {
    let question = Question { template: template.to_owned(), variables: variables.clone() };
    let mut child = Command::new(std::env::current_exe()?)
        .arg(ARGUMENT)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // A child that is already gone is told by what it leaves behind.
        let _ = stdin.write_all(&serde_json::to_vec(&question)?);
    }
    let output = child.wait_with_output()?;
    let ended = || Problem::TooMuch(format!("takes more than {} MiB or {SECONDS} s", MEMORY >> 20));
    Ok(serde_json::from_slice(&output.stdout).unwrap_or_else(|_| Err(ended())))
}

/// Whether these are the arguments of the child.
pub fn is_asked(arguments: &[OsString]) -> bool {
    matches!(arguments, [_, only] if only == OsStr::new(ARGUMENT))
}

/// The child: a question on stdin, the answer on stdout.
pub fn serve() -> ExitCode {
    match answer() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn answer() -> io::Result<()> {
    for (resource, limit) in [(Resource::As, MEMORY), (Resource::Cpu, SECONDS), (Resource::Core, 0)] {
        setrlimit(resource, Rlimit { current: Some(limit), maximum: Some(limit) })?;
    }
    let mut question = Vec::new();
    io::stdin().lock().read_to_end(&mut question)?;
    let Question { template, variables } = serde_json::from_slice(&question)?;
    let rendered = render(&template, &variables, Zoned::now().datetime());
    let mut stdout = io::stdout().lock();
    stdout.write_all(&serde_json::to_vec(&rendered)?)?;
    stdout.flush()
}
