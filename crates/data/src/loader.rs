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
        Ok(Loader {
            stream,
            order,
            context,
        })
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
                return Err(Error::BadSetting {
                    name,
                    value: format!("of length {length}"),
                    advice,
                });
            }
        }
        let rows = inputs
            .chunks_exact_mut(self.context)
            .zip(targets.chunks_exact_mut(self.context));
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
        self.stream
            .read_wrapped(start + self.context as u64, &mut targets[last..])
    }
}
