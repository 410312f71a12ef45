//! The char kind: one token a character, special tokens first, then the characters in order of code point.
//!
//! Its file holds `format`, `version`, `kind`, the special tokens in order of id, and one string of all
//! characters in order of id.

use hashbrown::HashMap;
use serde::{Deserialize, Serialize};

use crate::items::{self, Limits, VocabularyReport};
use crate::special::{Part, Specials};
use crate::{Error, Result, Tokenizer, own_json};

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
    /// At most this many tokens, special ones included; the most frequent characters stay, of equally
    /// frequent ones the smaller by code point. `None`: all of them.
    pub vocab_size: Option<usize>,
    /// Special tokens, which get the first ids in this order; the counts must have been made with the same
    /// ones. [`UNKNOWN`](crate::UNKNOWN) among them receives unknown characters.
    pub special: Vec<String>,
    /// Characters that occur less often are left out.
    pub min_count: u64,
}

/// What making a char vocabulary did.
pub type CharReport = VocabularyReport;

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
            Part::Special(..) => Ok(()),
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

    /// How many of them are distinct.
    pub fn distinct(&self) -> u64 {
        self.counts.len() as u64
    }

    /// Every distinct character and its count, in order of code point.
    pub fn sorted(&self) -> Vec<(char, u64)> {
        let mut characters: Vec<_> =
            self.counts.iter().map(|(&character, &count)| (character, count)).collect();
        characters.sort_unstable();
        characters
    }
}

/// Makes a char tokenizer from the counts of a corpus.
///
/// Any other character is an error when encoded, unless [`UNKNOWN`](crate::UNKNOWN) is a special token.
pub fn train_char(counts: &CharCounts, options: &CharOptions) -> Result<(Tokenizer, CharReport)> {
    counts.specials.check_same(options.special.iter().map(String::as_str))?;
    let limits = Limits {
        vocab_size: options.vocab_size,
        n_special: options.special.len(),
        min_count: options.min_count,
        noun: "character",
        nouns: "characters",
        frequent_nouns: "characters that occur often enough",
    };
    let (characters, report) = items::select(counts.sorted(), &limits)?;
    let vocabulary = CharVocabulary::new(Specials::numbered(&options.special)?, characters);
    Ok((Tokenizer::from_characters(vocabulary)?, report))
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

    /// Appends one token a character, and says how many were unknown; errors count bytes from `base`.
    pub(crate) fn encode(
        &self,
        text: &[u8],
        base: usize,
        unknown: Option<u32>,
        out: &mut Vec<u32>,
    ) -> Result<u64> {
        let mut n_unknown = 0;
        for (offset, character) in valid_text(text, base)?.char_indices() {
            match self.ids.get(&character) {
                Some(&id) => out.push(id),
                None => {
                    let offset = base + offset;
                    out.push(unknown.ok_or(Error::UnknownCharacter { character, offset })?);
                    n_unknown += 1;
                }
            }
        }
        Ok(n_unknown)
    }
}

pub(crate) const KIND: &str = "char";

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    format: String,
    version: u32,
    kind: String,
    special: Vec<String>,
    characters: String,
}

pub(crate) fn to_json(vocabulary: &CharVocabulary) -> String {
    let (format, version) = own_json::format_and_version();
    own_json::write(&File {
        format,
        version,
        kind: KIND.to_owned(),
        special: vocabulary.specials.texts().map(str::to_owned).collect(),
        characters: vocabulary.characters.iter().collect(),
    })
}

pub(crate) fn from_json(json: &str) -> Result<CharVocabulary> {
    let file: File = own_json::read(json)?;
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

pub(crate) fn valid_text(bytes: &[u8], base: usize) -> Result<&str> {
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
        assert_eq!(report, CharReport { kept: 5, dropped: 0, total: 6, dropped_total: 0 });
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
        assert_eq!(report, CharReport { kept: 2, dropped: 2, total: 5, dropped_total: 2 });
        assert_eq!(report.dropped_share(), 0.4);
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
}
