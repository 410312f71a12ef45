//! WordPiece, as BERT uses it: text is normalised and cut into words and signs, and a word is taken apart from its start, the
//! longest token first. A token that continues a word is written with `##` before it. A word of which a part is left over is
//! one unknown token.

pub(crate) mod json;
mod normal;

use std::borrow::Cow;

use unicode_categories::UnicodeCategories;

use crate::bpe::trie::Trie;
use crate::characters::valid_text;
use crate::frame::Frame;
use crate::special::Specials;
use crate::{Error, Result};
use normal::BertNormalization;

/// What a [`WordPiece`] vocabulary is made of, before it is checked.
pub(crate) struct Parts {
    /// By id, as files write them.
    names: Vec<Option<Box<str>>>,
    /// Whether words are made of it; others are special tokens alone.
    is_in_model: Vec<bool>,
    specials: Specials,
    frame: Frame,
    settings: Settings,
}

/// What a vocabulary does beside looking up words.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Settings {
    normalization: BertNormalization,
    /// What is written before a token that continues a word.
    continuing_prefix: Box<str>,
    /// A longer word is unknown, in characters.
    max_word_characters: u64,
    unknown: u32,
    /// What the decoder takes off a token that continues a word.
    decoder_prefix: Box<str>,
    /// Whether the decoder leaves out spaces before some signs and endings.
    cleans_up: bool,
}

/// A WordPiece vocabulary with everything needed to encode and decode.
#[derive(Debug)]
pub(crate) struct WordPiece {
    names: Vec<Option<Box<str>>>,
    is_in_model: Vec<bool>,
    /// What tokens are in decoded text behind others.
    bytes: Vec<Option<Box<[u8]>>>,
    specials: Specials,
    frame: Frame,
    settings: Settings,
    starting: Trie,
    continuing: Trie,
}

impl WordPiece {
    /// Refuses a prefix that is nothing: tokens that start and continue words would be the same.
    fn new(parts: Parts) -> Result<Self> {
        let Parts { names, is_in_model, specials, frame, settings } = parts;
        frame.check(|id| names.get(id as usize).is_some_and(Option::is_some))?;
        if settings.continuing_prefix.is_empty() {
            return Err(Error::Unsupported("WordPiece without a continuing-subword prefix".to_owned()));
        }
        let known = |prefix: &str| -> Vec<(&[u8], u32)> {
            let tokens = names.iter().zip(&is_in_model).zip(0..).filter(|((_, is_known), _)| **is_known);
            let names = tokens.filter_map(|((name, _), id)| Some((name.as_deref()?, id)));
            names.filter_map(|(name, id)| Some((name.strip_prefix(prefix)?.as_bytes(), id))).collect()
        };
        let (starting, continuing) = (trie(known("")), trie(known(&settings.continuing_prefix)));
        let mut vocabulary =
            Self { names, is_in_model, bytes: Vec::new(), specials, frame, settings, starting, continuing };
        vocabulary.bytes =
            (0..vocabulary.names.len() as u32).map(|id| vocabulary.bytes_in_text(id)).collect();
        Ok(vocabulary)
    }

    pub(crate) fn specials(&self) -> &Specials {
        &self.specials
    }

    pub(crate) fn frame(&self) -> &Frame {
        &self.frame
    }

    pub(crate) fn tokens(&self) -> &[Option<Box<[u8]>>] {
        &self.bytes
    }

    pub(crate) fn unknown_id(&self) -> u32 {
        self.settings.unknown
    }

    /// What a token is at the start of decoded text.
    pub(crate) fn first_bytes(&self, id: u32) -> Vec<u8> {
        let shown = self.shown_name(id).unwrap_or_default();
        self.settings.cleaned_up(shown.into_owned()).into_bytes()
    }

    /// What a token is in decoded text behind others.
    fn bytes_in_text(&self, id: u32) -> Option<Box<[u8]>> {
        let shown = self.shown_name(id)?;
        let text = match shown.strip_prefix(&*self.settings.decoder_prefix) {
            Some(rest) => rest.to_owned(),
            None => format!(" {shown}"),
        };
        Some(self.settings.cleaned_up(text).into_bytes().into())
    }

    /// The name of a token as it is decoded.
    fn shown_name(&self, id: u32) -> Option<Cow<'_, str>> {
        let name = self.names.get(id as usize)?.as_deref()?;
        let is_normalized = self.specials.is_normalized(id);
        Some(if is_normalized { self.settings.normalization.apply(name) } else { Cow::Borrowed(name) })
    }

    /// The text as it is cut into words. Bytes that are no text stay as they are.
    pub(crate) fn normalise<'t>(&self, text: &'t [u8]) -> Cow<'t, [u8]> {
        match std::str::from_utf8(text) {
            Ok(text) => match self.settings.normalization.apply(text) {
                Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
                Cow::Owned(text) => Cow::Owned(text.into_bytes()),
            },
            Err(_) => Cow::Borrowed(text),
        }
    }

    /// Appends the tokens of normalised text with `unknown`, or else the vocabulary's own token, for words that it does not
    /// have, and says how many; errors count bytes from `base`.
    pub(crate) fn encode(
        &self,
        text: &[u8],
        base: usize,
        unknown: Option<u32>,
        out: &mut Vec<u32>,
    ) -> Result<u64> {
        let text = valid_text(text, base)?;
        let unknown = unknown.unwrap_or(self.settings.unknown);
        let mut n_unknown = 0;
        for word in words(text) {
            let start = out.len();
            if !self.encode_word(word, out) {
                out.truncate(start);
                out.push(unknown);
                n_unknown += 1;
            }
        }
        Ok(n_unknown)
    }

    /// Appends the tokens of a word, and says whether there is nothing left of it.
    fn encode_word(&self, word: &str, out: &mut Vec<u32>) -> bool {
        let max_characters = self.settings.max_word_characters;
        // A character has at least one byte.
        if word.len() as u64 > max_characters && word.chars().count() as u64 > max_characters {
            return false;
        }
        let mut rest = word.as_bytes();
        let (mut trie, mut n_prefix_bytes) = (&self.starting, 0);
        while !rest.is_empty() {
            let id = trie.longest(rest);
            // No name where no token is found, since none has such an id.
            let Some(name) = self.names.get(id as usize).and_then(Option::as_deref) else { return false };
            out.push(id);
            rest = &rest[name.len() - n_prefix_bytes..];
            (trie, n_prefix_bytes) = (&self.continuing, self.settings.continuing_prefix.len());
        }
        true
    }
}

fn trie(mut tokens: Vec<(&[u8], u32)>) -> Trie {
    tokens.sort_unstable();
    let mut trie = Trie::with_room_for(&tokens);
    for &(bytes, id) in &tokens {
        trie.insert(bytes, id);
    }
    trie
}

impl Settings {
    /// The text of a token as the decoder gives it.
    fn cleaned_up(&self, text: String) -> String {
        if !self.cleans_up {
            return text;
        }
        // In this order: what one leaves may be what the next one finds.
        const CLEANED: [(&str, &str); 11] = [
            (" .", "."),
            (" ?", "?"),
            (" !", "!"),
            (" ,", ","),
            (" ' ", "'"),
            (" n't", "n't"),
            (" 'm", "'m"),
            (" do not", " don't"),
            (" 's", "'s"),
            (" 've", "'ve"),
            (" 're", "'re"),
        ];
        CLEANED.iter().fold(text, |text, (from, to)| text.replace(from, to))
    }
}

/// The words and signs of a text: white space divides them, and every sign is one of its own.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let is_end = |character: char| character.is_whitespace() || is_sign(character);
    let mut rest = text;
    std::iter::from_fn(move || {
        rest = rest.trim_start();
        let first = rest.chars().next()?;
        let n_bytes = if is_sign(first) { first.len_utf8() } else { rest.find(is_end).unwrap_or(rest.len()) };
        let word;
        (word, rest) = rest.split_at(n_bytes);
        Some(word)
    })
}

/// Whether the character is a punctuation mark, or one of the signs of ASCII, all of which count as such.
fn is_sign(character: char) -> bool {
    if character.is_ascii() { character.is_ascii_punctuation() } else { character.is_punctuation() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_are_words_and_white_space_is_none() {
        let text = " it's  a\u{a0}«test»—$5\n";
        assert_eq!(words(text).collect::<Vec<_>>(), ["it", "'", "s", "a", "«", "test", "»", "—", "$", "5"]);
        assert_eq!(words(" \t").next(), None);
    }
}
