//! Running the program in a folder of its own.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// A whole pipeline in about a second.
const TINY: &str = r#"
seed = 5

[tokenizer]
vocab_size = 300

[data]
input = "builtin:stories:40KB"
validation = 0.1

[model]
layers = 2
heads = 2
width = 16
context = 16
dropout = 0.1

[train]
steps = 20
batch_tokens = 128
micro_batch = 4
learning_rate = 1e-2
warmup = 2
eval_every = 10
eval_tokens = 512
sample_every = 10
checkpoint_every = 7

[sample]
prompts = ["Once there was"]
max_tokens = 20
"#;

/// A folder that is removed at the end, and the program in it.
pub struct Desk {
    folder: tempfile::TempDir,
}

/// What the program did.
#[derive(Debug)]
pub struct Outcome {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
    pub stdout_bytes: Vec<u8>,
}

impl Desk {
    pub fn new() -> Desk {
        Desk { folder: tempfile::tempdir().unwrap() }
    }

    /// A desk with small stories in `texts/` and a tokenizer of them in `tokenizer.json`.
    pub fn with_tokenizer() -> Desk {
        let desk = Desk::new();
        desk.ok(&[
            "tokenizer",
            "train",
            "builtin:stories:60KB",
            "--vocab-size",
            "400",
            "--out",
            "tokenizer.json",
            "--quiet",
        ]);
        desk
    }

    /// A desk with a tokenizer and a prepared folder `data`.
    pub fn with_data() -> Desk {
        let desk = Desk::with_tokenizer();
        desk.ok(&[
            "data",
            "prepare",
            "builtin:stories:60KB",
            "--tokenizer",
            "tokenizer.json",
            "--out",
            "data",
            "--validation",
            "0.1",
            "--shard-tokens",
            "8K",
        ]);
        desk
    }

    /// A desk with a configuration `tiny.toml` whose run takes a second, and its likeness `encoder.toml`, which writes no text.
    pub fn with_config() -> Desk {
        let desk = Desk::new();
        desk.write("tiny.toml", TINY);
        let silent: String = TINY
            .lines()
            .filter(|line| !line.starts_with("sample_every") && !line.starts_with("prompts"))
            .map(|line| if line == "[model]" { "[model]\narchitecture = \"encoder\"\n" } else { line })
            .flat_map(|line| [line, "\n"])
            .collect();
        desk.write("encoder.toml", silent);
        desk
    }

    /// A desk with a finished run of `tiny.toml` in `run`.
    pub fn with_run() -> Desk {
        let desk = Desk::with_config();
        desk.ok(&["run", "tiny.toml", "--out", "run", "--quiet"]);
        desk
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap()
    }

    /// Runs the program.
    pub fn run(&self, arguments: &[&str]) -> Outcome {
        self.run_with_input(arguments, b"")
    }

    /// Starts the program and lets it run.
    pub fn start(&self, arguments: &[&str]) -> Child {
        self.command(arguments).stdin(Stdio::null()).spawn().unwrap()
    }

    /// The program, to be started by the caller.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ironmill"));
        command
            .args(arguments)
            .current_dir(self.folder.path())
            .env("NO_COLOR", "1")
            .env_remove("RUST_BACKTRACE")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs the program with something on stdin.
    pub fn run_with_input(&self, arguments: &[&str], input: &[u8]) -> Outcome {
        let mut child = self.command(arguments).stdin(Stdio::piped()).spawn().unwrap();
        // The program may end without reading; that is its business.
        let _ = child.stdin.take().unwrap().write_all(input);
        let output = child.wait_with_output().unwrap();
        Outcome {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            stdout_bytes: output.stdout,
        }
    }

    /// Runs the program, which must succeed, and gives its stdout.
    pub fn ok(&self, arguments: &[&str]) -> String {
        let outcome = self.run(arguments);
        assert_eq!(outcome.code, 0, "{arguments:?}: {outcome:?}");
        outcome.stdout
    }

    /// Makes the mistakes of a table: a command line, its exit code, and what the one paragraph says with its advice.
    pub fn explains(&self, mistakes: &[(i32, &str, &[&str])]) {
        for (code, line, said) in mistakes {
            let arguments = words(line);
            let outcome = self.fails(*code, &arguments.iter().map(String::as_str).collect::<Vec<_>>(), said);
            assert!(outcome.stdout.is_empty(), "{line}: {outcome:?}");
        }
    }

    /// Runs the program, which must fail with this code and say all of these things in one paragraph.
    pub fn fails(&self, code: i32, arguments: &[&str], said: &[&str]) -> Outcome {
        let outcome = self.run(arguments);
        assert_eq!(outcome.code, code, "{arguments:?}: {outcome:?}");
        for words in said {
            assert!(outcome.stderr.contains(words), "{words:?} is not in: {}", outcome.stderr);
        }
        assert!(!outcome.stderr.contains("panicked"), "{}", outcome.stderr);
        assert_eq!(outcome.stderr.matches("error:").count(), 1, "{}", outcome.stderr);
        assert!(!outcome.stderr.contains("\n\n\n"), "{}", outcome.stderr);
        outcome
    }
}

/// What one key has in every line of a run's measurements that has it.
pub fn numbers(desk: &Desk, run: &str, key: &str) -> Vec<f64> {
    let text = String::from_utf8(desk.read(&format!("{run}/metrics.jsonl"))).unwrap();
    text.lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()[key].as_f64())
        .collect()
}

/// The words of a command line as a shell reads them: spaces part words except between single quotes.
pub fn words(line: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let (mut is_quoted, mut is_new) = (false, true);
    for c in line.chars() {
        if c == '\'' {
            is_quoted = !is_quoted;
            if is_quoted && is_new {
                words.push(String::new());
                is_new = false;
            }
        } else if c == ' ' && !is_quoted {
            is_new = true;
        } else {
            if is_new {
                words.push(String::new());
                is_new = false;
            }
            words.last_mut().unwrap().push(c);
        }
    }
    words
}
