//! `tokenizer.json` of WordPiece vocabularies.

use serde_json::{Map, Value, json};

use super::normal::BertNormalization;
use super::{Parts, Settings, WordPiece};
use crate::frame::Frame;
use crate::hugging_face::{AddedToken, File, type_of, unsupported};
use crate::{Error, Result};

pub(crate) fn to_json(vocabulary: &WordPiece) -> String {
    let WordPiece { names, is_in_model, specials, frame, settings, .. } = vocabulary;
    let mut vocab = Map::new();
    for ((name, id), _) in names.iter().zip(0..).zip(is_in_model).filter(|&(_, &is_known)| is_known) {
        if let Some(name) = name {
            vocab.insert(name.to_string(), json!(id));
        }
    }
    let file = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": AddedToken::list(specials),
        "normalizer": normalizer_to_json(settings.normalization),
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": frame.to_json(),
        "decoder": {"type": "WordPiece", "prefix": settings.decoder_prefix, "cleanup": settings.cleans_up},
        "model": {
            "type": "WordPiece",
            "unk_token": names.get(settings.unknown as usize),
            "continuing_subword_prefix": settings.continuing_prefix,
            "max_input_chars_per_word": settings.max_word_characters,
            "vocab": vocab,
        },
    });
    format!("{file:#}\n")
}

fn normalizer_to_json(normalization: BertNormalization) -> Value {
    if normalization == BertNormalization::default() {
        return Value::Null;
    }
    json!({
        "type": "BertNormalizer",
        "clean_text": normalization.clean_text,
        "handle_chinese_chars": normalization.handle_chinese_chars,
        "strip_accents": normalization.strip_accents,
        "lowercase": normalization.lowercase,
    })
}

/// Reads a file with a WordPiece model.
pub(crate) fn from_file(file: &File) -> Result<WordPiece> {
    let normalization = normalization(&file.normalizer)?;
    if type_of(&file.pre_tokenizer) != Some("BertPreTokenizer") {
        return Err(unsupported("pre_tokenizer", &file.pre_tokenizer));
    }
    let (decoder_prefix, cleans_up) = decoder(&file.decoder)?;
    let model = &file.model;
    let normalise = |text: &str| normalization.apply(text).into_owned();
    let specials = file.specials((!file.normalizer.is_null()).then_some(&normalise))?;
    let (names, is_in_model) = model.names(&specials)?;
    let unknown = model.unk_token.as_deref().unwrap_or("[UNK]");
    let missing = || Error::Format(format!("the unknown token {unknown:?} is not in the vocabulary"));
    let (_, unknown) = model.vocab.0.iter().find(|(name, _)| name == unknown).ok_or_else(missing)?;
    let settings = Settings {
        normalization,
        continuing_prefix: model.continuing_subword_prefix.as_deref().unwrap_or("##").into(),
        max_word_characters: model.max_input_chars_per_word.unwrap_or(100),
        unknown: *unknown as u32,
        decoder_prefix,
        cleans_up,
    };
    let frame = Frame::from_json(&file.post_processor)?;
    WordPiece::new(Parts { names, is_in_model, specials, frame, settings })
}

fn normalization(part: &Value) -> Result<BertNormalization> {
    if part.is_null() {
        return Ok(BertNormalization::default());
    }
    let refused = || unsupported("normalizer", part);
    if type_of(part) != Some("BertNormalizer") {
        return Err(refused());
    }
    let switch = |name: &str| part[name].as_bool().ok_or_else(refused);
    let strip_accents = match &part["strip_accents"] {
        Value::Null => None,
        Value::Bool(strips) => Some(*strips),
        _ => return Err(refused()),
    };
    Ok(BertNormalization {
        clean_text: switch("clean_text")?,
        handle_chinese_chars: switch("handle_chinese_chars")?,
        strip_accents,
        lowercase: switch("lowercase")?,
    })
}

/// The prefix that is taken off, and whether some spaces are left out.
fn decoder(part: &Value) -> Result<(Box<str>, bool)> {
    let settings = part["prefix"].as_str().zip(part["cleanup"].as_bool());
    match (type_of(part), settings) {
        (Some("WordPiece"), Some((prefix, cleans_up))) => Ok((prefix.into(), cleans_up)),
        _ => Err(unsupported("decoder", part)),
    }
}
