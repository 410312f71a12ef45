//! The class of every character, as the patterns tell characters apart.
//!
//! The classes come from the tables of `regex-syntax`, which the regex engine uses too, so that a scanner and its oracle
//! always speak of the same version of Unicode.

use std::sync::Arc;

use hashbrown::HashMap;
use regex_syntax::hir::{self, HirKind};

/// What the patterns know about a character. Every character has exactly one class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Class {
    /// Neither white space nor number, letter or mark.
    Other = 0,
    /// `\s`
    Space = 1,
    /// `\p{N}`
    Number = 2,
    /// `\p{Lu}` and `\p{Lt}`
    Upper = 3,
    /// `\p{Ll}`
    Lower = 4,
    /// `\p{Lm}` and `\p{Lo}`: letters without case.
    Caseless = 5,
    /// `\p{M}`
    Mark = 6,
}

/// How many classes there are, rounded up so that a masked index needs no check.
pub(crate) const N_CLASSES: usize = 8;

const BY_NUMBER: [Class; N_CLASSES] = [
    Class::Other,
    Class::Space,
    Class::Number,
    Class::Upper,
    Class::Lower,
    Class::Caseless,
    Class::Mark,
    Class::Other,
];

impl Class {
    /// `\p{L}`
    pub(crate) fn is_letter(self) -> bool {
        matches!(self, Class::Upper | Class::Lower | Class::Caseless)
    }

    /// `[^\s\p{L}\p{N}]`
    pub(crate) fn is_other(self) -> bool {
        matches!(self, Class::Other | Class::Mark)
    }
}

/// Characters of one block share the upper bits of their code point.
const BLOCK: usize = 256;

/// The table from characters to classes: about 40 KB, shared by clones.
#[derive(Debug, Clone)]
pub(crate) struct Classes {
    ascii: [Class; 128],
    /// For each block of code points, where its classes start in `classes`.
    starts: Arc<[u32]>,
    classes: Arc<[u8]>,
}

impl Classes {
    pub(crate) fn new() -> Self {
        let mut of_code = vec![Class::Other as u8; char::MAX as usize + 1];
        for (class, expression) in [
            (Class::Space, r"\s"),
            (Class::Number, r"\p{N}"),
            (Class::Upper, r"[\p{Lu}\p{Lt}]"),
            (Class::Lower, r"\p{Ll}"),
            (Class::Caseless, r"[\p{Lm}\p{Lo}]"),
            (Class::Mark, r"\p{M}"),
        ] {
            for (first, last) in ranges(expression) {
                of_code[first as usize..=last as usize].fill(class as u8);
            }
        }
        let mut ascii = [Class::Other; 128];
        for (class, number) in ascii.iter_mut().zip(&of_code) {
            *class = BY_NUMBER[usize::from(*number) % N_CLASSES];
        }
        let mut known: HashMap<&[u8], u32> = HashMap::new();
        let mut classes = Vec::new();
        let mut starts = Vec::new();
        for block in of_code.chunks(BLOCK) {
            let start = *known.entry(block).or_insert_with(|| {
                classes.extend_from_slice(block);
                (classes.len() - BLOCK) as u32
            });
            starts.push(start);
        }
        Self { ascii, starts: starts.into(), classes: classes.into() }
    }

    /// The number of the class of a code point; zero beyond the last one.
    #[inline(always)]
    pub(crate) fn number(&self, code: u32) -> usize {
        let start = self.starts.get(code as usize / BLOCK).copied().unwrap_or(0) as usize;
        usize::from(self.classes.get(start + code as usize % BLOCK).copied().unwrap_or(0)) % N_CLASSES
    }

    /// The class and the length in bytes of the character at `at`, which must be the start of one in valid UTF-8.
    #[inline(always)]
    pub(crate) fn at(&self, text: &[u8], at: usize) -> (Class, usize) {
        let first = text[at];
        if first < 0x80 {
            return (self.ascii[usize::from(first)], 1);
        }
        let (code, n_bytes) = decode(text, at);
        (BY_NUMBER[self.number(code)], n_bytes)
    }
}

/// The code point and length of the character at `at`, which must be the start of one beyond ASCII in valid UTF-8.
#[inline(always)]
pub(crate) fn decode(text: &[u8], at: usize) -> (u32, usize) {
    let bits = |offset: usize| u32::from(text[at + offset] & 0x3f);
    let first = u32::from(text[at]);
    if first < 0xe0 {
        ((first & 0x1f) << 6 | bits(1), 2)
    } else if first < 0xf0 {
        ((first & 0x0f) << 12 | bits(1) << 6 | bits(2), 3)
    } else {
        ((first & 0x07) << 18 | bits(1) << 12 | bits(2) << 6 | bits(3), 4)
    }
}

/// The code points of a class expression, which is one of ours and so always parses to a set of characters.
fn ranges(expression: &str) -> Vec<(u32, u32)> {
    let parsed = regex_syntax::parse(expression);
    match parsed.as_ref().map(|parsed| parsed.kind()) {
        Ok(HirKind::Class(hir::Class::Unicode(set))) => {
            set.ranges().iter().map(|range| (range.start().into(), range.end().into())).collect()
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fancy_regex::Regex;

    #[test]
    fn every_character_has_the_class_that_the_regex_engine_gives_it() {
        let expressions = [
            (Class::Other, r"^[^\s\p{N}\p{L}\p{M}]$"),
            (Class::Space, r"^\s$"),
            (Class::Number, r"^\p{N}$"),
            (Class::Upper, r"^[\p{Lu}\p{Lt}]$"),
            (Class::Lower, r"^\p{Ll}$"),
            (Class::Caseless, r"^[\p{Lm}\p{Lo}]$"),
            (Class::Mark, r"^\p{M}$"),
        ]
        .map(|(class, expression)| (class, Regex::new(expression).unwrap()));
        let classes = Classes::new();
        for character in '\0'..=char::MAX {
            let text = character.to_string();
            let (found, n_bytes) = classes.at(text.as_bytes(), 0);
            assert_eq!(n_bytes, text.len());
            let (_, regex) = expressions.iter().find(|(class, _)| *class == found).unwrap();
            assert!(regex.is_match(&text).unwrap(), "{character:?} is not {found:?}");
        }
    }
}
