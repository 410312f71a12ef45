//! A model that answers: prompts in, text out as it comes.

use crate::chat::{Prompt, Speech, Templates, read_json};
use crate::failure::Result;
use ironmill_model::{Engine, Finish, Generator, GeneratorCounts, GeneratorOptions, Request, Sampling};
use ironmill_text::Tokenizer;
use serde_json::Value;
use std::path::Path;
use std::time::Instant;

/// The longest answer where neither the model nor the person says anything.
const MAX_TOKENS: usize = 512;
/// How bold a model is where neither it nor the person says anything.
const TEMPERATURE: f32 = 0.8;

/// How a model answers.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// The longest answer.
    pub max_tokens: usize,
    /// Tokens that end an answer.
    pub stop: Vec<u32>,
}

impl Settings {
    /// What a model's `generation_config.json` and special tokens say.
    pub fn of_model(folder: &Path, templates: &Templates, tokenizer: &Tokenizer) -> Result<Settings> {
        let config = read_json(&folder.join("generation_config.json"))?.unwrap_or_default();
        let number = |key: &str| config[key].as_f64();
        // Without do_sample the file's numbers are defaults that nobody chose.
        let drawn = |key: &str| number(key).filter(|_| config["do_sample"] == true);
        let sampling = Sampling {
            temperature: drawn("temperature").map_or(TEMPERATURE, |value| value as f32),
            top_k: drawn("top_k").map_or(0, |value| value as usize),
            top_p: drawn("top_p").map_or(0.0, |value| value as f32),
            repetition_penalty: number("repetition_penalty").map_or(0.0, |value| value as f32),
            ..Sampling::GREEDY
        };
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        let listed = config["eos_token_id"].as_array().map_or(&[][..], Vec::as_slice);
        let mut stop: Vec<u32> = listed.iter().chain([&config["eos_token_id"]]).filter_map(id).collect();
        stop.extend(templates.end().and_then(|end| tokenizer.special_id(end)));
        stop.extend(tokenizer.end_of_text());
        let max_tokens = number("max_new_tokens").map_or(MAX_TOKENS, |tokens| tokens as usize);
        Ok(Settings { sampling, max_tokens, stop })
    }
}

/// A model, and how it is spoken to.
pub struct Speaker<'a> {
    generator: Generator<Engine>,
    speech: Speech<'a>,
    settings: Settings,
    totals: Totals,
}

/// What was said so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// Answers.
    pub answers: u64,
    /// Their tokens.
    pub tokens: u64,
    /// The time that they took.
    pub seconds: f64,
    /// Tokens of the last prompt.
    pub last_prompt: usize,
}

/// What a model said.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The words.
    pub text: String,
    /// Why it ended: `stop`, `length` or `cancelled`.
    pub finish: &'static str,
    /// Its tokens, the one that ended it included.
    pub tokens: u64,
    /// The tokens that it answers.
    pub prompt_tokens: usize,
    /// The time it took.
    pub seconds: f64,
}

impl<'a> Speaker<'a> {
    /// A model that has said nothing yet. The token that ends a turn in its template ends its answers too.
    pub fn new(engine: Engine, speech: Speech<'a>, mut settings: Settings) -> Result<Speaker<'a>> {
        settings.stop.extend(speech.end_of_turn()?);
        settings.stop.sort_unstable();
        settings.stop.dedup();
        let generator = Generator::new(engine, GeneratorOptions::default())?;
        Ok(Speaker { generator, speech, settings, totals: Totals::default() })
    }

    /// How messages become tokens.
    pub fn speech(&self) -> &Speech<'a> {
        &self.speech
    }

    /// The most tokens of a prompt and its answer.
    pub fn context(&self) -> usize {
        self.generator.context()
    }

    /// The most tokens of a prompt: what the longest answer leaves, but at least half of the context.
    pub fn room(&self) -> usize {
        self.context() - self.settings.max_tokens.min(self.context() / 2)
    }

    /// What was said so far.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// What was read and remembered so far.
    pub fn counts(&self) -> GeneratorCounts {
        self.generator.counts()
    }

    /// Answers a prompt. `on_text` is given whole characters as they come, and says whether to go on.
    pub fn answer(&mut self, prompt: &Prompt, on_text: &mut dyn FnMut(&str) -> bool) -> Result<Answer> {
        let started = Instant::now();
        let request = self.generator.submit(Request {
            sampling: self.settings.sampling.clone(),
            // Another answer draws anew.
            sample: u32::try_from(self.totals.answers).unwrap_or(u32::MAX),
            stop: self.settings.stop.clone(),
            keep: prompt.keep,
            ..Request::new(prompt.ids.clone(), self.settings.max_tokens)
        })?;
        let mut decoder = self.speech.tokenizer.decoder();
        let (mut text, mut finish, mut tokens) = (String::new(), "cancelled", 0);
        while let Some(token) = self.generator.next_token()? {
            tokens += 1;
            if token.finish == Some(Finish::Stop) {
                finish = "stop";
                break;
            }
            let new = decoder.push(token.id)?;
            text += new;
            let goes_on = on_text(new);
            if token.finish.is_some() {
                finish = "length";
                break;
            }
            if !goes_on {
                self.generator.cancel(request);
                break;
            }
        }
        let rest = decoder.finish();
        text += &rest;
        on_text(&rest);
        let seconds = started.elapsed().as_secs_f64();
        self.totals.answers += 1;
        self.totals.tokens += tokens;
        self.totals.seconds += seconds;
        self.totals.last_prompt = prompt.ids.len();
        Ok(Answer { text, finish, tokens, prompt_tokens: prompt.ids.len(), seconds })
    }
}
