//! The byte kind: the id of a byte is its value, and special tokens follow from 256. It needs no training,
//! and any input can be encoded.
//!
//! Its file holds `format`, `version`, `kind` and the special tokens in order of id.

use serde::{Deserialize, Serialize};

use crate::special::Specials;
use crate::{Result, own_json};

/// Bytes and special tokens.
#[derive(Debug, Clone)]
pub(crate) struct ByteVocabulary {
    specials: Specials,
    tokens: Vec<Option<Box<[u8]>>>,
}

pub(crate) const KIND: &str = "byte";

impl ByteVocabulary {
    pub(crate) fn new(special: &[String]) -> Result<Self> {
        let specials = Specials::new(special.iter().cloned().zip(256..).collect())?;
        let bytes = (0..=u8::MAX).map(|byte| Box::from([byte]));
        let tokens = bytes.chain(special.iter().map(|text| text.as_bytes().into())).map(Some).collect();
        Ok(Self { specials, tokens })
    }

    pub(crate) fn specials(&self) -> &Specials {
        &self.specials
    }

    pub(crate) fn tokens(&self) -> &[Option<Box<[u8]>>] {
        &self.tokens
    }

    /// Appends one token a byte.
    pub(crate) fn encode(text: &[u8], out: &mut Vec<u32>) {
        out.extend(text.iter().map(|&byte| u32::from(byte)));
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    format: String,
    version: u32,
    kind: String,
    special: Vec<String>,
}

pub(crate) fn to_json(vocabulary: &ByteVocabulary) -> String {
    let (format, version) = own_json::format_and_version();
    let special = vocabulary.specials.texts().map(str::to_owned).collect();
    own_json::write(&File { format, version, kind: KIND.to_owned(), special })
}

pub(crate) fn from_json(json: &str) -> Result<ByteVocabulary> {
    ByteVocabulary::new(&own_json::read::<File>(json)?.special)
}

#[cfg(test)]
mod tests {
    use crate::{Kind, Tokenizer};

    #[test]
    fn a_byte_is_its_own_id_and_special_tokens_follow() {
        let special = ["<|endoftext|>".to_owned(), "<|x|>".to_owned()];
        let tokenizer = Tokenizer::byte(&special).unwrap();
        assert_eq!((tokenizer.kind(), tokenizer.vocab_size()), (Kind::Byte, 258));
        assert_eq!(tokenizer.end_of_text(), Some(256));
        let mut ids = Vec::new();
        tokenizer.encode_with_special(b"a\xff<|x|>", &mut ids).unwrap();
        assert_eq!(ids, [97, 255, 257]);
        assert_eq!(tokenizer.decode(&ids).unwrap(), b"a\xff<|x|>");
        let reloaded = Tokenizer::from_json(&tokenizer.to_json()).unwrap();
        assert_eq!(reloaded.to_json(), tokenizer.to_json());
        assert_eq!(reloaded.special_tokens(), tokenizer.special_tokens());
    }
}
