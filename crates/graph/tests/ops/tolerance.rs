//! How far a backend may be from the exact reference: `c · ε · √k · scale`.
//!
//! ε is that of the element type, k the most terms that are summed for an element, and scale the largest magnitude of the
//! exact result. Rounding errors of a sum of k terms behave like a random walk, hence the root; c counts the roundings
//! around the sum and how much the function magnifies them.

use ironmill_compute::Op;

/// The c of every op, for its outputs and its gradients alike.
pub fn constant(op: &Op) -> f64 {
    match op {
        // Moved, added or scaled once, so the result is the nearest number; their gradients are sums of such.
        Op::Embed | Op::Split { .. } | Op::Concat | Op::Broadcast { .. } => 1.0,
        Op::Add | Op::Mul | Op::Sum | Op::Dropout { .. } | Op::Linear { .. } => 1.0,
        // Statistics of a row, then a few products with them.
        Op::LayerNorm { .. } | Op::RmsNorm { .. } | Op::CrossEntropy(_) => 2.0,
        // A few products of numbers, none larger than the result's scale.
        Op::Rope { .. } | Op::ReluSquared | Op::Affine { .. } => 2.0,
        // An exponential inside: its argument's rounding is magnified by the argument.
        Op::Gelu | Op::GeluErf | Op::SiluGate | Op::Attention(_) => 4.0,
        Op::EmbedGrad { .. }
        | Op::LinearGradInput { .. }
        | Op::LinearGradWeight { .. }
        | Op::LinearGradBias
        | Op::LayerNormGradInput
        | Op::LayerNormGradParams { .. }
        | Op::RmsNormGradInput
        | Op::RmsNormGradGain { .. }
        | Op::AttentionGrad(_)
        | Op::GeluGrad
        | Op::GeluErfGrad
        | Op::ReluSquaredGrad
        | Op::SiluGateGrad
        | Op::CrossEntropyGrad(_) => unreachable!("gradient ops are compared as gradients of their op"),
    }
}

/// The bound relative to scale, for a constant, an epsilon and a sum's length.
pub fn relative(constant: f64, epsilon: f64, reduction: usize) -> f64 {
    constant * epsilon * (reduction as f64).sqrt()
}

/// The largest magnitude.
pub fn largest(values: &[f64]) -> f64 {
    values.iter().fold(0.0, |max, x| max.max(x.abs()))
}

/// The bound of all elements of a result. Where the exact result is all zeros, only zeros will do.
pub fn bound(expected: &[f64], relative: f64) -> f64 {
    relative * largest(expected)
}

/// Says which element is further from the expected than the bound, if one is. What is not a number always is.
pub fn compare(got: &[f64], expected: &[f64], bound: f64) -> Result<(), String> {
    if got.len() != expected.len() {
        return Err(format!("{} elements instead of {}", got.len(), expected.len()));
    }
    let outside = |(got, expected): (&f64, &f64)| {
        let error = (got - expected).abs();
        error.is_nan() || error > bound
    };
    match got.iter().zip(expected).position(outside) {
        None => Ok(()),
        Some(element) => {
            let (got, expected) = (got[element], expected[element]);
            let error = (got - expected).abs();
            Err(format!("element {element} is {got}, not {expected}: apart by {error:e}, allowed {bound:e}"))
        }
    }
}

/// Fails with a name when two results are further apart than allowed, relative to the largest expected.
#[track_caller]
pub fn assert_close(name: &str, got: &[f64], expected: &[f64], relative: f64) {
    if let Err(difference) = compare(got, expected, bound(expected, relative)) {
        panic!("{name}: {difference}");
    }
}
