//! The short pieces that make up most of a text, counted in a table that the second cache holds.
//!
//! A few thousand pieces are nine tenths of any text, and most of them have less than eight bytes. The large table would
//! spread them over as many cache lines as it has pieces and compare sixteen bytes for each; here a key is one word, a look-up
//! has no branch that is hard to foresee, and only what it does not find goes to the large table.

use super::table::Table;

/// The longest piece that a key of one word holds beside its length.
const MAX_SHORT: usize = 7;

/// A short piece and its count since it came here.
#[derive(Debug, Clone, Copy)]
struct ShortSlot {
    /// Zero where there is none.
    key: u64,
    count: u64,
}

const EMPTY: ShortSlot = ShortSlot { key: 0, count: 0 };

/// Slots of the table: a quarter of a mebibyte.
const SLOT_BITS: u32 = 14;
const N_SLOTS: usize = 1 << SLOT_BITS;

/// One in so many pieces that are not here takes the place of one that is, so that the table follows the text.
const REPLACE_EVERY: u32 = 16;

/// For each length, the bits of a key's bytes; for all that are too long, no key that is ever stored.
const MASKS: [(u64, u64); MAX_SHORT + 2] = {
    let mut masks = [(0, u64::MAX); MAX_SHORT + 2];
    let mut n_bytes = 1;
    while n_bytes <= MAX_SHORT {
        masks[n_bytes] = ((1 << (8 * n_bytes)) - 1, (n_bytes as u64) << 56);
        n_bytes += 1;
    }
    masks
};

/// Where a piece starts and ends in the text.
pub(super) type Span = (usize, usize);

/// Counts of frequent pieces that are not yet in the large table.
#[derive(Debug)]
pub(super) struct HotTable {
    slots: Box<[ShortSlot; N_SLOTS]>,
    n_missed: u32,
}

impl HotTable {
    /// What it takes.
    pub(super) const N_BYTES: usize = size_of::<[ShortSlot; N_SLOTS]>();

    pub(super) fn new() -> Self {
        Self { slots: Box::new([EMPTY; N_SLOTS]), n_missed: 0 }
    }

    #[inline(always)]
    fn key(text: &[u8], (start, end): Span) -> u64 {
        let n_bytes = end - start;
        let (mask, length) = MASKS[n_bytes.min(MAX_SHORT + 1)];
        let word = match text.get(start..).and_then(|rest| rest.first_chunk::<8>()) {
            Some(bytes) => u64::from_le_bytes(*bytes),
            None => text[start..end].iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte)),
        };
        word & mask | length
    }

    #[inline(always)]
    fn idx(key: u64) -> usize {
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - SLOT_BITS)) as usize
    }

    /// Counts the pieces of `text` between `start` and each of `ends` that are here, and notes the others in `missed`. Gives how
    /// many those are.
    #[inline(always)]
    pub(super) fn add<const N: usize>(
        &mut self,
        text: &[u8],
        start: &mut usize,
        ends: &[usize],
        missed: &mut [Span; N],
    ) -> usize {
        let mut n_missed = 0;
        for &end in ends {
            let span = (*start, end);
            let key = Self::key(text, span);
            let slot = &mut self.slots[Self::idx(key)];
            let is_here = slot.key == key;
            slot.count += u64::from(is_here);
            missed[n_missed % N] = span;
            n_missed += usize::from(!is_here);
            *start = end;
        }
        n_missed
    }

    /// Whether a piece that was missed shall be counted here from now on; if so, it is counted once.
    #[inline(always)]
    pub(super) fn takes(&mut self, text: &[u8], span: Span, table: &mut Table) -> bool {
        self.n_missed = self.n_missed.wrapping_add(1);
        if span.1 - span.0 > MAX_SHORT || !self.n_missed.is_multiple_of(REPLACE_EVERY) {
            return false;
        }
        let key = Self::key(text, span);
        let slot = &mut self.slots[Self::idx(key)];
        if slot.key == key {
            // It came twice since it was missed.
            slot.count += 1;
            return true;
        }
        let old = std::mem::replace(slot, ShortSlot { key, count: 1 });
        old.move_to(table);
        true
    }

    /// Moves everything to the large table.
    pub(super) fn drain_into(&mut self, table: &mut Table) {
        for slot in self.slots.iter_mut() {
            std::mem::replace(slot, EMPTY).move_to(table);
        }
    }
}

impl ShortSlot {
    fn move_to(self, table: &mut Table) {
        let bytes = self.key.to_le_bytes();
        let n_bytes = usize::from(bytes[7]);
        if n_bytes > 0 {
            table.add(&bytes[..n_bytes], self.count);
        }
    }
}
