//! The order of samples, computed from (seed, sample index) and never stored.
//!
//! A sample is a window of `context + 1` tokens: its first `context` tokens are the inputs and the same window shifted
//! by one are the targets. [`Order::window`] says where the window of a sample starts. It is a pure function, so a
//! resumed run, a run with more workers and a run with other micro-batches all see the same samples. Only the bucketed
//! sampler knows no windows: its samples are whole documents.
//!
//! **The numbers are part of the format.** Everything is derived from the 64-bit finaliser of SplitMix64:
//!
//! ```text
//! mix(z)        = z ^= z >> 30; z *= 0xbf58476d1ce4e5b9; z ^= z >> 27; z *= 0x94d049bb133111eb; z ^= z >> 31
//! hash(a, b, …) = h = 0x9e3779b97f4a7c15; for every word w: h = mix(h ^ w) + 0x9e3779b97f4a7c15; mix(h)
//! below(h, n)   = the high 64 bits of h · n
//! ```
//!
//! All arithmetic wraps at 64 bits. The first word of every hash is the seed, the second names the purpose.
//!
//! - *Random*: the start of sample `i` is `below(hash(seed, 1, i), tokens − context)`.
//! - *Shuffled*: an epoch cuts the stream into `n = (tokens − 1) / context` windows that lie `context` apart, so that every
//!   token is an input at most once an epoch. The remainder `r = (tokens − 1) − n·context` is left out on another side
//!   every epoch: the cut starts at `below(hash(seed, 2, epoch), r + 1)`. Window number `permute(i mod n)` of epoch `i / n`
//!   is the sample `i`. The permutation is a Feistel network of eight rounds over the smallest even number of bits that
//!   holds `n`, keyed by `hash(seed, 3, epoch, round)`, walked along its cycle until the value is below `n`.
//! - *Packed*: the windows of *shuffled*, with the borders of the documents inside them.
//! - *Sequential*: sample `i` starts at `i·context mod tokens` (in exact arithmetic) and goes on at the first token after the
//!   last, in mid-row where that is due, so the cursor of a run is the number of its next sample.
//! - A stream of at most `context` tokens has no whole window: a random, shuffled or packed sample starts at
//!   `below(hash(seed, 1 or 2, i), tokens)` and wraps around (tokens are taken modulo the length); an epoch is then one
//!   sample.
//! - *Bucketed*: every document that is not empty is an example, in the bucket of the shortest length of the ladder that holds
//!   it: `context / 8`, `/ 4` and `/ 2`, each rounded up to a multiple of 8 but at most `context`, and `context`, which takes
//!   all longer documents too. With `rows` samples a step, a bucket of `m` examples has `⌈m / rows⌉` groups an epoch; `g`
//!   counts the groups of all buckets, shortest first. Step `s` of epoch `e = s / g` is the group
//!   `permute(hash(seed, 6, 0), e, s mod g, g)`; row `r` of group `q` of the bucket of length `l` is the bucket's example
//!   `permute(hash(seed, 6, l), e, (q·rows + r) mod m, m)`, where examples are counted in the order of the stream.

use crate::error::{Error, Result};

/// How samples are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Sampler {
    /// Windows at random starts, drawn with replacement.
    #[default]
    Random,
    /// Epochs of windows without replacement, in a different computed permutation every epoch.
    Shuffled,
    /// One window after the other from the first token on, round and round.
    Sequential,
    /// The windows of [`Sampler::Shuffled`], in which every document stands for itself.
    Packed,
    /// Whole documents, each cut to the context and padded to a few lengths; all rows of a step have the same one.
    Bucketed,
}

impl Sampler {
    /// All samplers, in the order in which messages list them.
    pub const ALL: [Sampler; 5] =
        [Sampler::Random, Sampler::Shuffled, Sampler::Sequential, Sampler::Packed, Sampler::Bucketed];

    /// The sampler of that name.
    pub fn from_name(name: &str) -> Result<Sampler> {
        Sampler::ALL.into_iter().find(|sampler| sampler.name() == name).ok_or_else(|| Error::BadSetting {
            name: "sampler",
            value: format!("'{name}'"),
            advice: "choose random, shuffled, sequential, packed or bucketed".into(),
        })
    }

    /// The name under which configurations know this sampler.
    pub fn name(self) -> &'static str {
        match self {
            Sampler::Random => "random",
            Sampler::Shuffled => "shuffled",
            Sampler::Sequential => "sequential",
            Sampler::Packed => "packed",
            Sampler::Bucketed => "bucketed",
        }
    }
}

/// The order of the windows of one token stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    cut: Cut,
    seed: u64,
    tokens: u64,
    context: u64,
}

/// How a stream is cut into windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    Random,
    Shuffled,
    Sequential,
}

impl Order {
    /// The order of a stream of `tokens` tokens, sampled in windows of `context + 1`. An error for
    /// [`Sampler::Bucketed`], whose samples are documents.
    pub fn new(sampler: Sampler, seed: u64, tokens: u64, context: u64) -> Result<Order> {
        check_sizes(tokens, context)?;
        let cut = match sampler {
            Sampler::Random => Cut::Random,
            Sampler::Shuffled | Sampler::Packed => Cut::Shuffled,
            Sampler::Sequential => Cut::Sequential,
            Sampler::Bucketed => {
                return Err(Error::BadSetting {
                    name: "sampler",
                    value: "'bucketed'".into(),
                    advice: "its samples are documents: choose one that takes windows of tokens".into(),
                });
            }
        };
        Ok(Order { cut, seed, tokens, context })
    }

    /// Where in the stream the window of a sample starts. A window that reaches the end goes on at the first token.
    pub fn window(&self, sample_idx: u64) -> u64 {
        match self.cut {
            Cut::Random => {
                let starts =
                    if self.tokens > self.context { self.tokens - self.context } else { self.tokens };
                below(hash(&[self.seed, PURPOSE_RANDOM, sample_idx]), starts)
            }
            Cut::Shuffled => self.shuffled_window(sample_idx),
            Cut::Sequential => {
                (u128::from(sample_idx) * u128::from(self.context) % u128::from(self.tokens)) as u64
            }
        }
    }

    /// How many samples make an epoch: those that together show every token once, as far as whole windows allow. The last
    /// sequential one goes over into the next epoch.
    pub fn samples_per_epoch(&self) -> u64 {
        match self.cut {
            Cut::Random | Cut::Shuffled => ((self.tokens - 1) / self.context).max(1),
            Cut::Sequential => self.tokens.div_ceil(self.context),
        }
    }

    /// How many epochs lie before a sample.
    pub fn epoch(&self, sample_idx: u64) -> f64 {
        match self.cut {
            Cut::Random | Cut::Shuffled => sample_idx as f64 / self.samples_per_epoch() as f64,
            Cut::Sequential => sample_idx as f64 * self.context as f64 / self.tokens as f64,
        }
    }

    /// The share of the tokens that the samples before one have shown. Random windows overlap, so theirs is what is to be
    /// expected: each leaves out a token with the probability 1 − context/tokens.
    pub fn seen_share(&self, sample_idx: u64) -> f64 {
        let epochs = self.epoch(sample_idx);
        match self.cut {
            Cut::Random => 1.0 - (-epochs).exp(),
            Cut::Shuffled | Cut::Sequential => epochs.min(1.0),
        }
    }

    fn shuffled_window(&self, sample_idx: u64) -> u64 {
        let windows = self.samples_per_epoch();
        let epoch = sample_idx / windows;
        let phase = hash(&[self.seed, PURPOSE_PHASE, epoch]);
        if self.tokens <= self.context {
            return below(phase, self.tokens);
        }
        let remainder = (self.tokens - 1) - windows * self.context;
        let window_idx = permute(self.seed, epoch, sample_idx % windows, windows);
        below(phase, remainder + 1) + window_idx * self.context
    }
}

/// An error unless there are tokens and a row can hold `context` of them.
pub(crate) fn check_sizes(tokens: u64, context: u64) -> Result<()> {
    if tokens == 0 {
        return Err(Error::EmptySplit { split: "sampled".into() });
    }
    if context == 0 || context > u64::from(u32::MAX) {
        return Err(Error::BadSetting {
            name: "context",
            value: context.to_string(),
            advice: "give a number of tokens from 1 to 4,294,967,295".into(),
        });
    }
    Ok(())
}

/// The image of `index` under the permutation of `0..length` that belongs to (seed, epoch).
///
/// `index` must be below `length`.
pub fn permute(seed: u64, epoch: u64, index: u64, length: u64) -> u64 {
    debug_assert!(index < length);
    if length <= 1 {
        return 0;
    }
    let bits = 64 - (length - 1).leading_zeros();
    let half_bits = bits.div_ceil(2);
    let mask = (1u64 << half_bits) - 1;
    let mut keys = [0; FEISTEL_ROUNDS];
    // The first three words of every round's hash are the same.
    let begun = absorb(GOLDEN, &[seed, PURPOSE_PERMUTATION, epoch]);
    for (round, key) in keys.iter_mut().enumerate() {
        *key = mix(absorb(begun, &[round as u64]));
    }
    let mut value = index;
    loop {
        let (mut left, mut right) = (value >> half_bits, value & mask);
        for key in keys {
            (left, right) = (right, left ^ (mix(right ^ key) & mask));
        }
        value = left << half_bits | right;
        if value < length {
            return value;
        }
    }
}

/// The hash of a list of words; see the module's page for its definition, which never changes.
pub fn hash(words: &[u64]) -> u64 {
    mix(absorb(GOLDEN, words))
}

/// What becomes of a hash's state by more words.
fn absorb(state: u64, words: &[u64]) -> u64 {
    words.iter().fold(state, |state, &word| mix(state ^ word).wrapping_add(GOLDEN))
}

/// Maps a hash evenly onto `0..bound`.
pub fn below(hash: u64, bound: u64) -> u64 {
    ((u128::from(hash) * u128::from(bound)) >> 64) as u64
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
const FEISTEL_ROUNDS: usize = 8;
const PURPOSE_RANDOM: u64 = 1;
const PURPOSE_PHASE: u64 = 2;
const PURPOSE_PERMUTATION: u64 = 3;
/// Which documents go to the validation split.
pub(crate) const PURPOSE_VALIDATION: u64 = 4;
/// Which files a sample of the inputs takes.
pub(crate) const PURPOSE_FILES: u64 = 5;
/// The order of the groups and examples of the bucketed sampler.
pub(crate) const PURPOSE_BUCKETS: u64 = 6;
/// Where sections of inputs end.
pub(crate) const PURPOSE_SECTIONS: u64 = 7;

fn mix(mut z: u64) -> u64 {
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn order(sampler: Sampler, seed: u64, tokens: u64, context: u64) -> Order {
        Order::new(sampler, seed, tokens, context).unwrap()
    }

    #[test]
    fn permutations_are_bijections_at_every_length() {
        for length in (1..=70).chain([97, 101, 127, 128, 129, 1_000, 1_021, 4_096, 4_097]) {
            for epoch in 0..3 {
                let image: BTreeSet<u64> = (0..length).map(|i| permute(7, epoch, i, length)).collect();
                assert_eq!(image.len() as u64, length);
                assert!(image.iter().all(|&i| i < length));
            }
        }
    }

    #[test]
    fn every_epoch_and_every_seed_has_its_own_permutation() {
        let permutation =
            |seed, epoch| (0..1_000).map(|i| permute(seed, epoch, i, 1_000)).collect::<Vec<_>>();
        assert_ne!(permutation(1, 0), permutation(1, 1));
        assert_ne!(permutation(1, 0), permutation(2, 0));
        assert_eq!(permutation(1, 0), permutation(1, 0));
    }

    #[test]
    fn permutations_leave_few_neighbours_together() {
        let length = 10_000;
        let image: Vec<u64> = (0..length).map(|i| permute(3, 0, i, length)).collect();
        let kept = image.windows(2).filter(|pair| pair[1] == pair[0] + 1).count();
        assert!(kept < 10, "{kept} neighbours stayed neighbours; about one is expected by chance");
    }

    #[test]
    fn permutations_work_near_the_largest_length() {
        let length = u64::MAX;
        assert!(permute(1, 2, length - 1, length) < length);
        assert_ne!(permute(1, 2, 0, length), permute(1, 2, 1, length));
    }

    #[test]
    fn the_numbers_of_the_order_never_change() {
        let random: Vec<u64> = (0..5).map(|i| order(Sampler::Random, 1, 1_000_000, 128).window(i)).collect();
        let shuffled: Vec<u64> =
            (0..5).map(|i| order(Sampler::Shuffled, 1, 1_000_000, 128).window(i)).collect();
        assert_eq!(random, [860_964, 904_409, 113_546, 904_369, 300_845]);
        assert_eq!(shuffled, [275_330, 729_986, 226_306, 307_458, 921_858]);
    }

    #[test]
    fn random_windows_reach_the_first_and_the_last_start() {
        let order = order(Sampler::Random, 5, 12, 8);
        let starts: BTreeSet<u64> = (0..200).map(|i| order.window(i)).collect();
        assert_eq!(starts, (0..=3).collect());
    }

    #[test]
    fn an_epoch_shows_every_whole_window_once() {
        for (tokens, context) in [(17, 4), (18, 4), (20, 4), (5, 4), (6, 4), (1_001, 10), (1_009, 10)] {
            let order = order(Sampler::Shuffled, 9, tokens, context);
            let n = order.samples_per_epoch();
            assert_eq!(n, (tokens - 1) / context);
            for epoch in 0..4 {
                let starts: BTreeSet<u64> = (epoch * n..(epoch + 1) * n).map(|i| order.window(i)).collect();
                assert_eq!(starts.len() as u64, n);
                let phase = *starts.first().unwrap();
                assert!(starts.iter().all(|start| (start - phase).is_multiple_of(context)));
                assert!(starts.iter().all(|start| start + context < tokens));
            }
        }
    }

    #[test]
    fn the_remainder_is_left_out_on_another_side_now_and_then() {
        let order = order(Sampler::Shuffled, 9, 12, 8);
        let starts: BTreeSet<u64> = (0..100).map(|i| order.window(i)).collect();
        assert_eq!(starts, (0..=3).collect());
    }

    #[test]
    fn streams_shorter_than_a_window_start_anywhere_inside() {
        for sampler in [Sampler::Random, Sampler::Shuffled] {
            for tokens in 1..=8 {
                let order = order(sampler, 2, tokens, 8);
                assert_eq!(order.samples_per_epoch(), 1);
                let starts: BTreeSet<u64> = (0..300).map(|i| order.window(i)).collect();
                assert_eq!(starts, (0..tokens).collect());
            }
        }
    }

    #[test]
    fn sequential_windows_follow_each_other_round_and_round() {
        for (tokens, context) in [(1, 1), (1, 8), (7, 8), (8, 8), (9, 8), (20, 8), (24, 8), (1_001, 10)] {
            let order = order(Sampler::Sequential, 9, tokens, context);
            let mut cursor = 0;
            for sample in 0..300 {
                assert_eq!(order.window(sample), cursor);
                cursor = (cursor + context) % tokens;
            }
            assert_eq!(order.epoch(tokens), context as f64);
            assert!(order.epoch(order.samples_per_epoch()) >= 1.0);
            assert!(order.epoch(order.samples_per_epoch() - 1) < 1.0);
        }
        // The product of sample and context is larger than 64 bits hold.
        let (sample, tokens) = (u64::MAX, 1_000_003);
        let expected = (sample % tokens) * 4_096 % tokens;
        assert_eq!(order(Sampler::Sequential, 9, tokens, 4_096).window(sample), expected);
    }

    #[test]
    fn packed_windows_are_the_shuffled_ones() {
        let (packed, shuffled) =
            (order(Sampler::Packed, 4, 1_009, 10), order(Sampler::Shuffled, 4, 1_009, 10));
        assert!((0..300).all(|sample| packed.window(sample) == shuffled.window(sample)));
    }

    #[test]
    fn empty_streams_and_empty_windows_are_errors() {
        assert!(Order::new(Sampler::Random, 0, 0, 8).is_err());
        assert!(Order::new(Sampler::Random, 0, 8, 0).is_err());
        assert!(Order::new(Sampler::Bucketed, 0, 8, 8).is_err());
    }

    #[test]
    fn samplers_are_known_by_their_names() {
        for sampler in Sampler::ALL {
            assert_eq!(Sampler::from_name(sampler.name()).unwrap(), sampler);
        }
        assert!(Sampler::from_name("alphabetical").is_err());
    }

    proptest! {
        #[test]
        fn whole_windows_stay_inside_the_stream(seed: u64, sample: u64, context in 1u64..5_000, more in 1u64..1_000_000) {
            for sampler in [Sampler::Random, Sampler::Shuffled] {
                let tokens = context + more;
                prop_assert!(order(sampler, seed, tokens, context).window(sample) + context < tokens);
            }
        }
    }

    #[test]
    fn the_share_seen_grows_to_one() {
        let share = |sampler, sample_idx| order(sampler, 1, 1001, 10).seen_share(sample_idx);
        assert_eq!((share(Sampler::Shuffled, 50), share(Sampler::Shuffled, 400)), (0.5, 1.0));
        assert!((share(Sampler::Sequential, 50) - 0.4995).abs() < 1e-3);
        assert!((share(Sampler::Random, 100) - 0.632).abs() < 1e-3);
        // As many of the tokens as are really drawn.
        let random = order(Sampler::Random, 3, 1001, 10);
        let drawn: BTreeSet<u64> = (0..100).flat_map(|i| random.window(i)..random.window(i) + 10).collect();
        assert!((drawn.len() as f64 / 1001.0 - random.seen_share(100)).abs() < 0.05);
    }
}
