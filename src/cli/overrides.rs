//! Dotted flags: `--train.learning-rate 3e-4` sets a key of the configuration.

use crate::config::Override;
use crate::failure::{Code, Failure, Result};
use std::ffi::OsString;

/// Takes the dotted flags out of the arguments; in them `-` and `_` are the same.
pub fn split(arguments: Vec<OsString>) -> Result<(Vec<OsString>, Vec<Override>)> {
    let mut rest = Vec::new();
    let mut overrides = Vec::new();
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        if argument == "--" {
            rest.push(argument);
            rest.extend(arguments);
            break;
        }
        let Some((path, value)) = argument.to_str().and_then(dotted) else {
            rest.push(argument);
            continue;
        };
        let usage = |problem: &str| Failure::new(Code::Usage, format!("--{path} {problem}"));
        let value = match value {
            Some(value) => value.to_string(),
            None => {
                let next =
                    arguments.next().ok_or_else(|| usage("needs a value: write it after a space or an ="))?;
                next.into_string().map_err(|_| usage("has a value that is not UTF-8"))?
            }
        };
        overrides.push(Override { path, value });
    }
    Ok((rest, overrides))
}

/// The path and the value after an `=`, if this is a dotted flag.
fn dotted(argument: &str) -> Option<(String, Option<&str>)> {
    let flag = argument.strip_prefix("--")?;
    let (path, value) = match flag.split_once('=') {
        Some((path, value)) => (path, Some(value)),
        None => (flag, None),
    };
    let (section, name) = path.split_once('.')?;
    let is_name = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphabetic())
            && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
    };
    (is_name(section) && is_name(name)).then(|| (path.replace('-', "_"), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(arguments: &[&str], rest: &[&str], overrides: &[(&str, &str)]) {
        let (found_rest, found) = split(arguments.iter().map(OsString::from).collect()).unwrap();
        assert_eq!(found_rest, rest);
        let found: Vec<(&str, &str)> = found.iter().map(|o| (o.path.as_str(), o.value.as_str())).collect();
        assert_eq!(found, overrides);
    }

    #[test]
    fn dotted_flags_are_taken_out_and_others_stay() {
        check(&["run", "a.toml", "--out", "x.y"], &["run", "a.toml", "--out", "x.y"], &[]);
        check(&["--train.learning-rate", "3e-4", "run"], &["run"], &[("train.learning_rate", "3e-4")]);
        check(&["run", "--model.layers=2"], &["run"], &[("model.layers", "2")]);
        check(&["run", "--data.input=a=b.txt"], &["run"], &[("data.input", "a=b.txt")]);
        check(&["x", "--", "--train.steps"], &["x", "--", "--train.steps"], &[]);
        check(&["x", "--special", "<|a.b|>"], &["x", "--special", "<|a.b|>"], &[]);
    }

    #[test]
    fn a_dotted_flag_without_a_value_says_so() {
        let failure = split(vec!["run".into(), "--train.steps".into()]).unwrap_err();
        assert_eq!(failure.code(), Code::Usage);
        assert!(failure.to_string().contains("--train.steps needs a value"));
    }
}
