//! Exact BPE training on the distinct pieces of a corpus.
//!
//! Every distinct piece starts as its bytes. The pair of adjacent symbols with the highest count, ties broken
//! by a fixed rule, becomes a new token everywhere, and so on until the vocabulary is full.
//!
//! Ids are those of Hugging Face's trainer: special tokens, the 256 bytes in the order of their printable
//! characters, then one id a merge. One deviation: a merge that would spell a special token is never made,
//! where theirs would let ordinary text produce the special token's id.

use super::learn::{LearnRoom, learn_bpe};
use super::vocabulary::{Pair, Vocabulary};
use super::{Bpe, Parts};
use crate::frame::Frame;
use crate::normal::Normalization;
use crate::pattern::Pattern;
use crate::special::Specials;
use crate::{Error, PieceCounts, Progress, Result, Tokenizer};

/// Which of several pairs with the highest count is merged first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ties {
    /// The smallest (id, id), byte ids in the order of Hugging Face's printable alphabet.
    #[default]
    Hf,
    /// The smallest (id, id), byte ids in the order of the bytes.
    Raw,
    /// The greatest (bytes, bytes) in lexicographic order.
    Bytes,
}

/// What to train.
#[derive(Debug, Clone)]
pub struct BpeOptions {
    /// The number of tokens wanted: special tokens, the 256 bytes and merges.
    pub vocab_size: usize,
    /// The pattern that the counts were made with.
    pub pattern: Pattern,
    /// Special tokens, which get the first ids in this order; the counts must have been made with the same
    /// ones.
    pub special: Vec<String>,
    /// The order of pairs with equal counts.
    pub ties: Ties,
    /// Pairs that occur less often are not merged.
    pub min_count: u64,
    /// No token gets longer than this many bytes.
    pub max_token_length: Option<usize>,
}

impl BpeOptions {
    /// A vocabulary of `vocab_size` for the GPT-2 pattern, without special tokens or limits.
    pub fn new(vocab_size: usize) -> Self {
        Self {
            vocab_size,
            pattern: Pattern::Gpt2,
            special: Vec::new(),
            ties: Ties::Hf,
            min_count: 1,
            max_token_length: None,
        }
    }
}

/// What training did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrainReport {
    /// Merges made.
    pub merges: u64,
    /// No pair was left to merge, so the vocabulary is smaller than asked for.
    pub ended_early: bool,
    /// Distinct pieces trained on.
    pub distinct_pieces: u64,
    /// Pieces trained on.
    pub total_pieces: u64,
}

/// Learns a BPE tokenizer from the counts of a corpus.
///
/// The result depends on the counts and options alone.
pub fn train_bpe(
    counts: &PieceCounts,
    options: &BpeOptions,
    progress: &dyn Progress,
) -> Result<(Tokenizer, TrainReport)> {
    learn_bpe(counts, options, &LearnRoom::UNLIMITED, progress)
}

/// Checks what can be checked before learning, and says how many merges are wanted.
pub(super) fn prepare(options: &BpeOptions, total_pieces: u64) -> Result<u64> {
    let n_fixed = options.special.len() + 256;
    if options.vocab_size < n_fixed {
        return Err(Error::VocabularyTooSmall {
            wanted: options.vocab_size,
            minimum: n_fixed,
            needs: format!("256 bytes and {} special tokens must fit", options.special.len()),
        });
    }
    if u32::try_from(options.vocab_size).is_err() {
        return Err(Error::VocabularyTooLarge(options.vocab_size));
    }
    if total_pieces == 0 {
        return Err(Error::EmptyCorpus("pieces"));
    }
    Ok((options.vocab_size - n_fixed) as u64)
}

/// The tokenizer of what was learnt.
pub(super) fn finish(options: &BpeOptions, vocabulary: &Vocabulary, merges: Vec<Pair>) -> Result<Tokenizer> {
    let specials = Specials::numbered(&options.special)?;
    let tokens = vocabulary.tokens.iter().map(|token| Some((**token).into())).collect();
    let pattern = options.pattern.clone();
    let normalization = Normalization::None;
    let frame = Frame::default();
    let bpe =
        Bpe::new(Parts { pattern, normalization, specials, frame, tokens, merges, ignore_merges: false })?;
    Tokenizer::from_bpe(bpe)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Silent;
    use std::sync::Mutex;

    fn counts(text: &str, special: &[String]) -> PieceCounts {
        let mut counts = PieceCounts::new(&Pattern::Gpt2, special).unwrap();
        counts.add_document(text.as_bytes()).unwrap();
        counts
    }

    fn tokens(text: &str, options: &BpeOptions) -> Vec<String> {
        let (tokenizer, _) = train_bpe(&counts(text, &options.special), options, &Silent).unwrap();
        let first = options.special.len() as u32 + 256;
        (first..tokenizer.vocab_size() as u32)
            .map(|id| String::from_utf8_lossy(tokenizer.token_bytes(id).unwrap()).into_owned())
            .collect()
    }

    #[test]
    fn tie_rules_differ_where_they_should() {
        // All pairs occur once. "!" precedes NUL in the printable alphabet; as bytes it is the other way
        // round.
        let check = |ties, expected: &str| {
            let options = BpeOptions { ties, pattern: Pattern::Gpt2, ..BpeOptions::new(257) };
            assert_eq!(tokens("!~\0#", &options), [expected], "{ties:?}");
        };
        check(Ties::Hf, "!~");
        check(Ties::Raw, "\0#");
        check(Ties::Bytes, "~\0");
    }

    #[test]
    fn a_run_of_one_letter_merges_from_the_left() {
        assert_eq!(tokens("aaaaa", &BpeOptions::new(300)), ["aa", "aaa", "aaaaa"]);
    }

    #[test]
    fn training_ends_early_when_no_pair_is_left() {
        let (_, report) = train_bpe(&counts("abc abc", &[]), &BpeOptions::new(9999), &Silent).unwrap();
        assert_eq!(report, TrainReport { merges: 3, ended_early: true, distinct_pieces: 2, total_pieces: 2 });
    }

    #[test]
    fn settings_that_cannot_work_are_errors_that_say_why() {
        let fails =
            |counts: &PieceCounts, options: BpeOptions| train_bpe(counts, &options, &Silent).unwrap_err();
        let special = vec!["<|x|>".to_owned()];
        let small = BpeOptions { special: special.clone(), ..BpeOptions::new(256) };
        let error = fails(&counts("a", &special), small);
        assert!(error.to_string().ends_with("ask for at least 257"), "{error}");
        let error = fails(&counts("", &[]), BpeOptions::new(300));
        assert!(matches!(error, Error::EmptyCorpus(_)), "{error}");
        let error = fails(&counts("a", &[]), BpeOptions { pattern: Pattern::Cl100k, ..BpeOptions::new(300) });
        assert!(matches!(error, Error::CountsDiffer { .. }), "{error}");
        for text in ["a", "Ġ", ""] {
            let special = vec![text.to_owned()];
            let counts = PieceCounts::new(&Pattern::Gpt2, &special);
            let error = match counts {
                Ok(mut counts) => {
                    counts.add_document(b"bcd").unwrap();
                    fails(&counts, BpeOptions { special, ..BpeOptions::new(300) })
                }
                Err(error) => error,
            };
            assert!(matches!(error, Error::BadSpecial { .. }), "{error}");
        }
    }

    #[test]
    fn progress_hears_of_every_merge() {
        #[derive(Default)]
        struct Heard(Mutex<Vec<String>>);
        impl Progress for Heard {
            fn start(&self, phase: &str, total: Option<u64>, unit: &str) {
                self.0.lock().unwrap().push(format!("{phase} {total:?} {unit}"));
            }
            fn advance(&self, amount: u64) {
                self.0.lock().unwrap().push(amount.to_string());
            }
            fn finish(&self) {
                self.0.lock().unwrap().push("finish".to_owned());
            }
        }
        let heard = Heard::default();
        train_bpe(&counts("abc", &[]), &BpeOptions::new(258), &heard).unwrap();
        assert_eq!(
            heard.0.into_inner().unwrap(),
            ["load Some(1) pieces", "1", "finish", "merge Some(2) merges", "1", "1", "finish"]
        );
    }
}
