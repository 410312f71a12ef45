//! Architectures, objectives, optimisers, trainer, checkpoints and generation.
//!
//! This room speaks token ids, never text, and knows no device: it writes programs ([`Model`]), runs them on whatever
//! device it is given ([`Engine`]), trains ([`Trainer`]) and keeps what was learnt ([`checkpoint`]).
//!
//! ```
//! use std::ops::ControlFlow;
//! use ironmill_compute::Cpu;
//! use ironmill_data::{Loader, Sampler, TokenStream};
//! use ironmill_model::{
//!     Architecture, Decay, GenerateOptions, Model, ModelConfig, Sampling, Schedule, TrainOptions, Trainer,
//! };
//!
//! let sizes = ModelConfig { vocab_size: 8, context: 8, ..ModelConfig::new(Architecture::Llama, 1, 2, 16) };
//! let model = Model::new(sizes)?;
//! let values = model.initial_values(1);
//! let schedule = Schedule { peak: 1e-2, floor: 1e-3, warmup: 5, steps: 60, decay: Decay::Cosine };
//! let options = TrainOptions { micro_rows: 4, ..TrainOptions::new(8, 8, schedule) };
//! let mut trainer = Trainer::new(Box::new(Cpu::new(1)?), model, options, &values)?;
//!
//! // Count upwards, round and round: after a few steps the model can go on.
//! let tokens = TokenStream::from_tokens((0..4000).map(|i| i % 8).collect(), 4000);
//! let loader = Loader::new(tokens, Sampler::Random, 1, 8, 8)?;
//! for _ in 0..60 {
//!     trainer.step(&loader)?;
//! }
//! let options = GenerateOptions { sampling: Sampling::GREEDY, max_tokens: 5, stop: vec![] };
//! let samples = trainer.engine().generate(&[vec![2, 3]], &options, &mut |_, _| ControlFlow::Continue(()))?;
//! assert_eq!(samples[0].ids, [4, 5, 6, 7, 0]);
//! # Ok::<(), ironmill_model::Error>(())
//! ```

mod architecture;
pub mod checkpoint;
mod config;
mod embed;
mod engine;
mod error;
mod evaluation;
mod generate;
mod gguf;
mod hugging_face;
mod llama2c;
mod llmc;
mod objective;
mod sampling;
mod score;
mod stored;
mod train;
mod weights;

pub use architecture::{Attend, Buffers, Initial, Model, Tokens, Working};
pub use config::{Architecture, Gemma, Mlp, ModelConfig, RopeScaling};
pub use embed::Pooling;
pub use engine::{Engine, Evaluation, Keep};
pub use error::{Error, Result};
pub use evaluation::EvaluationSet;
pub use generate::{
    Finish, GenerateOptions, Generated, Generator, GeneratorCounts, GeneratorOptions, Refill, Request,
    RequestId, Token, Window,
};
pub use gguf::save_gguf;
pub use hugging_face::config_json;
pub use ironmill_compute::Verdict;
pub use objective::Objective;
pub use sampling::{LogProbability, Place, Sampler, Sampling};
pub use score::Continuation;
pub use stored::Stored;
pub use train::{
    Alarm, Batch, Betas, Decay, Fault, GuardOptions, GuardState, KernelTime, LossScale, MemoryPlan,
    OptimizerOptions, ParameterGroup, PartNorms, Plateau, Schedule, StepParts, StepProfile, StepReport,
    TrainOptions, Trainer,
};
pub use weights::{copy_weights, save_weights};
