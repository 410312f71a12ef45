//! The printable alphabet in which Hugging Face writes byte-level tokens.
//!
//! Every byte is one character: the 188 bytes that print as themselves in Latin-1 keep their code point, the
//! other 68 take the code points from 256 upward, in byte order. Sorted by character this gives the order of
//! the byte ids.

/// How many bytes print as themselves.
const SELF_PRINTING: usize = 188;

/// The bytes in the order of their characters: first those that print as themselves, then the others.
pub(crate) fn bytes_in_alphabet_order() -> [u8; 256] {
    let mut order = [0; 256];
    let mut printing_idx = 0;
    let mut other_idx = SELF_PRINTING;
    for byte in 0..=u8::MAX {
        let idx = if prints_as_itself(byte) { &mut printing_idx } else { &mut other_idx };
        order[*idx] = byte;
        *idx += 1;
    }
    order
}

/// Writes bytes as characters and reads them back.
#[derive(Debug, Clone)]
pub(crate) struct ByteLevel {
    characters: [char; 256],
    /// The byte of each character below U+0144, the first code point that is never used.
    bytes: [Option<u8>; 256 + 256 - SELF_PRINTING],
}

impl ByteLevel {
    pub(crate) fn new() -> Self {
        let mut characters = ['\0'; 256];
        let mut bytes = [None; 256 + 256 - SELF_PRINTING];
        for (idx, byte) in bytes_in_alphabet_order().into_iter().enumerate() {
            let code = if idx < SELF_PRINTING { u32::from(byte) } else { 256 + (idx - SELF_PRINTING) as u32 };
            characters[usize::from(byte)] = char::from_u32(code).unwrap_or_default();
            bytes[code as usize] = Some(byte);
        }
        Self { characters, bytes }
    }

    /// Appends the characters that stand for `bytes`.
    pub(crate) fn render_to(&self, bytes: &[u8], text: &mut String) {
        text.extend(bytes.iter().map(|&byte| self.characters[usize::from(byte)]));
    }

    /// The bytes that `text` stands for, or `None` when it has a character outside the alphabet.
    pub(crate) fn parse(&self, text: &str) -> Option<Vec<u8>> {
        text.chars().map(|character| self.bytes.get(character as usize).copied().flatten()).collect()
    }
}

fn prints_as_itself(byte: u8) -> bool {
    matches!(byte, 33..=126 | 161..=172 | 174..=255)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(bytes: &[u8]) -> String {
        let mut text = String::new();
        ByteLevel::new().render_to(bytes, &mut text);
        text
    }

    #[test]
    fn every_byte_has_its_own_character_and_reads_back() {
        let alphabet = ByteLevel::new();
        let all: Vec<u8> = (0..=255).collect();
        let text = rendered(&all);
        assert_eq!(text.chars().collect::<std::collections::BTreeSet<_>>().len(), 256);
        assert_eq!(alphabet.parse(&text), Some(all));
    }

    #[test]
    fn alphabet_order_is_the_order_of_the_characters() {
        let text = rendered(&bytes_in_alphabet_order());
        assert!(text.chars().zip(text.chars().skip(1)).all(|(a, b)| a < b));
    }

    #[test]
    fn space_and_newline_have_their_usual_characters() {
        assert_eq!(rendered(b" a\n~\x7f\xff"), "ĠaĊ~ġÿ");
    }

    #[test]
    fn other_characters_are_refused() {
        for text in [" ", "ń", "\u{ad}", "中", "a b"] {
            assert_eq!(ByteLevel::new().parse(text), None, "{text:?}");
        }
    }
}
