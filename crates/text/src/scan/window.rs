//! Sixty-four bytes of text as bit masks, a bit a byte, lowest first.

use super::classes::{Class, Classes, N_CLASSES, decode};

/// How many bytes a window has.
pub(crate) const WINDOW: usize = 64;

/// Which bytes of a window are what. A character of several bytes sets its bit on each of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Masks {
    /// Letters.
    pub(crate) letter: u64,
    /// Letters of upper or title case.
    pub(crate) upper: u64,
    /// Letters of lower case.
    pub(crate) lower: u64,
    /// Numbers.
    pub(crate) number: u64,
    /// White space.
    pub(crate) space: u64,
    /// U+0020.
    pub(crate) blank: u64,
    /// Carriage return and line feed.
    pub(crate) newline: u64,
    /// Apostrophes.
    pub(crate) apostrophe: u64,
    /// Slashes.
    pub(crate) slash: u64,
    /// Letters without case; none in ASCII.
    pub(crate) caseless: u64,
    /// Marks; none in ASCII.
    pub(crate) mark: u64,
    /// Bytes of characters beyond ASCII.
    pub(crate) wide: u64,
    /// Bytes inside a character, after its first; none in ASCII.
    pub(crate) inner: u64,
}

impl Masks {
    /// Adds the characters beyond ASCII to masks of the first `shown` bytes and says how many of these are whole characters: the
    /// last one may be cut. `text` must start at a character of valid UTF-8.
    pub(crate) fn add_wide(&mut self, text: &[u8; WINDOW], shown: usize, classes: &Classes) -> usize {
        let mut of_class = [0; N_CLASSES];
        let mut rest = self.wide;
        let mut whole = shown;
        while rest != 0 {
            let at = rest.trailing_zeros() as usize;
            let n_bytes = match text[at] {
                ..0xe0 => 2,
                0xe0..0xf0 => 3,
                _ => 4,
            };
            if at + n_bytes > shown {
                whole = at;
                break;
            }
            let (code, _) = decode(text, at);
            let bits = ((1 << n_bytes) - 1) << at;
            of_class[classes.number(code)] |= bits;
            self.inner |= bits & bits << 1;
            rest &= !bits;
        }
        self.space |= of_class[Class::Space as usize];
        self.number |= of_class[Class::Number as usize];
        self.upper |= of_class[Class::Upper as usize];
        self.lower |= of_class[Class::Lower as usize];
        self.caseless = of_class[Class::Caseless as usize];
        self.mark = of_class[Class::Mark as usize];
        self.letter |= of_class[Class::Upper as usize] | of_class[Class::Lower as usize] | self.caseless;
        whole
    }
}

/// The masks of the ASCII bytes of a window, byte by byte: the twin of the vector code, and what runs without it.
pub(crate) fn masks_portable(text: &[u8; WINDOW]) -> Masks {
    let mut masks = Masks::default();
    for (at, &byte) in text.iter().enumerate() {
        let bit = |is: bool| u64::from(is) << at;
        masks.upper |= bit(byte.is_ascii_uppercase());
        masks.lower |= bit(byte.is_ascii_lowercase());
        masks.number |= bit(byte.is_ascii_digit());
        masks.blank |= bit(byte == b' ');
        masks.space |= bit(byte == b' ' || matches!(byte, 9..=13));
        masks.newline |= bit(byte == b'\n' || byte == b'\r');
        masks.apostrophe |= bit(byte == b'\'');
        masks.slash |= bit(byte == b'/');
        masks.wide |= bit(byte >= 0x80);
    }
    masks.letter = masks.upper | masks.lower;
    masks
}
