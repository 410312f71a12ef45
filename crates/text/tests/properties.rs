//! What must hold for any text, drawn with fixed seeds: slow oracles and laws of the public interface.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::collections::BTreeMap;

use ironmill_text::{
    BpeOptions, Pattern, PieceCounts, Silent, Ties, Tokenizer, train_bpe, train_bpe_plainly,
};
use proptest::prelude::*;

mod drawn;

use drawn::{any_document, any_pattern, few_letters, holds};

fn any_ties() -> impl Strategy<Value = Ties> {
    prop_oneof![Just(Ties::Hf), Just(Ties::Raw), Just(Ties::Bytes)]
}

fn count(pattern: &Pattern, special: &[String], documents: &[Vec<u8>]) -> PieceCounts {
    let mut counts = PieceCounts::new(pattern, special).unwrap();
    documents.iter().for_each(|document| counts.add_document(document).unwrap());
    counts
}

fn train(documents: &[Vec<u8>], pattern: Pattern, special: &[&str], n_merges: usize) -> Tokenizer {
    let special: Vec<String> = special.iter().map(|&text| text.to_owned()).collect();
    let mut documents = documents.to_vec();
    documents.push(b"never empty".to_vec());
    let counts = count(&pattern, &special, &documents);
    let options =
        BpeOptions { pattern, special: special.clone(), ..BpeOptions::new(256 + special.len() + n_merges) };
    train_bpe(&counts, &options, &Silent).unwrap().0
}

/// The trainer as the textbook has it: count every pair of every piece anew for each merge.
mod naive {
    use super::*;

    pub type Token = Vec<u8>;

    pub fn merges(counts: &PieceCounts, options: &BpeOptions) -> Vec<(Token, Token)> {
        let mut pieces: Vec<(Vec<Token>, u64)> = counts
            .sorted()
            .into_iter()
            .map(|(piece, count)| (piece.iter().map(|&byte| vec![byte]).collect(), count))
            .collect();
        let mut order = byte_order(options.ties);
        let mut merges = Vec::new();
        while order.len() + options.special.len() < options.vocab_size {
            let mut pairs: BTreeMap<(&Token, &Token), u64> = BTreeMap::new();
            for (symbols, count) in &pieces {
                for pair in symbols.windows(2) {
                    *pairs.entry((&pair[0], &pair[1])).or_insert(0) += count;
                }
            }
            let rank = |token: &Token| order.iter().position(|other| other == token).unwrap();
            let allowed = |left: &Token, right: &Token| {
                let joined = [&left[..], right].concat();
                joined.len() <= options.max_token_length.unwrap_or(usize::MAX)
                    && !options.special.iter().any(|special| special.as_bytes() == joined)
            };
            let best = pairs
                .into_iter()
                .filter(|((left, right), count)| *count >= options.min_count.max(1) && allowed(left, right))
                .max_by(|((left_a, right_a), count_a), ((left_b, right_b), count_b)| {
                    count_a.cmp(count_b).then_with(|| match options.ties {
                        Ties::Bytes => (left_a, right_a).cmp(&(left_b, right_b)),
                        _ => (rank(left_b), rank(right_b)).cmp(&(rank(left_a), rank(right_a))),
                    })
                });
            let Some(((left, right), _)) = best else { break };
            let (left, right) = (left.clone(), right.clone());
            let joined = [&left[..], &right].concat();
            for (symbols, _) in &mut pieces {
                let mut idx = 0;
                while idx + 1 < symbols.len() {
                    if symbols[idx] == left && symbols[idx + 1] == right {
                        symbols.splice(idx..idx + 2, [joined.clone()]);
                    }
                    idx += 1;
                }
            }
            if !order.contains(&joined) {
                order.push(joined);
            }
            merges.push((left, right));
        }
        merges
    }

    /// Tokens in the order of their ids; the bytes come first.
    fn byte_order(ties: Ties) -> Vec<Token> {
        let printing = |byte: &u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
        let mut bytes: Vec<u8> = (0..=255).collect();
        if ties == Ties::Hf {
            bytes.sort_by_key(|byte| !printing(byte));
        }
        bytes.into_iter().map(|byte| vec![byte]).collect()
    }
}

/// Merges as bytes, read back from the file that is written.
fn merges_of(tokenizer: &Tokenizer) -> Vec<(Vec<u8>, Vec<u8>)> {
    let file: serde_json::Value = serde_json::from_str(&tokenizer.to_json()).unwrap();
    let bytes_of = |name: &str| {
        let id = file["model"]["vocab"][name].as_u64().unwrap() as u32;
        tokenizer.token_bytes(id).unwrap().to_vec()
    };
    let merges = file["model"]["merges"].as_array().unwrap().iter();
    merges
        .map(|merge| {
            let (left, right) = merge.as_str().unwrap().split_once(' ').unwrap();
            (bytes_of(left), bytes_of(right))
        })
        .collect()
}

#[test]
fn the_trainer_equals_the_naive_one() {
    let documents = prop::collection::vec(any_document(), 1..8);
    let limits = (0usize..60, 0u64..4, prop::option::of(1usize..6), any::<bool>());
    holds(300, (documents, any_pattern(), any_ties(), limits), |(documents, pattern, ties, limits)| {
        let (n_merges, min_count, max_token_length, with_special) = limits;
        // Letters that merges would spell, so that the rule against it is met.
        let special: Vec<String> =
            if with_special { vec!["ab".into(), "<|end|>".into()] } else { Vec::new() };
        let counts = count(&pattern, &special, &documents);
        prop_assume!(counts.total() > 0);
        let vocab_size = 256 + special.len() + n_merges;
        let options = BpeOptions { vocab_size, pattern, special, ties, min_count, max_token_length };
        let (tokenizer, report) = train_bpe(&counts, &options, &Silent).unwrap();
        let expected = naive::merges(&counts, &options);
        prop_assert_eq!(report.merges, expected.len() as u64);
        prop_assert_eq!(report.ended_early, tokenizer.vocab_size() < options.vocab_size);
        prop_assert_eq!(merges_of(&tokenizer), expected);
        let (plain, plain_report) = train_bpe_plainly(&counts, &options).unwrap();
        prop_assert_eq!((plain.to_json(), plain_report), (tokenizer.to_json(), report));
        Ok(())
    });
}

#[test]
fn decoding_what_was_encoded_gives_the_same_bytes() {
    let documents = prop::collection::vec(any_document(), 0..5);
    holds(300, (documents, any_pattern(), any_document()), |(documents, pattern, text)| {
        let tokenizer = train(&documents, pattern, &["<|end|>"], 80);
        let (mut ordinary, mut with_special) = (Vec::new(), Vec::new());
        tokenizer.encode(&text, &mut ordinary).unwrap();
        tokenizer.encode_with_special(&text, &mut with_special).unwrap();
        prop_assert_eq!(tokenizer.decode(&ordinary).unwrap(), text.clone());
        prop_assert_eq!(tokenizer.decode(&with_special).unwrap(), text);
        Ok(())
    });
}

#[test]
fn any_split_of_the_documents_gives_the_same_tokenizer() {
    let documents = prop::collection::vec((any_document(), 0usize..3), 1..12);
    holds(100, (documents, any_pattern(), any_ties()), |(documents, pattern, ties)| {
        let all: Vec<Vec<u8>> = documents.iter().map(|(document, _)| document.clone()).collect();
        let whole = count(&pattern, &[], &all);
        prop_assume!(whole.total() > 0);
        let mut merged = PieceCounts::new(&pattern, &[]).unwrap();
        for task in [2, 0, 1] {
            let share = documents.iter().filter(|(_, of)| *of == task).map(|(document, _)| document.clone());
            merged.merge(count(&pattern, &[], &share.rev().collect::<Vec<_>>())).unwrap();
        }
        prop_assert_eq!(whole.sorted(), merged.sorted());
        let options = BpeOptions { pattern, ties, ..BpeOptions::new(330) };
        let train = |counts| train_bpe(counts, &options, &Silent).unwrap();
        let ((first, first_report), (second, second_report)) = (train(&whole), train(&merged));
        prop_assert_eq!(first_report, second_report);
        prop_assert_eq!(first.to_json(), second.to_json());
        Ok(())
    });
}

#[test]
fn streamed_text_equals_the_text_decoded_at_once() {
    let ids = prop::collection::vec(0u32..340, 0..60);
    holds(300, (any_document(), any_document(), ids), |(document, text, ids)| {
        let tokenizer = train(&[document], Pattern::Gpt2, &["<|end|>"], 60);
        let mut encoded = Vec::new();
        tokenizer.encode(&text, &mut encoded).unwrap();
        let known = |id: &u32| (*id as usize) < tokenizer.vocab_size();
        // Any ids at all split characters in every way; those of a text give the text.
        for ids in [ids.into_iter().filter(known).collect::<Vec<_>>(), encoded] {
            let mut decoder = tokenizer.decoder();
            let mut streamed = String::new();
            for &id in &ids {
                streamed += decoder.push(id).unwrap();
            }
            streamed += &decoder.finish();
            let bytes = tokenizer.decode(&ids).unwrap();
            prop_assert_eq!(streamed, String::from_utf8_lossy(&bytes));
        }
        Ok(())
    });
}

#[test]
fn a_character_split_across_tokens_appears_only_when_complete() {
    let tokenizer = train(&[], Pattern::Gpt2, &[], 0);
    let mut ids = Vec::new();
    tokenizer.encode("é🐈x".as_bytes(), &mut ids).unwrap();
    assert_eq!(ids.len(), 7);
    let mut decoder = tokenizer.decoder();
    let streamed: Vec<String> = ids.iter().map(|&id| decoder.push(id).unwrap().to_owned()).collect();
    assert_eq!(streamed, ["", "é", "", "", "", "🐈", "x"]);
    assert_eq!(decoder.finish(), "");
}

#[test]
fn special_tokens_are_never_merged_and_never_made_of_text() {
    let special = ["<|end|>", "ab", "<|end|><|end|>"];
    let texts = prop::collection::vec(prop_oneof![few_letters(), Just("<|end|>".to_owned())], 0..6);
    holds(300, texts, |texts| {
        let text = texts.concat();
        let documents: Vec<Vec<u8>> = texts.into_iter().map(String::into_bytes).collect();
        let tokenizer = train(&documents, Pattern::Regex(r"\s+|\S+".to_owned()), &special, 100);
        let is_special = |id: u32| (id as usize) < special.len();
        for id in 0..tokenizer.vocab_size() as u32 {
            let bytes = tokenizer.token_bytes(id).unwrap();
            let whole = special.iter().any(|special| bytes == special.as_bytes());
            prop_assert_eq!(is_special(id), whole);
            // Special tokens are cut out before counting, so no other token has one inside.
            let inside =
                |special: &&str| bytes.windows(special.len()).any(|window| window == special.as_bytes());
            prop_assert!(is_special(id) || !special.iter().any(inside));
        }
        let mut ids = Vec::new();
        tokenizer.encode(text.as_bytes(), &mut ids).unwrap();
        prop_assert!(!ids.iter().any(|&id| is_special(id)));
        ids.clear();
        tokenizer.encode_with_special(text.as_bytes(), &mut ids).unwrap();
        let expected = text.matches("ab").count();
        prop_assert_eq!(ids.iter().filter(|&&id| id == 1).count(), expected);
        Ok(())
    });
}

#[test]
fn a_file_reads_back_as_the_same_tokenizer() {
    let documents = prop::collection::vec(any_document(), 0..5);
    holds(100, (documents, any_pattern(), any_document()), |(documents, pattern, text)| {
        let tokenizer = train(&documents, pattern, &["<|end|>", "Ġé中"], 60);
        let reloaded = Tokenizer::from_json(&tokenizer.to_json()).unwrap();
        prop_assert_eq!(tokenizer.to_json(), reloaded.to_json());
        prop_assert_eq!(tokenizer.special_tokens(), reloaded.special_tokens());
        let (mut first, mut second) = (Vec::new(), Vec::new());
        tokenizer.encode_with_special(&text, &mut first).unwrap();
        reloaded.encode_with_special(&text, &mut second).unwrap();
        prop_assert_eq!(first, second);
        Ok(())
    });
}

#[test]
fn damaged_files_are_refused_or_read_but_never_panic() {
    let tokenizer = train(&[b"the cat sat on the mat the cat".to_vec()], Pattern::Cl100k, &["<|end|>"], 10);
    let json = tokenizer.to_json();
    let damage = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0usize..40), 1..4);
    holds(600, damage, |damage| {
        let mut bytes = json.clone().into_bytes();
        for (at, byte, n_removed) in damage {
            let at = at.index(bytes.len());
            let end = (at + n_removed).min(bytes.len());
            bytes.splice(at..end, [byte]);
        }
        if let Ok(tokenizer) = Tokenizer::from_json(&String::from_utf8_lossy(&bytes)) {
            let mut ids = Vec::new();
            tokenizer.encode(b"the cat<|end|> \xff", &mut ids).unwrap();
            prop_assert_eq!(tokenizer.decode(&ids).unwrap(), b"the cat<|end|> \xff");
        }
        Ok(())
    });
}
