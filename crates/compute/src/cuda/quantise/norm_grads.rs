//! Gradients of norms that write eight bits themselves.

use super::{Copies, PARTIALS, norm::packs};
use crate::{
    cuda::{
        call::{Arg, Builder, Grid},
        modules::Source as File,
        rows::finish_columns,
    },
    device::View,
    error::Result,
    quantise::{QuantisedNormGrads, sample_stride},
};

/// Rows that a block has at a time, its threads, and blocks that a large card runs at a time. Constants, because they decide the order of
/// sums; see the kernels.
const ROWS: usize = 32;
const THREADS: usize = 256;
const MOST_BLOCKS: usize = 2 * 132;
/// Threads of a block that looks for the largest number.
const LARGEST_THREADS: u32 = 128;
/// Rows of three tensors that a warp has in shared memory, and bytes of a pack.
const ROWS_AHEAD: usize = 2 * 3;
const PACK_BYTES: usize = 16;
/// A row of bytes in shared memory is a multiple of as many words as there are banks.
const BANKS: usize = 32;

/// See [`QuantisedNormGrads`] for the operands.
pub(super) fn add(
    builder: &mut Builder<'_>,
    of: &QuantisedNormGrads,
    inputs: &[View],
    outputs: &[View],
) -> Result<()> {
    let x = inputs[0].of;
    let [rows, columns] = [x.shape.rows(), x.shape.columns()];
    let (grads, copies) = outputs.split_at(1 + of.0.sums());
    let Copies { unit, as_it_is: Some(as_it_is), transposed: Some(transposed), .. } =
        Copies::new(builder, &of.copies(), copies)
    else {
        unreachable!("both copies are wanted");
    };
    let packs = packs(x.dtype, columns);
    let defines =
        [("PACKS", packs), ("SHIFTS", usize::from(of.0.shift)), ("SUMS_ROWS", usize::from(of.0.bias))];
    let operands: Vec<Arg> = inputs.iter().map(|view| builder.pointer(view)).collect();

    let largest = builder.scratch(4 * PARTIALS);
    let name = if of.0.centred { "largest_layer_norm_grad" } else { "largest_rms_norm_grad" };
    let sizes = [rows, columns, sample_stride(rows)].map(Arg::from);
    let arguments = [&operands, &[largest][..], &sizes].concat();
    let grid = Grid::new(PARTIALS, LARGEST_THREADS);
    builder.kernel(File::QuantiseNormGrad, name, x.dtype, &defines, grid, &arguments)?;

    let blocks = rows.div_ceil(ROWS).min(MOST_BLOCKS);
    let partials = builder.scratch(4 * blocks * of.0.sums() * columns);
    let row_words = (columns / 4).next_multiple_of(BANKS);
    let results = [builder.pointer(&grads[0]), partials, largest, unit, as_it_is, transposed];
    let sizes = [rows, columns, row_words].map(Arg::from);
    let arguments = [&operands, &results[..], &sizes].concat();
    let shared_bytes = ROWS_AHEAD * packs * PACK_BYTES * THREADS + ROWS * row_words * size_of::<u32>();
    let grid = Grid { shared_bytes: shared_bytes as u32, ..Grid::new(blocks, THREADS as u32) };
    builder.kernel(File::QuantiseNormGrad, of.name(), x.dtype, &defines, grid, &arguments)?;
    finish_columns(builder, x.dtype, partials, &grads[1..], [blocks, columns], of.0.add)
}
