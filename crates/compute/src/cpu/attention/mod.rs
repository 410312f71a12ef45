//! Attention and its gradient.
//!
//! B samples, T queries, S keys, H query heads, Hkv key heads, D head size. Rows of one head lie in [B,T,H·D] tensors at a
//! stride of H·D. A block of queries is multiplied with all keys that any of its queries sees; scores of a block live in
//! the thread's scratch, so memory is linear in T.

mod backward;
mod forward;

pub(super) use backward::{attention_grad, needs as grad_needs};
pub(super) use forward::{attention, needs};

use std::ops::Range;

use super::gemm::Matrix;
use crate::{op::Attention, tensor::Shape};

/// Queries of a block.
const BLOCK: usize = 32;

/// The sizes of one attention.
#[derive(Clone, Copy)]
struct Sizes {
    batch: usize,
    queries: usize,
    keys: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    attention: Attention,
}

impl Sizes {
    fn new(attention: &Attention, q: Shape, k: Shape) -> Self {
        let (&[batch, queries, columns], &[_, keys, _]) = (q.dims(), k.dims()) else {
            unreachable!("checked at bind")
        };
        let Attention { heads, kv_heads, .. } = *attention;
        Sizes { batch, queries, keys, heads, kv_heads, head_dim: columns / heads, attention: *attention }
    }

    fn scale(&self) -> f32 {
        (1.0 / (self.head_dim as f64).sqrt()) as f32
    }

    /// Query heads that share a key head.
    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// The keys that query `t` of a sample sees when the first query is at position `start`.
    fn visible(&self, start: usize, t: usize, borders: Option<&[u32]>) -> Range<usize> {
        match borders {
            None => self.attention.visible(start.saturating_add(t), self.keys, None),
            Some(borders) => self.attention.visible(t, self.keys, Some(&|t| borders[t] as usize)),
        }
    }

    /// The keys that any query of a block sees.
    fn visible_to_block(&self, start: usize, rows: Range<usize>, borders: Option<&[u32]>) -> Range<usize> {
        let (mut first, mut end) = (self.keys, 0);
        for t in rows {
            let visible = self.visible(start, t, borders);
            (first, end) = (first.min(visible.start), end.max(visible.end));
        }
        first..end
    }

    /// The borders of one sample, if there are any.
    fn borders_of<'a>(&self, borders: Option<&'a [u32]>, b: usize) -> Option<&'a [u32]> {
        borders.map(|borders| &borders[b * self.queries..][..self.queries])
    }

    /// Some rows of one head of a [B,T,H·D] tensor with `heads` heads and `length` rows per sample.
    fn head<'a>(
        &self,
        data: &'a [f32],
        (heads, length): (usize, usize),
        (b, h): (usize, usize),
        rows: Range<usize>,
    ) -> Matrix<'a> {
        let stride = heads * self.head_dim;
        let start = (b * length + rows.start) * stride + h * self.head_dim;
        Matrix::strided(&data[start..], rows.len(), self.head_dim, stride)
    }

    fn query_head<'a>(&self, data: &'a [f32], (b, h): (usize, usize), rows: Range<usize>) -> Matrix<'a> {
        self.head(data, (self.heads, self.queries), (b, h), rows)
    }

    fn key_head<'a>(&self, data: &'a [f32], (b, h): (usize, usize), rows: Range<usize>) -> Matrix<'a> {
        self.head(data, (self.kv_heads, self.keys), (b, h), rows)
    }
}
