//! The configuration as it was typed: whichever keys a file and the command line give, and nothing else.

use super::keys::{self, KEYS};
use super::presets::{DEPTH_DECIDES, PRESET_DECIDES};
use super::sweep::Sweep;
use super::values::{self, Value};
use crate::failure::{Code, Failure, Place, Result};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use toml::de::{DeTable, DeValue};

/// Typed values, and where they came from, by the index of their key.
#[derive(Clone, Debug, Default)]
pub struct Typed(BTreeMap<usize, (Value, Origin)>);

/// Where a value came from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Origin {
    /// A line of the file.
    Line(usize),
    /// A flag.
    Flag,
}

/// A sweep and where in the file it begins.
type PlacedSweep = (Sweep, Range<usize>);

/// One `--section.key value` of the command line.
#[derive(Clone, Debug, PartialEq)]
pub struct Override {
    /// The key with its section, in snake case.
    pub path: String,
    /// The value as typed.
    pub value: String,
}

/// Keys, and the keys of their section that have no say beside them.
const SILENCED: [(&str, [&[&str]; 2]); 5] = [
    ("tokenizer.file", [&["kind", "vocab_size", "pattern", "special", "ties", "min_count", "memory"], &[]]),
    ("model.preset", [&["depth"], PRESET_DECIDES]),
    ("model.depth", [&["preset"], DEPTH_DECIDES]),
    ("train.steps", [&["epochs"], &[]]),
    ("train.epochs", [&["steps"], &[]]),
];

impl Typed {
    /// Reads a file and puts the overrides of the command line over it.
    pub fn load(path: &Path, overrides: &[Override]) -> Result<Typed> {
        let mut typed = Typed::read_file(path)?;
        typed.override_with(overrides)?;
        Ok(typed)
    }

    /// Does the same with a file that may have a `[sweep]`.
    pub fn load_with_sweep(path: &Path, overrides: &[Override]) -> Result<(Typed, Option<Sweep>)> {
        let name = path.display().to_string();
        let (mut typed, sweep) = Typed::parse_with_sweep(&read_text(path)?, &name, folder_of(path))?;
        typed.override_with(overrides)?;
        Ok((typed, sweep.map(|(sweep, _)| sweep)))
    }

    /// Reads a configuration file.
    fn read_file(path: &Path) -> Result<Typed> {
        Typed::parse(&read_text(path)?, &path.display().to_string(), folder_of(path))
    }

    /// Reads the text of a configuration file called `name`, whose relative paths start at `folder`.
    pub fn parse(text: &str, name: &str, folder: &Path) -> Result<Typed> {
        let (typed, sweep) = Typed::parse_with_sweep(text, name, folder)?;
        let Some((_, span)) = sweep else { return Ok(typed) };
        let message = "[sweep] is for `ironmill sweep`: use that command, or remove the section".into();
        Err(at(text, name, message, span, "many runs, not one"))
    }

    /// The same for a file that may have a `[sweep]`, which comes with its place.
    pub(super) fn parse_with_sweep(
        text: &str,
        name: &str,
        folder: &Path,
    ) -> Result<(Typed, Option<PlacedSweep>)> {
        let fail = |message: String, span: Range<usize>, label: &str| at(text, name, message, span, label);
        let table = DeTable::parse(text).map_err(|error| {
            let message = format!("not valid TOML: {}", error.message().trim_end());
            fail(message, error.span().unwrap_or(0..0), "here")
        })?;
        let (mut typed, mut sweep) = (Typed::default(), None);
        if let Some((key, value)) = table.get_ref().get_key_value("sweep")
            && let DeValue::Table(section) = value.get_ref()
        {
            let parsed = Sweep::parse(section, folder).map_err(|(message, span, label)| {
                let span = if span.is_empty() { key.span() } else { span };
                fail(message, span, label)
            })?;
            sweep = Some((parsed, key.span()));
        }
        for (section, name, name_span, value, value_span) in entries(table.get_ref()) {
            if name.is_empty() {
                return Err(fail(keys::explain_unknown_section(section), name_span, "no such section"));
            }
            let Some(key_idx) = keys::find(section, name) else {
                return Err(fail(keys::explain_unknown(section, name), name_span, "no such key"));
            };
            let value = values::from_toml(&KEYS[key_idx], value, folder)
                .map_err(|message| fail(message, value_span, "this value"))?;
            typed.0.insert(key_idx, (value, Origin::Line(line_of(text, name_span.start))));
        }
        Ok((typed, sweep))
    }

    /// Puts what the command line says over what is there. Repeated lists grow.
    pub fn override_with(&mut self, overrides: &[Override]) -> Result<()> {
        let folder = Path::new("");
        let mut given: BTreeMap<usize, Value> = BTreeMap::new();
        for Override { path, value } in overrides {
            let (section, name) = path.split_once('.').unwrap_or(("", path));
            let usage = |message: String| Failure::new(Code::Usage, format!("--{path}: {message}"));
            let key_idx =
                keys::find(section, name).ok_or_else(|| usage(keys::explain_unknown(section, name)))?;
            let value = values::from_text(&KEYS[key_idx], value, folder).map_err(usage)?;
            match (given.get_mut(&key_idx), value) {
                (Some(Value::Texts(texts)), Value::Texts(more)) => texts.extend(more),
                (_, value) => drop(given.insert(key_idx, value)),
            }
        }
        // A flag stands above the file, so it silences the keys there that say the same thing in another way.
        for (path, silenced) in SILENCED {
            let (section, name) = path.split_once('.').unwrap_or(("", path));
            if keys::find(section, name).is_some_and(|idx| given.contains_key(&idx)) {
                self.0.retain(|&idx, _| {
                    let key = &KEYS[idx];
                    key.section != section || !silenced.iter().any(|names| names.contains(&key.name))
                });
            }
        }
        self.0.extend(given.into_iter().map(|(key_idx, value)| (key_idx, (value, Origin::Flag))));
        Ok(())
    }

    /// Takes out the value of a key, if it was typed.
    pub fn take(&mut self, section: &str, name: &str) -> Option<Value> {
        self.0.remove(&keys::find(section, name)?).map(|(value, _)| value)
    }

    /// Where the value of a key came from, if it was typed.
    pub fn origin(&self, section: &str, name: &str) -> Option<Origin> {
        self.0.get(&keys::find(section, name)?).map(|(_, origin)| *origin)
    }

    /// Where the resolved value of a key came from, in words: a line, a flag, the preset, the depth or a default.
    pub fn source(&self, section: &str, name: &str) -> String {
        match self.origin(section, name) {
            Some(Origin::Line(line)) => return format!("line {line}"),
            Some(Origin::Flag) => return "flag".into(),
            None => {}
        }
        let typed = |key: &str| keys::find("model", key).and_then(|idx| self.0.get(&idx));
        match (section, typed("preset"), typed("depth")) {
            ("model", Some((Value::Text(preset), _)), _) if PRESET_DECIDES.contains(&name) => {
                format!("preset {preset}")
            }
            ("model", _, Some((Value::Count(depth), _))) if DEPTH_DECIDES.contains(&name) => {
                format!("depth {depth}")
            }
            _ => "default".into(),
        }
    }

    /// Whether every value has been taken.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The names of the keys of a section that are left.
    pub fn left_in(&self, section: &str) -> Vec<String> {
        self.0
            .keys()
            .map(|&idx| &KEYS[idx])
            .filter(|key| key.section == section)
            .map(|key| key.path())
            .collect()
    }
}

fn read_text(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::InvalidData => {
            let message = format!("{} is not UTF-8 text: a configuration is a TOML file", path.display());
            Failure::new(Code::BadConfig, message)
        }
        _ => Failure::read(path, &error),
    })
}

fn folder_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

/// A failure about a place of a file.
fn at(text: &str, name: &str, message: String, span: Range<usize>, label: &str) -> Failure {
    let line = line_of(text, span.start);
    let source = miette::NamedSource::new(name, text.to_string());
    Failure::new(Code::BadConfig, message).at(Place { source, span, line, label: label.into() })
}

/// The line of a byte, counted from 1.
fn line_of(text: &str, byte: usize) -> usize {
    text.as_bytes()[..byte.min(text.len())].iter().filter(|&&byte| byte == b'\n').count() + 1
}

type Entry<'a> = (&'a str, &'a str, Range<usize>, &'a DeValue<'a>, Range<usize>);

/// Every key of the file with its section, in the order of the file, so that the first mistake is told first. An
/// unknown section is an entry without a name.
fn entries<'a>(table: &'a DeTable<'a>) -> Vec<Entry<'a>> {
    let mut entries: Vec<Entry<'a>> = Vec::new();
    for (name, value) in table {
        match value.get_ref() {
            DeValue::Table(inner) if keys::SECTIONS.contains(&name.get_ref().as_ref()) => {
                for (key, value) in inner {
                    entries.push((name.get_ref(), key.get_ref(), key.span(), value.get_ref(), value.span()));
                }
            }
            DeValue::Table(_) if name.get_ref() == "sweep" => {}
            DeValue::Table(_) => {
                entries.push((name.get_ref(), "", name.span(), value.get_ref(), value.span()))
            }
            _ => entries.push(("", name.get_ref(), name.span(), value.get_ref(), value.span())),
        }
    }
    entries.sort_by_key(|entry| entry.2.start);
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fails(text: &str) -> String {
        let failure = Typed::parse(text, "c.toml", Path::new("/place")).unwrap_err();
        assert_eq!(failure.code(), Code::BadConfig);
        failure.to_string()
    }

    #[test]
    fn an_unknown_key_names_its_line_and_the_nearest_key() {
        let said = fails("seed = 1\n[train]\nsteps = 5\nlearning_rat = 1e-3\n");
        assert_eq!(said, "c.toml:4: unknown key `train.learning_rat`: did you mean `train.learning_rate`?");
    }

    #[test]
    fn a_wrong_type_names_key_expected_and_found() {
        let said = fails("[train]\nsteps = \"many\"\n");
        assert!(said.starts_with("c.toml:2: `train.steps` takes a whole number"), "{said}");
        assert!(said.ends_with("but found \"many\""), "{said}");
        assert!(fails("[model]\ntied = \"yes\"").contains("takes true or false, but found the text \"yes\""));
        assert!(fails("[model]\nlayers = -2").contains("found the number -2"));
        assert!(fails("[model]\nlayers = 2.5").contains("found the number 2.5"));
        assert!(fails("[model]\nlayers = 0x10").contains("found the number 0x10"));
        assert!(fails("[sample]\nprompts = [1, 2]").contains("found a list"));
    }

    #[test]
    fn unknown_sections_and_broken_toml_are_told_apart() {
        assert!(fails("[trian]\nsteps = 1").contains("did you mean [train]?"));
        assert!(fails("[train\nsteps = 1").contains("c.toml:1: not valid TOML"));
        assert!(fails("[train]\nsteps = 1\nsteps = 2").contains("c.toml:3: not valid TOML"));
    }

    #[test]
    fn the_first_mistake_of_the_file_is_told() {
        assert!(fails("[train]\nzzz = 1\n[model]\naaa = 1\n").contains("train.zzz"));
    }

    #[test]
    fn flags_override_the_file_and_lists_grow() {
        let mut typed =
            Typed::parse("[train]\nsteps = 5\n[sample]\nprompts = [\"x\"]", "c.toml", Path::new("/"))
                .unwrap();
        let set = |path: &str, value: &str| Override { path: path.into(), value: value.into() };
        typed
            .override_with(&[set("train.steps", "7"), set("sample.prompts", "a"), set("sample.prompts", "b")])
            .unwrap();
        assert_eq!(typed.take("train", "steps"), Some(Value::Count(7)));
        assert_eq!(typed.take("sample", "prompts"), Some(Value::Texts(vec!["a".into(), "b".into()])));
        let failure = typed.override_with(&[set("train.step", "7")]).unwrap_err();
        assert_eq!(failure.code(), Code::Usage);
        assert!(failure.to_string().contains("did you mean `train.steps`?"));
    }

    #[test]
    fn a_flag_silences_keys_of_the_file_that_say_the_same_in_another_way() {
        let file = "[model]\narchitecture = \"llama\"\nlayers = 2\nwidth = 32\ncontext = 16\ndropout = 0.1\n";
        let typed = |flags: &[(&str, &str)]| {
            let mut typed = Typed::parse(file, "c.toml", Path::new("/")).unwrap();
            let flags: Vec<Override> = flags
                .iter()
                .map(|(path, value)| Override { path: (*path).into(), value: (*value).into() })
                .collect();
            typed.override_with(&flags).unwrap();
            typed
        };
        let deep = typed(&[("model.depth", "3"), ("model.width", "96")]);
        assert_eq!(deep.left_in("model").len(), 5);
        assert_eq!(deep.source("model", "layers"), "depth 3");
        assert_eq!(deep.source("model", "width"), "flag");
        assert_eq!(deep.source("model", "context"), "line 5");
        let named = typed(&[("model.preset", "gpt2")]);
        assert_eq!(named.left_in("model"), ["model.preset", "model.dropout"]);
        assert_eq!(named.source("model", "context"), "preset gpt2");
        assert_eq!(named.source("model", "dropout"), "line 6");
        let mut typed =
            Typed::parse("tokenizer.vocab_size = 300\ntrain.steps = 5", "c.toml", Path::new("/")).unwrap();
        let set = |path: &str, value: &str| Override { path: path.into(), value: value.into() };
        typed.override_with(&[set("train.epochs", "1"), set("tokenizer.file", "t.json")]).unwrap();
        assert_eq!(
            (typed.left_in("train"), typed.left_in("tokenizer")),
            (vec!["train.epochs".into()], vec!["tokenizer.file".into()])
        );
    }
}
