//! The configuration: what was typed, and what it comes to.
//!
//! A file is TOML with the sections `[tokenizer] [data] [model] [train] [sample]`; a flag such as
//! `--train.learning-rate 3e-4` overrides it; what neither gives has a default. [`Typed`] is what was typed,
//! [`Config`] what it comes to: every value settled, every path absolute. A [`Config`] is written into the run
//! folder as TOML that reads back to itself.

mod keys;
mod presets;
mod resolve;
pub mod sweep;
mod typed;
mod values;

pub use keys::{KEYS, Kind};
pub use resolve::{MASK, auto_precision, keys_of, parse_group};
pub use typed::{Override, Typed};
pub use values::{Cadence, show_duration};

use crate::failure::Result;
use serde::{Serialize, Serializer};
use std::path::{Path, PathBuf};

/// Everything a run needs to know, settled.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Config {
    /// Where every random choice of the run begins.
    pub seed: u64,
    /// How the tokenizer is made, or where it is.
    pub tokenizer: TokenizerConfig,
    /// What is read and how it is cut and ordered.
    pub data: DataConfig,
    /// The shape of the model.
    pub model: ModelConfig,
    /// How it is trained.
    pub train: TrainConfig,
    /// How text is sampled from it.
    pub sample: SampleConfig,
}

/// `[tokenizer]`: an existing file, or how to train one.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum TokenizerConfig {
    /// A tokenizer that is there already.
    File {
        /// Its file.
        file: PathBuf,
    },
    /// A tokenizer to train.
    Train(TokenizerTraining),
}

/// The memory that training a tokenizer may take unless told otherwise.
pub const DEFAULT_MEMORY: u64 = 4 << 30;

/// How a tokenizer is trained.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TokenizerTraining {
    /// `bpe`, `char`, `word` or `byte`.
    pub kind: String,
    /// The number of tokens; without it, a char or word vocabulary has every character or word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vocab_size: Option<u64>,
    /// The pattern that cuts text into pieces: a name or a regular expression. Only bpe and word cut.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
    /// Texts that are one token each and never part of another.
    pub special: Vec<String>,
    /// Which of two equally frequent pairs is merged first. Only bpe merges.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ties: Option<String>,
    /// Pairs, characters or words that are rarer are left out. The byte kind leaves nothing out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_count: Option<u64>,
    /// The most memory that training takes, in bytes. It changes nothing about the tokenizer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
}

/// `[data]`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DataConfig {
    /// Files, folders, patterns, a built-in corpus, or one prepared folder.
    pub input: Vec<String>,
    /// The text between documents of one file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub document_separator: Option<String>,
    /// The share of documents kept for measuring.
    pub validation: f64,
    /// The field or column that holds the text.
    pub text_key: String,
    /// How many tokens a shard holds.
    pub shard_tokens: u64,
    /// The order in which samples are drawn.
    pub sampler: String,
    /// What to do with text that is not UTF-8.
    pub on_bad_utf8: String,
    /// Whether documents with the text of an earlier one are left out.
    pub drop_duplicates: bool,
    /// How many threads fill batches ahead of the step; 0 fills them in the step itself.
    pub workers: u64,
}

/// `[model]`. What a family does not have is not there.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelConfig {
    /// The family of the model: `gpt2`, `llama` or `encoder`.
    pub architecture: String,
    /// Blocks.
    pub layers: u64,
    /// Attention heads of a block.
    pub heads: u64,
    /// Heads of keys and values, which query heads share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_heads: Option<u64>,
    /// The width of the residual stream.
    pub width: u64,
    /// Channels of a head.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head_dim: Option<u64>,
    /// What an MLP does: `gelu`, `gelu_erf`, `swiglu`, `geglu` or `relu2`.
    pub mlp: String,
    /// Channels inside an MLP.
    pub mlp_width: u64,
    /// The longest sequence.
    pub context: u64,
    /// The share of activations dropped in training.
    pub dropout: f64,
    /// Whether linear layers and norms have biases; in Llama style, those of queries, keys and values.
    pub bias: bool,
    /// Whether the head shares the token embedding.
    pub tied: bool,
    /// Whether queries and keys are normalised, head by head.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qk_norm: Option<bool>,
    /// How many positions a query sees; 0 is all of them.
    pub window: u64,
    /// Added to variances in norms.
    pub norm_eps: f64,
    /// The base of rotary frequencies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rope_theta: Option<f64>,
    /// How rotary positions are stretched: `none`, `linear:FACTOR` or `llama3:FACTOR:LOW:HIGH:CONTEXT`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rope_scaling: Option<String>,
    /// Whether the model is a Gemma-3: `none` or `SCALAR:EVERY:THETA`, what scores are divided by the root of, every how many blocks
    /// one sees everything, and the base of rotary frequencies of the others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gemma: Option<String>,
}

/// `[train]`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TrainConfig {
    /// How long to train.
    #[serde(flatten)]
    pub length: Length,
    /// Tokens of one step.
    pub batch_tokens: u64,
    /// Sequences that go through the model at once; nothing until a run has decided.
    #[serde(serialize_with = "count_or_auto")]
    pub micro_batch: Option<u64>,
    /// The highest learning rate.
    pub learning_rate: f64,
    /// The learning rate at the end of the schedule.
    pub min_learning_rate: f64,
    /// How the learning rate falls.
    pub schedule: String,
    /// Steps in which the learning rate rises.
    pub warmup: u64,
    /// The share of the steps in which a stable rate falls at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decay_share: Option<f64>,
    /// Steps of the first cycle of a schedule that restarts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart_every: Option<u64>,
    /// How many times as long each cycle is as the one before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart_factor: Option<u64>,
    /// What the rate is multiplied with on a plateau.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plateau_factor: Option<f64>,
    /// Measurements without improvement before that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plateau_patience: Option<u64>,
    /// `adamw`, `adam`, `sgd` or `muon`.
    pub optimizer: String,
    /// The decay of matrices.
    pub weight_decay: f64,
    /// Parameters with a rate or decay of their own, such as `*.bias: rate 0.5, decay 0`.
    pub groups: Vec<String>,
    /// The share of the running average of weights that a step keeps; 0 keeps none.
    pub ema: f64,
    /// The decay of Adam's first moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beta1: Option<f64>,
    /// The decay of Adam's second moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beta2: Option<f64>,
    /// Added to the root of Adam's second moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eps: Option<f64>,
    /// The decay of the running sum of gradients, of SGD and Muon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub momentum: Option<f64>,
    /// The largest global norm of a gradient; 0 does not clip.
    pub grad_clip: f64,
    /// What happens when a step is refused: `stop`, `skip` or `rollback`.
    pub on_nonfinite: String,
    /// How many steps may be refused within a hundred before the run stops.
    pub max_skips: u64,
    /// How many standard deviations a loss may lie above its running mean; 0 allows any.
    pub loss_outlier: f64,
    /// The same for the gradient norm.
    pub norm_outlier: f64,
    /// Steps before anything is called an outlier.
    pub outlier_warmup: u64,
    /// The share of a target's probability that is spread over the vocabulary.
    pub label_smoothing: f64,
    /// The weight of the squared log-sum-exp in the loss.
    pub z_loss: f64,
    /// Whether the backward computes the values of blocks again: `none`, `blocks`, or `auto` until a run has decided.
    pub recompute: String,
    /// The arithmetic: `fp32`, or narrower products and, on a card, activations.
    pub precision: String,
    /// How often the validation loss is measured.
    pub eval_every: Cadence,
    /// Over how many tokens it is measured, unless over all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval_tokens: Option<u64>,
    /// Which tokens those are: `fixed`, `complete` or `sampled`.
    pub eval_set: String,
    /// How many evaluations in a row may be no better than the best one; 0 goes on whatever they say.
    pub early_stop_patience: u64,
    /// How much the running mean of the validation loss keeps of what it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub early_stop_smoothing: Option<f64>,
    /// By how much it must fall to be better.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub early_stop_delta: Option<f64>,
    /// How often a sample is shown.
    pub sample_every: Cadence,
    /// How often a checkpoint is written.
    pub checkpoint_every: Cadence,
    /// How many of the newest checkpoints are kept.
    pub keep_last: u64,
    /// How many of those with the lowest validation loss are kept besides.
    pub keep_best: u64,
    /// Checkpoints of steps that are multiples of this are kept for good; 0 is none.
    pub keep_every: u64,
    /// Where to train.
    pub device: String,
}

/// How long to train: `steps` or `epochs`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Length {
    /// So many steps.
    Steps(u64),
    /// So many times over the training tokens.
    Epochs(f64),
}

/// `[sample]`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SampleConfig {
    /// What to continue.
    pub prompts: Vec<String>,
    /// The longest continuation.
    pub max_tokens: u64,
    /// Below 1 likely tokens become likelier; 0 takes the likeliest.
    pub temperature: f64,
    /// Only so many of the likeliest tokens are drawn from; 0 is all.
    pub top_k: u64,
    /// Only the likeliest tokens that make up this share are drawn from.
    pub top_p: f64,
    /// Where the draws begin.
    pub seed: u64,
}

impl Config {
    /// Reads a file and the overrides of the command line.
    pub fn load(path: &Path, overrides: &[Override]) -> Result<Config> {
        Config::resolve(Typed::load(path, overrides)?)
    }

    /// The configuration as TOML that reads back to the same.
    pub fn to_toml(&self) -> Result<String> {
        toml::to_string(self).map_err(|error| {
            let message = format!("cannot write the configuration as TOML ({error}): please report this");
            crate::failure::Failure::new(crate::failure::Code::OurBug, message)
        })
    }
}

impl TokenizerTraining {
    /// How many tokens it will have, where that is known before any text is read.
    pub fn expected_vocab_size(&self) -> Option<u64> {
        if self.kind == "byte" { Some(256 + self.special.len() as u64) } else { self.vocab_size }
    }
}

fn count_or_auto<S: Serializer>(count: &Option<u64>, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    match count {
        Some(count) => serializer.serialize_u64(*count),
        None => serializer.serialize_str("auto"),
    }
}

impl Serialize for Cadence {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        match self {
            Cadence::Steps(steps) => serializer.serialize_u64(*steps),
            Cadence::Time(time) => serializer.serialize_str(&show_duration(*time)),
        }
    }
}
