//! The guard of a step and the optimisers.

use super::{
    super::{
        call::{Arg, Builder, Grid},
        modules::Source,
    },
    Launch, THREADS, all_aligned, count, flag, most_blocks,
};
use crate::{
    error::Result,
    kernel::{Adam, Guard, Sgd, UpdateRange},
    tensor::DType,
};

/// Elements of a tile, bytes of a `Step` and of a `Range`: as in `kernels/update.cu`.
const TILE: usize = 4096;
const STEP_BYTES: usize = 24;
const RANGE_BYTES: usize = 32;

/// The table that kernels find a tile's range in.
struct Ranges {
    table: Arg,
    ranges: usize,
    tiles: usize,
}

impl Ranges {
    fn new(builder: &mut Builder<'_>, ranges: &[UpdateRange]) -> Self {
        let mut bytes = Vec::with_capacity(ranges.len() * RANGE_BYTES);
        let mut tiles = 0;
        let mut used = 0;
        for range in ranges.iter().filter(|range| range.len > 0) {
            let end = range.start + range.len;
            for word in [range.start, end, tiles] {
                bytes.extend_from_slice(&(word as u64).to_le_bytes());
            }
            for number in [range.weight_decay, range.rate] {
                bytes.extend_from_slice(&number.to_le_bytes());
            }
            // Tiles begin at multiples of their size.
            tiles += end.div_ceil(TILE) - range.start / TILE;
            used += 1;
        }
        Ranges { table: builder.constant(&bytes), ranges: used, tiles }
    }

    fn grid(&self, builder: &Builder<'_>) -> Grid {
        Grid::new(self.tiles.clamp(1, most_blocks(builder)), THREADS as u32)
    }
}

/// `(norm, loss, targets, exponent) → scale, report, statistics`.
pub(super) fn guard(builder: &mut Builder<'_>, launch: Launch<'_>, guard: &Guard) -> Result<()> {
    launch.ensure_f32(launch.inputs.iter().chain(launch.outputs))?;
    let mut arguments: Vec<Arg> = (0..4).map(|index| launch.input(builder, index)).collect();
    arguments.extend((0..3).map(|index| launch.output(builder, index)));
    let numbers = [guard.clip, guard.loss_outlier, guard.norm_outlier, guard.warmup as f32];
    arguments.extend(numbers.map(Arg::F32));
    arguments.push(flag(guard.holds));
    builder.kernel(Source::Update, "guard", DType::F32, &[], Grid::new(1, 1), &arguments)
}

/// `(gradients, scale, rate) → parameters, first moment, second moment, counter, working copy if any`.
pub(super) fn adam(builder: &mut Builder<'_>, launch: Launch<'_>, adam: &Adam) -> Result<()> {
    launch.ensure_f32(launch.inputs.iter().chain(&launch.outputs[..3]))?;
    let [gradients, scale, rate] = [0, 1, 2].map(|index| launch.input(builder, index));
    let [parameters, first, second, counter] = [0, 1, 2, 3].map(|index| launch.output(builder, index));
    let real = launch.real(&launch.outputs[4..])?;
    let copy = launch.outputs.get(4).map_or(Arg::Pointer(0), |view| builder.pointer(view));
    let step = builder.scratch(STEP_BYTES);
    let (beta1, beta2) = (Arg::F32(adam.beta1), Arg::F32(adam.beta2));
    let arguments = [scale, rate, counter, step, beta1, beta2];
    builder.kernel(Source::Update, "prepare_adam", DType::F32, &[], Grid::new(1, 1), &arguments)?;

    let ranges = Ranges::new(builder, &adam.ranges);
    let rest = |beta: f32| Arg::F32((1.0 - f64::from(beta)) as f32);
    let arguments = [
        gradients,
        parameters,
        first,
        second,
        copy,
        step,
        ranges.table,
        ranges.ranges.into(),
        count(ranges.tiles),
        beta1,
        rest(adam.beta1),
        beta2,
        rest(adam.beta2),
        Arg::F32(adam.eps),
        flag(adam.decoupled),
        flag(all_aligned(&[gradients, parameters, first, second, copy])),
    ];
    builder.kernel(Source::Update, "adam", real, &[], ranges.grid(builder), &arguments)
}

/// `(gradients, scale, rate) → parameters, momentum, counter`.
pub(super) fn sgd(builder: &mut Builder<'_>, launch: Launch<'_>, sgd: &Sgd) -> Result<()> {
    launch.ensure_f32(launch.inputs.iter().chain(&launch.outputs[..2]))?;
    let [gradients, scale, rate] = [0, 1, 2].map(|index| launch.input(builder, index));
    let [parameters, momenta, counter] = [0, 1, 2].map(|index| launch.output(builder, index));
    let step = builder.scratch(STEP_BYTES);
    let arguments = [scale, rate, counter, step];
    builder.kernel(Source::Update, "prepare_sgd", DType::F32, &[], Grid::new(1, 1), &arguments)?;

    let ranges = Ranges::new(builder, &sgd.ranges);
    let arguments = [
        gradients,
        parameters,
        momenta,
        step,
        ranges.table,
        ranges.ranges.into(),
        count(ranges.tiles),
        Arg::F32(sgd.momentum),
        flag(all_aligned(&[gradients, parameters, momenta])),
    ];
    builder.kernel(Source::Update, "sgd", DType::F32, &[], ranges.grid(builder), &arguments)
}
