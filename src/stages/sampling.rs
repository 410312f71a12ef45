//! Text from a model: prompts in, completions out.

use crate::config::SampleConfig;
use crate::failure::{Code, Failure, Result};
use ironmill_model::{Engine, GenerateOptions, Sampling};
use ironmill_text::Tokenizer;
use std::ops::ControlFlow;
use std::path::Path;

/// A prompt and what the model made of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// What was given.
    pub prompt: String,
    /// What was added.
    pub text: String,
    /// How many tokens were added.
    pub tokens: usize,
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

/// Continues every prompt. `on_text` is given new text as soon as it is whole, with the index of its prompt.
pub fn complete(
    engine: &mut Engine,
    tokenizer: &Tokenizer,
    prompts: &[String],
    settings: &SampleConfig,
    on_text: &mut dyn FnMut(usize, &str) -> ControlFlow<()>,
) -> Result<Vec<Completion>> {
    let end = tokenizer.end_of_text();
    let ids = prompts.iter().map(|prompt| encode(tokenizer, prompt)).collect::<Result<Vec<Vec<u32>>>>()?;
    let options = GenerateOptions {
        sampling: Sampling {
            temperature: settings.temperature as f32,
            top_k: settings.top_k as usize,
            top_p: settings.top_p as f32,
            seed: settings.seed,
            ..Sampling::GREEDY
        },
        max_tokens: settings.max_tokens as usize,
        stop: end.into_iter().collect(),
    };
    let mut decoders: Vec<_> = prompts.iter().map(|_| tokenizer.continuing_decoder()).collect();
    let mut texts = vec![String::new(); prompts.len()];
    let mut problem = None;
    let generated = engine.generate(&ids, &options, &mut |idx, id| {
        if Some(id) == end {
            return ControlFlow::Continue(());
        }
        match decoders[idx].push(id) {
            Ok(text) => {
                texts[idx] += text;
                on_text(idx, text)
            }
            Err(error) => {
                problem = Some(error);
                ControlFlow::Break(())
            }
        }
    })?;
    if let Some(error) = problem {
        return Err(error.into());
    }
    for (idx, (decoder, text)) in decoders.into_iter().zip(&mut texts).enumerate() {
        let rest = decoder.finish();
        *text += &rest;
        // The samples are complete, so it no longer matters whether more is wanted.
        let _ = on_text(idx, &rest);
    }
    let whole = prompts.iter().zip(texts).zip(generated);
    Ok(whole
        .map(|((prompt, text), made)| Completion { prompt: prompt.clone(), text, tokens: made.ids.len() })
        .collect())
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
