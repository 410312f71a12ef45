//! How text is cut into the pieces that tokens never cross.
//!
//! Patterns run through a backtracking regex engine. That is the slow path, and it is the oracle: a
//! hand-written scanner for a known pattern is right when it cuts every text where this module cuts it.
//!
//! Input is bytes. Each maximal valid UTF-8 stretch is given to the regex as a text of its own; what the
//! regex leaves between its matches is a piece too; each maximal run of invalid bytes is one piece. So the
//! pieces of a text, joined, are the text, whatever the bytes and the pattern.
//!
//! Cost: the built-in patterns match at every position, so a text is scanned once, except that a run of
//! whitespace is walked a few times, forward and back for the lookahead. The engine remembers a way back for
//! every character of such a run and has room for a million; a longer run, like a user's regex that
//! backtracks without bound, is refused with [`Error::PatternFailed`], never cut wrongly.

use std::fmt;
use std::str::FromStr;

use fancy_regex::{Regex, RegexBuilder};

use crate::{Error, Result};

/// Which pieces a text is cut into before tokens are formed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pattern {
    /// The pattern of GPT-2: contractions, letters, digits, other, each with a leading space.
    Gpt2,
    /// The pattern of GPT-4's cl100k: digits in threes, newlines apart, contractions in any case.
    Cl100k,
    /// A regular expression in `fancy-regex` syntax. It is never looked at across invalid bytes.
    Regex(String),
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

const CL100K: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

impl Pattern {
    /// The regular expression that defines this pattern.
    pub fn regex(&self) -> &str {
        match self {
            Self::Gpt2 => GPT2,
            Self::Cl100k => CL100K,
            Self::Regex(source) => source,
        }
    }

    /// The pattern of a regular expression found in a tokenizer file.
    pub(crate) fn from_regex(source: &str) -> Self {
        if source == CL100K { Self::Cl100k } else { Self::Regex(source.to_owned()) }
    }
}

impl FromStr for Pattern {
    type Err = Error;

    /// Reads `gpt2`, `cl100k` or a regular expression. A bare word is taken for a misspelt name, not for a
    /// regex.
    fn from_str(text: &str) -> Result<Self> {
        match text {
            "gpt2" => Ok(Self::Gpt2),
            "cl100k" => Ok(Self::Cl100k),
            _ if text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_') => {
                Err(Error::UnknownPattern(text.to_owned()))
            }
            _ => {
                let pattern = Self::Regex(text.to_owned());
                Splitter::new(&pattern)?;
                Ok(pattern)
            }
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gpt2 => "gpt2",
            Self::Cl100k => "cl100k",
            Self::Regex(source) => source,
        })
    }
}

/// A compiled pattern.
#[derive(Debug, Clone)]
pub(crate) struct Splitter {
    pattern: Pattern,
    regex: Regex,
}

impl Splitter {
    pub(crate) fn new(pattern: &Pattern) -> Result<Self> {
        let mut builder = RegexBuilder::new(pattern.regex());
        if !matches!(pattern, Pattern::Regex(_)) {
            // A built-in pattern steps back at most a few times for each character, so it needs no limit.
            builder.backtrack_limit(usize::MAX);
        }
        let regex = builder
            .build()
            .map_err(|error| Error::BadPattern { pattern: pattern.to_string(), reason: error.to_string() })?;
        Ok(Self { pattern: pattern.clone(), regex })
    }

    pub(crate) fn pattern(&self) -> &Pattern {
        &self.pattern
    }

    /// Calls `visit` with each piece of `text` in order; no piece is empty.
    pub(crate) fn for_each_piece<'t>(
        &self,
        text: &'t [u8],
        mut visit: impl FnMut(&'t [u8]) -> Result<()>,
    ) -> Result<()> {
        // Chunks are a valid stretch followed by up to three invalid bytes, so a run of invalid bytes comes
        // in several.
        let mut offset = 0;
        let mut invalid_start = 0;
        for chunk in text.utf8_chunks() {
            if !chunk.valid().is_empty() {
                if invalid_start < offset {
                    visit(&text[invalid_start..offset])?;
                }
                self.split_valid(chunk.valid(), &text[offset..offset + chunk.valid().len()], &mut visit)?;
                offset += chunk.valid().len();
                invalid_start = offset;
            }
            offset += chunk.invalid().len();
        }
        if invalid_start < offset { visit(&text[invalid_start..offset]) } else { Ok(()) }
    }

    /// `bytes` are the bytes of `text`, with the lifetime that pieces must have.
    fn split_valid<'t>(
        &self,
        text: &str,
        bytes: &'t [u8],
        visit: &mut impl FnMut(&'t [u8]) -> Result<()>,
    ) -> Result<()> {
        let mut end_of_last = 0;
        for found in self.regex.find_iter(text) {
            let found = found.map_err(|error| Error::PatternFailed {
                pattern: self.pattern.to_string(),
                reason: error.to_string(),
            })?;
            if end_of_last < found.start() {
                visit(&bytes[end_of_last..found.start()])?;
            }
            if found.start() < found.end() {
                visit(&bytes[found.start()..found.end()])?;
            }
            end_of_last = found.end();
        }
        if end_of_last < bytes.len() { visit(&bytes[end_of_last..]) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces<'t>(pattern: &str, text: &'t [u8]) -> Vec<&'t [u8]> {
        let pattern = match pattern {
            "gpt2" => Pattern::Gpt2,
            "cl100k" => Pattern::Cl100k,
            other => Pattern::Regex(other.to_owned()),
        };
        let mut pieces = Vec::new();
        let splitter = Splitter::new(&pattern).unwrap();
        splitter
            .for_each_piece(text, |piece| {
                pieces.push(piece);
                Ok(())
            })
            .unwrap();
        pieces
    }

    #[track_caller]
    fn check(pattern: &str, text: &str, expected: &[&str]) {
        let found: Vec<_> =
            pieces(pattern, text.as_bytes()).into_iter().map(String::from_utf8_lossy).collect();
        assert_eq!(found, expected, "{pattern} on {text:?}");
    }

    #[test]
    fn gpt2_cuts_words_digits_punctuation_and_spaces() {
        check("gpt2", "", &[]);
        check("gpt2", "Hello world's 1234!!", &["Hello", " world", "'s", " 1234", "!!"]);
        check("gpt2", "a   b \n\n c  ", &["a", "  ", " b", " \n\n", " c", "  "]);
        check("gpt2", "It'S Привіт, 世界", &["It", "'", "S", " Привіт", ",", " 世界"]);
    }

    #[test]
    fn cl100k_cuts_digits_in_threes_and_newlines_apart() {
        check("cl100k", "It'S 12345;\n\n  x", &["It", "'S", " ", "123", "45", ";\n\n", " ", " x"]);
        check("cl100k", "a \n \n b.c", &["a", " \n \n", " b", ".c"]);
    }

    #[test]
    fn what_a_regex_leaves_between_matches_is_kept() {
        check(r"\d+", "ab12cd3", &["ab", "12", "cd", "3"]);
        check(r"x", "abc", &["abc"]);
        check(r"(?=b)", "abab", &["a", "ba", "b"]);
        check(r"q*", "añb", &["a", "ñ", "b"]);
    }

    #[test]
    fn a_run_of_invalid_bytes_is_one_piece() {
        let text = b"ab\xff\xfe\xe4\xb8 c\x80";
        let expected: [&[u8]; 4] = [b"ab", b"\xff\xfe\xe4\xb8", b" c", b"\x80"];
        assert_eq!(pieces("gpt2", text), expected);
        assert_eq!(pieces("cl100k", text), expected);
    }

    #[test]
    fn long_runs_of_one_character_do_not_fail() {
        for pattern in ["gpt2", "cl100k"] {
            for unit in [" ", "\n", "a", "1", "!", " \u{a0}", "'"] {
                let text = unit.repeat(900_000 / unit.len());
                let total: usize =
                    pieces(pattern, format!("{text}x").as_bytes()).iter().map(|p| p.len()).sum();
                assert_eq!(total, text.len() + 1, "{pattern} on {unit:?}");
            }
        }
    }

    #[test]
    fn what_the_engine_cannot_hold_is_an_error_that_names_the_pattern() {
        let splitter = Splitter::new(&Pattern::Regex(r"(?:(a|aa)+)\1(?=b)".to_owned())).unwrap();
        let error = splitter.for_each_piece("a".repeat(200).as_bytes(), |_| Ok(())).unwrap_err();
        assert!(error.to_string().contains(r"(?:(a|aa)+)\1(?=b)"), "{error}");
    }

    #[test]
    fn names_read_back_and_misspelt_names_are_refused() {
        for name in ["gpt2", "cl100k", r"\p{L}+|\s"] {
            assert_eq!(name.parse::<Pattern>().unwrap().to_string(), name);
        }
        assert!(matches!("gtp2".parse::<Pattern>(), Err(Error::UnknownPattern(_))));
        assert!(matches!("(".parse::<Pattern>(), Err(Error::BadPattern { .. })));
    }
}
