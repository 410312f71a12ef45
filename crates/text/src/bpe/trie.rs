//! A vocabulary by the bytes of its tokens: which is the longest that a text starts with?

use super::pairs::{Merge, NONE, PairTable};

/// A trie with the first two bytes in a table and the other steps in a hash table.
#[derive(Debug)]
pub(crate) struct Trie {
    /// The tokens of single bytes.
    bytes: [u32; 256],
    /// Where two bytes lead.
    second: Vec<Merge>,
    /// Where a node and a byte lead: the result is a node, the rank the token that ends there, so that one look finds both.
    steps: PairTable,
    n_nodes: u32,
}

/// No token: ids stay below it.
pub(crate) const NO_TOKEN: u32 = u32::MAX;

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
            second: vec![NONE; 1 << 16],
            steps: PairTable::with_room(n_steps),
            n_nodes: 0,
        }
    }

    fn new_node(&mut self, token: u32) -> Merge {
        self.n_nodes += 1;
        Merge { rank: token, result: self.n_nodes - 1 }
    }

    /// Adds a token, which must come after its prefixes, and returns the longest one that is a proper prefix of it.
    pub(crate) fn insert(&mut self, bytes: &[u8], id: u32) -> u32 {
        let [first, rest @ ..] = bytes else { return NO_TOKEN };
        let [second, rest @ ..] = rest else {
            self.bytes[usize::from(*first)] = id;
            return NO_TOKEN;
        };
        let pair = usize::from(*first) << 8 | usize::from(*second);
        let mut prefix = self.bytes[usize::from(*first)];
        // Nothing that goes on from a token is there before it, so a token's last node is always new.
        let token_at = |n_left: usize| if n_left == 0 { id } else { NO_TOKEN };
        if self.second[pair] == NONE {
            self.second[pair] = self.new_node(token_at(rest.len()));
        }
        let mut node = self.second[pair];
        for (&byte, n_left) in rest.iter().zip((0..rest.len()).rev()) {
            if node.rank != NO_TOKEN {
                prefix = node.rank;
            }
            let mut next = self.steps.get(node.result, u32::from(byte));
            if next == NONE {
                next = self.new_node(token_at(n_left));
                self.steps.insert(node.result, u32::from(byte), next);
            }
            node = next;
        }
        prefix
    }

    /// The longest token that `text` starts with; [`NO_TOKEN`] for no text.
    #[inline]
    pub(crate) fn longest(&self, text: &[u8]) -> u32 {
        let [first, rest @ ..] = text else { return NO_TOKEN };
        let mut longest = self.bytes[usize::from(*first)];
        let [second, rest @ ..] = rest else { return longest };
        let mut node = self.second[usize::from(*first) << 8 | usize::from(*second)];
        for &byte in rest {
            if node == NONE {
                return longest;
            }
            if node.rank != NO_TOKEN {
                longest = node.rank;
            }
            node = self.steps.get(node.result, u32::from(byte));
        }
        if node.rank == NO_TOKEN { longest } else { node.rank }
    }
}
