//! Products with a gate by our own kernels on Hopper's matrix units: `gate_hopper.cu`, which says how they work.

use super::{
    call::{Builder, Grid},
    modules::Source,
    warpgroups::{MOST_SHARED_BYTES, RING_BYTES, boxes, suitable},
};
use crate::{
    device::View,
    error::Result,
    tensor::{DType, Shape},
};

/// Blocks that share what they read of the weights: every block for itself, or pairs.
pub(super) const CLUSTERS: [usize; 2] = [1, 2];

/// A tile, the terms of its sums in a stage, and how many rows or columns a box of results has.
const TILE: usize = 128;
const DEPTH: usize = 64;
const BOX: usize = 64;

/// `(x, w) → slopes, y`; false where there is no kernel for it.
pub(super) fn forward(
    builder: &mut Builder<'_>,
    cluster: usize,
    inputs: &[View],
    outputs: &[View],
) -> Result<bool> {
    let [x, w, slopes, y] = [&inputs[0], &inputs[1], &outputs[0], &outputs[1]];
    let Some(real) = suited(builder, [x, w, slopes, y], y.of.shape, BOX) else { return Ok(false) };
    let maps = [(x, TILE), (w, BOX), (slopes, BOX), (y, BOX)];
    // Both slopes and the result.
    const KEPT_BOXES: usize = 3;
    let work =
        Work { rows: x.of.shape.rows(), columns: slopes.of.shape.columns(), depth: x.of.shape.columns() };
    add(builder, "product_gate", real, cluster, maps, work, KEPT_BOXES)
}

/// `(d_y, w, slopes) → d_gate and d_up`; false where there is no kernel for it.
pub(super) fn backward(
    builder: &mut Builder<'_>,
    cluster: usize,
    inputs: &[View],
    outputs: &[View],
) -> Result<bool> {
    let [d_y, w, slopes, d] = [&inputs[0], &inputs[1], &inputs[2], &outputs[0]];
    let Some(real) = suited(builder, [d_y, w, slopes, d], w.of.shape, TILE) else { return Ok(false) };
    let maps = [(d_y, TILE), (w, DEPTH / cluster), (slopes, BOX), (d, BOX)];
    // Two places for either gradient.
    const KEPT_BOXES: usize = 4;
    let work =
        Work { rows: d_y.of.shape.rows(), columns: w.of.shape.columns(), depth: d_y.of.shape.columns() };
    add(builder, "product_gate_slopes", real, cluster, maps, work, KEPT_BOXES)
}

/// The sizes of a product.
struct Work {
    rows: usize,
    columns: usize,
    depth: usize,
}

/// The operands' type, if kernels can take them: a box of gates must end where the gates do, since ups lie behind them.
fn suited(builder: &Builder<'_>, operands: [&View; 4], gates: Shape, whole: usize) -> Option<DType> {
    suitable(builder, operands).filter(|_| gates.columns().is_multiple_of(whole))
}

fn add(
    builder: &mut Builder<'_>,
    name: &'static str,
    real: DType,
    cluster: usize,
    maps: [(&View, usize); 4],
    Work { rows, columns, depth }: Work,
    kept_boxes: usize,
) -> Result<bool> {
    const THREADS: u32 = 384;
    const CONSUMERS: usize = 2;
    const HALF: usize = 2;
    // As the kernel counts: what the warpgroups' boxes leave is stages.
    let stage = 2 * TILE * DEPTH * HALF;
    let rest = CONSUMERS * kept_boxes * BOX * BOX * HALF + RING_BYTES;
    let shared_bytes = rest + (MOST_SHARED_BYTES - rest) / stage * stage;
    // A block for every multiprocessor, which stays there, but not more clusters than there is work.
    let units = rows.div_ceil(TILE * cluster) * columns.div_ceil(TILE);
    let blocks = units.min(builder.multiprocessors() / cluster) * cluster;
    let shared_bytes = u32::try_from(shared_bytes).expect("a block's shared memory");
    let grid = Grid { shared_bytes, ..Grid::new(blocks, THREADS) };
    let width = maps[2].0.of.shape.columns() / 2;
    let maps = maps.map(|(view, box_rows)| boxes(builder, view, box_rows));
    builder.give_matrix_maps(&maps)?;
    let settings = [("COLUMNS", TILE), ("CLUSTER", cluster)];
    let arguments = [rows.into(), width.into(), depth.into()];
    builder.kernel(Source::GateHopper, name, real, &settings, grid, &arguments)?;
    builder.start_early(cluster);
    Ok(true)
}
