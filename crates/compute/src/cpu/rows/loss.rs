//! Cross-entropy and its gradient.

use super::{
    super::{
        Context,
        memory::Operands,
        shared::{Grid, for_tiles},
        simd::Simd,
        vector,
    },
    tile_rows,
};
use crate::{
    error::{Error, Result},
    op::{IGNORED, LossShape},
};

pub(in super::super) fn cross_entropy(
    context: &mut Context<'_>,
    operands: &mut Operands<'_>,
    shape: LossShape,
) -> Result<()> {
    let (simd, logits, weights) = (context.simd, operands.input(0), operands.input(2));
    let targets = operands.indices(1);
    let columns = operands.input_type(0).shape.columns();
    check_targets("cross_entropy", targets, columns)?;
    let rows = tile_rows(columns);
    let grids = [Grid::elements(operands.output(0), rows), Grid::elements(operands.output(1), rows)];
    for_tiles(context.pool, grids, |[losses, statistics], _| {
        let range = losses.column_range();
        let outputs = losses.into_slice().iter_mut().zip(statistics.into_slice());
        for (row, (loss, log_sum_exp)) in range.zip(outputs) {
            let logits = &logits[row * columns..][..columns];
            *log_sum_exp = vector::log_sum_exp(simd, logits);
            *loss = row_loss(simd, shape, logits, *log_sum_exp, targets[row], weights[row]);
        }
    });
    Ok(())
}

pub(in super::super) fn cross_entropy_grad(
    context: &mut Context<'_>,
    operands: &mut Operands<'_>,
    shape: LossShape,
) -> Result<()> {
    let (simd, logits, weights) = (context.simd, operands.input(0), operands.input(2));
    let (targets, log_sum_exp, d_losses) = (operands.indices(1), operands.input(3), operands.input(4));
    let columns = operands.input_type(0).shape.columns();
    check_targets("cross_entropy_grad", targets, columns)?;
    let grid = Grid::rows(operands.output(0), columns, tile_rows(columns));
    for_tiles(context.pool, [grid], |[mut d_logits], _| {
        for row in d_logits.row_range() {
            let d_row = d_logits.row_mut(row - d_logits.row);
            d_row.copy_from_slice(&logits[row * columns..][..columns]);
            row_grad(simd, shape, d_row, log_sum_exp[row], targets[row], weights[row] * d_losses[row]);
        }
    });
    Ok(())
}

/// The weighted loss of one row.
pub(in super::super) fn row_loss(
    simd: Simd,
    shape: LossShape,
    logits: &[f32],
    log_sum_exp: f32,
    target: u32,
    weight: f32,
) -> f32 {
    if target == IGNORED {
        return 0.0;
    }
    let mut loss = log_sum_exp - logits[target as usize];
    if shape.label_smoothing > 0.0 {
        let mean = (vector::sum(simd, logits) / logits.len() as f64) as f32;
        loss = (1.0 - shape.label_smoothing) * loss + shape.label_smoothing * (log_sum_exp - mean);
    }
    weight * (loss + shape.z_loss * log_sum_exp * log_sum_exp)
}

/// Turns logits into the gradient with respect to them, in place.
pub(in super::super) fn row_grad(
    simd: Simd,
    shape: LossShape,
    logits: &mut [f32],
    log_sum_exp: f32,
    target: u32,
    scale: f32,
) {
    if target == IGNORED {
        return logits.fill(0.0);
    }
    let pull = 1.0 + 2.0 * shape.z_loss * log_sum_exp;
    vector::scaled_probabilities(simd, logits, log_sum_exp, scale * pull);
    if shape.label_smoothing > 0.0 {
        let spread = scale * shape.label_smoothing / logits.len() as f32;
        vector::subtract(simd, spread, logits);
    }
    logits[target as usize] -= scale * (1.0 - shape.label_smoothing);
}

/// The first target that is neither ignored nor below `vocabulary`, as an error.
pub(in super::super) fn check_targets(op: &'static str, targets: &[u32], vocabulary: usize) -> Result<()> {
    match targets.iter().find(|&&target| target != IGNORED && target as usize >= vocabulary) {
        Some(&target) => Err(Error::IndexOutOfRange { op, index: target as usize, rows: vocabulary }),
        None => Ok(()),
    }
}
