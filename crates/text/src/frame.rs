//! Special tokens around a text, as the makers of a vocabulary want it given to their model: the post-processors of a
//! `tokenizer.json`.

use serde_json::{Value, json};

use crate::hugging_face::{type_of, unsupported};
use crate::{Error, Result};

/// What stands before and behind a text.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Frame {
    before: Vec<u32>,
    after: Vec<u32>,
    /// What the file says, which also knows about pairs of texts.
    post_processor: Value,
}

impl Frame {
    /// The frame of these special tokens, each a text and its id.
    pub(crate) fn of<T: AsRef<str>>(before: &[(T, u32)], after: &[(T, u32)]) -> Self {
        let ids = |tokens: &[(T, u32)]| tokens.iter().map(|&(_, id)| id).collect();
        if before.is_empty() && after.is_empty() {
            return Self::default();
        }
        let around = |name: &str, type_id: u32| {
            let token =
                |(text, _): &(T, u32)| json!({"SpecialToken": {"id": text.as_ref(), "type_id": type_id}});
            let text = json!({"Sequence": {"id": name, "type_id": type_id}});
            before.iter().map(token).chain([text]).chain(after.iter().map(token)).collect::<Vec<Value>>()
        };
        let special = |(text, id): &(T, u32)| {
            let text = text.as_ref();
            (text.to_owned(), json!({"id": text, "ids": [id], "tokens": [text]}))
        };
        let special: serde_json::Map<String, Value> = before.iter().chain(after).map(special).collect();
        let pair = [around("A", 0), around("B", 1)].concat();
        let post_processor = json!({
            "type": "TemplateProcessing",
            "single": around("A", 0),
            "pair": pair,
            "special_tokens": special,
        });
        Self { before: ids(before), after: ids(after), post_processor }
    }

    /// Reads a post-processor.
    pub(crate) fn from_json(post_processor: &Value) -> Result<Self> {
        let mut frame = Self::default();
        frame.add(post_processor)?;
        if !frame.before.is_empty() || !frame.after.is_empty() {
            frame.post_processor = post_processor.clone();
        }
        Ok(frame)
    }

    /// Adds what a post-processor puts around the text and whatever is around it already.
    fn add(&mut self, part: &Value) -> Result<()> {
        let (before, after) = match type_of(part) {
            // It moves offsets only.
            Some("ByteLevel") => return Ok(()),
            None if part.is_null() => return Ok(()),
            Some("Sequence") => {
                let parts = part["processors"].as_array();
                return parts
                    .ok_or_else(|| unsupported("post_processor", part))?
                    .iter()
                    .try_for_each(|part| self.add_one(part));
            }
            Some("BertProcessing" | "RobertaProcessing") => {
                let id = |name: &str| id_of(&part[name][1]).map(|id| vec![id]);
                id("cls").zip(id("sep")).ok_or_else(|| unsupported("post_processor", part))?
            }
            Some("TemplateProcessing") => template(part)?,
            _ => return Err(unsupported("post_processor", part)),
        };
        self.before.splice(..0, before);
        self.after.extend(after);
        Ok(())
    }

    /// [`add`](Self::add) for a part of a sequence, which is no sequence itself.
    fn add_one(&mut self, part: &Value) -> Result<()> {
        if type_of(part) == Some("Sequence") {
            return Err(unsupported("post_processor", part));
        }
        self.add(part)
    }

    /// Refuses ids for which `is_known` says no.
    pub(crate) fn check(&self, is_known: impl Fn(u32) -> bool) -> Result<()> {
        match self.before.iter().chain(&self.after).find(|&&id| !is_known(id)) {
            Some(id) => Err(Error::Format(format!("its post-processor has the id {id}, which is no token"))),
            None => Ok(()),
        }
    }

    pub(crate) fn before(&self) -> &[u32] {
        &self.before
    }

    pub(crate) fn after(&self) -> &[u32] {
        &self.after
    }

    /// The post-processor, or null.
    pub(crate) fn to_json(&self) -> Value {
        self.post_processor.clone()
    }
}

fn id_of(value: &Value) -> Option<u32> {
    u32::try_from(value.as_u64()?).ok()
}

/// What a template for one text has before and behind it.
fn template(part: &Value) -> Result<(Vec<u32>, Vec<u32>)> {
    let refused = || unsupported("post_processor", part);
    let (mut before, mut after) = (Vec::new(), Vec::new());
    let mut n_texts = 0;
    for step in part["single"].as_array().ok_or_else(refused)? {
        if let Some(name) = step["SpecialToken"]["id"].as_str() {
            let ids = part["special_tokens"][name]["ids"].as_array().ok_or_else(refused)?;
            let ids = ids.iter().map(id_of).collect::<Option<Vec<u32>>>().ok_or_else(refused)?;
            if n_texts == 0 { &mut before } else { &mut after }.extend(ids);
        } else if step["Sequence"]["id"] == json!("A") {
            n_texts += 1;
        } else {
            return Err(refused());
        }
    }
    if n_texts == 1 { Ok((before, after)) } else { Err(refused()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn post_processors_are_what_they_put_around_a_text() {
        let bert = json!({"type": "BertProcessing", "sep": ["[SEP]", 102], "cls": ["[CLS]", 101]});
        let frame = Frame::from_json(&bert).unwrap();
        assert_eq!((frame.before(), frame.after()), (&[101][..], &[102][..]));
        assert_eq!(frame.to_json(), bert);

        let written = Frame::of(&[("<s>", 1), ("<t>", 7)], &[("</s>", 2)]);
        let read = Frame::from_json(&written.to_json()).unwrap();
        assert_eq!((read.before(), read.after()), (&[1, 7][..], &[2][..]));
        assert_eq!(read, written);

        let level = json!({"type": "ByteLevel"});
        let both = json!({"type": "Sequence", "processors": [level, written.to_json(), bert]});
        let frame = Frame::from_json(&both).unwrap();
        assert_eq!((frame.before(), frame.after()), (&[101, 1, 7][..], &[2, 102][..]));
        assert_eq!(Frame::from_json(&level).unwrap(), Frame::default());
        assert_eq!(Frame::from_json(&Value::Null).unwrap(), Frame::default());
    }

    #[test]
    fn what_is_none_of_them_is_refused_by_name() {
        let nested = json!({"type": "Sequence", "processors": [{"type": "Sequence", "processors": []}]});
        let twice = json!({"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}}, {"Sequence": {"id": "A"}}]});
        let unknown = json!({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "[X]"}}]});
        for part in
            [json!({"type": "Other"}), nested, twice, unknown, json!({"type": "BertProcessing"}), json!(7)]
        {
            let error = Frame::from_json(&part).unwrap_err();
            assert!(matches!(error, Error::Unsupported(_)), "{error}");
        }
        assert!(Frame::of(&[("a", 5)], &[]).check(|id| id < 5).is_err());
    }
}
