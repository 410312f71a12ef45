//! Exact BPE training on the distinct pieces of a corpus.
//!
//! Every distinct piece starts as its bytes. The pair of adjacent symbols with the highest count, ties broken
//! by a fixed rule, becomes a new token everywhere, and so on until the vocabulary is full. Three structures
//! make that cheap: the count of each pair; for each pair the pieces that may hold it, so that a merge visits
//! only those; and a heap of candidates that is corrected lazily, since a pair's count only falls between
//! being pushed and being popped.
//!
//! Ids are those of Hugging Face's trainer: special tokens, the 256 bytes in the order of their printable
//! characters, then one id a merge. One deviation: a merge that would spell a special token is never made,
//! where theirs would let ordinary text produce the special token's id.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use hashbrown::HashMap;

use super::vocabulary::{Pair, TieKey, Vocabulary};
use super::{Bpe, Parts};
use crate::pattern::Pattern;
use crate::special::Specials;
use crate::{Error, PieceCounts, Progress, Result, Tokenizer};

/// Which of several pairs with the highest count is merged first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ties {
    /// The smallest (id, id), byte ids in the order of Hugging Face's printable alphabet.
    #[default]
    Hf,
    /// The smallest (id, id), byte ids in the order of the bytes.
    Raw,
    /// The greatest (bytes, bytes) in lexicographic order.
    Bytes,
}

/// What to train.
#[derive(Debug, Clone)]
pub struct BpeOptions {
    /// The number of tokens wanted: special tokens, the 256 bytes and merges.
    pub vocab_size: usize,
    /// The pattern that the counts were made with.
    pub pattern: Pattern,
    /// Special tokens, which get the first ids in this order; the counts must have been made with the same
    /// ones.
    pub special: Vec<String>,
    /// The order of pairs with equal counts.
    pub ties: Ties,
    /// Pairs that occur less often are not merged.
    pub min_count: u64,
    /// No token gets longer than this many bytes.
    pub max_token_length: Option<usize>,
}

impl BpeOptions {
    /// A vocabulary of `vocab_size` for the GPT-2 pattern, without special tokens or limits.
    pub fn new(vocab_size: usize) -> Self {
        Self {
            vocab_size,
            pattern: Pattern::Gpt2,
            special: Vec::new(),
            ties: Ties::Hf,
            min_count: 1,
            max_token_length: None,
        }
    }
}

/// What training did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrainReport {
    /// Merges made.
    pub merges: u64,
    /// No pair was left to merge, so the vocabulary is smaller than asked for.
    pub ended_early: bool,
    /// Distinct pieces trained on.
    pub distinct_pieces: u64,
    /// Pieces trained on.
    pub total_pieces: u64,
}

/// Learns a BPE tokenizer from the counts of a corpus.
///
/// The result depends on the counts and options alone.
pub fn train_bpe(
    counts: &PieceCounts,
    options: &BpeOptions,
    progress: &dyn Progress,
) -> Result<(Tokenizer, TrainReport)> {
    let specials = Specials::numbered(&options.special)?;
    counts.check_settings(&options.pattern, options.special.iter().map(String::as_str))?;
    let n_fixed = options.special.len() + 256;
    if options.vocab_size < n_fixed {
        return Err(Error::VocabularyTooSmall {
            wanted: options.vocab_size,
            minimum: n_fixed,
            needs: format!("256 bytes and {} special tokens must fit", options.special.len()),
        });
    }
    if u32::try_from(options.vocab_size).is_err() {
        return Err(Error::VocabularyTooLarge(options.vocab_size));
    }
    if counts.total() == 0 {
        return Err(Error::EmptyCorpus("pieces"));
    }

    let n_wanted = options.vocab_size - n_fixed;
    let mut training = Training::new(counts, options)?;
    progress.start("merge", Some(n_wanted as u64), "merges");
    let mut merges = Vec::new();
    while training.vocabulary.tokens.len() < options.vocab_size {
        let Some(pair) = training.pop_best(options.min_count) else {
            break;
        };
        training.merge(pair)?;
        merges.push(pair);
        progress.advance(1);
    }
    progress.finish();

    let report = TrainReport {
        merges: merges.len() as u64,
        ended_early: training.vocabulary.tokens.len() < options.vocab_size,
        distinct_pieces: counts.distinct(),
        total_pieces: counts.total(),
    };
    let tokens = training.vocabulary.tokens.iter().map(|token| Some((**token).into())).collect();
    let pattern = options.pattern.clone();
    let bpe = Bpe::new(Parts { pattern, specials, tokens, merges, ignore_merges: false })?;
    Ok((Tokenizer::from_bpe(bpe), report))
}

struct Training {
    vocabulary: Vocabulary,
    ties: Ties,
    pieces: Vec<Piece>,
    pair_counts: HashMap<Pair, u64>,
    /// Indices of the pieces that held the pair when it arose; some may not hold it any more.
    pieces_of_pair: HashMap<Pair, Vec<u32>>,
    /// At least one entry, never with too small a count, for every pair that may be merged.
    candidates: BinaryHeap<Candidate>,
}

struct Piece {
    symbols: Vec<u32>,
    count: u64,
}

impl Training {
    fn new(counts: &PieceCounts, options: &BpeOptions) -> Result<Self> {
        let vocabulary = Vocabulary::new(options)?;
        let mut training = Self {
            vocabulary,
            ties: options.ties,
            pieces: Vec::new(),
            pair_counts: HashMap::new(),
            pieces_of_pair: HashMap::new(),
            candidates: BinaryHeap::new(),
        };
        for (bytes, count) in counts.sorted() {
            let symbols: Vec<u32> =
                bytes.iter().map(|&b| training.vocabulary.byte_ids[usize::from(b)]).collect();
            for pair in symbols.windows(2).map(|window| (window[0], window[1])) {
                training.add_occurrences(pair, count)?;
            }
            let piece_idx = training.pieces.len() as u32;
            for pair in symbols.windows(2).map(|window| (window[0], window[1])) {
                note_piece(&mut training.pieces_of_pair, pair, piece_idx);
            }
            training.pieces.push(Piece { symbols, count });
        }
        let mut pairs: Vec<Pair> = training.pair_counts.keys().copied().collect();
        pairs.sort_unstable();
        pairs.into_iter().for_each(|pair| training.offer(pair));
        Ok(training)
    }

    /// Takes the pair to merge next, or `None` when none is left that occurs `min_count` times.
    fn pop_best(&mut self, min_count: u64) -> Option<Pair> {
        while let Some(candidate) = self.candidates.pop() {
            let count = self.pair_counts.get(&candidate.pair).copied().unwrap_or(0);
            if count == candidate.count {
                return (count >= min_count.max(1)).then_some(candidate.pair);
            }
            if count > 0 {
                self.candidates.push(Candidate { count, ..candidate });
            }
        }
        None
    }

    /// Replaces the pair by its token in every piece and corrects all counts.
    fn merge(&mut self, pair: Pair) -> Result<()> {
        let result = self.vocabulary.token_of(pair);
        let mut changes: HashMap<Pair, i128> = HashMap::new();
        for piece_idx in self.pieces_of_pair.remove(&pair).unwrap_or_default() {
            let Piece { symbols, count } = &mut self.pieces[piece_idx as usize];
            let count = i128::from(*count);
            replace(symbols, pair, result, |changed, occurrences| {
                *changes.entry(changed).or_insert(0) += count * i128::from(occurrences);
                if occurrences > 0 {
                    note_piece(&mut self.pieces_of_pair, changed, piece_idx);
                }
            });
        }
        let mut changes: Vec<(Pair, i128)> = changes.into_iter().filter(|&(_, change)| change != 0).collect();
        changes.sort_unstable();
        for (changed, change) in changes {
            let count = self.pair_counts.entry(changed).or_insert(0);
            *count = u64::try_from(i128::from(*count) + change)
                .map_err(|_| Error::CountOverflow(format!("the pair {changed:?}")))?;
            if *count == 0 {
                self.pair_counts.remove(&changed);
            }
            if change > 0 {
                self.offer(changed);
            }
        }
        Ok(())
    }

    fn add_occurrences(&mut self, pair: Pair, amount: u64) -> Result<()> {
        let count = self.pair_counts.entry(pair).or_insert(0);
        *count =
            count.checked_add(amount).ok_or_else(|| Error::CountOverflow(format!("the pair {pair:?}")))?;
        Ok(())
    }

    /// Puts the pair among the candidates with its present count, unless its token may not exist.
    fn offer(&mut self, pair: Pair) {
        let Some(&count) = self.pair_counts.get(&pair) else {
            return;
        };
        if self.vocabulary.allows(pair) {
            let tie = self.vocabulary.tie_key(pair, self.ties);
            self.candidates.push(Candidate { count, tie, pair });
        }
    }
}

/// Pieces are visited in ascending order, so a repeated index is always the last one.
fn note_piece(pieces_of_pair: &mut HashMap<Pair, Vec<u32>>, pair: Pair, piece_idx: u32) {
    let pieces = pieces_of_pair.entry(pair).or_default();
    if pieces.last() != Some(&piece_idx) {
        pieces.push(piece_idx);
    }
}

/// Replaces the pair from left to right; `change` hears how often other pairs, and the pair, come and go.
fn replace(symbols: &mut Vec<u32>, (left, right): Pair, result: u32, mut change: impl FnMut(Pair, i8)) {
    let mut read = 0;
    let mut written = 0;
    while read < symbols.len() {
        if symbols[read] != left || symbols.get(read + 1) != Some(&right) {
            symbols[written] = symbols[read];
            read += 1;
            written += 1;
            continue;
        }
        change((left, right), -1);
        if written > 0 {
            let before = symbols[written - 1];
            change((before, left), -1);
            change((before, result), 1);
        }
        if let Some(&after) = symbols.get(read + 2) {
            change((right, after), -1);
            change((result, after), 1);
        }
        symbols[written] = result;
        read += 2;
        written += 1;
    }
    symbols.truncate(written);
}

/// A pair with the count it had when it was pushed; the greatest is merged first.
struct Candidate {
    count: u64,
    tie: TieKey,
    pair: Pair,
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        self.count.cmp(&other.count).then_with(|| self.tie.cmp(&other.tie))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Candidate {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Silent;
    use std::sync::Mutex;

    fn counts(text: &str, special: &[String]) -> PieceCounts {
        let mut counts = PieceCounts::new(&Pattern::Gpt2, special).unwrap();
        counts.add_document(text.as_bytes()).unwrap();
        counts
    }

    fn tokens(text: &str, options: &BpeOptions) -> Vec<String> {
        let (tokenizer, _) = train_bpe(&counts(text, &options.special), options, &Silent).unwrap();
        let first = options.special.len() as u32 + 256;
        (first..tokenizer.vocab_size() as u32)
            .map(|id| String::from_utf8_lossy(tokenizer.token_bytes(id).unwrap()).into_owned())
            .collect()
    }

    #[test]
    fn tie_rules_differ_where_they_should() {
        // All pairs occur once. "!" precedes NUL in the printable alphabet; as bytes it is the other way
        // round.
        let check = |ties, expected: &str| {
            let options = BpeOptions { ties, pattern: Pattern::Gpt2, ..BpeOptions::new(257) };
            assert_eq!(tokens("!~\0#", &options), [expected], "{ties:?}");
        };
        check(Ties::Hf, "!~");
        check(Ties::Raw, "\0#");
        check(Ties::Bytes, "~\0");
    }

    #[test]
    fn a_run_of_one_letter_merges_from_the_left() {
        assert_eq!(tokens("aaaaa", &BpeOptions::new(300)), ["aa", "aaa", "aaaaa"]);
    }

    #[test]
    fn training_ends_early_when_no_pair_is_left() {
        let (_, report) = train_bpe(&counts("abc abc", &[]), &BpeOptions::new(9999), &Silent).unwrap();
        assert_eq!(report, TrainReport { merges: 3, ended_early: true, distinct_pieces: 2, total_pieces: 2 });
    }

    #[test]
    fn settings_that_cannot_work_are_errors_that_say_why() {
        let fails =
            |counts: &PieceCounts, options: BpeOptions| train_bpe(counts, &options, &Silent).unwrap_err();
        let special = vec!["<|x|>".to_owned()];
        let small = BpeOptions { special: special.clone(), ..BpeOptions::new(256) };
        let error = fails(&counts("a", &special), small);
        assert!(error.to_string().ends_with("ask for at least 257"), "{error}");
        let error = fails(&counts("", &[]), BpeOptions::new(300));
        assert!(matches!(error, Error::EmptyCorpus(_)), "{error}");
        let error = fails(&counts("a", &[]), BpeOptions { pattern: Pattern::Cl100k, ..BpeOptions::new(300) });
        assert!(matches!(error, Error::CountsDiffer { .. }), "{error}");
        for text in ["a", "Ġ", ""] {
            let special = vec![text.to_owned()];
            let counts = PieceCounts::new(&Pattern::Gpt2, &special);
            let error = match counts {
                Ok(mut counts) => {
                    counts.add_document(b"bcd").unwrap();
                    fails(&counts, BpeOptions { special, ..BpeOptions::new(300) })
                }
                Err(error) => error,
            };
            assert!(matches!(error, Error::BadSpecial { .. }), "{error}");
        }
    }

    #[test]
    fn progress_hears_of_every_merge() {
        #[derive(Default)]
        struct Heard(Mutex<Vec<String>>);
        impl Progress for Heard {
            fn start(&self, phase: &str, total: Option<u64>, unit: &str) {
                self.0.lock().unwrap().push(format!("{phase} {total:?} {unit}"));
            }
            fn advance(&self, amount: u64) {
                self.0.lock().unwrap().push(amount.to_string());
            }
            fn finish(&self) {
                self.0.lock().unwrap().push("finish".to_owned());
            }
        }
        let heard = Heard::default();
        train_bpe(&counts("abc", &[]), &BpeOptions::new(258), &heard).unwrap();
        assert_eq!(heard.0.into_inner().unwrap(), ["merge Some(2) merges", "1", "1", "finish"]);
    }
}
