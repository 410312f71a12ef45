use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::*;
use crate::bpe::{Bpe, Parts};
use crate::normal::Normalization;
use crate::pattern::Pattern;
use crate::special::Specials;

type Tokens = Vec<Option<Box<[u8]>>>;

/// Byte-pair encoding as the textbook has it.
fn merged_plainly(tokens: &[Option<Box<[u8]>>], merges: &[(u32, u32)], piece: &[u8]) -> Vec<u32> {
    let ids: BTreeMap<&[u8], u32> = tokens.iter().flatten().map(|token| &**token).zip(0..).collect();
    let mut symbols: Vec<u32> = piece.iter().map(|&byte| ids[&[byte][..]]).collect();
    loop {
        let rank = |at: usize| merges.iter().position(|&pair| pair == (symbols[at], symbols[at + 1]));
        let lowest = (0..symbols.len().saturating_sub(1)).filter_map(|at| Some((rank(at)?, at))).min();
        let Some((_, at)) = lowest else { return symbols };
        let bytes_of = |id: u32| tokens[id as usize].as_deref().unwrap();
        let joined = [bytes_of(symbols[at]), bytes_of(symbols[at + 1])].concat();
        symbols.splice(at..at + 2, [ids[&joined[..]]]);
    }
}

/// Merges over a few letters; `closed` ones only join what is there already, as training does.
fn vocabulary(drawn: &[(u8, u8, u8)], closed: bool) -> (Tokens, Vec<(u32, u32)>) {
    let mut tokens: Tokens = (0..=255).map(|byte| Some(vec![byte].into())).collect();
    let mut merges: Vec<(u32, u32)> = Vec::new();
    for &(left, right, place) in drawn {
        let pick = |value: u8| {
            let n_made = tokens.len() - 256;
            if usize::from(value % 16) < n_made.min(12) {
                256 + usize::from(value / 16) % n_made
            } else {
                usize::from(b'a' + value % 3)
            }
        };
        let (left, right) = (pick(left), pick(right));
        let joined: Box<[u8]> =
            [tokens[left].clone().unwrap(), tokens[right].clone().unwrap()].concat().into();
        let pair = (left as u32, right as u32);
        let is_known = tokens.contains(&Some(joined.clone()));
        if joined.len() > 40 || merges.contains(&pair) || (closed && is_known) {
            continue;
        }
        let place = if closed { merges.len() } else { usize::from(place) % (merges.len() + 1) };
        merges.insert(place, pair);
        if !is_known {
            tokens.push(Some(joined));
        }
    }
    (tokens, merges)
}

fn bpe(drawn: &[(u8, u8, u8)], closed: bool, ignore_merges: bool) -> Bpe {
    let (tokens, merges) = vocabulary(drawn, closed);
    let specials = Specials::new(Vec::new()).unwrap();
    let (pattern, normalization) = (Pattern::Gpt2, Normalization::None);
    Bpe::new(Parts {
        pattern,
        normalization,
        specials,
        frame: crate::frame::Frame::default(),
        tokens,
        merges,
        ignore_merges,
    })
    .unwrap()
}

fn runner(cases: u32) -> TestRunner {
    TestRunner::new_with_rng(
        Config { cases, failure_persistence: None, ..Config::default() },
        TestRng::from_seed(RngAlgorithm::ChaCha, &[11; 32]),
    )
}

fn any_merges() -> impl Strategy<Value = Vec<(u8, u8, u8)>> {
    prop::collection::vec(any::<(u8, u8, u8)>(), 0..40)
}

fn encode(bpe: &Bpe, text: &[u8]) -> Vec<u32> {
    let mut ids = Vec::new();
    bpe.encode(text, &mut ids).unwrap();
    ids
}

#[test]
fn backtracking_equals_merging_wherever_it_is_allowed() {
    let piece = prop::collection::vec(b'a'..b'd', 1..150);
    runner(1500)
        .run(&(any_merges(), any::<bool>(), piece), |(drawn, closed, piece)| {
            let bpe = bpe(&drawn, closed, false);
            let model = &bpe.model;
            let Some(backtracker) = Backtracker::new(&model.tokens, &model.merges, &model.table) else {
                prop_assert!(!closed);
                return Ok(());
            };
            let mut found = vec![7];
            backtracker.encode(&piece, &mut PairMemo::new(), &model.table, &mut found);
            prop_assert_eq!(&found[1..], merged_plainly(&model.tokens, &model.merges, &piece));
            Ok(())
        })
        .unwrap();
}

#[test]
fn the_encoder_equals_plain_merging_of_each_piece_first_and_again() {
    let text = prop::collection::vec(prop_oneof![8 => b'a'..b'd', 2 => Just(b' '), 1 => any::<u8>()], 0..400);
    runner(400)
        .run(&(any_merges(), any::<(bool, bool)>(), text), |(drawn, (closed, ignore_merges), text)| {
            let bpe = bpe(&drawn, closed, ignore_merges);
            let mut expected = Vec::new();
            let model = &bpe.model;
            bpe.splitter
                .for_each_piece(&text, |piece| {
                    match model.whole_pieces.get(piece) {
                        Some(&id) => expected.push(id),
                        None => expected.extend(merged_plainly(&model.tokens, &model.merges, piece)),
                    }
                    Ok(())
                })
                .unwrap();
            prop_assert_eq!(encode(&bpe, &text), &expected[..]);
            prop_assert_eq!(encode(&bpe, &text), &expected[..]);
            let mut narrow: Vec<u16> = Vec::new();
            bpe.encode(&text, &mut narrow).unwrap();
            prop_assert!(narrow.iter().map(|&id| u32::from(id)).eq(expected));
            Ok(())
        })
        .unwrap();
}

#[test]
fn more_pieces_than_the_caches_hold_are_still_right() {
    let drawn: Vec<(u8, u8, u8)> = (0..120u8).map(|n| (n.wrapping_mul(37), n.wrapping_mul(91), n)).collect();
    let bpe = bpe(&drawn, true, false);
    // Far more than the sets of the cache, and many times over what a set holds.
    let words: Vec<String> = (0..200_000u32)
        .map(|number| {
            let digit = |at: u32| char::from(b'a' + (number / 3u32.pow(at) % 3) as u8);
            (0..12).map(digit).chain(" ".chars()).collect()
        })
        .collect();
    let text = words.concat();
    let ids = encode(&bpe, text.as_bytes());
    let decoded: Vec<u8> =
        ids.iter().flat_map(|&id| bpe.tokens()[id as usize].clone().unwrap().into_vec()).collect();
    assert_eq!(decoded, text.as_bytes());
    let mut expected = Vec::new();
    bpe.splitter
        .for_each_piece(text.as_bytes(), |piece| {
            bpe.model.encode_piece(piece, &mut expected);
            Ok(())
        })
        .unwrap();
    assert_eq!(ids, expected);
}

#[test]
fn a_piece_of_megabytes_takes_linear_time() {
    let drawn: Vec<(u8, u8, u8)> = (0..200u8).map(|n| (n.wrapping_mul(73), n.wrapping_mul(29), n)).collect();
    for unit in ["a", "ab", "abc", "aab", "abacab"] {
        let text = unit.repeat(3_000_000 / unit.len());
        let bpe = bpe(&drawn, true, false);
        assert!(!encode(&bpe, text.as_bytes()).is_empty());
    }
}
