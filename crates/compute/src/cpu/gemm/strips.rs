//! Products with weights that are never written again, which lie in the order in which they are read.
//!
//! A matrix of N lines of K numbers is laid out where it is: sixteen lines, the lanes of a vector, become a strip, which holds a
//! unit of every line for each step of the sum and takes the room that its lines took. Lines behind the last whole strip stay as
//! they are and are packed when they are needed.
//!
//! Up to eight rows go through the strips one after another, so memory is read from end to end, which is what processors foresee:
//! nothing is asked for ahead. A row alone goes through two at a time, because each of its sums waits for the one before, and fast
//! memory does not. More rows take three strips at a time, and packing, most of what few rows cost otherwise, falls
//! away. Sums are cut and chained as with packed panels, so every element is the same bit for bit.

use std::ops::Range;

use super::{
    Product, block_depth, blocks,
    micro::{Family, Form, Panels, Target, Upcoming},
    nth_block,
    pack::{Lines, pack},
    row_panels,
    stream::STRIP,
};
use crate::{
    cpu::{
        Context, Needs,
        pool::{self, Pool},
        shared::{Grid, Tile, for_tiles},
        simd::Simd,
    },
    tensor::DType,
};

/// Pairs of strips that every thread should have before a row goes through two at a time.
const LEAST_PAIRS: usize = 4;

/// Whether products of this type are quicker with strips, and find their units in numbers of the same type.
pub(in super::super) fn suit(simd: Simd, dtype: DType) -> bool {
    let family = Family::of(simd, dtype);
    family.lanes == STRIP && !matches!(family.form, Form::Rounded(_))
}

/// Scratch that every thread needs to lay out a matrix of so many units in all.
pub(in super::super) fn layout_scratch(units: usize, lines: usize) -> usize {
    units.checked_div(lines).unwrap_or(0) * STRIP
}

/// Lays a matrix of so many lines out as strips.
pub(in super::super) fn lay_out(simd: Simd, pool: &mut Pool, matrix: &mut [f32], lines: usize) {
    let Some(depth) = matrix.len().checked_div(lines).filter(|depth| *depth > 0) else { return };
    let strip = STRIP * depth;
    // Units are moved and not looked into, so all are numbers here.
    let family = Family::of(simd, DType::F32);
    let whole = lines / STRIP * strip;
    for_tiles(pool, [Grid::elements(&mut matrix[..whole], strip)], |[tile], scratch| {
        let (strip, data) = (tile.into_slice(), &mut scratch[..strip]);
        data.copy_from_slice(strip);
        let (count, line_stride) = (STRIP, depth);
        pack(
            simd,
            family,
            Lines { data, count, depth, line_stride, k_stride: 1, is_paired: false },
            STRIP,
            strip,
        );
    });
}

/// The opposite, into memory that holds the same.
pub(in super::super) fn take_apart(strips: &[f32], lines: usize, out: &mut [f32]) {
    let depth = out.len().checked_div(lines).unwrap_or(0);
    for (line, out) in out.chunks_exact_mut(depth.max(1)).enumerate() {
        copy_line(strips, line, out);
    }
}

/// Copies one line of a matrix.
pub(in super::super) fn copy_line(strips: &[f32], line: usize, out: &mut [f32]) {
    let depth = out.len();
    match strips.get(line / STRIP * STRIP * depth..(line / STRIP + 1) * STRIP * depth) {
        Some(strip) => {
            for (out, units) in out.iter_mut().zip(strip.as_chunks::<STRIP>().0) {
                *out = units[line % STRIP];
            }
        }
        None => out.copy_from_slice(&strips[line * depth..][..depth]),
    }
}

/// The shared and per-thread memory that [`multiply`] takes.
pub(in super::super) fn needs(simd: Simd, products: DType, [m, _, k]: [usize; 3]) -> Needs {
    let family = Family::of(simd, products);
    let shared = blocks(family, k).count() * m.div_ceil(family.rows) * row_panel_units(family, k);
    Needs { shared, scratch: family.units(block_depth(family, k)) * STRIP, ..Needs::default() }
}

/// Units from one packed panel of rows to the next.
fn row_panel_units(family: Family, k: usize) -> usize {
    family.panel_units(family.rows, family.units(block_depth(family, k)))
}

/// Computes products as [`super::multiply_then`] does, for a B whose columns lie in strips.
pub(super) fn multiply<const N: usize>(
    context: &mut Context<'_>,
    product: Product<'_>,
    outputs: [&mut [f32]; N],
    then: impl Fn(&mut [Tile<'_>; N], usize) + Sync,
) {
    let Context { simd, pool, shared, .. } = context;
    let simd = *simd;
    let family = Family::of(simd, product.products);
    let Product { a, b, .. } = product;
    let (m, n, k) = (a.rows, b.columns, a.columns);
    assert!(suit(simd, product.products) && b.suits(family) && b.row_stride == 1, "B lies in strips");
    let (panels, stride) = (m.div_ceil(family.rows), row_panel_units(family, k));
    let packed_a = &mut shared.as_mut_slice()[..blocks(family, k).count() * panels * stride];
    let pack_panel = |index: usize, out: &mut [f32]| {
        let block = nth_block(family, k, index / panels);
        let rows = row_panels(family, m).nth(index % panels).unwrap_or_default();
        let (width, steps) = (rows.len(), family.units(block.len()));
        pack(simd, family, a.row_lines(rows, block), width, &mut out[..steps * width]);
    };
    if panels == 1 {
        // So little that waking other threads would take longer.
        packed_a.chunks_exact_mut(stride).enumerate().for_each(|(index, out)| pack_panel(index, out));
    } else {
        for_tiles(pool, [Grid::elements(&mut *packed_a, stride)], |[tile], _| {
            pack_panel(tile.column / stride, tile.into_slice());
        });
    }
    let packed_a = &*packed_a;
    let strips = |columns: &Range<usize>, block: Range<usize>| {
        let start = columns.start * b.column_stride + family.units(block.start) * STRIP;
        Strips {
            data: b.data.get(start..).unwrap_or_default(),
            steps: family.units(block.len()),
            count: columns.len() / STRIP,
            stride: STRIP * b.column_stride,
        }
    };
    let threads = pool.threads();
    let tile_columns = match m {
        1 if n >= LEAST_PAIRS * 2 * STRIP * threads => 2 * STRIP,
        _ if panels == 1 => STRIP,
        _ => family.columns(),
    };
    let whole = n / STRIP * STRIP;
    let grids = outputs.map(|output| Grid::new(output, [1, m, n], [m, tile_columns]));
    for_tiles(pool, grids, |mut tiles, scratch| {
        let tile = &mut tiles[0];
        let Range { start, end } = tile.column_range();
        let (in_strips, left) = (start..whole.clamp(start, end), whole.clamp(start, end)..end);
        // What this thread is likely to read next behind the last block.
        let next = pool::following(threads, n.div_ceil(tile_columns), start / tile_columns);
        let next = next.map_or(0..0, |next| next * tile_columns..((next + 1) * tile_columns).min(whole));
        for (index, block) in blocks(family, k).enumerate() {
            let rows = Rows { family, packed: &packed_a[index * panels * stride..], stride };
            let upcoming = match block.end < k {
                _ if panels == 1 => Upcoming::NONE,
                true => strips(&in_strips, nth_block(family, k, index + 1)).upcoming(),
                false => strips(&next, nth_block(family, k, 0)).upcoming(),
            };
            if !in_strips.is_empty() {
                let strips = strips(&in_strips, block.clone());
                rows.multiply(strips, &product, in_strips.clone(), block.start, tile, upcoming);
            }
            if !left.is_empty() {
                let steps = family.units(block.len());
                let data = &mut scratch[..steps * STRIP];
                pack(simd, family, b.column_lines(block.clone(), left.clone()), STRIP, data);
                let strip = Strips { data, steps, count: 1, stride: 0 };
                rows.multiply(strip, &product, left.clone(), block.start, tile, Upcoming::NONE);
            }
        }
        then(&mut tiles, start);
    });
}

/// Strips side by side, over a block of the sum.
#[derive(Clone, Copy)]
struct Strips<'a> {
    /// The units from the first one on.
    data: &'a [f32],
    steps: usize,
    count: usize,
    /// Units from one strip to the next.
    stride: usize,
}

impl Strips<'_> {
    /// All of it, as what is read soon.
    fn upcoming(&self) -> Upcoming {
        Upcoming::new(self.data.as_ptr(), self.count, self.steps * STRIP, self.stride)
    }
}

/// All rows of A, packed over a block of the sum.
#[derive(Clone, Copy)]
struct Rows<'a> {
    family: Family,
    packed: &'a [f32],
    /// Units from one panel to the next.
    stride: usize,
}

impl Rows<'_> {
    /// Multiplies with strips that are columns of a tile. The block is the one that starts here.
    fn multiply(
        &self,
        strips: Strips<'_>,
        product: &Product<'_>,
        columns: Range<usize>,
        block_start: usize,
        tile: &mut Tile<'_>,
        mut upcoming: Upcoming,
    ) {
        let Strips { data, steps, count, stride: vector_stride } = strips;
        let (m, stride, first) = (tile.rows(), tile.stride(), columns.start - tile.column);
        let panels = m.div_ceil(self.family.rows);
        assert!(first + columns.len() <= tile.columns(), "the columns lie in the tile");
        assert!(columns.len() <= count * STRIP, "the strips cover the columns");
        assert!((count - 1) * vector_stride + steps * STRIP <= data.len(), "the strips are there");
        assert!(panels * self.stride <= self.packed.len() && steps * self.family.rows <= self.stride);
        let bias = product.bias.filter(|_| block_start == 0).map(|bias| &bias[columns.clone()]);
        let base = tile.as_mut_ptr();
        for (index, rows) in row_panels(self.family, m).enumerate() {
            let micro = self.family.micro(rows.len(), columns.len(), false);
            // SAFETY: `micro` belongs to an instruction set that a `Simd` proves. The assertions keep the panel of these rows
            // and the vectors of all strips inside their slices. Rows and columns lie inside the tile, whose elements are
            // this thread's own, and the bias has a number for each column.
            unsafe {
                let a = self.packed.as_ptr().add(index * self.stride);
                let panels = Panels {
                    steps,
                    a,
                    b: data.as_ptr(),
                    b_stride: STRIP,
                    vector_stride,
                    extra: std::ptr::null(),
                    ahead: a.wrapping_add(self.stride),
                    upcoming: &raw mut upcoming,
                };
                let target = Target {
                    c: base.add(rows.start * stride + first),
                    stride,
                    columns: columns.len(),
                    bias: bias.map_or(std::ptr::null(), <[f32]>::as_ptr),
                    add: product.add || block_start > 0,
                };
                micro(panels, target);
            }
        }
    }
}
