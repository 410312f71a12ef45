//! Drawing tokens.

use super::{
    super::{
        call::{Arg, Builder, Grid},
        modules::Source,
    },
    Launch, WIDE_BYTES, width,
};
use crate::{
    draw::{Draw, LogProbabilities},
    error::Result,
};

/// Threads of a block: those of `draw.cu`.
const THREADS: u32 = 1024;
/// Shared memory that every card has for a block, less what the kernel declares itself.
const MOST_SHARED_BYTES: usize = 84 << 10;
/// The same of cards that have more, which is asked for only where a row fits.
const LARGE_SHARED_BYTES: usize = 160 << 10;

/// A thread per logit.
pub(super) fn adjust(builder: &mut Builder<'_>, launch: Launch<'_>) -> Result<()> {
    let logits = &launch.inputs[0];
    let real = launch.real([logits])?;
    launch.ensure_f32([&launch.inputs[1], &launch.inputs[5], &launch.outputs[1]])?;
    let (rows, vocabulary) = (logits.of.shape.rows(), logits.of.shape.columns());
    if rows == 0 || vocabulary == 0 {
        return Ok(());
    }
    let threads = super::THREADS;
    let blocks =
        [vocabulary.div_ceil(threads), rows, 1].map(|blocks| u32::try_from(blocks).expect("a grid's blocks"));
    let grid = Grid { blocks, ..Grid::new(1, threads as u32) };
    let mut arguments: Vec<Arg> = (0..6).map(|index| launch.input(builder, index)).collect();
    arguments.extend((0..2).map(|index| launch.output(builder, index)));
    arguments.push(vocabulary.into());
    builder.kernel(Source::Draw, "adjust", real, &[], grid, &arguments)
}

pub(super) fn draw(builder: &mut Builder<'_>, launch: Launch<'_>, of: Draw) -> Result<()> {
    let logits = &launch.inputs[0];
    let real = launch.real([logits])?;
    launch.ensure_f32([&launch.inputs[1]])?;
    let (rows, vocabulary) = (logits.of.shape.rows(), logits.of.shape.columns());
    if rows == 0 {
        return Ok(());
    }
    // The weight of every 32 ids, how many of them tie, and the row itself where there is room, in packs that it need not begin with.
    let segments = vocabulary.div_ceil(32).next_multiple_of(4);
    let sums = segments * (size_of::<u64>() + size_of::<u32>());
    let whole = sums + (vocabulary.div_ceil(width(real)) + 1) * WIDE_BYTES;
    let most = if builder.has_warpgroup_products() { LARGE_SHARED_BYTES } else { MOST_SHARED_BYTES };
    let is_held = whole <= most;
    let grid = Grid {
        blocks: [u32::try_from(rows).expect("a grid's blocks"), 1, 1],
        threads: THREADS,
        shared_bytes: u32::try_from(if is_held { whole } else { sums }).expect("a block's shared memory"),
    };
    let mut arguments = vec![launch.input(builder, 0), launch.input(builder, 1), launch.input(builder, 2)];
    arguments.extend((0..5).map(|index| launch.output(builder, index)));
    let kept = launch.outputs[4].of.shape.columns();
    arguments.extend([vocabulary, kept, of.context, usize::from(is_held)].map(Arg::from));
    builder.kernel(Source::Draw, "draw", real, &[], grid, &arguments)?;
    builder.start_early(1);
    Ok(())
}

/// A block per row.
pub(super) fn log_probabilities(
    builder: &mut Builder<'_>,
    launch: Launch<'_>,
    of: LogProbabilities,
) -> Result<()> {
    let logits = &launch.inputs[0];
    let real = launch.real([logits])?;
    launch.ensure_f32([&launch.outputs[1]])?;
    let (rows, vocabulary) = (logits.of.shape.rows(), logits.of.shape.columns());
    if rows == 0 {
        return Ok(());
    }
    let grid = Grid::new(rows, THREADS);
    let kept = launch.outputs[0].of.shape.columns() / of.count;
    let mut arguments: Vec<Arg> = (0..3).map(|index| launch.input(builder, index)).collect();
    arguments.extend((0..2).map(|index| launch.output(builder, index)));
    arguments.extend([vocabulary, kept, of.count].map(Arg::from));
    builder.kernel(Source::Draw, "log_probabilities", real, &[], grid, &arguments)?;
    builder.start_early(1);
    Ok(())
}
