//! Rendering a template as `transformers` does.

use super::{json, python};
use jiff::civil::DateTime;
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior, Value};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;

/// Instructions that a rendering may take: a thousand turns with tools take a hundredth of it.
const FUEL: u64 = 20_000_000;

/// Bytes that a rendering may write: more than any context holds.
const OUTPUT_BYTES: usize = 64 << 20;

/// The longest template that is read. The longest public ones have 30 kB.
const TEMPLATE_BYTES: usize = 4 << 20;

/// Why there is no text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Problem {
    /// The template refused the conversation, in these words.
    Refused(String),
    /// It is no template, or does what cannot be done.
    Broken(String),
    /// It does or writes more than any template needs.
    TooMuch(String),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Refused(words) => write!(f, "the chat template refuses this conversation: {words}"),
            Problem::Broken(words) => write!(f, "the chat template does not work ({words})"),
            Problem::TooMuch(what) => write!(f, "the chat template {what}, which no honest one needs"),
        }
    }
}

/// What `raise_exception` was told, on its way through the engine.
#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

/// Renders a template over its variables (`messages`, `tools`, `add_generation_prompt`, `bos_token` …) at a time of day.
///
/// Instructions and output are bounded; memory is not, so a template that is not trusted belongs into [`super::sandbox`].
pub fn render(source: &str, variables: &serde_json::Value, now: DateTime) -> Result<String, Problem> {
    if source.len() > TEMPLATE_BYTES {
        return Err(Problem::TooMuch(format!("has {} bytes", source.len())));
    }
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.map_err(|error| problem(&error))?);
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_fuel(Some(FUEL));
    python::teach(&mut environment);
    environment.add_filter("tojson", json::tojson);
    environment.add_function("raise_exception", |words: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, "refused").with_source(Raised(words)))
    });
    environment.add_function("strftime_now", move |format: &str| strftime(now, format));
    // Lines end in one way, as the engine of `transformers` has it.
    let source = without_generation_tags(&source.replace("\r\n", "\n").replace('\r', "\n"));
    let template = environment.template_from_str(&source).map_err(|error| problem(&error))?;
    let mut out = Limited { bytes: Vec::new() };
    let rendered = template.render_captured_to(with_aliases(variables), &mut out).map(|_| ());
    if out.bytes.len() >= OUTPUT_BYTES {
        return Err(Problem::TooMuch(format!("writes more than {OUTPUT_BYTES} bytes")));
    }
    rendered.map_err(|error| problem(&error))?;
    String::from_utf8(out.bytes).map_err(|error| Problem::Broken(error.to_string()))
}

/// The engine's error in our words.
fn problem(error: &Error) -> Problem {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(Raised(words)) = error.downcast_ref() {
            return Problem::Refused(words.clone());
        }
        cause = error.source();
    }
    if error.kind() == ErrorKind::OutOfFuel {
        return Problem::TooMuch(format!("takes more than {FUEL} instructions"));
    }
    let place = error.line().map_or(String::new(), |line| format!("line {line}: "));
    let what = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    Problem::Broken(format!("{place}{}", what.replace('\n', " ")))
}

/// The time as Python's `strftime` writes it in the C locale.
fn strftime(now: DateTime, format: &str) -> Result<String, Error> {
    // What stands for a whole date is spelt out, because its parts mean the same everywhere and the whole does not.
    let format = format
        .replace("%c", "%a %b %e %H:%M:%S %Y")
        .replace("%x", "%m/%d/%y")
        .replace("%X", "%H:%M:%S")
        .replace("%f", &format!("{:06}", now.subsec_nanosecond() / 1000));
    jiff::fmt::strtime::format(&format, now)
        .map_err(|error| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {error}")))
}

/// The variables as a template sees them: what a message thought is found under both of its names.
fn with_aliases(variables: &serde_json::Value) -> Value {
    let mut variables = variables.clone();
    if let Some(messages) = variables.get_mut("messages").and_then(serde_json::Value::as_array_mut) {
        for message in messages.iter_mut().filter_map(serde_json::Value::as_object_mut) {
            let names = ["reasoning_content", "thinking", "reasoning"];
            let Some(thought) = names
                .into_iter()
                .find_map(|name| message.get(name).filter(|value| !value.is_null()).cloned())
            else {
                continue;
            };
            message.entry("thinking").or_insert_with(|| thought.clone());
            message.insert("reasoning_content".into(), thought);
        }
    }
    for absent in ["tools", "documents"] {
        if variables.get(absent).is_none() {
            variables[absent] = serde_json::Value::Null;
        }
    }
    if variables.get("add_generation_prompt").is_none() {
        variables["add_generation_prompt"] = false.into();
    }
    value_of(&variables)
}

fn value_of(json: &serde_json::Value) -> Value {
    use serde_json::Value as Json;
    match json {
        Json::Null => Value::from(()),
        Json::Bool(value) => Value::from(*value),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Value::from(number),
            (None, Some(number)) => Value::from(number),
            (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => items.iter().map(value_of).collect(),
        Json::Object(fields) => {
            Value::from_pairs(fields.iter().map(|(key, value)| (key.as_str(), value_of(value))))
        }
    }
}

/// The template with `{% generation %}` as a plain scope. `transformers` uses the tag to find out what the assistant said;
/// the text is the same with and without.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = ["{%", "{#", "{{"].into_iter().filter_map(|open| rest.find(open)).min() {
        out.push_str(&rest[..start]);
        rest = &rest[start..];
        let close = match &rest[..2] {
            "{#" => "#}",
            "{{" => "}}",
            _ => "%}",
        };
        let Some(end) = rest.find(close).map(|end| end + 2) else { break };
        let (tag, behind) = rest.split_at(end);
        rest = behind;
        let word = tag[2..end - 2].trim_start_matches(['-', '+']).trim_end_matches(['-', '+']).trim();
        match word {
            _ if close != "%}" => out.push_str(tag),
            "generation" => out.push_str(&tag.replace("generation", "with")),
            "endgeneration" => out.push_str(&tag.replace("endgeneration", "endwith")),
            "raw" => {
                // What is raw is text, whatever it looks like.
                out.push_str(tag);
                let end = rest.find("endraw").unwrap_or(rest.len());
                out.push_str(&rest[..end]);
                rest = &rest[end..];
            }
            _ => out.push_str(tag),
        }
    }
    out + rest
}

/// Output that ends where there is too much of it.
struct Limited {
    bytes: Vec<u8>,
}

impl io::Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > OUTPUT_BYTES {
            self.bytes.resize(OUTPUT_BYTES, b' ');
            return Err(io::Error::other("too much output"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value as Json, json};

    fn golden() -> Json {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/chat/cases.json");
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    }

    #[test]
    fn templates_render_as_in_transformers() {
        let golden = golden();
        let now: DateTime = golden["now"].as_str().unwrap().parse().unwrap();
        let mut wrong = Vec::new();
        for case in golden["cases"].as_array().unwrap() {
            let name = case["name"].as_str().unwrap();
            let (template, variables) = match case["conversation"].as_str() {
                Some(which) => (
                    &golden["templates"][case["template"].as_str().unwrap()],
                    &golden["conversations"][which],
                ),
                None => (&case["template"], case.get("variables").unwrap_or(&golden["variables"])),
            };
            let rendered = render(template.as_str().unwrap(), variables, now);
            let is_right = match (&rendered, case) {
                (Ok(text), case) => case["text"].as_str() == Some(text),
                (Err(Problem::Refused(words)), case) => case["refused"].as_str() == Some(words),
                (Err(Problem::Broken(_)), case) => case["fails"] == true,
                (Err(Problem::TooMuch(_)), _) => false,
            };
            if !is_right {
                let text = case["text"].as_str().or(case["refused"].as_str()).unwrap_or("a failure");
                wrong.push(format!("{name}\n  wanted {text:?}\n  found  {rendered:?}"));
            }
        }
        assert!(wrong.is_empty(), "{} cases differ\n{}", wrong.len(), wrong.join("\n"));
    }

    fn fails(template: &str) -> Problem {
        let variables = json!({"messages": [{"role": "user", "content": "x"}]});
        render(template, &variables, DateTime::constant(2026, 1, 1, 0, 0, 0, 0)).unwrap_err()
    }

    #[test]
    fn what_never_ends_runs_out_of_fuel() {
        for template in [
            "{% for a in range(99999) %}{% for b in range(99999) %}{% set x = a %}{% endfor %}{% endfor %}",
            "{% for a in range(99999) %}{% for b in range(99999) %}{{ 'some text to write' }}{% endfor %}{% endfor %}",
        ] {
            assert!(matches!(fails(template), Problem::TooMuch(_)), "{template}");
        }
    }

    #[test]
    fn what_is_too_deep_or_too_large_is_an_error() {
        for template in [
            "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
            "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
            "{{ 'a' * 1000000000 }}",
            "{{ range(1000000000)|list }}",
            &format!("{{{{ {}1 }}}}", "(".repeat(100_000)),
            &format!("{{{{ {} }}}}", "[".repeat(100_000)),
        ] {
            let start: String = template.chars().take(60).collect();
            assert!(matches!(fails(template), Problem::Broken(_)), "{start}");
        }
        assert!(matches!(fails(&"x".repeat(TEMPLATE_BYTES + 1)), Problem::TooMuch(_)));
    }
}
