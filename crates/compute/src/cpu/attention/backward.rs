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
        gemm::{Matrix, Packed, Place, Requests},
        memory::Operands,
        pool,
        shared::{Grid, Tile, for_tiles},
        simd::Simd,
        vector::{self, ScoreRow, VECTOR},
    },
    Part, Sizes,
};

/// Queries of a block: the length of the sums that one visit of d_k and d_v adds.
const BLOCK: usize = 64;
/// Queries after which sums for d_k and d_v may begin: a multiple of every family's lanes.
const RUN: usize = VECTOR;
/// Keys of the next head that are asked for ahead; more would push out of the second cache what this one works on.
const MOST_REQUESTED: usize = 256;
/// Queries or keys of a small task, a multiple of [`BLOCK`].
const CHUNK: usize = 128;

/// The scratch of a task: keys packed both ways and values, a block's probabilities and gradients of scores, its queries
/// or gradients of outputs, and packed rows of any product.
pub(in super::super) fn needs(simd: Simd, sizes: Sizes) -> Needs {
    let Sizes { keys, head_dim, .. } = sizes;
    let products = sizes.attention.products;
    let packed = |n, k| Packed::elements(simd, products, [n, k]);
    let block = BLOCK.min(sizes.queries);
    let rows = Packed::row_elements(simd, products, keys.max(head_dim).max(block));
    let packed = 2 * packed(keys, head_dim) + packed(head_dim, keys) + packed(head_dim, block) + rows;
    Needs { scratch: packed + 2 * block * keys.next_multiple_of(VECTOR), ..Needs::default() }
}

/// The gradients that are asked for: of queries, keys and values.
struct Gradients<'a> {
    q: Option<Tile<'a>>,
    k: Option<Tile<'a>>,
    v: Option<Tile<'a>>,
    /// Keys whose gradients are written, from the first on.
    written: usize,
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
    let threads = context.pool.threads();
    let is_split = batch * attention.kv_heads < threads && queries.max(keys) > CHUNK;
    if !is_split {
        let grids = [
            d_q.in_tiles([queries, sizes.group() * head_dim]),
            d_k.in_tiles([keys, head_dim]),
            d_v.in_tiles([keys, head_dim]),
        ];
        for_tiles(context.pool, grids, |[d_q, d_k, d_v], scratch| {
            let (b, kv_head) = (d_k.matrix, d_k.column / head_dim);
            let (packed, scratch) = task.pack((b, kv_head), 0..keys, scratch);
            let next = pool::following(threads, batch * attention.kv_heads, b * attention.kv_heads + kv_head);
            let next = next.map(|next| (next / attention.kv_heads, next % attention.kv_heads));
            let gradients = Gradients { q: Some(d_q), k: Some(d_k), v: Some(d_v), written: 0 };
            task.keys((b, kv_head), next, &packed, gradients, scratch);
        });
        return;
    }
    for_tiles(context.pool, [d_q.in_tiles([CHUNK, head_dim])], |[mut d_q], scratch| {
        let (b, h) = (d_q.matrix, d_q.column / head_dim);
        let (packed, scratch) = task.pack((b, h / sizes.group()), 0..keys, scratch);
        for rows in blocks(d_q.row_range()) {
            let part = rows.start - d_q.row..rows.end - d_q.row;
            let gradients = Gradients { q: Some(d_q.part(part, 0..head_dim)), k: None, v: None, written: 0 };
            task.block((b, h), rows, &packed, gradients, &mut Requests::of(&[]), scratch);
        }
    });
    let grids = [d_k.in_tiles([CHUNK, head_dim]), d_v.in_tiles([CHUNK, head_dim])];
    for_tiles(context.pool, grids, |[d_k, d_v], scratch| {
        let (b, kv_head) = (d_k.matrix, d_k.column / head_dim);
        let (packed, scratch) = task.pack((b, kv_head), d_k.row_range(), scratch);
        task.keys(
            (b, kv_head),
            None,
            &packed,
            Gradients { q: None, k: Some(d_k), v: Some(d_v), written: 0 },
            scratch,
        );
    });
}

/// Makes rows zeros.
fn zero(tile: &mut Tile<'_>, rows: Range<usize>) {
    rows.for_each(|row| tile.row_mut(row).fill(0.0));
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

    /// What all queries contribute to d_k and d_v of some keys, and d_q of them all when these are all keys. The thread is
    /// likely to go on with the head `next`.
    fn keys(
        &self,
        (b, kv_head): (usize, usize),
        next: Option<(usize, usize)>,
        packed: &PackedHead<'_>,
        mut gradients: Gradients<'_>,
        scratch: &mut [f32],
    ) {
        let Sizes { queries, head_dim, .. } = self.sizes;
        let group = self.sizes.group();
        for member in 0..group {
            let h = kv_head * group + member;
            for rows in blocks(0..queries) {
                let following = rows.end..(rows.end + BLOCK).min(queries);
                let mut requests = if !following.is_empty() {
                    Requests::of(&self.queries((b, h), following))
                } else if member + 1 < group {
                    Requests::of(&self.queries((b, h + 1), 0..BLOCK.min(queries)))
                } else {
                    next.map_or(Requests::of(&[]), |next| self.requests_of_head(next))
                };
                let columns = member * head_dim..(member + 1) * head_dim;
                let parts = Gradients {
                    q: gradients.q.as_mut().map(|d_q| d_q.part(rows.clone(), columns)),
                    k: gradients.k.as_mut().map(|d_k| d_k.part(0..d_k.rows(), 0..head_dim)),
                    v: gradients.v.as_mut().map(|d_v| d_v.part(0..d_v.rows(), 0..head_dim)),
                    written: gradients.written,
                };
                gradients.written = self.block((b, h), rows, packed, parts, &mut requests, scratch);
            }
        }
        for mut gradient in [gradients.k, gradients.v].into_iter().flatten() {
            zero(&mut gradient, gradients.written..packed.range.len());
        }
    }

    /// What a block of queries reads.
    fn queries(&self, head: (usize, usize), rows: Range<usize>) -> [Matrix<'_>; 3] {
        let sizes = self.sizes;
        [
            sizes.head(self.q, Part::Queries, head, rows.clone()),
            sizes.out_head(self.d_out, head, rows.clone()),
            sizes.out_head(self.out, head, rows),
        ]
    }

    /// What a key head begins with.
    fn requests_of_head(&self, (b, kv_head): (usize, usize)) -> Requests {
        let sizes = self.sizes;
        let keys = 0..sizes.keys.min(MOST_REQUESTED);
        let [q, d_out, out] = self.queries((b, kv_head * sizes.group()), 0..BLOCK.min(sizes.queries));
        Requests::of(&[
            sizes.head(self.k, Part::Keys, (b, kv_head), keys.clone()),
            sizes.head(self.v, Part::Values, (b, kv_head), keys),
            q,
            d_out,
            out,
        ])
    }

    /// Computes d_q of a block of queries and adds what they contribute to d_k and d_v, where asked to. Gives the keys whose
    /// gradients are written now.
    fn block(
        &self,
        (b, h): (usize, usize),
        rows: Range<usize>,
        packed: &PackedHead<'_>,
        Gradients { q: mut d_q, k: d_k, v: d_v, written }: Gradients<'_>,
        requests: &mut Requests,
        scratch: &mut [f32],
    ) -> usize {
        let Task { simd, sizes, .. } = *self;
        let (products, head_dim) = (sizes.attention.products, sizes.head_dim);
        let borders = sizes.borders_of(self.borders, b);
        let range = packed.part(sizes.visible_to(0, rows.clone(), borders));
        if range.is_empty() {
            return written;
        }
        let (count, stride) = (rows.len(), range.len().next_multiple_of(VECTOR));
        let (p, scratch) = scratch.split_at_mut(count * stride);
        let (d_s, scratch) = scratch.split_at_mut(count * stride);

        let seen_keys = packed.range.start + range.start..packed.range.start + range.end;
        let panel = Packed::rows(simd, products);
        for first in (0..count).step_by(panel) {
            let panel = first..(first + panel).min(count);
            let queries = rows.start + panel.start..rows.start + panel.end;
            let keys = packed.part(sizes.visible_to(0, queries.clone(), borders));
            let columns = keys.start.max(range.start) - range.start..keys.end.max(range.start) - range.start;
            if !keys.is_empty() {
                let q = sizes.head(self.q, Part::Queries, (b, h), queries.clone());
                let d_out = sizes.out_head(self.d_out, (b, h), queries.clone());
                let place = Place { first: 0, columns: keys.clone() };
                let mut p_tile = Tile::new(p, count, stride);
                let to = &mut p_tile.part(panel.clone(), columns.clone());
                packed.keys_across.multiply(q, place.clone(), to, false, requests, scratch);
                let mut d_s_tile = Tile::new(d_s, count, stride);
                let to = &mut d_s_tile.part(panel.clone(), columns.clone());
                packed.values_across.multiply(d_out, place, to, false, requests, scratch);
            }
            for row in panel.clone() {
                let place = row * stride..(row + 1) * stride;
                let (p, d_s) = (&mut p[place.clone()], &mut d_s[place]);
                self.row((b, h), rows.start + row, seen_keys.clone(), p, d_s);
            }
            if let Some(d_q) = &mut d_q {
                let d_s = &d_s[panel.start * stride + columns.start..];
                let d_s = Matrix::strided(d_s, panel.len(), columns.len(), stride);
                let place = Place { first: keys.start, columns: 0..head_dim };
                let to = &mut d_q.part(panel, 0..head_dim);
                packed.key_rows.multiply(d_s, place, to, false, requests, scratch);
            }
        }

        let q = sizes.head(self.q, Part::Queries, (b, h), rows.clone());
        let d_out = sizes.out_head(self.d_out, (b, h), rows.clone());
        let runs = self.runs(b, rows, seen_keys.clone());
        for (gradient, weights, of) in [(d_v, p, d_out), (d_k, d_s, q)] {
            let Some(mut gradient) = gradient else { continue };
            let (of, scratch) = Packed::new(simd, products, of, scratch);
            if range.start > written {
                zero(&mut gradient, written..range.start);
            }
            for (index, keys) in runs.iter().enumerate() {
                let first = index * RUN;
                // What is there is added to, what is not yet is begun.
                let fresh = (packed.range.start + written).clamp(keys.start, keys.end);
                for (keys, add) in [(keys.start..fresh, true), (fresh..keys.end, false)] {
                    if keys.is_empty() {
                        continue;
                    }
                    let from = first * stride + keys.start - seen_keys.start;
                    let weights = Matrix::strided(&weights[from..], count - first, keys.len(), stride);
                    let to = keys.start - packed.range.start..keys.end - packed.range.start;
                    let to = &mut gradient.part(to, 0..head_dim);
                    let place = Place { first, columns: 0..head_dim };
                    of.multiply(weights.transposed(), place, to, add, requests, scratch);
                }
            }
        }
        written.max(range.end)
    }

    /// Keys in runs: those of the run `i` are seen by no query of a block before the one at `i` times [`RUN`], so that sums over
    /// queries begin there.
    fn runs(&self, b: usize, rows: Range<usize>, keys: Range<usize>) -> [Range<usize>; BLOCK / RUN] {
        let borders = self.sizes.borders_of(self.borders, b);
        let mut start = keys.start;
        std::array::from_fn(|run| {
            let (queries, next) = (rows.start + run * RUN..rows.end, rows.start + (run + 1) * RUN);
            let seen = queries.take(RUN).map(|query| self.sizes.visible(0, query, borders).end).max();
            let end = if next < rows.end { seen.unwrap_or(start).clamp(start, keys.end) } else { keys.end };
            std::mem::replace(&mut start, end)..end
        })
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
        let row = ScoreRow { scale: sizes.scale(), statistic, delta };
        vector::score_grad(simd, row, visible, p, d_s);
    }
}
