//! The gradient ops, attention apart.

use super::{
    Tensor,
    forward::{Factor, GELU_CUBE, GELU_SCALE, erf, positive, sum_of_rows},
};
use crate::{
    error::Result,
    op::{IGNORED, LossShape},
};

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

pub(super) fn linear_input(factor: Factor<'_>, inputs: &[&Tensor], outputs: &mut [Tensor]) {
    let [d_y, w] = [0, 1].map(|index| inputs[index].rounded(factor));
    for row in 0..d_y.rows() {
        sum_of_rows(d_y.row(row), &w, outputs[0].row_mut(row));
    }
}

pub(super) fn linear_weight(factor: Factor<'_>, inputs: &[&Tensor], outputs: &mut [Tensor]) {
    let [d_y, x] = [0, 1].map(|index| inputs[index].rounded(factor));
    let d_y = d_y.turned();
    for m in 0..d_y.rows() {
        sum_of_rows(d_y.row(m), &x, outputs[0].row_mut(m));
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

/// With x̂ = x·rstd and g = d_y·gain: d_x = rstd·(g − x̂·mean(g·x̂)).
pub(super) fn rms_norm_input(inputs: &[&Tensor], outputs: &mut [Tensor]) {
    let (d_y, x, gain, rstd) = (inputs[0], inputs[1], inputs[2], inputs[3]);
    let columns = gain.data.len();
    for row in 0..rstd.data.len() {
        let at = |c: usize| row * columns + c;
        let normal = |c: usize| x.data[at(c)] * rstd.data[row];
        let scaled = |c: usize| d_y.data[at(c)] * gain.data[c];
        let mean_product = (0..columns).map(|c| scaled(c) * normal(c)).sum::<f64>() / columns as f64;
        for c in 0..columns {
            outputs[0].data[at(c)] = rstd.data[row] * (scaled(c) - normal(c) * mean_product);
        }
    }
}

pub(super) fn rms_norm_gain(columns: usize, inputs: &[&Tensor], outputs: &mut [Tensor]) {
    let (d_y, x, rstd) = (inputs[0], inputs[1], inputs[2]);
    for c in 0..columns {
        outputs[0].data[c] = (0..rstd.data.len())
            .map(|row| d_y.data[row * columns + c] * x.data[row * columns + c] * rstd.data[row])
            .sum();
    }
}

pub(super) fn gelu_erf(inputs: &[&Tensor], outputs: &mut [Tensor]) {
    let (x, d_y) = (inputs[0], inputs[1]);
    for (d_x, (&x, d)) in outputs[0].data.iter_mut().zip(x.data.iter().zip(&d_y.data)) {
        let below = 0.5 * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2));
        let density = (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt();
        *d_x = d * (below + x * density);
    }
}

pub(super) fn relu_squared(inputs: &[&Tensor], outputs: &mut [Tensor]) {
    for (d_x, (&x, d)) in outputs[0].data.iter_mut().zip(inputs[0].data.iter().zip(&inputs[1].data)) {
        *d_x = d * 2.0 * positive(x);
    }
}

pub(super) fn silu_gate(inputs: &[&Tensor], outputs: &mut [Tensor]) {
    let (gate, up, d_y) = (inputs[0], inputs[1], inputs[2]);
    for i in 0..gate.data.len() {
        let sigmoid = 1.0 / (1.0 + (-gate.data[i]).exp());
        let silu = gate.data[i] * sigmoid;
        outputs[0].data[i] = d_y.data[i] * up.data[i] * (sigmoid + silu * (1.0 - sigmoid));
        outputs[1].data[i] = d_y.data[i] * silu;
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

pub(super) fn cross_entropy(shape: &LossShape, inputs: &[&Tensor], outputs: &mut [Tensor]) -> Result<()> {
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
        let smoothing = f64::from(shape.label_smoothing);
        let pull = 1.0 + 2.0 * f64::from(shape.z_loss) * log_sum_exp.data[row];
        let spread = smoothing / logits.columns() as f64;
        for (column, (d, value)) in d_logits.iter_mut().zip(logits.row(row)).enumerate() {
            let probability = (value - log_sum_exp.data[row]).exp();
            let wanted = spread + if column == target { 1.0 - smoothing } else { 0.0 };
            *d = scale * (pull * probability - wanted);
        }
    }
    Ok(())
}
