//! The matrix product, C ← A·B or C ← C + A·B, in blocks that fit the caches.
//!
//! M rows and N columns of C, K the length of the sums. A and B may be stored by rows or by columns, which covers the three
//! products of training: x·wᵀ, d_y·w and d_yᵀ·x.
//!
//! Operands are f32. They are multiplied as they are, or rounded to bf16 on their way into packed panels, as pairs where
//! the processor multiplies pairs; sums are f32 either way.
//!
//! The sum is cut into blocks of at most [`MAX_STEPS`] steps by K alone. Within a block an element of C is one chain of
//! fused multiply-adds in the order of k; the blocks are added in order. So a row of C comes out the same bit for bit
//! whatever the other rows are and however many there are, and for any number of threads: a model that decodes one token at
//! a time calculates what it calculated in training.
//!
//! With many rows, the panels of B are packed once by all threads into shared memory, then tiles of C are computed, each of
//! which packs its rows of A. With few rows (decoding) it is A that is packed once, and each tile packs its own columns of B:
//! then every weight is read from memory once, and packing is the only pass over it.
#![expect(unsafe_code, reason = "inner loops use vector instructions and pointers into packed panels")]

mod micro;
mod pack;
mod packed;

pub(super) use packed::Packed;

use std::ops::Range;

use micro::{Family, Panels, Target};
use pack::{Lines, pack, pack_adjacent_rows};

use super::{
    Context, Needs,
    shared::{Grid, Tile, for_tiles},
    simd::Simd,
};
use crate::tensor::DType;

/// The most steps of a block: a panel of B of this depth and eight rows of A fit the second and first cache of a core.
const MAX_STEPS: usize = 768;
/// Rows up to which a product counts as having few.
const FEW_ROWS: usize = 32;
/// The most rows of a tile: with [`MAX_STEPS`] steps, 288 KiB of A in the second cache.
const TILE_ROWS: usize = 96;
/// Tiles of C that a thread gets on average, so that one that is held up leaves its share to the others.
const TILES_PER_THREAD: usize = 8;
/// Columns of B that are packed at a time: with [`MAX_STEPS`] steps, 8 MiB in the last cache.
const STAGE_COLUMNS: usize = 2688;

/// A matrix somewhere in a slice.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a> {
    data: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// Rows of `columns` elements, each `row_stride` after the one before.
    pub fn strided(data: &'a [f32], rows: usize, columns: usize, row_stride: usize) -> Self {
        assert!(
            rows == 0 || columns == 0 || (rows - 1) * row_stride + columns <= data.len(),
            "the matrix lies inside its slice"
        );
        Matrix { data, rows, columns, row_stride, column_stride: 1 }
    }

    /// Rows one after another.
    pub fn new(data: &'a [f32], rows: usize, columns: usize) -> Self {
        Matrix::strided(data, rows, columns, columns)
    }

    /// The transpose, without moving anything.
    pub fn transposed(self) -> Self {
        Matrix {
            data: self.data,
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
        }
    }

    /// Rows as lines to pack.
    fn row_lines(&self, rows: Range<usize>, columns: Range<usize>) -> Lines<'a> {
        let start = rows.start * self.row_stride + columns.start * self.column_stride;
        Lines {
            data: self.data.get(start..).unwrap_or_default(),
            count: rows.len(),
            depth: columns.len(),
            line_stride: self.row_stride,
            k_stride: self.column_stride,
        }
    }

    /// Columns as lines to pack.
    fn column_lines(&self, rows: Range<usize>, columns: Range<usize>) -> Lines<'a> {
        self.transposed().row_lines(columns, rows)
    }
}

/// What to multiply, and what becomes of C.
#[derive(Clone, Copy)]
pub(super) struct Product<'a> {
    /// M × K.
    pub a: Matrix<'a>,
    /// K × N.
    pub b: Matrix<'a>,
    /// N numbers to add to every row.
    pub bias: Option<&'a [f32]>,
    /// Whether to add to what is in C.
    pub add: bool,
    /// What elements of A and B are rounded to.
    pub products: DType,
}

/// The shared and per-thread memory that [`multiply`] takes.
pub(super) fn needs(simd: Simd, products: DType, [m, n, k]: [usize; 3]) -> Needs {
    let family = Family::of(simd, products);
    let steps = family.units(block_depth(family, k));
    let (shared, scratch) = if m <= FEW_ROWS {
        (m * family.units(k), steps * family.columns())
    } else {
        (steps * family.padded(n.min(STAGE_COLUMNS)), steps * TILE_ROWS)
    };
    Needs { shared, scratch, ..Needs::default() }
}

/// Computes C, contiguous rows, on all threads.
pub(super) fn multiply(context: &mut Context<'_>, product: Product<'_>, c: &mut [f32]) {
    multiply_then(context, product, [c], |_, _| {});
}

/// Computes the first output as C, and hands every finished tile of it to `then`, with its first column and the tiles of
/// the other outputs at the same place: what follows element by element happens while the tile is in cache.
pub(super) fn multiply_then<const N: usize>(
    context: &mut Context<'_>,
    product: Product<'_>,
    outputs: [&mut [f32]; N],
    then: impl Fn(&mut [Tile<'_>; N], usize) + Sync,
) {
    let (m, n, k) = (product.a.rows, product.b.columns, product.a.columns);
    assert!(product.b.rows == k && outputs.iter().all(|c| c.len() == m * n), "the matrices fit each other");
    if m * n == 0 {
        return;
    }
    if k == 0 {
        let mut tiles = outputs.map(|c| Tile::new(c, m, n));
        for row in 0..m {
            let row = tiles[0].row_mut(row);
            if !product.add {
                row.fill(0.0);
            }
            row.iter_mut().zip(product.bias.unwrap_or_default()).for_each(|(c, bias)| *c += bias);
        }
        return then(&mut tiles, 0);
    }
    if m <= FEW_ROWS {
        few_rows(context, product, outputs, then);
    } else {
        many_rows(context, product, outputs, then);
    }
}

fn many_rows<const N: usize>(
    context: &mut Context<'_>,
    product: Product<'_>,
    mut outputs: [&mut [f32]; N],
    then: impl Fn(&mut [Tile<'_>; N], usize) + Sync,
) {
    let Context { simd, pool, shared, .. } = context;
    let (simd, shared) = (*simd, shared.as_mut_slice());
    let family = Family::of(simd, product.products);
    let Product { a, b, bias, .. } = product;
    let (m, n, k) = (a.rows, b.columns, a.columns);
    // A few tiles for each thread where the shape allows. An element of C comes out the same in any tile, so the number of
    // threads may decide. Both bounds are multiples of every family's rows.
    let wanted_tiles = TILES_PER_THREAD * pool.threads();
    let tile_rows = m.div_ceil(wanted_tiles).next_multiple_of(family.rows).clamp(24, TILE_ROWS);
    for block in blocks(family, k) {
        let steps = family.units(block.len());
        for stage in cut(0..n, STAGE_COLUMNS) {
            let panel = steps * family.columns();
            let packed = &mut shared[..steps * family.padded(stage.len())];
            for_tiles(pool, [Grid::elements(packed, panel)], |[tile], _| {
                let start = stage.start + tile.column / steps;
                let columns = start..(start + family.columns()).min(stage.end);
                let width = family.padded(columns.len());
                pack(simd, family, b.column_lines(block.clone(), columns), width, tile.into_slice());
            });
            let packed = &*packed;
            // All columns of the stage when there are many rows of tiles, else a part of it.
            let parts = wanted_tiles.div_ceil(m.div_ceil(tile_rows));
            let tile_columns = stage.len().div_ceil(parts).max(4 * family.columns());
            let tile_columns = tile_columns.next_multiple_of(family.columns());
            let grids = outputs
                .each_mut()
                .map(|output| Grid::new(output, [1, m, n], [tile_rows, tile_columns]).columns(stage.clone()));
            for_tiles(pool, grids, |mut tiles, scratch| {
                let tile = &mut tiles[0];
                let column = stage.start + tile.column;
                let packed_a = &mut scratch[..steps * tile.rows()];
                pack_rows(simd, family, &a, tile.row_range(), block.clone(), packed_a);
                let bias = bias.map(|bias| &bias[column..]);
                let start = Start { bias, add: product.add, is_first: block.start == 0 };
                multiply_panels(family, steps, packed_a, &packed[steps * tile.column..], tile, start);
                if block.end == k {
                    then(&mut tiles, column);
                }
            });
        }
    }
}

fn few_rows<const N: usize>(
    context: &mut Context<'_>,
    product: Product<'_>,
    outputs: [&mut [f32]; N],
    then: impl Fn(&mut [Tile<'_>; N], usize) + Sync,
) {
    let Context { simd, pool, shared, .. } = context;
    let simd = *simd;
    let family = Family::of(simd, product.products);
    let Product { a, b, bias, .. } = product;
    let (m, n, k) = (a.rows, b.columns, a.columns);
    let packed_a = &mut shared.as_mut_slice()[..m * family.units(k)];
    // Where the rows of a block start. Blocks but the last are even, so no pair spans two.
    let place = |block: &Range<usize>| m * family.units(block.start)..m * family.units(block.end);
    for block in blocks(family, k) {
        let steps = family.units(block.len());
        let out = &mut packed_a[place(&block)];
        for_tiles(pool, [Grid::elements(out, steps * family.rows)], |[tile], _| {
            let start = tile.column / steps;
            let rows = start..(start + family.rows).min(m);
            pack_rows(simd, family, &a, rows, block.clone(), tile.into_slice());
        });
    }
    let packed_a = &*packed_a;
    // A tile is one panel of B, which is over a hundred kilobytes of weights.
    let grids = outputs.map(|output| Grid::new(output, [1, m, n], [m, family.columns()]));
    for_tiles(pool, grids, |mut tiles, scratch| {
        let tile = &mut tiles[0];
        for block in blocks(family, k) {
            let steps = family.units(block.len());
            let width = family.padded(tile.columns());
            let packed_b = &mut scratch[..steps * width];
            pack(simd, family, b.column_lines(block.clone(), tile.column_range()), width, packed_b);
            let bias = bias.map(|bias| &bias[tile.column..]);
            let start = Start { bias, add: product.add, is_first: block.start == 0 };
            multiply_panels(family, steps, &packed_a[place(&block)], packed_b, tile, start);
        }
        let column = tile.column;
        then(&mut tiles, column);
    });
}

/// How the first block begins an element of C, and that later blocks add to it.
#[derive(Clone, Copy)]
struct Start<'a> {
    bias: Option<&'a [f32]>,
    add: bool,
    is_first: bool,
}

/// Multiplies all packed rows with all packed columns of a tile, over one block of the sum.
fn multiply_panels(family: Family, steps: usize, a: &[f32], b: &[f32], c: &mut Tile<'_>, start: Start<'_>) {
    let (m, n, stride) = (c.rows(), c.columns(), c.stride());
    let bias = start.bias.filter(|_| start.is_first);
    assert!(a.len() >= steps * m && b.len() >= steps * family.padded(n), "the panels cover the tile");
    assert!(bias.is_none_or(|bias| bias.len() >= n), "the bias covers the tile");
    let base = c.as_mut_ptr();
    for columns in cut(0..n, family.columns()) {
        for rows in cut(0..m, family.rows) {
            let micro = family.micro(rows.len(), columns.len());
            // SAFETY: `micro` belongs to an instruction set that a `Simd` proves. Panels before this one are full, so these
            // start at the steps times the row and the column, and the assertions above keep them inside the slices;
            // packing has filled the last panel of B up to whole vectors. Rows and columns lie inside the tile, whose
            // elements are this thread's own, and the bias has a number for each column.
            unsafe {
                let panels = Panels {
                    steps,
                    a: a.as_ptr().add(rows.start * steps),
                    b: b.as_ptr().add(columns.start * steps),
                    b_stride: family.padded(columns.len()),
                };
                let target = Target {
                    c: base.add(rows.start * stride + columns.start),
                    stride,
                    columns: columns.len(),
                    bias: bias.map_or(std::ptr::null(), |bias| bias[columns.start..].as_ptr()),
                    add: start.add || !start.is_first,
                };
                micro(panels, target);
            }
        }
    }
}

/// Packs rows of A as consecutive panels, the last one as wide as its rows.
fn pack_rows(
    simd: Simd,
    family: Family,
    a: &Matrix<'_>,
    rows: Range<usize>,
    block: Range<usize>,
    out: &mut [f32],
) {
    let steps = family.units(block.len());
    if pack_adjacent_rows(simd, family, a.row_lines(rows.clone(), block.clone()), out) {
        return;
    }
    for panel in cut(rows.clone(), family.rows) {
        let place = (panel.start - rows.start) * steps;
        let out = &mut out[place..place + steps * panel.len()];
        pack(simd, family, a.row_lines(panel.clone(), block.clone()), panel.len(), out);
    }
}

/// Elements of a block: K in equal blocks, so that none is left with a short, inefficient rest.
fn block_depth(family: Family, k: usize) -> usize {
    let most = MAX_STEPS * k.max(1) / family.units(k).max(1);
    k.div_ceil(k.div_ceil(most).max(1)).next_multiple_of(8)
}

fn blocks(family: Family, k: usize) -> impl Iterator<Item = Range<usize>> {
    cut(0..k, block_depth(family, k))
}

/// A range in pieces of at most `length`.
fn cut(range: Range<usize>, length: usize) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.step_by(length.max(1)).map(move |start| start..(start + length).min(end))
}
