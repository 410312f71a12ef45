//! The stages of preparing a section: read and split, encode, write in order, complete shards.
//!
//! Each of several threads takes a batch through the first three, so that text and tokens stay in the cache of its core.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread;

use ironmill_text::{Progress, Tokenizer};
use xxhash_rust::xxh3::xxh3_64;

use super::PrepareOptions;
use super::duplicates::Seen;
use super::journal::{Cursor, DoneSection, Journal, Started};
use super::sections::{Section, Sides};
use super::staging::Staging;
use super::tokens::Tokens;
use super::turns::Turns;
use crate::dataset::Split;
use crate::documents::{Chunk, ChunkSizes, Inputs, TextChunks};
use crate::error::{Error, Result};
use crate::manifest::{ShardRecord, SplitRecord};
use crate::order::{PURPOSE_VALIDATION, hash};
use crate::shard::ShardWriter;

/// What the stages of a section have in common.
pub(super) struct Pipeline<'a> {
    pub(super) inputs: &'a Inputs,
    pub(super) tokenizer: &'a Tokenizer,
    pub(super) tokenizer_hash: [u8; 32],
    pub(super) document_start: &'a [u32],
    pub(super) options: &'a PrepareOptions,
    pub(super) staging: &'a Staging,
    pub(super) section: &'a Section,
    pub(super) stop: &'a AtomicBool,
    pub(super) progress: &'a dyn Progress,
}

/// Enough to keep every thread busy while one batch is slow; as many as it takes are made.
const BATCHES_PER_THREAD: usize = 4;

/// A batch is about 512 KiB of text. A document of up to 2 MiB is not cut. A row, a page of an archive and whatever else must be
/// held at once may take 256 MiB.
const SIZES: ChunkSizes = ChunkSizes { chunk_bytes: 512 << 10, whole_bytes: 2 << 20, max_bytes: 256 << 20 };

/// How much of a document's text decides its split.
pub(super) const SIDE_BYTES: usize = 64 << 10;

impl Pipeline<'_> {
    /// Goes on behind the shards that are complete.
    pub(super) fn run(
        &self,
        started: &Started,
        journal: &mut Journal,
        seen: Option<&mut Seen>,
    ) -> Result<DoneSection> {
        let (full_out, full) = sync_channel(2);
        let reader = Mutex::new(Reader::new(self, started, seen)?);
        let turns = Turns::new(self.options.threads * BATCHES_PER_THREAD);
        let shards = thread::scope(|scope| {
            let closer = scope.spawn(move || self.complete(started, journal, full));
            let writer = Mutex::new(Writer::new(self, started, full_out));
            thread::scope(|scope| {
                for _ in 0..self.options.threads {
                    scope.spawn(|| self.work(&reader, &turns, &writer));
                }
            });
            let written = writer.into_inner().unwrap_or_else(PoisonError::into_inner).finish();
            // Who completes shards has the cause if the writer found nobody there.
            let shards = closer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            written.map(|()| shards)
        })?;
        let (skipped_documents, duplicate_documents) =
            reader.into_inner().unwrap_or_else(PoisonError::into_inner).left_out();
        Ok(DoneSection { shards, skipped_documents, duplicate_documents })
    }

    /// Notes the documents of a section that is complete already.
    pub(super) fn remember_documents(&self, seen: &mut Seen) -> Result<()> {
        let mut chunks = self.chunks()?;
        let (mut chunk, mut told) = (Chunk::default(), 0);
        while chunks.next(&mut chunk).map_err(too_long)? {
            if self.stop.load(Ordering::Relaxed) {
                return Err(Error::Stopped);
            }
            for piece in chunk.pieces().iter().filter(|piece| piece.starts && piece.ends) {
                seen.insert(chunk.text()[piece.range.clone()].as_bytes())?;
            }
            self.progress.at_file(chunk.file_idx() as u64 + 1, self.inputs.names().len() as u64);
            self.progress.advance(chunks.bytes_read() - told);
            told = chunks.bytes_read();
        }
        self.progress.advance(self.section.n_bytes.saturating_sub(told));
        Ok(())
    }

    fn chunks(&self) -> Result<TextChunks<'_>> {
        let cuts = self.tokenizer.cuts().map_err(|source| Error::Encode {
            file: self.inputs.names().next().unwrap_or_default().into(),
            position: 0,
            source,
        })?;
        Ok(self.inputs.chunks_of(self.section.sources.clone(), cuts, SIZES))
    }

    /// Takes batches from the reader to the writer until there are no more.
    fn work(&self, reader: &Mutex<Reader>, turns: &Turns<Box<Batch>>, writer: &Mutex<Writer>) {
        let _alarm = turns.alarm();
        let make = || Box::new(Batch::for_vocabulary(self.tokenizer.vocab_size()));
        while let Some(mut batch) = turns.take(make) {
            // A poisoned lock means that another thread panicked, which ends everything.
            let has_batch = reader.lock().is_ok_and(|mut reader| reader.read(&mut batch));
            if !has_batch {
                return;
            }
            if batch.failure.is_none() {
                batch.failure = self.encode(&mut batch).err();
            }
            turns.hand_in(batch.sequence, batch, |batch| {
                writer.lock().is_ok_and(|mut writer| writer.write(batch))
            });
        }
    }

    fn encode(&self, batch: &mut Batch) -> Result<()> {
        let Batch { chunk, parts, tokens, .. } = batch;
        tokens.clear();
        for part in parts {
            let before = tokens.len();
            if part.starts {
                tokens.extend(self.document_start);
            }
            let text = &chunk.text()[part.range.clone()];
            tokens.encode(self.tokenizer, text).map_err(|source| Error::Encode {
                file: self.inputs.names().nth(chunk.file_idx()).unwrap_or_default().into(),
                position: part.position,
                source,
            })?;
            if part.ends {
                tokens.extend(self.tokenizer.end_of_text().as_slice());
            }
            part.tokens = before..tokens.len();
        }
        Ok(())
    }

    /// Syncs full shards and notes that they are complete, while the others go on with the next.
    fn complete(
        &self,
        started: &Started,
        journal: &mut Journal,
        full: Receiver<FullShard>,
    ) -> Result<[Vec<ShardRecord>; 2]> {
        let mut shards = started.shards.clone();
        for FullShard { split, writer, next } in full {
            let shards = &mut shards[split as usize];
            let file = Staging::section_shard(&self.section.fingerprint, split, shards.len());
            let mut record = SplitRecord::default();
            record.push(file, &writer.finish()?);
            shards.append(&mut record.shards);
            if let (Some(next), Some(record)) = (next, shards.last()) {
                journal.shard(&self.section.fingerprint, split, record, next)?;
            }
        }
        Ok(shards)
    }
}

/// Text on its way through the stages, and then its tokens.
struct Batch {
    sequence: u64,
    /// Whether nothing comes behind it.
    is_last: bool,
    chunk: Chunk,
    parts: Vec<Part>,
    tokens: Tokens,
    /// By how much the reader advanced in its inputs.
    input_bytes: u64,
    failure: Option<Error>,
}

impl Batch {
    fn for_vocabulary(vocab_size: usize) -> Batch {
        Batch {
            sequence: 0,
            is_last: false,
            chunk: Chunk::default(),
            parts: Vec::new(),
            tokens: Tokens::for_vocabulary(vocab_size),
            input_bytes: 0,
            failure: None,
        }
    }
}

/// A document, or a part of one, that is to be encoded.
struct Part {
    /// Its place in the chunk's text.
    range: Range<usize>,
    position: u64,
    /// Its number in the section.
    number: u64,
    split: Split,
    starts: bool,
    ends: bool,
    /// How many of its tokens are in complete shards.
    n_written: u64,
    /// The place of its tokens in the batch's.
    tokens: Range<usize>,
}

/// Reads all text and shares it out.
struct Reader<'a> {
    pipeline: &'a Pipeline<'a>,
    chunks: TextChunks<'a>,
    planner: Planner<'a>,
    seen: Option<&'a mut Seen>,
    /// The number of the next batch.
    sequence: u64,
    /// How far the reader had come in its inputs when it gave out the last one.
    told: u64,
    is_over: bool,
}

impl<'a> Reader<'a> {
    fn new(pipeline: &'a Pipeline<'a>, started: &Started, seen: Option<&'a mut Seen>) -> Result<Reader<'a>> {
        let (chunks, planner) = (pipeline.chunks()?, Planner::new(pipeline, started));
        Ok(Reader { pipeline, chunks, planner, seen, sequence: 0, told: 0, is_over: false })
    }

    /// Gives the batch the next text, or the failure that ends the reading; `false` behind the last batch.
    fn read(&mut self, batch: &mut Batch) -> bool {
        if self.is_over {
            return false;
        }
        batch.parts.clear();
        let has_text = self.read_text(batch);
        self.is_over = !matches!(has_text, Ok(true));
        let bytes_read = if self.is_over {
            self.pipeline.section.n_bytes.max(self.told)
        } else {
            self.chunks.bytes_read()
        };
        batch.input_bytes = bytes_read - self.told;
        self.told = bytes_read;
        (batch.sequence, batch.is_last, batch.failure) = (self.sequence, self.is_over, has_text.err());
        self.sequence += 1;
        true
    }

    fn read_text(&mut self, batch: &mut Batch) -> Result<bool> {
        if self.pipeline.stop.load(Ordering::Relaxed) {
            return Err(Error::Stopped);
        }
        let has_text = self.chunks.next(&mut batch.chunk).map_err(too_long)?;
        if has_text {
            self.planner.plan(&batch.chunk, self.seen.as_deref_mut(), &mut batch.parts)?;
        }
        Ok(has_text)
    }

    /// How many documents were left out because they are no UTF-8, and because they were there before.
    fn left_out(&self) -> (u64, u64) {
        (self.chunks.skipped(), self.planner.duplicates)
    }
}

/// Decides what becomes of every part of the text.
struct Planner<'a> {
    pipeline: &'a Pipeline<'a>,
    threshold: u64,
    next: [Cursor; 2],
    number: u64,
    document: u64,
    /// The split of the document at hand, and how much text came before.
    split: Split,
    offset: u64,
    /// Whether the next part begins what the validation split has of the document that goes to both.
    begins_tail: bool,
    duplicates: u64,
}

impl<'a> Planner<'a> {
    fn new(pipeline: &'a Pipeline<'a>, started: &Started) -> Planner<'a> {
        Planner {
            pipeline,
            // The product is below 2⁶⁴, since the share is below one.
            threshold: (pipeline.options.validation * (u64::MAX as f64)) as u64,
            next: started.next,
            number: 0,
            document: 0,
            split: Split::Train,
            offset: 0,
            begins_tail: false,
            duplicates: 0,
        }
    }

    fn plan(&mut self, chunk: &Chunk, mut seen: Option<&mut Seen>, parts: &mut Vec<Part>) -> Result<()> {
        for piece in chunk.pieces() {
            let text = &chunk.text()[piece.range.clone()];
            if piece.starts {
                if let Some(seen) = seen.as_deref_mut().filter(|_| piece.ends)
                    && seen.insert(text.as_bytes())?
                {
                    self.duplicates += 1;
                    continue;
                }
                self.split = self.side(text);
                self.document += 1;
            }
            let mut starts = piece.starts || std::mem::take(&mut self.begins_tail);
            let (mut range, mut position) = (piece.range.clone(), piece.position);
            let end = self.offset + text.len() as u64;
            if let Sides::Cut { at } = self.pipeline.section.sides
                && self.split == Split::Train
                && end > at
            {
                let length = border(text, (at - self.offset) as usize);
                let ends = piece.ends && length == text.len();
                let head = range.start..range.start + length;
                self.push(parts, head, position, starts, ends);
                range.start += length;
                position += length as u64;
                self.split = Split::Validation;
                (starts, self.begins_tail) = (true, range.is_empty());
            }
            self.offset = end;
            if !range.is_empty() || piece.range.is_empty() {
                self.push(parts, range, position, starts, piece.ends);
            }
        }
        Ok(())
    }

    fn side(&self, text: &str) -> Split {
        let seed = self.pipeline.inputs.options().seed;
        match self.pipeline.section.sides {
            // Something has to be left to the training split, however little there is.
            Sides::Cut { at } if self.offset < at.max(1) => Split::Train,
            Sides::Cut { .. } => Split::Validation,
            Sides::DocumentTo { document, split } if document == self.document => split,
            _ => {
                let key = xxh3_64(&text.as_bytes()[..text.len().min(SIDE_BYTES)]);
                match hash(&[seed, PURPOSE_VALIDATION, key]) < self.threshold {
                    true => Split::Validation,
                    false => Split::Train,
                }
            }
        }
    }

    fn push(&mut self, parts: &mut Vec<Part>, range: Range<usize>, position: u64, starts: bool, ends: bool) {
        let (number, split) = (self.number, self.split);
        self.number += 1;
        let next = self.next[split as usize];
        if number < next.part {
            return;
        }
        let n_written = if number == next.part { next.tokens } else { 0 };
        parts.push(Part { range, position, number, split, starts, ends, n_written, tokens: 0..0 });
    }
}

/// A good place to cut near `wanted`: after a letter or digit that white space follows, which every built-in pattern takes for
/// a border of pieces; without any such place, between two characters.
fn border(text: &str, wanted: usize) -> usize {
    let bytes = text.as_bytes();
    let good = |&at: &usize| bytes[at].is_ascii_whitespace() && bytes[at - 1].is_ascii_alphanumeric();
    let wanted = wanted.clamp(1.min(bytes.len()), bytes.len());
    let between_characters =
        || (wanted..bytes.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(bytes.len());
    (wanted..bytes.len())
        .find(good)
        .or_else(|| (1..wanted).rev().find(good))
        .unwrap_or_else(between_characters)
}

/// A shard that has all its tokens; without `next` its split has no more.
struct FullShard {
    split: Split,
    writer: ShardWriter,
    next: Option<Cursor>,
}

/// Writes the batches in the order in which they were read.
struct Writer<'a> {
    pipeline: &'a Pipeline<'a>,
    vocab_size: u64,
    open: [Option<ShardWriter>; 2],
    /// How many shards of each split were begun before.
    n_begun: [usize; 2],
    full: SyncSender<FullShard>,
    failure: Option<Error>,
}

impl<'a> Writer<'a> {
    fn new(pipeline: &'a Pipeline<'a>, started: &Started, full: SyncSender<FullShard>) -> Writer<'a> {
        Writer {
            pipeline,
            vocab_size: pipeline.tokenizer.vocab_size() as u64,
            open: [None, None],
            n_begun: [started.shards[0].len(), started.shards[1].len()],
            full,
            failure: None,
        }
    }

    /// Writes the next batch, and says whether others are to follow.
    fn write(&mut self, batch: &mut Batch) -> bool {
        self.failure = self.try_write(batch).err();
        self.failure.is_none() && !batch.is_last
    }

    fn try_write(&mut self, batch: &mut Batch) -> Result<()> {
        if let Some(failure) = batch.failure.take() {
            return Err(failure);
        }
        if self.pipeline.stop.load(Ordering::Relaxed) {
            return Err(Error::Stopped);
        }
        for part in &batch.parts {
            self.push(part, &batch.tokens)?;
        }
        if batch.is_last {
            Split::ALL.into_iter().try_for_each(|split| self.close(split, None))?;
        }
        let (progress, n_files) = (self.pipeline.progress, self.pipeline.inputs.names().len() as u64);
        // The last batch has no text, and so is of no file.
        if !batch.is_last {
            progress.at_file(batch.chunk.file_idx() as u64 + 1, n_files);
        }
        progress.advance(batch.input_bytes);
        Ok(())
    }

    /// Ends the writing; without a failure all of the section has been written.
    fn finish(self) -> Result<()> {
        self.failure.map_or(Ok(()), Err)
    }

    fn push(&mut self, part: &Part, tokens: &Tokens) -> Result<()> {
        let mut n_written = part.n_written;
        let n_tokens = part.tokens.len() as u64;
        while n_written < n_tokens {
            let shard_tokens = self.pipeline.options.shard_tokens;
            let next = Cursor { part: part.number, tokens: n_written };
            let writer = self.writer(part.split, next)?;
            match (n_written, part.starts) {
                (0, true) => writer.start_document(part.range.len() as u64),
                (0, false) => writer.continue_document(part.range.len() as u64),
                _ => {}
            }
            let n_now = (shard_tokens - writer.tokens()).min(n_tokens - n_written);
            let first = part.tokens.start + n_written as usize;
            tokens.write(first..first + n_now as usize, writer)?;
            n_written += n_now;
        }
        Ok(())
    }

    /// The open shard of a split, which has room for at least one token; a full one is closed, and `next` is where it ended.
    fn writer(&mut self, split: Split, next: Cursor) -> Result<&mut ShardWriter> {
        let idx = split as usize;
        let shard_tokens = self.pipeline.options.shard_tokens;
        if self.open[idx].as_ref().is_some_and(|writer| writer.tokens() >= shard_tokens) {
            self.close(split, Some(next))?;
        }
        match &mut self.open[idx] {
            Some(writer) => Ok(writer),
            none => {
                let fingerprint = &self.pipeline.section.fingerprint;
                let name = Staging::section_shard(fingerprint, split, self.n_begun[idx]);
                let path = self.pipeline.staging.path().join(name);
                let (disk, hash) = (&self.pipeline.options.disk, self.pipeline.tokenizer_hash);
                self.n_begun[idx] += 1;
                Ok(none.insert(ShardWriter::create_on(disk, &path, hash, self.vocab_size)?))
            }
        }
    }

    fn close(&mut self, split: Split, next: Option<Cursor>) -> Result<()> {
        let Some(writer) = self.open[split as usize].take() else { return Ok(()) };
        // Who completes shards has gone only because of an error, which is told first.
        self.full.send(FullShard { split, writer, next }).map_err(|_| Error::Stopped)
    }
}

/// What is too large here cannot be helped by more memory.
fn too_long(error: Error) -> Error {
    match error {
        Error::TooLarge { file, what, position, max_bytes, .. } => {
            Error::TooLong { file, what, position, max_bytes }
        }
        other => other,
    }
}
