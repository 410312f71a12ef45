//! Special tokens: texts that are one token, never made of others and never merged.

use crate::{Error, Result};

/// The special tokens of a vocabulary.
#[derive(Debug, Clone)]
pub(crate) struct Specials {
    /// In ascending order of id.
    by_id: Vec<(String, u32)>,
    /// Indices into `by_id`, longest text first, so that the first that fits is the right one.
    longest_first: Vec<usize>,
    /// Whether a special token starts with this byte.
    starts: [bool; 256],
    /// The bytes with which special tokens start.
    first_bytes: Vec<u8>,
}

/// A part of a text with special tokens.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Part<'t> {
    /// Text between special tokens, never empty.
    Text(&'t [u8]),
    /// A special token.
    Special(u32),
}

impl Specials {
    /// Refuses empty texts and texts or ids that occur twice.
    pub(crate) fn new(mut specials: Vec<(String, u32)>) -> Result<Self> {
        let mut texts: Vec<&String> = specials.iter().map(|(text, _)| text).collect();
        texts.sort();
        if let Some(twice) = texts.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Error::BadSpecial { text: twice[0].clone(), problem: "is given twice" });
        }
        if texts.first().is_some_and(|text| text.is_empty()) {
            return Err(Error::BadSpecial { text: String::new(), problem: "is empty" });
        }
        specials.sort_by_key(|&(_, id)| id);
        if let Some(twice) = specials.windows(2).find(|pair| pair[0].1 == pair[1].1) {
            return Err(Error::BadSpecial { text: twice[1].0.clone(), problem: "has the id of another one" });
        }
        let mut longest_first: Vec<usize> = (0..specials.len()).collect();
        longest_first.sort_by_key(|&idx| std::cmp::Reverse(specials[idx].0.len()));
        let mut starts = [false; 256];
        for (text, _) in &specials {
            starts[usize::from(text.as_bytes()[0])] = true;
        }
        let first_bytes = (0..=u8::MAX).filter(|&byte| starts[usize::from(byte)]).collect();
        Ok(Self { by_id: specials, longest_first, starts, first_bytes })
    }

    /// Special tokens with the ids 0, 1, 2 …
    pub(crate) fn numbered(texts: &[String]) -> Result<Self> {
        Self::new(texts.iter().cloned().zip(0..).collect())
    }

    pub(crate) fn as_slice(&self) -> &[(String, u32)] {
        &self.by_id
    }

    pub(crate) fn texts(&self) -> impl Iterator<Item = &str> {
        self.by_id.iter().map(|(text, _)| text.as_str())
    }

    /// Refuses to use counts made without these special tokens with `wanted` ones; their order does not
    /// matter.
    pub(crate) fn check_same<'s>(&self, wanted: impl Iterator<Item = &'s str>) -> Result<()> {
        let mut counted: Vec<&str> = self.texts().collect();
        let mut wanted: Vec<&str> = wanted.collect();
        counted.sort_unstable();
        wanted.sort_unstable();
        if counted == wanted {
            return Ok(());
        }
        let counted = format!("the special tokens {counted:?}");
        Err(Error::CountsDiffer { counted, wanted: format!("the list {wanted:?}") })
    }

    pub(crate) fn id(&self, text: &str) -> Option<u32> {
        self.by_id.iter().find(|(special, _)| special == text).map(|&(_, id)| id)
    }

    /// Calls `visit` with the parts of `text` in order: the leftmost special token first, of those the
    /// longest.
    pub(crate) fn for_each_part<'t>(
        &self,
        text: &'t [u8],
        mut visit: impl FnMut(Part<'t>) -> Result<()>,
    ) -> Result<()> {
        let mut text_start = 0;
        let mut offset = 0;
        while let Some(found) = self.next_start(&text[offset..]) {
            offset += found;
            let Some((special, id)) = self.at(&text[offset..]) else {
                offset += 1;
                continue;
            };
            if text_start < offset {
                visit(Part::Text(&text[text_start..offset]))?;
            }
            visit(Part::Special(*id))?;
            offset += special.len();
            text_start = offset;
        }
        if text_start < text.len() { visit(Part::Text(&text[text_start..])) } else { Ok(()) }
    }

    /// Where the first byte is with which a special token starts.
    #[inline]
    fn next_start(&self, text: &[u8]) -> Option<usize> {
        match *self.first_bytes {
            [] => None,
            [only] => memchr::memchr(only, text),
            [one, other] => memchr::memchr2(one, other, text),
            [one, other, third] => memchr::memchr3(one, other, third, text),
            _ => text.iter().position(|&byte| self.starts[usize::from(byte)]),
        }
    }

    /// Whether a special token's text lies across `offset` of `text`; if so, where the leftmost such text starts.
    pub(crate) fn across(&self, text: &[u8], offset: usize) -> Option<usize> {
        let first = (offset + 1).saturating_sub(self.max_bytes());
        (first..offset).find(|&start| {
            let fits = |(special, _): &&(String, u32)| {
                start + special.len() > offset && text[start..].starts_with(special.as_bytes())
            };
            self.by_id.iter().find(fits).is_some()
        })
    }

    /// The length of the longest special token, in bytes.
    pub(crate) fn max_bytes(&self) -> usize {
        self.longest_first.first().map_or(0, |&idx| self.by_id[idx].0.len())
    }

    /// The longest special token that `text` starts with.
    fn at(&self, text: &[u8]) -> Option<&(String, u32)> {
        if !self.starts[usize::from(*text.first()?)] {
            return None;
        }
        let mut candidates = self.longest_first.iter().map(|&idx| &self.by_id[idx]);
        candidates.find(|(special, _)| text.starts_with(special.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn specials(texts: &[&str]) -> Result<Specials> {
        Specials::numbered(&texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>())
    }

    #[track_caller]
    fn check(text: &str, expected: &[Part<'_>]) {
        let mut parts = Vec::new();
        let specials = specials(&["<a>", "<a><b>", "<b>"]).unwrap();
        specials
            .for_each_part(text.as_bytes(), |part| {
                parts.push(part);
                Ok(())
            })
            .unwrap();
        assert_eq!(parts, expected, "{text:?}");
    }

    #[test]
    fn the_leftmost_and_then_the_longest_is_taken() {
        check("", &[]);
        check("x<a", &[Part::Text(b"x<a")]);
        check("x<a>y", &[Part::Text(b"x"), Part::Special(0), Part::Text(b"y")]);
        check("<a><b><b>", &[Part::Special(1), Part::Special(2)]);
        check("<<a><a><b>", &[Part::Text(b"<"), Part::Special(0), Part::Special(1)]);
    }

    #[test]
    fn empty_and_repeated_texts_are_refused() {
        for texts in [&["<a>", ""][..], &["<a>", "<b>", "<a>"]] {
            assert!(matches!(specials(texts), Err(Error::BadSpecial { .. })), "{texts:?}");
        }
        assert!(Specials::new(vec![("<a>".into(), 3), ("<b>".into(), 3)]).is_err());
    }
}
