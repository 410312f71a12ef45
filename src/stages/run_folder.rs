//! The run folder: everything that belongs to one run, and everything needed to repeat it.
//!
//! ```text
//! config.toml               the resolved configuration
//! tokenizer.json            the tokenizer, and in tokenizer.inputs.json what it was trained on
//! data/                     the prepared tokens, unless the configuration names prepared ones
//! about.json                the device, its peak, the sizes and the plan of the run
//! metrics.jsonl             one line a step, cut back to the checkpoint on resume
//! events.out.tfevents.*     the same for TensorBoard
//! report.html               the same as a page, written when the run ends
//! checkpoints/step-NNNNNNNN a Hugging Face folder and the trainer's state
//! samples/step-NNNNNNNN.txt what the model wrote
//! log.txt                   what was told on the way
//! run.lock                  locked while a process writes here
//! ```

use crate::config::Config;
use crate::failure::{Code, Failure, Result};
use crate::run_lock::RunLock;
use crate::show::Show;
use ironmill_model::checkpoint;
use ironmill_text::durable;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A run folder on disk.
#[derive(Clone, Debug)]
pub struct RunFolder {
    path: PathBuf,
    /// Held by whoever may write here; those who only read have none.
    _lock: Option<Arc<RunLock>>,
}

impl RunFolder {
    /// Makes a folder for this configuration, or opens the one that is there to go on with it.
    ///
    /// Once there is a checkpoint, only what does not change its meaning may differ from the stored configuration. What was
    /// left to the machine and decided when the run began stays decided, also on another machine.
    pub fn open_or_create(path: &Path, mut config: Config, show: &Show) -> Result<(RunFolder, Config)> {
        std::fs::create_dir_all(path).map_err(|error| Failure::write(path, &error))?;
        let run = RunFolder { _lock: Some(Arc::new(RunLock::take(path, show)?)), ..RunFolder::at(path) };
        if run.exists() {
            let stored = Config::load(&run.config_path(), &[])?;
            if run.has_checkpoint()? {
                if config.train.recompute == "auto" {
                    config.train.recompute.clone_from(&stored.train.recompute);
                }
                config.train.micro_batch = config.train.micro_batch.or(stored.train.micro_batch);
            }
            run.compare(&stored, &config, show)?;
        }
        run.store(&config)?;
        Ok((run, config))
    }

    /// Writes the configuration of the run.
    pub fn store(&self, config: &Config) -> Result<()> {
        let path = self.config_path();
        durable::write(&path, config.to_toml()?.as_bytes()).map_err(|error| Failure::write(&path, &error))
    }

    /// A folder that may or may not hold a run.
    pub fn at(path: &Path) -> RunFolder {
        RunFolder { path: path.to_path_buf(), _lock: None }
    }

    /// Whether there is a run.
    pub fn exists(&self) -> bool {
        self.config_path().is_file()
    }

    /// Whether there is a checkpoint to go on from.
    pub fn has_checkpoint(&self) -> Result<bool> {
        Ok(!checkpoint::list(&self.checkpoints())?.is_empty())
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The resolved configuration.
    pub fn config_path(&self) -> PathBuf {
        self.path.join("config.toml")
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> PathBuf {
        self.path.join("tokenizer.json")
    }

    /// What the tokenizer was trained on.
    pub fn tokenizer_inputs(&self) -> PathBuf {
        self.path.join("tokenizer.inputs.json")
    }

    /// The prepared tokens.
    pub fn data(&self) -> PathBuf {
        self.path.join("data")
    }

    /// The algorithms that a card chose, for a resumed run to use again.
    pub fn kernel_choices(&self) -> PathBuf {
        self.path.join("kernels.txt")
    }

    /// The measurements of every step.
    pub fn metrics(&self) -> PathBuf {
        self.path.join("metrics.jsonl")
    }

    /// What the run is: its device, sizes and plan.
    pub fn about(&self) -> PathBuf {
        self.path.join("about.json")
    }

    /// The page of the run.
    pub fn report(&self) -> PathBuf {
        self.path.join("report.html")
    }

    /// The checkpoints.
    pub fn checkpoints(&self) -> PathBuf {
        self.path.join("checkpoints")
    }

    /// What the model wrote.
    pub fn samples(&self) -> PathBuf {
        self.path.join("samples")
    }

    /// What was told on the way.
    pub fn log(&self) -> PathBuf {
        self.path.join("log.txt")
    }

    fn compare(&self, stored: &Config, config: &Config, show: &Show) -> Result<()> {
        let (old, new) = (flatten(stored), flatten(config));
        let keys: std::collections::BTreeSet<&String> = old.keys().chain(new.keys()).collect();
        let changes: Vec<(&String, String)> = keys
            .into_iter()
            .filter(|key| old.get(*key) != new.get(*key))
            .map(|key| (key, format!("{key} {} → {}", shown(old.get(key)), shown(new.get(key)))))
            .collect();
        let binding: Vec<&str> =
            changes.iter().filter(|(key, _)| is_binding(key)).map(|(_, change)| change.as_str()).collect();
        if !binding.is_empty() && self.has_checkpoint()? {
            return Err(Failure::new(
                Code::BadConfig,
                format!(
                    "{} holds a run with another configuration ({}): choose another --out for a new run, \
                     or put the old values back to go on with this one",
                    self.path.display(),
                    binding.join("; ")
                ),
            ));
        }
        if !changes.is_empty() {
            let all: Vec<&str> = changes.iter().map(|(_, change)| change.as_str()).collect();
            show.note(&format!("changed since this run began: {}", all.join("; ")));
        }
        Ok(())
    }
}

/// Whether weights, moments and data order made under one value of a key have no meaning under another.
fn is_binding(key: &str) -> bool {
    let is_of = |section: &str| key.split('.').next() == Some(section);
    ["seed", "train.optimizer"].contains(&key)
        || is_of("tokenizer")
        || is_of("data")
        || (is_of("model") && key != "model.dropout")
}

fn flatten(config: &Config) -> BTreeMap<String, Value> {
    let mut flat = BTreeMap::new();
    if let Ok(Value::Object(sections)) = serde_json::to_value(config) {
        for (name, value) in sections {
            match value {
                Value::Object(keys) => {
                    flat.extend(keys.into_iter().map(|(key, value)| (format!("{name}.{key}"), value)))
                }
                value => drop(flat.insert(name, value)),
            }
        }
    }
    flat
}

fn shown(value: Option<&Value>) -> String {
    value.map_or("unset".into(), Value::to_string)
}
