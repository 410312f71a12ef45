//! One query a sample over a cache: keys and values are read where they lie, once for all query heads that share them.
//!
//! Sums run in the order of the packed way, so a token has the same numbers whichever of the two computed it.

use super::{
    super::{
        Context,
        gemm::FewRows,
        shared::{Grid, Tile, for_tiles},
        simd::Simd,
        vector,
    },
    Part, Sizes,
};
use crate::tensor::DType;

/// Whether there are loops for such an attention.
pub(super) fn suits(simd: Simd, sizes: Sizes) -> bool {
    let Sizes { queries, head_dim, attention, .. } = sizes;
    let of_one = FewRows::new(simd, DType::F32, 1);
    attention.cached
        && queries == 1
        && attention.products == DType::F32
        && of_one.is_some_and(|loops| loops.suits_columns(head_dim))
}

/// One task per sample and key head.
pub(super) fn attention(
    context: &mut Context<'_>,
    sizes: Sizes,
    [q, k, v]: [&[f32]; 3],
    places: &[u32],
    [out, log_sum_exp]: [&mut [f32]; 2],
) {
    let simd = context.simd;
    let Sizes { batch, head_dim, attention, .. } = sizes;
    let group = sizes.group();
    let out = Grid::new(out, [batch, 1, attention.heads * head_dim], [1, group * head_dim]);
    let statistics = Grid::new(log_sum_exp, [batch, attention.heads, 1], [group, 1]);
    for_tiles(context.pool, [out, statistics], |[mut out, mut log_sum_exp], scratch| {
        let (b, kv_head) = (out.matrix, out.column / (group * head_dim));
        let (row, start) = sizes.place_of(Some(places), b);
        let seen = sizes.visible(start, 0, None);
        let k = sizes.head(k, Part::Keys, (row, kv_head), seen.clone());
        let v = sizes.head(v, Part::Values, (row, kv_head), seen.clone());
        let out = out.row_mut(0);
        for first in (0..group).step_by(FewRows::MOST) {
            let rows = FewRows::MOST.min(group - first);
            let Some(loops) = FewRows::new(simd, DType::F32, rows) else { unreachable!("asked before") };
            let (packed, scratch) = scratch.split_at_mut(rows * seen.len().max(head_dim));
            let (scores, _) = scratch.split_at_mut(rows * seen.len());
            let from = b * sizes.query_stride + (kv_head * group + first) * head_dim;
            loops.pack(&q[from..][..rows * head_dim], packed);
            loops.times_rows(packed, k, &mut Tile::new(scores, rows, seen.len()));
            // Numerators first: dividing D numbers of the output is less work than dividing all probabilities.
            let mut sums = [0.0; FewRows::MOST];
            for (head, scores) in scores.chunks_exact_mut(seen.len()).enumerate() {
                let (max, sum) = vector::softmax_numerators(simd, scores, 0..seen.len(), sizes.scale());
                sums[head] = sum;
                log_sum_exp.row_mut(first + head)[0] = max + sum.ln();
            }
            loops.pack(scores, packed);
            let out = &mut out[first * head_dim..][..rows * head_dim];
            loops.times(packed, v, &mut Tile::new(out, rows, head_dim));
            for (out, sum) in out.chunks_exact_mut(head_dim).zip(sums) {
                vector::scale(simd, 1.0 / sum, out);
            }
        }
    });
}
