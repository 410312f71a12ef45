//! The sizes of an attention, and where its heads lie.

use super::super::{
    call::{Arg, Builder, Grid},
    driver::HeadRows,
    modules::Source,
};
use crate::{
    device::View,
    error::{Error, Result},
    op::{Attention, Mask},
    tensor::DType,
};

/// The largest head that the matrix units' kernels have room for.
const MOST_UNIT_HEAD: usize = 128;
/// The largest head of all.
const MOST_HEAD: usize = 256;
/// The window of an attention that has none: more than any position, and small enough to be added to one.
pub(in super::super) const NO_WINDOW: usize = 0x1fff_ffff;

/// The sizes of one attention, and where its heads lie.
pub(in super::super) struct Heads {
    pub(super) attention: Attention,
    pub(super) real: DType,
    pub(super) batch: usize,
    pub(super) queries: usize,
    pub(super) keys: usize,
    /// Rows of keys and values: one a sample, or those of a cache.
    pub(super) key_rows: usize,
    pub(super) size: usize,
    /// Elements from one position's queries to the next.
    pub(super) q_stride: usize,
    /// The same for keys and for values.
    pub(super) kv_stride: usize,
}

impl Heads {
    /// Of queries [B,T,H·D] and keys [B,S,Hkv·D].
    pub(super) fn apart(attention: &Attention, q: &View, k: &View, name: &'static str) -> Result<Self> {
        let (&[batch, queries, q_stride], &[key_rows, keys, kv_stride]) =
            (q.of.shape.dims(), k.of.shape.dims())
        else {
            unreachable!("checked at bind")
        };
        let size = q_stride / attention.heads;
        let real = q.of.dtype;
        Heads { attention: *attention, real, batch, queries, keys, key_rows, size, q_stride, kv_stride }
            .checked(name)
    }

    /// Of queries, keys and values side by side: [B,T,(H + 2·Hkv)·D].
    pub(in super::super) fn joint(attention: &Attention, qkv: &View, name: &'static str) -> Result<Self> {
        let &[batch, queries, columns] = qkv.of.shape.dims() else { unreachable!("checked at bind") };
        let heads = Heads {
            attention: *attention,
            real: qkv.of.dtype,
            batch,
            queries,
            keys: queries,
            key_rows: batch,
            size: columns / (attention.heads + 2 * attention.kv_heads),
            q_stride: columns,
            kv_stride: columns,
        };
        heads.checked(name)
    }

    /// Of queries in front of new keys and values, [B,T,(H + 2·Hkv)·D], and a cache [R,S,Hkv·D].
    pub(super) fn beside_cache(
        attention: &Attention,
        qkv: &View,
        cache: &View,
        name: &'static str,
    ) -> Result<Self> {
        let &[key_rows, keys, kv_stride] = cache.of.shape.dims() else { unreachable!("checked at bind") };
        Ok(Heads { keys, key_rows, kv_stride, ..Heads::joint(attention, qkv, name)? })
    }

    fn checked(self, name: &'static str) -> Result<Self> {
        if self.size <= MOST_HEAD {
            return Ok(self);
        }
        let detail =
            format!("heads of {} elements; the cuda backend has heads of up to {MOST_HEAD}", self.size);
        Err(Error::Shape { op: name, detail })
    }

    /// Where queries, keys and values begin that lie side by side.
    pub(super) fn parts(&self, qkv: Arg) -> [Arg; 3] {
        self.parts_before().map(|before| qkv.plus(before * self.real.bytes()))
    }

    /// Elements of a row before its queries, keys and values, where they lie side by side.
    pub(super) fn parts_before(&self) -> [usize; 3] {
        let Attention { heads, kv_heads, .. } = self.attention;
        [0, heads, heads + kv_heads].map(|before| before * self.size)
    }

    /// Where queries, keys and values begin that lie side by side in bytes, as they stand and transposed.
    pub(super) fn parts_of_bytes(&self, rows: Arg, transposed: Arg) -> [[Arg; 2]; 3] {
        let positions = self.batch * self.queries;
        self.parts_before().map(|before| [rows.plus(before), transposed.plus(before * positions)])
    }

    /// Positions of queries.
    pub(in super::super) fn positions(&self) -> usize {
        self.queries
    }

    pub(super) fn group(&self) -> usize {
        self.attention.heads / self.attention.kv_heads
    }

    /// The head size that the kernel is compiled for: what is missing is zeroes.
    pub(super) fn padded(&self) -> usize {
        [64, MOST_UNIT_HEAD].into_iter().find(|&padded| self.size <= padded).unwrap_or(MOST_HEAD)
    }

    /// Bytes of a row of a padded head.
    pub(super) fn row_bytes(&self) -> usize {
        self.padded() * self.real.bytes()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.batch * self.queries * self.size == 0
    }

    /// Whether the matrix units have kernels for it.
    pub(super) fn suits_units(&self) -> bool {
        self.real != DType::F32 && self.size <= MOST_UNIT_HEAD
    }

    pub(super) fn source(&self) -> Source {
        if self.suits_units() { Source::Attention } else { Source::AttentionF32 }
    }

    /// What operands of products in f32 storage are rounded to. Other storage rounds to itself.
    pub(super) fn products(&self) -> usize {
        match (self.real, self.attention.products) {
            (DType::F32, DType::BF16) => 1,
            (DType::F32, DType::F16) => 2,
            _ => 0,
        }
    }

    /// Whether `attention_hopper.cu` has kernels for it. `views` are all operands.
    pub(in super::super) fn suits_warpgroups<'a>(
        &self,
        builder: &Builder<'_>,
        views: impl IntoIterator<Item = &'a View>,
    ) -> bool {
        let Attention { cached, borders, window, .. } = self.attention;
        builder.has_warpgroup_products()
            && self.real != DType::F32
            && [64, 128].contains(&self.size)
            && !(cached || borders || window > 0 || self.keys == 0)
            && views.into_iter().all(|view| view.offset_bytes.is_multiple_of(16))
    }

    /// Heads that begin at `at`: with as many positions as there are queries, or keys.
    pub(super) fn rows(&self, at: Arg, of_queries: bool, stride: usize) -> HeadRows {
        let Arg::Pointer(at) = at else { unreachable!("operands have addresses") };
        let Attention { heads, kv_heads, .. } = self.attention;
        let (heads, positions) = if of_queries { (heads, self.queries) } else { (kv_heads, self.keys) };
        HeadRows { at, real: self.real, size: self.size, heads, positions, samples: self.batch, stride }
    }

    /// Queries, keys and values.
    pub(super) fn all_rows(&self, [q, k, v]: [Arg; 3]) -> [HeadRows; 3] {
        let of_keys = |at| self.rows(at, false, self.kv_stride);
        [self.rows(q, true, self.q_stride), of_keys(k), of_keys(v)]
    }

    /// The settings that the files are compiled with. `views` are all operands.
    pub(super) fn defines<'a>(
        &self,
        views: impl IntoIterator<Item = &'a View>,
    ) -> [(&'static str, usize); 3] {
        let is_wide = (self.size * self.real.bytes()).is_multiple_of(16)
            && views.into_iter().all(|view| view.offset_bytes.is_multiple_of(16));
        [("HEAD", self.padded()), ("WIDE", usize::from(is_wide)), ("PRODUCTS", self.products())]
    }

    /// A block per piece of the queries or keys, head and sample.
    pub(super) fn grid(&self, pieces: usize, heads: usize, threads: u32, shared_bytes: usize) -> Grid {
        let count = |blocks: usize| u32::try_from(blocks).expect("a grid's blocks");
        Grid {
            blocks: [count(pieces), count(heads), count(self.batch)],
            threads,
            shared_bytes: u32::try_from(shared_bytes).expect("a block's shared memory"),
        }
    }

    pub(super) fn causal(&self) -> Arg {
        Arg::U32(u32::from(self.attention.mask == Mask::Causal))
    }

    pub(super) fn window(&self) -> Arg {
        let window = self.attention.window;
        Arg::from(if window == 0 { NO_WINDOW } else { window.min(NO_WINDOW) })
    }

    pub(super) fn scale(&self) -> Arg {
        Arg::F32((1.0 / (self.size as f64).sqrt()) as f32)
    }

    /// What every kernel over whole sequences takes last.
    pub(super) fn constants(&self) -> [Arg; 10] {
        let [queries, keys, heads, group] =
            [self.queries, self.keys, self.attention.heads, self.group()].map(Arg::from);
        let [size, q_stride, kv_stride] = [self.size, self.q_stride, self.kv_stride].map(Arg::from);
        [queries, keys, heads, group, size, q_stride, kv_stride, self.causal(), self.window(), self.scale()]
    }
}
