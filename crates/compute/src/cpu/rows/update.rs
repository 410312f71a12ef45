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
use crate::kernel::{Adam, GUARD_STATISTICS, Guard, Observation, Sgd, UpdateRange};

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

/// Whether the step is applied, and with which scale.
pub(in super::super) fn guard(operands: &mut Operands<'_>, guard: &Guard) {
    let [norm, loss, targets, exponent] = [0, 1, 2, 3].map(|index| f64::from(operands.input(index)[0]));
    let mut statistics = [0.0; GUARD_STATISTICS];
    let state = operands.output(2);
    for (number, kept) in statistics.iter_mut().zip(state.iter()) {
        *number = f64::from(*kept);
    }
    let judgement = guard.judge(Observation { norm, loss, targets, exponent }, &mut statistics);
    for (kept, number) in state.iter_mut().zip(statistics) {
        *kept = number as f32;
    }
    operands.output(0)[0] = judgement.scale as f32;
    for (told, number) in operands.output(1).iter_mut().zip(judgement.report) {
        *told = number as f32;
    }
}

/// What gradients are multiplied with and the learning rate, or none when the step must not happen.
fn factors(operands: &Operands<'_>) -> Option<(f32, f64)> {
    let [scale, rate] = [1, 2].map(|index| operands.input(index)[0]);
    (scale > 0.0).then_some((scale, f64::from(rate)))
}

/// One step, in the order of PyTorch's: with t the counter, g the clipped gradient and η the learning rate,
/// g ← g + decay·p (Adam); m ← β₁m + (1−β₁)g; v ← β₂v + (1−β₂)g²; p ← p·(1 − η·decay) (AdamW);
/// p ← p − η·(m/(1−β₁ᵗ)) / (√(v/(1−β₂ᵗ)) + ε).
pub(in super::super) fn adam(context: &mut Context<'_>, operands: &mut Operands<'_>, adam: &Adam) {
    let (simd, gradients) = (context.simd, operands.input(0));
    let Some((gradient_scale, rate)) = factors(operands) else { return };
    let counter = &mut operands.output_indices(3)[0];
    *counter = counter.saturating_add(1);
    let (beta1, beta2) = (f64::from(adam.beta1), f64::from(adam.beta2));
    let correction = |beta: f64| 1.0 - beta.powf(f64::from(*counter));
    let corrected_rate = rate / correction(beta1);
    let step = AdamStep {
        gradient_scale,
        first: [adam.beta1, (1.0 - beta1) as f32],
        second: [adam.beta2, (1.0 - beta2) as f32],
        decay: 0.0,
        shrink: 1.0,
        rate: 0.0,
        second_correction: (1.0 / correction(beta2).sqrt()) as f32,
        eps: adam.eps,
    };
    let grids = [0, 1, 2].map(|index| Grid::elements(operands.output(index), TILE_ELEMENTS));
    for_tiles(context.pool, grids, |[parameters, first, second], _| {
        let tile = parameters.column_range();
        let (parameters, first, second) = (parameters.into_slice(), first.into_slice(), second.into_slice());
        for (range, inside, of) in ranges_in(&adam.ranges, tile) {
            let (decay, share) = (of.weight_decay, f64::from(of.rate));
            let step = AdamStep { rate: (corrected_rate * share) as f32, ..step };
            let step = match adam.decoupled {
                true => AdamStep { shrink: (1.0 - rate * share * f64::from(decay)) as f32, ..step },
                false => AdamStep { decay, ..step },
            };
            let (first, second) = (&mut first[inside.clone()], &mut second[inside.clone()]);
            vector::adam(simd, step, &gradients[range], &mut parameters[inside], first, second);
        }
    });
}

/// With g the clipped gradient and η the learning rate: g ← g + decay·p; m ← momentum·m + g; p ← p − η·m.
pub(in super::super) fn sgd(context: &mut Context<'_>, operands: &mut Operands<'_>, sgd: &Sgd) {
    let (simd, gradients) = (context.simd, operands.input(0));
    let Some((gradient_scale, rate)) = factors(operands) else { return };
    let counter = &mut operands.output_indices(2)[0];
    *counter = counter.saturating_add(1);
    let grids = [0, 1].map(|index| Grid::elements(operands.output(index), TILE_ELEMENTS));
    for_tiles(context.pool, grids, |[parameters, momentum], _| {
        let tile = parameters.column_range();
        let (parameters, momentum) = (parameters.into_slice(), momentum.into_slice());
        for (range, inside, of) in ranges_in(&sgd.ranges, tile) {
            let (decay, rate) = (of.weight_decay, (rate * f64::from(of.rate)) as f32);
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

/// The parts of the ranges that lie in a tile: where in the buffers, where in the tile, and the range.
fn ranges_in(
    ranges: &[UpdateRange],
    tile: Range<usize>,
) -> impl Iterator<Item = (Range<usize>, Range<usize>, &UpdateRange)> {
    ranges.iter().filter_map(move |range| {
        let (start, end) = (range.start.max(tile.start), (range.start + range.len).min(tile.end));
        (start < end).then(|| (start..end, start - tile.start..end - tile.start, range))
    })
}
