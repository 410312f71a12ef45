//! How a question becomes tokens: as plain text, or as a message in the model's chat template.

use crate::chat::{Message, Speech};
use crate::failure::{Code, Failure, Result};
use ironmill_data::TokenCache;
use ironmill_model::Continuation;
use ironmill_text::Tokenizer;

/// How questions become tokens.
pub struct Framing<'a> {
    /// The tokenizer.
    pub tokenizer: &'a Tokenizer,
    /// How messages become tokens, if questions are messages.
    pub speech: Option<Speech<'a>>,
    /// The tokens of messages, of this run and of earlier ones: a template is rendered by a process of its own, which takes
    /// much longer than anything else that is done with a question before the model sees it.
    pub messages: Option<TokenCache>,
}

impl Framing<'_> {
    /// The tokens of a question, up to where the answer begins.
    pub fn prompt(&mut self, prompt: &str) -> Result<Vec<u32>> {
        if let Some(speech) = &self.speech {
            return message(speech, self.messages.as_mut(), prompt);
        }
        let mut ids = self.tokenizer.around().0.to_vec();
        self.tokenizer.encode(prompt.as_bytes(), &mut ids)?;
        if ids.is_empty() {
            let missing = || {
                Failure::new(
                    Code::BadData,
                    "a prompt is empty and the tokenizer has no <|endoftext|>: give some text",
                )
            };
            ids.push(self.tokenizer.end_of_text().ok_or_else(missing)?);
        }
        Ok(ids)
    }

    /// A question with a choice behind it. In plain text the two are encoded together, so that tokens are those of the whole text;
    /// a space at the end of the question counts as the beginning of the choice.
    pub fn continuation(&mut self, prompt: &str, choice: &str) -> Result<Continuation> {
        let mut alone = Vec::new();
        self.tokenizer.encode(choice.as_bytes(), &mut alone)?;
        if self.speech.is_none() {
            let before = self.prompt(prompt.trim_end())?;
            let mut ids = self.tokenizer.around().0.to_vec();
            self.tokenizer.encode(format!("{prompt}{choice}").as_bytes(), &mut ids)?;
            if !prompt.trim_end().is_empty() && ids.len() > before.len() {
                let asked = ids.len() - before.len();
                return Ok(Continuation { ids, asked });
            }
        }
        let mut ids = self.prompt(prompt)?;
        ids.extend(&alone);
        Ok(Continuation { ids, asked: alone.len() })
    }
}

/// The tokens of a question that is a message.
fn message(speech: &Speech<'_>, known: Option<&mut TokenCache>, prompt: &str) -> Result<Vec<u32>> {
    let special = serde_json::Value::Object(speech.special.clone()).to_string();
    let parts = [speech.template, &special, prompt];
    if let Some(ids) = known.as_ref().and_then(|known| known.get(&parts)) {
        return Ok(ids.to_vec());
    }
    let ids = speech.encode(&speech.render(&[Message::of_user(prompt)], true)?)?;
    if let Some(known) = known {
        known.insert(&parts, &ids);
    }
    Ok(ids)
}
