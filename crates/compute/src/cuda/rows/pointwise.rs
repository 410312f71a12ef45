//! Element by element.

use super::{
    super::{
        call::{Arg, Builder, Grid},
        modules::Source,
    },
    Launch, THREADS, all_aligned, count, flag, looping, most_blocks, width,
};
use crate::{device::View, error::Result, philox::drop_threshold};

/// A kernel that takes its inputs, its outputs and how many elements each has, all of one type.
pub(super) fn map(builder: &mut Builder<'_>, launch: Launch<'_>, name: &'static str) -> Result<()> {
    map_with(builder, launch, name, &[])
}

/// The same with some constants behind.
fn map_with(
    builder: &mut Builder<'_>,
    launch: Launch<'_>,
    name: &'static str,
    constants: &[Arg],
) -> Result<()> {
    let real = launch.real(launch.inputs.iter().chain(launch.outputs))?;
    let elements = launch.outputs[0].of.shape.elements();
    let mut arguments: Vec<Arg> =
        launch.inputs.iter().chain(launch.outputs).map(|view| builder.pointer(view)).collect();
    let is_wide = all_aligned(&arguments);
    arguments.extend([count(elements), flag(is_wide)]);
    arguments.extend_from_slice(constants);
    // A thread takes two packs at a time.
    let grid = looping(builder, elements.div_ceil(if is_wide { 2 * width(real) } else { 1 }));
    builder.kernel(Source::Pointwise, name, real, &[], grid, &arguments)
}

/// factor·x + offset.
pub(super) fn affine(builder: &mut Builder<'_>, launch: Launch<'_>, factor: f32, offset: f32) -> Result<()> {
    map_with(builder, launch, "affine", &[Arg::F32(factor), Arg::F32(offset)])
}

/// A gate whose operands, or their gradients, lie side by side, as they do in `joint`.
pub(super) fn joint_gate(builder: &mut Builder<'_>, launch: Launch<'_>, joint: &View) -> Result<()> {
    let real = launch.real(launch.inputs.iter().chain(launch.outputs))?;
    let (elements, columns) = (joint.of.shape.elements() / 2, joint.of.shape.columns() / 2);
    let mut arguments: Vec<Arg> =
        launch.inputs.iter().chain(launch.outputs).map(|view| builder.pointer(view)).collect();
    let is_wide = all_aligned(&arguments) && columns.is_multiple_of(width(real));
    arguments.extend([count(elements), columns.into(), flag(is_wide)]);
    let grid = looping(builder, elements.div_ceil(if is_wide { 2 * width(real) } else { 1 }));
    builder.kernel(Source::Pointwise, launch.name, real, &[], grid, &arguments)
}

pub(super) fn broadcast(builder: &mut Builder<'_>, launch: Launch<'_>) -> Result<()> {
    let real = launch.real([&launch.inputs[0], &launch.outputs[0]])?;
    let elements = launch.outputs[0].of.shape.elements();
    let (x, y) = (launch.input(builder, 0), launch.output(builder, 0));
    let is_wide = all_aligned(&[y]);
    let grid = looping(builder, elements.div_ceil(if is_wide { width(real) } else { 1 }));
    let arguments = [x, y, count(elements), flag(is_wide)];
    builder.kernel(Source::Pointwise, "broadcast", real, &[], grid, &arguments)
}

pub(super) fn dropout(
    builder: &mut Builder<'_>,
    launch: Launch<'_>,
    probability: f32,
    number: u32,
) -> Result<()> {
    let real = launch.real([&launch.inputs[0], &launch.outputs[0]])?;
    let shape = launch.outputs[0].of.shape;
    let samples = shape.dims()[0];
    let per_sample = shape.elements() / samples.max(1);
    let (x, y) = (launch.input(builder, 0), launch.output(builder, 0));
    // Every sample must begin on a boundary.
    let is_wide = all_aligned(&[x, y]) && per_sample.is_multiple_of(width(real));
    let threads = per_sample.div_ceil(if is_wide { width(real) } else { 1 });
    let along_samples = samples.clamp(1, 65_535);
    let most = most_blocks(builder).div_ceil(along_samples);
    let along_elements = threads.div_ceil(THREADS).clamp(1, most);
    let grid = Grid {
        blocks: [along_elements as u32, along_samples as u32, 1],
        threads: THREADS as u32,
        shared_bytes: 0,
    };
    let scale = (1.0 / (1.0 - f64::from(probability))) as f32;
    let arguments = [
        x,
        launch.input(builder, 1),
        launch.input(builder, 2),
        y,
        count(per_sample),
        samples.into(),
        Arg::U32(number),
        Arg::U32(drop_threshold(probability)),
        Arg::F32(scale),
        flag(is_wide),
    ];
    builder.kernel(Source::Pointwise, "dropout", real, &[], grid, &arguments)
}
