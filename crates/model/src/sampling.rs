//! Choosing a token from logits: a pure function of the logits, the settings, and (seed, sample, position).

use ironmill_compute::philox;

/// How tokens are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 takes the likeliest token.
    pub temperature: f32,
    /// Only this many of the likeliest tokens can be drawn; 0 is off.
    pub top_k: usize,
    /// Only the likeliest tokens that together reach this probability can be drawn, the one that crosses it included;
    /// 0 or 1 is off.
    pub top_p: f32,
    /// Runs with the same seed draw the same tokens.
    pub seed: u64,
}

impl Sampling {
    /// Always the likeliest token.
    pub const GREEDY: Sampling = Sampling { temperature: 0.0, top_k: 0, top_p: 0.0, seed: 0 };

    /// The token at `position` of sample number `sample`. Of equally likely tokens the one with the lower id is first.
    pub fn choose(&self, logits: &[f32], sample: u32, position: u32) -> u32 {
        let mut candidates: Vec<u32> = (0..logits.len() as u32).collect();
        let logit = |id: u32| logits[id as usize];
        let order = |a: &u32, b: &u32| logit(*b).total_cmp(&logit(*a)).then(a.cmp(b));
        if self.temperature <= 0.0 {
            return candidates.into_iter().min_by(order).unwrap_or(0);
        }
        if self.top_k > 0 && self.top_k < candidates.len() {
            candidates.select_nth_unstable_by(self.top_k - 1, order);
            candidates.truncate(self.top_k);
        }
        candidates.sort_unstable_by(order);
        let highest = f64::from(logit(candidates[0]));
        let weight = |id: u32| ((f64::from(logit(id)) - highest) / f64::from(self.temperature)).exp();
        let mut weights: Vec<f64> = candidates.iter().map(|&id| weight(id)).collect();
        if self.top_p > 0.0 && self.top_p < 1.0 {
            let goal = f64::from(self.top_p) * weights.iter().sum::<f64>();
            let mut reached = 0.0;
            let kept = weights.iter().position(|weight| {
                reached += weight;
                reached >= goal
            });
            weights.truncate(kept.map_or(weights.len(), |last| last + 1));
        }
        let words = philox::philox(philox::key(self.seed, philox::Purpose::Sample), [position, sample, 0, 0]);
        let mut rest = philox::unit(words[0], words[1]) * weights.iter().sum::<f64>();
        for (weight, &id) in weights.iter().zip(&candidates) {
            if rest < *weight {
                return id;
            }
            rest -= weight;
        }
        candidates[weights.len() - 1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 5] = [1.0, 3.0, 2.0, 3.0, -1.0];

    fn draws(sampling: Sampling) -> Vec<u32> {
        let mut seen: Vec<u32> = (0..2000).map(|position| sampling.choose(&LOGITS, 0, position)).collect();
        seen.sort_unstable();
        seen.dedup();
        seen
    }

    #[test]
    fn greedy_takes_the_likeliest_and_the_lower_id_on_a_tie() {
        assert_eq!(Sampling::GREEDY.choose(&LOGITS, 3, 4), 1);
    }

    #[test]
    fn top_k_and_top_p_limit_what_can_be_drawn() {
        let all = Sampling { temperature: 1.0, top_k: 0, top_p: 0.0, seed: 5 };
        assert_eq!(draws(all), [0, 1, 2, 3, 4]);
        assert_eq!(draws(Sampling { top_k: 3, ..all }), [1, 2, 3]);
        // Tokens 1 and 3 have 0.40 each: the second crosses 0.5 and stays.
        assert_eq!(draws(Sampling { top_p: 0.5, ..all }), [1, 3]);
        assert_eq!(draws(Sampling { top_p: 0.01, ..all }), [1]);
    }

    #[test]
    fn draws_follow_the_probabilities() {
        let sampling = Sampling { temperature: 1.0, top_k: 0, top_p: 0.0, seed: 1 };
        let total: f64 = LOGITS.iter().map(|&x| f64::from(x).exp()).sum();
        let n = 20_000u32;
        let mut counts = [0f64; 5];
        for position in 0..n {
            counts[sampling.choose(&LOGITS, 7, position) as usize] += 1.0;
        }
        let chi_square: f64 = LOGITS
            .iter()
            .zip(counts)
            .map(|(&logit, count)| {
                let expected = f64::from(n) * f64::from(logit).exp() / total;
                (count - expected).powi(2) / expected
            })
            .sum();
        assert!(chi_square < 18.5, "four degrees of freedom, 0.1 %: {chi_square}");
    }

    #[test]
    fn a_draw_depends_on_seed_sample_and_position_alone() {
        let sampling = Sampling { temperature: 1.0, top_k: 0, top_p: 0.0, seed: 1 };
        let sequence = |seed, sample| -> Vec<u32> {
            (0..50).map(|position| Sampling { seed, ..sampling }.choose(&LOGITS, sample, position)).collect()
        };
        assert_eq!(sequence(1, 0), sequence(1, 0));
        assert_ne!(sequence(1, 0), sequence(2, 0));
        assert_ne!(sequence(1, 0), sequence(1, 1));
    }
}
