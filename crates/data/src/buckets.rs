//! Documents as examples, grouped by length: the order of the bucketed sampler.
//!
//! All rows of a step come from one bucket, so they are padded to the same length and that length is one of a few. The order's
//! definition is on the page of [`crate::order`].

use crate::error::{Error, Result};
use crate::order::{PURPOSE_BUCKETS, check_sizes, hash, permute};

/// The examples of a stream, bucket by bucket.
#[derive(Debug)]
pub(crate) struct Buckets {
    seed: u64,
    rows: u64,
    /// The groups of an epoch, over all buckets.
    groups: u64,
    /// Those that hold examples, shortest first.
    buckets: Vec<Bucket>,
    /// The examples of each bucket in the order of the stream, the buckets one after the other.
    examples: Vec<Example>,
    padding_share: f64,
    truncated_share: f64,
}

/// A document of the stream, whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Example {
    /// The position of its first token.
    pub(crate) start: u64,
    /// How many tokens it has; more than a row holds if it is to be truncated.
    pub(crate) tokens: u64,
}

#[derive(Debug)]
struct Bucket {
    /// The length of its rows.
    length: usize,
    first_example: usize,
    examples: u64,
    first_group: u64,
}

impl Buckets {
    /// Groups the documents that start at `starts` in a stream of `tokens` tokens.
    pub(crate) fn new(
        starts: &[u64],
        tokens: u64,
        seed: u64,
        context: usize,
        rows: usize,
    ) -> Result<Buckets> {
        check_sizes(tokens, context as u64)?;
        let rows = rows as u64;
        let (mut buckets, mut examples, mut groups) = (Vec::new(), Vec::new(), 0);
        let (mut all, mut shown, mut room) = (0, 0, 0);
        let mut shorter = 0;
        // One pass for each of the few lengths needs no memory beside the result.
        for length in ladder(context) {
            let longest = if length == context { u64::MAX } else { length as u64 };
            let first_example = examples.len();
            for example in documents(starts, tokens) {
                if example.tokens > shorter && example.tokens <= longest {
                    all += example.tokens;
                    shown += example.tokens.min(length as u64);
                    room += length as u64;
                    examples.push(example);
                }
            }
            let count = (examples.len() - first_example) as u64;
            if count > 0 {
                buckets.push(Bucket { length, first_example, examples: count, first_group: groups });
                groups += count.div_ceil(rows);
            }
            shorter = longest;
        }
        if examples.is_empty() {
            return Err(Error::EmptySplit { split: "bucketed".into() });
        }
        let padding_share = (room - shown) as f64 / room as f64;
        let truncated_share = (all - shown) as f64 / all as f64;
        Ok(Buckets { seed, rows, groups, buckets, examples, padding_share, truncated_share })
    }

    /// The lengths of all rows, ascending.
    pub(crate) fn lengths(&self) -> Vec<usize> {
        self.buckets.iter().map(|bucket| bucket.length).collect()
    }

    /// The length of the rows of the step to which a sample belongs.
    pub(crate) fn length(&self, sample_idx: u64) -> usize {
        let (bucket, _) = self.group(sample_idx / self.rows);
        bucket.length
    }

    /// The document that is a sample.
    pub(crate) fn example(&self, sample_idx: u64) -> Example {
        let step = sample_idx / self.rows;
        let (bucket, group_idx) = self.group(step);
        // The last group may reach beyond the bucket's examples: it is completed from the first ones.
        let place = (group_idx * self.rows + sample_idx % self.rows) % bucket.examples;
        let seed = hash(&[self.seed, PURPOSE_BUCKETS, bucket.length as u64]);
        let example_idx = permute(seed, step / self.groups, place, bucket.examples);
        self.examples[bucket.first_example + example_idx as usize]
    }

    /// How many samples, completed groups included, show every example at least once.
    pub(crate) fn samples_per_epoch(&self) -> u64 {
        self.groups * self.rows
    }

    /// The share of padding in rows that hold every example once.
    pub(crate) fn padding_share(&self) -> f64 {
        self.padding_share
    }

    /// The share of the examples' tokens that are never shown because their document is longer than a row.
    pub(crate) fn truncated_share(&self) -> f64 {
        self.truncated_share
    }

    /// The bucket of a step, and which group of that bucket it is.
    fn group(&self, step: u64) -> (&Bucket, u64) {
        let seed = hash(&[self.seed, PURPOSE_BUCKETS, 0]);
        let place = permute(seed, step / self.groups, step % self.groups, self.groups);
        // The first bucket's first group is 0, so at least one bucket starts at or before any place.
        let bucket = &self.buckets[self.buckets.partition_point(|bucket| bucket.first_group <= place) - 1];
        (bucket, place - bucket.first_group)
    }
}

/// The lengths to which rows may be padded, ascending; the last is the context.
fn ladder(context: usize) -> Vec<usize> {
    let mut lengths: Vec<usize> = [8, 4, 2]
        .map(|parts| context.div_ceil(parts).next_multiple_of(LENGTH_MULTIPLE).min(context))
        .into_iter()
        .chain([context])
        .collect();
    lengths.dedup();
    lengths
}

/// Kernels work on whole vectors of tokens.
const LENGTH_MULTIPLE: usize = 8;

fn documents(starts: &[u64], tokens: u64) -> impl Iterator<Item = Example> + '_ {
    let ends = starts.iter().skip(1).copied().chain([tokens]);
    starts.iter().zip(ends).map(|(&start, end)| Example { start, tokens: end - start })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    /// The documents' starts, and the tokens in all.
    fn starts(lengths: &[u64]) -> (Vec<u64>, u64) {
        let mut position = 0;
        let starts = lengths.iter().map(|length| (position, position += length).0).collect();
        (starts, position)
    }

    fn buckets(lengths: &[u64], context: usize, rows: usize) -> Buckets {
        let (starts, tokens) = starts(lengths);
        Buckets::new(&starts, tokens, 11, context, rows).unwrap()
    }

    #[test]
    fn the_ladder_is_short_ascending_and_ends_at_the_context() {
        assert_eq!(ladder(1024), [128, 256, 512, 1024]);
        assert_eq!(ladder(100), [16, 32, 56, 100]);
        assert_eq!(ladder(32), [8, 16, 32]);
        assert_eq!(ladder(12), [8, 12]);
        assert_eq!(ladder(8), [8]);
        assert_eq!(ladder(1), [1]);
    }

    #[test]
    fn an_epoch_shows_every_example_once_before_groups_are_completed() {
        let lengths: Vec<u64> = (0..97).map(|i| i * i % 41).collect();
        for rows in [1, 2, 5, 16, 200] {
            let buckets = buckets(&lengths, 32, rows);
            let per_epoch = buckets.samples_per_epoch();
            for epoch in 0..3 {
                let mut shown: BTreeMap<u64, u64> = BTreeMap::new();
                let mut groups = BTreeSet::new();
                for sample in epoch * per_epoch..(epoch + 1) * per_epoch {
                    let (bucket, group_idx) = buckets.group(sample / rows as u64);
                    groups.insert((bucket.length, group_idx));
                    if group_idx * rows as u64 + sample % (rows as u64) < bucket.examples {
                        *shown.entry(buckets.example(sample).start).or_default() += 1;
                    }
                }
                assert_eq!(groups.len() as u64 * rows as u64, per_epoch);
                assert_eq!(shown.len(), lengths.iter().filter(|&&length| length > 0).count());
                assert!(shown.values().all(|&times| times == 1));
            }
        }
    }

    #[test]
    fn groups_are_completed_from_their_own_bucket() {
        let buckets = buckets(&[3, 20, 4, 5, 32, 90], 32, 4);
        assert_eq!(buckets.lengths(), [8, 32]);
        assert_eq!(buckets.samples_per_epoch(), 8);
        for first in (0..80).step_by(4) {
            let examples: Vec<u64> = (first..first + 4).map(|i| buckets.example(i).tokens).collect();
            assert_eq!(examples[0], examples[3]);
            let expected = if buckets.length(first) == 8 { [3, 4, 5] } else { [20, 32, 90] };
            assert_eq!(examples[..3].iter().copied().collect::<BTreeSet<_>>(), expected.into());
        }
    }

    #[test]
    fn epochs_order_steps_and_examples_differently() {
        let buckets = buckets(&(1..400).map(|i| i % 33).collect::<Vec<_>>(), 32, 4);
        let per_epoch = buckets.samples_per_epoch();
        let lengths =
            |epoch| (0..per_epoch / 4).map(|i| buckets.length(epoch * per_epoch + i * 4)).collect::<Vec<_>>();
        let examples =
            |epoch| (0..per_epoch).map(|i| buckets.example(epoch * per_epoch + i)).collect::<Vec<_>>();
        assert_ne!(lengths(0), lengths(1));
        assert_ne!(examples(0), examples(1));
        let sorted = |mut lengths: Vec<usize>| {
            lengths.sort_unstable();
            lengths
        };
        assert_eq!(sorted(lengths(0)), sorted(lengths(1)));
    }

    #[test]
    fn the_numbers_of_the_order_never_change() {
        let buckets = buckets(&(1..400).map(|i| i % 33).collect::<Vec<_>>(), 32, 4);
        let lengths: Vec<usize> = (0..8).map(|step| buckets.length(4 * step)).collect();
        let starts: Vec<u64> = (0..5).map(|sample| buckets.example(sample).start).collect();
        assert_eq!(lengths, [16, 32, 32, 16, 32, 32, 8, 32]);
        assert_eq!(starts, [2_157, 606, 3_259, 2_718, 2_388]);
    }

    #[test]
    fn padding_and_truncation_are_counted() {
        // Rows of 8, 8, 16 and 32 tokens hold 3, 8, 9 and 32 of the 60 tokens.
        let buckets = buckets(&[3, 8, 0, 9, 40], 32, 2);
        assert_eq!(buckets.padding_share(), 12.0 / 64.0);
        assert_eq!(buckets.truncated_share(), 8.0 / 60.0);
    }

    #[test]
    fn streams_without_an_example_are_errors() {
        assert!(Buckets::new(&[], 0, 1, 8, 2).is_err());
        assert!(Buckets::new(&[0, 0], 0, 1, 8, 2).is_err());
        assert!(Buckets::new(&[], 5, 1, 8, 2).is_err());
        assert!(Buckets::new(&[0], 5, 1, 0, 2).is_err());
    }
}
