//! The char, word and byte kinds: laws on any text, limits, unknown items, and their own files.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::collections::BTreeMap;

use ironmill_text::{
    CharCounts, CharOptions, Encoded, Error, Kind, Pattern, PieceCounts, Sample, Tokenizer, UNKNOWN,
    VocabularyReport, WordOptions, train_char, train_word,
};
use proptest::prelude::*;

mod drawn;

use drawn::{any_document, any_pattern, few_letters, holds};

fn owned(special: &[&str]) -> Vec<String> {
    special.iter().map(|&text| text.to_owned()).collect()
}

fn count_words(pattern: &Pattern, special: &[String], documents: &[Vec<u8>]) -> PieceCounts {
    let mut counts = PieceCounts::new(pattern, special).unwrap();
    documents.iter().for_each(|document| counts.add_document(document).unwrap());
    counts
}

fn count_chars(special: &[String], documents: &[String]) -> CharCounts {
    let mut counts = CharCounts::new(special).unwrap();
    documents.iter().for_each(|document| counts.add_document(document.as_bytes()).unwrap());
    counts
}

fn words(text: &str, options: &WordOptions) -> (Tokenizer, VocabularyReport) {
    let counts = count_words(&options.pattern, &options.special, &[text.as_bytes().to_vec()]);
    train_word(&counts, options).unwrap()
}

fn encoded(tokenizer: &Tokenizer, text: &[u8]) -> Vec<u32> {
    let mut ids = Vec::new();
    tokenizer.encode(text, &mut ids).unwrap();
    ids
}

#[test]
fn known_text_decodes_to_itself_in_every_kind() {
    let documents = prop::collection::vec(any_document(), 1..5);
    holds(100, (documents, any_pattern()), |(documents, pattern)| {
        let special = owned(&["<|end|>"]);
        let counts = count_words(&pattern, &special, &documents);
        prop_assume!(counts.total() > 0);
        let options = WordOptions { pattern, special: special.clone(), ..WordOptions::default() };
        let (words, report) = train_word(&counts, &options).unwrap();
        prop_assert_eq!((report.dropped, report.dropped_total), (0, 0));
        let bytes = Tokenizer::byte(&special).unwrap();
        for document in &documents {
            for tokenizer in [&words, &bytes] {
                let mut ids = Vec::new();
                tokenizer.encode_with_special(document, &mut ids).unwrap();
                prop_assert_eq!(&tokenizer.decode(&ids).unwrap(), document);
                prop_assert!(ids.iter().all(|&id| tokenizer.token_bytes(id).is_some()));
            }
            prop_assert_eq!(bytes.decode(&encoded(&bytes, document)).unwrap(), document.clone());
        }

        let texts: Vec<String> =
            documents.iter().map(|document| String::from_utf8_lossy(document).into_owned()).collect();
        let options = CharOptions { special: special.clone(), ..CharOptions::default() };
        // Texts of special tokens alone have no characters to learn.
        if let Ok((chars, _)) = train_char(&count_chars(&special, &texts), &options) {
            for text in &texts {
                let mut ids = Vec::new();
                chars.encode_with_special(text.as_bytes(), &mut ids).unwrap();
                prop_assert_eq!(chars.decode(&ids).unwrap(), text.as_bytes());
            }
        }
        Ok(())
    });
}

#[test]
fn any_split_of_the_documents_gives_the_same_vocabulary_and_report() {
    let documents = prop::collection::vec((any_document(), 0usize..3), 1..12);
    let limits = (prop::option::of(2usize..12), 0u64..3);
    holds(80, (documents, any_pattern(), limits), |(documents, pattern, (vocab_size, min_count))| {
        let special = owned(&["<|end|>"]);
        let all: Vec<Vec<u8>> = documents.iter().map(|(document, _)| document.clone()).collect();
        let whole = count_words(&pattern, &special, &all);
        let mut merged = PieceCounts::new(&pattern, &special).unwrap();
        let mut merged_chars = CharCounts::new(&special).unwrap();
        for task in [2, 0, 1] {
            let share: Vec<Vec<u8>> =
                documents.iter().rev().filter(|(_, of)| *of == task).map(|(text, _)| text.clone()).collect();
            merged.merge(count_words(&pattern, &special, &share)).unwrap();
            merged_chars.merge(count_chars(&special, &lossy(&share))).unwrap();
        }
        let options = WordOptions { vocab_size, min_count, pattern, special: special.clone() };
        prop_assert_eq!(outcome(train_word(&whole, &options)), outcome(train_word(&merged, &options)));
        let options = CharOptions { vocab_size, min_count, special: special.clone() };
        let whole = count_chars(&special, &lossy(&all));
        prop_assert_eq!(outcome(train_char(&whole, &options)), outcome(train_char(&merged_chars, &options)));
        Ok(())
    });
}

fn lossy(documents: &[Vec<u8>]) -> Vec<String> {
    documents.iter().map(|document| String::from_utf8_lossy(document).into_owned()).collect()
}

fn outcome(trained: ironmill_text::Result<(Tokenizer, VocabularyReport)>) -> String {
    match trained {
        Ok((tokenizer, report)) => format!("{report:?} {}", tokenizer.to_json()),
        Err(error) => error.to_string(),
    }
}

/// The words that stay, by sorting everything: the textbook's way.
fn naive_words(counts: &PieceCounts, n_words: usize, min_count: u64) -> BTreeMap<Vec<u8>, u64> {
    let mut all: Vec<(u64, Vec<u8>)> =
        counts.sorted().into_iter().map(|(word, count)| (count, word.to_vec())).collect();
    all.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    all.into_iter().filter(|(count, _)| *count >= min_count).take(n_words).map(|(c, w)| (w, c)).collect()
}

#[test]
fn the_limits_keep_the_most_frequent_words_and_the_unknown_share_is_right() {
    let documents = prop::collection::vec(few_letters().prop_map(String::into_bytes), 1..6);
    holds(300, (documents, 1usize..15, 0u64..4), |(documents, n_words, min_count)| {
        let special = owned(&["<|end|>", UNKNOWN]);
        let counts = count_words(&Pattern::Gpt2, &special, &documents);
        let kept = naive_words(&counts, n_words, min_count);
        prop_assume!(!kept.is_empty());
        let vocab_size = Some(special.len() + n_words);
        let options = WordOptions { vocab_size, min_count, special, ..WordOptions::default() };
        let (tokenizer, report) = train_word(&counts, &options).unwrap();
        let found: Vec<&[u8]> =
            (2..tokenizer.vocab_size() as u32).map(|id| tokenizer.token_bytes(id).unwrap()).collect();
        prop_assert_eq!(found, kept.keys().map(Vec::as_slice).collect::<Vec<_>>());
        prop_assert_eq!(report.kept, kept.len() as u64);
        prop_assert_eq!(report.kept + report.dropped, counts.distinct());
        prop_assert_eq!(report.total, counts.total());
        prop_assert_eq!(report.dropped_total, counts.total() - kept.values().sum::<u64>());

        // Encoding the corpus meets exactly the words that were dropped.
        let (mut total, mut sample) = (Encoded::default(), Sample::default());
        for document in &documents {
            let mut ids = Vec::new();
            let encoded = tokenizer.encode_counting_unknown(document, &mut ids).unwrap();
            let unknown = ids.iter().filter(|&&id| Some(id) == tokenizer.unknown_id()).count();
            prop_assert_eq!(encoded, Encoded { tokens: ids.len() as u64, unknown: unknown as u64 });
            total.tokens += encoded.tokens;
            total.unknown += encoded.unknown;
            sample.add(Sample::of(&tokenizer, document).unwrap());
        }
        prop_assert_eq!(total.unknown_share(), report.dropped_share());
        prop_assert_eq!(sample.unknown_share(), report.dropped_share());
        Ok(())
    });
}

#[test]
fn words_own_their_spaces_and_are_numbered_by_bytes() {
    let options = WordOptions { special: owned(&["<|endoftext|>"]), ..WordOptions::default() };
    let (tokenizer, report) = words("the cat, the dog", &options);
    assert_eq!(report, VocabularyReport { kept: 5, dropped: 0, total: 5, dropped_total: 0 });
    assert_eq!((tokenizer.kind(), tokenizer.pattern()), (Kind::Word, Some(&Pattern::Gpt2)));
    let listed: Vec<_> = (0..6).map(|id| tokenizer.token_bytes(id).unwrap()).collect();
    assert_eq!(listed, [&b"<|endoftext|>"[..], b" cat", b" dog", b" the", b",", b"the"]);
    assert_eq!(encoded(&tokenizer, b"the dog cat"), [5, 2, 1]);
}

#[test]
fn an_unknown_word_is_an_error_that_names_it_and_its_place() {
    let options = WordOptions { special: owned(&["<x>"]), ..WordOptions::default() };
    let (tokenizer, _) = words("the cat", &options);
    let error = tokenizer.encode_with_special(b"the<x> cat dog", &mut Vec::new()).unwrap_err();
    assert!(matches!(&error, Error::UnknownWord { word, offset: 10 } if word == " dog"), "{error}");
    assert!(error.to_string().contains("\" dog\" at byte 10"), "{error}");
    let long = vec![b'z'; 1 << 20];
    assert!(tokenizer.encode(&long, &mut Vec::new()).unwrap_err().to_string().len() < 400);
    assert_eq!(tokenizer.unknown_id(), None);
}

#[test]
fn unknown_items_get_their_token_only_where_it_was_asked_for_and_are_counted() {
    let special = owned(&[UNKNOWN]);
    let (tokenizer, _) = words("the cat", &WordOptions { special: special.clone(), ..Default::default() });
    let mut ids = Vec::new();
    let text = b"the big cat<|unknown|> sat";
    let found = tokenizer.encode_with_special_counting_unknown(text, &mut ids).unwrap();
    assert_eq!(ids, [2, 0, 1, 0, 0]);
    assert_eq!(found, Encoded { tokens: 5, unknown: 2 });
    assert_eq!(found.unknown_share(), 0.4);
    assert_eq!(tokenizer.decode(&ids).unwrap(), b"the<|unknown|> cat<|unknown|><|unknown|>");

    let counts = count_chars(&special, &["ab".to_owned()]);
    let (chars, _) = train_char(&counts, &CharOptions { special, ..Default::default() }).unwrap();
    ids.clear();
    let found = chars.encode_counting_unknown("abж".as_bytes(), &mut ids).unwrap();
    assert_eq!((ids, found), (vec![1, 2, 0], Encoded { tokens: 3, unknown: 1 }));
    // Bytes that are no characters are not unknown characters.
    assert!(matches!(chars.encode(b"\xff", &mut Vec::new()), Err(Error::InvalidUtf8 { .. })));
}

#[test]
fn nothing_is_unknown_to_bytes_whatever_their_special_tokens() {
    let tokenizer = Tokenizer::byte(&owned(&[UNKNOWN])).unwrap();
    assert_eq!(tokenizer.unknown_id(), None);
    let found = tokenizer.encode_counting_unknown(b"\xff<|unknown|>", &mut Vec::new()).unwrap();
    assert_eq!(found, Encoded { tokens: 12, unknown: 0 });
}

#[test]
fn a_corpus_or_a_limit_that_leaves_no_words_is_an_error() {
    let train = |text: &str, options: WordOptions| {
        let counts = count_words(&Pattern::Gpt2, &options.special, &[text.as_bytes().to_vec()]);
        train_word(&counts, &options).unwrap_err()
    };
    assert!(matches!(train("", WordOptions::default()), Error::EmptyCorpus("words")));
    let options = WordOptions { min_count: 2, ..WordOptions::default() };
    assert!(matches!(train("a b", options), Error::EmptyCorpus(_)));
    let options = WordOptions { vocab_size: Some(1), special: owned(&["<x>"]), ..WordOptions::default() };
    assert!(matches!(train("a b", options), Error::VocabularyTooSmall { minimum: 2, .. }));
    let options = WordOptions { pattern: Pattern::O200k, ..WordOptions::default() };
    assert!(matches!(train("a b", options), Error::CountsDiffer { .. }));
}

#[test]
fn files_of_every_kind_read_back_unchanged() {
    let documents = prop::collection::vec(any_document(), 1..5);
    holds(80, (documents, any_pattern()), |(documents, pattern)| {
        let special = owned(&["<|end|>", UNKNOWN]);
        let counts = count_words(&pattern, &special, &documents);
        prop_assume!(counts.total() > 0);
        let options = WordOptions { pattern, special: special.clone(), ..WordOptions::default() };
        let (words, _) = train_word(&counts, &options).unwrap();
        let chars = count_chars(&special, &lossy(&documents));
        let options = CharOptions { special: special.clone(), ..CharOptions::default() };
        let chars = train_char(&chars, &options).unwrap().0;
        for (tokenizer, is_whole) in
            [(words, true), (chars, false), (Tokenizer::byte(&special).unwrap(), true)]
        {
            let reloaded = Tokenizer::from_json(&tokenizer.to_json()).unwrap();
            prop_assert_eq!(reloaded.to_json(), tokenizer.to_json());
            prop_assert_eq!(reloaded.kind(), tokenizer.kind());
            prop_assert_eq!(reloaded.pattern(), tokenizer.pattern());
            prop_assert_eq!(reloaded.special_tokens(), tokenizer.special_tokens());
            for document in documents.iter().filter(|_| is_whole) {
                prop_assert_eq!(encoded(&reloaded, document), encoded(&tokenizer, document));
            }
            for text in lossy(&documents) {
                let ids = |tokenizer| encoded(tokenizer, text.as_bytes());
                prop_assert_eq!(ids(&reloaded), ids(&tokenizer));
            }
        }
        Ok(())
    });
}

#[test]
fn a_regex_that_looks_like_a_name_reads_back_as_a_regex() {
    let options = WordOptions { pattern: Pattern::Regex("ab".to_owned()), ..WordOptions::default() };
    let (tokenizer, _) = words("xabab", &options);
    let reloaded = Tokenizer::from_json(&tokenizer.to_json()).unwrap();
    assert_eq!(reloaded.pattern(), Some(&options.pattern));
}

fn file(version: u32, kind: &str, rest: &str) -> String {
    format!(r#"{{"format": "ironmill-tokenizer", "version": {version}, "kind": "{kind}", {rest}}}"#)
}

#[track_caller]
fn check_refused(json: &str, expected: &str) {
    let error = Tokenizer::from_json(json).unwrap_err().to_string();
    assert!(error.contains(expected), "{expected:?} is not in: {error}");
}

#[test]
fn other_versions_and_kinds_are_refused() {
    check_refused(&file(2, "char", r#""x": 1"#), "version 2");
    check_refused(&file(0, "byte", r#""special": []"#), "version 0");
    check_refused(&file(1, "sentence", r#""x": 1"#), "\"sentence\"");
    check_refused(&file(1, "bpe", r#""x": 1"#), "\"bpe\"");
    check_refused(r#"{"format": "ironmill-tokenizer"}"#, "version");
    check_refused(r#"{"format": "ironmill-tokenizer", "version": -1, "kind": "byte"}"#, "-1");
}

#[test]
fn hostile_char_files_are_refused() {
    for (rest, expected) in [
        (r#""special": [], "characters": "ba""#, "ascending"),
        (r#""special": [], "characters": "aa""#, "ascending"),
        (r#""special": [], "characters": """#, "no characters"),
        (r#""special": ["x", "x"], "characters": "a""#, "given twice"),
        (r#""special": [""], "characters": "a""#, "empty"),
        (r#""special": [], "characters": "a", "unk": 1"#, "unk"),
        (r#""special": [], "characters": "a", "characters": "b""#, "duplicate"),
        (r#""characters": "a""#, "special"),
        (r#""special": []"#, "characters"),
        (r#""special": [], "characters": ["a"]"#, "string"),
    ] {
        check_refused(&file(1, "char", rest), expected);
    }
}

#[test]
fn hostile_word_files_are_refused() {
    let with = |pattern: &str, words: &str| {
        file(1, "word", &format!(r#""pattern": {pattern}, "special": ["<x>"], "words": {words}"#))
    };
    let gpt2 = r#"{"name": "gpt2"}"#;
    assert!(Tokenizer::from_json(&with(gpt2, r#"["a", "b", [255]]"#)).is_ok());
    let long = format!(r#"{{"regex": "{}"}}"#, "a|".repeat(10_000));
    for (json, expected) in [
        (with(gpt2, r#"["b", "a"]"#), "ascending"),
        (with(gpt2, r#"["a", "a"]"#), "ascending"),
        (with(gpt2, r#"["é", [195]]"#), "ascending"),
        (with(gpt2, "[]"), "no words"),
        (with(gpt2, r#"["", "a"]"#), "empty"),
        (with(gpt2, "[[]]"), "though it is text"),
        (with(gpt2, "[[97]]"), "though it is text"),
        (with(gpt2, "[[256]]"), "did not match"),
        (with(gpt2, "[1]"), "did not match"),
        (with(gpt2, r#"{"a": 0}"#), "sequence"),
        (with(r#""gpt2""#, r#"["a"]"#), "gpt2"),
        (with(r#"{"name": "gtp2"}"#, r#"["a"]"#), "did you mean gpt2"),
        (with(r#"{"regex": "("}"#, r#"["a"]"#), "does not compile"),
        (with(r#"{"regex": "\\w{5000}"}"#, r#"["a"]"#), "does not compile"),
        (with(&long, r#"["a"]"#), "4096 are the limit"),
        (with(r#"{"name": "gpt2", "regex": "a"}"#, r#"["a"]"#), ""),
        (with(r#"{"file": "/etc"}"#, r#"["a"]"#), "unknown variant"),
        (file(1, "word", r#""special": [], "words": ["a"]"#), "pattern"),
        (file(1, "word", r#""pattern": {"name": "gpt2"}, "special": [], "words": ["a"], "x": 1"#), "`x`"),
    ] {
        check_refused(&json, expected);
    }
}

#[test]
fn hostile_byte_files_are_refused() {
    for (rest, expected) in [
        (r#""special": ["x", "x"]"#, "given twice"),
        (r#""special": [""]"#, "empty"),
        (r#""special": "x""#, "sequence"),
        (r#""special": [], "bytes": []"#, "bytes"),
        (r#""special": [], "special": []"#, "duplicate"),
        (r#""kind": "byte", "special": []"#, "duplicate"),
    ] {
        check_refused(&file(1, "byte", rest), expected);
    }
}

#[test]
fn damaged_files_are_refused_or_read_but_never_panic() {
    let options = WordOptions { special: owned(&["<x>", UNKNOWN]), ..WordOptions::default() };
    let counts = count_words(&Pattern::Gpt2, &options.special, &[b"the cat \xff sat".to_vec()]);
    let json = train_word(&counts, &options).unwrap().0.to_json();
    let damage = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0usize..40), 1..4);
    holds(600, damage, |damage| {
        let mut bytes = json.clone().into_bytes();
        for (at, byte, n_removed) in damage {
            let at = at.index(bytes.len());
            let end = (at + n_removed).min(bytes.len());
            bytes.splice(at..end, [byte]);
        }
        if let Ok(tokenizer) = Tokenizer::from_json(&String::from_utf8_lossy(&bytes)) {
            let sample = Sample::of(&tokenizer, b"the cat <x> \xff").unwrap();
            prop_assert!(sample.unknown <= sample.tokens);
        }
        Ok(())
    });
}
