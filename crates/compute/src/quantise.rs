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

mod norm_grads;

pub use norm_grads::QuantisedNormGrads;

use crate::{
    error::Result,
    op::{Attention, Op},
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
    /// `(slope, d_y) → slope·d_y`.
    Slope,
    /// `(x, y [..,any]) → x`, of which no number is expected beyond so many powers of two times the largest of y. That decides the unit,
    /// so that x need not be looked at first. For e5m2 alone, which has powers to spare.
    Bounded {
        /// How many.
        powers: u32,
    },
}

impl Source {
    /// What computes it.
    pub fn op(self) -> Option<Op> {
        match self {
            Source::Stored | Source::Bounded { .. } => None,
            Source::Gelu => Some(Op::Gelu),
            Source::GeluGrad => Some(Op::GeluGrad),
            Source::Slope => Some(Op::Mul),
        }
    }

    /// How many tensors it is computed from.
    pub fn operands(self) -> usize {
        match self {
            Source::Stored | Source::Gelu => 1,
            Source::GeluGrad | Source::Slope | Source::Bounded { .. } => 2,
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
            Source::Slope => "quantise_slope",
            Source::Bounded { .. } => "quantise_bounded",
        }
    }

    /// Whether it only quantises what lies in memory, by its own largest number.
    pub fn is_plain(&self) -> bool {
        self.source == Source::Stored && self.sums.is_none()
    }

    /// Which operand's largest number decides the unit, and which power of two that comes below.
    pub fn top(&self) -> (usize, i32) {
        match self.source {
            Source::Bounded { powers } => (1, bounded_top(powers) as i32),
            _ => (0, top_exponent(self.of)),
        }
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

/// A norm whose result is written in e4m3 alone: `(x [..,C], gain [C], shift [C] if any) → mean [N] if centred, rstd [N], unit [1],
/// q [..,C] if rows, qᵀ [C,N] if columns`; with a residual before it, `(a, b, bias of b [C] if any, gain, shift if any) →
/// a + (b + bias)`, then the same of that sum.
///
/// No number of the result is beyond √C·max|gain| + max|shift|. That bound decides the unit, so no number is looked at first and none
/// stops at the type's largest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QuantisedNorm {
    /// Whether it is layer norm, which subtracts the mean, rather than RMS norm.
    pub centred: bool,
    /// Whether there is a shift operand; RMS norm has none.
    pub shift: bool,
    /// Added to the variance, or to the mean square.
    pub eps: f32,
    /// Whether a sum is normalised, which is an output, too.
    pub adds: bool,
    /// Whether the second summand is a product that has left its bias; only layer norm adds it.
    pub bias: bool,
    /// Whether the copy as it stands is wanted.
    pub rows: bool,
    /// Whether the transposed copy is wanted.
    pub columns: bool,
}

impl QuantisedNorm {
    /// The kernel's name in errors and listings.
    pub fn name(&self) -> &'static str {
        match (self.centred, self.adds) {
            (true, false) => "quantise_layer_norm",
            (true, true) if self.bias => "quantise_add_biased_layer_norm",
            (true, true) => "quantise_add_layer_norm",
            (false, false) => "quantise_rms_norm",
            (false, true) => "quantise_add_rms_norm",
        }
    }

    /// The norm.
    pub fn op(&self) -> Op {
        let eps = self.eps;
        if self.centred { Op::LayerNorm { eps, bias: self.shift } } else { Op::RmsNorm { eps } }
    }

    /// How many tensors are added up and normalised.
    pub fn summands(&self) -> usize {
        1 + usize::from(self.adds)
    }

    /// How many operands there are before the gain.
    pub fn before_gain(&self) -> usize {
        self.summands() + usize::from(self.bias)
    }

    /// How many numbers are kept of every row: its mean, if any, and its rstd.
    pub fn statistics(&self) -> usize {
        1 + usize::from(self.centred)
    }

    /// What becomes of the norm's result.
    pub fn copies(&self) -> Quantise {
        let &QuantisedNorm { rows, columns, .. } = self;
        Quantise { of: DType::E4M3, source: Source::Stored, rows, columns, sums: None }
    }

    /// The types of the outputs, given those of the inputs.
    pub fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>> {
        let (sum, parameters) = (&inputs[..usize::from(self.adds)], &inputs[self.before_gain()..]);
        let results = self.op().outputs(&[&inputs[..1], parameters].concat())?;
        Ok([sum, &results[1..], &self.copies().outputs(results[0])].concat())
    }
}

/// The longest rows that a norm writes in eight bits itself: a warp of a card keeps them in its registers.
pub const MOST_NORM_COLUMNS: usize = 2048;

/// The gradient of an attention whose queries, keys and values lie side by side, in e5m2 alone: `(d_out [B,T,H·D], qkv, out, log-sum-exp) →
/// unit [1], q [B,T,(H + 2·Hkv)·D], qᵀ, sums of the columns if wanted`.
///
/// A row of d_v is a sum over at most T positions of d_out with weights of at most one, so none of its numbers is beyond T times the
/// largest of d_out; d_q and d_k are far from it, unless heads have outgrown all measure. That decides the unit: e5m2 has
/// so many powers of two that nothing is lost below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuantisedAttentionGrad {
    /// The attention: without borders, window and cache.
    pub of: Attention,
    /// Whether sums are written into state, and if so whether they add to what is there.
    pub sums: Option<bool>,
}

impl QuantisedAttentionGrad {
    /// Positions come in multiples of this.
    pub const POSITIONS: usize = 64;

    /// Whether there is such a kernel for an attention over `qkv`.
    pub fn suits(of: &Attention, qkv: Shape) -> bool {
        let &[_, positions, columns] = qkv.dims() else { return false };
        let size = columns / (of.heads + 2 * of.kv_heads).max(1);
        let is_plain = !of.cached && !of.borders && of.window == 0;
        is_plain && matches!(size, 64 | 128) && positions.is_multiple_of(Self::POSITIONS) && suits(qkv)
    }

    /// What becomes of the gradient over so many positions.
    pub fn copies(&self, positions: usize) -> Quantise {
        let source = Source::Bounded { powers: positions.max(1).next_power_of_two().ilog2() };
        Quantise { of: DType::E5M2, source, rows: true, columns: true, sums: self.sums }
    }
}

/// A product of eight bits whose result goes through GELU, or is multiplied with its slope, and becomes both copies of eight bits at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GeluProduct {
    /// `(x [..,K], unit of x [1], w [M,K], unit of w [1], bias [M] if any) → h [..,M], unit [1], q [..,M], qᵀ [M,N]`, with
    /// h = x·wᵀ·units + bias and q = round(GELU(h) / unit).
    Forward {
        /// Whether there is a bias operand.
        bias: bool,
        /// Whether GELU′(h) is written in place of h.
        slope: bool,
    },
    /// `(d_y [..,K], unit of d_y [1], w [M,K], unit of w [1], h [..,M]) → unit [1], q [..,M], qᵀ [M,N], sums of columns [M] if
    /// wanted`, with d_h = GELU′(h)·(d_y·wᵀ·units) and q = round(d_h / unit). The sums are those of d_h.
    Backward {
        /// Whether sums are written into state, and if so whether they add to what is there.
        sums: Option<bool>,
        /// Whether GELU′(h) is there in place of h.
        slope: bool,
    },
}

impl GeluProduct {
    /// The same with GELU′(h) in place of h.
    pub fn with_slope(self) -> Self {
        match self {
            GeluProduct::Forward { bias, .. } => GeluProduct::Forward { bias, slope: true },
            GeluProduct::Backward { sums, .. } => GeluProduct::Backward { sums, slope: true },
        }
    }

    /// Whether GELU′(h) is in place of h.
    pub fn has_slope(&self) -> bool {
        matches!(self, GeluProduct::Forward { slope: true, .. } | GeluProduct::Backward { slope: true, .. })
    }

    /// The kernel's name in errors and listings.
    pub fn name(&self) -> &'static str {
        match self {
            GeluProduct::Forward { .. } => "scaled_product_gelu",
            GeluProduct::Backward { .. } => "scaled_product_gelu_grad",
        }
    }

    /// Whether the product has a bias operand.
    pub fn bias(&self) -> bool {
        matches!(self, GeluProduct::Forward { bias: true, .. })
    }

    /// What is done with the product.
    pub fn quantise(&self) -> Quantise {
        let (of, source, sums) = match *self {
            GeluProduct::Forward { .. } => (DType::E4M3, Source::Gelu, None),
            GeluProduct::Backward { sums, slope: false } => (DType::E5M2, Source::GeluGrad, sums),
            GeluProduct::Backward { sums, slope: true } => (DType::E5M2, Source::Slope, sums),
        };
        Quantise { of, source, rows: true, columns: true, sums }
    }

    /// The types of the outputs, given that of h.
    pub fn outputs(&self, h: TensorType) -> Vec<TensorType> {
        let product = match self {
            GeluProduct::Forward { .. } => vec![h],
            GeluProduct::Backward { .. } => vec![],
        };
        [product, self.quantise().outputs(h)].concat()
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

/// The bound of a norm's result comes below two to this power: nothing is larger, so there need be no room above it.
pub const NORM_TOP_EXPONENT: i32 = 8;

/// What the largest of others comes below, if numbers of e5m2 that are so many powers of two larger are to have their place.
pub(crate) fn bounded_top(powers: u32) -> u32 {
    const BOUND_EXPONENT: u32 = 15;
    BOUND_EXPONENT.saturating_sub(powers)
}

/// A number rounded to the bits of e5m2, away from zero where what they leave over and the row's share of a whole together reach one.
/// Shares of neighbouring rows are as far apart as can be (steps of the golden ratio), so over some rows the errors add up to nothing.
pub(crate) fn round_by_place(x: f64, row: usize) -> f64 {
    const BITS: i32 = 2;
    if x == 0.0 || !x.is_finite() {
        return x;
    }
    let exponent = (x.to_bits() >> 52 & 0x7FF) as i32 - 1023;
    let step = 2f64.powi(exponent - BITS);
    // As many bits as an f32 has behind those of e5m2, which is what a card works with.
    let share = f64::from((row as u32).wrapping_mul(GOLDEN_STEP) >> 11) / f64::from(1 << 21);
    ((x.abs() / step + share).floor() * step).copysign(x)
}

/// 2³² divided by the golden ratio.
const GOLDEN_STEP: u32 = 0x9E37_79B9;

/// The largest power by which numbers are multiplied or divided.
pub const MOST_SHIFT: i32 = 100;

/// The unit of a norm's result over rows of so many columns, given the largest of its gains and shifts. The bound is computed in f32 and
/// rounded at every step, so that all devices find the same.
pub(crate) fn norm_unit(columns: usize, gain: f64, shift: f64) -> f64 {
    let bound = norm_root(columns) * gain as f32 + shift as f32;
    unit_below(f64::from(bound), NORM_TOP_EXPONENT)
}

/// How many times its root mean square a number of a row can be at most.
pub(crate) fn norm_root(columns: usize) -> f32 {
    (columns as f32).sqrt()
}

/// The unit in which a number comes just below two to a power: not a number where that number is not finite, so that it is not overlooked.
pub(crate) fn unit_below(largest: f64, top: i32) -> f64 {
    if largest == 0.0 {
        return 1.0;
    }
    if !largest.is_finite() {
        return f64::NAN;
    }
    let exponent = (largest.to_bits() >> 52 & 0x7FF) as i32 - 1022;
    2f64.powi((exponent - top).clamp(-MOST_SHIFT, MOST_SHIFT))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Mask;

    fn unit(largest: f64, of: DType) -> f64 {
        unit_below(largest, top_exponent(of))
    }

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
    fn no_number_of_a_norm_is_larger_than_its_type_allows() {
        for (columns, gain, shift) in [(16, 1.0, 0.0), (768, 1.0, 0.0), (768, 20.0, 3.0), (1600, 0.01, 0.5)] {
            // All of a row's squares are in one number.
            let most = f64::from(norm_root(columns)) * gain + shift;
            let there = most / norm_unit(columns, gain, shift);
            let top = 2f64.powi(NORM_TOP_EXPONENT);
            assert!((top / 2.0..top).contains(&there), "{columns} {gain} {shift}: {there}");
        }
        assert_eq!(norm_unit(768, 0.0, 0.0), 1.0);
        assert!(norm_unit(768, f64::NAN, 0.0).is_nan() && norm_unit(768, 1.0, f64::INFINITY).is_nan());
    }

    #[test]
    fn a_gradient_of_attention_has_room_for_all_positions() {
        let (mask, products) = (Mask::Causal, DType::BF16);
        let of =
            Attention { heads: 1, kv_heads: 1, mask, cached: false, borders: false, window: 0, products };
        for positions in [64, 192, 1024, 8192] {
            let copies = QuantisedAttentionGrad { of, sums: None }.copies(positions);
            let (operand, top) = copies.top();
            let most = positions as f64 * 0.7 / unit_below(0.7, top);
            assert_eq!(operand, 1);
            assert!((4_096.0..57_344.0).contains(&most), "{positions}: {most}");
        }
    }

    #[test]
    fn rounded_by_place_numbers_are_right_on_average() {
        const ROWS: usize = 1000;
        for x in [-0.96875, -0.9, 0.3, 1.26, 5.0, 0.0, -1.9999] {
            let mean = (0..ROWS).map(|row| round_by_place(x, row)).sum::<f64>() / ROWS as f64;
            assert!((mean - x).abs() <= 2e-3 * x.abs(), "{x}: {mean}");
        }
        assert_eq!([0, 7].map(|row| round_by_place(-0.875, row)), [-0.875; 2]);
        assert_eq!(round_by_place(f64::NEG_INFINITY, 3), f64::NEG_INFINITY);
    }

    #[test]
    fn few_rows_are_all_looked_at_and_many_in_odd_steps() {
        assert_eq!([16, 1024, 2047].map(sample_stride), [1; 3]);
        assert_eq!([2048, 65_536].map(sample_stride), [3, 65]);
    }
}
