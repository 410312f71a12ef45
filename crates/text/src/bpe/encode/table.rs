//! The tokens of pieces that have come before or are expected.

use crate::count::key::{Packed, hash_packed};
use crate::prefetch::prefetch;

/// The most tokens of a piece in the table.
pub(super) const MAX_TOKENS: usize = 3;

/// Up to three tokens, and how many there are: one copy of 16 bytes appends them to what is written.
pub(super) type Answer = [u32; MAX_TOKENS + 1];

/// Two pieces in one cache line. A key of zero is free, since no piece is empty.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct Bucket {
    keys: [Packed; 2],
    answers: [Answer; 2],
}

const EMPTY: Bucket = Bucket { keys: [0; 2], answers: [[0; MAX_TOKENS + 1]; 2] };

/// Pieces of up to 15 bytes and three tokens, each in the bucket that its hash says or not at all.
#[derive(Debug, Clone)]
pub(super) struct PieceTable {
    buckets: Vec<Bucket>,
    /// How many pieces have come since the table had this size.
    n_new: usize,
}

impl PieceTable {
    /// An empty table of `n_buckets`, a power of two.
    pub(super) fn new(n_buckets: usize) -> Self {
        Self { buckets: vec![EMPTY; n_buckets], n_new: 0 }
    }

    /// Where the pieces of a hash are.
    #[inline(always)]
    pub(super) fn place(&self, hash: u64) -> usize {
        (hash >> 32) as usize & (self.buckets.len() - 1)
    }

    /// Starts to bring a place near.
    #[inline(always)]
    pub(super) fn prefetch(&self, place: usize) {
        prefetch(&self.buckets, place);
    }

    /// [`get`](Self::get) for a table with [displaced](Self::push_growing) pieces.
    pub(super) fn get_displaced(&self, key: Packed, hash: u64, room: &mut Answer) -> Option<usize> {
        let place = self.place(hash);
        self.get(place, key, room).or_else(|| self.get(place ^ 1, key, room))
    }

    /// Writes the tokens of the piece with this key at this place to `room` and says how many there are; `None` for an unknown
    /// piece.
    #[inline(always)]
    pub(super) fn get(&self, place: usize, key: Packed, room: &mut Answer) -> Option<usize> {
        let bucket = &self.buckets[place];
        // Which of two it is cannot be foretold, so it is no branch: one key is chosen, and that is nearly always the right
        // one. Copying comes before the question, and the number from the table, because what was just written takes longer
        // to read.
        let idx = usize::from(bucket.keys[1] == key);
        let answer = &bucket.answers[idx];
        *room = *answer;
        (bucket.keys[idx] == key).then_some(answer[MAX_TOKENS] as usize)
    }

    /// Keeps the tokens of a piece, if there is room at its place.
    pub(super) fn insert(&mut self, key: Packed, hash: u64, answer: &Answer) {
        let place = self.place(hash);
        let bucket = &mut self.buckets[place];
        if let Some(idx) = bucket.keys.iter().position(|&other| other == 0 || other == key) {
            bucket.keys[idx] = key;
            bucket.answers[idx] = *answer;
        }
    }

    /// Keeps the tokens of a piece; of two others at its place the older one goes.
    pub(super) fn push(&mut self, key: Packed, hash: u64, answer: &Answer) {
        self.push_at(self.place(hash), key, answer);
    }

    /// Puts a piece before the others of its place, and gives the one that has to go.
    fn push_at(&mut self, place: usize, key: Packed, answer: &Answer) -> (Packed, Answer) {
        let bucket = &mut self.buckets[place];
        let gone = (bucket.keys[1], bucket.answers[1]);
        bucket.keys = [key, bucket.keys[0]];
        bucket.answers = [*answer, bucket.answers[0]];
        gone
    }

    /// Keeps the tokens of a piece; the oldest at its place moves to the neighbouring one, where the oldest goes. The table
    /// grows with what comes, up to `max_buckets`.
    pub(super) fn push_growing(&mut self, key: Packed, hash: u64, answer: &Answer, max_buckets: usize) {
        self.n_new += 1;
        if self.n_new > self.buckets.len() && self.buckets.len() < max_buckets {
            let mut larger = Self::new(2 * self.buckets.len());
            for bucket in &self.buckets {
                for (&key, answer) in bucket.keys.iter().zip(&bucket.answers).filter(|(key, _)| **key != 0) {
                    larger.insert(key, hash_packed(key), answer);
                }
            }
            *self = larger;
        }
        let place = self.place(hash);
        let (displaced, its_answer) = self.push_at(place, key, answer);
        if displaced != 0 {
            self.push_at(place ^ 1, displaced, &its_answer);
        }
    }
}

/// The tokens as an answer, if there are few enough, and any.
pub(super) fn answer(tokens: &[u32]) -> Option<Answer> {
    if tokens.is_empty() {
        return None;
    }
    let mut answer = [0; MAX_TOKENS + 1];
    answer.get_mut(..MAX_TOKENS)?.get_mut(..tokens.len())?.copy_from_slice(tokens);
    answer[MAX_TOKENS] = tokens.len() as u32;
    Some(answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::count::key::pack;

    fn key(text: &str) -> Packed {
        pack(text.as_bytes(), 0, text.len())
    }

    fn get(table: &PieceTable, key: Packed, hash: u64) -> Option<u32> {
        let mut room = [0; MAX_TOKENS + 1];
        let found = table.get(table.place(hash), key, &mut room).map(|_| room[0]);
        found.or_else(|| table.get_displaced(key, hash, &mut room).map(|_| room[0]))
    }

    #[test]
    fn the_first_two_inserted_stay_and_the_last_two_pushed_stay() {
        let mut table = PieceTable::new(4);
        for (text, number) in [("a", 1), ("b", 2), ("c", 3)] {
            table.insert(key(text), 7 << 32, &[number, 0, 0, 1]);
        }
        assert_eq!(["a", "b", "c"].map(|text| get(&table, key(text), 7 << 32)), [Some(1), Some(2), None]);
        for (text, number) in [("d", 4), ("e", 5)] {
            table.push(key(text), 7 << 32, &[number, 0, 0, 1]);
        }
        let found = ["a", "b", "d", "e"].map(|text| get(&table, key(text), 7 << 32));
        assert_eq!(found, [None, None, Some(4), Some(5)]);
    }

    #[test]
    fn a_table_grows_with_what_comes_and_forgets_little() {
        let mut table = PieceTable::new(4);
        for number in 0..1000 {
            let key = key(&number.to_string());
            table.push_growing(key, hash_packed(key), &[number, 0, 0, 1], 1024);
        }
        assert!((512..=1024).contains(&table.buckets.len()));
        let is_kept = |number: &u32| {
            let key = key(&number.to_string());
            get(&table, key, hash_packed(key)).inspect(|found| assert_eq!(found, number)).is_some()
        };
        assert!((0..1000).filter(is_kept).count() > 700);
    }

    #[test]
    fn an_answer_has_up_to_three_tokens() {
        assert_eq!(answer(&[7, 8]), Some([7, 8, 0, 2]));
        assert_eq!(answer(&[1, 2, 3, 4]), None);
    }
}
