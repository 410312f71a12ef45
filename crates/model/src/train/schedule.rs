//! Learning rates as closed forms of the step, so that a resumed run needs no history. Only [`Plateau`] has some.

use std::f64::consts::PI;

use serde::{Deserialize, Serialize};

/// The share of the peak that a one-cycle schedule begins with, as its authors have it.
const ONE_CYCLE_START: f64 = 1.0 / 25.0;
/// A loss counts as lower when it is by this share.
const IMPROVEMENT: f64 = 1e-4;

/// How the learning rate runs over a training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// The highest rate.
    pub peak: f64,
    /// The lowest rate after the warm-up.
    pub floor: f64,
    /// Steps of linear rise from near 0 to the peak.
    pub warmup: u64,
    /// Steps in all.
    pub steps: u64,
    /// What happens after the warm-up.
    pub decay: Decay,
}

/// The course after the warm-up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Decay {
    /// Stays at the peak.
    Constant,
    /// Half a cosine from the peak to the floor.
    Cosine,
    /// A straight line from the peak to the floor.
    Linear,
    /// Stays at the peak, and falls to the floor in a straight line over the last part (warm-up–stable–decay).
    StableDecay {
        /// That part, as a share of all steps.
        share: f64,
    },
    /// Half cosines from the peak to the floor, each behind the other (Loshchilov & Hutter, 2017).
    Restarts {
        /// Steps of the first.
        period: u64,
        /// How many times as long each is as the one before.
        factor: u64,
    },
    /// Half a cosine from a 25th of the peak up to it in place of the linear rise, and one down to the floor, which the last
    /// step has (Smith & Topin, 2018).
    OneCycle,
    /// A geometric fall from the peak to the floor: every step has the same share of the one before.
    Exponential,
    /// Stays at the peak and is lowered when the validation loss no longer falls: see [`Plateau`].
    Plateau {
        /// What the rate is multiplied with.
        factor: f64,
        /// Measurements without improvement that are forgiven.
        patience: u32,
    },
}

impl Schedule {
    /// The rate of a step, counted from 0; under [`Decay::Plateau`], before it is lowered.
    pub fn rate(&self, step: u64) -> f64 {
        let Schedule { peak, floor, warmup, steps, decay } = *self;
        if step < warmup {
            return match decay {
                Decay::OneCycle => half_cosine(peak * ONE_CYCLE_START, peak, share(step, warmup)),
                _ => peak * (step + 1) as f64 / (warmup + 1) as f64,
            };
        }
        let behind = step - warmup;
        let progress = share(behind, steps.saturating_sub(warmup));
        match decay {
            Decay::Constant | Decay::Plateau { .. } => peak,
            Decay::Cosine => half_cosine(peak, floor, progress),
            Decay::Linear => peak + (floor - peak) * progress,
            Decay::StableDecay { share: part } => {
                let length = (part * steps as f64).round() as u64;
                let start = steps.saturating_sub(length).max(warmup);
                peak + (floor - peak) * share(step.saturating_sub(start), steps.saturating_sub(start))
            }
            Decay::Restarts { period, factor } => {
                let (place, length) = place_in_cycle(behind, period.max(1), factor.max(1));
                half_cosine(peak, floor, share(place, length))
            }
            Decay::OneCycle => half_cosine(peak, floor, share(behind, steps.saturating_sub(warmup + 1))),
            Decay::Exponential => peak * (floor / peak).powf(progress),
        }
    }
}

/// How far a step is on a way of so many, at most all of it.
fn share(step: u64, of: u64) -> f64 {
    (step as f64 / of.max(1) as f64).min(1.0)
}

/// From one number to another as a cosine goes from 1 to −1.
fn half_cosine(from: f64, to: f64, progress: f64) -> f64 {
    to + (from - to) * 0.5 * (1.0 + (PI * progress).cos())
}

/// The place of a step in its cycle and the cycle's length, where each is `factor` times as long as the one before.
fn place_in_cycle(step: u64, period: u64, factor: u64) -> (u64, u64) {
    if factor == 1 {
        return (step % period, period);
    }
    let (mut place, mut length) = (step, period);
    while place >= length {
        place -= length;
        length = length.saturating_mul(factor);
    }
    (place, length)
}

/// The history of [`Decay::Plateau`]: the best validation loss, how often it was not reached since, and how often the rate
/// was lowered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plateau {
    /// The lowest loss so far.
    pub best: Option<f64>,
    /// Measurements since then.
    pub waited: u32,
    /// How often the rate was lowered.
    pub lowered: u32,
}

impl Plateau {
    /// Takes note of a measurement; when patience is at its end, the rate is lowered and the waiting begins anew.
    pub(super) fn observe(&mut self, loss: f64, patience: u32) {
        if self.best.is_none_or(|best| loss < best * (1.0 - IMPROVEMENT)) {
            (self.best, self.waited) = (Some(loss), 0);
            return;
        }
        self.waited += 1;
        if self.waited > patience {
            (self.waited, self.lowered) = (0, self.lowered + 1);
        }
    }

    /// The rate after all that was observed.
    pub(super) fn lower(&self, schedule: &Schedule, rate: f64) -> f64 {
        match schedule.decay {
            Decay::Plateau { factor, .. } if self.lowered > 0 => {
                let lowered = rate * factor.powi(self.lowered as i32);
                // The warm-up begins below the floor.
                lowered.max(schedule.floor.min(rate))
            }
            _ => rate,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(schedule: Schedule, expected: &[(u64, f64)]) {
        for &(step, rate) in expected {
            let found = schedule.rate(step);
            assert!((found - rate).abs() < 1e-12, "{:?}, step {step}: {found}, not {rate}", schedule.decay);
        }
    }

    fn with(decay: Decay) -> Schedule {
        Schedule { peak: 1.0, floor: 0.1, warmup: 9, steps: 109, decay }
    }

    #[test]
    fn every_schedule_but_one_cycle_rises_in_a_straight_line() {
        for decay in [
            Decay::Constant,
            Decay::Cosine,
            Decay::Linear,
            Decay::StableDecay { share: 0.2 },
            Decay::Restarts { period: 10, factor: 2 },
            Decay::Exponential,
            Decay::Plateau { factor: 0.5, patience: 1 },
        ] {
            check(with(decay), &[(0, 0.1), (4, 0.5), (8, 0.9), (9, 1.0)]);
            // A schedule without a warm-up begins at the peak.
            check(Schedule { warmup: 0, ..with(decay) }, &[(0, 1.0)]);
        }
    }

    #[test]
    fn rates_are_those_of_their_formulas() {
        check(with(Decay::Constant), &[(59, 1.0), (108, 1.0), (1000, 1.0)]);
        check(with(Decay::Cosine), &[(59, 0.55), (109, 0.1), (1000, 0.1)]);
        let third = 0.1 + 0.45 * (1.0 + (PI * 0.3).cos());
        check(with(Decay::Cosine), &[(39, third)]);
        check(with(Decay::Linear), &[(34, 1.0 - 0.9 * 0.25), (59, 0.55), (109, 0.1), (1000, 0.1)]);
        // The last fifth of 109 steps are 22.
        let stable = with(Decay::StableDecay { share: 0.2 });
        check(stable, &[(50, 1.0), (87, 1.0), (98, 0.55), (109, 0.1), (1000, 0.1)]);
        check(
            with(Decay::Exponential),
            &[(34, 0.1f64.powf(0.25)), (59, 0.1f64.sqrt()), (109, 0.1), (1000, 0.1)],
        );
    }

    #[test]
    fn restarts_begin_again_after_cycles_that_grow() {
        let even = with(Decay::Restarts { period: 10, factor: 1 });
        check(even, &[(9, 1.0), (14, 0.55), (19, 1.0), (24, 0.55), (1009, 1.0)]);
        let growing = with(Decay::Restarts { period: 10, factor: 2 });
        // Cycles of 10, 20 and 40 steps.
        check(growing, &[(9, 1.0), (14, 0.55), (19, 1.0), (29, 0.55), (39, 1.0), (59, 0.55), (79, 1.0)]);
    }

    /// The numbers of `torch.optim.lr_scheduler.OneCycleLR(max_lr=1, total_steps=100, pct_start=0.3)` of PyTorch, whose first
    /// phase has 29 steps and whose last step has a 25·10⁴th of the peak.
    #[test]
    fn one_cycle_is_that_of_pytorch() {
        let schedule = Schedule {
            peak: 1.0,
            floor: ONE_CYCLE_START * 1e-4,
            warmup: 29,
            steps: 100,
            decay: Decay::OneCycle,
        };
        check(schedule, &[(0, 0.04), (29, 1.0), (99, 4e-6)]);
        let rise = |step: f64| 1.0 + (0.04 - 1.0) / 2.0 * (1.0 + (PI * step / 29.0).cos());
        let fall = |step: f64| 4e-6 + (1.0 - 4e-6) / 2.0 * (1.0 + (PI * step / 70.0).cos());
        check(schedule, &[(10, rise(10.0)), (20, rise(20.0)), (30, fall(1.0)), (64, fall(35.0))]);
    }

    #[test]
    fn a_plateau_lowers_the_rate_when_patience_ends() {
        let schedule = with(Decay::Plateau { factor: 0.5, patience: 2 });
        let mut plateau = Plateau::default();
        let mut observe = |loss: f64| {
            plateau.observe(loss, 2);
            plateau.lower(&schedule, schedule.rate(50))
        };
        // An improvement of less than a ten thousandth is none.
        let rates = [3.0, 2.0, 2.0, 1.9999, 1.9999, 2.5, 2.5, 1.0, 2.0, 2.0, 2.0].map(&mut observe);
        assert_eq!(rates, [1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.25]);
        for _ in 0..9 {
            observe(2.0);
        }
        assert_eq!(observe(2.0), 0.1, "the floor");
        assert_eq!(plateau.lower(&schedule, schedule.rate(0)), 0.1, "the first step of a warm-up");
    }
}
