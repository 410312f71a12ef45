//! What a loss is measured against: the cross-entropy of the validation tokens under simple counts of the training tokens.
//!
//! Both counts are smoothed by interpolated absolute discounting with `D = 0.75`, a fixed constant: a bar that is set by a weak smoothing
//! would be too easy. With `c` for counts, `V` for the vocabulary, `[x]` for max(x, 0):
//!
//! ```text
//! unigram  p(w)   = ([c(w) − D] + D·|{w : c(w) > 0}| / V) / Σ c
//! bigram   p(w|v) = ([c(v,w) − D] + D·n(v,·)·q(w)) / c(v,·)             n(v,·): how many distinct tokens follow v
//!          q(w)   = ([n(·,w) − D] + D·|{w : n(·,w) > 0}| / V) / n(·,·)  n(·,w): how many distinct tokens precede w
//! ```
//!
//! The bigram is Kneser and Ney's: it backs off to the number of contexts of a token, not to its frequency. A token that was never
//! seen as a context has `p(w|v) = q(w)`; the first validation token, which has no context, is scored by the unigram.

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use crate::dataset::{Split, TokenStream};
use crate::error::{Error, Result};

/// At most so many tokens from the start of the training split are counted, which bounds time and memory.
pub const MAX_TRAIN_TOKENS: u64 = 32_000_000;

/// At most so many tokens from the start of the validation split are scored.
pub const MAX_VALIDATION_TOKENS: u64 = 4_000_000;

/// Cross-entropies in nats a token. A model that has learnt anything is below them, in this order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Yardsticks {
    /// The natural logarithm of the vocabulary size: knowing nothing.
    pub uniform: f64,
    /// Knowing how frequent each token is.
    pub unigram: f64,
    /// Knowing what follows the token before.
    pub bigram: f64,
    /// How many training tokens were counted.
    pub train_tokens: u64,
    /// How many validation tokens were scored.
    pub validation_tokens: u64,
}

/// Counts the training tokens and scores the validation tokens; see the module's page for the smoothing.
pub fn ngram_yardsticks(
    train: &TokenStream,
    validation: &TokenStream,
    vocab_size: u64,
) -> Result<Yardsticks> {
    for (stream, split) in [(train, Split::Train), (validation, Split::Validation)] {
        if stream.is_empty() {
            return Err(Error::EmptySplit { split: split.name().into() });
        }
    }
    let mut counts = Counts::new(vocab_size);
    let train_tokens =
        pairs(train, MAX_TRAIN_TOKENS, vocab_size, |previous, token| counts.add(previous, token))?;
    let unigram = Discounted::new(&counts.tokens, vocab_size);
    let contexts = Discounted::new(&counts.distinct_before, vocab_size);
    let (mut unigram_nats, mut bigram_nats) = (0.0, 0.0);
    let validation_tokens = pairs(validation, MAX_VALIDATION_TOKENS, vocab_size, |previous, token| {
        let alone = unigram.probability(token);
        unigram_nats -= alone.ln();
        bigram_nats -= match previous {
            Some(previous) => counts.bigram(previous, token, contexts.probability(token)).ln(),
            None => alone.ln(),
        };
    })?;
    Ok(Yardsticks {
        uniform: (vocab_size as f64).ln(),
        unigram: unigram_nats / validation_tokens as f64,
        bigram: bigram_nats / validation_tokens as f64,
        train_tokens,
        validation_tokens,
    })
}

const DISCOUNT: f64 = 0.75;
const CHUNK_TOKENS: usize = 16_384;

/// Gives every token and the one before it to `visit`, and says how many there were.
fn pairs(
    stream: &TokenStream,
    limit: u64,
    vocab_size: u64,
    mut visit: impl FnMut(Option<u32>, u32),
) -> Result<u64> {
    let total = stream.tokens().min(limit);
    let mut chunk = vec![0; CHUNK_TOKENS];
    let mut previous = None;
    let mut position = 0;
    while position < total {
        let length = (total - position).min(CHUNK_TOKENS as u64);
        let tokens = &mut chunk[..length as usize];
        stream.read(position, tokens)?;
        for &token in &*tokens {
            if u64::from(token) >= vocab_size {
                return Err(Error::BadSetting {
                    name: "vocabulary",
                    value: vocab_size.to_string(),
                    advice: format!("the data hold token {token}; use the tokenizer they were prepared with"),
                });
            }
            visit(previous, token);
            previous = Some(token);
        }
        position += length;
    }
    Ok(total)
}

/// Counts of tokens and of pairs. The map is only asked for single pairs, so its order reaches nothing.
struct Counts {
    tokens: Vec<u64>,
    /// How many pairs start with each token.
    as_context: Vec<u64>,
    distinct_after: Vec<u64>,
    distinct_before: Vec<u64>,
    pairs: HashMap<(u32, u32), u32, FixedState>,
}

impl Counts {
    fn new(vocab_size: u64) -> Counts {
        let zeros = || vec![0; vocab_size as usize];
        Counts {
            tokens: zeros(),
            as_context: zeros(),
            distinct_after: zeros(),
            distinct_before: zeros(),
            pairs: HashMap::with_hasher(FixedState::with_seed(0)),
        }
    }

    fn add(&mut self, previous: Option<u32>, token: u32) {
        self.tokens[token as usize] += 1;
        let Some(previous) = previous else { return };
        self.as_context[previous as usize] += 1;
        // The count cannot overflow: fewer than 2³² tokens are counted.
        let count = self.pairs.entry((previous, token)).or_insert(0);
        if *count == 0 {
            self.distinct_after[previous as usize] += 1;
            self.distinct_before[token as usize] += 1;
        }
        *count += 1;
    }

    fn bigram(&self, previous: u32, token: u32, back_off: f64) -> f64 {
        let total = self.as_context[previous as usize];
        if total == 0 {
            return back_off;
        }
        let count = self.pairs.get(&(previous, token)).map_or(0.0, |&count| f64::from(count));
        let freed = DISCOUNT * self.distinct_after[previous as usize] as f64;
        ((count - DISCOUNT).max(0.0) + freed * back_off) / total as f64
    }
}

/// A distribution over tokens by discounted counts, the freed mass spread evenly.
struct Discounted<'a> {
    counts: &'a [u64],
    total: f64,
    freed_each: f64,
    even: f64,
}

impl Discounted<'_> {
    fn new(counts: &[u64], vocab_size: u64) -> Discounted<'_> {
        let total: u64 = counts.iter().sum();
        let distinct = counts.iter().filter(|&&count| count > 0).count();
        let even = 1.0 / vocab_size as f64;
        Discounted { counts, total: total as f64, freed_each: DISCOUNT * distinct as f64 * even, even }
    }

    fn probability(&self, token: u32) -> f64 {
        if self.total == 0.0 {
            return self.even;
        }
        ((self.counts[token as usize] as f64 - DISCOUNT).max(0.0) + self.freed_each) / self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(tokens: &[u32]) -> TokenStream {
        TokenStream::from_tokens(tokens.to_vec(), tokens.len() as u64)
    }

    #[test]
    fn the_smoothed_distributions_sum_to_one() {
        let train = [0, 1, 2, 0, 1, 3, 3, 0, 1, 2, 2];
        let vocab_size = 6;
        let mut counts = Counts::new(vocab_size);
        pairs(&stream(&train), u64::MAX, vocab_size, |previous, token| counts.add(previous, token)).unwrap();
        let unigram = Discounted::new(&counts.tokens, vocab_size);
        let contexts = Discounted::new(&counts.distinct_before, vocab_size);
        let sum: f64 = (0..6).map(|token| unigram.probability(token)).sum();
        assert!((sum - 1.0).abs() < 1e-12);
        for previous in 0..6 {
            let sum: f64 =
                (0..6).map(|token| counts.bigram(previous, token, contexts.probability(token))).sum();
            assert!((sum - 1.0).abs() < 1e-12, "after {previous}: {sum}");
        }
    }

    #[test]
    fn yardsticks_agree_with_a_calculation_by_hand() {
        // Training pairs: (0,1) twice, (1,0) once. V = 2, D = 3/4.
        let found = ngram_yardsticks(&stream(&[0, 1, 0, 1]), &stream(&[0, 1]), 2).unwrap();
        let half = (1.25 + 0.75) / 4.0; // Each token: (2 − D + D·2/2) / 4.
        let q1 = (0.25 + 0.75) / 2.0; // One context of two: (1 − D + D·2/2) / 2.
        let after0 = (1.25 + 0.75 * q1) / 2.0; // Token 1 after token 0: (2 − D + D·1·q) / 2.
        assert!((found.unigram + f64::ln(half)).abs() < 1e-12);
        assert!((found.bigram + (f64::ln(half) + f64::ln(after0)) / 2.0).abs() < 1e-12);
        assert_eq!(found.uniform, 2f64.ln());
        assert_eq!((found.train_tokens, found.validation_tokens), (4, 2));
    }

    #[test]
    fn each_yardstick_is_lower_than_the_one_before_on_structured_text() {
        let tokens: Vec<u32> =
            (0..20_000u64).map(|i| if i % 2 == 0 { 5 } else { (i * i / 7 % 40) as u32 }).collect();
        let found = ngram_yardsticks(&stream(&tokens[..18_000]), &stream(&tokens[18_000..]), 64).unwrap();
        assert!(found.bigram < found.unigram && found.unigram < found.uniform, "{found:?}");
    }

    #[test]
    fn unseen_tokens_cost_much_but_not_everything() {
        let found = ngram_yardsticks(&stream(&[1, 1, 1, 1]), &stream(&[7, 8, 9]), 10).unwrap();
        assert!(found.unigram.is_finite() && found.bigram.is_finite());
        assert!(found.unigram > found.uniform);
    }

    #[test]
    fn empty_splits_and_foreign_tokens_are_errors() {
        assert!(ngram_yardsticks(&stream(&[]), &stream(&[1]), 4).is_err());
        assert!(ngram_yardsticks(&stream(&[1]), &stream(&[]), 4).is_err());
        assert!(ngram_yardsticks(&stream(&[9]), &stream(&[1]), 4).is_err());
    }
}
