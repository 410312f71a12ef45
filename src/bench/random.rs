//! Numbers to measure with. Zeros and constants would flatter kernels, so nothing else is used.

/// A stream of numbers that repeats with its seed (SplitMix64).
pub struct Random(u64);

impl Random {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number evenly drawn from −1 to 1.
    pub fn real(&mut self) -> f32 {
        (self.word() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    /// A whole number below a limit.
    pub fn below(&mut self, limit: usize) -> u32 {
        (((self.word() >> 32) * limit as u64) >> 32) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_in_their_ranges_and_fill_them() {
        let mut random = Random::new(1);
        let reals: Vec<f32> = (0..10_000).map(|_| random.real()).collect();
        assert!(reals.iter().all(|x| (-1.0..1.0).contains(x)));
        assert!((reals.iter().sum::<f32>() / 10_000.0).abs() < 0.03);
        let counts = (0..10_000).fold([0; 5], |mut counts, _| {
            counts[random.below(5) as usize] += 1;
            counts
        });
        assert!(counts.iter().all(|count| (1800..2200).contains(count)), "{counts:?}");
    }
}
