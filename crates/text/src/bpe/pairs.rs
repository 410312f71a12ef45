//! Which pairs of tokens merge. Most answers are no, and most of those come from a bit map that stays in the second cache.

use crate::pages::room_in_large_pages;
use crate::prefetch::prefetch;

/// The merge of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Merge {
    /// Lower ones go first.
    pub(super) rank: u32,
    /// The token that the pair becomes.
    pub(super) result: u32,
}

/// No merge: its rank is above all ranks.
pub(super) const NONE: Merge = Merge { rank: u32::MAX, result: u32::MAX };

#[derive(Debug, Clone, Copy)]
#[repr(C, align(16))]
struct Slot {
    pair: u64,
    merge: Merge,
}

/// A pair of ids that no vocabulary has, since ids stay below `u32::MAX`.
const EMPTY: Slot = Slot { pair: u64::MAX, merge: NONE };

/// Merges by pair; at most half of the slots are taken, so that probing ends.
#[derive(Debug, Clone)]
pub(super) struct PairTable {
    slots: Vec<Slot>,
    shift: u32,
    /// A bit for every eighth of a slot, set where a pair's hash falls.
    filter: Vec<u64>,
}

#[inline(always)]
fn join(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

impl PairTable {
    /// An empty table with room for `n_merges`.
    pub(super) fn with_room(n_merges: usize) -> Self {
        let n_slots = (2 * n_merges).next_power_of_two().max(16);
        let mut slots = room_in_large_pages(n_slots);
        slots.resize(n_slots, EMPTY);
        Self { slots, shift: u64::BITS - n_slots.trailing_zeros(), filter: vec![0; n_slots / 8] }
    }

    /// An odd multiplier spreads both halves over the upper bits.
    #[inline(always)]
    fn hash(pair: u64) -> u64 {
        (pair ^ pair >> 29).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// The word of the filter and the bit in it.
    #[inline(always)]
    fn filter_place(&self, hash: u64) -> (usize, u32) {
        let bit = hash >> (self.shift - 3);
        ((bit / 64) as usize, (bit % 64) as u32)
    }

    /// The slot of the pair, or the empty one where it would be.
    #[inline(always)]
    fn find(&self, pair: u64) -> usize {
        let last = self.slots.len() - 1;
        let mut idx = (Self::hash(pair) >> self.shift) as usize & last;
        while self.slots[idx].pair != pair && self.slots[idx].pair != EMPTY.pair {
            idx = (idx + 1) & last;
        }
        idx
    }

    /// The merge of `left` and `right`, or [`NONE`].
    #[inline(always)]
    pub(super) fn get(&self, left: u32, right: u32) -> Merge {
        let pair = join(left, right);
        let (word, bit) = self.filter_place(Self::hash(pair));
        if self.filter.get(word).is_none_or(|word| word >> bit & 1 == 0) {
            return NONE;
        }
        self.slots[self.find(pair)].merge
    }

    /// Starts to bring near what [`get`](Self::get) looks at.
    #[inline(always)]
    pub(super) fn prefetch(&self, left: u32, right: u32) {
        prefetch(&self.slots, (Self::hash(join(left, right)) >> self.shift) as usize);
    }

    /// Adds a merge and says whether it is new. There must be room.
    pub(super) fn insert(&mut self, left: u32, right: u32, merge: Merge) -> bool {
        let pair = join(left, right);
        let idx = self.find(pair);
        let is_new = self.slots[idx].pair != pair;
        if is_new {
            self.slots[idx] = Slot { pair, merge };
            let (word, bit) = self.filter_place(Self::hash(pair));
            self.filter[word] |= 1 << bit;
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_inserted_is_found_and_nothing_else() {
        let mut table = PairTable::with_room(3000);
        let merge = |number: u32| Merge { rank: number, result: number + 7 };
        for number in 0..3000 {
            assert!(table.insert(number % 60, number / 60, merge(number)));
        }
        assert!(!table.insert(5, 3, merge(9)));
        for number in 0..3000 {
            assert_eq!(table.get(number % 60, number / 60), merge(number));
        }
        for other in 0..3000 {
            assert_eq!(table.get(60 + other, other), NONE);
        }
    }
}
