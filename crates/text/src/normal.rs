//! What happens to text before it is cut into pieces.

use std::borrow::Cow;

use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

/// Characters that Unicode 9 does not know and that later versions order, compose or take apart, as ranges in ascending order.
///
/// Vocabularies with a normalizer were made with Hugging Face's tables, which are those of Unicode 9: to them these are
/// letters like any other, and so they are here.
const NEWER: [(u32, u32); 71] = [
    (0x05c8, 0x05c9),
    (0x07fd, 0x07fd),
    (0x0897, 0x089f),
    (0x08ca, 0x08d3),
    (0x09fe, 0x09fe),
    (0x0c3c, 0x0c3c),
    (0x0d3b, 0x0d3c),
    (0x0eba, 0x0eba),
    (0x1715, 0x1715),
    (0x1abf, 0x1af0),
    (0x1df6, 0x1dfa),
    (0xa82c, 0xa82c),
    (0x105c9, 0x105c9),
    (0x105d2, 0x105d2),
    (0x105da, 0x105da),
    (0x105e4, 0x105e4),
    (0x10d24, 0x10d27),
    (0x10d69, 0x10d6d),
    (0x10eab, 0x10eac),
    (0x10ecb, 0x10ecf),
    (0x10ef0, 0x10efb),
    (0x10efd, 0x10eff),
    (0x10f46, 0x10f50),
    (0x10f82, 0x10f85),
    (0x11070, 0x11070),
    (0x1133b, 0x1133b),
    (0x11382, 0x11385),
    (0x1138b, 0x1138b),
    (0x1138e, 0x1138e),
    (0x11390, 0x11391),
    (0x113b8, 0x113b8),
    (0x113bb, 0x113bb),
    (0x113c2, 0x113c2),
    (0x113c5, 0x113c5),
    (0x113c7, 0x113c9),
    (0x113ce, 0x113d0),
    (0x1145e, 0x1145e),
    (0x11839, 0x1183a),
    (0x11930, 0x11930),
    (0x11935, 0x11935),
    (0x11938, 0x11938),
    (0x1193d, 0x1193e),
    (0x11943, 0x11943),
    (0x119e0, 0x119e0),
    (0x11a34, 0x11a34),
    (0x11a47, 0x11a47),
    (0x11a99, 0x11a99),
    (0x11d42, 0x11d42),
    (0x11d44, 0x11d45),
    (0x11d97, 0x11d97),
    (0x11f41, 0x11f42),
    (0x1611e, 0x16129),
    (0x1612f, 0x1612f),
    (0x16d63, 0x16d63),
    (0x16d67, 0x16d6a),
    (0x16ff0, 0x16ff1),
    (0x1d127, 0x1d128),
    (0x1d250, 0x1d252),
    (0x1d25b, 0x1d25c),
    (0x1d25f, 0x1d25f),
    (0x1d280, 0x1d281),
    (0x1e08f, 0x1e08f),
    (0x1e130, 0x1e136),
    (0x1e2ae, 0x1e2ae),
    (0x1e2ec, 0x1e2ef),
    (0x1e4ec, 0x1e4ef),
    (0x1e5ee, 0x1e5ef),
    (0x1e6e3, 0x1e6e3),
    (0x1e6e6, 0x1e6e6),
    (0x1e6ee, 0x1e6ef),
    (0x1e6f5, 0x1e6f5),
];

fn is_newer(character: char) -> bool {
    let code = u32::from(character);
    let idx = NEWER.partition_point(|&(_, last)| last < code);
    NEWER.get(idx).is_some_and(|&(first, _)| first <= code)
}

/// The text as stretches that are normalised alone, and the newer characters between them.
fn known_stretches(text: &str) -> impl Iterator<Item = (&str, Option<char>)> {
    text.split_inclusive(is_newer).map(|stretch| {
        match stretch.chars().next_back().filter(|&last| is_newer(last)) {
            Some(newer) => (&stretch[..stretch.len() - newer.len_utf8()], Some(newer)),
            None => (stretch, None),
        }
    })
}

/// The characters of the text, taken apart where they can be.
pub(crate) fn decomposed(text: &str) -> impl Iterator<Item = char> {
    known_stretches(text).flat_map(|(stretch, newer)| stretch.nfd().chain(newer))
}

/// How text is normalised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Normalization {
    /// Not at all: whatever is encoded decodes to itself.
    #[default]
    None,
    /// To composed characters: what is encoded decodes to that form.
    Nfc,
}

impl Normalization {
    /// The text as it is encoded. Bytes that are no text stay as they are.
    pub(crate) fn apply<'t>(self, text: &'t [u8]) -> Cow<'t, [u8]> {
        use crate::stretches::{Stretch, stretches};
        if self == Self::None || text.is_ascii() {
            return Cow::Borrowed(text);
        }
        let is_normal = |stretch: Stretch<'_>| match stretch {
            Stretch::Text(text) => is_nfc_quick(text.chars()) == IsNormalized::Yes,
            Stretch::Invalid(_) => true,
        };
        if stretches(text).all(is_normal) {
            return Cow::Borrowed(text);
        }
        let mut normal = Vec::with_capacity(text.len());
        for stretch in stretches(text) {
            match stretch {
                Stretch::Text(text) => {
                    let composed =
                        known_stretches(text).flat_map(|(stretch, newer)| stretch.nfc().chain(newer));
                    normal.extend_from_slice(composed.collect::<String>().as_bytes());
                }
                Stretch::Invalid(bytes) => normal.extend_from_slice(bytes),
            }
        }
        Cow::Owned(normal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_text_that_is_not_composed_is_copied() {
        for (text, expected) in [
            (&b"plain"[..], &b"plain"[..]),
            ("e\u{301}".as_bytes(), "\u{e9}".as_bytes()),
            ("\u{e9}".as_bytes(), "\u{e9}".as_bytes()),
            (b"\xffe\xcc\x81\xfe", b"\xff\xc3\xa9\xfe"),
            ("\u{1100}\u{1161}\u{11a8}".as_bytes(), "\u{ac01}".as_bytes()),
        ] {
            assert_eq!(&*Normalization::Nfc.apply(text), expected);
            assert_eq!(&*Normalization::None.apply(text), text);
        }
    }

    #[test]
    fn characters_newer_than_the_tables_of_vocabularies_are_left_alone() {
        assert!(NEWER.is_sorted() && NEWER.iter().all(|(first, last)| first <= last));
        for (text, expected) in [
            // A point of later Unicode is not ordered, and stands between what is before and behind it.
            ("\u{5d0}\u{5c8}\u{5b0}", "\u{5d0}\u{5c8}\u{5b0}"),
            ("e\u{5c9}\u{301}", "e\u{5c9}\u{301}"),
            ("e\u{301}\u{5c9}e\u{301}", "\u{e9}\u{5c9}\u{e9}"),
            ("\u{105d2}\u{307}", "\u{105d2}\u{307}"),
            ("\u{105c9}", "\u{105c9}"),
        ] {
            assert_eq!(&*Normalization::Nfc.apply(text.as_bytes()), expected.as_bytes(), "{text:?}");
        }
        assert_eq!(decomposed("\u{e9}\u{105c9}\u{e9}").collect::<String>(), "e\u{301}\u{105c9}e\u{301}");
    }
}
