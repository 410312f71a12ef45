//! `tokenizer.json` of Hugging Face `tokenizers`, for byte-level BPE, and the older `vocab.json` with `merges.txt`.
//!
//! What is written loads there with the same ids. What is read is what is written here, with the variations
//! found in published files that do not change ids; anything else is refused by name.

use hashbrown::HashMap;
use serde::Serialize;
use serde::ser::{SerializeMap, SerializeSeq, Serializer};
use serde_json::{Value, json};

use super::{Bpe, Parts};
use crate::byte_level::ByteLevel;
use crate::frame::Frame;
use crate::hugging_face::{AddedToken, ById, File, Vocab, steps, two_names, type_of, unsupported};
use crate::normal::Normalization;
use crate::pattern::Pattern;
use crate::special::Specials;
use crate::{Error, Result};

pub(crate) fn to_json(bpe: &Bpe) -> String {
    let names = Names::new(bpe);
    let pre_tokenizer = match bpe.splitter.pattern() {
        Pattern::Gpt2 => byte_level(true),
        pattern => {
            let regex = json!({"Regex": pattern.regex()});
            let split = json!({"type": "Split", "pattern": regex, "behavior": "Isolated", "invert": false});
            json!({"type": "Sequence", "pretokenizers": [split, byte_level(false)]})
        }
    };
    let file = WrittenFile {
        version: "1.0",
        truncation: (),
        padding: (),
        added_tokens: AddedToken::list(&bpe.specials),
        normalizer: (bpe.normalization == Normalization::Nfc).then(|| json!({"type": "NFC"})),
        pre_tokenizer,
        post_processor: bpe.frame.to_json(),
        decoder: byte_level(true),
        model: WrittenModel {
            r#type: "BPE",
            dropout: (),
            unk_token: (),
            continuing_subword_prefix: (),
            end_of_word_suffix: (),
            fuse_unk: false,
            byte_fallback: false,
            ignore_merges: bpe.ignore_merges,
            vocab: WrittenVocab(&names),
            merges: WrittenMerges(&names),
        },
    };
    let mut json = serde_json::to_string_pretty(&file).expect("names and numbers are all that is written");
    json.push('\n');
    json
}

/// A file as it is written, field by field: a tree of a large vocabulary's values would take longer to make than all else does.
#[derive(Serialize)]
struct WrittenFile<'a> {
    version: &'static str,
    truncation: (),
    padding: (),
    added_tokens: Vec<AddedToken>,
    normalizer: Option<Value>,
    pre_tokenizer: Value,
    post_processor: Value,
    decoder: Value,
    model: WrittenModel<'a>,
}

#[derive(Serialize)]
struct WrittenModel<'a> {
    r#type: &'static str,
    dropout: (),
    unk_token: (),
    continuing_subword_prefix: (),
    end_of_word_suffix: (),
    fuse_unk: bool,
    byte_fallback: bool,
    ignore_merges: bool,
    vocab: WrittenVocab<'a>,
    merges: WrittenMerges<'a>,
}

/// How a file names tokens.
struct Names<'a> {
    bpe: &'a Bpe,
    alphabet: ByteLevel,
    /// Pairs of a special and an ordinary token of one name, the lower id first. A file has room for one of them: it names the
    /// higher id, in the place of the lower.
    shared: Vec<(u32, u32)>,
}

impl<'a> Names<'a> {
    fn new(bpe: &'a Bpe) -> Self {
        let alphabet = ByteLevel::new();
        let specials = bpe.specials.as_slice();
        let spelt: HashMap<Vec<u8>, u32> =
            specials.iter().filter_map(|(text, id)| Some((alphabet.parse(text)?, *id))).collect();
        let mut shared = Vec::new();
        for (token, id) in bpe.model.tokens.iter().zip(0..) {
            let other = token.as_deref().and_then(|bytes| spelt.get(bytes)).copied();
            shared.extend(
                other.filter(|_| !bpe.specials.has_id(id)).map(|other| (id.min(other), id.max(other))),
            );
        }
        Self { bpe, alphabet, shared }
    }

    /// Appends the name of a token.
    fn write(&self, id: u32, name: &mut String) {
        let specials = self.bpe.specials.as_slice();
        match specials.binary_search_by_key(&id, |&(_, id)| id) {
            Ok(idx) => name.push_str(&specials[idx].0),
            Err(_) => {
                let bytes = self.bpe.model.tokens.get(id as usize).and_then(Option::as_deref);
                self.alphabet.render_to(bytes.unwrap_or_default(), name);
            }
        }
    }
}

struct WrittenVocab<'a>(&'a Names<'a>);

impl Serialize for WrittenVocab<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let Self(names) = self;
        let mut map = serializer.serialize_map(None)?;
        let mut name = String::new();
        for (token, id) in names.bpe.model.tokens.iter().zip(0..) {
            if token.is_none() || names.shared.iter().any(|&(_, higher)| higher == id) {
                continue;
            }
            name.clear();
            names.write(id, &mut name);
            let named =
                names.shared.iter().find(|&&(lower, _)| lower == id).map_or(id, |&(_, higher)| higher);
            map.serialize_entry(&name, &named)?;
        }
        map.end()
    }
}

struct WrittenMerges<'a>(&'a Names<'a>);

impl Serialize for WrittenMerges<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let Self(names) = self;
        let mut list = serializer.serialize_seq(None)?;
        let mut line = String::new();
        for &(left, right) in &names.bpe.model.merges {
            line.clear();
            names.write(left, &mut line);
            line.push(' ');
            names.write(right, &mut line);
            list.serialize_element(&line)?;
        }
        list.end()
    }
}

fn byte_level(use_regex: bool) -> Value {
    json!({
        "type": "ByteLevel",
        "add_prefix_space": false,
        "trim_offsets": true,
        "use_regex": use_regex,
    })
}

/// Reads a file with a byte-level pre-tokenizer.
pub(crate) fn from_file(file: &File) -> Result<Bpe> {
    let pattern = supported_pattern(file)?;
    let normalization = normalization(file)?;
    file.model.check_bpe()?;
    let problem = match &file.model {
        model if model.unk_token.is_some() => Some("an unknown token"),
        model if model.byte_fallback => Some("byte fallback of byte-level tokens"),
        _ => None,
    };
    if let Some(problem) = problem {
        return Err(Error::Unsupported(problem.to_owned()));
    }
    let normalise = |text: &str| String::from_utf8_lossy(&normalization.apply(text.as_bytes())).into_owned();
    let specials = file.specials((normalization != Normalization::None).then_some(&normalise))?;
    let (tokens, merges) = tokens_and_merges(&file.model.vocab, file.model.merge_names(), &specials)?;
    let ignore_merges = file.model.ignore_merges;
    let frame = Frame::from_json(&file.post_processor)?;
    Bpe::new(Parts { pattern, normalization, specials, frame, tokens, merges, ignore_merges })
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
        frame: Frame::default(),
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
    let mut tokens: ById<Box<[u8]>> = ById::for_vocabulary(vocab.0.len() + specials.as_slice().len());
    for (text, id) in specials.as_slice() {
        tokens.set(u64::from(*id), text.as_bytes().into(), text)?;
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
                tokens.set(*id, bytes.into(), name)?;
            }
        }
    }

    let ids: HashMap<&str, u64> = vocab.0.iter().map(|(name, id)| (name.as_str(), *id)).collect();
    let id_of = |name: &str| {
        let id = ids.get(name).and_then(|&id| u32::try_from(id).ok());
        id.ok_or_else(|| Error::Format(format!("a merge uses {name:?}, which is not in the vocabulary")))
    };
    let pairs = merges.map(|names| {
        let (left, right) = names?;
        Ok((id_of(left)?, id_of(right)?))
    });
    Ok((tokens.into_vec(), pairs.collect::<Result<Vec<_>>>()?))
}

fn normalization(file: &File) -> Result<Normalization> {
    match &file.normalizer {
        Value::Null => Ok(Normalization::None),
        part if *part == json!({"type": "NFC"}) => Ok(Normalization::Nfc),
        part => Err(unsupported("normalizer", part)),
    }
}

/// The pattern, if nothing in the file around the model changes ids in a way that is not supported.
fn supported_pattern(file: &File) -> Result<Pattern> {
    // The decoder of byte-level tokens is always the same.
    if !file.decoder.is_null() && type_of(&file.decoder) != Some("ByteLevel") {
        return Err(unsupported("decoder", &file.decoder));
    }
    match steps(&file.pre_tokenizer, "pretokenizers") {
        [only] if is_byte_level(only, true) => Ok(Pattern::Gpt2),
        [digits, rest] if is_byte_level(rest, true) && is_single_digits(digits) => {
            Ok(Pattern::gpt2_single_digits())
        }
        [split, rest] if is_byte_level(rest, false) => {
            split_regex(split).ok_or_else(|| unsupported("pre_tokenizer", split))
        }
        _ => Err(unsupported("pre_tokenizer", &file.pre_tokenizer)),
    }
}

fn is_byte_level(step: &Value, use_regex: bool) -> bool {
    type_of(step) == Some("ByteLevel")
        && step["add_prefix_space"] == json!(false)
        && step.get("use_regex").unwrap_or(&json!(true)) == &json!(use_regex)
}

fn is_single_digits(step: &Value) -> bool {
    type_of(step) == Some("Digits") && step["individual_digits"] == json!(true)
}

fn split_regex(step: &Value) -> Option<Pattern> {
    let isolated = type_of(step) == Some("Split")
        && step["behavior"] == json!("Isolated")
        && step.get("invert").unwrap_or(&json!(false)) == &json!(false);
    isolated.then(|| step["pattern"]["Regex"].as_str()).flatten().map(Pattern::from_regex)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes as tokens 0 to 255, `ab` as 256 and special tokens behind.
    fn bpe(special: &[(&str, u32)]) -> Bpe {
        let mut tokens: Vec<Option<Box<[u8]>>> = (0..=u8::MAX).map(|byte| Some([byte].into())).collect();
        tokens.push(Some((*b"ab").into()));
        tokens.extend(special.iter().map(|(text, _)| Some(text.as_bytes().into())));
        let specials = special.iter().map(|&(text, id)| (text.to_owned(), id)).collect();
        Bpe::new(Parts {
            pattern: Pattern::Cl100k,
            normalization: Normalization::Nfc,
            specials: Specials::new(specials).unwrap(),
            frame: Frame::default(),
            tokens,
            merges: vec![(97, 98)],
            ignore_merges: true,
        })
        .unwrap()
    }

    #[test]
    fn a_file_has_the_form_of_its_tree_of_values_and_every_name_once() {
        for special in [&[][..], &[("<|end|>", 257)], &[("ab", 257), ("Ġ", 258), ("é\n\"", 259)]] {
            let json = to_json(&bpe(special));
            let tree: Value = serde_json::from_str(&json).unwrap();
            assert_eq!(json, format!("{tree:#}\n"));
            for (text, id) in special {
                assert_eq!(tree["model"]["vocab"][text], *id, "{text}");
            }
        }
    }
}
