//! Backward: one task per (sample, key head), which owns d_k and d_v of that head and d_q of the query heads that share it.
//! With fewer of those than threads there are two rounds of smaller tasks, for chunks of d_q and for chunks of d_k and d_v;
//! both calculate the scores that they need, in the same order, so the results are the same.
//!
//! Scores are calculated again. With P the probabilities and δ = Σ d_out·out of a row: d_v = Pᵀ·d_out; d_P = d_out·vᵀ;
//! d_S = P·(d_P − δ)·scale; d_q = d_S·k; d_k = d_Sᵀ·q. Query heads and blocks are added in order.

use std::ops::Range;

use super::{
    super::{
        Context, Needs,
        gemm::{Matrix, Packed},
        memory::Operands,
        shared::{Grid, Tile, for_tiles},
        simd::Simd,
        vector,
    },
    Part, Sizes,
};

/// Queries of a block: the length of the sums that one visit of d_k and d_v adds.
const BLOCK: usize = 64;
/// Queries or keys of a small task, a multiple of [`BLOCK`].
const CHUNK: usize = 128;

/// The scratch of a task: keys packed both ways and values, a block's probabilities and gradients of scores, its queries
/// and gradients of outputs, and packed rows of any product.
pub(in super::super) fn needs(simd: Simd, sizes: Sizes) -> Needs {
    let Sizes { keys, head_dim, .. } = sizes;
    let products = sizes.attention.products;
    let packed = |n, k| Packed::elements(simd, products, [n, k]);
    let block = BLOCK.min(sizes.queries);
    let rows = Packed::row_elements(simd, products, keys.max(head_dim).max(block));
    let packed = 2 * packed(keys, head_dim) + packed(head_dim, keys) + 2 * packed(head_dim, block) + rows;
    // The first key of a block is aligned, which can add a few.
    Needs { scratch: packed + 2 * block * keys, ..Needs::default() }
}

/// What the tasks read.
struct Task<'a> {
    simd: Simd,
    sizes: Sizes,
    d_out: &'a [f32],
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    out: &'a [f32],
    log_sum_exp: &'a [f32],
    borders: Option<&'a [u32]>,
}

/// The operands are d_out, then (q, k, v) or all three in one, then out, log-sum-exp and borders where there are any; the
/// gradients are those of (q, k, v) or of all three in one.
pub(in super::super) fn attention_grad<const N: usize>(
    context: &mut Context<'_>,
    operands: &Operands<'_>,
    gradients: [&mut [f32]; N],
    sizes: Sizes,
) {
    let simd = context.simd;
    let Sizes { batch, queries, keys, head_dim, attention, .. } = sizes;
    let [q, k, v] = if sizes.is_joint { [1, 1, 1] } else { [1, 2, 3] }.map(|index| operands.input(index));
    let next = if sizes.is_joint { 2 } else { 4 };
    let task = Task {
        simd,
        sizes,
        d_out: operands.input(0),
        q,
        k,
        v,
        out: operands.input(next),
        log_sum_exp: operands.input(next + 1),
        borders: attention.borders.then(|| operands.indices(next + 2)),
    };
    let widths = [attention.heads, attention.kv_heads, attention.kv_heads].map(|heads| heads * head_dim);
    let mut gradients = gradients.into_iter();
    let mut grid = |rows: usize, columns: usize| {
        let gradient = gradients.next().expect("one gradient for all, or one for each");
        Grid::new(gradient, [batch, rows, columns], [rows, columns])
    };
    let [d_q, d_k, d_v] = if sizes.is_joint {
        grid(queries, widths.iter().sum()).side_by_side(widths)
    } else {
        [grid(queries, widths[0]), grid(keys, widths[1]), grid(keys, widths[2])]
    };
    let is_split = batch * attention.kv_heads < context.pool.threads() && queries.max(keys) > CHUNK;
    if !is_split {
        let grids = [
            d_q.in_tiles([queries, sizes.group() * head_dim]),
            d_k.in_tiles([keys, head_dim]),
            d_v.in_tiles([keys, head_dim]),
        ];
        for_tiles(context.pool, grids, |[mut d_q, mut d_k, mut d_v], scratch| {
            let (b, kv_head) = (d_k.matrix, d_k.column / head_dim);
            let (packed, scratch) = task.pack((b, kv_head), 0..keys, scratch);
            task.keys((b, kv_head), &packed, Some(&mut d_q), Some((&mut d_k, &mut d_v)), scratch);
        });
        return;
    }
    for_tiles(context.pool, [d_q.in_tiles([CHUNK, head_dim])], |[mut d_q], scratch| {
        let (b, h) = (d_q.matrix, d_q.column / head_dim);
        let (packed, scratch) = task.pack((b, h / sizes.group()), 0..keys, scratch);
        for rows in blocks(d_q.row_range()) {
            let part = rows.start - d_q.row..rows.end - d_q.row;
            let d_q = &mut d_q.part(part, 0..head_dim);
            task.block((b, h), rows, &packed, Some(d_q), None, scratch);
        }
    });
    let grids = [d_k.in_tiles([CHUNK, head_dim]), d_v.in_tiles([CHUNK, head_dim])];
    for_tiles(context.pool, grids, |[mut d_k, mut d_v], scratch| {
        let (b, kv_head) = (d_k.matrix, d_k.column / head_dim);
        let (packed, scratch) = task.pack((b, kv_head), d_k.row_range(), scratch);
        task.keys((b, kv_head), &packed, None, Some((&mut d_k, &mut d_v)), scratch);
    });
}

/// Queries in blocks.
fn blocks(rows: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = rows.end;
    rows.step_by(BLOCK).map(move |first| first..(first + BLOCK).min(end))
}

/// The operands of products that all queries of a key head share, for some of its keys.
struct PackedHead<'a> {
    range: Range<usize>,
    keys_across: Packed<'a>,
    values_across: Packed<'a>,
    key_rows: Packed<'a>,
}

impl PackedHead<'_> {
    /// The packed keys of a range, counted from the first packed one; they begin where a product may.
    fn part(&self, range: Range<usize>) -> Range<usize> {
        let inside = |key: usize| key.clamp(self.range.start, self.range.end) - self.range.start;
        let (start, end) = (inside(range.start), inside(range.end));
        if start < end { self.keys_across.aligned(start)..end } else { 0..0 }
    }
}

impl Task<'_> {
    /// Packs some keys and values of a head into the front of some scratch, and gives back what is left of it.
    fn pack<'a>(
        &self,
        head: (usize, usize),
        range: Range<usize>,
        scratch: &'a mut [f32],
    ) -> (PackedHead<'a>, &'a mut [f32]) {
        let Task { simd, sizes, .. } = *self;
        let keys = sizes.head(self.k, Part::Keys, head, range.clone());
        let values = sizes.head(self.v, Part::Values, head, range.clone());
        let products = sizes.attention.products;
        let (keys_across, scratch) = Packed::new(simd, products, keys.transposed(), scratch);
        let (values_across, scratch) = Packed::new(simd, products, values.transposed(), scratch);
        let (key_rows, scratch) = Packed::new(simd, products, keys, scratch);
        (PackedHead { range, keys_across, values_across, key_rows }, scratch)
    }

    /// What all queries contribute to d_k and d_v of some keys, and d_q of them all when these are all keys.
    fn keys(
        &self,
        (b, kv_head): (usize, usize),
        packed: &PackedHead<'_>,
        mut d_q: Option<&mut Tile<'_>>,
        mut d_kv: Option<(&mut Tile<'_>, &mut Tile<'_>)>,
        scratch: &mut [f32],
    ) {
        let Sizes { queries, head_dim, .. } = self.sizes;
        if let Some((d_k, d_v)) = &mut d_kv {
            for row in 0..d_k.rows() {
                d_k.row_mut(row).fill(0.0);
                d_v.row_mut(row).fill(0.0);
            }
        }
        for member in 0..self.sizes.group() {
            let h = kv_head * self.sizes.group() + member;
            for rows in blocks(0..queries) {
                let columns = member * head_dim..(member + 1) * head_dim;
                let mut d_q = d_q.as_mut().map(|d_q| d_q.part(rows.clone(), columns));
                let d_kv = d_kv.as_mut().map(|(d_k, d_v)| (&mut **d_k, &mut **d_v));
                self.block((b, h), rows, packed, d_q.as_mut(), d_kv, scratch);
            }
        }
    }

    /// Computes d_q of a block of queries and adds what they contribute to d_k and d_v, where asked to.
    fn block(
        &self,
        (b, h): (usize, usize),
        rows: Range<usize>,
        packed: &PackedHead<'_>,
        mut d_q: Option<&mut Tile<'_>>,
        d_kv: Option<(&mut Tile<'_>, &mut Tile<'_>)>,
        scratch: &mut [f32],
    ) {
        let Task { simd, sizes, .. } = *self;
        let (products, head_dim) = (sizes.attention.products, sizes.head_dim);
        let borders = sizes.borders_of(self.borders, b);
        let range = packed.part(sizes.visible_to(0, rows.clone(), borders));
        if range.is_empty() {
            return;
        }
        let (count, seen) = (rows.len(), range.len());
        let (p, scratch) = scratch.split_at_mut(count * seen);
        let (d_s, scratch) = scratch.split_at_mut(count * seen);

        let panel = Packed::rows(simd, products);
        for first in (0..count).step_by(panel) {
            let panel = first..(first + panel).min(count);
            let queries = rows.start + panel.start..rows.start + panel.end;
            let keys = packed.part(sizes.visible_to(0, queries.clone(), borders));
            let columns = keys.start.max(range.start) - range.start..keys.end.max(range.start) - range.start;
            if !keys.is_empty() {
                let q = sizes.head(self.q, Part::Queries, (b, h), queries.clone());
                let d_out = sizes.out_head(self.d_out, (b, h), queries.clone());
                let mut p_tile = Tile::new(p, count, seen);
                let to = &mut p_tile.part(panel.clone(), columns.clone());
                packed.keys_across.multiply(q, 0, keys.clone(), to, false, scratch);
                let mut d_s_tile = Tile::new(d_s, count, seen);
                let to = &mut d_s_tile.part(panel.clone(), columns.clone());
                packed.values_across.multiply(d_out, 0, keys.clone(), to, false, scratch);
            }
            let seen_keys = packed.range.start + range.start..packed.range.start + range.end;
            for row in panel.clone() {
                let place = row * seen..(row + 1) * seen;
                let (p, d_s) = (&mut p[place.clone()], &mut d_s[place]);
                self.row((b, h), rows.start + row, seen_keys.clone(), p, d_s);
            }
            if let Some(d_q) = &mut d_q {
                let d_s = &d_s[panel.start * seen + columns.start..];
                let d_s = Matrix::strided(d_s, panel.len(), columns.len(), seen);
                let to = &mut d_q.part(panel, 0..head_dim);
                packed.key_rows.multiply(d_s, keys.start, 0..head_dim, to, false, scratch);
            }
        }

        let Some((d_k, d_v)) = d_kv else { return };
        let (p, d_s) = (Matrix::new(p, count, seen), Matrix::new(d_s, count, seen));
        let d_out = sizes.out_head(self.d_out, (b, h), rows.clone());
        let (d_out, scratch) = Packed::new(simd, products, d_out, scratch);
        let to = &mut d_v.part(range.clone(), 0..head_dim);
        d_out.multiply(p.transposed(), 0, 0..head_dim, to, true, scratch);
        let q = sizes.head(self.q, Part::Queries, (b, h), rows);
        let (q, scratch) = Packed::new(simd, products, q, scratch);
        q.multiply(d_s.transposed(), 0, 0..head_dim, &mut d_k.part(range, 0..head_dim), true, scratch);
    }

    /// Turns a row of scores into probabilities, and gradients of probabilities into gradients of scores.
    /// Keys that the query does not see come out as zeros.
    fn row(&self, (b, h): (usize, usize), t: usize, keys: Range<usize>, p: &mut [f32], d_s: &mut [f32]) {
        let Task { simd, sizes, .. } = *self;
        let (heads, queries, head_dim) = (sizes.attention.heads, sizes.queries, sizes.head_dim);
        let place = ((b * queries + t) * heads + h) * head_dim;
        let place = place..place + head_dim;
        let delta = vector::dot(simd, &self.d_out[place.clone()], &self.out[place]);
        let visible = sizes.visible(0, t, sizes.borders_of(self.borders, b));
        let inside = |key: usize| key.clamp(keys.start, keys.end) - keys.start;
        let visible = inside(visible.start)..inside(visible.end);
        let statistic = self.log_sum_exp[(b * heads + h) * queries + t];
        let (seen_p, seen_d_s) = (&mut p[visible.clone()], &mut d_s[visible.clone()]);
        vector::probabilities(simd, seen_p, sizes.scale(), statistic);
        vector::score_grad(simd, seen_p, delta, sizes.scale(), seen_d_s);
        for hidden in [0..visible.start, visible.end..p.len()] {
            p[hidden.clone()].fill(0.0);
            d_s[hidden].fill(0.0);
        }
    }
}
