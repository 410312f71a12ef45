//! Text as words, numbers and marks.

/// A piece of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token<'a> {
    /// A name with what follows it behind dots, or a directive.
    Word(&'a str),
    /// What begins with a digit.
    Number(&'a str),
    /// What stands between quotation marks.
    Quoted(&'a str),
    /// Anything else, one character.
    Mark(char),
}

/// The pieces of a text, each with its line, counted from one.
pub fn tokens(text: &str) -> Vec<(Token<'_>, u32)> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.split("//").next().unwrap_or_default();
        let mut rest = line.trim_start();
        while let Some(first) = rest.chars().next() {
            let length = match first {
                '"' => rest[1..].find('"').map_or(rest.len(), |end| end + 2),
                _ if first.is_ascii_digit() => length_of(rest, |c| c.is_ascii_alphanumeric() || c == '.'),
                _ if is_word(first) => length_of_word(rest),
                _ => first.len_utf8(),
            };
            let (token, behind) = rest.split_at(length);
            let token = match first {
                '"' => Token::Quoted(token.trim_matches('"')),
                _ if first.is_ascii_digit() => Token::Number(token),
                _ if is_word(first) => Token::Word(token),
                _ => Token::Mark(first),
            };
            found.push((token, index as u32 + 1));
            rest = behind.trim_start();
        }
    }
    found
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%' | '.')
}

fn length_of(text: &str, belongs: impl Fn(char) -> bool) -> usize {
    text.find(|c| !belongs(c)).unwrap_or(text.len())
}

/// Two colons belong to a word, one ends it.
fn length_of_word(text: &str) -> usize {
    let mut length = 0;
    loop {
        length += length_of(&text[length..], is_word);
        match text[length..].strip_prefix("::") {
            Some(_) => length += 2,
            None => return length,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_keep_their_dots_and_double_colons_and_lose_comments() {
        let text = "$L__1: @!%p1 ld.shared::cta.u32 %r1, [memory$1+4]; // what\n\t.pragma \"nounroll\";";
        let words: Vec<Token<'_>> = tokens(text).into_iter().map(|(token, _)| token).collect();
        use Token::{Mark, Number, Quoted, Word};
        let expected = [
            Word("$L__1"),
            Mark(':'),
            Mark('@'),
            Mark('!'),
            Word("%p1"),
            Word("ld.shared::cta.u32"),
            Word("%r1"),
            Mark(','),
            Mark('['),
            Word("memory$1"),
            Mark('+'),
            Number("4"),
            Mark(']'),
            Mark(';'),
            Word(".pragma"),
            Quoted("nounroll"),
            Mark(';'),
        ];
        assert_eq!(words, expected);
    }
}
