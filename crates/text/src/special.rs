//! Special tokens: texts that are one token, never made of others and never merged.

use aho_corasick::{AhoCorasick, MatchKind};

use crate::{Error, Result};

/// The special tokens of a vocabulary, and the ordinary ones that are found the same way.
#[derive(Debug, Clone)]
pub(crate) struct Specials {
    /// In ascending order of id.
    by_id: Vec<(String, u32)>,
    rules: Vec<Rules>,
    /// Indices into `by_id`, in order of text.
    by_text: Vec<usize>,
    max_bytes: usize,
    all: Finders,
    ordinary: Finders,
}

/// How a special token is found in text. A plain one is found wherever its text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Rules {
    /// Only where no letter, digit or underscore touches it.
    pub(crate) single_word: bool,
    /// White space before it belongs to it.
    pub(crate) strips_left: bool,
    /// White space behind it belongs to it.
    pub(crate) strips_right: bool,
    /// It is looked for in normalised text, between the others.
    pub(crate) normalized: bool,
    /// It is found in ordinary text, too.
    pub(crate) is_ordinary: bool,
}

/// Which special tokens mean something in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// All of them.
    All,
    /// Those that are found in ordinary text.
    Ordinary,
}

/// What finds some special tokens: those of text as it is, and those of normalised text.
#[derive(Debug, Clone, Default)]
pub(crate) struct Finders {
    pub(crate) raw: Option<Finder>,
    pub(crate) normalized: Option<Finder>,
}

impl Finders {
    /// Whether there is nothing to find.
    pub(crate) fn are_none(&self) -> bool {
        self.raw.is_none() && self.normalized.is_none()
    }
}

/// Finds texts: the leftmost first, of those the longest.
#[derive(Debug, Clone)]
pub(crate) struct Finder {
    automaton: AhoCorasick,
    /// By number of the pattern.
    tokens: Vec<(u32, Rules)>,
}

/// A part of a text with special tokens.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Part<'t> {
    /// Text between special tokens, never empty.
    Text(&'t [u8]),
    /// A special token, and how many bytes of the text it takes.
    Special(u32, usize),
}

impl Specials {
    /// Plain special tokens. Refuses empty texts and texts or ids that occur twice.
    pub(crate) fn new(specials: Vec<(String, u32)>) -> Result<Self> {
        let plain = specials.into_iter().map(|(text, id)| (text, id, Rules::default()));
        Self::with_rules(plain.collect(), str::to_owned)
    }

    /// Special tokens with their rules. Those of normalised text are looked for as what `normalise` makes of them.
    pub(crate) fn with_rules(
        mut specials: Vec<(String, u32, Rules)>,
        normalise: impl Fn(&str) -> String,
    ) -> Result<Self> {
        specials.sort_by_key(|&(_, id, _)| id);
        if let Some(twice) = specials.windows(2).find(|pair| pair[0].1 == pair[1].1) {
            return Err(Error::BadSpecial { text: twice[1].0.clone(), problem: "has the id of another one" });
        }
        let mut by_text: Vec<usize> = (0..specials.len()).collect();
        by_text.sort_by(|&a, &b| specials[a].0.cmp(&specials[b].0));
        if let Some(twice) = by_text.windows(2).find(|pair| specials[pair[0]].0 == specials[pair[1]].0) {
            return Err(Error::BadSpecial { text: specials[twice[0]].0.clone(), problem: "is given twice" });
        }
        if specials.iter().any(|(text, ..)| text.is_empty()) {
            return Err(Error::BadSpecial { text: String::new(), problem: "is empty" });
        }
        let finders = |is_wanted: fn(Rules) -> bool| -> Result<Finders> {
            let of = |normalized: bool| {
                let wanted = specials
                    .iter()
                    .filter(|&&(_, _, rules)| is_wanted(rules) && rules.normalized == normalized);
                Finder::new(wanted.map(|(text, id, rules)| {
                    (if normalized { normalise(text) } else { text.clone() }, *id, *rules)
                }))
            };
            Ok(Finders { raw: of(false)?, normalized: of(true)? })
        };
        let (all, ordinary) = (finders(|_| true)?, finders(|rules| rules.is_ordinary)?);
        let max_bytes = specials.iter().map(|(text, ..)| text.len()).max().unwrap_or(0);
        let rules = specials.iter().map(|&(_, _, rules)| rules).collect();
        let by_id = specials.into_iter().map(|(text, id, _)| (text, id)).collect();
        Ok(Self { by_id, rules, by_text, max_bytes, all, ordinary })
    }

    /// Special tokens with the ids 0, 1, 2 …
    pub(crate) fn numbered(texts: &[String]) -> Result<Self> {
        Self::new(texts.iter().cloned().zip(0..).collect())
    }

    pub(crate) fn as_slice(&self) -> &[(String, u32)] {
        &self.by_id
    }

    /// Text, id and rules of all, in ascending order of id.
    pub(crate) fn with_their_rules(&self) -> impl Iterator<Item = (&str, u32, Rules)> {
        self.by_id.iter().zip(&self.rules).map(|((text, id), &rules)| (text.as_str(), *id, rules))
    }

    pub(crate) fn texts(&self) -> impl Iterator<Item = &str> {
        self.by_id.iter().map(|(text, _)| text.as_str())
    }

    /// Whether this id is that of a special token, or of an ordinary one that is found the same way.
    pub(crate) fn has_id(&self, id: u32) -> bool {
        self.by_id.binary_search_by_key(&id, |&(_, id)| id).is_ok()
    }

    /// Whether the token of this id is looked for in normalised text; it then decodes to what it is looked for as.
    pub(crate) fn is_normalized(&self, id: u32) -> bool {
        let idx = self.by_id.binary_search_by_key(&id, |&(_, id)| id);
        idx.is_ok_and(|idx| self.rules[idx].normalized)
    }

    /// The texts of those that are wanted, if all are found wherever their text is.
    pub(crate) fn plain_texts(&self, wanted: Wanted) -> Option<Vec<String>> {
        let mut texts = Vec::new();
        for (text, _, rules) in self.with_their_rules() {
            if wanted == Wanted::All || rules.is_ordinary {
                let is_plain = Rules { is_ordinary: rules.is_ordinary, ..Rules::default() } == rules;
                is_plain.then(|| texts.push(text.to_owned()))?;
            }
        }
        Some(texts)
    }

    /// What finds those that are wanted.
    pub(crate) fn finders(&self, wanted: Wanted) -> &Finders {
        match wanted {
            Wanted::All => &self.all,
            Wanted::Ordinary => &self.ordinary,
        }
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
        let found = self.by_text.binary_search_by(|&idx| self.by_id[idx].0.as_str().cmp(text)).ok()?;
        Some(self.by_id[self.by_text[found]].1)
    }

    /// Calls `visit` with the parts of `text` in order: the leftmost special token first, of those the
    /// longest.
    pub(crate) fn for_each_part<'t>(
        &self,
        text: &'t [u8],
        visit: impl FnMut(Part<'t>) -> Result<()>,
    ) -> Result<()> {
        for_each_part(self.all.raw.as_ref(), text, visit)
    }

    /// Whether a special token's text lies across `offset` of `text`; if so, where the leftmost such text starts.
    pub(crate) fn across(&self, text: &[u8], offset: usize) -> Option<usize> {
        let first = (offset + 1).saturating_sub(self.max_bytes);
        (first..offset).find(|&start| {
            let fits = |(special, _): &&(String, u32)| {
                start + special.len() > offset && text[start..].starts_with(special.as_bytes())
            };
            self.by_id.iter().find(fits).is_some()
        })
    }

    /// The length of the longest special token, in bytes.
    pub(crate) fn max_bytes(&self) -> usize {
        self.max_bytes
    }
}

/// Calls `visit` with the parts of `text` in order; without a finder it is one.
pub(crate) fn for_each_part<'t>(
    finder: Option<&Finder>,
    text: &'t [u8],
    mut visit: impl FnMut(Part<'t>) -> Result<()>,
) -> Result<()> {
    let mut text_start = 0;
    if let Some(Finder { automaton, tokens }) = finder {
        for found in automaton.find_iter(text) {
            let (id, rules) = tokens[found.pattern().as_usize()];
            let (mut start, mut end) = (found.start(), found.end());
            let touches_word = || {
                last_character(&text[..start]).is_some_and(is_of_word)
                    || first_character(&text[end..]).is_some_and(is_of_word)
            };
            if rules.single_word && touches_word() {
                continue;
            }
            if rules.strips_left {
                // White space may belong to the token before.
                start = text_start.max(end_without_white_space(&text[..start]));
            }
            if rules.strips_right {
                end += n_white_space(&text[end..]);
            }
            if text_start < start {
                visit(Part::Text(&text[text_start..start]))?;
            }
            visit(Part::Special(id, end.saturating_sub(start)))?;
            text_start = end;
        }
    }
    if text_start < text.len() { visit(Part::Text(&text[text_start..])) } else { Ok(()) }
}

impl Finder {
    /// `None` without tokens to find.
    fn new(tokens: impl Iterator<Item = (String, u32, Rules)>) -> Result<Option<Self>> {
        let (mut texts, mut found) = (Vec::new(), Vec::new());
        for (text, id, rules) in tokens.filter(|(text, ..)| !text.is_empty()) {
            texts.push(text);
            found.push((id, rules));
        }
        if texts.is_empty() {
            return Ok(None);
        }
        let too_many = |error| Error::Format(format!("its special tokens cannot be looked for: {error}"));
        let automaton =
            AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(&texts).map_err(too_many)?;
        Ok(Some(Self { automaton, tokens: found }))
    }
}

/// Whether the character may be inside a word: a letter, mark, digit or connector.
fn is_of_word(character: char) -> bool {
    regex_syntax::is_word_character(character)
}

/// The longest encoding of a character, in bytes.
const MAX_CHARACTER_BYTES: usize = 4;

/// The character that the text starts with, unless it starts with no character.
fn first_character(text: &[u8]) -> Option<char> {
    let n_bytes = text.len().min(MAX_CHARACTER_BYTES);
    (1..=n_bytes).find_map(|n_bytes| std::str::from_utf8(&text[..n_bytes]).ok()?.chars().next())
}

/// The character that the text ends with, unless it ends with no character.
fn last_character(text: &[u8]) -> Option<char> {
    let n_bytes = text.len().min(MAX_CHARACTER_BYTES);
    (1..=n_bytes)
        .find_map(|n_bytes| std::str::from_utf8(&text[text.len() - n_bytes..]).ok()?.chars().next_back())
}

/// How many bytes of white space the text starts with.
fn n_white_space(text: &[u8]) -> usize {
    let mut n_bytes = 0;
    while let Some(character) =
        first_character(&text[n_bytes..]).filter(|character| character.is_whitespace())
    {
        n_bytes += character.len_utf8();
    }
    n_bytes
}

/// Where the text ends but for white space.
fn end_without_white_space(text: &[u8]) -> usize {
    let mut end = text.len();
    while let Some(character) = last_character(&text[..end]).filter(|character| character.is_whitespace()) {
        end -= character.len_utf8();
    }
    end
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
        check("x<a>y", &[Part::Text(b"x"), Part::Special(0, 3), Part::Text(b"y")]);
        check("<a><b><b>", &[Part::Special(1, 6), Part::Special(2, 3)]);
        check("<<a><a><b>", &[Part::Text(b"<"), Part::Special(0, 3), Part::Special(1, 6)]);
    }

    #[test]
    fn empty_and_repeated_texts_are_refused() {
        for texts in [&["<a>", ""][..], &["<a>", "<b>", "<a>"]] {
            assert!(matches!(specials(texts), Err(Error::BadSpecial { .. })), "{texts:?}");
        }
        assert!(Specials::new(vec![("<a>".into(), 3), ("<b>".into(), 3)]).is_err());
    }

    #[test]
    fn rules_say_what_belongs_to_a_token_and_where_it_is_found() {
        let rules = Rules { strips_left: true, strips_right: true, ..Rules::default() };
        let word = Rules { single_word: true, is_ordinary: true, ..Rules::default() };
        let normalized = Rules { normalized: true, ..Rules::default() };
        let specials = Specials::with_rules(
            vec![("<m>".into(), 1, rules), ("yes".into(), 2, word), ("Ab".into(), 3, normalized)],
            str::to_lowercase,
        )
        .unwrap();
        let parts = |wanted: Wanted, text: &str| {
            let mut parts = Vec::new();
            let finders = specials.finders(wanted);
            for finder in [&finders.raw, &finders.normalized] {
                for_each_part(finder.as_ref(), text.as_bytes(), |part| {
                    parts.push(match part {
                        Part::Text(text) => String::from_utf8_lossy(text).into_owned(),
                        Part::Special(id, n_bytes) => format!("{id}:{n_bytes}"),
                    });
                    Ok(())
                })
                .unwrap();
            }
            parts
        };
        assert_eq!(parts(Wanted::All, "a \u{a0}<m> \n<m>b"), ["a", "1:8", "1:3", "b", "a \u{a0}<m> \n<m>b"]);
        assert_eq!(parts(Wanted::Ordinary, "<m>yes"), ["<m>", "2:3", "<m>yes"]);
        assert_eq!(parts(Wanted::All, "yesé"), ["yesé", "yesé"]);
        assert_eq!(parts(Wanted::All, "Abab"), ["Abab", "Ab", "3:2"]);
    }
}
