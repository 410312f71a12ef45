//! Drawing tokens where the logits are, so that the next step need not wait for the host.

use crate::philox;

/// The constants of a draw: `(logits [B,V], limits [B,3], keys u32[B,4]) → ids u32[B,1], positions u32[B,1], places u32[B,2],
/// lengths u32[B,2], drawn u32[B,N]`, all state.
///
/// Limits are the temperature (0 takes the likeliest token), top-p and min-p; keys are the two words of the random key, the
/// sample's number and top-k; what is 0 is off. For every row the token is drawn by (key, sample, length of the text), then
/// everything moves on by one: `ids` is the token, `positions` and the second of `places` count one more, and so do both
/// `lengths`, of which the first is that of the text. `drawn` gets the token at the place that the second length says, round
/// and round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draw {
    /// Positions stay below.
    pub context: usize,
}

/// What tokens of the text so far do to their own logits. What is 0 is off.
///
/// As a kernel, [`Kernel::Adjust`](crate::Kernel::Adjust), before a [`Draw`]: `(logits [B,V], penalties [B,3], prompts u32[B,1], ids u32[B,1],
/// lengths u32[B,2], bias [B,V]) → seen u32[B,V], adjusted [B,V]`, both state. Ids and lengths are those of the draw, so an id is the last
/// token of its text, and was written and not given if the text is longer than the prompt. `seen` has 0 for tokens that the text
/// does not have, and otherwise one more than the times that the token was written; it takes the id in first.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Penalties {
    /// Divides positive logits and multiplies negative ones; 1 is off, too.
    pub repetition: f32,
    /// Subtracted from the logits of tokens that were written.
    pub presence: f32,
    /// Subtracted for every time that a token was written.
    pub frequency: f32,
}

impl Penalties {
    /// Whether there are any.
    pub fn any(self) -> bool {
        self.repeats_less() || self.presence != 0.0 || self.frequency != 0.0
    }

    fn repeats_less(self) -> bool {
        self.repetition > 0.0 && self.repetition != 1.0
    }

    /// The logit of a token that the text has, and that was written so many times in it.
    pub fn of(self, logit: f32, written: u32) -> f32 {
        let repeated = if !self.repeats_less() {
            logit
        } else if logit > 0.0 {
            logit / self.repetition
        } else {
            logit * self.repetition
        };
        if written == 0 { repeated } else { repeated - (self.presence + self.frequency * written as f32) }
    }
}

/// What `seen` is of a token that a text of some length ends with.
pub(crate) fn seen_again(seen: u32, length: u32, prompt: u32) -> u32 {
    seen.max(1).saturating_add(u32::from(length > prompt))
}

/// The constants of log-probabilities: `(logits [B,V], ids u32[B,1], lengths u32[B,2]) → likeliest u32[B,N·n], values [B,N·(n+1)]`, both
/// state.
///
/// They follow a [`Draw`] of N places, whose ids and lengths they read. At the place of the token that was drawn, `values` gets the natural
/// logarithm of its probability and behind it those of the n likeliest tokens, whose ids `likeliest` gets, from the likeliest on; of equally
/// likely ones the lower id is first. Behind the last token there are ids of `u32::MAX` and zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogProbabilities {
    /// How many of the likeliest tokens.
    pub count: usize,
}

impl LogProbabilities {
    /// The place of the token that was drawn last, of so many there are, when so many were drawn.
    pub(crate) fn place(room: usize, drawn: u32) -> usize {
        drawn.wrapping_sub(1) as usize % room
    }

    /// Gives the likeliest tokens of a row and the logarithms of probabilities in the order in which they are stored. `order` has a place
    /// for every id.
    pub(crate) fn of(
        self,
        logit: impl Fn(usize) -> f64,
        order: &mut [u32],
        chosen: u32,
        mut put: impl FnMut(usize, u32, f64),
    ) {
        sort(&logit, order);
        let highest = order.first().map_or(f64::NEG_INFINITY, |&best| logit(best as usize));
        let sum: f64 = (0..order.len()).map(|id| (logit(id) - highest).exp()).sum();
        let log_of = |id: u32| logit(id as usize) - (highest + sum.ln());
        put(0, chosen, log_of(chosen));
        for rank in 0..self.count {
            match order.get(rank) {
                Some(&id) => put(rank + 1, id, log_of(id)),
                None => put(rank + 1, u32::MAX, 0.0),
            }
        }
    }
}

/// All ids from the likeliest on.
fn sort(logit: impl Fn(usize) -> f64, order: &mut [u32]) {
    order.iter_mut().zip(0..).for_each(|(place, id)| *place = id);
    order.sort_unstable_by(|&a, &b| logit(b as usize).total_cmp(&logit(a as usize)).then(a.cmp(&b)));
}

/// How a row is drawn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub temperature: f64,
    pub top_p: f64,
    pub min_p: f64,
    pub top_k: usize,
}

/// The token of a row: of equally likely ones the lower id is first, and candidates are gone through in the order of ids. `order` has a
/// place for every id.
pub(crate) fn draw(
    logit: impl Fn(usize) -> f64,
    order: &mut [u32],
    limits: Limits,
    key: [u32; 2],
    [length, sample]: [u32; 2],
) -> u32 {
    sort(&logit, order);
    let logit = |id: u32| logit(id as usize);
    let Some(&best) = order.first() else { return 0 };
    if limits.temperature <= 0.0 {
        return best;
    }
    let weight = |id: u32| ((logit(id) - logit(best)) / limits.temperature).exp();
    let sum = |ids: &[u32]| ids.iter().map(|&id| weight(id)).sum::<f64>();
    let mut count = if limits.top_k > 0 { limits.top_k.min(order.len()) } else { order.len() };
    if limits.top_p > 0.0 && limits.top_p < 1.0 {
        let goal = limits.top_p * sum(&order[..count]);
        let mut reached = 0.0;
        let crossing = order[..count].iter().position(|&id| {
            reached += weight(id);
            reached >= goal
        });
        count = crossing.map_or(count, |last| last + 1);
    }
    // Weights fall along the order.
    count = order[..count].partition_point(|&id| weight(id) >= limits.min_p);
    let candidates = &mut order[..count];
    candidates.sort_unstable();
    let words = philox::philox(key, [length, sample, 0, 0]);
    let mut rest = philox::unit(words[0], words[1]) * sum(candidates);
    for &mut id in candidates {
        if rest < weight(id) {
            return id;
        }
        rest -= weight(id);
    }
    best
}

impl Draw {
    /// What becomes of a row's numbers once its token is known: position, start, length of the text and tokens drawn.
    pub(crate) fn advance(self, position: u32, start: u32, [length, drawn]: [u32; 2]) -> [u32; 4] {
        let last = u32::try_from(self.context.saturating_sub(1)).unwrap_or(u32::MAX);
        let next = |x: u32| x.saturating_add(1);
        [next(position).min(last), next(start), next(length), next(drawn)]
    }
}
