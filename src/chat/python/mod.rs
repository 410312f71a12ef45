//! What Python's values do where the template engine's own differ or have nothing: methods of strings, lists and dicts, filters,
//! tests, and how values are written.

mod filters;
mod methods;

use minijinja::value::{Rest, ValueKind};
use minijinja::{Environment, Error, Value};
use minijinja_contrib::globals;
use std::fmt::Write as _;

/// How deep values are written into each other; Python gives up at some depth too.
const MAX_DEPTH: usize = 200;

/// Teaches an environment the ways of Python.
pub fn teach(environment: &mut Environment<'_>) {
    environment.set_unknown_method_callback(methods::call_method);
    environment.set_formatter(|out, _, value| {
        let written = match value.as_str() {
            Some(text) => out.write_str(text),
            None => out.write_str(&text_of(value)),
        };
        written.map_err(Error::from)
    });
    environment.add_filter("attr", filters::attribute);
    environment.add_filter("capitalize", |text: &Value| methods::capitalize(&text_of(text)));
    environment.add_filter("center", |text: &str, width: Option<usize>| {
        methods::center(text, width.unwrap_or(80), ' ')
    });
    environment.add_filter("d", filters::default);
    environment.add_filter("default", filters::default);
    environment.add_filter("dictsort", filters::dict_sort);
    environment.add_filter("replace", filters::replace);
    environment.add_filter("string", text_of);
    environment.add_filter("trim", filters::trim);
    environment.add_filter("truncate", filters::truncate);
    environment.add_filter("wordcount", filters::word_count);
    environment.add_test("callable", |value: &Value| value.kind() == ValueKind::Plain);
    environment.add_test("iterable", |value: &Value| {
        use ValueKind::{Iterable, Map, Seq, String, Undefined};
        matches!(value.kind(), Iterable | Map | Seq | String | Undefined)
    });
    environment.add_test("sequence", |value: &Value| {
        use ValueKind::{Map, Seq, String, Undefined};
        matches!(value.kind(), Map | Seq | String | Undefined)
    });
    environment.add_function("joiner", globals::joiner);
    environment.add_function("cycler", |items: Rest<Value>| globals::cycler(items.0));
    environment.remove_global("debug");
}

/// `str(value)`.
pub fn text_of(value: &Value) -> String {
    match value.kind() {
        ValueKind::Number | ValueKind::Seq | ValueKind::Map => {
            let mut out = String::new();
            write_repr(&mut out, value, 0);
            out
        }
        _ => value.to_string(),
    }
}

/// `repr(value)`.
fn write_repr(out: &mut String, value: &Value, depth: usize) {
    let is_float = value.kind() == ValueKind::Number && !value.is_integer();
    match value.kind() {
        ValueKind::Number if is_float => match f64::try_from(value.clone()) {
            Ok(number) => out.push_str(&float(number)),
            Err(_) => out.push_str(&value.to_string()),
        },
        ValueKind::String => write_quoted(out, value.as_str().unwrap_or_default()),
        ValueKind::Seq | ValueKind::Map if depth > MAX_DEPTH => out.push_str("..."),
        ValueKind::Seq => {
            let (open, close) = if value.is_tuple() { ('(', ')') } else { ('[', ']') };
            out.push(open);
            let mut len = 0;
            for (idx, item) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if idx > 0 { ", " } else { "" });
                write_repr(out, &item, depth + 1);
                len = idx + 1;
            }
            if value.is_tuple() && len == 1 {
                out.push(',');
            }
            out.push(close);
        }
        ValueKind::Map => {
            out.push('{');
            for (idx, key) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if idx > 0 { ", " } else { "" });
                write_repr(out, &key, depth + 1);
                out.push_str(": ");
                write_repr(out, &value.get_item(&key).unwrap_or_default(), depth + 1);
            }
            out.push('}');
        }
        ValueKind::Undefined => out.push_str("Undefined"),
        _ => out.push_str(&value.to_string()),
    }
}

/// `repr` of a string: single quotes unless only those occur in it, and escapes for what cannot be printed.
fn write_quoted(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if is_printable(c) => out.push(c),
            c => {
                let code = u32::from(c);
                // Writing to a string cannot fail.
                let _ = match code {
                    0..=0xff => write!(out, "\\x{code:02x}"),
                    0x100..=0xffff => write!(out, "\\u{code:04x}"),
                    _ => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push(quote);
}

fn is_printable(c: char) -> bool {
    // Behind a letter, marks that combine with it are not escaped, and they are printable to Python too.
    c.is_ascii_graphic() || c == ' ' || (!c.is_ascii() && format!("a{c}").escape_debug().eq(['a', c]))
}

/// `repr` of a float: the shortest digits that read back, with an exponent where the number is very large or small.
fn float(number: f64) -> String {
    if !number.is_finite() {
        let text = if number.is_nan() { "nan" } else { "inf" };
        return if number < 0.0 { format!("-{text}") } else { text.into() };
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if number != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.unsigned_abs());
    }
    let plain = number.to_string();
    if plain.contains('.') { plain } else { plain + ".0" }
}

/// Python's whitespace: Unicode's, and four separators of ASCII.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_python_writes_them() {
        for (number, text) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (1.25e-7, "1.25e-07"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (-2.5e200, "-2.5e+200"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
            (f64::NAN, "nan"),
        ] {
            assert_eq!(float(number), text);
        }
    }
}
