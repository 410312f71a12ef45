//! Our trainer and encoder against golden files made by Hugging Face `tokenizers`
//! (`tools/make_golden_tokenizer.py`).

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::fs;
use std::path::PathBuf;

use ironmill_text::{BpeOptions, Pattern, PieceCounts, Silent, Tokenizer, train_bpe};
use serde::Deserialize;
use serde::de::DeserializeOwned;

#[derive(Deserialize)]
struct Texts {
    documents: Vec<String>,
    probes: Vec<String>,
}

#[derive(Deserialize)]
struct Golden {
    pattern: String,
    vocab_size: usize,
    special: Vec<String>,
    min_count: u64,
    max_token_length: Option<usize>,
    n_tokens: usize,
    merges: Vec<String>,
    ids: Vec<Vec<u32>>,
    /// `None` where recognising special tokens makes no difference.
    ids_with_special: Vec<Option<Vec<u32>>>,
}

fn golden_path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/tokenizer").join(name)
}

fn read<T: DeserializeOwned>(name: &str) -> T {
    serde_json::from_str(&fs::read_to_string(golden_path(name)).unwrap()).unwrap()
}

fn train(golden: &Golden) -> (Tokenizer, bool) {
    let pattern: Pattern = golden.pattern.parse().unwrap();
    let mut counts = PieceCounts::new(&pattern, &golden.special).unwrap();
    for document in read::<Texts>("texts.json").documents {
        counts.add_document(document.as_bytes()).unwrap();
    }
    let options = BpeOptions {
        pattern,
        special: golden.special.clone(),
        min_count: golden.min_count,
        max_token_length: golden.max_token_length,
        ..BpeOptions::new(golden.vocab_size)
    };
    let (tokenizer, report) = train_bpe(&counts, &options, &Silent).unwrap();
    (tokenizer, report.ended_early)
}

fn check_ids(tokenizer: &Tokenizer, golden: &Golden) {
    let probes = read::<Texts>("texts.json").probes;
    assert_eq!(probes.len(), golden.ids.len());
    for (idx, probe) in probes.iter().enumerate() {
        let (mut ordinary, mut with_special) = (Vec::new(), Vec::new());
        tokenizer.encode(probe.as_bytes(), &mut ordinary).unwrap();
        tokenizer.encode_with_special(probe.as_bytes(), &mut with_special).unwrap();
        assert_eq!(ordinary, golden.ids[idx], "{probe:?}");
        assert_eq!(&with_special, golden.ids_with_special[idx].as_ref().unwrap_or(&ordinary), "{probe:?}");
        assert_eq!(tokenizer.decode(&ordinary).unwrap(), probe.as_bytes());
        assert_eq!(tokenizer.decode(&with_special).unwrap(), probe.as_bytes());
    }
}

#[track_caller]
fn check(name: &str) {
    let golden: Golden = read(&format!("{name}.golden.json"));
    let (tokenizer, ended_early) = train(&golden);
    let file: serde_json::Value = serde_json::from_str(&tokenizer.to_json()).unwrap();
    let merges: Vec<&str> =
        file["model"]["merges"].as_array().unwrap().iter().map(|m| m.as_str().unwrap()).collect();
    assert_eq!(merges, golden.merges);
    assert_eq!(tokenizer.vocab_size(), golden.n_tokens);
    assert_eq!(ended_early, golden.n_tokens < golden.vocab_size);
    check_ids(&tokenizer, &golden);
    check_ids(&Tokenizer::from_json(&tokenizer.to_json()).unwrap(), &golden);
}

#[test]
fn gpt2_training_and_ids_are_theirs() {
    check("gpt2");
}

#[test]
fn cl100k_training_and_ids_are_theirs() {
    check("cl100k");
}

#[test]
fn o200k_training_and_ids_are_theirs() {
    check("o200k");
}

#[test]
fn llama3_training_and_ids_are_theirs() {
    check("llama3");
}

#[test]
fn qwen2_training_and_ids_are_theirs() {
    check("qwen2");
}

#[test]
fn training_with_limits_that_ends_early_is_theirs() {
    check("limits");
}

#[test]
fn training_with_a_regex_that_leaves_gaps_is_theirs() {
    check("regex");
}

/// The script checks with `--check` that these files load there and give the golden ids.
const CHECKED_THERE: [&str; 5] = ["gpt2", "cl100k", "o200k", "llama3", "qwen2"];

#[test]
fn the_files_that_were_checked_there_are_what_is_written() {
    for name in CHECKED_THERE {
        let golden: Golden = read(&format!("{name}.golden.json"));
        let path = golden_path(&format!("{name}.tokenizer.json"));
        let (tokenizer, _) = train(&golden);
        assert_eq!(fs::read_to_string(&path).unwrap(), tokenizer.to_json(), "{name}");
        let loaded = Tokenizer::load(&path).unwrap();
        assert_eq!(loaded.hash(), tokenizer.hash());
        check_ids(&loaded, &golden);
    }
}

#[test]
#[ignore = "writes golden files; run it when the format changes, then the script with --check"]
fn rewrite_the_files_to_check_there() {
    for name in CHECKED_THERE {
        let (tokenizer, _) = train(&read(&format!("{name}.golden.json")));
        tokenizer.save(&golden_path(&format!("{name}.tokenizer.json"))).unwrap();
    }
}
