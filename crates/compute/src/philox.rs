//! Philox4x32-10: counter-based random numbers that are bit-equal on every backend.
//!
//! A number is a pure function of a key (seed and purpose) and a counter (step, op, sample, element), so micro-batching,
//! threads and recomputation never change a mask. Algorithm: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"
//! (2011); the constants are the paper's.

/// The round multipliers.
const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
/// What the key grows by each round.
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Four random words for a key and a counter.
#[inline]
pub fn philox(key: [u32; 2], counter: [u32; 4]) -> [u32; 4] {
    let [mut k0, mut k1] = key;
    let [mut c0, mut c1, mut c2, mut c3] = counter;
    for _ in 0..10 {
        let p0 = u64::from(MULTIPLIERS[0]) * u64::from(c0);
        let p1 = u64::from(MULTIPLIERS[1]) * u64::from(c2);
        (c0, c1, c2, c3) = ((p1 >> 32) as u32 ^ c1 ^ k0, p1 as u32, (p0 >> 32) as u32 ^ c3 ^ k1, p0 as u32);
        k0 = k0.wrapping_add(WEYL[0]);
        k1 = k1.wrapping_add(WEYL[1]);
    }
    [c0, c1, c2, c3]
}

/// What numbers are drawn for; different purposes under one seed are independent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Initial weights.
    Initialise = 1,
    /// Dropout masks.
    Dropout = 2,
    /// Sampling tokens.
    Sample = 3,
    /// Which tokens are hidden from a model that fills them in.
    Mask = 4,
}

/// The key of a purpose under a seed.
pub fn key(seed: u64, purpose: Purpose) -> [u32; 2] {
    let mixed = splitmix(seed ^ splitmix(purpose as u64));
    [mixed as u32, (mixed >> 32) as u32]
}

/// The output function of SplitMix64: spreads neighbouring seeds over all 64 bits.
fn splitmix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// A word as a number in [0, 1), with the 53 bits that two words give.
pub fn unit(high: u32, low: u32) -> f64 {
    let bits = (u64::from(high) << 32 | u64::from(low)) >> 11;
    bits as f64 / (1u64 << 53) as f64
}

/// Two independent normal numbers from four words (Box–Muller).
pub fn normal_pair(words: [u32; 4]) -> (f64, f64) {
    let radius = (-2.0 * (1.0 - unit(words[0], words[1])).ln()).sqrt();
    let angle = std::f64::consts::TAU * unit(words[2], words[3]);
    (radius * angle.cos(), radius * angle.sin())
}

/// The words below which a draw means "drop", for a probability.
pub fn drop_threshold(probability: f32) -> u32 {
    (f64::from(probability) * 4_294_967_296.0).min(4_294_967_295.0) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_gives_the_known_answers_of_the_paper() {
        // The known-answer vectors published with the Random123 library.
        assert_eq!(philox([0, 0], [0; 4]), [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);
        assert_eq!(philox([u32::MAX; 2], [u32::MAX; 4]), [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]);
        assert_eq!(
            philox([0xa4093822, 0x299f31d0], [0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344]),
            [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1]
        );
    }

    #[test]
    fn purposes_and_seeds_have_different_keys() {
        assert_ne!(key(1, Purpose::Dropout), key(1, Purpose::Sample));
        assert_ne!(key(1, Purpose::Dropout), key(2, Purpose::Dropout));
    }

    #[test]
    fn normals_have_mean_zero_and_variance_one() {
        let n = 20_000u32;
        let values: Vec<f64> = (0..n)
            .flat_map(|i| {
                let (a, b) = normal_pair(philox([7, 9], [i, 0, 0, 0]));
                [a, b]
            })
            .collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / values.len() as f64;
        assert!(mean.abs() < 0.02, "mean {mean}");
        assert!((variance - 1.0).abs() < 0.03, "variance {variance}");
    }
}
