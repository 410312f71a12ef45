//! Curves of a run, thinned to what a screen can show.

use serde_json::{Map, Value, json};

/// The most points of a curve. A screen has about as many columns.
const MOST: usize = 1000;

/// Numbers of a run that were measured together, by step.
#[derive(Clone, Debug, Default)]
pub struct Track {
    names: Vec<String>,
    points: Vec<Point>,
}

#[derive(Clone, Debug)]
struct Point {
    step: f64,
    tokens: f64,
    hours: f64,
    /// A number for each name; not a number where a line has none.
    numbers: Vec<f64>,
}

impl Track {
    /// An empty track of these numbers.
    pub fn of(names: &[&str]) -> Track {
        Track { names: names.iter().map(ToString::to_string).collect(), points: Vec::new() }
    }

    /// Adds a line of metrics at a time of the run, if it has any of the numbers.
    pub fn add(&mut self, line: &Value, seconds: f64) {
        let numbers: Vec<f64> =
            self.names.iter().map(|name| line[name.as_str()].as_f64().unwrap_or(f64::NAN)).collect();
        self.push(line, seconds, numbers);
    }

    /// Adds numbers of a line under names that are only known now.
    pub fn add_named(&mut self, line: &Value, seconds: f64, named: impl Iterator<Item = (String, f64)>) {
        let mut numbers = vec![f64::NAN; self.names.len()];
        for (name, number) in named {
            let idx = self.names.iter().position(|known| *known == name).unwrap_or_else(|| {
                self.names.push(name);
                numbers.push(f64::NAN);
                self.names.len() - 1
            });
            numbers[idx] = number;
        }
        self.push(line, seconds, numbers);
    }

    fn push(&mut self, line: &Value, seconds: f64, numbers: Vec<f64>) {
        if numbers.iter().all(|number| number.is_nan()) {
            return;
        }
        let number = |key: &str| line[key].as_f64().unwrap_or_default();
        self.points.push(Point {
            step: number("step"),
            tokens: number("tokens"),
            hours: seconds / 3600.0,
            numbers,
        });
    }

    /// The curves: their places by step, tokens and hours, and for each name the means of neighbouring points with the lowest and
    /// the highest of them.
    pub fn to_json(&self) -> Value {
        let size = self.points.len().div_ceil(MOST).max(1);
        let buckets: Vec<&[Point]> = self.points.chunks(size).collect();
        let places = |of: fn(&Point) -> f64| -> Vec<Value> {
            buckets.iter().filter_map(|bucket| bucket.last()).map(|point| short(of(point))).collect()
        };
        let mut curves = Map::new();
        for (idx, name) in self.names.iter().enumerate() {
            let known = |bucket: &&[Point]| -> Vec<f64> {
                bucket
                    .iter()
                    .filter_map(|point| point.numbers.get(idx))
                    .copied()
                    .filter(|n| n.is_finite())
                    .collect()
            };
            let values: Vec<Vec<f64>> = buckets.iter().map(known).collect();
            if values.iter().all(Vec::is_empty) {
                continue;
            }
            let over = |of: &dyn Fn(&[f64]) -> f64| -> Vec<Value> {
                values.iter().map(|bucket| short(of(bucket))).collect()
            };
            let mut curve = json!({"mean": over(&|bucket| bucket.iter().sum::<f64>() / bucket.len() as f64)});
            if size > 1 {
                curve["low"] = over(&|bucket| bucket.iter().copied().fold(f64::NAN, f64::min)).into();
                curve["high"] = over(&|bucket| bucket.iter().copied().fold(f64::NAN, f64::max)).into();
            }
            curves.insert(name.clone(), curve);
        }
        json!({
            "step": places(|point| point.step),
            "tokens": places(|point| point.tokens),
            "hours": places(|point| point.hours),
            "curves": curves,
        })
    }
}

/// A number with the six digits that a page can show; nothing where there is none.
fn short(number: f64) -> Value {
    if !number.is_finite() {
        return Value::Null;
    }
    let rounded: f64 = format!("{number:.5e}").parse().unwrap_or(number);
    if rounded.fract() == 0.0 && rounded.abs() < 1e15 { json!(rounded as i64) } else { json!(rounded) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_run_is_thinned_and_its_extremes_stay() {
        let mut track = Track::of(&["loss", "absent"]);
        for step in 1..=100_000_u64 {
            let loss = if step == 77_777 { 99.0 } else { 2.0 };
            track.add(&json!({"step": step, "tokens": 10 * step, "loss": loss}), step as f64);
        }
        let json = track.to_json();
        let steps = json["step"].as_array().unwrap();
        assert_eq!((steps.len(), steps.last().unwrap().as_u64()), (1000, Some(100_000)));
        let curve = &json["curves"]["loss"];
        let highest = curve["high"].as_array().unwrap().iter().filter_map(Value::as_f64).fold(0.0, f64::max);
        assert_eq!(highest, 99.0);
        assert_eq!(curve["low"][777], 2);
        assert_eq!(curve["mean"][777], 2.97);
        assert!(json["curves"].get("absent").is_none());
    }

    #[test]
    fn a_short_run_is_shown_as_it_is() {
        let mut track = Track::of(&["loss"]);
        track.add(&json!({"step": 1, "loss": 1.25}), 36.0);
        track.add(&json!({"step": 2, "loss": null}), 72.0);
        track.add_named(&json!({"step": 3}), 108.0, [("other".to_string(), 0.1234567)].into_iter());
        let json = track.to_json();
        assert_eq!(json["step"], json!([1, 3]));
        assert_eq!(json["hours"], json!([0.01, 0.03]));
        assert_eq!(json["curves"]["loss"], json!({"mean": [1.25, null]}));
        assert_eq!(json["curves"]["other"]["mean"], json!([null, 0.123457]));
    }
}
