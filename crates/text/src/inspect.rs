//! What a tokenizer is, and how well it fits a text.

use std::cmp::Reverse;

use crate::items::share;
use crate::pattern::Pattern;
use crate::tokenizer::Kind;
use crate::{Result, Tokenizer};

/// A tokenizer at a glance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspection {
    /// The kind of vocabulary.
    pub kind: Kind,
    /// The highest id plus one, special tokens included.
    pub vocab_size: usize,
    /// The special tokens and their ids, in ascending order of id.
    pub special: Vec<(String, u32)>,
    /// The pattern that cuts text into pieces; `None` for the kinds that need none.
    pub pattern: Option<Pattern>,
    /// Merges of a BPE tokenizer; 0 for the other kinds.
    pub merges: usize,
    /// The longest ordinary tokens as (id, bytes), the longest first, of equally long ones in order of id.
    pub longest: Vec<(u32, Vec<u8>)>,
    /// The [bytes without a token](Tokenizer::missing_bytes).
    pub missing_bytes: Vec<u8>,
    /// How the tokenizer fits the sample text, if one was given.
    pub sample: Option<Sample>,
}

/// How a tokenizer fits some text. Several texts are summed with [`add`](Self::add).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sample {
    /// Bytes of text.
    pub bytes: u64,
    /// Tokens of the text; a character or word that the vocabulary does not have counts as one.
    pub tokens: u64,
    /// How many tokens are a single byte, which for BPE means that nothing was learnt there.
    pub single_byte_tokens: u64,
    /// How many characters or words the vocabulary does not have.
    pub unknown: u64,
}

/// Describes a tokenizer with its `n_longest` longest tokens and, if given, its fit to a sample text.
///
/// An unknown character or word in the sample is counted and never an error, whether or not the tokenizer
/// has a special token for it.
pub fn inspect(tokenizer: &Tokenizer, n_longest: usize, sample: Option<&[u8]>) -> Result<Inspection> {
    Ok(Inspection {
        kind: tokenizer.kind(),
        vocab_size: tokenizer.vocab_size(),
        special: tokenizer.special_tokens().to_vec(),
        pattern: tokenizer.pattern().cloned(),
        merges: tokenizer.n_merges(),
        longest: longest(tokenizer, n_longest),
        missing_bytes: tokenizer.missing_bytes(),
        sample: sample.map(|text| Sample::of(tokenizer, text)).transpose()?,
    })
}

impl Sample {
    /// Encodes `text` as ordinary text, in which special tokens mean nothing, and counts what comes out.
    pub fn of(tokenizer: &Tokenizer, text: &[u8]) -> Result<Self> {
        let mut ids = Vec::new();
        let unknown = tokenizer.encode_with_unknown_as(text, NO_ID, &mut ids)?;
        let is_single_byte = |id: &&u32| tokenizer.token_bytes(**id).is_some_and(|bytes| bytes.len() == 1);
        Ok(Self {
            bytes: text.len() as u64,
            tokens: ids.len() as u64,
            single_byte_tokens: ids.iter().filter(is_single_byte).count() as u64,
            unknown,
        })
    }

    /// Adds the counts of another text.
    pub fn add(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.tokens += other.tokens;
        self.single_byte_tokens += other.single_byte_tokens;
        self.unknown += other.unknown;
    }

    /// Bytes of text for each token; 0 when there are no tokens.
    pub fn bytes_per_token(&self) -> f64 {
        share(self.bytes, self.tokens)
    }

    /// The share of tokens that are a single byte, from 0 to 1.
    pub fn single_byte_share(&self) -> f64 {
        share(self.single_byte_tokens, self.tokens)
    }

    /// The share of characters or words that the vocabulary does not have, from 0 to 1.
    pub fn unknown_share(&self) -> f64 {
        share(self.unknown, self.tokens)
    }
}

/// Never the id of a token, since a vocabulary has at most `u32::MAX` of them.
const NO_ID: u32 = u32::MAX;

fn longest(tokenizer: &Tokenizer, n_longest: usize) -> Vec<(u32, Vec<u8>)> {
    let is_special = |id: u32| tokenizer.special_tokens().binary_search_by_key(&id, |&(_, id)| id).is_ok();
    let mut tokens: Vec<(u32, &[u8])> = (0..tokenizer.vocab_size() as u32)
        .filter(|&id| !is_special(id))
        .filter_map(|id| Some((id, tokenizer.token_bytes(id)?)))
        .collect();
    tokens.sort_unstable_by_key(|&(id, bytes)| (Reverse(bytes.len()), id));
    tokens.into_iter().take(n_longest).map(|(id, bytes)| (id, bytes.to_vec())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        BpeOptions, CharCounts, CharOptions, PieceCounts, Silent, WordOptions, train_bpe, train_char,
        train_word,
    };

    fn counts(text: &str, special: &[String]) -> PieceCounts {
        let mut counts = PieceCounts::new(&Pattern::Gpt2, special).unwrap();
        counts.add_document(text.as_bytes()).unwrap();
        counts
    }

    #[test]
    fn a_bpe_tokenizer_shows_its_merges_and_compression() {
        let special = vec!["<|endoftext|>".to_owned()];
        let options = BpeOptions { special: special.clone(), ..BpeOptions::new(259) };
        let (tokenizer, _) = train_bpe(&counts("abab\nabab\nabab", &special), &options, &Silent).unwrap();
        let found = inspect(&tokenizer, 3, Some(b"abab x")).unwrap();
        assert_eq!((found.kind, found.vocab_size, found.merges), (Kind::Bpe, 259, 2));
        assert_eq!(found.special, [("<|endoftext|>".to_owned(), 0)]);
        assert_eq!(found.pattern, Some(Pattern::Gpt2));
        assert_eq!(found.longest, [(258, b"abab".to_vec()), (257, b"ab".to_vec()), (1, b"!".to_vec())]);
        let sample = found.sample.unwrap();
        assert_eq!(sample, Sample { bytes: 6, tokens: 3, single_byte_tokens: 2, unknown: 0 });
        assert_eq!((sample.bytes_per_token(), sample.single_byte_share()), (2.0, 2.0 / 3.0));
    }

    #[test]
    fn unknown_items_are_counted_without_a_token_for_them_and_with_one() {
        for special in [vec![], vec![crate::UNKNOWN.to_owned()]] {
            let options = WordOptions { special: special.clone(), ..WordOptions::default() };
            let (words, _) = train_word(&counts("the cat sat", &special), &options).unwrap();
            let sample = Sample::of(&words, b"the dog sat").unwrap();
            assert_eq!(sample, Sample { bytes: 11, tokens: 3, single_byte_tokens: 0, unknown: 1 });
            assert_eq!(sample.unknown_share(), 1.0 / 3.0);

            let mut counts = CharCounts::new(&special).unwrap();
            counts.add_document("abж".as_bytes()).unwrap();
            let (chars, _) = train_char(&counts, &CharOptions { special, ..CharOptions::default() }).unwrap();
            let mut sample = Sample::of(&chars, "жabc".as_bytes()).unwrap();
            assert_eq!(sample, Sample { bytes: 5, tokens: 4, single_byte_tokens: 2, unknown: 1 });
            sample.add(Sample::of(&chars, b"aaaa").unwrap());
            assert_eq!(sample, Sample { bytes: 9, tokens: 8, single_byte_tokens: 6, unknown: 1 });
        }
    }

    #[test]
    fn a_byte_tokenizer_has_neither_pattern_nor_merges_and_an_empty_sample_no_shares() {
        let found = inspect(&Tokenizer::byte(&[]).unwrap(), 1, Some(b"")).unwrap();
        assert_eq!((found.kind, found.merges, found.pattern), (Kind::Byte, 0, None));
        assert_eq!(found.longest, [(0, vec![0])]);
        let sample = found.sample.unwrap();
        let shares = [sample.bytes_per_token(), sample.single_byte_share(), sample.unknown_share()];
        assert_eq!(shares, [0.0; 3]);
    }
}
