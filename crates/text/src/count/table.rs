//! Tables of pieces and counts whose size in memory is known to the byte.

use std::ops::Range;

use super::key::{MAX_PACKED, Packed, hash, hash_packed, pack, partition, unpack};
use crate::prefetch::prefetch;

/// A short piece and its count: half a cache line, so that a look-up touches one.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(32))]
struct Slot {
    key: Packed,
    count: u64,
}

const EMPTY: Slot = Slot { key: 0, count: 0 };

/// A long piece: where its bytes are, and its count.
#[derive(Debug, Clone, Copy)]
struct LongSlot {
    hash: u64,
    start: u64,
    n_bytes: u64,
    count: u64,
}

const LONG_EMPTY: LongSlot = LongSlot { hash: 0, start: 0, n_bytes: 0, count: 0 };

/// Slots of an empty table: small enough to cost nothing, large enough for a second cache.
const FIRST_SLOTS: usize = 1 << 14;

/// Exact counts of distinct pieces. Growing never goes beyond a limit; who adds asks first whether there is room.
#[derive(Debug)]
pub(super) struct Table {
    slots: Vec<Slot>,
    n_short: usize,
    long: Vec<LongSlot>,
    n_long: usize,
    long_bytes: Vec<u8>,
    max_bytes: usize,
    /// Whether a limit has been reached, so that entries must go before more can come.
    full: bool,
}

impl Table {
    /// A table that takes at most about `max_bytes`, its growth included.
    pub(super) fn new(max_bytes: usize) -> Self {
        Self {
            slots: vec![EMPTY; FIRST_SLOTS],
            n_short: 0,
            long: vec![LONG_EMPTY; 64],
            n_long: 0,
            long_bytes: Vec::new(),
            max_bytes,
            full: false,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.n_short + self.n_long
    }

    /// Whether entries should be taken out before the next batch is added.
    pub(super) fn is_full(&self) -> bool {
        self.full
    }

    /// What the table takes now.
    pub(super) fn n_bytes(&self) -> usize {
        self.slots.len() * size_of::<Slot>()
            + self.long.len() * size_of::<LongSlot>()
            + self.long_bytes.capacity()
    }

    #[inline(always)]
    fn short_idx(&self, hash: u64) -> usize {
        // The upper bits of the product are the well mixed ones.
        (hash >> 32) as usize & (self.slots.len() - 1)
    }

    /// Starts to bring the slot of a hash near.
    #[inline(always)]
    pub(super) fn prefetch(&self, hash: u64) {
        prefetch(&self.slots, self.short_idx(hash));
    }

    #[inline(always)]
    pub(super) fn add_packed(&mut self, key: Packed, hash: u64, count: u64) {
        let mut idx = self.short_idx(hash);
        let last = self.slots.len() - 1;
        loop {
            let slot = &mut self.slots[idx];
            if slot.key == key {
                slot.count += count;
                return;
            }
            if slot.key == 0 {
                *slot = Slot { key, count };
                self.n_short += 1;
                if self.n_short * 3 > self.slots.len() * 2 {
                    self.grow_short();
                }
                return;
            }
            idx = (idx + 1) & last;
        }
    }

    /// Adds to the count of any piece. Overflow is the caller's to exclude: no count exceeds the total.
    pub(super) fn add(&mut self, piece: &[u8], count: u64) {
        if piece.len() <= MAX_PACKED {
            let key = pack(piece, 0, piece.len());
            self.add_packed(key, hash_packed(key), count);
        } else {
            self.add_long(piece, hash(piece), count);
        }
    }

    #[cold]
    pub(super) fn add_long(&mut self, piece: &[u8], hash: u64, count: u64) {
        let last = self.long.len() - 1;
        let mut idx = (hash >> 32) as usize & last;
        while self.long[idx].count > 0 {
            let LongSlot { hash: other, start, n_bytes, .. } = self.long[idx];
            if other == hash && &self.long_bytes[start as usize..(start + n_bytes) as usize] == piece {
                self.long[idx].count += count;
                return;
            }
            idx = (idx + 1) & last;
        }
        let start = self.long_bytes.len() as u64;
        self.long[idx] = LongSlot { hash, start, n_bytes: piece.len() as u64, count };
        self.reserve_bytes(piece.len());
        self.long_bytes.extend_from_slice(piece);
        self.n_long += 1;
        if self.n_long * 3 > self.long.len() * 2 {
            self.grow_long();
        }
    }

    /// Makes room by half of what is there, so that the copy while growing stays small against the whole.
    fn reserve_bytes(&mut self, wanted: usize) {
        if self.long_bytes.capacity() - self.long_bytes.len() < wanted {
            let extra = wanted.max(self.long_bytes.len() / 2);
            self.long_bytes.reserve_exact(extra);
            self.check_room();
        }
    }

    fn grow_short(&mut self) {
        let doubled = self.slots.len() * 2;
        // Both tables exist while entries move.
        let peak = self.n_bytes() + doubled * size_of::<Slot>();
        if peak > self.max_bytes {
            self.full = true;
            // A batch is added before anybody looks, so stop well before the last free slot; after that, grow regardless.
            if self.n_short * 10 < self.slots.len() * 9 {
                return;
            }
        }
        let old = std::mem::replace(&mut self.slots, vec![EMPTY; doubled]);
        let last = doubled - 1;
        for slot in old.into_iter().filter(|slot| slot.key != 0) {
            let mut idx = self.short_idx(hash_packed(slot.key));
            while self.slots[idx].key != 0 {
                idx = (idx + 1) & last;
            }
            self.slots[idx] = slot;
        }
    }

    fn grow_long(&mut self) {
        let doubled = self.long.len() * 2;
        let old = std::mem::replace(&mut self.long, vec![LONG_EMPTY; doubled]);
        let last = doubled - 1;
        for slot in old.into_iter().filter(|slot| slot.count > 0) {
            let mut idx = (slot.hash >> 32) as usize & last;
            while self.long[idx].count > 0 {
                idx = (idx + 1) & last;
            }
            self.long[idx] = slot;
        }
        self.check_room();
    }

    /// The long pieces may take a third of the room: the next growth of either table still fits then.
    fn check_room(&mut self) {
        let long = self.long.len() * size_of::<LongSlot>() + self.long_bytes.capacity();
        self.full |= long > self.max_bytes / 3;
    }

    /// Every piece and its count, in no particular order.
    pub(super) fn for_each<E>(&self, mut visit: impl FnMut(&[u8], u64) -> Result<(), E>) -> Result<(), E> {
        for slot in self.slots.iter().filter(|slot| slot.key != 0) {
            let (bytes, n_bytes) = unpack(slot.key);
            visit(&bytes[..n_bytes], slot.count)?;
        }
        for slot in self.long.iter().filter(|slot| slot.count > 0) {
            visit(self.long_piece(slot), slot.count)?;
        }
        Ok(())
    }

    /// Every piece of the partitions in `wanted`, by partition and in each in the order of the pieces' bytes.
    pub(super) fn for_each_sorted<E>(
        &self,
        wanted: Range<usize>,
        mut visit: impl FnMut(usize, &[u8], u64) -> Result<(), E>,
    ) -> Result<(), E> {
        // With its first byte on top, a key compares as its bytes do, and a shorter piece comes first.
        let used = self.slots.iter().filter(|slot| slot.key != 0);
        let mut short: Vec<(usize, Packed, u64)> = used
            .map(|slot| (partition(hash_packed(slot.key)), slot.key.swap_bytes(), slot.count))
            .filter(|(idx, ..)| wanted.contains(idx))
            .collect();
        short.sort_unstable();
        let used = self.long.iter().filter(|slot| slot.count > 0);
        let mut long: Vec<(usize, &[u8], u64)> = used
            .map(|slot| (partition(slot.hash), self.long_piece(slot), slot.count))
            .filter(|(idx, ..)| wanted.contains(idx))
            .collect();
        long.sort_unstable();
        let mut long = long.into_iter().peekable();
        for (idx, key, count) in short {
            let (bytes, n_bytes) = unpack(key.swap_bytes());
            let piece = &bytes[..n_bytes];
            while let Some((idx, piece, count)) = long.next_if(|other| (other.0, other.1) < (idx, piece)) {
                visit(idx, piece, count)?;
            }
            visit(idx, piece, count)?;
        }
        long.try_for_each(|(idx, piece, count)| visit(idx, piece, count))
    }

    fn long_piece(&self, slot: &LongSlot) -> &[u8] {
        &self.long_bytes[slot.start as usize..(slot.start + slot.n_bytes) as usize]
    }

    /// Removes the rarer half of the pieces. Gives the highest count among them, and the sum of their counts.
    pub(super) fn drop_rare(&mut self) -> (u64, u64) {
        let mut counts = Vec::with_capacity(self.len());
        counts.extend(self.slots.iter().filter(|slot| slot.key != 0).map(|slot| slot.count));
        counts.extend(self.long.iter().filter(|slot| slot.count > 0).map(|slot| slot.count));
        if counts.is_empty() {
            return (0, 0);
        }
        let middle = (counts.len() - 1) / 2;
        let (_, &mut highest, _) = counts.select_nth_unstable(middle);
        let short: Vec<Slot> = self.slots.iter().filter(|slot| slot.count > highest).copied().collect();
        let long: Vec<(Vec<u8>, u64)> = self
            .long
            .iter()
            .filter(|slot| slot.count > highest)
            .map(|slot| (self.long_piece(slot).to_vec(), slot.count))
            .collect();
        let dropped = counts.iter().filter(|&&count| count <= highest).sum();
        drop(counts);
        self.clear();
        for slot in short {
            self.add_packed(slot.key, hash_packed(slot.key), slot.count);
        }
        for (piece, count) in long {
            self.add_long(&piece, hash(&piece), count);
        }
        (highest, dropped)
    }

    /// Removes everything and keeps the memory, except for that of unusually much long text.
    pub(super) fn clear(&mut self) {
        self.slots.fill(EMPTY);
        self.long.fill(LONG_EMPTY);
        self.long_bytes.clear();
        self.long_bytes.shrink_to(self.max_bytes / 6);
        (self.n_short, self.n_long, self.full) = (0, 0, false);
    }
}
