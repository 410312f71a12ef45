//! The constants of attention, and the rule of which keys a query sees.

use std::ops::Range;

use crate::tensor::DType;

/// Which keys a query may see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mask {
    /// Those at its own position and before.
    Causal,
    /// All of them.
    Full,
}

/// The constants of an attention op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attention {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; query head h reads key head h·kv_heads/heads.
    pub kv_heads: usize,
    /// Which keys a query may see.
    pub mask: Mask,
    /// Whether keys and values are a cache [R,S,Hkv·D]: then an operand `places u32[B,2]` gives for each sample the row of the
    /// cache that it reads (the last one, if there is none of that number) and the position of its first query. Keys past a
    /// query's own position are never read.
    pub cached: bool,
    /// Whether samples hold several documents: then an operand `borders u32[B,T]` gives the index of the first position
    /// of each position's document, and a query sees only keys of its own document.
    pub borders: bool,
    /// How many keys a query sees at most to one side, its own position included; 0 is no limit.
    pub window: usize,
    /// What operands of products are rounded to: see [`Op::Linear`](super::Op::Linear). Queries and keys for the scores, probabilities and
    /// values for the output; in the gradient also gradients of the output and of the scores.
    pub products: DType,
}

impl Attention {
    /// The operands behind queries, keys and values.
    pub fn extra_operands(&self) -> usize {
        usize::from(self.cached) + usize::from(self.borders)
    }

    /// The keys that the query at position `t` sees, among `keys` in all, when the borders of its sample are these.
    pub fn visible(&self, t: usize, keys: usize, borders: Option<&dyn Fn(usize) -> usize>) -> Range<usize> {
        let mut first = borders.map_or(0, |border| border(t));
        let mut end = match self.mask {
            Mask::Causal => (t + 1).min(keys),
            Mask::Full => match borders {
                None => keys,
                Some(border) => (t..keys).find(|&other| border(other) != first).unwrap_or(keys),
            },
        };
        if self.window > 0 {
            first = first.max((t + 1).saturating_sub(self.window));
            end = end.min(t.saturating_add(self.window));
        }
        // Padding may lie past the end of a cache, and borders are data: a query always sees at least one key.
        first.min(end.saturating_sub(1))..end
    }
}
