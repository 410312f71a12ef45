//! From a configuration or a folder to a model on a device.

use super::cuda;
use super::interchange::tokenizer_of_folder;
use super::plan::Samples;
use super::run_folder::RunFolder;
use crate::config::{Config, Length, MASK, TrainConfig, parse_group};
use crate::failure::{Code, Failure, Result};
use crate::show::Show;
use crate::show::numbers::grouped;
use ironmill_compute::kernel::{CARD_BARE_ROWS, CARD_LOGITS, PROCESSOR_LOGITS};
use ironmill_compute::{Cpu, Cuda, DType, Device, LossShape, Reference};
use ironmill_graph::{EightBits, Passes, Precision as Policy};
use ironmill_model::{
    Architecture, Betas, Decay, Engine, GuardOptions, Keep, Model, Objective, OptimizerOptions, Schedule,
    Stored, TrainOptions, checkpoint,
};
use ironmill_text::Tokenizer;
use std::path::{Path, PathBuf};

/// What the special token that hides another is called: by us, by BERT and by RoBERTa.
const MASKS: [&str; 3] = [MASK, "[MASK]", "<mask>"];

/// The model of a configuration, for a vocabulary.
pub fn build(config: &Config, vocab_size: u64) -> Result<Model> {
    Ok(Model::new(config.model.sizes(vocab_size)?)?)
}

/// What the model of a configuration is asked in training.
pub fn objective(config: &Config, tokenizer: &Tokenizer) -> Result<Objective> {
    objective_of(config.model.sizes(1)?.architecture, tokenizer)
}

/// What a model of this architecture is asked: an encoder hidden tokens, the others what comes next.
pub fn objective_of(architecture: Architecture, tokenizer: &Tokenizer) -> Result<Objective> {
    if architecture.is_causal() {
        return Ok(Objective::NextToken);
    }
    let mask = MASKS.into_iter().find_map(|name| tokenizer.special_id(name));
    mask.map(|mask| Objective::MaskedToken { mask }).ok_or_else(|| {
        let message = format!(
            "the tokenizer has no special token {MASK}, in place of which an encoder fills in what was hidden: \
             train a tokenizer with --special '{MASK}' and prepare the data with it, \
             or let `ironmill run` train both"
        );
        Failure::new(Code::BadData, message)
    })
}

/// How a configuration trains, once the samples and the number of steps are known.
pub fn train_options(
    config: &Config,
    objective: Objective,
    samples: Samples,
    steps: u64,
) -> Result<TrainOptions> {
    let train = &config.train;
    let is_card = cuda::ordinal(&train.device).is_some();
    let betas = Betas {
        beta1: train.beta1.unwrap_or_default() as f32,
        beta2: train.beta2.unwrap_or_default() as f32,
        eps: train.eps.unwrap_or_default() as f32,
    };
    let groups = train.groups.iter().map(|group| parse_group(group)).collect::<Result<_>>()?;
    Ok(TrainOptions {
        seed: config.seed,
        objective,
        lengths: samples.lengths,
        borders: samples.borders,
        rows: (train.batch_tokens / config.model.context) as usize,
        micro_rows: train.micro_batch.unwrap_or(train.batch_tokens / config.model.context) as usize,
        schedule: Schedule {
            peak: train.learning_rate,
            floor: train.min_learning_rate,
            warmup: train.warmup,
            steps,
            decay: decay(train),
        },
        optimizer: match train.optimizer.as_str() {
            "sgd" => OptimizerOptions::Sgd { momentum: train.momentum.unwrap_or_default() as f32 },
            "muon" => {
                OptimizerOptions::Muon { momentum: train.momentum.unwrap_or_default() as f32, rest: betas }
            }
            "adam" => OptimizerOptions::Adam(betas),
            _ => OptimizerOptions::AdamW(betas),
        },
        weight_decay: train.weight_decay as f32,
        groups,
        average: train.ema as f32,
        grad_clip: train.grad_clip as f32,
        guard: GuardOptions {
            loss_outlier: train.loss_outlier as f32,
            norm_outlier: train.norm_outlier as f32,
            warmup: u32::try_from(train.outlier_warmup).unwrap_or(u32::MAX),
            stops: train.on_nonfinite != "skip",
        },
        faults: Vec::new(),
        loss: LossShape { label_smoothing: train.label_smoothing as f32, z_loss: train.z_loss as f32 },
        recompute: train.recompute == "blocks",
        working: working(&train.precision, &train.device),
        passes: Passes {
            precision: policy(&train.precision, &train.device),
            eight_bits: eight_bits(&train.precision),
            head_elements: if is_card { CARD_LOGITS } else { PROCESSOR_LOGITS },
            bare_rows: if is_card { CARD_BARE_ROWS } else { Passes::ALL.bare_rows },
            ..Passes::ALL
        },
    })
}

/// The course of the learning rate after the warm-up.
fn decay(train: &TrainConfig) -> Decay {
    match train.schedule.as_str() {
        "constant" => Decay::Constant,
        "linear" => Decay::Linear,
        "stable_decay" => Decay::StableDecay { share: train.decay_share.unwrap_or_default() },
        "restarts" => Decay::Restarts {
            period: train.restart_every.unwrap_or_default(),
            factor: train.restart_factor.unwrap_or_default(),
        },
        "one_cycle" => Decay::OneCycle,
        "exponential" => Decay::Exponential,
        "plateau" => Decay::Plateau {
            factor: train.plateau_factor.unwrap_or_default(),
            patience: u32::try_from(train.plateau_patience.unwrap_or_default()).unwrap_or(u32::MAX),
        },
        _ => Decay::Cosine,
    }
}

/// The type that activations are kept in: a card keeps them in 16 bits, a processor in 32.
fn working(precision: &str, device: &str) -> Option<DType> {
    cuda::ordinal(device)?;
    match precision {
        "bf16" | "fp8" | "fp8-head" => Some(DType::BF16),
        "fp16" => Some(DType::F16),
        _ => None,
    }
}

/// Which products are of eight bits.
fn eight_bits(precision: &str) -> EightBits {
    match precision {
        "fp8" => EightBits::Blocks,
        "fp8-head" => EightBits::BlocksAndHead,
        _ => EightBits::Nowhere,
    }
}

/// How products are computed where activations are kept in f32.
fn policy(name: &str, device: &str) -> Policy {
    match name {
        "bf16" if working(name, device).is_none() => Policy::Products(DType::BF16),
        "fp16" if working(name, device).is_none() => Policy::Products(DType::F16),
        _ => Policy::F32,
    }
}

/// How many steps a configuration asks for, given the samples of one epoch.
pub fn steps(config: &Config, samples_per_epoch: u64) -> u64 {
    let rows = config.train.batch_tokens / config.model.context;
    match config.train.length {
        Length::Steps(steps) => steps,
        Length::Epochs(epochs) => ((epochs * samples_per_epoch as f64) / rows as f64).ceil().max(1.0) as u64,
    }
}

/// The device of that name. A card keeps the algorithms that it chooses in `choices`.
pub fn device(name: &str, threads: usize, choices: Option<PathBuf>) -> Result<Box<dyn Device>> {
    let name = settle_device(name);
    if let Some(ordinal) = cuda::ordinal(&name) {
        return Ok(Box::new(Cuda::new(&cuda::options(ordinal, choices))?));
    }
    match name.as_str() {
        "cpu" => Ok(Box::new(Cpu::new(threads)?)),
        "reference" => Ok(Box::new(Reference::rounded())),
        _ => {
            let message =
                format!("there is no device \"{name}\": use auto, cpu, cuda, cuda:1 … or reference");
            Err(Failure::new(Code::NoDevice, message))
        }
    }
}

/// What "auto" comes to on this machine: a card that can be used, else the processor.
pub fn settle_device(name: &str) -> String {
    match name {
        "auto" if cuda::find().is_usable() => "cuda".into(),
        "auto" => "cpu".into(),
        name => name.into(),
    }
}

/// Refuses a device that is not there, before any work is done for it.
pub fn check_device(name: &str) -> Result<()> {
    if ["auto", "cpu", "reference"].contains(&name) {
        return Ok(());
    }
    let found = cuda::find();
    if found.is_usable() && cuda::ordinal(name).is_some_and(|ordinal| ordinal < found.cards.len()) {
        return Ok(());
    }
    // Opening it says what is missing.
    device(name, 1, None).map(|_| ())
}

/// The flags that say what a model that is used and not trained is kept in.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Storage {
    /// What weights are kept in; on a card, everything else, too
    #[arg(long, value_enum, default_value_t = Precision::Fp32)]
    precision: Precision,
    /// Keep weights of products in eight bits, a quarter of fp32's bytes; eval shows what it costs. On a card, --precision says what all else is
    /// kept in
    #[arg(long, value_enum, value_name = "TYPE")]
    weights: Option<Weights>,
}

impl Storage {
    /// Everything in single precision.
    pub const FP32: Storage = Storage { precision: Precision::Fp32, weights: None };

    /// What the weights of products are kept in.
    pub fn name(self) -> &'static str {
        match (self.weights, self.precision) {
            (Some(Weights::Int8), _) => "int8",
            (None, Precision::Fp32) => "fp32",
            (None, Precision::Bf16) => "bf16",
        }
    }

    /// The same for a device.
    fn keep(self, device: &str) -> Result<Keep> {
        match self.weights {
            Some(weights) => weights.keep(self.precision, device),
            None => Ok(self.precision.keep(device)),
        }
    }
}

/// What weights can be kept in whatever else is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Weights {
    /// Whole numbers of eight bits with a scale for every 64.
    Int8,
}

impl Weights {
    /// The same for a device, and what everything else is kept in there: f32, unless it is a card.
    pub fn keep(self, rest: Precision, device: &str) -> Result<Keep> {
        let Weights::Int8 = self;
        match rest {
            Precision::Fp32 => Ok(Keep::Int8(DType::F32)),
            Precision::Bf16 if cuda::ordinal(device).is_some() => Ok(Keep::Int8(DType::BF16)),
            Precision::Bf16 => {
                let message = format!(
                    "--weights int8 keeps all else in fp32 on {device}: leave out --precision bf16, or use --device cuda"
                );
                Err(Failure::new(Code::Usage, message))
            }
        }
    }
}

/// What a model that is used and not trained is kept in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Precision {
    /// Everything in single precision.
    Fp32,
    /// Weights in bf16, and on a card everything else, too.
    Bf16,
}

impl Precision {
    /// The same for a device: a card keeps everything in the type, a processor the weights of products.
    pub fn keep(self, device: &str) -> Keep {
        match self {
            Precision::Fp32 => Keep::Everything(DType::F32),
            Precision::Bf16 if cuda::ordinal(device).is_some() => Keep::Everything(DType::BF16),
            Precision::Bf16 => Keep::Weights(DType::BF16),
        }
    }
}

/// A trained model, found by the folder that a person names.
pub struct Found {
    /// The folder of the weights.
    pub weights: PathBuf,
    /// The run it belongs to, if the folder is a run's.
    pub run: Option<RunFolder>,
}

/// Finds the newest whole checkpoint of a run, or takes a checkpoint or Hugging Face folder as it is.
pub fn find(path: &Path, show: &Show) -> Result<Found> {
    if !path.exists() {
        let advice = "give a run folder, a checkpoint or a Hugging Face folder of a supported model";
        return Err(Failure::new(Code::NoInput, format!("cannot find {}: {advice}", path.display())));
    }
    let extension = path.extension().and_then(|extension| extension.to_str());
    if path.is_file() && matches!(extension, Some("gguf" | "bin")) {
        // Only GGUF files have a tokenizer inside.
        let flag = if extension == Some("gguf") { "" } else { " --tokenizer FILE" };
        let message = format!(
            "{} is a file, and a model is a folder here: make one with `ironmill import {}{flag} --out NAME`",
            path.display(),
            path.display()
        );
        return Err(Failure::new(Code::Usage, message));
    }
    // A checkpoint carries the run's configuration too, so what tells a model is its config.json.
    if path.join("config.json").is_file() {
        // A checkpoint of a run lies two folders below it.
        let run = path.parent().and_then(Path::parent).map(RunFolder::at).filter(RunFolder::exists);
        return Ok(Found { weights: path.to_path_buf(), run });
    }
    let run = RunFolder::at(path);
    if !run.exists() {
        let problem = "has no config.json".into();
        return Err(ironmill_model::Error::NotAModel { path: path.to_path_buf(), problem }.into());
    }
    let skipped =
        &mut |error: &ironmill_model::Error| show.warn(&format!("a checkpoint is passed over: {error}"));
    match checkpoint::newest(&run.checkpoints(), skipped)? {
        Some(weights) => Ok(Found { weights, run: Some(run) }),
        None => {
            let message = format!("{} has no checkpoint yet: train it first", path.display());
            Err(Failure::new(Code::NoInput, message))
        }
    }
}

impl Found {
    /// The model on a device, in f32.
    pub fn engine(&self, device_name: &str, threads: usize) -> Result<Engine> {
        self.engine_in(Storage::FP32, device_name, threads)
    }

    /// The model on a device, kept as asked for.
    pub fn engine_in(&self, storage: Storage, device_name: &str, threads: usize) -> Result<Engine> {
        self.engine_cut_to(None, storage, device_name, threads)
    }

    /// The same with a shorter context, where one is given.
    pub fn engine_cut_to(
        &self,
        context: Option<u64>,
        storage: Storage,
        device_name: &str,
        threads: usize,
    ) -> Result<Engine> {
        let mut stored = Stored::open(&self.weights)?;
        if let Some(context) = context {
            let vocab_size = stored.model().config().vocab_size;
            stored = stored.cut_to(vocab_size, usize::try_from(context).unwrap_or(usize::MAX))?;
        }
        let name = settle_device(device_name);
        let keep = storage.keep(&name)?;
        Ok(Engine::open_keeping(device(&name, threads, None)?, stored, keep)?)
    }

    /// Refuses a tokenizer whose ids the model does not have. A model may have more, as padded vocabularies do.
    pub fn check_vocabulary(&self, engine: &Engine, tokenizer: &Tokenizer, file: &Path) -> Result<()> {
        let (ids, rows) = (tokenizer.vocab_size(), engine.model().config().vocab_size);
        if ids <= rows {
            return Ok(());
        }
        let message = format!(
            "{} has {} tokens, but the vocabulary of {} has {}: use the model's own tokenizer",
            file.display(),
            grouped(ids as u64),
            self.weights.display(),
            grouped(rows as u64)
        );
        Err(Failure::new(Code::BadData, message))
    }

    /// The tokenizer of the model: the one asked for, else the one beside the weights, else the run's.
    pub fn tokenizer(&self, asked: Option<&Path>) -> Result<(Tokenizer, PathBuf)> {
        let beside = self.weights.join("tokenizer.json");
        let path = match (asked, &self.run) {
            (Some(asked), _) => asked.to_path_buf(),
            (None, Some(run)) if !beside.is_file() => run.tokenizer(),
            (None, _) => return Ok((tokenizer_of_folder(&self.weights)?, beside)),
        };
        Ok((Tokenizer::load(&path)?, path))
    }

    /// The configuration of the run it belongs to.
    pub fn config(&self) -> Result<Option<Config>> {
        self.run.as_ref().map(|run| Config::load(&run.config_path(), &[])).transpose()
    }
}
