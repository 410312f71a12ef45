//! What BERT does to text before it is cut into words.

use std::borrow::Cow;

use unicode_categories::UnicodeCategories;

use crate::normal::decomposed;

/// Which of the steps are done, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct BertNormalization {
    /// Control characters are left out, and all white space becomes spaces.
    pub(super) clean_text: bool,
    /// Chinese characters get spaces around them.
    pub(super) handle_chinese_chars: bool,
    /// Marks over and under letters are left out; if nothing is said, with `lowercase`.
    pub(super) strip_accents: Option<bool>,
    pub(super) lowercase: bool,
}

impl BertNormalization {
    /// The text after all steps.
    pub(super) fn apply<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let changes = |byte: u8| {
            self.clean_text && byte.is_ascii_control() || self.lowercase && byte.is_ascii_uppercase()
        };
        if text.is_ascii() && !text.bytes().any(changes) {
            return Cow::Borrowed(text);
        }
        let mut cleaned = String::with_capacity(text.len());
        for character in text.chars() {
            match character {
                _ if !self.clean_text => self.push_spaced(character, &mut cleaned),
                '\t' | '\n' | '\r' => cleaned.push(' '),
                '\0' | char::REPLACEMENT_CHARACTER => {}
                _ if character.is_other() => {}
                _ if character.is_whitespace() => cleaned.push(' '),
                _ => self.push_spaced(character, &mut cleaned),
            }
        }
        let strips_accents = self.strip_accents.unwrap_or(self.lowercase);
        if strips_accents && !cleaned.is_ascii() {
            let marked = |character: &char| !character.is_mark_nonspacing();
            cleaned = decomposed(&cleaned).filter(marked).collect();
        }
        if self.lowercase {
            // Character by character: the Greek final sigma is not told apart.
            cleaned = cleaned.chars().flat_map(char::to_lowercase).collect();
        }
        Cow::Owned(cleaned)
    }

    fn push_spaced(&self, character: char, text: &mut String) {
        if self.handle_chinese_chars && is_chinese(character) {
            text.extend([' ', character, ' ']);
        } else {
            text.push(character);
        }
    }
}

/// The blocks of Chinese characters that BERT knows.
fn is_chinese(character: char) -> bool {
    matches!(
        u32::from(character),
        0x4e00..=0x9fff
            | 0x3400..=0x4dbf
            | 0x20000..=0x2a6df
            | 0x2a700..=0x2b73f
            | 0x2b740..=0x2b81f
            | 0x2b920..=0x2ceaf
            | 0xf900..=0xfaff
            | 0x2f800..=0x2fa1f
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_does_what_it_says() {
        let all = BertNormalization {
            clean_text: true,
            handle_chinese_chars: true,
            strip_accents: None,
            lowercase: true,
        };
        let cased = BertNormalization { lowercase: false, ..all };
        for (normalization, text, expected) in [
            (all, "plain text", "plain text"),
            (all, "Plain\ttext\0", "plain text"),
            (all, "Über\u{200d}\u{a0}Ångström 中文", "uber angstrom  中  文 "),
            (cased, "Über中", "Über 中 "),
            (BertNormalization { strip_accents: Some(true), ..cased }, "Über", "Uber"),
            (BertNormalization::default(), "Über\0中", "Über\0中"),
            (all, "ΣΑΣ", "σασ"),
        ] {
            assert_eq!(normalization.apply(text), expected);
        }
    }
}
