//! The global norm and the optimiser.

use super::{
    super::{
        Context,
        memory::Operands,
        shared::{Grid, for_tiles},
        vector::{self, AdamStep},
    },
    TILE_ELEMENTS,
};
use crate::kernel::AdamW;

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

/// One step, in the order of PyTorch's: with t the counter, g the clipped gradient and η the learning rate,
/// m ← β₁m + (1−β₁)g; v ← β₂v + (1−β₂)g²; p ← p·(1 − η·decay); p ← p − η·(m/(1−β₁ᵗ)) / (√(v/(1−β₂ᵗ)) + ε).
pub(in super::super) fn adamw(context: &mut Context<'_>, operands: &mut Operands<'_>, adamw: &AdamW) {
    let (simd, gradients) = (context.simd, operands.input(0));
    let (norm, rate) = (f64::from(operands.input(1)[0]), f64::from(operands.input(2)[0]));
    if !norm.is_finite() {
        return;
    }
    let counter = &mut operands.output_indices(3)[0];
    *counter = counter.saturating_add(1);
    let (beta1, beta2, clip) = (f64::from(adamw.beta1), f64::from(adamw.beta2), f64::from(adamw.clip));
    let correction = |beta: f64| 1.0 - beta.powf(f64::from(*counter));
    let step = AdamStep {
        gradient_scale: if clip > 0.0 && norm > clip { (clip / norm) as f32 } else { 1.0 },
        first: [adamw.beta1, (1.0 - beta1) as f32],
        second: [adamw.beta2, (1.0 - beta2) as f32],
        shrink: 1.0,
        rate: (rate / correction(beta1)) as f32,
        second_correction: (1.0 / correction(beta2).sqrt()) as f32,
        eps: adamw.eps,
    };
    let grids = [0, 1, 2].map(|index| Grid::elements(operands.output(index), TILE_ELEMENTS));
    for_tiles(context.pool, grids, |[parameters, first, second], _| {
        let tile = parameters.column_range();
        let (parameters, first, second) = (parameters.into_slice(), first.into_slice(), second.into_slice());
        for range in adamw.ranges.iter() {
            let (start, end) = (range.start.max(tile.start), (range.start + range.len).min(tile.end));
            if start >= end {
                continue;
            }
            let step = AdamStep { shrink: (1.0 - rate * f64::from(range.weight_decay)) as f32, ..step };
            let inside = start - tile.start..end - tile.start;
            vector::adamw(
                simd,
                step,
                &gradients[start..end],
                &mut parameters[inside.clone()],
                &mut first[inside.clone()],
                &mut second[inside],
            );
        }
    });
}
