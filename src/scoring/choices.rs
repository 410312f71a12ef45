//! Multiple choice by likelihood.

use super::examples::ChoiceExample;
use super::framing::Framing;
use super::interval::Share;
use crate::failure::Result;
use crate::show::Show;
use ironmill_model::{Continuation, Engine};
use ironmill_text::Progress;
use serde_json::{Value, json};
use std::sync::atomic::AtomicBool;

/// What became of questions with choices.
pub struct ChoiceScores {
    /// How often the likeliest choice is the right one.
    pub accuracy: Share,
    /// The same by likelihood over the number of characters, so that short choices have no advantage.
    pub normalised: Share,
    /// The mean log-likelihood of the right choice, in nats.
    pub log_likelihood: f64,
    /// The same over the number of tokens of all right choices.
    pub nats_per_token: f64,
    /// Choices that did not fit the context with all of their question.
    pub truncated: usize,
    /// What was found for every question.
    pub details: Vec<Value>,
}

/// Scores every choice of every question; `tokens` go through the model at once.
pub fn score_choices(
    engine: &mut Engine,
    framing: &mut Framing<'_>,
    examples: &[ChoiceExample],
    tokens: usize,
    show: &Show,
) -> Result<ChoiceScores> {
    let mut sequences: Vec<Continuation> = Vec::new();
    for example in examples {
        for choice in &example.choices {
            sequences.push(framing.continuation(&example.prompt, choice)?);
        }
    }
    let context = engine.model().config().context;
    show.start("choices", Some(sequences.len() as u64), "choices");
    let mut before = 0;
    let mut tell = |done: usize| {
        show.advance((done - before) as u64);
        before = done;
    };
    let likelihoods = engine.log_likelihoods(&sequences, tokens, &mut tell, &AtomicBool::new(false));
    show.finish();
    let likelihoods = likelihoods?;
    let mut scores = Sums::default();
    let mut first = 0;
    for example in examples {
        let range = first..first + example.choices.len();
        scores.add(example, &sequences[range.clone()], &likelihoods[range.clone()]);
        first = range.end;
    }
    let n = examples.len();
    Ok(ChoiceScores {
        accuracy: Share::of_counts(scores.right, n),
        normalised: Share::of_counts(scores.right_normalised, n),
        log_likelihood: scores.likelihood / n as f64,
        nats_per_token: -scores.likelihood / scores.tokens.max(1) as f64,
        truncated: sequences.iter().filter(|sequence| sequence.ids.len() > context + 1).count(),
        details: scores.details,
    })
}

#[derive(Default)]
struct Sums {
    right: usize,
    right_normalised: usize,
    likelihood: f64,
    tokens: usize,
    details: Vec<Value>,
}

impl Sums {
    fn add(&mut self, example: &ChoiceExample, sequences: &[Continuation], likelihoods: &[f64]) {
        let right = example.right().unwrap_or_default();
        let lengths = example.choices.iter().map(|choice| choice.chars().count() as f64);
        let normalised: Vec<f64> =
            likelihoods.iter().zip(lengths).map(|(sum, length)| sum / length).collect();
        let (chosen, chosen_normalised) = (largest(likelihoods), largest(&normalised));
        self.right += usize::from(chosen == right);
        self.right_normalised += usize::from(chosen_normalised == right);
        self.likelihood += likelihoods[right];
        self.tokens += sequences[right].asked;
        self.details.push(json!({
            "log_likelihoods": likelihoods,
            "chosen": chosen,
            "chosen_normalised": chosen_normalised,
            "answer": right,
        }));
    }
}

/// The first of the largest.
fn largest(values: &[f64]) -> usize {
    let mut best = 0;
    for (idx, value) in values.iter().enumerate() {
        if *value > values[best] {
            best = idx;
        }
    }
    best
}
