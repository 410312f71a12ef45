//! Numbers that processors do not have: halves, bytes, and roundings of single precision.

use half::f16;

/// A half, rounded to the nearest.
#[inline(always)]
pub fn to_f16(x: f32) -> u16 {
    if x.is_nan() { 0x7fff } else { f16::from_f32_const(x).to_bits() }
}

/// What a half says.
#[inline(always)]
pub fn from_f16(bits: u16) -> f32 {
    f16::from_bits(bits).to_f32_const()
}

/// A bf16, rounded to the nearest, of two the even one.
#[inline(always)]
pub fn to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    if x.is_nan() { 0x7fff } else { (bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16 }
}

/// What a bf16 says.
#[inline(always)]
pub fn from_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// A format of eight bits: bits of the fraction, the exponent of the smallest normal number, and the bits of the largest number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Eight {
    fraction: i32,
    smallest: i32,
    largest: u8,
}

/// Four bits of exponent and three of fraction: no infinity, one NaN.
pub const E4M3: Eight = Eight { fraction: 3, smallest: -6, largest: 0x7e };
/// Five and two.
pub const E5M2: Eight = Eight { fraction: 2, smallest: -14, largest: 0x7b };

impl Eight {
    /// The nearest number of the format, of two the even one; what is larger than the largest becomes that.
    #[inline]
    pub fn round(self, x: f32) -> u8 {
        let sign = (x.to_bits() >> 24) as u8 & 0x80;
        if x.is_nan() {
            return 0x7f;
        }
        let magnitude = f64::from(x.abs());
        let exponent = ((x.abs().to_bits() >> 23) as i32 - 127).max(self.smallest);
        // Steps of the format at this magnitude; a fraction that rounds up to the next power of two carries by itself.
        let step = 2f64.powi(exponent - self.fraction);
        let steps = (magnitude / step).round_ties_even();
        if steps.is_infinite() || steps >= f64::from(u32::MAX) {
            return sign | self.largest;
        }
        let normal = 1 << self.fraction;
        let bits = (exponent - self.smallest) * normal + steps as i32;
        sign | bits.min(i32::from(self.largest)) as u8
    }

    /// What the bits say.
    #[inline]
    pub fn value(self, bits: u8) -> f32 {
        let magnitude = i32::from(bits & 0x7f);
        let sign = if bits & 0x80 == 0 { 1.0 } else { -1.0 };
        if magnitude > i32::from(self.largest) {
            return if self == E5M2 && magnitude == 0x7c { sign * f32::INFINITY } else { f32::NAN };
        }
        let normal = 1 << self.fraction;
        let (exponent, fraction) = (magnitude / normal, magnitude % normal);
        let (exponent, steps) = if exponent == 0 { (0, fraction) } else { (exponent - 1, fraction + normal) };
        sign * steps as f32 * 2f32.powi(exponent + self.smallest - self.fraction)
    }
}

/// What is too small to be normal becomes zero.
#[inline(always)]
pub fn flush(x: f32) -> f32 {
    if x.abs() < f32::MIN_POSITIVE { 0.0f32.copysign(x) } else { x }
}

/// 2 to the power of x, to the last bit or two: x is a whole number and a rest of at most a half.
#[inline(always)]
pub fn exp2(x: f32) -> f32 {
    let clamped = x.clamp(-150.0, 129.0);
    let whole = clamped.round_ties_even();
    let rest = (clamped - whole) * std::f32::consts::LN_2;
    // e to the power of the rest, by its series.
    let series = [1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0f32];
    let sum = series.iter().skip(1).fold(series[0], |sum, term| sum * rest + term);
    // In two factors, so that neither is beyond what an exponent holds.
    let half = whole as i32 / 2;
    let power = |exponent: i32| f32::from_bits(((exponent + 127) << 23) as u32);
    let result = sum * power(half) * power(whole as i32 - half);
    if x.is_nan() { x } else { result }
}

/// a·b + c, rounded once, towards minus infinity.
#[inline(always)]
pub fn fma_down(a: f32, b: f32, c: f32) -> f32 {
    let product = f64::from(a) * f64::from(b);
    let c = f64::from(c);
    let sum = product + c;
    // What the sum in double precision lost.
    let part = sum - product;
    let lost = (product - (sum - part)) + (c - part);
    let nearest = sum as f32;
    let over = f64::from(nearest) - sum;
    if over > 0.0 || (over == 0.0 && lost < 0.0) { nearest.next_down() } else { nearest }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_eight_bits_round_to_themselves_and_to_the_nearest() {
        for format in [E4M3, E5M2] {
            let finite: Vec<u8> = (0..=format.largest).collect();
            for pair in finite.windows(2) {
                let [low, high] = [pair[0], pair[1]].map(|bits| format.value(bits));
                assert_eq!(format.round(low), pair[0]);
                assert_eq!(format.round(-high), pair[1] | 0x80);
                let even = if pair[0] % 2 == 0 { pair[0] } else { pair[1] };
                let middle = (low + high) / 2.0;
                assert_eq!(format.round(middle), even, "{middle}");
                assert_eq!(format.round(middle.next_up()), pair[1]);
                assert_eq!(format.round(middle.next_down()), pair[0]);
            }
            assert_eq!(format.round(f32::INFINITY), format.largest);
            assert_eq!(format.round(-1e30), format.largest | 0x80);
            assert!(format.value(format.round(f32::NAN)).is_nan());
        }
        assert_eq!(E4M3.value(E4M3.largest), 448.0);
        assert_eq!(E5M2.value(E5M2.largest), 57344.0);
    }

    #[test]
    fn powers_of_two_are_right_to_a_bit_or_two() {
        for step in -14_000..12_800 {
            let x = step as f32 * 0.01;
            let (found, exact) = (f64::from(exp2(x)), f64::from(x).exp2());
            assert!((found - exact).abs() <= 4e-7 * exact + 1e-44, "{x}: {found} and {exact}");
        }
        assert_eq!(exp2(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp2(f32::INFINITY), f32::INFINITY);
        assert!(exp2(f32::NAN).is_nan());
        assert_eq!(exp2(0.0), 1.0);
        assert_eq!(exp2(10.0), 1024.0);
    }

    #[test]
    fn products_round_down() {
        assert_eq!(fma_down(1.0, 1.0, 1e-30), 1.0);
        assert_eq!(fma_down(1.0, 1.0, -1e-30), 1.0f32.next_down());
        assert_eq!(fma_down(3.0, 1.0 / 3.0, 0.0), 1.0);
        assert_eq!(fma_down(0.1, 0.1, 12_582_912.0), 12_582_912.0);
        assert_eq!(fma_down(-0.1, 0.1, 12_582_912.0), 12_582_911.0);
    }
}
