//! Products with GELU by our own kernels on Hopper's matrix units: `gelu_hopper.cu`, which says how they work.

use super::{
    call::{Arg, Builder, Grid},
    modules::Source,
    rows,
    warpgroups::{MOST_SHARED_BYTES, RING_BYTES, boxes, suitable},
};
use crate::{device::View, error::Result};

/// The tiles of a kernel and the blocks of a cluster, which share what they read.
#[derive(Clone, Copy)]
pub(super) struct Tiles {
    columns: usize,
    cluster: usize,
}

impl Tiles {
    /// Every block for itself.
    pub const NARROW: Tiles = Tiles { columns: 128, cluster: 1 };
    /// Pairs of blocks, which read the least.
    pub const WIDE: Tiles = Tiles { columns: 192, cluster: 2 };

    const ROWS: usize = 128;
    /// Terms of the sums in a stage, and elements of a row of a sheet.
    const DEPTH: usize = 64;
    /// Warpgroups that take turns.
    const CONSUMERS: usize = 2;

    /// Shared memory of a block that exchanges so many sheets of each warpgroup's results with the copy engine: what they leave is
    /// stages.
    fn shared_bytes(self, sheets: usize) -> usize {
        const HALF: usize = 2;
        let stage = (Self::ROWS + self.columns) * Self::DEPTH * HALF;
        let rest = Self::CONSUMERS * sheets * Self::ROWS * Self::DEPTH * HALF + RING_BYTES;
        rest + (MOST_SHARED_BYTES - rest) / stage * stage
    }

    /// A block for every multiprocessor, which stays there, but not more clusters than there is work.
    fn grid(self, builder: &Builder<'_>, [rows, columns]: [usize; 2], sheets: usize) -> Grid {
        const THREADS: u32 = 384;
        let units = rows.div_ceil(Self::ROWS * self.cluster) * columns.div_ceil(self.columns);
        let clusters = units.min(builder.multiprocessors() / self.cluster);
        let shared_bytes = u32::try_from(self.shared_bytes(sheets)).expect("a block's shared memory");
        Grid { shared_bytes, ..Grid::new(clusters * self.cluster, THREADS) }
    }

    /// With whether a slope is kept.
    fn settings(self, slope: bool) -> [(&'static str, usize); 3] {
        [("COLUMNS", self.columns), ("CLUSTER", self.cluster), ("SLOPE", slope.into())]
    }
}

/// `(x, w, bias if any) → h, GELU(h)`, or the slope in place of h; false where there is no kernel for it.
pub(super) fn forward(
    builder: &mut Builder<'_>,
    tiles: Tiles,
    slope: bool,
    inputs: &[View],
    outputs: &[View],
) -> Result<bool> {
    let Some(real) = suitable(builder, inputs.iter().chain(outputs)) else { return Ok(false) };
    let ([x, w], [h, y]) = ([&inputs[0], &inputs[1]], [&outputs[0], &outputs[1]]);
    let (rows, columns, depth) = (x.of.shape.rows(), w.of.shape.rows(), w.of.shape.columns());
    // Results leave half a tile at a time.
    let stored = Tiles::ROWS / 2;
    let maps = [(x, Tiles::ROWS), (w, tiles.columns / tiles.cluster), (h, stored), (y, stored)]
        .map(|(view, box_rows)| boxes(builder, view, box_rows));
    let bias = inputs.get(2).map_or(Arg::Pointer(0), |bias| builder.pointer(bias));
    let grid = tiles.grid(builder, [rows, columns], 2);
    let arguments = [bias, rows.into(), columns.into(), depth.into()];
    builder.give_matrix_maps(&maps)?;
    builder.kernel(Source::GeluHopper, "product_gelu", real, &tiles.settings(slope), grid, &arguments)?;
    builder.start_early(tiles.cluster);
    Ok(true)
}

/// `(d_y, w, h or the slope) → GELU′(h)·(d_y·w), the sums of its columns`, which are left out or, with `adds`, written or added; false
/// where there is no kernel for it.
pub(super) fn backward(
    builder: &mut Builder<'_>,
    tiles: Tiles,
    slope: bool,
    inputs: &[View],
    outputs: &[View],
    adds: Option<bool>,
) -> Result<bool> {
    let Some(real) = suitable(builder, inputs.iter().chain(&outputs[..1])) else { return Ok(false) };
    let ([d_y, w, h], d_h) = ([&inputs[0], &inputs[1], &inputs[2]], &outputs[0]);
    let (rows, columns, depth) = (d_y.of.shape.rows(), w.of.shape.columns(), w.of.shape.rows());
    let maps = [(d_y, Tiles::ROWS), (w, Tiles::DEPTH / tiles.cluster), (h, Tiles::ROWS), (d_h, Tiles::ROWS)]
        .map(|(view, box_rows)| boxes(builder, view, box_rows));
    let chunks = rows.div_ceil(Tiles::ROWS);
    let partials = match adds {
        Some(_) => builder.scratch(chunks * columns * size_of::<f32>()),
        None => Arg::Pointer(0),
    };
    let grid = tiles.grid(builder, [rows, columns], tiles.columns / Tiles::DEPTH);
    let arguments = [partials, rows.into(), columns.into(), depth.into()];
    builder.give_matrix_maps(&maps)?;
    builder.kernel(
        Source::GeluHopper,
        "product_gelu_slope",
        real,
        &tiles.settings(slope),
        grid,
        &arguments,
    )?;
    builder.start_early(tiles.cluster);
    if let Some(adds) = adds {
        rows::finish_columns(builder, real, partials, &outputs[1..], [chunks, columns], adds)?;
    }
    Ok(true)
}
