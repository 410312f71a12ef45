//! Products of eight bits.

use super::{Tensor, forward};
use crate::{
    op::IGNORED,
    quantise::{Quantise, QuantisedNorm, norm_unit, round_by_place, sample_stride, unit_below},
};

/// Numbers in their unit, as they stand and transposed; storing rounds them.
pub(super) fn quantise(of: &Quantise, inputs: &[&Tensor], outputs: &mut [Tensor]) {
    let (operand, top) = of.top();
    let y = inputs[operand];
    let sampled = (0..y.rows()).step_by(sample_stride(y.rows())).flat_map(|row| y.row(row));
    write_copies(of, inputs[0], unit_below(largest(sampled), top), outputs);
}

/// Rows' numbers at their targets, rounded by place, unless nothing is rounded.
pub(super) fn round_targets(rounds: bool, inputs: &[&Tensor], outputs: &mut [Tensor]) {
    let (targets, rounded) = (inputs[1], &mut outputs[0]);
    rounded.data.copy_from_slice(&inputs[0].data);
    for row in (0..rounded.rows()).filter(|&row| rounds && targets.index(row) != IGNORED as usize) {
        let d = &mut rounded.row_mut(row)[targets.index(row)];
        *d = round_by_place(*d, row);
    }
}

/// A norm's result in the unit that follows from its gains and shifts.
pub(super) fn norm(of: &QuantisedNorm, inputs: &[&Tensor], outputs: &mut [Tensor]) {
    let (statistics, copies) = outputs.split_at_mut(of.statistics());
    let mut results = vec![inputs[0].clone()];
    results.extend_from_slice(statistics);
    let eps = f64::from(of.eps);
    if of.centred {
        forward::layer_norm(eps, of.shift, inputs, &mut results);
    } else {
        forward::rms_norm(eps, inputs, &mut results);
    }
    statistics.clone_from_slice(&results[1..]);
    let [gain, shift] = [1, 2].map(|index| inputs.get(index).map_or(0.0, |of| largest(&of.data)));
    write_copies(&of.copies(), &results[0], norm_unit(inputs[0].columns(), gain, shift), copies);
}

/// The largest number without its sign; that of anything and what is not a number is not a number.
fn largest<'a>(numbers: impl IntoIterator<Item = &'a f64>) -> f64 {
    let larger = |max: f64, x: f64| if max.is_nan() || max >= x { max } else { x };
    numbers.into_iter().fold(0.0, |max, x| larger(max, x.abs()))
}

/// The unit, and the copies that are wanted.
fn write_copies(of: &Quantise, x: &Tensor, unit: f64, outputs: &mut [Tensor]) {
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
