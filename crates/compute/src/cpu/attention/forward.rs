//! Forward: one task per (sample, head, block of queries).

use super::{
    super::{
        Context, Needs,
        gemm::{self, Product},
        memory::Operands,
        shared::{Grid, Tile, for_tiles},
        simd::Simd,
        vector,
    },
    BLOCK, Sizes,
};
use crate::{op::Attention, tensor::Shape};

/// The scratch of a task: scores, and packed operands of either product.
pub(in super::super) fn needs(simd: Simd, attention: &Attention, q: Shape, k: Shape) -> Needs {
    let sizes = Sizes::new(attention, q, k);
    let rows = BLOCK.min(sizes.queries);
    let packed = gemm::needs_alone(simd, sizes.keys, sizes.head_dim).max(gemm::needs_alone(
        simd,
        sizes.head_dim,
        sizes.keys,
    ));
    Needs { scratch: rows * sizes.keys + packed, ..Needs::default() }
}

pub(in super::super) fn attention(
    context: &mut Context<'_>,
    operands: &mut Operands<'_>,
    attention: &Attention,
) {
    let simd = context.simd;
    let (q, k, v) = (operands.input(0), operands.input(1), operands.input(2));
    let starts = attention.cached.then(|| operands.indices(3));
    let borders = attention.borders.then(|| operands.indices(3 + usize::from(attention.cached)));
    let sizes = Sizes::new(attention, operands.input_type(0).shape, operands.input_type(1).shape);
    let Sizes { batch, queries, heads, head_dim, .. } = sizes;
    // Both grids number their tiles by sample, head and block.
    let out =
        Grid::new(operands.output(0), [batch, queries, heads * head_dim], [BLOCK, head_dim]).by_columns();
    let statistics = Grid::new(operands.output(1), [batch, heads, queries], [1, BLOCK]);
    for_tiles(context.pool, [out, statistics], |[mut out, mut log_sum_exp], scratch| {
        let (b, h) = (out.matrix, out.column / head_dim);
        let kv_head = h / sizes.group();
        let start = starts.map_or(0, |starts| starts[b] as usize);
        let rows = out.row_range();
        let borders = sizes.borders_of(borders, b);
        let keys = sizes.visible_to_block(start, rows.clone(), borders);
        let seen = keys.len();
        let (scores, scratch) = scratch.split_at_mut(rows.len() * seen);

        let product = Product {
            a: sizes.query_head(q, (b, h), rows.clone()),
            b: sizes.key_head(k, (b, kv_head), keys.clone()).transposed(),
            bias: None,
            add: false,
        };
        gemm::multiply_alone(simd, product, &mut Tile::new(scores, rows.len(), seen), scratch);

        // Numerators first: dividing D numbers of the output is less work than dividing all probabilities.
        let mut sums = [0.0; BLOCK];
        for (row, scores) in scores.chunks_exact_mut(seen).enumerate() {
            let visible = sizes.visible(start, rows.start + row, borders);
            let visible = visible.start - keys.start..visible.end - keys.start;
            let (max, sum) = vector::softmax_numerators(simd, &mut scores[visible.clone()], sizes.scale());
            scores[..visible.start].fill(0.0);
            scores[visible.end..].fill(0.0);
            sums[row] = sum;
            log_sum_exp.row_mut(0)[row] = max + sum.ln();
        }

        let product = Product {
            a: gemm::Matrix::new(scores, rows.len(), seen),
            b: sizes.key_head(v, (b, kv_head), keys),
            bias: None,
            add: false,
        };
        gemm::multiply_alone(simd, product, &mut out, scratch);
        for (row, sum) in sums.iter().enumerate().take(rows.len()) {
            vector::scale(simd, 1.0 / sum, out.row_mut(row));
        }
    });
}
