//! Weights in eight bits: all of them in two launches, for one by one they would take longer to begin and end than their numbers take.

use super::{THREADS, TILE};
use crate::{
    cuda::{
        call::{Builder, Grid},
        modules::Source as File,
    },
    device::View,
    error::Result,
    quantise::{Quantise, sample_stride},
};

/// Blocks that look for the largest number of a weight, and bytes of a `Weight`: as in `kernels/quantise.cu`.
const PARTIALS: usize = 32;
const WEIGHT_BYTES: usize = 48;

/// Looks for the largest number of every weight, then writes the copies of all.
pub(super) fn add(
    builder: &mut Builder<'_>,
    all: &[Quantise],
    inputs: &[View],
    outputs: &[View],
) -> Result<()> {
    let mut table = Vec::with_capacity(all.len() * WEIGHT_BYTES);
    let (mut outputs, mut tiles) = (outputs.iter(), 0);
    for (of, weight) in all.iter().zip(inputs) {
        let mut copy = |is_wanted: bool| {
            let view = if is_wanted { outputs.next() } else { None };
            view.map_or(0, |view| builder.address(view))
        };
        let [unit, as_it_is, transposed] = [true, of.rows, of.columns].map(&mut copy);
        for address in [builder.address(weight), unit, as_it_is, transposed] {
            table.extend_from_slice(&address.to_le_bytes());
        }
        let [rows, columns] = [weight.of.shape.rows(), weight.of.shape.columns()];
        for count in [rows, columns, sample_stride(rows), tiles] {
            table.extend_from_slice(&(count as u32).to_le_bytes());
        }
        tiles += rows.div_ceil(TILE) * columns.div_ceil(TILE);
    }
    let (real, weights) = (inputs[0].of.dtype, builder.constant(&table));
    let partials = builder.scratch(4 * PARTIALS * all.len());
    let grid = Grid::new(PARTIALS * all.len(), THREADS);
    builder.kernel(File::Quantise, "largest_weights", real, &[], grid, &[weights, partials])?;
    let arguments = [weights, all.len().into(), partials];
    builder.kernel(File::Quantise, "e4m3_weights", real, &[], Grid::new(tiles, THREADS), &arguments)
}
