//! Documents in, shards out; manifest, order, loader; the file containers.
//!
//! ```
//! use std::sync::atomic::AtomicBool;
//!
//! use ironmill_data::{
//!     Dataset, InputOptions, Inputs, Loader, PrepareOptions, Sampler, Silent, Split, ngram_yardsticks, prepare,
//!     verify,
//! };
//! use ironmill_text::{BpeOptions, Pattern, PieceCounts, train_bpe};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let out = folder.path().join("data");
//! // Inputs are files, folders, patterns such as "texts/*.jsonl.zst", or a built-in corpus.
//! let inputs = Inputs::from_specs(&["builtin:stories:100KB".into()], &InputOptions::default())?;
//!
//! // Documents stream into a tokenizer …
//! let special = vec!["<|endoftext|>".to_owned()];
//! let mut counts = PieceCounts::new(&Pattern::Gpt2, &special)?;
//! for document in inputs.documents() {
//!     counts.add_document(document?.text.as_bytes())?;
//! }
//! let (tokenizer, _) = train_bpe(&counts, &BpeOptions { special, ..BpeOptions::new(512) }, &Silent)?;
//!
//! // … and, encoded by it, into shards and a manifest.
//! let options = PrepareOptions { validation: 0.1, threads: 2, ..PrepareOptions::default() };
//! prepare(&inputs, &tokenizer, &out, &options, &Silent, &AtomicBool::new(false))?;
//! verify(&out, &Silent)?; // Every checksum and count.
//!
//! // A loader fills batches; sample 1000 has the same tokens in any batch.
//! let dataset = Dataset::open(&out)?;
//! dataset.check_tokenizer(&tokenizer.hash())?;
//! let (train, validation) = (dataset.split(Split::Train), dataset.split(Split::Validation));
//! let loader = Loader::new(train.clone(), Sampler::Shuffled, 1, 64, 8)?;
//! let mut batch = loader.batch();
//! loader.fill(1_000, &mut batch)?;
//! assert_eq!(batch.ids[1..64], batch.targets[..63]);
//!
//! // What the loss of a model has to beat, in nats a token.
//! let bar = ngram_yardsticks(train, validation, tokenizer.vocab_size() as u64)?;
//! assert!(bar.bigram < bar.unigram && bar.unigram < bar.uniform);
//! # Ok(())
//! # }
//! ```
//!
//! - [`documents`]: what people have, as one stream of documents in a fixed order
//! - [`prepare()`]: encode in parallel, write [`shard`]s in input order and the [`manifest`] last
//! - [`Dataset`], [`TokenStream`]: positioned reads across shards, each block checked when it is first touched
//! - [`order`], [`Loader`]: samples as pure functions of (seed, index), batches without allocation; windows of tokens that
//!   are [random](Sampler::Random), [shuffled](Sampler::Shuffled) or [sequential](Sampler::Sequential), documents that are
//!   [packed](Sampler::Packed) or [bucketed](Sampler::Bucketed) by length
//! - [`TokenCache`]: questions in their templates, made into tokens once
//! - [`yardsticks`]: cross-entropies of unigram and bigram counts
//! - [`convert`]: token files of nanoGPT, llm.c and Megatron, written and read
//! - [`safetensors`]: the container of model weights and optimiser state
//! - [`gguf`]: the container of llama.cpp's models, read with and without quantisation
//! - [`llmc`]: the checkpoints of llm.c
//! - [`llama2c`]: the models of llama2.c
//! - [`builtin`]: a seeded corpus of small stories
//!
//! Nothing here prints, reads the environment or holds global state; [`Error::class`] tells a program its exit code.

mod ahead;
mod batch;
mod buckets;
pub mod builtin;
pub mod convert;
mod dataset;
pub mod documents;
mod error;
pub mod gguf;
mod inspect;
pub mod llama2c;
pub mod llmc;
mod loader;
pub mod manifest;
pub mod order;
mod positioned;
mod prepare;
pub mod safetensors;
pub mod shard;
mod size;
#[cfg(test)]
mod testing;
mod token_cache;
pub mod yardsticks;

pub use batch::{Batch, IGNORED};
pub use convert::{Converted, TokenFormat, export, import};
pub use dataset::{Dataset, Split, TokenStream};
pub use documents::{BadUtf8, Chunk, Document, Documents, HELD_SHARE, InputOptions, Inputs, TextChunks};
pub use error::{Class, Error, Result};
pub use inspect::{Summary, TokenSample, VerifyReport, inspect, verify};
pub use ironmill_text::{Progress, Silent, durable};
pub use loader::Loader;
pub use manifest::Manifest;
pub use order::{Order, Sampler};
pub use prepare::{PrepareOptions, Prepared, prepare};
pub use size::parse_size;
pub use token_cache::TokenCache;
pub use yardsticks::{Yardsticks, ngram_yardsticks};
