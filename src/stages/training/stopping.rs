//! Stopping early: when the validation loss has not become better for a while.

use crate::config::TrainConfig;
use serde_json::Value;

/// What is known of the validation loss so far. It follows from the lines of `metrics.jsonl` alone, so a resumed run knows it too.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct EarlyStop {
    patience: u64,
    smoothing: f64,
    delta: f64,
    smoothed: Option<f64>,
    best: Option<(f64, u64)>,
    /// Evaluations since the best one.
    worse: u64,
}

impl EarlyStop {
    /// As the configuration says; without patience it never stops.
    pub(super) fn new(config: &TrainConfig) -> EarlyStop {
        EarlyStop {
            patience: config.early_stop_patience,
            smoothing: config.early_stop_smoothing.unwrap_or_default(),
            delta: config.early_stop_delta.unwrap_or_default(),
            smoothed: None,
            best: None,
            worse: 0,
        }
    }

    /// Takes note of a line that was written before.
    pub(super) fn recall(&mut self, line: &Value) {
        if let (Some(step), Some(loss)) = (line["step"].as_u64(), line["validation_loss"].as_f64()) {
            self.observe(step, loss);
        }
    }

    /// Takes note of an evaluation: the running mean of the loss must fall below the best one by more than `delta`.
    pub(super) fn observe(&mut self, step: u64, loss: f64) {
        let smoothed =
            self.smoothed.map_or(loss, |mean| self.smoothing * mean + (1.0 - self.smoothing) * loss);
        self.smoothed = Some(smoothed);
        if self.best.is_none_or(|(best, _)| smoothed < best - self.delta) {
            (self.best, self.worse) = (Some((smoothed, step)), 0);
        } else {
            self.worse += 1;
        }
    }

    /// The running mean, where somebody waits for it.
    pub(super) fn smoothed(&self) -> Option<f64> {
        self.smoothed.filter(|_| self.patience > 0)
    }

    /// Why to stop, if it is time to.
    pub(super) fn reason(&self) -> Option<String> {
        let (best, step) = self.best.filter(|_| self.patience > 0 && self.worse >= self.patience)?;
        let smoothed = if self.smoothing > 0.0 { "smoothed " } else { "" };
        Some(format!(
            "stopped early: the {smoothed}validation loss was best at step {} ({best:.4}) and has not become better in {} evaluations since",
            crate::show::numbers::grouped(step),
            self.worse
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn stops_at(patience: u64, smoothing: f64, delta: f64, losses: &[f64]) -> Option<usize> {
        let mut early = EarlyStop { patience, smoothing, delta, smoothed: None, best: None, worse: 0 };
        losses.iter().enumerate().position(|(idx, &loss)| {
            early.recall(&json!({"step": idx + 1, "validation_loss": loss}));
            early.reason().is_some()
        })
    }

    #[test]
    fn it_stops_when_patience_ends_and_not_before() {
        assert_eq!(stops_at(2, 0.0, 0.0, &[3.0, 2.0, 2.1, 1.9, 2.0, 2.0]), Some(5));
        assert_eq!(stops_at(0, 0.0, 0.0, &[3.0, 4.0, 5.0, 6.0]), None);
        assert_eq!(stops_at(1, 0.0, 0.0, &[3.0, 3.0]), Some(1));
    }

    #[test]
    fn a_gain_must_be_larger_than_the_delta() {
        assert_eq!(stops_at(2, 0.0, 0.5, &[3.0, 2.6, 2.55, 2.0]), Some(2));
        assert_eq!(stops_at(2, 0.0, 0.1, &[3.0, 2.6, 2.45, 2.0]), None);
    }

    #[test]
    fn smoothing_forgives_a_spike() {
        let losses = [3.0, 2.5, 2.9, 2.0, 1.9];
        assert_eq!(stops_at(1, 0.0, 0.0, &losses), Some(2));
        assert_eq!(stops_at(1, 0.6, 0.0, &losses), Some(2));
        assert_eq!(stops_at(1, 0.9, 0.0, &losses), None);
    }

    #[test]
    fn lines_without_an_evaluation_do_not_count() {
        let mut early =
            EarlyStop { patience: 1, smoothing: 0.0, delta: 0.0, smoothed: None, best: None, worse: 0 };
        for step in 1..9 {
            early.recall(&json!({"step": step, "loss": 1.0}));
        }
        assert_eq!((early.worse, early.best), (0, None));
    }
}
