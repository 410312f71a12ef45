//! Documents in, shards out; manifest, order, loader; the file containers.

pub mod builtin;
mod dataset;
pub mod documents;
mod error;
mod inspect;
mod loader;
pub mod manifest;
pub mod order;
mod positioned;
mod prepare;
pub mod safetensors;
pub mod shard;
mod size;
pub mod yardsticks;

pub use dataset::{Dataset, Split, TokenStream};
pub use documents::{BadUtf8, Document, Documents, InputOptions, Inputs};
pub use error::{Class, Error, Result};
pub use inspect::{Summary, TokenSample, VerifyReport, inspect, verify};
pub use ironmill_text::{Progress, Silent};
pub use loader::Loader;
pub use manifest::Manifest;
pub use order::{Order, Sampler};
pub use prepare::{PrepareOptions, Prepared, prepare};
pub use size::parse_size;
pub use yardsticks::{Yardsticks, ngram_yardsticks};
