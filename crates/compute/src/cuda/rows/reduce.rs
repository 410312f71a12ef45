//! Sums over rows and over everything.

use super::{
    super::{
        call::{Arg, Builder, Grid},
        modules::Source,
    },
    Launch, THREADS, all_aligned, count, flag, width,
};
use crate::{device::View, error::Result, tensor::DType};

/// About as many blocks as a large card runs at a time. A constant, because it decides the order of sums.
const BLOCKS: usize = 1024;
/// Elements that are worth a block of their own.
const BLOCK_ELEMENTS: usize = 8192;

/// Sums of columns: the kernel that takes them over chunks of rows, its operands, and how many sums it takes at once.
struct ColumnSums<'a> {
    name: &'static str,
    real: DType,
    operands: &'a [Arg],
    /// Operands that are read in packs along a row.
    accesses: &'a [Arg],
    outputs: &'a [View],
    rows: usize,
    columns: usize,
}

impl ColumnSums<'_> {
    fn add(&self, builder: &mut Builder<'_>, adds: bool) -> Result<()> {
        let (rows, columns, sums) = (self.rows, self.columns, self.outputs.len());
        let is_wide = all_aligned(self.accesses) && columns.is_multiple_of(width(self.real));
        let packs = columns.div_ceil(if is_wide { width(self.real) } else { 1 });
        let across = packs.next_power_of_two().min(32);
        let tiles = packs.div_ceil(across);
        // A thread should have at least four rows to go over.
        let chunks = (BLOCKS / tiles).min(rows.div_ceil(4 * THREADS / across)).max(1);
        let chunk_rows = rows.div_ceil(chunks).max(1);
        let chunks = rows.div_ceil(chunk_rows).max(1);
        let partials = builder.scratch(4 * chunks * sums * columns);
        let mut arguments = self.operands.to_vec();
        arguments.extend([partials, count(rows), columns.into(), chunk_rows.into(), across.into()]);
        let defines = [("WIDE", usize::from(is_wide))];
        let grid =
            Grid { blocks: [tiles as u32, chunks as u32, 1], threads: THREADS as u32, shared_bytes: 0 };
        builder.kernel(Source::Reduce, self.name, self.real, &defines, grid, &arguments)?;

        finish_columns(builder, self.real, partials, self.outputs, [chunks, columns], adds)
    }
}

/// Sums that were taken over chunks of rows are added up, chunk after chunk: `partials` has, for each of them, as many rows of sums
/// as there are outputs.
pub(in super::super) fn finish_columns(
    builder: &mut Builder<'_>,
    real: DType,
    partials: Arg,
    outputs: &[View],
    [chunks, columns]: [usize; 2],
    adds: bool,
) -> Result<()> {
    let to = |index: usize| outputs.get(index).map_or(Arg::Pointer(0), |view| builder.pointer(view));
    let arguments = [partials, to(0), to(1), to(2), columns.into(), chunks.into(), flag(adds)];
    let blocks = [columns.div_ceil(32) as u32, outputs.len() as u32, 1];
    let grid = Grid { blocks, threads: 1024, shared_bytes: 0 };
    builder.kernel(Source::Reduce, "finish_columns", real, &[("WIDE", 1)], grid, &arguments)
}

pub(super) fn bias(builder: &mut Builder<'_>, launch: Launch<'_>, adds: bool) -> Result<()> {
    let real = launch.real([&launch.inputs[0]])?;
    launch.ensure_f32(launch.outputs)?;
    let shape = launch.inputs[0].of.shape;
    let operands = [launch.input(builder, 0)];
    let sums = ColumnSums {
        name: "bias_columns",
        real,
        operands: &operands,
        accesses: &operands,
        outputs: launch.outputs,
        rows: shape.rows(),
        columns: shape.columns(),
    };
    sums.add(builder, adds)
}

/// `(d_y, x, mean, rstd) → d_gain, d_shift if any`.
pub(super) fn layer_norm_params(builder: &mut Builder<'_>, launch: Launch<'_>, adds: bool) -> Result<()> {
    let real = launch.real(&launch.inputs[..2])?;
    launch.ensure_f32(launch.inputs[2..].iter().chain(launch.outputs))?;
    let shape = launch.inputs[0].of.shape;
    let operands = [0, 1, 2, 3].map(|index| launch.input(builder, index));
    let has_shift = launch.outputs.len() == 2;
    let sums = ColumnSums {
        name: if has_shift { "layer_norm_columns" } else { "layer_norm_gain_columns" },
        real,
        operands: &operands,
        accesses: &operands[..2],
        outputs: launch.outputs,
        rows: shape.rows(),
        columns: shape.columns(),
    };
    sums.add(builder, adds)
}

/// `(d_y, x, rstd) → d_gain`. Rows are as long as the gain.
pub(super) fn rms_norm_gain(
    builder: &mut Builder<'_>,
    launch: Launch<'_>,
    columns: usize,
    adds: bool,
) -> Result<()> {
    let real = launch.real(&launch.inputs[..2])?;
    launch.ensure_f32(launch.inputs[2..].iter().chain(launch.outputs))?;
    let operands = [0, 1, 2].map(|index| launch.input(builder, index));
    let sums = ColumnSums {
        name: "rms_norm_columns",
        real,
        operands: &operands,
        accesses: &operands[..2],
        outputs: launch.outputs,
        rows: launch.inputs[0].of.shape.elements() / columns,
        columns,
    };
    sums.add(builder, adds)
}

pub(super) fn sum(builder: &mut Builder<'_>, launch: Launch<'_>) -> Result<()> {
    let real = launch.real([&launch.inputs[0]])?;
    everything(builder, launch, real, "sum_parts", "finish_sum")
}

pub(super) fn global_norm(builder: &mut Builder<'_>, launch: Launch<'_>) -> Result<()> {
    launch.ensure_f32(launch.inputs)?;
    everything(builder, launch, DType::F32, "square_parts", "finish_norm")
}

/// One number from all elements, summed in double precision.
fn everything(
    builder: &mut Builder<'_>,
    launch: Launch<'_>,
    real: DType,
    parts: &'static str,
    finish: &'static str,
) -> Result<()> {
    launch.ensure_f32(launch.outputs)?;
    let elements = launch.inputs[0].of.shape.elements();
    let from = launch.input(builder, 0);
    let blocks = elements.div_ceil(BLOCK_ELEMENTS).clamp(1, BLOCKS);
    let partials = builder.scratch(8 * blocks);
    let arguments = [from, partials, count(elements), flag(all_aligned(&[from]))];
    // How the elements lie does not change the file's other kernels, so all callers share one module.
    let defines = [("WIDE", 1)];
    builder.kernel(Source::Reduce, parts, real, &defines, Grid::new(blocks, THREADS as u32), &arguments)?;
    let arguments = [partials, launch.output(builder, 0), blocks.into()];
    builder.kernel(Source::Reduce, finish, real, &defines, Grid::new(1, 1024), &arguments)
}
