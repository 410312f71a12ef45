//! Kernels that treat every element alike.

use super::{
    super::{
        Context,
        memory::Operands,
        shared::{Grid, for_tiles},
        simd::Simd,
        vector::{self, DropMask},
    },
    TILE_ELEMENTS, tile_rows,
};
use crate::philox::drop_threshold;

/// y ← f(x), tile by tile.
pub(in super::super) fn activate(
    context: &mut Context<'_>,
    operands: &mut Operands<'_>,
    f: fn(Simd, &[f32], &mut [f32]),
) {
    let (simd, x) = (context.simd, operands.input(0));
    for_tiles(context.pool, [Grid::elements(operands.output(0), TILE_ELEMENTS)], |[y], _| {
        f(simd, &x[y.column_range()], y.into_slice());
    });
}

/// y ← f(a, b), tile by tile: sums, gates, and gradients of activations from their argument and d_y.
pub(in super::super) fn combine(
    context: &mut Context<'_>,
    operands: &mut Operands<'_>,
    f: fn(Simd, &[f32], &[f32], &mut [f32]),
) {
    let (simd, a, b) = (context.simd, operands.input(0), operands.input(1));
    for_tiles(context.pool, [Grid::elements(operands.output(0), TILE_ELEMENTS)], |[y], _| {
        let range = y.column_range();
        f(simd, &a[range.clone()], &b[range], y.into_slice());
    });
}

/// y ← factor·x + offset, tile by tile.
pub(in super::super) fn affine(
    context: &mut Context<'_>,
    operands: &mut Operands<'_>,
    factor: f32,
    offset: f32,
) {
    let (simd, x) = (context.simd, operands.input(0));
    for_tiles(context.pool, [Grid::elements(operands.output(0), TILE_ELEMENTS)], |[y], _| {
        vector::affine(simd, &x[y.column_range()], factor, offset, y.into_slice());
    });
}

pub(in super::super) fn silu_gate_grad(context: &mut Context<'_>, operands: &mut Operands<'_>) {
    let (simd, gate, up, d_y) = (context.simd, operands.input(0), operands.input(1), operands.input(2));
    let grids = [0, 1].map(|index| Grid::elements(operands.output(index), TILE_ELEMENTS));
    for_tiles(context.pool, grids, |[d_gate, d_up], _| {
        let range = d_gate.column_range();
        let (gate, up, d_y) = (&gate[range.clone()], &up[range.clone()], &d_y[range]);
        vector::silu_gate_grad(simd, gate, up, d_y, d_gate.into_slice(), d_up.into_slice());
    });
}

/// Gates and what they let through lie side by side in the rows of one tensor.
pub(in super::super) fn joint_silu_gate(context: &mut Context<'_>, operands: &mut Operands<'_>) {
    let (simd, gate_up) = (context.simd, operands.input(0));
    let columns = operands.output_type(0).shape.columns();
    let grid = Grid::rows(operands.output(0), columns, tile_rows(columns));
    for_tiles(context.pool, [grid], |[mut y], _| {
        for row in y.row_range() {
            let (gate, up) = gate_up[2 * row * columns..2 * (row + 1) * columns].split_at(columns);
            vector::silu_gate(simd, gate, up, y.row_mut(row - y.row));
        }
    });
}

pub(in super::super) fn joint_silu_gate_grad(context: &mut Context<'_>, operands: &mut Operands<'_>) {
    let (simd, gate_up, d_y) = (context.simd, operands.input(0), operands.input(1));
    let columns = operands.input_type(1).shape.columns();
    let grid = Grid::rows(operands.output(0), 2 * columns, tile_rows(2 * columns));
    for_tiles(context.pool, [grid], |[mut d_gate_up], _| {
        for row in d_gate_up.row_range() {
            let (gate, up) = gate_up[2 * row * columns..2 * (row + 1) * columns].split_at(columns);
            let d_y = &d_y[row * columns..(row + 1) * columns];
            let (d_gate, d_up) = d_gate_up.row_mut(row - d_gate_up.row).split_at_mut(columns);
            vector::silu_gate_grad(simd, gate, up, d_y, d_gate, d_up);
        }
    });
}

pub(in super::super) fn dropout(
    context: &mut Context<'_>,
    operands: &mut Operands<'_>,
    probability: f32,
    number: u32,
) {
    // A tile starts at a multiple of four elements, so that every random block lies in one tile.
    const { assert!(TILE_ELEMENTS.is_multiple_of(4)) };
    let (simd, x, samples) = (context.simd, operands.input(0), operands.indices(2));
    let key = operands.indices(1);
    let (key, step) = ([key[0], key[1]], key[2]);
    let (threshold, scale) = (drop_threshold(probability), (1.0 / (1.0 - f64::from(probability))) as f32);
    let per_sample = x.len().checked_div(samples.len()).unwrap_or(0);
    let grid = Grid::new(operands.output(0), [1, samples.len(), per_sample], [1, TILE_ELEMENTS]);
    for_tiles(context.pool, [grid], |[y], _| {
        let start = y.row * per_sample + y.column;
        let x = &x[start..start + y.columns()];
        let counter = [(y.column / 4) as u32, samples[y.row], number, step];
        vector::dropout(simd, DropMask { key, counter, threshold, scale }, x, y.into_slice());
    });
}

/// The total in double precision. Inputs are a loss per row, too few to share out.
pub(in super::super) fn sum(context: &mut Context<'_>, operands: &mut Operands<'_>) {
    operands.output(0)[0] = vector::sum(context.simd, operands.input(0)) as f32;
}

pub(in super::super) fn broadcast(context: &mut Context<'_>, operands: &mut Operands<'_>) {
    let value = operands.input(0)[0];
    for_tiles(context.pool, [Grid::elements(operands.output(0), TILE_ELEMENTS)], |[y], _| {
        y.into_slice().fill(value);
    });
}

/// Overwrites the output with the input, or adds to it.
pub(in super::super) fn write(context: &mut Context<'_>, operands: &mut Operands<'_>, add: bool) {
    let (simd, x) = (context.simd, operands.input(0));
    for_tiles(context.pool, [Grid::elements(operands.output(0), TILE_ELEMENTS)], |[y], _| {
        let x = &x[y.column_range()];
        if add {
            vector::accumulate(simd, x, y.into_slice());
        } else {
            y.into_slice().copy_from_slice(x);
        }
    });
}
