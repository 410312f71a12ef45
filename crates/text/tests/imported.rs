//! Kinds of vocabulary that are read but not trained here, against golden files made by Hugging Face `tokenizers`
//! (`tools/make_golden_tokenizer.py`).

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::fs;
use std::path::PathBuf;

use ironmill_text::{Kind, Tokenizer};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
struct Golden {
    /// Those of this file behind those of all.
    probes: Vec<String>,
    file: Value,
    ids: Vec<Vec<u32>>,
    framed: Vec<Vec<u32>>,
    /// Special tokens mean nothing.
    ordinary: Vec<Vec<u32>>,
    decoded: Vec<String>,
}

fn read(name: &str) -> Value {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/tokenizer").join(name);
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

fn golden(name: &str) -> (Vec<String>, Golden) {
    let golden: Golden = serde_json::from_value(read(&format!("{name}.imported.json"))).unwrap();
    let mut probes: Vec<String> = serde_json::from_value(read("texts.json")["probes"].clone()).unwrap();
    probes.extend(golden.probes.iter().cloned());
    (probes, golden)
}

fn streamed(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    let mut decoder = tokenizer.decoder();
    let text: String = ids.iter().map(|&id| decoder.push(id).unwrap().to_owned()).collect();
    text + &decoder.finish()
}

#[track_caller]
fn check(name: &str, kind: Kind) {
    let (probes, golden) = golden(name);
    let tokenizer = Tokenizer::from_json(&golden.file.to_string()).unwrap();
    let written = Tokenizer::from_json(&tokenizer.to_json()).unwrap();
    assert_eq!(written.to_json(), tokenizer.to_json());
    assert_eq!(tokenizer.kind(), kind);
    assert_eq!(probes.len(), golden.ids.len());
    for tokenizer in [&tokenizer, &written] {
        for (idx, probe) in probes.iter().enumerate() {
            let (mut ids, mut framed, mut ordinary) = (Vec::new(), Vec::new(), Vec::new());
            tokenizer.encode_with_special(probe.as_bytes(), &mut ids).unwrap();
            tokenizer.encode_framed(probe.as_bytes(), &mut framed).unwrap();
            tokenizer.encode(probe.as_bytes(), &mut ordinary).unwrap();
            assert_eq!(ids, golden.ids[idx], "{name}: {probe:?}");
            assert_eq!(framed, golden.framed[idx], "{name}: {probe:?}");
            assert_eq!(ordinary, golden.ordinary[idx], "{name}: {probe:?}");
            let decoded = String::from_utf8(tokenizer.decode(&ids).unwrap()).unwrap();
            assert_eq!(decoded, golden.decoded[idx], "{name}: {probe:?}");
            assert_eq!(streamed(tokenizer, &ids), decoded);
            let mut narrow = Vec::new();
            tokenizer.encode_text_u16(probe, &mut narrow).unwrap();
            assert!(narrow.into_iter().map(u32::from).eq(ordinary));
        }
    }
}

#[test]
fn a_vocabulary_like_llama_2_has_their_ids_and_texts() {
    check("llama2", Kind::SentencePiece);
}

#[test]
fn a_vocabulary_like_gemma_has_their_ids_and_texts() {
    check("gemma", Kind::SentencePiece);
}

#[test]
fn a_vocabulary_with_metaspace_has_their_ids_and_texts() {
    check("metaspace", Kind::SentencePiece);
}

#[test]
fn a_vocabulary_without_bytes_has_their_ids_and_texts() {
    check("unknown", Kind::SentencePiece);
}

#[test]
fn a_vocabulary_like_bert_has_their_ids_and_texts() {
    check("bert", Kind::WordPiece);
}

#[test]
fn a_vocabulary_like_cased_bert_has_their_ids_and_texts() {
    check("bert-cased", Kind::WordPiece);
}

#[test]
fn any_bytes_come_back_from_a_vocabulary_with_bytes() {
    let (_, golden) = golden("gemma");
    let tokenizer = Tokenizer::from_json(&golden.file.to_string()).unwrap();
    let mut state = 1u64;
    for n_bytes in 0..400 {
        let bytes: Vec<u8> = (0..n_bytes)
            .map(|_| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (state >> 40) as u8
            })
            .collect();
        let mut ids = Vec::new();
        tokenizer.encode(&bytes, &mut ids).unwrap();
        assert_eq!(tokenizer.decode(&ids).unwrap(), bytes);
    }
    for invalid in [&b"the\xff mill"[..], b"\xe2\x96", b"\xe2\x96\x81"] {
        let mut ids = Vec::new();
        tokenizer.encode(invalid, &mut ids).unwrap();
        assert_eq!(
            tokenizer.decode(&ids).unwrap(),
            invalid.strip_suffix("▁".as_bytes()).map_or(invalid, |_| b" ")
        );
    }
}

#[test]
fn a_text_without_a_place_to_cut_takes_no_quadratic_time() {
    let (_, golden) = golden("llama2");
    let tokenizer = Tokenizer::from_json(&golden.file.to_string()).unwrap();
    for unit in ["a", "the", "\u{1f408}", " ", "ha"] {
        let text = unit.repeat(2_000_000 / unit.len());
        let mut ids = Vec::new();
        tokenizer.encode(text.as_bytes(), &mut ids).unwrap();
        assert_eq!(tokenizer.decode(&ids).unwrap(), text.as_bytes());
    }
}

#[test]
fn tokens_that_continue_a_text_keep_their_space() {
    let (_, golden) = golden("llama2");
    let tokenizer = Tokenizer::from_json(&golden.file.to_string()).unwrap();
    let mut ids = Vec::new();
    tokenizer.encode(b"the", &mut ids).unwrap();
    let (mut whole, mut continuing) = (tokenizer.decoder(), tokenizer.continuing_decoder());
    assert_eq!((whole.push(ids[0]).unwrap(), continuing.push(ids[0]).unwrap()), ("the", " the"));
    assert_eq!((whole.push(ids[0]).unwrap(), continuing.push(ids[0]).unwrap()), (" the", " the"));
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    for (name, place, value, expected) in [
        ("llama2", "/normalizer", json!({"type": "NFKC"}), "NFKC"),
        ("llama2", "/normalizer/normalizers/0/prepend", json!("_"), "Prepend"),
        ("llama2", "/pre_tokenizer", json!({"type": "Whitespace"}), "Whitespace"),
        ("llama2", "/decoder", json!({"type": "Metaspace"}), "Metaspace"),
        ("llama2", "/decoder", json!(null), "decoder"),
        ("llama2", "/post_processor", json!({"type": "Other"}), "Other"),
        ("llama2", "/model/type", json!("Unigram"), "Unigram"),
        ("llama2", "/model/vocab", json!([["a", -1.5]]), "unused"),
        ("llama2", "/model/unk_token", json!("<none>"), "<none>"),
        ("llama2", "/model/merges/0", json!(["<0x41>", "<0x42>"]), "merge"),
        ("llama2", "/model/vocab/<0x41>", json!(null), "null"),
        ("metaspace", "/pre_tokenizer/replacement", json!("_"), "replacement"),
        ("bert", "/normalizer", json!({"type": "Lowercase"}), "Lowercase"),
        ("bert", "/pre_tokenizer", json!({"type": "Whitespace"}), "Whitespace"),
        ("bert", "/decoder", json!({"type": "BPEDecoder"}), "BPEDecoder"),
        ("bert", "/model/unk_token", json!("[NONE]"), "[NONE]"),
        ("bert", "/model/continuing_subword_prefix", json!(""), "prefix"),
        ("bert", "/model/type", json!("WordLevel"), "WordLevel"),
    ] {
        let mut file = golden(name).1.file;
        *file.pointer_mut(place).unwrap() = value;
        let error = Tokenizer::from_json(&file.to_string()).unwrap_err().to_string();
        assert!(error.contains(expected), "{place}: {error}");
    }
}
