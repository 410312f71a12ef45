//! Vocabularies as GGUF files hold them.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use ironmill_text::{BpeOptions, GgufVocabulary, Kind, Pattern, PieceCounts, Silent, Tokenizer, train_bpe};
use serde_json::Value;

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const BYTE: i32 = 6;

/// Scores fall with the place in the list, as SentencePiece writes them.
fn llama() -> GgufVocabulary {
    let mut tokens =
        vec![("<unk>".to_owned(), UNKNOWN), ("<s>".to_owned(), CONTROL), ("</s>".to_owned(), CONTROL)];
    tokens.extend((0..=255).map(|byte| (format!("<0x{byte:02X}>"), BYTE)));
    for token in ["he", "▁t", "▁the", "at", "▁c", "▁cat", "th", "the", "▁", "t", "h", "e", "c", "a", "<b>"]
    {
        tokens.push((token.to_owned(), if token == "<b>" { USER_DEFINED } else { NORMAL }));
    }
    GgufVocabulary {
        model: "llama".to_owned(),
        scores: (0..tokens.len()).map(|idx| -(idx as f32)).collect(),
        token_types: tokens.iter().map(|&(_, kind)| kind).collect(),
        tokens: tokens.into_iter().map(|(token, _)| token).collect(),
        bos_token_id: Some(1),
        eos_token_id: Some(2),
        unknown_token_id: Some(0),
        ..GgufVocabulary::default()
    }
}

fn texts(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<String> {
    let text = |&id: &u32| String::from_utf8_lossy(tokenizer.token_bytes(id).unwrap()).into_owned();
    ids.iter().map(text).collect()
}

#[test]
fn scores_are_an_order_of_merges() {
    let tokenizer = Tokenizer::from_gguf(&llama()).unwrap();
    assert_eq!((tokenizer.kind(), tokenizer.vocab_size()), (Kind::SentencePiece, 274));
    assert_eq!((tokenizer.around(), tokenizer.end_of_text()), ((&[1][..], &[][..]), Some(2)));
    for (text, expected) in [
        ("the cat", &[" the", " cat"][..]),
        ("that", &[" t", "h", "at"]),
        ("cathe<b>the</s>", &[" cat", "he", "<b>", " the", "<", "/", "s", ">"]),
        ("", &[]),
    ] {
        let mut ids = Vec::new();
        tokenizer.encode(text.as_bytes(), &mut ids).unwrap();
        assert_eq!(texts(&tokenizer, &ids), expected, "{text:?}");
        let again = Tokenizer::from_json(&tokenizer.to_json()).unwrap();
        assert_eq!(again.hash(), tokenizer.hash());
        let mut repeated = Vec::new();
        again.encode(text.as_bytes(), &mut repeated).unwrap();
        assert_eq!(repeated, ids);
    }
    let mut ids = Vec::new();
    tokenizer.encode_framed("the\u{e9}\u{2581}t</s>".as_bytes(), &mut ids).unwrap();
    assert_eq!(ids[..4], [1, 261, 3 + 0xc3, 3 + 0xa9]);
    assert_eq!(tokenizer.decode(&ids[1..]).unwrap(), "the\u{e9} t</s>".as_bytes());
}

#[test]
fn a_space_before_text_is_left_out_by_request() {
    let vocabulary = GgufVocabulary { add_space_prefix: Some(false), ..llama() };
    let tokenizer = Tokenizer::from_gguf(&vocabulary).unwrap();
    let mut ids = Vec::new();
    tokenizer.encode(b"the the", &mut ids).unwrap();
    assert_eq!(texts(&tokenizer, &ids), ["the", " the"]);
    assert_eq!(tokenizer.decode(&ids[1..]).unwrap(), b" the");
}

#[test]
fn byte_level_vocabularies_are_those_of_their_file() {
    let special = vec!["<|endoftext|>".to_owned()];
    let mut counts = PieceCounts::new(&Pattern::Gpt2, &special).unwrap();
    counts.add_document("the cat sat on the mat, the café sat".as_bytes()).unwrap();
    let (trained, _) = train_bpe(&counts, &BpeOptions { special, ..BpeOptions::new(270) }, &Silent).unwrap();
    let file: Value = serde_json::from_str(&trained.to_json()).unwrap();
    let names = file["model"]["vocab"].as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let merges = file["model"]["merges"].as_array().unwrap();
    let vocabulary = GgufVocabulary {
        model: "gpt2".to_owned(),
        pre: Some("gpt-2".to_owned()),
        token_types: names.iter().map(|name| if name.starts_with("<|") { CONTROL } else { NORMAL }).collect(),
        tokens: names,
        merges: merges.iter().map(|merge| merge.as_str().unwrap().to_owned()).collect(),
        ..GgufVocabulary::default()
    };
    assert_eq!(Tokenizer::from_gguf(&vocabulary).unwrap().hash(), trained.hash());

    let digits = GgufVocabulary { pre: Some("smollm".to_owned()), ..vocabulary.clone() };
    let digits = Tokenizer::from_gguf(&digits).unwrap();
    let mut ids = Vec::new();
    digits.encode(b"the  12 cat", &mut ids).unwrap();
    assert_eq!(texts(&digits, &ids)[1..], [" ", " ", "1", "2", " c", "at"].map(str::to_owned)[..]);
    for (changed, expected) in [
        (GgufVocabulary { pre: Some("other".to_owned()), ..vocabulary.clone() }, "other"),
        (GgufVocabulary { pre: None, ..vocabulary.clone() }, "cut"),
        (GgufVocabulary { model: "t5".to_owned(), ..vocabulary.clone() }, "t5"),
        (GgufVocabulary { token_types: vec![1], ..vocabulary.clone() }, "token_type"),
        (GgufVocabulary { merges: vec!["a  b".to_owned()], ..vocabulary.clone() }, "a  b"),
        (GgufVocabulary { add_eos_token: Some(true), eos_token_id: Some(999), ..vocabulary }, "999"),
        (GgufVocabulary { tokens: vec!["a".to_owned(); 274], ..llama() }, "both"),
    ] {
        let error = Tokenizer::from_gguf(&changed).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
