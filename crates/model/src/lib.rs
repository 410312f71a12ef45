//! Architectures, objectives, optimisers, trainer, checkpoints and generation.
//!
//! This room speaks token ids, never text, and knows no device: it writes programs ([`Model`]), runs them on whatever
//! device it is given ([`Engine`]), trains ([`Trainer`]) and keeps what was learnt ([`checkpoint`]).
//!
//! ```
//! use std::ops::ControlFlow;
//! use ironmill_compute::Cpu;
//! use ironmill_data::{Loader, Sampler, TokenStream};
//! use ironmill_graph::Passes;
//! use ironmill_model::{Decay, GenerateOptions, Model, ModelConfig, Sampling, Schedule, TrainOptions, Trainer};
//!
//! let model = Model::new(ModelConfig {
//!     vocab_size: 8, context: 8, layers: 1, heads: 2, width: 16, dropout: 0.0, bias: true, tied: true, norm_eps: 1e-5,
//! })?;
//! let values = model.initial_values(1);
//! let schedule = Schedule { peak: 1e-2, floor: 1e-3, warmup: 5, steps: 60, decay: Decay::Cosine };
//! let options = TrainOptions {
//!     seed: 1, context: 8, rows: 8, micro_rows: 4, schedule, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1, grad_clip: 1.0,
//!     passes: Passes::ALL,
//! };
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

pub mod checkpoint;
mod config;
mod engine;
mod error;
mod generate;
mod gpt2;
mod sampling;
mod train;
mod weights;

pub use config::ModelConfig;
pub use engine::{Engine, Evaluation};
pub use error::{Error, Result};
pub use generate::{Finish, GenerateOptions, Generated, window_start};
pub use gpt2::{Attend, Initial, Model};
pub use sampling::Sampling;
pub use train::{Batch, Decay, MemoryPlan, Schedule, StepReport, TrainOptions, Trainer};
pub use weights::{load_weights, save_weights};
