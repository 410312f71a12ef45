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
//! fallen below the threshold. Then an *epoch* ends: one walk through the arena counts all pairs anew, and the threshold sinks
//! to where the lists of the hot pairs just fit the memory. If even the table of all pairs does not fit, a first walk sums
//! counts in a fixed array of upper bounds, and only pairs whose bound reaches the threshold are counted exactly.

mod arena;
mod pairs;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;

use super::train::{BpeOptions, Ties, TrainReport, finish, prepare};
use super::vocabulary::Vocabulary;
use crate::count::CountedPieces;
use crate::{Error, PieceCounts, Progress, Result, Tokenizer};
use arena::{Arena, Place, Symbol};
use pairs::{PairEntry, PairKey, PairTable, Sketch, ids, key};

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

/// Learns a BPE tokenizer from counted pieces, in at most `memory` bytes beside what the process has otherwise.
///
/// The pieces are let go as soon as they have been read. The result depends on the pieces and options alone.
pub fn learn_bpe(
    pieces: impl PieceSource,
    options: &BpeOptions,
    memory: u64,
    progress: &dyn Progress,
) -> Result<(Tokenizer, TrainReport)> {
    pieces.check_settings(options)?;
    let (total_pieces, distinct_pieces) = pieces.totals();
    let n_wanted = prepare(options, total_pieces)?;
    let mut vocabulary = Vocabulary::new(options)?;
    let room = Room::new(memory);
    let merges = if options.vocab_size <= 1 << 16 {
        learn::<u16>(pieces, options, &mut vocabulary, room, n_wanted, progress)?
    } else {
        learn::<u32>(pieces, options, &mut vocabulary, room, n_wanted, progress)?
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
    if needed > left {
        let total = needed + pieces.n_bytes() as u64;
        return Err(Error::ArenaTooLarge { distinct, wanted: needed, left, total });
    }
    let mut arena = Arena::<S>::with_capacity(n_long_enough as usize, n_bytes as usize);
    let mut n_told = 0;
    pieces.for_each(&mut |piece, count| {
        arena.push(piece.iter().map(|&byte| vocabulary.byte_ids[usize::from(byte)]), count)?;
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
            merge_all(arena, options, vocabulary, room, &key_of, &mut merges, progress)?;
        }
        Ties::Bytes => {
            let key_of = |vocabulary: &Vocabulary, (left, right): (u32, u32)| {
                let bytes = |id: u32| Rc::clone(&vocabulary.tokens[id as usize]);
                (bytes(left), bytes(right))
            };
            merge_all(arena, options, vocabulary, room, &key_of, &mut merges, progress)?;
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
}

impl Room {
    fn new(memory: u64) -> Self {
        let memory = usize::try_from(memory).unwrap_or(usize::MAX);
        Self { memory, min_working: MIN_WORKING_BYTES as usize, max_fall: 64 }
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

fn merge_all<S: Symbol, K: Ord>(
    arena: Arena<S>,
    options: &BpeOptions,
    vocabulary: &mut Vocabulary,
    room: Room,
    key_of: &dyn Fn(&Vocabulary, (u32, u32)) -> K,
    merges: &mut Vec<(u32, u32)>,
    progress: &dyn Progress,
) -> Result<()> {
    let min_count = options.min_count.max(1);
    let mut learner = Learner {
        arena,
        near: Vec::new(),
        lists: Vec::new(),
        hot: PairTable::with_capacity(0),
        heap: BinaryHeap::new(),
        threshold: u64::MAX,
        events: Vec::new(),
        touched: Vec::new(),
        is_first: true,
        n_pairs: 0,
        is_stale: true,
    };
    let mut n_told = 0;
    while vocabulary.tokens.len() < options.vocab_size {
        if learner.is_stale || learner.heap.is_empty() {
            if !learner.is_stale && learner.threshold <= min_count {
                break;
            }
            let n_wanted = options.vocab_size - vocabulary.tokens.len();
            learner.start_epoch(vocabulary, room, min_count, n_wanted, key_of)?;
        }
        let Some(pair) = learner.pop_best() else { continue };
        learner.merge(pair, vocabulary, key_of);
        merges.push(pair);
        n_told += 1;
        if n_told == 256 {
            progress.advance(n_told);
            n_told = 0;
        }
    }
    progress.advance(n_told);
    Ok(())
}

/// What changes next to the pair being merged, for one neighbouring token.
#[derive(Clone, Copy)]
struct Near {
    /// How often it stands before the pair, and after it.
    counts: [u64; 2],
    /// In how many pieces.
    n_places: [u32; 2],
    /// The last piece that was noted.
    last: [Place; 2],
    /// Where its list of places starts.
    starts: [usize; 2],
}

impl Near {
    const NONE: Self =
        Self { counts: [0; 2], n_places: [0; 2], last: [Place::MAX; 2], starts: [usize::MAX; 2] };
}

/// The two sides of a pair.
const BEFORE: usize = 0;
const AFTER: usize = 1;

struct Learner<S, K> {
    arena: Arena<S>,
    /// By token.
    near: Vec<Near>,
    /// Lists of places, one after the other.
    lists: Vec<Place>,
    hot: PairTable,
    /// For every hot pair that may be merged at least one entry, never with too small a count.
    heap: BinaryHeap<(u64, K, PairKey)>,
    /// Pairs that occur less often are not known. 1 when all are.
    threshold: u64,
    /// New pairs of a step: neighbour and side, and the piece.
    events: Vec<(u32, Place)>,
    /// Neighbours of a step.
    touched: Vec<u32>,
    is_first: bool,
    /// How many pairs there were when all of them were last counted: a guess of how many there will be.
    n_pairs: usize,
    /// Something is no longer known exactly, or there is no room for more, so that a new epoch must begin.
    is_stale: bool,
}

/// Places asked for before they are visited.
const AHEAD: usize = 12;

impl<S: Symbol, K: Ord> Learner<S, K> {
    /// Counts all pairs and lists the hot ones.
    fn start_epoch(
        &mut self,
        vocabulary: &Vocabulary,
        room: Room,
        min_count: u64,
        n_wanted: usize,
        key_of: &dyn Fn(&Vocabulary, (u32, u32)) -> K,
    ) -> Result<()> {
        self.lists = Vec::new();
        self.hot = PairTable::with_capacity(0);
        let working = room.memory.saturating_sub(self.arena.n_bytes()).max(room.min_working);
        let (all, at_least) = self.count_pairs(vocabulary, working / 3, min_count)?;
        let is_allowed = |entry: &&PairEntry| vocabulary.allows(ids(entry.key));
        let mut highest = 0;
        for entry in all.iter() {
            if entry.count > highest && is_allowed(&entry) {
                highest = entry.count;
            }
        }
        let mut threshold = at_least.max(min_count).max(highest / room.max_fall);
        let likely = all.iter().filter(|entry| entry.count >= threshold).filter(is_allowed);
        let mut counts: Vec<(u64, u32)> = likely.map(|entry| (entry.count, entry.n_places)).collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        // Pairs beyond as many as are wanted are not needed, as long as no better ones arise.
        if let Some(&(count, _)) = counts.get(n_wanted) {
            threshold = threshold.max(count);
        }

        // The threshold sinks as long as the lists fit. A new pair's list takes room, too, hence a half of it.
        let max_places = working / 3 / size_of::<Place>() / 2;
        let max_hot = working / 6 / (PairTable::n_bytes_for(1024) / 1024).max(1);
        let (mut n_places, mut n_hot) = (0, 0);
        for &(count, places) in &counts {
            n_places += places as usize;
            n_hot += 1;
            if (n_places > max_places || n_hot > max_hot) && n_hot > 1 {
                threshold = threshold.max(count + 1);
                break;
            }
        }
        // All pairs of the highest count are in, however many they are: otherwise nothing could be merged.
        if highest >= at_least {
            threshold = threshold.min(highest);
        }
        self.threshold = threshold;
        (self.is_first, self.is_stale) = (false, false);

        self.hot = PairTable::with_capacity(n_hot);
        let mut start = 0;
        for entry in all.iter().filter(|entry| entry.count >= threshold).filter(is_allowed) {
            self.hot.insert(PairEntry { start, n_places: 0, ..*entry });
            start += entry.n_places as usize;
        }
        drop(all);
        self.lists.reserve_exact((start * 4 + (1 << 16)).min(max_places * 2).max(start));
        self.lists.resize(start, 0);
        let Self { arena, hot, lists, .. } = self;
        arena.for_each(|place, symbols| {
            for pair in symbols.windows(2) {
                if let Some(entry) = hot.get_mut(key(pair[0].id(), pair[1].id())) {
                    let end = entry.start + entry.n_places as usize;
                    if entry.n_places == 0 || lists[end - 1] != place {
                        lists[end] = place;
                        entry.n_places += 1;
                    }
                }
            }
        });
        let mut heap: Vec<_> = self
            .hot
            .iter()
            .map(|entry| (entry.count, key_of(vocabulary, ids(entry.key)), entry.key))
            .collect();
        heap.shrink_to_fit();
        self.heap = BinaryHeap::from(heap);
        Ok(())
    }

    /// Counts the pairs of all pieces; those that occur less often than the number given back may be missing.
    fn count_pairs(
        &mut self,
        vocabulary: &Vocabulary,
        room: usize,
        min_count: u64,
    ) -> Result<(PairTable, u64)> {
        let overflow = || Error::CountOverflow("a pair".to_owned());
        if self.is_first {
            return self.count_byte_pairs(vocabulary).map(|all| (all, min_count));
        }
        let max_pairs = room / 2 / (PairTable::n_bytes_for(1 << 20) >> 20);
        let mut all = PairTable::with_capacity(self.n_pairs.min(max_pairs));
        let (mut overflows, mut is_full) = (false, false);
        self.arena.compact(|symbols, count| {
            if is_full {
                return;
            }
            for pair in symbols.windows(2) {
                overflows |= all.add(key(pair[0].id(), pair[1].id()), count, 1);
            }
            is_full = all.len() > max_pairs;
        });
        if overflows {
            return Err(overflow());
        }
        if !is_full {
            self.n_pairs = all.len();
            return Ok((all, min_count));
        }
        drop(all);
        let mut sketch = Sketch::new(room / 2);
        self.arena.compact(|symbols, count| {
            for pair in symbols.windows(2) {
                sketch.add(key(pair[0].id(), pair[1].id()), count);
            }
        });
        let mut at_least = (self.threshold / 2).max(min_count);
        let (mut too_low, mut limit) = (None, max_pairs);
        loop {
            let mut all = PairTable::with_capacity(0);
            let mut is_full = false;
            self.arena.compact(|symbols, count| {
                if is_full {
                    return;
                }
                for pair in symbols.windows(2) {
                    let key = key(pair[0].id(), pair[1].id());
                    if sketch.bound(key) >= at_least {
                        overflows |= all.add(key, count, 1);
                    }
                }
                is_full = all.len() > limit;
            });
            if overflows {
                return Err(overflow());
            }
            if is_full {
                too_low = Some(at_least);
                at_least = at_least.saturating_add(at_least / 4 + 1);
                continue;
            }
            let none_reaches = all.iter().all(|entry| entry.count < at_least);
            match too_low {
                // So many pairs are all but equally frequent that they must be held, whatever the room.
                Some(lower) if none_reaches && at_least > min_count => {
                    at_least = if limit == usize::MAX { (at_least / 2).max(min_count) } else { lower };
                    limit = usize::MAX;
                }
                _ => return Ok((all, at_least)),
            }
        }
    }

    /// At first all symbols are bytes, so that an array has room for all pairs.
    fn count_byte_pairs(&mut self, vocabulary: &Vocabulary) -> Result<PairTable> {
        let first = vocabulary.byte_ids.iter().copied().min().unwrap_or(0);
        let mut counts = vec![(0u64, 0u32); 1 << 16];
        let mut overflows = false;
        self.arena.compact(|symbols, count| {
            for pair in symbols.windows(2) {
                let idx = (pair[0].id() - first) << 8 | (pair[1].id() - first);
                let (sum, n_places) = &mut counts[idx as usize];
                let (added, overflow) = sum.overflowing_add(count);
                overflows |= overflow;
                (*sum, *n_places) = (added, n_places.saturating_add(1));
            }
        });
        if overflows {
            return Err(Error::CountOverflow("a pair".to_owned()));
        }
        let mut all = PairTable::with_capacity(counts.iter().filter(|(count, _)| *count > 0).count());
        for (idx, &(count, n_places)) in (0u32..).zip(&counts).filter(|(_, (count, _))| *count > 0) {
            let key = key(first + (idx >> 8), first + (idx & 0xff));
            all.insert(PairEntry { key, count, start: 0, n_places });
        }
        Ok(all)
    }

    /// Takes the best pair, or nothing if the entry on top was out of date.
    fn pop_best(&mut self) -> Option<(u32, u32)> {
        let (count, order, pair) = self.heap.pop()?;
        let entry = self.hot.get_mut(pair)?;
        if entry.count == count {
            return Some(ids(pair));
        }
        if entry.count >= self.threshold {
            self.heap.push((entry.count, order, pair));
        }
        None
    }

    /// Replaces the pair by its token in every piece and corrects all counts.
    fn merge(
        &mut self,
        (left, right): (u32, u32),
        vocabulary: &mut Vocabulary,
        key_of: &dyn Fn(&Vocabulary, (u32, u32)) -> K,
    ) {
        let n_before = vocabulary.tokens.len();
        let made = vocabulary.token_of((left, right));
        let Some(entry) = self.hot.get_mut(key(left, right)) else { return };
        entry.count = 0;
        let places = entry.start..entry.start + entry.n_places as usize;
        self.near.resize(vocabulary.tokens.len(), Near::NONE);
        let doubled = self.replace(places, left, right, made);

        if (made as usize) < n_before {
            // The token was there already: its pairs have counts and lists that are no longer complete, so all are counted
            // anew.
            self.forget_step();
            self.is_stale = true;
            return;
        }
        self.lower(key(right, left), doubled, key(left, right));
        self.near[made as usize].counts[BEFORE] += doubled;
        let touched = std::mem::take(&mut self.touched);
        for &token in &touched {
            let near = self.near[token as usize];
            for side in [BEFORE, AFTER] {
                let count = near.counts[side];
                if count == 0 {
                    continue;
                }
                let (old, new) = match side {
                    BEFORE => ((token, left), (token, made)),
                    _ => ((right, token), (made, token)),
                };
                if token != made {
                    self.lower(key(old.0, old.1), count, key(left, right));
                }
                if count >= self.threshold && vocabulary.allows(new) {
                    let start = self.lists.len();
                    if start + near.n_places[side] as usize > self.lists.capacity() {
                        self.is_stale = true;
                        continue;
                    }
                    self.near[token as usize].starts[side] = start;
                    self.lists.resize(start + near.n_places[side] as usize, 0);
                    let key = key(new.0, new.1);
                    self.hot.insert(PairEntry { key, count, start, n_places: near.n_places[side] });
                    self.heap.push((count, key_of(vocabulary, new), key));
                }
            }
        }
        for &(neighbour, place) in &self.events {
            let (token, side) = ((neighbour >> 1) as usize, neighbour as usize & 1);
            let start = &mut self.near[token].starts[side];
            if *start != usize::MAX {
                self.lists[*start] = place;
                *start += 1;
            }
        }
        self.touched = touched;
        self.forget_step();
    }

    fn forget_step(&mut self) {
        for &token in &self.touched {
            self.near[token as usize] = Near::NONE;
        }
        self.touched.clear();
        self.events.clear();
    }

    #[inline(always)]
    fn lower(&mut self, pair: PairKey, count: u64, merged: PairKey) {
        if count > 0
            && pair != merged
            && let Some(entry) = self.hot.get_mut(pair)
        {
            entry.count -= count;
        }
    }

    /// Rewrites the pieces at the places of a pair and notes what stands beside it. Gives how often two of the pairs stood
    /// side by side.
    fn replace(&mut self, places: std::ops::Range<usize>, left: u32, right: u32, made: u32) -> u64 {
        let Self { arena, near, lists, events, touched, .. } = self;
        let (left, right, symbol) = (S::new(left), S::new(right), S::new(made));
        let mut doubled = 0;
        let mut note = |token: S, side: usize, count: u64, place: Place| {
            let id = token.id();
            let near = &mut near[id as usize];
            if near.n_places == [0; 2] {
                touched.push(id);
            }
            near.counts[side] += count;
            if near.last[side] != place {
                near.last[side] = place;
                near.n_places[side] += 1;
                events.push((id << 1 | side as u32, place));
            }
        };
        let list = &lists[places];
        for (idx, &place) in list.iter().enumerate() {
            if let Some(&later) = list.get(idx + AHEAD) {
                arena.prefetch(later);
            }
            let record = arena.record(place);
            let count = record.count;
            let symbols = arena.symbols_mut(record);
            let len = symbols.len();
            let Some(first) = symbols.windows(2).position(|pair| pair[0] == left && pair[1] == right) else {
                continue;
            };
            let (mut read, mut written, mut after_pair) = (first, first, false);
            while read < len {
                if symbols[read] != left || read + 1 >= len || symbols[read + 1] != right {
                    symbols[written] = symbols[read];
                    (read, written, after_pair) = (read + 1, written + 1, false);
                    continue;
                }
                if after_pair {
                    doubled += count;
                    note(symbol, BEFORE, 0, place);
                } else if written > 0 {
                    note(symbols[written - 1], BEFORE, count, place);
                }
                if read + 2 < len {
                    let pair_follows = symbols[read + 2] == left && symbols.get(read + 3) == Some(&right);
                    if !pair_follows {
                        note(symbols[read + 2], AFTER, count, place);
                    }
                }
                symbols[written] = symbol;
                (read, written, after_pair) = (read + 2, written + 1, true);
            }
            arena.set_len(place, record, written);
        }
        doubled
    }
}

#[cfg(test)]
mod tests;
