//! `tokenizer.json` of Hugging Face `tokenizers`: what its kinds share.
//!
//! A file names a normalizer, a pre-tokenizer, a model, a post-processor and a decoder. Combinations that are known come to
//! one of three kinds of vocabulary, each with a reader of its own; anything else is refused by name.

use std::fmt;

use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::special::{Rules, Specials};
use crate::{Error, Result};

/// A whole file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct File {
    #[serde(default, rename = "version")]
    _version: Option<String>,
    /// How long the texts of somebody's batches were to be, which is no part of a vocabulary: no text is cut or padded here.
    #[serde(default, rename = "truncation")]
    _truncation: Option<IgnoredAny>,
    #[serde(default, rename = "padding")]
    _padding: Option<IgnoredAny>,
    #[serde(default)]
    pub(crate) added_tokens: Vec<AddedToken>,
    #[serde(default)]
    pub(crate) normalizer: Value,
    #[serde(default)]
    pub(crate) pre_tokenizer: Value,
    #[serde(default)]
    pub(crate) post_processor: Value,
    #[serde(default)]
    pub(crate) decoder: Value,
    pub(crate) model: Model,
}

impl File {
    pub(crate) fn parse(json: &str) -> Result<Self> {
        serde_json::from_str(json).map_err(|error| Error::Format(error.to_string()))
    }

    /// Whether tokens are written in the byte-level alphabet.
    pub(crate) fn is_byte_level(&self) -> bool {
        steps(&self.pre_tokenizer, "pretokenizers").iter().any(|step| type_of(step) == Some("ByteLevel"))
    }

    /// The added tokens, found as the file says; `normalise` is what its normalizer does, if there is one.
    pub(crate) fn specials(&self, normalise: Option<&dyn Fn(&str) -> String>) -> Result<Specials> {
        // Without a normalizer it makes no difference that all tokens are looked for in normalised text.
        let all_normalized = normalise.is_none() && self.added_tokens.iter().all(|added| added.normalized);
        let specials = self.added_tokens.iter().map(|added| {
            let normalized = added.normalized && !all_normalized;
            (added.content.clone(), added.id, Rules { normalized, ..added.rules() })
        });
        Specials::with_rules(specials.collect(), |text| {
            normalise.map_or(text.to_owned(), |normalise| normalise(text))
        })
    }
}

/// The steps of a part of the file: those of a sequence, the part itself, or none.
pub(crate) fn steps<'f>(part: &'f Value, name: &str) -> &'f [Value] {
    match type_of(part) {
        Some("Sequence") => part[name].as_array().map_or(&[][..], Vec::as_slice),
        _ if part.is_null() => &[],
        _ => std::slice::from_ref(part),
    }
}

pub(crate) fn type_of(part: &Value) -> Option<&str> {
    part.get("type")?.as_str()
}

/// That a part of the file is not supported.
pub(crate) fn unsupported(name: &str, part: &Value) -> Error {
    const MAX_SHOWN_CHARACTERS: usize = 200;
    let shown: String = part.to_string().chars().take(MAX_SHOWN_CHARACTERS).collect();
    Error::Unsupported(format!("the {name} {shown}"))
}

/// A token beside those of the model, or one of the model's that is found before it.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AddedToken {
    id: u32,
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    normalized: bool,
    #[serde(default)]
    special: bool,
}

impl AddedToken {
    fn rules(&self) -> Rules {
        Rules {
            single_word: self.single_word,
            strips_left: self.lstrip,
            strips_right: self.rstrip,
            normalized: self.normalized,
            is_ordinary: !self.special,
        }
    }

    /// The list of a file.
    pub(crate) fn list(specials: &Specials) -> Vec<Self> {
        let added = |(text, id, rules): (&str, u32, Rules)| Self {
            id,
            content: text.to_owned(),
            single_word: rules.single_word,
            lstrip: rules.strips_left,
            rstrip: rules.strips_right,
            normalized: rules.normalized,
            special: !rules.is_ordinary,
        };
        specials.with_their_rules().map(added).collect()
    }
}

/// The model of a file, of any kind.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Model {
    #[serde(default)]
    r#type: Option<String>,
    #[serde(default)]
    dropout: Option<f64>,
    #[serde(default)]
    pub(crate) unk_token: Option<String>,
    #[serde(default, rename = "unk_id")]
    _unk_id: Option<IgnoredAny>,
    #[serde(default)]
    pub(crate) continuing_subword_prefix: Option<String>,
    #[serde(default)]
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    pub(crate) fuse_unk: bool,
    #[serde(default)]
    pub(crate) byte_fallback: bool,
    #[serde(default)]
    pub(crate) ignore_merges: bool,
    #[serde(default)]
    pub(crate) max_input_chars_per_word: Option<u64>,
    pub(crate) vocab: Vocab,
    #[serde(default)]
    pub(crate) merges: Vec<Merge>,
}

impl Model {
    /// The name of the model; files that do not say it are BPE.
    pub(crate) fn kind(&self) -> &str {
        self.r#type.as_deref().unwrap_or("BPE")
    }

    /// Refuses what no BPE here does.
    pub(crate) fn check_bpe(&self) -> Result<()> {
        let is_set = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        let problem = match self.kind() {
            "BPE" if self.dropout.is_some_and(|dropout| dropout != 0.0) => "merge dropout".to_owned(),
            "BPE" if is_set(&self.continuing_subword_prefix) => "a continuing-subword prefix".to_owned(),
            "BPE" if is_set(&self.end_of_word_suffix) => "an end-of-word suffix".to_owned(),
            "BPE" => return Ok(()),
            other => format!("a {other} model"),
        };
        Err(Error::Unsupported(problem))
    }

    /// The tokens of the vocabulary by id, with the special tokens beside it, and for each id whether it is of the vocabulary.
    pub(crate) fn names(&self, specials: &Specials) -> Result<(Names, Vec<bool>)> {
        let n_tokens = self.vocab.0.len() + specials.as_slice().len();
        let mut names: ById<Box<str>> = ById::for_vocabulary(n_tokens);
        let mut is_in_model = Vec::new();
        for (name, id) in &self.vocab.0 {
            if let Some(other) = specials.id(name).filter(|&special| u64::from(special) != *id) {
                return Err(Error::Format(format!("special token {name:?} has the ids {other} and {id}")));
            }
            names.set(*id, name.as_str().into(), name)?;
            is_in_model.resize(is_in_model.len().max(*id as usize + 1), false);
            is_in_model[*id as usize] = true;
        }
        for (text, id) in specials.as_slice() {
            let is_known = is_in_model.get(*id as usize) == Some(&true);
            if !is_known || names.name(*id) != Some(text) {
                names.set(u64::from(*id), text.as_str().into(), text)?;
            }
        }
        let names = names.into_vec();
        is_in_model.resize(names.len(), false);
        Ok((names, is_in_model))
    }

    /// The merges as pairs of names, in order of rank.
    pub(crate) fn merge_names(&self) -> impl Iterator<Item = Result<(&str, &str)>> {
        self.merges.iter().map(Merge::names)
    }
}

/// One merge, in either of the ways in which files write it.
#[derive(Deserialize)]
#[serde(untagged)]
pub(crate) enum Merge {
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

/// The names of a merge written as one text.
pub(crate) fn two_names(text: &str) -> Result<(&str, &str)> {
    let bad = || Error::Format(format!("the merge {text:?} is not two tokens with a space between"));
    text.split_once(' ').filter(|(_, right)| !right.contains(' ')).ok_or_else(bad)
}

/// The vocabulary in file order, in which a name must not occur twice. Empty for a model that has a list of scores instead,
/// which is refused by its name.
pub(crate) struct Vocab(pub(crate) Vec<(String, u64)>);

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

            fn visit_seq<A: SeqAccess<'de>>(self, mut scores: A) -> std::result::Result<Vocab, A::Error> {
                while scores.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Vocab(Vec::new()))
            }
        }
        deserializer.deserialize_any(Entries)
    }
}

/// Tokens by id, as files write them.
pub(crate) type Names = Vec<Option<Box<str>>>;

/// What tokens are by id, which grows as ids come but not beyond what the number of tokens in the file justifies.
pub(crate) struct ById<T> {
    tokens: Vec<Option<T>>,
    max_len: u64,
}

impl<T: Clone> ById<T> {
    pub(crate) fn for_vocabulary(n_tokens: usize) -> Self {
        Self { tokens: Vec::with_capacity(n_tokens), max_len: 2 * n_tokens as u64 }
    }

    pub(crate) fn set(&mut self, id: u64, token: T, name: &str) -> Result<()> {
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
        self.tokens[idx] = Some(token);
        Ok(())
    }

    pub(crate) fn into_vec(self) -> Vec<Option<T>> {
        self.tokens
    }
}

impl ById<Box<str>> {
    fn name(&self, id: u32) -> Option<&str> {
        self.tokens.get(id as usize)?.as_deref()
    }
}
