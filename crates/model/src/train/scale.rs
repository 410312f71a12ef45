//! The loss scale: small gradients vanish in f16, so the loss is multiplied by a power of two and the gradients divided by it.

use serde::{Deserialize, Serialize};

/// Where the exponent starts: the customary 65,536.
const FIRST: i32 = 16;
/// The largest exponent: more would overflow for good.
const LARGEST: i32 = 24;
/// After this many steps without an overflow the scale is doubled.
const PATIENCE: u32 = 2000;

/// The loss scale of a run. Only f16 has one that is not 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LossScale {
    /// The loss is multiplied by two to the power of this.
    pub exponent: i32,
    /// Steps since the scale changed.
    pub good_steps: u32,
}

impl LossScale {
    /// The scale that training starts with, if it has one.
    pub(super) fn new(is_scaled: bool) -> Self {
        LossScale { exponent: if is_scaled { FIRST } else { 0 }, good_steps: 0 }
    }

    /// What the loss is multiplied with.
    pub(super) fn factor(self) -> f64 {
        f64::from(self.exponent).exp2()
    }

    /// The scale after a step that was applied, or whose gradients overflowed. A step of an `applied` scale that is no longer
    /// the current one says nothing about it.
    pub(super) fn after(self, applied: i32, overflowed: bool) -> Self {
        match (overflowed, self.exponent) {
            (_, 0) => self,
            (false, exponent) if self.good_steps + 1 >= PATIENCE => {
                LossScale { exponent: (exponent + 1).min(LARGEST), good_steps: 0 }
            }
            (false, exponent) => LossScale { exponent, good_steps: self.good_steps + 1 },
            (true, exponent) if applied != exponent => self,
            (true, exponent) => LossScale { exponent: exponent - 1, good_steps: 0 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overflow_halves_the_scale_and_patience_doubles_it() {
        let mut scale = LossScale::new(true);
        assert_eq!(scale.factor(), 65_536.0);
        scale = scale.after(16, true);
        assert_eq!(scale.factor(), 32_768.0);
        // The step that was on its way with the old scale is not counted twice.
        assert_eq!(scale.after(16, true), scale);
        for _ in 0..PATIENCE {
            scale = scale.after(15, false);
        }
        assert_eq!(scale, LossScale { exponent: 16, good_steps: 0 });
    }

    #[test]
    fn without_a_scale_nothing_changes() {
        let scale = LossScale::new(false);
        assert_eq!(scale.after(0, false), scale);
        assert_eq!(LossScale { exponent: 1, good_steps: 0 }.after(1, true).exponent, 0);
    }
}
