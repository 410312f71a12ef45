//! The runs of a sweep: one after the other, each in a folder of its own, on one corpus where they can share it.
//!
//! ```text
//! sweep.json       what became of every run
//! shared/          the tokenizer and the tokens, unless keys of theirs are swept
//! KEY=VALUE,…/     a run folder
//! report.html      all runs on one page
//! ```

use super::corpus;
use super::model::check_device;
use super::run_folder::RunFolder;
use super::training::train;
use crate::cli::Context;
use crate::config::sweep::{Sweep, name_of};
use crate::config::{Config, Typed};
use crate::failure::{Code, Failure, Result};
use crate::report::{self, Record};
use crate::run_lock::RunLock;
use crate::show::numbers::grouped;
use ironmill_text::durable;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// What became of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Tried {
    /// The name of its folder.
    pub name: String,
    /// The hash of its configuration: a run of another one is not this run.
    config: String,
    /// The lowest validation loss, or without validation data the last training loss.
    pub loss: Option<f64>,
    /// The step of that loss.
    pub step: Option<u64>,
    /// Bits for a byte of text at that step.
    pub bits_per_byte: Option<f64>,
    /// Why it did not end well, if so.
    pub failure: Option<String>,
}

/// The runs to make.
pub struct Plan {
    out: PathBuf,
    keys: Vec<String>,
    base: Config,
    runs: Vec<(String, Config)>,
}

impl Plan {
    /// Settles the configuration of every run, so that a mistake in one is told before any is trained.
    pub fn new(out: &Path, typed: &Typed, sweep: &Sweep) -> Result<Plan> {
        let settle = |point: &[crate::config::Override]| {
            let mut typed = typed.clone();
            typed.override_with(point)?;
            Config::resolve(typed)
        };
        let mut runs = Vec::new();
        for point in sweep.points() {
            let name = name_of(&point);
            let config = settle(&point)
                .map_err(|failure| Failure::new(failure.code(), format!("the run {name}: {failure}")))?;
            runs.push((name, config));
        }
        let first = sweep.points().swap_remove(0);
        // The shared corpus follows from keys that are not swept, which are the same in every run.
        Ok(Plan { out: out.to_path_buf(), keys: sweep.keys(), base: settle(&first)?, runs })
    }

    /// The names of the runs, in their order.
    pub fn names(&self) -> Vec<&str> {
        self.runs.iter().map(|(name, _)| name.as_str()).collect()
    }

    /// Makes the runs that are not finished. Gives all of them, the best first, and the page.
    pub fn run(&self, context: &Context, stop: &Arc<AtomicBool>) -> Result<(Vec<Tried>, PathBuf)> {
        let show = &context.show;
        check_device(&self.base.train.device)?;
        std::fs::create_dir_all(&self.out).map_err(|error| Failure::write(&self.out, &error))?;
        let _lock = RunLock::take(&self.out, show)?;
        let mut ledger = Ledger::open(&self.out.join("sweep.json"))?;
        let mut shared = None;
        for (idx, (name, config)) in self.runs.iter().enumerate() {
            let of =
                format!("run {} of {}: {name}", grouped(idx as u64 + 1), grouped(self.runs.len() as u64));
            let hash = blake3::hash(config.to_toml()?.as_bytes()).to_hex().to_string();
            if ledger.is_finished(name, &hash) && RunFolder::at(&self.out.join(name)).metrics().is_file() {
                show.note(&format!("sweep: {of} is finished"));
                continue;
            }
            show.note(&format!("sweep: {of}"));
            let mut config = config.clone();
            if self.shares_corpus() {
                let dir = match &shared {
                    Some(dir) => dir,
                    None => shared.insert(self.make_corpus(context, stop)?),
                };
                config.data.input = vec![dir.to_string_lossy().into_owned()];
            }
            let failure = match self.train(name, config, context, stop) {
                Ok(()) => None,
                Err(failure) if [Code::Diverged, Code::OutOfMemory].contains(&failure.code()) => {
                    show.warn(&format!("{name}: {failure}"));
                    Some(failure)
                }
                Err(failure) => return Err(failure),
            };
            ledger.add(self.tried(name, hash, failure)?)?;
        }
        let mut tried: Vec<Tried> =
            self.names().iter().filter_map(|name| ledger.runs.get(*name)).cloned().collect();
        tried.sort_by(|a, b| rank(a).total_cmp(&rank(b)));
        let report = self.write_report(&tried)?;
        Ok((tried, report))
    }

    fn shares_corpus(&self) -> bool {
        let decides = |key: &String| {
            key.starts_with("tokenizer.") || key.starts_with("data.") || key == "model.architecture"
        };
        // A folder of prepared tokens is shared as it is.
        !self.keys.iter().any(decides) && corpus::prepared_input(&self.base).is_none()
    }

    fn make_corpus(&self, context: &Context, stop: &Arc<AtomicBool>) -> Result<PathBuf> {
        let (folder, config) =
            RunFolder::open_or_create(&self.out.join("shared"), self.base.clone(), &context.show)?;
        corpus::make(&folder, &config, context, stop)?;
        Ok(std::path::absolute(folder.data()).unwrap_or_else(|_| folder.data()))
    }

    fn train(&self, name: &str, config: Config, context: &Context, stop: &Arc<AtomicBool>) -> Result<()> {
        let (folder, config) = RunFolder::open_or_create(&self.out.join(name), config, &context.show)?;
        context.show.log_to(&folder.log())?;
        let corpus = corpus::make(&folder, &config, context, stop)?;
        train(&folder, &config, &corpus, None, context, stop).map(|_| ())
    }

    /// What a run's measurements say.
    fn tried(&self, name: &str, config: String, failure: Option<Failure>) -> Result<Tried> {
        let record = Record::read(&self.out.join(name))?;
        let (best, last) = (record.best(), record.last());
        Ok(Tried {
            name: name.into(),
            config,
            loss: best.map(|best| best.loss).or(last["loss"].as_f64()),
            step: best.map(|best| best.step).or(last["step"].as_u64()),
            bits_per_byte: best.and_then(|best| best.bits_per_byte),
            failure: failure.map(|failure| failure.code().name().into()),
        })
    }

    fn write_report(&self, tried: &[Tried]) -> Result<PathBuf> {
        let path = self.out.join("report.html");
        let records = tried
            .iter()
            .map(|run| Record::read(&self.out.join(&run.name)))
            .collect::<Result<Vec<Record>>>()?;
        let title = self.out.file_name().map_or("sweep".into(), |name| name.to_string_lossy());
        report::write(&path, &title, &records, &self.keys)?;
        Ok(path)
    }
}

/// Runs that did not end well come last, whatever they had reached.
fn rank(run: &Tried) -> f64 {
    if run.failure.is_some() { f64::INFINITY } else { run.loss.unwrap_or(f64::MAX) }
}

impl Tried {
    /// The run as an object.
    pub fn to_json(&self) -> Value {
        json!({
            "name": self.name,
            "config": self.config,
            "loss": self.loss,
            "step": self.step,
            "bits_per_byte": self.bits_per_byte,
            "failure": self.failure,
        })
    }

    fn from_json(value: &Value) -> Option<Tried> {
        let text = |key: &str| value[key].as_str().map(String::from);
        Some(Tried {
            name: text("name")?,
            config: text("config")?,
            loss: value["loss"].as_f64(),
            step: value["step"].as_u64(),
            bits_per_byte: value["bits_per_byte"].as_f64(),
            failure: text("failure"),
        })
    }
}

/// What became of the runs so far, on disk.
struct Ledger {
    path: PathBuf,
    runs: BTreeMap<String, Tried>,
}

impl Ledger {
    fn open(path: &Path) -> Result<Ledger> {
        let damaged = || {
            let message =
                format!("{} is damaged: remove it, and finished runs are looked at again", path.display());
            Failure::new(Code::BadData, message)
        };
        let mut runs = BTreeMap::new();
        match std::fs::read(path) {
            Ok(bytes) => {
                let value: Value = serde_json::from_slice(&bytes).map_err(|_| damaged())?;
                for run in value["runs"].as_array().ok_or_else(damaged)? {
                    let run = Tried::from_json(run).ok_or_else(damaged)?;
                    runs.insert(run.name.clone(), run);
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(Failure::read(path, &error)),
        }
        Ok(Ledger { path: path.to_path_buf(), runs })
    }

    /// Whether a run of this configuration has ended. One that diverged would diverge again; one without memory may have it now.
    fn is_finished(&self, name: &str, config: &str) -> bool {
        let is_final =
            |run: &Tried| run.failure.as_deref().is_none_or(|failure| failure == Code::Diverged.name());
        self.runs.get(name).is_some_and(|run| run.config == config && is_final(run))
    }

    fn add(&mut self, run: Tried) -> Result<()> {
        self.runs.insert(run.name.clone(), run);
        let value = json!({"version": 1, "runs": self.runs.values().map(Tried::to_json).collect::<Vec<_>>()});
        durable::write(&self.path, format!("{value:#}\n").as_bytes())
            .map_err(|error| Failure::write(&self.path, &error))
    }
}
