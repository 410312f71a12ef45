//! One piece at a time, character by character: for what a window cannot decide.

use super::Rules;
use super::classes::{Class, Classes};

/// The end of the piece that starts at `start` of `text`, which must be valid UTF-8 and have a character there.
///
/// Every character is looked at a bounded number of times over all pieces of a text: a run of white space, or of letters
/// that change case, is walked once for each piece it is cut into, and it is cut into at most three.
pub(super) fn end_of_piece(rules: Rules, classes: &Classes, text: &[u8], start: usize) -> usize {
    let at = Walk { classes, text };
    let (class, n_bytes) = at.class(start);
    let next = start + n_bytes;
    if text[start] == b'\'' && rules != Rules::O200k {
        let n_bytes = contraction(text, start, rules != Rules::Gpt2);
        if n_bytes > 0 {
            return start + n_bytes;
        }
    }
    // What a blank may stand before, and so what it is part of.
    let (led, body) = match next {
        next if text[start] == b' ' && next < text.len() => (at.class(next).0, next),
        _ => (class, start),
    };
    match rules {
        Rules::Gpt2 => match led {
            led if led.is_letter() => at.skip(body, Class::is_letter),
            Class::Number => at.skip(body, |class| class == Class::Number),
            led if led.is_other() => at.skip(body, Class::is_other),
            _ => at.white_space(start).0,
        },
        Rules::Cl100k { max_digits } => {
            let is_newline = matches!(text[start], b'\r' | b'\n');
            if class.is_letter() {
                at.skip(start, Class::is_letter)
            } else if !is_newline
                && class != Class::Number
                && next < text.len()
                && at.class(next).0.is_letter()
            {
                at.skip(next, Class::is_letter)
            } else if class == Class::Number {
                at.digits(start, max_digits)
            } else if led.is_other() {
                let end = at.skip(body, Class::is_other);
                end + text[end..].iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count()
            } else {
                at.white_space_and_newlines(start)
            }
        }
        Rules::O200k => {
            let is_newline = matches!(text[start], b'\r' | b'\n');
            let in_word = |class: Class| class.is_letter() || class == Class::Mark;
            if in_word(class) {
                at.cased_word(start)
            } else if !is_newline && class != Class::Number && next < text.len() && in_word(at.class(next).0)
            {
                at.cased_word(next)
            } else if class == Class::Number {
                at.digits(start, 3)
            } else if led.is_other() {
                let end = at.skip(body, Class::is_other);
                end + text[end..].iter().take_while(|byte| matches!(byte, b'\r' | b'\n' | b'/')).count()
            } else {
                at.white_space_and_newlines(start)
            }
        }
    }
}

/// The length of the contraction that starts with the apostrophe at `start`, or 0.
///
/// In any case means by the folding of Unicode, by which U+017F, the long s, is an s.
#[inline]
pub(super) fn contraction(text: &[u8], start: usize, any_case: bool) -> usize {
    let letter = |offset: usize| {
        let byte = text.get(start + offset).copied().unwrap_or(0);
        if any_case && byte.is_ascii_uppercase() { byte | 0x20 } else { byte }
    };
    match (letter(1), letter(2)) {
        (b's' | b't' | b'm' | b'd', _) => 2,
        (b'r' | b'v', b'e') | (b'l', b'l') => 3,
        (0xc5, 0xbf) if any_case => 3,
        _ => 0,
    }
}

struct Walk<'a> {
    classes: &'a Classes,
    text: &'a [u8],
}

impl Walk<'_> {
    fn class(&self, at: usize) -> (Class, usize) {
        self.classes.at(self.text, at)
    }

    /// The end of the run of characters from `at` that `is` holds for.
    fn skip(&self, mut at: usize, is: impl Fn(Class) -> bool) -> usize {
        while at < self.text.len() {
            let (class, n_bytes) = self.class(at);
            if !is(class) {
                break;
            }
            at += n_bytes;
        }
        at
    }

    fn digits(&self, start: usize, max: usize) -> usize {
        let mut at = start;
        for _ in 0..max {
            if at >= self.text.len() {
                break;
            }
            let (class, n_bytes) = self.class(at);
            if class != Class::Number {
                break;
            }
            at += n_bytes;
        }
        at
    }

    /// `\s+(?!\S)|\s+`: the run of white space, without its last character if something else follows and more than that one
    /// is left. Also the end of the run's last newline, if it has any.
    fn white_space(&self, start: usize) -> (usize, Option<usize>) {
        let (mut at, mut last, mut after_newline) = (start, start, None);
        while at < self.text.len() {
            let (class, n_bytes) = self.class(at);
            if class != Class::Space {
                let end = if last > start { last } else { at };
                return (end, after_newline);
            }
            last = at;
            at += n_bytes;
            if matches!(self.text[last], b'\r' | b'\n') {
                after_newline = Some(at);
            }
        }
        (at, after_newline)
    }

    /// `\s*[\r\n]+|\s+(?!\S)|\s+`
    fn white_space_and_newlines(&self, start: usize) -> usize {
        let (end, after_newline) = self.white_space(start);
        after_newline.unwrap_or(end)
    }

    /// A word of o200k: upper case, then lower case, where letters without case and marks are both, then a contraction.
    ///
    /// Lower case is wanted: where none follows, the word ends with its last letter that can count as lower case, and only
    /// if there is none it is all of the upper case.
    fn cased_word(&self, start: usize) -> usize {
        let (mut at, mut last_both) = (start, None);
        let mut end = None;
        while at < self.text.len() {
            let (class, n_bytes) = self.class(at);
            match class {
                Class::Upper => at += n_bytes,
                Class::Caseless | Class::Mark => {
                    at += n_bytes;
                    last_both = Some(at);
                }
                Class::Lower => {
                    end = Some(
                        self.skip(at, |class| matches!(class, Class::Lower | Class::Caseless | Class::Mark)),
                    );
                    break;
                }
                _ => break,
            }
        }
        let end = end.or(last_both).unwrap_or(at);
        let suffix = if self.text.get(end) == Some(&b'\'') { contraction(self.text, end, true) } else { 0 };
        end + suffix
    }
}
