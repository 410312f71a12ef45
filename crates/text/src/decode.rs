//! Text from tokens, many at once or one at a time.

use crate::{Error, Result, Tokenizer};

/// The bytes of all tokens in one place, from which sixteen are copied whether a token has as many or not: a copy of a fixed
/// length is two instructions, and few tokens are longer.
#[derive(Debug)]
pub(crate) struct TokenBytes {
    bytes: Vec<u8>,
    /// By id.
    spans: Vec<Span>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Span {
    start: u32,
    n_bytes: u32,
}

/// No token.
const NO_TOKEN: Span = Span { start: u32::MAX, n_bytes: 0 };

/// Bytes copied at once.
const COPIED: usize = 16;

/// Bytes gathered before they are appended to the text.
const GATHERED: usize = 4096;

impl TokenBytes {
    /// Refuses more than 4 GiB of tokens, which no file has that fits the memory.
    pub(crate) fn new(tokens: &[Option<Box<[u8]>>]) -> Result<Self> {
        let n_bytes: usize = tokens.iter().flatten().map(|token| token.len()).sum();
        let too_long = || Error::Format(format!("its tokens have {n_bytes} bytes together"));
        u32::try_from(n_bytes).map_err(|_| too_long())?;
        let mut bytes = Vec::with_capacity(n_bytes + COPIED);
        let mut spans = Vec::with_capacity(tokens.len());
        for token in tokens {
            let Some(token) = token else {
                spans.push(NO_TOKEN);
                continue;
            };
            spans.push(Span { start: bytes.len() as u32, n_bytes: token.len() as u32 });
            bytes.extend_from_slice(token);
        }
        bytes.resize(n_bytes + COPIED, 0);
        Ok(Self { bytes, spans })
    }

    /// The bytes of a token, or `None` when no token has this id.
    pub(crate) fn get(&self, id: u32) -> Option<&[u8]> {
        let Span { start, n_bytes } = *self.spans.get(id as usize).filter(|&&span| span != NO_TOKEN)?;
        self.bytes.get(start as usize..(start + n_bytes) as usize)
    }

    /// Appends the bytes of all tokens, or says which id is none.
    pub(crate) fn decode(&self, ids: &[u32], out: &mut Vec<u8>) -> std::result::Result<(), u32> {
        let n_bytes = |&id: &u32| self.spans.get(id as usize).map_or(0, |span| span.n_bytes as usize);
        out.reserve(ids.iter().map(n_bytes).sum());
        let mut gathered = [0; GATHERED];
        let mut n_gathered = 0;
        for &id in ids {
            let Span { start, n_bytes } = self.spans.get(id as usize).copied().unwrap_or(NO_TOKEN);
            let (start, n_bytes) = (start as usize, n_bytes as usize);
            if n_gathered + COPIED > GATHERED {
                out.extend_from_slice(&gathered[..n_gathered]);
                n_gathered = 0;
            }
            if (1..=COPIED).contains(&n_bytes) {
                gathered[n_gathered..n_gathered + COPIED].copy_from_slice(&self.bytes[start..start + COPIED]);
                n_gathered += n_bytes;
            } else {
                out.extend_from_slice(&gathered[..n_gathered]);
                n_gathered = 0;
                out.extend_from_slice(self.get(id).ok_or(id)?);
            }
        }
        out.extend_from_slice(&gathered[..n_gathered]);
        Ok(())
    }
}

/// Turns tokens into text as they come, holding back the bytes of a character until it is complete.
///
/// What [`push`](Self::push) and [`finish`](Self::finish) return, joined, equals the lossy UTF-8 text of
/// [`Tokenizer::decode`] on all ids: bytes that can no longer become a character are replaced by U+FFFD.
#[derive(Debug, Clone)]
pub struct StreamDecoder<'t> {
    tokenizer: &'t Tokenizer,
    /// Whether the next token is the first of its text.
    is_at_start: bool,
    /// The start of a character that is not complete yet: at most three bytes between calls.
    pending: Vec<u8>,
    text: String,
}

impl<'t> StreamDecoder<'t> {
    pub(crate) fn new(tokenizer: &'t Tokenizer, is_at_start: bool) -> Self {
        Self { tokenizer, is_at_start, pending: Vec::new(), text: String::new() }
    }

    /// Takes one token and returns the text that it completes, which may be empty.
    pub fn push(&mut self, id: u32) -> Result<&str> {
        if self.is_at_start {
            self.pending.extend_from_slice(&self.tokenizer.first_bytes(id)?);
        } else {
            self.pending.extend_from_slice(self.tokenizer.known_bytes(id)?);
        }
        self.is_at_start = false;
        self.text.clear();
        let held = incomplete_tail(&self.pending);
        let complete = self.pending.len() - held;
        self.text.push_str(&String::from_utf8_lossy(&self.pending[..complete]));
        self.pending.drain(..complete);
        Ok(&self.text)
    }

    /// Ends the text: what is held back will never be complete and is replaced.
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.pending).into_owned()
    }
}

/// How many bytes at the end are the start of a character that more bytes may complete.
fn incomplete_tail(bytes: &[u8]) -> usize {
    let Some(last) = bytes.utf8_chunks().last() else {
        return 0;
    };
    let tail = last.invalid();
    match std::str::from_utf8(tail) {
        Err(error) if error.error_len().is_none() => tail.len(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_all_lengths_are_copied_whole() {
        let tokens: Vec<Option<Box<[u8]>>> =
            (0..40u8).map(|n| (n != 7 && n != 0).then(|| vec![n; usize::from(n)].into())).collect();
        let table = TokenBytes::new(&tokens).unwrap();
        let ids: Vec<u32> = (0..4000u32).map(|n| n * 17 % 40).filter(|id| ![0, 7].contains(id)).collect();
        let expected: Vec<u8> =
            ids.iter().flat_map(|&id| tokens[id as usize].clone().unwrap().into_vec()).collect();
        let mut found = vec![];
        table.decode(&ids, &mut found).unwrap();
        assert_eq!(found, expected);
        assert_eq!(table.decode(&[3, 7, 4], &mut found), Err(7));
        assert_eq!(table.decode(&[40], &mut found), Err(40));
        assert_eq!((table.get(3), table.get(7), table.get(41)), (Some(&[3, 3, 3][..]), None, None));
    }

    #[test]
    fn only_a_tail_that_can_become_a_character_is_held() {
        for (bytes, held) in [
            (&b""[..], 0),
            (b"abc", 0),
            ("aé".as_bytes(), 0),
            (b"a\xc3", 1),
            (b"a\xf0\x9f\x98", 3),
            (b"\xe4\xb8", 2),
            (b"\xc3\xff", 0),
            (b"\xff", 0),
            (b"\xe4\xb8x", 0),
            (b"\xff\xe4", 1),
            (b"\x80\x80", 0),
        ] {
            assert_eq!(incomplete_tail(bytes), held, "{bytes:x?}");
        }
    }
}
