//! Layer norm, alone and with the residual before it, RMS norm, their gradients, and the gradient of a bias.

use super::{
    super::{
        Context, Needs,
        memory::Operands,
        pool::Pool,
        shared::{Grid, Tile, for_tiles},
        simd::Simd,
        vector,
    },
    tile_rows,
};
use crate::{kernel::NormGrads, tensor::Shape};

/// Columns that one owner sums over all rows.
const OWNED_COLUMNS: usize = 64;
/// Rows whose sum is formed on its own before it is added: keeps rounding errors from growing with the number of rows.
const SUMMED_ROWS: usize = 128;

pub(in super::super) fn layer_norm(
    context: &mut Context<'_>,
    operands: &mut Operands<'_>,
    eps: f32,
    bias: bool,
) {
    let (simd, x) = (context.simd, operands.input(0));
    let columns = operands.input_type(0).shape.columns();
    let norm = Norm { simd, gain: operands.input(1), shift: bias.then(|| operands.input(2)), eps };
    let rows = tile_rows(columns);
    let grids = [
        Grid::rows(operands.output(0), columns, rows),
        Grid::elements(operands.output(1), rows),
        Grid::elements(operands.output(2), rows),
    ];
    for_tiles(context.pool, grids, |[mut y, mut mean, mut rstd], _| {
        for row in 0..y.rows() {
            let x = &x[(y.row + row) * columns..][..columns];
            norm.row(x, row, &mut y, &mut mean, &mut rstd);
        }
    });
}

/// With `biased`, the third operand is a bias of the second.
pub(in super::super) fn add_layer_norm(
    context: &mut Context<'_>,
    operands: &mut Operands<'_>,
    eps: f32,
    biased: bool,
) {
    let (simd, a, b) = (context.simd, operands.input(0), operands.input(1));
    let bias = biased.then(|| operands.input(2));
    let gain = 2 + usize::from(biased);
    let shift = (operands.input_count() > gain + 1).then(|| operands.input(gain + 1));
    let columns = operands.input_type(0).shape.columns();
    let norm = Norm { simd, gain: operands.input(gain), shift, eps };
    let rows = tile_rows(columns);
    let grids = [
        Grid::rows(operands.output(0), columns, rows),
        Grid::rows(operands.output(1), columns, rows),
        Grid::elements(operands.output(2), rows),
        Grid::elements(operands.output(3), rows),
    ];
    for_tiles(context.pool, grids, |[mut sum, mut y, mut mean, mut rstd], _| {
        for row in 0..y.rows() {
            let start = (y.row + row) * columns;
            let (sum, a, b) = (sum.row_mut(row), &a[start..start + columns], &b[start..start + columns]);
            match bias {
                Some(bias) => {
                    vector::add(simd, b, bias, sum);
                    vector::accumulate(simd, a, sum);
                }
                None => vector::add(simd, a, b, sum),
            }
            norm.row(sum, row, &mut y, &mut mean, &mut rstd);
        }
    });
}

struct Norm<'a> {
    simd: Simd,
    gain: &'a [f32],
    shift: Option<&'a [f32]>,
    eps: f32,
}

impl Norm<'_> {
    fn row(&self, x: &[f32], row: usize, y: &mut Tile<'_>, mean: &mut Tile<'_>, rstd: &mut Tile<'_>) {
        let statistics = vector::norm_statistics(self.simd, x, self.eps);
        (mean.row_mut(0)[row], rstd.row_mut(0)[row]) = statistics;
        vector::normalise(self.simd, x, statistics.0, statistics.1, self.gain, self.shift, y.row_mut(row));
    }
}

/// With `adds`, the last operand is added to d_x.
pub(in super::super) fn layer_norm_grad_input(
    context: &mut Context<'_>,
    operands: &mut Operands<'_>,
    adds: bool,
) {
    layer_norm_d_x(context, operands, adds);
}

fn layer_norm_d_x<'a>(context: &mut Context<'_>, operands: &mut Operands<'a>, adds: bool) -> &'a [f32] {
    let other = adds.then(|| operands.input(5));
    let (simd, d_y, x, gain) = (context.simd, operands.input(0), operands.input(1), operands.input(2));
    let (mean, rstd) = (operands.input(3), operands.input(4));
    let columns = operands.input_type(0).shape.columns();
    let whole = operands.output(0);
    let grid = Grid::rows(&mut *whole, columns, tile_rows(columns));
    for_tiles(context.pool, [grid], |[mut d_x], _| {
        for row in d_x.row_range() {
            let range = row * columns..(row + 1) * columns;
            let to = d_x.row_mut(row - d_x.row);
            let (d_y, x) = (&d_y[range.clone()], &x[range.clone()]);
            vector::norm_grad_input(simd, d_y, x, gain, mean[row], rstd[row], to);
            if let Some(other) = other {
                vector::accumulate(simd, &other[range], to);
            }
        }
    });
    whole
}

pub(in super::super) fn layer_norm_grad_params(
    context: &mut Context<'_>,
    operands: &mut Operands<'_>,
    bias: bool,
    add: bool,
) {
    let outputs = (operands.output(0), bias.then(|| operands.output(1)));
    let statistics = [operands.input(2), operands.input(3)];
    layer_norm_sums(context, operands, statistics, outputs, add);
}

fn layer_norm_sums(
    context: &mut Context<'_>,
    operands: &Operands<'_>,
    [mean, rstd]: [&[f32]; 2],
    (d_gain, mut d_shift): (&mut [f32], Option<&mut [f32]>),
    add: bool,
) {
    let (simd, d_y, x) = (context.simd, operands.input(0), operands.input(1));
    let columns = operands.input_type(0).shape.columns();
    let row = |row: usize, part: &mut [f32]| {
        let range = row * columns..(row + 1) * columns;
        let (gain, shift) = part.split_at_mut(columns);
        vector::norm_grad_params(simd, &d_y[range.clone()], &x[range], mean[row], rstd[row], gain, shift);
    };
    sum_rows(context, (mean.len(), 2 * columns), row, |pool, sums| {
        sums.add_up(simd, pool, 0, d_gain, add);
        if let Some(d_shift) = &mut d_shift {
            sums.add_up(simd, pool, columns, d_shift, add);
        }
    });
}

/// The rows of RMS norm are groups of as many elements as the gain has.
pub(in super::super) fn rms_norm(context: &mut Context<'_>, operands: &mut Operands<'_>, eps: f32) {
    let (simd, x, gain) = (context.simd, operands.input(0), operands.input(1));
    let columns = gain.len();
    let rows = tile_rows(columns);
    let grids = [Grid::rows(operands.output(0), columns, rows), Grid::elements(operands.output(1), rows)];
    for_tiles(context.pool, grids, |[mut y, mut rstd], _| {
        for row in 0..y.rows() {
            let x = &x[(y.row + row) * columns..][..columns];
            let statistic = vector::rms_statistic(simd, x, eps);
            rstd.row_mut(0)[row] = statistic;
            vector::normalise(simd, x, 0.0, statistic, gain, None, y.row_mut(row));
        }
    });
}

/// With `adds`, the last operand is added to d_x.
pub(in super::super) fn rms_norm_grad_input(
    context: &mut Context<'_>,
    operands: &mut Operands<'_>,
    adds: bool,
) {
    rms_norm_d_x(context, operands, adds);
}

fn rms_norm_d_x<'a>(context: &mut Context<'_>, operands: &mut Operands<'a>, adds: bool) -> &'a [f32] {
    let other = adds.then(|| operands.input(4));
    let (simd, d_y, x) = (context.simd, operands.input(0), operands.input(1));
    let (gain, rstd) = (operands.input(2), operands.input(3));
    let columns = gain.len();
    let whole = operands.output(0);
    let grid = Grid::rows(&mut *whole, columns, tile_rows(columns));
    for_tiles(context.pool, [grid], |[mut d_x], _| {
        for row in d_x.row_range() {
            let range = row * columns..(row + 1) * columns;
            let to = d_x.row_mut(row - d_x.row);
            vector::rms_grad_input(simd, &d_y[range.clone()], &x[range.clone()], gain, rstd[row], to);
            if let Some(other) = other {
                vector::accumulate(simd, &other[range], to);
            }
        }
    });
    whole
}

/// One after the other: what a card does in one pass.
pub(in super::super) fn norm_grads(context: &mut Context<'_>, operands: &mut Operands<'_>, of: NormGrads) {
    let columns = operands.input_type(2).shape.elements();
    let d_gain = operands.output(1);
    let d_x = if of.centred {
        let d_x = layer_norm_d_x(context, operands, true);
        let d_shift = of.shift.then(|| operands.output(2));
        let statistics = [operands.input(3), operands.input(4)];
        layer_norm_sums(context, operands, statistics, (d_gain, d_shift), of.add);
        d_x
    } else {
        let d_x = rms_norm_d_x(context, operands, true);
        rms_norm_sums(context, operands, operands.input(3), d_gain, of.add);
        d_x
    };
    if of.bias {
        let d_bias = operands.output(operands.output_count() - 1);
        bias_sums(context, d_x, columns, d_bias, of.add);
    }
}

/// What [`norm_grads`] keeps for the widest of its sums.
pub(in super::super) fn grads_needs(of: NormGrads, d_y: Shape, columns: usize) -> Needs {
    let rows = d_y.elements() / columns.max(1);
    sum_needs(rows, if of.centred { 2 * columns } else { columns })
}

pub(in super::super) fn add_rms_norm(context: &mut Context<'_>, operands: &mut Operands<'_>, eps: f32) {
    let (simd, a, b, gain) = (context.simd, operands.input(0), operands.input(1), operands.input(2));
    let columns = gain.len();
    let rows = tile_rows(columns);
    let grids = [
        Grid::rows(operands.output(0), columns, rows),
        Grid::rows(operands.output(1), columns, rows),
        Grid::elements(operands.output(2), rows),
    ];
    for_tiles(context.pool, grids, |[mut sum, mut y, mut rstd], _| {
        for row in 0..y.rows() {
            let range = (y.row + row) * columns..(y.row + row + 1) * columns;
            vector::add(simd, &a[range.clone()], &b[range], sum.row_mut(row));
            let statistic = vector::rms_statistic(simd, sum.row_mut(row), eps);
            rstd.row_mut(0)[row] = statistic;
            vector::normalise(simd, sum.row_mut(row), 0.0, statistic, gain, None, y.row_mut(row));
        }
    });
}

pub(in super::super) fn rms_norm_grad_gain(
    context: &mut Context<'_>,
    operands: &mut Operands<'_>,
    add: bool,
) {
    let d_gain = operands.output(0);
    rms_norm_sums(context, operands, operands.input(2), d_gain, add);
}

fn rms_norm_sums(
    context: &mut Context<'_>,
    operands: &Operands<'_>,
    rstd: &[f32],
    d_gain: &mut [f32],
    add: bool,
) {
    let (simd, d_y, x) = (context.simd, operands.input(0), operands.input(1));
    let columns = d_gain.len();
    for_tiles(context.pool, [Grid::elements(d_gain, OWNED_COLUMNS)], |[d_gain], _| {
        let owned = d_gain.column_range();
        let mut sums = [0.0; OWNED_COLUMNS];
        let sums = &mut sums[..owned.len()];
        for block in (0..rstd.len()).step_by(SUMMED_ROWS) {
            let (mut part, mut unused) = ([0.0; OWNED_COLUMNS], [0.0; OWNED_COLUMNS]);
            for (row, &rstd) in rstd.iter().enumerate().skip(block).take(SUMMED_ROWS) {
                let range = row * columns + owned.start..row * columns + owned.end;
                let (d_y, x) = (&d_y[range.clone()], &x[range]);
                vector::norm_grad_params(simd, d_y, x, 0.0, rstd, &mut part, &mut unused);
            }
            vector::accumulate(simd, &part, sums);
        }
        finish(simd, sums, d_gain.into_slice(), add);
    });
}

pub(in super::super) fn linear_grad_bias(context: &mut Context<'_>, operands: &mut Operands<'_>, add: bool) {
    let columns = operands.input_type(0).shape.columns();
    bias_sums(context, operands.input(0), columns, operands.output(0), add);
}

/// Sums of rows of so many columns, or what they add to what is there.
pub(in super::super) fn bias_sums(
    context: &mut Context<'_>,
    d_y: &[f32],
    columns: usize,
    d_b: &mut [f32],
    add: bool,
) {
    let (simd, rows) = (context.simd, d_y.len() / columns.max(1));
    let row = |row: usize, part: &mut [f32]| {
        vector::accumulate(simd, &d_y[row * columns..(row + 1) * columns], part);
    };
    sum_rows(context, (rows, columns), row, |pool, sums| sums.add_up(simd, pool, 0, d_b, add));
}

/// Sums of some rows each, of `columns` numbers.
struct Sums<'a> {
    parts: &'a [f32],
    columns: usize,
}

/// What [`sum_rows`] keeps.
pub(in super::super) fn sum_needs(rows: usize, columns: usize) -> Needs {
    Needs { shared: rows.div_ceil(SUMMED_ROWS) * columns, ..Needs::default() }
}

/// Adds up what `row` adds to `columns` numbers, over [`SUMMED_ROWS`] rows at a time: memory is read in order, and rounding
/// errors do not grow with the number of rows.
fn sum_rows(
    context: &mut Context<'_>,
    (rows, columns): (usize, usize),
    row: impl Fn(usize, &mut [f32]) + Sync,
    then: impl FnOnce(&mut Pool, &Sums<'_>),
) {
    let Context { pool, shared, .. } = context;
    let parts = &mut shared.as_mut_slice()[..rows.div_ceil(SUMMED_ROWS) * columns];
    for_tiles(pool, [Grid::rows(&mut *parts, columns, 1)], |[part], _| {
        let first = part.row * SUMMED_ROWS;
        let part = part.into_slice();
        part.fill(0.0);
        for index in first..(first + SUMMED_ROWS).min(rows) {
            row(index, part);
        }
    });
    then(pool, &Sums { parts, columns });
}

impl Sums<'_> {
    /// Adds all parts in order, from column `first` on, into `out` or over it.
    fn add_up(&self, simd: Simd, pool: &mut Pool, first: usize, out: &mut [f32], add: bool) {
        for_tiles(pool, [Grid::elements(out, OWNED_COLUMNS)], |[out], _| {
            let owned = first + out.column..first + out.column + out.columns();
            let mut total = [0.0; OWNED_COLUMNS];
            let total = &mut total[..owned.len()];
            for part in self.parts.chunks_exact(self.columns) {
                vector::accumulate(simd, &part[owned.clone()], total);
            }
            finish(simd, total, out.into_slice(), add);
        });
    }
}

fn finish(simd: Simd, sums: &[f32], out: &mut [f32], add: bool) {
    if add {
        vector::accumulate(simd, sums, out);
    } else {
        out.copy_from_slice(sums);
    }
}
