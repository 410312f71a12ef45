//! What Muon does between its products, and the running average of parameters.

use super::{
    super::{
        Context,
        memory::Operands,
        shared::{Grid, for_tiles},
        vector,
    },
    TILE_ELEMENTS,
};
use crate::kernel::{Descend, NORMALISE_EPS, average_decay};

/// With g the clipped gradient: m ← decay·m + (1 − decay)·g, and what lies ahead of it, decay·m + (1 − decay)·g. A refused step
/// leaves m alone and looks nowhere.
pub(in super::super) fn momentum(context: &mut Context<'_>, operands: &mut Operands<'_>, decay: f32) {
    let (simd, gradients, scale) = (context.simd, operands.input(0), operands.input(1)[0]);
    let rest = (1.0 - f64::from(decay)) as f32 * scale;
    let grids = [0, 1].map(|index| Grid::elements(operands.output(index), TILE_ELEMENTS));
    for_tiles(context.pool, grids, |[momenta, ahead], _| {
        let (range, momenta, ahead) = (momenta.column_range(), momenta.into_slice(), ahead.into_slice());
        if scale > 0.0 {
            vector::combine(simd, [decay, rest], &gradients[range.clone()], momenta);
            vector::blend(simd, [decay, rest], momenta, &gradients[range], ahead);
        } else {
            ahead.fill(0.0);
        }
    });
}

/// y ← x / (norm + ε).
pub(in super::super) fn normalise(context: &mut Context<'_>, operands: &mut Operands<'_>) {
    let (simd, x, norm) = (context.simd, operands.input(0), operands.input(1)[0]);
    let factor = (1.0 / (f64::from(norm) + f64::from(NORMALISE_EPS))) as f32;
    for_tiles(context.pool, [Grid::elements(operands.output(0), TILE_ELEMENTS)], |[y], _| {
        vector::scaled(simd, factor, &x[y.column_range()], y.into_slice());
    });
}

/// z ← a·x + b·y.
pub(in super::super) fn combine(context: &mut Context<'_>, operands: &mut Operands<'_>, factors: [f32; 2]) {
    let (simd, x, y) = (context.simd, operands.input(0), operands.input(1));
    for_tiles(context.pool, [Grid::elements(operands.output(0), TILE_ELEMENTS)], |[z], _| {
        let range = z.column_range();
        vector::blend(simd, factors, &x[range.clone()], &y[range], z.into_slice());
    });
}

/// p ← p·(1 − rate·decay) − rate·length·x, unless the step is refused.
pub(in super::super) fn descend(context: &mut Context<'_>, operands: &mut Operands<'_>, descend: &Descend) {
    let (simd, x, scale) = (context.simd, operands.input(0), operands.input(1)[0]);
    let rate = f64::from(operands.input(2)[0]);
    if scale > 0.0 {
        let shrink = 1.0 - rate * f64::from(descend.weight_decay);
        let factors = [shrink as f32, (-rate * f64::from(descend.length)) as f32];
        for_tiles(context.pool, [Grid::elements(operands.output(0), TILE_ELEMENTS)], |[p], _| {
            let x = &x[p.column_range()];
            vector::combine(simd, factors, x, p.into_slice());
        });
    }
}

/// a ← d·a + (1 − d)·p, unless the step is refused.
pub(in super::super) fn average(context: &mut Context<'_>, operands: &mut Operands<'_>, decay: f32) {
    let (simd, parameters, scale) = (context.simd, operands.input(0), operands.input(1)[0]);
    let kept = average_decay(decay, f64::from(operands.indices(2)[0]));
    if scale > 0.0 {
        let factors = [kept as f32, (1.0 - kept) as f32];
        for_tiles(context.pool, [Grid::elements(operands.output(0), TILE_ELEMENTS)], |[average], _| {
            let parameters = &parameters[average.column_range()];
            vector::combine(simd, factors, parameters, average.into_slice());
        });
    }
}
