//! What one thread remembers of pieces that no table holds, for their length or their number of tokens: a fixed number of
//! them, of which new ones push out old ones.

use super::key::{FREE, Key};
use crate::count::key::hash;
use crate::prefetch::prefetch;

/// The most tokens of a remembered short piece: those that fill a cache line.
const MAX_TOKENS: usize = 11;

/// Sets of two short pieces: 2 MiB. Source code has tens of thousands of them.
const N_SETS: usize = 1 << 14;

#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct Line {
    key: Key,
    n_tokens: u32,
    tokens: [u32; MAX_TOKENS],
}

const EMPTY: Line = Line { key: FREE, n_tokens: 0, tokens: [0; MAX_TOKENS] };

/// Pieces of up to 15 bytes by key, with more tokens than a table holds.
#[derive(Debug)]
pub(super) struct ShortCache {
    sets: Vec<[Line; 2]>,
}

impl ShortCache {
    pub(super) fn new() -> Self {
        Self { sets: vec![[EMPTY; 2]; N_SETS] }
    }

    /// Starts to bring near what [`get`](Self::get) looks at.
    pub(super) fn prefetch(&self, key: Key) {
        prefetch(&self.sets, set_of(key));
    }

    #[inline(always)]
    pub(super) fn get(&self, key: Key) -> Option<&[u32]> {
        let set = &self.sets[set_of(key)];
        let line = set.iter().find(|line| line.key == key)?;
        line.tokens.get(..line.n_tokens as usize)
    }

    pub(super) fn insert(&mut self, key: Key, tokens: &[u32]) {
        if tokens.len() > MAX_TOKENS {
            return;
        }
        let [newest, older] = &mut self.sets[set_of(key)];
        *older = *newest;
        newest.key = key;
        newest.n_tokens = tokens.len() as u32;
        newest.tokens[..tokens.len()].copy_from_slice(tokens);
    }
}

fn set_of(key: Key) -> usize {
    (key.hash() >> (u64::BITS - N_SETS.trailing_zeros())) as usize
}

/// The longest remembered piece, in bytes; longer ones hardly come twice.
const MAX_LONG_BYTES: usize = 64;

const MAX_LONG_TOKENS: usize = 15;

const N_LONG: usize = 1 << 11;

#[derive(Debug, Clone, Copy)]
#[repr(C, align(128))]
struct LongLine {
    bytes: [u8; MAX_LONG_BYTES],
    tokens: [u32; MAX_LONG_TOKENS],
    /// Zero where nothing is remembered.
    n_bytes: u16,
    n_tokens: u16,
}

const LONG_EMPTY: LongLine =
    LongLine { bytes: [0; MAX_LONG_BYTES], tokens: [0; MAX_LONG_TOKENS], n_bytes: 0, n_tokens: 0 };

/// Pieces of 16 to 64 bytes: long words, indentation, rules of one character.
#[derive(Debug)]
pub(super) struct LongCache {
    lines: Vec<LongLine>,
}

impl LongCache {
    pub(super) fn new() -> Self {
        Self { lines: vec![LONG_EMPTY; N_LONG] }
    }

    /// Where the piece may be; `None` if it is too long to be remembered.
    pub(super) fn place(piece: &[u8]) -> Option<usize> {
        (piece.len() <= MAX_LONG_BYTES).then(|| hash(piece) as usize % N_LONG)
    }

    pub(super) fn get(&self, place: usize, piece: &[u8]) -> Option<&[u32]> {
        let line = self.lines.get(place)?;
        let known = line.bytes.get(..usize::from(line.n_bytes))?;
        if known != piece {
            return None;
        }
        line.tokens.get(..usize::from(line.n_tokens))
    }

    pub(super) fn insert(&mut self, place: usize, piece: &[u8], tokens: &[u32]) {
        if tokens.len() > MAX_LONG_TOKENS || piece.len() > MAX_LONG_BYTES {
            return;
        }
        let line = &mut self.lines[place];
        line.bytes[..piece.len()].copy_from_slice(piece);
        line.n_bytes = piece.len() as u16;
        line.tokens[..tokens.len()].copy_from_slice(tokens);
        line.n_tokens = tokens.len() as u16;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_piece_is_remembered_until_two_others_take_its_set() {
        let mut cache = ShortCache::new();
        let key = |number: u32| Key::of(number.to_string().as_bytes()).unwrap();
        let mut alike = (0..).map(key).filter(|&other| set_of(other) == set_of(key(0)));
        let [one, two, three, many] = std::array::from_fn(|_| alike.next().unwrap());
        cache.insert(one, &[1, 2]);
        cache.insert(two, &[3]);
        assert_eq!(cache.get(one), Some(&[1, 2][..]));
        assert_eq!(cache.get(two), Some(&[3][..]));
        cache.insert(three, &[4; MAX_TOKENS]);
        assert_eq!(cache.get(one), None);
        assert_eq!(cache.get(three), Some(&[4; MAX_TOKENS][..]));
        cache.insert(many, &[5; MAX_TOKENS + 1]);
        assert_eq!(cache.get(many), None);
    }

    #[test]
    fn a_long_piece_is_remembered_by_all_its_bytes() {
        let mut cache = LongCache::new();
        let (piece, other) = ([b'a'; 40], [b'a'; 41]);
        cache.insert(3, &piece, &[1, 2]);
        assert_eq!(cache.get(3, &piece), Some(&[1, 2][..]));
        assert_eq!(cache.get(3, &other), None);
        assert_eq!(LongCache::place(&[0; MAX_LONG_BYTES + 1]), None);
        assert!(LongCache::place(&other).is_some_and(|place| place < N_LONG));
    }
}
