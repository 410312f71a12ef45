//! What a run comes to before it touches a device: its model, its samples, its memory.

use super::corpus::Corpus;
use super::cuda;
use super::machine::{memory_for_a_run, most_memory};
use super::model;
use crate::config::Config;
use crate::failure::{Code, Failure, Result};
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
        let room = Room::of(&config.train.device);
        let library_bytes = room.library_bytes;
        let planned = fit(config, vocab_size, objective, samples, steps, &room)?;
        let Fitted { model, options, memory, recompute } = planned;
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

    /// Refuses a run that cannot fit, with the three keys that save most. Without this the allocator would end the program in
    /// the middle of its work.
    pub fn check_fits(&self, config: &Config) -> Result<()> {
        let needed = self.total_bytes() as u64;
        let Some(limit) = most_memory(&config.train.device).filter(|limit| needed > *limit) else {
            return Ok(());
        };
        let knobs: Vec<String> = self
            .knobs(config, limit)
            .into_iter()
            .take(3)
            .map(|(words, saved)| format!("{words} (saves {})", bytes(saved)))
            .collect();
        let message = format!(
            "this run needs {} of memory and the device has {}: make it smaller{}{}",
            bytes(needed),
            bytes(limit),
            if knobs.is_empty() { "" } else { ", at best with " },
            knobs.join(", ")
        );
        Err(Failure::new(Code::OutOfMemory, message))
    }

    /// Changes that make the run smaller and what each saves, the best first.
    fn knobs(&self, config: &Config, limit: u64) -> Vec<(String, u64)> {
        let mut knobs = Vec::new();
        let mut turn = |words: String, change: &dyn Fn(&mut Config)| {
            let mut config = config.clone();
            // What the machine would decide is compared as it decided.
            config.train.recompute = self.recompute_name().into();
            config.train.micro_batch = Some(self.options.micro_rows as u64);
            change(&mut config);
            let context = config.model.context as usize;
            let mut lengths: Vec<usize> =
                self.options.lengths.iter().map(|&length| length.min(context)).collect();
            lengths.dedup();
            let samples = Samples { lengths, borders: self.options.borders };
            let room = Room { bytes: Some(limit), library_bytes: self.library_bytes };
            let vocab_size = self.model.config().vocab_size as u64;
            // A change that makes no run at all is no advice.
            if let Ok(fitted) = fit(&config, vocab_size, self.options.objective, samples, 1, &room) {
                let saved = self.memory.total_bytes().saturating_sub(fitted.memory.total_bytes());
                if saved > 0 {
                    knobs.push((words, saved as u64));
                }
            }
        };
        let Config { model, train, .. } = config;
        if self.options.micro_rows > 1 {
            let smaller = smaller_rows(self.options.rows, self.options.micro_rows) as u64;
            let words = format!("train.micro_batch {} → {smaller}", self.options.micro_rows);
            turn(words, &|config| config.train.micro_batch = Some(smaller));
        }
        if !self.recompute.on {
            turn("train.recompute = \"blocks\"".into(), &|config| config.train.recompute = "blocks".into());
        }
        if train.precision == "fp32" && cuda::ordinal(&train.device).is_some() {
            turn("train.precision = \"bf16\"".into(), &|config| config.train.precision = "bf16".into());
        }
        if model.context.is_multiple_of(2) {
            let words = format!("model.context {} → {}", model.context, model.context / 2);
            turn(words, &|config| config.model.context /= 2);
        }
        if model.layers > 1 {
            let words = format!("model.layers {} → {}", model.layers, model.layers / 2);
            turn(words, &|config| config.model.layers /= 2);
        }
        knobs.sort_by_key(|knob| std::cmp::Reverse(knob.1));
        knobs
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
    Ok(Loader::new(tokens, sampler, config.seed, length, rows)?.with_workers(config.data.workers as usize)?)
}

/// The memory that a run may plan with.
struct Room {
    /// All of it, if the machine says.
    bytes: Option<u64>,
    /// The part that the device's own libraries take.
    library_bytes: usize,
}

impl Room {
    fn of(device: &str) -> Room {
        Room { bytes: memory_for_a_run(device), library_bytes: cuda::library_bytes(device) }
    }

    fn needed(&self, memory: &MemoryPlan) -> u64 {
        (memory.total_bytes() + self.library_bytes) as u64
    }
}

/// A model and how it is trained, with what was left to the machine decided.
struct Fitted {
    model: Model,
    options: TrainOptions,
    memory: MemoryPlan,
    recompute: Recompute,
}

/// Decides what a configuration leaves open: the rows of a micro-batch and whether values are computed again. Computing again
/// costs time, so fewer rows are tried first.
fn fit(
    config: &Config,
    vocab_size: u64,
    objective: Objective,
    samples: Samples,
    steps: u64,
    room: &Room,
) -> Result<Fitted> {
    let model = model::build(config, vocab_size)?;
    let options = model::train_options(config, objective, samples, steps)?;
    let planned = |recompute: bool| -> Result<(TrainOptions, MemoryPlan)> {
        let mut options = TrainOptions { recompute, ..options.clone() };
        if config.train.micro_batch.is_none() && room.bytes.is_none() {
            options.micro_rows = smaller_rows(options.rows, 2 * ROWS_WITHOUT_A_LIMIT);
        }
        loop {
            let memory = Trainer::plan(&model, &options)?;
            let fits = room.bytes.is_none_or(|bytes| room.needed(&memory) <= bytes);
            if fits || config.train.micro_batch.is_some() || options.micro_rows == 1 {
                return Ok((options, memory));
            }
            options.micro_rows = smaller_rows(options.rows, options.micro_rows);
        }
    };
    let (mut options, mut memory) = planned(config.train.recompute == "blocks")?;
    let recompute = decide(&config.train.recompute, room.needed(&memory), room.bytes);
    if recompute.on && !options.recompute {
        (options, memory) = planned(true)?;
    }
    Ok(Fitted { model, options, memory, recompute })
}

/// The rows of a micro-batch where nobody says how much memory there is.
const ROWS_WITHOUT_A_LIMIT: usize = 16;

/// The next smaller number of rows of a micro-batch: at most half as many, and a divisor of those of a step.
pub fn smaller_rows(rows: usize, micro_rows: usize) -> usize {
    (1..=micro_rows / 2).rev().find(|smaller| rows.is_multiple_of(*smaller)).unwrap_or(1)
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
    fn fewer_rows_divide_a_step_too() {
        assert_eq!(
            [smaller_rows(12, 12), smaller_rows(12, 6), smaller_rows(12, 3), smaller_rows(12, 1)],
            [6, 3, 1, 1]
        );
        assert_eq!(smaller_rows(10, 10), 5);
        assert_eq!(smaller_rows(10, 5), 2);
    }

    fn fitted(text: &str, bytes: Option<u64>) -> Fitted {
        let typed = crate::config::Typed::parse(text, "c.toml", std::path::Path::new("/")).unwrap();
        let config = Config::resolve(typed).unwrap();
        let samples = Samples { lengths: vec![config.model.context as usize], borders: false };
        let room = Room { bytes, library_bytes: 0 };
        fit(&config, 300, Objective::NextToken, samples, 1, &room).unwrap()
    }

    #[test]
    fn as_many_rows_go_through_at_once_as_fit() {
        let auto = "[train]\nmicro_batch = \"auto\"\ndevice = \"cpu\"\nprecision = \"fp32\"\n";
        let all = fitted(auto, Some(u64::MAX));
        assert_eq!((all.options.micro_rows, all.recompute.on), (16, false));
        let whole = all.memory.total_bytes() as u64;
        let half = fitted(auto, Some(whole - 1));
        assert_eq!((half.options.micro_rows, half.recompute.on), (8, false));
        assert!(half.memory.total_bytes() < all.memory.total_bytes());
        // A single row is tried before values are computed again.
        let one = fitted("[train]\nmicro_batch = 1\ndevice = \"cpu\"\nprecision = \"fp32\"\n", None);
        let tight = fitted(auto, Some(one.memory.total_bytes() as u64 - 1));
        assert!(tight.recompute.on);
        assert_eq!(fitted(auto, None).options.micro_rows, 16);
    }

    #[test]
    fn what_cannot_fit_names_the_three_keys_that_save_most() {
        let text = "[model]\ncontext = 1024\nlayers = 12\n[train]\ndevice = \"cpu\"\nmicro_batch = 16\nrecompute = \"none\"\n";
        let typed = crate::config::Typed::parse(text, "c.toml", std::path::Path::new("/")).unwrap();
        let config = Config::resolve(typed).unwrap();
        let samples = Samples::expected(&config).unwrap();
        let plan = Plan::new(&config, 50_000, Objective::NextToken, samples, 1).unwrap();
        let knobs = plan.knobs(&config, 1 << 20);
        assert!(knobs.len() >= 3 && knobs.is_sorted_by(|a, b| a.1 >= b.1), "{knobs:?}");
        for key in ["micro_batch 16 → 8", "recompute = \"blocks\"", "context 1024 → 512"] {
            assert!(knobs.iter().any(|knob| knob.0.contains(key) && knob.1 > 0), "{key}: {knobs:?}");
        }
        assert!(plan.check_fits(&config).is_ok());
    }

    #[test]
    fn what_was_asked_for_is_done() {
        assert_eq!(decide("none", 101, Some(100)), Recompute { on: false, reason: None });
        assert_eq!(decide("blocks", 1, Some(100)), Recompute { on: true, reason: None });
    }
}
