//! Byte-pair encoding over bytes: the vocabulary, its merges, and how pieces become tokens.

pub(crate) mod json;
pub(crate) mod learn;
mod merge;
pub(crate) mod reference;
pub(crate) mod train;
mod vocabulary;

use hashbrown::HashMap;

use crate::pattern::Pattern;
use crate::special::Specials;
use crate::splitter::Splitter;
use crate::{Error, Result};
use merge::MergeTable;

/// A byte-level BPE vocabulary with everything needed to encode and decode.
#[derive(Debug, Clone)]
pub(crate) struct Bpe {
    splitter: Splitter,
    specials: Specials,
    /// The bytes of each token by id; special tokens hold their text; `None` is an id that is not used.
    tokens: Vec<Option<Box<[u8]>>>,
    /// Pairs of ids, in order of rank.
    merges: Vec<(u32, u32)>,
    table: MergeTable,
    /// With `ignore_merges`, pieces that are themselves tokens; empty without it.
    whole_pieces: HashMap<Box<[u8]>, u32>,
    ignore_merges: bool,
}

/// What a [`Bpe`] is made of, before it is checked.
pub(crate) struct Parts {
    pub(crate) pattern: Pattern,
    pub(crate) specials: Specials,
    /// Ordinary and special tokens; ids need not be dense.
    pub(crate) tokens: Vec<Option<Box<[u8]>>>,
    /// Pairs of ids, in order of rank.
    pub(crate) merges: Vec<(u32, u32)>,
    pub(crate) ignore_merges: bool,
}

/// Beyond this many distinct pieces in one call, further ones are merged anew each time.
const MAX_CACHED_PIECES: usize = 1 << 16;

impl Bpe {
    /// Checks the parts: every byte and every result of a merge must be an ordinary token, no merge may occur
    /// twice.
    pub(crate) fn new(parts: Parts) -> Result<Self> {
        let Parts { pattern, specials, tokens, merges, ignore_merges } = parts;
        let ordinary = ids_of_ordinary_tokens(&tokens, &specials)?;
        let table = MergeTable::new(&tokens, &ordinary, &merges)?;
        let whole_pieces = if ignore_merges { ordinary } else { HashMap::new() };
        let splitter = Splitter::new(&pattern)?;
        Ok(Self { splitter, specials, tokens, merges, table, whole_pieces, ignore_merges })
    }

    pub(crate) fn pattern(&self) -> &Pattern {
        self.splitter.pattern()
    }

    pub(crate) fn n_merges(&self) -> usize {
        self.merges.len()
    }

    pub(crate) fn specials(&self) -> &Specials {
        &self.specials
    }

    pub(crate) fn tokens(&self) -> &[Option<Box<[u8]>>] {
        &self.tokens
    }

    /// Appends the tokens of `text`, in which special tokens mean nothing.
    pub(crate) fn encode(&self, text: &[u8], out: &mut Vec<u32>) -> Result<()> {
        // A piece seen before is copied from where its tokens already stand in `out`.
        let mut seen: HashMap<&[u8], (usize, usize)> = HashMap::new();
        self.splitter.for_each_piece(text, |piece| {
            if let Some(&(start, end)) = seen.get(piece) {
                out.extend_from_within(start..end);
                return Ok(());
            }
            let start = out.len();
            match self.whole_pieces.get(piece) {
                Some(&id) => out.push(id),
                None => self.table.encode_piece(piece, out),
            }
            if seen.len() < MAX_CACHED_PIECES {
                seen.insert(piece, (start, out.len()));
            }
            Ok(())
        })
    }
}

fn ids_of_ordinary_tokens(
    tokens: &[Option<Box<[u8]>>],
    specials: &Specials,
) -> Result<HashMap<Box<[u8]>, u32>> {
    let mut ids = HashMap::with_capacity(tokens.len());
    for (token, id) in tokens.iter().zip(0..) {
        let Some(bytes) = token else { continue };
        if specials.as_slice().binary_search_by_key(&id, |&(_, id)| id).is_ok() {
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
