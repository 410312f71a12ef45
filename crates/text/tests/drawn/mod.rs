//! Texts and patterns drawn with fixed seeds, for the tests of laws.

use ironmill_text::Pattern;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseResult, TestRng, TestRunner};

/// Runs a law on values drawn with a fixed seed, and shrinks what breaks it.
#[track_caller]
pub fn holds<S: Strategy>(cases: u32, strategy: S, law: impl Fn(S::Value) -> TestCaseResult) {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[42; 32]);
    TestRunner::new_with_rng(config, rng).run(&strategy, law).unwrap();
}

/// Text of few letters, so that pairs repeat and counts tie.
pub fn few_letters() -> impl Strategy<Value = String> {
    "([abc]{0,7}|[ab]{0,12}|é|[ \n]|1|Ж){0,25}"
}

/// Few letters, any characters, and any bytes, joined.
pub fn any_document() -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        few_letters().prop_map(String::into_bytes),
        any::<String>().prop_map(String::into_bytes),
        prop::collection::vec(any::<u8>(), 0..30),
        Just(b"<|end|>".to_vec()),
        Just(b"<|end|".to_vec()),
        Just(b" \n  ".to_vec()),
    ];
    prop::collection::vec(part, 0..6).prop_map(|parts| parts.concat())
}

pub fn any_pattern() -> impl Strategy<Value = Pattern> {
    prop_oneof![
        Just(Pattern::Gpt2),
        Just(Pattern::Cl100k),
        Just(Pattern::O200k),
        Just(Pattern::Llama3),
        Just(Pattern::Qwen2),
        Just(Pattern::Regex(r"[ab]+|\d".to_owned())),
        Just(Pattern::Regex(r"(?s).{1,9}".to_owned())),
    ]
}
