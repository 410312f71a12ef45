//! Where a document that is too long to be held whole may be cut without changing its pieces.

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
}
