//! The training line.

use super::numbers::{grouped, time};
use std::fmt;
use std::time::Duration;

/// What one step has to tell.
#[derive(Clone, Debug, PartialEq)]
pub struct StepLine {
    /// Steps done.
    pub step: u64,
    /// Steps of the whole run.
    pub steps: u64,
    /// The training loss of the step.
    pub loss: f64,
    /// The validation loss, when it has just been measured.
    pub validation: Option<f64>,
    /// The learning rate of the step.
    pub learning_rate: f64,
    /// The global norm of the gradient before clipping.
    pub norm: f64,
    /// Training tokens a second, over wall time.
    pub tokens_per_s: f64,
    /// The share of the device's peak, where that is known.
    pub mfu: Option<f64>,
    /// The share of time spent waiting for data, where that is measured.
    pub wait: Option<f64>,
    /// The time that is left at this rate.
    pub left: Duration,
}

impl fmt::Display for StepLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {}/{} | loss {:.4}", grouped(self.step), grouped(self.steps), self.loss)?;
        if let Some(validation) = self.validation {
            write!(f, " | val {validation:.4}")?;
        }
        write!(f, " | lr {:.1e} | norm {:.2}", self.learning_rate, self.norm)?;
        write!(f, " | {} tok/s", grouped(self.tokens_per_s.round() as u64))?;
        if let Some(mfu) = self.mfu {
            write!(f, " | {:.0} % MFU", mfu * 100.0)?;
        }
        if let Some(wait) = self.wait {
            write!(f, " | wait {:.1} %", wait * 100.0)?;
        }
        write!(f, " | {} left", time(self.left))
    }
}

impl StepLine {
    /// The line as a JSON object.
    pub fn to_json(&self) -> serde_json::Value {
        let mut object = serde_json::json!({
            "event": "step",
            "step": self.step,
            "steps": self.steps,
            "loss": self.loss,
            "learning_rate": self.learning_rate,
            "norm": self.norm,
            "tokens_per_s": self.tokens_per_s,
            "seconds_left": self.left.as_secs_f64(),
        });
        for (name, value) in [("validation_loss", self.validation), ("mfu", self.mfu), ("wait", self.wait)] {
            if let Some(value) = value {
                object[name] = value.into();
            }
        }
        object
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> StepLine {
        StepLine {
            step: 1240,
            steps: 5000,
            loss: 3.21451,
            validation: Some(3.30099),
            learning_rate: 5.9e-4,
            norm: 0.412,
            tokens_per_s: 512_330.6,
            mfu: Some(0.61),
            wait: Some(0.002),
            left: Duration::from_secs(9660),
        }
    }

    #[test]
    fn the_training_line_reads_as_the_manual_says() {
        let expected = "step 1,240/5,000 | loss 3.2145 | val 3.3010 | lr 5.9e-4 | norm 0.41 | 512,331 tok/s | 61 % MFU \
                        | wait 0.2 % | 2h 41m left";
        assert_eq!(line().to_string(), expected);
    }

    #[test]
    fn what_is_not_known_is_left_out() {
        let bare = StepLine { validation: None, mfu: None, wait: None, ..line() };
        let expected = "step 1,240/5,000 | loss 3.2145 | lr 5.9e-4 | norm 0.41 | 512,331 tok/s | 2h 41m left";
        assert_eq!(bare.to_string(), expected);
        assert_eq!(bare.to_json().get("mfu"), None);
    }
}
