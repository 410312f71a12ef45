//! Kernels that only move numbers.

use super::{
    super::{
        Context,
        memory::Operands,
        shared::{Grid, for_tiles},
    },
    tile_rows,
};

/// Each part is a job of its own.
pub(in super::super) fn split(context: &mut Context<'_>, operands: &mut Operands<'_>) {
    let x = operands.input(0);
    let columns = operands.input_type(0).shape.columns();
    let mut start = 0;
    for index in 0..operands.output_count() {
        let size = operands.output_type(index).shape.columns();
        let grid = Grid::rows(operands.output(index), size, tile_rows(size));
        for_tiles(context.pool, [grid], |[mut part], _| {
            for row in 0..part.rows() {
                let from = (part.row + row) * columns + start;
                part.row_mut(row).copy_from_slice(&x[from..from + size]);
            }
        });
        start += size;
    }
}

pub(in super::super) fn concat(context: &mut Context<'_>, operands: &mut Operands<'_>) {
    let columns = operands.output_type(0).shape.columns();
    let y = operands.output(0);
    let mut start = 0;
    for index in 0..operands.input_count() {
        let part = operands.input(index);
        let size = operands.input_type(index).shape.columns();
        let grid = Grid::rows(&mut *y, columns, tile_rows(size)).columns(start..start + size);
        for_tiles(context.pool, [grid], |[mut to], _| {
            for row in 0..to.rows() {
                let from = (to.row + row) * size;
                to.row_mut(row).copy_from_slice(&part[from..from + size]);
            }
        });
        start += size;
    }
}

/// Padding behind a short sample may reach past the cache's end; nothing ever reads it, so it is dropped.
pub(in super::super) fn cache_append(context: &mut Context<'_>, operands: &mut Operands<'_>) {
    let (new, starts) = (operands.input(0), operands.indices(1));
    let (new_type, cache_type) = (operands.input_type(0), operands.output_type(0));
    let (&[batch, positions, columns], &[_, capacity, _]) = (new_type.shape.dims(), cache_type.shape.dims())
    else {
        unreachable!("checked at bind")
    };
    let size = [batch, capacity, columns];
    for_tiles(context.pool, [Grid::new(operands.output(0), size, [capacity, columns])], |[cache], _| {
        let b = cache.matrix;
        let start = (starts[b] as usize).min(capacity);
        let kept = positions.min(capacity - start) * columns;
        let rows = &new[b * positions * columns..][..kept];
        cache.into_slice()[start * columns..][..kept].copy_from_slice(rows);
    });
}
