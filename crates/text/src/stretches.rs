//! Bytes as stretches of text and of what is no text.

use std::str::from_utf8;

/// A part of arbitrary bytes, as long as can be and never empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stretch<'t> {
    /// Valid UTF-8.
    Text(&'t str),
    /// Bytes of which none belongs to a valid character.
    Invalid(&'t [u8]),
}

/// The stretches of `bytes` in order. Joined, they are the bytes.
pub(crate) fn stretches(bytes: &[u8]) -> impl Iterator<Item = Stretch<'_>> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let (stretch, n_bytes) = first_stretch(rest)?;
        rest = &rest[n_bytes..];
        Some(stretch)
    })
}

/// Whole stretches are validated at once, which costs a fraction of walking over them by characters.
fn first_stretch(bytes: &[u8]) -> Option<(Stretch<'_>, usize)> {
    let mut n_invalid = 0;
    loop {
        let rest = &bytes[n_invalid..];
        match from_utf8(rest) {
            Ok("") if n_invalid == 0 => return None,
            Ok(text) if n_invalid == 0 => return Some((Stretch::Text(text), text.len())),
            Err(error) if error.valid_up_to() == 0 => {
                n_invalid += error.error_len().unwrap_or(rest.len());
            }
            Err(error) if n_invalid == 0 => {
                let n_valid = error.valid_up_to();
                return Some((Stretch::Text(from_utf8(&rest[..n_valid]).ok()?), n_valid));
            }
            Ok(_) | Err(_) => return Some((Stretch::Invalid(&bytes[..n_invalid]), n_invalid)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_are_as_long_as_can_be_and_join_to_the_bytes() {
        use Stretch::{Invalid, Text};
        for (bytes, expected) in [
            (&b""[..], &[][..]),
            (b"abc", &[Text("abc")]),
            (b"\xff\xfe", &[Invalid(b"\xff\xfe")]),
            (
                b"ab\xff\xfe\xe4\xb8 c\x80",
                &[Text("ab"), Invalid(b"\xff\xfe\xe4\xb8"), Text(" c"), Invalid(b"\x80")],
            ),
            (b"\xe4\xb8", &[Invalid(b"\xe4\xb8")]),
            (b"\x80a", &[Invalid(b"\x80"), Text("a")]),
        ] {
            assert_eq!(stretches(bytes).collect::<Vec<_>>(), expected, "{bytes:x?}");
        }
    }
}
