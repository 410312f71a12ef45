//! Preparing a data set: documents in, shards and a manifest out.
//!
//! Each of `threads` threads reads some text, encodes it and writes its tokens while they are in the cache of its core; one of
//! them reads at a time, one writes, and one more thread completes shards, so reading, encoding, writing and syncing overlap.
//! Buffers go round; their number is fixed, and so is the memory whatever the input: a document of more than 2 MiB is encoded in
//! parts. Batches are written in the order in which they were read ([turns]): the bytes of the shards do not depend on the
//! number of threads.
//!
//! **Documents.** Tokens of a document begin with what the vocabulary puts before a text, such as `<bos>` (see
//! [`Tokenizer::around`]), and end with the end-of-text token, where there are such tokens.
//!
//! **Splits.** A document goes to the validation split if a hash of the seed and its text (of a long one, its first 64 KiB) falls
//! below the share asked for, so copies of a document are on one side. If by the end none has, the last document goes there;
//! if all have, the last one goes to the training split. A corpus of one document is cut in two by its text: the share asked
//! for is taken from its end, at a border between words, and only the second part ends with the end-of-text token. So is the last
//! of a few long documents (of more than 64 KiB, and a tenth of all text or more), of which half the corpus might go to the
//! validation split otherwise. A document is never cut but then, except that it may go on from one shard to the next.
//!
//! **Sections.** The inputs are cut into [sections], runs of files of about 256 MiB, and no shard holds tokens of two. A section is
//! done again only if its own files changed; the shards of the others are kept. Where duplicates are dropped, a section
//! depends on all before it, too.
//!
//! **Nothing half-done, nothing done twice.** Shards are written into a hidden folder inside the output folder, and a journal there
//! says which are complete and which token of which document comes next ([journal]). Whatever ends the work (an error, a stop, a
//! kill), the next run goes on behind the last complete shard and writes the bytes that an uninterrupted run writes. When all are
//! complete they are moved out, the manifest last; a move that was cut off is finished first ([staging]).

mod duplicates;
mod journal;
mod pipeline;
mod sections;
mod staging;
mod tokens;
mod turns;

use std::path::Path;
use std::sync::atomic::AtomicBool;

use ironmill_text::durable::Disk;
use ironmill_text::{Progress, Silent, Tokenizer};

use crate::dataset::{Dataset, Split};
use crate::documents::Inputs;
use crate::error::{Error, Result};
use crate::manifest::{FORMAT, MANIFEST_VERSION, Manifest, SectionRecord, Settings, hex};
use duplicates::Seen;
use journal::{DoneSection, Journal};
use pipeline::{Pipeline, SIDE_BYTES};
use sections::{Section, Sides};
use staging::Staging;

/// How a data set is prepared. How its documents are read is decided by [`Inputs`].
#[derive(Clone, Debug)]
pub struct PrepareOptions {
    /// The share of documents for the validation split, from 0 to below 1.
    pub validation: f64,
    /// How many tokens a shard holds at most.
    pub shard_tokens: u64,
    /// Whether to leave out documents with the text of an earlier one. Documents of more than 2 MiB are always kept.
    pub drop_duplicates: bool,
    /// How many threads read, encode and write. The result does not depend on it.
    pub threads: usize,
    /// The disk that is written to.
    pub disk: Disk,
}

impl Default for PrepareOptions {
    fn default() -> PrepareOptions {
        PrepareOptions {
            validation: 0.005,
            shard_tokens: 100_000_000,
            drop_duplicates: false,
            threads: 1,
            disk: Disk::default(),
        }
    }
}

/// A prepared data set.
#[derive(Clone, Debug, PartialEq)]
pub struct Prepared {
    /// What was written, or found.
    pub manifest: Manifest,
    /// Whether the folder already held the result of the same inputs, settings and tokenizer, so that nothing was done.
    pub reused: bool,
    /// How many of its sections were complete before, because their files did not change or because an earlier run had got
    /// that far.
    pub reused_sections: u64,
}

/// Encodes all documents of the inputs and writes them to `out_dir`, which is created if need be.
///
/// If `out_dir` already holds the result of the same inputs (names, sizes and times), settings and tokenizer, nothing is done, and
/// only what changed is done again otherwise. Setting `stop` ends the work soon with [`Error::Stopped`].
pub fn prepare(
    inputs: &Inputs,
    tokenizer: &Tokenizer,
    out_dir: &Path,
    options: &PrepareOptions,
    progress: &dyn Progress,
    stop: &AtomicBool,
) -> Result<Prepared> {
    check(options)?;
    let tokenizer_json = tokenizer.to_json();
    let tokenizer_hash = Tokenizer::hash_of_json(&tokenizer_json);
    let mut manifest = empty_manifest(inputs, tokenizer, tokenizer_hash, options)?;
    if let Some(prepared) = find_prepared(out_dir, &manifest.fingerprint) {
        Staging::sweep(out_dir, &options.disk);
        return Ok(prepared);
    }
    let staging = Staging::open(out_dir, &options.disk)?;
    // Opening may have finished what was there all but for its last moves.
    if let Some(prepared) = find_prepared(out_dir, &manifest.fingerprint) {
        return Ok(prepared);
    }
    let journal = staging.journal()?;
    let mut work = Work {
        inputs,
        tokenizer,
        tokenizer_hash,
        options,
        progress,
        stop,
        settings: manifest.settings.clone(),
        old: Manifest::load(out_dir).ok(),
        staging: &staging,
        journal,
        reused_sections: 0,
    };
    progress.start("prepare", Some(inputs.total_bytes()), "bytes");
    let done = work.run();
    progress.finish();
    let reused_sections = work.reused_sections;
    let done = done?;
    let train = done.iter().map(|(_, section)| section.shards[0].len()).sum::<usize>();
    if train == 0 {
        return Err(inputs.empty());
    }
    for (section, done) in &done {
        manifest.skipped_documents += done.skipped_documents;
        manifest.duplicate_documents += done.duplicate_documents;
        manifest.sections.push(SectionRecord {
            fingerprint: section.fingerprint.clone(),
            inputs: section.sources.len() as u64,
            train_shards: done.shards[0].len() as u64,
            validation_shards: done.shards[1].len() as u64,
            skipped_documents: done.skipped_documents,
            duplicate_documents: done.duplicate_documents,
        });
    }
    for split in Split::ALL {
        let record = match split {
            Split::Train => &mut manifest.train,
            Split::Validation => &mut manifest.validation,
        };
        for (_, section) in &done {
            for shard in &section.shards[split as usize] {
                let file = staging::shard_name(split, record.shards.len());
                record.push_record(crate::manifest::ShardRecord { file, ..shard.clone() });
            }
        }
    }
    staging.commit(&manifest, &tokenizer_json)?;
    Ok(Prepared { manifest, reused: false, reused_sections })
}

/// The data set that is there, if it is the one that is wanted.
fn find_prepared(out_dir: &Path, fingerprint: &str) -> Option<Prepared> {
    let dataset = Dataset::open(out_dir).ok()?;
    let manifest = dataset.manifest().clone();
    let reused_sections = manifest.sections.len() as u64;
    (manifest.fingerprint == fingerprint).then_some(Prepared { manifest, reused: true, reused_sections })
}

/// What preparing a data set needs in every section.
struct Work<'a> {
    inputs: &'a Inputs,
    tokenizer: &'a Tokenizer,
    tokenizer_hash: [u8; 32],
    options: &'a PrepareOptions,
    progress: &'a dyn Progress,
    stop: &'a AtomicBool,
    settings: Settings,
    /// What the folder held before.
    old: Option<Manifest>,
    staging: &'a Staging,
    journal: Journal,
    reused_sections: u64,
}

impl Work<'_> {
    /// Prepares all sections, and one of them again if the splits ask for that.
    fn run(&mut self) -> Result<Vec<(Section, DoneSection)>> {
        let mut sections = sections::plan(self.inputs);
        if let Some(sides) = self.sides_known_before(&sections) {
            sections[0].sides = sides;
        }
        let mut done = self.pass(&mut sections, self.progress)?;
        if let Some((idx, sides)) = self.sides_known_after(&sections, &done) {
            sections[idx].sides = sides;
            done = self.pass(&mut sections, &Silent)?;
        }
        Ok(sections.into_iter().zip(done).collect())
    }

    fn pass(&mut self, sections: &mut [Section], progress: &dyn Progress) -> Result<Vec<DoneSection>> {
        let mut seen = self.options.drop_duplicates.then(|| Seen::new(self.staging.path(), DUPLICATES_BYTES));
        let (mut done, mut before) = (Vec::with_capacity(sections.len()), String::new());
        self.reused_sections = 0;
        for section in sections {
            // What is dropped depends on everything before it.
            let chained = if seen.is_some() { before.as_str() } else { "" };
            section.fingerprint =
                section.fingerprint(&self.settings, &self.tokenizer_hash, self.inputs, chained)?;
            before.clone_from(&section.fingerprint);
            done.push(self.section(section, seen.as_mut(), progress)?);
        }
        Ok(done)
    }

    /// The result of a section: found complete, kept from the data set that is there, or made.
    fn section(
        &mut self,
        section: &Section,
        seen: Option<&mut Seen>,
        progress: &dyn Progress,
    ) -> Result<DoneSection> {
        let fingerprint = &section.fingerprint;
        let started = self.journal.section(fingerprint, |shard| self.staging.has(shard));
        if started.end.is_none() {
            self.keep_old(fingerprint)?;
        }
        let started = self.journal.section(fingerprint, |shard| self.staging.has(shard));
        let pipeline = Pipeline {
            inputs: self.inputs,
            tokenizer: self.tokenizer,
            tokenizer_hash: self.tokenizer_hash,
            document_start: &self.settings.document_start,
            options: self.options,
            staging: self.staging,
            section,
            stop: self.stop,
            progress,
        };
        if let Some(done) = started.end.clone() {
            self.reused_sections += 1;
            match seen {
                Some(seen) => pipeline.remember_documents(seen)?,
                None => progress.advance(section.n_bytes),
            }
            return Ok(done);
        }
        let done = pipeline.run(&started, &mut self.journal, seen)?;
        self.inputs.check_unchanged(section.sources.clone())?;
        self.journal.end(fingerprint, &done)?;
        Ok(done)
    }

    /// Takes over the shards of a section that the data set in the folder has already.
    fn keep_old(&mut self, fingerprint: &str) -> Result<()> {
        let Some(old) = &self.old else { return Ok(()) };
        let (mut first_train, mut first_validation) = (0, 0);
        for section in &old.sections {
            let (train, validation) = (section.train_shards as usize, section.validation_shards as usize);
            if section.fingerprint == fingerprint {
                let train = &old.train.shards[first_train..first_train + train];
                let validation = &old.validation.shards[first_validation..first_validation + validation];
                let Some(shards) = self.staging.take_over(fingerprint, [train, validation])? else {
                    return Ok(());
                };
                let (skipped_documents, duplicate_documents) =
                    (section.skipped_documents, section.duplicate_documents);
                let done = DoneSection { shards, skipped_documents, duplicate_documents };
                return self.journal.end(fingerprint, &done);
            }
            first_train += train;
            first_validation += validation;
        }
        Ok(())
    }

    /// How a corpus that is surely one document is cut, if its length is known.
    fn sides_known_before(&self, sections: &[Section]) -> Option<Sides> {
        let [section] = sections else { return None };
        let bytes = self.inputs.only_document_bytes().filter(|_| self.options.validation > 0.0)?;
        debug_assert_eq!(section.sources.len(), 1);
        Some(Sides::cut(bytes, self.options.validation))
    }

    /// What has to change so that both splits have a document, and in which section.
    fn sides_known_after(&self, sections: &[Section], done: &[DoneSection]) -> Option<(usize, Sides)> {
        let documents = |split: Split| done.iter().map(|done| done.documents(split)).sum::<u64>();
        let [train, validation] = Split::ALL.map(documents);
        let is_decided = sections.iter().any(|section| section.sides != Sides::ByHash);
        if self.options.validation == 0.0 || is_decided || (train > 0 && validation > 0) {
            return None;
        }
        let idx = done.iter().rposition(|done| Split::ALL.iter().any(|&split| done.documents(split) > 0))?;
        let bytes =
            |done: &DoneSection| done.shards.iter().flatten().map(|shard| shard.raw_bytes).sum::<u64>();
        if train + validation == 1 {
            return Some((idx, Sides::cut(bytes(&done[idx]), self.options.validation)));
        }
        let all_bytes = done.iter().map(bytes).sum::<u64>();
        let long = bytes(&done[idx]) / done[idx].documents(Split::Train).max(1);
        if validation == 0 && long > SIDE_BYTES as u64 && long >= all_bytes / 10 {
            let wanted = (all_bytes as f64 * self.options.validation) as u64;
            return Some((idx, Sides::tail(bytes(&done[idx]), wanted)));
        }
        let document = done[idx].documents(Split::Train) + done[idx].documents(Split::Validation) - 1;
        let split = if train == 0 { Split::Train } else { Split::Validation };
        Some((idx, Sides::DocumentTo { document, split }))
    }
}

/// What the documents that were seen may take in memory.
const DUPLICATES_BYTES: usize = 64 << 20;

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

/// What every document begins with: what the makers of the vocabulary put before a text. Nothing where documents end with that
/// token anyway, so that it stands between them, and where a text has to be closed by another token than documents are.
fn document_start(tokenizer: &Tokenizer) -> &[u32] {
    let (before, after) = tokenizer.around();
    let end = tokenizer.end_of_text();
    let (end, is_closed) = (end.as_slice(), after.is_empty() || after == end.as_slice());
    if is_closed && before != end { before } else { &[] }
}

fn empty_manifest(
    inputs: &Inputs,
    tokenizer: &Tokenizer,
    tokenizer_hash: [u8; 32],
    options: &PrepareOptions,
) -> Result<Manifest> {
    let reading = inputs.options();
    let mut manifest = Manifest {
        format: FORMAT.into(),
        version: MANIFEST_VERSION,
        tokenizer_hash: hex(&tokenizer_hash),
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
            drop_duplicates: options.drop_duplicates,
            document_start: document_start(tokenizer).to_vec(),
        },
        inputs: inputs.records(),
        fingerprint: String::new(),
        skipped_documents: 0,
        duplicate_documents: 0,
        sections: Vec::new(),
        train: Default::default(),
        validation: Default::default(),
    };
    manifest.fingerprint = manifest.fingerprint_of_work()?;
    Ok(manifest)
}

#[cfg(test)]
mod tests;
