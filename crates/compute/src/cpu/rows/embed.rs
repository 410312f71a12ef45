//! Rows of a table, the gradient of the table, and rotary positions, which are looked up in one.

use super::{
    super::{
        Context,
        gemm::{int8, strips},
        memory::Operands,
        shared::{Grid, for_tiles},
        vector,
    },
    tile_rows,
};
use crate::{
    device::Frozen,
    error::{Error, Result},
};

pub(in super::super) fn embed(context: &mut Context<'_>, operands: &mut Operands<'_>) -> Result<()> {
    let (table, ids) = (operands.input(0), operands.indices(1));
    let shape = operands.input_type(0).shape;
    let (columns, frozen) = (shape.columns(), operands.frozen(0));
    check_ids("embed", ids, shape.rows())?;
    let grid = Grid::rows(operands.output(0), columns, tile_rows(columns));
    for_tiles(context.pool, [grid], |[mut y], _| {
        for row in 0..y.rows() {
            let id = ids[y.row + row] as usize;
            match frozen {
                Some(Frozen::Exact) => strips::copy_line(table, id, y.row_mut(row)),
                Some(Frozen::Int8) => int8::copy_line(table, id, y.row_mut(row)),
                None => y.row_mut(row).copy_from_slice(&table[id * columns..][..columns]),
            }
        }
    });
    Ok(())
}

/// Turns the heads of every row by the angles of its position.
pub(in super::super) fn rope(
    context: &mut Context<'_>,
    operands: &mut Operands<'_>,
    inverse: bool,
    still: usize,
) -> Result<()> {
    let (simd, x, positions, table) =
        (context.simd, operands.input(0), operands.indices(1), operands.input(2));
    let table_shape = operands.input_type(2).shape;
    let (columns, head_dim) = (operands.input_type(0).shape.columns(), table_shape.columns());
    check_ids("rope", positions, table_shape.rows())?;
    let sign = if inverse { -1.0 } else { 1.0 };
    let grid = Grid::rows(operands.output(0), columns, tile_rows(columns));
    for_tiles(context.pool, [grid], |[mut y], _| {
        for row in y.row_range() {
            let angles = &table[positions[row] as usize * head_dim..][..head_dim];
            let (x, rest) = x[row * columns..][..columns].split_at(columns - still * head_dim);
            let (y, y_rest) = y.row_mut(row - y.row).split_at_mut(x.len());
            y_rest.copy_from_slice(rest);
            for (x, y) in x.chunks_exact(head_dim).zip(y.chunks_exact_mut(head_dim)) {
                vector::rotate(simd, x, angles, sign, y);
            }
        }
    });
    Ok(())
}

/// A tile is a range of the table's rows. Its owner reads all ids and adds the gradients of its own in their order.
pub(in super::super) fn embed_grad(
    context: &mut Context<'_>,
    operands: &mut Operands<'_>,
    add: bool,
) -> Result<()> {
    let (simd, ids, d_y) = (context.simd, operands.indices(0), operands.input(1));
    let [rows, columns] = *operands.output_type(0).shape.dims() else { unreachable!("checked at bind") };
    check_ids("embed_grad", ids, rows)?;
    let grid = Grid::rows(operands.output(0), columns, embed_grad_tile_rows(rows, columns));
    for_tiles(context.pool, [grid], |[mut d_table], _| {
        let range = d_table.row_range();
        if !add {
            (0..range.len()).for_each(|row| d_table.row_mut(row).fill(0.0));
        }
        for (index, &id) in ids.iter().enumerate() {
            if range.contains(&(id as usize)) {
                let d_y = &d_y[index * columns..][..columns];
                vector::accumulate(simd, d_y, d_table.row_mut(id as usize - range.start));
            }
        }
    });
    Ok(())
}

/// At most 64 tiles, since each reads all ids; small tables still have several.
fn embed_grad_tile_rows(rows: usize, columns: usize) -> usize {
    tile_rows(columns).clamp(1, 32).max(rows.div_ceil(64))
}

/// The first id that is not below `rows`, as an error.
pub(in super::super) fn check_ids(op: &'static str, ids: &[u32], rows: usize) -> Result<()> {
    match ids.iter().find(|&&id| id as usize >= rows) {
        Some(&id) => Err(Error::IndexOutOfRange { op, index: id as usize, rows }),
        None => Ok(()),
    }
}
