//! Token files of other programs: written from a data set, and read into one.
//!
//! | form | files | layout, all little-endian |
//! |---|---|---|
//! | nanoGPT | `train.bin`, `val.bin` | the tokens as `u16`, nothing else |
//! | llm.c | `train_000000.bin` …, `val_000000.bin` … | 256 `i32`: magic, version, token count, zeros; then the tokens: `20240520`, 1 and `u16`, or `20240801`, 7 and `u32` |
//! | Megatron | `train.bin` + `train.idx`, `val.bin` + `val.idx` | the tokens as `u16` or `i32`; the index of documents is described in `megatron.rs` |
//!
//! Tokens stay what they are and where they are. Only Megatron's files know documents; in the others a document ends with every
//! end-of-text token, if the tokenizer has one. They carry neither checksums nor the tokenizer, so whoever reads them has to name
//! it, and every token is compared with its vocabulary.

mod megatron;
mod plain;

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use ironmill_text::durable::StagedFile;
use ironmill_text::{Progress, Tokenizer};

use crate::dataset::{Dataset, Split};
use crate::error::{Error, Result};
use crate::manifest::{FORMAT, MANIFEST_NAME, MANIFEST_VERSION, Manifest, Settings, SplitRecord, hex};
use crate::shard::ShardWriter;

/// Whose files they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TokenFormat {
    /// nanoGPT's raw tokens.
    NanoGpt,
    /// llm.c's numbered files with a header.
    LlmC,
    /// Megatron-LM's tokens with an index of documents.
    Megatron,
}

/// What was written or read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Converted {
    /// The files of the other program.
    pub files: Vec<PathBuf>,
    /// How many tokens they hold.
    pub tokens: u64,
    /// How many documents.
    pub documents: u64,
}

/// The name of a split in files of other programs.
fn name_of(split: Split) -> &'static str {
    match split {
        Split::Train => "train",
        Split::Validation => "val",
    }
}

/// Writes the tokens of the data set in `dir` as files of another program into the folder `out`.
pub fn export(dir: &Path, format: TokenFormat, out: &Path, progress: &dyn Progress) -> Result<Converted> {
    let dataset = Dataset::open(dir)?;
    if dataset.manifest().vocab_size > 1 << 16 && format == TokenFormat::NanoGpt {
        return Err(Error::BadSetting {
            name: "to",
            value: "nanogpt".into(),
            advice: format!(
                "its tokens have 16 bits and the vocabulary has {}; use llmc or megatron",
                dataset.manifest().vocab_size
            ),
        });
    }
    fs::create_dir_all(out).map_err(Error::write(out))?;
    let tokens = |split| dataset.split(split).tokens();
    progress.start("convert", Some(Split::ALL.into_iter().map(tokens).sum()), "tokens");
    let mut converted = Converted::default();
    let result = Split::ALL.into_iter().filter(|&split| tokens(split) > 0).try_for_each(|split| {
        converted.tokens += tokens(split);
        converted.documents += dataset.split(split).documents();
        match format {
            TokenFormat::NanoGpt => plain::export_nanogpt(&dataset, split, out, progress, &mut converted),
            TokenFormat::LlmC => plain::export_llmc(&dataset, split, out, progress, &mut converted),
            TokenFormat::Megatron => megatron::export(&dataset, split, out, progress, &mut converted),
        }
    });
    progress.finish();
    result.map(|()| converted)
}

/// Reads files of another program at `path`, a file or a folder, into a data set in the folder `out`.
///
/// Of a folder the files whose names begin with `val` (or contain `_val`) are the validation split, all others the training
/// split.
pub fn import(
    path: &Path,
    format: TokenFormat,
    tokenizer: &Tokenizer,
    out: &Path,
    shard_tokens: u64,
    progress: &dyn Progress,
) -> Result<Converted> {
    if out.join(MANIFEST_NAME).exists() {
        return Err(Error::AlreadyADataset { path: out.to_path_buf() });
    }
    let files = token_files(path)?;
    fs::create_dir_all(out).map_err(Error::write(out))?;
    let sizes = files.iter().map(|(_, file)| fs::metadata(file).map_or(0, |found| found.len())).sum();
    progress.start("convert", Some(sizes), "bytes");
    let mut import = Import::new(tokenizer, out, shard_tokens, progress);
    let result = files.iter().try_for_each(|(split, file)| {
        import.split = *split;
        match format {
            TokenFormat::NanoGpt => plain::import_nanogpt(file, &mut import),
            TokenFormat::LlmC => plain::import_llmc(file, &mut import),
            TokenFormat::Megatron => megatron::import(file, &mut import),
        }
    });
    progress.finish();
    result.and_then(|()| import.finish(path, files))
}

/// The token files at a path, in order, and the split of each.
fn token_files(path: &Path) -> Result<Vec<(Split, PathBuf)>> {
    if !path.is_dir() {
        let with_ending = path.with_extension("bin");
        let file = if path.is_file() { path } else { &with_ending };
        return match file.is_file() {
            true => Ok(vec![(Split::Train, file.to_path_buf())]),
            false => Err(Error::MissingInput { path: path.display().to_string() }),
        };
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path).map_err(Error::read(path))? {
        let file = entry.map_err(Error::read(path))?.path();
        if file.extension().is_some_and(|extension| extension == "bin") && file.is_file() {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            let is_validation = name.starts_with("val") || name.contains("_val");
            files.push((if is_validation { Split::Validation } else { Split::Train }, file.clone()));
        }
    }
    files.sort_by(|a, b| a.1.cmp(&b.1));
    if files.is_empty() {
        Err(Error::NoMatch { spec: path.join("*.bin").display().to_string() })
    } else {
        Ok(files)
    }
}

/// A data set being made of foreign tokens.
struct Import<'a> {
    tokenizer: &'a Tokenizer,
    tokenizer_hash: [u8; 32],
    out: &'a Path,
    shard_tokens: u64,
    progress: &'a dyn Progress,
    split: Split,
    open: [Option<ShardWriter>; 2],
    records: [SplitRecord; 2],
    /// Whether the next token of a split begins a document.
    begins: [bool; 2],
    ends_document: Option<u32>,
}

impl<'a> Import<'a> {
    fn new(
        tokenizer: &'a Tokenizer,
        out: &'a Path,
        shard_tokens: u64,
        progress: &'a dyn Progress,
    ) -> Import<'a> {
        Import {
            tokenizer,
            tokenizer_hash: tokenizer.hash(),
            out,
            shard_tokens,
            progress,
            split: Split::Train,
            open: [None, None],
            records: Default::default(),
            begins: [true, true],
            ends_document: tokenizer.end_of_text(),
        }
    }

    /// Appends tokens, of which each end-of-text token ends a document.
    fn push_by_ends(&mut self, tokens: &[u32]) -> Result<()> {
        let end = self.ends_document;
        for document in tokens.split_inclusive(|&token| Some(token) == end) {
            self.push(document)?;
            self.begins[self.split as usize] = document.last().copied() == end && end.is_some();
        }
        Ok(())
    }

    /// Says that the next token begins a document.
    fn begin_document(&mut self) {
        self.begins[self.split as usize] = true;
    }

    /// Appends tokens of one document.
    fn push(&mut self, tokens: &[u32]) -> Result<()> {
        let idx = self.split as usize;
        let mut rest = tokens;
        while !rest.is_empty() {
            if self.open[idx].as_ref().is_some_and(|writer| writer.tokens() >= self.shard_tokens) {
                self.close(self.split)?;
            }
            let (shard_tokens, is_new) = (self.shard_tokens, std::mem::take(&mut self.begins[idx]));
            let writer = match &mut self.open[idx] {
                Some(writer) => writer,
                none => {
                    let path = self.out.join(shard_name(self.split, self.records[idx].shards.len()));
                    let vocab_size = self.tokenizer.vocab_size() as u64;
                    none.insert(ShardWriter::create(&path, self.tokenizer_hash, vocab_size)?)
                }
            };
            let room = usize::try_from(shard_tokens - writer.tokens()).unwrap_or(usize::MAX);
            let (now, later) = rest.split_at(room.min(rest.len()));
            // What text the tokens stand for is known token by token; those that only mark something stand for none.
            let length = |&token: &u32| self.tokenizer.token_bytes(token).map_or(0, <[u8]>::len) as u64;
            let is_text = |token: &&u32| Some(**token) != self.ends_document;
            let raw_bytes = now.iter().filter(is_text).map(length).sum();
            if is_new {
                writer.start_document(raw_bytes)
            } else {
                writer.continue_document(raw_bytes)
            }
            writer.push(now)?;
            rest = later;
        }
        Ok(())
    }

    fn close(&mut self, split: Split) -> Result<()> {
        let idx = split as usize;
        if let Some(writer) = self.open[idx].take() {
            let name = shard_name(split, self.records[idx].shards.len());
            self.records[idx].push(name, &writer.finish()?);
        }
        Ok(())
    }

    fn finish(mut self, path: &Path, files: Vec<(Split, PathBuf)>) -> Result<Converted> {
        for split in Split::ALL {
            self.close(split)?;
        }
        let [train, validation] = self.records;
        if train.tokens + validation.tokens == 0 {
            return Err(Error::EmptyCorpus { inputs: path.display().to_string() });
        }
        let (tokens, documents) = (train.tokens + validation.tokens, train.documents + validation.documents);
        let mut manifest = Manifest {
            format: FORMAT.into(),
            version: MANIFEST_VERSION,
            tokenizer_hash: hex(&self.tokenizer_hash),
            vocab_size: self.tokenizer.vocab_size() as u64,
            end_of_text: self.tokenizer.end_of_text(),
            settings: Settings {
                validation: validation.documents as f64 / documents.max(1) as f64,
                shard_tokens: self.shard_tokens,
                document_separator: None,
                text_key: String::new(),
                on_bad_utf8: "error".into(),
                sample: None,
                seed: 0,
                drop_duplicates: false,
                // Whatever they begin with was there.
                document_start: Vec::new(),
            },
            inputs: Vec::new(),
            fingerprint: String::new(),
            skipped_documents: 0,
            duplicate_documents: 0,
            sections: Vec::new(),
            train,
            validation,
        };
        for (_, file) in &files {
            manifest.inputs.push(crate::documents::record(file)?);
        }
        manifest.fingerprint = manifest.fingerprint_of_work()?;
        manifest.save(self.out)?;
        Ok(Converted { files: files.into_iter().map(|(_, file)| file).collect(), tokens, documents })
    }
}

fn shard_name(split: Split, shard_idx: usize) -> String {
    format!("{}-{shard_idx:05}.shard", split.name())
}

/// How many tokens are on the way at once.
const TOKENS_AT_ONCE: usize = 1 << 16;

/// Writes a file of a header and a range of a split's tokens, each in so many bytes.
fn write_tokens(
    dataset: &Dataset,
    split: Split,
    range: std::ops::Range<u64>,
    width: usize,
    header: &[u8],
    path: &Path,
    progress: &dyn Progress,
) -> Result<()> {
    let mut file = StagedFile::create(path).map_err(Error::write(path))?;
    file.write_all(header).map_err(Error::write(path))?;
    let (mut tokens, mut bytes) = (vec![0; TOKENS_AT_ONCE], Vec::with_capacity(TOKENS_AT_ONCE * width));
    let mut position = range.start;
    while position < range.end {
        let count = (range.end - position).min(TOKENS_AT_ONCE as u64) as usize;
        dataset.split(split).read(position, &mut tokens[..count])?;
        bytes.clear();
        bytes.extend(tokens[..count].iter().flat_map(|token| token.to_le_bytes().into_iter().take(width)));
        file.write_all(&bytes).map_err(Error::write(path))?;
        position += count as u64;
        progress.advance(count as u64);
    }
    file.commit().map_err(Error::write(path))
}

/// Tokens of a foreign file, some at a time.
struct TokenReader<'a, R> {
    reader: R,
    path: &'a Path,
    width: usize,
    vocab_size: u64,
    /// Where in the file the next token lies.
    offset: u64,
    bytes: Vec<u8>,
    tokens: Vec<u32>,
}

impl<'a, R: Read> TokenReader<'a, R> {
    fn new(reader: R, path: &'a Path, width: usize, vocab_size: u64, offset: u64) -> TokenReader<'a, R> {
        TokenReader { reader, path, width, vocab_size, offset, bytes: Vec::new(), tokens: Vec::new() }
    }

    /// The next `count` tokens at most; fewer at the end of the file.
    fn read(&mut self, count: usize) -> Result<&[u32]> {
        self.bytes.clear();
        let limit = (count.min(TOKENS_AT_ONCE) * self.width) as u64;
        self.reader.by_ref().take(limit).read_to_end(&mut self.bytes).map_err(Error::read(self.path))?;
        if !self.bytes.len().is_multiple_of(self.width) {
            let offset = self.offset + self.bytes.len() as u64;
            return Err(bad(self.path, offset, "the file ends inside a token".into()));
        }
        self.tokens.clear();
        for bytes in self.bytes.chunks_exact(self.width) {
            let mut four = [0; 4];
            four[..self.width].copy_from_slice(bytes);
            let token = u32::from_le_bytes(four);
            if u64::from(token) >= self.vocab_size {
                let offset = self.offset + (self.tokens.len() * self.width) as u64;
                let reason = format!("token {token} is not one of the tokenizer's {}", self.vocab_size);
                return Err(bad(self.path, offset, reason));
            }
            self.tokens.push(token);
        }
        self.offset += self.bytes.len() as u64;
        Ok(&self.tokens)
    }
}

fn bad(path: &Path, offset: u64, reason: String) -> Error {
    Error::BadTokenFile { path: path.to_path_buf(), offset, reason }
}

#[cfg(test)]
mod tests;
