//! Tables of pairs: how often each occurs, and in which pieces.

/// Two adjacent symbols as one number.
pub(super) type PairKey = u64;

/// The key of a pair of ids.
#[inline(always)]
pub(super) fn key(left: u32, right: u32) -> PairKey {
    PairKey::from(left) << 32 | PairKey::from(right)
}

/// The ids of a pair.
#[inline(always)]
pub(super) fn ids(key: PairKey) -> (u32, u32) {
    ((key >> 32) as u32, key as u32)
}

/// No pair: two ids that no vocabulary has.
const NONE: PairKey = PairKey::MAX;

/// What is known about a pair.
#[derive(Debug, Clone, Copy)]
pub(super) struct PairEntry {
    pub(super) key: PairKey,
    /// How often it occurs in the corpus.
    pub(super) count: u64,
    /// Where its list of places starts; before the list is made, how many bytes its pieces take at most.
    pub(super) start: usize,
    /// How many places it has; before the list is made, how many it may have at most.
    pub(super) n_places: u32,
}

const EMPTY: PairEntry = PairEntry { key: NONE, count: 0, start: 0, n_places: 0 };

/// Pairs by key, in one open-addressed table of half a cache line a slot.
#[derive(Debug)]
pub(super) struct PairTable {
    slots: Vec<PairEntry>,
    len: usize,
}

impl PairTable {
    pub(super) fn with_capacity(n_pairs: usize) -> Self {
        Self { slots: vec![EMPTY; slots_for(n_pairs)], len: 0 }
    }

    /// The memory of a table with so many pairs.
    pub(super) fn n_bytes_for(n_pairs: usize) -> usize {
        slots_for(n_pairs) * size_of::<PairEntry>()
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    fn slot(&self, key: PairKey) -> usize {
        let last = self.slots.len() - 1;
        let mut idx = mixed(key) & last;
        while self.slots[idx].key != key && self.slots[idx].key != NONE {
            idx = (idx + 1) & last;
        }
        idx
    }

    #[inline(always)]
    pub(super) fn get_mut(&mut self, key: PairKey) -> Option<&mut PairEntry> {
        let idx = self.slot(key);
        let entry = &mut self.slots[idx];
        (entry.key == key).then_some(entry)
    }

    /// Adds a piece of `n_bytes` to a pair, which is made if need be; says whether its count overflows.
    #[inline(always)]
    pub(super) fn add(&mut self, key: PairKey, count: u64, n_bytes: usize) -> bool {
        let idx = self.slot(key);
        let entry = &mut self.slots[idx];
        let is_new = entry.key == NONE;
        entry.key = key;
        entry.n_places = entry.n_places.saturating_add(1);
        entry.start = entry.start.saturating_add(n_bytes);
        let (sum, overflows) = entry.count.overflowing_add(count);
        entry.count = sum;
        if is_new {
            self.len += 1;
            if self.len * 2 > self.slots.len() {
                self.grow();
            }
        }
        overflows
    }

    /// Puts in a pair that is not there.
    pub(super) fn insert(&mut self, entry: PairEntry) {
        let idx = self.slot(entry.key);
        self.slots[idx] = entry;
        self.len += 1;
        if self.len * 2 > self.slots.len() {
            self.grow();
        }
    }

    fn grow(&mut self) {
        let doubled = self.slots.len() * 2;
        let old = std::mem::replace(&mut self.slots, vec![EMPTY; doubled]);
        for entry in old.into_iter().filter(|entry| entry.key != NONE) {
            let idx = self.slot(entry.key);
            self.slots[idx] = entry;
        }
    }

    /// All pairs, in an order that has no meaning.
    pub(super) fn iter(&self) -> impl Iterator<Item = &PairEntry> {
        self.slots.iter().filter(|entry| entry.key != NONE)
    }
}

fn slots_for(n_pairs: usize) -> usize {
    (n_pairs * 2 + 2).next_power_of_two().max(64)
}

#[inline(always)]
fn mixed(key: PairKey) -> usize {
    // Both ids change the upper half of the product.
    let product = (key ^ key >> 29).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (product >> 32) as usize ^ product as usize >> 7
}

/// Upper bounds of the counts of all pairs in a fixed room: a pair's bound is never below its count.
pub(super) struct Sketch {
    cells: Vec<u64>,
}

impl Sketch {
    pub(super) fn new(n_bytes: usize) -> Self {
        let n_cells = (n_bytes / size_of::<u64>()).max(1024);
        // The largest power of two that fits.
        Self { cells: vec![0; 1 << n_cells.ilog2()] }
    }

    #[inline(always)]
    pub(super) fn add(&mut self, key: PairKey, count: u64) {
        let idx = mixed(key) & (self.cells.len() - 1);
        self.cells[idx] = self.cells[idx].saturating_add(count);
    }

    /// A threshold that about twice as many pairs as are wanted may reach, but not below the part `max_fall` of the highest.
    pub(super) fn likely_threshold(&self, n_wanted: usize, max_fall: u64) -> u64 {
        let mut cells: Vec<u64> = self.cells.iter().copied().filter(|&cell| cell > 0).collect();
        let least = cells.iter().max().map_or(0, |highest| highest / max_fall);
        let rank = n_wanted.saturating_mul(2);
        if rank >= cells.len() {
            return least;
        }
        let (_, &mut likely, _) = cells.select_nth_unstable_by(rank, |a, b| b.cmp(a));
        least.max(likely)
    }

    #[inline(always)]
    pub(super) fn bound(&self, key: PairKey) -> u64 {
        self.cells[mixed(key) & (self.cells.len() - 1)]
    }
}

/// Says of most pairs that are not in a table that they are not.
pub(super) struct PairFilter {
    bits: Vec<u64>,
}

impl PairFilter {
    pub(super) fn new(table: &PairTable) -> Self {
        let n_bits = (table.len() * 32).next_power_of_two().max(64);
        let mut filter = Self { bits: vec![0; n_bits / 64] };
        for entry in table.iter() {
            let bit = filter.bit(entry.key);
            filter.bits[bit / 64] |= 1 << (bit % 64);
        }
        filter
    }

    #[inline(always)]
    fn bit(&self, key: PairKey) -> usize {
        mixed(key) & (self.bits.len() * 64 - 1)
    }

    #[inline(always)]
    pub(super) fn may_have(&self, key: PairKey) -> bool {
        let bit = self.bit(key);
        self.bits[bit / 64] >> (bit % 64) & 1 == 1
    }
}
