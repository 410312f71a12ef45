//! `metrics.jsonl`: one JSON object a line, one line a step.

mod account;

pub use account::{Account, PARTS};

use crate::failure::{Failure, Result};
use ironmill_text::durable;
use serde_json::Value;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The file of a run's measurements, open for appending.
pub struct Metrics {
    path: PathBuf,
    file: File,
    /// What the lines add up to.
    account: Account,
    /// Seconds beside steps that the next line will tell, in the order of [`PARTS`].
    pending: [f64; PARTS.len()],
}

/// What time is spent on beside steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Beside {
    /// Measuring the validation loss.
    Evaluation,
    /// Standing still for a checkpoint.
    Saving,
    /// Writing samples.
    Sampling,
    /// Getting ready for the first step.
    Startup,
    /// What a kill undid.
    Lost,
}

impl Metrics {
    /// Opens the file and cuts it back to what was written up to `step`, so that a resumed run repeats no line. Every line that
    /// stays is given to `kept`.
    pub fn open(path: &Path, step: u64, kept: &mut dyn FnMut(&Value)) -> Result<Metrics> {
        let fail = |error: std::io::Error| Failure::write(path, &error);
        let (mut account, mut pending) = (Account::default(), [0.0; PARTS.len()]);
        match std::fs::read_to_string(path) {
            Ok(text) => {
                let kept = cut_back(&text, step, &mut |line| {
                    account.add(line);
                    kept(line);
                });
                if kept.len() < text.len() {
                    let mut undone = Account::default();
                    lines(&text[kept.len()..]).for_each(|line| undone.add(&line));
                    pending[Beside::Lost as usize] = undone.total();
                    durable::write(path, kept.as_bytes()).map_err(fail)?;
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(Failure::read(path, &error)),
        }
        let file = OpenOptions::new().create(true).append(true).open(path).map_err(fail)?;
        Ok(Metrics { path: path.to_path_buf(), file, account, pending })
    }

    /// Time that was spent beside steps. The next line tells it.
    pub fn spend(&mut self, on: Beside, time: Duration) {
        self.pending[on as usize] += time.as_secs_f64();
    }

    /// Appends a line, with what was spent since the line before.
    pub fn append(&mut self, object: &mut Value) -> Result<()> {
        for ((key, _), seconds) in PARTS.iter().zip(std::mem::take(&mut self.pending)) {
            if seconds > 0.0 {
                object[*key] = seconds.into();
            }
        }
        self.account.add(object);
        let line = format!("{object}\n");
        self.file.write_all(line.as_bytes()).map_err(|error| Failure::write(&self.path, &error))
    }

    /// Where the time of the run went.
    pub fn account(&self) -> Account {
        let mut account = self.account;
        for ((_, place), seconds) in PARTS.iter().zip(self.pending) {
            *place(&mut account) += seconds;
        }
        account
    }
}

/// The lines of a run's measurements; a line that is being written is left out.
pub fn read(path: &Path) -> Result<Vec<Value>> {
    let text = std::fs::read_to_string(path).map_err(|error| Failure::read(path, &error))?;
    Ok(lines(&text).collect())
}

fn lines(text: &str) -> impl Iterator<Item = Value> {
    text.lines().filter_map(|line| serde_json::from_str(line).ok())
}

/// The lines up to the first that is damaged or beyond the step.
fn cut_back<'a>(text: &'a str, step: u64, kept: &mut dyn FnMut(&Value)) -> &'a str {
    let mut is_kept = |line: &&str| {
        let object: Option<Value> = line.strip_suffix('\n').and_then(|line| serde_json::from_str(line).ok());
        let object = object.filter(|object| object["step"].as_u64().is_some_and(|found| found <= step));
        object.inspect(|object| kept(object)).is_some()
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
        let cut = |text: &'static str, step| cut_back(text, step, &mut |_| ());
        assert_eq!(cut(text, 2), "{\"step\":1}\n{\"step\":2}\n");
        assert_eq!(cut(text, 9), text);
        assert_eq!(cut("{\"step\":1}\n{\"st", 9), "{\"step\":1}\n");
        assert_eq!(cut("{\"step\":1}\n{\"step\":2}", 9), "{\"step\":1}\n");
        assert_eq!(cut(text, 0), "");
    }

    #[test]
    fn what_is_cut_counts_as_lost_time_and_stays_so() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let line = |step: u64| format!("{{\"step\":{step},\"seconds\":1.5,\"saving_seconds\":0.5}}\n");
        std::fs::write(&path, (1..=4).map(line).collect::<String>()).unwrap();
        let mut seen = Vec::new();
        let mut metrics = Metrics::open(&path, 3, &mut |line| seen.push(line["step"].clone())).unwrap();
        assert_eq!(seen, [1, 2, 3]);
        let account = metrics.account();
        assert_eq!((account.steps, account.saving, account.lost), (4.5, 1.5, 2.0));
        // The next line says what was lost, so that the file alone tells it.
        metrics.spend(Beside::Sampling, Duration::from_millis(500));
        metrics.append(&mut serde_json::json!({"step": 4, "seconds": 1.0})).unwrap();
        let line = read(&path).unwrap().pop().unwrap();
        assert_eq!(
            (line["lost_seconds"].as_f64(), line["sampling_seconds"].as_f64()),
            (Some(2.0), Some(0.5))
        );
        assert_eq!(metrics.account().total(), 9.5);
        drop(metrics);
        // Cut again, what was lost before is lost with the line that told it.
        let metrics = Metrics::open(&path, 3, &mut |_| ()).unwrap();
        assert_eq!(metrics.account().lost, 3.5);
    }
}
