//! Raw text to a trained language model: the rooms of Ironmill behind one door.
//!
//! ```
//! use ironmill::compute::Cpu;
//! use ironmill::data::{Dataset, InputOptions, Inputs, Loader, PrepareOptions, Sampler, Split, prepare};
//! use ironmill::model::{
//!     Architecture, Decay, GenerateOptions, Model, ModelConfig, Sampling, Schedule, TrainOptions, Trainer,
//! };
//! use ironmill::text::{BpeOptions, Pattern, PieceCounts, Silent, train_bpe};
//! use std::{ops::ControlFlow, sync::atomic::AtomicBool};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let data = folder.path().join("data");
//! // Text to a tokenizer …
//! let inputs = Inputs::from_specs(&["builtin:stories:50KB".into()], &InputOptions::default())?;
//! let mut counts = PieceCounts::new(&Pattern::Gpt2, &[])?;
//! for document in inputs.documents() {
//!     counts.add_document(document?.text.as_bytes())?;
//! }
//! let (tokenizer, _) = train_bpe(&counts, &BpeOptions::new(300), &Silent)?;
//!
//! // … to shards, to batches …
//! prepare(&inputs, &tokenizer, &data, &PrepareOptions::default(), &Silent, &AtomicBool::new(false))?;
//! let tokens = Dataset::open(&data)?.split(Split::Train).clone();
//! let loader = Loader::new(tokens, Sampler::Shuffled, 1, 16, 4)?;
//!
//! // … to a model in training …
//! let sizes = ModelConfig { vocab_size: 300, context: 16, ..ModelConfig::new(Architecture::Gpt2, 1, 2, 16) };
//! let model = Model::new(sizes)?;
//! let schedule = Schedule { peak: 1e-2, floor: 1e-3, warmup: 2, steps: 10, decay: Decay::Cosine };
//! let options = TrainOptions::new(4, 16, schedule);
//! let values = model.initial_values(1);
//! let mut trainer = Trainer::new(Box::new(Cpu::new(1)?), model, options, &values)?;
//! for _ in 0..10 {
//!     trainer.step(&loader)?;
//! }
//!
//! // … to text.
//! let mut prompt = Vec::new();
//! tokenizer.encode(b"Once there was", &mut prompt)?;
//! let options = GenerateOptions { sampling: Sampling::GREEDY, max_tokens: 5, stop: vec![] };
//! let made = trainer.engine().generate(&[prompt], &options, &mut |_, _| ControlFlow::Continue(()))?;
//! assert!(!tokenizer.decode(&made[0].ids)?.is_empty());
//! # Ok(())
//! # }
//! ```
//!
//! - [`text`]: pre-tokenise, count, train BPE, encode, decode
//! - [`data`]: documents in, shards out; manifest, order, loader
//! - [`compute`]: buffers, kernels and the backends that run them
//! - [`graph`]: programs of ops, their derivatives, their memory
//! - [`model`]: architectures, trainer, checkpoints, generation

pub use ironmill_compute as compute;
pub use ironmill_data as data;
pub use ironmill_graph as graph;
pub use ironmill_model as model;
pub use ironmill_text as text;
