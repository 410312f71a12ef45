//! Batches of samples, in an order that does not depend on how a step is cut into micro-batches.

use std::sync::Arc;

use crate::ahead::Ahead;
use crate::batch::{Batch, IGNORED, Row, RowTokens};
use crate::buckets::{Buckets, Example};
use crate::dataset::TokenStream;
use crate::error::{Error, Result};
use crate::order::{Order, Sampler};

/// The id in the places of a row that no token fills.
const PADDING: u32 = 0;

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

    /// Room for a step of this loader.
    pub fn batch(&self) -> Batch {
        Batch::new(self.rows, self.lengths.last().copied().unwrap_or_default())
    }

    /// Fills the samples of the step that starts at `first_sample`, which is a multiple of the rows if bucketed. With
    /// [workers](Self::with_workers) they are usually there already, and the batch gets their buffers for its own.
    pub fn fill(&self, first_sample: u64, batch: &mut Batch) -> Result<()> {
        self.check(first_sample, batch)?;
        match &self.ahead {
            Some(ahead) => ahead.take(self, first_sample, batch),
            None => self.fill_now(first_sample, batch),
        }
    }

    /// Fills the samples of a step, which were checked, on this thread.
    pub(crate) fn fill_now(&self, first_sample: u64, batch: &mut Batch) -> Result<()> {
        batch.set_length(self.length(first_sample));
        if !self.has_borders() {
            batch.mark_plain();
        }
        for row_idx in 0..self.rows {
            let sample_idx = first_sample.wrapping_add(row_idx as u64);
            batch.samples[row_idx] = sample_idx as u32;
            match &*self.plan {
                Plan::Windows(order) => {
                    self.stream.read_shifted(order.window(sample_idx), batch.tokens(row_idx))?;
                }
                Plan::Packed { order, document_starts } => {
                    let start = order.window(sample_idx);
                    batch.row(row_idx).fill_packed(&self.stream, document_starts, start)?;
                }
                Plan::Bucketed(buckets) => {
                    batch.row(row_idx).fill_example(&self.stream, buckets.example(sample_idx))?;
                }
            }
        }
        Ok(())
    }

    fn check(&self, first_sample: u64, batch: &Batch) -> Result<()> {
        if batch.rows() != self.rows {
            let advice = format!("the steps of this loader have {}", self.rows);
            return Err(Error::BadSetting {
                name: "rows of the batch",
                value: batch.rows().to_string(),
                advice,
            });
        }
        if matches!(*self.plan, Plan::Bucketed(_)) && !first_sample.is_multiple_of(self.rows as u64) {
            let advice = format!("bucketed steps of {0} samples start at a multiple of {0}", self.rows);
            return Err(Error::BadSetting { name: "first sample", value: first_sample.to_string(), advice });
        }
        Ok(())
    }
}

impl Row<'_> {
    /// The tokens from `start` on, cut where documents begin and where the stream goes back to its first token.
    fn fill_packed(mut self, stream: &TokenStream, document_starts: &[u64], start: u64) -> Result<()> {
        stream.read_shifted(start, self.tokens.reborrow())?;
        let length = self.tokens.ids.len();
        let (mut at, mut begin) = (start, 0);
        let mut next_idx = document_starts.partition_point(|&start| start <= at);
        while begin < length {
            let document_end = document_starts.get(next_idx).copied().unwrap_or(stream.tokens());
            let rest = document_end - at;
            if rest > (length - begin) as u64 {
                self.mark_document(begin, length);
                break;
            }
            let end = begin + rest as usize;
            if end > begin {
                self.mark_document(begin, end);
                self.tokens.targets[end - 1] = IGNORED;
            }
            (at, next_idx) =
                if document_end == stream.tokens() { (0, 0) } else { (document_end, next_idx + 1) };
            begin = end;
        }
        Ok(())
    }

    /// The first tokens of a document, then padding.
    fn fill_example(self, stream: &TokenStream, example: Example) -> Result<()> {
        let RowTokens { ids, targets, stored } = self.tokens;
        let shown = example.tokens.min(ids.len() as u64) as usize;
        self.borders[..shown].fill(0);
        self.borders[shown..].fill(shown as u32);
        for (position, slot) in self.positions.iter_mut().enumerate() {
            *slot = position as u32;
        }
        // What has a target, which the last token of a document has not.
        let n_asked = if example.tokens > shown as u64 { shown } else { shown - 1 };
        let asked = RowTokens { ids: &mut ids[..n_asked], targets: &mut targets[..n_asked], stored };
        stream.read_shifted(example.start, asked)?;
        if n_asked < shown {
            match n_asked.checked_sub(1) {
                Some(before) => ids[n_asked] = targets[before],
                None => stream.read(example.start, &mut ids[..1])?,
            }
        }
        ids[shown..].fill(PADDING);
        targets[n_asked..].fill(IGNORED);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
