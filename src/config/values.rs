//! Values as they are typed, read by what their key takes.

use super::keys::{Key, Kind, nearest_word};
use crate::stages::cuda::ordinal;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::de::DeValue;

/// A value of a key.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A whole number.
    Count(u64),
    /// A number.
    Number(f64),
    /// `true` or `false`.
    Switch(bool),
    /// A text, a choice or a path.
    Text(String),
    /// A list of texts.
    Texts(Vec<String>),
    /// How often something is done.
    Cadence(Cadence),
}

/// How often something is done during training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cadence {
    /// Every so many steps; 0 is never.
    Steps(u64),
    /// Whenever so much time has passed.
    Time(Duration),
}

/// Reads a value of a TOML file; `folder` is where relative paths start. The error says what is wrong.
pub fn from_toml(key: &Key, value: &DeValue<'_>, folder: &Path) -> Result<Value, String> {
    let wrong = || wrong_type(key, &found(value));
    match (key.kind, value) {
        (Kind::Texts | Kind::Inputs, DeValue::Array(items)) => {
            let texts: Option<Vec<String>> =
                items.iter().map(|item| item.get_ref().as_str().map(str::to_string)).collect();
            Ok(Value::Texts(settle_paths(key.kind, texts.ok_or_else(wrong)?, folder)))
        }
        (Kind::Switch, DeValue::Boolean(on)) => Ok(Value::Switch(*on)),
        // Only plain decimal numbers are read; nobody counts tokens in octal.
        (Kind::Count | Kind::CountOrAuto | Kind::Number | Kind::Cadence, DeValue::Integer(number))
            if number.radix() == 10 =>
        {
            from_text(key, &number.as_str().replace('_', ""), folder).map_err(|_| wrong())
        }
        (Kind::Number, DeValue::Float(number)) => {
            from_text(key, &number.as_str().replace('_', ""), folder).map_err(|_| wrong())
        }
        (Kind::Switch | Kind::Number, DeValue::String(_)) => Err(wrong()),
        (_, DeValue::String(text)) => from_text(key, text, folder),
        _ => Err(wrong()),
    }
}

/// Reads a value that was typed as text. The error says what is wrong.
pub fn from_text(key: &Key, text: &str, folder: &Path) -> Result<Value, String> {
    let wrong = || wrong_type(key, &format!("{text:?}"));
    match key.kind {
        Kind::CountOrAuto if text == "auto" => Ok(Value::Text(text.into())),
        Kind::Count | Kind::CountOrAuto => {
            ironmill_data::parse_size(text).map(Value::Count).map_err(|_| wrong())
        }
        Kind::Number => {
            let number: f64 = text.parse().map_err(|_| wrong())?;
            if number.is_finite() { Ok(Value::Number(number)) } else { Err(wrong()) }
        }
        Kind::Switch => text.parse().map(Value::Switch).map_err(|_| wrong()),
        Kind::Text => Ok(Value::Text(text.into())),
        Kind::Path => Ok(Value::Text(settle_path(text, folder))),
        Kind::Texts | Kind::Inputs => {
            let texts = if text.starts_with('[') {
                texts_of_list(text).ok_or_else(wrong)?
            } else {
                vec![text.into()]
            };
            Ok(Value::Texts(settle_paths(key.kind, texts, folder)))
        }
        Kind::Choice(words) => {
            if words.contains(&text) {
                return Ok(Value::Text(text.into()));
            }
            let meant = nearest_word(text, words)
                .map(|word| format!("; did you mean \"{word}\"?"))
                .unwrap_or_default();
            Err(wrong() + &meant)
        }
        Kind::Device => {
            let is_known = ["auto", "cpu", "reference"].contains(&text) || ordinal(text).is_some();
            if is_known { Ok(Value::Text(text.into())) } else { Err(wrong()) }
        }
        Kind::Cadence => parse_cadence(text).map(Value::Cadence).ok_or_else(wrong),
    }
}

/// Reads a time such as `90s`, `30m`, `2h` or `1d`.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let unit_s = match text.chars().last()? {
        's' => 1.0,
        'm' => 60.0,
        'h' => 3600.0,
        'd' => 86_400.0,
        _ => return None,
    };
    let amount: f64 = text[..text.len() - 1].trim().parse().ok()?;
    Duration::try_from_secs_f64(amount * unit_s).ok()
}

/// Writes a time so that [`parse_duration`] reads the same.
pub fn show_duration(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    for (unit_s, unit) in [(86_400.0, "d"), (3600.0, "h"), (60.0, "m")] {
        if seconds >= unit_s && seconds % unit_s == 0.0 {
            return format!("{}{unit}", seconds / unit_s);
        }
    }
    format!("{seconds}s")
}

fn parse_cadence(text: &str) -> Option<Cadence> {
    // Times come first: 10m is ten minutes here, and ten million steps are 10M.
    match parse_duration(text) {
        Some(time) => (!time.is_zero()).then_some(Cadence::Time(time)),
        None => ironmill_data::parse_size(text).ok().map(Cadence::Steps),
    }
}

fn wrong_type(key: &Key, found: &str) -> String {
    format!("`{}` takes {}, but found {found}", key.path(), key.kind.expected())
}

fn found(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("the text {text:?}"),
        DeValue::Integer(number) => format!("the number {number}"),
        DeValue::Float(number) => format!("the number {number}"),
        DeValue::Boolean(on) => format!("{on}"),
        DeValue::Datetime(date) => format!("the date {date}"),
        DeValue::Array(_) => "a list".into(),
        DeValue::Table(_) => "a section".into(),
    }
}

fn texts_of_list(text: &str) -> Option<Vec<String>> {
    let value = DeValue::parse(text).ok()?;
    let DeValue::Array(items) = value.get_ref() else { return None };
    items.iter().map(|item| item.get_ref().as_str().map(str::to_string)).collect()
}

fn settle_paths(kind: Kind, texts: Vec<String>, folder: &Path) -> Vec<String> {
    if kind != Kind::Inputs {
        return texts;
    }
    texts
        .into_iter()
        .map(|text| if text.starts_with("builtin:") { text } else { settle_path(&text, folder) })
        .collect()
}

/// An absolute path, so that a stored configuration means the same from any folder.
fn settle_path(text: &str, folder: &Path) -> String {
    let joined: PathBuf = folder.join(text);
    std::path::absolute(&joined).unwrap_or(joined).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::super::keys::{KEYS, find};
    use super::*;

    fn read(path: &str, text: &str) -> Result<Value, String> {
        let (section, name) = path.split_once('.').unwrap_or(("", path));
        from_text(&KEYS[find(section, name).unwrap()], text, Path::new("/place"))
    }

    #[test]
    fn durations_read_and_write_the_same() {
        for (text, seconds) in [("90s", 90), ("30m", 1800), ("2h", 7200), ("1d", 86_400), ("1.5m", 90)] {
            let duration = parse_duration(text).unwrap();
            assert_eq!(duration, Duration::from_secs(seconds), "{text}");
            assert_eq!(parse_duration(&show_duration(duration)), Some(duration), "{text}");
        }
        for text in ["", "m", "10", "-1s", "5 apples"] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }

    #[test]
    fn values_are_read_by_what_their_key_takes() {
        assert_eq!(read("train.batch_tokens", "16K"), Ok(Value::Count(16_000)));
        assert_eq!(read("train.learning_rate", "3e-4"), Ok(Value::Number(3e-4)));
        assert_eq!(read("train.micro_batch", "auto"), Ok(Value::Text("auto".into())));
        assert_eq!(read("train.micro_batch", "4"), Ok(Value::Count(4)));
        assert!(read("train.micro_batch", "most").unwrap_err().contains("or \"auto\""));
        assert_eq!(
            read("train.checkpoint_every", "10m"),
            Ok(Value::Cadence(Cadence::Time(Duration::from_secs(600))))
        );
        assert_eq!(read("train.checkpoint_every", "500"), Ok(Value::Cadence(Cadence::Steps(500))));
        assert_eq!(read("model.tied", "false"), Ok(Value::Switch(false)));
        assert_eq!(read("sample.prompts", r#"["a", "b"]"#), Ok(Value::Texts(vec!["a".into(), "b".into()])));
        assert_eq!(read("sample.prompts", "Once"), Ok(Value::Texts(vec!["Once".into()])));
        assert_eq!(
            read("data.input", r#"["a.txt", "builtin:stories:1MB"]"#),
            Ok(Value::Texts(vec!["/place/a.txt".into(), "builtin:stories:1MB".into()]))
        );
    }

    #[test]
    fn a_device_may_carry_a_number() {
        assert_eq!(read("train.device", "cuda:1"), Ok(Value::Text("cuda:1".into())));
        assert!(read("train.device", "cuda:one").unwrap_err().contains("auto, cpu, cuda"));
    }

    #[test]
    fn a_misspelt_choice_names_the_nearest_one() {
        let said = read("train.schedule", "cosin").unwrap_err();
        assert!(said.contains("did you mean \"cosine\"?"), "{said}");
    }
}
