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
//! which packs its rows of A. With few rows (decoding, the gradient of a small vocabulary) it is A that is packed once, and each
//! tile packs its own columns of B: then every element of B is read from memory once, and packing is the only pass over it.
//! Up to eight rows need no packed B at all ([`stream`]), and a B that is never written again is laid out once ([`strips`],
//! or [`int8`] in eight bits).
#![expect(unsafe_code, reason = "inner loops use vector instructions and pointers into packed panels")]

pub(super) mod int8;
mod micro;
mod pack;
mod packed;
mod stream;
pub(super) mod strips;

pub(super) use packed::{Packed, Place, Requests};
pub(super) use stream::FewRows;

use std::ops::Range;

use micro::{Family, Form, LINE_STEPS, Panels, Target, Upcoming};
use pack::{Lines, pack, pack_adjacent_rows};
use stream::{Order, STRIP, Stream, Strip};

use super::{
    Context, Needs,
    pool::{self, Pool},
    shared::{Grid, Tile, for_tiles},
    simd::Simd,
};
use crate::{device::Frozen, tensor::DType};

/// The most steps of a block. The second cache of a core holds the packed rows of a tile (144 KiB), what the next rows are
/// packed from (up to 288 KiB, when pairs are made of single precision), a panel of B (72 KiB) and the one that follows it.
const MAX_STEPS: usize = 384;
/// Rows up to which a product counts as having few, however narrow it is.
const FEW_ROWS: usize = 32;
/// The most rows of a tile.
const TILE_ROWS: usize = 96;
/// The fewest panels of B of a tile that is cut between columns: it packs its rows of A for no other.
const TILE_PANELS: usize = 4;
/// Tiles of C that a thread gets on average, so that one that is held up leaves its share to the others.
const TILES_PER_THREAD: usize = 8;
/// Columns of B that are packed at a time: with [`MAX_STEPS`] steps, 4 MiB in the last cache.
const STAGE_COLUMNS: usize = 2688;

/// Steps of the sum whose rows of B are packed at a time when B is read row by row.
const SWEEP_STEPS: usize = 32;

/// A matrix somewhere in a slice.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a> {
    data: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
    /// The direction in which two numbers of bf16 share an element of `data`, the first in its lower half.
    paired: Paired,
    /// How the lines, rows as it was made and columns when transposed, are laid out where they are frozen: as [`strips`] or as
    /// those of [`int8`].
    frozen: Option<Frozen>,
}

/// Whether and how numbers are stored in pairs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Paired {
    No,
    /// Numbers 2i and 2i + 1 of a column.
    AlongColumns,
    /// Numbers 2i and 2i + 1 of a row.
    AlongRows,
}

impl<'a> Matrix<'a> {
    /// Rows of `columns` elements, each `row_stride` after the one before.
    pub fn strided(data: &'a [f32], rows: usize, columns: usize, row_stride: usize) -> Self {
        assert!(
            rows == 0 || columns == 0 || (rows - 1) * row_stride + columns <= data.len(),
            "the matrix lies inside its slice"
        );
        let (paired, frozen) = (Paired::No, None);
        Matrix { data, rows, columns, row_stride, column_stride: 1, paired, frozen }
    }

    /// Rows of bf16 one after another, two to an element; columns are even.
    pub fn of_pairs(data: &'a [f32], rows: usize, columns: usize) -> Self {
        assert!(
            columns.is_multiple_of(2) && rows * columns / 2 <= data.len(),
            "pairs lie inside their slice"
        );
        let (paired, frozen) = (Paired::AlongRows, None);
        Matrix { data, rows, columns, row_stride: columns / 2, column_stride: 1, paired, frozen }
    }

    /// The same rows, which lie one after another, as they are frozen.
    pub fn laid_out(self, frozen: Option<Frozen>) -> Self {
        Matrix { frozen, ..self }
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
            paired: match self.paired {
                Paired::No => Paired::No,
                Paired::AlongColumns => Paired::AlongRows,
                Paired::AlongRows => Paired::AlongColumns,
            },
            frozen: self.frozen,
        }
    }

    /// Some rows of some columns.
    fn part(&self, rows: Range<usize>, columns: Range<usize>) -> Self {
        let data = self.data.get(self.place(rows.start, columns.start)..).unwrap_or_default();
        Matrix { data, rows: rows.len(), columns: columns.len(), ..*self }
    }

    /// Where a number lies; the first of a pair, where numbers are stored so.
    fn place(&self, row: usize, column: usize) -> usize {
        let (row, column) = match self.paired {
            Paired::No => (row, column),
            Paired::AlongColumns => (row / 2, column),
            Paired::AlongRows => (row, column / 2),
        };
        row * self.row_stride + column * self.column_stride
    }

    /// Rows as lines to pack.
    fn row_lines(&self, rows: Range<usize>, columns: Range<usize>) -> Lines<'a> {
        Lines {
            data: self.data.get(self.place(rows.start, columns.start)..).unwrap_or_default(),
            count: rows.len(),
            depth: columns.len(),
            line_stride: self.row_stride,
            k_stride: self.column_stride,
            is_paired: self.paired == Paired::AlongRows,
        }
    }

    /// Whether the units of columns are stored as a family multiplies them.
    fn suits(&self, family: Family) -> bool {
        match family.form {
            Form::F32 => self.paired == Paired::No,
            Form::Pairs => self.paired == Paired::AlongColumns,
            Form::Rounded(_) => false,
        }
    }

    /// A part that is packed soon.
    fn upcoming(&self, rows: Range<usize>, columns: Range<usize>) -> Upcoming {
        let Lines { data, count, depth, line_stride, k_stride, is_paired } = self.row_lines(rows, columns);
        let depth = if is_paired { depth.div_ceil(2) } else { depth };
        if k_stride == 1 {
            Upcoming::new(data.as_ptr(), count, depth, line_stride)
        } else {
            Upcoming::new(data.as_ptr(), depth, count * line_stride, k_stride)
        }
    }

    /// Whether every number has an element of its own.
    fn is_single(&self) -> bool {
        self.paired == Paired::No
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

/// The shared and per-thread memory that [`multiply`] takes with a B that may be frozen.
pub(super) fn needs_of(simd: Simd, products: DType, sizes: [usize; 3], frozen: Option<Frozen>) -> Needs {
    match frozen {
        Some(Frozen::Exact) => strips::needs(simd, products, sizes),
        Some(Frozen::Int8) => int8::needs(simd, sizes),
        None => needs(simd, products, sizes),
    }
}

/// The same with a B that is not.
pub(super) fn needs(simd: Simd, products: DType, [m, n, k]: [usize; 3]) -> Needs {
    let family = Family::of(simd, products);
    let steps = family.units(block_depth(family, k));
    let rows = |m: usize| m.div_ceil(family.rows) * family.panel_units(family.rows, steps);
    let (shared, scratch) = if has_few_rows(family, m, n) {
        (blocks(family, k).count() * rows(m), steps * family.columns())
    } else {
        let stage = n.min(STAGE_COLUMNS);
        // The last stage may be narrower, with narrower panels and more room between them.
        let stages = [stage, n % STAGE_COLUMNS];
        let shared = stages.map(|columns| Columns::of(family, steps, columns).units()).into_iter().max();
        (shared.unwrap_or(0), rows(TILE_ROWS))
    };
    Needs { shared, scratch, ..Needs::default() }
}

/// Whether A is packed once, and B tile by tile. One row of tiles reads every panel of B once, so there is nothing to share.
fn has_few_rows(family: Family, m: usize, n: usize) -> bool {
    m <= FEW_ROWS || m <= TILE_ROWS && n >= TILE_PANELS * family.columns()
}

/// How some columns of B lie in packed form: panels of equal width one after another, then a single column that is left.
#[derive(Clone, Copy)]
struct Columns {
    steps: usize,
    count: usize,
    /// The columns of a panel.
    panel: usize,
    /// Units from one panel to the next.
    stride: usize,
    has_extra: bool,
}

impl Columns {
    fn of(family: Family, steps: usize, columns: usize) -> Self {
        let has_extra = family.takes_extra(columns);
        let count = columns - usize::from(has_extra);
        let panel = family.panel_columns(count);
        Columns { steps, count, panel, stride: family.panel_units(panel, steps), has_extra }
    }

    fn panels(&self) -> usize {
        self.count.div_ceil(self.panel)
    }

    /// The units of all panels.
    fn panel_units(&self) -> usize {
        self.panels() * self.stride
    }

    fn units(&self) -> usize {
        self.panel_units() + usize::from(self.has_extra) * self.steps
    }
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
    match product.b.frozen {
        Some(Frozen::Exact) => strips::multiply(context, product, outputs, then),
        Some(Frozen::Int8) => int8::multiply(context, product, outputs, then),
        None if has_few_rows(Family::of(context.simd, product.products), m, n) => {
            few_rows(context, product, outputs, then);
        }
        None => many_rows(context, product, outputs, then),
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
    let threads = pool.threads();
    let wanted_tiles = TILES_PER_THREAD * threads;
    let tile_rows = m.div_ceil(wanted_tiles).next_multiple_of(family.rows).clamp(24, TILE_ROWS);
    for block in blocks(family, k) {
        let steps = family.units(block.len());
        for stage in cut(0..n, STAGE_COLUMNS) {
            let columns = Columns::of(family, steps, stage.len());
            let packed = &mut shared[..columns.units()];
            pack_columns(pool, simd, family, b.part(block.clone(), stage.clone()), columns, packed);
            let packed = &*packed;
            // All columns of the stage when there are many rows of tiles, else a part of it.
            let parts = wanted_tiles.div_ceil(m.div_ceil(tile_rows));
            let tile_columns = stage.len().div_ceil(parts).max(TILE_PANELS * columns.panel);
            let mut tile_columns = tile_columns.next_multiple_of(columns.panel);
            if columns.has_extra && stage.len() % tile_columns == 1 {
                tile_columns += columns.panel;
            }
            let grids = outputs
                .each_mut()
                .map(|output| Grid::new(output, [1, m, n], [tile_rows, tile_columns]).columns(stage.clone()));
            for_tiles(pool, grids, |mut tiles, scratch| {
                let tile = &mut tiles[0];
                let column = stage.start + tile.column;
                let packed_a = scratch;
                pack_rows(simd, family, &a, tile.row_range(), block.clone(), packed_a);
                let bias = bias.map(|bias| &bias[column..]);
                let start = Start { bias, add: product.add, is_first: block.start == 0 };
                let across = stage.len().div_ceil(tile_columns);
                let index = tile.row / tile_rows * across + tile.column / tile_columns;
                let next = pool::following(threads, m.div_ceil(tile_rows) * across, index);
                let next_block = block.end..(block.end + block.len()).min(k);
                let mut ahead = Ahead::default();
                if m < n && b.column_stride == 1 && !next_block.is_empty() {
                    // B is the larger part of what is packed: every tile asks for a share of its next block.
                    let share = next_block.len().div_ceil(m.div_ceil(tile_rows) * across);
                    let first = (next_block.start + index * share).min(next_block.end);
                    let share = first..(first + share).min(next_block.end);
                    ahead.early = b.transposed().upcoming(stage.clone(), share);
                }
                if let Some(row) = next.map(|next| next / across * tile_rows).filter(|row| *row > tile.row) {
                    ahead.late = a.upcoming(row..(row + tile_rows).min(m), block.clone());
                }
                multiply_panels(family, packed_a, (packed, columns), tile, start, ahead);
                if block.end == k {
                    then(&mut tiles, column);
                }
            });
        }
    }
}

/// Packs all of B, on all threads.
fn pack_columns(
    pool: &mut Pool,
    simd: Simd,
    family: Family,
    b: Matrix<'_>,
    columns: Columns,
    packed: &mut [f32],
) {
    let Columns { steps, count, panel, stride, has_extra } = columns;
    let (panels, extra) = packed.split_at_mut(columns.panel_units());
    if has_extra {
        pack(simd, family, b.column_lines(0..b.rows, count..count + 1), 1, &mut extra[..steps]);
    }
    if pack::can_sweep(family, &b) {
        // Rows of B are read from end to end, which is the order that memory is quickest in.
        let grid = Grid::new(panels, [1, columns.panels(), stride], [columns.panels(), SWEEP_STEPS * panel]);
        for_tiles(pool, [grid], |[mut tile], _| {
            let first = tile.column / panel;
            let steps = first..(first + tile.columns() / panel).min(steps);
            let rows = family.elements(steps.start)..family.elements(steps.end).min(b.rows);
            let lines = b.column_lines(rows, 0..count);
            pack::sweep(simd, family, lines, panel, &mut tile);
        });
        return;
    }
    for_tiles(pool, [Grid::elements(panels, stride)], |[tile], _| {
        let start = tile.column / stride * panel;
        let columns = start..(start + panel).min(count);
        pack(simd, family, b.column_lines(0..b.rows, columns), panel, tile.into_slice());
    });
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
    // Where the rows of a block start. Blocks but the last are equally deep.
    let all_steps = family.units(block_depth(family, k));
    let block_units = m.div_ceil(family.rows) * family.panel_units(family.rows, all_steps);
    let place = |block: &Range<usize>| block.start / block_depth(family, k) * block_units;
    let packed_a = &mut shared.as_mut_slice()[..blocks(family, k).count() * block_units];
    let stream = family.stream(m).filter(|_| b.row_stride == 1 && b.suits(family));
    if stream.is_some() {
        // So little that waking other threads would take longer.
        for (block, packed) in blocks(family, k).zip(packed_a.chunks_exact_mut(block_units)) {
            pack_rows(simd, family, &a, 0..m, block, packed);
        }
    } else {
        for_tiles(pool, [Grid::elements(&mut *packed_a, block_units)], |[tile], _| {
            let block = nth_block(family, k, tile.column / block_units);
            pack_rows(simd, family, &a, 0..m, block, tile.into_slice());
        });
    }
    let packed_a = &*packed_a;
    let threads = pool.threads();
    // A tile is one panel of B, or a strip where B is read where it lies: tens of kilobytes of weights a block.
    let tile_columns = if stream.is_some() { STRIP } else { family.columns() };
    let grids = outputs.map(|output| Grid::new(output, [1, m, n], [m, tile_columns]));
    for_tiles(pool, grids, |mut tiles, scratch| {
        let tile = &mut tiles[0];
        let column = tile.column;
        // The columns that this thread is likely to take next.
        let next = pool::following(threads, n.div_ceil(tile_columns), column / tile_columns);
        let next_column = next.map_or(n, |next| next * tile_columns);
        if let Some(stream) = stream {
            for block in blocks(family, k) {
                let packed_a = &packed_a[place(&block)..];
                stream_strip((family, stream), packed_a, &product, block, tile, next_column);
            }
            return then(&mut tiles, column);
        }
        for block in blocks(family, k) {
            let steps = family.units(block.len());
            let (count, panel) = (tile.columns(), family.padded(tile.columns()));
            let columns = Columns { steps, count, panel, stride: steps * panel, has_extra: false };
            let packed_b = &mut scratch[..columns.units()];
            pack(simd, family, b.column_lines(block.clone(), tile.column_range()), panel, packed_b);
            let bias = bias.map(|bias| &bias[tile.column..]);
            let start = Start { bias, add: product.add, is_first: block.start == 0 };
            // What this thread packs next: the same columns of the next block, or the first block of its next tile.
            let next = if block.end < k {
                let next_block = block.end..(block.end + block.len()).min(k);
                b.transposed().upcoming(tile.column_range(), next_block)
            } else {
                let next_columns = next_column..(next_column + tile_columns).min(n);
                b.transposed().upcoming(next_columns, 0..block_depth(family, k).min(k))
            };
            let ahead = Ahead { early: next, ..Ahead::default() };
            multiply_panels(family, &packed_a[place(&block)..], (packed_b, columns), tile, start, ahead);
        }
        then(&mut tiles, column);
    });
}

/// Multiplies all packed rows with the columns of a tile, at most a strip, where they lie, over one block of the sum. The next
/// strip is likely to begin at the column `next`.
fn stream_strip(
    (family, stream): (Family, Stream),
    packed_a: &[f32],
    product: &Product<'_>,
    block: Range<usize>,
    tile: &mut Tile<'_>,
    next: usize,
) {
    let Product { b, bias, add, .. } = *product;
    let (m, stride, steps) = (tile.rows(), tile.stride(), family.units(block.len()));
    assert!(packed_a.len() >= steps * m, "the panel covers the rows");
    let columns = tile.column_range();
    let lines = b.column_lines(block.clone(), columns.clone());
    assert!((columns.len() - 1) * lines.line_stride + steps <= lines.data.len(), "the lines exist");
    assert!(columns.len() <= STRIP, "the tile is a strip");
    let bias = bias.filter(|_| block.start == 0).map(|bias| &bias[columns.clone()]);
    let order = Order::of(family.units(b.rows), lines.line_stride);
    let strip = Strip {
        steps,
        a: packed_a.as_ptr(),
        lines: lines.data.as_ptr(),
        stride: lines.line_stride,
        count: columns.len(),
        ahead: b.data.as_ptr().wrapping_add(b.place(0, next) + order.place(family.units(block.start))),
        order,
    };
    // SAFETY: `stream` belongs to an instruction set that a `Simd` proves. The assertions keep the packed rows and the lines
    // inside their slices; the columns lie inside the tile, whose elements are this thread's own, and the bias has a
    // number for each.
    unsafe {
        let target = Target {
            c: tile.as_mut_ptr(),
            stride,
            columns: columns.len(),
            bias: bias.map_or(std::ptr::null(), <[f32]>::as_ptr),
            add: add || block.start > 0,
        };
        stream(strip, target);
    }
}

/// How the first block begins an element of C, and that later blocks add to it.
#[derive(Clone, Copy)]
struct Start<'a> {
    bias: Option<&'a [f32]>,
    add: bool,
    is_first: bool,
}

/// What is packed after a tile, and asked for while the tile is multiplied.
#[derive(Clone, Copy, Default)]
struct Ahead {
    /// From the first panel on: what is needed much later, or is small.
    early: Upcoming,
    /// With the last panels, because those before them would push it out of the second cache.
    late: Upcoming,
}

/// Multiplies all packed rows with the packed columns of a tile, over one block of the sum. The tile's column counts from
/// the first packed one, unless its columns are all that are packed.
fn multiply_panels(
    family: Family,
    a: &[f32],
    (b, packed): (&[f32], Columns),
    c: &mut Tile<'_>,
    start: Start<'_>,
    ahead: Ahead,
) {
    let Columns { steps, count, panel, .. } = packed;
    let (m, n, stride) = (c.rows(), c.columns(), c.stride());
    let first = if n == count { 0 } else { c.column };
    let has_extra = packed.has_extra && first + n > count;
    let n = n - usize::from(has_extra);
    let bias = start.bias.filter(|_| start.is_first);
    let a_stride = family.panel_units(family.rows, steps);
    let row_panel_count = m.div_ceil(family.rows);
    assert!(first.is_multiple_of(panel) && first + n <= count, "the tile's columns are packed");
    assert!(
        a.len() >= (row_panel_count - 1) * a_stride + steps * family.rows.min(m),
        "the panels cover the rows"
    );
    assert!(b.len() >= packed.units(), "the panels cover the columns");
    assert!(bias.is_none_or(|bias| bias.len() >= n + usize::from(has_extra)), "the bias covers the tile");
    let base = c.as_mut_ptr();
    let mut upcoming = ahead.early;
    let late_panels = ahead.late.lines().div_ceil(row_panel_count * Upcoming::lines_of_call(steps).max(1));
    let late_from = n.div_ceil(panel).saturating_sub(late_panels) * panel;
    for columns in cut(0..n, panel) {
        let is_last = columns.end == n;
        if columns.start == late_from {
            upcoming = ahead.late;
        }
        let panel_idx = (first + columns.start) / panel;
        let b_panel = &b[panel_idx * packed.stride..];
        // The next panel of B, or the first one for the tile that follows.
        let next = &b[if is_last { first / panel } else { panel_idx + 1 } * packed.stride..];
        for (row_panel, rows) in row_panels(family, m).enumerate() {
            let has_extra = has_extra && is_last;
            let micro = family.micro(rows.len(), columns.len(), has_extra);
            // SAFETY: `micro` belongs to an instruction set that a `Simd` proves. The assertions keep the panels of these
            // rows and columns inside the slices; packing has filled the last panel of B up to whole vectors, and the extra
            // column follows the panels. Rows and columns lie inside the tile, whose elements are this thread's own, and
            // the bias has a number for each column.
            unsafe {
                let panels = Panels {
                    steps,
                    a: a.as_ptr().add(row_panel * a_stride),
                    b: b_panel.as_ptr(),
                    b_stride: panel,
                    vector_stride: family.lanes,
                    extra: b.as_ptr().wrapping_add(packed.panel_units()),
                    upcoming: &raw mut upcoming,
                    ahead: next.as_ptr().wrapping_add(row_panel * steps / LINE_STEPS * 16),
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

/// Packs rows of A as consecutive panels, each as wide as its rows.
fn pack_rows(
    simd: Simd,
    family: Family,
    a: &Matrix<'_>,
    rows: Range<usize>,
    block: Range<usize>,
    out: &mut [f32],
) {
    let steps = family.units(block.len());
    let stride = family.panel_units(family.rows, steps);
    let m = rows.len();
    let whole = row_panels(family, m).take_while(|panel| panel.len() == family.rows).count();
    let adjacent = a.row_lines(rows.start..rows.start + whole * family.rows, block.clone());
    let done = pack_adjacent_rows(simd, family, adjacent, stride, out) / family.rows;
    for (panel, out) in row_panels(family, m).zip(out.chunks_mut(stride)).skip(done) {
        let lines = a.row_lines(rows.start + panel.start..rows.start + panel.end, block.clone());
        pack(simd, family, lines, panel.len(), &mut out[..steps * panel.len()]);
    }
}

/// Rows in panels. If one or two would be left, they share with the panel before them: sums of so few rows would be too few to
/// keep the processor busy.
fn row_panels(family: Family, m: usize) -> impl Iterator<Item = Range<usize>> {
    let full = family.rows;
    let is_shared = m > full && (1..=2).contains(&(m % full));
    let shared_from = if is_shared { m / full * full - full } else { m };
    let shared = (m - shared_from).div_ceil(2).max(1);
    cut(0..shared_from, full).chain(cut(shared_from..m, shared))
}

/// Elements of a block: K in equal blocks, so that none is left with a short, inefficient rest.
fn block_depth(family: Family, k: usize) -> usize {
    let most = MAX_STEPS * k.max(1) / family.units(k).max(1);
    k.div_ceil(k.div_ceil(most).max(1)).next_multiple_of(8)
}

fn blocks(family: Family, k: usize) -> impl Iterator<Item = Range<usize>> {
    cut(0..k, block_depth(family, k))
}

/// The block with this number.
fn nth_block(family: Family, k: usize, index: usize) -> Range<usize> {
    let depth = block_depth(family, k);
    (index * depth).min(k)..((index + 1) * depth).min(k)
}

/// A range in pieces of at most `length`.
fn cut(range: Range<usize>, length: usize) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.step_by(length.max(1)).map(move |start| start..(start + length).min(end))
}
