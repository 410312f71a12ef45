//! `tokenizer.json` of Hugging Face `tokenizers`, for byte-level BPE, and the older `vocab.json` with `merges.txt`.
//!
//! What is written loads there with the same ids. What is read is what is written here, with the variations
//! found in published files that do not change ids; anything else is refused by name.

use std::fmt;

use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{Bpe, Parts};
use crate::byte_level::ByteLevel;
use crate::normal::Normalization;
use crate::pattern::Pattern;
use crate::special::Specials;
use crate::{Error, Result};

pub(crate) fn to_json(bpe: &Bpe) -> String {
    let alphabet = ByteLevel::new();
    let specials = bpe.specials.as_slice();
    let name_of = |id: u32| match specials.binary_search_by_key(&id, |&(_, id)| id) {
        Ok(idx) => specials[idx].0.clone(),
        Err(_) => {
            alphabet.render(bpe.model.tokens.get(id as usize).and_then(Option::as_deref).unwrap_or_default())
        }
    };
    let mut vocab = Map::new();
    for (token, id) in bpe.model.tokens.iter().zip(0..) {
        if token.is_some() {
            vocab.insert(name_of(id), json!(id));
        }
    }
    let merges: Vec<String> = bpe
        .model
        .merges
        .iter()
        .map(|&(left, right)| format!("{} {}", name_of(left), name_of(right)))
        .collect();
    let added: Vec<AddedToken> = specials.iter().map(|(text, id)| AddedToken::special(text, *id)).collect();
    let pre_tokenizer = match bpe.splitter.pattern() {
        Pattern::Gpt2 => byte_level(true),
        pattern => {
            let regex = json!({"Regex": pattern.regex()});
            let split = json!({"type": "Split", "pattern": regex, "behavior": "Isolated", "invert": false});
            json!({"type": "Sequence", "pretokenizers": [split, byte_level(false)]})
        }
    };
    let file = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": (bpe.normalization == Normalization::Nfc).then(|| json!({"type": "NFC"})),
        "pre_tokenizer": pre_tokenizer,
        "post_processor": null,
        "decoder": byte_level(true),
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            "ignore_merges": bpe.ignore_merges,
            "vocab": vocab,
            "merges": merges,
        },
    });
    format!("{file:#}\n")
}

fn byte_level(use_regex: bool) -> Value {
    json!({
        "type": "ByteLevel",
        "add_prefix_space": false,
        "trim_offsets": true,
        "use_regex": use_regex,
    })
}

pub(crate) fn from_json(json: &str) -> Result<Bpe> {
    let file: File = serde_json::from_str(json).map_err(|error| Error::Format(error.to_string()))?;
    let pattern = file.supported_pattern()?;
    let normalization = file.normalization()?;
    file.model.check_supported()?;
    let is_found_later = |added: &&AddedToken| added.normalized && normalization != Normalization::None;
    if let Some(added) = file.added_tokens.iter().find(is_found_later) {
        return Err(Error::Unsupported(format!("the normalized added token {:?}", added.content)));
    }
    let specials = file.added_tokens.iter().map(AddedToken::as_special).collect::<Result<Vec<_>>>()?;
    let specials = Specials::new(specials)?;
    let merges = file.model.merges.iter().map(Merge::names);
    let (tokens, merges) = tokens_and_merges(&file.model.vocab, merges, &specials)?;
    let ignore_merges = file.model.ignore_merges;
    Bpe::new(Parts { pattern, normalization, specials, tokens, merges, ignore_merges })
}

/// Reads a `vocab.json` and the `merges.txt` that belongs to it. The names in `special` are special tokens.
pub(crate) fn from_vocab_and_merges(
    vocab: &str,
    merges: &str,
    pattern: &Pattern,
    special: &[String],
) -> Result<Bpe> {
    let vocab: Vocab = serde_json::from_str(vocab).map_err(|error| Error::Format(error.to_string()))?;
    let id_of = |text: &String| {
        let id = vocab.0.iter().find(|(name, _)| name == text).and_then(|&(_, id)| u32::try_from(id).ok());
        let missing = || Error::Format(format!("the special token {text:?} is not in the vocabulary"));
        Ok((text.clone(), id.ok_or_else(missing)?))
    };
    let specials = Specials::new(special.iter().map(id_of).collect::<Result<Vec<_>>>()?)?;
    // The first line may say which version the file is of.
    let is_merge = |line: &&str| !line.is_empty() && !line.starts_with("#version");
    let lines = merges.lines().filter(is_merge).map(two_names);
    let (tokens, merges) = tokens_and_merges(&vocab, lines, &specials)?;
    let pattern = pattern.clone();
    Bpe::new(Parts {
        pattern,
        normalization: Normalization::None,
        specials,
        tokens,
        merges,
        ignore_merges: false,
    })
}

/// Tokens by id, and merges as pairs of ids in order of rank.
type TokensAndMerges = (Vec<Option<Box<[u8]>>>, Vec<(u32, u32)>);

fn tokens_and_merges<'m>(
    vocab: &Vocab,
    merges: impl Iterator<Item = Result<(&'m str, &'m str)>>,
    specials: &Specials,
) -> Result<TokensAndMerges> {
    let alphabet = ByteLevel::new();
    let mut tokens = TokenTable::for_vocabulary(vocab.0.len() + specials.as_slice().len());
    for (text, id) in specials.as_slice() {
        tokens.set(u64::from(*id), text.as_bytes(), text)?;
    }
    for (name, id) in &vocab.0 {
        match specials.id(name) {
            Some(special_id) if u64::from(special_id) == *id => {}
            Some(special_id) => {
                return Err(Error::Format(format!(
                    "special token {name:?} has the ids {special_id} and {id}"
                )));
            }
            None => {
                let bytes = alphabet.parse(name).ok_or_else(|| {
                    Error::Unsupported(format!("the token {name:?}, which is not in the byte-level alphabet"))
                })?;
                tokens.set(*id, &bytes, name)?;
            }
        }
    }

    let ids: hashbrown::HashMap<&str, u64> = vocab.0.iter().map(|(name, id)| (name.as_str(), *id)).collect();
    let id_of = |name: &str| {
        let id = ids.get(name).and_then(|&id| u32::try_from(id).ok());
        id.ok_or_else(|| Error::Format(format!("a merge uses {name:?}, which is not in the vocabulary")))
    };
    let pairs = merges.map(|names| {
        let (left, right) = names?;
        Ok((id_of(left)?, id_of(right)?))
    });
    Ok((tokens.tokens, pairs.collect::<Result<Vec<_>>>()?))
}

/// Tokens by id, which grows as ids come but not beyond what the number of tokens in the file justifies.
struct TokenTable {
    tokens: Vec<Option<Box<[u8]>>>,
    max_len: u64,
}

impl TokenTable {
    fn for_vocabulary(n_tokens: usize) -> Self {
        Self { tokens: Vec::with_capacity(n_tokens), max_len: 2 * n_tokens as u64 }
    }

    fn set(&mut self, id: u64, bytes: &[u8], name: &str) -> Result<()> {
        if id >= self.max_len || u32::try_from(id).is_err() {
            return Err(Error::Format(format!(
                "token {name:?} has the id {id}, but most ids below it are unused"
            )));
        }
        let idx = id as usize;
        if idx >= self.tokens.len() {
            self.tokens.resize(idx + 1, None);
        }
        if self.tokens[idx].is_some() {
            return Err(Error::Format(format!("token {name:?} has the id {id} of another token")));
        }
        self.tokens[idx] = Some(bytes.into());
        Ok(())
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default, rename = "version")]
    _version: Option<String>,
    #[serde(default)]
    truncation: Option<Value>,
    #[serde(default)]
    padding: Option<Value>,
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    #[serde(default)]
    normalizer: Option<Value>,
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Option<Value>,
    #[serde(default)]
    decoder: Option<Value>,
    model: Model,
}

impl File {
    fn normalization(&self) -> Result<Normalization> {
        match &self.normalizer {
            None => Ok(Normalization::None),
            Some(part) if *part == json!({"type": "NFC"}) => Ok(Normalization::Nfc),
            Some(part) => Err(unsupported("normalizer", part)),
        }
    }

    /// The pattern, if nothing in the file around the model changes ids in a way that is not supported.
    fn supported_pattern(&self) -> Result<Pattern> {
        for (name, part) in [("truncation", &self.truncation), ("padding", &self.padding)] {
            if let Some(part) = part {
                return Err(unsupported(name, part));
            }
        }
        // A ByteLevel post-processor moves offsets only, and the decoder of byte-level tokens is always the
        // same.
        for (name, part) in [("post_processor", &self.post_processor), ("decoder", &self.decoder)] {
            if let Some(part) = part
                && type_of(part) != Some("ByteLevel")
            {
                return Err(unsupported(name, part));
            }
        }
        let steps = match type_of(&self.pre_tokenizer) {
            Some("Sequence") => self.pre_tokenizer["pretokenizers"].as_array().map_or(&[][..], Vec::as_slice),
            _ => std::slice::from_ref(&self.pre_tokenizer),
        };
        match steps {
            [only] if is_byte_level(only, true) => Ok(Pattern::Gpt2),
            [split, rest] if is_byte_level(rest, false) => {
                split_regex(split).ok_or_else(|| unsupported("pre_tokenizer", split))
            }
            _ => Err(unsupported("pre_tokenizer", &self.pre_tokenizer)),
        }
    }
}

fn type_of(part: &Value) -> Option<&str> {
    part.get("type")?.as_str()
}

fn unsupported(name: &str, part: &Value) -> Error {
    const MAX_SHOWN_CHARACTERS: usize = 200;
    let shown: String = part.to_string().chars().take(MAX_SHOWN_CHARACTERS).collect();
    Error::Unsupported(format!("the {name} {shown}"))
}

fn is_byte_level(step: &Value, use_regex: bool) -> bool {
    type_of(step) == Some("ByteLevel")
        && step["add_prefix_space"] == json!(false)
        && step.get("use_regex").unwrap_or(&json!(true)) == &json!(use_regex)
}

fn split_regex(step: &Value) -> Option<Pattern> {
    let isolated = type_of(step) == Some("Split")
        && step["behavior"] == json!("Isolated")
        && step.get("invert").unwrap_or(&json!(false)) == &json!(false);
    isolated.then(|| step["pattern"]["Regex"].as_str()).flatten().map(Pattern::from_regex)
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AddedToken {
    id: u32,
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    /// Whether it is found in normalised text; without a normalizer this has no effect.
    #[serde(default)]
    normalized: bool,
    /// Whether decoders may leave it out; it is found in text either way.
    #[serde(default)]
    special: bool,
}

impl AddedToken {
    fn special(text: &str, id: u32) -> Self {
        let content = text.to_owned();
        Self {
            id,
            content,
            single_word: false,
            lstrip: false,
            rstrip: false,
            normalized: false,
            special: true,
        }
    }

    fn as_special(&self) -> Result<(String, u32)> {
        for (set, name) in
            [(self.single_word, "single_word"), (self.lstrip, "lstrip"), (self.rstrip, "rstrip")]
        {
            if set {
                return Err(Error::Unsupported(format!("the {name} added token {:?}", self.content)));
            }
        }
        Ok((self.content.clone(), self.id))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Model {
    #[serde(default)]
    r#type: Option<String>,
    #[serde(default)]
    dropout: Option<f64>,
    #[serde(default)]
    unk_token: Option<String>,
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
    #[serde(default)]
    end_of_word_suffix: Option<String>,
    /// Every byte has a token, so there is never an unknown one to fuse.
    #[serde(default, rename = "fuse_unk")]
    _fuse_unk: bool,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
    vocab: Vocab,
    merges: Vec<Merge>,
}

impl Model {
    fn check_supported(&self) -> Result<()> {
        let is_set = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        let problem = match &self.r#type {
            Some(name) if name != "BPE" => Some(format!("a {name} model")),
            _ if self.dropout.is_some_and(|dropout| dropout != 0.0) => Some("merge dropout".to_owned()),
            _ if self.unk_token.is_some() => Some("an unknown token".to_owned()),
            _ if is_set(&self.continuing_subword_prefix) => Some("a continuing-subword prefix".to_owned()),
            _ if is_set(&self.end_of_word_suffix) => Some("an end-of-word suffix".to_owned()),
            _ if self.byte_fallback => Some("byte fallback".to_owned()),
            _ => None,
        };
        problem.map_or(Ok(()), |problem| Err(Error::Unsupported(problem)))
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Joined(String),
    Pair(String, String),
}

impl Merge {
    fn names(&self) -> Result<(&str, &str)> {
        match self {
            Self::Pair(left, right) => Ok((left, right)),
            Self::Joined(text) => two_names(text),
        }
    }
}

fn two_names(text: &str) -> Result<(&str, &str)> {
    let bad = || Error::Format(format!("the merge {text:?} is not two tokens with a space between"));
    text.split_once(' ').filter(|(_, right)| !right.contains(' ')).ok_or_else(bad)
}

/// The vocabulary in file order, in which a name must not occur twice.
struct Vocab(Vec<(String, u64)>);

impl<'de> Deserialize<'de> for Vocab {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Vocab;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map from tokens to ids")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Vocab, A::Error> {
                let mut entries = Vec::new();
                let mut seen = hashbrown::HashSet::new();
                while let Some((name, id)) = map.next_entry::<String, u64>()? {
                    if !seen.insert(name.clone()) {
                        return Err(serde::de::Error::custom(format!(
                            "token {name:?} occurs twice in the vocabulary"
                        )));
                    }
                    entries.push((name, id));
                }
                Ok(Vocab(entries))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}
