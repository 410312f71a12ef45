//! Reading and writing tokenizer files: what is accepted, and what is refused by name.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use ironmill_text::{
    BpeOptions, Error, Kind, Pattern, PieceCounts, RankFileSettings, Silent, Tokenizer, train_bpe,
};
use serde_json::{Value, json};

fn tokenizer() -> Tokenizer {
    let special = vec!["<|endoftext|>".to_owned()];
    let mut counts = PieceCounts::new(&Pattern::Gpt2, &special).unwrap();
    counts.add_document(b"the cat sat on the mat").unwrap();
    train_bpe(&counts, &BpeOptions { special, ..BpeOptions::new(262) }, &Silent).unwrap().0
}

fn file() -> Value {
    serde_json::from_str(&tokenizer().to_json()).unwrap()
}

fn encoded(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    let mut ids = Vec::new();
    tokenizer.encode(text.as_bytes(), &mut ids).unwrap();
    ids
}

#[track_caller]
fn check_refused(file: &Value, expected: &str) {
    let error = Tokenizer::from_json(&file.to_string()).unwrap_err().to_string();
    assert!(error.contains(expected), "{expected:?} is not in: {error}");
}

/// The file with one place changed; the place is a JSON pointer whose last step may be new.
fn changed(place: &str, value: Value) -> Value {
    let mut file = file();
    let (parent, key) = place.rsplit_once('/').unwrap();
    file.pointer_mut(parent).unwrap()[key] = value;
    file
}

#[test]
fn a_tokenizer_can_be_shared_between_threads() {
    fn shared<T: Send + Sync + Clone>(_: &T) {}
    shared(&tokenizer());
}

#[test]
fn the_default_answers_are_right() {
    let tokenizer = tokenizer();
    assert_eq!(tokenizer.kind(), Kind::Bpe);
    assert_eq!(tokenizer.vocab_size(), 262);
    assert_eq!(tokenizer.end_of_text(), Some(0));
    assert_eq!(tokenizer.special_tokens(), [("<|endoftext|>".to_owned(), 0)]);
    assert_eq!(tokenizer.token_bytes(0), Some(&b"<|endoftext|>"[..]));
    assert_eq!(tokenizer.token_bytes(262), None);
    assert_eq!(tokenizer.max_token_bytes(), 13);
    assert!(matches!(tokenizer.decode(&[262]), Err(Error::UnknownId { id: 262, vocab_size: 262 })));
    assert!(tokenizer.decoder().push(262).is_err());
}

#[test]
fn a_saved_file_loads_and_a_missing_or_broken_one_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    tokenizer().save(&path).unwrap();
    assert_eq!(Tokenizer::load(&path).unwrap().hash(), tokenizer().hash());
    std::fs::write(&path, "{}").unwrap();
    for (path, expected) in [(path, "not a tokenizer"), (folder.path().join("none.json"), "cannot read")] {
        let error = Tokenizer::load(&path).unwrap_err().to_string();
        assert!(error.contains(&path.display().to_string()) && error.contains(expected), "{error}");
    }
    let error = tokenizer().save(&folder.path().join("no/folder/t.json")).unwrap_err();
    assert!(matches!(error, Error::Write { .. }));
}

#[test]
fn variations_that_do_not_change_ids_are_read() {
    let merges: Vec<Value> = file()["model"]["merges"]
        .as_array()
        .unwrap()
        .iter()
        .map(|merge| json!(merge.as_str().unwrap().split(' ').collect::<Vec<_>>()))
        .collect();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false});
    for file in [
        changed("/model/merges", json!(merges)),
        changed("/model/continuing_subword_prefix", json!("")),
        changed("/model/dropout", json!(0.0)),
        changed("/post_processor", byte_level.clone()),
        changed("/decoder", byte_level),
        changed(
            "/pre_tokenizer",
            json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true}),
        ),
        changed("/added_tokens/0/normalized", json!(true)),
        // Lengths of somebody's batches are no part of the vocabulary.
        changed("/truncation", json!({"max_length": 5})),
        changed("/padding", json!({"strategy": "BatchLongest"})),
    ] {
        let read = Tokenizer::from_json(&file.to_string()).unwrap();
        assert_eq!(read.to_json(), tokenizer().to_json());
    }
}

#[test]
fn special_tokens_beyond_the_vocabulary_are_read() {
    let added = json!([{"id": 262, "content": "<|x|>", "special": true}]);
    let mut file = changed("/added_tokens", added);
    file["model"]["vocab"].as_object_mut().unwrap().shift_remove("<|endoftext|>");
    let tokenizer = Tokenizer::from_json(&file.to_string()).unwrap();
    assert_eq!((tokenizer.vocab_size(), tokenizer.special_id("<|x|>")), (263, Some(262)));
    assert_eq!(tokenizer.token_bytes(0), None);
    assert_eq!(Tokenizer::from_json(&tokenizer.to_json()).unwrap().hash(), tokenizer.hash());
}

#[test]
fn with_ignore_merges_a_piece_that_is_a_token_is_taken_whole() {
    let mut file = changed("/model/ignore_merges", json!(true));
    file["model"]["vocab"]["sat"] = json!(262);
    let tokenizer = Tokenizer::from_json(&file.to_string()).unwrap();
    assert_eq!(encoded(&tokenizer, "sat"), [262]);
    assert_ne!(encoded(&tokenizer, "sats")[0], 262);
    assert_eq!(Tokenizer::from_json(&tokenizer.to_json()).unwrap().hash(), tokenizer.hash());
}

#[test]
fn added_tokens_that_are_not_special_are_found_in_text_too() {
    let read = Tokenizer::from_json(&changed("/added_tokens/0/special", json!(false)).to_string()).unwrap();
    assert_eq!(encoded(&read, "the<|endoftext|>"), [259, 0]);
    let mut narrow = Vec::new();
    read.encode_text_u16("the<|endoftext|>", &mut narrow).unwrap();
    assert_eq!(narrow, [259, 0]);
    assert!(encoded(&tokenizer(), "the<|endoftext|>").len() > 2);
    assert_eq!(Tokenizer::from_json(&read.to_json()).unwrap().hash(), read.hash());
}

#[test]
fn added_tokens_take_white_space_or_stand_alone_as_their_rules_say() {
    let with_special = |file: &Value, text: &str| {
        let tokenizer = Tokenizer::from_json(&file.to_string()).unwrap();
        assert_eq!(Tokenizer::from_json(&tokenizer.to_json()).unwrap().hash(), tokenizer.hash());
        let mut ids = Vec::new();
        tokenizer.encode_with_special(text.as_bytes(), &mut ids).unwrap();
        ids
    };
    let strips = changed("/added_tokens/0/lstrip", json!(true));
    assert_eq!(with_special(&strips, "the \n<|endoftext|>the"), [259, 0, 259]);
    let strips = changed("/added_tokens/0/rstrip", json!(true));
    assert_eq!(with_special(&strips, "the<|endoftext|>\t the"), [259, 0, 259]);
    let word = changed("/added_tokens/0/single_word", json!(true));
    assert_eq!(with_special(&word, "<|endoftext|>,<|endoftext|>")[0], 0);
    assert_ne!(with_special(&word, "<|endoftext|>the")[0], 0);
}

#[test]
fn what_stands_around_a_text_is_there_when_asked_for() {
    let template = json!({
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [],
        "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}},
    });
    let read = Tokenizer::from_json(&changed("/post_processor", template.clone()).to_string()).unwrap();
    assert_eq!(read.around(), (&[0][..], &[][..]));
    assert_eq!(encoded(&read, "the"), [259]);
    let mut ids = Vec::new();
    read.encode_framed(b"the", &mut ids).unwrap();
    assert_eq!(ids, [0, 259]);
    let again: Value = serde_json::from_str(&read.to_json()).unwrap();
    assert_eq!(again["post_processor"], template);
}

#[test]
fn with_nfc_text_is_composed_first_and_special_tokens_are_found_before_that() {
    let file = changed("/normalizer", json!({"type": "NFC"}));
    let composing = Tokenizer::from_json(&file.to_string()).unwrap();
    let text = "sate\u{301} e\u{301}<|endoftext|>\u{301}";
    let mut ids = Vec::new();
    composing.encode_with_special(text.as_bytes(), &mut ids).unwrap();
    let expected = "sat\u{e9} \u{e9}<|endoftext|>\u{301}";
    assert_eq!(composing.decode(&ids).unwrap(), expected.as_bytes());
    assert_eq!(Tokenizer::from_json(&composing.to_json()).unwrap().hash(), composing.hash());
    assert_ne!(composing.hash(), tokenizer().hash());
    let mut file = file;
    file["added_tokens"][0]["normalized"] = json!(true);
    let composing = Tokenizer::from_json(&file.to_string()).unwrap();
    let mut again = Vec::new();
    composing.encode_with_special(text.as_bytes(), &mut again).unwrap();
    assert_eq!(again, ids);
}

#[test]
fn vocab_and_merges_files_are_the_same_tokenizer() {
    let file: Value = serde_json::from_str(&tokenizer().to_json()).unwrap();
    let merges = file["model"]["merges"].as_array().unwrap();
    let lines: Vec<&str> = merges.iter().map(|merge| merge.as_str().unwrap()).collect();
    let merges = format!("#version: 0.2\n{}\n", lines.join("\n"));
    let vocab = file["model"]["vocab"].to_string();
    let special = vec!["<|endoftext|>".to_owned()];
    let read = Tokenizer::from_vocab_and_merges(&vocab, &merges, &Pattern::Gpt2, &special).unwrap();
    assert_eq!(read.to_json(), tokenizer().to_json());
    let missing = vec!["<|other|>".to_owned()];
    let error = Tokenizer::from_vocab_and_merges(&vocab, &merges, &Pattern::Gpt2, &missing).unwrap_err();
    assert!(error.to_string().contains("<|other|>"), "{error}");
}

#[test]
fn a_trained_tokenizer_is_the_same_as_a_rank_file() {
    let ours = tokenizer();
    let settings = RankFileSettings { pattern: Pattern::Gpt2, special: ours.special_tokens().to_vec() };
    let ranks = ours.to_ranks().unwrap();
    let read = Tokenizer::from_ranks(ranks.as_bytes(), Some(&settings)).unwrap();
    assert_eq!(read.to_ranks().unwrap(), ranks);
    for text in ["the cat sat on the mat", "thethe\u{301} ca", "sat\n\n  sat", ""] {
        assert_eq!(encoded(&read, text), encoded(&ours, text));
    }
    let error = Tokenizer::byte(&[]).unwrap().to_ranks().unwrap_err();
    assert!(error.to_string().contains("byte"), "{error}");
}

#[test]
fn unsupported_features_are_refused_by_name() {
    for (place, value, expected) in [
        ("/normalizer", json!({"type": "NFKC"}), "NFKC"),
        ("/pre_tokenizer", json!({"type": "Metaspace"}), "Metaspace"),
        ("/pre_tokenizer", json!(null), "pre_tokenizer"),
        ("/pre_tokenizer/add_prefix_space", json!(true), "add_prefix_space"),
        ("/pre_tokenizer/use_regex", json!(false), "use_regex"),
        ("/post_processor", json!({"type": "TemplateProcessing"}), "TemplateProcessing"),
        ("/decoder", json!({"type": "WordPiece"}), "WordPiece"),
        ("/model/type", json!("Unigram"), "Unigram"),
        ("/model/dropout", json!(0.1), "dropout"),
        ("/model/unk_token", json!("<unk>"), "unknown token"),
        ("/model/end_of_word_suffix", json!("</w>"), "end-of-word"),
        ("/model/continuing_subword_prefix", json!("##"), "prefix"),
        ("/model/byte_fallback", json!(true), "byte fallback"),
        ("/model/new_feature", json!(1), "new_feature"),
        ("/new_part", json!(1), "new_part"),
        ("/model/vocab/▁the", json!(262), "▁the"),
    ] {
        check_refused(&changed(place, value), expected);
    }
}

#[test]
fn split_behaviours_other_than_isolated_are_refused() {
    let sequence = |behavior: &str, invert: bool| {
        changed(
            "/pre_tokenizer",
            json!({"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": r"\s+"}, "behavior": behavior, "invert": invert},
                {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
            ]}),
        )
    };
    assert!(Tokenizer::from_json(&sequence("Isolated", false).to_string()).is_ok());
    check_refused(&sequence("Removed", false), "Removed");
    check_refused(&sequence("Isolated", true), "invert");
}

#[test]
fn contradictions_are_refused() {
    let high = json!([{"id": 4_294_967_295u32, "content": "<|y|>", "special": true}]);
    let first_merge = &file()["model"]["merges"][0];
    for (place, value, expected) in [
        ("/model/vocab/xy", json!(5), "of another token"),
        ("/model/vocab/xy", json!(4_000_000_000u32), "unused"),
        ("/model/vocab/xy", json!(u64::MAX), "unused"),
        ("/model/vocab/xy", json!(-1), "invalid value"),
        ("/model/vocab/<|endoftext|>", json!(262), "has the ids"),
        ("/added_tokens", high, "unused"),
        ("/added_tokens/0/id", json!(7), "has the ids"),
        ("/added_tokens/0/content", json!(""), "empty"),
        ("/model/vocab/", json!(262), "empty"),
        ("/model/merges", json!(["a b c"]), "two tokens"),
        ("/model/merges", json!(["ab"]), "two tokens"),
        ("/model/merges", json!(["a zz"]), "\"zz\""),
        ("/model/merges", json!([["a", "b"]]), "no token"),
        ("/model/merges", json!([first_merge, first_merge]), "twice"),
        ("/model/merges", json!([["a", "b", "c"]]), "did not match"),
        ("/model/merges", json!(["a <|endoftext|>"]), "special"),
    ] {
        check_refused(&changed(place, value), expected);
    }
}

/// As the makers of such vocabularies do: SmolLM2's has no token for 21 bytes.
#[test]
fn bytes_that_have_no_token_are_left_out() {
    let mut file = file();
    file["model"]["vocab"].as_object_mut().unwrap().shift_remove("!");
    let tokenizer = Tokenizer::from_json(&file.to_string()).unwrap();
    let mut ids = Vec::new();
    tokenizer.encode(b"a!b !", &mut ids).unwrap();
    assert_eq!(tokenizer.decode(&ids).unwrap(), b"ab ");
}

#[test]
fn a_token_that_occurs_twice_is_refused() {
    let json = tokenizer().to_json().replacen("\"!\": 1,", "\"!\": 1, \"!\": 262,", 1);
    let error = Tokenizer::from_json(&json).unwrap_err().to_string();
    assert!(error.contains("occurs twice"), "{error}");
}

#[test]
fn json_that_is_no_tokenizer_is_refused() {
    let deep = "[".repeat(100_000);
    for json in ["", "{", "[]", "null", "{}", "\u{0}", "{\"model\": {}}", &deep] {
        assert!(matches!(Tokenizer::from_json(json), Err(Error::Format(_))));
    }
}
