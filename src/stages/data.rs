//! Preparing a data set, with the tokenizer it was made with beside its shards.

use crate::failure::{Failure, Result};
use crate::show::Show;
use crate::show::numbers::{bytes, counted, grouped, hexadecimal};
use ironmill_data::manifest::TOKENIZER_NAME;
use ironmill_data::{Dataset, Inputs, Manifest, PrepareOptions, Split};
use ironmill_text::{Tokenizer, UNKNOWN, durable};
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// A prepared folder.
pub struct PreparedData {
    /// What is in it.
    pub manifest: Manifest,
    /// Whether it was there already.
    pub reused: bool,
    /// How many of its sections were.
    pub reused_sections: u64,
}

/// Prepares a data set unless the folder already holds the same one.
pub fn prepare(
    inputs: &Inputs,
    tokenizer: &Tokenizer,
    dir: &Path,
    options: &PrepareOptions,
    show: &Show,
    stop: &AtomicBool,
) -> Result<PreparedData> {
    let prepared = ironmill_data::prepare(inputs, tokenizer, dir, options, show, stop)?;
    if prepared.reused {
        write_tokenizer(dir, tokenizer)?;
    }
    if inputs.ignored_files() > 0 {
        show.note(&format!("{} files of unknown kinds were passed over", grouped(inputs.ignored_files())));
    }
    if prepared.manifest.skipped_documents > 0 {
        let skipped = grouped(prepared.manifest.skipped_documents);
        show.warn(&format!("{skipped} documents are not UTF-8 and were left out"));
    }
    if prepared.manifest.duplicate_documents > 0 {
        let dropped = grouped(prepared.manifest.duplicate_documents);
        show.note(&format!("{dropped} documents have the text of an earlier one and were left out"));
    }
    let ironmill_data::Prepared { manifest, reused, reused_sections } = prepared;
    if !reused && reused_sections > 0 {
        let (kept, all) = (grouped(reused_sections), grouped(manifest.sections.len() as u64));
        show.note(&format!("data: {kept} of {all} sections were there already and were kept"));
    }
    warn_missing_bytes(tokenizer, show);
    show_unknown(dir, tokenizer, show)?;
    Ok(PreparedData { manifest, reused, reused_sections })
}

/// Puts the tokenizer beside the shards, unless it is there.
pub fn write_tokenizer(dir: &Path, tokenizer: &Tokenizer) -> Result<()> {
    let path = dir.join(TOKENIZER_NAME);
    let json = tokenizer.to_json();
    if std::fs::read_to_string(&path).is_ok_and(|found| found == json) {
        return Ok(());
    }
    // A process that was killed here may have left half of one.
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with(&format!(".{TOKENIZER_NAME}.")) && name.ends_with(".partial") {
            let _ = std::fs::remove_file(entry.path());
        }
    }
    durable::write(&path, json.as_bytes()).map_err(|error| Failure::write(&path, &error))
}

/// Warns of bytes that text can have and the vocabulary has not: those that no UTF-8 text has are missing in many.
fn warn_missing_bytes(tokenizer: &Tokenizer, show: &Show) {
    let never_in_text = |byte: u8| matches!(byte, 0xc0 | 0xc1 | 0xf5..);
    let mut missing = tokenizer.missing_bytes();
    missing.retain(|&byte| !never_in_text(byte));
    if !missing.is_empty() {
        let (count, listed) = (counted(missing.len() as u64, "byte"), hexadecimal(&missing));
        show.warn(&format!(
            "data: the vocabulary has no token for {count} ({listed}); where the text has them, they are left out"
        ));
    }
}

/// Says how many tokens of a data set stand for something that the vocabulary does not have, if it can happen at all.
fn show_unknown(dir: &Path, tokenizer: &Tokenizer, show: &Show) -> Result<()> {
    let Some(unknown_id) = tokenizer.unknown_id() else { return Ok(()) };
    let dataset = Dataset::open(dir)?;
    let (mut unknown, mut total) = (0, 0);
    let mut buffer = vec![0; 1 << 16];
    for split in [Split::Train, Split::Validation] {
        let stream = dataset.split(split);
        let mut position = 0;
        while position < stream.tokens() {
            let count = (stream.tokens() - position).min(buffer.len() as u64);
            let ids = &mut buffer[..count as usize];
            stream.read(position, ids)?;
            unknown += ids.iter().filter(|&&id| id == unknown_id).count() as u64;
            position += count;
        }
        total += stream.tokens();
    }
    let share = unknown as f64 / total.max(1) as f64;
    let text = format!("data: {} tokens are {UNKNOWN}, {:.2} % of all", grouped(unknown), share * 100.0);
    if unknown > 0 {
        show.warn(&text)
    } else {
        show.detail(&text)
    }
    Ok(())
}

impl PreparedData {
    /// One sentence about it.
    pub fn summary(&self) -> String {
        let (train, validation) = (self.manifest.split(Split::Train), self.manifest.split(Split::Validation));
        let tokens = train.tokens + validation.tokens;
        let raw_bytes = train.raw_bytes + validation.raw_bytes;
        format!(
            "{}{} training and {} validation tokens from {} of text ({:.2} bytes a token)",
            if self.reused { "already prepared; " } else { "" },
            grouped(train.tokens),
            grouped(validation.tokens),
            bytes(raw_bytes),
            raw_bytes as f64 / tokens.max(1) as f64
        )
    }
}
