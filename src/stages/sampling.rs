//! Text from a model: prompts in, completions out.

use super::stop_text::StopText;
use crate::config::SampleConfig;
use crate::failure::{Code, Failure, Result};
use ironmill_model::{
    Engine, Finish, Generator, GeneratorOptions, LogProbability, Refill, Request, RequestId, Sampling, Token,
};
use ironmill_text::{StreamDecoder, Tokenizer};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

/// Completions that are written at the same time; others wait for a place.
const MOST_ROWS: usize = 64;

/// How prompts are continued.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// The most tokens of a completion.
    pub max_tokens: usize,
    /// The fewest, before the end of the text may come.
    pub min_tokens: usize,
    /// Texts that end a completion and are not part of it.
    pub stop: Vec<String>,
    /// Tokens that end a completion, besides the tokenizer's own.
    pub ends: Vec<u32>,
    /// How many of the likeliest tokens are told with every token, if any probability is.
    pub log_probabilities: Option<usize>,
}

impl From<&SampleConfig> for Settings {
    fn from(config: &SampleConfig) -> Self {
        Settings {
            sampling: Sampling {
                temperature: config.temperature as f32,
                top_k: config.top_k as usize,
                top_p: config.top_p as f32,
                seed: config.seed,
                ..Sampling::GREEDY
            },
            max_tokens: config.max_tokens as usize,
            min_tokens: 0,
            stop: Vec::new(),
            ends: Vec::new(),
            log_probabilities: None,
        }
    }
}

/// A prompt and what the model made of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// What was given.
    pub prompt: String,
    /// How many tokens that is.
    pub prompt_tokens: usize,
    /// What was added.
    pub text: String,
    /// The tokens that were added, one that ended the text and those of a stop text included.
    pub ids: Vec<u32>,
    /// Their probabilities, if asked for.
    pub log_probabilities: Vec<LogProbability>,
    /// Why it ended; a stop text counts as [`Finish::Stop`].
    pub finish: Finish,
    /// What was left out of a full context, each time.
    pub refills: Vec<Refill>,
    /// Seconds from the beginning of all completions to the first token of this one.
    pub first_token_s: f64,
    /// Seconds to its last token.
    pub seconds: f64,
}

/// Refuses a model that cannot write.
pub fn check_can_write(engine: &Engine, path: &Path) -> Result<()> {
    if engine.model().config().architecture.is_causal() {
        return Ok(());
    }
    let message = format!(
        "{} is an encoder: it sees the tokens on both sides and fills in masked ones, so it cannot continue a text; \
         measure it with `ironmill eval`, or sample from a gpt2 or llama model",
        path.display()
    );
    Err(Failure::new(Code::BadData, message))
}

/// Continues every prompt; prompt i is sample i of the seed. `on_text` is given new text as soon as it is whole and cannot be part of
/// a stop text, with the index of its prompt.
pub fn complete(
    engine: &mut Engine,
    tokenizer: &Tokenizer,
    prompts: &[String],
    settings: &Settings,
    on_text: &mut dyn FnMut(usize, &str) -> ControlFlow<()>,
) -> Result<Vec<Completion>> {
    let ends: Vec<u32> = settings.ends.iter().copied().chain(tokenizer.end_of_text()).collect();
    let ids = prompts.iter().map(|prompt| encode(tokenizer, prompt)).collect::<Result<Vec<Vec<u32>>>>()?;
    let longest = ids.iter().map(Vec::len).max().unwrap_or(0);
    let options = GeneratorOptions {
        rows: prompts.len().min(MOST_ROWS),
        // As much as can be needed: a model's own context may be far longer.
        context: longest.saturating_add(settings.max_tokens),
        ..GeneratorOptions::default()
    };
    let mut generator = Generator::new(engine, options)?;
    let began = Instant::now();
    let mut writing = Vec::with_capacity(prompts.len());
    for (index, (prompt, ids)) in prompts.iter().zip(ids).enumerate() {
        let mut text = Writing::new(tokenizer, prompt, ids.len(), &settings.stop);
        if settings.max_tokens > 0 {
            let request = Request {
                sampling: settings.sampling.clone(),
                sample: index as u32,
                min_tokens: settings.min_tokens,
                stop: ends.clone(),
                log_probabilities: settings.log_probabilities,
                ..Request::new(ids, settings.max_tokens)
            };
            text.request = Some(generator.submit(request)?);
        }
        writing.push(text);
    }
    while let Some(token) = generator.next_token()? {
        let Some(index) = writing.iter().position(|text| text.request == Some(token.request)) else {
            continue;
        };
        let text = &mut writing[index];
        let new = text.take(&token, &ends, began)?;
        if on_text(index, &new).is_break() {
            text.made.finish = Finish::Cancelled;
            generator.cancel(token.request);
        } else if text.stop.is_found() {
            text.made.finish = Finish::Stop;
            generator.cancel(token.request);
        }
    }
    let mut completions = Vec::with_capacity(writing.len());
    for (index, text) in writing.into_iter().enumerate() {
        let (made, rest) = text.finish();
        // The samples are complete, so it no longer matters whether more is wanted.
        let _ = on_text(index, &rest);
        completions.push(made);
    }
    Ok(completions)
}

/// A completion that grows.
struct Writing<'a> {
    request: Option<RequestId>,
    decoder: StreamDecoder<'a>,
    stop: StopText,
    made: Completion,
}

impl<'a> Writing<'a> {
    fn new(tokenizer: &'a Tokenizer, prompt: &str, prompt_tokens: usize, stop: &[String]) -> Self {
        let made = Completion {
            prompt: prompt.to_string(),
            prompt_tokens,
            text: String::new(),
            ids: Vec::new(),
            log_probabilities: Vec::new(),
            finish: Finish::Length,
            refills: Vec::new(),
            first_token_s: 0.0,
            seconds: 0.0,
        };
        Writing { request: None, decoder: tokenizer.continuing_decoder(), stop: StopText::new(stop), made }
    }

    /// Takes a token and gives the text that can be shown of it.
    fn take(&mut self, token: &Token, ends: &[u32], began: Instant) -> Result<String> {
        self.made.seconds = began.elapsed().as_secs_f64();
        if self.made.ids.is_empty() {
            self.made.first_token_s = self.made.seconds;
        }
        self.made.ids.push(token.id);
        self.made.log_probabilities.extend(token.log_probability.clone());
        self.made.refills.extend(token.refill);
        self.made.finish = token.finish.unwrap_or(Finish::Length);
        if ends.contains(&token.id) {
            return Ok(String::new());
        }
        let new = self.stop.push(self.decoder.push(token.id)?);
        self.made.text += &new;
        Ok(new)
    }

    /// The completion, and what was still held back of its text.
    fn finish(mut self) -> (Completion, String) {
        let rest = self.stop.push(&self.decoder.finish()) + &self.stop.finish();
        self.made.text += &rest;
        (self.made, rest)
    }
}

/// The tokens of a prompt, behind those that the vocabulary's makers put before a text. Nothing at all stands for the
/// beginning of a document.
fn encode(tokenizer: &Tokenizer, prompt: &str) -> Result<Vec<u32>> {
    let mut ids = tokenizer.around().0.to_vec();
    tokenizer.encode(prompt.as_bytes(), &mut ids)?;
    if ids.is_empty() {
        let advice = "this tokenizer has no <|endoftext|> to start from; give some text";
        ids.push(
            tokenizer
                .end_of_text()
                .ok_or_else(|| Failure::new(Code::Usage, format!("the prompt is empty: {advice}")))?,
        );
    }
    Ok(ids)
}
