//! Scanners against the regex engine, under every set of instructions of the machine.

use super::*;
use crate::splitter::Splitter;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) % limit as u64) as usize
    }

    fn of<'a>(&mut self, choices: &[&'a str]) -> &'a str {
        choices[self.below(choices.len())]
    }
}

const SCRIPTS: [&[&str]; 9] = [
    &["a", "b", "e", "s", "t", "l", "A", "S", "T", " ", " ", "'", "1"],
    &[" ", "\n", "\r", "\t", "  ", "\n\n", "x", ";", "\u{a0}", "\u{3000}", "\u{2028}", "\u{85}", "/"],
    &["'s", "'S", "'ll", "'LL", "'lL", "'re", "'x", "'ſ", "''", "'", " '", "n't", "-", "a", "B", "ſ"],
    &["1", "22", "333", "4444", "५", "٣", "²", "Ⅷ", " ", "a", ".", ","],
    &["п", "р", "и", "Ж", "І", "ї", " ", "'", "—", "«", "é", "É", "ß", "ǅ", "Ǆ"],
    &["世", "界", "、", "。", "ア", "ー", "한", "ʰ", "A", "b", "ª", " "],
    &["क", "ि", "\u{301}", "a", "A", "\u{e31}", "ก", "\u{20dd}", "'", "s", " ", "/", "\n"],
    &[
        "!",
        "!!",
        "//",
        "*/\n/*",
        "(",
        ")",
        "{\n    ",
        "}\n\n\n",
        "\n\t\t",
        " \n \n  ",
        "🐈",
        "👩\u{200d}🚀",
        "_",
    ],
    &[
        "\0",
        "\u{7f}",
        "\u{fffd}",
        "\u{10ffff}",
        "\u{378}",
        "\u{1e922}",
        "\u{1d7d8}",
        "\u{b}",
        "\u{c}",
        "a",
        " ",
    ],
];

fn text(random: &mut Random) -> String {
    let mut text = String::new();
    let wanted = random.below(400);
    while text.len() < wanted {
        let script = SCRIPTS[random.below(SCRIPTS.len())];
        for _ in 0..random.below(12) {
            match random.below(60) {
                0 => text.push_str(&random.of(script).repeat(random.below(150))),
                1 => text.extend(char::from_u32(random.below(0x11_0000) as u32)),
                2 => text.push_str("The cat sat on the mat, and it's 12345 times. "),
                _ => text.push_str(random.of(script)),
            }
        }
    }
    text
}

fn pieces(scanner: &Scanner, text: &str) -> Vec<usize> {
    let (mut all, mut ends) = (vec![0], Ends::new());
    while *all.last().unwrap() < text.len() {
        scanner.ends(text, *all.last().unwrap(), &mut ends);
        all.extend_from_slice(ends.as_slice());
    }
    all
}

fn expected(oracle: &Splitter, text: &str) -> Vec<usize> {
    let mut all = vec![0];
    oracle
        .for_each_piece(text.as_bytes(), |piece| {
            all.push(all.last().unwrap() + piece.len());
            Ok(())
        })
        .unwrap();
    all
}

fn shown(text: &str, ends: &[usize]) -> Vec<String> {
    ends.windows(2)
        .map(|pair| String::from_utf8_lossy(&text.as_bytes()[pair[0]..pair[1]]).into_owned())
        .collect()
}

#[test]
fn scanners_cut_where_the_regex_engine_cuts() {
    for name in Pattern::NAMES {
        let pattern = Pattern::from_name(name).unwrap();
        let oracle = Splitter::by_regex(&pattern).unwrap();
        let scanners: Vec<Scanner> = Instructions::available()
            .into_iter()
            .map(|instructions| Scanner::with_instructions(&pattern, instructions).unwrap())
            .collect();
        let mut random = Random(1);
        for case in 0..4000 {
            let text = text(&mut random);
            let expected = expected(&oracle, &text);
            for scanner in &scanners {
                let found = pieces(scanner, &text);
                assert_eq!(
                    shown(&text, &found),
                    shown(&text, &expected),
                    "{name}, case {case}, {:?}, {text:?}",
                    scanner.instructions
                );
            }
        }
    }
}

#[test]
fn every_character_is_cut_the_same_in_every_neighbourhood() {
    for name in Pattern::NAMES {
        let pattern = Pattern::from_name(name).unwrap();
        let oracle = Splitter::by_regex(&pattern).unwrap();
        let scanner = Scanner::new(&pattern).unwrap();
        // All characters that are assigned, and some that are not, a few hundred to a text.
        let mut text = String::new();
        for code in (0..0x3_2000).chain(0xe_0000..0xe_0200) {
            let Some(character) = char::from_u32(code) else { continue };
            let neighbours = [("a", "a"), (" ", "b"), ("'", "'"), ("A", "B"), ("1", "\n")];
            let (before, after) = neighbours[code as usize % neighbours.len()];
            text.push_str(before);
            text.push(character);
            text.push_str(after);
            if code % 512 == 511 {
                assert_eq!(
                    shown(&text, &pieces(&scanner, &text)),
                    shown(&text, &expected(&oracle, &text)),
                    "{name}"
                );
                text.clear();
            }
        }
    }
}

#[test]
fn the_masks_are_the_same_under_all_instructions() {
    // Through whole scanners, whose pieces depend on every mask: one byte at every place of a window.
    for name in ["gpt2", "o200k"] {
        let pattern = Pattern::from_name(name).unwrap();
        let scanners: Vec<Scanner> = Instructions::available()
            .into_iter()
            .map(|instructions| Scanner::with_instructions(&pattern, instructions).unwrap())
            .collect();
        for byte in 0..0x80u8 {
            for at in 0..64 {
                let mut text = "ab".repeat(70).into_bytes();
                text[at] = byte;
                let text = String::from_utf8(text).unwrap();
                let expected = pieces(&scanners[0], &text);
                for scanner in &scanners[1..] {
                    assert_eq!(
                        pieces(scanner, &text),
                        expected,
                        "{name} {byte} {at} {:?}",
                        scanner.instructions
                    );
                }
            }
        }
    }
}

#[test]
fn a_text_cut_in_two_where_allowed_has_the_same_pieces() {
    for name in Pattern::NAMES {
        let scanner = Scanner::new(&Pattern::from_name(name).unwrap()).unwrap();
        let mut random = Random(2);
        let mut n_cut = 0;
        for _ in 0..4000 {
            let text = text(&mut random);
            // What follows the cut may be anything, so the cut is looked for in a part of the text.
            let Some(part) = text.get(..random.below(text.len() + 1)) else { continue };
            let Some(cut) = scanner.last_cut(part) else { continue };
            n_cut += 1;
            let mut joined = pieces(&scanner, &text[..cut]);
            joined.extend(pieces(&scanner, &text[cut..]).into_iter().skip(1).map(|end| end + cut));
            assert_eq!(
                shown(&text, &joined),
                shown(&text, &pieces(&scanner, &text)),
                "{name} at {cut}: {text:?}"
            );
        }
        assert!(n_cut > 500, "{name} {n_cut}");
    }
}
