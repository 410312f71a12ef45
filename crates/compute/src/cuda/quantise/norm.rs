//! Norms that write eight bits themselves.

use super::{Copies, NOTHING};
use crate::{
    cuda::{
        call::{Arg, Builder, Grid},
        modules::Source as File,
    },
    device::View,
    error::Result,
    quantise::{QuantisedNorm, norm_root},
    tensor::DType,
};

/// Rows of a block, and its threads; see the kernels.
const ROWS: usize = 32;
const THREADS: u32 = 256;
/// Bytes of a number's pack.
const PACK_BYTES: usize = 16;
/// A row of bytes in shared memory is a multiple of as many words as there are banks.
const BANKS: usize = 32;

/// See [`QuantisedNorm`] for the operands.
pub(super) fn add(
    builder: &mut Builder<'_>,
    of: &QuantisedNorm,
    inputs: &[View],
    outputs: &[View],
) -> Result<()> {
    let x = inputs[0].of;
    let [rows, columns] = [x.shape.rows(), x.shape.columns()];
    let row_words = (columns / 4).next_multiple_of(BANKS);
    let (before, copies) = outputs.split_at(usize::from(of.adds) + of.statistics());
    let Copies { unit, as_it_is, transposed, .. } = Copies::new(builder, &of.copies(), copies);

    let mut arguments: Vec<Arg> = inputs.iter().map(|view| builder.pointer(view)).collect();
    if of.centred && !of.shift {
        arguments.push(NOTHING);
    }
    arguments.extend(before.iter().map(|view| builder.pointer(view)));
    let [as_it_is, transposed] = [as_it_is, transposed].map(|at| at.unwrap_or(NOTHING));
    arguments.extend([unit, as_it_is, transposed, rows.into(), columns.into(), row_words.into()]);
    arguments.extend([Arg::F32(norm_root(columns)), Arg::F32(of.eps)]);

    let shared_bytes = (ROWS * row_words * size_of::<u32>()) as u32;
    let grid = Grid { shared_bytes, ..Grid::new(rows.div_ceil(ROWS), THREADS) };
    let defines = [("PACKS", packs(x.dtype, columns))];
    builder.kernel(File::QuantiseNorm, of.name(), x.dtype, &defines, grid, &arguments)
}

/// Packs of a row that a lane has.
pub(super) fn packs(real: DType, columns: usize) -> usize {
    columns.div_ceil(32 * PACK_BYTES / real.bytes())
}
