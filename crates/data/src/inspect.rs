//! Looking at a prepared data set: whether every bit is right, and what is inside.

use std::path::Path;

use ironmill_text::Progress;

use crate::dataset::{Dataset, Split};
use crate::error::Result;
use crate::manifest::Manifest;
use crate::order::{below, hash};

/// What [`verify`] looked at and found to be right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// How many shards were read.
    pub shards: u64,
    /// How many checksummed blocks they hold.
    pub blocks: u64,
    /// How many bytes they take on disk.
    pub bytes: u64,
    /// How many tokens they hold.
    pub tokens: u64,
    /// How many documents.
    pub documents: u64,
    /// The UTF-8 length of the documents.
    pub raw_bytes: u64,
}

/// Checks every checksum and count of a data set. The error names the first bad file and the offset in it.
pub fn verify(dir: &Path, progress: &dyn Progress) -> Result<VerifyReport> {
    let dataset = Dataset::open(dir)?;
    let shards = || Split::ALL.into_iter().flat_map(|split| dataset.shards(split));
    progress.start("verify", Some(shards().map(|shard| shard.file_bytes()).sum()), "bytes");
    let mut report = VerifyReport::default();
    let result = shards().try_for_each(|shard| {
        let header = shard.header();
        report.blocks += shard.check(&|bytes| progress.advance(bytes))?;
        report.shards += 1;
        report.bytes += shard.file_bytes();
        report.tokens += header.tokens;
        report.documents += header.documents;
        report.raw_bytes += header.raw_bytes;
        Ok(())
    });
    progress.finish();
    result.map(|()| report)
}

/// What a data set holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Its manifest: settings, inputs, counts and shards.
    pub manifest: Manifest,
    /// How many bytes its shards take on disk.
    pub bytes: u64,
    /// The beginnings of a few documents of each split.
    pub samples: Vec<TokenSample>,
}

/// The beginning of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenSample {
    /// Where it comes from.
    pub split: Split,
    /// Its first token's position in the split.
    pub position: u64,
    /// Its first tokens.
    pub tokens: Vec<u32>,
}

/// Says what a data set holds, with a few samples; always the same ones of the same data.
pub fn inspect(dir: &Path) -> Result<Summary> {
    let dataset = Dataset::open(dir)?;
    let shards = Split::ALL.into_iter().flat_map(|split| dataset.shards(split));
    let bytes = shards.map(|shard| shard.file_bytes()).sum();
    let mut samples = Vec::new();
    for split in Split::ALL {
        let documents = dataset.split(split).documents();
        let mut chosen: Vec<u64> = (0..SAMPLES_PER_SPLIT).map(|i| below(hash(&[i]), documents)).collect();
        chosen.sort_unstable();
        chosen.dedup();
        for document_idx in chosen {
            samples.extend(document_start(&dataset, split, document_idx)?);
        }
    }
    Ok(Summary { manifest: dataset.manifest().clone(), bytes, samples })
}

/// The beginning of a document, as far as it lies in the shard where it starts.
fn document_start(dataset: &Dataset, split: Split, document_idx: u64) -> Result<Option<TokenSample>> {
    let mut documents_before = 0;
    let mut tokens_before = 0;
    for shard in dataset.shards(split) {
        let header = shard.header();
        let inside = document_idx - documents_before;
        if inside < header.documents {
            let mut ends = [0, header.tokens];
            let known = if inside + 1 < header.documents { 2 } else { 1 };
            shard.document_offsets(inside, &mut ends[..known])?;
            let mut tokens = vec![0; ends[1].saturating_sub(ends[0]).min(SAMPLE_TOKENS) as usize];
            shard.read(ends[0], &mut tokens)?;
            return Ok(Some(TokenSample { split, position: tokens_before + ends[0], tokens }));
        }
        documents_before += header.documents;
        tokens_before += header.tokens;
    }
    Ok(None)
}

const SAMPLES_PER_SPLIT: u64 = 3;
const SAMPLE_TOKENS: u64 = 64;

#[cfg(test)]
mod tests;
