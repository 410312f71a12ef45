//! Jinja's filters where the engine's own take other settings or have none of that name.

use super::methods::strip;
use super::{is_space, text_of};
use minijinja::value::{Kwargs, Rest, Tuple, ValueKind};
use minijinja::{Error, ErrorKind, Value};
use std::cmp::Ordering;

/// What a filter was given beside the value: by position, by name, or not at all.
struct Settings {
    positions: Rest<Value>,
    names: Kwargs,
}

impl Settings {
    fn get(&self, idx: usize, name: &str) -> Result<Option<Value>, Error> {
        let named: Option<Value> = self.names.get(name)?;
        Ok(self.positions.get(idx).cloned().or(named))
    }

    fn is_on(&self, idx: usize, name: &str) -> Result<bool, Error> {
        Ok(self.get(idx, name)?.is_some_and(|value| value.is_true()))
    }

    fn number(&self, idx: usize, name: &str, default: usize) -> Result<usize, Error> {
        self.get(idx, name)?.map_or(Ok(default), usize::try_from)
    }
}

/// `value|trim(characters)`.
pub fn trim(text: &Value, set: Option<&str>) -> String {
    strip(&text_of(text), set, [true, true])
}

/// `value|wordcount`.
pub fn word_count(text: &str) -> usize {
    text.split(is_space).filter(|word| !word.is_empty()).count()
}

/// `value|replace(old, new, count)`.
pub fn replace(value: &Value, old: &str, new: &str, count: Option<usize>) -> String {
    let text = text_of(value);
    count.map_or_else(|| text.replace(old, new), |count| text.replacen(old, new, count))
}

/// `value|default(other, boolean)`: the other where there is none, or with `boolean` where it is nothing.
pub fn default(value: &Value, positions: Rest<Value>, names: Kwargs) -> Result<Value, Error> {
    let settings = Settings { positions, names };
    let other = settings.get(0, "default_value")?.unwrap_or_else(|| Value::from(""));
    let is_wanted = value.is_undefined() || (settings.is_on(1, "boolean")? && !value.is_true());
    settings.names.assert_all_used()?;
    Ok(if is_wanted { other } else { value.clone() })
}

/// `value|attr(name)`: an attribute, never an item.
pub fn attribute(value: &Value, name: &str) -> Result<Value, Error> {
    if value.kind() == ValueKind::Map { Ok(Value::UNDEFINED) } else { value.get_attr(name) }
}

/// `value|truncate(length, killwords, end, leeway)`.
pub fn truncate(text: &str, positions: Rest<Value>, names: Kwargs) -> Result<String, Error> {
    let settings = Settings { positions, names };
    let length = settings.number(0, "length", 255)?;
    let cuts_words = settings.is_on(1, "killwords")?;
    let end = settings.get(2, "end")?.unwrap_or_else(|| Value::from("..."));
    let end = text_of(&end);
    let leeway = settings.number(3, "leeway", 5)?;
    settings.names.assert_all_used()?;
    if text.chars().count() <= length.saturating_add(leeway) {
        return Ok(text.to_owned());
    }
    let kept: String = text.chars().take(length.saturating_sub(end.chars().count())).collect();
    let kept = if cuts_words { &kept } else { kept.rsplit_once(' ').map_or(&*kept, |(words, _)| words) };
    Ok(format!("{kept}{end}"))
}

/// `value|dictsort(case_sensitive, by, reverse)`.
pub fn dict_sort(value: &Value, positions: Rest<Value>, names: Kwargs) -> Result<Value, Error> {
    let settings = Settings { positions, names };
    let minds_case = settings.is_on(0, "case_sensitive")?;
    let by = settings.get(1, "by")?.map_or_else(|| "key".to_owned(), |by| text_of(&by));
    let is_reversed = settings.is_on(2, "reverse")?;
    settings.names.assert_all_used()?;
    if value.kind() != ValueKind::Map || !["key", "value"].contains(&&*by) {
        return Err(Error::new(ErrorKind::InvalidOperation, "dictsort takes a dict, by key or value"));
    }
    let mut items = Vec::new();
    for key in value.try_iter()? {
        let item = value.get_item(&key)?;
        let sorted = if by == "key" { &key } else { &item };
        let sorted = match sorted.as_str() {
            Some(text) if !minds_case => Value::from(text.to_lowercase()),
            _ => sorted.clone(),
        };
        items.push((sorted, Value::from(Tuple::from(vec![key, item]))));
    }
    let order = |ordering: Ordering| if is_reversed { ordering.reverse() } else { ordering };
    items.sort_by(|a, b| order(a.0.cmp(&b.0)));
    Ok(items.into_iter().map(|(_, pair)| pair).collect())
}
