//! The distinct pieces in training, one after the other in one allocation.
//!
//! A record is a word of eight bytes, the count above the length, and the piece's symbols behind it, so that a visit mostly
//! touches one cache line. Symbols shrink in place; what they leave is taken out when the arena is compacted.

use crate::{Error, Result};

/// A token id as it is stored: 16 bits where the vocabulary fits, else 32.
pub(super) trait Symbol: Copy + Eq + Default + 'static {
    /// How many of them make eight bytes.
    const PER_HEADER: usize;
    /// How many of them make four bytes, to which records are aligned.
    const PER_PLACE: usize = Self::PER_HEADER / 2;
    /// How many bytes one takes.
    const N_BYTES: usize = size_of::<Self>();

    fn new(id: u32) -> Self;
    fn id(self) -> u32;
    fn header(units: &[Self]) -> u64;
    fn set_header(units: &mut [Self], header: u64);
}

impl Symbol for u16 {
    const PER_HEADER: usize = 4;

    #[inline(always)]
    fn new(id: u32) -> Self {
        id as u16
    }

    #[inline(always)]
    fn id(self) -> u32 {
        u32::from(self)
    }

    #[inline(always)]
    fn header(units: &[Self]) -> u64 {
        match *units {
            [a, b, c, d, ..] => u64::from(a) | u64::from(b) << 16 | u64::from(c) << 32 | u64::from(d) << 48,
            _ => 0,
        }
    }

    #[inline(always)]
    fn set_header(units: &mut [Self], header: u64) {
        for (idx, unit) in units[..4].iter_mut().enumerate() {
            *unit = (header >> (16 * idx)) as u16;
        }
    }
}

impl Symbol for u32 {
    const PER_HEADER: usize = 2;

    #[inline(always)]
    fn new(id: u32) -> Self {
        id
    }

    #[inline(always)]
    fn id(self) -> u32 {
        self
    }

    #[inline(always)]
    fn header(units: &[Self]) -> u64 {
        match *units {
            [a, b, ..] => u64::from(a) | u64::from(b) << 32,
            _ => 0,
        }
    }

    #[inline(always)]
    fn set_header(units: &mut [Self], header: u64) {
        units[0] = header as u32;
        units[1] = (header >> 32) as u32;
    }
}

/// Bits of the length in a header.
const LEN_BITS: u32 = 16;

/// The length that says that the true one, of 32 bits, follows the header.
const LONG: u64 = (1 << LEN_BITS) - 1;

/// The largest count of a record. A piece that occurs more often has several records, which changes nothing: counts add.
const MAX_COUNT: u64 = (1 << (64 - LEN_BITS)) - 1;

/// The place of a record, in units of four bytes.
pub(super) type Place = u32;

/// All pieces of two symbols or more.
pub(super) struct Arena<S> {
    units: Vec<S>,
}

/// One record: where its symbols are, and its count.
#[derive(Clone, Copy)]
pub(super) struct Record {
    /// Where the symbols start, in symbols.
    pub(super) start: usize,
    /// How many symbols there are.
    pub(super) len: usize,
    /// How often the piece occurs.
    pub(super) count: u64,
}

impl<S: Symbol> Arena<S> {
    /// An arena with room for `distinct` pieces of `n_bytes` bytes in all.
    pub(super) fn with_capacity(distinct: usize, n_bytes: usize) -> Self {
        let per_record = S::PER_HEADER + S::PER_PLACE - 1;
        Self { units: Vec::with_capacity(distinct * per_record + n_bytes) }
    }

    /// The memory that an arena for so many pieces takes, in bytes.
    pub(super) fn n_bytes_for(distinct: u64, n_bytes: u64) -> u64 {
        let per_record = (S::PER_HEADER + S::PER_PLACE - 1) as u64;
        (distinct * per_record + n_bytes) * size_of::<S>() as u64
    }

    /// The memory that the record of a piece takes at most, in bytes.
    pub(super) fn n_bytes_of(len: usize) -> usize {
        (S::PER_HEADER + 2 * S::PER_PLACE + len) * S::N_BYTES
    }

    /// Removes everything and its memory.
    pub(super) fn clear(&mut self) {
        self.units = Vec::new();
    }

    /// Makes room for so many bytes of records.
    pub(super) fn reserve(&mut self, n_bytes: usize) {
        self.units.reserve_exact(n_bytes / S::N_BYTES);
    }

    /// What it takes, in bytes.
    pub(super) fn n_bytes(&self) -> usize {
        self.units.capacity() * size_of::<S>()
    }

    /// Adds a piece; one of a single symbol has no pair and is left out.
    pub(super) fn push(&mut self, symbols: impl ExactSizeIterator<Item = u32>, mut count: u64) -> Result<()> {
        let len = symbols.len();
        if len < 2 {
            return Ok(());
        }
        let start = self.units.len();
        self.push_header(len, count.min(MAX_COUNT))?;
        self.units.extend(symbols.map(S::new));
        self.align();
        let end = self.units.len();
        while count > MAX_COUNT {
            count -= MAX_COUNT;
            let again = self.units.len();
            self.units.extend_from_within(start..end);
            self.set_header(again, len, count.min(MAX_COUNT));
        }
        match Place::try_from(self.units.len() / S::PER_PLACE) {
            Ok(_) => Ok(()),
            Err(_) => Err(Error::CorpusTooLarge { max_bytes: u64::from(Place::MAX) * 4 }),
        }
    }

    fn push_header(&mut self, len: usize, count: u64) -> Result<()> {
        let start = self.units.len();
        let extra = if len as u64 >= LONG { S::PER_PLACE } else { 0 };
        self.units.resize(start + S::PER_HEADER + extra, S::default());
        if extra > 0 {
            let long =
                u32::try_from(len).map_err(|_| Error::CorpusTooLarge { max_bytes: u64::from(u32::MAX) })?;
            self.set_long_len(start, long);
        }
        self.set_header(start, len, count);
        Ok(())
    }

    #[inline(always)]
    fn set_header(&mut self, start: usize, len: usize, count: u64) {
        S::set_header(&mut self.units[start..], (len as u64).min(LONG) | count << LEN_BITS);
    }

    #[cold]
    fn set_long_len(&mut self, start: usize, len: u32) {
        let at = start + S::PER_HEADER;
        let mut both = [S::default(); 4];
        S::set_header(&mut both, u64::from(len));
        self.units[at..at + S::PER_PLACE].copy_from_slice(&both[..S::PER_PLACE]);
    }

    #[cold]
    fn long_len(&self, start: usize) -> usize {
        let at = start + S::PER_HEADER;
        let mut both = [S::default(); 4];
        both[..S::PER_PLACE].copy_from_slice(&self.units[at..at + S::PER_PLACE]);
        S::header(&both) as usize
    }

    fn align(&mut self) {
        self.units.resize(self.units.len().next_multiple_of(S::PER_PLACE), S::default());
    }

    /// Asks for the cache line of a record.
    #[inline(always)]
    pub(super) fn prefetch(&self, place: Place) {
        crate::prefetch::prefetch(&self.units, place as usize * S::PER_PLACE);
    }

    /// The record at a place.
    #[inline(always)]
    pub(super) fn record(&self, place: Place) -> Record {
        let start = place as usize * S::PER_PLACE;
        let header = S::header(&self.units[start..]);
        let count = header >> LEN_BITS;
        if header & LONG == LONG {
            let len = self.long_len(start);
            return Record { start: start + S::PER_HEADER + S::PER_PLACE, len, count };
        }
        Record { start: start + S::PER_HEADER, len: (header & LONG) as usize, count }
    }

    /// The symbols of a record.
    #[inline(always)]
    pub(super) fn symbols(&self, record: Record) -> &[S] {
        &self.units[record.start..record.start + record.len]
    }

    #[inline(always)]
    pub(super) fn symbols_mut(&mut self, record: Record) -> &mut [S] {
        &mut self.units[record.start..record.start + record.len]
    }

    /// Shortens a record whose symbols have become fewer, and marks what they leave.
    #[inline(always)]
    pub(super) fn set_len(&mut self, place: Place, record: Record, len: usize) {
        self.units[record.start + len..record.start + record.len].fill(S::default());
        let start = place as usize * S::PER_PLACE;
        if record.start == start + S::PER_HEADER {
            self.set_header(start, len, record.count);
        } else {
            self.set_long_len(start, len as u32);
        }
    }

    /// Goes through all records, taking out the gaps between them and those with no pair left.
    pub(super) fn compact(&mut self, mut visit: impl FnMut(&[S], u64)) {
        // How long the gap behind a record is, is not stored. Merging fills it with zeros, and no record starts with zero
        // because no length is zero.
        let (mut read, mut written) = (0, 0);
        while read < self.units.len() {
            if self.units[read] == S::default() {
                read += S::PER_PLACE;
                continue;
            }
            let record = self.record((read / S::PER_PLACE) as Place);
            let end = (record.start + record.len).next_multiple_of(S::PER_PLACE);
            if record.len >= 2 {
                visit(self.symbols(record), record.count);
                self.units.copy_within(read..end, written);
                written += end - read;
            }
            read = end;
        }
        self.units.truncate(written);
        if self.units.capacity() > 2 * written {
            self.units.shrink_to(written);
        }
    }

    /// The places of all records of a compacted arena, with their symbols.
    pub(super) fn for_each(&self, mut visit: impl FnMut(Place, &[S])) {
        let mut read = 0;
        while read < self.units.len() {
            let place = (read / S::PER_PLACE) as Place;
            let record = self.record(place);
            visit(place, self.symbols(record));
            read = (record.start + record.len).next_multiple_of(S::PER_PLACE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<S: Symbol>() {
        let mut arena = Arena::<S>::with_capacity(4, 100);
        let long = vec![7; 70_000];
        let all: [(&[u32], u64); 5] =
            [(&[1, 2, 3], 5), (&[9], 1), (&[4, 5], MAX_COUNT), (&long, 2), (&[6, 7, 8, 9], (1 << 60) + 1)];
        for (symbols, count) in all {
            arena.push(symbols.iter().copied(), count).unwrap();
        }
        let contents = |arena: &mut Arena<S>| {
            let mut found: Vec<(Vec<u32>, u64)> = Vec::new();
            arena.compact(|symbols, count| {
                let symbols: Vec<u32> = symbols.iter().map(|symbol| symbol.id()).collect();
                match found.last_mut() {
                    Some(last) if last.0 == symbols => last.1 += count,
                    _ => found.push((symbols, count)),
                }
            });
            found
        };
        let kept = |all: &[(&[u32], u64)]| -> Vec<(Vec<u32>, u64)> {
            all.iter()
                .filter(|(symbols, _)| symbols.len() > 1)
                .map(|(s, count)| (s.to_vec(), *count))
                .collect()
        };
        assert_eq!(contents(&mut arena), kept(&all));

        // Shorter records leave gaps, which compacting takes out.
        let mut places = Vec::new();
        arena.for_each(|place, _| places.push(place));
        for &place in &places {
            let record = arena.record(place);
            let len = if record.len == 4 { 4 } else { record.len - 1 };
            arena.set_len(place, record, len);
        }
        let long = &long[..69_999];
        assert_eq!(contents(&mut arena), kept(&[(&[1, 2], 5), (long, 2), (&[6, 7, 8, 9], (1 << 60) + 1)]));
    }

    #[test]
    fn pieces_of_any_length_and_count_survive_compacting() {
        check::<u16>();
        check::<u32>();
    }
}
