//! Learning rates as closed forms of the step, so that a resumed run needs no history.

/// How the learning rate runs over a training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// The highest rate.
    pub peak: f64,
    /// The rate at the end.
    pub floor: f64,
    /// Steps of linear rise from near 0 to the peak.
    pub warmup: u64,
    /// Steps in all.
    pub steps: u64,
    /// What happens after the warm-up.
    pub decay: Decay,
}

/// The course after the warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decay {
    /// Stays at the peak.
    Constant,
    /// Half a cosine from the peak to the floor.
    Cosine,
}

impl Schedule {
    /// The rate of a step, counted from 0.
    pub fn rate(&self, step: u64) -> f64 {
        if step < self.warmup {
            return self.peak * (step + 1) as f64 / (self.warmup + 1) as f64;
        }
        match self.decay {
            Decay::Constant => self.peak,
            Decay::Cosine => {
                let span = self.steps.saturating_sub(self.warmup).max(1);
                let progress = ((step - self.warmup) as f64 / span as f64).min(1.0);
                self.floor + (self.peak - self.floor) * 0.5 * (1.0 + (std::f64::consts::PI * progress).cos())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_rises_then_falls_along_half_a_cosine() {
        let schedule = Schedule { peak: 1.0, floor: 0.1, warmup: 9, steps: 109, decay: Decay::Cosine };
        let check =
            |step, expected: f64| assert!((schedule.rate(step) - expected).abs() < 1e-12, "step {step}");
        check(0, 0.1);
        check(8, 0.9);
        check(9, 1.0);
        check(59, 0.55);
        check(109, 0.1);
        check(1000, 0.1);
    }

    #[test]
    fn a_constant_rate_stays_after_the_warm_up() {
        let schedule = Schedule { peak: 2.0, floor: 0.0, warmup: 1, steps: 10, decay: Decay::Constant };
        assert_eq!([0, 1, 5, 99].map(|step| schedule.rate(step)), [1.0, 2.0, 2.0, 2.0]);
    }
}
