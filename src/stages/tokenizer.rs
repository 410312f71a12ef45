//! Training a tokenizer: count the documents on all threads, then learn from the counts.

mod origin;
mod pieces;

use crate::config::TokenizerTraining;
use crate::failure::{Code, Failure, Result};
use crate::show::Show;
use crate::show::numbers::grouped;
use ironmill_data::{Document, Inputs};
use ironmill_text::{
    BpeOptions, CharCounts, CharOptions, CountSettings, CountedPieces, CountsFile, FrequentPieces,
    PieceCounts, Progress, Ties, Tokenizer, UNKNOWN, VocabularyReport, WordOptions, learn_bpe, train_char,
    train_word,
};
pub use origin::Origin;
pub use pieces::{Budget, count as count_pieces, peak_memory};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Mutex, PoisonError};

/// How documents are counted, beside what the tokenizer itself is.
#[derive(Clone, Debug)]
pub struct Counting {
    /// Every line is counted as a document of its own, as Hugging Face's file reader does.
    pub by_lines: bool,
    /// The longest token in bytes.
    pub max_token_length: Option<usize>,
    /// The threads, memory and scratch folder to use.
    pub budget: Budget,
}

/// What was learnt, and from what.
pub struct Trained {
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// The most frequent pieces of the text, which make encoding fast; none for kinds that do not need them.
    pub frequent: FrequentPieces,
    /// Documents counted.
    pub documents: u64,
    /// One sentence about it.
    pub summary: String,
}

/// Trains a tokenizer on all documents of the inputs. Setting `stop` ends the counting soon.
pub fn train(
    inputs: &Inputs,
    settings: &TokenizerTraining,
    counting: &Counting,
    show: &Show,
    stop: &AtomicBool,
) -> Result<Trained> {
    match settings.kind.as_str() {
        "char" => train_chars(inputs, settings, counting, show, stop),
        "word" => train_words(inputs, settings, counting, show, stop),
        "byte" => make_bytes(settings),
        _ => train_pairs(inputs, settings, counting, show, stop),
    }
}

/// Bytes are known beforehand, so no text is read.
fn make_bytes(settings: &TokenizerTraining) -> Result<Trained> {
    let tokenizer = Tokenizer::byte(&settings.special)?;
    let summary = format!(
        "{} tokens: the 256 bytes and the special ones, with nothing to learn",
        grouped(tokenizer.vocab_size() as u64)
    );
    Ok(Trained { tokenizer, frequent: FrequentPieces::default(), documents: 0, summary })
}

fn train_pairs(
    inputs: &Inputs,
    settings: &TokenizerTraining,
    counting: &Counting,
    show: &Show,
    stop: &AtomicBool,
) -> Result<Trained> {
    let options = bpe_options(settings, counting)?;
    let count_settings = CountSettings::new(&options.pattern, &options.special, counting.by_lines);
    let pieces = count_pieces(inputs, &count_settings, &counting.budget, show, stop)?;
    learn_pairs(pieces, &options, counting, show)
}

/// Learns a BPE tokenizer from a counts file.
pub fn train_on_counts(
    counts: CountsFile,
    settings: &TokenizerTraining,
    counting: &Counting,
    show: &Show,
) -> Result<Trained> {
    let options = bpe_options(settings, counting)?;
    learn_pairs(CountedPieces::from_file(counts), &options, counting, show)
}

fn bpe_options(settings: &TokenizerTraining, counting: &Counting) -> Result<BpeOptions> {
    Ok(BpeOptions {
        vocab_size: to_usize(settings.vocab_size.unwrap_or_default())?,
        special: settings.special.clone(),
        ties: ties(settings.ties.as_deref().unwrap_or("hf"))?,
        min_count: settings.min_count.unwrap_or(1),
        max_token_length: counting.max_token_length,
        pattern: settings.pattern.as_deref().unwrap_or("gpt2").parse()?,
    })
}

fn learn_pairs(
    pieces: CountedPieces,
    options: &BpeOptions,
    counting: &Counting,
    show: &Show,
) -> Result<Trained> {
    let documents = pieces.totals().documents;
    let frequent = FrequentPieces::of(&pieces, FrequentPieces::USUAL)?;
    let (tokenizer, report) = learn_bpe(pieces, options, &counting.budget.for_learning(), show)?;
    if report.ended_early {
        show.warn(&format!(
            "no pair was left to merge, so the vocabulary has {} tokens instead of {}: give more text for more",
            grouped(tokenizer.vocab_size() as u64),
            grouped(options.vocab_size as u64)
        ));
    }
    let summary = format!(
        "{} tokens by {} merges, learnt from {} distinct pieces of {} in {} documents",
        grouped(tokenizer.vocab_size() as u64),
        grouped(report.merges),
        grouped(report.distinct_pieces),
        grouped(report.total_pieces),
        grouped(documents)
    );
    Ok(Trained { tokenizer, frequent, documents, summary })
}

fn train_chars(
    inputs: &Inputs,
    settings: &TokenizerTraining,
    counting: &Counting,
    show: &Show,
    stop: &AtomicBool,
) -> Result<Trained> {
    let options = CharOptions {
        vocab_size: settings.vocab_size.map(to_usize).transpose()?,
        special: settings.special.clone(),
        min_count: settings.min_count.unwrap_or(1),
    };
    let (counts, documents) = count(inputs, counting, show, stop, || CharCounts::new(&options.special))?;
    let (tokenizer, report) = train_char(&counts, &options)?;
    warn_of_dropped(&report, "characters", &options.special, show);
    let summary = summarise(&tokenizer, &report, "characters", documents);
    Ok(Trained { tokenizer, frequent: FrequentPieces::default(), documents, summary })
}

fn train_words(
    inputs: &Inputs,
    settings: &TokenizerTraining,
    counting: &Counting,
    show: &Show,
    stop: &AtomicBool,
) -> Result<Trained> {
    let options = WordOptions {
        vocab_size: settings.vocab_size.map(to_usize).transpose()?,
        pattern: settings.pattern.as_deref().unwrap_or("gpt2").parse()?,
        special: settings.special.clone(),
        min_count: settings.min_count.unwrap_or(1),
    };
    let empty = || PieceCounts::new(&options.pattern, &options.special);
    let (counts, documents) = count(inputs, counting, show, stop, empty)?;
    let (tokenizer, report) = train_word(&counts, &options)?;
    warn_of_dropped(&report, "words", &options.special, show);
    let summary = summarise(&tokenizer, &report, "words", documents);
    Ok(Trained { tokenizer, frequent: FrequentPieces::default(), documents, summary })
}

/// Says what the limits left out, how much of the corpus that is, and what becomes of it.
fn warn_of_dropped(report: &VocabularyReport, noun: &str, special: &[String], show: &Show) {
    if report.dropped == 0 {
        return;
    }
    let fate = if special.iter().any(|text| text == UNKNOWN) {
        format!("they become {UNKNOWN}")
    } else {
        format!("text that has them cannot be encoded: add \"{UNKNOWN}\" to the special tokens")
    };
    show.warn(&format!(
        "{} {noun} are not in the vocabulary, {:.2} % of all; {fate}, \
         or raise the vocabulary size or lower the smallest count to keep them",
        grouped(report.dropped),
        report.dropped_share() * 100.0
    ));
}

fn summarise(tokenizer: &Tokenizer, report: &VocabularyReport, noun: &str, documents: u64) -> String {
    format!(
        "{} tokens for {} {noun}, found in {} of {} documents",
        grouped(tokenizer.vocab_size() as u64),
        grouped(report.kept),
        grouped(report.total),
        grouped(documents)
    )
}

/// The name of a tokenizer's kind, as people type it.
pub fn kind_name(tokenizer: &Tokenizer) -> String {
    format!("{:?}", tokenizer.kind()).to_lowercase()
}

fn ties(name: &str) -> Result<Ties> {
    match name {
        "hf" => Ok(Ties::Hf),
        "raw" => Ok(Ties::Raw),
        "bytes" => Ok(Ties::Bytes),
        _ => Err(Failure::new(Code::BadConfig, format!("unknown ties \"{name}\": use hf, raw or bytes"))),
    }
}

fn to_usize(number: u64) -> Result<usize> {
    usize::try_from(number).map_err(|_| {
        Failure::new(Code::BadConfig, format!("a vocabulary of {number} is too large for this machine"))
    })
}

/// A table of counts that can be filled in parts.
trait Counts: Send + Sized {
    fn add(&mut self, document: &[u8]) -> ironmill_text::Result<()>;
    fn join(&mut self, other: Self) -> ironmill_text::Result<()>;
}

impl Counts for PieceCounts {
    fn add(&mut self, document: &[u8]) -> ironmill_text::Result<()> {
        self.add_document(document)
    }

    fn join(&mut self, other: Self) -> ironmill_text::Result<()> {
        self.merge(other)
    }
}

impl Counts for CharCounts {
    fn add(&mut self, document: &[u8]) -> ironmill_text::Result<()> {
        self.add_document(document)
    }

    fn join(&mut self, other: Self) -> ironmill_text::Result<()> {
        self.merge(other)
    }
}

/// Documents go to the counting threads in batches of about this size, so that small ones cost no hand-over each.
const BATCH_BYTES: usize = 1 << 18;

/// Counts all documents: this thread reads, the others count. Counts are sums, so their number changes nothing.
fn count<C: Counts>(
    inputs: &Inputs,
    counting: &Counting,
    show: &Show,
    stop: &AtomicBool,
    empty: impl Fn() -> ironmill_text::Result<C>,
) -> Result<(C, u64)> {
    let (threads, by_lines) = (counting.budget.threads, counting.by_lines);
    let mut tables = (0..threads).map(|_| empty()).collect::<ironmill_text::Result<Vec<C>>>()?;
    let names: Vec<&str> = inputs.names().collect();
    let has_failed = AtomicBool::new(false);
    show.start("count", Some(inputs.total_bytes()), "bytes");
    // Two batches a thread keep everybody busy and bound what is held in memory.
    let (sender, receiver) = sync_channel(2 * threads);
    let receiver = Mutex::new(receiver);
    let (read, counted) = std::thread::scope(|scope| {
        let (names, has_failed, receiver) = (&names, &has_failed, &receiver);
        let workers: Vec<_> = tables
            .iter_mut()
            .map(|table| {
                scope.spawn(move || {
                    let result = count_batches(table, receiver, by_lines, names);
                    if result.is_err() {
                        has_failed.store(true, Ordering::Relaxed);
                        // Others may wait to hand over a batch; take what they have until they stop.
                        while next_batch(receiver).is_some() {}
                    }
                    result
                })
            })
            .collect();
        let send = move |batch| !has_failed.load(Ordering::Relaxed) && sender.send(batch).is_ok();
        // The sender ends with this call, and with it the workers' loops.
        let read = read_batches(inputs, show, stop, send);
        let counted: Vec<Result<()>> = workers.into_iter().map(join_worker).collect();
        (read, counted)
    });
    show.finish();
    counted.into_iter().collect::<Result<()>>()?;
    let documents = read?;
    let mut tables = tables.into_iter();
    let mut total = tables.next().map_or_else(&empty, Ok)?;
    for table in tables {
        total.join(table)?;
    }
    Ok((total, documents))
}

/// Reads documents into batches until all are read or `send` refuses one; says how many there were.
fn read_batches(
    inputs: &Inputs,
    show: &Show,
    stop: &AtomicBool,
    mut send: impl FnMut(Vec<Document>) -> bool,
) -> Result<u64> {
    let mut documents = inputs.documents();
    let mut batch = Vec::new();
    let mut batch_bytes = 0;
    let mut n_documents = 0;
    let mut bytes_told = 0;
    while let Some(document) = documents.next() {
        let document = document?;
        if stop.load(Ordering::Relaxed) {
            return Err(ironmill_data::Error::Stopped.into());
        }
        n_documents += 1;
        batch_bytes += document.text.len();
        batch.push(document);
        if batch_bytes >= BATCH_BYTES {
            show.advance(documents.bytes_read() - bytes_told);
            bytes_told = documents.bytes_read();
            batch_bytes = 0;
            if !send(std::mem::take(&mut batch)) {
                return Ok(n_documents);
            }
        }
    }
    show.advance(documents.bytes_read() - bytes_told);
    if documents.skipped() > 0 {
        show.warn(&format!("{} documents are not UTF-8 and were left out", grouped(documents.skipped())));
    }
    send(batch);
    if n_documents == 0 {
        // The library words this failure; nothing is visited, because there is nothing.
        inputs.for_each(|_| Ok(()))?;
    }
    Ok(n_documents)
}

fn count_batches<C: Counts>(
    table: &mut C,
    receiver: &Mutex<Receiver<Vec<Document>>>,
    by_lines: bool,
    names: &[&str],
) -> Result<()> {
    while let Some(batch) = next_batch(receiver) {
        for document in batch {
            let bytes = document.text.as_bytes();
            let added = if by_lines {
                bytes.split_inclusive(|&byte| byte == b'\n').try_for_each(|line| table.add(line))
            } else {
                table.add(bytes)
            };
            added.map_err(|source| {
                let file = names.get(document.file_idx).copied().unwrap_or_default().to_string();
                Failure::from(ironmill_data::Error::Encode { file, position: document.position, source })
            })?;
        }
    }
    Ok(())
}

fn next_batch(receiver: &Mutex<Receiver<Vec<Document>>>) -> Option<Vec<Document>> {
    receiver.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
}

fn join_worker(worker: std::thread::ScopedJoinHandle<'_, Result<()>>) -> Result<()> {
    worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
