//! Methods of Python's strings, lists and dicts.

use super::is_space;
use minijinja::value::{Kwargs, Rest, Tuple, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;

/// Whether a line ends with this character.
fn ends_line(c: char) -> bool {
    matches!(c, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// Takes characters off the ends of a text: those of `set`, or whitespace.
pub fn strip(text: &str, set: Option<&str>, ends: [bool; 2]) -> String {
    let goes = |c: char| set.map_or_else(|| is_space(c), |set| set.contains(c));
    let text = if ends[0] { text.trim_start_matches(goes) } else { text };
    if ends[1] { text.trim_end_matches(goes) } else { text }.to_owned()
}

fn split_words(text: &str, most: usize) -> Vec<Value> {
    let mut parts = Vec::new();
    let mut rest = text.trim_start_matches(is_space);
    while !rest.is_empty() && parts.len() < most {
        let Some(end) = rest.find(is_space) else { break };
        parts.push(Value::from(&rest[..end]));
        rest = rest[end..].trim_start_matches(is_space);
    }
    if !rest.is_empty() {
        parts.push(Value::from(if parts.len() < most { rest } else { rest.trim_end_matches(is_space) }));
    }
    parts
}

fn split(text: &str, separator: Option<&str>, most: usize, from_end: bool) -> Result<Vec<Value>, Error> {
    let parts = |parts: &mut dyn Iterator<Item = &str>| parts.map(Value::from).collect::<Vec<_>>();
    Ok(match separator {
        Some("") => return Err(Error::new(ErrorKind::InvalidOperation, "empty separator")),
        Some(separator) if from_end => {
            let mut found = parts(&mut text.rsplitn(most.saturating_add(1), separator));
            found.reverse();
            found
        }
        Some(separator) => parts(&mut text.splitn(most.saturating_add(1), separator)),
        None if from_end && most != usize::MAX => {
            return Err(Error::new(ErrorKind::InvalidOperation, "rsplit needs a separator here"));
        }
        None => split_words(text, most),
    })
}

fn split_lines(text: &str, keep_ends: bool) -> Vec<Value> {
    let mut lines = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(ends_line).unwrap_or(rest.len());
        let ending = if rest[end..].starts_with("\r\n") {
            2
        } else {
            rest[end..].chars().next().map_or(0, char::len_utf8)
        };
        lines.push(Value::from(&rest[..if keep_ends { end + ending } else { end }]));
        rest = &rest[end + ending..];
    }
    lines
}

fn pad(text: &str, width: usize, fill: char, share_before: impl Fn(usize) -> usize) -> String {
    // A width is the template's to choose, so what it makes is bounded here as products of strings are by the engine.
    let missing = width.min(1 << 20).saturating_sub(text.chars().count());
    let before = share_before(missing);
    let fill = |count: usize| std::iter::repeat_n(fill, count);
    fill(before).chain(text.chars()).chain(fill(missing - before)).collect()
}

/// Centres as Python does: of an odd margin the larger part is on the left where the width is odd.
pub fn center(text: &str, width: usize, fill: char) -> String {
    pad(text, width, fill, |missing| missing / 2 + (missing & width & 1))
}

fn title(text: &str) -> String {
    let mut inside = false;
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match inside {
            true => out.extend(c.to_lowercase()),
            false => push_title(&mut out, c),
        }
        inside = c.is_alphabetic();
    }
    out
}

/// The title form of a character: as capital for all but the letters that are two in one.
fn push_title(out: &mut String, c: char) {
    match c {
        '\u{1c4}'..='\u{1c6}' => out.push('\u{1c5}'),
        '\u{1c7}'..='\u{1c9}' => out.push('\u{1c8}'),
        '\u{1ca}'..='\u{1cc}' => out.push('\u{1cb}'),
        '\u{1f1}'..='\u{1f3}' => out.push('\u{1f2}'),
        'ß' => out.push_str("Ss"),
        c => out.extend(c.to_uppercase()),
    }
}

pub fn capitalize(text: &str) -> String {
    let mut chars = text.chars();
    let mut out = String::with_capacity(text.len());
    if let Some(first) = chars.next() {
        push_title(&mut out, first);
    }
    out + &chars.as_str().to_lowercase()
}

fn swap_case(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_uppercase() { out.extend(c.to_lowercase()) } else { out.extend(c.to_uppercase()) }
    }
    out
}

/// Where `what` begins, counted in characters, within a slice of the text.
fn find(text: &str, what: &str, bounds: &[Option<i64>; 2], from_end: bool) -> Option<usize> {
    let len = text.chars().count() as i64;
    let place = |bound: Option<i64>, default: i64| {
        let bound = bound.unwrap_or(default);
        (if bound < 0 { bound + len } else { bound }).clamp(0, len) as usize
    };
    let (start, end) = (place(bounds[0], 0), place(bounds[1], len));
    let byte = |place: usize| text.char_indices().nth(place).map_or(text.len(), |(byte, _)| byte);
    let part = text.get(byte(start)..byte(end))?;
    let found = if from_end { part.rfind(what) } else { part.find(what) }?;
    Some(start + part[..found].chars().count())
}

/// The parts around the first or last separator; without one, the text is the first or last of three.
fn partition(text: &str, separator: &str, from_end: bool) -> Vec<Value> {
    let found = if from_end { text.rsplit_once(separator) } else { text.split_once(separator) };
    let parts = match found {
        Some((before, behind)) => [before, separator, behind],
        None if from_end => ["", "", text],
        None => [text, "", ""],
    };
    parts.map(Value::from).to_vec()
}

/// Methods that Python's values have. The engine asks here for what it does not know itself.
pub fn call_method(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let known = match value.kind() {
        ValueKind::String => string_method(value.as_str().unwrap_or_default(), method, args)?,
        ValueKind::Seq => list_method(value, method, args)?,
        ValueKind::Map if method == "copy" => Some(value.clone()),
        _ => None,
    };
    match known {
        Some(result) => Ok(result),
        None => pycompat::unknown_method_callback(state, value, method, args),
    }
}

fn list_method(value: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    match method {
        "copy" => Ok(Some(value.clone())),
        "index" => {
            let (what,): (&Value,) = from_args(args)?;
            let place = value.try_iter()?.position(|item| item == *what);
            let missing = || Error::new(ErrorKind::InvalidOperation, "the list does not have that item");
            place.map(|place| Some(Value::from(place))).ok_or_else(missing)
        }
        _ => Ok(None),
    }
}

fn string_method(text: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let fill = |fill: Option<&str>| fill.and_then(|fill| fill.chars().next()).unwrap_or(' ');
    let result = match method {
        "strip" | "lstrip" | "rstrip" => {
            let (set,): (Option<&str>,) = from_args(args)?;
            Value::from(strip(text, set, [method != "rstrip", method != "lstrip"]))
        }
        "split" | "rsplit" => {
            let (positions, names): (Rest<Value>, Kwargs) = from_args(args)?;
            let given = |idx: usize, name: &str| -> Result<Option<Value>, Error> {
                let named: Option<Value> = names.get(name)?;
                Ok(positions.get(idx).cloned().or(named).filter(|value| !value.is_none()))
            };
            let (separator, most) = (given(0, "sep")?, given(1, "maxsplit")?);
            names.assert_all_used()?;
            let most = most.map(i64::try_from).transpose()?;
            let most = most.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
            let separator = separator.as_ref().map(|separator| {
                let wrong = || Error::new(ErrorKind::InvalidOperation, "the separator is not a string");
                separator.as_str().ok_or_else(wrong)
            });
            Value::from(split(text, separator.transpose()?, most, method == "rsplit")?)
        }
        "splitlines" => {
            let (keep_ends,): (Option<bool>,) = from_args(args)?;
            Value::from(split_lines(text, keep_ends.unwrap_or(false)))
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            let parts = partition(text, separator, method == "rpartition");
            Value::from(Tuple::from(parts))
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "find" | "rfind" | "index" | "rindex" => {
            let (what, start, end): (&str, Option<i64>, Option<i64>) = from_args(args)?;
            match find(text, what, &[start, end], method.starts_with('r')) {
                Some(place) => Value::from(place),
                None if method.ends_with("find") => Value::from(-1),
                None => return Err(Error::new(ErrorKind::InvalidOperation, "substring not found")),
            }
        }
        "title" => Value::from(title(text)),
        "capitalize" => Value::from(capitalize(text)),
        "swapcase" => Value::from(swap_case(text)),
        "casefold" => Value::from(text.to_lowercase().replace('ß', "ss")),
        "isspace" => Value::from(!text.is_empty() && text.chars().all(is_space)),
        "isdecimal" => Value::from(!text.is_empty() && text.chars().all(char::is_numeric)),
        "zfill" => {
            let (width,): (usize,) = from_args(args)?;
            let sign = text.starts_with(['-', '+']) as usize;
            let filled = pad(&text[sign..], width.saturating_sub(sign), '0', |missing| missing);
            Value::from(format!("{}{filled}", &text[..sign]))
        }
        "ljust" | "rjust" | "center" => {
            let (width, given): (usize, Option<&str>) = from_args(args)?;
            Value::from(match method {
                "ljust" => pad(text, width, fill(given), |_| 0),
                "rjust" => pad(text, width, fill(given), |missing| missing),
                _ => center(text, width, fill(given)),
            })
        }
        _ => return Ok(None),
    };
    Ok(Some(result))
}
