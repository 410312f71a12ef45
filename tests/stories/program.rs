//! Running the program in a folder of its own.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

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

    /// Runs the program with something on stdin.
    pub fn run_with_input(&self, arguments: &[&str], input: &[u8]) -> Outcome {
        let mut child = Command::new(env!("CARGO_BIN_EXE_ironmill"))
            .args(arguments)
            .current_dir(self.folder.path())
            .env("NO_COLOR", "1")
            .env_remove("RUST_BACKTRACE")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
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
