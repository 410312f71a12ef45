//! The tokens of pieces that have come before or are expected.

use super::key::{FREE, Key};
use crate::pages::room_in_large_pages;

/// The most tokens of a piece in the table.
pub(super) const MAX_TOKENS: usize = 4;

/// Up to four tokens, in 16 bytes that are written whole. How many they are is above the bits of the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, align(16))]
pub(super) struct Answer([u32; MAX_TOKENS]);

/// The last token's number has so many bits; a vocabulary with larger ones would have half a billion tokens.
const LAST_BITS: u32 = 29;

/// What belongs to the tokens of an answer.
pub(super) const TOKEN_BITS: [u32; MAX_TOKENS] = [u32::MAX, u32::MAX, u32::MAX, (1 << LAST_BITS) - 1];

impl Answer {
    const NONE: Self = Self([0; MAX_TOKENS]);

    /// The tokens as an answer, if there are few enough, and any.
    pub(super) fn new(tokens: &[u32]) -> Option<Self> {
        let mut words = [0; MAX_TOKENS];
        words.get_mut(..tokens.len())?.copy_from_slice(tokens);
        let has_room = !tokens.is_empty() && words[MAX_TOKENS - 1] <= TOKEN_BITS[MAX_TOKENS - 1];
        words[MAX_TOKENS - 1] |= (tokens.len() as u32) << LAST_BITS;
        has_room.then_some(Self(words))
    }

    /// How many tokens there are, at most [`MAX_TOKENS`].
    #[inline(always)]
    pub(super) fn n_tokens(&self) -> usize {
        (self.0[MAX_TOKENS - 1] >> LAST_BITS) as usize
    }

    /// The tokens, and behind them anything, once all but [`TOKEN_BITS`] is taken away.
    #[inline(always)]
    pub(super) fn words(&self) -> &[u32; MAX_TOKENS] {
        &self.0
    }

    /// The tokens.
    pub(super) fn tokens(&self) -> impl Iterator<Item = u32> {
        let words: [u32; MAX_TOKENS] = std::array::from_fn(|idx| self.0[idx] & TOKEN_BITS[idx]);
        words.into_iter().take(self.n_tokens())
    }
}

/// Two pieces in one cache line.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Bucket {
    pub(super) keys: [Key; 2],
    pub(super) answers: [Answer; 2],
}

const EMPTY: Bucket = Bucket { keys: [FREE; 2], answers: [Answer::NONE; 2] };

/// Pieces of up to 15 bytes and four tokens, each in the bucket that its hash says or, where that was full, in the next one.
#[derive(Debug)]
pub(super) struct PieceTable {
    buckets: Vec<Bucket>,
    /// How many pieces have come since the table had this size, whether they are still there or not.
    n_new: usize,
}

/// The most buckets: 16 MiB. What is asked for early may come from the third cache.
pub(super) const MAX_BUCKETS: usize = 1 << 18;

impl Clone for PieceTable {
    fn clone(&self) -> Self {
        let mut buckets = room_in_large_pages(self.buckets.len());
        buckets.extend_from_slice(&self.buckets);
        Self { buckets, n_new: self.n_new }
    }
}

impl PieceTable {
    /// An empty table for about `n_pieces`, a quarter full with them: only the slow path finds a piece whose bucket was full.
    pub(super) fn with_room(n_pieces: usize) -> Self {
        Self::with_buckets(2 * n_pieces.next_power_of_two())
    }

    fn with_buckets(n_buckets: usize) -> Self {
        let n_buckets = n_buckets.clamp(1 << 8, MAX_BUCKETS);
        let mut buckets = room_in_large_pages(n_buckets);
        buckets.resize(n_buckets, EMPTY);
        Self { buckets, n_new: 0 }
    }

    pub(super) fn buckets(&self) -> &[Bucket] {
        &self.buckets
    }

    /// The place of a hash are its bits above so many.
    #[inline(always)]
    pub(super) fn shift(&self) -> u32 {
        u64::BITS - self.buckets.len().trailing_zeros()
    }

    /// The tokens of a piece.
    pub(super) fn get(&self, key: Key) -> Option<&Answer> {
        self.places(key).into_iter().find_map(|place| {
            let Bucket { keys, answers } = &self.buckets[place];
            keys.iter().position(|&other| other == key).map(|idx| &answers[idx])
        })
    }

    /// Where a piece may be.
    fn places(&self, key: Key) -> [usize; 2] {
        let place = (key.hash() >> self.shift()) as usize;
        [place, place ^ 1]
    }

    /// Keeps the tokens of a piece, if there is room, and says whether there was.
    pub(super) fn insert(&mut self, key: Key, answer: &Answer) -> bool {
        for place in self.places(key) {
            let Bucket { keys, answers } = &mut self.buckets[place];
            if let Some(idx) = keys.iter().position(|&other| other == FREE || other == key) {
                keys[idx] = key;
                answers[idx] = *answer;
                return true;
            }
        }
        false
    }

    /// Keeps the tokens of a piece. Where there is no room, the first to come stays, because it is likely to be frequent, and
    /// the last one goes.
    pub(super) fn push(&mut self, key: Key, answer: &Answer) {
        self.n_new += 1;
        if !self.insert(key, answer) {
            let [place, _] = self.places(key);
            let Bucket { keys, answers } = &mut self.buckets[place];
            keys[1] = key;
            answers[1] = *answer;
        }
    }

    /// Grows with what has come since it last did. Places change by it.
    pub(super) fn make_room(&mut self) {
        if self.n_new <= self.buckets.len() / 2 || self.buckets.len() >= MAX_BUCKETS {
            return;
        }
        let mut larger = Self::with_buckets(2 * self.buckets.len());
        for Bucket { keys, answers } in &self.buckets {
            for (&key, answer) in keys.iter().zip(answers).filter(|(key, _)| **key != FREE) {
                larger.insert(key, answer);
            }
        }
        *self = larger;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Key {
        Key::of(text.as_bytes()).unwrap()
    }

    fn one(token: u32) -> Answer {
        Answer::new(&[token]).unwrap()
    }

    #[test]
    fn the_first_to_come_stay_and_the_last_pushed() {
        let mut table = PieceTable::with_room(1);
        let alike = |number: &u32| table.places(key(&number.to_string())) == table.places(key("0"));
        let numbers: Vec<u32> = (0..).filter(alike).take(6).collect();
        let keys: Vec<Key> = numbers.iter().map(|number| key(&number.to_string())).collect();
        for (idx, &key) in keys.iter().enumerate() {
            assert_eq!(table.insert(key, &one(idx as u32)), idx < 4);
        }
        let found =
            |table: &PieceTable| keys.iter().map(|&key| table.get(key)?.tokens().next()).collect::<Vec<_>>();
        assert_eq!(found(&table), [Some(0), Some(1), Some(2), Some(3), None, None]);
        table.push(keys[4], &one(4));
        table.push(keys[5], &one(5));
        assert_eq!(found(&table), [Some(0), None, Some(2), Some(3), None, Some(5)]);
    }

    #[test]
    fn a_table_grows_with_what_comes_and_forgets_little() {
        let mut table = PieceTable::with_room(1);
        for number in 0..10_000 {
            table.push(key(&number.to_string()), &one(number));
            table.make_room();
        }
        assert!((4096..=16_384).contains(&table.buckets.len()));
        let is_kept = |number: &u32| {
            let found = table.get(key(&number.to_string()));
            found.inspect(|found| assert!(found.tokens().eq([*number]))).is_some()
        };
        assert!((0..10_000).filter(is_kept).count() > 8000);
    }

    #[test]
    fn an_answer_has_up_to_four_tokens() {
        for tokens in [&[7, u32::MAX][..], &[1, 2, 3], &[u32::MAX, 2, 3, (1 << 29) - 1]] {
            let answer = Answer::new(tokens).unwrap();
            assert!(answer.tokens().eq(tokens.iter().copied()));
            assert_eq!(answer.n_tokens(), tokens.len());
        }
        for tokens in [&[][..], &[1, 2, 3, 1 << 29], &[1, 2, 3, 4, 5]] {
            assert_eq!(Answer::new(tokens), None);
        }
    }
}
