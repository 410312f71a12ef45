//! What Muon does between its products, and the running average of parameters.

use super::{
    super::{
        call::{Arg, Builder},
        modules::Source,
    },
    Launch, all_aligned, count, flag, looping,
};
use crate::{
    device::View,
    error::Result,
    kernel::{Descend, NORMALISE_EPS},
    tensor::DType,
};

/// Adds a kernel over flat f32 buffers: all operands, how many elements the first has, its constants, and whether accesses
/// to those of that length can be wide.
fn elementwise(
    builder: &mut Builder<'_>,
    launch: Launch<'_>,
    name: &'static str,
    constants: &[f32],
) -> Result<()> {
    let is_real = |view: &&View| view.of.dtype != DType::U32;
    launch.ensure_f32(launch.inputs.iter().chain(launch.outputs).filter(is_real))?;
    let elements = launch.inputs[0].of.shape.elements();
    let views = || launch.inputs.iter().chain(launch.outputs);
    let mut arguments: Vec<Arg> = views().map(|view| builder.pointer(view)).collect();
    let long: Vec<Arg> = views()
        .filter(|view| view.of.shape.elements() == elements)
        .map(|view| builder.pointer(view))
        .collect();
    arguments.push(count(elements));
    arguments.extend(constants.iter().map(|&constant| Arg::F32(constant)));
    arguments.push(flag(all_aligned(&long)));
    let grid = looping(builder, elements.div_ceil(4));
    builder.kernel(Source::Muon, name, DType::F32, &[], grid, &arguments)
}

/// `(gradients, scale) → momentum, look-ahead`.
pub(super) fn momentum(builder: &mut Builder<'_>, launch: Launch<'_>, decay: f32) -> Result<()> {
    elementwise(builder, launch, "momentum", &[decay, (1.0 - f64::from(decay)) as f32])
}

/// `(x, norm) → x / norm`.
pub(super) fn normalise(builder: &mut Builder<'_>, launch: Launch<'_>) -> Result<()> {
    elementwise(builder, launch, "normalise", &[NORMALISE_EPS])
}

/// `(x, y) → a·x + b·y`.
pub(super) fn combine(builder: &mut Builder<'_>, launch: Launch<'_>, [a, b]: [f32; 2]) -> Result<()> {
    elementwise(builder, launch, "combine", &[a, b])
}

/// `(direction, scale, rate) → parameters`.
pub(super) fn descend(builder: &mut Builder<'_>, launch: Launch<'_>, descend: &Descend) -> Result<()> {
    elementwise(builder, launch, "descend", &[descend.length, descend.weight_decay])
}

/// `(parameters, scale, counter) → average`.
pub(super) fn average(builder: &mut Builder<'_>, launch: Launch<'_>, decay: f32) -> Result<()> {
    elementwise(builder, launch, "average", &[decay])
}
