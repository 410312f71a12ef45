//! What a tensor is, apart from where it lies: element type and shape.

use std::fmt;

/// The type of one stored element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE single precision: masters, statistics, accumulators.
    F32,
    /// Brain float: the range of `F32` with 8 bits of mantissa.
    BF16,
    /// IEEE half precision.
    F16,
    /// Eight bits, 3 of them behind the point, up to 448: weights and activations on their way to a product.
    E4M3,
    /// Eight bits, 2 of them behind the point, up to 57344: gradients on their way to a product.
    E5M2,
    /// Token ids, positions, lengths and random keys.
    U32,
}

impl DType {
    /// Bytes an element takes on a device that stores the type as it is.
    pub fn bytes(self) -> usize {
        match self {
            DType::F32 | DType::U32 => 4,
            DType::BF16 | DType::F16 => 2,
            DType::E4M3 | DType::E5M2 => 1,
        }
    }

    /// Whether elements are numbers to calculate with rather than indices.
    pub fn is_real(self) -> bool {
        self != DType::U32
    }

    /// Whether elements have eight bits and mean something only with the unit that they are counted in.
    pub fn is_eight_bits(self) -> bool {
        matches!(self, DType::E4M3 | DType::E5M2)
    }

    /// The distance from 1 to the next number: the unit of every tolerance.
    pub fn epsilon(self) -> f64 {
        match self {
            DType::F32 => f64::from(f32::EPSILON),
            DType::BF16 => 2f64.powi(-7),
            DType::F16 => 2f64.powi(-10),
            DType::E4M3 => 2f64.powi(-3),
            DType::E5M2 => 2f64.powi(-2),
            DType::U32 => 0.0,
        }
    }

    /// The nearest number of this type, as the reference backend rounds: types of eight bits stop at their largest number.
    pub fn round(self, x: f64) -> f64 {
        match self {
            DType::F32 => f64::from(x as f32),
            DType::BF16 => nearest(x, 7, -126, half::bf16::MAX.to_f64()),
            DType::F16 => nearest(x, 10, -14, half::f16::MAX.to_f64()),
            DType::E4M3 => nearest(x.clamp(-448.0, 448.0), 3, -6, 448.0),
            DType::E5M2 => nearest(x.clamp(-57_344.0, 57_344.0), 2, -14, 57_344.0),
            DType::U32 => x,
        }
    }
}

/// The nearest number with this many bits behind the point, ties to even. Written out, because `half` looks at the upper 32
/// bits of an f64 only and so takes what lies just beside the middle of two numbers for the middle.
fn nearest(x: f64, mantissa_bits: i32, least_exponent: i32, max: f64) -> f64 {
    if x == 0.0 || !x.is_finite() {
        return x;
    }
    let exponent = (x.to_bits() >> 52 & 0x7FF) as i32 - 1023;
    let unit = 2f64.powi(exponent.max(least_exponent) - mantissa_bits);
    let rounded = (x / unit).round_ties_even() * unit;
    if rounded.abs() > max { f64::INFINITY.copysign(x) } else { rounded }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DType::F32 => "f32",
            DType::BF16 => "bf16",
            DType::F16 => "f16",
            DType::E4M3 => "e4m3",
            DType::E5M2 => "e5m2",
            DType::U32 => "u32",
        })
    }
}

/// Up to four concrete dimensions, outermost first; elements are contiguous, the last dimension fastest.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    dims: [usize; Shape::MAX_RANK],
    rank: usize,
}

impl Shape {
    /// The most dimensions that a tensor may have.
    pub const MAX_RANK: usize = 4;

    /// The shape with these dimensions.
    ///
    /// # Panics
    /// With no dimension or more than four.
    pub fn new(dims: &[usize]) -> Self {
        assert!(
            (1..=Self::MAX_RANK).contains(&dims.len()),
            "a shape has 1 to 4 dimensions, not {}",
            dims.len()
        );
        let mut padded = [1; Self::MAX_RANK];
        padded[..dims.len()].copy_from_slice(dims);
        Shape { dims: padded, rank: dims.len() }
    }

    /// The dimensions, outermost first.
    pub fn dims(&self) -> &[usize] {
        &self.dims[..self.rank]
    }

    /// How many elements there are.
    pub fn elements(&self) -> usize {
        self.dims().iter().product()
    }

    /// The last dimension: the length of a row.
    pub fn columns(&self) -> usize {
        self.dims[self.rank - 1]
    }

    /// The product of all dimensions but the last.
    pub fn rows(&self) -> usize {
        self.dims[..self.rank - 1].iter().product()
    }

    /// The same shape with rows of another length.
    pub fn with_columns(&self, columns: usize) -> Self {
        let mut shape = *self;
        shape.dims[shape.rank - 1] = columns;
        shape
    }

    /// The shape without its last dimension; `[1]` where nothing is left.
    pub fn without_columns(&self) -> Self {
        if self.rank == 1 { Shape::new(&[1]) } else { Shape::new(&self.dims[..self.rank - 1]) }
    }

    /// The same elements behind one more dimension.
    pub fn with_inner(&self, columns: usize) -> Self {
        let mut dims = self.dims().to_vec();
        dims.push(columns);
        Shape::new(&dims)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.dims())
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Shape and element type together: all that shape rules look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// The dimensions.
    pub shape: Shape,
    /// The element type.
    pub dtype: DType,
}

impl TensorType {
    /// The type with these dimensions.
    pub fn new(dims: &[usize], dtype: DType) -> Self {
        TensorType { shape: Shape::new(dims), dtype }
    }

    /// The same shape in another element type.
    pub fn with_dtype(self, dtype: DType) -> Self {
        TensorType { dtype, ..self }
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_takes_the_nearest_number_and_the_even_one_of_two() {
        for (x, expected) in [
            (0.0, 0.0),
            (1.0 + 2f64.powi(-8), 1.0),
            (1.0 + 2f64.powi(-8) + 2f64.powi(-40), 1.0 + 2f64.powi(-7)),
            (1.0 + 3.0 * 2f64.powi(-8), 1.0 + 2f64.powi(-6)),
            (-1.0 - 3.0 * 2f64.powi(-8) + 2f64.powi(-40), -1.0 - 2f64.powi(-7)),
            (1e39, f64::INFINITY),
            (2f64.powi(-133), 2f64.powi(-133)),
            (2f64.powi(-135), 0.0),
        ] {
            assert_eq!(DType::BF16.round(x), expected, "{x}");
        }
        for (of, x, expected) in [
            (DType::E4M3, 1.0625, 1.0),
            (DType::E4M3, 1.1875, 1.25),
            (DType::E4M3, -1e9, -448.0),
            (DType::E4M3, 2f64.powi(-9), 2f64.powi(-9)),
            (DType::E4M3, 2f64.powi(-10), 0.0),
            (DType::E5M2, 1.125, 1.0),
            (DType::E5M2, 60_000.0, 57_344.0),
            (DType::E5M2, -2f64.powi(-16), -2f64.powi(-16)),
        ] {
            assert_eq!(of.round(x), expected, "{of} {x}");
        }
        assert!(DType::E4M3.round(f64::NAN).is_nan());
        for bits in (0..=u32::MAX).step_by(65_521) {
            let x = f32::from_bits(bits);
            let (ours, theirs) = (DType::BF16.round(x.into()), half::bf16::from_f32(x).to_f64());
            assert!(ours == theirs || ours.is_nan() && theirs.is_nan(), "{x}: {ours} and {theirs}");
            let (ours, theirs) = (DType::F16.round(x.into()), half::f16::from_f32(x).to_f64());
            assert!(ours == theirs || ours.is_nan() && theirs.is_nan(), "{x}: {ours} and {theirs}");
        }
    }
}
