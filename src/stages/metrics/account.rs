//! Where the wall time of a training went, over all its processes.

use serde_json::{Value, json};

/// Seconds by what they were spent on. They are a sum over the lines of `metrics.jsonl`, so a resumed run goes on counting where
/// its lines end, and what was cut from them counts as lost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Account {
    /// Steps that are part of the result, without their waiting.
    pub steps: f64,
    /// Waiting for data.
    pub waiting: f64,
    /// Measuring the validation loss.
    pub evaluation: f64,
    /// Standing still for a checkpoint.
    pub saving: f64,
    /// Writing samples.
    pub sampling: f64,
    /// From the start of a training to its first step: building, compiling, loading a checkpoint.
    pub startup: f64,
    /// Work that a kill undid: all that was done beyond the checkpoint that the run went on from.
    pub lost: f64,
}

/// Where seconds are counted.
type Place = fn(&mut Account) -> &mut f64;

/// The parts of a line, besides the step itself: their keys, and where they are counted.
pub const PARTS: [(&str, Place); 5] = [
    ("evaluation_seconds", |account| &mut account.evaluation),
    ("saving_seconds", |account| &mut account.saving),
    ("sampling_seconds", |account| &mut account.sampling),
    ("startup_seconds", |account| &mut account.startup),
    ("lost_seconds", |account| &mut account.lost),
];

impl Account {
    /// Counts a line.
    pub fn add(&mut self, line: &Value) {
        let seconds = |key: &str| line[key].as_f64().unwrap_or_default();
        // Where a device runs ahead, the data of a step may be waited for during the step before.
        let waited = seconds("wait_seconds").min(seconds("seconds"));
        self.steps += seconds("seconds") - waited;
        self.waiting += waited;
        for (key, place) in PARTS {
            *place(self) += seconds(key);
        }
    }

    /// All of it.
    pub fn total(&self) -> f64 {
        self.parts().iter().map(|part| part.1).sum()
    }

    /// The share of wall time that went into steps that are part of the result.
    pub fn goodput(&self) -> f64 {
        self.steps / self.total().max(1e-9)
    }

    /// The seconds with their names, steps first.
    pub fn parts(&self) -> [(&'static str, f64); 7] {
        [
            ("steps", self.steps),
            ("waiting", self.waiting),
            ("evaluation", self.evaluation),
            ("saving", self.saving),
            ("sampling", self.sampling),
            ("startup", self.startup),
            ("lost", self.lost),
        ]
    }

    /// The seconds as an object.
    pub fn to_json(self) -> Value {
        let parts: serde_json::Map<String, Value> =
            self.parts().into_iter().map(|(name, seconds)| (name.into(), json!(seconds))).collect();
        parts.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_add_up_to_the_wall_time_and_its_good_part() {
        let mut account = Account::default();
        account.add(&json!({"step": 1, "seconds": 2.0, "wait_seconds": 0.5, "startup_seconds": 1.0}));
        account.add(&json!({"step": 2, "seconds": 1.0, "wait_seconds": 3.0, "evaluation_seconds": 0.25}));
        account
            .add(&json!({"step": 3, "lost_seconds": 0.75, "saving_seconds": 0.5, "sampling_seconds": 0.5}));
        let expected = Account {
            steps: 1.5,
            waiting: 1.5,
            evaluation: 0.25,
            saving: 0.5,
            sampling: 0.5,
            startup: 1.0,
            lost: 0.75,
        };
        assert_eq!(account, expected);
        assert_eq!(account.total(), 6.0);
        assert_eq!(account.goodput(), 0.25);
        assert_eq!(account.to_json()["lost"], 0.75);
    }
}
