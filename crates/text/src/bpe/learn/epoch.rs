//! The beginning of an epoch: counting all pairs, choosing the threshold, listing the hot pairs.

use std::collections::BinaryHeap;

use super::Room;
use super::arena::{Arena, Place, Symbol};
use super::cold::replace_pair;
use super::learner::Learner;
use super::pairs::{PairEntry, PairFilter, PairTable, Sketch, ids, key};
use crate::bpe::vocabulary::Vocabulary;
use crate::{Error, Result};

/// Pieces that are visited between two signs of life.
const PIECES_PER_SIGN: u64 = 1 << 20;

impl<S: Symbol, K: Ord> Learner<'_, S, K> {
    /// Counts all pairs and lists the hot ones. Where the pieces of the best pair alone do not fit the memory, that pair is given
    /// back to be merged on disk.
    pub(super) fn start_epoch(
        &mut self,
        vocabulary: &Vocabulary,
        room: Room,
        min_count: u64,
        n_wanted: usize,
        key_of: &dyn Fn(&Vocabulary, (u32, u32)) -> K,
    ) -> Result<Option<(u32, u32)>> {
        self.lists = Vec::new();
        self.hot = PairTable::with_capacity(0);
        let mut working = room.memory.saturating_sub(self.arena.n_bytes()).max(room.min_working);
        // A part of the memory is for those pieces that come from the disk.
        let mut max_warm = usize::MAX;
        if let Some(cold) = &mut self.cold {
            cold.take(&mut self.arena)?;
            max_warm = room.memory.max(room.min_working) / 3;
            working = room.memory.saturating_sub(max_warm).max(room.min_working);
        }
        let (all, at_least) =
            self.count_pairs(vocabulary, working / 2, min_count, n_wanted, room.max_fall)?;
        let is_allowed = |entry: &&PairEntry| vocabulary.allows(ids(entry.key));
        let mut highest = 0;
        for entry in all.iter() {
            if entry.count > highest && is_allowed(&entry) {
                highest = entry.count;
            }
        }
        let mut threshold = at_least.max(min_count).max(highest / room.max_fall);
        let likely = all.iter().filter(|entry| entry.count >= threshold).filter(is_allowed);
        let mut counts: Vec<(u64, u32, usize)> =
            likely.map(|entry| (entry.count, entry.n_places, entry.start)).collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        // Pairs beyond as many as are wanted are not needed, as long as no better ones arise.
        if let Some(&(count, ..)) = counts.get(n_wanted) {
            threshold = threshold.max(count);
        }

        // The threshold sinks as long as the lists fit. New pairs' lists take room, too, hence two thirds of it.
        let max_listed = working / 8 * 3 / size_of::<Place>();
        let max_places = max_listed / 3 * 2;
        let max_hot = working / 8 / (PairTable::n_bytes_for(1 << 20) >> 20);
        let (mut n_places, mut n_hot, mut warm) = (0, 0, 0usize);
        for &(count, places, n_bytes) in &counts {
            n_places += places as usize;
            n_hot += 1;
            warm = warm.saturating_add(n_bytes);
            if (n_places > max_places || n_hot > max_hot || warm > max_warm) && n_hot > 1 {
                threshold = threshold.max(count + 1);
                break;
            }
        }
        // All pairs of the highest count are in, however many they are: otherwise nothing could be merged.
        if highest >= at_least {
            threshold = threshold.min(highest);
        }
        let hot = || all.iter().filter(|entry| entry.count >= threshold).filter(is_allowed);
        if self.cold.is_some() {
            warm = hot().fold(0, |sum, entry| sum.saturating_add(entry.start));
            if warm > max_warm || hot().nth(2 * max_hot).is_some() {
                self.is_stale = true;
                let best =
                    hot().map(|entry| (entry.count, key_of(vocabulary, ids(entry.key)), entry.key)).max();
                return Ok(best.map(|(.., key)| ids(key)));
            }
        }
        self.threshold = threshold;
        // A piece that a step remembers takes up to two events, and the list of them may double while it grows.
        self.max_remembered = room.max_remembered.min(working / 16 / 32);
        self.max_hot = 2 * max_hot.max(n_hot);
        (self.is_first, self.is_stale) = (false, false);

        self.hot = PairTable::with_capacity(n_hot);
        let mut start = 0;
        for entry in hot() {
            self.hot.insert(PairEntry { start, n_places: 0, ..*entry });
            start += entry.n_places as usize;
        }
        drop(all);
        self.lists.reserve_exact((start * 4 + (1 << 16)).min(max_listed).max(start));
        self.lists.resize(start, 0);
        let Self { arena, cold, hot, lists, .. } = self;
        // Most pairs are not hot, and a few bits that the caches hold say so faster than the table.
        let filter = PairFilter::new(hot);
        if let Some(cold) = cold {
            arena.reserve(warm);
            cold.rewrite(|symbols, count| {
                let mut keys = symbols.windows(2).map(|pair| key(pair[0].id(), pair[1].id()));
                if !keys.any(|key| filter.may_have(key) && hot.get_mut(key).is_some()) {
                    return Ok(true);
                }
                arena.push(symbols.iter().map(|symbol| symbol.id()), count).map(|()| false)
            })?;
        }
        arena.for_each(|place, symbols| {
            for pair in symbols.windows(2) {
                let key = key(pair[0].id(), pair[1].id());
                if !filter.may_have(key) {
                    continue;
                }
                if let Some(entry) = hot.get_mut(key) {
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
        Ok(None)
    }

    /// Visits all pieces.
    fn for_each_piece(&mut self, mut visit: impl FnMut(&[S], u64)) -> Result<()> {
        let (progress, mut n_visited) = (self.progress, 0u64);
        let mut visit = |symbols: &[S], count: u64| {
            visit(symbols, count);
            n_visited += 1;
            if n_visited.is_multiple_of(PIECES_PER_SIGN) {
                progress.advance(0);
            }
        };
        match &mut self.cold {
            None => self.arena.compact(visit),
            Some(cold) => cold.for_each(|symbols, count| {
                visit(symbols, count);
                Ok(())
            })?,
        }
        Ok(())
    }

    /// Replaces a pair by its token in pieces that are all on disk.
    pub(super) fn merge_on_disk(
        &mut self,
        (left, right): (u32, u32),
        vocabulary: &mut Vocabulary,
    ) -> Result<()> {
        let made = S::new(vocabulary.token_of((left, right)));
        let Some(cold) = &mut self.cold else { return Ok(()) };
        cold.rewrite(|symbols, _| {
            replace_pair(symbols, S::new(left), S::new(right), made);
            Ok(true)
        })
    }

    /// Counts the pairs of all pieces; those that occur less often than the number given back may be missing.
    fn count_pairs(
        &mut self,
        vocabulary: &Vocabulary,
        room: usize,
        min_count: u64,
        n_wanted: usize,
        max_fall: u64,
    ) -> Result<(PairTable, u64)> {
        let n_tokens = vocabulary.tokens.len();
        let dense_bytes = n_tokens * n_tokens * size_of::<(u64, u32)>();
        let is_cheap = self.is_first && n_tokens <= 1024 || dense_bytes <= self.arena.n_bytes() / 4;
        // Of pieces on disk it must be known how many bytes a pair brings along, which only the table sums up.
        if is_cheap && (dense_bytes <= room || self.is_first) && self.cold.is_none() {
            return self.count_densely(n_tokens).map(|all| (all, min_count));
        }
        // A first walk sums counts in cells that the caches hold; only pairs whose cells are large enough are counted in
        // a table, which is then small, too.
        let n_bytes = self.cold.as_ref().map_or(self.arena.n_bytes(), |cold| cold.n_bytes() as usize);
        let mut sketch = Sketch::new((n_bytes / 8).min(room / 2));
        self.for_each_piece(|symbols, count| {
            for pair in symbols.windows(2) {
                sketch.add(key(pair[0].id(), pair[1].id()), count);
            }
        })?;
        let mut at_least = sketch.likely_threshold(n_wanted, max_fall).max(min_count);
        let max_pairs = room / 2 / (PairTable::n_bytes_for(1 << 20) >> 20);
        let (mut too_low, mut limit) = (None, max_pairs);
        loop {
            let mut all = PairTable::with_capacity(0);
            let (mut is_full, mut overflows) = (false, false);
            self.for_each_piece(|symbols, count| {
                if is_full {
                    return;
                }
                let n_bytes = Arena::<S>::n_bytes_of(symbols.len());
                for pair in symbols.windows(2) {
                    let key = key(pair[0].id(), pair[1].id());
                    if sketch.bound(key) >= at_least {
                        overflows |= all.add(key, count, n_bytes);
                    }
                }
                is_full = all.len() > limit;
            })?;
            if overflows {
                return Err(Error::CountOverflow("a pair".to_owned()));
            }
            if is_full {
                too_low = Some(at_least);
                at_least = at_least.saturating_add(at_least / 4 + 1);
                continue;
            }
            let reaches = |entry: &PairEntry| entry.count >= at_least && vocabulary.allows(ids(entry.key));
            if at_least == min_count || all.iter().any(reaches) {
                return Ok((all, at_least));
            }
            at_least = match too_low {
                // So many pairs are all but equally frequent that they must be held, whatever the room.
                Some(lower) if limit < usize::MAX => {
                    limit = usize::MAX;
                    lower
                }
                _ => (at_least / 4).max(min_count),
            };
        }
    }

    /// Counts all pairs in an array with a place for each, which is fast as long as there are few tokens.
    fn count_densely(&mut self, n_tokens: usize) -> Result<PairTable> {
        let mut counts = vec![(0u64, 0u32); n_tokens * n_tokens];
        let mut overflows = false;
        self.arena.compact(|symbols, count| {
            for pair in symbols.windows(2) {
                let (sum, n_places) = &mut counts[pair[0].id() as usize * n_tokens + pair[1].id() as usize];
                let (added, overflow) = sum.overflowing_add(count);
                overflows |= overflow;
                (*sum, *n_places) = (added, n_places.saturating_add(1));
            }
        });
        if overflows {
            return Err(Error::CountOverflow("a pair".to_owned()));
        }
        let mut all = PairTable::with_capacity(counts.iter().filter(|(count, _)| *count > 0).count());
        for (idx, &(count, n_places)) in counts.iter().enumerate().filter(|(_, (count, _))| *count > 0) {
            let key = key((idx / n_tokens) as u32, (idx % n_tokens) as u32);
            all.insert(PairEntry { key, count, start: 0, n_places });
        }
        Ok(all)
    }
}
