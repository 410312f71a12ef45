//! The patterns that cut text into the pieces that tokens never cross: their names and regular expressions.
//!
//! The built-in ones are written exactly as the public tokenizers have them, so that a `tokenizer.json` made
//! here is read there, and the other way round, with the same pieces.

use std::fmt;
use std::str::FromStr;

use crate::splitter::Splitter;
use crate::{Error, Result};

/// Which pieces a text is cut into before tokens are formed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Pattern {
    /// The pattern of GPT-2: contractions, letters, digits, other, each with a leading space.
    #[default]
    Gpt2,
    /// The pattern of GPT-4's cl100k: digits in threes, newlines apart, contractions in any case.
    Cl100k,
    /// The pattern of GPT-4o's o200k: like cl100k, but words end where lower case turns into upper case,
    /// keep their contraction and their combining marks, and slashes join the newlines after punctuation.
    O200k,
    /// The pattern of Llama 3, whose regular expression is that of cl100k. A `tokenizer.json` holds only the
    /// expression, so what was written with this name is read back as [`Cl100k`](Self::Cl100k).
    Llama3,
    /// The pattern of Qwen 2 and its successors: cl100k with every digit on its own.
    Qwen2,
    /// A regular expression in `fancy-regex` syntax, of at most 4,096 bytes. It is never looked at across
    /// invalid bytes; an expression too large to compile, or too costly on a text, is an error.
    Regex(String),
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

const CL100K: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

const O200K: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

const QWEN2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// GPT-2's pattern on what single digits leave of a text: a digit ends the white space before it as the end of a text does.
const GPT2_SINGLE_DIGITS: &str =
    r"\p{N}|'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?![^\s\p{N}])|\s+";

/// The built-in patterns; of two with the same regular expression, a file is read as the first.
const BUILT_IN: [Pattern; 5] =
    [Pattern::Gpt2, Pattern::Cl100k, Pattern::O200k, Pattern::Llama3, Pattern::Qwen2];

impl Pattern {
    /// The names of the built-in patterns.
    pub const NAMES: [&'static str; 5] = ["gpt2", "cl100k", "o200k", "llama3", "qwen2"];

    /// The regular expression that defines this pattern.
    pub fn regex(&self) -> &str {
        match self {
            Self::Gpt2 => GPT2,
            Self::Cl100k | Self::Llama3 => CL100K,
            Self::O200k => O200K,
            Self::Qwen2 => QWEN2,
            Self::Regex(source) => source,
        }
    }

    /// The name of a built-in pattern; `None` for a regular expression of the user's.
    pub fn name(&self) -> Option<&'static str> {
        match self {
            Self::Gpt2 => Some("gpt2"),
            Self::Cl100k => Some("cl100k"),
            Self::O200k => Some("o200k"),
            Self::Llama3 => Some("llama3"),
            Self::Qwen2 => Some("qwen2"),
            Self::Regex(_) => None,
        }
    }

    /// The pattern of text that is cut around every digit, and then by GPT-2's pattern.
    pub fn gpt2_single_digits() -> Self {
        Self::Regex(GPT2_SINGLE_DIGITS.to_owned())
    }

    /// The built-in pattern with this name.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        BUILT_IN.into_iter().find(|pattern| pattern.name() == Some(name))
    }

    /// The pattern of a regular expression found in a tokenizer file.
    pub(crate) fn from_regex(source: &str) -> Self {
        let known = BUILT_IN.into_iter().find(|pattern| pattern.regex() == source);
        known.unwrap_or_else(|| Self::Regex(source.to_owned()))
    }
}

impl FromStr for Pattern {
    type Err = Error;

    /// Reads one of [`NAMES`](Self::NAMES) or a regular expression. A word of letters and digits, or a name
    /// with dots and dashes such as `qwen2.5`, is taken for a misspelt name, not for a regex; who means a
    /// regex puts it in `(?:…)`.
    fn from_str(text: &str) -> Result<Self> {
        if let Some(pattern) = Self::from_name(text) {
            return Ok(pattern);
        }
        if looks_like_a_name(text) {
            return Err(Error::UnknownPattern(text.to_owned()));
        }
        let pattern = Self::Regex(text.to_owned());
        Splitter::new(&pattern)?;
        Ok(pattern)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name().unwrap_or_else(|| self.regex()))
    }
}

fn looks_like_a_name(text: &str) -> bool {
    let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    text.chars().all(is_word)
        || text.starts_with(|c: char| c.is_ascii_alphabetic()) && text.chars().all(|c| is_word(c) || c == '.')
}

/// The built-in name that `word` most likely means, if it is like one at all.
pub(crate) fn nearest_name(word: &str) -> Option<&'static str> {
    let lower = word.to_ascii_lowercase();
    let plain: String = lower.trim_end_matches("_base").chars().filter(char::is_ascii_alphanumeric).collect();
    let distances = Pattern::NAMES.map(|name| (n_edits(name, &plain), name));
    // The shortest name has four letters, so three mistakes would make it anything.
    distances.into_iter().min().filter(|&(distance, _)| distance <= 2).map(|(_, name)| name)
}

/// How many insertions, removals, replacements and swaps of neighbours turn one word into the other.
fn n_edits(from: &str, to: &str) -> usize {
    let (from, to) = (from.as_bytes(), to.as_bytes());
    let mut rows = vec![vec![0; to.len() + 1]; from.len() + 1];
    for i in 0..=from.len() {
        for j in 0..=to.len() {
            rows[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let replaced = rows[i - 1][j - 1] + usize::from(from[i - 1] != to[j - 1]);
                let swapped = if i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1] {
                    rows[i - 2][j - 2] + 1
                } else {
                    usize::MAX
                };
                replaced.min(swapped).min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1)
            };
        }
    }
    rows[from.len()][to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_regexes_read_back() {
        for name in Pattern::NAMES.into_iter().chain([r"\p{L}+|\s", "(?:ab)", "."]) {
            let pattern: Pattern = name.parse().unwrap();
            assert_eq!(pattern.to_string(), name);
            assert_eq!(pattern.name().is_some(), Pattern::NAMES.contains(&name));
        }
        assert!(matches!("(".parse::<Pattern>(), Err(Error::BadPattern { .. })));
    }

    #[test]
    fn a_file_that_holds_a_built_in_regex_has_that_pattern() {
        for pattern in BUILT_IN {
            let read = Pattern::from_regex(pattern.regex());
            assert_eq!(read.regex(), pattern.regex());
            assert_eq!(read == pattern, pattern != Pattern::Llama3);
        }
    }

    #[test]
    fn a_misspelt_name_is_refused_and_the_nearest_one_suggested() {
        for (word, expected) in [
            ("gtp2", "did you mean gpt2?"),
            ("GPT-2", "did you mean gpt2?"),
            ("cl100k_base", "did you mean cl100k?"),
            ("o200", "did you mean o200k?"),
            ("llama-3", "did you mean llama3?"),
            ("llama3.1", "did you mean llama3?"),
            ("qwen2.5", "did you mean qwen2?"),
            ("words", "use gpt2, cl100k, o200k, llama3, qwen2 or a regular expression"),
            ("", "use gpt2, cl100k, o200k, llama3, qwen2 or a regular expression"),
        ] {
            let error = word.parse::<Pattern>().unwrap_err();
            assert!(matches!(error, Error::UnknownPattern(_)), "{word}");
            assert!(error.to_string().contains(expected), "{error}");
        }
        assert!(!"words".parse::<Pattern>().unwrap_err().to_string().contains("did you mean"));
    }

    #[test]
    fn edits_are_counted() {
        for (from, to, expected) in [("", "", 0), ("abc", "", 3), ("gpt2", "gtp2", 1), ("ab", "xabx", 2)] {
            assert_eq!(n_edits(from, to), expected, "{from} {to}");
        }
    }
}
