//! Runs of inputs that are prepared each by itself.
//!
//! Where a section ends is decided by each file alone: after one of `n` bytes with the probability `n / 256 MiB`, drawn from a hash of
//! its name, and surely after one that large. So a file that is added, removed or changed moves no border but its own.

use std::ops::Range;

use xxhash_rust::xxh3::xxh3_64;

use crate::dataset::Split;
use crate::documents::Inputs;
use crate::error::{Error, Result};
use crate::manifest::{MANIFEST_NAME, MANIFEST_VERSION, Settings, hex};
use crate::order::{PURPOSE_SECTIONS, hash};

/// Some consecutive inputs.
pub(super) struct Section {
    /// Which.
    pub(super) sources: Range<usize>,
    /// Their size on disk.
    pub(super) n_bytes: u64,
    /// How its documents find their split.
    pub(super) sides: Sides,
    /// A hash of all that decides what its shards hold; found when it is its turn.
    pub(super) fingerprint: String,
}

/// How documents find their split.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Sides {
    /// By the hash of their text.
    ByHash,
    /// So, but for one of them.
    DocumentTo { document: u64, split: Split },
    /// One document goes to both: the validation split begins with the first border behind this byte of the section's text, and
    /// has all documents that follow.
    Cut { at: u64 },
}

impl Sides {
    /// The cut of an only document of so many bytes.
    pub(super) fn cut(n_bytes: u64, validation: f64) -> Sides {
        let at = (n_bytes as f64 * (1.0 - validation)) as u64;
        Sides::Cut { at: at.min(n_bytes.saturating_sub(1)) }
    }

    /// The cut that leaves the last `wanted` bytes of a section of so many to the validation split.
    pub(super) fn tail(n_bytes: u64, wanted: u64) -> Sides {
        Sides::Cut { at: n_bytes.saturating_sub(wanted.max(1)) }
    }
}

/// The sections of all inputs.
pub(super) fn plan(inputs: &Inputs) -> Vec<Section> {
    let records = inputs.records();
    let (mut sections, mut start, mut n_bytes) = (Vec::new(), 0, 0u64);
    for (idx, record) in records.iter().enumerate() {
        n_bytes += record.bytes;
        let draw = hash(&[PURPOSE_SECTIONS, xxh3_64(record.name.as_bytes())]);
        let share = u128::from(record.bytes) << 64;
        let is_border = u128::from(draw) * u128::from(inputs.section_bytes()) < share;
        if is_border || idx + 1 == records.len() {
            let sources = start..idx + 1;
            let (sides, fingerprint) = (Sides::ByHash, String::new());
            sections.push(Section { sources, n_bytes, sides, fingerprint });
            (start, n_bytes) = (idx + 1, 0);
        }
    }
    sections
}

impl Section {
    /// The hash of all that decides what its shards hold: its inputs, the settings, the tokenizer, and what comes `before` it if
    /// that matters.
    pub(super) fn fingerprint(
        &self,
        settings: &Settings,
        tokenizer_hash: &[u8; 32],
        inputs: &Inputs,
        before: &str,
    ) -> Result<String> {
        // How many files were chosen does not matter once they are chosen.
        let settings = Settings { sample: None, ..settings.clone() };
        let inputs = &inputs.records()[self.sources.clone()];
        let sides = format!("{:?}", self.sides);
        let work = (MANIFEST_VERSION, hex(tokenizer_hash), settings, inputs, sides, before);
        let json = serde_json::to_vec(&work)
            .map_err(|error| Error::BadManifest { path: MANIFEST_NAME.into(), reason: error.to_string() })?;
        Ok(blake3::hash(&json).to_hex().to_string())
    }
}
