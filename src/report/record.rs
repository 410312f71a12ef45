//! A run as its folder tells it: what it was asked, what was measured, what it wrote.

use super::track::Track;
use crate::failure::{Code, Failure, Result};
use crate::stages::metrics::{self, Account};
use crate::stages::run_folder::RunFolder;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// What the page shows of a run.
pub struct Record {
    /// The folder's name.
    pub name: String,
    path: PathBuf,
    /// Every key of the configuration and its value, in the order of the file.
    pub config: Vec<(String, Value)>,
    about: Value,
    steps: Track,
    evaluations: Track,
    machine: Track,
    gradients: Track,
    weights: Track,
    profile: Option<Value>,
    account: Account,
    samples: Vec<(u64, String)>,
    last: Value,
    best: Option<Best>,
}

/// The lowest validation loss of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Best {
    /// The loss, in nats a token.
    pub loss: f64,
    /// The step it was measured at.
    pub step: u64,
    /// Bits for a byte of text, where the text is known.
    pub bits_per_byte: Option<f64>,
}

impl Record {
    /// Reads a run's folder.
    pub fn read(path: &Path) -> Result<Record> {
        let run = RunFolder::at(path);
        if !run.exists() || !run.metrics().is_file() {
            let message =
                format!("{} holds no run with measurements: give the folder of a training", path.display());
            return Err(Failure::new(Code::NoInput, message));
        }
        let mut record = Record {
            name: name_of(path),
            path: path.to_path_buf(),
            config: read_config(&run.config_path())?,
            about: read_about(&run.about()),
            steps: Track::of(&["loss", "learning_rate", "norm", "tokens_per_s", "mfu"]),
            evaluations: Track::of(&["validation_loss", "bits_per_byte"]),
            machine: Track::of(&[
                "used_bytes",
                "planned_bytes",
                "host_bytes",
                "gpu_utilization",
                "gpu_watts",
            ]),
            gradients: Track::default(),
            weights: Track::default(),
            profile: None,
            account: Account::default(),
            samples: read_samples(&run.samples())?,
            last: Value::Null,
            best: None,
        };
        for line in metrics::read(&run.metrics())? {
            record.add(line);
        }
        Ok(record)
    }

    fn add(&mut self, line: Value) {
        self.account.add(&line);
        let seconds = self.account.total();
        for track in [&mut self.steps, &mut self.evaluations, &mut self.machine] {
            track.add(&line, seconds);
        }
        for (kind, track) in [("gradient", &mut self.gradients), ("weight", &mut self.weights)] {
            let groups = line["groups"].as_object().into_iter().flatten();
            let norms = groups.filter_map(|(name, norms)| Some((name.clone(), norms[kind].as_f64()?)));
            track.add_named(&line, seconds, norms);
        }
        if line["profile"].is_object() {
            self.profile = Some(line["profile"].clone());
        }
        let step = line["step"].as_u64().unwrap_or_default();
        if let Some(loss) = line["validation_loss"].as_f64()
            && self.best.is_none_or(|best| loss < best.loss)
        {
            self.best = Some(Best { loss, step, bits_per_byte: line["bits_per_byte"].as_f64() });
        }
        self.last = line;
    }

    /// The lowest validation loss.
    pub fn best(&self) -> Option<Best> {
        self.best
    }

    /// The newest line of measurements.
    pub fn last(&self) -> &Value {
        &self.last
    }

    /// The run as the page's script reads it.
    pub fn to_json(&self) -> Value {
        let best = self
            .best
            .map(|best| json!({"loss": best.loss, "step": best.step, "bits_per_byte": best.bits_per_byte}));
        let mut last = self.last.clone();
        for long in ["groups", "profile"] {
            last.as_object_mut().map(|line| line.remove(long));
        }
        json!({
            "name": self.name,
            "path": self.path,
            "config": self.config.iter().map(|(key, value)| json!([key, value])).collect::<Vec<_>>(),
            "about": self.about,
            "steps": self.steps.to_json(),
            "evaluations": self.evaluations.to_json(),
            "machine": self.machine.to_json(),
            "gradients": self.gradients.to_json(),
            "weights": self.weights.to_json(),
            "profile": self.profile,
            "account": self.account.to_json(),
            "goodput": self.account.goodput(),
            "samples": self.samples.iter().map(|(step, text)| json!([step, text])).collect::<Vec<_>>(),
            "last": last,
            "best": best,
        })
    }
}

/// The last part of a path, also of one like `.`.
fn name_of(path: &Path) -> String {
    let whole = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    whole.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}

fn read_config(path: &Path) -> Result<Vec<(String, Value)>> {
    let text = std::fs::read_to_string(path).map_err(|error| Failure::read(path, &error))?;
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
        let message = format!(
            "{} is not valid TOML ({}): put the file back as it was",
            path.display(),
            error.message()
        );
        Failure::new(Code::BadData, message)
    })?;
    let mut keys = Vec::new();
    for (name, value) in table {
        match value {
            toml::Value::Table(section) => {
                keys.extend(section.into_iter().map(|(key, value)| (format!("{name}.{key}"), plain(value))))
            }
            value => keys.push((name, plain(value))),
        }
    }
    Ok(keys)
}

fn plain(value: toml::Value) -> Value {
    // Every value of TOML but a date has a form in JSON, and no key takes a date.
    serde_json::to_value(&value).unwrap_or_else(|_| value.to_string().into())
}

/// What the run said of itself when it began; nothing for runs of earlier versions.
fn read_about(path: &Path) -> Value {
    std::fs::read_to_string(path)
        .ok()
        .and_then(|text| serde_json::from_str(&text).ok())
        .unwrap_or_else(|| json!({}))
}

fn read_samples(folder: &Path) -> Result<Vec<(u64, String)>> {
    let mut samples = Vec::new();
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(samples) };
    for path in entries.flatten().map(|entry| entry.path()) {
        let stem = path.file_stem().and_then(|stem| stem.to_str()?.strip_prefix("step-")?.parse().ok());
        if let Some(step) = stem {
            let text = std::fs::read_to_string(&path).map_err(|error| Failure::read(&path, &error))?;
            samples.push((step, text));
        }
    }
    samples.sort();
    Ok(samples)
}
