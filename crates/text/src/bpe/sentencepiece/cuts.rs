//! Where a text of one piece may be cut.
//!
//! A merge joins neighbours, and what it makes is a token. So if no token that merges make has two characters side by side, no
//! merge ever crosses a border between these two, and what is before and behind it is merged as if it stood alone. Spaces
//! start tokens but are rarely inside: most cuts are between words.

use hashbrown::HashSet;

use super::SPACE;
use crate::scan::{Ends, FindEnds};

/// Finds pieces that are merged alone.
#[derive(Debug)]
pub(super) struct Cuts {
    /// By the first of two ASCII characters, a bit for each second one that may be merged with it.
    ascii: Box<[u128; 128]>,
    /// Other characters that may be merged.
    others: HashSet<(char, char)>,
    /// Whether there is a cut before every space.
    before_spaces: bool,
    /// Whether there is no other cut.
    only_there: bool,
}

impl Cuts {
    /// Cuts that no token of these `names` crosses. With `cuts_words` there is one before every space, and if words are
    /// looked up whole, none within.
    pub(super) fn new(names: impl Iterator<Item = String>, cuts_words: bool, looks_up_whole: bool) -> Self {
        let mut ascii = Box::new([0; 128]);
        let mut others = HashSet::new();
        for name in names {
            let characters =
                || name.chars().map(|character| if character == SPACE { ' ' } else { character });
            for (left, right) in characters().zip(characters().skip(1)) {
                if left.is_ascii() && right.is_ascii() {
                    ascii[left as usize] |= 1 << right as u32;
                } else {
                    others.insert((left, right));
                }
            }
        }
        Self { ascii, others, before_spaces: cuts_words, only_there: cuts_words && looks_up_whole }
    }

    #[inline(always)]
    fn is_between(&self, left: char, right: char) -> bool {
        if right == ' ' && self.before_spaces {
            return true;
        }
        let may_merge = if left.is_ascii() && right.is_ascii() {
            self.ascii[left as usize] >> (right as u32) & 1 == 1
        } else {
            self.others.contains(&(left, right))
        };
        !may_merge && !self.only_there
    }

    /// The pieces of a text in order.
    pub(super) fn pieces<'t>(&self, text: &'t str) -> impl Iterator<Item = &'t str> {
        let (mut start, mut rest) = (0, text.char_indices().peekable());
        std::iter::from_fn(move || {
            let mut last = None;
            while let Some(&(at, character)) = rest.peek() {
                if last.is_some_and(|last| self.is_between(last, character)) {
                    return Some(&text[std::mem::replace(&mut start, at)..at]);
                }
                last = Some(character);
                rest.next();
            }
            (start < text.len()).then(|| &text[std::mem::replace(&mut start, text.len())..])
        })
    }
}

impl FindEnds for Cuts {
    fn ends(&self, text: &str, from: usize, ends: &mut Ends) {
        ends.clear();
        let mut characters = text[from..].char_indices();
        let Some((_, mut left)) = characters.next() else { return };
        for (at, right) in characters {
            if self.is_between(left, right) {
                ends.push(from + at);
                if ends.is_full() {
                    return;
                }
            }
            left = right;
        }
        ends.push(text.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_where_no_token_crosses() {
        let by_merges = &["the", " thé", "t", " ", " t", "x", "th"][..];
        for (cuts_words, looks_up_whole, expected) in [
            (false, false, by_merges),
            (true, false, by_merges),
            (true, true, &["the", " thét", " ", " txth"]),
        ] {
            let names = ["th", "he", "▁th", "hé"].map(str::to_owned).into_iter();
            let cuts = Cuts::new(names, cuts_words, looks_up_whole);
            let text = "the thét  txth";
            assert_eq!(cuts.pieces(text).collect::<Vec<_>>(), expected);
            let mut ends = Ends::new();
            cuts.ends(text, 0, &mut ends);
            let mut start = 0;
            let found: Vec<_> =
                ends.as_slice().iter().map(|&end| &text[std::mem::replace(&mut start, end)..end]).collect();
            assert_eq!(found, expected);
        }
    }
}
