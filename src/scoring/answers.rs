//! Generated answers against references.

use super::examples::AnswerExample;
use super::framing::Framing;
use super::interval::Share;
use super::squad;
use crate::failure::Result;
use crate::show::Show;
use ironmill_model::{Engine, Generator, GeneratorOptions, Request, RequestId};
use ironmill_text::{Progress, StreamDecoder};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// What became of questions with answers.
pub struct AnswerScores {
    /// How often the answer is one of the references.
    pub exact_match: Share,
    /// The mean F1 of the words.
    pub f1: Share,
    /// Questions whose beginning did not fit the context.
    pub truncated: usize,
    /// Tokens that were generated.
    pub tokens: u64,
    /// What was found for every question.
    pub details: Vec<Value>,
}

/// An answer on its way.
struct Writing<'t> {
    example: usize,
    decoder: StreamDecoder<'t>,
    text: String,
}

impl Writing<'_> {
    /// Whether the first line is complete, which is all that counts.
    fn has_line(&self) -> bool {
        self.text.trim_start().contains('\n')
    }
}

/// The first line of what was written.
fn first_line(text: &str) -> &str {
    text.trim_start().lines().next().unwrap_or_default().trim()
}

/// Answers every question with its likeliest tokens, `rows` at a time, and compares the first lines with the references.
pub fn score_answers(
    engine: &mut Engine,
    framing: &mut Framing<'_>,
    examples: &[AnswerExample],
    (rows, max_tokens, stop): (usize, usize, &[u32]),
    show: &Show,
) -> Result<AnswerScores> {
    let context = engine.model().config().context;
    let room = context - max_tokens.min(context / 2);
    let mut prompts = Vec::with_capacity(examples.len());
    for example in examples {
        prompts.push(framing.prompt(&example.prompt)?);
    }
    let truncated = prompts.iter().filter(|ids| ids.len() > room).count();
    // Prompts of about the same length are read together.
    let mut order: Vec<usize> = (0..examples.len()).collect();
    order.sort_by_key(|&idx| prompts[idx].len());
    // As much as can be needed: a model's own context may be far longer.
    let longest = prompts.iter().map(|ids| ids.len().min(room)).max().unwrap_or(0);
    let options =
        GeneratorOptions { rows, context: longest.saturating_add(max_tokens), ..GeneratorOptions::default() };
    let mut generator = Generator::new(engine, options)?;
    let mut writing: BTreeMap<RequestId, Writing<'_>> = BTreeMap::new();
    for example in order {
        let ids = &prompts[example];
        let prompt = ids[ids.len().saturating_sub(room)..].to_vec();
        let request = Request { stop: stop.to_vec(), ..Request::new(prompt, max_tokens) };
        let decoder = framing.tokenizer.decoder();
        writing.insert(generator.submit(request)?, Writing { example, decoder, text: String::new() });
    }
    let mut answers = vec![String::new(); examples.len()];
    show.start("answers", Some(examples.len() as u64), "answers");
    while let Some(token) = generator.next_token()? {
        let Some(one) = writing.get_mut(&token.request) else { continue };
        if !stop.contains(&token.id) {
            one.text += one.decoder.push(token.id)?;
        }
        let is_over = token.finish.is_some();
        if !is_over && one.has_line() {
            generator.cancel(token.request);
        }
        if is_over || one.has_line() {
            let Some(Writing { example, decoder, text }) = writing.remove(&token.request) else { continue };
            answers[example] = text + &decoder.finish();
            show.advance(1);
        }
    }
    show.finish();
    let tokens = generator.counts().generated;
    let (mut matches, mut f1s, mut details) = (0, Vec::new(), Vec::new());
    for (example, written) in examples.iter().zip(&answers) {
        let answer = first_line(written);
        let (is_match, f1) =
            (squad::is_match(answer, example.answers()), squad::f1(answer, example.answers()));
        matches += usize::from(is_match);
        f1s.push(f1);
        details.push(json!({"answer": answer, "exact_match": is_match, "f1": f1}));
    }
    Ok(AnswerScores {
        exact_match: Share::of_counts(matches, examples.len()),
        f1: Share::of_scores(&f1s),
        truncated,
        tokens,
        details,
    })
}
