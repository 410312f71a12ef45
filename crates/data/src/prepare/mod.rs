//! Preparing a data set: documents in, shards and a manifest out.
//!
//! One thread reads documents and gathers them into batches, `threads` threads encode, and the calling thread writes, so reading,
//! encoding and writing overlap. The number of batches on the way is bounded. Batches are written in the order in which they
//! were read: the bytes of the shards do not depend on the number of threads.
//!
//! **Splits.** A document goes to the validation split if a hash of the seed and its number falls below the share asked for. If by the
//! end none has, the last document goes there; if all have, the last one goes to the training split. A corpus of one document is
//! cut in two by its text: the share asked for is taken from its end, at a border between words, and only the second part
//! ends with the end-of-text token. A document is never cut otherwise, except that it may go on from one shard to the next.
//!
//! **Nothing half-done.** Shards are written into a hidden folder inside the output folder and moved out of it when all are complete;
//! the manifest comes last. A stop or an error removes that folder and leaves what was there before untouched.

mod pipeline;
mod staging;

use std::path::Path;
use std::sync::atomic::AtomicBool;

use ironmill_text::{Progress, Tokenizer};

use crate::dataset::Dataset;
use crate::documents::Inputs;
use crate::error::{Error, Result};
use crate::manifest::{FORMAT, MANIFEST_VERSION, Manifest, Settings, hex};
use staging::Staging;

/// How a data set is prepared. How its documents are read is decided by [`Inputs`].
#[derive(Clone, Debug, PartialEq)]
pub struct PrepareOptions {
    /// The share of documents for the validation split, from 0 to below 1.
    pub validation: f64,
    /// How many tokens a shard holds at most.
    pub shard_tokens: u64,
    /// How many threads encode. The result does not depend on it.
    pub threads: usize,
}

impl Default for PrepareOptions {
    fn default() -> PrepareOptions {
        PrepareOptions { validation: 0.005, shard_tokens: 100_000_000, threads: 1 }
    }
}

/// A prepared data set.
#[derive(Clone, Debug, PartialEq)]
pub struct Prepared {
    /// What was written, or found.
    pub manifest: Manifest,
    /// Whether the folder already held the result of the same inputs, settings and tokenizer, so that nothing was done.
    pub reused: bool,
}

/// Encodes all documents of the inputs and writes them to `out_dir`, which is created if need be.
///
/// If `out_dir` already holds the result of the same inputs (names, sizes and times), settings and tokenizer, nothing is done. Setting
/// `stop` ends the work soon with [`Error::Stopped`].
pub fn prepare(
    inputs: &Inputs,
    tokenizer: &Tokenizer,
    out_dir: &Path,
    options: &PrepareOptions,
    progress: &dyn Progress,
    stop: &AtomicBool,
) -> Result<Prepared> {
    check(options)?;
    let mut manifest = empty_manifest(inputs, tokenizer, options)?;
    if let Ok(dataset) = Dataset::open(out_dir)
        && dataset.manifest().fingerprint == manifest.fingerprint
    {
        return Ok(Prepared { manifest: dataset.manifest().clone(), reused: true });
    }
    let staging = Staging::create(out_dir)?;
    progress.start("prepare", Some(inputs.total_bytes()), "bytes");
    let encoded = pipeline::run(inputs, tokenizer, staging.path(), options, progress, stop);
    progress.finish();
    let encoded = encoded?;
    manifest.train = encoded.train;
    manifest.validation = encoded.validation;
    manifest.skipped_documents = encoded.skipped_documents;
    staging.commit(&manifest)?;
    Ok(Prepared { manifest, reused: false })
}

fn check(options: &PrepareOptions) -> Result<()> {
    if !(0.0..1.0).contains(&options.validation) {
        return Err(Error::BadSetting {
            name: "validation",
            value: options.validation.to_string(),
            advice: "give a share from 0 to below 1, such as 0.005".into(),
        });
    }
    for (name, value) in [("shard_tokens", options.shard_tokens), ("threads", options.threads as u64)] {
        if value == 0 {
            return Err(Error::BadSetting { name, value: "0".into(), advice: "give at least 1".into() });
        }
    }
    Ok(())
}

fn empty_manifest(inputs: &Inputs, tokenizer: &Tokenizer, options: &PrepareOptions) -> Result<Manifest> {
    let reading = inputs.options();
    let mut manifest = Manifest {
        format: FORMAT.into(),
        version: MANIFEST_VERSION,
        tokenizer_hash: hex(&tokenizer.hash()),
        vocab_size: tokenizer.vocab_size() as u64,
        end_of_text: tokenizer.end_of_text(),
        settings: Settings {
            validation: options.validation,
            shard_tokens: options.shard_tokens,
            document_separator: reading.document_separator.clone(),
            text_key: reading.text_key.clone(),
            on_bad_utf8: reading.on_bad_utf8.name().into(),
            sample: reading.sample,
            seed: reading.seed,
        },
        inputs: inputs.records(),
        fingerprint: String::new(),
        skipped_documents: 0,
        train: Default::default(),
        validation: Default::default(),
    };
    manifest.fingerprint = manifest.fingerprint_of_work()?;
    Ok(manifest)
}

#[cfg(test)]
mod tests;
