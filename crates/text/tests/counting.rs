//! Counting: the fast counters against the plain table, in memory and spilled, and the counts file.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::fs;
use std::path::Path;

use ironmill_text::{
    BpeOptions, CountSettings, CountedPieces, CounterRoom, CountsFile, Error, LearnRoom, Pattern,
    PieceCounter, PieceCounts, Silent, learn_bpe, merge_counts, train_bpe,
};
use proptest::prelude::*;

mod drawn;

use drawn::{any_document, any_pattern, holds};

const PLENTY: usize = 1 << 30;

fn count(
    pattern: &Pattern,
    special: &[String],
    texts: &[String],
    memory: usize,
    folder: &Path,
) -> PieceCounter {
    let room = CounterRoom { memory, scratch: Some(folder.join("scratch")), approximate: false };
    let mut counter = PieceCounter::new(pattern, special, room).unwrap();
    texts.iter().for_each(|text| counter.add(text).unwrap());
    counter
}

/// The counts file of what the counters counted together.
fn file_of(counters: Vec<PieceCounter>, settings: &CountSettings, memory: usize, out: &Path) -> Vec<u8> {
    let spilled = out.with_extension("spilled");
    let pieces = CountedPieces::combine(counters, settings, 3, memory, Some(&spilled), &Silent).unwrap();
    pieces.save(out, &Silent).unwrap();
    fs::read(out).unwrap()
}

/// Many distinct pieces, short and long, some of them often.
fn many_pieces(seed: u64) -> Vec<String> {
    let mut state = seed;
    (0..60)
        .map(|_| {
            let mut text = String::new();
            for idx in 0..3000u64 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let letters: String = format!("{:x}", state >> 20)
                    .chars()
                    .map(|c| if c.is_ascii_digit() { 'q' } else { c })
                    .collect();
                match idx % 4 {
                    0 => text.push_str(" often"),
                    1 => text.push_str(&format!(" {}", &letters[..4.min(letters.len())])),
                    2 => text.push_str(&format!(" {letters}")),
                    _ => text.push_str(&format!(" {letters}{letters}")),
                }
            }
            text
        })
        .collect()
}

#[test]
fn counters_count_what_the_plain_table_counts() {
    let folder = tempfile::tempdir().unwrap();
    let texts = prop::collection::vec(
        any_document().prop_map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
        1..6,
    );
    holds(200, (texts, any_pattern()), |(texts, pattern)| {
        let special = vec!["<|end|>".to_owned(), "ab".to_owned()];
        let mut plain = PieceCounts::new(&pattern, &special).unwrap();
        texts.iter().for_each(|text| plain.add_document(text.as_bytes()).unwrap());
        prop_assume!(plain.total() > 0);
        let (first, second) = texts.split_at(texts.len() / 2);
        let counters = [first, second].map(|texts| count(&pattern, &special, texts, PLENTY, folder.path()));
        let settings = CountSettings::new(&pattern, &special, false);
        let counters = counters.into_iter().collect();
        let pieces = CountedPieces::combine(counters, &settings, 1, PLENTY, None, &Silent).unwrap();
        prop_assert_eq!(
            (pieces.totals().pieces, pieces.totals().distinct),
            (plain.total(), plain.distinct())
        );
        let options = BpeOptions { pattern, special, ..BpeOptions::new(300) };
        let (expected, report) = train_bpe(&plain, &options, &Silent).unwrap();
        let path = folder.path().join("counts");
        pieces.save(&path, &Silent).unwrap();
        for pieces in [pieces, CountedPieces::from_file(CountsFile::open(&path).unwrap())] {
            let (found, found_report) = learn_bpe(pieces, &options, &LearnRoom::UNLIMITED, &Silent).unwrap();
            prop_assert_eq!(found.to_json(), expected.to_json());
            prop_assert_eq!(found_report, report);
        }
        Ok(())
    });
}

#[test]
fn spilled_counts_give_the_same_file_as_those_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let texts = many_pieces(1);
    let settings = CountSettings::new(&Pattern::Gpt2, &[], false);
    let one = |memory| vec![count(&Pattern::Gpt2, &[], &texts, memory, path)];
    let in_memory = file_of(one(PLENTY), &settings, PLENTY, &path.join("memory"));
    assert_eq!(file_of(one(0), &settings, PLENTY, &path.join("disk")), in_memory);
    assert!(path.join("disk.spilled").exists(), "it was too little to be spilled");
    let three: Vec<PieceCounter> =
        texts.chunks(23).map(|texts| count(&Pattern::Gpt2, &[], texts, 0, path)).collect();
    assert_eq!(file_of(three, &settings, PLENTY, &path.join("three")), in_memory);
    // Together they do not fit although each does.
    let three: Vec<PieceCounter> =
        texts.chunks(23).map(|texts| count(&Pattern::Gpt2, &[], texts, PLENTY, path)).collect();
    assert_eq!(file_of(three, &settings, 1 << 22, &path.join("tight")), in_memory);
    let left: Vec<_> = fs::read_dir(path.join("scratch")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn any_split_into_tasks_merges_to_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let texts = &many_pieces(2)[..10];
    let settings = CountSettings::new(&Pattern::Cl100k, &[], false);
    let file = |texts: &[String], documents, name: &str| {
        let counter = count(&Pattern::Cl100k, &[], texts, PLENTY, path);
        let pieces =
            CountedPieces::combine(vec![counter], &settings, documents, PLENTY, None, &Silent).unwrap();
        pieces.save(&path.join(name), &Silent).unwrap();
        CountsFile::open(&path.join(name)).unwrap()
    };
    let whole = file(texts, 10, "whole");
    let parts =
        [file(&texts[3..4], 1, "a"), file(&[], 0, "b"), file(&texts[4..], 6, "c"), file(&texts[..3], 3, "d")];
    let totals = merge_counts(&parts, &path.join("merged"), &Silent).unwrap();
    assert_eq!(totals, whole.totals());
    assert_eq!(fs::read(path.join("merged")).unwrap(), fs::read(path.join("whole")).unwrap());
    let other = CountSettings::new(&Pattern::Gpt2, &[], false);
    assert!(matches!(whole.settings().check_same(&other), Err(Error::CountsDiffer { .. })));
}

#[test]
fn pieces_of_more_than_65535_bytes_are_exact() {
    let folder = tempfile::tempdir().unwrap();
    let long = "x".repeat(100_000);
    let texts = [format!("{long} {long} {long}y"), long.clone()];
    let counter = count(&Pattern::Gpt2, &[], &texts, PLENTY, folder.path());
    let settings = CountSettings::new(&Pattern::Gpt2, &[], false);
    let pieces = CountedPieces::combine(vec![counter], &settings, 2, PLENTY, None, &Silent).unwrap();
    assert_eq!((pieces.totals().pieces, pieces.totals().distinct), (4, 3));
    let mut plain = PieceCounts::new(&Pattern::Gpt2, &[]).unwrap();
    texts.iter().for_each(|text| plain.add_document(text.as_bytes()).unwrap());
    let options = BpeOptions::new(280);
    let (found, _) = learn_bpe(pieces, &options, &LearnRoom::UNLIMITED, &Silent).unwrap();
    let (expected, _) = ironmill_text::train_bpe_plainly(&plain, &options).unwrap();
    assert_eq!(found.to_json(), expected.to_json());
}

#[test]
fn without_a_scratch_folder_what_does_not_fit_is_an_error() {
    let mut counter =
        PieceCounter::new(&Pattern::Gpt2, &[], CounterRoom { memory: 0, scratch: None, approximate: false })
            .unwrap();
    let error = many_pieces(3).iter().find_map(|text| counter.add(text).err()).unwrap();
    assert!(matches!(error, Error::NoScratch { .. }), "{error}");
    let scratch = Some("/dev/null/no".into());
    let mut counter =
        PieceCounter::new(&Pattern::Gpt2, &[], CounterRoom { memory: 0, scratch, approximate: false })
            .unwrap();
    let error = many_pieces(3).iter().find_map(|text| counter.add(text).err()).unwrap();
    assert!(error.to_string().contains("/dev/null/no") && error.to_string().contains("--scratch"), "{error}");
}

#[test]
fn a_damaged_counts_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("counts");
    let counter = count(&Pattern::Gpt2, &[], &["the cat sat on the mat".to_owned()], PLENTY, folder.path());
    let settings = CountSettings::new(&Pattern::Gpt2, &[], false);
    let bytes = file_of(vec![counter], &settings, PLENTY, &path);
    let is_refused = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        let used = CountsFile::open(&path).and_then(|file| {
            learn_bpe(CountedPieces::from_file(file), &BpeOptions::new(260), &LearnRoom::UNLIMITED, &Silent)
        });
        used.is_err()
    };
    assert!(!is_refused(&bytes));
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        assert!(is_refused(&damaged), "byte {at}");
    }
    for len in (0..bytes.len()).step_by(7) {
        assert!(is_refused(&bytes[..len]), "{len} bytes");
    }
    assert!(is_refused(&[&bytes[..], b"x"].concat()));
}
