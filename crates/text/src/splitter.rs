//! Cutting text into the pieces of a pattern.
//!
//! The built-in patterns run through hand-written scanners ([`crate::scan`]), any other through a backtracking regex
//! engine. The engine is also the scanners' oracle: a scanner is right when it cuts every text where the engine does.
//!
//! Input is bytes. Each maximal valid UTF-8 stretch is cut as a text of its own; what a regex leaves between its matches
//! is a piece too; each maximal run of invalid bytes is one piece. So the pieces of a text, joined, are the text, whatever
//! the bytes and the pattern.
//!
//! Scanners take linear time and fail on no text. The engine remembers a way back for every character of a run that it may
//! have to give up, and has room for a million; a longer one is refused with [`Error::PatternFailed`], never cut wrongly.
//!
//! A user's regex, which may also come from a tokenizer file of unknown origin, has limits: its length, the
//! size of what it compiles to, and the steps back for one piece. They bound memory (the worst expression
//! found compiled to 300 MB in 3 s), and the time of patterns that backtrack without end. They do not bound a lookahead that reads to the end of the text at every
//! piece, which costs the square of the text.

use fancy_regex::{CompileError, Regex, RegexBuilder};

use crate::pattern::Pattern;
use crate::scan::{Ends, FindEnds, Scanner};
use crate::stretches::{Stretch, stretches};
use crate::{Error, Result};

/// The longest regular expression of a user's, in bytes: ten times the longest built-in one.
const MAX_REGEX_BYTES: usize = 4096;

/// The most steps back in the search for one piece of a user's regex: tens of milliseconds.
const MAX_BACKTRACKS: usize = 1_000_000;

/// The most instructions that a user's regex may compile to.
const MAX_INSTRUCTIONS: usize = 10_000;

/// The largest automaton, in bytes, for each part of a user's regex that needs no backtracking.
const MAX_AUTOMATON_BYTES: usize = 1 << 20;

/// A compiled pattern.
#[derive(Debug, Clone)]
pub(crate) struct Splitter {
    pattern: Pattern,
    engine: Engine,
}

#[derive(Debug, Clone)]
enum Engine {
    Scanner(Scanner),
    Regex(Box<Regex>),
}

impl Splitter {
    pub(crate) fn new(pattern: &Pattern) -> Result<Self> {
        match Scanner::new(pattern) {
            Some(scanner) => Ok(Self { pattern: pattern.clone(), engine: Engine::Scanner(scanner) }),
            None => Self::by_regex(pattern),
        }
    }

    /// The pattern's regular expression itself, whatever the pattern: the oracle of the scanners.
    pub(crate) fn by_regex(pattern: &Pattern) -> Result<Self> {
        let bad = |reason| Error::BadPattern { pattern: shown(pattern), reason };
        let mut builder = RegexBuilder::new(pattern.regex());
        match pattern {
            Pattern::Regex(source) if source.len() > MAX_REGEX_BYTES => {
                let n_bytes = source.len();
                return Err(bad(format!("it has {n_bytes} bytes, and {MAX_REGEX_BYTES} are the limit")));
            }
            Pattern::Regex(_) => {
                builder.backtrack_limit(MAX_BACKTRACKS);
                builder.max_prog_size(MAX_INSTRUCTIONS);
                builder.delegate_size_limit(MAX_AUTOMATON_BYTES);
                builder.delegate_dfa_skip_cache_capacity_check(false);
            }
            // A built-in pattern steps back at most a few times for each character, so it needs no limit.
            _ => _ = builder.backtrack_limit(usize::MAX),
        }
        let regex = builder.build().map_err(|error| bad(reason(&error)))?;
        Ok(Self { pattern: pattern.clone(), engine: Engine::Regex(Box::new(regex)) })
    }

    /// The scanner of a built-in pattern.
    pub(crate) fn scanner(&self) -> Option<&Scanner> {
        match &self.engine {
            Engine::Scanner(scanner) => Some(scanner),
            Engine::Regex(_) => None,
        }
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
        stretches(text).try_for_each(|stretch| match stretch {
            Stretch::Text(text) => self.split_valid(text, &mut visit),
            Stretch::Invalid(bytes) => visit(bytes),
        })
    }

    /// Calls `visit` with each piece of valid text.
    fn split_valid<'t>(&self, text: &'t str, visit: &mut impl FnMut(&'t [u8]) -> Result<()>) -> Result<()> {
        let bytes = text.as_bytes();
        let regex = match &self.engine {
            Engine::Scanner(scanner) => {
                let (mut start, mut ends) = (0, Ends::new());
                while start < bytes.len() {
                    scanner.ends(text, start, &mut ends);
                    for &end in ends.as_slice() {
                        visit(&bytes[start..end])?;
                        start = end;
                    }
                }
                return Ok(());
            }
            Engine::Regex(regex) => regex,
        };
        let mut end_of_last = 0;
        for found in regex.find_iter(text) {
            let found = found.map_err(|error| Error::PatternFailed {
                pattern: shown(&self.pattern),
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

/// What the engine said, or that the pattern is too large, which the engine's own words do not tell.
fn reason(error: &fancy_regex::Error) -> String {
    if let fancy_regex::Error::CompileError(inner) = error
        && let CompileError::InnerError(cause) = &**inner
        && let Some(limit) = cause.size_limit()
    {
        return format!("a part of it compiles to more than {limit} bytes");
    }
    error.to_string()
}

/// The pattern for a message: its name, or the start of its regular expression.
fn shown(pattern: &Pattern) -> String {
    const MAX_SHOWN_CHARACTERS: usize = 200;
    let text = pattern.to_string();
    match text.char_indices().nth(MAX_SHOWN_CHARACTERS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces<'t>(pattern: &str, text: &'t [u8]) -> Vec<&'t [u8]> {
        let pattern = Pattern::from_name(pattern).unwrap_or_else(|| Pattern::Regex(pattern.to_owned()));
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
    fn o200k_cuts_at_case_and_keeps_contractions_marks_and_slashes() {
        check("o200k", "HTTPServer's camelCase DON'T", &["HTTPServer's", " camel", "Case", " DON'T"]);
        check("o200k", "12345 a/b//\n\nx", &["123", "45", " a", "/b", "//\n\n", "x"]);
        check("o200k", "e\u{301}A\u{301}a ǅ世界ʰA", &["e\u{301}", "A\u{301}a", " ǅ世界ʰ", "A"]);
    }

    #[test]
    fn llama3_cuts_as_cl100k_and_qwen2_cuts_every_digit() {
        check("llama3", "It'S 12345;\n\n  x", &["It", "'S", " ", "123", "45", ";\n\n", " ", " x"]);
        check("qwen2", "It'S 123;\n\n  x", &["It", "'S", " ", "1", "2", "3", ";\n\n", " ", " x"]);
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
        for pattern in Pattern::NAMES {
            for unit in [" ", "\n", "a", "A", "aA", "世", "\u{301}", "1", "!", "/", " \u{a0}", "'"] {
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
    fn the_limits_leave_room_for_regexes_like_the_built_in_ones() {
        for name in Pattern::NAMES {
            let source = Pattern::from_name(name).unwrap().regex().to_owned();
            assert!(Splitter::new(&Pattern::Regex(source)).is_ok(), "{name}");
        }
    }

    #[test]
    fn a_regex_beyond_a_limit_is_an_error_that_names_it() {
        let long = format!("a{}", "|b".repeat(MAX_REGEX_BYTES));
        let subroutines = r"(?<a>x(?=y)\g<b>\g<b>)(?<b>x(?=y)\g<c>\g<c>)(?<c>(?=y)x){0}";
        for (source, expected) in [
            (long.as_str(), "4096 are the limit"),
            (r"\w{5000}", "more than 1048576 bytes"),
            (r"(?:\w{500}){500}(?=x)", "more than 1048576 bytes"),
            (&"(".repeat(2000), "nested"),
            (&format!("{subroutines}{}", r"\g<a>".repeat(700)), "instructions"),
        ] {
            let error = Splitter::new(&Pattern::Regex(source.to_owned())).unwrap_err();
            let start: String = source.chars().take(50).collect();
            assert!(matches!(error, Error::BadPattern { .. }), "{error}");
            assert!(error.to_string().contains(&start), "{error}");
            assert!(error.to_string().contains(expected), "{error}");
            assert!(error.to_string().len() < 1000, "{error}");
        }
    }
}
