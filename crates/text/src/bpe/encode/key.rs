//! Short pieces as keys that one load and one instruction make of text.

/// The longest piece that has a key, in bytes.
pub(super) const MAX_KEYED: usize = 15;

/// The bytes of a short piece, lowest first, and ones behind them. Since no piece with a key ends in a byte of ones, no two
/// have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, align(16))]
pub(super) struct Key(pub(super) [u64; 2]);

/// Where no key is. A key has ones behind its bytes.
pub(super) const FREE: Key = Key([0; 2]);

/// What the loops over pieces have for one that is too long for a key.
pub(super) const LONG: Key = Key([u64::MAX; 2]);

/// By length, the ones behind the bytes of a key; above [`MAX_KEYED`] those of [`LONG`].
pub(super) const ONES: [Key; MAX_KEYED + 2] = {
    let mut ones = [LONG; MAX_KEYED + 2];
    let mut n_bytes = 1;
    while n_bytes <= MAX_KEYED {
        let word = u128::MAX << (8 * n_bytes);
        ones[n_bytes] = Key([word as u64, (word >> 64) as u64]);
        n_bytes += 1;
    }
    ones
};

impl Key {
    /// The key of a piece: none for an empty or long one, and for one that ends in a byte of ones, which no text does.
    pub(super) fn of(piece: &[u8]) -> Option<Self> {
        let has_key = piece.len() <= MAX_KEYED && piece.last().is_some_and(|&last| last != u8::MAX);
        has_key.then(|| Self::of_text(piece))
    }

    /// The key of a piece of text, or [`LONG`].
    #[inline(always)]
    pub(super) fn of_text(piece: &[u8]) -> Self {
        let mut bytes = [u8::MAX; 16];
        if let Some(room) = bytes[..MAX_KEYED].get_mut(..piece.len()) {
            room.copy_from_slice(piece);
        }
        let word = u128::from_le_bytes(bytes);
        Self([word as u64, (word >> 64) as u64])
    }

    /// A hash whose upper bits are good.
    #[inline(always)]
    pub(super) fn hash(self) -> u64 {
        // Digits of the golden ratio and of pi. Products of 64 bits, because vectors have them.
        let word = self.0[0] ^ self.0[1].wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (word ^ word >> 32).wrapping_mul(0x243f_6a88_85a3_08d3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_have_different_keys_and_those_that_could_not_have_none() {
        let pieces: [&[u8]; 9] = [
            b"a",
            b"a\0",
            b"\0",
            b"\0\0",
            b"\xff\0",
            b"a\xff\xfe",
            b"\xfe",
            b"fifteen bytes!!",
            b"fifteen bytes!",
        ];
        for (idx, piece) in pieces.into_iter().enumerate() {
            let key = Key::of(piece).unwrap();
            assert!(key != FREE && key != LONG);
            assert!(pieces[..idx].iter().all(|other| Key::of(other) != Some(key)), "{piece:?}");
        }
        for piece in [&b""[..], b"\xff", b"a\xff", b"sixteen bytes!!!"] {
            assert_eq!(Key::of(piece), None, "{piece:?}");
        }
        assert_eq!(Key::of_text(b"sixteen bytes!!!"), LONG);
    }
}
