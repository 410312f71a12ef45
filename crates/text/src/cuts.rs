//! Where a document that is too long to be held whole may be cut without changing its pieces.

use std::str::from_utf8;

use crate::Result;
use crate::pattern::Pattern;
use crate::special::Specials;
use crate::splitter::Splitter;

/// Finds places to cut text so that the parts, counted one by one, have the pieces of the whole.
#[derive(Debug, Clone)]
pub struct TextCuts {
    splitter: Splitter,
    specials: Specials,
    lines: bool,
}

impl TextCuts {
    /// Cuts for text with these special tokens; with `lines`, every line counts as a text of its own.
    pub fn new(pattern: &Pattern, special: &[String], lines: bool) -> Result<Self> {
        Ok(Self { splitter: Splitter::new(pattern)?, specials: Specials::numbered(special)?, lines })
    }

    /// The last place to cut `text`, whatever follows it. `None` for a regular expression of the user's, about which nothing
    /// is known, and for text that has no such place.
    pub fn last(&self, text: &str) -> Option<usize> {
        if self.lines {
            return memchr::memrchr(b'\n', text.as_bytes()).map(|at| at + 1);
        }
        let scanner = self.splitter.scanner()?;
        // A special token that starts behind this place may continue in what follows.
        let mut end = text.floor_char_boundary(text.len().saturating_sub(self.specials.max_bytes()));
        loop {
            let cut = scanner.last_cut(&text[..end])?;
            match self.specials.across(text.as_bytes(), cut) {
                None => return Some(cut),
                Some(start) => end = text.floor_char_boundary(start),
            }
        }
    }

    /// The last place to cut bytes that may be text. Only as much of their end is looked at as has such a place, and `None` says
    /// that it has none or is no text.
    pub(crate) fn last_of_bytes(&self, bytes: &[u8]) -> Option<usize> {
        self.splitter.scanner()?;
        let mut n_looked_at = TAIL_BYTES;
        loop {
            let start = bytes.len().saturating_sub(n_looked_at);
            let (skipped, tail) = whole_characters(&bytes[start..])?;
            let cut = self.last(tail);
            // Behind less than a special token of the tail, one that starts before it may not have ended.
            if let Some(cut) = cut.filter(|&cut| start == 0 || cut > self.specials.max_bytes()) {
                return Some(start + skipped + cut);
            }
            if start == 0 {
                return None;
            }
            n_looked_at *= 16;
        }
    }
}

/// How much of the end of bytes is looked at first.
const TAIL_BYTES: usize = 4096;

/// The text of bytes from within a text, without the parts of characters at its ends, and where it starts; `None` if it is no text.
fn whole_characters(bytes: &[u8]) -> Option<(usize, &str)> {
    let is_inside = |byte: &&u8| (0x80..0xc0).contains(*byte);
    let start = bytes.iter().take(3).take_while(is_inside).count();
    let bytes = &bytes[start..];
    match from_utf8(bytes) {
        Ok(text) => Some((start, text)),
        Err(error) if error.error_len().is_some() => None,
        Err(error) => from_utf8(&bytes[..error.valid_up_to()]).ok().map(|text| (start, text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PieceCounts;

    fn check(lines: bool, text: &str, expected: Option<usize>) {
        let special = vec!["<|endoftext|>".to_owned()];
        let cuts = TextCuts::new(&Pattern::Gpt2, &special, lines).unwrap();
        assert_eq!(cuts.last(text), expected, "{text:?}");
    }

    #[test]
    fn special_tokens_are_not_cut() {
        check(false, "one two three, four..............", Some(19));
        check(false, "one two<|endoftext|>.............", Some(3));
        check(false, "one two, three<|endoftext|>.............", Some(7));
        check(false, "one two<|endoftext|", Some(3));
        check(false, "one", None);
        check(true, "one\ntwo", Some(4));
        check(true, "one two", None);
    }

    #[test]
    fn parts_have_the_pieces_of_the_whole() {
        let special = vec!["<|end|>".to_owned(), "end|>b".to_owned(), "x y".to_owned()];
        let text = "a<|end|>b x yx y, the<|end<|end|>|> b'll end|>bc x y xx y\n\n y".repeat(9);
        for pattern in Pattern::NAMES {
            let pattern = Pattern::from_name(pattern).unwrap();
            let cuts = TextCuts::new(&pattern, &special, false).unwrap();
            let mut whole = PieceCounts::new(&pattern, &special).unwrap();
            whole.add_document(text.as_bytes()).unwrap();
            for part in 1..text.len() {
                let Some(cut) = cuts.last(&text[..part]) else { continue };
                let mut parts = PieceCounts::new(&pattern, &special).unwrap();
                parts.add_document(&text.as_bytes()[..cut]).unwrap();
                parts.add_document(&text.as_bytes()[cut..]).unwrap();
                assert_eq!(parts.sorted(), whole.sorted(), "{pattern} at {cut}");
            }
        }
    }

    #[test]
    fn bytes_are_cut_where_their_text_is() {
        let special = vec!["<|endoftext|>".to_owned()];
        let cuts = TextCuts::new(&Pattern::Gpt2, &special, false).unwrap();
        let text = "naïve «wörds» of 漢字 and <|endoftext|> emoji 🙂🙂, ".repeat(300);
        for end in [1, 9, 40, 500, 4095, 4096, 4099, 4127, 9001].into_iter().chain(10_000..10_100) {
            let whole = text.floor_char_boundary(end);
            assert_eq!(cuts.last_of_bytes(&text.as_bytes()[..end]), cuts.last(&text[..whole]), "{end}");
        }
        // A place far from the end, one that a special token from before the first tail may reach, and none.
        let far = format!("one two{}", ".".repeat(100_000));
        assert_eq!(cuts.last_of_bytes(far.as_bytes()), Some(7));
        let token = format!("{}x y<|endoftext|>{}", " ".repeat(5000), ".".repeat(4096 - 9));
        assert_eq!(cuts.last_of_bytes(token.as_bytes()), Some(5001));
        assert_eq!(cuts.last_of_bytes(&[b'a'; 70_000]), None);
        assert_eq!(cuts.last_of_bytes(b"one two \xff"), None);
        let own = TextCuts::new(&Pattern::Regex(r"\w+|\W".into()), &special, false).unwrap();
        assert_eq!(own.last_of_bytes(text.as_bytes()), None);
    }
}
