//! `metrics.jsonl`: one JSON object a line, one line a step.

use crate::failure::{Failure, Result};
use ironmill_text::durable;
use serde_json::Value;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// The file of a run's measurements, open for appending.
pub struct Metrics {
    path: PathBuf,
    file: File,
}

impl Metrics {
    /// Opens the file and cuts it back to what was written up to `step`, so that a resumed run repeats no line.
    pub fn open(path: &Path, step: u64) -> Result<Metrics> {
        let fail = |error: std::io::Error| Failure::write(path, &error);
        match std::fs::read_to_string(path) {
            Ok(text) => {
                let kept = cut_back(&text, step);
                if kept.len() < text.len() {
                    durable::write(path, kept.as_bytes()).map_err(fail)?;
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(Failure::read(path, &error)),
        }
        let file = OpenOptions::new().create(true).append(true).open(path).map_err(fail)?;
        Ok(Metrics { path: path.to_path_buf(), file })
    }

    /// Appends a line.
    pub fn append(&mut self, object: &Value) -> Result<()> {
        let line = format!("{object}\n");
        self.file.write_all(line.as_bytes()).map_err(|error| Failure::write(&self.path, &error))
    }
}

/// The lines up to the first that is damaged or beyond the step.
fn cut_back(text: &str, step: u64) -> &str {
    let is_kept = |line: &str| {
        let object: Option<Value> = line.strip_suffix('\n').and_then(|line| serde_json::from_str(line).ok());
        object.and_then(|object| object["step"].as_u64()).is_some_and(|found| found <= step)
    };
    let length: usize = text.split_inclusive('\n').take_while(|line| is_kept(line)).map(str::len).sum();
    &text[..length]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_beyond_the_checkpoint_and_half_lines_are_cut() {
        let text = "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n";
        assert_eq!(cut_back(text, 2), "{\"step\":1}\n{\"step\":2}\n");
        assert_eq!(cut_back(text, 9), text);
        assert_eq!(cut_back("{\"step\":1}\n{\"st", 9), "{\"step\":1}\n");
        assert_eq!(cut_back("{\"step\":1}\n{\"step\":2}", 9), "{\"step\":1}\n");
        assert_eq!(cut_back(text, 0), "");
    }
}
