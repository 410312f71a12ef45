//! The tokens of long pieces in linear time.
//!
//! Where merges only ever join what merges of lower rank have made, the tokens of a text are the only sequence in which every
//! two neighbours, encoded alone, are themselves. So the longest token that may follow the last one is taken; when none may,
//! the last one gives way to a shorter one. A place from which nothing led on is never tried again, which bounds the steps.
//! Whether two tokens may be neighbours is found by undoing their merges from the last to the first: they may not, if a merge
//! across their border would have come before one that was undone.

use crate::bpe::merge::MergeTable;
use crate::bpe::pairs::NONE;
use crate::bpe::trie::{NO_TOKEN, Trie};

/// How a token came to be.
#[derive(Debug, Clone, Copy)]
struct Origin {
    left: u32,
    right: u32,
    /// The rank of its merge plus one; 0 for a byte.
    rank: u32,
}

/// The vocabulary as a trie of bytes, with what is needed to go back.
#[derive(Debug)]
pub(super) struct Backtracker {
    trie: Trie,
    /// By id. What is never the token of a text has none.
    origins: Vec<Option<Origin>>,
    n_bytes: Vec<u32>,
    /// The longest token that is a proper prefix, or [`NO_TOKEN`].
    shorter: Vec<u32>,
}

impl Backtracker {
    /// `None` for merges that are not closed: one joins what another of higher rank makes; for merges of characters, and where a byte has
    /// no token.
    pub(super) fn new(
        tokens: &[Option<Box<[u8]>>],
        merges: &[(u32, u32)],
        table: &MergeTable,
    ) -> Option<Self> {
        if table.characters().is_some() || table.lacks_bytes() {
            return None;
        }
        let mut last_made = vec![0; tokens.len()];
        for (&(left, right), rank) in merges.iter().zip(1..) {
            last_made[table.pair(left, right).result as usize] = rank;
        }
        let is_late = |id: u32, rank: u32| last_made[id as usize] >= rank;
        if merges.iter().zip(1..).any(|(&(left, right), rank)| is_late(left, rank) || is_late(right, rank)) {
            return None;
        }
        let origins = origins(tokens.len(), merges, table);
        let mut made: Vec<(&[u8], u32)> = Vec::with_capacity(tokens.len());
        for ((token, origin), id) in tokens.iter().zip(&origins).zip(0..) {
            made.extend(token.as_deref().zip(*origin).map(|(bytes, _)| (bytes, id)));
        }
        // In this order every prefix of a token comes before it.
        made.sort_unstable();
        let mut trie = Trie::with_room_for(&made);
        let mut shorter = vec![NO_TOKEN; tokens.len()];
        for &(bytes, id) in &made {
            shorter[id as usize] = trie.insert(bytes, id);
        }
        let n_bytes =
            tokens.iter().map(|token| token.as_ref().map_or(0, |bytes| bytes.len() as u32)).collect();
        Some(Self { trie, origins, n_bytes, shorter })
    }

    /// How tokens are made, in order of rank, as (left, right, result). Two vocabularies of the same tokens that have these
    /// in common merge every piece alike.
    pub(super) fn merges(&self) -> Vec<(u32, u32, u32)> {
        let made = self.origins.iter().zip(0..).filter_map(|(origin, id)| Some(((*origin)?, id)));
        let mut made: Vec<(Origin, u32)> = made.filter(|(origin, _)| origin.rank > 0).collect();
        made.sort_unstable_by_key(|(origin, _)| origin.rank);
        made.into_iter().map(|(origin, id)| (origin.left, origin.right, id)).collect()
    }

    /// How many tokens there are whose bytes become them.
    pub(super) fn n_made(&self) -> usize {
        self.origins.iter().flatten().count()
    }

    /// Whether the bytes of a token become this token.
    pub(super) fn is_made(&self, id: u32) -> bool {
        self.origins.get(id as usize).is_some_and(Option::is_some)
    }

    /// Appends the tokens of a piece.
    pub(super) fn encode(&self, piece: &[u8], memo: &mut PairMemo, table: &MergeTable, out: &mut Vec<u32>) {
        let start = out.len();
        let mut is_dead = vec![0u64; piece.len() / 64 + 1];
        let mut at = 0;
        let mut token = self.trie.longest(piece);
        while at < piece.len() {
            let end = at + self.n_bytes[token as usize] as usize;
            let last = (out.len() > start).then(|| out[out.len() - 1]);
            let may_stand = is_dead[end / 64] >> (end % 64) & 1 == 0
                && last.is_none_or(|last| {
                    memo.may_follow(last, token, || may_follow(&self.origins, table, last, token, NONE.rank))
                });
            if may_stand {
                out.push(token);
                at = end;
                token = self.trie.longest(&piece[at..]);
            } else if self.shorter[token as usize] != NO_TOKEN {
                token = self.shorter[token as usize];
            } else {
                is_dead[at / 64] |= 1 << (at % 64);
                // There is always a way from the start, so before a dead end there is a token.
                let Some(last) = out.pop() else { return };
                at -= self.n_bytes[last as usize] as usize;
                token = last;
            }
        }
    }
}

/// How each token comes to be in closed merges.
///
/// Of several merges that make a token at most one ever happens: the one that happens to the token's own bytes.
fn origins(n_tokens: usize, merges: &[(u32, u32)], table: &MergeTable) -> Vec<Option<Origin>> {
    let mut origins = vec![None; n_tokens];
    for byte in 0..=u8::MAX {
        let id = table.byte_id(byte);
        origins[id as usize] = Some(Origin { left: id, right: id, rank: 0 });
    }
    for &(left, right) in merges {
        let merge = table.pair(left, right);
        if origins[merge.result as usize].is_none() && may_follow(&origins, table, left, right, merge.rank) {
            origins[merge.result as usize] = Some(Origin { left, right, rank: merge.rank + 1 });
        }
    }
    origins
}

/// Whether the bytes of `left` and `right`, encoded alone, are these two tokens once all merges of ranks below `before` are
/// done.
fn may_follow(
    origins: &[Option<Origin>],
    table: &MergeTable,
    mut left: u32,
    mut right: u32,
    mut before: u32,
) -> bool {
    loop {
        let (Some(of_left), Some(of_right)) = (origins[left as usize], origins[right as usize]) else {
            return false;
        };
        if table.pair(left, right).rank < before {
            return false;
        }
        if of_left.rank > of_right.rank {
            before = of_left.rank - 1;
            left = of_left.right;
        } else if of_right.rank > 0 {
            // Of equal ranks the leftmost goes first, so a merge across the border comes before this one.
            before = of_right.rank;
            right = of_right.left;
        } else {
            return true;
        }
    }
}

/// Answers that were found before: a pair's place is fixed, and a new pair there replaces the old one.
#[derive(Debug)]
pub(super) struct PairMemo {
    /// Twice the pair, plus whether it may be, plus one: never zero.
    answers: Vec<u64>,
}

const MEMO_BITS: u32 = 14;

impl PairMemo {
    pub(super) fn new() -> Self {
        Self { answers: vec![0; 1 << MEMO_BITS] }
    }

    #[inline(always)]
    fn may_follow(&mut self, left: u32, right: u32, find: impl FnOnce() -> bool) -> bool {
        let pair = u64::from(left) << 31 | u64::from(right);
        let place = (pair.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - MEMO_BITS)) as usize;
        let answer = &mut self.answers[place];
        let known = answer.wrapping_sub(1);
        if *answer != 0 && known >> 1 == pair {
            return known & 1 == 1;
        }
        let found = find();
        *answer = (pair << 1 | u64::from(found)) + 1;
        found
    }
}
