//! Vocabularies of GGUF files, both ways.

use crate::failure::{Code, Failure, Result};
use ironmill_data::gguf::{Gguf, Value as Entry};
use ironmill_text::{GgufVocabulary, Pattern, Tokenizer};
use serde_json::Value;
use std::collections::BTreeMap;

/// The types of tokens in GGUF files.
const NORMAL: i64 = 1;
const UNKNOWN: i64 = 2;
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;
const UNUSED: i64 = 5;
const BYTE: i64 = 6;

/// How byte-level text is cut, by the names of llama.cpp.
const CUTS: [(Pattern, &str); 4] = [
    (Pattern::Gpt2, "gpt-2"),
    (Pattern::Llama3, "llama-bpe"),
    (Pattern::Qwen2, "qwen2"),
    (Pattern::O200k, "gpt-4o"),
];

/// A number below `tokenizer.ggml`.
pub(super) fn number(file: &Gguf, key: &str) -> Option<u64> {
    match file.value(&format!("tokenizer.ggml.{key}"))? {
        Entry::Unsigned(number) => Some(*number),
        Entry::Signed(number) => u64::try_from(*number).ok(),
        _ => None,
    }
}

/// The vocabulary of a file, where it has one.
pub(super) fn of_gguf(file: &Gguf) -> Option<GgufVocabulary> {
    let value = |key: &str| file.value(&format!("tokenizer.ggml.{key}"));
    let text = |key: &str| match value(key) {
        Some(Entry::Text(text)) => Some(text.clone()),
        _ => None,
    };
    let texts = |key: &str| match value(key) {
        Some(Entry::Texts(texts)) => texts.clone(),
        _ => Vec::new(),
    };
    let flag = |key: &str| match value(key) {
        Some(Entry::Bool(flag)) => Some(*flag),
        _ => None,
    };
    let id = |key: &str| number(file, key).and_then(|id| u32::try_from(id).ok());
    Some(GgufVocabulary {
        model: text("model")?,
        pre: text("pre"),
        tokens: texts("tokens"),
        scores: match value("scores") {
            Some(Entry::Floats(scores)) => scores.clone(),
            _ => Vec::new(),
        },
        token_types: match value("token_type") {
            Some(Entry::Integers(types)) => {
                types.iter().map(|&of| i32::try_from(of).unwrap_or(NORMAL as i32)).collect()
            }
            _ => Vec::new(),
        },
        merges: texts("merges"),
        bos_token_id: id("bos_token_id"),
        eos_token_id: id("eos_token_id"),
        unknown_token_id: id("unknown_token_id"),
        add_bos_token: flag("add_bos_token"),
        add_eos_token: flag("add_eos_token"),
        add_space_prefix: flag("add_space_prefix"),
    })
}

/// A vocabulary as entries of a file for a model with so many rows; rows beyond the vocabulary get names that no text has.
pub(super) fn to_gguf(tokenizer: &Tokenizer, vocab_size: usize) -> Result<Vec<(String, Entry)>> {
    let refuse = |what: String| {
        let advice =
            "export a Hugging Face folder instead, or use a tokenizer of byte-level or SentencePiece BPE";
        Failure::new(Code::BadData, format!("a GGUF file cannot hold {what}: {advice}"))
    };
    let json: Value = serde_json::from_str(&tokenizer.to_json())
        .map_err(|error| refuse(format!("this tokenizer ({error})")))?;
    let model = &json["model"];
    if model["type"] != "BPE" {
        return Err(refuse(format!("a tokenizer of the {} kind", tokenizer.kind().name())));
    }
    let by_pieces = model["byte_fallback"] == true;
    let mut tokens: Vec<String> = (0..vocab_size).map(|id| format!("[PAD{id}]")).collect();
    let mut types = vec![UNUSED; vocab_size];
    let mut set = |text: &str, id: &Value, of: i64| {
        if let Some(id) = id.as_u64().map(|id| id as usize).filter(|id| *id < vocab_size) {
            (tokens[id], types[id]) = (text.to_string(), of);
        }
    };
    for (text, id) in model["vocab"].as_object().into_iter().flatten() {
        let is_byte = by_pieces && text.len() == 6 && text.starts_with("<0x") && text.ends_with('>');
        let is_unknown = model["unk_token"] == text.as_str();
        set(
            text,
            id,
            if is_byte {
                BYTE
            } else if is_unknown {
                UNKNOWN
            } else {
                NORMAL
            },
        );
    }
    for token in json["added_tokens"].as_array().into_iter().flatten() {
        let of = if token["special"] == true { CONTROL } else { USER_DEFINED };
        let is_unknown = model["unk_token"] == token["content"];
        set(
            token["content"].as_str().unwrap_or_default(),
            &token["id"],
            if is_unknown { UNKNOWN } else { of },
        );
    }
    let merges = merges_of(model);
    let put = |key: &str, value: Entry| (format!("tokenizer.ggml.{key}"), value);
    let mut entries = Vec::new();
    if by_pieces {
        let scores = scores(&tokens, &merges);
        entries.push(put("model", Entry::Text("llama".into())));
        entries.push(put("pre", Entry::Text("default".into())));
        entries.push(put("scores", Entry::Floats(scores)));
        let adds_space = json["normalizer"].to_string().contains("Prepend")
            || json["pre_tokenizer"].to_string().contains("\"prepend_scheme\":\"first\"");
        entries.push(put("add_space_prefix", Entry::Bool(adds_space)));
    } else {
        let pattern = tokenizer.pattern();
        let named = CUTS.iter().find(|(known, _)| Some(known) == pattern).map(|(_, name)| *name);
        let digits = pattern.is_some_and(|pattern| pattern.regex() == Pattern::gpt2_single_digits().regex());
        let Some(name) = named.or(digits.then_some("smollm")) else {
            let cut = pattern.map_or("no pattern", Pattern::regex);
            return Err(refuse(format!("text cut by {cut:?}, for which llama.cpp has no name")));
        };
        entries.push(put("model", Entry::Text("gpt2".into())));
        entries.push(put("pre", Entry::Text(name.into())));
        let merges = merges.into_iter().map(|(left, right)| format!("{left} {right}")).collect();
        entries.push(put("merges", Entry::Texts(merges)));
    }
    entries.push(put("tokens", Entry::Texts(tokens)));
    entries.push(put("token_type", Entry::Integers(types)));
    entries.push(put("add_bos_token", Entry::Bool(!tokenizer.around().0.is_empty())));
    Ok(entries)
}

/// The pairs of a BPE model, in order, however they are written.
fn merges_of(model: &Value) -> Vec<(String, String)> {
    let pair = |merge: &Value| match merge {
        Value::String(text) => {
            text.split_once(' ').map(|(left, right)| (left.to_string(), right.to_string()))
        }
        Value::Array(pair) => Some((pair.first()?.as_str()?.to_string(), pair.get(1)?.as_str()?.to_string())),
        _ => None,
    };
    model["merges"].as_array().into_iter().flatten().filter_map(pair).collect()
}

/// What llama.cpp merges by: a token that is made by an earlier merge has the higher score.
fn scores(tokens: &[String], merges: &[(String, String)]) -> Vec<f32> {
    let mut ranks = BTreeMap::new();
    for (rank, (left, right)) in merges.iter().enumerate() {
        ranks.entry(format!("{left}{right}")).or_insert(rank);
    }
    tokens.iter().map(|token| ranks.get(token).map_or(0.0, |rank| -(*rank as f32))).collect()
}
