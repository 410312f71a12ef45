//! What a model is asked: the next token, or tokens that were hidden from it.

use ironmill_compute::{IGNORED, philox};

/// The task that a model trains on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Objective {
    /// Predict each token from those before it.
    NextToken,
    /// Fill in 15 % of the tokens: of these 80 % are replaced by the mask token, 10 % by any token, 10 % stay, so that the
    /// model cannot rely on seeing a mask (Devlin et al., 2019).
    MaskedToken {
        /// The id that stands for a hidden token.
        mask: u32,
    },
}

/// The share of tokens that are asked for, and the shares of them that become a mask or any token.
const ASKED: f64 = 0.15;
const MASKED: f64 = 0.8;
const REPLACED: f64 = 0.1;

impl Objective {
    /// Turns a row of tokens and their successors into what the objective asks. Which tokens are hidden is a function of
    /// the seed, the sample and the position alone. Targets that are ignored already (padding) stay so.
    pub fn prepare(self, seed: u64, sample: u32, vocab_size: usize, ids: &mut [u32], targets: &mut [u32]) {
        let Objective::MaskedToken { mask } = self else { return };
        let key = philox::key(seed, philox::Purpose::Mask);
        for (position, (id, target)) in ids.iter_mut().zip(targets).enumerate() {
            let words = philox::philox(key, [position as u32, sample, 0, 0]);
            let [asked, fate, other] = [words[0], words[1], words[2]].map(|word| philox::unit(word, 0));
            if *target == IGNORED || asked >= ASKED {
                *target = IGNORED;
                continue;
            }
            *target = *id;
            if fate < MASKED {
                *id = mask;
            } else if fate < MASKED + REPLACED {
                *id = (other * vocab_size as f64) as u32;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_token_objective_changes_nothing() {
        let (mut ids, mut targets) = ([1, 2, 3], [2, 3, IGNORED]);
        Objective::NextToken.prepare(1, 2, 10, &mut ids, &mut targets);
        assert_eq!((ids, targets), ([1, 2, 3], [2, 3, IGNORED]));
    }

    #[test]
    fn masked_tokens_have_their_shares_and_repeat_with_the_sample() {
        let row = |seed, sample| {
            let (mut ids, mut targets) = ((0..20_000).map(|i| i % 90).collect::<Vec<u32>>(), vec![0; 20_000]);
            targets[19_999] = IGNORED;
            Objective::MaskedToken { mask: 99 }.prepare(seed, sample, 90, &mut ids, &mut targets);
            (ids, targets)
        };
        let (ids, targets) = row(1, 5);
        assert_eq!(targets[19_999], IGNORED);
        let asked: Vec<usize> = (0..targets.len()).filter(|&i| targets[i] != IGNORED).collect();
        assert!(asked.iter().all(|&i| targets[i] == i as u32 % 90));
        let share = |count: usize, of: usize| count as f64 / of as f64;
        assert!((share(asked.len(), 20_000) - 0.15).abs() < 0.01);
        let masked = asked.iter().filter(|&&i| ids[i] == 99).count();
        let kept = asked.iter().filter(|&&i| ids[i] == targets[i]).count();
        assert!((share(masked, asked.len()) - 0.8).abs() < 0.03);
        assert!((share(kept, asked.len()) - 0.1).abs() < 0.03);
        assert!(
            (0..20_000).all(|i| targets[i] != IGNORED || ids[i] == i as u32 % 90),
            "others are untouched"
        );
        assert_eq!((ids, targets), row(1, 5));
        assert_ne!(row(1, 5).1, row(1, 6).1);
        assert_ne!(row(1, 5).1, row(2, 5).1);
    }
}
