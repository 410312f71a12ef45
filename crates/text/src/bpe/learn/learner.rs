//! Merging pair after pair until the vocabulary is full.

use std::collections::BinaryHeap;
use std::ops::Range;

use super::Room;
use super::arena::{Arena, Place, Symbol};
use super::cold::ColdPieces;
use super::pairs::{PairEntry, PairKey, PairTable, ids, key};
use crate::bpe::train::BpeOptions;
use crate::bpe::vocabulary::Vocabulary;
use crate::{Progress, Result};

/// Makes merges until there are enough tokens or no pair is left, and appends them to `merges`.
pub(super) fn merge_all<S: Symbol, K: Ord>(
    (arena, cold): (Arena<S>, Option<ColdPieces<S>>),
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
        cold,
        near: Vec::new(),
        lists: Vec::new(),
        hot: PairTable::with_capacity(0),
        heap: BinaryHeap::new(),
        threshold: u64::MAX,
        events: Vec::new(),
        touched: Vec::new(),
        is_first: true,
        max_remembered: 0,
        max_hot: 0,
        is_stale: true,
        progress,
    };
    while vocabulary.tokens.len() < options.vocab_size {
        if learner.is_stale || learner.heap.is_empty() {
            if !learner.is_stale && learner.threshold <= min_count {
                break;
            }
            let n_wanted = options.vocab_size - vocabulary.tokens.len();
            if let Some(pair) = learner.start_epoch(vocabulary, room, min_count, n_wanted, key_of)? {
                learner.merge_on_disk(pair, vocabulary)?;
                merges.push(pair);
                progress.advance(1);
                continue;
            }
        }
        let Some(pair) = learner.pop_best() else { continue };
        learner.merge(pair, vocabulary, key_of);
        merges.push(pair);
        progress.advance(1);
    }
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

pub(super) struct Learner<'p, S, K> {
    pub(super) arena: Arena<S>,
    /// The pieces without hot pairs, where they do not all fit the arena.
    pub(super) cold: Option<ColdPieces<S>>,
    /// By token.
    near: Vec<Near>,
    /// Lists of places, one after the other.
    pub(super) lists: Vec<Place>,
    pub(super) hot: PairTable,
    /// For every hot pair that may be merged at least one entry, never with too small a count.
    pub(super) heap: BinaryHeap<(u64, K, PairKey)>,
    /// Pairs that occur less often are not known. 1 when all are.
    pub(super) threshold: u64,
    /// New pairs of a step: neighbour and side, and the piece.
    events: Vec<(u32, Place)>,
    /// Neighbours of a step.
    touched: Vec<u32>,
    pub(super) is_first: bool,
    /// A step that visits more pieces does not remember which new pairs arise in which.
    pub(super) max_remembered: usize,
    /// The most pairs that may be hot before a new epoch must begin.
    pub(super) max_hot: usize,
    /// Something is no longer known exactly, or there is no room for more, so that a new epoch must begin.
    pub(super) is_stale: bool,
    pub(super) progress: &'p dyn Progress,
}

/// Places asked for before they are visited.
const AHEAD: usize = 12;

impl<S: Symbol, K: Ord> Learner<'_, S, K> {
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
        let doubled = self.replace(places.clone(), left, right, made);

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
                    let is_full = self.hot.len() >= self.max_hot;
                    if is_full || start + near.n_places[side] as usize > self.lists.capacity() {
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
        self.touched = touched;
        if places.len() > self.max_remembered {
            self.list_again(places, made);
        }
        for &(neighbour, place) in &self.events {
            let (token, side) = ((neighbour >> 1) as usize, neighbour as usize & 1);
            let start = &mut self.near[token].starts[side];
            if *start != usize::MAX {
                self.lists[*start] = place;
                *start += 1;
            }
        }
        self.forget_step();
    }

    /// Fills the lists of the pairs of a new token by visiting its pieces once more.
    fn list_again(&mut self, places: Range<usize>, made: u32) {
        for &token in &self.touched {
            self.near[token as usize].last = [Place::MAX; 2];
        }
        let symbol = S::new(made);
        for idx in places {
            if let Some(&later) = self.lists.get(idx + AHEAD) {
                self.arena.prefetch(later);
            }
            let place = self.lists[idx];
            let symbols = self.arena.symbols(self.arena.record(place));
            let (near, lists) = (&mut self.near, &mut self.lists);
            let mut note = |token: S, side: usize| {
                let near = &mut near[token.id() as usize];
                if near.starts[side] != usize::MAX && near.last[side] != place {
                    lists[near.starts[side]] = place;
                    near.starts[side] += 1;
                    near.last[side] = place;
                }
            };
            for (at, _) in symbols.iter().enumerate().filter(|&(_, &other)| other == symbol) {
                if at > 0 {
                    note(symbols[at - 1], BEFORE);
                }
                if let Some(&after) = symbols.get(at + 1)
                    && after != symbol
                {
                    note(after, AFTER);
                }
            }
        }
    }

    fn forget_step(&mut self) {
        for &token in &self.touched {
            self.near[token as usize] = Near::NONE;
        }
        self.touched.clear();
        self.events.clear();
        self.events.shrink_to(4 * self.max_remembered);
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
    fn replace(&mut self, places: Range<usize>, left: u32, right: u32, made: u32) -> u64 {
        let Self { arena, near, lists, events, touched, max_remembered, .. } = self;
        let remembers = places.len() <= *max_remembered;
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
                if remembers {
                    events.push((id << 1 | side as u32, place));
                }
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
