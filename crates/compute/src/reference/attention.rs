//! Attention and its gradient, one query at a time.

use std::ops::Range;

use super::{Tensor, forward::Factor};
use crate::op::Attention;

/// Where a head's rows lie inside [B,T,H·D] tensors.
struct Heads {
    attention: Attention,
    head_dim: usize,
    queries: usize,
    keys: usize,
    /// Rows of keys and values: one a sample, or those of a cache.
    rows: usize,
}

impl Heads {
    fn new(attention: &Attention, q: &Tensor, k: &Tensor) -> Self {
        Heads {
            attention: *attention,
            head_dim: q.columns() / attention.heads,
            queries: q.shape.dims()[1],
            keys: k.shape.dims()[1],
            rows: k.shape.dims()[0],
        }
    }

    fn scale(&self) -> f64 {
        1.0 / (self.head_dim as f64).sqrt()
    }

    fn query(&self, b: usize, h: usize, t: usize) -> usize {
        ((b * self.queries + t) * self.attention.heads + h) * self.head_dim
    }

    fn key(&self, row: usize, h: usize, s: usize) -> usize {
        let kv_head = h * self.attention.kv_heads / self.attention.heads;
        ((row * self.keys + s) * self.attention.kv_heads + kv_head) * self.head_dim
    }

    fn statistic(&self, b: usize, h: usize, t: usize) -> usize {
        (b * self.attention.heads + h) * self.queries + t
    }

    /// The keys that the query at position `start + t` of a sample sees.
    fn visible(&self, start: usize, t: usize, b: usize, borders: Option<&Tensor>) -> Range<usize> {
        let border =
            |position: usize| borders.map_or(0, |borders| borders.index(b * self.queries + position));
        self.attention.visible(start + t, self.keys, borders.is_some().then_some(&border))
    }

    fn score(&self, q: &[f64], k: &[f64]) -> f64 {
        self.scale() * q[..self.head_dim].iter().zip(k).map(|(a, b)| a * b).sum::<f64>()
    }
}

pub(super) fn attention(
    attention: &Attention,
    factor: Factor<'_>,
    inputs: &[&Tensor],
    outputs: &mut [Tensor],
) {
    let [q, k, v] = [0, 1, 2].map(|index| inputs[index].rounded(factor));
    let heads = Heads::new(attention, &q, &k);
    let borders = attention.borders.then(|| inputs[inputs.len() - 1]);
    outputs[0].data.fill(0.0);
    for b in 0..q.shape.dims()[0] {
        let (row, start) = match attention.cached {
            true => (inputs[3].index(2 * b).min(heads.rows - 1), inputs[3].index(2 * b + 1)),
            false => (b, 0),
        };
        for h in 0..attention.heads {
            for t in 0..heads.queries {
                let query = heads.query(b, h, t);
                let visible = heads.visible(start, t, b, borders);
                let scores: Vec<f64> = visible
                    .clone()
                    .map(|s| heads.score(&q.data[query..], &k.data[heads.key(row, h, s)..]))
                    .collect();
                let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let log_sum_exp = max + scores.iter().map(|s| (s - max).exp()).sum::<f64>().ln();
                for (s, score) in visible.zip(scores) {
                    let probability = factor((score - log_sum_exp).exp());
                    let value = heads.key(row, h, s);
                    for d in 0..heads.head_dim {
                        outputs[0].data[query + d] += probability * v.data[value + d];
                    }
                }
                outputs[1].data[heads.statistic(b, h, t)] = log_sum_exp;
            }
        }
    }
}

/// With P the probabilities: d_v = Pᵀ·d_out; d_p = d_out·vᵀ; d_score = P·(d_p − d_out·out); d_q, d_k follow by the products.
pub(super) fn attention_grad(
    attention: &Attention,
    factor: Factor<'_>,
    inputs: &[&Tensor],
    outputs: &mut [Tensor],
) {
    let [rounded, q, k, v] = [0, 1, 2, 3].map(|index| inputs[index].rounded(factor));
    let (d_out, out, log_sum_exp) = (inputs[0], inputs[4], inputs[5]);
    let heads = Heads::new(attention, &q, &k);
    let borders = attention.borders.then(|| inputs[6]);
    outputs.iter_mut().for_each(|tensor| tensor.data.fill(0.0));
    for b in 0..q.shape.dims()[0] {
        for h in 0..attention.heads {
            for t in 0..heads.queries {
                let query = heads.query(b, h, t);
                let row = query..query + heads.head_dim;
                let dot = |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
                let d_dot_out = dot(&d_out.data[row.clone()], &out.data[row.clone()]);
                let d_row = &rounded.data[row];
                for s in heads.visible(0, t, b, borders) {
                    let key = heads.key(b, h, s);
                    let score = heads.score(&q.data[query..], &k.data[key..]);
                    let probability = (score - log_sum_exp.data[heads.statistic(b, h, t)]).exp();
                    let d_score = probability * (dot(d_row, &v.data[key..]) - d_dot_out) * heads.scale();
                    let (d_score, probability) = (factor(d_score), factor(probability));
                    for (d, &d_element) in d_row.iter().enumerate() {
                        outputs[0].data[query + d] += d_score * k.data[key + d];
                        outputs[1].data[key + d] += d_score * q.data[query + d];
                        outputs[2].data[key + d] += probability * d_element;
                    }
                }
            }
        }
    }
}
