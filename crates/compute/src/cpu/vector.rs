//! Loops over rows of numbers, compiled once for each instruction set.
//!
//! The bodies are plain Rust that the compiler turns into vector code. They use no fused multiply-add, and their sums run
//! over a fixed number of lanes, so a result is the same bit for bit under every instruction set.
#![expect(
    unsafe_code,
    reason = "functions compiled for an instruction set are unsafe to call without a proof of it"
)]

use super::simd::{InstructionSet, Simd};

/// Numbers that a sum keeps side by side: two vectors of the widest kind, so that additions need not wait for each other.
const LANES: usize = 32;

/// Declares functions that take a [`Simd`] first and run their body compiled for it.
macro_rules! vectorised {
    ($(
        $(#[$attribute:meta])*
        fn $name:ident($($argument:ident: $of:ty),* $(,)?) $(-> $result:ty)? $body:block
    )*) => {$(
        $(#[$attribute])*
        pub(super) fn $name(simd: Simd, $($argument: $of),*) $(-> $result)? {
            #[inline(always)]
            fn body($($argument: $of),*) $(-> $result)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2")]
            fn avx2($($argument: $of),*) $(-> $result)? {
                body($($argument),*)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f")]
            fn avx512($($argument: $of),*) $(-> $result)? {
                body($($argument),*)
            }

            match simd.set() {
                #[cfg(target_arch = "x86_64")]
                InstructionSet::Avx512 => {
                    // SAFETY: a `Simd` exists only for an instruction set that this processor has.
                    unsafe { avx512($($argument),*) }
                }
                #[cfg(target_arch = "x86_64")]
                InstructionSet::Avx2 => {
                    // SAFETY: as above.
                    unsafe { avx2($($argument),*) }
                }
                _ => body($($argument),*),
            }
        }
    )*};
}

/// e^x with a relative error below 4·ε for x in [−87, 88], and the nearest end of that range for other x; NaN stays NaN.
///
/// x = n·ln 2 + r with |r| ≤ ½ ln 2; e^r is its Taylor polynomial of degree 7, whose remainder is below 6e-9.
#[inline(always)]
fn exp(x: f32) -> f32 {
    /// Adding it leaves the nearest integer in the low bits of the mantissa.
    const ROUND: f32 = 12_582_912.0;
    /// ln 2 in two parts: the product of the first with a small integer is exact.
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    // Comparisons rather than min and max, which would turn NaN into a number.
    let x = if x < -87.0 { -87.0 } else { x };
    let x = if x > 88.0 { 88.0 } else { x };
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = x - n * LN_2_HIGH - n * LN_2_LOW;
    let mut p = 1.0 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = p * r + coefficient;
    }
    p * f32::from_bits((shifted.to_bits() << 23).wrapping_add(1.0f32.to_bits()))
}

/// For GELU's argument u(x), the gate ½(1 + tanh u) = 1/(1 + e) with e = e^(−2u), and its complement e/(1 + e), which a
/// subtraction from 1 would round away.
#[inline(always)]
fn gelu_gate(x: f32) -> (f32, f32) {
    let e = exp(-2.0 * GELU_SCALE * (x + GELU_CUBE * x * x * x));
    let gate = 1.0 / (1.0 + e);
    (gate, e * gate)
}

/// Beyond this on either side the gate is 0 or 1 to the last bit, and powers of x could overflow.
const GELU_END: f32 = 30.0;

/// √(2/π).
const GELU_SCALE: f32 = 0.797_884_6;
const GELU_CUBE: f32 = 0.044_715;

/// The error function with an absolute error below 3·ε (Abramowitz & Stegun 7.1.26, whose own error is 1.5e-7).
#[inline(always)]
fn erf(x: f32) -> f32 {
    let magnitude = x.abs();
    let t = 1.0 / (1.0 + 0.327_591_1 * magnitude);
    let mut p = 1.061_405_4;
    for coefficient in [-1.453_152, 1.421_413_7, -0.284_496_74, 0.254_829_6] {
        p = p * t + coefficient;
    }
    let value = 1.0 - p * t * exp(-magnitude * magnitude);
    if x < 0.0 { -value } else { value }
}

/// σ(x) and 1 − σ(x), which a subtraction would round away.
#[inline(always)]
fn sigmoid(x: f32) -> (f32, f32) {
    let e = exp(-x);
    let sigmoid = 1.0 / (1.0 + e);
    (sigmoid, e * sigmoid)
}

#[inline(always)]
fn total(mut lanes: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
        half /= 2;
    }
    lanes[0]
}

/// Σ of a term per index below `len`.
#[inline(always)]
fn sum_of(len: usize, term: impl Fn(usize) -> f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let whole = len / LANES * LANES;
    let mut start = 0;
    while start < whole {
        for (i, lane) in lanes.iter_mut().enumerate() {
            *lane += term(start + i);
        }
        start += LANES;
    }
    for (i, lane) in lanes.iter_mut().enumerate().take(len - whole) {
        *lane += term(whole + i);
    }
    total(lanes)
}

/// The largest element, NaN apart.
#[inline(always)]
fn max_of(x: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    let mut keep = |values: &[f32]| {
        for (lane, &value) in lanes.iter_mut().zip(values) {
            *lane = if value > *lane { value } else { *lane };
        }
    };
    chunks.iter().for_each(|chunk| keep(chunk));
    keep(rest);
    lanes.into_iter().fold(f32::NEG_INFINITY, f32::max)
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
        let b = &b[..a.len()];
        sum_of(a.len(), |i| a[i] * b[i])
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
            *y = x * gelu_gate(x).0;
        }
    }

    /// d_x ← d_y·GELU′(x) with GELU′ = gate + x·gate·(1 − gate)·2u′. The error is below 16·ε·|d_y|.
    fn gelu_grad(x: &[f32], d_y: &[f32], d_x: &mut [f32]) {
        for (d_x, (&x, d_y)) in d_x.iter_mut().zip(x.iter().zip(d_y)) {
            let x = if x < -GELU_END { -GELU_END } else { x };
            let x = if x > GELU_END { GELU_END } else { x };
            let (gate, complement) = gelu_gate(x);
            let slope = 2.0 * GELU_SCALE * (1.0 + 3.0 * GELU_CUBE * x * x);
            *d_x = d_y * (gate + x * gate * complement * slope);
        }
    }

    /// y ← ½x(1 + erf(x/√2)). The error is below 8·ε·|x|.
    fn gelu_erf(x: &[f32], y: &mut [f32]) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = 0.5 * x * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2));
        }
    }

    /// d_x ← d_y·(Φ(x) + x·φ(x)). The error is below 16·ε·|d_y|.
    fn gelu_erf_grad(x: &[f32], d_y: &[f32], d_x: &mut [f32]) {
        /// 1/√(2π).
        const DENSITY: f32 = 0.398_942_3;
        for (d_x, (&x, d_y)) in d_x.iter_mut().zip(x.iter().zip(d_y)) {
            let below = 0.5 * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2));
            *d_x = d_y * (below + x * DENSITY * exp(-0.5 * x * x));
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
            *y = gate * sigmoid(gate).0 * up;
        }
    }

    /// d_gate ← d_y·up·σ·(1 + gate·(1 − σ)) and d_up ← d_y·gate·σ.
    fn silu_gate_grad(gate: &[f32], up: &[f32], d_y: &[f32], d_gate: &mut [f32], d_up: &mut [f32]) {
        let inputs = gate.iter().zip(up).zip(d_y);
        for ((d_gate, d_up), ((&gate, up), d_y)) in d_gate.iter_mut().zip(d_up).zip(inputs) {
            let (sigmoid, complement) = sigmoid(gate);
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
        1.0 / (sum_of(x.len(), |i| x[i] * x[i]) / x.len() as f32 + eps).sqrt()
    }

    /// With x̂ = x·rstd and g = d_y·gain: d_x ← rstd·(g − x̂·mean(g·x̂)).
    fn rms_grad_input(d_y: &[f32], x: &[f32], gain: &[f32], rstd: f32, d_x: &mut [f32]) {
        let columns = d_x.len();
        let (d_y, x, gain) = (&d_y[..columns], &x[..columns], &gain[..columns]);
        let mean_product = sum_of(columns, |i| d_y[i] * gain[i] * (x[i] * rstd)) / columns as f32;
        for i in 0..columns {
            d_x[i] = rstd * (d_y[i] * gain[i] - x[i] * rstd * mean_product);
        }
    }

    /// Mean and 1/√(variance + eps) of a row.
    fn norm_statistics(x: &[f32], eps: f32) -> (f32, f32) {
        let columns = x.len() as f32;
        let mean = sum_of(x.len(), |i| x[i]) / columns;
        let variance = sum_of(x.len(), |i| (x[i] - mean) * (x[i] - mean)) / columns;
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
        let columns = d_x.len();
        let (d_y, x, gain) = (&d_y[..columns], &x[..columns], &gain[..columns]);
        let mean_g = sum_of(columns, |i| d_y[i] * gain[i]) / columns as f32;
        let mean_product = sum_of(columns, |i| d_y[i] * gain[i] * ((x[i] - mean) * rstd)) / columns as f32;
        for i in 0..columns {
            d_x[i] = rstd * (d_y[i] * gain[i] - mean_g - (x[i] - mean) * rstd * mean_product);
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
        max + sum_of(x.len(), |i| exp(x[i] - max)).ln()
    }

    /// x ← e^(x·scale − max), with max the largest x·scale; gives max and the sum. The scale is positive.
    fn softmax_numerators(x: &mut [f32], scale: f32) -> (f32, f32) {
        let max = max_of(x) * scale;
        for x in x.iter_mut() {
            *x = exp(*x * scale - max);
        }
        (max, sum_of(x.len(), |i| x[i]))
    }

    /// x ← e^(x·scale − offset).
    fn probabilities(x: &mut [f32], scale: f32, offset: f32) {
        for x in x {
            *x = exp(*x * scale - offset);
        }
    }

    /// x ← a·e^(x − offset).
    fn scaled_probabilities(x: &mut [f32], offset: f32, a: f32) {
        for x in x {
            *x = a * exp(*x - offset);
        }
    }

    /// d_p ← p·(d_p − delta)·scale: the gradient of scores before scaling.
    fn score_grad(p: &[f32], delta: f32, scale: f32, d_p: &mut [f32]) {
        for (d_p, p) in d_p.iter_mut().zip(p) {
            *d_p = p * (*d_p - delta) * scale;
        }
    }

    /// y ← y − a.
    fn subtract(a: f32, y: &mut [f32]) {
        for y in y {
            *y -= a;
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
        let [mut block, sample, number, step] = mask.counter;
        for (y, x) in y.chunks_mut(4).zip(x.chunks(4)) {
            let words = crate::philox::philox(mask.key, [block, sample, number, step]);
            for ((y, x), word) in y.iter_mut().zip(x).zip(words) {
                *y = if word < mask.threshold { 0.0 } else { x * mask.scale };
            }
            block = block.wrapping_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_its_stated_error() {
        for i in -870_000..=880_000 {
            let x = i as f32 * 1e-4;
            let exact = f64::from(x).exp();
            let error = (f64::from(exp(x)) - exact).abs() / exact;
            assert!(error < 4.0 * f64::from(f32::EPSILON), "e^{x} has error {error}");
        }
        assert!(exp(f32::NAN).is_nan());
        assert!(exp(f32::NEG_INFINITY) < 1e-37);
        assert_eq!(exp(0.0), 1.0);
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        let x: Vec<f32> = (0..1003).map(|i| (i as f32 * 0.37).sin() * 9.0).collect();
        let run = |set: InstructionSet| {
            let simd = Simd::new(set)?;
            let mut y = vec![0.0; x.len()];
            gelu(simd, &x, &mut y);
            y.push(log_sum_exp(simd, &x));
            y.push(dot(simd, &x, &x));
            let (mean, rstd) = norm_statistics(simd, &x, 1e-5);
            y.extend([mean, rstd]);
            Some(y)
        };
        let portable = run(InstructionSet::Portable);
        for set in InstructionSet::ALL {
            let result = run(set);
            assert!(result.is_none() || result == portable, "{set}");
        }
    }
}
