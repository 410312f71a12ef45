//! JSON as Python's `json.dumps` writes it, which is what templates mean by `tojson`.

use super::python;
use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, ErrorKind, Value};
use std::fmt::Write as _;

/// How deep values may lie in each other.
const MAX_DEPTH: usize = 200;

/// The settings of `tojson`, with the names and the order that `transformers` gives them.
const SETTINGS: [&str; 4] = ["ensure_ascii", "indent", "separators", "sort_keys"];

struct Writer {
    ensure_ascii: bool,
    /// What a level is indented by; none puts everything on one line.
    indent: Option<String>,
    between_items: String,
    behind_key: String,
    sort_keys: bool,
    out: String,
}

/// The filter: settings by position or by name.
pub fn tojson(value: &Value, positions: Rest<Value>, names: Kwargs) -> Result<String, Error> {
    if positions.len() > SETTINGS.len() {
        return Err(Error::new(ErrorKind::TooManyArguments, "tojson takes at most four settings"));
    }
    let setting = |idx: usize| -> Result<Option<Value>, Error> {
        let named: Option<Value> = names.get(SETTINGS[idx])?;
        Ok(positions.get(idx).cloned().or(named).filter(|value| !value.is_none() && !value.is_undefined()))
    };
    let indent = match setting(1)? {
        Some(text) if text.as_str().is_some() => text.as_str().map(str::to_owned),
        Some(width) => Some(" ".repeat(usize::try_from(width)?.min(64))),
        None => None,
    };
    let separators = match setting(2)? {
        Some(pair) => Some((text_at(&pair, 0)?, text_at(&pair, 1)?)),
        None => None,
    };
    let default = (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned());
    let (between_items, behind_key) = separators.unwrap_or(default);
    let mut writer = Writer {
        ensure_ascii: setting(0)?.is_some_and(|value| value.is_true()),
        indent,
        between_items,
        behind_key,
        sort_keys: setting(3)?.is_some_and(|value| value.is_true()),
        out: String::new(),
    };
    names.assert_all_used()?;
    writer.value(value, 0)?;
    Ok(writer.out)
}

fn text_at(pair: &Value, idx: usize) -> Result<String, Error> {
    let item = pair.get_item_by_index(idx)?;
    let text = item.as_str().map(str::to_owned);
    text.ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "separators is not a pair of strings"))
}

impl Writer {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(Error::new(ErrorKind::InvalidOperation, "a value is too deep for JSON"));
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.number(value),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.container(['[', ']'], items.len(), depth, |writer, idx| {
                    writer.value(&items[idx], depth + 1)
                })?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                self.container(['{', '}'], keys.len(), depth, |writer, idx| {
                    writer.key(&keys[idx])?;
                    writer.out.push_str(&writer.behind_key.clone());
                    writer.value(&value.get_item(&keys[idx])?, depth + 1)
                })?;
            }
            kind => {
                let message = format!("{kind} has no form in JSON");
                return Err(Error::new(ErrorKind::InvalidOperation, message));
            }
        }
        Ok(())
    }

    fn number(&mut self, value: &Value) {
        self.out.push_str(&python::text_of(value).replace("inf", "Infinity").replace("nan", "NaN"));
    }

    fn key(&mut self, key: &Value) -> Result<(), Error> {
        match key.kind() {
            ValueKind::String => self.string(key.as_str().unwrap_or_default()),
            ValueKind::None | ValueKind::Bool | ValueKind::Number => {
                self.out.push('"');
                self.value(key, 0)?;
                self.out.push('"');
            }
            kind => {
                return Err(Error::new(ErrorKind::InvalidOperation, format!("{kind} is no key in JSON")));
            }
        }
        Ok(())
    }

    fn container(
        &mut self,
        brackets: [char; 2],
        len: usize,
        depth: usize,
        mut write: impl FnMut(&mut Self, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(brackets[0]);
        for idx in 0..len {
            if idx > 0 {
                self.out.push_str(&self.between_items.clone());
            }
            self.new_line(depth + 1);
            write(self, idx)?;
        }
        if len > 0 {
            self.new_line(depth);
        }
        self.out.push(brackets[1]);
        Ok(())
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            self.out.push_str(&indent.repeat(depth));
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' || (self.ensure_ascii && !(' '..='~').contains(&c)) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        // Writing to a string cannot fail.
                        let _ = write!(self.out, "\\u{unit:04x}");
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}
