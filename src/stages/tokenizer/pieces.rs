//! Counting the pieces of a corpus on all threads, in the memory allowed.

use super::Origin;
use crate::failure::{Code, Failure, Result};
use crate::show::Show;
use crate::show::numbers::{bytes, grouped};
use ironmill_data::{Chunk, HELD_SHARE, Inputs, TextChunks};
use ironmill_text::{
    CountSettings, CountedPieces, CounterRoom, CountsFile, LearnRoom, PieceCounter, Progress, TextCuts,
};
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// What counting and learning may use.
#[derive(Clone, Debug)]
pub struct Budget {
    /// The most memory that the process takes, in bytes.
    memory: u64,
    /// How many threads count.
    pub threads: usize,
    /// The folder for what does not fit.
    scratch: Option<PathBuf>,
    /// Whether the rarest pieces are left out instead.
    approximate: bool,
    /// Whether finished counts stay there until they are forgotten.
    keeps_counts: bool,
    /// The counts that stay.
    kept: RefCell<Option<PathBuf>>,
}

const MIB: u64 = 1 << 20;

/// What the program takes besides: its code, stacks, buffers of files, and what the allocator keeps.
const BASE_BYTES: u64 = 24 * MIB;

/// How much text a thread works on.
const CHUNK_BYTES: u64 = MIB;

impl Budget {
    /// A budget, if it is one that suffices.
    pub fn new(memory: u64, threads: usize, scratch: Option<PathBuf>, keeps_counts: bool) -> Result<Budget> {
        let least = (64 + 16 * threads as u64) * MIB;
        if memory < least {
            let message = format!(
                "{} of memory are too few for {threads} threads: allow at least {}, or use fewer threads",
                bytes(memory),
                bytes(least)
            );
            return Err(Failure::new(Code::BadConfig, message));
        }
        let (approximate, kept) = (false, RefCell::new(None));
        Ok(Budget { memory, threads, scratch, approximate, keeps_counts, kept })
    }

    /// The same, but pieces that do not fit the memory while they are counted are left out, the rarest first.
    #[must_use]
    pub fn approximate(self, approximate: bool) -> Budget {
        Budget { approximate, keeps_counts: self.keeps_counts && !approximate, ..self }
    }

    /// What the counts depend on besides text and settings: nothing, unless they are approximate.
    pub fn shapes_counts(&self) -> Option<(u64, usize)> {
        self.approximate.then_some((self.memory, self.threads))
    }

    /// Removes the counts that were kept, once what was made of them is safe.
    pub fn forget_counts(&self) {
        if let Some(path) = self.kept.take() {
            // A leftover costs space and nothing else.
            let _ = std::fs::remove_file(path);
        }
    }

    /// What is left for learning.
    pub fn for_learning(&self) -> LearnRoom {
        // Counting has left holes in what the allocator keeps.
        LearnRoom { memory: self.memory - BASE_BYTES - self.memory / 16, scratch: self.scratch.clone() }
    }

    /// What one thread may count in: its chunk of text and the one being read are taken off.
    fn for_counter(&self) -> usize {
        // What must be held whole, a window of a compressed file for one, is taken off, too.
        let each = (self.memory - BASE_BYTES - self.memory / HELD_SHARE) / self.threads as u64;
        to_usize(each - 3 * CHUNK_BYTES)
    }
}

/// The most memory that the process has taken so far, if the system tells.
pub fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes << 10)
}

fn to_usize(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// Counts the pieces of all documents. Every thread takes a chunk of text when it has none, and counts it.
pub fn count(
    inputs: &Inputs,
    settings: &CountSettings,
    budget: &Budget,
    show: &Show,
    stop: &AtomicBool,
) -> Result<CountedPieces> {
    // The name says what was counted, so that a file of that name is the result of this very count.
    let name = match budget.approximate {
        false => format!(".ironmill-{}.counts", &Origin::of_count(settings, inputs).hash()[..32]),
        true => format!(".ironmill-approximate-{}.counts", std::process::id()),
    };
    let finished = budget.scratch.as_ref().map(|folder| folder.join(name));
    if let Some(path) = finished.as_ref().filter(|_| inputs.are_repeatable() && !budget.approximate)
        && let Ok(file) = CountsFile::open(path)
    {
        show.note("already counted: going on from the counts in the scratch folder");
        *budget.kept.borrow_mut() = Some(path.clone());
        return Ok(CountedPieces::from_file(file));
    }
    let (pattern, special) = (settings.pattern(), settings.special());
    let cuts = TextCuts::new(&pattern, special, settings.lines())?;
    let scratch = budget.scratch.clone();
    let room = CounterRoom { memory: budget.for_counter(), scratch, approximate: budget.approximate };
    let mut counters = (0..budget.threads)
        .map(|_| PieceCounter::new(&pattern, special, room.clone()))
        .collect::<ironmill_text::Result<Vec<_>>>()?;
    let names: Vec<&str> = inputs.names().collect();
    show.start("count", inputs.are_repeatable().then(|| inputs.total_bytes()), "bytes");
    let chunks = inputs.chunks(cuts, to_usize(CHUNK_BYTES), to_usize(budget.memory));
    let shared = Shared {
        chunks: Mutex::new((chunks, 0)),
        names: &names,
        has_failed: AtomicBool::new(false),
        stop,
        show,
    };
    let counted: Vec<Result<()>> = match counters.as_mut_slice() {
        [only] => vec![shared.count(only, settings.lines())],
        counters => std::thread::scope(|scope| {
            let shared = &shared;
            let workers: Vec<_> = counters
                .iter_mut()
                .map(|counter| scope.spawn(|| shared.count(counter, settings.lines())))
                .collect();
            workers
                .into_iter()
                .map(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        }),
    };
    show.finish();
    counted.into_iter().collect::<Result<()>>()?;
    let (chunks, _) = shared.chunks.into_inner().unwrap_or_else(PoisonError::into_inner);
    if chunks.skipped() > 0 {
        show.warn(&format!("{} documents are not UTF-8 and were left out", grouped(chunks.skipped())));
    }
    let memory = to_usize(budget.for_learning().memory);
    let pieces =
        CountedPieces::combine(counters, settings, chunks.documents(), memory, finished.as_deref(), show)?;
    if budget.approximate {
        let (loss, total) = (pieces.loss(), pieces.totals().pieces + pieces.loss().pieces);
        show.warn(&format!(
            "the counts are approximate: {} of {} pieces ({:.3} %) are left out, and no piece's count is too low by more than {}",
            grouped(loss.pieces),
            grouped(total),
            loss.pieces as f64 * 100.0 / total.max(1) as f64,
            grouped(loss.per_piece)
        ));
    }
    if let Some(path) = finished {
        if pieces.file().is_none() && budget.keeps_counts {
            let folder = path.parent().unwrap_or(Path::new("."));
            std::fs::create_dir_all(folder).map_err(|error| Failure::write(folder, &error))?;
            pieces.save(&path, show)?;
        }
        if pieces.file().is_some() || budget.keeps_counts {
            *budget.kept.borrow_mut() = Some(path);
        }
    }
    Ok(pieces)
}

/// What the counting threads share.
struct Shared<'a> {
    /// The text to come, and how much of it progress has been told of.
    chunks: Mutex<(TextChunks<'a>, u64)>,
    names: &'a [&'a str],
    has_failed: AtomicBool,
    stop: &'a AtomicBool,
    show: &'a Show,
}

impl Shared<'_> {
    fn count(&self, counter: &mut PieceCounter, lines: bool) -> Result<()> {
        let result = self.count_chunks(counter, lines);
        if result.is_err() {
            self.has_failed.store(true, Ordering::Relaxed);
        }
        result
    }

    fn count_chunks(&self, counter: &mut PieceCounter, lines: bool) -> Result<()> {
        let mut chunk = Chunk::default();
        while self.next(&mut chunk)? {
            for (text, position) in chunk.parts() {
                let added = if lines {
                    text.split_inclusive('\n').try_for_each(|line| counter.add(line))
                } else {
                    counter.add(text)
                };
                added.map_err(|source| self.failure(&chunk, position, source))?;
            }
        }
        Ok(())
    }

    fn next(&self, chunk: &mut Chunk) -> Result<bool> {
        let mut guard = self.chunks.lock().unwrap_or_else(PoisonError::into_inner);
        let (chunks, told) = &mut *guard;
        if self.has_failed.load(Ordering::Relaxed) {
            return Ok(false);
        }
        if self.stop.load(Ordering::Relaxed) {
            return Err(ironmill_data::Error::Stopped.into());
        }
        // Told before the lock is let go: what another thread found behind an error would hide it.
        let has_more = chunks.next(chunk).inspect_err(|_| self.has_failed.store(true, Ordering::Relaxed))?;
        self.show.at_file(chunks.files_begun(), self.names.len() as u64);
        self.show.advance(chunks.bytes_read() - *told);
        *told = chunks.bytes_read();
        Ok(has_more)
    }

    /// Only what the text itself causes is told with its place.
    fn failure(&self, chunk: &Chunk, position: u64, source: ironmill_text::Error) -> Failure {
        if !matches!(source, ironmill_text::Error::PatternFailed { .. }) {
            return source.into();
        }
        let file = self.names.get(chunk.file_idx()).copied().unwrap_or_default().to_string();
        ironmill_data::Error::Encode { file, position, source }.into()
    }
}
