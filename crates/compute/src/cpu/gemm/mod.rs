//! The matrix product, C ← A·B or C ← C + A·B, in blocks that fit the caches.
//!
//! M rows and N columns of C, K the length of the sums. A and B may be stored by rows or by columns, which covers the three
//! products of training: x·wᵀ, d_y·w and d_yᵀ·x.
//!
//! The sum is cut into blocks of at most [`MAX_DEPTH`] steps by K alone. Within a block an element of C is one chain of
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

use std::ops::Range;

use micro::{Family, Panels, Target};
use pack::{Lines, pack};

use super::{
    Context, Needs,
    pool::Pool,
    shared::{Grid, Tile, for_tiles},
    simd::Simd,
};

/// The most steps of a block: a panel of B of this depth and eight rows of A fit the second and first cache of a core.
const MAX_DEPTH: usize = 768;
/// Rows up to which a product counts as having few.
const FEW_ROWS: usize = 32;
/// The most rows of a tile: with [`MAX_DEPTH`] steps, 288 KiB of A in the second cache.
const TILE_ROWS: usize = 96;
/// Columns of B that are packed at a time: with [`MAX_DEPTH`] steps, 8 MiB in the last cache.
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
}

/// The shared and per-thread memory that [`multiply`] takes.
pub(super) fn needs(simd: Simd, m: usize, n: usize, k: usize) -> Needs {
    let family = Family::of(simd);
    let depth = block_depth(k);
    let (shared, scratch) = if m <= FEW_ROWS {
        (m * k, depth * few_rows_columns(family))
    } else {
        (depth * family.padded(n.min(STAGE_COLUMNS)), depth * TILE_ROWS)
    };
    Needs { shared, scratch, ..Needs::default() }
}

/// The scratch that [`multiply_alone`] takes.
pub(super) fn needs_alone(simd: Simd, n: usize, k: usize) -> usize {
    let family = Family::of(simd);
    block_depth(k) * (family.padded(n) + family.rows)
}

/// Computes C, contiguous rows, on all threads.
pub(super) fn multiply(context: &mut Context<'_>, product: Product<'_>, c: &mut [f32]) {
    let Context { simd, pool, shared, .. } = context;
    let (m, n, k) = (product.a.rows, product.b.columns, product.a.columns);
    assert!(product.b.rows == k && c.len() == m * n, "the matrices fit each other");
    if m * n == 0 {
        return;
    }
    if k == 0 {
        for row in c.chunks_exact_mut(n) {
            if !product.add {
                row.fill(0.0);
            }
            row.iter_mut().zip(product.bias.unwrap_or_default()).for_each(|(c, bias)| *c += bias);
        }
        return;
    }
    if m <= FEW_ROWS {
        few_rows(*simd, pool, shared.as_mut_slice(), product, c);
    } else {
        many_rows(*simd, pool, shared.as_mut_slice(), product, c);
    }
}

/// Computes C on the calling thread alone; `scratch` as [`needs_alone`] says.
pub(super) fn multiply_alone(simd: Simd, product: Product<'_>, c: &mut Tile<'_>, scratch: &mut [f32]) {
    let family = Family::of(simd);
    let Product { a, b, bias, .. } = product;
    let (m, n, k) = (a.rows, b.columns, a.columns);
    assert!(b.rows == k && c.rows() == m && c.columns() == n, "the matrices fit each other");
    for block in blocks(k) {
        let depth = block.len();
        let (packed_b, packed_a) = scratch.split_at_mut(depth * family.padded(n));
        pack_columns(simd, &b, block.clone(), 0..n, packed_b);
        for rows in cut(0..m, family.rows) {
            let packed_a = &mut packed_a[..depth * rows.len()];
            pack(simd, a.row_lines(rows.clone(), block.clone()), rows.len(), packed_a);
            let start = Start { bias, add: product.add, is_first: block.start == 0 };
            multiply_panels(family, depth, packed_a, packed_b, &mut c.part(rows, 0..n), start);
        }
    }
}

fn many_rows(simd: Simd, pool: &mut Pool, shared: &mut [f32], product: Product<'_>, c: &mut [f32]) {
    let family = Family::of(simd);
    let Product { a, b, bias, .. } = product;
    let (m, n) = (a.rows, b.columns);
    // A dozen tiles where the shape allows. Both bounds are multiples of every family's rows.
    let tile_rows = m.div_ceil(16).next_multiple_of(family.rows).clamp(24, TILE_ROWS);
    for block in blocks(a.columns) {
        let depth = block.len();
        for stage in cut(0..n, STAGE_COLUMNS) {
            let panel = depth * family.columns();
            let packed = &mut shared[..depth * family.padded(stage.len())];
            for_tiles(pool, [Grid::elements(packed, panel)], |[tile], _| {
                let start = stage.start + tile.column / depth;
                let columns = start..(start + family.columns()).min(stage.end);
                pack_columns(simd, &b, block.clone(), columns, tile.into_slice());
            });
            let packed = &*packed;
            let tile_columns = stage_tile_columns(family, m.div_ceil(tile_rows), stage.len());
            let grid = Grid::new(&mut *c, [1, m, n], [tile_rows, tile_columns]).columns(stage.clone());
            for_tiles(pool, [grid], |[mut tile], scratch| {
                let packed_a = &mut scratch[..depth * tile.rows()];
                for rows in cut(tile.row_range(), family.rows) {
                    let place = (rows.start - tile.row) * depth;
                    let out = &mut packed_a[place..place + depth * rows.len()];
                    pack(simd, a.row_lines(rows.clone(), block.clone()), rows.len(), out);
                }
                let bias = bias.map(|bias| &bias[stage.start + tile.column..]);
                let start = Start { bias, add: product.add, is_first: block.start == 0 };
                multiply_panels(family, depth, packed_a, &packed[depth * tile.column..], &mut tile, start);
            });
        }
    }
}

/// Columns of a tile of C: all of the stage when there are many rows of tiles, else a part of it.
fn stage_tile_columns(family: Family, row_tiles: usize, columns: usize) -> usize {
    const WANTED_TILES: usize = 32;
    let parts = WANTED_TILES.div_ceil(row_tiles);
    columns.div_ceil(parts).max(4 * family.columns()).next_multiple_of(family.columns())
}

fn few_rows(simd: Simd, pool: &mut Pool, shared: &mut [f32], product: Product<'_>, c: &mut [f32]) {
    let family = Family::of(simd);
    let Product { a, b, bias, .. } = product;
    let (m, n, k) = (a.rows, b.columns, a.columns);
    let packed_a = &mut shared[..m * k];
    for block in blocks(k) {
        let out = &mut packed_a[block.start * m..block.end * m];
        let panel = block.len() * family.rows;
        for_tiles(pool, [Grid::elements(out, panel)], |[tile], _| {
            let start = tile.column / block.len();
            let rows = start..(start + family.rows).min(m);
            pack(simd, a.row_lines(rows.clone(), block.clone()), rows.len(), tile.into_slice());
        });
    }
    let packed_a = &*packed_a;
    let grid = Grid::new(c, [1, m, n], [m, few_rows_columns(family)]);
    for_tiles(pool, [grid], |[mut tile], scratch| {
        for block in blocks(k) {
            let depth = block.len();
            let packed_b = &mut scratch[..depth * family.padded(tile.columns())];
            pack_columns(simd, &b, block.clone(), tile.column_range(), packed_b);
            let bias = bias.map(|bias| &bias[tile.column..]);
            let start = Start { bias, add: product.add, is_first: block.start == 0 };
            multiply_panels(
                family,
                depth,
                &packed_a[block.start * m..block.end * m],
                packed_b,
                &mut tile,
                start,
            );
        }
    });
}

/// Columns of a tile when there are few rows: one panel of B, which is over a hundred kilobytes of weights.
fn few_rows_columns(family: Family) -> usize {
    family.columns()
}

/// How the first block begins an element of C, and that later blocks add to it.
#[derive(Clone, Copy)]
struct Start<'a> {
    bias: Option<&'a [f32]>,
    add: bool,
    is_first: bool,
}

/// Multiplies all packed rows with all packed columns of a tile, over one block of the sum.
fn multiply_panels(family: Family, depth: usize, a: &[f32], b: &[f32], c: &mut Tile<'_>, start: Start<'_>) {
    let (m, n, stride) = (c.rows(), c.columns(), c.stride());
    let bias = start.bias.filter(|_| start.is_first);
    assert!(a.len() >= depth * m && b.len() >= depth * family.padded(n), "the panels cover the tile");
    assert!(bias.is_none_or(|bias| bias.len() >= n), "the bias covers the tile");
    let base = c.as_mut_ptr();
    for columns in cut(0..n, family.columns()) {
        for rows in cut(0..m, family.rows) {
            let micro = family.micro(rows.len(), columns.len());
            // SAFETY: `micro` belongs to an instruction set that a `Simd` proves. Panels before this one are full, so these
            // start at depth times the row and the column, and the assertions above keep them inside the slices; packing
            // has filled the last panel of B up to whole vectors. Rows and columns lie inside the tile, whose elements
            // are this thread's own, and the bias has a number for each column.
            unsafe {
                let panels = Panels {
                    k: depth,
                    a: a.as_ptr().add(rows.start * depth),
                    b: b.as_ptr().add(columns.start * depth),
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

/// Packs columns of B as consecutive panels, the last one as wide as the vectors that its columns take.
fn pack_columns(simd: Simd, b: &Matrix<'_>, block: Range<usize>, columns: Range<usize>, out: &mut [f32]) {
    let family = Family::of(simd);
    for panel in cut(columns.clone(), family.columns()) {
        let width = family.padded(panel.len());
        let place = (panel.start - columns.start) * block.len();
        let out = &mut out[place..place + width * block.len()];
        pack(simd, b.column_lines(block.clone(), panel), width, out);
    }
}

/// Steps of a block: K in equal blocks, so that none is left with a short, inefficient rest.
fn block_depth(k: usize) -> usize {
    k.div_ceil(k.div_ceil(MAX_DEPTH).max(1)).next_multiple_of(8)
}

fn blocks(k: usize) -> impl Iterator<Item = Range<usize>> {
    cut(0..k, block_depth(k))
}

/// A range in pieces of at most `length`.
fn cut(range: Range<usize>, length: usize) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.step_by(length.max(1)).map(move |start| start..(start + length).min(end))
}
