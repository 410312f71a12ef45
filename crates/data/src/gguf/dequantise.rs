//! Blocks of quantised numbers back to f32.
//!
//! A block begins with (or ends in) its scales: `d` multiplies, `m` is added or subtracted. All arithmetic is single precision in the
//! order of the reference implementation, so the results are its bits.

use half::{bf16, f16};

use super::Type;

/// Writes the elements of one block.
pub(super) fn block(of: Type, block: &[u8], out: &mut [f32]) {
    match of {
        Type::F32 => out[0] = f32::from_le_bytes([block[0], block[1], block[2], block[3]]),
        Type::F16 => out[0] = half_at(block, 0),
        Type::BF16 => out[0] = bf16::from_le_bytes([block[0], block[1]]).to_f32(),
        Type::Q4_0 => {
            let d = half_at(block, 0);
            nibbles(&block[2..], out, |q, _| d * f32::from(q as i8 - 8));
        }
        Type::Q4_1 => {
            let (d, m) = (half_at(block, 0), half_at(block, 2));
            nibbles(&block[4..], out, |q, _| d * f32::from(q) + m);
        }
        Type::Q5_0 => {
            let (d, high) = (half_at(block, 0), word_at(block, 2));
            nibbles(&block[6..], out, |q, at| d * f32::from(fifth(q, high, at) as i8 - 16));
        }
        Type::Q5_1 => {
            let (d, m, high) = (half_at(block, 0), half_at(block, 2), word_at(block, 4));
            nibbles(&block[8..], out, |q, at| d * f32::from(fifth(q, high, at)) + m);
        }
        Type::Q8_0 => {
            let d = half_at(block, 0);
            for (out, &q) in out.iter_mut().zip(&block[2..]) {
                *out = f32::from(q as i8) * d;
            }
        }
        Type::Q2_K => q2_k(block, out),
        Type::Q3_K => q3_k(block, out),
        Type::Q4_K => {
            let (scales, low) = (ScalesAndMins::new(block), &block[16..]);
            each(out, |at| scales.apply(at / 32, low_nibble(low, at)));
        }
        Type::Q5_K => {
            let (scales, high, low) = (ScalesAndMins::new(block), &block[16..48], &block[48..]);
            let fifth = |at: usize| (high[at % 32] >> (at / 32) & 1) << 4;
            each(out, |at| scales.apply(at / 32, low_nibble(low, at) | fifth(at)));
        }
        Type::Q6_K => q6_k(block, out),
    }
}

fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

fn word_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

fn each(out: &mut [f32], value: impl Fn(usize) -> f32) {
    out.iter_mut().enumerate().for_each(|(at, out)| *out = value(at));
}

/// Blocks of 32: low halves of bytes are the first 16 numbers, high halves the others.
fn nibbles(bytes: &[u8], out: &mut [f32], value: impl Fn(u8, usize) -> f32) {
    each(out, |at| value(if at < 16 { bytes[at] & 15 } else { bytes[at - 16] >> 4 }, at));
}

/// The fifth bit of a number, from a word that has those of all 32.
fn fifth(q: u8, high: u32, at: usize) -> u8 {
    q | ((high >> at & 1) as u8) << 4
}

/// Blocks of 256: groups of 64, whose first 32 numbers are low halves of bytes.
fn low_nibble(bytes: &[u8], at: usize) -> u8 {
    let (group, half, place) = (at / 64, at / 32 % 2, at % 32);
    bytes[32 * group + place] >> (4 * half) & 15
}

/// Two bits of a number: halves of 128, each four rounds over its 32 bytes.
fn two_bits(bytes: &[u8], at: usize) -> u8 {
    let (half, round, place) = (at / 128, at / 32 % 4, at % 32);
    bytes[32 * half + place] >> (2 * round) & 3
}

/// Eight scales and minima of six bits each, packed into twelve bytes behind the two factors.
struct ScalesAndMins {
    scales: [f32; 8],
    mins: [f32; 8],
}

impl ScalesAndMins {
    fn new(block: &[u8]) -> Self {
        let (d, d_min, packed) = (half_at(block, 0), half_at(block, 2), &block[4..16]);
        let mut of = ScalesAndMins { scales: [0.0; 8], mins: [0.0; 8] };
        for j in 0..8 {
            let (scale, min) = if j < 4 {
                (packed[j] & 63, packed[j + 4] & 63)
            } else {
                let (a, b, c) = (packed[j - 4], packed[j], packed[j + 4]);
                (c & 15 | a >> 2 & 48, c >> 4 | b >> 2 & 48)
            };
            of.scales[j] = d * f32::from(scale);
            of.mins[j] = d_min * f32::from(min);
        }
        of
    }

    fn apply(&self, group: usize, q: u8) -> f32 {
        self.scales[group] * f32::from(q) - self.mins[group]
    }
}

fn q2_k(block: &[u8], out: &mut [f32]) {
    let (scales, low) = (&block[..16], &block[16..80]);
    let (d, d_min) = (half_at(block, 80), half_at(block, 82));
    each(out, |at| {
        let scale = scales[at / 16];
        d * f32::from(scale & 15) * f32::from(two_bits(low, at)) - d_min * f32::from(scale >> 4)
    });
}

fn q3_k(block: &[u8], out: &mut [f32]) {
    let (mask, low, packed, d) = (&block[..32], &block[32..96], &block[96..108], half_at(block, 108));
    let scale = |i: usize| {
        let four = packed[i % 8] >> (4 * (i / 8)) & 15;
        let two = packed[8 + i % 4] >> (2 * (i / 4)) & 3;
        d * f32::from((four | two << 4) as i8 - 32)
    };
    each(out, |at| {
        // A set bit of the mask means that nothing is taken off.
        let high = (mask[at % 32] >> (at / 32) & 1) ^ 1;
        scale(at / 16) * f32::from(two_bits(low, at) as i8 - ((high as i8) << 2))
    });
}

fn q6_k(block: &[u8], out: &mut [f32]) {
    let (low, high, scales, d) = (&block[..128], &block[128..192], &block[192..208], half_at(block, 208));
    each(out, |at| {
        let (half, upper, place) = (at / 128, at / 64 % 2, at % 64);
        let four = low[64 * half + place] >> (4 * upper) & 15;
        let q = (four | two_bits(high, at) << 4) as i8 - 32;
        d * f32::from(scales[at / 16] as i8) * f32::from(q)
    });
}
