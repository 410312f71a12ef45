//! Loops over rows of numbers, compiled once for each instruction set.
//!
//! The bodies are plain Rust that the compiler turns into vector code. Exponentials use fused multiply-add where there is
//! one, so they differ in the last bits between the portable set and the others; sums run over a fixed number of lanes.
#![cfg_attr(
    target_arch = "x86_64",
    expect(
        unsafe_code,
        reason = "functions compiled for an instruction set need a proof of it to be called"
    )
)]

use std::ops::Range;

use super::simd::{InstructionSet, Simd};

/// Numbers that a sum keeps side by side: two vectors of the widest kind, so that additions need not wait for each other.
const LANES: usize = 32;

/// Numbers of a vector of the widest kind.
pub(super) const VECTOR: usize = 16;

/// Declares functions that take a [`Simd`] first and run their body compiled for it.
macro_rules! vectorised {
    ($(
        $(#[$attribute:meta])*
        fn $name:ident($($argument:ident: $of:ty),* $(,)?) $(-> $result:ty)? $body:block
    )*) => {$(
        $(#[$attribute])*
        pub(super) fn $name(simd: Simd, $($argument: $of),*) $(-> $result)? {
            #[inline(always)]
            fn body<const FMA: bool>($($argument: $of),*) $(-> $result)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2($($argument: $of),*) $(-> $result)? {
                body::<true>($($argument),*)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,fma")]
            fn avx512($($argument: $of),*) $(-> $result)? {
                body::<true>($($argument),*)
            }

            match simd.set() {
                #[cfg(target_arch = "x86_64")]
                InstructionSet::Avx512 | InstructionSet::Avx512Bf16 => {
                    // SAFETY: a `Simd` exists only for an instruction set that this processor has.
                    unsafe { avx512($($argument),*) }
                }
                #[cfg(target_arch = "x86_64")]
                InstructionSet::Avx2 => {
                    // SAFETY: as above.
                    unsafe { avx2($($argument),*) }
                }
                InstructionSet::Portable => body::<false>($($argument),*),
                #[cfg(not(target_arch = "x86_64"))]
                InstructionSet::Avx2 | InstructionSet::Avx512 | InstructionSet::Avx512Bf16 => {
                    body::<false>($($argument),*)
                }
            }
        }
    )*};
}

/// a·b + c, rounded once where the instruction set does that in one instruction; elsewhere it would be a slow call.
#[inline(always)]
fn multiply_add<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// e^x with a relative error below 4·ε for x in [−87, 88], and the nearest end of that range for other x; NaN stays NaN.
///
/// x = n·ln 2 + r with |r| ≤ ½ ln 2; e^r is its Taylor polynomial of degree 7, whose remainder is below 6e-9.
#[inline(always)]
fn exp<const FMA: bool>(x: f32) -> f32 {
    /// Adding it leaves the nearest integer in the low bits of the mantissa.
    const ROUND: f32 = 12_582_912.0;
    /// ln 2 in two parts: the product of the first with a small integer is exact.
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    // Comparisons rather than min and max, which would turn NaN into a number.
    let x = if x < -87.0 { -87.0 } else { x };
    let x = if x > 88.0 { 88.0 } else { x };
    let shifted = multiply_add::<FMA>(x, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = multiply_add::<FMA>(-n, LN_2_LOW, multiply_add::<FMA>(-n, LN_2_HIGH, x));
    let mut p = 1.0 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = multiply_add::<FMA>(p, r, coefficient);
    }
    p * f32::from_bits((shifted.to_bits() << 23).wrapping_add(1.0f32.to_bits()))
}

/// For GELU's argument u(x), the gate ½(1 + tanh u) = 1/(1 + e) with e = e^(−2u), and its complement e/(1 + e), which a
/// subtraction from 1 would round away.
#[inline(always)]
fn gelu_gate<const FMA: bool>(x: f32) -> (f32, f32) {
    let cube = multiply_add::<FMA>(-2.0 * GELU_SCALE * GELU_CUBE * x, x, -2.0 * GELU_SCALE);
    let e = exp::<FMA>(x * cube);
    let gate = 1.0 / (1.0 + e);
    (gate, e * gate)
}

/// GELU′(x).
#[inline(always)]
fn gelu_slope<const FMA: bool>(x: f32) -> f32 {
    let x = if x < -GELU_END { -GELU_END } else { x };
    let x = if x > GELU_END { GELU_END } else { x };
    let (gate, complement) = gelu_gate::<FMA>(x);
    let slope = multiply_add::<FMA>(6.0 * GELU_SCALE * GELU_CUBE * x, x, 2.0 * GELU_SCALE);
    multiply_add::<FMA>(x * gate * complement, slope, gate)
}

/// Beyond this on either side the gate is 0 or 1 to the last bit, and powers of x could overflow.
const GELU_END: f32 = 30.0;

/// √(2/π).
const GELU_SCALE: f32 = 0.797_884_6;
const GELU_CUBE: f32 = 0.044_715;

/// The error function with an absolute error below 3·ε (Abramowitz & Stegun 7.1.26, whose own error is 1.5e-7).
#[inline(always)]
fn erf<const FMA: bool>(x: f32) -> f32 {
    let magnitude = x.abs();
    let t = 1.0 / (1.0 + 0.327_591_1 * magnitude);
    let mut p = 1.061_405_4;
    for coefficient in [-1.453_152, 1.421_413_7, -0.284_496_74, 0.254_829_6] {
        p = multiply_add::<FMA>(p, t, coefficient);
    }
    let value = 1.0 - p * t * exp::<FMA>(-magnitude * magnitude);
    if x < 0.0 { -value } else { value }
}

/// σ(x) and 1 − σ(x), which a subtraction would round away.
#[inline(always)]
fn sigmoid<const FMA: bool>(x: f32) -> (f32, f32) {
    let e = exp::<FMA>(-x);
    let sigmoid = 1.0 / (1.0 + e);
    (sigmoid, e * sigmoid)
}

/// The sum of all lanes, each half added to the other until one is left.
#[inline(always)]
fn total(lanes: [f32; LANES]) -> f32 {
    #[inline(always)]
    fn halve<const N: usize, const HALF: usize>(lanes: [f32; N]) -> [f32; HALF] {
        std::array::from_fn(|i| lanes[i] + lanes[i + HALF])
    }
    let lanes = halve::<4, 2>(halve::<8, 4>(halve::<16, 8>(halve::<32, 16>(lanes))));
    lanes[0] + lanes[1]
}

/// Σ of a term of one element of each slice; all slices are as long as the first. Whole chunks are taken as arrays, because
/// a check at every element would keep the loop from becoming vector code.
#[inline(always)]
fn sum_of<const A: usize>(slices: [&[f32]; A], term: impl Fn([f32; A]) -> f32) -> f32 {
    let len = slices[0].len();
    let chunks: [_; A] = std::array::from_fn(|a| slices[a][..len].as_chunks::<LANES>());
    let mut lanes = [0.0; LANES];
    for c in 0..len / LANES {
        let chunk: [&[f32; LANES]; A] = std::array::from_fn(|a| &chunks[a].0[c]);
        for (i, lane) in lanes.iter_mut().enumerate() {
            *lane += term(std::array::from_fn(|a| chunk[a][i]));
        }
    }
    for (i, lane) in lanes.iter_mut().enumerate().take(len % LANES) {
        *lane += term(std::array::from_fn(|a| chunks[a].1[i]));
    }
    total(lanes)
}

/// The largest element, NaN apart.
#[inline(always)]
fn max_of(x: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane = if value > *lane { value } else { *lane };
        }
    }
    for (lane, &value) in lanes.iter_mut().zip(rest) {
        *lane = if value > *lane { value } else { *lane };
    }
    let mut half = [f32::NEG_INFINITY; LANES / 2];
    for (i, half) in half.iter_mut().enumerate() {
        *half = if lanes[i] > lanes[i + LANES / 2] { lanes[i] } else { lanes[i + LANES / 2] };
    }
    half.into_iter().fold(f32::NEG_INFINITY, |max, x| if x > max { x } else { max })
}

/// Random blocks that are drawn side by side.
const BLOCKS: usize = 16;

/// The words of `philox` for consecutive first words of the counter. Written over arrays, so that the rounds of all blocks
/// are vector operations.
#[inline(always)]
fn philox_blocks(key: [u32; 2], first: u32, rest: [u32; 3]) -> [[u32; 4]; BLOCKS] {
    let mut words = [[0; 4]; BLOCKS];
    for (i, words) in words.iter_mut().enumerate() {
        *words = crate::philox::philox(key, [first.wrapping_add(i as u32), rest[0], rest[1], rest[2]]);
    }
    words
}

/// The constants of a step of gradient descent, the same for all elements of a range.
#[derive(Clone, Copy)]
pub(super) struct SgdStep {
    /// What gradients are multiplied by.
    pub gradient_scale: f32,
    /// What of the parameter is added to its gradient.
    pub decay: f32,
    /// What the running sum is multiplied by.
    pub momentum: f32,
    /// Learning rate.
    pub rate: f32,
}

/// The constants of an Adam step, the same for all elements of a range.
#[derive(Clone, Copy)]
pub(super) struct AdamStep {
    /// What gradients are multiplied by.
    pub gradient_scale: f32,
    /// β₁ and 1 − β₁.
    pub first: [f32; 2],
    /// β₂ and 1 − β₂.
    pub second: [f32; 2],
    /// What of the parameter is added to its gradient: weight decay for Adam, 0 for AdamW.
    pub decay: f32,
    /// 1 − learning rate · weight decay for AdamW, 1 for Adam.
    pub shrink: f32,
    /// Learning rate / (1 − β₁ᵗ).
    pub rate: f32,
    /// 1 / √(1 − β₂ᵗ).
    pub second_correction: f32,
    /// Added to the root.
    pub eps: f32,
}

/// The numbers of a row of scores that its gradient takes.
#[derive(Clone, Copy)]
pub(super) struct ScoreRow {
    /// What scores are multiplied by.
    pub scale: f32,
    /// The logarithm of the sum of the row's exponentials.
    pub statistic: f32,
    /// Σ d_out·out of the row.
    pub delta: f32,
}

/// Which elements of a run to drop.
#[derive(Clone, Copy)]
pub(super) struct DropMask {
    /// The random key.
    pub key: [u32; 2],
    /// The random counter of the first four elements; its first word counts blocks of four.
    pub counter: [u32; 4],
    /// Words below it mean drop.
    pub threshold: u32,
    /// What kept elements are multiplied by.
    pub scale: f32,
}

vectorised! {
    /// y ← a + b.
    fn add(a: &[f32], b: &[f32], y: &mut [f32]) {
        for (y, (a, b)) in y.iter_mut().zip(a.iter().zip(b)) {
            *y = a + b;
        }
    }

    /// y ← a·b.
    fn mul(a: &[f32], b: &[f32], y: &mut [f32]) {
        for (y, (a, b)) in y.iter_mut().zip(a.iter().zip(b)) {
            *y = a * b;
        }
    }

    /// y ← factor·x + offset.
    fn affine(x: &[f32], factor: f32, offset: f32, y: &mut [f32]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y = factor * x + offset;
        }
    }

    /// y ← y + x.
    fn accumulate(x: &[f32], y: &mut [f32]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y += x;
        }
    }

    /// y ← y·a.
    fn scale(a: f32, y: &mut [f32]) {
        for y in y {
            *y *= a;
        }
    }

    /// Σ a·b.
    fn dot(a: &[f32], b: &[f32]) -> f32 {
        sum_of([a, b], |[a, b]| a * b)
    }

    /// Σ x in double precision.
    fn sum(x: &[f32]) -> f64 {
        let mut lanes = [0.0f64; 8];
        let (chunks, rest) = x.as_chunks::<8>();
        for chunk in chunks {
            for (lane, &x) in lanes.iter_mut().zip(chunk) {
                *lane += f64::from(x);
            }
        }
        lanes.iter().sum::<f64>() + rest.iter().map(|&x| f64::from(x)).sum::<f64>()
    }

    /// Σ x² in double precision.
    fn sum_of_squares(x: &[f32]) -> f64 {
        let mut lanes = [0.0f64; 16];
        let (chunks, rest) = x.as_chunks::<16>();
        for chunk in chunks {
            for (lane, &x) in lanes.iter_mut().zip(chunk) {
                *lane += f64::from(x) * f64::from(x);
            }
        }
        lanes.iter().sum::<f64>() + rest.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>()
    }

    /// y ← GELU(x) = x·gate. The error is below 8·ε·|x|: a few roundings, and the gate's argument, whose error counts
    /// for little where the argument is large.
    fn gelu(x: &[f32], y: &mut [f32]) {
        for (y, &x) in y.iter_mut().zip(x) {
            let x = if x < -GELU_END { -GELU_END } else { x };
            *y = x * gelu_gate::<FMA>(x).0;
        }
    }

    /// d_x ← d_y·GELU′(x) with GELU′ = gate + x·gate·(1 − gate)·2u′. The error is below 16·ε·|d_y|.
    fn gelu_grad(x: &[f32], d_y: &[f32], d_x: &mut [f32]) {
        for (d_x, (&x, d_y)) in d_x.iter_mut().zip(x.iter().zip(d_y)) {
            *d_x = d_y * gelu_slope::<FMA>(x);
        }
    }

    /// d ← d·GELU′(x), as [`gelu_grad`].
    fn multiply_by_gelu_slope(x: &[f32], d: &mut [f32]) {
        for (d, &x) in d.iter_mut().zip(x) {
            *d *= gelu_slope::<FMA>(x);
        }
    }

    /// y ← ½x(1 + erf(x/√2)). The error is below 8·ε·|x|.
    fn gelu_erf(x: &[f32], y: &mut [f32]) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = 0.5 * x * (1.0 + erf::<FMA>(x * std::f32::consts::FRAC_1_SQRT_2));
        }
    }

    /// d_x ← d_y·(Φ(x) + x·φ(x)). The error is below 16·ε·|d_y|.
    fn gelu_erf_grad(x: &[f32], d_y: &[f32], d_x: &mut [f32]) {
        /// 1/√(2π).
        const DENSITY: f32 = 0.398_942_3;
        for (d_x, (&x, d_y)) in d_x.iter_mut().zip(x.iter().zip(d_y)) {
            let below = 0.5 * (1.0 + erf::<FMA>(x * std::f32::consts::FRAC_1_SQRT_2));
            *d_x = d_y * (below + x * DENSITY * exp::<FMA>(-0.5 * x * x));
        }
    }

    /// y ← max(x, 0)².
    fn relu_squared(x: &[f32], y: &mut [f32]) {
        for (y, &x) in y.iter_mut().zip(x) {
            let x = if x < 0.0 { 0.0 } else { x };
            *y = x * x;
        }
    }

    /// d_x ← d_y·2·max(x, 0).
    fn relu_squared_grad(x: &[f32], d_y: &[f32], d_x: &mut [f32]) {
        for (d_x, (&x, d_y)) in d_x.iter_mut().zip(x.iter().zip(d_y)) {
            let x = if x < 0.0 { 0.0 } else { x };
            *d_x = 2.0 * d_y * x;
        }
    }

    /// y ← gate·σ(gate)·up.
    fn silu_gate(gate: &[f32], up: &[f32], y: &mut [f32]) {
        for (y, (&gate, up)) in y.iter_mut().zip(gate.iter().zip(up)) {
            *y = gate * sigmoid::<FMA>(gate).0 * up;
        }
    }

    /// d_gate ← d_y·up·σ·(1 + gate·(1 − σ)) and d_up ← d_y·gate·σ.
    fn silu_gate_grad(gate: &[f32], up: &[f32], d_y: &[f32], d_gate: &mut [f32], d_up: &mut [f32]) {
        let inputs = gate.iter().zip(up).zip(d_y);
        for ((d_gate, d_up), ((&gate, up), d_y)) in d_gate.iter_mut().zip(d_up).zip(inputs) {
            let (sigmoid, complement) = sigmoid::<FMA>(gate);
            *d_gate = d_y * up * sigmoid * (1.0 + gate * complement);
            *d_up = d_y * gate * sigmoid;
        }
    }

    /// Turns the pairs (i, i + D/2) of one head by the angles of a table's row, the other way with `sign` −1.
    fn rotate(x: &[f32], angles: &[f32], sign: f32, y: &mut [f32]) {
        let half = x.len() / 2;
        let (low, high) = x.split_at(half);
        let (cos, sin) = angles.split_at(half);
        let (y_low, y_high) = y.split_at_mut(half);
        for i in 0..half {
            y_low[i] = low[i] * cos[i] - high[i] * (sign * sin[i]);
            y_high[i] = high[i] * cos[i] + low[i] * (sign * sin[i]);
        }
    }

    /// 1/√(mean square + eps) of a row.
    fn rms_statistic(x: &[f32], eps: f32) -> f32 {
        1.0 / (sum_of([x], |[x]| x * x) / x.len() as f32 + eps).sqrt()
    }

    /// With x̂ = x·rstd and g = d_y·gain: d_x ← rstd·(g − x̂·mean(g·x̂)).
    fn rms_grad_input(d_y: &[f32], x: &[f32], gain: &[f32], rstd: f32, d_x: &mut [f32]) {
        let columns = d_x.len();
        let (d_y, x, gain) = (&d_y[..columns], &x[..columns], &gain[..columns]);
        let mean_product = sum_of([d_y, gain, x], |[d_y, gain, x]| d_y * gain * (x * rstd)) / columns as f32;
        for i in 0..columns {
            d_x[i] = rstd * (d_y[i] * gain[i] - x[i] * rstd * mean_product);
        }
    }

    /// Mean and 1/√(variance + eps) of a row.
    fn norm_statistics(x: &[f32], eps: f32) -> (f32, f32) {
        let columns = x.len() as f32;
        let mean = sum_of([x], |[x]| x) / columns;
        let variance = sum_of([x], |[x]| (x - mean) * (x - mean)) / columns;
        (mean, 1.0 / (variance + eps).sqrt())
    }

    /// y ← (x − mean)·rstd·gain + shift.
    fn normalise(x: &[f32], mean: f32, rstd: f32, gain: &[f32], shift: Option<&[f32]>, y: &mut [f32]) {
        match shift {
            Some(shift) => {
                for ((y, x), (gain, shift)) in y.iter_mut().zip(x).zip(gain.iter().zip(shift)) {
                    *y = (x - mean) * rstd * gain + shift;
                }
            }
            None => {
                for ((y, x), gain) in y.iter_mut().zip(x).zip(gain) {
                    *y = (x - mean) * rstd * gain;
                }
            }
        }
    }

    /// With x̂ = (x − mean)·rstd and g = d_y·gain: d_x ← rstd·(g − mean(g) − x̂·mean(g·x̂)).
    fn norm_grad_input(d_y: &[f32], x: &[f32], gain: &[f32], mean: f32, rstd: f32, d_x: &mut [f32]) {
        let columns = d_x.len() as f32;
        let mean_g = sum_of([d_y, gain], |[d_y, gain]| d_y * gain) / columns;
        let product = |[d_y, gain, x]: [f32; 3]| d_y * gain * ((x - mean) * rstd);
        let mean_product = sum_of([d_y, gain, x], product) / columns;
        for ((d_x, d_y), (x, gain)) in d_x.iter_mut().zip(d_y).zip(x.iter().zip(gain)) {
            *d_x = rstd * (d_y * gain - mean_g - (x - mean) * rstd * mean_product);
        }
    }

    /// d_gain ← d_gain + d_y·x̂ and d_shift ← d_shift + d_y, for some columns of one row.
    fn norm_grad_params(d_y: &[f32], x: &[f32], mean: f32, rstd: f32, d_gain: &mut [f32], d_shift: &mut [f32]) {
        for ((d_gain, d_shift), (d_y, x)) in d_gain.iter_mut().zip(d_shift).zip(d_y.iter().zip(x)) {
            *d_gain += d_y * ((x - mean) * rstd);
            *d_shift += d_y;
        }
    }

    /// ln Σ e^x.
    fn log_sum_exp(x: &[f32]) -> f32 {
        let max = max_of(x);
        max + sum_of([x], |[x]| exp::<FMA>(x - max)).ln()
    }

    /// For what is visible of a row: x ← e^(x·scale − max), with max the largest x·scale; gives max and the sum. The scale is
    /// positive.
    fn softmax_numerators(x: &mut [f32], visible: Range<usize>, scale: f32) -> (f32, f32) {
        let left = visible.len() % VECTOR;
        let (whole, rest) = x[visible.start..].split_at_mut(visible.len() - left);
        let (whole, _) = whole.as_chunks_mut::<VECTOR>();
        // Rows are short, so what is left over counts: it is filled up to a vector with numbers that count for nothing. As
        // a rule the row goes on behind it, and then it takes no loop.
        let mut tail = [f32::NEG_INFINITY; VECTOR];
        match rest.first_chunk::<VECTOR>() {
            Some(rest) => {
                for (lane, (tail, x)) in tail.iter_mut().zip(rest).enumerate() {
                    *tail = if lane < left { *x } else { f32::NEG_INFINITY };
                }
            }
            None => tail[..left].copy_from_slice(&rest[..left]),
        }
        let mut maxima = tail;
        for chunk in &*whole {
            for (max, &x) in maxima.iter_mut().zip(chunk) {
                *max = if x > *max { x } else { *max };
            }
        }
        let larger = |a: f32, b: f32| if a > b { a } else { b };
        let maxima: [f32; 8] = std::array::from_fn(|i| larger(maxima[i], maxima[i + 8]));
        let maxima: [f32; 4] = std::array::from_fn(|i| larger(maxima[i], maxima[i + 4]));
        let max = larger(larger(maxima[0], maxima[2]), larger(maxima[1], maxima[3])) * scale;
        let mut sums = [0.0; VECTOR];
        for chunk in whole {
            // By value: sums that the compiler cannot tell from the row would live in memory.
            let mut numerators = *chunk;
            for (sum, x) in sums.iter_mut().zip(&mut numerators) {
                *x = exp::<FMA>(multiply_add::<FMA>(*x, scale, -max));
                *sum += *x;
            }
            *chunk = numerators;
        }
        // What counts for nothing adds less than any sum has digits for.
        for (sum, x) in sums.iter_mut().zip(&mut tail) {
            *x = exp::<FMA>(multiply_add::<FMA>(*x, scale, -max));
            *sum += *x;
        }
        match rest.first_chunk_mut::<VECTOR>() {
            Some(rest) => {
                for (lane, (x, tail)) in rest.iter_mut().zip(tail).enumerate() {
                    *x = if lane < left { tail } else { *x };
                }
            }
            None => rest[..left].copy_from_slice(&tail[..left]),
        }
        let sums: [f32; 8] = std::array::from_fn(|i| sums[i] + sums[i + 8]);
        let sums: [f32; 4] = std::array::from_fn(|i| sums[i] + sums[i + 4]);
        (max, (sums[0] + sums[2]) + (sums[1] + sums[3]))
    }

    /// For what is visible of a row of scores, and of gradients of probabilities, p ← e^(p·scale − statistic) and
    /// d ← p·(d − delta)·scale: probabilities, and gradients of scores before scaling. The rest of both becomes zeros. Rows
    /// are whole vectors.
    fn score_grad(row: ScoreRow, visible: Range<usize>, p: &mut [f32], d: &mut [f32]) {
        let ScoreRow { scale, statistic, delta } = row;
        let ((p, p_rest), (d, d_rest)) = (p.as_chunks_mut::<VECTOR>(), d.as_chunks_mut::<VECTOR>());
        assert!(p_rest.is_empty() && d_rest.is_empty() && p.len() == d.len(), "rows are whole vectors");
        for (index, (p, d)) in p.iter_mut().zip(d).enumerate() {
            let first = index * VECTOR;
            if first >= visible.end || first + VECTOR <= visible.start {
                (*p, *d) = ([0.0; VECTOR], [0.0; VECTOR]);
                continue;
            }
            let (mut new_p, mut new_d) = (*p, *d);
            for (p, d) in new_p.iter_mut().zip(&mut new_d) {
                *p = exp::<FMA>(multiply_add::<FMA>(*p, scale, -statistic));
                *d = *p * (*d - delta) * scale;
            }
            if first < visible.start || first + VECTOR > visible.end {
                for (lane, (p, d)) in new_p.iter_mut().zip(&mut new_d).enumerate() {
                    let is_seen = visible.start <= first + lane && first + lane < visible.end;
                    *p = if is_seen { *p } else { 0.0 };
                    *d = if is_seen { *d } else { 0.0 };
                }
            }
            (*p, *d) = (new_p, new_d);
        }
    }

    /// x ← a·e^(x − offset).
    fn scaled_probabilities(x: &mut [f32], offset: f32, a: f32) {
        for x in x {
            *x = a * exp::<FMA>(*x - offset);
        }
    }

    /// y ← y − a.
    fn subtract(a: f32, y: &mut [f32]) {
        for y in y {
            *y -= a;
        }
    }

    /// y ← a·y + b·x.
    fn combine(factors: [f32; 2], x: &[f32], y: &mut [f32]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y = factors[0] * *y + factors[1] * x;
        }
    }

    /// z ← a·x + b·y.
    fn blend(factors: [f32; 2], x: &[f32], y: &[f32], z: &mut [f32]) {
        for ((z, x), y) in z.iter_mut().zip(x).zip(y) {
            *z = factors[0] * x + factors[1] * y;
        }
    }

    /// y ← a·x.
    fn scaled(factor: f32, x: &[f32], y: &mut [f32]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y = factor * x;
        }
    }

    /// One step of gradient descent: g ← g·scale + decay·p; m ← momentum·m + g; p ← p − rate·m.
    fn sgd(step: SgdStep, gradients: &[f32], parameters: &mut [f32], momentum: &mut [f32]) {
        for ((p, g), m) in parameters.iter_mut().zip(gradients).zip(momentum) {
            *m = step.momentum * *m + (g * step.gradient_scale + step.decay * *p);
            *p -= step.rate * *m;
        }
    }

    /// One Adam step of consecutive elements, in PyTorch's order: the gradient takes decay·p (Adam), moments,
    /// then p ← p·shrink (AdamW), then p ← p − rate·m / (√v·correction + eps).
    fn adam(step: AdamStep, gradients: &[f32], parameters: &mut [f32], first: &mut [f32], second: &mut [f32]) {
        let moments = first.iter_mut().zip(second);
        for ((p, g), (m, v)) in parameters.iter_mut().zip(gradients).zip(moments) {
            let g = g * step.gradient_scale + step.decay * *p;
            *m = step.first[0] * *m + step.first[1] * g;
            *v = step.second[0] * *v + step.second[1] * g * g;
            let shrunk = *p * step.shrink;
            *p = shrunk - step.rate * *m / (v.sqrt() * step.second_correction + step.eps);
        }
    }

    /// y ← x·scale where the random word of the element is at least the threshold, else 0; words are drawn as
    /// `Op::Dropout` says.
    fn dropout(mask: DropMask, x: &[f32], y: &mut [f32]) {
        let [first_block, sample, number, step] = mask.counter;
        for (index, (y, x)) in y.chunks_mut(4 * BLOCKS).zip(x.chunks(4 * BLOCKS)).enumerate() {
            let block = first_block.wrapping_add((index * BLOCKS) as u32);
            let words = philox_blocks(mask.key, block, [sample, number, step]);
            let words = words.as_flattened();
            for ((y, x), &word) in y.iter_mut().zip(x).zip(words) {
                *y = if word < mask.threshold { 0.0 } else { x * mask.scale };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_its_stated_error() {
        for (i, fused) in (-870_000..=880_000).flat_map(|i| [(i, false), (i, true)]) {
            let x = i as f32 * 1e-4;
            let value = if fused { exp::<true>(x) } else { exp::<false>(x) };
            let exact = f64::from(x).exp();
            let error = (f64::from(value) - exact).abs() / exact;
            assert!(error < 4.0 * f64::from(f32::EPSILON), "e^{x} has error {error}");
        }
        assert!(exp::<false>(f32::NAN).is_nan());
        assert!(exp::<false>(f32::NEG_INFINITY) < 1e-37);
        assert_eq!(exp::<false>(0.0), 1.0);
    }

    #[test]
    fn numerators_and_score_gradients_are_those_of_the_visible_part() {
        let simd = Simd::widest();
        for (length, visible) in
            [(48usize, 0..48), (48, 0..33), (48, 3..40), (48, 19..20), (48, 32..48), (21, 0..21)]
        {
            let scores: Vec<f32> = (0..length).map(|i| (i as f32 * 0.7).sin() * 5.0).collect();
            let mut x = scores.clone();
            // What is hidden may be anything.
            let hidden = |i: usize| !visible.contains(&i);
            x.iter_mut().enumerate().filter(|(i, _)| hidden(*i)).for_each(|(_, x)| *x = f32::NAN);
            let mut p = x.clone();
            let (max, sum) = softmax_numerators(simd, &mut x, visible.clone(), 0.5);
            let exact: Vec<f64> = scores[visible.clone()].iter().map(|&x| f64::from(x) * 0.5).collect();
            let exact_max = exact.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let exact_sum: f64 = exact.iter().map(|x| (x - exact_max).exp()).sum();
            assert!((f64::from(max) - exact_max).abs() < 1e-6 && (f64::from(sum) - exact_sum).abs() < 1e-5);
            for (x, exact) in x[visible.clone()].iter().zip(&exact) {
                assert!((f64::from(*x) - (exact - exact_max).exp()).abs() < 1e-6);
            }
            if !length.is_multiple_of(VECTOR) {
                continue;
            }
            let mut d = p.clone();
            d.iter_mut().zip(0..).filter(|(_, i)| !hidden(*i)).for_each(|(d, i)| *d = i as f32 * 0.1);
            let row = ScoreRow { scale: 0.5, statistic: 2.0, delta: 0.25 };
            score_grad(simd, row, visible.clone(), &mut p, &mut d);
            for i in 0..length {
                let (exact_p, exact_d) = if hidden(i) {
                    (0.0, 0.0)
                } else {
                    let p = (f64::from(scores[i]) * 0.5 - 2.0).exp();
                    (p, p * (f64::from(i as f32 * 0.1) - 0.25) * 0.5)
                };
                let error = (f64::from(p[i]) - exact_p).abs().max((f64::from(d[i]) - exact_d).abs());
                assert!(error < 1e-5, "{visible:?}, {i}: {} and {}", p[i], d[i]);
            }
        }
    }

    #[test]
    fn every_instruction_set_gives_the_same_sums_and_with_fused_products_the_same_exponentials() {
        let x: Vec<f32> = (0..1003).map(|i| (i as f32 * 0.37).sin() * 9.0).collect();
        let sums = |simd| {
            let (mean, rstd) = norm_statistics(simd, &x, 1e-5);
            [dot(simd, &x, &x), mean, rstd]
        };
        let exponentials = |simd| {
            let mut y = vec![0.0; x.len()];
            gelu(simd, &x, &mut y);
            y.push(log_sum_exp(simd, &x));
            y
        };
        let simds: Vec<Simd> = InstructionSet::ALL.into_iter().filter_map(Simd::new).collect();
        for simds in simds.windows(2) {
            assert_eq!(sums(simds[0]), sums(simds[1]), "{} and {}", simds[0].set(), simds[1].set());
        }
        let fused: Vec<&Simd> = simds.iter().filter(|simd| simd.set() != InstructionSet::Portable).collect();
        for simds in fused.windows(2) {
            assert_eq!(exponentials(*simds[0]), exponentials(*simds[1]));
        }
    }
}
