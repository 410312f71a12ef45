//! Batches of samples, in an order that does not depend on how a step is cut into micro-batches.

use crate::dataset::TokenStream;
use crate::error::{Error, Result};
use crate::order::{Order, Sampler};

/// Fills batches from a token stream.
///
/// Row `i` of a batch is the sample `first_sample + i`, whose tokens depend on nothing else: the same sample has the same
/// tokens in batches of any size, from any thread. Filling allocates nothing.
#[derive(Clone, Debug)]
pub struct Loader {
    stream: TokenStream,
    order: Order,
    context: usize,
}

impl Loader {
    /// A loader of samples of `context` tokens; an error if the stream holds no tokens.
    pub fn new(stream: TokenStream, sampler: Sampler, seed: u64, context: usize) -> Result<Loader> {
        let order = Order::new(sampler, seed, stream.tokens(), context as u64)?;
        Ok(Loader { stream, order, context })
    }

    /// How many tokens a sample's inputs hold.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Where the samples lie in the stream.
    pub fn order(&self) -> &Order {
        &self.order
    }

    /// The stream that is sampled.
    pub fn stream(&self) -> &TokenStream {
        &self.stream
    }

    /// Fills `rows` samples: `rows × context` inputs, the same windows shifted by one as targets, and the
    /// samples' numbers, of which the low 32 bits are kept (they key random numbers on the device).
    pub fn fill(
        &self,
        first_sample: u64,
        rows: usize,
        inputs: &mut [u32],
        targets: &mut [u32],
        samples: &mut [u32],
    ) -> Result<()> {
        let expected = rows * self.context;
        for (name, length, expected) in [
            ("inputs", inputs.len(), expected),
            ("targets", targets.len(), expected),
            ("samples", samples.len(), rows),
        ] {
            if length != expected {
                let advice = format!("{rows} rows of {} tokens need {expected}", self.context);
                return Err(Error::BadSetting { name, value: format!("of length {length}"), advice });
            }
        }
        let rows = inputs.chunks_exact_mut(self.context).zip(targets.chunks_exact_mut(self.context));
        for (row, ((inputs, targets), sample)) in rows.zip(samples).enumerate() {
            let sample_idx = first_sample.wrapping_add(row as u64);
            self.fill_row(sample_idx, inputs, targets)?;
            *sample = sample_idx as u32;
        }
        Ok(())
    }

    fn fill_row(&self, sample_idx: u64, inputs: &mut [u32], targets: &mut [u32]) -> Result<()> {
        let start = self.order.window(sample_idx);
        let last = self.context - 1;
        self.stream.read_wrapped(start, inputs)?;
        targets[..last].copy_from_slice(&inputs[1..]);
        self.stream.read_wrapped(start + self.context as u64, &mut targets[last..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SAMPLERS: [Sampler; 2] = [Sampler::Random, Sampler::Shuffled];

    fn stream(tokens: u32) -> TokenStream {
        TokenStream::from_tokens((0..tokens).map(|i| i * 3 + 1).collect(), 0)
    }

    fn batch(loader: &Loader, first: u64, rows: usize) -> (Vec<u32>, Vec<u32>, Vec<u32>) {
        let length = rows * loader.context();
        let (mut inputs, mut targets, mut samples) = (vec![0; length], vec![0; length], vec![0; rows]);
        loader.fill(first, rows, &mut inputs, &mut targets, &mut samples).unwrap();
        (inputs, targets, samples)
    }

    #[test]
    fn batches_equal_a_scalar_oracle_below_at_and_above_the_window() {
        for sampler in SAMPLERS {
            for tokens in [1, 2, 7, 8, 9, 10, 16, 17, 100] {
                let loader = Loader::new(stream(tokens), sampler, 3, 8).unwrap();
                let order = Order::new(sampler, 3, u64::from(tokens), 8).unwrap();
                let (inputs, targets, samples) = batch(&loader, 40, 6);
                for row in 0..6 {
                    let start = order.window(40 + row as u64);
                    let token = |i: u64| ((start + i) % u64::from(tokens)) as u32 * 3 + 1;
                    for i in 0..8 {
                        assert_eq!(inputs[row * 8 + i], token(i as u64));
                        assert_eq!(targets[row * 8 + i], token(i as u64 + 1));
                    }
                    assert_eq!(samples[row], 40 + row as u32);
                }
            }
        }
    }

    #[test]
    fn buffers_of_other_lengths_and_empty_streams_are_errors() {
        let loader = Loader::new(stream(100), Sampler::Random, 3, 8).unwrap();
        assert!(loader.fill(0, 2, &mut [0; 15], &mut [0; 16], &mut [0; 2]).is_err());
        assert!(loader.fill(0, 2, &mut [0; 16], &mut [0; 17], &mut [0; 2]).is_err());
        assert!(loader.fill(0, 2, &mut [0; 16], &mut [0; 16], &mut [0; 1]).is_err());
        assert!(Loader::new(stream(0), Sampler::Random, 3, 8).is_err());
        assert!(Loader::new(stream(9), Sampler::Random, 3, 0).is_err());
    }

    proptest! {
        #[test]
        fn micro_batches_do_not_change_the_samples(tokens in 1u32..500, context in 1usize..40, first in 0u64..10_000, cut in 0usize..12) {
            for sampler in SAMPLERS {
                let loader = Loader::new(stream(tokens), sampler, 5, context).unwrap();
                let whole = batch(&loader, first, 12);
                let (a, b) = (batch(&loader, first, cut), batch(&loader, first + cut as u64, 12 - cut));
                prop_assert_eq!(whole, ([a.0, b.0].concat(), [a.1, b.1].concat(), [a.2, b.2].concat()));
            }
        }
    }
}
