//! Merging the bytes of one piece into tokens: the adjacent pair of lowest rank first, of equals the
//! leftmost.
//!
//! Short pieces repeat a scan for the lowest rank, which costs the square of their length but needs no
//! structure. Long ones keep a heap of the pairs, so that a megabyte without a space costs n log n.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use hashbrown::HashMap;

use crate::{Error, Result};

/// The longest piece, in bytes, that is merged by scanning; text rarely has longer ones.
const MAX_SCANNED_BYTES: usize = 64;

/// The lookup tables of merging.
#[derive(Debug, Clone)]
pub(crate) struct MergeTable {
    byte_ids: [u32; 256],
    merges: HashMap<(u32, u32), Merge>,
}

#[derive(Debug, Clone, Copy)]
struct Merge {
    rank: u32,
    result: u32,
}

impl MergeTable {
    /// `ordinary` holds the ids of all tokens that merges may make; `merges` are in order of rank.
    pub(crate) fn new(
        tokens: &[Option<Box<[u8]>>],
        ordinary: &HashMap<Box<[u8]>, u32>,
        merges: &[(u32, u32)],
    ) -> Result<Self> {
        let mut byte_ids = [0; 256];
        for (byte_id, byte) in byte_ids.iter_mut().zip(0..=u8::MAX) {
            *byte_id = *ordinary
                .get(&[byte][..])
                .ok_or_else(|| Error::Format(format!("byte 0x{byte:02x} has no token of its own")))?;
        }
        let bytes_of = |id: u32, rank: u32| {
            let bytes = tokens.get(id as usize).and_then(Option::as_deref);
            bytes.filter(|&bytes| ordinary.get(bytes) == Some(&id)).ok_or_else(|| {
                Error::Format(format!("merge {rank} joins token {id}, which is missing or special"))
            })
        };
        let mut table = HashMap::with_capacity(merges.len());
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
            if table.insert((left, right), Merge { rank, result }).is_some() {
                return Err(Error::Format(format!("merge {rank} of tokens {left} and {right} occurs twice")));
            }
        }
        Ok(Self { byte_ids, merges: table })
    }

    /// Appends the tokens of one piece.
    pub(crate) fn encode_piece(&self, piece: &[u8], out: &mut Vec<u32>) {
        if piece.len() <= MAX_SCANNED_BYTES { self.scan(piece, out) } else { self.merge_by_heap(piece, out) }
    }

    fn scan(&self, piece: &[u8], out: &mut Vec<u32>) {
        let start = out.len();
        out.extend(piece.iter().map(|&byte| self.byte_ids[usize::from(byte)]));
        loop {
            let symbols = &out[start..];
            let mut best: Option<(usize, Merge)> = None;
            for (idx, pair) in symbols.windows(2).enumerate() {
                if let Some(&merge) = self.merges.get(&(pair[0], pair[1]))
                    && best.is_none_or(|(_, lowest)| merge.rank < lowest.rank)
                {
                    best = Some((idx, merge));
                }
            }
            let Some((idx, merge)) = best else { return };
            out[start + idx] = merge.result;
            out.remove(start + idx + 1);
        }
    }

    fn merge_by_heap(&self, piece: &[u8], out: &mut Vec<u32>) {
        let mut chain = Chain::new(piece.iter().map(|&byte| self.byte_ids[usize::from(byte)]));
        let mut heap = BinaryHeap::new();
        let offer = |heap: &mut BinaryHeap<_>, chain: &Chain, at: usize| {
            let Some((left, right)) = chain.pair_at(at) else {
                return;
            };
            if let Some(merge) = self.merges.get(&(left, right)) {
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
    fn heap_and_scan_give_the_same_tokens() {
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
                prop_assert_eq!(scanned, heaped);
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
