//! Forward: one task per (sample, head, chunk of queries).

use super::{
    super::{
        Context, Needs,
        gemm::{FewRows, Matrix, Packed, Place, Requests},
        memory::Operands,
        pool,
        shared::{Grid, Tile, for_tiles},
        simd::Simd,
        vector::{self, VECTOR},
    },
    Part, Sizes, decode,
};

/// Queries of a task: enough to make packing the keys a small part of it, few enough for many tasks on long samples.
const CHUNK: usize = 256;

/// The scratch of a task: packed keys and values, scores, and packed rows of either product.
pub(in super::super) fn needs(simd: Simd, sizes: Sizes) -> Needs {
    let Sizes { keys, head_dim, .. } = sizes;
    let products = sizes.attention.products;
    let packed = Packed::elements(simd, products, [keys, head_dim])
        + Packed::elements(simd, products, [head_dim, keys])
        + Packed::row_elements(simd, products, keys.max(head_dim));
    // One query over a cache packs that and its scores, and no keys and values.
    let few = 2 * FewRows::MOST * keys.max(head_dim);
    let scores = Packed::rows(simd, products) * keys.next_multiple_of(VECTOR);
    Needs { scratch: (packed + scores).max(few), ..Needs::default() }
}

/// The operands are (q, k, v) or all three in one, then places and borders where there are any.
pub(in super::super) fn attention(context: &mut Context<'_>, operands: &mut Operands<'_>, sizes: Sizes) {
    let attention = sizes.attention;
    let own = if sizes.is_joint { 1 } else { 3 };
    let qkv = if sizes.is_joint { [0, 0, 0] } else { [0, 1, 2] }.map(|index| operands.input(index));
    let places = attention.cached.then(|| operands.indices(own));
    let borders = attention.borders.then(|| operands.indices(own + usize::from(attention.cached)));
    attend(context, sizes, qkv, [places, borders], [operands.output(0), operands.output(1)]);
}

/// The operands are all three in one, and places; keys and values go into the caches first.
pub(in super::super) fn cached_attention(
    context: &mut Context<'_>,
    operands: &mut Operands<'_>,
    sizes: Sizes,
) {
    let Sizes { queries, key_rows, keys, query_stride, head_dim, attention, .. } = sizes;
    let (qkv, places) = (operands.input(0), operands.indices(1));
    let columns = attention.kv_heads * head_dim;
    let mut caches = [2, 3].map(|index| operands.output(index));
    for (part, cache) in caches.iter_mut().enumerate() {
        let first = attention.heads * head_dim + part * columns;
        for (b, place) in places.chunks_exact(2).enumerate() {
            let (row, start) = (place[0] as usize, place[1] as usize);
            for t in 0..queries {
                // Padding behind a short sample may reach past the cache's end; nothing ever reads it.
                if row < key_rows && start.saturating_add(t) < keys {
                    let new = &qkv[(b * queries + t) * query_stride + first..][..columns];
                    cache[(row * keys + start + t) * columns..][..columns].copy_from_slice(new);
                }
            }
        }
    }
    let [k, v] = caches;
    attend(context, sizes, [qkv, k, v], [Some(places), None], [operands.output(0), operands.output(1)]);
}

fn attend(
    context: &mut Context<'_>,
    sizes: Sizes,
    [q, k, v]: [&[f32]; 3],
    [places, borders]: [Option<&[u32]>; 2],
    [out, log_sum_exp]: [&mut [f32]; 2],
) {
    let simd = context.simd;
    if let (true, Some(places)) = (decode::suits(simd, sizes), places) {
        return decode::attention(context, sizes, [q, k, v], places, [out, log_sum_exp]);
    }
    let Sizes { batch, queries, head_dim, attention, .. } = sizes;
    // Both grids number their tiles by sample, head and chunk.
    let size = [batch, queries, attention.heads * head_dim];
    let out = Grid::new(out, size, [CHUNK, head_dim]).by_columns();
    let statistics = Grid::new(log_sum_exp, [batch, attention.heads, queries], [1, CHUNK]);
    let (threads, tiles) = (context.pool.threads(), out.count());
    for_tiles(context.pool, [out, statistics], |[mut out, mut log_sum_exp], scratch| {
        let (b, h) = (out.matrix, out.column / head_dim);
        let chunks = queries.div_ceil(CHUNK);
        let index = (b * attention.heads + h) * chunks + out.row / CHUNK;
        let next_head = pool::following(threads, tiles, index).filter(|next| next.is_multiple_of(chunks));
        // A cache is read by one query or by few, which pack little.
        let next_head = next_head.filter(|_| places.is_none());
        let mut requests = next_head.map_or(Requests::of(&[]), |next| {
            let (b, h) = (next / chunks / attention.heads, next / chunks % attention.heads);
            let (keys, kv_head) = (0..sizes.keys.min(CHUNK), h / sizes.group());
            Requests::of(&[
                sizes.head(k, Part::Keys, (b, kv_head), keys.clone()),
                sizes.head(v, Part::Values, (b, kv_head), keys),
                sizes.head(q, Part::Queries, (b, h), 0..sizes.queries.min(CHUNK)),
            ])
        });
        let kv_head = h / sizes.group();
        let (row, start) = sizes.place_of(places, b);
        let borders = sizes.borders_of(borders, b);
        let keys = sizes.visible_to(start, out.row_range(), borders);
        let packed_keys = sizes.head(k, Part::Keys, (row, kv_head), keys.clone()).transposed();
        let (packed_keys, scratch) = Packed::new(simd, attention.products, packed_keys, scratch);
        let packed_values = sizes.head(v, Part::Values, (row, kv_head), keys.clone());
        let (packed_values, scratch) = Packed::new(simd, attention.products, packed_values, scratch);

        let panel = Packed::rows(simd, attention.products);
        for first in (0..out.rows()).step_by(panel) {
            let count = panel.min(out.rows() - first);
            let queries = out.row + first..out.row + first + count;
            let seen = sizes.visible_to(start, queries.clone(), borders);
            let seen = packed_keys.aligned(seen.start - keys.start)..seen.end - keys.start;
            let stride = seen.len().next_multiple_of(VECTOR);
            let (scores, scratch) = scratch.split_at_mut(count * stride);
            let q = sizes.head(q, Part::Queries, (b, h), queries.clone());
            let to = &mut Tile::new(scores, count, stride);
            let to = &mut to.part(0..count, 0..seen.len());
            let place = Place { first: 0, columns: seen.clone() };
            packed_keys.multiply(q, place, to, false, &mut requests, scratch);

            // Numerators first: dividing D numbers of the output is less work than dividing all probabilities.
            let mut sums = [0.0; 8];
            for (query, scores) in scores.chunks_exact_mut(stride).enumerate() {
                let visible = sizes.visible(start, queries.start + query, borders);
                let visible = visible.start - keys.start - seen.start..visible.end - keys.start - seen.start;
                let (max, sum) = vector::softmax_numerators(simd, scores, visible.clone(), sizes.scale());
                scores[..visible.start].fill(0.0);
                scores[visible.end..].fill(0.0);
                sums[query] = sum;
                log_sum_exp.row_mut(0)[first + query] = max + sum.ln();
            }

            let to = &mut out.part(first..first + count, 0..head_dim);
            let numerators = Matrix::strided(scores, count, seen.len(), stride);
            let place = Place { first: seen.start, columns: 0..head_dim };
            packed_values.multiply(numerators, place, to, false, &mut requests, scratch);
            // What a query does not see counts 0 times, and 0 times what is not finite is no number. The same values were summed
            // for all queries of the panel, so the first tells; then each is summed over what it sees alone.
            if count > 1 && !is_finite(to.row_mut(0)) {
                for (query, scores) in scores.chunks_exact(stride).enumerate() {
                    let to = to.row_mut(query);
                    to.fill(0.0);
                    for key in sizes.visible(start, queries.start + query, borders) {
                        let value = sizes.head_row(v, Part::Values, (row, kv_head), key);
                        let numerator = scores[key - keys.start - seen.start];
                        to.iter_mut().zip(value).for_each(|(to, value)| *to += numerator * value);
                    }
                }
            }
            for (query, sum) in sums.iter().enumerate().take(count) {
                vector::scale(simd, 1.0 / sum, to.row_mut(query));
            }
        }
    });
}

/// Whether all numbers are finite. Without a way out of the loop, so that it takes few instructions for many numbers.
fn is_finite(numbers: &[f32]) -> bool {
    let magnitude = |x: &f32| x.to_bits() & 0x7FFF_FFFF;
    numbers.iter().fold(0, |largest, x| magnitude(x).max(largest)) < f32::INFINITY.to_bits()
}
