//! What instructions compute that every lane does by itself, by their names.

use crate::{
    lanes::{Lanewise, compared, lanewise},
    numbers::{self, E4M3, E5M2, flush, from_bf16, from_f16, to_bf16, to_f16},
};

/// An operation on single precision.
macro_rules! single {
    ($variant:ident, $($x:ident),+; $body:expr) => {
        lanewise!($variant, ($($x: u32),+) -> u32, {
            $(let $x = f32::from_bits($x);)+
            let y: f32 = $body;
            y.to_bits()
        })
    };
}

/// A number in single precision of a word.
macro_rules! single_of {
    ($a:ident; $body:expr) => {
        lanewise!(W1, ($a: u32) -> u32, {
            let y: f32 = $body;
            y.to_bits()
        })
    };
}
/// An operation on double precision.
macro_rules! double {
    ($variant:ident, $($x:ident),+; $body:expr) => {
        lanewise!($variant, ($($x: u64),+) -> u64, {
            $(let $x = f64::from_bits($x);)+
            let y: f64 = $body;
            y.to_bits()
        })
    };
}

/// The same on both halves of a word.
macro_rules! halves {
    ($from:ident, $to:ident, $a:ident, $b:ident; $body:expr) => {
        lanewise!(W2, (a: u32, b: u32) -> u32, {
            #[inline(always)]
            fn half(a: u32, b: u32) -> u32 {
                let ($a, $b) = ($from(a as u16), $from(b as u16));
                let y: f32 = $body;
                u32::from($to(y))
            }
            half(a, b) | half(a >> 16, b >> 16) << 16
        })
    };
}

/// A comparison of a type, which numbers beside each other have one of.
macro_rules! compare {
    ($opcode:expr, $variant:ident, $bits:ty, $of:ty, $read:expr) => {{
        const READ: fn($bits) -> $of = $read;
        match $opcode {
            "eq" => Some(compared!($variant, (a: $bits, b: $bits), READ(a) == READ(b))),
            "ne" => Some(compared!($variant, (a: $bits, b: $bits), READ(a) != READ(b))),
            "lt" | "lo" => Some(compared!($variant, (a: $bits, b: $bits), READ(a) < READ(b))),
            "le" | "ls" => Some(compared!($variant, (a: $bits, b: $bits), READ(a) <= READ(b))),
            "gt" | "hi" => Some(compared!($variant, (a: $bits, b: $bits), READ(a) > READ(b))),
            "ge" | "hs" => Some(compared!($variant, (a: $bits, b: $bits), READ(a) >= READ(b))),
            _ => None,
        }
    }};
}

/// A comparison of floats: those ending in `u` are also so where one of both is not a number.
macro_rules! compare_floats {
    ($opcode:expr, $variant:ident, $bits:ty, $float:ty) => {{
        const READ: fn($bits) -> $float = <$float>::from_bits;
        const NONE: fn($bits, $bits) -> bool = |a, b| READ(a).is_nan() || READ(b).is_nan();
        match $opcode {
            // Here a number that is none differs from all others; Rust's `!=` is `neu`.
            "ne" => Some(compared!($variant, (a: $bits, b: $bits), READ(a) < READ(b) || READ(a) > READ(b))),
            "equ" => Some(compared!($variant, (a: $bits, b: $bits), !(READ(a) < READ(b) || READ(a) > READ(b)))),
            "neu" => Some(compared!($variant, (a: $bits, b: $bits), READ(a) != READ(b))),
            "ltu" => Some(compared!($variant, (a: $bits, b: $bits), NONE(a, b) || READ(a) < READ(b))),
            "leu" => Some(compared!($variant, (a: $bits, b: $bits), NONE(a, b) || READ(a) <= READ(b))),
            "gtu" => Some(compared!($variant, (a: $bits, b: $bits), NONE(a, b) || READ(a) > READ(b))),
            "geu" => Some(compared!($variant, (a: $bits, b: $bits), NONE(a, b) || READ(a) >= READ(b))),
            "num" => Some(compared!($variant, (a: $bits, b: $bits), !NONE(a, b))),
            "nan" => Some(compared!($variant, (a: $bits, b: $bits), NONE(a, b))),
            other => compare!(other, $variant, $bits, $float, <$float>::from_bits),
        }
    }};
}

/// The comparison that `setp.lt.s32` and its like make.
pub fn comparison(how: &str, of: &str) -> Option<Lanewise> {
    match of {
        "u16" | "b16" => compare!(how, CompareWords, u32, u16, |x| x as u16),
        "s16" => compare!(how, CompareWords, u32, i16, |x| x as i16),
        "u32" | "b32" => compare!(how, CompareWords, u32, u32, |x| x),
        "s32" => compare!(how, CompareWords, u32, i32, |x| x as i32),
        "u64" | "b64" => compare!(how, CompareDoubles, u64, u64, |x| x),
        "s64" => compare!(how, CompareDoubles, u64, i64, |x| x as i64),
        "f32" => compare_floats!(how, CompareWords, u32, f32),
        "f64" => compare_floats!(how, CompareDoubles, u64, f64),
        _ => None,
    }
}

/// The greater of two; of a number and none, the number. Zero is greater than minus zero.
#[inline(always)]
fn greater(a: f32, b: f32) -> f32 {
    if a == b {
        f32::from_bits(a.to_bits() & b.to_bits())
    } else if a > b || b.is_nan() {
        a
    } else {
        b
    }
}

#[inline(always)]
fn less(a: f32, b: f32) -> f32 {
    if a == b {
        f32::from_bits(a.to_bits() | b.to_bits())
    } else if a < b || b.is_nan() {
        a
    } else {
        b
    }
}

/// The same, but none of a number and none.
#[inline(always)]
fn greater_or_none(a: f32, b: f32) -> f32 {
    if a.is_nan() || b.is_nan() { f32::NAN } else { greater(a, b) }
}

#[inline(always)]
fn less_or_none(a: f32, b: f32) -> f32 {
    if a.is_nan() || b.is_nan() { f32::NAN } else { less(a, b) }
}

/// Bytes of two words, chosen by the low four bits of each half byte: three say which, one fills with its sign.
#[inline(always)]
fn permute(a: u32, b: u32, by: u32) -> u32 {
    let both = u64::from(b) << 32 | u64::from(a);
    (0..4).fold(0, |all, place| {
        let choice = by >> (4 * place) & 0xf;
        let byte = (both >> (8 * (choice & 7))) as u8;
        let byte = if choice & 8 == 0 { byte } else { ((byte as i8) >> 7) as u8 };
        all | u32::from(byte) << (8 * place)
    })
}

/// Bits of a word put into another.
#[inline(always)]
pub fn insert(from: u64, into: u64, at: u32, count: u32, width: u32) -> u64 {
    if count == 0 || at >= width {
        return into;
    }
    let mask = (if count >= 64 { u64::MAX } else { (1 << count) - 1 }) << at;
    into & !mask | from << at & mask
}

/// What an instruction does with its lanes, or nothing if it is not one of those.
pub fn operation(opcode: &str) -> Option<Lanewise> {
    moves(opcode).or_else(|| whole(opcode)).or_else(|| float(opcode)).or_else(|| conversion(opcode))
}

fn moves(opcode: &str) -> Option<Lanewise> {
    Some(match opcode {
        "mov.b32" | "mov.u32" | "mov.s32" | "mov.f32" | "mov.b16" | "mov.u16" | "cvta.to.shared.u32" => {
            lanewise!(W1, (a: u32) -> u32, a)
        }
        // All spaces but shared memory have the addresses that programs see.
        "mov.b64" | "mov.u64" | "mov.s64" | "mov.f64" | "cvta.to.global.u64" | "cvta.param.u64"
        | "cvta.global.u64" | "cvta.to.param.u64" => lanewise!(D1, (a: u64) -> u64, a),
        _ => return None,
    })
}

/// Whole numbers and bits.
fn whole(opcode: &str) -> Option<Lanewise> {
    Some(match opcode {
        "add.s32" | "add.u32" => lanewise!(W2, (a: u32, b: u32) -> u32, a.wrapping_add(b)),
        "sub.s32" | "sub.u32" => lanewise!(W2, (a: u32, b: u32) -> u32, a.wrapping_sub(b)),
        "mul.lo.s32" | "mul.lo.u32" => lanewise!(W2, (a: u32, b: u32) -> u32, a.wrapping_mul(b)),
        "mul.hi.u32" => lanewise!(W2, (a: u32, b: u32) -> u32, ((u64::from(a) * u64::from(b)) >> 32) as u32),
        "mul.hi.s32" => {
            lanewise!(W2, (a: u32, b: u32) -> u32, ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32)
        }
        "mad.lo.s32" | "mad.lo.u32" => {
            lanewise!(W3, (a: u32, b: u32, c: u32) -> u32, a.wrapping_mul(b).wrapping_add(c))
        }
        // A card gives all ones for a division by zero.
        "div.u32" => lanewise!(W2, (a: u32, b: u32) -> u32, a.checked_div(b).unwrap_or(u32::MAX)),
        "rem.u32" => lanewise!(W2, (a: u32, b: u32) -> u32, a.checked_rem(b).unwrap_or(a)),
        "div.s32" => {
            lanewise!(W2, (a: u32, b: u32) -> u32, if b == 0 { u32::MAX } else { (a as i32).wrapping_div(b as i32) as u32 })
        }
        "rem.s32" => {
            lanewise!(W2, (a: u32, b: u32) -> u32, if b == 0 { a } else { (a as i32).wrapping_rem(b as i32) as u32 })
        }
        "min.u32" => lanewise!(W2, (a: u32, b: u32) -> u32, a.min(b)),
        "max.u32" => lanewise!(W2, (a: u32, b: u32) -> u32, a.max(b)),
        "min.s32" => lanewise!(W2, (a: u32, b: u32) -> u32, (a as i32).min(b as i32) as u32),
        "max.s32" => lanewise!(W2, (a: u32, b: u32) -> u32, (a as i32).max(b as i32) as u32),
        "min.s16x2" => lanewise!(W2, (a: u32, b: u32) -> u32, {
            let (low, high) = ((a as i16).min(b as i16), ((a >> 16) as i16).min((b >> 16) as i16));
            u32::from(low as u16) | u32::from(high as u16) << 16
        }),
        "max.s16x2" => lanewise!(W2, (a: u32, b: u32) -> u32, {
            let (low, high) = ((a as i16).max(b as i16), ((a >> 16) as i16).max((b >> 16) as i16));
            u32::from(low as u16) | u32::from(high as u16) << 16
        }),
        "neg.s32" => lanewise!(W1, (a: u32) -> u32, a.wrapping_neg()),
        "abs.s32" => lanewise!(W1, (a: u32) -> u32, (a as i32).wrapping_abs() as u32),
        "and.b32" | "and.b16" => lanewise!(W2, (a: u32, b: u32) -> u32, a & b),
        "or.b32" | "or.b16" => lanewise!(W2, (a: u32, b: u32) -> u32, a | b),
        "xor.b32" | "xor.b16" => lanewise!(W2, (a: u32, b: u32) -> u32, a ^ b),
        "not.b32" => lanewise!(W1, (a: u32) -> u32, !a),
        "not.b16" => lanewise!(W1, (a: u32) -> u32, !a & 0xffff),
        "shl.b32" => lanewise!(W2, (a: u32, b: u32) -> u32, a.checked_shl(b).unwrap_or(0)),
        "shr.u32" | "shr.b32" => lanewise!(W2, (a: u32, b: u32) -> u32, a.checked_shr(b).unwrap_or(0)),
        "shr.s32" => lanewise!(W2, (a: u32, b: u32) -> u32, ((a as i32) >> b.min(31)) as u32),
        "shl.b16" => lanewise!(W2, (a: u32, b: u32) -> u32, a.checked_shl(b).unwrap_or(0) & 0xffff),
        "shr.u16" | "shr.b16" => lanewise!(W2, (a: u32, b: u32) -> u32, a.checked_shr(b).unwrap_or(0)),
        "shr.s16" => {
            lanewise!(W2, (a: u32, b: u32) -> u32, u32::from((i32::from(a as i16) >> b.min(15)) as u16))
        }
        "add.s16" | "add.u16" => lanewise!(W2, (a: u32, b: u32) -> u32, a.wrapping_add(b) & 0xffff),
        "sub.s16" | "sub.u16" => lanewise!(W2, (a: u32, b: u32) -> u32, a.wrapping_sub(b) & 0xffff),
        "mul.lo.s16" | "mul.lo.u16" => lanewise!(W2, (a: u32, b: u32) -> u32, a.wrapping_mul(b) & 0xffff),
        "mul.wide.u16" => lanewise!(W2, (a: u32, b: u32) -> u32, (a & 0xffff) * (b & 0xffff)),
        "mul.wide.s16" => {
            lanewise!(W2, (a: u32, b: u32) -> u32, (i32::from(a as i16) * i32::from(b as i16)) as u32)
        }
        "popc.b32" => lanewise!(W1, (a: u32) -> u32, a.count_ones()),
        "clz.b32" => lanewise!(W1, (a: u32) -> u32, a.leading_zeros()),
        "brev.b32" => lanewise!(W1, (a: u32) -> u32, a.reverse_bits()),
        // The shift that brings the highest one to the top.
        "bfind.shiftamt.u32" => {
            lanewise!(W1, (a: u32) -> u32, if a == 0 { u32::MAX } else { a.leading_zeros() })
        }
        "prmt.b32" => lanewise!(W3, (a: u32, b: u32, c: u32) -> u32, permute(a, b, c)),

        "add.s64" | "add.u64" => lanewise!(D2, (a: u64, b: u64) -> u64, a.wrapping_add(b)),
        "sub.s64" | "sub.u64" => lanewise!(D2, (a: u64, b: u64) -> u64, a.wrapping_sub(b)),
        "mul.lo.s64" | "mul.lo.u64" => lanewise!(D2, (a: u64, b: u64) -> u64, a.wrapping_mul(b)),
        "mad.lo.s64" | "mad.lo.u64" => {
            lanewise!(D3, (a: u64, b: u64, c: u64) -> u64, a.wrapping_mul(b).wrapping_add(c))
        }
        "div.u64" => lanewise!(D2, (a: u64, b: u64) -> u64, a.checked_div(b).unwrap_or(u64::MAX)),
        "rem.u64" => lanewise!(D2, (a: u64, b: u64) -> u64, a.checked_rem(b).unwrap_or(a)),
        "min.u64" => lanewise!(D2, (a: u64, b: u64) -> u64, a.min(b)),
        "max.u64" => lanewise!(D2, (a: u64, b: u64) -> u64, a.max(b)),
        "min.s64" => lanewise!(D2, (a: u64, b: u64) -> u64, (a as i64).min(b as i64) as u64),
        "max.s64" => lanewise!(D2, (a: u64, b: u64) -> u64, (a as i64).max(b as i64) as u64),
        "neg.s64" => lanewise!(D1, (a: u64) -> u64, a.wrapping_neg()),
        "and.b64" => lanewise!(D2, (a: u64, b: u64) -> u64, a & b),
        "or.b64" => lanewise!(D2, (a: u64, b: u64) -> u64, a | b),
        "xor.b64" => lanewise!(D2, (a: u64, b: u64) -> u64, a ^ b),
        "not.b64" => lanewise!(D1, (a: u64) -> u64, !a),
        "shl.b64" => lanewise!(Shift, (a: u64, b: u32) -> u64, a.checked_shl(b).unwrap_or(0)),
        "shr.u64" | "shr.b64" => lanewise!(Shift, (a: u64, b: u32) -> u64, a.checked_shr(b).unwrap_or(0)),
        "shr.s64" => lanewise!(Shift, (a: u64, b: u32) -> u64, ((a as i64) >> b.min(63)) as u64),
        "mul.wide.u32" => lanewise!(WordsToDouble, (a: u32, b: u32) -> u64, u64::from(a) * u64::from(b)),
        "mul.wide.s32" => {
            lanewise!(WordsToDouble, (a: u32, b: u32) -> u64, (i64::from(a as i32) * i64::from(b as i32)) as u64)
        }
        _ => return None,
    })
}

/// Numbers with a fraction. What a card does approximately is exact here, to the last bit or two.
fn float(opcode: &str) -> Option<Lanewise> {
    Some(match opcode {
        "add.f32" | "add.rn.f32" => single!(W2, a, b; a + b),
        "sub.f32" | "sub.rn.f32" => single!(W2, a, b; a - b),
        "mul.f32" | "mul.rn.f32" => single!(W2, a, b; a * b),
        "div.rn.f32" | "div.approx.f32" | "div.full.f32" => single!(W2, a, b; a / b),
        "fma.rn.f32" => single!(W3, a, b, c; a.mul_add(b, c)),
        "fma.rm.f32" => single!(W3, a, b, c; numbers::fma_down(a, b, c)),
        "max.f32" => single!(W2, a, b; greater(a, b)),
        "min.f32" => single!(W2, a, b; less(a, b)),
        "max.NaN.f32" => single!(W2, a, b; greater_or_none(a, b)),
        "min.NaN.f32" => single!(W2, a, b; less_or_none(a, b)),
        "neg.f32" => single!(W1, a; -a),
        "abs.f32" => single!(W1, a; a.abs()),
        // The sign comes from the first.
        "copysign.f32" => single!(W2, a, b; b.copysign(a)),
        "sqrt.rn.f32" | "sqrt.approx.f32" => single!(W1, a; a.sqrt()),
        "rcp.rn.f32" => single!(W1, a; 1.0 / a),
        "rcp.approx.ftz.f32" => single!(W1, a; flush(1.0 / flush(a))),
        "rsqrt.approx.f32" => single!(W1, a; (1.0 / f64::from(a).sqrt()) as f32),
        "ex2.approx.f32" => single!(W1, a; numbers::exp2(a)),
        "ex2.approx.ftz.f32" => single!(W1, a; flush(numbers::exp2(flush(a)))),
        "lg2.approx.f32" => single!(W1, a; f64::from(a).log2() as f32),

        "max.NaN.bf16x2" => halves!(from_bf16, to_bf16, a, b; greater_or_none(a, b)),
        "min.NaN.bf16x2" => halves!(from_bf16, to_bf16, a, b; less_or_none(a, b)),
        "max.NaN.f16x2" => halves!(from_f16, to_f16, a, b; greater_or_none(a, b)),
        "min.NaN.f16x2" => halves!(from_f16, to_f16, a, b; less_or_none(a, b)),
        "sub.rn.bf16x2" => halves!(from_bf16, to_bf16, a, b; a - b),
        "sub.rn.f16x2" => halves!(from_f16, to_f16, a, b; a - b),

        "add.f64" | "add.rn.f64" => double!(D2, a, b; a + b),
        "sub.f64" | "sub.rn.f64" => double!(D2, a, b; a - b),
        "mul.f64" | "mul.rn.f64" => double!(D2, a, b; a * b),
        "div.rn.f64" => double!(D2, a, b; a / b),
        "fma.rn.f64" => double!(D3, a, b, c; a.mul_add(b, c)),
        "max.f64" => double!(D2, a, b; a.max(b)),
        "min.f64" => double!(D2, a, b; a.min(b)),
        "neg.f64" => double!(D1, a; -a),
        "abs.f64" => double!(D1, a; a.abs()),
        "sqrt.rn.f64" => double!(D1, a; a.sqrt()),
        "rcp.rn.f64" | "rcp.approx.ftz.f64" => double!(D1, a; 1.0 / a),
        _ => return None,
    })
}

/// From one type to another. Floats become whole numbers within their range, and none becomes zero.
fn conversion(opcode: &str) -> Option<Lanewise> {
    Some(match opcode {
        "cvt.u64.u32" => lanewise!(WordToDouble, (a: u32) -> u64, a.into()),
        "cvt.s64.s32" => lanewise!(WordToDouble, (a: u32) -> u64, i64::from(a as i32) as u64),
        "cvt.u64.u16" => lanewise!(WordToDouble, (a: u32) -> u64, u64::from(a as u16)),
        "cvt.s64.s16" => lanewise!(WordToDouble, (a: u32) -> u64, i64::from(a as i16) as u64),
        "cvt.u32.u64" | "cvt.s32.s64" => lanewise!(DoubleToWord, (a: u64) -> u32, a as u32),
        "cvt.u16.u64" => lanewise!(DoubleToWord, (a: u64) -> u32, u32::from(a as u16)),
        "cvt.u32.u16" | "cvt.u16.u32" => lanewise!(W1, (a: u32) -> u32, a & 0xffff),
        "cvt.s32.s16" => lanewise!(W1, (a: u32) -> u32, i32::from(a as i16) as u32),
        "cvt.s32.s8" => lanewise!(W1, (a: u32) -> u32, i32::from(a as i8) as u32),
        "cvt.u32.u8" | "cvt.u16.u8" => lanewise!(W1, (a: u32) -> u32, a & 0xff),
        "cvt.s16.s8" => lanewise!(W1, (a: u32) -> u32, u32::from(i16::from(a as i8) as u16)),

        "cvt.rn.f32.u32" => single_of!(a; a as f32),
        "cvt.rn.f32.s32" => single_of!(a; a as i32 as f32),
        "cvt.rn.f32.u64" => lanewise!(DoubleToWord, (a: u64) -> u32, (a as f32).to_bits()),
        "cvt.rn.f32.s64" => lanewise!(DoubleToWord, (a: u64) -> u32, (a as i64 as f32).to_bits()),
        "cvt.rn.f32.f64" => lanewise!(DoubleToWord, (a: u64) -> u32, (f64::from_bits(a) as f32).to_bits()),
        "cvt.f32.f16" => single_of!(a; from_f16(a as u16)),
        "cvt.f32.bf16" => single_of!(a; from_bf16(a as u16)),
        "cvt.sat.f32.f32" => single!(W1, a; if a.is_nan() { 0.0 } else { a.clamp(0.0, 1.0) }),
        "cvt.rni.f32.f32" => single!(W1, a; a.round_ties_even()),
        "cvt.rzi.f32.f32" => single!(W1, a; a.trunc()),
        "cvt.rmi.f32.f32" => single!(W1, a; a.floor()),
        "cvt.rzi.u32.f32" => lanewise!(W1, (a: u32) -> u32, f32::from_bits(a) as u32),
        "cvt.rzi.s32.f32" => lanewise!(W1, (a: u32) -> u32, f32::from_bits(a) as i32 as u32),
        "cvt.rni.s32.f32" => {
            lanewise!(W1, (a: u32) -> u32, f32::from_bits(a).round_ties_even() as i32 as u32)
        }
        "cvt.rzi.u64.f32" => lanewise!(WordToDouble, (a: u32) -> u64, f32::from_bits(a) as u64),
        "cvt.rzi.s64.f32" => lanewise!(WordToDouble, (a: u32) -> u64, f32::from_bits(a) as i64 as u64),
        "cvt.f64.f32" => lanewise!(WordToDouble, (a: u32) -> u64, f64::from(f32::from_bits(a)).to_bits()),
        "cvt.rn.f64.u32" => lanewise!(WordToDouble, (a: u32) -> u64, f64::from(a).to_bits()),
        "cvt.rn.f64.s32" => lanewise!(WordToDouble, (a: u32) -> u64, f64::from(a as i32).to_bits()),
        "cvt.rn.f64.u64" => lanewise!(D1, (a: u64) -> u64, (a as f64).to_bits()),
        "cvt.rn.f64.s64" => lanewise!(D1, (a: u64) -> u64, (a as i64 as f64).to_bits()),
        "cvt.rzi.u64.f64" => lanewise!(D1, (a: u64) -> u64, f64::from_bits(a) as u64),
        "cvt.rzi.s64.f64" => lanewise!(D1, (a: u64) -> u64, f64::from_bits(a) as i64 as u64),
        "cvt.rzi.f64.f64" => double!(D1, a; a.trunc()),

        "cvt.rn.f16.f32" => lanewise!(W1, (a: u32) -> u32, u32::from(to_f16(f32::from_bits(a)))),
        "cvt.rn.bf16.f32" => lanewise!(W1, (a: u32) -> u32, u32::from(to_bf16(f32::from_bits(a)))),
        // Of a pair the first comes into the upper half.
        "cvt.rn.f16x2.f32" => lanewise!(W2, (a: u32, b: u32) -> u32, {
            u32::from(to_f16(f32::from_bits(a))) << 16 | u32::from(to_f16(f32::from_bits(b)))
        }),
        "cvt.rn.bf16x2.f32" => lanewise!(W2, (a: u32, b: u32) -> u32, {
            u32::from(to_bf16(f32::from_bits(a))) << 16 | u32::from(to_bf16(f32::from_bits(b)))
        }),
        "cvt.rn.satfinite.e4m3x2.f32" => lanewise!(W2, (a: u32, b: u32) -> u32, {
            u32::from(E4M3.round(f32::from_bits(a))) << 8 | u32::from(E4M3.round(f32::from_bits(b)))
        }),
        "cvt.rn.satfinite.e5m2x2.f32" => lanewise!(W2, (a: u32, b: u32) -> u32, {
            u32::from(E5M2.round(f32::from_bits(a))) << 8 | u32::from(E5M2.round(f32::from_bits(b)))
        }),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(opcode: &str, inputs: &[u32]) -> u32 {
        let lanes: Vec<_> = inputs.iter().map(|&x| [x; crate::lanes::LANES]).collect();
        match operation(opcode).unwrap_or_else(|| panic!("{opcode}")) {
            Lanewise::W1(f) => f.of(&lanes[0])[7],
            Lanewise::W2(f) => f.of(&lanes[0], &lanes[1])[7],
            Lanewise::W3(f) => f.of(&lanes[0], &lanes[1], &lanes[2])[7],
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn words_are_computed_as_the_manual_says() {
        let f = f32::to_bits;
        for (opcode, inputs, expected) in [
            ("shl.b32", &[1, 32][..], 0),
            ("shr.s32", &[0x8000_0000, 99], u32::MAX),
            ("div.u32", &[7, 0], u32::MAX),
            ("prmt.b32", &[0x3322_1100, 0x7766_5544, 0x7531], 0x7755_3311),
            ("prmt.b32", &[0x80, 0, 0x8888], u32::MAX),
            ("bfind.shiftamt.u32", &[1], 31),
            ("min.s16x2", &[0x0001_ffff, 0xffff_0001], 0xffff_ffff),
            ("cvt.rn.bf16x2.f32", &[f(1.0), f(2.0)], 0x3f80_4000),
            ("cvt.rn.f16x2.f32", &[f(1.0), f(2.0)], 0x3c00_4000),
            ("cvt.rn.satfinite.e4m3x2.f32", &[f(1.0), f(1e9)], 0x387e),
            ("cvt.rn.satfinite.e5m2x2.f32", &[f(-1.0), f(1e9)], 0xbc7b),
            ("max.f32", &[f(f32::NAN), f(2.0)], f(2.0)),
            ("max.NaN.f32", &[f(f32::NAN), f(2.0)], f(f32::NAN)),
            ("copysign.f32", &[f(-3.0), f(2.0)], f(-2.0)),
            ("cvt.sat.f32.f32", &[f(f32::NAN)], 0),
            ("cvt.rzi.s32.f32", &[f(-2.5)], -2i32 as u32),
            ("cvt.s32.s8", &[0xff], u32::MAX),
            ("mul.hi.u32", &[u32::MAX, u32::MAX], u32::MAX - 1),
        ] {
            assert_eq!(words(opcode, inputs), expected, "{opcode} of {inputs:x?}");
        }
    }

    #[test]
    fn what_is_no_number_is_compared_as_the_manual_says() {
        let holds = |how: &str, a: f32, b: f32| {
            let lanes = [a, b].map(|x| [x.to_bits(); crate::lanes::LANES]);
            match comparison(how, "f32") {
                Some(Lanewise::CompareWords(f)) => f.of(&lanes[0], &lanes[1]) == u32::MAX,
                other => panic!("{other:?}"),
            }
        };
        for (how, of_none, of_equal) in [
            ("eq", false, true),
            ("ne", false, false),
            ("lt", false, false),
            ("ge", false, true),
            ("equ", true, true),
            ("neu", true, false),
            ("ltu", true, false),
            ("leu", true, true),
            ("gtu", true, false),
            ("geu", true, true),
            ("num", false, true),
            ("nan", true, false),
        ] {
            assert_eq!(holds(how, 1.0, f32::NAN), of_none, "{how}");
            assert_eq!(holds(how, 1.0, 1.0), of_equal, "{how}");
        }
    }
}
