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
pub(in super::super) fn cache_append(operands: &mut Operands<'_>) {
    let (new, places) = (operands.input(0), operands.indices(1));
    let (new_type, cache_type) = (operands.input_type(0), operands.output_type(0));
    let (&[_, positions, columns], &[rows, capacity, _]) = (new_type.shape.dims(), cache_type.shape.dims())
    else {
        unreachable!("checked at bind")
    };
    let cache = operands.output(0);
    for (new, place) in new.chunks_exact((positions * columns).max(1)).zip(places.chunks_exact(2)) {
        let (row, start) = (place[0] as usize, (place[1] as usize).min(capacity));
        if row < rows {
            let kept = positions.min(capacity - start) * columns;
            cache[(row * capacity + start) * columns..][..kept].copy_from_slice(&new[..kept]);
        }
    }
}

pub(in super::super) fn cache_copy(operands: &mut Operands<'_>) {
    let moves = operands.indices(0);
    let &[rows, capacity, columns] = operands.output_type(0).shape.dims() else {
        unreachable!("checked at bind")
    };
    let cache = operands.output(0);
    for moved in moves.chunks_exact(3) {
        let [from, to, length] = [0, 1, 2].map(|part| moved[part] as usize);
        if from < rows && to < rows {
            let first = from * capacity * columns;
            let source = first..first + length.min(capacity) * columns;
            cache.copy_within(source, to * capacity * columns);
        }
    }
}

/// Rounds numbers to bf16, two to an element.
pub(in super::super) fn to_pairs(context: &mut Context<'_>, operands: &mut Operands<'_>) {
    /// Elements of a task.
    const PIECE: usize = 1 << 15;
    let numbers = operands.input(0);
    for_tiles(context.pool, [Grid::elements(operands.output(0), PIECE)], |[tile], _| {
        let from = &numbers[2 * tile.column..];
        for (pair, numbers) in tile.into_slice().iter_mut().zip(from.chunks_exact(2)) {
            let [low, high] = [numbers[0], numbers[1]].map(|x| u32::from(half::bf16::from_f32(x).to_bits()));
            *pair = f32::from_bits(low | high << 16);
        }
    });
}
