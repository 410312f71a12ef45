//! Backward: one task per (sample, key head), which owns d_k and d_v of that head and d_q of the query heads that share it.
//!
//! Scores are calculated again. With P the probabilities and δ = Σ d_out·out of a row: d_v = Pᵀ·d_out; d_P = d_out·vᵀ;
//! d_S = P·(d_P − δ)·scale; d_q = d_S·k; d_k = d_Sᵀ·q. Query heads and blocks are added in order.

use super::{
    super::{
        Context, Needs,
        gemm::{self, Matrix, Product},
        memory::Operands,
        shared::{Grid, Tile, for_tiles},
        simd::Simd,
        vector,
    },
    BLOCK, Sizes,
};
use crate::{op::Attention, tensor::Shape};

/// The scratch of a task: probabilities and their gradients, and packed operands of any of the five products.
pub(in super::super) fn needs(simd: Simd, attention: &Attention, q: Shape, k: Shape) -> Needs {
    let sizes = Sizes::new(attention, q, k);
    let rows = BLOCK.min(sizes.queries);
    let packed = [(sizes.keys, sizes.head_dim), (sizes.head_dim, sizes.keys), (sizes.head_dim, rows)]
        .map(|(n, k)| gemm::needs_alone(simd, n, k));
    let packed = packed.into_iter().max().unwrap_or(0);
    Needs { scratch: 2 * rows * sizes.keys + packed, ..Needs::default() }
}

pub(in super::super) fn attention_grad(
    context: &mut Context<'_>,
    operands: &mut Operands<'_>,
    attention: &Attention,
) {
    let simd = context.simd;
    let (d_out, q, k, v) = (operands.input(0), operands.input(1), operands.input(2), operands.input(3));
    let (out, log_sum_exp) = (operands.input(4), operands.input(5));
    let borders = attention.borders.then(|| operands.indices(6));
    let sizes = Sizes::new(attention, operands.input_type(1).shape, operands.input_type(2).shape);
    let Sizes { batch, queries, keys, heads, kv_heads, head_dim, .. } = sizes;
    let owned = sizes.group() * head_dim;
    let (query_size, key_size) = ([batch, queries, heads * head_dim], [batch, keys, kv_heads * head_dim]);
    let grids = [
        Grid::new(operands.output(0), query_size, [queries, owned]),
        Grid::new(operands.output(1), key_size, [keys, head_dim]),
        Grid::new(operands.output(2), key_size, [keys, head_dim]),
    ];
    let scale = sizes.scale();
    for_tiles(context.pool, grids, |[mut d_q, mut d_k, mut d_v], scratch| {
        let (b, kv_head) = (d_k.matrix, d_k.column / head_dim);
        for row in 0..keys {
            d_k.row_mut(row).fill(0.0);
            d_v.row_mut(row).fill(0.0);
        }
        for member in 0..sizes.group() {
            let h = kv_head * sizes.group() + member;
            for first in (0..queries).step_by(BLOCK) {
                let rows = first..(first + BLOCK).min(queries);
                let count = rows.len();
                let borders = sizes.borders_of(borders, b);
                let range = sizes.visible_to_block(0, rows.clone(), borders);
                let seen = range.len();
                let (p, scratch) = scratch.split_at_mut(count * seen);
                let (d_s, scratch) = scratch.split_at_mut(count * seen);
                let block = |data| sizes.query_head(data, (b, h), rows.clone());
                let keys = sizes.key_head(k, (b, kv_head), range.clone());
                let values = sizes.key_head(v, (b, kv_head), range.clone());
                let mut multiply = |a, b, c: &mut Tile<'_>, add| {
                    gemm::multiply_alone(simd, Product { a, b, bias: None, add }, c, scratch);
                };

                multiply(block(q), keys.transposed(), &mut Tile::new(p, count, seen), false);
                multiply(block(d_out), values.transposed(), &mut Tile::new(d_s, count, seen), false);
                for (row, (p, d_s)) in p.chunks_exact_mut(seen).zip(d_s.chunks_exact_mut(seen)).enumerate() {
                    let t = rows.start + row;
                    let place = (b * queries + t) * heads * head_dim + h * head_dim;
                    let place = place..place + head_dim;
                    let delta = vector::dot(simd, &d_out[place.clone()], &out[place]);
                    let visible = sizes.visible(0, t, borders);
                    let visible = visible.start - range.start..visible.end - range.start;
                    let statistic = log_sum_exp[(b * heads + h) * queries + t];
                    let (seen_p, seen_d_s) = (&mut p[visible.clone()], &mut d_s[visible.clone()]);
                    vector::probabilities(simd, seen_p, scale, statistic);
                    vector::score_grad(simd, seen_p, delta, scale, seen_d_s);
                    for hidden in [0..visible.start, visible.end..seen] {
                        p[hidden.clone()].fill(0.0);
                        d_s[hidden].fill(0.0);
                    }
                }
                let (p, d_s) = (Matrix::new(p, count, seen), Matrix::new(d_s, count, seen));
                multiply(p.transposed(), block(d_out), &mut d_v.part(range.clone(), 0..head_dim), true);
                multiply(d_s.transposed(), block(q), &mut d_k.part(range.clone(), 0..head_dim), true);
                let columns = member * head_dim..(member + 1) * head_dim;
                multiply(d_s, keys, &mut d_q.part(rows.clone(), columns), false);
            }
        }
    });
}
