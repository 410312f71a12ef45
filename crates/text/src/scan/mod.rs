//! Hand-written scanners for the built-in patterns: linear time, the same pieces as the regex engine.
//!
//! Vector instructions turn text into masks of character classes, 64 bytes at a time ([`strip`]). The masks are looked at
//! through a window that starts where a piece starts: a few dozen operations on 64-bit words give the starts of all pieces that
//! the window shows with certainty, and the next window starts at the last of them. So there is no state between windows. What
//! a window does not decide (a piece longer than it, a combination of marks, the last bytes of a text) goes through a walk
//! over characters, one piece at a time.

mod classes;
mod piece;
mod rules;
mod simd;
mod strip;
mod window;

use crate::pattern::Pattern;
use classes::{Class, Classes};
use piece::end_of_piece;
use rules::{Cl100k, Gpt2, O200k, Starts};
pub(crate) use simd::Instructions;
use strip::Strip;
use window::{Masks, WINDOW};

/// Which rules a scanner follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rules {
    Gpt2,
    Cl100k { max_digits: usize },
    O200k,
}

/// Cuts valid UTF-8 into the pieces of a built-in pattern. Clones share their table.
#[derive(Debug, Clone)]
pub(crate) struct Scanner {
    rules: Rules,
    classes: Classes,
    instructions: Instructions,
}

/// The ends of consecutive pieces, a bounded number at a time, and what is needed to find them.
#[derive(Debug)]
pub(crate) struct Ends {
    ends: [usize; ROOM],
    len: usize,
    strip: Strip,
}

/// A batch with so many pieces is full: enough to amortise starting again, few enough for the first cache.
const BATCH: usize = 192;

/// The most ends at a time: the last window adds up to 64 to a batch that is all but full.
pub(crate) const MAX_ENDS: usize = BATCH + WINDOW;

/// A window's ends are written where 64 would fit.
const ROOM: usize = MAX_ENDS + WINDOW;

impl Ends {
    pub(crate) fn new() -> Self {
        Self { ends: [0; ROOM], len: 0, strip: Strip::new() }
    }

    pub(crate) fn as_slice(&self) -> &[usize] {
        &self.ends[..self.len]
    }

    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len >= BATCH
    }

    /// Adds an end; there must be room, which there is unless the batch is full.
    #[inline(always)]
    pub(crate) fn push(&mut self, end: usize) {
        self.ends[self.len] = end;
        self.len += 1;
    }

    /// Adds `base` plus the place of every set bit.
    #[inline(always)]
    fn push_bits(&mut self, base: usize, bits: u64, vectors: impl Vectors) {
        let room = self.ends.get_mut(self.len..).and_then(|room| room.first_chunk_mut());
        if let Some(room) = room {
            vectors.write_places(room, base, bits);
            self.len += bits.count_ones() as usize;
        }
    }
}

/// What vector instructions do to a window.
trait Vectors: Copy {
    /// The masks of the ASCII bytes of a window.
    fn masks(self, window: &[u8; WINDOW]) -> Masks;

    /// Writes `base` plus the place of every set bit, in order. What lies behind them may change.
    fn write_places(self, room: &mut [usize; WINDOW], base: usize, bits: u64);
}

/// Finds the pieces of valid text.
pub(crate) trait FindEnds {
    /// Finds the ends of pieces from `from`, where a piece must start, until the batch is full or the text ends.
    ///
    /// The last end is where to go on.
    fn ends(&self, text: &str, from: usize, ends: &mut Ends);
}

impl FindEnds for Scanner {
    fn ends(&self, text: &str, from: usize, ends: &mut Ends) {
        ends.clear();
        simd::fill(self, text, from, ends);
    }
}

impl Scanner {
    /// A scanner for a built-in pattern; none for a regular expression of the user's.
    pub(crate) fn new(pattern: &Pattern) -> Option<Self> {
        Self::with_instructions(pattern, Instructions::detect())
    }

    /// A scanner that uses `instructions`, which must be among those [available](Instructions::available).
    fn with_instructions(pattern: &Pattern, instructions: Instructions) -> Option<Self> {
        let rules = match pattern {
            Pattern::Gpt2 => Rules::Gpt2,
            Pattern::Cl100k | Pattern::Llama3 => Rules::Cl100k { max_digits: 3 },
            Pattern::Qwen2 => Rules::Cl100k { max_digits: 1 },
            Pattern::O200k => Rules::O200k,
            Pattern::Regex(_) => return None,
        };
        Some(Self { rules, classes: Classes::new(), instructions })
    }

    /// The last place in `text` at which it can be cut into two texts that together have the same pieces, whatever follows.
    ///
    /// That is behind a letter that something other than a letter, mark or apostrophe follows: a run of letters ends there
    /// for every pattern, and a run of whatever follows starts there.
    pub(crate) fn last_cut(&self, text: &str) -> Option<usize> {
        let mut later: Option<char> = None;
        for (at, character) in text.char_indices().rev() {
            let class = self.class_of(character);
            if class.is_letter()
                && let Some(next) = later
            {
                let next_class = self.class_of(next);
                if !next_class.is_letter() && next_class != Class::Mark && next != '\'' {
                    return Some(at + character.len_utf8());
                }
            }
            later = Some(character);
        }
        None
    }

    fn class_of(&self, character: char) -> Class {
        let mut bytes = [0; 4];
        self.classes.at(character.encode_utf8(&mut bytes).as_bytes(), 0).0
    }

    #[inline(always)]
    fn fill(&self, text: &str, from: usize, ends: &mut Ends, vectors: impl Vectors) {
        match self.rules {
            Rules::Gpt2 => self.fill_by(text, from, ends, vectors, Gpt2),
            Rules::Cl100k { max_digits: 1 } => self.fill_by(text, from, ends, vectors, Cl100k::<1>),
            Rules::Cl100k { .. } => self.fill_by(text, from, ends, vectors, Cl100k::<3>),
            Rules::O200k => self.fill_by(text, from, ends, vectors, O200k),
        }
    }

    #[inline(always)]
    fn fill_by<S: Starts>(&self, text: &str, from: usize, ends: &mut Ends, vectors: impl Vectors, rules: S) {
        let text = text.as_bytes();
        let mut start = from;
        while start < text.len() && !ends.is_full() {
            let base = start;
            let mut blocks = ends.strip.lay(&text[base..]);
            ends.strip.add_ahead::<S>(&mut blocks, vectors);
            while !ends.is_full() {
                ends.strip.add::<S>(&mut blocks, vectors);
                let Some((mut masks, mut whole)) = ends.strip.window::<S>(start - base) else { break };
                if masks.wide != 0
                    && let Some(window) = text[start..].first_chunk()
                {
                    whole = masks.add_wide(window, whole, &self.classes);
                }
                let (pieces, known) = rules.starts(&masks, &text[start..], whole);
                // The first piece's own start ends nothing.
                let found = if known == 0 { 0 } else { pieces & (u64::MAX >> (WINDOW - known)) & !1 };
                if found == 0 {
                    start = self.walk(text, start, ends);
                } else {
                    ends.push_bits(start, found, vectors);
                    start += WINDOW - 1 - found.leading_zeros() as usize;
                }
            }
            if text.len() - start < WINDOW {
                start = self.walk(text, start, ends);
            }
        }
    }

    /// Finds the ends of pieces one by one, and says where the last one is.
    ///
    /// What stopped one window would mostly stop the next one too, so this goes past it.
    fn walk(&self, text: &[u8], from: usize, ends: &mut Ends) -> usize {
        let past = text.len().min(from + WINDOW / 2);
        let mut start = from;
        while start < past && !ends.is_full() {
            start = end_of_piece(self.rules, &self.classes, text, start);
            ends.push(start);
        }
        start
    }
}

#[cfg(test)]
mod tests;
