//! The char kind: one token a character, special tokens first, then the characters in order of code point.
//!
//! There is no standard file for it, so it has our own JSON: `format`, `version`, `kind`, the special tokens in order of
//! id, and one string of all characters in order of id.

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
    /// At most this many tokens, special ones included; the most frequent characters stay. `None`: all of them.
    pub vocab_size: Option<usize>,
    /// Special tokens, which get the first ids in this order; the counts must have been made with the same ones.
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
        Ok(Self {
            specials: Specials::numbered(special)?,
            counts: HashMap::new(),
            total: 0,
        })
    }

    /// Counts the characters of one document, which must be UTF-8.
    pub fn add_document(&mut self, document: &[u8]) -> Result<()> {
        let text = valid_text(document, 0)?;
        let Self {
            specials,
            counts,
            total,
        } = self;
        specials.for_each_part(text.as_bytes(), |part| match part {
            Part::Special(_) => Ok(()),
            Part::Text(stretch) => valid_text(stretch, 0)?
                .chars()
                .try_for_each(|character| add(counts, total, character, 1)),
        })
    }

    /// Adds the counts of `other`, which must have been made with the same special tokens.
    pub fn merge(&mut self, other: Self) -> Result<()> {
        self.specials.check_same(other.specials.texts())?;
        let Self { counts, total, .. } = self;
        other
            .counts
            .into_iter()
            .try_for_each(|(character, count)| add(counts, total, character, count))
    }

    /// How many characters were counted.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Every distinct character and its count, in order of code point.
    pub fn sorted(&self) -> Vec<(char, u64)> {
        let mut characters: Vec<_> = self
            .counts
            .iter()
            .map(|(&character, &count)| (character, count))
            .collect();
        characters.sort_unstable();
        characters
    }
}

/// Makes a char tokenizer from the counts of a corpus. Text with any other character will be refused, never changed.
pub fn train_char(counts: &CharCounts, options: &CharOptions) -> Result<(Tokenizer, CharReport)> {
    counts
        .specials
        .check_same(options.special.iter().map(String::as_str))?;
    if counts.total == 0 {
        return Err(Error::EmptyCorpus("characters"));
    }
    let minimum = options.special.len() + 1;
    let n_wanted = options.vocab_size.unwrap_or(usize::MAX);
    if n_wanted < minimum {
        let needs = format!(
            "{} special tokens and a character must fit",
            options.special.len()
        );
        return Err(Error::VocabularyTooSmall {
            wanted: n_wanted,
            minimum,
            needs,
        });
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
        let ids = characters
            .iter()
            .copied()
            .zip(specials.as_slice().len() as u32..)
            .collect();
        Self {
            specials,
            characters,
            ids,
            tokens,
        }
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
            out.push(*id.ok_or(Error::UnknownCharacter {
                character,
                offset: base + offset,
            })?);
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
        special: vocabulary
            .specials
            .as_slice()
            .iter()
            .map(|(text, _)| text.clone())
            .collect(),
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
        return Err(Error::Unsupported(format!(
            "version {} of the format {FORMAT}",
            head.version
        )));
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
    Ok(CharVocabulary::new(
        Specials::numbered(&file.special)?,
        characters,
    ))
}

fn add(counts: &mut HashMap<char, u64>, total: &mut u64, character: char, count: u64) -> Result<()> {
    let overflow = || Error::CountOverflow("all characters".to_owned());
    *total = total.checked_add(count).ok_or_else(overflow)?;
    *counts.entry(character).or_insert(0) += count;
    Ok(())
}

fn valid_text(bytes: &[u8], base: usize) -> Result<&str> {
    std::str::from_utf8(bytes).map_err(|error| Error::InvalidUtf8 {
        offset: base + error.valid_up_to(),
    })
}
