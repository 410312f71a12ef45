//! Numbers that tell a text which repeats itself from one that does not.

use serde_json::{Value, json};
use std::collections::HashSet;

/// How varied the tokens of a text are.
#[derive(Clone, Debug, PartialEq)]
pub struct Quality {
    /// Different sequences of 1, 2, 3 and 4 tokens as a share of all of them; 1 where nothing comes twice.
    pub distinct: [f64; 4],
    /// The longest sequence of tokens that comes at least twice, in tokens; its places may overlap.
    pub longest_repeat: usize,
}

impl Quality {
    /// Of the tokens of a text.
    pub fn of(ids: &[u32]) -> Self {
        Quality { distinct: [1, 2, 3, 4].map(|n| distinct(ids, n)), longest_repeat: longest_repeat(ids) }
    }

    /// The share of sequences of four tokens that were there before.
    pub fn repeated_4_grams(&self) -> f64 {
        1.0 - self.distinct[3]
    }

    /// One line for people.
    pub fn line(&self) -> String {
        let [one, two, three, _] = self.distinct;
        format!(
            "distinct-1 {one:.3}, distinct-2 {two:.3}, distinct-3 {three:.3}, repeated 4-grams {:.1} %, \
             longest repeat {} tokens",
            100.0 * self.repeated_4_grams(),
            self.longest_repeat
        )
    }

    /// The same for programs.
    pub fn to_json(&self) -> Value {
        json!({
            "distinct": self.distinct,
            "repeated_4_grams": self.repeated_4_grams(),
            "longest_repeat": self.longest_repeat,
        })
    }
}

fn distinct(ids: &[u32], n: usize) -> f64 {
    let all = ids.len().saturating_sub(n - 1);
    if all == 0 {
        return 1.0;
    }
    ids.windows(n).collect::<HashSet<_>>().len() as f64 / all as f64
}

/// A length that comes twice has all shorter ones come twice, so halving finds the longest.
fn longest_repeat(ids: &[u32]) -> usize {
    let comes_twice = |n: usize| {
        let mut seen = HashSet::new();
        n == 0 || !ids.windows(n).all(|sequence| seen.insert(sequence))
    };
    let (mut twice, mut once) = (0, ids.len().max(1));
    while once - twice > 1 {
        let middle = (twice + once) / 2;
        if comes_twice(middle) { twice = middle } else { once = middle }
    }
    twice
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repetition_is_counted() {
        let quality = Quality::of(&[1, 2, 3, 4, 1, 2, 3, 5]);
        assert_eq!(quality.distinct, [5.0 / 8.0, 5.0 / 7.0, 5.0 / 6.0, 1.0]);
        assert_eq!((quality.longest_repeat, quality.repeated_4_grams()), (3, 0.0));
        assert_eq!(Quality::of(&[7; 10]).longest_repeat, 9);
        assert_eq!(Quality::of(&[1, 2, 3]).longest_repeat, 0);
        assert_eq!(Quality::of(&[]), Quality { distinct: [1.0; 4], longest_repeat: 0 });
    }
}
