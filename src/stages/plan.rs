//! What a run comes to before it touches a device: its model, its samples, its memory.

use super::corpus::Corpus;
use super::cuda;
use super::machine::memory_for_a_run;
use super::model;
use crate::config::Config;
use crate::failure::Result;
use crate::show::numbers::{bytes, grouped};
use ironmill_data::{Loader, Sampler, Split};
use ironmill_model::{MemoryPlan, Model, Objective, TrainOptions, Trainer};
use serde_json::{Value, json};

/// A run, planned.
pub struct Plan {
    /// The model.
    pub model: Model,
    /// How it is trained.
    pub options: TrainOptions,
    /// What that takes.
    pub memory: MemoryPlan,
    /// Bytes that the device's own libraries take besides.
    pub library_bytes: usize,
    /// Whether values of blocks are computed again, and if the machine decided, why.
    pub recompute: Recompute,
}

/// Whether the backward computes values again.
#[derive(Clone, Debug, PartialEq)]
pub struct Recompute {
    /// Whether it does.
    pub on: bool,
    /// The sentence that explains a decision of ours.
    pub reason: Option<String>,
}

/// The samples that a program is made for.
pub struct Samples {
    /// Their lengths, ascending.
    pub lengths: Vec<usize>,
    /// Whether they hold several documents, or padding.
    pub borders: bool,
}

impl Samples {
    /// The samples of a loader.
    pub fn of(loader: &Loader) -> Samples {
        Samples { lengths: loader.lengths().to_vec(), borders: loader.has_borders() }
    }

    /// The samples of a configuration whose data is not there yet: at most the context, whatever shorter ones there will be.
    fn expected(config: &Config) -> Result<Samples> {
        let sampler = Sampler::from_name(&config.data.sampler)?;
        let borders = matches!(sampler, Sampler::Packed | Sampler::Bucketed);
        Ok(Samples { lengths: vec![config.model.context as usize], borders })
    }
}

impl Plan {
    /// Plans a run of so many steps.
    pub fn new(
        config: &Config,
        vocab_size: u64,
        objective: Objective,
        samples: Samples,
        steps: u64,
    ) -> Result<Plan> {
        let model = model::build(config, vocab_size)?;
        let mut options = model::train_options(config, objective, samples, steps)?;
        let plain = Trainer::plan(&model, &options)?;
        let limit = memory_for_a_run(&config.train.device);
        let library_bytes = cuda::library_bytes(&config.train.device);
        let needed = plain.total_bytes() + library_bytes;
        let recompute = decide(&config.train.recompute, needed as u64, limit);
        options.recompute = recompute.on;
        let memory = if recompute.on { Trainer::plan(&model, &options)? } else { plain };
        Ok(Plan { model, options, memory, library_bytes, recompute })
    }

    /// Plans a run whose data may or may not be there yet.
    pub fn expected(config: &Config, corpus: Option<&Corpus>, vocab_size: u64) -> Result<Plan> {
        let (objective, samples) = match corpus {
            Some(corpus) => {
                (model::objective(config, &corpus.tokenizer)?, Samples::of(&loader(config, corpus)?))
            }
            // Which id will stand for a hidden token changes no size.
            None if config.model.architecture == "encoder" => {
                (Objective::MaskedToken { mask: 0 }, Samples::expected(config)?)
            }
            None => (Objective::NextToken, Samples::expected(config)?),
        };
        Plan::new(config, vocab_size, objective, samples, 1)
    }

    /// All memory that the run takes on its device.
    pub fn total_bytes(&self) -> usize {
        self.memory.total_bytes() + self.library_bytes
    }

    /// The decision as configurations write it.
    pub fn recompute_name(&self) -> &'static str {
        if self.recompute.on { "blocks" } else { "none" }
    }

    /// The plan as a table.
    pub fn table(&self, batch_tokens: u64) -> String {
        let memory = &self.memory;
        let mut text = format!(
            "model           {}\nparameters      {}\nFLOPs a token   {}\nFLOPs a step    {}\n",
            self.model.config(),
            grouped(memory.parameters as u64),
            grouped(memory.flops_per_token),
            grouped(memory.flops_per_token * batch_tokens)
        );
        for (name, size) in &memory.states {
            text += &format!("{name:16}{}\n", bytes(*size as u64));
        }
        if self.library_bytes > 0 {
            text += &format!("libraries       {}\n", bytes(self.library_bytes as u64));
        }
        let reason = self.recompute.reason.as_ref().map_or(String::new(), |reason| format!(" ({reason})"));
        text += &format!(
            "activations     {} ({} if none shared a place)\ninputs          {}\ntotal           {}\n\
             recompute       {}{reason}\n",
            bytes(memory.arena_bytes as u64),
            bytes(memory.unshared_bytes as u64),
            bytes(memory.input_bytes as u64),
            bytes(self.total_bytes() as u64),
            self.recompute_name(),
        );
        text
    }

    /// The plan as an object.
    pub fn to_json(&self) -> Value {
        let memory = &self.memory;
        let states: serde_json::Map<_, _> =
            memory.states.iter().map(|(name, size)| (name.clone(), (*size).into())).collect();
        json!({
            "model": self.model.config().to_string(),
            "parameters": memory.parameters,
            "flops_per_token": memory.flops_per_token,
            "states": states,
            "arena_bytes": memory.arena_bytes,
            "unshared_bytes": memory.unshared_bytes,
            "input_bytes": memory.input_bytes,
            "library_bytes": self.library_bytes,
            "total_bytes": self.total_bytes(),
            "recompute": self.recompute_name(),
        })
    }
}

/// The loader of a run.
pub fn loader(config: &Config, corpus: &Corpus) -> Result<Loader> {
    let sampler = Sampler::from_name(&config.data.sampler)?;
    let tokens = corpus.dataset.split(Split::Train).clone();
    let length = config.model.context as usize;
    let rows = config.train.batch_tokens as usize / length;
    Ok(Loader::new(tokens, sampler, config.seed, length, rows)?)
}

/// Computes again if that was asked for, or if nothing was and the memory would not suffice otherwise.
fn decide(setting: &str, plain_bytes: u64, limit_bytes: Option<u64>) -> Recompute {
    let explained = |on: bool, reason: String| Recompute { on, reason: Some(reason) };
    match (setting, limit_bytes) {
        ("auto", Some(limit)) if plain_bytes > limit => {
            let reason = format!("{} without it, {} to spare", bytes(plain_bytes), bytes(limit));
            explained(true, reason)
        }
        ("auto", Some(limit)) => explained(false, format!("{} to spare", bytes(limit))),
        ("auto", None) => explained(false, "this machine does not say how much memory is free".into()),
        (setting, _) => Recompute { on: setting == "blocks", reason: None },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_computes_again_only_when_memory_is_short() {
        assert!(!decide("auto", 100, Some(100)).on);
        assert!(decide("auto", 101, Some(100)).on);
        assert!(!decide("auto", 101, None).on);
        assert!(decide("auto", 101, Some(100)).reason.unwrap().contains("101"));
    }

    #[test]
    fn what_was_asked_for_is_done() {
        assert_eq!(decide("none", 101, Some(100)), Recompute { on: false, reason: None });
        assert_eq!(decide("blocks", 1, Some(100)), Recompute { on: true, reason: None });
    }
}
