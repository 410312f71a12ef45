//! The word kind: one token a word, special tokens first, then the words in order of their bytes.
//!
//! Words are the pieces of a pattern. The built-in patterns give a space to the word that follows it, so the
//! words of a text, joined, are the text, and decoding gives back what was encoded.
//!
//! Its file holds `format`, `version`, `kind`, the pattern (as `{"name": …}` or `{"regex": …}`), the special
//! tokens and the words, both in order of id. A word is a string, or a list of bytes if it is not UTF-8.

use hashbrown::HashMap;
use serde::{Deserialize, Serialize};

use crate::items::{self, Limits, VocabularyReport};
use crate::pattern::Pattern;
use crate::special::Specials;
use crate::splitter::Splitter;
use crate::{Error, PieceCounts, Result, Tokenizer, own_json};

/// What word vocabulary to make.
#[derive(Debug, Clone, Default)]
pub struct WordOptions {
    /// At most this many tokens, special ones included; the most frequent words stay, of equally frequent
    /// ones the smaller by bytes. `None`: all of them.
    pub vocab_size: Option<usize>,
    /// The pattern whose pieces are the words; the counts must have been made with it.
    pub pattern: Pattern,
    /// Special tokens, which get the first ids in this order; the counts must have been made with the same
    /// ones. [`UNKNOWN`](crate::UNKNOWN) among them receives unknown words.
    pub special: Vec<String>,
    /// Words that occur less often are left out.
    pub min_count: u64,
}

/// Makes a word tokenizer from the counts of a corpus.
///
/// Any other word is an error when encoded, unless [`UNKNOWN`](crate::UNKNOWN) is a special token.
pub fn train_word(counts: &PieceCounts, options: &WordOptions) -> Result<(Tokenizer, VocabularyReport)> {
    counts.check_settings(&options.pattern, options.special.iter().map(String::as_str))?;
    let limits = Limits {
        vocab_size: options.vocab_size,
        n_special: options.special.len(),
        min_count: options.min_count,
        noun: "word",
        nouns: "words",
        frequent_nouns: "words that occur often enough",
    };
    let (words, report) = items::select(counts.sorted(), &limits)?;
    let words = words.into_iter().map(Box::from).collect();
    let splitter = Splitter::new(&options.pattern)?;
    let vocabulary = WordVocabulary::new(splitter, Specials::numbered(&options.special)?, words);
    Ok((Tokenizer::from_words(vocabulary)?, report))
}

/// Words and special tokens with their ids.
#[derive(Debug, Clone)]
pub(crate) struct WordVocabulary {
    splitter: Splitter,
    specials: Specials,
    ids: HashMap<Box<[u8]>, u32>,
    tokens: Vec<Option<Box<[u8]>>>,
}

impl WordVocabulary {
    /// The special tokens must be numbered from 0; words follow in the given order and must be distinct.
    fn new(splitter: Splitter, specials: Specials, words: Vec<Box<[u8]>>) -> Self {
        let ids = words.iter().cloned().zip(specials.as_slice().len() as u32..).collect();
        let special = specials.texts().map(|text| Box::from(text.as_bytes()));
        let tokens = special.chain(words).map(Some).collect();
        Self { splitter, specials, ids, tokens }
    }

    pub(crate) fn pattern(&self) -> &Pattern {
        self.splitter.pattern()
    }

    pub(crate) fn specials(&self) -> &Specials {
        &self.specials
    }

    pub(crate) fn tokens(&self) -> &[Option<Box<[u8]>>] {
        &self.tokens
    }

    fn words(&self) -> impl Iterator<Item = &[u8]> {
        self.tokens[self.specials.as_slice().len()..].iter().flatten().map(|word| &**word)
    }

    /// Appends one token a word, and says how many were unknown; errors count bytes from `base`.
    pub(crate) fn encode(
        &self,
        text: &[u8],
        base: usize,
        unknown: Option<u32>,
        out: &mut Vec<u32>,
    ) -> Result<u64> {
        let mut offset = base;
        let mut n_unknown = 0;
        self.splitter.for_each_piece(text, |word| {
            match self.ids.get(word) {
                Some(&id) => out.push(id),
                None => {
                    out.push(unknown.ok_or_else(|| Error::UnknownWord { word: shown(word), offset })?);
                    n_unknown += 1;
                }
            }
            offset += word.len();
            Ok(())
        })?;
        Ok(n_unknown)
    }
}

/// A word for a message: a piece of hostile text may be the whole of it.
fn shown(word: &[u8]) -> String {
    const MAX_SHOWN_CHARACTERS: usize = 60;
    // Four bytes hold a character, so this prefix has enough of them.
    let start = String::from_utf8_lossy(&word[..word.len().min(4 * MAX_SHOWN_CHARACTERS)]);
    let shown: String = start.chars().take(MAX_SHOWN_CHARACTERS).collect();
    if shown.len() < word.len() { shown + "…" } else { shown }
}

pub(crate) const KIND: &str = "word";

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    format: String,
    version: u32,
    kind: String,
    pattern: PatternField,
    special: Vec<String>,
    words: Vec<Word>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum PatternField {
    Name(String),
    Regex(String),
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Word {
    Text(String),
    Bytes(Vec<u8>),
}

pub(crate) fn to_json(vocabulary: &WordVocabulary) -> String {
    let pattern = vocabulary.pattern();
    let word_field = |word: &[u8]| match std::str::from_utf8(word) {
        Ok(text) => Word::Text(text.to_owned()),
        Err(_) => Word::Bytes(word.to_owned()),
    };
    let (format, version) = own_json::format_and_version();
    own_json::write(&File {
        format,
        version,
        kind: KIND.to_owned(),
        pattern: match pattern.name() {
            Some(name) => PatternField::Name(name.to_owned()),
            None => PatternField::Regex(pattern.regex().to_owned()),
        },
        special: vocabulary.specials.texts().map(str::to_owned).collect(),
        words: vocabulary.words().map(word_field).collect(),
    })
}

pub(crate) fn from_json(json: &str) -> Result<WordVocabulary> {
    let file: File = own_json::read(json)?;
    let pattern = match file.pattern {
        PatternField::Name(name) => Pattern::from_name(&name).ok_or(Error::UnknownPattern(name))?,
        PatternField::Regex(source) => Pattern::Regex(source),
    };
    let words = file.words.into_iter().map(word_bytes).collect::<Result<Vec<_>>>()?;
    if let Some(pair) = words.windows(2).find(|pair| pair[0] >= pair[1]) {
        let (first, second) = (shown(&pair[0]), shown(&pair[1]));
        return Err(Error::Format(format!("words {first:?} and {second:?} are not in ascending order")));
    }
    if words.is_empty() {
        return Err(Error::Format("it has no words".to_owned()));
    }
    Ok(WordVocabulary::new(Splitter::new(&pattern)?, Specials::numbered(&file.special)?, words))
}

fn word_bytes(word: Word) -> Result<Box<[u8]>> {
    let bytes = match word {
        Word::Text(text) => text.into_bytes(),
        Word::Bytes(bytes) if std::str::from_utf8(&bytes).is_err() => bytes,
        Word::Bytes(bytes) => {
            let text = shown(&bytes);
            return Err(Error::Format(format!("the word {text:?} is a list of bytes though it is text")));
        }
    };
    if bytes.is_empty() { Err(Error::Format("a word is empty".to_owned())) } else { Ok(bytes.into()) }
}
