//! The tokenizer that users hold: one type for every kind.

use std::borrow::Cow;
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::bpe::sentencepiece::{self, SentencePiece};
use crate::bpe::tiktoken::{self, RankFileSettings};
use crate::bpe::{self, Bpe};
use crate::bytes::{self, ByteVocabulary};
use crate::characters::{self, CharVocabulary};
use crate::decode::TokenBytes;
use crate::frame::Frame;
use crate::hugging_face::File;
use crate::items::{Encoded, UNKNOWN};
use crate::pattern::Pattern;
use crate::special::{Part, Specials, Wanted, for_each_part};
use crate::wordpiece::{self, WordPiece};
use crate::words::{self, WordVocabulary};
use crate::{Error, FrequentPieces, Result, StreamDecoder, TextCuts, durable, llama2c, own_json};

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
    /// Byte-pair encoding over characters, with spaces among them, as Llama 2 and Gemma have it.
    SentencePiece,
    /// Words as the longest tokens that they start with, as BERT has it: what is encoded is lost where it is unknown, and
    /// most of its spaces and capitals always.
    WordPiece,
}

impl Kind {
    /// The name of the kind, as people type it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bpe => "bpe",
            Self::Char => characters::KIND,
            Self::Word => words::KIND,
            Self::Byte => bytes::KIND,
            Self::SentencePiece => "sentencepiece",
            Self::WordPiece => "wordpiece",
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
    SentencePiece(Arc<SentencePiece>),
    WordPiece(Arc<WordPiece>),
}

/// How vocabularies call the token that ends a text, the most certain first.
const END_OF_TEXT: [&str; 4] = ["<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"];

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

    pub(crate) fn from_sentencepiece(vocabulary: SentencePiece) -> Result<Self> {
        let bytes = TokenBytes::new(vocabulary.tokens())?;
        Ok(Self::new(Model::SentencePiece(Arc::new(vocabulary)), bytes))
    }

    fn from_wordpiece(vocabulary: WordPiece) -> Result<Self> {
        let bytes = TokenBytes::new(vocabulary.tokens())?;
        Ok(Self::new(Model::WordPiece(Arc::new(vocabulary)), bytes))
    }

    fn from_bytes(vocabulary: ByteVocabulary) -> Result<Self> {
        let bytes = TokenBytes::new(vocabulary.tokens())?;
        Ok(Self::new(Model::Byte(Arc::new(vocabulary)), bytes))
    }

    fn new(model: Model, bytes: TokenBytes) -> Self {
        Self { model, bytes: Arc::new(bytes) }
    }

    /// Reads a `tokenizer.json` of Hugging Face, a published rank file of tiktoken, a file of llama2.c, or the file that
    /// [`save`](Self::save) wrote. [`FrequentPieces`] beside the file are [expected](Self::expect).
    pub fn load(path: &Path) -> Result<Self> {
        let unread = |source| Error::Read { path: path.to_owned(), source };
        let content = fs::read(path).map_err(unread)?;
        let read = if llama2c::is_file(&content) {
            Self::from_llama2c(&content)
        } else if tiktoken::is_rank_file(&content) {
            Self::from_ranks(&content, None)
        } else {
            let text = String::from_utf8(content);
            Self::from_json(&text.map_err(|error| unread(io::Error::new(io::ErrorKind::InvalidData, error)))?)
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
            return Self::from_hugging_face(&File::parse(json)?);
        }
        match &*own_json::kind_of(json)? {
            characters::KIND => characters::from_json(json).and_then(Self::from_characters),
            words::KIND => words::from_json(json).and_then(Self::from_words),
            bytes::KIND => bytes::from_json(json).and_then(Self::from_bytes),
            other => Err(Error::Unsupported(format!("the kind {other:?}"))),
        }
    }

    fn from_hugging_face(file: &File) -> Result<Self> {
        if file.model.kind() == "WordPiece" {
            wordpiece::json::from_file(file).and_then(Self::from_wordpiece)
        } else if file.is_byte_level() {
            bpe::json::from_file(file).and_then(Self::from_bpe)
        } else {
            sentencepiece::json::from_file(file).and_then(Self::from_sentencepiece)
        }
    }

    /// The tokenizer as a file: `tokenizer.json` of Hugging Face where that knows the kind, our own JSON for char, word and
    /// byte.
    ///
    /// The same tokenizer always gives the same text, and [`from_json`](Self::from_json) reads it back
    /// unchanged.
    pub fn to_json(&self) -> String {
        match &self.model {
            Model::Bpe(bpe) => bpe::json::to_json(bpe),
            Model::Char(vocabulary) => characters::to_json(vocabulary),
            Model::Word(vocabulary) => words::to_json(vocabulary),
            Model::Byte(vocabulary) => bytes::to_json(vocabulary),
            Model::SentencePiece(vocabulary) => sentencepiece::json::to_json(vocabulary),
            Model::WordPiece(vocabulary) => wordpiece::json::to_json(vocabulary),
        }
    }

    /// The kind of vocabulary.
    pub fn kind(&self) -> Kind {
        match self.model {
            Model::Bpe(_) => Kind::Bpe,
            Model::Char(_) => Kind::Char,
            Model::Word(_) => Kind::Word,
            Model::Byte(_) => Kind::Byte,
            Model::SentencePiece(_) => Kind::SentencePiece,
            Model::WordPiece(_) => Kind::WordPiece,
        }
    }

    /// The pattern that cuts text into pieces; only the BPE and word kinds have one.
    pub fn pattern(&self) -> Option<&Pattern> {
        match &self.model {
            Model::Bpe(bpe) => Some(bpe.pattern()),
            Model::Word(vocabulary) => Some(vocabulary.pattern()),
            Model::Char(_) | Model::Byte(_) | Model::SentencePiece(_) | Model::WordPiece(_) => None,
        }
    }

    /// Where ordinary text may be cut so that the parts, encoded one by one, have the tokens of the whole.
    pub fn cuts(&self) -> Result<TextCuts> {
        let pattern = match &self.model {
            Model::Bpe(bpe) => bpe.pattern().clone(),
            Model::Word(vocabulary) => vocabulary.pattern().clone(),
            // Their tokens depend on no neighbours, so text may be cut anywhere, also where any pattern would.
            Model::Char(_) | Model::Byte(_) => Pattern::Gpt2,
            // Merges that go over spaces, rules of others for words: nothing is known about where they end.
            Model::SentencePiece(_) | Model::WordPiece(_) => Pattern::Regex("(?s).+".into()),
        };
        TextCuts::new(&pattern, &[], false)
    }

    /// How many merges a BPE tokenizer has; 0 for the other kinds.
    pub fn n_merges(&self) -> usize {
        match &self.model {
            Model::Bpe(bpe) => bpe.n_merges(),
            Model::SentencePiece(vocabulary) => vocabulary.n_merges(),
            Model::Char(_) | Model::Word(_) | Model::Byte(_) | Model::WordPiece(_) => 0,
        }
    }

    /// The bytes that have no token in a byte-level vocabulary and are left out of a text, as the makers of such
    /// vocabularies do; none in the other kinds.
    pub fn missing_bytes(&self) -> Vec<u8> {
        match &self.model {
            Model::Bpe(bpe) => bpe.missing_bytes(),
            Model::Char(_)
            | Model::Word(_)
            | Model::Byte(_)
            | Model::SentencePiece(_)
            | Model::WordPiece(_) => Vec::new(),
        }
    }

    /// The highest id plus one, special tokens included.
    pub fn vocab_size(&self) -> usize {
        self.tokens().len()
    }

    /// Appends the tokens of ordinary text: the text of a special token means nothing here. Tokens that a file adds to its
    /// vocabulary without calling them special are found.
    ///
    /// A character or word that the vocabulary does not have is an error, unless the tokenizer has a token for
    /// the unknown, such as the special token [`UNKNOWN`]. After an error, `out` may hold the tokens of a part of the text.
    pub fn encode(&self, text: &[u8], out: &mut Vec<u32>) -> Result<()> {
        self.encode_counting_unknown(text, out).map(|_| ())
    }

    /// [`encode`](Self::encode) of what is known to be text, which need not be looked at for that again.
    pub fn encode_text(&self, text: &str, out: &mut Vec<u32>) -> Result<()> {
        match self.plain_bpe() {
            Some(bpe) => bpe.encode_text(text, out),
            None => self.encode(text.as_bytes(), out),
        }
    }

    /// [`encode_text`](Self::encode_text) into narrow numbers, which a vocabulary of up to 65,536 tokens fits.
    pub fn encode_text_u16(&self, text: &str, out: &mut Vec<u16>) -> Result<()> {
        if self.vocab_size() > 1 << 16 {
            return Err(Error::VocabularyTooWide(self.vocab_size()));
        }
        if let Some(bpe) = self.plain_bpe() {
            return bpe.encode_text(text, out);
        }
        let mut ids = Vec::new();
        self.encode(text.as_bytes(), &mut ids)?;
        out.extend(ids.into_iter().map(|id| id as u16));
        Ok(())
    }

    /// The vocabulary, if it is one of BPE and no added token is looked for in ordinary text.
    fn plain_bpe(&self) -> Option<&Bpe> {
        match &self.model {
            Model::Bpe(bpe) => Some(&**bpe).filter(|bpe| bpe.specials().finders(Wanted::Ordinary).are_none()),
            _ => None,
        }
    }

    /// [`encode`](Self::encode), which also says how many tokens it appended and how many of them stand for
    /// something unknown.
    pub fn encode_counting_unknown(&self, text: &[u8], out: &mut Vec<u32>) -> Result<Encoded> {
        self.encode_parts(text, Wanted::Ordinary, self.unknown_id(), out)
    }

    /// Appends the tokens of text in which special tokens are recognised: the leftmost first, of those the
    /// longest. The text around them is encoded as if each stretch stood alone.
    pub fn encode_with_special(&self, text: &[u8], out: &mut Vec<u32>) -> Result<()> {
        self.encode_with_special_counting_unknown(text, out).map(|_| ())
    }

    /// [`encode_with_special`](Self::encode_with_special), which also says how many tokens it appended and
    /// how many of them stand for something unknown. The text of [`UNKNOWN`] itself is not unknown.
    pub fn encode_with_special_counting_unknown(&self, text: &[u8], out: &mut Vec<u32>) -> Result<Encoded> {
        self.encode_parts(text, Wanted::All, self.unknown_id(), out)
    }

    /// [`encode_with_special`](Self::encode_with_special) with the special tokens [around](Self::around) a text.
    pub fn encode_framed(&self, text: &[u8], out: &mut Vec<u32>) -> Result<()> {
        let (before, after) = self.around();
        out.extend_from_slice(before);
        self.encode_with_special(text, out)?;
        out.extend_from_slice(after);
        Ok(())
    }

    /// The special tokens that the makers of the vocabulary put before and behind a text that a model is given, such as
    /// `<s>` before it for Llama 2. No way to encode adds them but [`encode_framed`](Self::encode_framed).
    pub fn around(&self) -> (&[u32], &[u32]) {
        self.frame().map_or((&[], &[]), |frame| (frame.before(), frame.after()))
    }

    /// The same vocabulary with other special tokens [around](Self::around) a text, which are given as texts.
    pub fn with_around(&self, before: &[&str], after: &[&str]) -> Result<Self> {
        let known = |text: &&'_ str| {
            let missing = || Error::Format(format!("it has no special token {text:?} to put around a text"));
            Ok(((*text).to_owned(), self.special_id(text).ok_or_else(missing)?))
        };
        let before = before.iter().map(known).collect::<Result<Vec<(String, u32)>>>()?;
        let after = after.iter().map(known).collect::<Result<Vec<(String, u32)>>>()?;
        let mut file: serde_json::Value = serde_json::from_str(&self.to_json())
            .map_err(|error| Error::Format(format!("it cannot be written as JSON ({error})")))?;
        file["post_processor"] = Frame::of(&before, &after).to_json();
        Self::from_json(&file.to_string())
    }

    /// Encodes ordinary text with `id` for whatever the vocabulary does not have, and says how often.
    pub(crate) fn encode_with_unknown_as(&self, text: &[u8], id: u32, out: &mut Vec<u32>) -> Result<u64> {
        self.encode_parts(text, Wanted::Ordinary, Some(id), out).map(|encoded| encoded.unknown)
    }

    /// Appends the tokens of text in which the `wanted` special tokens are recognised, with `unknown` for whatever the
    /// vocabulary does not have.
    fn encode_parts(
        &self,
        text: &[u8],
        wanted: Wanted,
        unknown: Option<u32>,
        out: &mut Vec<u32>,
    ) -> Result<Encoded> {
        let start = out.len();
        let finders = self.specials().finders(wanted);
        let (mut offset, mut n_unknown) = (0, 0);
        for_each_part(finders.raw.as_ref(), text, |part| match part {
            Part::Special(id, n_bytes) => {
                out.push(id);
                offset += n_bytes;
                Ok(())
            }
            Part::Text(stretch) => {
                let normal = self.normalise(stretch);
                // Where the stretch is in the text; after normalising, where it starts.
                let mut at = offset;
                for_each_part(finders.normalized.as_ref(), &normal, |part| match part {
                    Part::Special(id, n_bytes) => {
                        out.push(id);
                        at += n_bytes;
                        Ok(())
                    }
                    Part::Text(stretch) => {
                        n_unknown += self.encode_stretch(stretch, at, unknown, out)?;
                        at += stretch.len();
                        Ok(())
                    }
                })?;
                offset += stretch.len();
                Ok(())
            }
        })?;
        Ok(Encoded { tokens: (out.len() - start) as u64, unknown: n_unknown })
    }

    /// The text as it is encoded.
    fn normalise<'t>(&self, text: &'t [u8]) -> Cow<'t, [u8]> {
        match &self.model {
            Model::Bpe(bpe) => bpe.normalise(text),
            Model::SentencePiece(vocabulary) => vocabulary.normalise(text),
            Model::WordPiece(vocabulary) => vocabulary.normalise(text),
            Model::Byte(_) | Model::Char(_) | Model::Word(_) => Cow::Borrowed(text),
        }
    }

    /// Appends the tokens of normalised text with `unknown` for whatever the vocabulary does not have, and says
    /// how often. The stretch is at `base` of its text, from which errors count bytes.
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
            Model::SentencePiece(vocabulary) => {
                return vocabulary.encode(text, base == 0, base, unknown, out);
            }
            Model::WordPiece(vocabulary) => return vocabulary.encode(text, base, unknown, out),
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
        let [first, rest @ ..] = ids else { return Ok(()) };
        out.extend_from_slice(&self.first_bytes(*first)?);
        self.bytes.decode(rest, out).map_err(unknown)
    }

    /// A decoder for the tokens of a text that come one at a time.
    pub fn decoder(&self) -> StreamDecoder<'_> {
        StreamDecoder::new(self, true)
    }

    /// A decoder for tokens that continue a text, such as a prompt: the first of them is not the first of the text, before
    /// which some kinds leave out a space.
    pub fn continuing_decoder(&self) -> StreamDecoder<'_> {
        StreamDecoder::new(self, false)
    }

    /// The bytes of a token (a special token's text) within a text, or `None` when no token has this id.
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

    /// The id of the special token that ends a text: the first that there is of `<|endoftext|>`, `<|end_of_text|>`, `</s>`
    /// and `<eos>`.
    pub fn end_of_text(&self) -> Option<u32> {
        END_OF_TEXT.iter().find_map(|text| self.special_id(text))
    }

    /// The id that unknown characters or words get: that of [`UNKNOWN`], if that is a special token, or what a file of
    /// another kind says. `None` also for the kinds to which nothing is unknown.
    pub fn unknown_id(&self) -> Option<u32> {
        match &self.model {
            Model::Char(_) | Model::Word(_) => self.special_id(UNKNOWN),
            Model::SentencePiece(vocabulary) => vocabulary.unknown_id(),
            Model::WordPiece(vocabulary) => Some(vocabulary.unknown_id()),
            Model::Bpe(_) | Model::Byte(_) => None,
        }
    }

    /// BLAKE3 of [`to_json`](Self::to_json): equal for tokenizers that give equal ids and texts.
    pub fn hash(&self) -> [u8; 32] {
        Self::hash_of_json(&self.to_json())
    }

    /// The [hash](Self::hash) of the tokenizer whose [`to_json`](Self::to_json) this is, which takes its time to make.
    pub fn hash_of_json(json: &str) -> [u8; 32] {
        *blake3::hash(json.as_bytes()).as_bytes()
    }

    pub(crate) fn known_bytes(&self, id: u32) -> Result<&[u8]> {
        self.token_bytes(id).ok_or(Error::UnknownId { id, vocab_size: self.vocab_size() })
    }

    /// The bytes of a token that starts a text.
    pub(crate) fn first_bytes(&self, id: u32) -> Result<Cow<'_, [u8]>> {
        let bytes = self.known_bytes(id)?;
        Ok(match &self.model {
            Model::SentencePiece(vocabulary) => Cow::Borrowed(vocabulary.first_bytes(bytes)),
            Model::WordPiece(vocabulary) => Cow::Owned(vocabulary.first_bytes(id)),
            Model::Bpe(_) | Model::Byte(_) | Model::Char(_) | Model::Word(_) => Cow::Borrowed(bytes),
        })
    }

    fn tokens(&self) -> &[Option<Box<[u8]>>] {
        match &self.model {
            Model::Bpe(bpe) => bpe.tokens(),
            Model::Char(vocabulary) => vocabulary.tokens(),
            Model::Word(vocabulary) => vocabulary.tokens(),
            Model::Byte(vocabulary) => vocabulary.tokens(),
            Model::SentencePiece(vocabulary) => vocabulary.tokens(),
            Model::WordPiece(vocabulary) => vocabulary.tokens(),
        }
    }

    pub(crate) fn specials(&self) -> &Specials {
        match &self.model {
            Model::Bpe(bpe) => bpe.specials(),
            Model::Char(vocabulary) => vocabulary.specials(),
            Model::Word(vocabulary) => vocabulary.specials(),
            Model::Byte(vocabulary) => vocabulary.specials(),
            Model::SentencePiece(vocabulary) => vocabulary.specials(),
            Model::WordPiece(vocabulary) => vocabulary.specials(),
        }
    }

    fn frame(&self) -> Option<&Frame> {
        match &self.model {
            Model::Bpe(bpe) => Some(bpe.frame()),
            Model::SentencePiece(vocabulary) => Some(vocabulary.frame()),
            Model::WordPiece(vocabulary) => Some(vocabulary.frame()),
            Model::Char(_) | Model::Word(_) | Model::Byte(_) => None,
        }
    }
}
