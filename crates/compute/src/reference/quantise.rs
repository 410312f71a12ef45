//! Products of eight bits.

use super::Tensor;
use crate::quantise::{Quantise, sample_stride, unit};

/// Numbers in their unit, as they stand and transposed; storing rounds them.
pub(super) fn quantise(of: &Quantise, inputs: &[&Tensor], outputs: &mut [Tensor]) {
    let x = inputs[0];
    let sampled = (0..x.rows()).step_by(sample_stride(x.rows())).flat_map(|row| x.row(row));
    // The largest of anything and what is not a number is not a number.
    let larger = |max: f64, x: f64| if max.is_nan() || max >= x { max } else { x };
    let largest = sampled.fold(0.0f64, |max, x| larger(max, x.abs()));
    let unit = unit(largest, of.of);
    outputs[0].data[0] = unit;
    let mut copies = outputs[1..].iter_mut();
    if of.rows
        && let Some(copy) = copies.next()
    {
        for (q, x) in copy.data.iter_mut().zip(&x.data) {
            *q = x / unit;
        }
    }
    if of.columns
        && let Some(copy) = copies.next()
    {
        for row in 0..x.rows() {
            for column in 0..x.columns() {
                copy.row_mut(column)[row] = x.row(row)[column] / unit;
            }
        }
    }
}

/// a·bᵀ in the product of their units.
pub(super) fn scaled_product(bias: bool, add: bool, inputs: &[&Tensor], outputs: &mut [Tensor]) {
    let (a, b, unit) = (inputs[0], inputs[2], inputs[1].data[0] * inputs[3].data[0]);
    for row in 0..a.rows() {
        for column in 0..b.rows() {
            let sum: f64 = a.row(row).iter().zip(b.row(column)).map(|(a, b)| a * b).sum();
            let out = &mut outputs[0].row_mut(row)[column];
            let before = if add { *out } else { 0.0 };
            *out = before + sum * unit + if bias { inputs[4].data[column] } else { 0.0 };
        }
    }
}
