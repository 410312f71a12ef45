//! Every key that a configuration may have: its name, what it takes, and what it means.

use super::presets;

/// One key of the configuration.
#[derive(Debug)]
pub struct Key {
    /// The section, or nothing for a key at the top of the file.
    pub section: &'static str,
    /// The name inside its section.
    pub name: &'static str,
    /// What it takes.
    pub kind: Kind,
}

/// What a key takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// A whole number, also written `100M` or `4GiB`.
    Count,
    /// A whole number, or `auto`.
    CountOrAuto,
    /// A number.
    Number,
    /// `true` or `false`.
    Switch,
    /// A text.
    Text,
    /// A list of texts, or one text.
    Texts,
    /// A path, relative to the file that names it.
    Path,
    /// Paths, patterns or `builtin:` names, relative to the file that names them.
    Inputs,
    /// One of a few words.
    Choice(&'static [&'static str]),
    /// Where to compute.
    Device,
    /// A number of steps, or a time such as `"10m"`; 0 is never.
    Cadence,
}

impl Kind {
    /// What the key takes, as an error message says it.
    pub fn expected(self) -> String {
        match self {
            Kind::Count => "a whole number such as 512, or a size such as \"100M\"".into(),
            Kind::CountOrAuto => "a whole number such as 8, or \"auto\"".into(),
            Kind::Number => "a number such as 0.1 or 3e-4".into(),
            Kind::Switch => "true or false".into(),
            Kind::Text => "a text in quotes".into(),
            Kind::Texts => "a text in quotes, or a list of them".into(),
            Kind::Path => "a path in quotes".into(),
            Kind::Inputs => "a path in quotes, or a list of them".into(),
            Kind::Device => "one of auto, cpu, cuda, cuda:1 …, reference".into(),
            Kind::Choice(words) => format!("one of {}", words.join(", ")),
            Kind::Cadence => "a number of steps, or a time such as \"10m\"".into(),
        }
    }
}

impl Key {
    /// The name with its section, as flags and messages write it.
    pub fn path(&self) -> String {
        if self.section.is_empty() { self.name.into() } else { format!("{}.{}", self.section, self.name) }
    }
}

/// The courses of a learning rate.
const SCHEDULES: [&str; 8] =
    ["cosine", "constant", "linear", "stable_decay", "restarts", "one_cycle", "exponential", "plateau"];

/// The sections, in the order in which people write them.
pub const SECTIONS: &[&str] = &["tokenizer", "data", "model", "train", "sample"];

/// Every key.
pub const KEYS: &[Key] = &[
    key("", "seed", Kind::Count),
    key("tokenizer", "kind", Kind::Choice(&["bpe", "char", "word", "byte"])),
    key("tokenizer", "vocab_size", Kind::Count),
    key("tokenizer", "pattern", Kind::Text),
    key("tokenizer", "special", Kind::Texts),
    key("tokenizer", "ties", Kind::Choice(&["hf", "raw", "bytes"])),
    key("tokenizer", "min_count", Kind::Count),
    key("tokenizer", "memory", Kind::Count),
    key("tokenizer", "file", Kind::Path),
    key("data", "input", Kind::Inputs),
    key("data", "document_separator", Kind::Text),
    key("data", "validation", Kind::Number),
    key("data", "text_key", Kind::Text),
    key("data", "shard_tokens", Kind::Count),
    key("data", "sampler", Kind::Choice(&["random", "shuffled", "sequential", "packed", "bucketed"])),
    key("data", "on_bad_utf8", Kind::Choice(&["error", "replace", "skip"])),
    key("data", "drop_duplicates", Kind::Switch),
    key("data", "workers", Kind::Count),
    key("model", "preset", Kind::Choice(&presets::NAMES)),
    key("model", "depth", Kind::Count),
    key("model", "architecture", Kind::Choice(&["gpt2", "llama", "encoder"])),
    key("model", "layers", Kind::Count),
    key("model", "heads", Kind::Count),
    key("model", "kv_heads", Kind::Count),
    key("model", "width", Kind::Count),
    key("model", "head_dim", Kind::Count),
    key("model", "mlp", Kind::Choice(&["gelu", "gelu_erf", "swiglu", "geglu", "relu2"])),
    key("model", "mlp_width", Kind::Count),
    key("model", "context", Kind::Count),
    key("model", "dropout", Kind::Number),
    key("model", "bias", Kind::Switch),
    key("model", "tied", Kind::Switch),
    key("model", "qk_norm", Kind::Switch),
    key("model", "window", Kind::Count),
    key("model", "norm_eps", Kind::Number),
    key("model", "rope_theta", Kind::Number),
    key("model", "rope_scaling", Kind::Text),
    key("model", "gemma", Kind::Text),
    key("train", "steps", Kind::Count),
    key("train", "epochs", Kind::Number),
    key("train", "batch_tokens", Kind::Count),
    key("train", "micro_batch", Kind::CountOrAuto),
    key("train", "learning_rate", Kind::Number),
    key("train", "min_learning_rate", Kind::Number),
    key("train", "schedule", Kind::Choice(&SCHEDULES)),
    key("train", "warmup", Kind::Count),
    key("train", "decay_share", Kind::Number),
    key("train", "restart_every", Kind::Count),
    key("train", "restart_factor", Kind::Count),
    key("train", "plateau_factor", Kind::Number),
    key("train", "plateau_patience", Kind::Count),
    key("train", "optimizer", Kind::Choice(&["adamw", "adam", "sgd", "muon"])),
    key("train", "weight_decay", Kind::Number),
    key("train", "groups", Kind::Texts),
    key("train", "ema", Kind::Number),
    key("train", "beta1", Kind::Number),
    key("train", "beta2", Kind::Number),
    key("train", "eps", Kind::Number),
    key("train", "momentum", Kind::Number),
    key("train", "grad_clip", Kind::Number),
    key("train", "on_nonfinite", Kind::Choice(&["stop", "skip", "rollback"])),
    key("train", "max_skips", Kind::Count),
    key("train", "loss_outlier", Kind::Number),
    key("train", "norm_outlier", Kind::Number),
    key("train", "outlier_warmup", Kind::Count),
    key("train", "label_smoothing", Kind::Number),
    key("train", "z_loss", Kind::Number),
    key("train", "recompute", Kind::Choice(&["auto", "none", "blocks"])),
    key("train", "precision", Kind::Choice(&["auto", "fp32", "bf16", "fp16", "fp8", "fp8-head"])),
    key("train", "eval_every", Kind::Cadence),
    key("train", "eval_tokens", Kind::Count),
    key("train", "eval_set", Kind::Choice(&["fixed", "complete", "sampled"])),
    key("train", "early_stop_patience", Kind::Count),
    key("train", "early_stop_smoothing", Kind::Number),
    key("train", "early_stop_delta", Kind::Number),
    key("train", "sample_every", Kind::Cadence),
    key("train", "checkpoint_every", Kind::Cadence),
    key("train", "keep_last", Kind::Count),
    key("train", "keep_best", Kind::Count),
    key("train", "keep_every", Kind::Count),
    key("train", "device", Kind::Device),
    key("sample", "prompts", Kind::Texts),
    key("sample", "max_tokens", Kind::Count),
    key("sample", "temperature", Kind::Number),
    key("sample", "top_k", Kind::Count),
    key("sample", "top_p", Kind::Number),
    key("sample", "seed", Kind::Count),
];

/// Keys of a later version, refused by name rather than as unknown.
const LATER_KEYS: &[(&str, &str)] = &[("sample", "repetition_penalty")];

const fn key(section: &'static str, name: &'static str, kind: Kind) -> Key {
    Key { section, name, kind }
}

/// The index of a key in [`KEYS`].
pub fn find(section: &str, name: &str) -> Option<usize> {
    KEYS.iter().position(|key| key.section == section && key.name == name)
}

/// What to say about a key that is not there: that it comes later, or which known one was meant.
pub fn explain_unknown(section: &str, name: &str) -> String {
    let path = if section.is_empty() { name.to_string() } else { format!("{section}.{name}") };
    if LATER_KEYS.contains(&(section, name)) || section == "wire" {
        return format!("`{path}` is not available in this version: remove it");
    }
    let elsewhere = KEYS.iter().find(|key| key.name == name);
    let nearest =
        || KEYS.iter().filter_map(|key| Some((distance(&key.path(), &path)?, key))).min_by_key(|(d, _)| *d);
    match elsewhere.or_else(|| nearest().map(|(_, key)| key)) {
        Some(key) => format!("unknown key `{path}`: did you mean `{}`?", key.path()),
        None if SECTIONS.contains(&section) => {
            let known: Vec<&str> =
                KEYS.iter().filter(|key| key.section == section).map(|key| key.name).collect();
            format!("unknown key `{path}`: [{section}] has {}", known.join(", "))
        }
        None => format!("unknown key `{path}`: the sections are {}", SECTIONS.join(", ")),
    }
}

/// What to say about a section that is not there.
pub fn explain_unknown_section(name: &str) -> String {
    if name == "wire" {
        return "[wire] is not available in this version: remove it".into();
    }
    match nearest_word(name, SECTIONS) {
        Some(known) => format!("unknown section [{name}]: did you mean [{known}]?"),
        None => format!("unknown section [{name}]: the sections are {}", SECTIONS.join(", ")),
    }
}

/// The word of a list that is meant by a misspelt one, if any is near.
pub fn nearest_word<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    known.iter().filter_map(|known| Some((distance(known, word)?, *known))).min().map(|(_, known)| known)
}

/// How far apart two words are, unless they have little in common.
fn distance(known: &str, word: &str) -> Option<usize> {
    let distance = strsim::damerau_levenshtein(known, word);
    (distance <= (known.len() / 3).max(1)).then_some(distance)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_key_names_the_nearest_one() {
        for (section, name, meant) in [
            ("train", "learning_rat", "train.learning_rate"),
            ("train", "lerning_rate", "train.learning_rate"),
            ("model", "layer", "model.layers"),
            ("", "sead", "seed"),
            ("train", "layers", "model.layers"),
        ] {
            let said = explain_unknown(section, name);
            assert!(said.contains(&format!("did you mean `{meant}`")), "{said}");
        }
    }

    #[test]
    fn a_key_of_a_later_version_is_refused_by_name() {
        assert!(explain_unknown("sample", "repetition_penalty").contains("not available in this version"));
        assert!(explain_unknown_section("wire").contains("not available in this version"));
    }

    #[test]
    fn a_key_like_no_other_lists_what_there_is() {
        assert!(explain_unknown("sample", "zzzzzzzzzzzz").contains("max_tokens"));
    }

    #[test]
    fn no_key_is_listed_twice() {
        for (idx, key) in KEYS.iter().enumerate() {
            assert_eq!(find(key.section, key.name), Some(idx), "{}", key.path());
        }
    }
}
