//! The three stages of preparing: read and split, encode, write in order.

use std::collections::BTreeMap;
use std::mem;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use ironmill_text::{Progress, Tokenizer};

use super::PrepareOptions;
use crate::dataset::Split;
use crate::documents::{Document, Inputs};
use crate::error::{Error, Result};
use crate::manifest::SplitRecord;
use crate::order::{PURPOSE_VALIDATION, hash};
use crate::shard::ShardWriter;

/// What all stages together wrote.
pub(super) struct Encoded {
    pub(super) train: SplitRecord,
    pub(super) validation: SplitRecord,
    pub(super) skipped_documents: u64,
}

pub(super) fn run(
    inputs: &Inputs,
    tokenizer: &Tokenizer,
    dir: &Path,
    options: &PrepareOptions,
    progress: &dyn Progress,
    stop: &AtomicBool,
) -> Result<Encoded> {
    let in_flight = options.threads * BATCHES_PER_THREAD;
    // Every batch on its way holds a ticket, which the writer hands back: this bounds the memory of all stages.
    let (ticket_back, tickets) = sync_channel(in_flight);
    for _ in 0..in_flight {
        // The channel has room for all tickets, and its receiver lives.
        let _ = ticket_back.send(());
    }
    let (batch_out, batches) = sync_channel::<Batch>(in_flight);
    let (encoded_out, encoded_batches) = sync_channel(in_flight);
    let batches = &Mutex::new(batches);
    thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let mut reader = Reader { tickets, out: batch_out, batch: Batch::default(), bytes_reported: 0 };
            read(inputs, options.validation, &mut reader, stop)
        });
        for _ in 0..options.threads {
            let encoded_out = encoded_out.clone();
            scope.spawn(move || encode_batches(tokenizer, inputs, batches, &encoded_out));
        }
        drop(encoded_out);
        let mut writers = Writers::new(dir, tokenizer, options.shard_tokens);
        let written = write(&mut writers, encoded_batches, ticket_back, progress, stop);
        let read = reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        written?;
        let skipped_documents = read?;
        let [train, validation] = writers.finish()?;
        if train.tokens == 0 {
            return Err(inputs.empty());
        }
        Ok(Encoded { train, validation, skipped_documents })
    })
}

/// Enough to keep every thread busy while one batch is slow.
const BATCHES_PER_THREAD: usize = 4;
/// How much text makes a batch; a longer document makes one alone.
const BATCH_BYTES: usize = 256 * 1024;

/// Text for one split: a document, or a part of the only one.
struct Part {
    split: Split,
    file_idx: usize,
    position: u64,
    text: String,
    /// Whether an end-of-text token follows.
    ends_document: bool,
}

#[derive(Default)]
struct Batch {
    sequence: u64,
    parts: Vec<Part>,
    text_bytes: usize,
    /// By how much the reader advanced in its inputs for this batch.
    input_bytes: u64,
}

struct EncodedBatch {
    input_bytes: u64,
    tokens: Vec<u32>,
    parts: Vec<EncodedPart>,
}

struct EncodedPart {
    split: Split,
    raw_bytes: u64,
    tokens: usize,
}

/// The reader's side of the batch channel.
struct Reader {
    tickets: Receiver<()>,
    out: SyncSender<Batch>,
    batch: Batch,
    bytes_reported: u64,
}

impl Reader {
    /// Adds a part; `false` when the writer has gone away, because of an error of its own.
    fn push(&mut self, part: Part, bytes_read: u64) -> bool {
        self.batch.text_bytes += part.text.len();
        self.batch.parts.push(part);
        self.batch.text_bytes < BATCH_BYTES || self.send(bytes_read)
    }

    fn send(&mut self, bytes_read: u64) -> bool {
        let sequence = self.batch.sequence;
        self.batch.input_bytes = bytes_read - self.bytes_reported;
        self.bytes_reported = bytes_read;
        let batch = mem::replace(&mut self.batch, Batch { sequence: sequence + 1, ..Batch::default() });
        self.tickets.recv().is_ok() && self.out.send(batch).is_ok()
    }
}

/// Reads all documents, decides their split and sends them in batches; returns how many were skipped.
///
/// The latest document is held back until the next one is there, for the last one may have to change sides.
fn read(inputs: &Inputs, validation: f64, reader: &mut Reader, stop: &AtomicBool) -> Result<u64> {
    let seed = inputs.options().seed;
    // The product is below 2⁶⁴, since the share is below one.
    let threshold = (validation * (u64::MAX as f64)) as u64;
    let mut documents = inputs.documents();
    let mut held: Option<Document> = None;
    let mut index = 0;
    let mut seen = [false; 2];
    let mut side = |index| {
        let split = if hash(&[seed, PURPOSE_VALIDATION, index]) < threshold {
            Split::Validation
        } else {
            Split::Train
        };
        let others = seen;
        seen[split as usize] = true;
        (split, others)
    };
    while let Some(document) = documents.next().transpose()? {
        if stop.load(Ordering::Relaxed) {
            return Err(Error::Stopped);
        }
        if let Some(document) = held.replace(document) {
            let (split, _) = side(index);
            index += 1;
            if !reader.push(Part::whole(document, split), documents.bytes_read()) {
                return Ok(documents.skipped());
            }
        }
    }
    let bytes_read = documents.bytes_read();
    if let Some(last) = held {
        let (split, [train, held_out]) = side(index);
        let parts = if threshold == 0 {
            vec![Part::whole(last, Split::Train)]
        } else if !train && !held_out {
            cut(last, validation)
        } else {
            let split = match (train, held_out) {
                (true, false) => Split::Validation,
                (false, true) => Split::Train,
                _ => split,
            };
            vec![Part::whole(last, split)]
        };
        for part in parts {
            if !reader.push(part, bytes_read) {
                return Ok(documents.skipped());
            }
        }
    }
    reader.send(bytes_read);
    Ok(documents.skipped())
}

impl Part {
    fn whole(document: Document, split: Split) -> Part {
        let Document { file_idx, position, text } = document;
        Part { split, file_idx, position, text, ends_document: true }
    }
}

/// Cuts the only document into a training and a validation part.
fn cut(document: Document, validation: f64) -> Vec<Part> {
    let Document { file_idx, position, text: mut head } = document;
    let at = border(&head, (head.len() as f64 * (1.0 - validation)) as usize);
    let tail = head.split_off(at);
    let mut parts =
        vec![Part { split: Split::Train, file_idx, position, text: head, ends_document: tail.is_empty() }];
    if !tail.is_empty() {
        let position = position + at as u64;
        parts.push(Part { split: Split::Validation, file_idx, position, text: tail, ends_document: true });
    }
    parts
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

fn encode_batches(
    tokenizer: &Tokenizer,
    inputs: &Inputs,
    batches: &Mutex<Receiver<Batch>>,
    out: &SyncSender<(u64, Result<EncodedBatch>)>,
) {
    loop {
        // A poisoned lock means that another thread panicked, which ends the scope anyway.
        let Ok(received) = batches.lock().map(|receiver| receiver.recv()) else {
            return;
        };
        let Ok(batch) = received else { return };
        let sequence = batch.sequence;
        if out.send((sequence, encode(tokenizer, inputs, batch))).is_err() {
            return;
        }
    }
}

fn encode(tokenizer: &Tokenizer, inputs: &Inputs, batch: Batch) -> Result<EncodedBatch> {
    let mut tokens = Vec::with_capacity(batch.text_bytes / 3);
    let mut parts = Vec::with_capacity(batch.parts.len());
    for part in batch.parts {
        let before = tokens.len();
        tokenizer.encode(part.text.as_bytes(), &mut tokens).map_err(|source| Error::Encode {
            file: inputs.names().nth(part.file_idx).unwrap_or_default().into(),
            position: part.position,
            source,
        })?;
        tokens.extend(tokenizer.end_of_text().filter(|_| part.ends_document));
        let raw_bytes = part.text.len() as u64;
        parts.push(EncodedPart { split: part.split, raw_bytes, tokens: tokens.len() - before });
    }
    Ok(EncodedBatch { input_bytes: batch.input_bytes, tokens, parts })
}

/// Writes the batches in the order in which they were read.
fn write(
    writers: &mut Writers<'_>,
    batches: Receiver<(u64, Result<EncodedBatch>)>,
    tickets: SyncSender<()>,
    progress: &dyn Progress,
    stop: &AtomicBool,
) -> Result<()> {
    let mut waiting = BTreeMap::new();
    let mut next = 0;
    for (sequence, batch) in batches {
        waiting.insert(sequence, batch);
        while let Some(batch) = waiting.remove(&next) {
            if stop.load(Ordering::Relaxed) {
                return Err(Error::Stopped);
            }
            let batch = batch?;
            writers.push(&batch)?;
            progress.advance(batch.input_bytes);
            next += 1;
            // The reader may be done already and take no more tickets.
            let _ = tickets.send(());
        }
    }
    Ok(())
}

/// The open shard of each split.
struct Writers<'a> {
    dir: &'a Path,
    tokenizer_hash: [u8; 32],
    vocab_size: u64,
    shard_tokens: u64,
    open: [Option<ShardWriter>; 2],
    records: [SplitRecord; 2],
}

impl Writers<'_> {
    fn new<'a>(dir: &'a Path, tokenizer: &Tokenizer, shard_tokens: u64) -> Writers<'a> {
        Writers {
            dir,
            tokenizer_hash: tokenizer.hash(),
            vocab_size: tokenizer.vocab_size() as u64,
            shard_tokens,
            open: [None, None],
            records: Default::default(),
        }
    }

    fn push(&mut self, batch: &EncodedBatch) -> Result<()> {
        let mut rest = batch.tokens.as_slice();
        for part in &batch.parts {
            let (mut tokens, later) = rest.split_at(part.tokens);
            rest = later;
            self.writer(part.split)?.start_document(part.raw_bytes);
            while !tokens.is_empty() {
                let shard_tokens = self.shard_tokens;
                let writer = self.writer(part.split)?;
                let room = usize::try_from(shard_tokens - writer.tokens()).unwrap_or(usize::MAX);
                let (now, later) = tokens.split_at(room.min(tokens.len()));
                writer.push(now)?;
                tokens = later;
            }
        }
        Ok(())
    }

    /// The open shard of a split, which has room for at least one token.
    fn writer(&mut self, split: Split) -> Result<&mut ShardWriter> {
        let idx = split as usize;
        if self.open[idx].as_ref().is_some_and(|writer| writer.tokens() >= self.shard_tokens) {
            self.close(split)?;
        }
        match &mut self.open[idx] {
            Some(writer) => Ok(writer),
            none => {
                let path = self.dir.join(shard_name(split, self.records[idx].shards.len()));
                Ok(none.insert(ShardWriter::create(&path, self.tokenizer_hash, self.vocab_size)?))
            }
        }
    }

    fn close(&mut self, split: Split) -> Result<()> {
        let idx = split as usize;
        if let Some(writer) = self.open[idx].take() {
            let name = shard_name(split, self.records[idx].shards.len());
            self.records[idx].push(name, &writer.finish()?);
        }
        Ok(())
    }

    fn finish(mut self) -> Result<[SplitRecord; 2]> {
        self.close(Split::Train)?;
        self.close(Split::Validation)?;
        Ok(self.records)
    }
}

fn shard_name(split: Split, shard_idx: usize) -> String {
    format!("{}-{shard_idx:05}.shard", split.name())
}
