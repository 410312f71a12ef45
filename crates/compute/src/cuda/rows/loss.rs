//! Cross-entropy, its gradient, and both for a head's chunks.

use super::{
    super::{
        call::{Arg, Builder, Grid},
        modules::Source,
    },
    Launch, WIDE_BYTES, width,
};
use crate::{
    error::{Error, Result},
    op::LossShape,
    tensor::DType,
};

/// Dynamic shared memory for a row of logits that fits every card since Ampere and lets two blocks share a multiprocessor of
/// Hopper's: 50,304 halves fit.
const MOST_KEPT_BYTES: usize = 100_864;

/// Dynamic shared memory for a row of logits, where it is small enough to be kept.
pub(in super::super) fn kept_row_bytes(real: DType, columns: usize) -> Option<u32> {
    let bytes = columns / width(real) * WIDE_BYTES;
    (bytes <= MOST_KEPT_BYTES).then_some(bytes as u32)
}

/// Threads for a row: two packs each, up to half a block.
pub(in super::super) fn row_threads(real: DType, columns: usize) -> u32 {
    columns.div_ceil(2 * width(real)).next_power_of_two().clamp(32, 512) as u32
}

pub(super) fn cross_entropy(builder: &mut Builder<'_>, launch: Launch<'_>, loss: &LossShape) -> Result<()> {
    let real = launch.real([&launch.inputs[0]])?;
    launch.ensure_f32([&launch.inputs[2]].into_iter().chain(launch.outputs))?;
    let logits = launch.inputs[0].of.shape;
    let arguments = [
        launch.input(builder, 0),
        launch.input(builder, 1),
        launch.input(builder, 2),
        launch.output(builder, 0),
        launch.output(builder, 1),
        logits.columns().into(),
        Arg::F32(loss.label_smoothing),
        Arg::F32(loss.z_loss),
        Arg::Fault,
    ];
    let grid = Grid::new(logits.rows(), row_threads(real, logits.columns()));
    builder.kernel(Source::Loss, "cross_entropy", real, &[], grid, &arguments)
}

pub(super) fn cross_entropy_grad(
    builder: &mut Builder<'_>,
    launch: Launch<'_>,
    loss: &LossShape,
) -> Result<()> {
    let real = launch.real([&launch.inputs[0], &launch.outputs[0]])?;
    launch.ensure_f32(&launch.inputs[2..])?;
    let logits = launch.inputs[0].of.shape;
    let (from, to) = (launch.input(builder, 0), launch.output(builder, 0));
    if let (Arg::Pointer(from), Arg::Pointer(to)) = (from, to)
        && from % WIDE_BYTES as u64 != to % WIDE_BYTES as u64
    {
        let detail = "logits and their gradient lie differently between multiples of 16 bytes".into();
        return Err(Error::Binding { kernel: launch.name, detail });
    }
    let arguments = [
        from,
        launch.input(builder, 1),
        launch.input(builder, 2),
        launch.input(builder, 3),
        launch.input(builder, 4),
        to,
        logits.columns().into(),
        Arg::F32(loss.label_smoothing),
        Arg::F32(loss.z_loss),
        Arg::Fault,
    ];
    let grid = Grid::new(logits.rows(), row_threads(real, logits.columns()));
    builder.kernel(Source::Loss, "cross_entropy_grad", real, &[], grid, &arguments)
}

/// A chunk of a head's logits and what belongs to its rows.
pub(in super::super) struct HeadRows {
    /// The logits, whose gradient takes their place.
    pub logits: Arg,
    /// The logits' element type.
    pub of: DType,
    /// Rows of the chunk.
    pub rows: usize,
    /// Logits of a row.
    pub vocabulary: usize,
    /// Elements from one row to the next; what lies between is left alone.
    pub leading: usize,
    /// `u32` per row.
    pub targets: Arg,
    /// `f32` per row.
    pub weights: Arg,
    /// `f32` per row, where the gradient is wanted.
    pub d_losses: Option<Arg>,
    /// `f32` per row.
    pub losses: Arg,
}

/// Adds the loss of a chunk and, where it is wanted, the gradient.
pub(in super::super) fn add_head_rows(
    builder: &mut Builder<'_>,
    loss: &LossShape,
    chunk: HeadRows,
) -> Result<()> {
    let arguments = [
        chunk.logits,
        chunk.targets,
        chunk.weights,
        chunk.d_losses.unwrap_or(Arg::Pointer(0)),
        chunk.losses,
        chunk.vocabulary.into(),
        chunk.leading.into(),
        Arg::F32(loss.label_smoothing),
        Arg::F32(loss.z_loss),
        Arg::Fault,
    ];
    let mut grid = Grid::new(chunk.rows, row_threads(chunk.of, chunk.vocabulary));
    // Without a gradient nothing is read twice.
    let kept = chunk.d_losses.and_then(|_| kept_row_bytes(chunk.of, chunk.vocabulary));
    grid.shared_bytes = kept.unwrap_or(0);
    let name = if kept.is_some() { "head_loss_rows" } else { "head_loss_long_rows" };
    builder.kernel(Source::Loss, name, chunk.of, &[], grid, &arguments)
}

/// Adds the loss and the log-sum-exp of every row of a chunk whose rows lie side by side; the gradient is somebody else's.
pub(in super::super) fn add_head_losses(
    builder: &mut Builder<'_>,
    loss: &LossShape,
    chunk: &HeadRows,
    log_sum_exps: Arg,
) -> Result<()> {
    let arguments = [
        chunk.logits,
        chunk.targets,
        chunk.weights,
        chunk.losses,
        log_sum_exps,
        chunk.vocabulary.into(),
        Arg::F32(loss.label_smoothing),
        Arg::F32(loss.z_loss),
        Arg::Fault,
    ];
    let grid = Grid::new(chunk.rows, row_threads(chunk.of, chunk.vocabulary));
    builder.kernel(Source::Loss, "cross_entropy", chunk.of, &[], grid, &arguments)
}
