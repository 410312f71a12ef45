//! The gradient ops, attention apart.

use super::{
    Tensor,
    forward::{GELU_CUBE, GELU_SCALE},
};
use crate::{error::Result, op::IGNORED};

pub(super) fn embed(inputs: &[&Tensor], outputs: &mut [Tensor]) -> Result<()> {
    let (ids, d_y) = (inputs[0], inputs[1]);
    outputs[0].data.fill(0.0);
    for row in 0..ids.data.len() {
        let id = ids.index_below(row, outputs[0].rows(), "embed_grad")?;
        for (d_table, d) in outputs[0].row_mut(id).iter_mut().zip(d_y.row(row)) {
            *d_table += d;
        }
    }
    Ok(())
}

pub(super) fn linear_input(inputs: &[&Tensor], outputs: &mut [Tensor]) {
    let (d_y, w) = (inputs[0], inputs[1]);
    for row in 0..d_y.rows() {
        for k in 0..w.columns() {
            outputs[0].row_mut(row)[k] = (0..w.rows()).map(|m| d_y.row(row)[m] * w.row(m)[k]).sum();
        }
    }
}

pub(super) fn linear_weight(inputs: &[&Tensor], outputs: &mut [Tensor]) {
    let (d_y, x) = (inputs[0], inputs[1]);
    for m in 0..d_y.columns() {
        for k in 0..x.columns() {
            outputs[0].row_mut(m)[k] = (0..x.rows()).map(|row| d_y.row(row)[m] * x.row(row)[k]).sum();
        }
    }
}

pub(super) fn linear_bias(inputs: &[&Tensor], outputs: &mut [Tensor]) {
    for m in 0..inputs[0].columns() {
        outputs[0].data[m] = (0..inputs[0].rows()).map(|row| inputs[0].row(row)[m]).sum();
    }
}

/// With x̂ = (x − mean)·rstd and g = d_y·gain: d_x = rstd·(g − mean(g) − x̂·mean(g·x̂)).
pub(super) fn layer_norm_input(inputs: &[&Tensor], outputs: &mut [Tensor]) {
    let (d_y, x, gain, mean, rstd) = (inputs[0], inputs[1], inputs[2], inputs[3], inputs[4]);
    let columns = x.columns() as f64;
    for row in 0..x.rows() {
        let normal = |c: usize| (x.row(row)[c] - mean.data[row]) * rstd.data[row];
        let scaled = |c: usize| d_y.row(row)[c] * gain.data[c];
        let mean_scaled = (0..x.columns()).map(scaled).sum::<f64>() / columns;
        let mean_product = (0..x.columns()).map(|c| scaled(c) * normal(c)).sum::<f64>() / columns;
        for c in 0..x.columns() {
            outputs[0].row_mut(row)[c] =
                rstd.data[row] * (scaled(c) - mean_scaled - normal(c) * mean_product);
        }
    }
}

pub(super) fn layer_norm_params(bias: bool, inputs: &[&Tensor], outputs: &mut [Tensor]) {
    let (d_y, x, mean, rstd) = (inputs[0], inputs[1], inputs[2], inputs[3]);
    for c in 0..x.columns() {
        outputs[0].data[c] = (0..x.rows())
            .map(|row| d_y.row(row)[c] * (x.row(row)[c] - mean.data[row]) * rstd.data[row])
            .sum();
        if bias {
            outputs[1].data[c] = (0..x.rows()).map(|row| d_y.row(row)[c]).sum();
        }
    }
}

pub(super) fn gelu(inputs: &[&Tensor], outputs: &mut [Tensor]) {
    let (x, d_y) = (inputs[0], inputs[1]);
    for (d_x, (&x, d)) in outputs[0].data.iter_mut().zip(x.data.iter().zip(&d_y.data)) {
        let tanh = (GELU_SCALE * (x + GELU_CUBE * x * x * x)).tanh();
        let inner = GELU_SCALE * (1.0 + 3.0 * GELU_CUBE * x * x);
        *d_x = d * (0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * inner);
    }
}

pub(super) fn cross_entropy(inputs: &[&Tensor], outputs: &mut [Tensor]) -> Result<()> {
    let (logits, targets, weights, log_sum_exp, d_losses) =
        (inputs[0], inputs[1], inputs[2], inputs[3], inputs[4]);
    for row in 0..logits.rows() {
        let d_logits = outputs[0].row_mut(row);
        if targets.index(row) == IGNORED as usize {
            d_logits.fill(0.0);
            continue;
        }
        let target = targets.index_below(row, logits.columns(), "cross_entropy_grad")?;
        let scale = weights.data[row] * d_losses.data[row];
        for (column, (d, value)) in d_logits.iter_mut().zip(logits.row(row)).enumerate() {
            let probability = (value - log_sum_exp.data[row]).exp();
            *d = scale * (probability - if column == target { 1.0 } else { 0.0 });
        }
    }
    Ok(())
}
