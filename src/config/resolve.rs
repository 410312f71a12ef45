//! From what was typed to what it comes to: defaults, and the checks that need more than one key.

mod model;
mod train;

pub use model::keys_of;
pub use train::{auto_precision, parse_group};

use super::typed::Typed;
use super::values::{Cadence, Value};
use super::*;
use crate::failure::{Code, Failure};
use ironmill_text::Pattern;

/// The special token that an encoder sees in place of a token it is asked for.
pub const MASK: &str = "<|mask|>";

/// Takes values out of what was typed. A value has the type its key asks for, so a wrong one is our own mistake.
struct Section<'a> {
    name: &'static str,
    typed: &'a mut Typed,
}

/// Declares a reader for one kind of value.
macro_rules! reader {
    ($optional:ident, $with_default:ident, $variant:ident, $type:ty) => {
        fn $optional(&mut self, name: &str) -> Option<$type> {
            match self.typed.take(self.name, name)? {
                Value::$variant(value) => Some(value),
                other => panic!("{}.{name} was read as {other:?}", self.name),
            }
        }

        fn $with_default(&mut self, name: &str, default: impl Into<$type>) -> $type {
            self.$optional(name).unwrap_or_else(|| default.into())
        }
    };
}

impl<'a> Section<'a> {
    fn new(name: &'static str, typed: &'a mut Typed) -> Section<'a> {
        Section { name, typed }
    }

    /// Refuses keys that were typed but have no meaning here; `why` ends the sentence.
    fn refuse(&self, names: &[&str], why: &str) -> Result<()> {
        let typed: Vec<String> = names
            .iter()
            .filter(|name| self.typed.origin(self.name, name).is_some())
            .map(|name| format!("{}.{name}", self.name))
            .collect();
        if typed.is_empty() { Ok(()) } else { Err(bad(format!("{} cannot apply {why}", typed.join(", ")))) }
    }

    /// A count that was typed, or nothing within where the machine is to decide.
    fn given_count_or_auto(&mut self, name: &str) -> Option<Option<u64>> {
        match self.typed.take(self.name, name)? {
            Value::Count(count) => Some(Some(count)),
            _ => Some(None),
        }
    }

    reader!(given_count, count, Count, u64);
    reader!(given_number, number, Number, f64);
    reader!(given_switch, switch, Switch, bool);
    reader!(given_text, text, Text, String);
    reader!(given_texts, texts, Texts, Vec<String>);
    reader!(given_cadence, cadence, Cadence, Cadence);
}

impl Config {
    /// Fills in the defaults and checks what only makes sense together.
    pub fn resolve(mut typed: Typed) -> Result<Config> {
        let seed = Section::new("", &mut typed).count("seed", 1u64);
        let model = model::resolve(Section::new("model", &mut typed))?;
        let is_encoder = model.architecture == "encoder";
        let tokenizer = resolve_tokenizer(Section::new("tokenizer", &mut typed), is_encoder)?;
        let data = resolve_data(Section::new("data", &mut typed))?;
        let train = train::resolve(Section::new("train", &mut typed), &model)?;
        let sample = resolve_sample(Section::new("sample", &mut typed), seed, is_encoder)?;
        debug_assert!(typed.is_empty(), "a key is known but not read: {typed:?}");
        Ok(Config { seed, tokenizer, data, model, train, sample })
    }
}

fn resolve_tokenizer(mut section: Section<'_>, is_encoder: bool) -> Result<TokenizerConfig> {
    if let Some(file) = section.given_text("file") {
        let others = section.typed.left_in("tokenizer");
        if !others.is_empty() {
            let others = others.join(", ");
            return Err(bad(format!(
                "tokenizer.file names a finished tokenizer, so {others} cannot apply: remove one"
            )));
        }
        return Ok(TokenizerConfig::File { file: file.into() });
    }
    let kind = section.text("kind", "bpe");
    let without: &[&str] = match kind.as_str() {
        "bpe" => &[],
        "word" => &["ties", "memory"],
        "char" => &["ties", "pattern", "memory"],
        _ => &["ties", "pattern", "vocab_size", "min_count", "memory"],
    };
    section.refuse(without, &format!("to tokenizer.kind = \"{kind}\": remove it"))?;
    let has = |name: &str| !without.contains(&name);
    let is_bpe = kind == "bpe";
    let mut special = section.texts("special", ["<|endoftext|>".to_string()]);
    if is_encoder && !special.iter().any(|text| text == MASK) {
        special.push(MASK.into());
    }
    let pattern = has("pattern").then(|| section.text("pattern", "gpt2"));
    if let Some(pattern) = &pattern {
        // A misspelt name is told now, not when the corpus has been read.
        pattern.parse::<Pattern>()?;
    }
    let min_count = has("min_count").then(|| section.count("min_count", 1u64));
    Ok(TokenizerConfig::Train(TokenizerTraining {
        vocab_size: section.given_count("vocab_size").or(is_bpe.then_some(4096)),
        ties: is_bpe.then(|| section.text("ties", "hf")),
        pattern,
        special,
        min_count,
        memory: is_bpe.then(|| section.count("memory", DEFAULT_MEMORY)),
        kind,
    }))
}

fn resolve_data(mut section: Section<'_>) -> Result<DataConfig> {
    let data = DataConfig {
        input: section.texts("input", []),
        document_separator: section.given_text("document_separator"),
        validation: section.number("validation", 0.005),
        text_key: section.text("text_key", "text"),
        shard_tokens: section.count("shard_tokens", 100_000_000u64),
        sampler: section.text("sampler", "shuffled"),
        on_bad_utf8: section.text("on_bad_utf8", "error"),
        drop_duplicates: section.switch("drop_duplicates", false),
        workers: section.count("workers", 1u64),
    };
    within("data.validation", data.validation, 0.0, 0.999)?;
    at_least("data.shard_tokens", data.shard_tokens, 1)?;
    within("data.workers", data.workers as f64, 0.0, 64.0)?;
    if data.document_separator.as_deref() == Some("") {
        return Err(bad("data.document_separator is empty: remove it, or give the text between documents"));
    }
    Ok(data)
}

fn resolve_sample(mut section: Section<'_>, seed: u64, is_encoder: bool) -> Result<SampleConfig> {
    let prompts: &[&str] = if is_encoder { &[] } else { &["Once there was"] };
    let sample = SampleConfig {
        prompts: section.texts("prompts", prompts.iter().map(ToString::to_string).collect::<Vec<_>>()),
        max_tokens: section.count("max_tokens", 200u64),
        temperature: section.number("temperature", 0.8),
        top_k: section.count("top_k", 0u64),
        top_p: section.number("top_p", 1.0),
        seed: section.count("seed", seed),
    };
    if is_encoder && !sample.prompts.is_empty() {
        return Err(bad("sample.prompts cannot apply to model.architecture = \"encoder\", \
             which fills in masked tokens and continues no text: remove it"));
    }
    at_least("sample.max_tokens", sample.max_tokens, 1)?;
    within("sample.temperature", sample.temperature, 0.0, 100.0)?;
    within("sample.top_p", sample.top_p, 0.0, 1.0)?;
    Ok(sample)
}

fn bad(message: impl Into<String>) -> Failure {
    Failure::new(Code::BadConfig, message)
}

fn within(name: &str, value: f64, lowest: f64, highest: f64) -> Result<()> {
    if (lowest..=highest).contains(&value) {
        return Ok(());
    }
    let range = match (lowest, highest) {
        (f64::MIN_POSITIVE, highest) => format!("above 0 and at most {highest}"),
        (lowest, f64::MAX) => format!("at least {lowest}"),
        _ => format!("from {lowest} to {highest}"),
    };
    Err(bad(format!("{name} = {value} is out of range: use a number {range}")))
}

fn between(name: &str, value: u64, lowest: u64, highest: u64) -> Result<()> {
    if value > highest {
        return Err(bad(format!("{name} = {value} is too large: use at most {highest}")));
    }
    at_least(name, value, lowest)
}

fn at_least(name: &str, value: u64, lowest: u64) -> Result<()> {
    if value >= lowest {
        return Ok(());
    }
    Err(bad(format!("{name} = {value} is too small: use at least {lowest}")))
}

#[cfg(test)]
mod tests;
