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
    progress.start(
        "verify",
        Some(shards().map(|shard| shard.file_bytes()).sum()),
        "bytes",
    );
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
    let mut samples = Vec::new();
    let mut bytes = 0;
    for split in Split::ALL {
        let mut start = 0;
        let shards = dataset.shards(split);
        for (shard_idx, shard) in shards.iter().enumerate() {
            bytes += shard.file_bytes();
            let header = shard.header();
            // The samples are spread over the shards: so many in this one.
            let share = |idx: usize| SAMPLES_PER_SPLIT * idx / shards.len();
            for sample_idx in share(shard_idx)..share(shard_idx + 1) {
                let mut tokens = vec![0; SAMPLE_TOKENS];
                let mut ends = [0, header.tokens];
                if header.documents > 0 {
                    let document = below(hash(&[sample_idx as u64, shard_idx as u64]), header.documents);
                    let known = if document + 1 < header.documents { 2 } else { 1 };
                    shard.document_offsets(document, &mut ends[..known])?;
                }
                let [first, end] = ends;
                tokens.truncate(usize::try_from(end - first).unwrap_or(usize::MAX));
                shard.read(first, &mut tokens)?;
                samples.push(TokenSample {
                    split,
                    position: start + first,
                    tokens,
                });
            }
            start += header.tokens;
        }
    }
    samples.dedup();
    Ok(Summary {
        manifest: dataset.manifest().clone(),
        bytes,
        samples,
    })
}

const SAMPLES_PER_SPLIT: usize = 3;
const SAMPLE_TOKENS: usize = 64;

#[cfg(test)]
mod tests;
