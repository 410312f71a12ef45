//! Batches of samples, in an order that does not depend on how a step is cut into micro-batches.

use crate::dataset::TokenStream;
use crate::error::{Error, Result};
use crate::order::{Order, Sampler};

/// A target that does not exist: nothing follows, or what follows belongs to another document.
pub const IGNORED: u32 = u32::MAX;

/// Room for the samples of one step. All but `samples` hold `rows × length` numbers.
#[derive(Debug)]
pub struct BatchMut<'a> {
    /// Token ids.
    pub ids: &'a mut [u32],
    /// What follows each token, or [`IGNORED`].
    pub targets: &'a mut [u32],
    /// The position of each token in its document, as far as the row shows it.
    pub positions: &'a mut [u32],
    /// For each token, where in its row its document begins. Tokens of a row with equal borders belong together.
    pub borders: &'a mut [u32],
    /// The samples' numbers, one a row, of which the low 32 bits are kept (they key random numbers on the device).
    pub samples: &'a mut [u32],
}

/// Fills batches from a token stream.
///
/// Row `i` of a batch is the sample `first_sample + i`, whose tokens depend on nothing else: the same sample has the same
/// tokens in batches of any size, from any thread. Filling allocates nothing.
#[derive(Clone, Debug)]
pub struct Loader {
    stream: TokenStream,
    order: Order,
    lengths: Vec<usize>,
    rows: usize,
}

impl Loader {
    /// A loader of steps of `rows` samples of at most `context` tokens; an error if the stream holds no tokens.
    pub fn new(
        stream: TokenStream,
        sampler: Sampler,
        seed: u64,
        context: usize,
        rows: usize,
    ) -> Result<Loader> {
        let order = Order::new(sampler, seed, stream.tokens(), context as u64)?;
        Ok(Loader { stream, order, lengths: vec![context], rows })
    }

    /// Every length that the rows of a step can have, ascending.
    pub fn lengths(&self) -> &[usize] {
        &self.lengths
    }

    /// The length of the rows of the step that starts at this sample.
    pub fn length(&self, _first_sample: u64) -> usize {
        self.lengths[0]
    }

    /// Whether a row may hold several documents or padding, so that attention has to heed the borders.
    pub fn has_borders(&self) -> bool {
        false
    }

    /// Where the samples lie in the stream.
    pub fn order(&self) -> &Order {
        &self.order
    }

    /// The stream that is sampled.
    pub fn stream(&self) -> &TokenStream {
        &self.stream
    }

    /// Fills the samples of the step that starts at `first_sample`.
    pub fn fill(&self, first_sample: u64, batch: BatchMut<'_>) -> Result<()> {
        let length = self.length(first_sample);
        let expected = self.rows * length;
        for (name, found, expected) in [
            ("ids", batch.ids.len(), expected),
            ("targets", batch.targets.len(), expected),
            ("positions", batch.positions.len(), expected),
            ("borders", batch.borders.len(), expected),
            ("samples", batch.samples.len(), self.rows),
        ] {
            if found != expected {
                let advice = format!("{} rows of {length} tokens need {expected}", self.rows);
                return Err(Error::BadSetting { name, value: format!("of length {found}"), advice });
            }
        }
        batch.borders.fill(0);
        for (row, sample) in batch.samples.iter_mut().enumerate() {
            let here = row * length..(row + 1) * length;
            let sample_idx = first_sample.wrapping_add(row as u64);
            self.fill_row(sample_idx, &mut batch.ids[here.clone()], &mut batch.targets[here.clone()])?;
            for (position, slot) in batch.positions[here].iter_mut().enumerate() {
                *slot = position as u32;
            }
            *sample = sample_idx as u32;
        }
        Ok(())
    }

    fn fill_row(&self, sample_idx: u64, ids: &mut [u32], targets: &mut [u32]) -> Result<()> {
        let start = self.order.window(sample_idx);
        let last = ids.len() - 1;
        self.stream.read_wrapped(start, ids)?;
        targets[..last].copy_from_slice(&ids[1..]);
        self.stream.read_wrapped(start + ids.len() as u64, &mut targets[last..])
    }
}
