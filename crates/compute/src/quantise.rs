//! Numbers on their way to products of eight bits: what they are counted in, and which copies are written.
//!
//! A type of eight bits has three or two bits behind the point whatever the size of a number, but only a few powers of two: a tensor
//! is multiplied by a power of two that brings it among them, and its **unit** is the inverse of that. The largest number
//! decides the power. Because a factor of two or ten hardly matters to a floating point, it is looked for in a part of the
//! rows, with room above it; what is larger still stops at the type's largest number. So nothing is kept between steps,
//! and the numbers are read once.
//!
//! The matrix units take both factors with the summed dimension innermost: a product needs one of its factors as it is, another the
//! same numbers transposed. Both copies are written while the numbers are at hand.

use crate::{
    op::Op,
    tensor::{DType, Shape, TensorType},
};

/// `(x [..,C]) → unit [1], q [..,C] if rows, qᵀ [C,N] if columns, sums of the columns of x [C] if wanted`, with
/// q = round(x / unit). Of what x is computed from, see [`Source`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quantise {
    /// The type of eight bits.
    pub of: DType,
    /// What x is.
    pub source: Source,
    /// Whether the copy as it stands is wanted.
    pub rows: bool,
    /// Whether the transposed copy is wanted.
    pub columns: bool,
    /// Whether the sums of columns, a bias's gradient, are written into state, and if so whether they add to what is there.
    pub sums: Option<bool>,
}

/// What is quantised: a tensor that lies in memory, or one that is computed on the way and never lies there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// `(x) → x`.
    Stored,
    /// `(h) → GELU(h)`.
    Gelu,
    /// `(h, d_y) → GELU′(h)·d_y`.
    GeluGrad,
}

impl Source {
    /// What computes it.
    pub fn op(self) -> Option<Op> {
        match self {
            Source::Stored => None,
            Source::Gelu => Some(Op::Gelu),
            Source::GeluGrad => Some(Op::GeluGrad),
        }
    }

    /// How many tensors it is computed from.
    pub fn operands(self) -> usize {
        match self {
            Source::Stored | Source::Gelu => 1,
            Source::GeluGrad => 2,
        }
    }
}

impl Quantise {
    /// The kernel's name in errors and listings.
    pub fn name(&self) -> &'static str {
        match self.source {
            Source::Stored => "quantise",
            Source::Gelu => "quantise_gelu",
            Source::GeluGrad => "quantise_gelu_grad",
        }
    }

    /// Whether it only quantises.
    pub fn is_plain(&self) -> bool {
        self.source == Source::Stored && self.sums.is_none()
    }

    /// How many outputs there are.
    pub fn output_count(&self) -> usize {
        1 + usize::from(self.rows) + usize::from(self.columns) + usize::from(self.sums.is_some())
    }

    /// The types of the outputs.
    pub fn outputs(&self, x: TensorType) -> Vec<TensorType> {
        let (rows, columns) = (x.shape.rows(), x.shape.columns());
        let mut outputs = vec![TensorType::new(&[1], DType::F32)];
        outputs.extend(self.rows.then(|| x.with_dtype(self.of)));
        outputs.extend(self.columns.then(|| TensorType::new(&[columns, rows], self.of)));
        outputs.extend(self.sums.map(|_| TensorType::new(&[columns], DType::F32)));
        outputs
    }
}

/// Whether products of eight bits take a matrix of this shape, as it is and transposed.
pub fn suits(shape: Shape) -> bool {
    let [rows, columns] = [shape.rows(), shape.columns()];
    shape.elements() > 0 && rows.is_multiple_of(16) && columns.is_multiple_of(16)
}

/// About how many rows are looked at for the largest number.
const SAMPLED_ROWS: usize = 1024;

/// Every how many rows one is looked at. Odd, so that positions of samples whose length is a power of two all get their turn.
pub fn sample_stride(rows: usize) -> usize {
    match rows / SAMPLED_ROWS {
        0 | 1 => 1,
        stride => stride | 1,
    }
}

/// The largest number that was found comes below two to this power: seven times and more below the type's largest for weights and
/// activations, a hundred times and more for gradients, whose type has powers to spare.
pub fn top_exponent(of: DType) -> i32 {
    if of == DType::E5M2 { 9 } else { 6 }
}

/// The largest power by which numbers are multiplied or divided.
pub const MOST_SHIFT: i32 = 100;

/// The unit of a tensor whose largest sampled number this is: not a number where that is not finite, so that it is not overlooked.
pub(crate) fn unit(largest: f64, of: DType) -> f64 {
    if largest == 0.0 {
        return 1.0;
    }
    if !largest.is_finite() {
        return f64::NAN;
    }
    let exponent = (largest.to_bits() >> 52 & 0x7FF) as i32 - 1022;
    2f64.powi((exponent - top_exponent(of)).clamp(-MOST_SHIFT, MOST_SHIFT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_number_comes_just_below_its_place() {
        for of in [DType::E4M3, DType::E5M2] {
            let top = 2f64.powi(top_exponent(of));
            for largest in [1e-20, 0.03, 0.5, 1.0, 1.99, 2.0, 3e7] {
                let there = largest / unit(largest, of);
                assert!((top / 2.0..top).contains(&there), "{largest}: {there}");
            }
            assert_eq!(unit(0.0, of), 1.0);
            assert!(unit(f64::INFINITY, of).is_nan() && unit(f64::NAN, of).is_nan());
            assert_eq!(unit(1e-300, of), 2f64.powi(-MOST_SHIFT));
        }
    }

    #[test]
    fn few_rows_are_all_looked_at_and_many_in_odd_steps() {
        assert_eq!([16, 1024, 2047].map(sample_stride), [1; 3]);
        assert_eq!([2048, 65_536].map(sample_stride), [3, 65]);
    }
}
