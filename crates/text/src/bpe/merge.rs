//! Merging the bytes of one piece into tokens: the adjacent pair of lowest rank first, of equals the
//! leftmost.
//!
//! This is right for any merges. Pieces that fit a packed key keep the ranks of their pairs in two registers' worth of
//! numbers; longer ones repeat a scan for the lowest rank, which costs the square of their length but needs no structure;
//! long ones keep a heap of the pairs, so that a megabyte without a space costs n log n. Most vocabularies let long pieces
//! go a faster way, [`super::encode::backtrack`], to which this is the oracle.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use hashbrown::HashMap;

use super::pairs::{Merge, NONE, PairTable};
use crate::{Error, Result};

/// The longest piece, in bytes, whose ranks and positions are kept side by side.
const MAX_SHORT_BYTES: usize = 16;

/// A rank shares a number with a position below [`MAX_SHORT_BYTES`].
const MAX_MERGES: usize = 1 << 27;

/// The longest piece, in bytes, that is merged by scanning; text rarely has longer ones.
const MAX_SCANNED_BYTES: usize = 64;

/// The lookup tables of merging.
#[derive(Debug, Clone)]
pub(crate) struct MergeTable {
    byte_ids: [u32; 256],
    pairs: PairTable,
}

impl MergeTable {
    /// `ordinary` holds the ids of all tokens that merges may make; `merges` are in order of rank.
    pub(crate) fn new(
        tokens: &[Option<Box<[u8]>>],
        ordinary: &HashMap<Box<[u8]>, u32>,
        merges: &[(u32, u32)],
    ) -> Result<Self> {
        if merges.len() > MAX_MERGES {
            let n_merges = merges.len();
            return Err(Error::Format(format!("it has {n_merges} merges, and {MAX_MERGES} are the limit")));
        }
        let mut table = Self::of_bytes(ordinary, merges.len())?;
        let bytes_of = |id: u32, rank: u32| {
            let bytes = tokens.get(id as usize).and_then(Option::as_deref);
            bytes.filter(|&bytes| ordinary.get(bytes) == Some(&id)).ok_or_else(|| {
                Error::Format(format!("merge {rank} joins token {id}, which is missing or special"))
            })
        };
        let mut joined = Vec::new();
        for (&(left, right), rank) in merges.iter().zip(0..) {
            joined.clear();
            joined.extend_from_slice(bytes_of(left, rank)?);
            joined.extend_from_slice(bytes_of(right, rank)?);
            let result = *ordinary.get(&joined[..]).ok_or_else(|| {
                Error::Format(format!(
                    "merge {rank} makes {:?}, which is no token",
                    joined.escape_ascii().to_string()
                ))
            })?;
            if !table.add(left, right, rank, result) {
                return Err(Error::Format(format!("merge {rank} of tokens {left} and {right} occurs twice")));
            }
        }
        Ok(table)
    }

    /// A table without merges, with room for `n_merges`.
    pub(super) fn of_bytes(ordinary: &HashMap<Box<[u8]>, u32>, n_merges: usize) -> Result<Self> {
        let mut byte_ids = [0; 256];
        for (byte_id, byte) in byte_ids.iter_mut().zip(0..=u8::MAX) {
            *byte_id = *ordinary
                .get(&[byte][..])
                .ok_or_else(|| Error::Format(format!("byte 0x{byte:02x} has no token of its own")))?;
        }
        Ok(Self { byte_ids, pairs: PairTable::with_room(n_merges) })
    }

    /// Adds a merge and says whether it is new. There must be room.
    pub(super) fn add(&mut self, left: u32, right: u32, rank: u32, result: u32) -> bool {
        self.pairs.insert(left, right, Merge { rank, result })
    }

    /// The token of a byte.
    #[inline(always)]
    pub(super) fn byte_id(&self, byte: u8) -> u32 {
        self.byte_ids[usize::from(byte)]
    }

    /// The merge of two tokens, or [`NONE`].
    #[inline(always)]
    pub(super) fn pair(&self, left: u32, right: u32) -> Merge {
        self.pairs.get(left, right)
    }

    /// Appends the tokens of one piece.
    pub(crate) fn encode_piece(&self, piece: &[u8], out: &mut Vec<u32>) {
        if piece.len() <= MAX_SHORT_BYTES {
            self.merge_short(piece, out);
        } else if piece.len() <= MAX_SCANNED_BYTES {
            self.scan(piece, out);
        } else {
            self.merge_by_heap(piece, out);
        }
    }

    /// Symbols stay where their first byte is; a bit says which are left. A pair's rank and place are one number, so that
    /// the least of the numbers is the pair to merge.
    fn merge_short(&self, piece: &[u8], out: &mut Vec<u32>) {
        const NEVER: i32 = i32::MAX;
        let mut symbols = [0; MAX_SHORT_BYTES];
        let mut results = [0; MAX_SHORT_BYTES];
        let mut order = [NEVER; MAX_SHORT_BYTES];
        for (symbol, &byte) in symbols.iter_mut().zip(piece) {
            *symbol = self.byte_id(byte);
        }
        let priority = |merge: Merge, at: usize| {
            if merge.rank == NONE.rank { NEVER } else { (merge.rank << 4) as i32 | at as i32 }
        };
        for at in 1..piece.len() {
            let merge = self.pair(symbols[at - 1], symbols[at]);
            order[at - 1] = priority(merge, at - 1);
            results[at - 1] = merge.result;
        }
        let mut left = (1u32 << piece.len()) - 1;
        loop {
            let first = order.iter().fold(NEVER, |least, &other| least.min(other));
            if first == NEVER {
                break;
            }
            let at = first as usize % MAX_SHORT_BYTES;
            let behind = left & (u32::MAX << 1 << at);
            let merged = behind.trailing_zeros() as usize;
            left ^= 1 << merged;
            order[merged % MAX_SHORT_BYTES] = NEVER;
            symbols[at] = results[at];
            let behind = behind & (behind - 1);
            order[at] = NEVER;
            if behind != 0 {
                let merge =
                    self.pair(symbols[at], symbols[behind.trailing_zeros() as usize % MAX_SHORT_BYTES]);
                order[at] = priority(merge, at);
                results[at] = merge.result;
            }
            let before = left & ((1 << at) - 1);
            if before != 0 {
                let before = before.ilog2() as usize % MAX_SHORT_BYTES;
                let merge = self.pair(symbols[before], symbols[at]);
                order[before] = priority(merge, before);
                results[before] = merge.result;
            }
        }
        while left != 0 {
            out.push(symbols[left.trailing_zeros() as usize % MAX_SHORT_BYTES]);
            left &= left - 1;
        }
    }

    fn scan(&self, piece: &[u8], out: &mut Vec<u32>) {
        let start = out.len();
        out.extend(piece.iter().map(|&byte| self.byte_id(byte)));
        loop {
            let symbols = &out[start..];
            let mut best = (0, NONE);
            for (idx, pair) in symbols.windows(2).enumerate() {
                let merge = self.pair(pair[0], pair[1]);
                if merge.rank < best.1.rank {
                    best = (idx, merge);
                }
            }
            let (idx, merge) = best;
            if merge == NONE {
                return;
            }
            out[start + idx] = merge.result;
            out.remove(start + idx + 1);
        }
    }

    fn merge_by_heap(&self, piece: &[u8], out: &mut Vec<u32>) {
        let mut chain = Chain::new(piece.iter().map(|&byte| self.byte_id(byte)));
        let mut heap = BinaryHeap::new();
        let offer = |heap: &mut BinaryHeap<_>, chain: &Chain, at: usize| {
            let Some((left, right)) = chain.pair_at(at) else {
                return;
            };
            let merge = self.pair(left, right);
            if merge != NONE {
                heap.push(Reverse((merge.rank, at, left, right, merge.result)));
            }
        };
        for at in 0..piece.len() {
            offer(&mut heap, &chain, at);
        }
        while let Some(Reverse((_, at, left, right, result))) = heap.pop() {
            // An entry is stale once either of its symbols has been merged into another.
            if chain.pair_at(at) != Some((left, right)) {
                continue;
            }
            chain.merge_at(at, result);
            offer(&mut heap, &chain, at);
            if let Some(before) = chain.before(at) {
                offer(&mut heap, &chain, before);
            }
        }
        out.extend(chain.symbols());
    }
}

/// Symbols of a piece in a doubly linked list over the positions of its bytes.
struct Chain {
    symbols: Vec<u32>,
    /// Position of the next symbol; the length for the last one; [`GONE`] for a symbol merged into its
    /// predecessor.
    next: Vec<usize>,
    /// Position of the previous symbol; [`GONE`] for the first.
    previous: Vec<usize>,
}

const GONE: usize = usize::MAX;

impl Chain {
    fn new(symbols: impl Iterator<Item = u32>) -> Self {
        let symbols: Vec<u32> = symbols.collect();
        let next = (1..=symbols.len()).collect();
        let previous = (0..symbols.len()).map(|at| at.wrapping_sub(1)).collect();
        Self { symbols, next, previous }
    }

    fn pair_at(&self, at: usize) -> Option<(u32, u32)> {
        let right = *self.symbols.get(*self.next.get(at)?)?;
        Some((self.symbols[at], right))
    }

    fn before(&self, at: usize) -> Option<usize> {
        Some(self.previous[at]).filter(|&previous| previous != GONE)
    }

    fn merge_at(&mut self, at: usize, result: u32) {
        let right = self.next[at];
        self.symbols[at] = result;
        self.next[at] = self.next[right];
        if let Some(previous) = self.previous.get_mut(self.next[right]) {
            *previous = at;
        }
        self.next[right] = GONE;
    }

    fn symbols(&self) -> impl Iterator<Item = u32> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let symbol = *self.symbols.get(at)?;
            at = self.next[at];
            Some(symbol)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

    /// A table over the bytes with arbitrary merges, as foreign vocabularies may have.
    fn table(pairs: &[(u8, u8, bool, bool)]) -> MergeTable {
        let mut tokens: Vec<Option<Box<[u8]>>> = (0..=255).map(|byte| Some(vec![byte].into())).collect();
        let mut ordinary: HashMap<Box<[u8]>, u32> = tokens.iter().flatten().cloned().zip(0..).collect();
        let mut merges = Vec::new();
        for &(left, right, left_is_new, right_is_new) in pairs {
            let pick = |value: u8, is_new: bool| {
                let n_new = tokens.len() - 256;
                if is_new && n_new > 0 { 256 + usize::from(value) % n_new } else { usize::from(value % 3) }
            };
            let (left, right) = (pick(left, left_is_new), pick(right, right_is_new));
            let joined = [tokens[left].clone().unwrap(), tokens[right].clone().unwrap()].concat();
            if joined.len() > 40 || merges.contains(&(left as u32, right as u32)) {
                continue;
            }
            merges.push((left as u32, right as u32));
            if !ordinary.contains_key(&joined[..]) {
                ordinary.insert(joined.clone().into(), tokens.len() as u32);
                tokens.push(Some(joined.into()));
            }
        }
        MergeTable::new(&tokens, &ordinary, &merges).unwrap()
    }

    #[test]
    fn every_way_of_merging_gives_the_same_tokens() {
        let mut runner = TestRunner::new_with_rng(
            Config { cases: 500, failure_persistence: None, ..Config::default() },
            TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]),
        );
        let pairs = prop::collection::vec(any::<(u8, u8, bool, bool)>(), 0..40);
        let piece = prop::collection::vec(0u8..4, 0..200);
        runner
            .run(&(pairs, piece), |(pairs, piece)| {
                let table = table(&pairs);
                let (mut scanned, mut heaped) = (vec![9], vec![9]);
                table.scan(&piece, &mut scanned);
                table.merge_by_heap(&piece, &mut heaped);
                prop_assert_eq!(&scanned, &heaped);
                let start = &piece[..piece.len().min(MAX_SHORT_BYTES)];
                let (mut scanned, mut short) = (vec![9], vec![9]);
                table.scan(start, &mut scanned);
                table.merge_short(start, &mut short);
                prop_assert_eq!(scanned, short);
                Ok(())
            })
            .unwrap();
    }

    #[test]
    fn a_long_piece_takes_no_quadratic_time() {
        let table = table(&[(0, 0, false, false), (0, 0, true, true), (1, 1, true, true)]);
        let mut out = Vec::new();
        table.encode_piece(&vec![0; 2_000_000], &mut out);
        assert_eq!(out.len(), 2_000_000 / 8);
    }

    #[test]
    fn a_missing_byte_and_a_merge_into_nothing_are_refused() {
        let tokens: Vec<Option<Box<[u8]>>> = (0..=255).map(|byte| Some(vec![byte].into())).collect();
        let mut ordinary: HashMap<Box<[u8]>, u32> = tokens.iter().flatten().cloned().zip(0..).collect();
        assert!(MergeTable::new(&tokens, &ordinary, &[(97, 98)]).is_err());
        assert!(MergeTable::new(&tokens, &ordinary, &[(97, 9_999_999)]).is_err());
        ordinary.remove(&b"a"[..]);
        assert!(MergeTable::new(&tokens, &ordinary, &[]).is_err());
    }
}
