use crate::program::{Desk, numbers};
use std::collections::{BTreeMap, BTreeSet};

/// What is common to all runs of the table: small, and with a few of everything.
const BASE: &str = r#"
seed = 5

[tokenizer]
vocab_size = 300

[data]
input = "builtin:stories:30KB"
validation = 0.1

[model]
layers = 1
heads = 2
width = 16
context = 16

[train]
steps = 4
batch_tokens = 64
micro_batch = 2
learning_rate = 1e-2
warmup = 2
eval_every = 2
eval_tokens = 256
sample_every = 2
checkpoint_every = 2

[sample]
prompts = ["Once there was"]
max_tokens = 12
"#;

/// Key, value, other flags that both runs get, and what must differ between a run without the key and one with it.
type Row = (&'static str, &'static str, &'static [&'static str], &'static str);

/// The base without a size of the vocabulary, which bytes do not have.
const PLAIN: &[&str] = &["plain.toml"];
const LLAMA: &[&str] = &["--model.architecture", "llama"];
const WINDOW: &[&str] = &["--model.architecture", "llama", "--model.window", "4"];
/// Steps large enough for constants that matter little at the start of a training.
const BOLD: &[&str] = &["--train.learning-rate", "0.1"];
/// A rate at which the validation loss rises at once.
const PLATEAU: &[&str] = &[
    "--train.schedule",
    "plateau",
    "--train.warmup",
    "0",
    "--train.eval-every",
    "1",
    "--train.learning-rate",
    "2",
    "--train.steps",
    "6",
    "--train.plateau-patience",
    "1",
];
const SGD: &[&str] = &["--train.optimizer", "sgd"];
/// Steps that leave the others behind at once are refused, and the run goes on.
const OUTLIERS: &[&str] =
    &["--train.on-nonfinite", "skip", "--train.outlier-warmup", "1", "--train.learning-rate", "1"];

const ROWS: &[Row] = &[
    ("seed", "6", &[], "losses"),
    ("tokenizer.kind", "char", &[], "tokenizer"),
    ("tokenizer.kind", "byte", PLAIN, "tokenizer"),
    ("tokenizer.kind", "word", &["--tokenizer.special", "<|unknown|>"], "tokenizer"),
    ("tokenizer.vocab_size", "310", &[], "parameters"),
    ("tokenizer.pattern", "o200k", &[], "tokenizer"),
    ("tokenizer.pattern", r"\w+|\W+", &[], "tokens"),
    ("tokenizer.special", "<|other|>", &[], "tokenizer"),
    ("tokenizer.ties", "bytes", &["--tokenizer.vocab-size", "600"], "tokenizer"),
    ("tokenizer.min_count", "300", &[], "parameters"),
    // No tokenizer depends on it, but one is refused that it does not suffice for.
    ("tokenizer.memory", "1MiB", &[], "exit code"),
    ("tokenizer.file", "given.json", &[], "parameters"),
    ("data.input", "builtin:stories:20KB", &[], "tokens"),
    ("data.document_separator", "---", &["--data.input", "parts.txt"], "documents"),
    ("data.validation", "0.3", &[], "tokens"),
    ("data.text_key", "body", &["--data.input", "rows.jsonl"], "tokens"),
    ("data.shard_tokens", "1K", &[], "shards"),
    ("data.sampler", "random", &[], "losses"),
    ("data.sampler", "sequential", &[], "losses"),
    ("data.sampler", "packed", &[], "losses"),
    ("data.sampler", "bucketed", &[], "losses"),
    ("data.on_bad_utf8", "replace", &["--data.input", "bad.txt"], "exit code"),
    ("data.drop_duplicates", "true", &["--data.input", "twice.jsonl"], "documents"),
    // No batch depends on it, but there is a bound.
    ("data.workers", "65", &[], "exit code"),
    ("model.preset", "nano", &["--train.batch-tokens", "128", "--train.micro-batch", "1"], "parameters"),
    ("model.depth", "2", &[], "parameters"),
    ("model.architecture", "llama", &[], "parameters"),
    ("model.layers", "2", &[], "parameters"),
    ("model.heads", "4", &[], "losses"),
    ("model.kv_heads", "1", LLAMA, "parameters"),
    ("model.width", "32", &[], "parameters"),
    ("model.head_dim", "4", LLAMA, "parameters"),
    ("model.mlp", "relu2", &[], "losses"),
    ("model.mlp", "gelu_erf", BOLD, "losses"),
    ("model.mlp", "relu2", LLAMA, "losses"),
    ("model.mlp_width", "48", &[], "parameters"),
    ("model.context", "8", &[], "parameters"),
    ("model.dropout", "0.5", &[], "losses"),
    ("model.bias", "false", &[], "parameters"),
    ("model.bias", "true", LLAMA, "parameters"),
    ("model.tied", "false", &[], "parameters"),
    ("model.qk_norm", "true", LLAMA, "parameters"),
    ("model.window", "2", &[], "losses"),
    ("model.norm_eps", "0.1", &[], "losses"),
    ("model.rope_theta", "100", LLAMA, "losses"),
    ("model.rope_scaling", "linear:4", LLAMA, "losses"),
    ("model.rope_scaling", "llama3:8:1:4:32", LLAMA, "losses"),
    ("model.gemma", "8:2:500", WINDOW, "losses"),
    ("train.steps", "3", &[], "steps"),
    ("train.epochs", "0.02", &[], "steps"),
    ("train.batch_tokens", "128", &[], "trained tokens"),
    ("train.micro_batch", "1", &[], "memory"),
    ("train.micro_batch", "auto", &[], "memory"),
    ("train.learning_rate", "2e-2", &[], "rates"),
    ("train.min_learning_rate", "0", &[], "rates"),
    ("train.schedule", "constant", &[], "rates"),
    ("train.schedule", "linear", &[], "rates"),
    ("train.schedule", "stable_decay", &[], "rates"),
    ("train.schedule", "restarts", &[], "rates"),
    ("train.schedule", "one_cycle", &[], "rates"),
    ("train.schedule", "exponential", &[], "rates"),
    ("train.schedule", "plateau", &[], "rates"),
    ("train.decay_share", "0.5", &["--train.schedule", "stable_decay", "--train.warmup", "0"], "rates"),
    ("train.restart_every", "1", &["--train.schedule", "restarts"], "rates"),
    (
        "train.restart_factor",
        "1",
        &["--train.schedule", "restarts", "--train.restart-every", "1", "--train.warmup", "0"],
        "rates",
    ),
    ("train.plateau_factor", "0.2", PLATEAU, "rates"),
    ("train.plateau_patience", "0", PLATEAU, "rates"),
    ("train.warmup", "3", &[], "rates"),
    ("train.optimizer", "adam", &["--train.weight-decay", "0.1"], "losses"),
    ("train.optimizer", "sgd", &[], "losses"),
    ("train.optimizer", "muon", &[], "losses"),
    ("train.groups", "*: rate 0.1", &[], "losses"),
    ("train.groups", "*: decay 5", BOLD, "losses"),
    ("train.ema", "0.9", &[], "validation losses"),
    ("train.weight_decay", "5", BOLD, "losses"),
    ("train.beta1", "0.1", BOLD, "losses"),
    ("train.beta2", "0.1", BOLD, "losses"),
    ("train.eps", "1", &[], "losses"),
    ("train.momentum", "0", SGD, "losses"),
    ("train.momentum", "0", &["--train.optimizer", "muon"], "losses"),
    ("train.grad_clip", "0.01", SGD, "losses"),
    (
        "train.on_nonfinite",
        "skip",
        &["--train.norm-outlier", "1e-3", "--train.outlier-warmup", "1"],
        "exit code",
    ),
    (
        "train.max_skips",
        "0",
        &["--train.on-nonfinite", "skip", "--train.norm-outlier", "1e-3", "--train.outlier-warmup", "1"],
        "exit code",
    ),
    ("train.loss_outlier", "1e-3", OUTLIERS, "losses"),
    ("train.norm_outlier", "1e-3", OUTLIERS, "losses"),
    (
        "train.outlier_warmup",
        "100",
        &["--train.on-nonfinite", "skip", "--train.outlier-warmup", "1", "--train.norm-outlier", "1e-3"],
        "losses",
    ),
    ("train.label_smoothing", "0.2", &[], "losses"),
    ("train.z_loss", "0.1", &[], "losses"),
    ("train.recompute", "blocks", &["--model.layers", "4"], "memory"),
    // The reference computes in fp32 unless it is told otherwise, on any processor.
    ("train.precision", "bf16", &["--train.device", "reference"], "losses"),
    ("train.precision", "fp16", &["--train.device", "reference"], "losses"),
    ("train.eval_every", "4", &[], "validation losses"),
    ("train.eval_tokens", "64", &[], "validation losses"),
    ("train.eval_set", "sampled", &[], "validation losses"),
    ("train.early_stop_patience", "1", &["--train.learning-rate", "0", "--train.eval-every", "1"], "steps"),
    ("train.early_stop_smoothing", "0.9", &["--train.early-stop-patience", "9"], "smoothed losses"),
    (
        "train.early_stop_delta",
        "100",
        &["--train.early-stop-patience", "1", "--train.eval-every", "1"],
        "steps",
    ),
    ("train.sample_every", "1", &[], "samples"),
    ("train.checkpoint_every", "3", &[], "checkpoints"),
    ("train.keep_last", "1", &[], "checkpoints"),
    ("train.keep_best", "1", &["--train.eval-every", "0"], "validation losses"),
    ("train.keep_every", "2", &["--train.keep-last", "1"], "checkpoints"),
    ("train.device", "reference", &[], "device"),
    ("sample.prompts", "A fox", &[], "text"),
    ("sample.max_tokens", "3", &[], "text"),
    ("sample.temperature", "0", &[], "text"),
    ("sample.top_k", "1", &[], "text"),
    ("sample.top_p", "0.01", &[], "text"),
    ("sample.seed", "9", &[], "text"),
];

/// Keys that only another architecture, optimiser or schedule than the default one has.
const OF_OTHERS: [&str; 10] = [
    "qk_norm",
    "rope_theta",
    "rope_scaling",
    "gemma",
    "momentum",
    "decay_share",
    "restart_every",
    "restart_factor",
    "plateau_factor",
    "plateau_patience",
];

/// Everything that a run leaves for a person or a program to see.
type Seen = BTreeMap<&'static str, String>;

fn see(desk: &Desk, flags: &[&str], out: &str) -> Seen {
    let (config, flags) = match flags {
        [config, rest @ ..] if config.ends_with(".toml") => (*config, rest),
        _ => ("base.toml", flags),
    };
    let arguments = [&["run", config, "--out", out, "--verbose"], flags].concat();
    let run = desk.run(&arguments);
    let mut seen = Seen::from([("exit code", run.code.to_string())]);
    if run.code != 0 {
        return seen;
    }
    let text = |name: &str| String::from_utf8_lossy(&desk.read(&format!("{out}/{name}"))).into_owned();
    let names = |folder: &str| {
        let entries = std::fs::read_dir(desk.path(out).join(folder)).unwrap();
        let names: BTreeSet<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        format!("{names:?}")
    };
    let line = |start: &str| run.stderr.lines().find(|line| line.starts_with(start)).unwrap().to_string();
    let manifest: serde_json::Value = serde_json::from_str(&text("data/manifest.json")).unwrap();
    let model = line("model: ");
    seen.extend([
        ("losses", format!("{:?}", numbers(desk, out, "loss"))),
        ("rates", format!("{:?}", numbers(desk, out, "learning_rate"))),
        ("steps", numbers(desk, out, "step").len().to_string()),
        ("trained tokens", format!("{:?}", numbers(desk, out, "tokens"))),
        ("validation losses", format!("{:?}", numbers(desk, out, "validation_loss"))),
        ("smoothed losses", format!("{:?}", numbers(desk, out, "validation_smoothed"))),
        ("tokenizer", text("tokenizer.json")),
        ("tokens", manifest["train"]["tokens"].to_string()),
        ("documents", manifest["train"]["documents"].to_string()),
        ("shards", names("data")),
        ("parameters", model.split(';').next().unwrap().to_string()),
        ("memory", model.rsplit(';').next().unwrap().to_string()),
        ("samples", names("samples")),
        ("checkpoints", names("checkpoints")),
        ("device", line("device: ")),
        ("text", run.stdout.split_once("\n\n").unwrap().1.to_string()),
    ]);
    seen
}

fn desk() -> Desk {
    let desk = Desk::new();
    desk.write("base.toml", BASE);
    desk.write("plain.toml", BASE.replace("vocab_size = 300", ""));
    let stories = ["A fox ran home.", "An owl sat on a wall.", "The cat slept."];
    desk.write("parts.txt", stories.repeat(30).join("\n---\n"));
    let rows: Vec<String> = stories
        .iter()
        .map(|text| format!("{{\"text\": {text:?}, \"body\": {:?}}}", text.repeat(3)))
        .collect();
    desk.write("rows.jsonl", (rows.join("\n") + "\n").repeat(30));
    let many: String =
        (0..60).map(|i| format!("{{\"text\": \"{} {}\"}}\n", stories[i % 2], i % 40)).collect();
    desk.write("twice.jsonl", many);
    desk.write("bad.txt", [stories.repeat(30).join("\n").as_bytes(), b"\xff and more"].concat());
    desk.ok(&[
        "tokenizer",
        "train",
        "builtin:stories:20KB",
        "--vocab-size",
        "280",
        "--out",
        "given.json",
        "--quiet",
    ]);
    desk
}

#[test]
fn every_key_changes_what_a_run_shows() {
    let desk = desk();
    let mut bases: BTreeMap<&[&str], Seen> = BTreeMap::new();
    let mut idle = Vec::new();
    for (idx, (key, value, flags, shown)) in ROWS.iter().enumerate() {
        let base = bases.entry(*flags).or_insert_with(|| see(&desk, flags, &format!("base-{idx}")));
        // A flag is a key in its other spelling.
        let flag = format!("--{}", key.replace('_', "-"));
        let seen = see(&desk, &[*flags, &[flag.as_str(), *value]].concat(), &format!("run-{idx}"));
        let (before, after) = (base.get(shown), seen.get(shown));
        if before == after || (*shown != "exit code" && (before.is_none() || after.is_none())) {
            let codes = (&base["exit code"], &seen["exit code"]);
            idle.push(format!("{key} = {value} changes nothing about the {shown}; exit codes {codes:?}"));
        }
    }
    assert!(idle.is_empty(), "{}", idle.join("\n"));
}

/// Every key that the program knows.
fn known_keys() -> BTreeSet<String> {
    let desk = Desk::new();
    let mut known = BTreeSet::from(["seed".to_string()]);
    for section in ["tokenizer", "data", "model", "train", "sample"] {
        // An unknown key that is like no other is answered with the list of those that there are.
        desk.write("c.toml", format!("[{section}]\nzzzzzzzzzzzzzzzzzzzz = 1\n"));
        let said = desk.fails(78, &["config", "check", "c.toml"], &["unknown key"]).stderr;
        let list = said.lines().next().unwrap().split_once(&format!("[{section}] has ")).unwrap().1;
        known.extend(list.trim().split(", ").map(|name| format!("{section}.{name}")));
    }
    known
}

#[test]
fn the_table_has_every_key() {
    let tested: BTreeSet<String> = ROWS.iter().map(|row| row.0.to_string()).collect();
    assert_eq!(tested, known_keys());
}

/// The rows of the manual's tables: the first cell, without its quotes, and the second.
fn manual() -> Vec<(String, String)> {
    let text =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/configuration.md")).unwrap();
    text.lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once("` | "))
        // The keys of a sweep are of another kind: they are about other keys, and `compare_runs` tests them.
        .filter(|(key, _)| !key.starts_with("sweep."))
        .map(|(key, rest)| (key.to_string(), rest.split(" | ").next().unwrap().to_string()))
        .collect()
}

#[test]
fn the_manual_has_every_key_and_preset_and_no_other() {
    let documented: BTreeSet<String> = manual().into_iter().map(|(key, _)| key).collect();
    let (keys, presets): (BTreeSet<String>, BTreeSet<String>) =
        documented.into_iter().partition(|name| name == "seed" || name.contains('.') && !name.contains('-'));
    assert_eq!(keys, known_keys());
    let desk = Desk::new();
    desk.write("c.toml", "model.preset = \"none\"");
    let said = desk.fails(78, &["config", "check", "c.toml"], &["one of"]).stderr;
    let list =
        said.lines().next().unwrap().split_once("one of ").unwrap().1.split(", but found").next().unwrap();
    assert_eq!(presets, list.split(", ").map(str::to_string).collect());
}

#[test]
fn the_manual_s_defaults_are_those_of_an_empty_file() {
    let desk = Desk::new();
    desk.write("empty.toml", "");
    let resolved = desk.ok(&["config", "show", "empty.toml"]);
    for (key, default) in manual() {
        // A default that depends on something is said in words.
        let Some(written) = default.strip_prefix('`').and_then(|rest| rest.strip_suffix('`')) else {
            continue;
        };
        let is_value = !written.is_empty() && !written.contains(" · ") && !written.contains(" / ");
        if !is_value || default.contains(", ") || key.contains('-') {
            continue;
        }
        let (section, name) = key.split_once('.').unwrap_or(("", &key));
        let body = resolved.split(&format!("[{section}]\n")).nth(usize::from(!section.is_empty())).unwrap();
        let line = body
            .lines()
            .take_while(|line| !line.starts_with('['))
            .find(|line| line.starts_with(&format!("{name} = ")));
        let Some(line) = line else {
            // What only another style has is not in an empty file.
            assert!(OF_OTHERS.contains(&name), "{key}");
            continue;
        };
        let found = line.split_once(" = ").unwrap().1.split("  # ").next().unwrap().trim();
        let has_bf16 = ironmill_compute::cpu::InstructionSet::Avx512Bf16.is_available();
        let precision = if has_bf16 { "\"bf16\"" } else { "\"fp32\"" };
        let settled = [
            ("\"100M\"", "100000000"),
            ("\"4GiB\"", "4294967296"),
            ("train.precision", precision),
            ("train.device", "\"cpu\""),
        ];
        let expected = settled
            .iter()
            .find(|(what, _)| *what == written || *what == key)
            .map_or(written.replace("\\|", "|"), |(_, value)| value.to_string());
        let as_number = |text: &str| text.parse::<f64>().ok();
        let is_same =
            found == expected || as_number(found).is_some() && as_number(found) == as_number(&expected);
        assert!(is_same, "{key}: the manual says {written}, the program {found}");
    }
}
