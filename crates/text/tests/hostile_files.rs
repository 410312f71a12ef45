//! Tokenizer files that somebody else wrote, or that broke on the way: every reader ends with a tokenizer or an error, soon and
//! in little memory.
//!
//! The short test runs always. The long one draws other files for as many seconds as are asked for, for every reader or for one:
//! `IRONMILL_HOSTILE_SECONDS=300 IRONMILL_HOSTILE_READER=wordpiece cargo test --release -p ironmill-text --test hostile_files -- \
//! --ignored --nocapture`.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::time::{Duration, Instant};

use ironmill_text::{
    BpeOptions, CharCounts, CharOptions, FrequentPieces, GgufVocabulary, Pattern, PieceCounts,
    RankFileSettings, Silent, Tokenizer, train_bpe, train_char,
};
use serde_json::{Value, json};

/// A generator of numbers that is the same everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % limit.max(1)
    }
}

fn trained() -> Tokenizer {
    let special = vec!["<|end|>".to_owned()];
    let mut counts = PieceCounts::new(&Pattern::Gpt2, &special).unwrap();
    counts.add_document("the cat sat on the mat, the café sat".as_bytes()).unwrap();
    train_bpe(&counts, &BpeOptions { special, ..BpeOptions::new(275) }, &Silent).unwrap().0
}

fn chars() -> Tokenizer {
    let mut counts = CharCounts::new(&[]).unwrap();
    counts.add_document("the café".as_bytes()).unwrap();
    train_char(&counts, &CharOptions::default()).unwrap().0
}

/// What reads a file, or what a file holds.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Reader {
    ByteLevel,
    Own,
    Ranks,
    Vocab,
    Merges,
    SentencePiece,
    Metaspace,
    WordPiece,
    Gguf,
}

const READERS: [(&str, Reader); 9] = [
    ("byte-level", Reader::ByteLevel),
    ("own", Reader::Own),
    ("ranks", Reader::Ranks),
    ("vocab", Reader::Vocab),
    ("merges", Reader::Merges),
    ("sentencepiece", Reader::SentencePiece),
    ("metaspace", Reader::Metaspace),
    ("wordpiece", Reader::WordPiece),
    ("gguf", Reader::Gguf),
];

/// Reads one file, and uses what comes out.
fn read(reader: Reader, bytes: &[u8], other: &str) {
    let text = String::from_utf8_lossy(bytes);
    let settings = RankFileSettings { pattern: Pattern::Gpt2, special: vec![("<|end|>".to_owned(), 0)] };
    let special = ["<|end|>".to_owned()];
    let tokenizer = match reader {
        Reader::ByteLevel | Reader::Own | Reader::SentencePiece | Reader::Metaspace | Reader::WordPiece => {
            Tokenizer::from_json(&text)
        }
        Reader::Ranks => Tokenizer::from_ranks(bytes, Some(&settings)),
        Reader::Vocab => Tokenizer::from_vocab_and_merges(&text, other, &Pattern::Gpt2, &special),
        Reader::Merges => Tokenizer::from_vocab_and_merges(other, &text, &Pattern::Gpt2, &special),
        Reader::Gguf => match serde_json::from_str(&text) {
            Ok(value) => Tokenizer::from_gguf(&gguf(&value)),
            Err(_) => return,
        },
    };
    let Ok(tokenizer) = tokenizer else { return };
    let plain = "the cat sat on the mat, the café thethethethethethethe 1234".as_bytes();
    let text = "the cat <|end|> café  <|end|> thethethe\u{301}▁ 1234".as_bytes();
    let keeps_all = [Reader::ByteLevel, Reader::Own, Reader::Ranks, Reader::Vocab, Reader::Merges];
    let mut ids = Vec::new();
    // Characters may be unknown. Bytes are not; they come back if the kind keeps all of them and no special token, which may
    // take white space with it, is among them. Those that have no token are left out.
    if tokenizer.encode(plain, &mut ids).is_ok() {
        let decoded = tokenizer.decode(&ids).unwrap();
        let has_token = |&byte: &u8| {
            let mut alone = Vec::new();
            tokenizer.encode(&[byte], &mut alone).is_err() || !alone.is_empty()
        };
        let kept: Vec<u8> = plain.iter().copied().filter(has_token).collect();
        assert!(!keeps_all.contains(&reader) || decoded == kept);
        let mut decoder = tokenizer.decoder();
        assert!(ids.iter().all(|&id| decoder.push(id).is_ok()));
    }
    let _ = tokenizer.encode_framed(text, &mut ids);
    let written = tokenizer.to_json();
    let again = Tokenizer::from_json(&written).unwrap_or_else(|error| panic!("{error}: {written}"));
    assert_eq!(again.to_json(), written);
}

/// The values of a GGUF file, of which the wrong ones are left out.
fn gguf(value: &Value) -> GgufVocabulary {
    let list = |name: &str| value[name].as_array().cloned().unwrap_or_default();
    let texts = |name: &str| list(name).iter().map(|item| item.as_str().unwrap_or("?").to_owned()).collect();
    let id = |name: &str| value[name].as_u64().map(|id| id as u32);
    GgufVocabulary {
        model: value["model"].as_str().unwrap_or_default().to_owned(),
        pre: value["pre"].as_str().map(str::to_owned),
        tokens: texts("tokens"),
        scores: list("scores").iter().map(|score| score.as_f64().unwrap_or(f64::NAN) as f32).collect(),
        token_types: list("token_type").iter().map(|kind| kind.as_i64().unwrap_or(-1) as i32).collect(),
        merges: texts("merges"),
        bos_token_id: id("bos_token_id"),
        eos_token_id: id("eos_token_id"),
        unknown_token_id: id("unknown_token_id"),
        add_bos_token: value["add_bos_token"].as_bool(),
        add_eos_token: value["add_eos_token"].as_bool(),
        add_space_prefix: value["add_space_prefix"].as_bool(),
    }
}

/// A file of somebody else's.
fn golden(name: &str) -> Value {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/tokenizer");
    let json = std::fs::read_to_string(format!("{folder}/{name}.imported.json")).unwrap();
    serde_json::from_str::<Value>(&json).unwrap()["file"].take()
}

/// The values of a GGUF file that holds this vocabulary.
fn as_gguf(file: &Value) -> Value {
    let tokens: Vec<&String> = file["model"]["vocab"].as_object().unwrap().keys().collect();
    let kind = |token: &&String| match token.as_str() {
        "<unk>" => 2,
        "<s>" | "</s>" => 3,
        token if token.starts_with("<0x") => 6,
        _ => 1,
    };
    json!({
        "model": "llama",
        "tokens": tokens,
        "scores": (0..tokens.len()).map(|idx| -(idx as f64)).collect::<Vec<_>>(),
        "token_type": tokens.iter().map(kind).collect::<Vec<_>>(),
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        "add_bos_token": true,
        "add_space_prefix": true,
    })
}

/// What a broken or hostile writer does to a file.
fn mutate(file: &[u8], random: &mut Random) -> Vec<u8> {
    const WORDS: [&str; 16] = [
        "4294967295",
        "-1",
        "1e308",
        "null",
        "[[[[[[[[",
        "{\"a\":",
        "\"",
        "\\u0000",
        "99999999999999999999",
        "==",
        " ",
        "\n",
        "true",
        "(((((((((",
        "<|end|>",
        "\u{feff}",
    ];
    let mut bytes = file.to_vec();
    for _ in 0..1 + random.below(4) {
        let at = random.below(bytes.len());
        let end = (at + 1 + random.below(20)).min(bytes.len());
        match random.below(6) {
            0 => bytes[at] = random.below(256) as u8,
            1 => drop(bytes.drain(at..end)),
            2 => drop(bytes.splice(at..at, WORDS[random.below(WORDS.len())].bytes())),
            3 => drop(bytes.splice(at..end, WORDS[random.below(WORDS.len())].bytes())),
            4 => {
                let part = bytes[at..end].to_vec();
                bytes.splice(at..at, part);
            }
            _ => bytes.truncate(at.max(1)),
        }
        if bytes.is_empty() {
            return bytes;
        }
    }
    bytes
}

/// What a hostile writer does to a part of a file that is JSON.
fn mutate_value(value: &mut Value, random: &mut Random) {
    let n_parts = match value {
        Value::Array(items) => items.len(),
        Value::Object(map) => map.len(),
        _ => 0,
    };
    let goes_deeper = n_parts > 0 && random.below(8) != 0;
    match value {
        Value::Array(items) if goes_deeper => return mutate_value(&mut items[random.below(n_parts)], random),
        Value::Object(map) if goes_deeper => {
            let part = map.values_mut().nth(random.below(n_parts)).unwrap();
            return mutate_value(part, random);
        }
        Value::Array(items) if n_parts > 0 && random.below(2) == 0 => {
            let at = random.below(n_parts);
            let twice = items[at].clone();
            return items.insert(at, twice);
        }
        Value::Object(map) if n_parts > 0 && random.below(2) == 0 => {
            let key = map.keys().nth(random.below(n_parts)).unwrap().clone();
            map.shift_remove(&key);
            return;
        }
        _ => {}
    }
    *value = match random.below(14) {
        0 => Value::Null,
        1 => json!(random.below(2) == 0),
        2 => json!(u64::MAX),
        3 => json!(-1),
        4 => json!(1e308),
        5 => json!(random.below(1000)),
        6 => json!(""),
        7 => json!("▁"),
        8 => json!("<0x41>"),
        9 => json!("<|end|>"),
        10 => json!("((((a+)+)+)+)$"),
        11 => json!([]),
        12 => json!({}),
        _ => json!({"type": "Sequence", "decoders": [{"type": "Fuse"}]}),
    };
}

/// The files that are changed, and those that belong to them.
fn files() -> Vec<(String, Reader, String, String)> {
    let tokenizer = trained();
    let json = tokenizer.to_json();
    let file: Value = serde_json::from_str(&json).unwrap();
    let vocab = file["model"]["vocab"].to_string();
    let merges = file["model"]["merges"].as_array().unwrap().iter();
    let merges: Vec<&str> = merges.map(|merge| merge.as_str().unwrap()).collect();
    let merges = merges.join("\n");
    let content = |reader| match reader {
        Reader::ByteLevel => json.clone(),
        Reader::Own => chars().to_json(),
        Reader::Ranks => tokenizer.to_ranks().unwrap(),
        Reader::Vocab => vocab.clone(),
        Reader::Merges => merges.clone(),
        Reader::SentencePiece => golden("llama2").to_string(),
        Reader::Metaspace => golden("metaspace").to_string(),
        Reader::WordPiece => golden("bert").to_string(),
        Reader::Gguf => as_gguf(&golden("llama2")).to_string(),
    };
    let other = |reader| if reader == Reader::Merges { vocab.clone() } else { merges.clone() };
    READERS
        .into_iter()
        .map(|(name, reader)| (name.to_owned(), reader, content(reader), other(reader)))
        .collect()
}

/// Changes and reads a file until it is over, and says how often.
fn run(file: &(String, Reader, String, String), seed: u64, is_over: impl Fn(usize) -> bool) -> usize {
    let (name, reader, content, other) = file;
    let mut random = Random(seed);
    let parsed: Option<Value> = serde_json::from_str(content).ok();
    let mut n_files = 0;
    while !is_over(n_files) {
        let mutated = match &parsed {
            Some(value) if random.below(3) > 0 => {
                let mut value = value.clone();
                (0..1 + random.below(3)).for_each(|_| mutate_value(&mut value, &mut random));
                value.to_string().into_bytes()
            }
            _ => mutate(content.as_bytes(), &mut random),
        };
        let start = Instant::now();
        read(*reader, &mutated, other);
        assert!(start.elapsed() < Duration::from_secs(20), "{name}: {}", mutated.escape_ascii());
        n_files += 1;
    }
    n_files
}

#[test]
fn changed_files_are_read_or_refused() {
    for file in files() {
        run(&file, 7, |n_files| n_files == 250);
    }
}

#[test]
#[ignore = "takes as long as it is asked to"]
fn changed_files_are_read_or_refused_for_as_long_as_asked() {
    let seconds = std::env::var("IRONMILL_HOSTILE_SECONDS").map_or(300, |seconds| seconds.parse().unwrap());
    let wanted = std::env::var("IRONMILL_HOSTILE_READER").ok();
    for file in files().iter().filter(|(name, ..)| wanted.as_ref().is_none_or(|wanted| wanted == name)) {
        let start = Instant::now();
        let n_files = run(file, 0x1234_5678_9abc_def1, |_| start.elapsed() > Duration::from_secs(seconds));
        println!("{}: {n_files} files in {} s", file.0, start.elapsed().as_secs());
    }
}

#[test]
fn deep_and_huge_files_are_refused_soon() {
    let start = Instant::now();
    let deep = format!("{{\"model\":{}", "[".repeat(5_000_000));
    let many = format!("{{\"model\":{{\"vocab\":{{{}", "\"a\":1,".repeat(1_000_000));
    let wide = format!("{{\"version\":\"{}\"}}", "a".repeat(20_000_000));
    for file in [deep, many, wide, "{".repeat(1_000_000), String::new(), "\0".repeat(1000)] {
        assert!(Tokenizer::from_json(&file).is_err());
        assert!(Tokenizer::from_ranks(file.as_bytes(), None).is_err());
        assert!(Tokenizer::from_vocab_and_merges(&file, "", &Pattern::Gpt2, &[]).is_err());
    }
    assert!(start.elapsed() < Duration::from_secs(30));
}

#[test]
fn a_changed_file_of_pieces_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pieces");
    let mut counts = PieceCounts::new(&Pattern::Gpt2, &[]).unwrap();
    counts.add_document(b"the cat sat on the mat").unwrap();
    FrequentPieces::of(&&counts, 9).unwrap().save(&path).unwrap();
    let saved = std::fs::read(&path).unwrap();
    let mut random = Random(3);
    for _ in 0..500 {
        let mutated = mutate(&saved, &mut random);
        std::fs::write(&path, &mutated).unwrap();
        assert!(FrequentPieces::load(&path).is_err() || mutated == saved);
    }
}
