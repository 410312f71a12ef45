//! Vocabularies as GGUF files hold them, under `tokenizer.ggml`.

use hashbrown::HashMap;

use crate::bpe::Bpe;
use crate::bpe::sentencepiece::{Parts, Prefix, SentencePiece, Settings};
use crate::byte_level::ByteLevel;
use crate::frame::Frame;
use crate::hugging_face::two_names;
use crate::normal::Normalization;
use crate::pattern::Pattern;
use crate::special::{Rules, Specials};
use crate::{Error, Result, Tokenizer};

/// The values of a GGUF file that a tokenizer is made of, each named after its key below `tokenizer.ggml`.
///
/// What a file does not have stays empty or `None`.
#[derive(Debug, Clone, Default)]
pub struct GgufVocabulary {
    /// `llama` for a vocabulary of SentencePiece's kind, `gpt2` for byte-level BPE.
    pub model: String,
    /// The name of the way in which byte-level text is cut.
    pub pre: Option<String>,
    /// By id.
    pub tokens: Vec<String>,
    /// By id; of two merges the one whose result has the higher score goes first.
    pub scores: Vec<f32>,
    /// By id: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
    pub token_types: Vec<i32>,
    /// In order of rank, each two tokens with a space between.
    pub merges: Vec<String>,
    /// The id of the token before a text.
    pub bos_token_id: Option<u32>,
    /// The id of the token behind a text.
    pub eos_token_id: Option<u32>,
    /// The id of the token of unknown characters.
    pub unknown_token_id: Option<u32>,
    /// Whether [`Tokenizer::around`] has the token before a text.
    pub add_bos_token: Option<bool>,
    /// Whether [`Tokenizer::around`] has the token behind a text.
    pub add_eos_token: Option<bool>,
    /// Whether a space is put before a text.
    pub add_space_prefix: Option<bool>,
}

const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;

/// The longest token, in bytes, whose merges are found by its score.
const MAX_SCORED_BYTES: usize = 1024;

impl Tokenizer {
    /// Makes the tokenizer of a GGUF file. What is not supported is refused by name.
    pub fn from_gguf(vocabulary: &GgufVocabulary) -> Result<Self> {
        let GgufVocabulary { model, tokens, scores, token_types, .. } = vocabulary;
        for (name, len) in [("scores", scores.len()), ("token_type", token_types.len())] {
            if len != 0 && len != tokens.len() {
                return Err(Error::Format(format!("it has {len} {name} for {} tokens", tokens.len())));
            }
        }
        if u32::try_from(tokens.len()).is_err() {
            return Err(Error::VocabularyTooLarge(tokens.len()));
        }
        match &**model {
            "llama" => vocabulary.sentencepiece().and_then(Self::from_sentencepiece),
            "gpt2" => vocabulary.byte_level().and_then(Self::from_bpe),
            other => Err(Error::Unsupported(format!("the GGUF tokenizer model {other:?}"))),
        }
    }
}

impl GgufVocabulary {
    fn type_of(&self, idx: usize) -> i32 {
        self.token_types.get(idx).copied().unwrap_or(1)
    }

    /// Control tokens are special; those that a user defined are found in ordinary text, too.
    fn specials(&self) -> Result<Specials> {
        let mut specials = Vec::new();
        for (idx, text) in self.tokens.iter().enumerate() {
            let is_ordinary = self.type_of(idx) == USER_DEFINED;
            if is_ordinary || [UNKNOWN, CONTROL].contains(&self.type_of(idx)) {
                specials.push((text.clone(), idx as u32, Rules { is_ordinary, ..Rules::default() }));
            }
        }
        Specials::with_rules(specials, str::to_owned)
    }

    fn frame(&self, adds_bos: bool) -> Result<Frame> {
        let token = |id: Option<u32>, is_added: bool| {
            let Some(id) = id.filter(|_| is_added) else { return Ok(Vec::new()) };
            let text = self.tokens.get(id as usize);
            let missing = || Error::Format(format!("the token {id} around a text is not in the vocabulary"));
            Ok(vec![(text.ok_or_else(missing)?.as_str(), id)])
        };
        let before = token(self.bos_token_id, self.add_bos_token.unwrap_or(adds_bos))?;
        let after = token(self.eos_token_id, self.add_eos_token.unwrap_or(false))?;
        Ok(Frame::of(&before, &after))
    }

    fn ids(&self) -> Result<HashMap<&str, u32>> {
        let mut ids = HashMap::with_capacity(self.tokens.len());
        for (token, id) in self.tokens.iter().zip(0..) {
            if let Some(first) = ids.insert(token.as_str(), id) {
                return Err(Error::Format(format!("tokens {first} and {id} are both {token:?}")));
            }
        }
        Ok(ids)
    }

    fn merges_by_names(&self, ids: &HashMap<&str, u32>) -> Result<Vec<(u32, u32)>> {
        let id_of = |name: &str| {
            let missing = || Error::Format(format!("a merge uses {name:?}, which is not in the vocabulary"));
            ids.get(name).copied().ok_or_else(missing)
        };
        let pair = |merge: &String| {
            let (left, right) = two_names(merge)?;
            Ok((id_of(left)?, id_of(right)?))
        };
        self.merges.iter().map(pair).collect()
    }

    /// Two neighbours that together are a token may merge, and the one with the higher score goes first; of equal scores
    /// that of the lower id.
    fn merges_by_scores(&self, ids: &HashMap<&str, u32>) -> Result<Vec<(u32, u32)>> {
        let mut merges = Vec::new();
        for (idx, token) in self.tokens.iter().enumerate() {
            // A user's token is found before anything is merged.
            if self.type_of(idx) == USER_DEFINED {
                continue;
            }
            if token.len() > MAX_SCORED_BYTES {
                let n_bytes = token.len();
                return Err(Error::Unsupported(format!(
                    "token {idx} of {n_bytes} bytes, where {MAX_SCORED_BYTES} are the limit"
                )));
            }
            let score = self.scores.get(idx).copied().unwrap_or(0.0);
            for (at, _) in token.char_indices().skip(1) {
                let (left, right) = token.split_at(at);
                if let (Some(&left), Some(&right)) = (ids.get(left), ids.get(right)) {
                    merges.push((score, idx, left, right));
                }
            }
        }
        merges.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2, a.3).cmp(&(b.1, b.2, b.3))));
        Ok(merges.into_iter().map(|(_, _, left, right)| (left, right)).collect())
    }

    fn sentencepiece(&self) -> Result<SentencePiece> {
        let ids = self.ids()?;
        let merges =
            if self.merges.is_empty() { self.merges_by_scores(&ids)? } else { self.merges_by_names(&ids)? };
        let has_prefix = self.add_space_prefix.unwrap_or(true);
        let is_unknown = |&id: &u32| (id as usize) < self.tokens.len();
        let settings = Settings {
            prefix: if has_prefix { Prefix::Always } else { Prefix::Never },
            cuts_words: false,
            strips_space: has_prefix,
            unknown: self.unknown_token_id.filter(is_unknown),
            fuses_unknown: true,
            byte_fallback: true,
            ignore_merges: false,
        };
        let parts = Parts {
            names: self.tokens.iter().map(|token| Some(token.as_str().into())).collect(),
            is_in_model: vec![true; self.tokens.len()],
            merges,
            specials: self.specials()?,
            frame: self.frame(true)?,
            settings,
        };
        SentencePiece::new(parts)
    }

    fn byte_level(&self) -> Result<Bpe> {
        let (pattern, normalization) = match self.pre.as_deref() {
            Some("gpt-2") => (Pattern::Gpt2, Normalization::None),
            Some("llama3" | "llama-v3" | "llama-bpe") => (Pattern::Llama3, Normalization::None),
            Some("qwen2") => (Pattern::Qwen2, Normalization::Nfc),
            Some("gpt-4o") => (Pattern::O200k, Normalization::None),
            Some("smollm") => (Pattern::gpt2_single_digits(), Normalization::None),
            Some(other) => return Err(Error::Unsupported(format!("the GGUF pre-tokenizer {other:?}"))),
            None => return Err(Error::Unsupported("no word on how byte-level text is cut".to_owned())),
        };
        let specials = self.specials()?;
        let alphabet = ByteLevel::new();
        let bytes_of = |(token, id): (&String, u32)| {
            if specials.has_id(id) {
                return Ok(Some(token.as_bytes().into()));
            }
            let bytes = alphabet.parse(token).ok_or_else(|| {
                Error::Unsupported(format!("the token {token:?}, which is not in the byte-level alphabet"))
            })?;
            Ok(Some(bytes.into()))
        };
        let tokens = self.tokens.iter().zip(0..).map(bytes_of).collect::<Result<Vec<_>>>()?;
        let merges = self.merges_by_names(&self.ids()?)?;
        let frame = self.frame(false)?;
        // Llama 3 takes a piece that is a token as it is.
        let ignore_merges = pattern == Pattern::Llama3;
        Bpe::new(crate::bpe::Parts { pattern, normalization, specials, frame, tokens, merges, ignore_merges })
    }
}
