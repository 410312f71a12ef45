//! What a step did, and what is worth a warning about it.

use std::time::Duration;

use ironmill_compute::Verdict;
use serde::{Deserialize, Serialize};

/// A norm this many times the usual one is an explosion.
const EXPLOSION: f64 = 10.0;

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
    /// Steps taken so far, this one included.
    pub step: u64,
    /// Mean loss of the counted targets, in nats.
    pub loss: f64,
    /// The global gradient norm before clipping.
    pub norm: f64,
    /// The learning rate.
    pub learning_rate: f64,
    /// Tokens trained on.
    pub tokens: u64,
    /// Targets that counted in the loss.
    pub targets: u64,
    /// Whether the step was applied, and if not, why nothing was changed.
    pub verdict: Verdict,
    /// How many standard deviations the loss lies above its running mean; 0 until there are enough steps to tell.
    pub loss_deviation: f64,
    /// The same for the norm.
    pub norm_deviation: f64,
    /// The running mean of the norm before this step; 0 until there are enough steps to tell.
    pub usual_norm: f64,
    /// The whole step.
    pub elapsed: Duration,
    /// The part of it that waited for data.
    pub waited: Duration,
}

/// Something about an applied step that a person should know of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alarm {
    /// No target counts, so there is nothing to learn from.
    NoTargets,
    /// All gradients are zero, so nothing is learnt.
    ZeroGradients,
    /// The norm is ten times the usual one.
    ExplodingNorm,
}

impl StepReport {
    /// Whether parameters were changed.
    pub fn is_applied(&self) -> bool {
        self.verdict == Verdict::Applied
    }

    /// What is worth a warning. Refused steps have their verdict.
    pub fn alarm(&self) -> Option<Alarm> {
        match self {
            report if !report.is_applied() => None,
            StepReport { targets: 0, .. } => Some(Alarm::NoTargets),
            StepReport { norm: 0.0, .. } => Some(Alarm::ZeroGradients),
            StepReport { norm, usual_norm, .. } if *usual_norm > 0.0 && *norm > EXPLOSION * usual_norm => {
                Some(Alarm::ExplodingNorm)
            }
            _ => None,
        }
    }
}

/// The running statistics that outliers are told by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuardState {
    /// Steps seen, as far as they count.
    pub steps: f32,
    /// Running mean of the loss.
    pub loss: f32,
    /// Its variance.
    pub loss_variance: f32,
    /// Running mean of the gradient norm.
    pub norm: f32,
    /// Its variance.
    pub norm_variance: f32,
}

impl GuardState {
    /// Of the numbers that the guard keeps on the device.
    pub(super) fn from_numbers([steps, loss, loss_variance, norm, norm_variance]: [f32; 5]) -> Self {
        GuardState { steps, loss, loss_variance, norm, norm_variance }
    }

    /// The numbers that the guard keeps on the device, with nothing held.
    pub(super) fn numbers(self) -> [f32; ironmill_compute::GUARD_STATISTICS] {
        [self.steps, self.loss, self.loss_variance, self.norm, self.norm_variance, 0.0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alarms_are_for_applied_steps_that_teach_nothing_or_explode() {
        let plain = StepReport {
            step: 1,
            loss: 3.0,
            norm: 1.0,
            learning_rate: 1e-3,
            tokens: 10,
            targets: 10,
            verdict: Verdict::Applied,
            loss_deviation: 0.0,
            norm_deviation: 0.0,
            usual_norm: 0.5,
            elapsed: Duration::ZERO,
            waited: Duration::ZERO,
        };
        assert_eq!(plain.alarm(), None);
        assert_eq!(StepReport { targets: 0, norm: 0.0, ..plain }.alarm(), Some(Alarm::NoTargets));
        assert_eq!(StepReport { norm: 0.0, ..plain }.alarm(), Some(Alarm::ZeroGradients));
        assert_eq!(StepReport { norm: 5.1, ..plain }.alarm(), Some(Alarm::ExplodingNorm));
        assert_eq!(StepReport { norm: 5.1, usual_norm: 0.0, ..plain }.alarm(), None);
        assert_eq!(StepReport { norm: 5.1, verdict: Verdict::NormOutlier, ..plain }.alarm(), None);
    }
}
