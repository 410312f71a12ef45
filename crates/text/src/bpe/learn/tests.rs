//! The learner against the plain trainer, with memory for everything and with next to none.

use super::*;
use crate::pattern::Pattern;
use crate::{Silent, train_bpe_plainly};

/// Pieces of few letters, so that pairs repeat, counts tie and several pairs spell the same token.
fn random_counts(seed: u64) -> PieceCounts {
    let mut state = seed;
    let mut below = |limit: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % limit
    };
    let mut counts = PieceCounts::new(&Pattern::Gpt2, &[]).unwrap();
    let n_letters = 1 + below(5);
    for _ in 0..1 + below(120) {
        let n_symbols = 1 + below(14);
        let piece: String = (0..n_symbols).map(|_| char::from(b'a' + below(n_letters) as u8)).collect();
        for _ in 0..1 + below(4) {
            counts.add_document(piece.as_bytes()).unwrap();
        }
    }
    counts
}

fn merges<S: Symbol>(
    counts: &PieceCounts,
    options: &BpeOptions,
    room: Room,
    scratch: Option<&Path>,
) -> Vec<(u32, u32)> {
    let mut vocabulary = Vocabulary::new(options).unwrap();
    // Just what the pieces need, so that the rest is as small as asked for.
    let sorted = counts.sorted();
    let long_enough = sorted.iter().filter(|(piece, _)| piece.len() > 1);
    let (n_pieces, n_bytes) =
        long_enough.fold((0, 0), |(n, sum), (piece, _)| (n + 1, sum + piece.len() as u64));
    let arena = Arena::<S>::n_bytes_for(n_pieces, n_bytes) as usize;
    let memory = if scratch.is_some() { 0 } else { arena + (arena / 8).max(room.min_working) };
    let room = Room { memory, ..room };
    learn::<S>(counts, options, &mut vocabulary, room, scratch, 0, &Silent).unwrap()
}

#[test]
fn any_memory_gives_the_merges_of_the_plain_trainer() {
    let folder = tempfile::tempdir().unwrap();
    for seed in 0..120 {
        let counts = random_counts(seed);
        let ties = [Ties::Hf, Ties::Raw, Ties::Bytes][seed as usize % 3];
        let min_count = seed / 3 % 4;
        let max_token_length = (seed % 5 == 0).then_some(4);
        let options = BpeOptions { ties, min_count, max_token_length, ..BpeOptions::new(256 + 40) };
        let (expected, _) = train_bpe_plainly(&counts, &options).unwrap();
        let expected = expected.to_json();
        for (min_working, max_fall) in
            [(1 << 20, u64::MAX), (1 << 20, 2), (0, 4), (300, 256), (3000, 2), (100_000, 1)]
        {
            let room = Room { memory: 0, min_working, max_fall, max_remembered: seed as usize % 5 };
            // In memory, and on disk with an arena that has room for some of the pieces, or for none.
            for found in [
                merges::<u16>(&counts, &options, room, None),
                merges::<u32>(&counts, &options, room, None),
                merges::<u16>(&counts, &options, room, Some(folder.path())),
                merges::<u32>(&counts, &options, room, Some(folder.path())),
            ] {
                let mut vocabulary = Vocabulary::new(&options).unwrap();
                found.iter().for_each(|&pair| _ = vocabulary.token_of(pair));
                let found = finish(&options, &vocabulary, found).unwrap().to_json();
                assert_eq!(found, expected, "seed {seed}, {room:?}");
            }
        }
    }
}

#[test]
fn counts_beyond_32_and_40_bits_are_exact() {
    // Pieces come from a source of its own, because nobody counts that far in a test.
    struct Huge;
    impl PieceSource for Huge {
        fn check_settings(&self, _options: &BpeOptions) -> Result<()> {
            Ok(())
        }
        fn totals(&self) -> (u64, u64) {
            (u64::MAX / 2, 4)
        }
        fn n_bytes(&self) -> usize {
            0
        }
        fn for_each(&self, visit: &mut dyn FnMut(&[u8], u64) -> Result<()>) -> Result<()> {
            visit(b"ab", (1 << 33) + 1)?;
            visit(b"cd", (1 << 41) + 1)?;
            visit(b"xcd", 1)?;
            visit(b"ef", (1 << 62) + (1 << 41) + 2)?;
            visit(b"gh", (1 << 62) + (1 << 41) + 1)
        }
    }
    let (tokenizer, report) = learn_bpe(Huge, &BpeOptions::new(260), &LearnRoom::UNLIMITED, &Silent).unwrap();
    let learnt: Vec<&[u8]> = (256..260).map(|id| tokenizer.token_bytes(id).unwrap()).collect();
    assert_eq!(learnt, [b"ef", b"gh", b"cd", b"ab"]);
    assert_eq!(report.merges, 4);
}

#[test]
fn a_count_that_overflows_is_an_error() {
    struct TooMuch;
    impl PieceSource for TooMuch {
        fn check_settings(&self, _options: &BpeOptions) -> Result<()> {
            Ok(())
        }
        fn totals(&self) -> (u64, u64) {
            (u64::MAX, 2)
        }
        fn n_bytes(&self) -> usize {
            0
        }
        fn for_each(&self, visit: &mut dyn FnMut(&[u8], u64) -> Result<()>) -> Result<()> {
            // The pieces' counts fit, but one piece has the pair twice.
            visit(b"abab", u64::MAX - 1)
        }
    }
    let error = learn_bpe(TooMuch, &BpeOptions::new(260), &LearnRoom::UNLIMITED, &Silent).unwrap_err();
    assert!(matches!(error, Error::CountOverflow(_)), "{error}");
}

#[test]
fn more_than_a_thousand_tied_pairs_keep_their_order() {
    let mut counts = PieceCounts::new(&Pattern::Regex("(?s)..".into()), &[]).unwrap();
    let bytes: Vec<u8> = (b'!'..=b'~').collect();
    for &left in &bytes[..40] {
        for &right in &bytes[40..80] {
            counts.add_document(&[left, right]).unwrap();
        }
    }
    for ties in [Ties::Hf, Ties::Raw, Ties::Bytes] {
        let pattern = Pattern::Regex("(?s)..".into());
        let options = BpeOptions { ties, pattern, ..BpeOptions::new(256 + 1600) };
        let (found, report) = learn_bpe(&counts, &options, &LearnRoom::UNLIMITED, &Silent).unwrap();
        assert_eq!(report.merges, 1600);
        assert_eq!(found.to_json(), train_bpe_plainly(&counts, &options).unwrap().0.to_json());
    }
}

#[test]
fn memory_that_does_not_hold_the_pieces_is_an_error_that_says_how_much_does() {
    let error = learn_bpe(
        &random_counts(1),
        &BpeOptions::new(300),
        &LearnRoom { memory: 100, scratch: None },
        &Silent,
    )
    .unwrap_err();
    assert!(matches!(error, Error::ArenaTooLarge { .. }), "{error}");
}
