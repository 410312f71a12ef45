//! The forward ops, attention apart.

use super::Tensor;
use crate::{
    error::Result,
    op::{IGNORED, LossShape},
    philox::{drop_threshold, philox},
};

/// √(2/π), of GELU's tanh form.
pub(super) const GELU_SCALE: f64 = 0.797_884_560_802_865_4;
/// The weight of the cube in GELU's tanh form.
pub(super) const GELU_CUBE: f64 = 0.044_715;

pub(super) fn embed(inputs: &[&Tensor], outputs: &mut [Tensor]) -> Result<()> {
    let (table, ids) = (inputs[0], inputs[1]);
    for row in 0..ids.data.len() {
        let id = ids.index_below(row, table.rows(), "embed")?;
        outputs[0].row_mut(row).copy_from_slice(table.row(id));
    }
    Ok(())
}

/// What the operands of products are rounded with.
pub(super) type Factor<'a> = &'a dyn Fn(f64) -> f64;

pub(super) fn linear(bias: bool, factor: Factor<'_>, inputs: &[&Tensor], outputs: &mut [Tensor]) {
    let [x, w] = [0, 1].map(|index| inputs[index].rounded(factor));
    let w = w.turned();
    for row in 0..x.rows() {
        let y = outputs[0].row_mut(row);
        sum_of_rows(x.row(row), &w, y);
        if bias {
            y.iter_mut().zip(&inputs[2].data).for_each(|(y, bias)| *y += bias);
        }
    }
}

/// The sum of a matrix's rows times a factor each, one after the other.
pub(super) fn sum_of_rows(factors: &[f64], matrix: &Tensor, sum: &mut [f64]) {
    sum.fill(0.0);
    for (row, factor) in factors.iter().enumerate() {
        sum.iter_mut().zip(matrix.row(row)).for_each(|(sum, number)| *sum += factor * number);
    }
}

pub(super) fn layer_norm(eps: f64, bias: bool, inputs: &[&Tensor], outputs: &mut [Tensor]) {
    let (x, gain) = (inputs[0], inputs[1]);
    let columns = x.columns() as f64;
    for row in 0..x.rows() {
        let values = x.row(row);
        let mean = values.iter().sum::<f64>() / columns;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / columns;
        let rstd = 1.0 / (variance + eps).sqrt();
        for (column, value) in values.iter().enumerate() {
            let shift = if bias { inputs[2].data[column] } else { 0.0 };
            outputs[0].row_mut(row)[column] = (value - mean) * rstd * gain.data[column] + shift;
        }
        outputs[1].data[row] = mean;
        outputs[2].data[row] = rstd;
    }
}

pub(super) fn rms_norm(eps: f64, inputs: &[&Tensor], outputs: &mut [Tensor]) {
    let (x, gain) = (inputs[0], inputs[1]);
    let columns = gain.data.len();
    for (row, values) in x.data.chunks_exact(columns).enumerate() {
        let mean_square = values.iter().map(|v| v * v).sum::<f64>() / columns as f64;
        let rstd = 1.0 / (mean_square + eps).sqrt();
        for (column, value) in values.iter().enumerate() {
            outputs[0].data[row * columns + column] = value * rstd * gain.data[column];
        }
        outputs[1].data[row] = rstd;
    }
}

pub(super) fn rope(inverse: bool, still: usize, inputs: &[&Tensor], outputs: &mut [Tensor]) -> Result<()> {
    let (x, positions, table) = (inputs[0], inputs[1], inputs[2]);
    let (head_dim, half) = (table.columns(), table.columns() / 2);
    for row in 0..x.rows() {
        let angles = table.row(positions.index_below(row, table.rows(), "rope")?);
        let turned = x.columns() - still * head_dim;
        outputs[0].row_mut(row)[turned..].copy_from_slice(&x.row(row)[turned..]);
        for head in (0..turned).step_by(head_dim) {
            for i in 0..half {
                let (cos, sin) = (angles[i], if inverse { -angles[i + half] } else { angles[i + half] });
                let (a, b) = (x.row(row)[head + i], x.row(row)[head + i + half]);
                outputs[0].row_mut(row)[head + i] = a * cos - b * sin;
                outputs[0].row_mut(row)[head + i + half] = b * cos + a * sin;
            }
        }
    }
    Ok(())
}

pub(super) fn split(sizes: &[usize], inputs: &[&Tensor], outputs: &mut [Tensor]) {
    let mut start = 0;
    for (part, &size) in outputs.iter_mut().zip(sizes) {
        for row in 0..inputs[0].rows() {
            part.row_mut(row).copy_from_slice(&inputs[0].row(row)[start..start + size]);
        }
        start += size;
    }
}

pub(super) fn concat(inputs: &[&Tensor], outputs: &mut [Tensor]) {
    let mut start = 0;
    for part in inputs {
        for row in 0..part.rows() {
            outputs[0].row_mut(row)[start..start + part.columns()].copy_from_slice(part.row(row));
        }
        start += part.columns();
    }
}

pub(super) fn gelu(inputs: &[&Tensor], outputs: &mut [Tensor]) {
    for (y, &x) in outputs[0].data.iter_mut().zip(&inputs[0].data) {
        *y = 0.5 * x * (1.0 + (GELU_SCALE * (x + GELU_CUBE * x * x * x)).tanh());
    }
}

/// The error function by its Taylor series near 0 and by the continued fraction of its complement elsewhere.
pub(super) fn erf(x: f64) -> f64 {
    let magnitude = x.abs();
    if magnitude < 3.0 {
        let (mut term, mut sum) = (magnitude, magnitude);
        for n in 1..200 {
            let n = f64::from(n);
            term *= -magnitude * magnitude / n;
            sum += term / (2.0 * n + 1.0);
        }
        return x.signum() * sum * 2.0 / std::f64::consts::PI.sqrt();
    }
    let mut fraction = magnitude;
    for n in (1..=100).rev() {
        fraction = magnitude + f64::from(n) / 2.0 / fraction;
    }
    x.signum() * (1.0 - (-magnitude * magnitude).exp() / std::f64::consts::PI.sqrt() / fraction)
}

pub(super) fn gelu_erf(inputs: &[&Tensor], outputs: &mut [Tensor]) {
    for (y, &x) in outputs[0].data.iter_mut().zip(&inputs[0].data) {
        *y = 0.5 * x * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2));
    }
}

/// max(x, 0), and not a number where x is not, which `max` would hide.
pub(super) fn positive(x: f64) -> f64 {
    if x < 0.0 { 0.0 } else { x }
}

pub(super) fn relu_squared(inputs: &[&Tensor], outputs: &mut [Tensor]) {
    for (y, &x) in outputs[0].data.iter_mut().zip(&inputs[0].data) {
        *y = positive(x) * positive(x);
    }
}

pub(super) fn silu_gate(inputs: &[&Tensor], outputs: &mut [Tensor]) {
    for (y, (gate, up)) in outputs[0].data.iter_mut().zip(inputs[0].data.iter().zip(&inputs[1].data)) {
        *y = gate / (1.0 + (-gate).exp()) * up;
    }
}

pub(super) fn add(inputs: &[&Tensor], outputs: &mut [Tensor]) {
    for (y, (a, b)) in outputs[0].data.iter_mut().zip(inputs[0].data.iter().zip(&inputs[1].data)) {
        *y = a + b;
    }
}

pub(super) fn mul(inputs: &[&Tensor], outputs: &mut [Tensor]) {
    for (y, (a, b)) in outputs[0].data.iter_mut().zip(inputs[0].data.iter().zip(&inputs[1].data)) {
        *y = a * b;
    }
}

pub(super) fn affine(factor: f32, offset: f32, inputs: &[&Tensor], outputs: &mut [Tensor]) {
    for (y, x) in outputs[0].data.iter_mut().zip(&inputs[0].data) {
        *y = f64::from(factor) * x + f64::from(offset);
    }
}

pub(super) fn dropout(probability: f32, number: u32, inputs: &[&Tensor], outputs: &mut [Tensor]) {
    let (x, key, samples) = (inputs[0], inputs[1], inputs[2]);
    let per_sample = x.data.len() / samples.data.len();
    let word = |element: usize| key.index(element) as u32;
    let (threshold, scale) = (drop_threshold(probability), 1.0 / (1.0 - f64::from(probability)));
    for (index, (y, value)) in outputs[0].data.iter_mut().zip(&x.data).enumerate() {
        let (sample, element) = (samples.index(index / per_sample) as u32, index % per_sample);
        let words = philox([word(0), word(1)], [(element / 4) as u32, sample, number, word(2)]);
        *y = if words[element % 4] < threshold { 0.0 } else { value * scale };
    }
}

pub(super) fn cross_entropy(shape: &LossShape, inputs: &[&Tensor], outputs: &mut [Tensor]) -> Result<()> {
    let (logits, targets, weights) = (inputs[0], inputs[1], inputs[2]);
    for row in 0..logits.rows() {
        let values = logits.row(row);
        let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let log_sum_exp = max + values.iter().map(|v| (v - max).exp()).sum::<f64>().ln();
        outputs[1].data[row] = log_sum_exp;
        outputs[0].data[row] = 0.0;
        if targets.index(row) != IGNORED as usize {
            let target = targets.index_below(row, logits.columns(), "cross_entropy")?;
            let mean = values.iter().sum::<f64>() / values.len() as f64;
            let (smoothing, z) = (f64::from(shape.label_smoothing), f64::from(shape.z_loss));
            let loss = (1.0 - smoothing) * (log_sum_exp - values[target])
                + smoothing * (log_sum_exp - mean)
                + z * log_sum_exp * log_sum_exp;
            outputs[0].data[row] = weights.data[row] * loss;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_function_has_its_known_values() {
        for (x, expected) in [
            (0.0, 0.0),
            (0.5, 0.520_499_877_813_046_5),
            (1.0, 0.842_700_792_949_714_9),
            (2.0, 0.995_322_265_018_952_7),
            (-2.9, -0.999_958_902_121_900_5),
            (3.1, 0.999_988_351_342_632_8),
            (5.0, 0.999_999_999_998_462_5),
        ] {
            assert!((erf(x) - expected).abs() < 1e-13, "erf({x}) = {}", erf(x));
        }
    }
}
