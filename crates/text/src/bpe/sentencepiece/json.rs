//! `tokenizer.json` of vocabularies of SentencePiece's kind.
//!
//! Spaces become `▁` by a normalizer or by the pre-tokenizer Metaspace; both are read, and written as what they mean.

use serde_json::{Map, Value, json};

use super::{Parts, Prefix, SPACE, SentencePiece, Settings};
use crate::frame::Frame;
use crate::hugging_face::{AddedToken, File, steps, type_of, unsupported};
use crate::{Error, Result};

pub(crate) fn to_json(vocabulary: &SentencePiece) -> String {
    let SentencePiece { names, is_in_model, specials, frame, settings, model, .. } = vocabulary;
    let name_of = |id: u32| super::name_of(names, id);
    let mut vocab = Map::new();
    for ((name, id), _) in names.iter().zip(0..).zip(is_in_model).filter(|&(_, &is_known)| is_known) {
        if let Some(name) = name {
            vocab.insert(name.to_string(), json!(id));
        }
    }
    // A name may have a space, so merges are written as pairs.
    let merges: Vec<[&str; 2]> =
        model.merges.iter().map(|&(left, right)| [name_of(left), name_of(right)]).collect();
    let (normalizer, pre_tokenizer) = spaces_to_json(*settings);
    let file = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": AddedToken::list(specials),
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": frame.to_json(),
        "decoder": decoder_to_json(*settings),
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": settings.unknown.map(name_of),
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": settings.fuses_unknown,
            "byte_fallback": settings.byte_fallback,
            "ignore_merges": settings.ignore_merges,
            "vocab": vocab,
            "merges": merges,
        },
    });
    format!("{file:#}\n")
}

fn spaces_to_json(settings: Settings) -> (Value, Value) {
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": SPACE});
    let metaspace = |scheme: &str| json!({"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": settings.cuts_words});
    match settings.prefix {
        Prefix::Never if settings.cuts_words => (Value::Null, metaspace("never")),
        Prefix::Never => (replace, Value::Null),
        Prefix::Always => {
            let prepend = json!({"type": "Prepend", "prepend": SPACE});
            (json!({"type": "Sequence", "normalizers": [prepend, replace]}), Value::Null)
        }
        Prefix::Missing => (Value::Null, metaspace("always")),
        Prefix::MissingAtStart => (Value::Null, metaspace("first")),
    }
}

fn decoder_to_json(settings: Settings) -> Value {
    let replace = json!({"type": "Replace", "pattern": {"String": SPACE}, "content": " "});
    let mut decoders = vec![replace, json!({"type": "ByteFallback"}), json!({"type": "Fuse"})];
    if settings.strips_space {
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    json!({"type": "Sequence", "decoders": decoders})
}

/// Reads a file without a byte-level pre-tokenizer.
pub(crate) fn from_file(file: &File) -> Result<SentencePiece> {
    file.model.check_bpe()?;
    let (prefix, cuts_words) = spaces(file)?;
    let strips_space = strips_space(&file.decoder)?;
    let model = &file.model;
    let normalise = |text: &str| {
        String::from_utf8_lossy(&super::with_spaces(text.as_bytes(), prefix == Prefix::Always)).into_owned()
    };
    let specials = file.specials((!file.normalizer.is_null()).then_some(&normalise))?;

    let (names, is_in_model) = model.names(&specials)?;
    let ids: hashbrown::HashMap<&str, u32> =
        model.vocab.0.iter().map(|(name, id)| (name.as_str(), *id as u32)).collect();
    let id_of = |name: &str| {
        let missing = || Error::Format(format!("{name:?} is not in the vocabulary, which uses it"));
        ids.get(name).copied().ok_or_else(missing)
    };
    let merges = model.merge_names().map(|names| {
        let (left, right) = names?;
        Ok((id_of(left)?, id_of(right)?))
    });
    let merges = merges.collect::<Result<Vec<_>>>()?;
    let settings = Settings {
        prefix,
        cuts_words,
        strips_space,
        unknown: model.unk_token.as_deref().map(id_of).transpose()?,
        fuses_unknown: model.fuse_unk,
        byte_fallback: model.byte_fallback,
        ignore_merges: model.ignore_merges,
    };
    let frame = Frame::from_json(&file.post_processor)?;
    SentencePiece::new(Parts { names, is_in_model, merges, specials, frame, settings })
}

/// Where a space is put before a text, and whether text is cut before spaces.
fn spaces(file: &File) -> Result<(Prefix, bool)> {
    let is_replace = |step: &Value| {
        type_of(step) == Some("Replace")
            && step["pattern"] == json!({"String": " "})
            && step["content"] == json!(SPACE)
    };
    let is_prepend = |step: &Value| *step == json!({"type": "Prepend", "prepend": SPACE});
    let by_normalizer = match steps(&file.normalizer, "normalizers") {
        [] if file.normalizer.is_null() => None,
        [prepend, replace] if is_prepend(prepend) && is_replace(replace) => Some(Prefix::Always),
        [replace] if is_replace(replace) => Some(Prefix::Never),
        _ => return Err(unsupported("normalizer", &file.normalizer)),
    };
    // After the normalizer there are no spaces left at which this one could cut.
    let is_idle = |step: &Value| {
        type_of(step) == Some("Split")
            && step["pattern"] == json!({"String": " "})
            && step["behavior"] == json!("MergedWithPrevious")
    };
    let pre_tokenizer = &file.pre_tokenizer;
    match by_normalizer {
        Some(prefix) if pre_tokenizer.is_null() || is_idle(pre_tokenizer) => Ok((prefix, false)),
        None if type_of(pre_tokenizer) == Some("Metaspace") => metaspace(pre_tokenizer),
        None if pre_tokenizer.is_null() => Err(Error::Unsupported(
            "a BPE model without pre_tokenizer and without a normalizer of spaces".to_owned(),
        )),
        _ => Err(unsupported("pre_tokenizer", pre_tokenizer)),
    }
}

fn metaspace(step: &Value) -> Result<(Prefix, bool)> {
    let refused = || unsupported("pre_tokenizer", step);
    if step["replacement"] != json!(SPACE) {
        return Err(refused());
    }
    let prefix =
        match (step.get("prepend_scheme").and_then(Value::as_str), step["add_prefix_space"].as_bool()) {
            (Some("never"), _) | (None, Some(false)) => Prefix::Never,
            (Some("first"), None | Some(true)) => Prefix::MissingAtStart,
            (Some("always") | None, None | Some(true)) => Prefix::Missing,
            _ => return Err(refused()),
        };
    Ok((prefix, step.get("split").is_none_or(|split| *split != json!(false))))
}

/// Whether the decoder leaves out one space at the start of a text.
fn strips_space(decoder: &Value) -> Result<bool> {
    let is_replace = |step: &Value| {
        type_of(step) == Some("Replace")
            && step["pattern"] == json!({"String": SPACE})
            && step["content"] == json!(" ")
    };
    let is_strip = |step: &Value| *step == json!({"type": "Strip", "content": " ", "start": 1, "stop": 0});
    let names: Vec<Option<&str>> = steps(decoder, "decoders").iter().map(type_of).collect();
    match (steps(decoder, "decoders"), &*names) {
        ([replace, rest @ ..], [_, Some("ByteFallback"), Some("Fuse"), ..]) if is_replace(replace) => {
            match rest {
                [_, _] => Ok(false),
                [_, _, strip] if is_strip(strip) => Ok(true),
                _ => Err(unsupported("decoder", decoder)),
            }
        }
        _ => Err(unsupported("decoder", decoder)),
    }
}
