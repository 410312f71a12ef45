//! The tokenizer that users hold: one type for every kind.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use crate::bpe::{self, Bpe};
use crate::characters::{self, CharVocabulary};
use crate::special::{Part, Specials};
use crate::{Error, Result, StreamDecoder, durable};

/// Turns text into token ids and back. Immutable; a clone shares its tables.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    model: Model,
}

/// The kind of a tokenizer's vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Byte-pair encoding over bytes: any input can be encoded.
    Bpe,
    /// One token a character: only text of known characters can be encoded.
    Char,
}

#[derive(Debug, Clone)]
enum Model {
    Bpe(Arc<Bpe>),
    Char(Arc<CharVocabulary>),
}

const END_OF_TEXT: &str = "<|endoftext|>";

impl Tokenizer {
    pub(crate) fn from_bpe(bpe: Bpe) -> Self {
        Self { model: Model::Bpe(Arc::new(bpe)) }
    }

    pub(crate) fn from_characters(vocabulary: CharVocabulary) -> Self {
        Self { model: Model::Char(Arc::new(vocabulary)) }
    }

    /// Reads a byte-level BPE `tokenizer.json` of Hugging Face, or the file that [`save`](Self::save) wrote.
    pub fn load(path: &Path) -> Result<Self> {
        let json =
            fs::read_to_string(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
        Self::from_json(&json).map_err(|error| error.in_file(path))
    }

    /// Writes [`to_json`](Self::to_json) to `path`, which after a crash has its old or its new content.
    pub fn save(&self, path: &Path) -> Result<()> {
        durable::write(path, self.to_json().as_bytes())
            .map_err(|source| Error::Write { path: path.to_owned(), source })
    }

    /// Reads the content of a tokenizer file.
    pub fn from_json(json: &str) -> Result<Self> {
        if characters::is_own_format(json) {
            characters::from_json(json).map(Self::from_characters)
        } else {
            bpe::json::from_json(json).map(Self::from_bpe)
        }
    }

    /// The tokenizer as a file: `tokenizer.json` of Hugging Face for BPE, our own JSON for the char kind.
    ///
    /// The same tokenizer always gives the same text, and [`from_json`](Self::from_json) reads it back
    /// unchanged.
    pub fn to_json(&self) -> String {
        match &self.model {
            Model::Bpe(bpe) => bpe::json::to_json(bpe),
            Model::Char(vocabulary) => characters::to_json(vocabulary),
        }
    }

    /// The kind of vocabulary.
    pub fn kind(&self) -> Kind {
        match self.model {
            Model::Bpe(_) => Kind::Bpe,
            Model::Char(_) => Kind::Char,
        }
    }

    /// The highest id plus one, special tokens included.
    pub fn vocab_size(&self) -> usize {
        self.tokens().len()
    }

    /// Appends the tokens of ordinary text: the text of a special token means nothing here.
    ///
    /// After an error, `out` may hold the tokens of a part of the text.
    pub fn encode(&self, text: &[u8], out: &mut Vec<u32>) -> Result<()> {
        match &self.model {
            Model::Bpe(bpe) => bpe.encode(text, out),
            Model::Char(vocabulary) => vocabulary.encode(text, 0, out),
        }
    }

    /// Appends the tokens of text in which special tokens are recognised: the leftmost first, of those the
    /// longest. The text around them is encoded as if each stretch stood alone.
    pub fn encode_with_special(&self, text: &[u8], out: &mut Vec<u32>) -> Result<()> {
        let mut offset = 0;
        self.specials().for_each_part(text, |part| match part {
            Part::Special(id) => {
                out.push(id);
                offset += self.known_bytes(id)?.len();
                Ok(())
            }
            Part::Text(stretch) => {
                match &self.model {
                    Model::Bpe(bpe) => bpe.encode(stretch, out)?,
                    Model::Char(vocabulary) => vocabulary.encode(stretch, offset, out)?,
                }
                offset += stretch.len();
                Ok(())
            }
        })
    }

    /// The bytes of the tokens, joined. Special tokens give their text.
    pub fn decode(&self, ids: &[u32]) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        for &id in ids {
            bytes.extend_from_slice(self.known_bytes(id)?);
        }
        Ok(bytes)
    }

    /// A decoder for tokens that come one at a time.
    pub fn decoder(&self) -> StreamDecoder<'_> {
        StreamDecoder::new(self)
    }

    /// The bytes of a token (a special token's text), or `None` when no token has this id.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.tokens().get(id as usize)?.as_deref()
    }

    /// The length of the longest token, in bytes.
    pub fn max_token_bytes(&self) -> usize {
        self.tokens().iter().flatten().map(|token| token.len()).max().unwrap_or(0)
    }

    /// The special tokens and their ids, in ascending order of id.
    pub fn special_tokens(&self) -> &[(String, u32)] {
        self.specials().as_slice()
    }

    /// The id of the special token with this text.
    pub fn special_id(&self, text: &str) -> Option<u32> {
        self.specials().id(text)
    }

    /// The id of `<|endoftext|>`, if that is a special token.
    pub fn end_of_text(&self) -> Option<u32> {
        self.special_id(END_OF_TEXT)
    }

    /// BLAKE3 of [`to_json`](Self::to_json): equal for tokenizers that give equal ids and texts.
    pub fn hash(&self) -> [u8; 32] {
        *blake3::hash(self.to_json().as_bytes()).as_bytes()
    }

    pub(crate) fn known_bytes(&self, id: u32) -> Result<&[u8]> {
        self.token_bytes(id).ok_or(Error::UnknownId { id, vocab_size: self.vocab_size() })
    }

    fn tokens(&self) -> &[Option<Box<[u8]>>] {
        match &self.model {
            Model::Bpe(bpe) => bpe.tokens(),
            Model::Char(vocabulary) => vocabulary.tokens(),
        }
    }

    fn specials(&self) -> &Specials {
        match &self.model {
            Model::Bpe(bpe) => bpe.specials(),
            Model::Char(vocabulary) => vocabulary.specials(),
        }
    }
}
