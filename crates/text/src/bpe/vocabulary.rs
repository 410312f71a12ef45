//! The vocabulary in training: which token a pair becomes, whether it may, which pair goes first.

use std::cmp::Reverse;
use std::rc::Rc;

use hashbrown::{HashMap, HashSet};

use super::train::{BpeOptions, Ties};
use crate::byte_level::{ByteLevel, bytes_in_alphabet_order};
use crate::{Error, Result};

/// Two adjacent tokens.
pub(super) type Pair = (u32, u32);

/// The tokens so far.
pub(super) struct Vocabulary {
    /// By id: special tokens, bytes, merges.
    pub(super) tokens: Vec<Rc<[u8]>>,
    ids: HashMap<Rc<[u8]>, u32>,
    pub(super) byte_ids: [u32; 256],
    /// What no merge may spell, because a tokenizer.json could not tell it from a special token.
    reserved: HashSet<Vec<u8>>,
    max_reserved: usize,
    max_token_length: usize,
}

impl Vocabulary {
    pub(super) fn new(options: &BpeOptions) -> Result<Self> {
        let alphabet = ByteLevel::new();
        let reserved: HashSet<_> = options.special.iter().filter_map(|text| alphabet.parse(text)).collect();
        if let Some(text) =
            options.special.iter().find(|text| alphabet.parse(text).is_some_and(|b| b.len() == 1))
        {
            return Err(Error::BadSpecial {
                text: text.clone(),
                problem: "is also the name of a single byte",
            });
        }
        let n_special = options.special.len() as u32;
        let mut tokens: Vec<Rc<[u8]>> = options.special.iter().map(|text| text.as_bytes().into()).collect();
        let mut ids = HashMap::new();
        let mut byte_ids = [0; 256];
        for (byte, id) in bytes_in_alphabet_order().into_iter().zip(n_special..) {
            byte_ids[usize::from(byte)] = id;
            let token: Rc<[u8]> = [byte].into();
            tokens.push(Rc::clone(&token));
            ids.insert(token, id);
        }
        let max_token_length = options.max_token_length.unwrap_or(usize::MAX);
        let max_reserved = reserved.iter().map(Vec::len).max().unwrap_or(0);
        Ok(Self { tokens, ids, byte_ids, reserved, max_reserved, max_token_length })
    }

    fn bytes(&self, (left, right): Pair) -> (&Rc<[u8]>, &Rc<[u8]>) {
        (&self.tokens[left as usize], &self.tokens[right as usize])
    }

    fn joined(&self, pair: Pair) -> Vec<u8> {
        let (left, right) = self.bytes(pair);
        [&**left, &**right].concat()
    }

    pub(super) fn allows(&self, pair: Pair) -> bool {
        let (left, right) = self.bytes(pair);
        let n_bytes = left.len() + right.len();
        n_bytes <= self.max_token_length
            && (n_bytes > self.max_reserved || !self.reserved.contains(&self.joined(pair)))
    }

    /// The rank of a token by plain byte ids: merges come after the bytes and keep their order among themselves.
    pub(super) fn raw_rank(&self, id: u32) -> u32 {
        match *self.tokens[id as usize] {
            [byte] => u32::from(byte),
            _ => id.saturating_add(256),
        }
    }

    /// The token that the pair becomes: a new one, or the one that has these bytes already.
    pub(super) fn token_of(&mut self, pair: Pair) -> u32 {
        let token: Rc<[u8]> = self.joined(pair).into();
        let next_id = self.tokens.len() as u32;
        let id = *self.ids.entry(Rc::clone(&token)).or_insert(next_id);
        if id == next_id {
            self.tokens.push(token);
        }
        id
    }

    pub(super) fn tie_key(&self, (left, right): Pair, ties: Ties) -> TieKey {
        match ties {
            Ties::Hf => TieKey::SmallestRanks(Reverse((left, right))),
            Ties::Raw => TieKey::SmallestRanks(Reverse((self.raw_rank(left), self.raw_rank(right)))),
            Ties::Bytes => {
                let (left, right) = self.bytes((left, right));
                TieKey::GreatestBytes(Rc::clone(left), Rc::clone(right))
            }
        }
    }
}

/// Orders pairs of equal count; the greatest wins. Keys of one training are all of one kind.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TieKey {
    SmallestRanks(Reverse<(u32, u32)>),
    GreatestBytes(Rc<[u8]>, Rc<[u8]>),
}
