//! The tokens of a batch, in numbers as wide as those of its shards: what is encoded is what is written.

use std::ops::Range;

use ironmill_text::Tokenizer;

use crate::error::Result;
use crate::shard::{ShardWriter, token_bytes};

/// Tokens of one vocabulary.
pub(super) enum Tokens {
    Narrow(Vec<u16>),
    Wide(Vec<u32>),
}

impl Tokens {
    /// None so far, as wide as the vocabulary asks for.
    pub(super) fn for_vocabulary(vocab_size: usize) -> Tokens {
        match token_bytes(vocab_size as u64) {
            2 => Tokens::Narrow(Vec::new()),
            _ => Tokens::Wide(Vec::new()),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Tokens::Narrow(tokens) => tokens.len(),
            Tokens::Wide(tokens) => tokens.len(),
        }
    }

    /// Forgets them and keeps their memory.
    pub(super) fn clear(&mut self) {
        match self {
            Tokens::Narrow(tokens) => tokens.clear(),
            Tokens::Wide(tokens) => tokens.clear(),
        }
    }

    /// Appends tokens of the vocabulary.
    pub(super) fn extend(&mut self, ids: &[u32]) {
        match self {
            Tokens::Narrow(tokens) => tokens.extend(ids.iter().map(|&id| id as u16)),
            Tokens::Wide(tokens) => tokens.extend_from_slice(ids),
        }
    }

    /// Appends the tokens of a text.
    pub(super) fn encode(&mut self, tokenizer: &Tokenizer, text: &str) -> ironmill_text::Result<()> {
        match self {
            Tokens::Narrow(tokens) => tokenizer.encode_text_u16(text, tokens),
            Tokens::Wide(tokens) => tokenizer.encode_text(text, tokens),
        }
    }

    /// Appends some of them to a shard.
    pub(super) fn write(&self, range: Range<usize>, shard: &mut ShardWriter) -> Result<()> {
        match self {
            Tokens::Narrow(tokens) => shard.push(&tokens[range]),
            Tokens::Wide(tokens) => shard.push(&tokens[range]),
        }
    }
}
