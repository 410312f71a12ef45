//! What the char and word kinds share: a vocabulary of items that occur in a corpus, and what happens to
//! items that are not in it.

use std::cmp::Reverse;

use crate::{Error, Result};

/// The special token that receives unknown characters or words, when the user asks for it by name.
///
/// Without it among the special tokens, an unknown item is an error. With it, what was unknown is lost:
/// decoding gives this text in its place, and [`encode_counting_unknown`] tells how often.
///
/// [`encode_counting_unknown`]: crate::Tokenizer::encode_counting_unknown
pub const UNKNOWN: &str = "<|unknown|>";

/// What making a char or word vocabulary did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VocabularyReport {
    /// Distinct characters or words in the vocabulary.
    pub kept: u64,
    /// Distinct ones left out by the limits; text that has them is unknown to the tokenizer.
    pub dropped: u64,
    /// Characters or words counted.
    pub total: u64,
    /// How many of those counted were left out.
    pub dropped_total: u64,
}

impl VocabularyReport {
    /// The share of the corpus's characters or words that is unknown to the tokenizer, from 0 to 1.
    pub fn dropped_share(&self) -> f64 {
        share(self.dropped_total, self.total)
    }
}

/// What encoding did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Encoded {
    /// Tokens appended.
    pub tokens: u64,
    /// How many of them stand for a character or word that the vocabulary does not have.
    pub unknown: u64,
}

impl Encoded {
    /// The share of the tokens that stand for something unknown, from 0 to 1.
    pub fn unknown_share(&self) -> f64 {
        share(self.unknown, self.tokens)
    }
}

/// The part in the whole; 0 of nothing.
pub(crate) fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// The limits of a char or word vocabulary.
pub(crate) struct Limits {
    /// At most this many tokens, special ones included.
    pub(crate) vocab_size: Option<usize>,
    pub(crate) n_special: usize,
    /// Items that occur less often are left out.
    pub(crate) min_count: u64,
    /// What an item is, in the singular and the plural, for messages.
    pub(crate) noun: &'static str,
    pub(crate) nouns: &'static str,
    pub(crate) frequent_nouns: &'static str,
}

/// The items that stay, in ascending order: the most frequent, of equally frequent ones the smaller.
///
/// `counts` holds each distinct item once.
pub(crate) fn select<T: Ord>(
    mut counts: Vec<(T, u64)>,
    limits: &Limits,
) -> Result<(Vec<T>, VocabularyReport)> {
    // A table's total was checked against 64 bits when it was filled, so this sum fits.
    let total: u64 = counts.iter().map(|(_, count)| count).sum();
    if total == 0 {
        return Err(Error::EmptyCorpus(limits.nouns));
    }
    let minimum = limits.n_special + 1;
    let n_wanted = limits.vocab_size.unwrap_or(usize::MAX);
    if n_wanted < minimum {
        let needs = format!("{} special tokens and a {} must fit", limits.n_special, limits.noun);
        return Err(Error::VocabularyTooSmall { wanted: n_wanted, minimum, needs });
    }
    let n_distinct = counts.len();
    counts.retain(|&(_, count)| count >= limits.min_count);
    counts.sort_unstable_by(|a, b| (Reverse(a.1), &a.0).cmp(&(Reverse(b.1), &b.0)));
    counts.truncate(n_wanted - limits.n_special);
    if counts.is_empty() {
        return Err(Error::EmptyCorpus(limits.frequent_nouns));
    }
    let n_tokens = limits.n_special + counts.len();
    if u32::try_from(n_tokens).is_err() {
        return Err(Error::VocabularyTooLarge(n_tokens));
    }
    let kept_total: u64 = counts.iter().map(|(_, count)| count).sum();
    let mut kept: Vec<T> = counts.into_iter().map(|(item, _)| item).collect();
    kept.sort_unstable();
    let report = VocabularyReport {
        kept: kept.len() as u64,
        dropped: (n_distinct - kept.len()) as u64,
        total,
        dropped_total: total - kept_total,
    };
    Ok((kept, report))
}
