//! How sure a score is: intervals that hold the true value 95 times of a hundred.

use ironmill_compute::philox;
use serde_json::{Value, json};
use std::fmt;

/// The quantile of the normal distribution that leaves 2.5 % above it.
const Z: f64 = 1.959_963_984_540_054;
/// How often a mean is drawn anew.
const DRAWS: u32 = 1000;

/// A share or mean between 0 and 1 with its interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// The share.
    pub value: f64,
    /// The ends of the interval.
    pub interval: [f64; 2],
}

impl Share {
    /// So many of all, with Wilson's interval.
    pub fn of_counts(right: usize, all: usize) -> Share {
        let n = all.max(1) as f64;
        let value = right as f64 / n;
        let middle = value + Z * Z / (2.0 * n);
        let spread = Z * (value * (1.0 - value) / n + Z * Z / (4.0 * n * n)).sqrt();
        let scale = 1.0 + Z * Z / n;
        let interval = [(middle - spread) / scale, (middle + spread) / scale].map(|end| end.clamp(0.0, 1.0));
        Share { value, interval }
    }

    /// The mean of some scores, with a bootstrap interval: the middle 95 % of the means of a thousand draws with replacement,
    /// the same draws every time.
    pub fn of_scores(scores: &[f64]) -> Share {
        let n = scores.len().max(1);
        let mut means: Vec<f64> = (0..DRAWS).map(|draw| drawn_mean(scores, draw)).collect();
        means.sort_unstable_by(f64::total_cmp);
        let at = |share: f64| means[(share * f64::from(DRAWS - 1)).round() as usize];
        Share { value: scores.iter().sum::<f64>() / n as f64, interval: [at(0.025), at(0.975)] }
    }

    /// The value and its interval under a name.
    pub fn to_json(self) -> Value {
        json!({"value": self.value, "interval": self.interval})
    }
}

fn drawn_mean(scores: &[f64], draw: u32) -> f64 {
    let key = philox::key(1, philox::Purpose::Sample);
    let one = |idx: usize| {
        let words = philox::philox(key, [idx as u32, draw, 0, 0]);
        scores[((philox::unit(words[0], words[1]) * scores.len() as f64) as usize).min(scores.len() - 1)]
    };
    (0..scores.len()).map(one).sum::<f64>() / scores.len().max(1) as f64
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [low, high] = self.interval.map(|end| 100.0 * end);
        write!(f, "{:.1} % ({low:.1}–{high:.1})", 100.0 * self.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wilson_s_interval_is_the_textbook_s() {
        let near = |share: Share, low: f64, high: f64| {
            assert!(
                (share.interval[0] - low).abs() < 5e-4 && (share.interval[1] - high).abs() < 5e-4,
                "{share:?}"
            );
        };
        near(Share::of_counts(0, 10), 0.0, 0.2775);
        near(Share::of_counts(10, 10), 0.7225, 1.0);
        near(Share::of_counts(50, 100), 0.4038, 0.5962);
        near(Share::of_counts(15, 148), 0.0624, 0.1605);
    }

    #[test]
    fn a_bootstrap_interval_is_about_as_wide_as_the_standard_error_says() {
        let scores: Vec<f64> = (0..400).map(|idx| f64::from(idx % 5) / 4.0).collect();
        let share = Share::of_scores(&scores);
        // The deviation of 0, ¼, ½, ¾ and 1 is 0.354.
        let half = Z * 0.3536 / 20.0;
        assert!((share.value - 0.5).abs() < 1e-12);
        assert!(
            (share.interval[1] - 0.5 - half).abs() < 0.006 && (0.5 - share.interval[0] - half).abs() < 0.006,
            "{share:?}"
        );
        assert_eq!(share, Share::of_scores(&scores));
        assert_eq!(Share::of_scores(&[]).value, 0.0);
    }
}
