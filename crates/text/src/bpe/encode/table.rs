//! The tokens of pieces that have come before or are expected.

use super::key::{FREE, Key};

/// The most tokens of a piece in the table.
pub(super) const MAX_TOKENS: usize = 3;

/// Up to three tokens, and how many there are: one copy of 16 bytes appends them to what is written.
pub(super) type Answer = [u32; MAX_TOKENS + 1];

/// Two pieces in one cache line.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Bucket {
    pub(super) keys: [Key; 2],
    pub(super) answers: [Answer; 2],
}

const EMPTY: Bucket = Bucket { keys: [FREE; 2], answers: [[0; MAX_TOKENS + 1]; 2] };

/// Pieces of up to 15 bytes and three tokens, each in the bucket that its hash says or, where that was full, in the next one.
#[derive(Debug, Clone)]
pub(super) struct PieceTable {
    buckets: Vec<Bucket>,
    /// How many pieces have come since the table had this size, whether they are still there or not.
    n_new: usize,
}

/// The most buckets: 16 MiB. What is asked for early may come from the third cache.
pub(super) const MAX_BUCKETS: usize = 1 << 18;

impl PieceTable {
    /// An empty table for about `n_pieces`, a quarter full with them: only the slow path finds a piece whose bucket was full.
    pub(super) fn with_room(n_pieces: usize) -> Self {
        Self::with_buckets(2 * n_pieces.next_power_of_two())
    }

    fn with_buckets(n_buckets: usize) -> Self {
        Self { buckets: vec![EMPTY; n_buckets.clamp(1 << 8, MAX_BUCKETS)], n_new: 0 }
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

/// The tokens of an answer.
pub(super) fn tokens(answer: &Answer) -> &[u32] {
    let (tokens, n_tokens) = answer.split_at(MAX_TOKENS);
    tokens.get(..n_tokens[0] as usize).unwrap_or(tokens)
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

    fn key(text: &str) -> Key {
        Key::of(text.as_bytes()).unwrap()
    }

    #[test]
    fn the_first_to_come_stay_and_the_last_pushed() {
        let mut table = PieceTable::with_room(1);
        let alike = |number: &u32| table.places(key(&number.to_string())) == table.places(key("0"));
        let numbers: Vec<u32> = (0..).filter(alike).take(6).collect();
        let keys: Vec<Key> = numbers.iter().map(|number| key(&number.to_string())).collect();
        for (idx, &key) in keys.iter().enumerate() {
            assert_eq!(table.insert(key, &[idx as u32, 0, 0, 1]), idx < 4);
        }
        let found = |table: &PieceTable| {
            keys.iter().map(|&key| table.get(key).map(|answer| answer[0])).collect::<Vec<_>>()
        };
        assert_eq!(found(&table), [Some(0), Some(1), Some(2), Some(3), None, None]);
        table.push(keys[4], &[4, 0, 0, 1]);
        table.push(keys[5], &[5, 0, 0, 1]);
        assert_eq!(found(&table), [Some(0), None, Some(2), Some(3), None, Some(5)]);
    }

    #[test]
    fn a_table_grows_with_what_comes_and_forgets_little() {
        let mut table = PieceTable::with_room(1);
        for number in 0..10_000 {
            table.push(key(&number.to_string()), &[number, 0, 0, 1]);
            table.make_room();
        }
        assert!((4096..=16_384).contains(&table.buckets.len()));
        let is_kept = |number: &u32| {
            let found = table.get(key(&number.to_string()));
            found.inspect(|found| assert_eq!(found[0], *number)).is_some()
        };
        assert!((0..10_000).filter(is_kept).count() > 8000);
    }

    #[test]
    fn an_answer_has_up_to_three_tokens() {
        assert_eq!(answer(&[7, 8]), Some([7, 8, 0, 2]));
        assert_eq!(answer(&[1, 2, 3, 4]), None);
    }
}
