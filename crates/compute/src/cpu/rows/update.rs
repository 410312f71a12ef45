//! The global norm and the optimisers.

use std::ops::Range;

use super::{
    super::{
        Context,
        memory::Operands,
        shared::{Grid, for_tiles},
        vector::{self, AdamStep, SgdStep},
    },
    TILE_ELEMENTS,
};
use crate::kernel::{Adam, Sgd, UpdateRange};

/// The numbers that [`global_norm`] keeps, one per tile.
pub(in super::super) fn partial_count(elements: usize) -> usize {
    elements.div_ceil(TILE_ELEMENTS)
}

/// Squares are summed in double precision, which no f32 overflows, tile by tile and then over the tiles in order.
pub(in super::super) fn global_norm(context: &mut Context<'_>, operands: &mut Operands<'_>) {
    let (simd, gradients) = (context.simd, operands.input(0));
    let partials = &mut context.partials[..partial_count(gradients.len())];
    for_tiles(context.pool, [Grid::elements(&mut *partials, 1)], |[partial], _| {
        let start = partial.column * TILE_ELEMENTS;
        let end = (start + TILE_ELEMENTS).min(gradients.len());
        partial.into_slice()[0] = vector::sum_of_squares(simd, &gradients[start..end]);
    });
    let norm = partials.iter().sum::<f64>().sqrt();
    // A finite norm stays finite, because a norm that is not says that a gradient is not.
    let norm = if norm.is_finite() { norm.min(f64::from(f32::MAX)) } else { norm };
    operands.output(0)[0] = norm as f32;
}

/// What gradients are multiplied with before they are used, or none when the step must not happen.
fn gradient_scale(operands: &Operands<'_>, clip: f32) -> Option<f32> {
    let [norm, exponent] = [1, 3].map(|index| f64::from(operands.input(index)[0]));
    let (unscale, clip) = ((-exponent).exp2(), f64::from(clip));
    let norm = norm * unscale;
    let scale = if clip > 0.0 && norm > clip { unscale * clip / norm } else { unscale };
    norm.is_finite().then_some(scale as f32)
}

/// One step, in the order of PyTorch's: with t the counter, g the clipped gradient and η the learning rate,
/// g ← g + decay·p (Adam); m ← β₁m + (1−β₁)g; v ← β₂v + (1−β₂)g²; p ← p·(1 − η·decay) (AdamW);
/// p ← p − η·(m/(1−β₁ᵗ)) / (√(v/(1−β₂ᵗ)) + ε).
pub(in super::super) fn adam(context: &mut Context<'_>, operands: &mut Operands<'_>, adam: &Adam) {
    let (simd, gradients) = (context.simd, operands.input(0));
    let rate = f64::from(operands.input(2)[0]);
    let Some(gradient_scale) = gradient_scale(operands, adam.clip) else { return };
    let counter = &mut operands.output_indices(3)[0];
    *counter = counter.saturating_add(1);
    let (beta1, beta2) = (f64::from(adam.beta1), f64::from(adam.beta2));
    let correction = |beta: f64| 1.0 - beta.powf(f64::from(*counter));
    let step = AdamStep {
        gradient_scale,
        first: [adam.beta1, (1.0 - beta1) as f32],
        second: [adam.beta2, (1.0 - beta2) as f32],
        decay: 0.0,
        shrink: 1.0,
        rate: (rate / correction(beta1)) as f32,
        second_correction: (1.0 / correction(beta2).sqrt()) as f32,
        eps: adam.eps,
    };
    let grids = [0, 1, 2].map(|index| Grid::elements(operands.output(index), TILE_ELEMENTS));
    for_tiles(context.pool, grids, |[parameters, first, second], _| {
        let tile = parameters.column_range();
        let (parameters, first, second) = (parameters.into_slice(), first.into_slice(), second.into_slice());
        for (range, inside, decay) in ranges_in(&adam.ranges, tile) {
            let step = match adam.decoupled {
                true => AdamStep { shrink: (1.0 - rate * f64::from(decay)) as f32, ..step },
                false => AdamStep { decay, ..step },
            };
            let (first, second) = (&mut first[inside.clone()], &mut second[inside.clone()]);
            vector::adam(simd, step, &gradients[range], &mut parameters[inside], first, second);
        }
    });
}

/// With g the clipped gradient and η the learning rate: g ← g + decay·p; m ← momentum·m + g; p ← p − η·m.
pub(in super::super) fn sgd(context: &mut Context<'_>, operands: &mut Operands<'_>, sgd: &Sgd) {
    let (simd, gradients, rate) = (context.simd, operands.input(0), operands.input(2)[0]);
    let Some(gradient_scale) = gradient_scale(operands, sgd.clip) else { return };
    let counter = &mut operands.output_indices(2)[0];
    *counter = counter.saturating_add(1);
    let grids = [0, 1].map(|index| Grid::elements(operands.output(index), TILE_ELEMENTS));
    for_tiles(context.pool, grids, |[parameters, momentum], _| {
        let tile = parameters.column_range();
        let (parameters, momentum) = (parameters.into_slice(), momentum.into_slice());
        for (range, inside, decay) in ranges_in(&sgd.ranges, tile) {
            let step = SgdStep { gradient_scale, decay, momentum: sgd.momentum, rate };
            vector::sgd(
                simd,
                step,
                &gradients[range],
                &mut parameters[inside.clone()],
                &mut momentum[inside],
            );
        }
    });
}

/// The parts of the ranges that lie in a tile: where in the buffers, where in the tile, and their decay.
fn ranges_in(
    ranges: &[UpdateRange],
    tile: Range<usize>,
) -> impl Iterator<Item = (Range<usize>, Range<usize>, f32)> {
    ranges.iter().filter_map(move |range| {
        let (start, end) = (range.start.max(tile.start), (range.start + range.len).min(tile.end));
        (start < end).then(|| (start..end, start - tile.start..end - tile.start, range.weight_decay))
    })
}
