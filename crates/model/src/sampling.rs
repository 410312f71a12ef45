//! Choosing a token from logits: a pure function of the logits, the settings, what was written before, and (seed, sample,
//! position). What else runs in the batch never matters.

use ironmill_compute::{Penalties, philox};

/// How tokens are chosen. What is 0 is off.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 takes the likeliest token.
    pub temperature: f32,
    /// Only this many of the likeliest tokens can be drawn.
    pub top_k: usize,
    /// Only the likeliest tokens that together reach this share of what `top_k` left can be drawn, the one that crosses it
    /// included; 1 is off, too.
    pub top_p: f32,
    /// Only tokens that are at least this likely, as a share of the likeliest one's probability, can be drawn.
    pub min_p: f32,
    /// Makes tokens of the prompt and of what was written less likely: divides positive logits and multiplies negative ones;
    /// 1 is off, too.
    pub repetition_penalty: f32,
    /// Subtracted from the logits of tokens that were written.
    pub presence_penalty: f32,
    /// Subtracted from the logit of a token for every time that it was written.
    pub frequency_penalty: f32,
    /// Added to the logits of these tokens; minus infinity forbids one.
    pub bias: Vec<(u32, f32)>,
    /// Runs with the same seed draw the same tokens.
    pub seed: u64,
}

impl Sampling {
    /// Always the likeliest token.
    pub const GREEDY: Sampling = Sampling {
        temperature: 0.0,
        top_k: 0,
        top_p: 0.0,
        min_p: 0.0,
        repetition_penalty: 0.0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        bias: Vec::new(),
        seed: 0,
    };

    /// Whether logits are changed before they are compared.
    pub(crate) fn adjusts(&self) -> bool {
        self.penalties().any() || !self.bias.is_empty()
    }

    /// What tokens of the text do to their own logits.
    pub(crate) fn penalties(&self) -> Penalties {
        Penalties {
            repetition: self.repetition_penalty,
            presence: self.presence_penalty,
            frequency: self.frequency_penalty,
        }
    }

    fn limits_share(&self) -> bool {
        self.top_p > 0.0 && self.top_p < 1.0
    }
}

/// A place in a text that a token is chosen for.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The tokens of the prompt and those that were written since.
    pub tokens: &'a [u32],
    /// How many of them are the prompt.
    pub prompt: usize,
    /// The number of the sample, which draws differently from others of one seed.
    pub sample: u32,
    /// Tokens that cannot be chosen here.
    pub barred: &'a [u32],
}

/// The probability of a token under the model itself: before temperature, penalties and limits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LogProbability {
    /// The natural logarithm of the chosen token's probability.
    pub chosen: f32,
    /// The likeliest tokens and theirs, from the likeliest on.
    pub likeliest: Vec<(u32, f32)>,
}

impl LogProbability {
    /// Of a chosen token and of the `count` likeliest.
    pub fn of(logits: &[f32], chosen: u32, count: usize) -> Self {
        let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|&logit| f64::from(logit - highest).exp()).sum();
        let log_sum_exp = f64::from(highest) + sum.ln();
        let of = |id: u32| (f64::from(logits[id as usize]) - log_sum_exp) as f32;
        let likeliest = Sampler::default().likeliest(logits, count).iter().map(|&id| (id, of(id))).collect();
        LogProbability { chosen: of(chosen), likeliest }
    }
}

/// Chooses tokens; keeps its memory from one to the next.
#[derive(Clone, Debug, Default)]
pub struct Sampler {
    adjusted: Vec<f32>,
    candidates: Vec<u32>,
    weights: Vec<f64>,
}

impl Sampler {
    /// The token for a place. Of equally likely tokens the one with the lower id is first.
    pub fn choose(&mut self, sampling: &Sampling, logits: &[f32], place: Place<'_>) -> u32 {
        let mut adjusted = std::mem::take(&mut self.adjusted);
        let id = if sampling.adjusts() || !place.barred.is_empty() {
            adjust(sampling, logits, place, &mut adjusted);
            self.draw(sampling, &adjusted, place)
        } else {
            self.draw(sampling, logits, place)
        };
        self.adjusted = adjusted;
        id
    }

    fn draw(&mut self, sampling: &Sampling, logits: &[f32], place: Place<'_>) -> u32 {
        let best = likeliest_one(logits);
        if sampling.temperature <= 0.0 {
            return best;
        }
        let highest = f64::from(logits[best as usize]);
        let temperature = f64::from(sampling.temperature);
        let weight = |id: u32| ((f64::from(logits[id as usize]) - highest) / temperature).exp();
        self.limit(sampling, logits, &weight);
        if sampling.min_p > 0.0 {
            let least = f64::from(sampling.min_p.min(1.0));
            self.candidates.retain(|&id| weight(id) >= least);
        }
        // The order in which a card goes through them.
        self.candidates.sort_unstable();
        let (candidates, weights) = (&self.candidates, &mut self.weights);
        weights.clear();
        weights.extend(candidates.iter().map(|&id| weight(id)));
        let words = draw_words(sampling.seed, place);
        let mut rest = philox::unit(words[0], words[1]) * weights.iter().sum::<f64>();
        for (weight, &id) in weights.iter().zip(candidates) {
            if rest < *weight {
                return id;
            }
            rest -= weight;
        }
        // Rounding has left a rest: the last token that can be drawn at all.
        let last = weights.iter().rposition(|weight| *weight > 0.0);
        last.map_or(best, |index| candidates[index])
    }

    /// Leaves the candidates that `top_k` and `top_p` let through, in any order.
    fn limit(&mut self, sampling: &Sampling, logits: &[f32], weight: &dyn Fn(u32) -> f64) {
        /// Tokens to look at first for a share; if they do not reach it, four times as many.
        const FIRST: usize = 64;
        let all = logits.len();
        let most = if sampling.top_k > 0 { sampling.top_k.min(all) } else { all };
        if !sampling.limits_share() {
            if most < all {
                self.likeliest(logits, most);
            } else {
                self.candidates.clear();
                self.candidates.extend(0..all as u32);
            }
            return;
        }
        let total: f64 = if most < all {
            self.likeliest(logits, most).iter().map(|&id| weight(id)).sum()
        } else {
            (0..all as u32).map(weight).sum()
        };
        let goal = f64::from(sampling.top_p) * total;
        let mut looked_at = FIRST;
        loop {
            let count = looked_at.min(most);
            let mut reached = 0.0;
            let crossing = self.likeliest(logits, count).iter().position(|&id| {
                reached += weight(id);
                reached >= goal
            });
            if crossing.is_some() || count == most {
                self.candidates.truncate(crossing.map_or(count, |last| last + 1));
                return;
            }
            looked_at *= 4;
        }
    }

    /// The likeliest tokens, from the likeliest on.
    fn likeliest(&mut self, logits: &[f32], count: usize) -> &[u32] {
        let order = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
        let candidates = &mut self.candidates;
        candidates.clear();
        let count = count.min(logits.len());
        if count == 0 {
            return candidates;
        }
        // Candidates are collected until there are twice as many as wanted; then the worse half goes, and what is below the
        // last of the better half need not be looked at again.
        let mut least = f32::NEG_INFINITY;
        for (id, &logit) in logits.iter().enumerate() {
            if logit < least {
                continue;
            }
            candidates.push(id as u32);
            if candidates.len() == 2 * count {
                candidates.select_nth_unstable_by(count - 1, order);
                candidates.truncate(count);
                least = logits[candidates[count - 1] as usize];
            }
        }
        candidates.sort_unstable_by(order);
        candidates.truncate(count);
        candidates
    }
}

/// The random words of a draw: a function of the seed, the sample and the position.
fn draw_words(seed: u64, place: Place<'_>) -> [u32; 4] {
    let key = philox::key(seed, philox::Purpose::Sample);
    philox::philox(key, [place.tokens.len() as u32, place.sample, 0, 0])
}

fn likeliest_one(logits: &[f32]) -> u32 {
    let mut best = (f32::NEG_INFINITY, 0);
    for (id, &logit) in logits.iter().enumerate() {
        if logit > best.0 {
            best = (logit, id as u32);
        }
    }
    best.1
}

/// Logits after bias and penalties, with what is barred out of reach.
fn adjust(sampling: &Sampling, logits: &[f32], place: Place<'_>, out: &mut Vec<f32>) {
    out.clear();
    out.extend_from_slice(logits);
    for &(id, bias) in &sampling.bias {
        if let Some(logit) = out.get_mut(id as usize) {
            *logit += bias;
        }
    }
    let penalties = sampling.penalties();
    if penalties.any() {
        penalise(penalties, place, out);
    }
    for &id in place.barred {
        if let Some(logit) = out.get_mut(id as usize) {
            *logit = f32::NEG_INFINITY;
        }
    }
}

fn penalise(penalties: Penalties, place: Place<'_>, out: &mut [f32]) {
    // Every token that occurs, with whether it was written and not only given.
    let mut seen: Vec<(u32, bool)> =
        place.tokens.iter().enumerate().map(|(at, &id)| (id, at >= place.prompt)).collect();
    seen.sort_unstable();
    for same in seen.chunk_by(|a, b| a.0 == b.0) {
        let Some(logit) = out.get_mut(same[0].0 as usize) else { continue };
        let written = same.iter().filter(|(_, is_written)| *is_written).count();
        *logit = penalties.of(*logit, written as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 5] = [1.0, 3.0, 2.0, 3.0, -1.0];

    fn place(tokens: &[u32], sample: u32) -> Place<'_> {
        Place { tokens, prompt: 0, sample, barred: &[] }
    }

    /// How often each token is drawn at the first `n` positions.
    fn counts(sampling: &Sampling, logits: &[f32], n: usize) -> Vec<f64> {
        let (tokens, mut sampler) = (vec![0; n], Sampler::default());
        let mut counts = vec![0.0; logits.len()];
        for position in 0..n {
            // The length of the text is its position; without penalties its tokens do not matter.
            counts[sampler.choose(sampling, logits, place(&tokens[..position], 7)) as usize] += 1.0;
        }
        counts
    }

    fn drawn(sampling: Sampling) -> Vec<usize> {
        let counts = counts(&sampling, &LOGITS, 3000);
        (0..LOGITS.len()).filter(|&id| counts[id] > 0.0).collect()
    }

    /// Pearson's statistic of the counts against probabilities.
    fn chi_square(counts: &[f64], probabilities: &[f64]) -> f64 {
        let n: f64 = counts.iter().sum();
        let terms = counts.iter().zip(probabilities).filter(|(_, p)| **p > 0.0);
        terms.map(|(count, p)| (count - n * p).powi(2) / (n * p)).sum()
    }

    fn softmax(logits: &[f32], temperature: f64) -> Vec<f64> {
        let weights: Vec<f64> = logits.iter().map(|&x| (f64::from(x) / temperature).exp()).collect();
        let sum: f64 = weights.iter().sum();
        weights.into_iter().map(|weight| weight / sum).collect()
    }

    fn plain() -> Sampling {
        Sampling { temperature: 1.0, seed: 5, ..Sampling::GREEDY }
    }

    #[test]
    fn greedy_takes_the_likeliest_and_the_lower_id_on_a_tie() {
        assert_eq!(Sampler::default().choose(&Sampling::GREEDY, &LOGITS, place(&[0; 4], 3)), 1);
    }

    #[test]
    fn limits_let_through_what_they_say() {
        assert_eq!(drawn(plain()), [0, 1, 2, 3, 4]);
        assert_eq!(drawn(Sampling { top_k: 3, ..plain() }), [1, 2, 3]);
        assert_eq!(drawn(Sampling { top_k: 99, ..plain() }), [0, 1, 2, 3, 4]);
        // Tokens 1 and 3 have 0.40 each: the second crosses 0.5 and stays.
        assert_eq!(drawn(Sampling { top_p: 0.5, ..plain() }), [1, 3]);
        assert_eq!(drawn(Sampling { top_p: 0.01, ..plain() }), [1]);
        assert_eq!(drawn(Sampling { top_p: 1.0, ..plain() }), [0, 1, 2, 3, 4]);
        // Of three, 0.5 of them is reached by the first two.
        assert_eq!(drawn(Sampling { top_k: 3, top_p: 0.5, ..plain() }), [1, 3]);
        // Token 2 is e⁻¹ = 0.37 times as likely as the likeliest, token 0 e⁻² = 0.14 times.
        assert_eq!(drawn(Sampling { min_p: 0.3, ..plain() }), [1, 2, 3]);
        assert_eq!(drawn(Sampling { min_p: 0.1, ..plain() }), [0, 1, 2, 3]);
    }

    #[test]
    fn a_share_of_many_tokens_is_found_however_many_it_takes() {
        let logits: Vec<f32> = (0..1000u32).map(|id| (id * 7919 % 1000) as f32 * 1e-3).collect();
        let mut sampler = Sampler::default();
        for top_p in [0.05, 0.3, 0.9] {
            let sampling = Sampling { top_p, ..plain() };
            let probabilities = softmax(&logits, 1.0);
            let mut order: Vec<u32> = (0..1000).collect();
            order.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b)));
            let mut reached = 0.0;
            let crossing = order
                .iter()
                .position(|&id| {
                    reached += probabilities[id as usize];
                    reached >= f64::from(top_p)
                })
                .unwrap();
            sampler.limit(&sampling, &logits, &|id| f64::from(logits[id as usize]).exp());
            assert_eq!(sampler.candidates, order[..=crossing]);
        }
    }

    #[test]
    fn draws_follow_the_probabilities() {
        // The statistic of so many degrees of freedom is above this in one of a thousand.
        const LIMITS: [f64; 5] = [0.0, 10.83, 13.82, 16.27, 18.47];
        for (sampling, temperature, kept) in [
            (plain(), 1.0, vec![0, 1, 2, 3, 4]),
            (Sampling { temperature: 2.0, ..plain() }, 2.0, vec![0, 1, 2, 3, 4]),
            (Sampling { temperature: 0.7, top_k: 3, ..plain() }, 0.7, vec![1, 2, 3]),
            (Sampling { top_p: 0.9, ..plain() }, 1.0, vec![1, 2, 3]),
            (Sampling { min_p: 0.1, ..plain() }, 1.0, vec![0, 1, 2, 3]),
        ] {
            let mut expected = softmax(&LOGITS, temperature);
            (0..5).filter(|id| !kept.contains(id)).for_each(|id: usize| expected[id] = 0.0);
            let sum: f64 = expected.iter().sum();
            expected.iter_mut().for_each(|p| *p /= sum);
            let counts = counts(&sampling, &LOGITS, 20_000);
            let statistic = chi_square(&counts, &expected);
            assert!(statistic < LIMITS[kept.len() - 1], "{sampling:?}: {statistic}");
        }
    }

    #[test]
    fn penalties_and_bias_change_logits_as_they_say() {
        let tokens = [0, 1, 4, 1, 2];
        let at = Place { tokens: &tokens, prompt: 2, sample: 0, barred: &[3] };
        let sampling = Sampling {
            repetition_penalty: 2.0,
            presence_penalty: 0.5,
            frequency_penalty: 0.25,
            bias: vec![(2, 1.0), (77, 1.0)],
            ..Sampling::GREEDY
        };
        let mut out = Vec::new();
        adjust(&sampling, &LOGITS, at, &mut out);
        // Token 0 was given; 1 given and written; 2 written, with a bias; 3 is barred; 4 is negative.
        assert_eq!(out, [0.5, 0.75, 0.75, f32::NEG_INFINITY, -2.75]);
        assert_eq!(Sampler::default().choose(&sampling, &LOGITS, at), 1);
        let off = Sampling { repetition_penalty: 1.0, ..Sampling::GREEDY };
        assert!(!off.adjusts());
    }

    #[test]
    fn a_draw_depends_on_seed_sample_and_position_alone() {
        let tokens = [0; 50];
        let sequence = |seed, sample| -> Vec<u32> {
            let sampling = Sampling { seed, ..plain() };
            let mut sampler = Sampler::default();
            (0..50).map(|t| sampler.choose(&sampling, &LOGITS, place(&tokens[..t], sample))).collect()
        };
        assert_eq!(sequence(1, 0), sequence(1, 0));
        assert_ne!(sequence(1, 0), sequence(2, 0));
        assert_ne!(sequence(1, 0), sequence(1, 1));
    }

    #[test]
    fn log_probabilities_are_those_of_the_model() {
        let found = LogProbability::of(&LOGITS, 2, 3);
        let expected = softmax(&LOGITS, 1.0);
        assert!((f64::from(found.chosen) - expected[2].ln()).abs() < 1e-6);
        assert_eq!(found.likeliest.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 3, 2]);
        assert!((f64::from(found.likeliest[0].1) - expected[1].ln()).abs() < 1e-6);
        assert!(LogProbability::of(&LOGITS, 0, 0).likeliest.is_empty());
    }
}
