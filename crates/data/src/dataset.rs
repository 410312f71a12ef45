//! A prepared data set, open for reading: splits as streams of tokens across shards.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::batch::RowTokens;
use crate::error::{Error, Result};
use crate::manifest::{Manifest, hex};
use crate::shard::Shard;

/// The two parts of a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Split {
    /// What a model learns from.
    Train,
    /// What it is measured on.
    Validation,
}

impl Split {
    /// Both splits, in the order of files and reports.
    pub const ALL: [Split; 2] = [Split::Train, Split::Validation];

    /// The name in files and messages.
    pub fn name(self) -> &'static str {
        match self {
            Split::Train => "train",
            Split::Validation => "validation",
        }
    }
}

impl fmt::Display for Split {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// An open data set: its manifest, and all its shards with checked headers.
#[derive(Debug)]
pub struct Dataset {
    dir: PathBuf,
    manifest: Manifest,
    train: TokenStream,
    validation: TokenStream,
}

impl Dataset {
    /// Opens the data set in a folder. Headers and lengths are checked now, blocks when they are first read.
    pub fn open(dir: &Path) -> Result<Dataset> {
        let manifest = Manifest::load(dir)?;
        let train = open_split(dir, &manifest, Split::Train)?;
        let validation = open_split(dir, &manifest, Split::Validation)?;
        Ok(Dataset { dir: dir.to_path_buf(), manifest, train, validation })
    }

    /// What the data set says about itself.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The tokens of a split. Streams are cheap to clone: they share their shards.
    pub fn split(&self, split: Split) -> &TokenStream {
        match split {
            Split::Train => &self.train,
            Split::Validation => &self.validation,
        }
    }

    /// An error unless the data were written with the tokenizer of that hash.
    pub fn check_tokenizer(&self, hash: &[u8; 32]) -> Result<()> {
        let expected = hex(hash);
        if self.manifest.tokenizer_hash == expected {
            return Ok(());
        }
        let short = |hash: &str| hash.chars().take(12).collect();
        Err(Error::TokenizerMismatch {
            path: self.dir.clone(),
            found: short(&self.manifest.tokenizer_hash),
            expected: short(&expected),
        })
    }

    /// The shards of a split, in order.
    pub(crate) fn shards(&self, split: Split) -> &[Arc<Shard>] {
        match &self.split(split).source {
            Source::Shards { shards, .. } => shards,
            Source::Memory { .. } => &[],
        }
    }
}

/// A long run of tokens that can be read at any position, by many threads at once, without allocation.
#[derive(Clone, Debug)]
pub struct TokenStream {
    tokens: u64,
    documents: u64,
    raw_bytes: u64,
    source: Source,
}

#[derive(Clone, Debug)]
enum Source {
    Shards {
        shards: Arc<[Arc<Shard>]>,
        /// The position of each shard's first token in the stream.
        starts: Arc<[u64]>,
    },
    Memory {
        tokens: Arc<[u32]>,
        document_starts: Arc<[u64]>,
    },
}

impl TokenStream {
    /// A stream of tokens held in memory: one document of `raw_bytes` bytes of text.
    pub fn from_tokens(tokens: Vec<u32>, raw_bytes: u64) -> TokenStream {
        let documents = if tokens.is_empty() { vec![] } else { vec![tokens] };
        TokenStream::from_documents(documents, raw_bytes)
    }

    /// A stream of documents held in memory, `raw_bytes` bytes of text in all.
    pub fn from_documents(documents: Vec<Vec<u32>>, raw_bytes: u64) -> TokenStream {
        let mut document_starts = Vec::with_capacity(documents.len());
        let mut position = 0;
        for document in &documents {
            document_starts.push(position);
            position += document.len() as u64;
        }
        TokenStream {
            tokens: position,
            documents: documents.len() as u64,
            raw_bytes,
            source: Source::Memory {
                tokens: documents.concat().into(),
                document_starts: document_starts.into(),
            },
        }
    }

    /// The stream of these shards, one after the other.
    pub(crate) fn from_shards(shards: Vec<Arc<Shard>>) -> TokenStream {
        let (mut tokens, mut documents, mut raw_bytes) = (0, 0, 0);
        let mut starts = Vec::with_capacity(shards.len());
        for shard in &shards {
            starts.push(tokens);
            tokens += shard.header().tokens;
            documents += shard.header().documents;
            raw_bytes += shard.header().raw_bytes;
        }
        TokenStream {
            tokens,
            documents,
            raw_bytes,
            source: Source::Shards { shards: shards.into(), starts: starts.into() },
        }
    }

    /// How many tokens the stream holds.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// How many documents start in the stream.
    pub fn documents(&self) -> u64 {
        self.documents
    }

    /// The UTF-8 length of the documents before encoding, for bits per byte.
    pub fn raw_bytes(&self) -> u64 {
        self.raw_bytes
    }

    /// Whether the stream holds no tokens.
    pub fn is_empty(&self) -> bool {
        self.tokens == 0
    }

    /// Where each document starts, never decreasing: document `i` ends where the next one starts, and an empty one where it
    /// starts. Read from the shards at every call; an error if the first is not the stream's first token.
    pub fn document_starts(&self) -> Result<Vec<u64>> {
        let (shards, starts) = match &self.source {
            Source::Memory { document_starts, .. } => return Ok(document_starts.to_vec()),
            Source::Shards { shards, starts } => (shards, starts),
        };
        let mut document_starts = Vec::new();
        for (shard, &start) in shards.iter().zip(starts.iter()) {
            let known = document_starts.len();
            document_starts.resize(known + shard.header().documents as usize, 0);
            shard.document_offsets(0, &mut document_starts[known..])?;
            document_starts[known..].iter_mut().for_each(|offset| *offset += start);
        }
        match shards.first() {
            Some(shard) if self.tokens > 0 && document_starts.first() != Some(&0) => Err(Error::BadShard {
                path: shard.path().to_path_buf(),
                offset: 0,
                reason: "no document starts at the first token of its split".into(),
            }),
            _ => Ok(document_starts),
        }
    }

    /// Fills `out` with the tokens from `position` on; an error if the stream ends before.
    pub fn read(&self, position: u64, out: &mut [u32]) -> Result<()> {
        let asked = out.len() as u64;
        if position.checked_add(asked).is_none_or(|end| end > self.tokens) {
            return Err(Error::OutOfRange { unit: "tokens", asked, position, available: self.tokens });
        }
        let (shards, starts) = match &self.source {
            Source::Memory { tokens, .. } => {
                out.copy_from_slice(&tokens[position as usize..][..out.len()]);
                return Ok(());
            }
            Source::Shards { shards, starts } => (shards, starts),
        };
        let mut shard_idx = starts.partition_point(|&start| start <= position).saturating_sub(1);
        let (mut position, mut rest) = (position, out);
        while !rest.is_empty() {
            let inside = position - starts[shard_idx];
            let available = shards[shard_idx].header().tokens - inside;
            let now = available.min(rest.len() as u64);
            let (part, later) = rest.split_at_mut(now as usize);
            shards[shard_idx].read(inside, part)?;
            position += now;
            rest = later;
            shard_idx += 1;
        }
        Ok(())
    }

    /// Fills the ids with the tokens from `position` on and the targets with those behind each of them, going back to the first
    /// after the last. Inside a shard both come from one read.
    pub(crate) fn read_shifted(&self, position: u64, row: RowTokens<'_>) -> Result<()> {
        if let Source::Shards { shards, starts } = &self.source
            && let Some(idx) = starts.partition_point(|&start| start <= position).checked_sub(1)
            && position - starts[idx] + (row.ids.len() as u64) < shards[idx].header().tokens
        {
            return shards[idx].read_shifted(position - starts[idx], row);
        }
        let RowTokens { ids, targets, .. } = row;
        self.read_wrapped(position, ids)?;
        let Some(last) = ids.len().checked_sub(1) else { return Ok(()) };
        targets[..last].copy_from_slice(&ids[1..]);
        self.read_wrapped(position + ids.len() as u64, &mut targets[last..])
    }

    /// Fills `out` with the tokens from `position` on, going back to the first after the last.
    pub fn read_wrapped(&self, position: u64, out: &mut [u32]) -> Result<()> {
        if self.tokens == 0 {
            return Err(Error::EmptySplit { split: "wrapped".into() });
        }
        let (mut position, mut rest) = (position % self.tokens, out);
        while !rest.is_empty() {
            let now = (self.tokens - position).min(rest.len() as u64);
            let (part, later) = rest.split_at_mut(now as usize);
            self.read(position, part)?;
            position = 0;
            rest = later;
        }
        Ok(())
    }
}

fn open_split(dir: &Path, manifest: &Manifest, split: Split) -> Result<TokenStream> {
    let record = manifest.split(split);
    let mut shards = Vec::with_capacity(record.shards.len());
    for listed in &record.shards {
        let shard = Shard::open(&dir.join(&listed.file)).map_err(|error| match error {
            Error::Read { path, source } if source.kind() == std::io::ErrorKind::NotFound => {
                Error::BadShard {
                    path,
                    offset: 0,
                    reason: "it is missing, though the manifest lists it".into(),
                }
            }
            other => other,
        })?;
        let header = shard.header();
        let agrees = header.tokens == listed.tokens
            && header.documents == listed.documents
            && header.raw_bytes == listed.raw_bytes
            && header.vocab_size == manifest.vocab_size
            && hex(&header.tokenizer_hash) == manifest.tokenizer_hash
            && hex(&shard.hash()) == listed.blake3;
        if !agrees {
            let reason = "it is not the shard that the manifest lists".into();
            return Err(Error::BadShard { path: shard.path().to_path_buf(), offset: 0, reason });
        }
        shards.push(Arc::new(shard));
    }
    Ok(TokenStream::from_shards(shards))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{inputs, prepare_quietly};
    use crate::{Class, PrepareOptions};

    #[test]
    fn reads_across_shards_equal_reads_in_one_piece() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt");
        std::fs::write(&path, "the cat sat on the mat and the dog sat on the log ".repeat(40)).unwrap();
        let stream = |shard_tokens: u64| {
            let out = folder.path().join(format!("out-{shard_tokens}"));
            let options = PrepareOptions { validation: 0.0, shard_tokens, ..PrepareOptions::default() };
            prepare_quietly(&inputs(&[&path]), &out, &options).unwrap();
            Dataset::open(&out).unwrap().split(Split::Train).clone()
        };
        let (whole, cut) = (stream(1 << 20), stream(7));
        assert!(cut.tokens() > 100 && whole.tokens() == cut.tokens());
        let mut expected = vec![0; whole.tokens() as usize];
        whole.read(0, &mut expected).unwrap();
        for start in 0..expected.len() {
            for length in [0, 1, 6, 7, 8, 30] {
                let length = length.min(expected.len() - start);
                let mut out = vec![0; length];
                cut.read(start as u64, &mut out).unwrap();
                assert_eq!(out, expected[start..start + length]);
                cut.read_wrapped((start + expected.len()) as u64, &mut out).unwrap();
                assert_eq!(out, expected[start..start + length]);
            }
        }
        let mut twice = vec![0; 2 * expected.len()];
        cut.read_wrapped(0, &mut twice).unwrap();
        assert_eq!(twice, [&expected[..], &expected[..]].concat());
        for position in [cut.tokens(), u64::MAX] {
            assert_eq!(cut.read(position, &mut [0]).unwrap_err().class(), Class::BadSetting);
        }
    }

    #[test]
    fn threads_read_one_stream_at_once() {
        let tokens: Vec<u32> = (0..250).collect();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.shard");
        let mut writer = crate::shard::ShardWriter::create(&path, [0; 32], 250).unwrap();
        for _ in 0..400 {
            writer.push(&tokens).unwrap();
        }
        writer.finish().unwrap();
        let shard = Shard::open(&path).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let shard = &shard;
                scope.spawn(move || {
                    let mut out = [0; 250];
                    for i in 0..399 {
                        let position = (i * 37 + thread * 91) % 399 * 250;
                        shard.read(position, &mut out).unwrap();
                        assert!(out.iter().copied().eq(0..250));
                    }
                });
            }
        });
    }
}
