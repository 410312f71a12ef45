//! Attention and its gradient.
//!
//! B samples, T queries, S keys, H query heads, Hkv key heads, D head size. Rows of one head lie in [B,T,H·D] tensors at a
//! stride of H·D. A block of queries is multiplied with all keys that its last query sees; scores of a block live in
//! the thread's scratch, so memory is linear in T.

mod backward;
mod forward;

pub(super) use backward::{attention_grad, needs as grad_needs};
pub(super) use forward::{attention, needs};

use super::gemm::Matrix;
use crate::{
    op::{Attention, Mask},
    tensor::Shape,
};

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
    mask: Mask,
}

impl Sizes {
    fn new(attention: &Attention, q: Shape, k: Shape) -> Self {
        let (&[batch, queries, columns], &[_, keys, _]) = (q.dims(), k.dims()) else {
            unreachable!("checked at bind")
        };
        let Attention { heads, kv_heads, mask, .. } = *attention;
        Sizes { batch, queries, keys, heads, kv_heads, head_dim: columns / heads, mask }
    }

    fn scale(&self) -> f32 {
        (1.0 / (self.head_dim as f64).sqrt()) as f32
    }

    /// Query heads that share a key head.
    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// How many keys query `t` sees when the first query is at position `start`.
    fn visible(&self, start: usize, t: usize) -> usize {
        match self.mask {
            Mask::Causal => start.saturating_add(t + 1).min(self.keys),
            Mask::Full => self.keys,
        }
    }

    /// Some rows of one head of a [B,T,H·D] tensor with `heads` heads and `length` rows per sample.
    fn head<'a>(
        &self,
        data: &'a [f32],
        (heads, length): (usize, usize),
        (b, h): (usize, usize),
        rows: std::ops::Range<usize>,
    ) -> Matrix<'a> {
        let stride = heads * self.head_dim;
        let start = (b * length + rows.start) * stride + h * self.head_dim;
        Matrix::strided(&data[start..], rows.len(), self.head_dim, stride)
    }

    fn query_head<'a>(
        &self,
        data: &'a [f32],
        (b, h): (usize, usize),
        rows: std::ops::Range<usize>,
    ) -> Matrix<'a> {
        self.head(data, (self.heads, self.queries), (b, h), rows)
    }

    fn key_head<'a>(&self, data: &'a [f32], (b, h): (usize, usize), count: usize) -> Matrix<'a> {
        self.head(data, (self.kv_heads, self.keys), (b, h), 0..count)
    }
}
