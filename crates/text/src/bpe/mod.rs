//! Byte-pair encoding over bytes: the vocabulary, its merges, and how pieces become tokens.

mod encode;
pub(crate) mod json;
pub(crate) mod learn;
mod merge;
mod pairs;
pub(crate) mod reference;
pub(crate) mod sentencepiece;
pub(crate) mod tiktoken;
pub(crate) mod train;
pub(crate) mod trie;
mod vocabulary;

use std::borrow::Cow;

use hashbrown::HashMap;

use crate::frame::Frame;
use crate::normal::Normalization;
use crate::pattern::Pattern;
use crate::special::Specials;
use crate::splitter::Splitter;
use crate::{Error, Result};
pub(crate) use encode::Id;
use encode::{Model, Pool};
use merge::MergeTable;

/// A byte-level BPE vocabulary with everything needed to encode and decode.
#[derive(Debug)]
pub(crate) struct Bpe {
    splitter: Splitter,
    normalization: Normalization,
    specials: Specials,
    frame: Frame,
    /// Its tokens are by id; special tokens hold their text; `None` is an id that is not used.
    model: Model,
    ignore_merges: bool,
    encoders: Pool,
}

/// What a [`Bpe`] is made of, before it is checked.
pub(crate) struct Parts {
    pub(crate) pattern: Pattern,
    pub(crate) normalization: Normalization,
    pub(crate) specials: Specials,
    pub(crate) frame: Frame,
    /// Ordinary and special tokens; ids need not be dense.
    pub(crate) tokens: Vec<Option<Box<[u8]>>>,
    /// Pairs of ids, in order of rank.
    pub(crate) merges: Vec<(u32, u32)>,
    pub(crate) ignore_merges: bool,
}

impl Bpe {
    /// Checks the parts: every byte and every result of a merge must be an ordinary token, no merge may occur
    /// twice.
    pub(crate) fn new(parts: Parts) -> Result<Self> {
        let Parts { pattern, normalization, specials, frame, tokens, merges, ignore_merges } = parts;
        frame.check(|id| tokens.get(id as usize).is_some_and(Option::is_some))?;
        let ordinary = ids_of_ordinary_tokens(&tokens, &specials)?;
        let table = MergeTable::new(&tokens, &ordinary, &merges)?;
        let n_ordinary = ordinary.len();
        let whole_pieces = if ignore_merges { ordinary } else { HashMap::new() };
        let splitter = Splitter::new(&pattern)?;
        let model = Model { tokens, merges, table, n_ordinary, whole_pieces };
        Ok(Self { splitter, normalization, specials, frame, model, ignore_merges, encoders: Pool::default() })
    }

    pub(crate) fn pattern(&self) -> &Pattern {
        self.splitter.pattern()
    }

    pub(crate) fn n_merges(&self) -> usize {
        self.model.merges.len()
    }

    pub(crate) fn specials(&self) -> &Specials {
        &self.specials
    }

    pub(crate) fn frame(&self) -> &Frame {
        &self.frame
    }

    pub(crate) fn tokens(&self) -> &[Option<Box<[u8]>>] {
        &self.model.tokens
    }

    /// The bytes that have no token of their own.
    pub(crate) fn missing_bytes(&self) -> Vec<u8> {
        self.model.table.missing_bytes()
    }

    /// Prepares for text in which these pieces are the most frequent.
    pub(crate) fn expect(&self, frequent: Vec<Box<[u8]>>) {
        self.encoders.expect(frequent);
    }

    /// Whether every piece has the same tokens in both.
    pub(crate) fn encodes_as(&self, other: &Self) -> bool {
        self.normalization == other.normalization && self.model.encodes_as(&other.model)
    }

    /// The text as it is encoded.
    pub(crate) fn normalise<'t>(&self, text: &'t [u8]) -> Cow<'t, [u8]> {
        self.normalization.apply(text)
    }

    /// Appends the tokens of normalised text, in which special tokens mean nothing.
    ///
    /// Ids must fit `I`.
    pub(crate) fn encode<I: Id>(&self, text: &[u8], out: &mut Vec<I>) -> Result<()> {
        let Self { splitter, model, .. } = self;
        self.encoders.with_encoder(model, |encoder| encoder.encode(model, splitter, text, out))
    }

    /// [`encode`](Self::encode) of what is known to be text, which is not looked at a second time. It need not be normalised.
    pub(crate) fn encode_text<I: Id>(&self, text: &str, out: &mut Vec<I>) -> Result<()> {
        let Self { splitter, model, .. } = self;
        match self.normalise(text.as_bytes()) {
            Cow::Borrowed(_) => {
                self.encoders.with_encoder(model, |encoder| encoder.encode_text(model, splitter, text, out))
            }
            Cow::Owned(normalised) => self.encode(&normalised, out),
        }
    }
}

fn ids_of_ordinary_tokens(
    tokens: &[Option<Box<[u8]>>],
    specials: &Specials,
) -> Result<HashMap<Box<[u8]>, u32>> {
    let mut ids = HashMap::with_capacity(tokens.len());
    for (token, id) in tokens.iter().zip(0..) {
        let Some(bytes) = token else { continue };
        if specials.has_id(id) {
            continue;
        }
        if bytes.is_empty() {
            return Err(Error::Format(format!("token {id} is empty")));
        }
        if let Some(first) = ids.insert(bytes.clone(), id) {
            return Err(Error::Format(format!("tokens {first} and {id} are the same bytes")));
        }
    }
    Ok(ids)
}
