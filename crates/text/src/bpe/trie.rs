//! A vocabulary by the bytes of its tokens: which is the longest that a text starts with?

use super::pairs::{Merge, NONE, PairTable};

/// A trie with the first two bytes in a table and the other steps in a hash table.
#[derive(Debug)]
pub(crate) struct Trie {
    /// The tokens of single bytes.
    bytes: [u32; 256],
    /// The node of two bytes, or [`NOWHERE`].
    second: Vec<u32>,
    /// From node and byte to node.
    steps: PairTable,
    /// The token that ends at a node, or [`NO_TOKEN`].
    tokens: Vec<u32>,
}

/// No token: ids stay below it.
pub(crate) const NO_TOKEN: u32 = u32::MAX;

const NOWHERE: u32 = NONE.result;

impl Trie {
    /// An empty trie for these tokens, which are sorted.
    pub(crate) fn with_room_for(tokens: &[(&[u8], u32)]) -> Self {
        let mut n_steps = 0;
        let mut previous: &[u8] = &[];
        for &(bytes, _) in tokens {
            n_steps += bytes.len() - bytes.iter().zip(previous).take_while(|(a, b)| a == b).count();
            previous = bytes;
        }
        Self {
            bytes: [NO_TOKEN; 256],
            second: vec![NOWHERE; 1 << 16],
            steps: PairTable::with_room(n_steps),
            tokens: Vec::with_capacity(n_steps),
        }
    }

    fn new_node(&mut self) -> u32 {
        self.tokens.push(NO_TOKEN);
        (self.tokens.len() - 1) as u32
    }

    /// Adds a token and returns the longest one that is a proper prefix of it.
    pub(crate) fn insert(&mut self, bytes: &[u8], id: u32) -> u32 {
        let [first, rest @ ..] = bytes else { return NO_TOKEN };
        let [second, rest @ ..] = rest else {
            self.bytes[usize::from(*first)] = id;
            return NO_TOKEN;
        };
        let pair = usize::from(*first) << 8 | usize::from(*second);
        if self.second[pair] == NOWHERE {
            self.second[pair] = self.new_node();
        }
        let mut node = self.second[pair];
        let mut prefix = self.bytes[usize::from(*first)];
        for &byte in rest {
            if self.tokens[node as usize] != NO_TOKEN {
                prefix = self.tokens[node as usize];
            }
            let mut next = self.steps.get(node, u32::from(byte)).result;
            if next == NOWHERE {
                next = self.new_node();
                self.steps.insert(node, u32::from(byte), Merge { rank: 0, result: next });
            }
            node = next;
        }
        self.tokens[node as usize] = id;
        prefix
    }

    /// The longest token that `text` starts with; [`NO_TOKEN`] for no text.
    #[inline]
    pub(crate) fn longest(&self, text: &[u8]) -> u32 {
        let [first, rest @ ..] = text else { return NO_TOKEN };
        let mut longest = self.bytes[usize::from(*first)];
        let [second, rest @ ..] = rest else { return longest };
        let mut node = self.second[usize::from(*first) << 8 | usize::from(*second)];
        let mut rest = rest.iter();
        while node != NOWHERE {
            if self.tokens[node as usize] != NO_TOKEN {
                longest = self.tokens[node as usize];
            }
            let Some(&byte) = rest.next() else { break };
            node = self.steps.get(node, u32::from(byte)).result;
        }
        longest
    }
}
