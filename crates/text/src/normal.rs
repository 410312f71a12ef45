//! What happens to text before it is cut into pieces.

use std::borrow::Cow;

use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

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
                Stretch::Text(text) => normal.extend_from_slice(text.nfc().collect::<String>().as_bytes()),
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
}
