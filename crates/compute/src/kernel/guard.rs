//! The last look at a step before parameters are changed.

/// Numbers of the state that a guard keeps: see [`Guard`].
pub const GUARD_STATISTICS: usize = 6;
/// Numbers of a guard's report: see [`Guard`].
pub const GUARD_REPORT: usize = 4;

/// Steps that running means and variances are over.
const WINDOW: f64 = 128.0;
/// A spread below this share of the mean is rounding and luck: deviations are measured in at least so much.
const LEAST_SPREAD: f64 = 1e-3;

/// Decides whether a step is applied, and what its gradients are multiplied with:
/// `(norm [1], loss [1], targets [1], exponent [1]) → scale [1], report [4], statistics [6]`, the last of them state.
///
/// The norm is that of the gradients of a loss that was multiplied by 2^exponent, to keep small ones from vanishing in 16
/// bits; the loss is the plain sum over so many targets. The scale undoes the exponent and clips, or is 0 where the step is
/// refused. The report is `verdict, deviation of the loss, deviation of the norm, usual norm`, with deviations
/// from the running means in units of the spread, 0 where there are not enough steps to tell or the number is not finite.
///
/// The statistics are `steps seen, mean loss, its variance, mean norm, its variance, held`. Only what was applied is fed into
/// them, so that an outlier does not make the next one usual. `held` stays 1 behind a refused step, where the guard holds, until
/// the host writes 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Guard {
    /// The largest norm: longer gradients are scaled down to it; 0 turns clipping off.
    pub clip: f32,
    /// The largest deviation of a loss; 0 allows any.
    pub loss_outlier: f32,
    /// The largest deviation of a norm; 0 allows any.
    pub norm_outlier: f32,
    /// Steps that must have been seen before anything is called an outlier.
    pub warmup: u32,
    /// Whether steps behind a refused one are refused too. An overflow is never held against them.
    pub holds: bool,
}

/// What became of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verdict {
    /// It was applied.
    #[default]
    Applied,
    /// Gradients overflowed 16 bits under the loss scale: a smaller scale is the cure.
    Overflow,
    /// The loss or the norm is not finite.
    NotFinite,
    /// The loss is further above its mean than is allowed.
    LossOutlier,
    /// The norm is further above its mean than is allowed.
    NormOutlier,
    /// It came behind a refused step.
    Held,
}

impl Verdict {
    /// All verdicts, in the order of their numbers.
    pub const ALL: [Verdict; 6] = [
        Verdict::Applied,
        Verdict::Overflow,
        Verdict::NotFinite,
        Verdict::LossOutlier,
        Verdict::NormOutlier,
        Verdict::Held,
    ];

    /// The verdict of a number in a report.
    pub fn from_number(number: f32) -> Self {
        Self::ALL.get(number as usize).copied().unwrap_or_default()
    }

    /// The name in logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Applied => "applied",
            Verdict::Overflow => "overflow",
            Verdict::NotFinite => "not_finite",
            Verdict::LossOutlier => "loss_outlier",
            Verdict::NormOutlier => "norm_outlier",
            Verdict::Held => "held",
        }
    }
}

/// What a guard looks at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Observation {
    pub norm: f64,
    pub loss: f64,
    pub targets: f64,
    pub exponent: f64,
}

/// What a guard decides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Judgement {
    pub scale: f64,
    pub report: [f64; GUARD_REPORT],
}

impl Guard {
    /// The whole rule. It is a few numbers, so backends on the host share it; `kernels/update.cu` says the same.
    pub(crate) fn judge(&self, seen: Observation, statistics: &mut [f64; GUARD_STATISTICS]) -> Judgement {
        let [steps, loss_mean, loss_variance, norm_mean, norm_variance, held] = *statistics;
        let unscale = (-seen.exponent).exp2();
        let (norm, loss) = (seen.norm * unscale, seen.loss / seen.targets.max(1.0));
        let can_tell = steps >= f64::from(self.warmup).clamp(1.0, WINDOW);
        let deviation = |x: f64, mean: f64, variance: f64| {
            let spread = variance.sqrt().max(LEAST_SPREAD * mean.abs());
            if can_tell && spread > 0.0 && x.is_finite() { (x - mean) / spread } else { 0.0 }
        };
        let loss_deviation = deviation(loss, loss_mean, loss_variance);
        let norm_deviation = deviation(norm, norm_mean, norm_variance);
        let is_outlier = |deviation: f64, most: f32| most > 0.0 && deviation > f64::from(most);
        let verdict = if held != 0.0 {
            Verdict::Held
        } else if !loss.is_finite() || !norm.is_finite() && seen.exponent <= 0.0 {
            Verdict::NotFinite
        } else if !norm.is_finite() {
            Verdict::Overflow
        } else if is_outlier(loss_deviation, self.loss_outlier) {
            Verdict::LossOutlier
        } else if is_outlier(norm_deviation, self.norm_outlier) {
            Verdict::NormOutlier
        } else {
            Verdict::Applied
        };
        if verdict == Verdict::Applied && seen.targets > 0.0 {
            let share = 1.0 / (steps.min(WINDOW - 1.0) + 1.0);
            let fed = |x: f64, mean: f64, variance: f64| {
                let change = x - mean;
                // What is kept in f32 stays finite, whatever norms there are.
                let variance = (1.0 - share) * (variance + share * change * change);
                (mean + share * change, variance.min(f64::from(f32::MAX)))
            };
            (statistics[1], statistics[2]) = fed(loss, loss_mean, loss_variance);
            (statistics[3], statistics[4]) = fed(norm, norm_mean, norm_variance);
            statistics[0] = (steps + 1.0).min(WINDOW);
        }
        if self.holds && !matches!(verdict, Verdict::Applied | Verdict::Overflow) {
            statistics[5] = 1.0;
        }
        let clip = f64::from(self.clip);
        let scale = match verdict {
            Verdict::Applied if clip > 0.0 && norm > clip => unscale * clip / norm,
            Verdict::Applied => unscale,
            _ => 0.0,
        };
        let usual = if can_tell { norm_mean } else { 0.0 };
        Judgement { scale, report: [verdict as u8 as f64, loss_deviation, norm_deviation, usual] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUARD: Guard = Guard { clip: 1.0, loss_outlier: 6.0, norm_outlier: 6.0, warmup: 20, holds: false };

    fn look(guard: Guard, statistics: &mut [f64; 6], loss: f64, norm: f64, exponent: f64) -> (Verdict, f64) {
        let seen = Observation { norm: norm * exponent.exp2(), loss: loss * 10.0, targets: 10.0, exponent };
        let Judgement { scale, report } = guard.judge(seen, statistics);
        (Verdict::from_number(report[0] as f32), scale)
    }

    /// Statistics after steps whose losses and norms go up and down.
    fn settled(guard: Guard) -> [f64; 6] {
        let mut statistics = [0.0; 6];
        for step in 0..100 {
            let wave = f64::from(step % 5) / 10.0;
            assert_eq!(look(guard, &mut statistics, 3.0 + wave, 0.5 + wave, 0.0).0, Verdict::Applied);
        }
        statistics
    }

    #[test]
    fn running_means_are_those_of_the_steps() {
        let [steps, loss, loss_variance, norm, ..] = settled(GUARD);
        assert_eq!(steps, 100.0);
        assert!(
            (loss - 3.2).abs() < 1e-9 && (norm - 0.7).abs() < 1e-9 && (loss_variance - 0.02).abs() < 1e-9
        );
    }

    #[test]
    fn what_is_far_above_the_mean_is_refused_and_not_learnt_from() {
        let mut statistics = settled(GUARD);
        let before = statistics;
        assert_eq!(look(GUARD, &mut statistics, 9.0, 0.6, 0.0).0, Verdict::LossOutlier);
        assert_eq!(look(GUARD, &mut statistics, 3.1, 5.0, 0.0).0, Verdict::NormOutlier);
        assert_eq!(statistics, before);
        // Far below is good news, and without a limit nothing is an outlier.
        assert_eq!(look(GUARD, &mut statistics, 0.1, 0.01, 0.0).0, Verdict::Applied);
        let lenient = Guard { loss_outlier: 0.0, norm_outlier: 0.0, ..GUARD };
        assert_eq!(look(lenient, &mut statistics, 1e6, 1e6, 0.0).0, Verdict::Applied);
        // The first steps have nothing to be compared with.
        assert_eq!(look(GUARD, &mut [0.0; 6], 1e6, 1e6, 0.0).0, Verdict::Applied);
    }

    #[test]
    fn an_overflow_is_one_only_under_a_scale_and_only_of_gradients() {
        let mut statistics = [0.0; 6];
        assert_eq!(look(GUARD, &mut statistics, 1.0, f64::INFINITY, 4.0).0, Verdict::Overflow);
        assert_eq!(look(GUARD, &mut statistics, 1.0, f64::INFINITY, 0.0).0, Verdict::NotFinite);
        assert_eq!(look(GUARD, &mut statistics, f64::NAN, 1.0, 4.0).0, Verdict::NotFinite);
        assert_eq!(statistics, [0.0; 6]);
    }

    #[test]
    fn a_guard_that_holds_refuses_what_follows_until_it_is_told_otherwise() {
        let holds = Guard { holds: true, ..GUARD };
        let mut statistics = [0.0; 6];
        assert_eq!(look(holds, &mut statistics, 1.0, f64::NAN, 3.0).0, Verdict::Overflow);
        assert_eq!(look(holds, &mut statistics, f64::NAN, 1.0, 0.0).0, Verdict::NotFinite);
        assert_eq!(look(holds, &mut statistics, 1.0, 1.0, 0.0).0, Verdict::Held);
        statistics[5] = 0.0;
        assert_eq!(look(holds, &mut statistics, 1.0, 1.0, 0.0).0, Verdict::Applied);
    }

    #[test]
    fn the_scale_undoes_the_exponent_and_clips() {
        for (norm, exponent, expected) in
            [(0.5, 0.0, 1.0), (4.0, 0.0, 0.25), (4.0, 3.0, 0.03125), (0.5, 3.0, 0.125)]
        {
            assert_eq!(look(GUARD, &mut [0.0; 6], 1.0, norm, exponent), (Verdict::Applied, expected));
        }
        assert_eq!(look(GUARD, &mut [0.0; 6], f64::NAN, 1.0, 0.0).1, 0.0);
    }
}
