//! When something is due.

use crate::config::Cadence;
use std::time::Instant;

/// When something is due again.
pub(super) struct Due {
    cadence: Cadence,
    last: Instant,
}

impl Due {
    pub(super) fn new(cadence: Cadence) -> Due {
        Due { cadence, last: Instant::now() }
    }

    /// Whether it will be due after a step that is yet to be taken.
    pub(super) fn will_be(&self, step: u64) -> bool {
        match self.cadence {
            Cadence::Steps(every) => every > 0 && step.is_multiple_of(every),
            Cadence::Time(every) => self.last.elapsed() >= every,
        }
    }

    pub(super) fn now(&mut self, step: u64) -> bool {
        match self.cadence {
            Cadence::Steps(every) => every > 0 && step.is_multiple_of(every),
            Cadence::Time(every) => {
                let is_due = self.last.elapsed() >= every;
                if is_due {
                    self.last = Instant::now();
                }
                is_due
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn steps_are_due_at_multiples_and_zero_is_never() {
        let due =
            |every| (1..=6).filter(|&step| Due::new(Cadence::Steps(every)).now(step)).collect::<Vec<u64>>();
        assert_eq!(due(2), [2, 4, 6]);
        assert!(due(0).is_empty());
        assert!(!Due::new(Cadence::Time(Duration::from_secs(3600))).now(1));
    }
}
