//! Text from tokens that arrive one at a time.

use crate::{Result, Tokenizer};

/// Turns tokens into text as they come, holding back the bytes of a character until it is complete.
///
/// What [`push`](Self::push) and [`finish`](Self::finish) return, joined, equals the lossy UTF-8 text of
/// [`Tokenizer::decode`] on all ids: bytes that can no longer become a character are replaced by U+FFFD.
#[derive(Debug, Clone)]
pub struct StreamDecoder<'t> {
    tokenizer: &'t Tokenizer,
    /// The start of a character that is not complete yet: at most three bytes between calls.
    pending: Vec<u8>,
    text: String,
}

impl<'t> StreamDecoder<'t> {
    pub(crate) fn new(tokenizer: &'t Tokenizer) -> Self {
        Self { tokenizer, pending: Vec::new(), text: String::new() }
    }

    /// Takes one token and returns the text that it completes, which may be empty.
    pub fn push(&mut self, id: u32) -> Result<&str> {
        self.pending.extend_from_slice(self.tokenizer.known_bytes(id)?);
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
