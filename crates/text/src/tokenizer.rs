//! The tokenizer that users hold: one type for every kind.

use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use crate::bpe::tiktoken::{self, RankFileSettings};
use crate::bpe::{self, Bpe};
use crate::bytes::{self, ByteVocabulary};
use crate::characters::{self, CharVocabulary};
use crate::decode::TokenBytes;
use crate::items::{Encoded, UNKNOWN};
use crate::pattern::Pattern;
use crate::special::{Part, Specials};
use crate::words::{self, WordVocabulary};
use crate::{Error, FrequentPieces, Result, StreamDecoder, durable, own_json};

/// Turns text into token ids and back. Immutable; a clone shares its tables.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    model: Model,
    bytes: Arc<TokenBytes>,
}

/// The kind of a tokenizer's vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Byte-pair encoding over bytes: any input can be encoded.
    Bpe,
    /// One token a character: only text of known characters can be encoded.
    Char,
    /// One token a word: only text of known words can be encoded.
    Word,
    /// One token a byte: any input can be encoded.
    Byte,
}

impl Kind {
    /// The name of the kind, as people type it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bpe => "bpe",
            Self::Char => characters::KIND,
            Self::Word => words::KIND,
            Self::Byte => bytes::KIND,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[derive(Debug, Clone)]
enum Model {
    Bpe(Arc<Bpe>),
    Char(Arc<CharVocabulary>),
    Word(Arc<WordVocabulary>),
    Byte(Arc<ByteVocabulary>),
}

const END_OF_TEXT: &str = "<|endoftext|>";

impl Tokenizer {
    /// A byte tokenizer: the id of a byte is its value, and the special tokens follow from 256.
    pub fn byte(special: &[String]) -> Result<Self> {
        Self::from_bytes(ByteVocabulary::new(special)?)
    }

    pub(crate) fn from_bpe(bpe: Bpe) -> Result<Self> {
        let bytes = TokenBytes::new(bpe.tokens())?;
        Ok(Self::new(Model::Bpe(Arc::new(bpe)), bytes))
    }

    pub(crate) fn from_characters(vocabulary: CharVocabulary) -> Result<Self> {
        let bytes = TokenBytes::new(vocabulary.tokens())?;
        Ok(Self::new(Model::Char(Arc::new(vocabulary)), bytes))
    }

    pub(crate) fn from_words(vocabulary: WordVocabulary) -> Result<Self> {
        let bytes = TokenBytes::new(vocabulary.tokens())?;
        Ok(Self::new(Model::Word(Arc::new(vocabulary)), bytes))
    }

    fn from_bytes(vocabulary: ByteVocabulary) -> Result<Self> {
        let bytes = TokenBytes::new(vocabulary.tokens())?;
        Ok(Self::new(Model::Byte(Arc::new(vocabulary)), bytes))
    }

    fn new(model: Model, bytes: TokenBytes) -> Self {
        Self { model, bytes: Arc::new(bytes) }
    }

    /// Reads a byte-level BPE `tokenizer.json` of Hugging Face, a published rank file of tiktoken, or the file that
    /// [`save`](Self::save) wrote. [`FrequentPieces`] beside the file are [expected](Self::expect).
    pub fn load(path: &Path) -> Result<Self> {
        let text =
            fs::read_to_string(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
        let read = if tiktoken::is_rank_file(text.as_bytes()) {
            Self::from_ranks(text.as_bytes(), None)
        } else {
            Self::from_json(&text)
        };
        let tokenizer = read.map_err(|error| error.in_file(path))?;
        let beside = FrequentPieces::path_beside(path);
        if beside.is_file() {
            tokenizer.expect(FrequentPieces::load(&beside)?);
        }
        Ok(tokenizer)
    }

    /// Prepares for text in which these pieces are frequent: it is then encoded fast from the start. Tokens do not depend on
    /// it. Without effect on other kinds than BPE.
    pub fn expect(&self, pieces: FrequentPieces) {
        if let Model::Bpe(bpe) = &self.model {
            bpe.expect(pieces.into_pieces());
        }
    }

    /// Reads the content of a rank file of tiktoken. Without `settings` it must be a published one.
    pub fn from_ranks(text: &[u8], settings: Option<&RankFileSettings>) -> Result<Self> {
        tiktoken::from_ranks(text, settings).and_then(Self::from_bpe)
    }

    /// Reads the contents of a `vocab.json` and of the `merges.txt` that belongs to it. The names in `special`, which must be
    /// in the vocabulary, are special tokens.
    pub fn from_vocab_and_merges(
        vocab: &str,
        merges: &str,
        pattern: &Pattern,
        special: &[String],
    ) -> Result<Self> {
        bpe::json::from_vocab_and_merges(vocab, merges, pattern, special).and_then(Self::from_bpe)
    }

    /// The vocabulary as a rank file of tiktoken. An error for other kinds than BPE, and for merges that ranks cannot say.
    pub fn to_ranks(&self) -> Result<String> {
        match &self.model {
            Model::Bpe(bpe) => tiktoken::to_ranks(bpe),
            _ => Err(Error::Unsupported(format!("a vocabulary of the kind {}", self.kind()))),
        }
    }

    /// Writes [`to_json`](Self::to_json) to `path`, which after a crash has its old or its new content.
    pub fn save(&self, path: &Path) -> Result<()> {
        durable::write(path, self.to_json().as_bytes())
            .map_err(|source| Error::Write { path: path.to_owned(), source })
    }

    /// Reads the content of a tokenizer file.
    pub fn from_json(json: &str) -> Result<Self> {
        if !own_json::is_own(json) {
            return bpe::json::from_json(json).and_then(Self::from_bpe);
        }
        match &*own_json::kind_of(json)? {
            characters::KIND => characters::from_json(json).and_then(Self::from_characters),
            words::KIND => words::from_json(json).and_then(Self::from_words),
            bytes::KIND => bytes::from_json(json).and_then(Self::from_bytes),
            other => Err(Error::Unsupported(format!("the kind {other:?}"))),
        }
    }

    /// The tokenizer as a file: `tokenizer.json` of Hugging Face for BPE, our own JSON for the other kinds.
    ///
    /// The same tokenizer always gives the same text, and [`from_json`](Self::from_json) reads it back
    /// unchanged.
    pub fn to_json(&self) -> String {
        match &self.model {
            Model::Bpe(bpe) => bpe::json::to_json(bpe),
            Model::Char(vocabulary) => characters::to_json(vocabulary),
            Model::Word(vocabulary) => words::to_json(vocabulary),
            Model::Byte(vocabulary) => bytes::to_json(vocabulary),
        }
    }

    /// The kind of vocabulary.
    pub fn kind(&self) -> Kind {
        match self.model {
            Model::Bpe(_) => Kind::Bpe,
            Model::Char(_) => Kind::Char,
            Model::Word(_) => Kind::Word,
            Model::Byte(_) => Kind::Byte,
        }
    }

    /// The pattern that cuts text into pieces; the char and byte kinds need none.
    pub fn pattern(&self) -> Option<&Pattern> {
        match &self.model {
            Model::Bpe(bpe) => Some(bpe.pattern()),
            Model::Word(vocabulary) => Some(vocabulary.pattern()),
            Model::Char(_) | Model::Byte(_) => None,
        }
    }

    /// How many merges a BPE tokenizer has; 0 for the other kinds.
    pub fn n_merges(&self) -> usize {
        match &self.model {
            Model::Bpe(bpe) => bpe.n_merges(),
            Model::Char(_) | Model::Word(_) | Model::Byte(_) => 0,
        }
    }

    /// The highest id plus one, special tokens included.
    pub fn vocab_size(&self) -> usize {
        self.tokens().len()
    }

    /// Appends the tokens of ordinary text: the text of a special token means nothing here.
    ///
    /// A character or word that the vocabulary does not have is an error, unless the tokenizer has the
    /// special token [`UNKNOWN`]. After an error, `out` may hold the tokens of a part of the text.
    pub fn encode(&self, text: &[u8], out: &mut Vec<u32>) -> Result<()> {
        self.encode_counting_unknown(text, out).map(|_| ())
    }

    /// [`encode`](Self::encode) into narrow numbers, which a vocabulary of up to 65,536 tokens fits.
    pub fn encode_u16(&self, text: &[u8], out: &mut Vec<u16>) -> Result<()> {
        if self.vocab_size() > 1 << 16 {
            return Err(Error::VocabularyTooWide(self.vocab_size()));
        }
        if let Model::Bpe(bpe) = &self.model {
            return bpe.encode(text, out);
        }
        let mut ids = Vec::new();
        self.encode(text, &mut ids)?;
        out.extend(ids.into_iter().map(|id| id as u16));
        Ok(())
    }

    /// [`encode`](Self::encode), which also says how many tokens it appended and how many of them stand for
    /// something unknown.
    pub fn encode_counting_unknown(&self, text: &[u8], out: &mut Vec<u32>) -> Result<Encoded> {
        let start = out.len();
        let unknown = self.encode_stretch(text, 0, self.unknown_id(), out)?;
        Ok(Encoded { tokens: (out.len() - start) as u64, unknown })
    }

    /// Appends the tokens of text in which special tokens are recognised: the leftmost first, of those the
    /// longest. The text around them is encoded as if each stretch stood alone.
    pub fn encode_with_special(&self, text: &[u8], out: &mut Vec<u32>) -> Result<()> {
        self.encode_with_special_counting_unknown(text, out).map(|_| ())
    }

    /// [`encode_with_special`](Self::encode_with_special), which also says how many tokens it appended and
    /// how many of them stand for something unknown. The text of [`UNKNOWN`] itself is not unknown.
    pub fn encode_with_special_counting_unknown(&self, text: &[u8], out: &mut Vec<u32>) -> Result<Encoded> {
        let start = out.len();
        let unknown_id = self.unknown_id();
        let mut offset = 0;
        let mut unknown = 0;
        self.specials().for_each_part(text, |part| match part {
            Part::Special(id) => {
                out.push(id);
                offset += self.known_bytes(id)?.len();
                Ok(())
            }
            Part::Text(stretch) => {
                unknown += self.encode_stretch(stretch, offset, unknown_id, out)?;
                offset += stretch.len();
                Ok(())
            }
        })?;
        Ok(Encoded { tokens: (out.len() - start) as u64, unknown })
    }

    /// Encodes ordinary text with `id` for whatever the vocabulary does not have, and says how often.
    pub(crate) fn encode_with_unknown_as(&self, text: &[u8], id: u32, out: &mut Vec<u32>) -> Result<u64> {
        self.encode_stretch(text, 0, Some(id), out)
    }

    /// Appends the tokens of ordinary text with `unknown` for whatever the vocabulary does not have, and says
    /// how often; errors count bytes from `base`.
    fn encode_stretch(
        &self,
        text: &[u8],
        base: usize,
        unknown: Option<u32>,
        out: &mut Vec<u32>,
    ) -> Result<u64> {
        match &self.model {
            Model::Bpe(bpe) => bpe.encode(text, out)?,
            Model::Byte(_) => ByteVocabulary::encode(text, out),
            Model::Char(vocabulary) => return vocabulary.encode(text, base, unknown, out),
            Model::Word(vocabulary) => return vocabulary.encode(text, base, unknown, out),
        }
        Ok(0)
    }

    /// The bytes of the tokens, joined. Special tokens give their text.
    pub fn decode(&self, ids: &[u32]) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.decode_into(ids, &mut bytes)?;
        Ok(bytes)
    }

    /// Appends the bytes of the tokens to `out`. After an error, it holds those of a part of the tokens.
    pub fn decode_into(&self, ids: &[u32], out: &mut Vec<u8>) -> Result<()> {
        let unknown = |id| Error::UnknownId { id, vocab_size: self.vocab_size() };
        self.bytes.decode(ids, out).map_err(unknown)
    }

    /// A decoder for tokens that come one at a time.
    pub fn decoder(&self) -> StreamDecoder<'_> {
        StreamDecoder::new(self)
    }

    /// The bytes of a token (a special token's text), or `None` when no token has this id.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.bytes.get(id)
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

    /// The id that unknown characters or words get: that of [`UNKNOWN`], if that is a special token. `None`
    /// also for the kinds to which nothing is unknown.
    pub fn unknown_id(&self) -> Option<u32> {
        match self.model {
            Model::Char(_) | Model::Word(_) => self.special_id(UNKNOWN),
            Model::Bpe(_) | Model::Byte(_) => None,
        }
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
            Model::Word(vocabulary) => vocabulary.tokens(),
            Model::Byte(vocabulary) => vocabulary.tokens(),
        }
    }

    fn specials(&self) -> &Specials {
        match &self.model {
            Model::Bpe(bpe) => bpe.specials(),
            Model::Char(vocabulary) => vocabulary.specials(),
            Model::Word(vocabulary) => vocabulary.specials(),
            Model::Byte(vocabulary) => vocabulary.specials(),
        }
    }
}
