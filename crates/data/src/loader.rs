//! Batches of samples, in an order that does not depend on how a step is cut into micro-batches.

use std::sync::Arc;

use crate::ahead::Ahead;
use crate::buckets::{Buckets, Example};
use crate::dataset::TokenStream;
use crate::error::{Error, Result};
use crate::order::{Order, Sampler};

/// A target that does not exist: nothing follows, or what follows belongs to another document.
pub const IGNORED: u32 = u32::MAX;

/// The id in the places of a row that no token fills.
const PADDING: u32 = 0;

/// Room for the samples of one step. All but `samples` hold `rows × length` numbers.
#[derive(Debug)]
pub struct BatchMut<'a> {
    /// Token ids.
    pub ids: &'a mut [u32],
    /// What follows each token, or [`IGNORED`].
    pub targets: &'a mut [u32],
    /// The position of each token: 0, 1, 2 … from the start of the row; if packed, from the start of its document.
    pub positions: &'a mut [u32],
    /// For each token, where in its row its document begins. Tokens of a row belong to the same document if and only if their
    /// borders are equal; padding is a document of its own. All zero if the loader has no borders.
    pub borders: &'a mut [u32],
    /// The samples' numbers, one a row, of which the low 32 bits are kept (they key random numbers on the device).
    pub samples: &'a mut [u32],
}

/// Fills batches from a token stream.
///
/// Row `i` of a batch is the sample `first_sample + i`, which depends on nothing else: the same sample has the same tokens
/// in batches of any size, from any thread. Bucketed samples depend on the rows of a step too, because all of them have one
/// length. Filling allocates nothing, and its cost does not depend on the size of the stream, apart from binary searches.
#[derive(Clone, Debug)]
pub struct Loader {
    stream: TokenStream,
    plan: Arc<Plan>,
    lengths: Arc<[usize]>,
    rows: usize,
    ahead: Option<Arc<Ahead>>,
}

/// Where the samples lie.
#[derive(Debug)]
enum Plan {
    Windows(Order),
    /// Windows that heed the documents which start at these positions.
    Packed {
        order: Order,
        document_starts: Vec<u64>,
    },
    Bucketed(Buckets),
}

impl Loader {
    /// A loader of steps of `rows` samples of at most `context` tokens; an error if the stream holds no tokens.
    ///
    /// The packed and bucketed samplers read where documents start, 8 bytes a document, and keep it (bucketed: 16 bytes).
    pub fn new(
        stream: TokenStream,
        sampler: Sampler,
        seed: u64,
        context: usize,
        rows: usize,
    ) -> Result<Loader> {
        if rows == 0 {
            let advice = "a step needs at least one sample".into();
            return Err(Error::BadSetting { name: "rows", value: "0".into(), advice });
        }
        let tokens = stream.tokens();
        let plan = match sampler {
            Sampler::Bucketed => {
                Plan::Bucketed(Buckets::new(&stream.document_starts()?, tokens, seed, context, rows)?)
            }
            Sampler::Packed => Plan::Packed {
                order: Order::new(sampler, seed, tokens, context as u64)?,
                document_starts: stream.document_starts()?,
            },
            Sampler::Random | Sampler::Shuffled | Sampler::Sequential => {
                Plan::Windows(Order::new(sampler, seed, tokens, context as u64)?)
            }
        };
        let lengths = match &plan {
            Plan::Windows(_) | Plan::Packed { .. } => vec![context],
            Plan::Bucketed(buckets) => buckets.lengths(),
        };
        Ok(Loader { stream, plan: Arc::new(plan), lengths: lengths.into(), rows, ahead: None })
    }

    /// The same loader with so many threads that fill steps before they are asked for; zero fills each when it is asked for. The
    /// samples do not depend on it.
    pub fn with_workers(self, workers: usize) -> Result<Loader> {
        let loader = Loader { ahead: None, ..self };
        let ahead = if workers > 0 { Some(Arc::new(Ahead::start(&loader, workers)?)) } else { None };
        Ok(Loader { ahead, ..loader })
    }

    /// The stream that is sampled.
    pub fn stream(&self) -> &TokenStream {
        &self.stream
    }

    /// The samples of a step.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Every length that the rows of a step can have, ascending: the context, and if bucketed shorter ones.
    pub fn lengths(&self) -> &[usize] {
        &self.lengths
    }

    /// The length of the rows of the step that starts at this sample.
    pub fn length(&self, first_sample: u64) -> usize {
        match &*self.plan {
            Plan::Windows(_) | Plan::Packed { .. } => self.lengths[0],
            Plan::Bucketed(buckets) => buckets.length(first_sample),
        }
    }

    /// Whether a row may hold several documents or padding, so that attention has to heed the borders.
    pub fn has_borders(&self) -> bool {
        match &*self.plan {
            Plan::Windows(_) => false,
            Plan::Packed { .. } | Plan::Bucketed(_) => true,
        }
    }

    /// How many samples make an epoch: those that show every token once, as far as the sampler shows it at all.
    pub fn samples_per_epoch(&self) -> u64 {
        match &*self.plan {
            Plan::Windows(order) | Plan::Packed { order, .. } => order.samples_per_epoch(),
            Plan::Bucketed(buckets) => buckets.samples_per_epoch(),
        }
    }

    /// How many epochs lie before a sample.
    pub fn epoch(&self, first_sample: u64) -> f64 {
        match &*self.plan {
            Plan::Windows(order) | Plan::Packed { order, .. } => order.epoch(first_sample),
            Plan::Bucketed(buckets) => first_sample as f64 / buckets.samples_per_epoch() as f64,
        }
    }

    /// The share of the tokens that the samples before one have shown; what lies beyond the context of a bucketed example is never
    /// shown.
    pub fn seen_share(&self, first_sample: u64) -> f64 {
        match &*self.plan {
            Plan::Windows(order) | Plan::Packed { order, .. } => order.seen_share(first_sample),
            Plan::Bucketed(_) => self.epoch(first_sample).min(1.0) * (1.0 - self.truncated_share()),
        }
    }

    /// The share of padding in the rows of an epoch, each example counted once; zero unless bucketed.
    pub fn padding_share(&self) -> f64 {
        match &*self.plan {
            Plan::Windows(_) | Plan::Packed { .. } => 0.0,
            Plan::Bucketed(buckets) => buckets.padding_share(),
        }
    }

    /// The share of tokens that no epoch shows because their document is longer than the context; zero unless bucketed.
    pub fn truncated_share(&self) -> f64 {
        match &*self.plan {
            Plan::Windows(_) | Plan::Packed { .. } => 0.0,
            Plan::Bucketed(buckets) => buckets.truncated_share(),
        }
    }

    /// Fills the samples of the step that starts at `first_sample`, which is a multiple of the rows if bucketed. With
    /// [workers](Self::with_workers) they are usually there already.
    pub fn fill(&self, first_sample: u64, mut batch: BatchMut<'_>) -> Result<()> {
        if let Some(ahead) = &self.ahead {
            self.check(first_sample, self.length(first_sample), &batch)?;
            if ahead.take(first_sample, &mut batch)? {
                return Ok(());
            }
        }
        self.fill_now(first_sample, batch)
    }

    /// Fills the samples of a step on this thread.
    pub(crate) fn fill_now(&self, first_sample: u64, batch: BatchMut<'_>) -> Result<()> {
        let length = self.length(first_sample);
        self.check(first_sample, length, &batch)?;
        for (row, sample) in batch.samples.iter_mut().enumerate() {
            let sample_idx = first_sample.wrapping_add(row as u64);
            *sample = sample_idx as u32;
            let here = row * length..(row + 1) * length;
            let row = Row {
                ids: &mut batch.ids[here.clone()],
                targets: &mut batch.targets[here.clone()],
                positions: &mut batch.positions[here.clone()],
                borders: &mut batch.borders[here],
            };
            match &*self.plan {
                Plan::Windows(order) => row.fill_window(&self.stream, order.window(sample_idx))?,
                Plan::Packed { order, document_starts } => {
                    row.fill_packed(&self.stream, document_starts, order.window(sample_idx))?;
                }
                Plan::Bucketed(buckets) => row.fill_example(&self.stream, buckets.example(sample_idx))?,
            }
        }
        Ok(())
    }

    fn check(&self, first_sample: u64, length: usize, batch: &BatchMut<'_>) -> Result<()> {
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
        if matches!(*self.plan, Plan::Bucketed(_)) && !first_sample.is_multiple_of(self.rows as u64) {
            let advice = format!("bucketed steps of {0} samples start at a multiple of {0}", self.rows);
            return Err(Error::BadSetting { name: "first sample", value: first_sample.to_string(), advice });
        }
        Ok(())
    }
}

/// One row of a batch.
struct Row<'a> {
    ids: &'a mut [u32],
    targets: &'a mut [u32],
    positions: &'a mut [u32],
    borders: &'a mut [u32],
}

impl Row<'_> {
    /// The tokens from `start` on as one piece, whatever documents they belong to.
    fn fill_window(mut self, stream: &TokenStream, start: u64) -> Result<()> {
        self.mark_document(0, self.ids.len());
        self.read_window(stream, start)
    }

    /// The tokens from `start` on, cut where documents begin and where the stream goes back to its first token.
    fn fill_packed(mut self, stream: &TokenStream, document_starts: &[u64], start: u64) -> Result<()> {
        self.read_window(stream, start)?;
        let length = self.ids.len();
        let (mut at, mut begin) = (start, 0);
        while begin < length {
            let next_idx = document_starts.partition_point(|&start| start <= at);
            let document_end = document_starts.get(next_idx).copied().unwrap_or(stream.tokens());
            let rest = document_end - at;
            if rest > (length - begin) as u64 {
                self.mark_document(begin, length);
                break;
            }
            let end = begin + rest as usize;
            self.mark_document(begin, end);
            self.targets[end - 1] = IGNORED;
            at = if document_end == stream.tokens() { 0 } else { document_end };
            begin = end;
        }
        Ok(())
    }

    /// The first tokens of a document, then padding.
    fn fill_example(mut self, stream: &TokenStream, example: Example) -> Result<()> {
        let length = self.ids.len();
        let shown = example.tokens.min(length as u64) as usize;
        self.mark_document(0, shown);
        self.mark_document(shown, length);
        for (position, slot) in self.positions.iter_mut().enumerate() {
            *slot = position as u32;
        }
        stream.read(example.start, &mut self.ids[..shown])?;
        self.ids[shown..].fill(PADDING);
        self.targets[..shown - 1].copy_from_slice(&self.ids[1..shown]);
        self.targets[shown - 1..].fill(IGNORED);
        if example.tokens > shown as u64 {
            stream.read(example.start + shown as u64, &mut self.targets[shown - 1..shown])?;
        }
        Ok(())
    }

    fn read_window(&mut self, stream: &TokenStream, start: u64) -> Result<()> {
        stream.read_shifted(start, self.ids, self.targets)
    }

    /// Says that the places `begin..end` are one document.
    fn mark_document(&mut self, begin: usize, end: usize) {
        self.borders[begin..end].fill(begin as u32);
        for (position, slot) in self.positions[begin..end].iter_mut().enumerate() {
            *slot = position as u32;
        }
    }
}

#[cfg(test)]
mod tests;
