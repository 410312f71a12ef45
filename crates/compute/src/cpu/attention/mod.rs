//! Attention and its gradient.
//!
//! B samples, T queries, S keys, H query heads, Hkv key heads, D head size. Keys and values of a head are packed once; then
//! a few queries at a time are multiplied with the keys that any of them sees. Scores live in the thread's scratch, so
//! memory is linear in T.

mod backward;
mod decode;
mod forward;

pub(super) use backward::{attention_grad, needs as grad_needs};
pub(super) use forward::{attention, cached_attention, needs};

use std::ops::Range;

use super::gemm::Matrix;
use crate::{op::Attention, tensor::Shape};

/// The sizes of one attention, and where its heads lie.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    batch: usize,
    queries: usize,
    keys: usize,
    /// Rows of keys and values: one a sample, or those of a cache.
    key_rows: usize,
    head_dim: usize,
    attention: Attention,
    /// Whether queries, keys and values are columns of one tensor.
    is_joint: bool,
    /// Elements from one position's queries to the next.
    query_stride: usize,
}

/// Which of the three an element belongs to.
#[derive(Clone, Copy)]
enum Part {
    Queries,
    Keys,
    Values,
}

impl Sizes {
    /// Of queries [B,T,H·D] and keys [B,S,Hkv·D].
    pub fn apart(attention: &Attention, q: Shape, k: Shape) -> Self {
        let (&[batch, queries, columns], &[key_rows, keys, _]) = (q.dims(), k.dims()) else {
            unreachable!("checked at bind")
        };
        let head_dim = columns / attention.heads;
        Sizes {
            batch,
            queries,
            keys,
            key_rows,
            head_dim,
            attention: *attention,
            is_joint: false,
            query_stride: columns,
        }
    }

    /// Of queries, keys and values side by side: [B,T,(H + 2·Hkv)·D].
    pub fn joint(attention: &Attention, qkv: Shape) -> Self {
        let &[batch, queries, columns] = qkv.dims() else { unreachable!("checked at bind") };
        let head_dim = columns / (attention.heads + 2 * attention.kv_heads);
        Sizes {
            batch,
            queries,
            keys: queries,
            key_rows: batch,
            head_dim,
            attention: *attention,
            is_joint: true,
            query_stride: columns,
        }
    }

    /// Of queries in front of new keys and values, [B,T,(H + 2·Hkv)·D], and a cache [R,S,Hkv·D].
    pub fn beside_cache(attention: &Attention, qkv: Shape, cache: Shape) -> Self {
        let &[key_rows, keys, _] = cache.dims() else { unreachable!("checked at bind") };
        Sizes { keys, key_rows, is_joint: false, ..Sizes::joint(attention, qkv) }
    }

    fn scale(&self) -> f32 {
        (1.0 / (self.head_dim as f64).sqrt()) as f32
    }

    /// Query heads that share a key head.
    fn group(&self) -> usize {
        self.attention.heads / self.attention.kv_heads
    }

    /// The keys that query `t` of a sample sees when the first query is at position `start`.
    fn visible(&self, start: usize, t: usize, borders: Option<&[u32]>) -> Range<usize> {
        match borders {
            None => self.attention.visible(start.saturating_add(t), self.keys, None),
            Some(borders) => self.attention.visible(t, self.keys, Some(&|t| borders[t] as usize)),
        }
    }

    /// The keys that any of some queries sees.
    fn visible_to(&self, start: usize, rows: Range<usize>, borders: Option<&[u32]>) -> Range<usize> {
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

    /// The row of keys and values that a sample reads, and the position of its first query.
    fn place_of(&self, places: Option<&[u32]>, b: usize) -> (usize, usize) {
        places.map_or((b, 0), |places| {
            ((places[2 * b] as usize).min(self.key_rows - 1), places[2 * b + 1] as usize)
        })
    }

    /// Some rows of one head of the queries, keys or values.
    fn head<'a>(&self, data: &'a [f32], part: Part, head: (usize, usize), rows: Range<usize>) -> Matrix<'a> {
        let (start, stride) = self.place_of_head(part, head, rows.start);
        Matrix::strided(&data[start..], rows.len(), self.head_dim, stride)
    }

    /// One row of them.
    fn head_row<'a>(&self, data: &'a [f32], part: Part, head: (usize, usize), row: usize) -> &'a [f32] {
        let (start, _) = self.place_of_head(part, head, row);
        &data[start..][..self.head_dim]
    }

    /// Where a row of a head begins, and how far the next one is.
    fn place_of_head(&self, part: Part, (b, h): (usize, usize), row: usize) -> (usize, usize) {
        let Attention { heads, kv_heads, .. } = self.attention;
        let (first, own) = match part {
            Part::Queries => (0, heads),
            Part::Keys => (heads, kv_heads),
            Part::Values => (heads + kv_heads, kv_heads),
        };
        let length = if matches!(part, Part::Queries) { self.queries } else { self.keys };
        let (first, stride) = match (self.is_joint, part) {
            (true, _) => (first, self.query_stride),
            (false, Part::Queries) => (0, self.query_stride),
            (false, _) => (0, own * self.head_dim),
        };
        ((b * length + row) * stride + (first + h) * self.head_dim, stride)
    }

    /// Some rows of one head of the output or of its gradient.
    fn out_head<'a>(&self, data: &'a [f32], (b, h): (usize, usize), rows: Range<usize>) -> Matrix<'a> {
        let query_stride = self.attention.heads * self.head_dim;
        Sizes { is_joint: false, query_stride, ..*self }.head(data, Part::Queries, (b, h), rows)
    }
}
