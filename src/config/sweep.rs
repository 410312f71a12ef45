//! `[sweep]`: which keys take which values, and which of their combinations are tried.
//!
//! A combination is a list of overrides, as if each value had been typed as a flag, so a swept key means what it means elsewhere.

use super::keys::{self, KEYS, Key, Kind};
use super::typed::Override;
use super::values::{self, Cadence, Value, show_duration};
use ironmill_data::order::hash;
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;
use toml::de::{DeTable, DeValue};

/// The most runs of one sweep.
const MOST_RUNS: usize = 10_000;

/// A search over values of keys.
#[derive(Clone, Debug, PartialEq)]
pub struct Sweep {
    axes: Vec<Axis>,
    search: Search,
}

/// A key and the values that it takes.
#[derive(Clone, Debug, PartialEq)]
struct Axis {
    path: String,
    values: Values,
}

#[derive(Clone, Debug, PartialEq)]
enum Values {
    List(Vec<String>),
    Range { min: f64, max: f64, is_log: bool, is_whole: bool, count: Option<u64> },
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Search {
    /// Every combination.
    Grid,
    /// So many that are drawn.
    Random { runs: u64, seed: u64 },
}

/// What a place of the file has to say to a person: a message, where, and what the place is.
type Mistake = (String, Range<usize>, &'static str);

impl Sweep {
    /// Reads the section. A mistake is told with its place in the file.
    pub(super) fn parse(table: &DeTable<'_>, folder: &Path) -> std::result::Result<Sweep, Mistake> {
        let (mut axes, mut search, mut runs, mut seed) = (Vec::new(), None, None, None);
        for (path, span, value, value_span) in flatten(table) {
            let wrong = |message: String| (message, value_span.clone(), "this value");
            match (path.as_str(), value) {
                ("search", value) => {
                    let name = value.as_str().filter(|name| ["grid", "random"].contains(name));
                    search = Some(
                        name.ok_or_else(|| wrong("`sweep.search` takes grid or random".into()))?.to_string(),
                    );
                }
                ("runs", value) => runs = Some(count("sweep.runs", value).map_err(wrong)?),
                ("search_seed", value) => seed = Some(count("sweep.search_seed", value).map_err(wrong)?),
                (path, value) => {
                    let (section, name) = path.split_once('.').unwrap_or(("", path));
                    let Some(idx) = keys::find(section, name) else {
                        let known =
                            "[sweep] has search, runs, search_seed, and keys such as train.learning_rate";
                        return Err((
                            format!("{}; {known}", keys::explain_unknown(section, name)),
                            span,
                            "no such key",
                        ));
                    };
                    let values = Values::parse(&KEYS[idx], value, folder).map_err(wrong)?;
                    axes.push((span.start, Axis { path: path.into(), values }));
                }
            }
        }
        let whole = || (0..0, "this section");
        let fail = |message: &str| (message.to_string(), whole().0, whole().1);
        if axes.is_empty() {
            return Err(fail("[sweep] names no key: add one, such as train.learning_rate = [1e-3, 3e-3]"));
        }
        axes.sort_by_key(|axis| axis.0);
        let axes: Vec<Axis> = axes.into_iter().map(|axis| axis.1).collect();
        let search = match (search.as_deref().unwrap_or("grid"), runs) {
            ("random", None) => {
                return Err(fail("sweep.search = \"random\" needs sweep.runs: how many to draw"));
            }
            ("random", Some(runs)) => Search::Random { runs, seed: seed.unwrap_or(1) },
            _ if runs.is_some() || seed.is_some() => {
                return Err(fail(
                    "sweep.runs and sweep.search_seed are for sweep.search = \"random\": remove them",
                ));
            }
            _ => Search::Grid,
        };
        let sweep = Sweep { axes, search };
        sweep.check().map_err(|message| fail(&message))?;
        Ok(sweep)
    }

    fn check(&self) -> std::result::Result<(), String> {
        for axis in &self.axes {
            let Values::Range { count, .. } = axis.values else { continue };
            let path = &axis.path;
            match (self.search, count) {
                (Search::Grid, None) => {
                    return Err(format!(
                        "the range of sweep.{path} needs a count: a grid has so many of its values"
                    ));
                }
                (Search::Random { .. }, Some(_)) => {
                    return Err(format!(
                        "the count of sweep.{path} is for a grid: remove it, values are drawn from the range"
                    ));
                }
                _ => {}
            }
        }
        let size = match self.search {
            Search::Random { runs, .. } => runs as f64,
            Search::Grid => self.axes.iter().map(|axis| axis.values.grid().len() as f64).product(),
        };
        if size < 1.0 || size > MOST_RUNS as f64 {
            return Err(format!("[sweep] asks for {size} runs: use 1 to {MOST_RUNS}"));
        }
        Ok(())
    }

    /// The keys, in the order of the file.
    pub fn keys(&self) -> Vec<String> {
        self.axes.iter().map(|axis| axis.path.clone()).collect()
    }

    /// The combinations, in order. The last key of a grid changes fastest; of equal draws only the first stays.
    pub fn points(&self) -> Vec<Vec<Override>> {
        let values: Vec<Vec<String>> = match self.search {
            Search::Grid => {
                let mut points = vec![Vec::new()];
                for axis in &self.axes {
                    let grid = axis.values.grid();
                    let with = |point: &Vec<String>| {
                        grid.iter()
                            .map(|value| [&point[..], std::slice::from_ref(value)].concat())
                            .collect::<Vec<_>>()
                    };
                    points = points.iter().flat_map(with).collect();
                }
                points
            }
            Search::Random { runs, seed } => {
                let draw = |run: u64| -> Vec<String> {
                    let of = |(idx, axis): (usize, &Axis)| axis.values.draw(hash(&[seed, run, idx as u64]));
                    self.axes.iter().enumerate().map(of).collect()
                };
                let (mut seen, mut points) = (BTreeSet::new(), Vec::new());
                // Few combinations may not have as many different ones as were asked for.
                for run in 0..runs * 100 {
                    let point = draw(run);
                    if points.len() < runs as usize && seen.insert(point.clone()) {
                        points.push(point);
                    }
                }
                points
            }
        };
        let named = |point: Vec<String>| {
            let pairs = self.axes.iter().zip(point);
            pairs.map(|(axis, value)| Override { path: axis.path.clone(), value }).collect()
        };
        values.into_iter().map(named).collect()
    }
}

impl Values {
    fn parse(key: &Key, value: &DeValue<'_>, folder: &Path) -> std::result::Result<Values, String> {
        match value {
            DeValue::Array(items) if !items.is_empty() => {
                let texts = items
                    .iter()
                    .map(|item| values::from_toml(key, item.get_ref(), folder).map(|value| text_of(&value)));
                Ok(Values::List(texts.collect::<std::result::Result<_, _>>()?))
            }
            DeValue::Table(table) => range(key, table),
            _ => Err(format!(
                "`sweep.{}` takes a list of values, or a range {{ min = …, max = … }}",
                key.path()
            )),
        }
    }

    /// The values of a grid.
    fn grid(&self) -> Vec<String> {
        match *self {
            Values::List(ref texts) => texts.clone(),
            Values::Range { count, .. } => {
                let count = count.unwrap_or(1);
                let place = |idx: u64| if count == 1 { 0.0 } else { idx as f64 / (count - 1) as f64 };
                let mut values: Vec<String> = (0..count).map(|idx| self.at(place(idx))).collect();
                values.dedup();
                values
            }
        }
    }

    /// The value that a random number stands for.
    fn draw(&self, random: u64) -> String {
        // The upper 53 bits are a number from 0 up to 1.
        let place = (random >> 11) as f64 / (1u64 << 53) as f64;
        match self {
            Values::List(texts) => {
                texts[((place * texts.len() as f64) as usize).min(texts.len() - 1)].clone()
            }
            Values::Range { .. } => self.at(place),
        }
    }

    /// The value of a range at a place from 0 to 1, with four digits: more make names long and runs no better.
    fn at(&self, place: f64) -> String {
        let Values::Range { min, max, is_log, is_whole, .. } = *self else { return String::new() };
        let value = if is_log { min * (max / min).powf(place) } else { min + (max - min) * place };
        if is_whole {
            return value.round().to_string();
        }
        let rounded: f64 = format!("{value:.3e}").parse().unwrap_or(value);
        rounded.clamp(min, max).to_string()
    }
}

fn range(key: &Key, table: &DeTable<'_>) -> std::result::Result<Values, String> {
    let path = key.path();
    if !matches!(key.kind, Kind::Count | Kind::Number) {
        return Err(format!("`sweep.{path}` takes a list: only numbers have ranges"));
    }
    let (mut min, mut max, mut is_log, mut points) = (None, None, false, None);
    for (name, value) in table {
        let number = || match value.get_ref() {
            DeValue::Integer(number) => number.as_str().replace('_', "").parse::<f64>().ok(),
            DeValue::Float(number) => number.as_str().replace('_', "").parse::<f64>().ok(),
            _ => None,
        };
        let needs = |what: &str| format!("{} of the range of `sweep.{path}` takes {what}", name.get_ref());
        match name.get_ref().as_ref() {
            "min" => min = Some(number().ok_or_else(|| needs("a number"))?),
            "max" => max = Some(number().ok_or_else(|| needs("a number"))?),
            "log" => is_log = value.get_ref().as_bool().ok_or_else(|| needs("true or false"))?,
            "count" => points = Some(count("count", value.get_ref()).map_err(|_| needs("a whole number"))?),
            other => return Err(format!("a range has min, max, log and count, not `{other}`")),
        }
    }
    let (Some(min), Some(max)) = (min, max) else {
        return Err(format!("the range of `sweep.{path}` needs min and max"));
    };
    let lowest = if is_log { f64::MIN_POSITIVE } else { f64::MIN };
    if !(min < max && min >= lowest && max.is_finite()) {
        let above = if is_log { " above 0, as a logarithm needs" } else { "" };
        return Err(format!(
            "the range of `sweep.{path}` goes from {min} to {max}: use min below max{above}"
        ));
    }
    Ok(Values::Range { min, max, is_log, is_whole: key.kind == Kind::Count, count: points })
}

fn count(path: &str, value: &DeValue<'_>) -> std::result::Result<u64, String> {
    let number = match value {
        DeValue::Integer(number) => number.as_str().replace('_', "").parse().ok(),
        _ => None,
    };
    number.ok_or_else(|| format!("`{path}` takes a whole number"))
}

/// The entries of the section with the whole paths of their keys: both `train.learning_rate` and a nested table are one.
fn flatten<'a>(table: &'a DeTable<'a>) -> Vec<(String, Range<usize>, &'a DeValue<'a>, Range<usize>)> {
    let mut entries = Vec::new();
    for (name, value) in table {
        match value.get_ref() {
            DeValue::Table(inner) if keys::SECTIONS.contains(&name.get_ref().as_ref()) => {
                for (key, value) in inner {
                    let path = format!("{}.{}", name.get_ref(), key.get_ref());
                    entries.push((path, key.span(), value.get_ref(), value.span()));
                }
            }
            value_of => entries.push((name.get_ref().to_string(), name.span(), value_of, value.span())),
        }
    }
    entries
}

/// A value as a flag would be given it.
fn text_of(value: &Value) -> String {
    match value {
        Value::Count(number) | Value::Cadence(Cadence::Steps(number)) => number.to_string(),
        Value::Number(number) => number.to_string(),
        Value::Switch(on) => on.to_string(),
        Value::Text(text) => text.clone(),
        Value::Texts(texts) => serde_json::json!(texts).to_string(),
        Value::Cadence(Cadence::Time(time)) => show_duration(*time),
    }
}

/// The name of a combination: its keys without their sections, and their values.
pub fn name_of(point: &[Override]) -> String {
    let last = |path: &str| path.rsplit('.').next().unwrap_or(path).to_string();
    let is_unique = |path: &str| point.iter().filter(|other| last(&other.path) == last(path)).count() == 1;
    let part = |Override { path, value }: &Override| {
        let key = if is_unique(path) { last(path) } else { path.clone() };
        format!("{key}={value}")
    };
    let whole = point.iter().map(part).collect::<Vec<_>>().join(",");
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ".,=_-+".contains(c);
    let plain: String = whole.chars().map(|c| if is_plain(c) { c } else { '_' }).collect();
    // Names of files have a limit, and two combinations never share one.
    if plain == whole && plain.len() <= 100 {
        return plain;
    }
    let sum = blake3::hash(whole.as_bytes()).to_hex();
    format!("{}-{}", plain.chars().take(80).collect::<String>(), &sum[..8])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Typed;

    fn read(text: &str) -> std::result::Result<Sweep, String> {
        let folder = Path::new("/place");
        let parsed = Typed::parse_with_sweep(&format!("[sweep]\n{text}"), "c.toml", folder);
        parsed.map(|(_, sweep)| sweep.unwrap().0).map_err(|failure| failure.to_string())
    }

    fn points(text: &str) -> Vec<String> {
        read(text).unwrap().points().iter().map(|point| name_of(point)).collect()
    }

    #[test]
    fn a_grid_has_every_combination_and_its_last_key_changes_fastest() {
        let text = "train.learning_rate = [1e-3, 3e-3]\nmodel.width = [64, 128]\n";
        let expected = [
            "learning_rate=0.001,width=64",
            "learning_rate=0.001,width=128",
            "learning_rate=0.003,width=64",
            "learning_rate=0.003,width=128",
        ];
        assert_eq!(points(text), expected);
        assert_eq!(
            points("\"train.schedule\" = [\"cosine\", \"constant\"]"),
            ["schedule=cosine", "schedule=constant"]
        );
        assert_eq!(
            points("seed = [1, 2]\nsample.seed = [3]"),
            ["seed=1,sample.seed=3", "seed=2,sample.seed=3"]
        );
    }

    #[test]
    fn ranges_are_spaced_evenly_or_by_their_logarithm() {
        assert_eq!(
            points("train.weight_decay = { min = 0, max = 0.2, count = 3 }"),
            ["weight_decay=0", "weight_decay=0.1", "weight_decay=0.2"]
        );
        let log = points("train.learning_rate = { min = 1e-4, max = 1e-2, log = true, count = 3 }");
        assert_eq!(log, ["learning_rate=0.0001", "learning_rate=0.001", "learning_rate=0.01"]);
        assert_eq!(points("train.warmup = { min = 1, max = 2, count = 5 }"), ["warmup=1", "warmup=2"]);
    }

    #[test]
    fn random_draws_follow_from_the_seed_and_stay_in_range() {
        let text = "search = \"random\"\nruns = 20\ntrain.learning_rate = { min = 1e-4, max = 1e-2, log = true }\nmodel.heads = [1, 2]\n";
        let drawn = points(text);
        assert_eq!((drawn.len(), &drawn), (20, &points(text)));
        assert_ne!(drawn, points(&format!("{text}search_seed = 2\n")));
        let rates: Vec<f64> =
            read(text).unwrap().points().iter().map(|point| point[0].value.parse().unwrap()).collect();
        assert!(rates.iter().all(|rate| (1e-4..=1e-2).contains(rate)), "{rates:?}");
        // By its logarithm, about half of the draws lie in each half of the decades.
        assert!((4..=16).contains(&rates.iter().filter(|rate| **rate < 1e-3).count()), "{rates:?}");
        assert_eq!(points("search = \"random\"\nruns = 9\nmodel.heads = [1, 2]").len(), 2);
    }

    #[test]
    fn names_are_files_and_never_the_same() {
        let name = |value: &str| name_of(&[Override { path: "data.input".into(), value: value.into() }]);
        assert!(name("/a/b").starts_with("input=_a_b-") && name("/a/b") != name("/a_b"));
        assert!(name(&"x".repeat(300)).len() < 100);
    }

    #[test]
    fn mistakes_are_explained() {
        for (text, said) in [
            ("train.learning_rat = [1]", "did you mean `train.learning_rate`?"),
            ("train.steps = 5", "takes a list of values, or a range"),
            ("train.steps = [\"many\"]", "takes a whole number"),
            ("train.schedule = { min = 1, max = 2, count = 2 }", "only numbers have ranges"),
            ("train.steps = { min = 1, max = 2 }", "needs a count"),
            ("train.steps = { min = 3, max = 2, count = 2 }", "use min below max"),
            ("train.learning_rate = { min = 0, max = 2, log = true, count = 2 }", "above 0"),
            ("search = \"random\"\ntrain.steps = [1]", "needs sweep.runs"),
            ("runs = 5\ntrain.steps = [1]", "are for sweep.search = \"random\""),
            ("search = \"random\"\nruns = 2\ntrain.steps = { min = 1, max = 9, count = 2 }", "is for a grid"),
            ("search = \"best\"\ntrain.steps = [1]", "takes grid or random"),
            ("search = \"grid\"", "names no key"),
        ] {
            let message = read(text).unwrap_err();
            assert!(message.contains(said), "{text}: {message}");
        }
    }
}
