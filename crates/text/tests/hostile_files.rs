//! Tokenizer files that somebody else wrote, or that broke on the way: every reader ends with a tokenizer or an error, soon and
//! in little memory.
//!
//! The short test runs always. The long one draws other files for five minutes:
//! `cargo test --release -p ironmill-text --test hostile_files -- --ignored`.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::time::{Duration, Instant};

use ironmill_text::{
    BpeOptions, CharCounts, CharOptions, FrequentPieces, Pattern, PieceCounts, RankFileSettings, Silent,
    Tokenizer, train_bpe, train_char,
};

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

/// Reads one file by the reader of this number, and uses what comes out.
fn read(reader: usize, bytes: &[u8], merges: &str) {
    let text = String::from_utf8_lossy(bytes);
    let settings = RankFileSettings { pattern: Pattern::Gpt2, special: vec![("<|end|>".to_owned(), 0)] };
    let special = ["<|end|>".to_owned()];
    let tokenizer = match reader {
        0 | 1 => Tokenizer::from_json(&text),
        2 => Tokenizer::from_ranks(bytes, Some(&settings)),
        3 => Tokenizer::from_vocab_and_merges(&text, merges, &Pattern::Gpt2, &special),
        _ => Tokenizer::from_vocab_and_merges(merges, &text, &Pattern::Gpt2, &special),
    };
    let Ok(tokenizer) = tokenizer else { return };
    let text = "the cat sat on the mat, the café <|end|> thethethethethethethe 1234".as_bytes();
    let mut ids = Vec::new();
    // Characters may be unknown; bytes are not, and come back unless the file asks for composed characters.
    if tokenizer.encode_with_special(text, &mut ids).is_ok() {
        assert_eq!(tokenizer.decode(&ids).unwrap(), text);
    }
    assert!(Tokenizer::from_json(&tokenizer.to_json()).is_ok());
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

fn run(seed: u64, is_over: impl Fn(usize) -> bool) {
    let tokenizer = trained();
    let json = tokenizer.to_json();
    let file: serde_json::Value = serde_json::from_str(&json).unwrap();
    let vocab = file["model"]["vocab"].to_string();
    let merges = file["model"]["merges"].as_array().unwrap().iter();
    let merges: Vec<&str> = merges.map(|merge| merge.as_str().unwrap()).collect();
    let merges = merges.join("\n");
    let chars = chars().to_json();
    let ranks = tokenizer.to_ranks().unwrap();
    // By number of the reader: the file that is changed, and the one that belongs to it.
    let files =
        [(&json, &merges), (&chars, &merges), (&ranks, &merges), (&vocab, &merges), (&merges, &vocab)];
    let mut random = Random(seed);
    let mut n_files = 0;
    while !is_over(n_files) {
        let reader = n_files % files.len();
        let (file, other) = files[reader];
        let mutated = mutate(file.as_bytes(), &mut random);
        let start = Instant::now();
        read(reader, &mutated, other);
        assert!(start.elapsed() < Duration::from_secs(20), "reader {reader}: {}", mutated.escape_ascii());
        n_files += 1;
    }
}

#[test]
fn changed_files_are_read_or_refused() {
    run(7, |n_files| n_files == 1500);
}

#[test]
#[ignore = "takes five minutes"]
fn changed_files_are_read_or_refused_for_five_minutes() {
    let start = Instant::now();
    run(0x1234_5678_9abc_def1, |_| start.elapsed() > Duration::from_secs(300));
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
