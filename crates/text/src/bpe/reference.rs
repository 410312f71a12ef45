//! The trainer as plain data structures: the oracle of [`learn_bpe`](crate::learn_bpe), outside of the product's path.
//!
//! Three structures: the count of each pair; for each pair the pieces that may hold it, so that a merge visits only those; and
//! a heap of candidates that is corrected lazily, since a pair's count only falls between being pushed and being popped.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use hashbrown::HashMap;

use super::train::{BpeOptions, Ties, TrainReport, finish, prepare};
use super::vocabulary::{Pair, TieKey, Vocabulary};
use crate::{Error, PieceCounts, Result, Tokenizer};

/// Learns what [`train_bpe`](crate::train_bpe) learns, in more time and memory.
pub fn train_bpe(counts: &PieceCounts, options: &BpeOptions) -> Result<(Tokenizer, TrainReport)> {
    counts.check_settings(&options.pattern, options.special.iter().map(String::as_str))?;
    prepare(options, counts.total())?;
    let mut training = Training::new(counts, options)?;
    let mut merges = Vec::new();
    while training.vocabulary.tokens.len() < options.vocab_size {
        let Some(pair) = training.pop_best(options.min_count) else {
            break;
        };
        training.merge(pair)?;
        merges.push(pair);
    }
    let report = TrainReport {
        merges: merges.len() as u64,
        ended_early: training.vocabulary.tokens.len() < options.vocab_size,
        distinct_pieces: counts.distinct(),
        total_pieces: counts.total(),
    };
    Ok((finish(options, &training.vocabulary, merges)?, report))
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
