//! The char kind: one token a character, special tokens first, then the characters in order of code point.
//!
//! There is no standard file for it, so it has our own JSON: `format`, `version`, `kind`, the special tokens
//! in order of id, and one string of all characters in order of id.

use hashbrown::HashMap;
use serde::{Deserialize, Serialize};

use crate::special::{Part, Specials};
use crate::{Error, Result, Tokenizer};

/// How often each character occurs in a corpus.
#[derive(Debug, Clone)]
pub struct CharCounts {
    specials: Specials,
    counts: HashMap<char, u64>,
    total: u64,
}

/// What char vocabulary to make.
#[derive(Debug, Clone, Default)]
pub struct CharOptions {
    /// At most this many tokens, special ones included; the most frequent characters stay. `None`: all of
    /// them.
    pub vocab_size: Option<usize>,
    /// Special tokens, which get the first ids in this order; the counts must have been made with the same
    /// ones.
    pub special: Vec<String>,
    /// Characters that occur less often are left out.
    pub min_count: u64,
}

/// What making a char vocabulary did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CharReport {
    /// Distinct characters in the vocabulary.
    pub kept: u64,
    /// Distinct characters left out by the limits; text that has them cannot be encoded.
    pub dropped: u64,
    /// Characters counted.
    pub total: u64,
}

impl CharCounts {
    /// An empty table; `special` tokens are removed from documents before counting.
    pub fn new(special: &[String]) -> Result<Self> {
        Ok(Self { specials: Specials::numbered(special)?, counts: HashMap::new(), total: 0 })
    }

    /// Counts the characters of one document, which must be UTF-8.
    pub fn add_document(&mut self, document: &[u8]) -> Result<()> {
        let text = valid_text(document, 0)?;
        let Self { specials, counts, total } = self;
        specials.for_each_part(text.as_bytes(), |part| match part {
            Part::Special(_) => Ok(()),
            Part::Text(stretch) => {
                valid_text(stretch, 0)?.chars().try_for_each(|character| add(counts, total, character, 1))
            }
        })
    }

    /// Adds the counts of `other`, which must have been made with the same special tokens.
    pub fn merge(&mut self, other: Self) -> Result<()> {
        self.specials.check_same(other.specials.texts())?;
        let Self { counts, total, .. } = self;
        other.counts.into_iter().try_for_each(|(character, count)| add(counts, total, character, count))
    }

    /// How many characters were counted.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Every distinct character and its count, in order of code point.
    pub fn sorted(&self) -> Vec<(char, u64)> {
        let mut characters: Vec<_> =
            self.counts.iter().map(|(&character, &count)| (character, count)).collect();
        characters.sort_unstable();
        characters
    }
}

/// Makes a char tokenizer from the counts of a corpus. Text with any other character will be refused, never
/// changed.
pub fn train_char(counts: &CharCounts, options: &CharOptions) -> Result<(Tokenizer, CharReport)> {
    counts.specials.check_same(options.special.iter().map(String::as_str))?;
    if counts.total == 0 {
        return Err(Error::EmptyCorpus("characters"));
    }
    let minimum = options.special.len() + 1;
    let n_wanted = options.vocab_size.unwrap_or(usize::MAX);
    if n_wanted < minimum {
        let needs = format!("{} special tokens and a character must fit", options.special.len());
        return Err(Error::VocabularyTooSmall { wanted: n_wanted, minimum, needs });
    }
    let mut characters = counts.sorted();
    let n_distinct = characters.len();
    characters.retain(|&(_, count)| count >= options.min_count);
    // A stable sort, so that of equally frequent characters the smaller code points stay.
    characters.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
    characters.truncate(n_wanted - options.special.len());
    let mut kept: Vec<char> = characters.into_iter().map(|(character, _)| character).collect();
    if kept.is_empty() {
        return Err(Error::EmptyCorpus("characters that occur often enough"));
    }
    kept.sort_unstable();
    let report = CharReport {
        kept: kept.len() as u64,
        dropped: (n_distinct - kept.len()) as u64,
        total: counts.total,
    };
    let vocabulary = CharVocabulary::new(Specials::numbered(&options.special)?, kept);
    Ok((Tokenizer::from_characters(vocabulary), report))
}

/// Characters and special tokens with their ids.
#[derive(Debug, Clone)]
pub(crate) struct CharVocabulary {
    specials: Specials,
    characters: Vec<char>,
    ids: HashMap<char, u32>,
    tokens: Vec<Option<Box<[u8]>>>,
}

impl CharVocabulary {
    /// The special tokens must be numbered from 0; characters follow in the given order and must be distinct.
    fn new(specials: Specials, characters: Vec<char>) -> Self {
        let special_texts = specials.as_slice().iter().map(|(text, _)| text.clone());
        let texts = special_texts.chain(characters.iter().map(|character| character.to_string()));
        let tokens = texts.map(|text| Some(text.into_bytes().into())).collect();
        let ids = characters.iter().copied().zip(specials.as_slice().len() as u32..).collect();
        Self { specials, characters, ids, tokens }
    }

    pub(crate) fn specials(&self) -> &Specials {
        &self.specials
    }

    pub(crate) fn tokens(&self) -> &[Option<Box<[u8]>>] {
        &self.tokens
    }

    /// Appends one token a character; errors count bytes from `base`.
    pub(crate) fn encode(&self, text: &[u8], base: usize, out: &mut Vec<u32>) -> Result<()> {
        for (offset, character) in valid_text(text, base)?.char_indices() {
            let id = self.ids.get(&character);
            out.push(*id.ok_or(Error::UnknownCharacter { character, offset: base + offset })?);
        }
        Ok(())
    }
}

const FORMAT: &str = "ironmill-tokenizer";
const VERSION: u32 = 1;
const KIND: &str = "char";

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    format: String,
    version: u32,
    kind: String,
    special: Vec<String>,
    characters: String,
}

/// Whether the JSON says that it is our own format, whatever its version and kind.
pub(crate) fn is_own_format(json: &str) -> bool {
    #[derive(Deserialize)]
    struct Head {
        format: String,
    }
    serde_json::from_str::<Head>(json).is_ok_and(|head| head.format == FORMAT)
}

pub(crate) fn to_json(vocabulary: &CharVocabulary) -> String {
    let file = File {
        format: FORMAT.to_owned(),
        version: VERSION,
        kind: KIND.to_owned(),
        special: vocabulary.specials.as_slice().iter().map(|(text, _)| text.clone()).collect(),
        characters: vocabulary.characters.iter().collect(),
    };
    serde_json::to_string_pretty(&file).unwrap_or_default() + "\n"
}

pub(crate) fn from_json(json: &str) -> Result<CharVocabulary> {
    #[derive(Deserialize)]
    struct Head {
        version: u32,
        kind: String,
    }
    let bad = |error: serde_json::Error| Error::Format(error.to_string());
    let head: Head = serde_json::from_str(json).map_err(bad)?;
    if head.version != VERSION {
        return Err(Error::Unsupported(format!("version {} of the format {FORMAT}", head.version)));
    }
    if head.kind != KIND {
        return Err(Error::Unsupported(format!("the kind {:?}", head.kind)));
    }
    let file: File = serde_json::from_str(json).map_err(bad)?;
    let characters: Vec<char> = file.characters.chars().collect();
    if let Some(pair) = characters.windows(2).find(|pair| pair[0] >= pair[1]) {
        return Err(Error::Format(format!(
            "characters {:?} and {:?} are not in ascending order",
            pair[0], pair[1]
        )));
    }
    if characters.is_empty() {
        return Err(Error::Format("it has no characters".to_owned()));
    }
    Ok(CharVocabulary::new(Specials::numbered(&file.special)?, characters))
}

fn add(counts: &mut HashMap<char, u64>, total: &mut u64, character: char, count: u64) -> Result<()> {
    let overflow = || Error::CountOverflow("all characters".to_owned());
    *total = total.checked_add(count).ok_or_else(overflow)?;
    *counts.entry(character).or_insert(0) += count;
    Ok(())
}

fn valid_text(bytes: &[u8], base: usize) -> Result<&str> {
    std::str::from_utf8(bytes).map_err(|error| Error::InvalidUtf8 { offset: base + error.valid_up_to() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn train(text: &str, options: &CharOptions) -> Result<(Tokenizer, CharReport)> {
        let mut counts = CharCounts::new(&options.special)?;
        counts.add_document(text.as_bytes())?;
        train_char(&counts, options)
    }

    fn with_special(special: &[&str]) -> CharOptions {
        CharOptions {
            special: special.iter().map(|&text| text.to_owned()).collect(),
            ..CharOptions::default()
        }
    }

    #[test]
    fn characters_are_numbered_by_code_point_after_the_special_tokens() {
        let (tokenizer, report) = train("bжa 中b<|x|>", &with_special(&["<|x|>"])).unwrap();
        assert_eq!(report, CharReport { kept: 5, dropped: 0, total: 6 });
        let mut ids = Vec::new();
        tokenizer.encode_with_special(" ab<|x|>ж中".as_bytes(), &mut ids).unwrap();
        assert_eq!(ids, [1, 2, 3, 0, 4, 5]);
        assert_eq!(tokenizer.decode(&ids).unwrap(), " ab<|x|>ж中".as_bytes());
        assert_eq!(tokenizer.vocab_size(), 6);
        let reloaded = Tokenizer::from_json(&tokenizer.to_json()).unwrap();
        assert_eq!(reloaded.to_json(), tokenizer.to_json());
        assert_eq!(reloaded.special_id("<|x|>"), Some(0));
    }

    #[test]
    fn limits_keep_the_most_frequent_characters() {
        let options = CharOptions { vocab_size: Some(2), ..CharOptions::default() };
        let (tokenizer, report) = train("dbbac", &options).unwrap();
        assert_eq!((report.kept, report.dropped), (2, 2));
        assert_eq!(tokenizer.decode(&[0, 1]).unwrap(), b"ab");
        let options = CharOptions { min_count: 2, ..CharOptions::default() };
        assert_eq!(train("dbbac", &options).unwrap().0.decode(&[0]).unwrap(), b"b");
    }

    #[test]
    fn unknown_characters_and_bad_bytes_are_errors_that_say_where() {
        let (tokenizer, _) = train("ab", &with_special(&["<x>"])).unwrap();
        let error = tokenizer.encode_with_special("a<x>bж".as_bytes(), &mut Vec::new()).unwrap_err();
        assert!(matches!(error, Error::UnknownCharacter { character: 'ж', offset: 5 }), "{error}");
        assert!(error.to_string().contains("'ж' (U+0436) at byte 5"), "{error}");
        let error = tokenizer.encode(b"ab\xff", &mut Vec::new()).unwrap_err();
        assert!(matches!(error, Error::InvalidUtf8 { offset: 2 }), "{error}");
    }

    #[test]
    fn an_empty_corpus_and_a_vocabulary_without_room_are_errors() {
        assert!(matches!(train("", &CharOptions::default()), Err(Error::EmptyCorpus(_))));
        let options = CharOptions { vocab_size: Some(1), ..with_special(&["<x>"]) };
        assert!(matches!(train("a", &options), Err(Error::VocabularyTooSmall { minimum: 2, .. })));
        let options = CharOptions { min_count: 9, ..CharOptions::default() };
        assert!(matches!(train("a", &options), Err(Error::EmptyCorpus(_))));
    }

    #[track_caller]
    fn check_refused(json: &str, expected: &str) {
        let error = Tokenizer::from_json(json).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn other_versions_kinds_and_orders_are_refused() {
        let file = |version: u32, kind: &str, rest: &str| {
            format!(r#"{{"format": "ironmill-tokenizer", "version": {version}, "kind": "{kind}", {rest}}}"#)
        };
        check_refused(&file(2, "char", r#""x": 1"#), "version 2");
        check_refused(&file(1, "word", r#""x": 1"#), "\"word\"");
        check_refused(&file(1, "char", r#""special": [], "characters": "ba""#), "ascending");
        check_refused(&file(1, "char", r#""special": [], "characters": "aa""#), "ascending");
        check_refused(&file(1, "char", r#""special": [], "characters": """#), "no characters");
        check_refused(&file(1, "char", r#""special": ["x", "x"], "characters": "a""#), "given twice");
        check_refused(&file(1, "char", r#""special": [], "characters": "a", "unk": 1"#), "unk");
    }
}
