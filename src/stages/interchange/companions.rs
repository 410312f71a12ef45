//! What travels with a model besides its parameters: tokenizer, special tokens, chat template, how to generate.

use super::frame::tokenizer_of_folder;
use super::vocabulary;
use crate::failure::{Code, Failure, Result};
use ironmill_data::gguf::{Gguf, Value as Entry};
use ironmill_text::{GgufVocabulary, Kind, Tokenizer};
use serde_json::{Map, Value, json};
use std::fs;
use std::path::Path;

/// Files of a Hugging Face folder that are taken along as they are.
const FILES: [&str; 14] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "generation_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "1_Pooling/config.json",
];
/// The most bytes of such a file.
const MAX_FILE_BYTES: u64 = 256 << 20;
/// The special tokens by the names of Hugging Face, and what their ids are called in GGUF files.
const SPECIAL: [(&str, &str); 4] = [
    ("bos", "bos_token_id"),
    ("eos", "eos_token_id"),
    ("unk", "unknown_token_id"),
    ("pad", "padding_token_id"),
];

/// What travels with a model.
#[derive(Default)]
pub struct Companions {
    tokenizer: Option<Tokenizer>,
    files: Vec<(String, Vec<u8>)>,
    /// Ids of special tokens as a `config.json` has them: `bos_token_id` and so on.
    ids: Map<String, Value>,
    /// The entries of a GGUF file that are not about sizes.
    entries: Vec<(String, Entry)>,
}

impl Companions {
    /// What lies beside a model: in its folder, or in its GGUF file. A tokenizer that is asked for takes the place of the model's.
    pub fn of(model: &Path, tokenizer: Option<&Path>) -> Result<Companions> {
        let mut found = if model.is_dir() { Self::of_folder(model)? } else { Self::of_file(model)? };
        if let Some(path) = tokenizer {
            let tokenizer = Tokenizer::load(path)?;
            found.files.retain(|(name, _)| {
                !["tokenizer.json", "vocab.json", "vocab.txt", "merges.txt", "added_tokens.json"]
                    .contains(&name.as_str())
            });
            found.entries.retain(|(key, _)| !key.starts_with("tokenizer.ggml."));
            found.set_tokenizer(tokenizer);
        }
        found.complete_ids();
        Ok(found)
    }

    /// Takes special tokens that nobody named from the tokenizer: without its id, `<bos>` would be lost on the way to a GGUF file.
    fn complete_ids(&mut self) {
        let Some(tokenizer) = &self.tokenizer else { return };
        // What an encoder's vocabulary puts around a text is neither a beginning nor an end.
        let around =
            if tokenizer.kind() == Kind::WordPiece { (&[][..], &[][..]) } else { tokenizer.around() };
        let end = around.1.first().copied().or_else(|| tokenizer.end_of_text());
        for (key, id) in [("bos_token_id", around.0.first().copied()), ("eos_token_id", end)] {
            if let Some(id) = id {
                self.ids.entry(key).or_insert(id.into());
            }
        }
    }

    /// The tokenizer, where there is one.
    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        self.tokenizer.as_ref()
    }

    fn of_folder(folder: &Path) -> Result<Companions> {
        let mut found = Companions::default();
        for name in FILES {
            let path = folder.join(name);
            let Ok(about) = fs::metadata(&path) else { continue };
            if about.len() > MAX_FILE_BYTES {
                let message =
                    format!("{} has {} bytes, which is no such file: remove it", path.display(), about.len());
                return Err(Failure::new(Code::BadData, message));
            }
            let bytes = fs::read(&path).map_err(|error| Failure::read(&path, &error))?;
            found.files.push((name.into(), bytes));
        }
        let path = folder.join("tokenizer.json");
        if path.is_file() {
            found.tokenizer = Some(tokenizer_of_folder(folder)?);
        }
        for name in ["generation_config.json", "config.json"] {
            let config = read_object(&folder.join(name));
            for (special, _) in SPECIAL {
                let key = format!("{special}_token_id");
                if let Some(id) = config.get(&key).filter(|id| !id.is_null()) {
                    found.ids.entry(key).or_insert_with(|| id.clone());
                }
            }
        }
        Ok(found)
    }

    fn of_file(path: &Path) -> Result<Companions> {
        let mut found = Companions::default();
        // Checkpoints of llm.c have nothing but parameters.
        let Ok(file) = Gguf::open(path) else { return Ok(found) };
        if let Some(vocabulary) = vocabulary::of_gguf(&file) {
            for (name, id) in special_ids(&vocabulary, &file) {
                found.ids.insert(format!("{name}_token_id"), id.into());
            }
            found.set_tokenizer(Tokenizer::from_gguf(&vocabulary)?);
        }
        if let Some(Entry::Text(template)) = file.value("tokenizer.chat_template") {
            found.files.push(("chat_template.jinja".into(), template.clone().into_bytes()));
        }
        let is_kept =
            |key: &str| key.starts_with("tokenizer.") || ["general.name", "general.license"].contains(&key);
        let entries = file.metadata().iter().filter(|(key, _)| is_kept(key));
        found.entries = entries.map(|(key, value)| (key.clone(), value.clone())).collect();
        Ok(found)
    }

    fn set_tokenizer(&mut self, tokenizer: Tokenizer) {
        self.files.push(("tokenizer.json".into(), tokenizer.to_json().into_bytes()));
        self.tokenizer = Some(tokenizer);
    }

    /// Adds the ids of special tokens to a `config.json`.
    pub fn describe(&self, config: &mut Value) {
        for (key, id) in self.ids.iter().filter(|(key, _)| *key != "unk_token_id") {
            config[key] = id.clone();
        }
    }

    /// The files of a folder, with those that `transformers` wants and the source did not have.
    pub fn files(&self, context: usize) -> Result<Vec<(String, Vec<u8>)>> {
        let mut files = self.files.clone();
        let mut add = |name: &str, make: &dyn Fn() -> Value| {
            if !files.iter().any(|(known, _)| known == name) {
                files.push((name.to_string(), format!("{:#}\n", make()).into_bytes()));
            }
        };
        add("generation_config.json", &|| {
            let known = self.ids.iter().filter(|(key, _)| *key != "unk_token_id");
            Value::Object(known.map(|(key, id)| (key.clone(), id.clone())).collect())
        });
        if let Some(tokenizer) = &self.tokenizer {
            let special = self.special_texts(tokenizer);
            add("special_tokens_map.json", &|| Value::Object(special.clone()));
            add("tokenizer_config.json", &|| {
                let mut about = json!({
                    "tokenizer_class": "PreTrainedTokenizerFast",
                    "model_max_length": context,
                    "clean_up_tokenization_spaces": false,
                });
                special.iter().for_each(|(name, text)| about[name] = text.clone());
                about
            });
        }
        Ok(files)
    }

    /// The texts of the special tokens: `bos_token` and so on.
    fn special_texts(&self, tokenizer: &Tokenizer) -> Map<String, Value> {
        let mut texts = Map::new();
        for (special, _) in SPECIAL {
            let id = first_id(self.ids.get(&format!("{special}_token_id")));
            let text = id.and_then(|id| {
                tokenizer.special_tokens().iter().find(|(_, known)| *known == id).map(|(text, _)| text)
            });
            if let Some(text) = text {
                texts.insert(format!("{special}_token"), text.as_str().into());
            }
        }
        texts
    }

    /// The metadata of a GGUF file that is not about sizes, for a model with so many rows of embeddings.
    pub fn gguf_entries(&self, vocab_size: usize) -> Result<Vec<(String, Entry)>> {
        let mut entries = self.entries.clone();
        if !entries.iter().any(|(key, _)| key == "tokenizer.ggml.model")
            && let Some(tokenizer) = &self.tokenizer
        {
            entries.extend(vocabulary::to_gguf(tokenizer, vocab_size)?);
            for (special, key) in SPECIAL {
                if let Some(id) = first_id(self.ids.get(&format!("{special}_token_id"))) {
                    entries.push((format!("tokenizer.ggml.{key}"), Entry::Unsigned(id.into())));
                }
            }
        }
        if !entries.iter().any(|(key, _)| key == "tokenizer.chat_template")
            && let Some(template) = self.chat_template()
        {
            entries.push(("tokenizer.chat_template".into(), Entry::Text(template)));
        }
        Ok(entries)
    }

    fn chat_template(&self) -> Option<String> {
        let file = |name: &str| {
            self.files.iter().find(|(known, _)| known == name).map(|(_, bytes)| bytes.as_slice())
        };
        if let Some(template) = file("chat_template.jinja") {
            return Some(String::from_utf8_lossy(template).into_owned());
        }
        let config: Value = serde_json::from_slice(file("tokenizer_config.json")?).ok()?;
        config["chat_template"].as_str().map(String::from)
    }
}

/// The tokens that end a text of a model's, as its `generation_config.json` or `config.json` says.
pub fn end_ids(folder: &Path) -> Vec<u32> {
    let mut ids = Vec::new();
    for name in ["generation_config.json", "config.json"] {
        let config = read_object(&folder.join(name));
        let listed = match config.get("eos_token_id") {
            Some(Value::Array(list)) => list.clone(),
            Some(one) => vec![one.clone()],
            None => Vec::new(),
        };
        ids.extend(listed.iter().filter_map(|id| first_id(Some(id))));
    }
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// An object of a small JSON file; nothing where there is none.
pub(super) fn read_object(path: &Path) -> Map<String, Value> {
    let is_small = fs::metadata(path).is_ok_and(|about| about.len() <= MAX_FILE_BYTES);
    let bytes = if is_small { fs::read(path).unwrap_or_default() } else { Vec::new() };
    serde_json::from_slice(&bytes).unwrap_or_default()
}

/// An id, or the first of a list.
fn first_id(value: Option<&Value>) -> Option<u32> {
    let value = value?;
    let one = value.as_array().and_then(|list| list.first()).unwrap_or(value);
    one.as_u64().and_then(|id| u32::try_from(id).ok())
}

fn special_ids(vocabulary: &GgufVocabulary, file: &Gguf) -> Vec<(&'static str, u32)> {
    let known = |id: &u32| (*id as usize) < vocabulary.tokens.len();
    let mut ids = Vec::new();
    for (name, key) in SPECIAL {
        let id = vocabulary::number(file, key).and_then(|id| u32::try_from(id).ok()).filter(known);
        ids.extend(id.map(|id| (name, id)));
    }
    ids
}
