//! What was said, and how much of it a model can still be shown.

use super::sandbox;
use crate::failure::{Code, Failure, Result};
use ironmill_text::{Tokenizer, durable};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::fs;
use std::path::Path;

/// The role of what the model is told before anything else.
const SYSTEM: &str = "system";
/// The role of the person.
const USER: &str = "user";
/// The role of the model.
const ASSISTANT: &str = "assistant";

/// Something that was said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Who said it: `system`, `user` or `assistant`.
    pub role: String,
    /// What.
    pub content: String,
}

impl Message {
    /// What a person says.
    pub fn of_user(content: &str) -> Message {
        Message { role: USER.into(), content: content.into() }
    }
}

/// A conversation. As a file it is `{"messages": [{"role", "content"}]}`, which is also what the field trains on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conversation {
    /// What the model is told first, and never forgets.
    pub system: Option<String>,
    /// Everything else that was said, oldest first.
    messages: Vec<Message>,
    /// The oldest messages, so many, that no longer fit and are not shown to the model.
    hidden: usize,
}

/// How messages become tokens: a template, and the tokenizer of the model.
pub struct Speech<'a> {
    /// The template.
    pub template: &'a str,
    /// Special tokens by the names that templates have for them.
    pub special: &'a Map<String, Value>,
    /// The tokenizer.
    pub tokenizer: &'a Tokenizer,
}

/// What a model is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// The tokens.
    pub ids: Vec<u32>,
    /// Leading tokens that stay whatever happens: those of the system text.
    pub keep: usize,
    /// Messages that were shown until now and are not any more.
    pub newly_hidden: usize,
}

impl Conversation {
    /// Nothing was said yet, but perhaps a system text.
    pub fn new(system: Option<String>) -> Conversation {
        Conversation { system, ..Conversation::default() }
    }

    /// Adds what the person said.
    pub fn ask(&mut self, content: String) {
        self.messages.push(Message { role: USER.into(), content });
    }

    /// Adds what the model said.
    pub fn answer(&mut self, content: String) {
        self.messages.push(Message { role: ASSISTANT.into(), content });
    }

    /// Takes the last message back.
    pub fn take_back(&mut self) {
        self.messages.pop();
        self.hidden = self.hidden.min(self.messages.len());
    }

    /// Forgets everything but the system text.
    pub fn clear(&mut self) {
        self.messages.clear();
        self.hidden = 0;
    }

    /// How many messages there are, the system text not among them.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// How many of them the model is not shown any more.
    pub fn hidden(&self) -> usize {
        self.hidden
    }

    fn system_message(&self) -> Option<Message> {
        self.system.as_ref().map(|content| Message { role: SYSTEM.into(), content: content.clone() })
    }

    /// The tokens of the conversation up to where the model speaks next, at most `room`. What is too much is hidden from the
    /// front, a question together with its answer; the system text and the last message always stay.
    pub fn prompt(&mut self, speech: &Speech<'_>, room: usize) -> Result<Prompt> {
        let before = self.hidden;
        loop {
            let shown: Vec<Message> = self
                .system_message()
                .into_iter()
                .chain(self.messages[self.hidden..].iter().cloned())
                .collect();
            let ids = speech.encode(&speech.render(&shown, true)?)?;
            if ids.len() <= room {
                let keep = self.system_tokens(speech, &ids);
                return Ok(Prompt { ids, keep, newly_hidden: self.hidden - before });
            }
            let next = (self.hidden + 1..self.messages.len()).find(|&idx| self.messages[idx].role == USER);
            let Some(next) = next else {
                let message = format!(
                    "the system text and the last message have {} tokens, and there is room for {room}: say it shorter, \
                     or lower --max-tokens",
                    ids.len()
                );
                return Err(Failure::new(Code::BadData, message));
            };
            self.hidden = next;
        }
    }

    /// How many leading tokens are the system text's: those that another question would not change.
    fn system_tokens(&self, speech: &Speech<'_>, ids: &[u32]) -> usize {
        let Some(system) = self.system_message() else { return 0 };
        let other = Message { role: USER.into(), content: String::new() };
        let rendered = speech.render(&[system, other], false).and_then(|text| speech.encode(&text));
        rendered.map_or(0, |other| ids.iter().zip(&other).take_while(|(a, b)| a == b).count())
    }

    /// Writes it to a file.
    pub fn save(&self, path: &Path) -> Result<()> {
        let messages: Vec<Message> =
            self.system_message().into_iter().chain(self.messages.iter().cloned()).collect();
        let text = format!("{:#}\n", json!({ "messages": messages }));
        durable::write(path, text.as_bytes()).map_err(|error| Failure::write(path, &error))
    }

    /// Reads it from a file: an object with `messages`, or the list alone.
    pub fn load(path: &Path) -> Result<Conversation> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum File {
            Object { messages: Vec<Message> },
            List(Vec<Message>),
        }
        let text = fs::read_to_string(path).map_err(|error| Failure::read(path, &error))?;
        let bad = |why: &str| {
            let advice = "it should be {\"messages\": [{\"role\": …, \"content\": …}]}, as /save writes it";
            Failure::new(Code::BadData, format!("{} is no conversation ({why}): {advice}", path.display()))
        };
        let (File::Object { mut messages } | File::List(mut messages)) =
            serde_json::from_str(&text).map_err(|error| bad(&error.to_string()))?;
        let system =
            messages.first().is_some_and(|first| first.role == SYSTEM).then(|| messages.remove(0).content);
        if let Some(other) = messages.iter().find(|message| ![USER, ASSISTANT].contains(&&*message.role)) {
            return Err(bad(&format!("it has a message of \"{}\"", other.role)));
        }
        Ok(Conversation { system, messages, hidden: 0 })
    }
}

impl Speech<'_> {
    /// The text of messages, and with `is_asked` of the beginning of an answer.
    pub fn render(&self, messages: &[Message], is_asked: bool) -> Result<String> {
        let mut variables = self.special.clone();
        variables.insert("messages".into(), json!(messages));
        variables.insert("add_generation_prompt".into(), is_asked.into());
        let rendered = sandbox::render_apart(self.template, &Value::Object(variables));
        let rendered = rendered.map_err(|error| {
            Failure::new(
                Code::Failed,
                format!("cannot start a process to render the chat template ({error})"),
            )
        })?;
        rendered.map_err(|problem| {
            let advice = "another template can be given with --template @FILE";
            Failure::new(Code::BadData, format!("{problem}: {advice}"))
        })
    }

    /// The tokens of a rendered text, in which special tokens are special.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        self.tokenizer.encode_with_special(text.as_bytes(), &mut ids)?;
        Ok(ids)
    }

    /// The special token that follows what the model said, if the template puts one there.
    pub fn end_of_turn(&self) -> Result<Option<u32>> {
        const SAID: &str = "what was said";
        let said = |role: &str, content: &str| Message { role: role.into(), content: content.into() };
        let talk = [said(USER, "a question"), said(ASSISTANT, SAID)];
        let text = self.render(&talk, false)?;
        let Some((_, behind)) = text.rsplit_once(SAID) else { return Ok(None) };
        let behind = behind.trim_start();
        let special = self.tokenizer.special_tokens().iter();
        let ends =
            special.filter(|(token, _)| behind.starts_with(&**token)).max_by_key(|(token, _)| token.len());
        Ok(ends.map(|(_, id)| *id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversation_survives_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("talk.json");
        let mut conversation = Conversation::new(Some("Be kind.".into()));
        conversation.ask("Wie geht's? \"gut\"".into());
        conversation.answer("Ja\n".into());
        conversation.save(&path).unwrap();
        assert_eq!(Conversation::load(&path).unwrap(), conversation);
        fs::write(&path, r#"[{"role": "user", "content": "x"}]"#).unwrap();
        let listed = Conversation::load(&path).unwrap();
        assert_eq!((listed.system.as_deref(), listed.len()), (None, 1));
        for bad in
            ["{}", "[1]", r#"[{"role": "tool", "content": ""}]"#, "", r#"{"messages": [{"role": "user"}]}"#]
        {
            fs::write(&path, bad).unwrap();
            let said = Conversation::load(&path).unwrap_err().to_string();
            assert!(said.contains("is no conversation"), "{bad}: {said}");
        }
    }
}
