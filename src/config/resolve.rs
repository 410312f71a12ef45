//! From what was typed to what it comes to: defaults, and the checks that need more than one key.

use super::typed::Typed;
use super::values::{Cadence, Value};
use super::*;
use crate::failure::{Code, Failure};

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
        let tokenizer = resolve_tokenizer(Section::new("tokenizer", &mut typed))?;
        let data = resolve_data(Section::new("data", &mut typed))?;
        let model = resolve_model(Section::new("model", &mut typed))?;
        let train = resolve_train(Section::new("train", &mut typed), &model)?;
        let sample = resolve_sample(Section::new("sample", &mut typed), seed)?;
        debug_assert!(typed.is_empty(), "a key is known but not read: {typed:?}");
        Ok(Config { seed, tokenizer, data, model, train, sample })
    }
}

fn resolve_tokenizer(mut section: Section<'_>) -> Result<TokenizerConfig> {
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
    let special = section.texts("special", ["<|endoftext|>".to_string()]);
    let min_count = section.count("min_count", 1u64);
    let kind = section.text("kind", "bpe");
    if kind == "bpe" {
        return Ok(TokenizerConfig::Train(TokenizerTraining {
            vocab_size: Some(section.count("vocab_size", 4096u64)),
            pattern: Some(section.text("pattern", "gpt2")),
            ties: Some(section.text("ties", "hf")),
            special,
            min_count,
            kind,
        }));
    }
    let vocab_size = section.given_count("vocab_size");
    let others = section.typed.left_in("tokenizer");
    if !others.is_empty() {
        return Err(bad(format!("{} cannot apply to kind = \"{kind}\": remove it", others.join(", "))));
    }
    Ok(TokenizerConfig::Train(TokenizerTraining {
        vocab_size,
        pattern: None,
        ties: None,
        special,
        min_count,
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
    };
    within("data.validation", data.validation, 0.0, 0.999)?;
    at_least("data.shard_tokens", data.shard_tokens, 1)?;
    if data.document_separator.as_deref() == Some("") {
        return Err(bad("data.document_separator is empty: remove it, or give the text between documents"));
    }
    Ok(data)
}

fn resolve_model(mut section: Section<'_>) -> Result<ModelConfig> {
    let model = ModelConfig {
        architecture: section.text("architecture", "gpt2"),
        layers: section.count("layers", 4u64),
        heads: section.count("heads", 6u64),
        width: section.count("width", 192u64),
        context: section.count("context", 256u64),
        dropout: section.number("dropout", 0.0),
        bias: section.switch("bias", true),
        tied: section.switch("tied", true),
    };
    for (name, value) in [
        ("model.layers", model.layers),
        ("model.heads", model.heads),
        ("model.width", model.width),
        ("model.context", model.context),
    ] {
        at_least(name, value, 1)?;
    }
    within("model.dropout", model.dropout, 0.0, 0.99)?;
    if !model.width.is_multiple_of(model.heads) {
        let (width, heads) = (model.width, model.heads);
        let near = (width / heads).max(1) * heads;
        return Err(bad(format!(
            "model.width = {width} is not a multiple of model.heads = {heads}: use a width such as {near}"
        )));
    }
    Ok(model)
}

fn resolve_train(mut section: Section<'_>, model: &ModelConfig) -> Result<TrainConfig> {
    let length = match (section.given_count("steps"), section.given_number("epochs")) {
        (Some(_), Some(_)) => {
            return Err(bad("train.steps and train.epochs both say how long to train: remove one"));
        }
        (None, Some(epochs)) => Length::Epochs(epochs),
        (steps, None) => Length::Steps(steps.unwrap_or(1000)),
    };
    let context = model.context;
    let batch_tokens = section.count("batch_tokens", 16 * context);
    if batch_tokens == 0 || !batch_tokens.is_multiple_of(context) {
        let near = (batch_tokens / context).max(1) * context;
        return Err(bad(format!(
            "train.batch_tokens = {batch_tokens} is not a multiple of model.context = {context}: use {near}, for example"
        )));
    }
    let rows = batch_tokens / context;
    let micro_batch = section.given_count("micro_batch").unwrap_or_else(|| largest_divisor(rows, 16));
    if micro_batch == 0 || !rows.is_multiple_of(micro_batch) {
        let near = largest_divisor(rows, micro_batch.max(1));
        return Err(bad(format!(
            "train.micro_batch = {micro_batch} does not divide a step of {rows} sequences \
             (train.batch_tokens / model.context): use {near}, for example"
        )));
    }
    let learning_rate = section.number("learning_rate", 1e-3);
    let schedule = section.text("schedule", "cosine");
    let lowest = if schedule == "constant" { learning_rate } else { learning_rate / 10.0 };
    let train = TrainConfig {
        length,
        batch_tokens,
        micro_batch,
        learning_rate,
        min_learning_rate: section.number("min_learning_rate", lowest),
        schedule,
        warmup: section.count("warmup", 50u64),
        weight_decay: section.number("weight_decay", 0.1),
        beta1: section.number("beta1", 0.9),
        beta2: section.number("beta2", 0.95),
        grad_clip: section.number("grad_clip", 1.0),
        precision: settle(section.text("precision", "auto"), "fp32"),
        eval_every: section.cadence("eval_every", Cadence::Steps(100)),
        eval_tokens: section.count("eval_tokens", 65_536u64),
        sample_every: section.cadence("sample_every", Cadence::Steps(250)),
        checkpoint_every: section.cadence("checkpoint_every", Cadence::Steps(250)),
        keep_last: section.count("keep_last", 2u64),
        device: settle(section.text("device", "auto"), "cpu"),
    };
    check_train(&train)?;
    Ok(train)
}

fn check_train(train: &TrainConfig) -> Result<()> {
    if let Length::Epochs(epochs) = train.length
        && epochs <= 0.0
    {
        return Err(bad(format!("train.epochs = {epochs} trains nothing: use a number above 0")));
    }
    within("train.learning_rate", train.learning_rate, 0.0, 100.0)?;
    within("train.min_learning_rate", train.min_learning_rate, 0.0, train.learning_rate)?;
    within("train.weight_decay", train.weight_decay, 0.0, 100.0)?;
    within("train.beta1", train.beta1, 0.0, 0.999_999_9)?;
    within("train.beta2", train.beta2, 0.0, 0.999_999_9)?;
    within("train.grad_clip", train.grad_clip, 0.0, f64::MAX)?;
    at_least("train.eval_tokens", train.eval_tokens, 1)?;
    at_least("train.keep_last", train.keep_last, 1)?;
    if train.schedule == "constant" && train.min_learning_rate != train.learning_rate {
        return Err(bad(
            "train.min_learning_rate has no effect with schedule = \"constant\": remove one of them",
        ));
    }
    Ok(())
}

fn resolve_sample(mut section: Section<'_>, seed: u64) -> Result<SampleConfig> {
    let sample = SampleConfig {
        prompts: section.texts("prompts", ["Once there was".to_string()]),
        max_tokens: section.count("max_tokens", 200u64),
        temperature: section.number("temperature", 0.8),
        top_k: section.count("top_k", 0u64),
        top_p: section.number("top_p", 1.0),
        seed: section.count("seed", seed),
    };
    at_least("sample.max_tokens", sample.max_tokens, 1)?;
    within("sample.temperature", sample.temperature, 0.0, 100.0)?;
    within("sample.top_p", sample.top_p, f64::MIN_POSITIVE, 1.0)?;
    Ok(sample)
}

/// What "auto" comes to in this version.
fn settle(value: String, auto: &str) -> String {
    if value == "auto" { auto.into() } else { value }
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

fn at_least(name: &str, value: u64, lowest: u64) -> Result<()> {
    if value >= lowest {
        return Ok(());
    }
    Err(bad(format!("{name} = {value} is too small: use at least {lowest}")))
}

fn largest_divisor(of: u64, at_most: u64) -> u64 {
    (1..=at_most.min(of)).rev().find(|divisor| of.is_multiple_of(*divisor)).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(text: &str) -> Result<Config> {
        Config::resolve(Typed::parse(text, "c.toml", Path::new("/work"))?)
    }

    fn fails(text: &str) -> String {
        let failure = resolve(text).unwrap_err();
        assert_eq!(failure.code(), Code::BadConfig);
        failure.to_string()
    }

    #[test]
    fn an_empty_file_is_a_whole_configuration() {
        let config = resolve("").unwrap();
        assert_eq!(config.model.width % config.model.heads, 0);
        assert_eq!(config.train.length, Length::Steps(1000));
        assert_eq!(config.sample.seed, config.seed);
    }

    #[test]
    fn a_resolved_configuration_reads_back_to_itself() {
        for text in [
            "",
            "seed = 7\n[tokenizer]\nfile = \"t.json\"\n[data]\ninput = \"a.txt\"\ndocument_separator = \"\\n\\n\"",
            "[tokenizer]\nkind = \"char\"\n[train]\nepochs = 2.5\ncheckpoint_every = \"90s\"\nschedule = \"constant\"",
            "[model]\ntied = false\n[train]\nlearning_rate = 3e-4\nmicro_batch = 2\n[sample]\nprompts = [\"a\", \"\\\"b\\\"\"]",
        ] {
            let config = resolve(text).unwrap();
            let written = config.to_toml().unwrap();
            assert_eq!(resolve(&written).unwrap(), config, "{written}");
        }
    }

    #[test]
    fn relative_paths_start_at_the_file() {
        let config =
            resolve("[data]\ninput = [\"texts/*.txt\", \"/abs/b.txt\", \"builtin:stories:1MB\"]").unwrap();
        assert_eq!(config.data.input, ["/work/texts/*.txt", "/abs/b.txt", "builtin:stories:1MB"]);
    }

    #[test]
    fn keys_that_do_not_fit_together_are_refused_with_advice() {
        for (text, advice) in [
            ("[model]\nwidth = 100\nheads = 3", "use a width such as 99"),
            ("[train]\nsteps = 5\nepochs = 1", "remove one"),
            ("[train]\nbatch_tokens = 1000\n[model]\ncontext = 256", "use 768"),
            ("[train]\nmicro_batch = 5", "use 4, for example"),
            ("[tokenizer]\nfile = \"x\"\nvocab_size = 300", "tokenizer.vocab_size cannot apply"),
            ("[tokenizer]\nkind = \"char\"\npattern = \"gpt2\"", "tokenizer.pattern cannot apply"),
            ("[model]\nlayers = 0", "at least 1"),
            ("[data]\nvalidation = 1.5", "from 0 to 0.999"),
            ("[sample]\ntop_p = 0", "above 0 and at most 1"),
            ("[train]\nlearning_rate = 1e-4\nmin_learning_rate = 1e-3", "from 0 to 0.0001"),
        ] {
            let said = fails(text);
            assert!(said.contains(advice), "{said}");
        }
    }

    #[test]
    fn every_key_is_read() {
        let mut text = std::collections::BTreeMap::<&str, String>::new();
        for key in keys::KEYS {
            let value: String = match key.name {
                "file" | "epochs" => continue,
                "heads" | "layers" | "micro_batch" => "2".into(),
                "width" | "context" => "32".into(),
                "batch_tokens" => "64".into(),
                "dropout" | "validation" => "0.5".into(),
                "min_learning_rate" => "0.0001".into(),
                _ => match key.kind {
                    keys::Kind::Count | keys::Kind::Cadence => "300".into(),
                    keys::Kind::Number => "0.25".into(),
                    keys::Kind::Switch => "false".into(),
                    keys::Kind::Choice(words) => format!("{:?}", words[0]),
                    _ => "\"x\"".into(),
                },
            };
            *text.entry(key.section).or_default() += &format!("{} = {value}\n", key.name);
        }
        let text: String = text.iter().map(|(section, keys)| format!("[{section}]\n{keys}")).collect();
        // What is left over would fail an assertion there.
        resolve(text.trim_start_matches("[]\n")).unwrap();
    }
}
