//! Encoding by other ways than one text on one thread: the tokens must not know.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use ironmill_text::{
    BpeOptions, FrequentPieces, Pattern, PieceCounts, Silent, Tokenizer, WordOptions, train_bpe, train_word,
};

const SENTENCE: &str = "The café of 1984 didn't open; <|end|>we're   told \u{201c}no\u{201d}.\n\n  世界 again, a\u{301}nd\tagain ";

fn counts(pattern: &Pattern, special: &[String]) -> PieceCounts {
    let mut counts = PieceCounts::new(pattern, special).unwrap();
    counts.add_document(SENTENCE.repeat(3).as_bytes()).unwrap();
    counts
}

fn tokenizer(pattern: &Pattern) -> Tokenizer {
    let special = vec!["<|end|>".to_owned()];
    let counts = counts(pattern, &special);
    let options = BpeOptions { pattern: pattern.clone(), special, ..BpeOptions::new(300) };
    train_bpe(&counts, &options, &Silent).unwrap().0
}

fn patterns() -> Vec<Pattern> {
    let named = Pattern::NAMES.iter().map(|name| name.parse().unwrap());
    named.chain([Pattern::Regex(r"\w+|\W".to_owned())]).collect()
}

#[test]
fn threads_change_nothing() {
    for pattern in patterns() {
        let tokenizer = tokenizer(&pattern);
        let text = SENTENCE.repeat(1_200_000 / SENTENCE.len());
        let broken = [text.as_bytes(), b"\xff", text.as_bytes()].concat();
        let unbroken = "a".repeat(1_200_000);
        for text in [text.as_bytes(), &broken, unbroken.as_bytes(), b"", b"x"] {
            for with_special in [false, true] {
                let mut expected = Vec::new();
                if with_special {
                    tokenizer.encode_with_special(text, &mut expected).unwrap();
                } else {
                    tokenizer.encode(text, &mut expected).unwrap();
                }
                for threads in [0, 3] {
                    let mut found = vec![7];
                    tokenizer.encode_parallel(text, with_special, threads, &mut found).unwrap();
                    assert!(found[1..] == expected, "{pattern}, {threads} threads");
                }
                assert!(with_special || tokenizer.decode(&expected).unwrap() == text);
            }
        }
    }
}

#[test]
fn a_batch_is_its_texts_and_the_first_error_is_the_error() {
    let ours = tokenizer(&Pattern::Gpt2);
    let texts: Vec<String> =
        (0..500).map(|number| SENTENCE.repeat(number % 7) + &number.to_string()).collect();
    let expected: Vec<Vec<u32>> = texts
        .iter()
        .map(|text| {
            let mut ids = Vec::new();
            ours.encode(text.as_bytes(), &mut ids).unwrap();
            ids
        })
        .collect();
    for threads in [1, 2, 5] {
        assert_eq!(ours.encode_batch(&texts, threads).unwrap(), expected);
    }
    let words = train_word(&counts(&Pattern::Gpt2, &[]), &WordOptions::default()).unwrap().0;
    let error = words.encode_batch(&["The", " first", " second"], 3).unwrap_err();
    assert!(error.to_string().contains("first"), "{error}");
}

#[test]
fn ids_of_text_are_those_of_its_bytes_and_narrow_ones_the_same() {
    let unscanned = Pattern::Regex(r"\s?\w+|\W+".into());
    for tokenizer in [&Pattern::Cl100k, &unscanned].map(tokenizer).into_iter().chain(Tokenizer::byte(&[])) {
        let (mut ids, mut of_text, mut narrow) = (Vec::new(), Vec::new(), Vec::new());
        tokenizer.encode(SENTENCE.as_bytes(), &mut ids).unwrap();
        tokenizer.encode_text(SENTENCE, &mut of_text).unwrap();
        tokenizer.encode_text_u16(SENTENCE, &mut narrow).unwrap();
        assert_eq!(of_text, ids);
        assert!(narrow.into_iter().map(u32::from).eq(ids));
    }
}

#[test]
fn pieces_beside_the_tokenizer_are_used_and_change_no_token() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    let ours = tokenizer(&Pattern::Gpt2);
    ours.save(&path).unwrap();
    let frequent = FrequentPieces::of(&&counts(&Pattern::Gpt2, &[]), 20).unwrap();
    assert_eq!(frequent.len(), 20);
    let beside = FrequentPieces::path_beside(&path);
    frequent.save(&beside).unwrap();
    assert_eq!(FrequentPieces::load(&beside).unwrap(), frequent);
    let loaded = Tokenizer::load(&path).unwrap();
    let (mut plain, mut expecting) = (Vec::new(), Vec::new());
    ours.encode(SENTENCE.as_bytes(), &mut plain).unwrap();
    loaded.encode(SENTENCE.as_bytes(), &mut expecting).unwrap();
    assert_eq!(plain, expecting);
    assert_eq!(loaded.hash(), ours.hash());
    std::fs::write(&beside, b"IMPIECES broken").unwrap();
    let error = Tokenizer::load(&path).unwrap_err();
    assert!(error.to_string().contains("tokenizer.json.pieces"), "{error}");
}
