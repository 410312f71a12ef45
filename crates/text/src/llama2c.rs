//! The tokenizer files of llama2.c: the length of the longest token, then for every token a score, a length and its bytes.
//!
//! They are vocabularies of SentencePiece's kind: the merge whose result has the highest score goes first, a character without a token
//! becomes the tokens of its bytes, and a space is put before a text.

use crate::{Error, GgufVocabulary, Result, Tokenizer};

/// The first tokens of every file: the unknown one, and those before and behind a text.
const SPECIAL: [&str; 3] = ["<unk>", "<s>", "</s>"];
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const NORMAL: i32 = 1;
const BYTE: i32 = 6;

/// Whether this is such a file: it has no magic number, but its first token is always the same.
pub(crate) fn is_file(content: &[u8]) -> bool {
    content.get(8..17) == Some(b"\x05\0\0\0<unk>")
}

impl Tokenizer {
    /// Reads the content of a tokenizer file of llama2.c.
    pub fn from_llama2c(content: &[u8]) -> Result<Self> {
        let mut rest = content;
        let longest = word(&mut rest)?;
        let mut vocabulary = GgufVocabulary {
            model: "llama".into(),
            bos_token_id: Some(1),
            eos_token_id: Some(2),
            unknown_token_id: Some(0),
            add_bos_token: Some(true),
            add_space_prefix: Some(true),
            ..GgufVocabulary::default()
        };
        while !rest.is_empty() {
            let id = vocabulary.tokens.len();
            let score = f32::from_bits(word(&mut rest)?);
            let length = word(&mut rest)?;
            if length > longest || length as usize > rest.len() || score.is_nan() {
                return Err(Error::Format(format!("token {id} has {length} bytes and the score {score}")));
            }
            let (token, behind) = rest.split_at(length as usize);
            rest = behind;
            let token = std::str::from_utf8(token)
                .map_err(|_| Error::Format(format!("token {id} is not valid UTF-8")))?;
            // Line breaks around the first tokens only keep them apart from text.
            let is_special = SPECIAL.get(id).is_some_and(|special| *special == token.trim_matches('\n'));
            if id < SPECIAL.len() && !is_special {
                return Err(Error::Format(format!("token {id} is {token:?}, not {}", SPECIAL[id])));
            }
            let is_byte = token.len() == 6 && token.starts_with("<0x") && token.ends_with('>');
            vocabulary.token_types.push(match id {
                0 => UNKNOWN,
                1 | 2 => CONTROL,
                _ if is_byte => BYTE,
                _ => NORMAL,
            });
            vocabulary
                .tokens
                .push(SPECIAL.get(id).map_or_else(|| token.replace(' ', "▁"), |special| (*special).into()));
            vocabulary.scores.push(score);
        }
        Self::from_gguf(&vocabulary)
    }
}

fn word(rest: &mut &[u8]) -> Result<u32> {
    let cut = || Error::Format("it ends in the middle of a token".into());
    let (word, behind) = rest.split_first_chunk().ok_or_else(cut)?;
    *rest = behind;
    Ok(u32::from_le_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    fn golden(name: &str) -> Vec<u8> {
        fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/llama2c").join(name)).unwrap()
    }

    #[test]
    fn text_is_encoded_as_llama2c_does() {
        let tokenizer = Tokenizer::from_llama2c(&golden("tokenizer.bin")).unwrap();
        let golden: serde_json::Value = serde_json::from_slice(&golden("tiny.json")).unwrap();
        for case in golden["encodings"].as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            let expected: Vec<u32> =
                case["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
            let mut ids = Vec::new();
            tokenizer.encode_framed(text.as_bytes(), &mut ids).unwrap();
            assert_eq!(ids, expected, "{text:?}");
            assert_eq!(tokenizer.decode(&ids[1..]).unwrap(), text.as_bytes());
        }
        let again = Tokenizer::from_json(&tokenizer.to_json()).unwrap();
        assert_eq!(again.to_json(), tokenizer.to_json());
    }

    #[test]
    fn damaged_files_are_refused() {
        let whole = golden("tokenizer.bin");
        for length in [0, 3, 4, 10, 14, whole.len() - 1] {
            assert!(Tokenizer::from_llama2c(&whole[..length]).is_err(), "{length}");
        }
        for at in (0..200).chain(4000..whole.len()) {
            for byte in [0x00, 0x7f, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] = byte;
                // Any answer but a panic will do.
                let _ = Tokenizer::from_llama2c(&bytes);
            }
        }
    }
}
