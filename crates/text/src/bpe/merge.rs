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

/// A rank shares a number with a result and a place of a short piece.
const MAX_MERGES: usize = 1 << 27;

/// The longest piece, in bytes, that is merged by scanning; text rarely has longer ones.
const MAX_SCANNED_BYTES: usize = 64;

/// What a byte without a token stands as until its piece is merged. No token has this id, and no merge joins it.
const LEFT_OUT: u32 = u32::MAX;

/// The lookup tables of merging.
#[derive(Debug, Clone)]
pub(crate) struct MergeTable {
    byte_ids: [u32; 256],
    /// What merging starts from, if not from bytes.
    characters: Option<Box<Characters>>,
    pairs: PairTable,
    /// The pairs of ids below [`N_LOW`] once more, which are those of bytes in most vocabularies: by the left, then by the right.
    low: Box<[Merge]>,
}

/// Every piece asks for the pairs of its bytes, so they are not hashed: 512 KiB, of which the letters of a language take 10.
const N_LOW: usize = 256;

/// The tokens that merging starts from where text is made of characters.
#[derive(Debug, Clone)]
pub(crate) struct Characters {
    /// By character.
    pub(crate) tokens: HashMap<char, u32>,
    /// What a character without a token becomes, byte by byte.
    pub(crate) bytes: Option<Box<[u32; 256]>>,
}

impl Characters {
    /// Appends the tokens of the text's characters. One that has neither a token nor tokens of its bytes is left out.
    fn extend(&self, piece: &[u8], out: &mut Vec<u32>) {
        let of_bytes = |bytes: &[u8], out: &mut Vec<u32>| {
            if let Some(ids) = &self.bytes {
                out.extend(bytes.iter().map(|&byte| ids[usize::from(byte)]));
            }
        };
        for chunk in piece.utf8_chunks() {
            for character in chunk.valid().chars() {
                match self.tokens.get(&character) {
                    Some(&id) => out.push(id),
                    None => of_bytes(character.encode_utf8(&mut [0; 4]).as_bytes(), out),
                }
            }
            of_bytes(chunk.invalid(), out);
        }
    }
}

impl MergeTable {
    /// `ordinary` holds the ids of all tokens that merges may make; `merges` are in order of rank.
    pub(crate) fn new(
        tokens: &[Option<Box<[u8]>>],
        ordinary: &HashMap<Box<[u8]>, u32>,
        merges: &[(u32, u32)],
    ) -> Result<Self> {
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
        check_number(n_merges)?;
        let mut byte_ids = [LEFT_OUT; 256];
        for (byte_id, byte) in byte_ids.iter_mut().zip(0..=u8::MAX) {
            *byte_id = ordinary.get(&[byte][..]).copied().unwrap_or(LEFT_OUT);
        }
        if byte_ids == [LEFT_OUT; 256] {
            return Err(Error::Format("no byte has a token of its own".into()));
        }
        Ok(Self { byte_ids, characters: None, pairs: PairTable::with_room(n_merges), low: no_low_pairs() })
    }

    /// A table without merges that starts from characters, with room for `n_merges`.
    pub(super) fn of_characters(characters: Characters, n_merges: usize) -> Result<Self> {
        check_number(n_merges)?;
        let pairs = PairTable::with_room(n_merges);
        Ok(Self { byte_ids: [0; 256], characters: Some(Box::new(characters)), pairs, low: no_low_pairs() })
    }

    /// What merging starts from, if not from bytes.
    pub(super) fn characters(&self) -> Option<&Characters> {
        self.characters.as_deref()
    }

    /// Adds a merge and says whether it is new. There must be room.
    pub(super) fn add(&mut self, left: u32, right: u32, rank: u32, result: u32) -> bool {
        let merge = Merge { rank, result };
        let is_new = self.pairs.insert(left, right, merge);
        if is_new && (left as usize) < N_LOW && (right as usize) < N_LOW {
            self.low[left as usize * N_LOW + right as usize] = merge;
        }
        is_new
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

    /// [`pair`](Self::pair) for two tokens that are likely to be bytes.
    #[inline(always)]
    fn low_pair(&self, left: u32, right: u32) -> Merge {
        if (left as usize) < N_LOW && (right as usize) < N_LOW {
            self.low[left as usize * N_LOW + right as usize]
        } else {
            self.pair(left, right)
        }
    }

    /// Whether some bytes have no token of their own: they are left out of a text, as the makers of such vocabularies do.
    pub(super) fn lacks_bytes(&self) -> bool {
        self.characters.is_none() && self.byte_ids.contains(&LEFT_OUT)
    }

    /// Those bytes.
    pub(super) fn missing_bytes(&self) -> Vec<u8> {
        let is_missing = |byte: &u8| self.characters.is_none() && self.byte_id(*byte) == LEFT_OUT;
        (0..=u8::MAX).filter(is_missing).collect()
    }

    /// Appends the tokens of one piece.
    pub(crate) fn encode_piece(&self, piece: &[u8], out: &mut Vec<u32>) {
        let start = out.len();
        self.merge_piece(piece, start, out);
        if out[start..].contains(&LEFT_OUT) {
            let kept: Vec<u32> = out.drain(start..).filter(|&id| id != LEFT_OUT).collect();
            out.extend(kept);
        }
    }

    #[inline(always)]
    fn merge_piece(&self, piece: &[u8], start: usize, out: &mut Vec<u32>) {
        if let Some(characters) = &self.characters {
            characters.extend(piece, out);
        } else if piece.len() <= MAX_SHORT_BYTES {
            return self.merge_short(piece.iter().map(|&byte| self.byte_id(byte)), out);
        } else {
            out.extend(piece.iter().map(|&byte| self.byte_id(byte)));
        }
        self.merge_from(start, out);
    }

    /// Merges what `out` has from `start`.
    fn merge_from(&self, start: usize, out: &mut Vec<u32>) {
        match out.len() - start {
            0 | 1 => {}
            n_symbols @ 2..=MAX_SHORT_BYTES => {
                let mut symbols = [0; MAX_SHORT_BYTES];
                symbols[..n_symbols].copy_from_slice(&out[start..]);
                out.truncate(start);
                self.merge_short(symbols.into_iter().take(n_symbols), out);
            }
            n_symbols if n_symbols <= MAX_SCANNED_BYTES => self.scan(start, out),
            _ => self.merge_by_heap(start, out),
        }
    }

    /// [`merge_within`](Self::merge_within) the places that there must be.
    #[inline(always)]
    fn merge_short(&self, piece: impl ExactSizeIterator<Item = u32>, out: &mut Vec<u32>) {
        if piece.len() <= MAX_SHORT_BYTES / 2 {
            self.merge_within::<{ MAX_SHORT_BYTES / 2 + 2 }>(piece, out);
        } else {
            self.merge_within::<{ MAX_SHORT_BYTES + 2 }>(piece, out);
        }
    }

    /// Symbols stay where their first byte is, between two places for what joins with nothing; a bit says which are left. A
    /// pair's rank, result and place are one number, so that the least of the numbers is the merge to do.
    ///
    /// Nothing branches here but the end: what comes next cannot be foretold, and a wrong guess costs as much as a look into
    /// memory. Numbers of 64 bits also keep the compiler from vectors, which would wait for the single places of them that were
    /// only just written.
    #[inline(always)]
    fn merge_within<const N: usize>(&self, piece: impl ExactSizeIterator<Item = u32>, out: &mut Vec<u32>) {
        const NEVER: u64 = u64::MAX;
        const PLACE_BITS: u32 = 5;
        let n_symbols = piece.len().min(N - 2);
        let mut symbols = [LEFT_OUT; N];
        let mut order = [NEVER; N];
        for (symbol, id) in symbols[1..=n_symbols].iter_mut().zip(piece) {
            *symbol = id;
        }
        let priority = |merge: Merge, at: usize| {
            let known = (u64::from(merge.rank) << 32 | u64::from(merge.result)) << PLACE_BITS | at as u64;
            if merge.rank == NONE.rank { NEVER } else { known }
        };
        for at in 1..n_symbols {
            order[at] = priority(self.low_pair(symbols[at], symbols[at + 1]), at);
        }
        let mut left = (4u32 << n_symbols) - 1;
        loop {
            let first = order.iter().fold(NEVER, |least, &other| least.min(other));
            if first == NEVER {
                break;
            }
            let at = (first as usize % (1 << PLACE_BITS)).min(N - 1);
            let behind = left & (u32::MAX << 1 << at);
            let merged = (behind.trailing_zeros() as usize).min(N - 1);
            left ^= 1 << merged;
            let behind = ((behind & (behind - 1)).trailing_zeros() as usize).min(N - 1);
            let before = ((left & ((1 << at) - 1)).ilog2() as usize).min(N - 1);
            symbols[at] = (first >> PLACE_BITS) as u32;
            order[merged] = NEVER;
            // The two questions do not depend on each other, but a wrong guess about the first one delays the second.
            self.pairs.prefetch(symbols[before], symbols[at]);
            order[at] = priority(self.pair(symbols[at], symbols[behind]), at);
            order[before] = priority(self.pair(symbols[before], symbols[at]), before);
        }
        left &= (1 << n_symbols << 1) - 2;
        while left != 0 {
            out.push(symbols[(left.trailing_zeros() as usize).min(N - 1)]);
            left &= left - 1;
        }
    }

    fn scan(&self, start: usize, out: &mut Vec<u32>) {
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

    fn merge_by_heap(&self, start: usize, out: &mut Vec<u32>) {
        let mut chain = Chain::new(out.drain(start..));
        let n_symbols = chain.symbols.len();
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
        for at in 0..n_symbols {
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

fn no_low_pairs() -> Box<[Merge]> {
    vec![NONE; N_LOW * N_LOW].into_boxed_slice()
}

fn check_number(n_merges: usize) -> Result<()> {
    if n_merges <= MAX_MERGES {
        return Ok(());
    }
    Err(Error::Format(format!("it has {n_merges} merges, and {MAX_MERGES} are the limit")))
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
                let symbols = |piece: &[u8]| {
                    let bytes = piece.iter().map(|&byte| table.byte_id(byte));
                    [9].into_iter().chain(bytes).collect::<Vec<u32>>()
                };
                let (mut scanned, mut heaped) = (symbols(&piece), symbols(&piece));
                table.scan(1, &mut scanned);
                table.merge_by_heap(1, &mut heaped);
                prop_assert_eq!(&scanned, &heaped);
                let start = &piece[..piece.len().min(MAX_SHORT_BYTES)];
                let (mut scanned, mut short) = (symbols(start), vec![9]);
                table.scan(1, &mut scanned);
                table.merge_short(start.iter().map(|&byte| table.byte_id(byte)), &mut short);
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
    fn a_missing_byte_is_left_out_and_a_merge_into_nothing_is_refused() {
        let tokens: Vec<Option<Box<[u8]>>> = (0..=255).map(|byte| Some(vec![byte].into())).collect();
        let mut ordinary: HashMap<Box<[u8]>, u32> = tokens.iter().flatten().cloned().zip(0..).collect();
        assert!(MergeTable::new(&tokens, &ordinary, &[(97, 98)]).is_err());
        assert!(MergeTable::new(&tokens, &ordinary, &[(97, 9_999_999)]).is_err());
        ordinary.remove(&b"a"[..]);
        let table = MergeTable::new(&tokens, &ordinary, &[]).unwrap();
        for piece in [&b"bac"[..], b"bacabbbbbbbbbbbbbbbbbb", b"a"] {
            let mut out = vec![7];
            table.encode_piece(piece, &mut out);
            let kept = piece.iter().filter(|&&byte| byte != b'a').map(|&byte| u32::from(byte));
            assert_eq!(out, std::iter::once(7).chain(kept).collect::<Vec<_>>());
        }
        assert!(MergeTable::new(&tokens, &HashMap::new(), &[]).is_err());
    }
}
