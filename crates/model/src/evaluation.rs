//! Which tokens an evaluation predicts.

use ironmill_data::order::permute;

/// A part of a stream, as windows of the model's context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvaluationSet {
    /// All tokens.
    Complete,
    /// The first so many, the same every time.
    First(u64),
    /// Windows with about so many, drawn without repetition; another draw has others.
    Sampled {
        /// How many tokens.
        tokens: u64,
        /// Where the draws begin.
        seed: u64,
        /// Which draw, such as the step.
        draw: u64,
    },
}

impl From<u64> for EvaluationSet {
    fn from(tokens: u64) -> Self {
        EvaluationSet::First(tokens)
    }
}

impl EvaluationSet {
    /// How many tokens are asked for.
    pub fn tokens(&self) -> u64 {
        match *self {
            EvaluationSet::Complete => u64::MAX,
            EvaluationSet::First(tokens) | EvaluationSet::Sampled { tokens, .. } => tokens,
        }
    }

    /// Where the windows start and how many tokens each predicts, of a stream in which so many can be predicted.
    pub(crate) fn windows(self, predictable: u64, context: u64) -> impl Iterator<Item = (u64, usize)> {
        let asked = predictable.min(self.tokens());
        let all = predictable.div_ceil(context);
        (0..asked.div_ceil(context)).map(move |index| match self {
            EvaluationSet::Complete | EvaluationSet::First(_) => {
                let start = index * context;
                (start, (asked - start).min(context) as usize)
            }
            EvaluationSet::Sampled { seed, draw, .. } => {
                let start = permute(seed, draw, index, all) * context;
                (start, (predictable - start).min(context) as usize)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_first_and_all_tokens_are_predicted_once_each() {
        let windows = |set: EvaluationSet| set.windows(25, 10).collect::<Vec<_>>();
        assert_eq!(windows(EvaluationSet::Complete), [(0, 10), (10, 10), (20, 5)]);
        assert_eq!(windows(EvaluationSet::First(13)), [(0, 10), (10, 3)]);
        assert_eq!(windows(EvaluationSet::First(99)), windows(EvaluationSet::Complete));
    }

    #[test]
    fn samples_are_drawn_without_repetition_and_anew_for_every_draw() {
        let draw = |tokens, draw| -> Vec<u64> {
            EvaluationSet::Sampled { tokens, seed: 3, draw }
                .windows(1005, 10)
                .map(|window| window.0)
                .collect()
        };
        assert_eq!((draw(200, 1).len(), draw(200, 1)), (20, draw(200, 1)));
        assert_ne!(draw(200, 1), draw(200, 2));
        let every: BTreeSet<u64> = draw(u64::MAX, 7).into_iter().collect();
        assert_eq!(every, (0..101).map(|index| 10 * index).collect());
    }
}
