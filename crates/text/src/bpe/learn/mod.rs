//! Learning merges in bounded memory, exactly.
//!
//! What makes it cheap:
//! - The distinct pieces lie in one compact [arena]; merging rewrites them in place.
//! - Every occurrence of a pair with a new token appears in the very step that makes the token, so the list of a pair's
//!   pieces is complete when it is made and never changes. A piece that no longer has the pair is found out by looking.
//! - During a step the changes are summed up by neighbour in a dense array, so that tables are asked once for each distinct
//!   neighbour and not for each occurrence.
//! - Counts of existing pairs only fall, so a heap that is corrected when a pair is taken from it gives the exact order.
//!
//! What bounds it: only *hot* pairs, those that occur at least as often as a threshold, have counts and lists. Other pairs can
//! only fall further, and a new pair's full count is known when it arises, so nothing is missed until the best hot pair has
//! fallen below the threshold. Then an *epoch* ends: a walk through the arena sums the counts of all pairs in a small array of
//! upper bounds, a second one counts those pairs exactly whose bound is high enough, and the threshold sinks as far as the lists
//! of the hot pairs fit the memory.
//!
//! Where not even the pieces fit, they lie on disk and an epoch has only those in memory that have a [hot pair](cold).

mod arena;
mod cold;
mod epoch;
mod learner;
mod pairs;

use std::cmp::Reverse;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::train::{BpeOptions, Ties, TrainReport, finish, prepare};
use super::vocabulary::Vocabulary;
use crate::count::CountedPieces;
use crate::{Error, PieceCounts, Progress, Result, Tokenizer};
use arena::{Arena, Place, Symbol};
use cold::ColdPieces;
use learner::merge_all;
use pairs::key;

/// Something that has the distinct pieces of a corpus.
pub trait PieceSource {
    /// Refuses a use with another pattern or other special tokens than the pieces were counted with.
    fn check_settings(&self, options: &BpeOptions) -> Result<()>;
    /// How many pieces there are, and how many of them are distinct.
    fn totals(&self) -> (u64, u64);
    /// Memory that the pieces take as long as they are there, in bytes.
    fn n_bytes(&self) -> usize;
    /// Calls `visit` with every distinct piece and its count.
    fn for_each(&self, visit: &mut dyn FnMut(&[u8], u64) -> Result<()>) -> Result<()>;
}

impl PieceSource for &PieceCounts {
    fn check_settings(&self, options: &BpeOptions) -> Result<()> {
        PieceCounts::check_settings(self, &options.pattern, options.special.iter().map(String::as_str))
    }

    fn totals(&self) -> (u64, u64) {
        (self.total(), self.distinct())
    }

    fn n_bytes(&self) -> usize {
        0
    }

    fn for_each(&self, visit: &mut dyn FnMut(&[u8], u64) -> Result<()>) -> Result<()> {
        self.sorted().into_iter().try_for_each(|(piece, count)| visit(piece, count))
    }
}

impl PieceSource for CountedPieces {
    fn check_settings(&self, options: &BpeOptions) -> Result<()> {
        let lines = self.settings().lines();
        let wanted = crate::CountSettings::new(&options.pattern, &options.special, lines);
        self.settings().check_same(&wanted)
    }

    fn totals(&self) -> (u64, u64) {
        (CountedPieces::totals(self).pieces, CountedPieces::totals(self).distinct)
    }

    fn n_bytes(&self) -> usize {
        CountedPieces::n_bytes(self)
    }

    fn for_each(&self, visit: &mut dyn FnMut(&[u8], u64) -> Result<()>) -> Result<()> {
        CountedPieces::for_each(self, visit)
    }
}

/// What learning may use.
#[derive(Debug, Clone)]
pub struct LearnRoom {
    /// Memory beside what the process has otherwise, in bytes.
    pub memory: u64,
    /// The folder for pieces that do not fit; without one that is an error.
    pub scratch: Option<PathBuf>,
}

impl LearnRoom {
    /// All the memory there is.
    pub const UNLIMITED: Self = Self { memory: u64::MAX, scratch: None };
}

/// Learns a BPE tokenizer from counted pieces. Those that do not fit the memory lie in the scratch folder.
///
/// The pieces are let go as soon as they have been read. The result depends on the pieces and options alone.
pub fn learn_bpe(
    pieces: impl PieceSource,
    options: &BpeOptions,
    room: &LearnRoom,
    progress: &dyn Progress,
) -> Result<(Tokenizer, TrainReport)> {
    pieces.check_settings(options)?;
    let (total_pieces, distinct_pieces) = pieces.totals();
    let n_wanted = prepare(options, total_pieces)?;
    let mut vocabulary = Vocabulary::new(options)?;
    let (scratch, room) = (room.scratch.as_deref(), Room::new(room.memory));
    let merges = if options.vocab_size <= 1 << 16 {
        learn::<u16>(pieces, options, &mut vocabulary, room, scratch, n_wanted, progress)?
    } else {
        learn::<u32>(pieces, options, &mut vocabulary, room, scratch, n_wanted, progress)?
    };
    let report = TrainReport {
        merges: merges.len() as u64,
        ended_early: vocabulary.tokens.len() < options.vocab_size,
        distinct_pieces,
        total_pieces,
    };
    Ok((finish(options, &vocabulary, merges)?, report))
}

fn learn<S: Symbol>(
    pieces: impl PieceSource,
    options: &BpeOptions,
    vocabulary: &mut Vocabulary,
    room: Room,
    scratch: Option<&Path>,
    n_wanted: u64,
    progress: &dyn Progress,
) -> Result<Vec<(u32, u32)>> {
    let (_, distinct) = pieces.totals();
    progress.start("load", Some(distinct), "pieces");
    let mut n_bytes = 0;
    let mut n_long_enough = 0;
    pieces.for_each(&mut |piece, _| {
        if piece.len() > 1 {
            n_long_enough += 1;
            n_bytes += piece.len() as u64;
        }
        Ok(())
    })?;
    let wanted = Arena::<S>::n_bytes_for(n_long_enough, n_bytes);
    let left = (room.memory as u64).saturating_sub(pieces.n_bytes() as u64);
    // Lists and tables of pairs need some room, too.
    let needed = wanted + (wanted / 8).max(room.min_working as u64);
    let fits = needed <= left && wanted / 4 <= u64::from(Place::MAX);
    let (mut arena, mut cold) = match scratch {
        _ if fits => (Arena::<S>::with_capacity(n_long_enough as usize, n_bytes as usize), None),
        Some(folder) => (Arena::with_capacity(0, 0), Some(ColdPieces::create(folder, wanted)?)),
        None => {
            let total = needed + pieces.n_bytes() as u64;
            return Err(Error::ArenaTooLarge { distinct, wanted: needed, left, total });
        }
    };
    let (mut n_told, mut symbols) = (0, Vec::new());
    pieces.for_each(&mut |piece, count| {
        let ids = piece.iter().map(|&byte| vocabulary.byte_ids[usize::from(byte)]);
        match &mut cold {
            None => arena.push(ids, count)?,
            Some(cold) => {
                symbols.clear();
                symbols.extend(ids.map(S::new));
                cold.push(&symbols, count)?;
            }
        }
        n_told += 1;
        if n_told == 1 << 20 {
            progress.advance(n_told);
            n_told = 0;
        }
        Ok(())
    })?;
    progress.advance(n_told);
    progress.finish();
    drop(pieces);

    progress.start("merge", Some(n_wanted), "merges");
    let order = Order { ties: options.ties };
    let mut merges = Vec::new();
    match options.ties {
        Ties::Hf | Ties::Raw => {
            let key_of = |vocabulary: &Vocabulary, pair| order.ranks(vocabulary, pair);
            merge_all((arena, cold), options, vocabulary, room, &key_of, &mut merges, progress)?;
        }
        Ties::Bytes => {
            let key_of = |vocabulary: &Vocabulary, (left, right): (u32, u32)| {
                let bytes = |id: u32| Rc::clone(&vocabulary.tokens[id as usize]);
                (bytes(left), bytes(right))
            };
            merge_all((arena, cold), options, vocabulary, room, &key_of, &mut merges, progress)?;
        }
    }
    progress.finish();
    Ok(merges)
}

/// The least room for lists and tables of pairs.
const MIN_WORKING_BYTES: u64 = 4 << 20;

/// What learning may use, and how far the threshold sinks in an epoch.
#[derive(Debug, Clone, Copy)]
struct Room {
    /// For everything, in bytes.
    memory: usize,
    /// For lists and tables of pairs at least, in bytes.
    min_working: usize,
    /// A threshold is at least this part of the highest count, because rare pairs cost more to keep than to count again.
    max_fall: u64,
    /// A step that visits more pieces does not remember which new pairs arise in which, but visits the pieces again.
    max_remembered: usize,
}

impl Room {
    fn new(memory: u64) -> Self {
        let memory = usize::try_from(memory).unwrap_or(usize::MAX);
        Self { memory, min_working: MIN_WORKING_BYTES as usize, max_fall: 64, max_remembered: 1 << 20 }
    }
}

/// How pairs of equal count compare, where that is by numbers.
struct Order {
    ties: Ties,
}

impl Order {
    /// The ranks of the two tokens, smallest first.
    fn ranks(&self, vocabulary: &Vocabulary, (left, right): (u32, u32)) -> Reverse<u64> {
        let rank = |id: u32| match self.ties {
            Ties::Raw => vocabulary.raw_rank(id),
            _ => id,
        };
        Reverse(key(rank(left), rank(right)))
    }
}

#[cfg(test)]
mod tests;
