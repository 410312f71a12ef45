//! How a question becomes tokens: as plain text, or as a message in the model's chat template.

use crate::chat::{Message, Speech};
use crate::failure::{Code, Failure, Result};
use ironmill_model::Continuation;
use ironmill_text::Tokenizer;

/// How questions become tokens.
pub struct Framing<'a> {
    /// The tokenizer.
    pub tokenizer: &'a Tokenizer,
    /// How messages become tokens, if questions are messages.
    pub speech: Option<Speech<'a>>,
}

impl Framing<'_> {
    /// The tokens of a question, up to where the answer begins.
    pub fn prompt(&self, prompt: &str) -> Result<Vec<u32>> {
        if let Some(speech) = &self.speech {
            return speech.encode(&speech.render(&[Message::of_user(prompt)], true)?);
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
    pub fn continuation(&self, prompt: &str, choice: &str) -> Result<Continuation> {
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
