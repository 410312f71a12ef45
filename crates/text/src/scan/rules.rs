//! Where pieces start inside a window, by arithmetic on its masks.
//!
//! A window starts where a piece starts, so nothing before it matters. Each rule sets a bit where a piece starts and says up
//! to which byte that is certain; what lies behind depends on text that the window does not show, or is left to
//! [`end_of_piece`](super::piece::end_of_piece).

use super::piece::contraction;
use super::window::{Masks, WINDOW};

/// The rules of a pattern.
pub(super) trait Starts: Copy {
    /// Whether they tell newlines from other white space.
    const TELLS_NEWLINES: bool;
    /// Whether they tell lower from upper case, and slashes from others.
    const TELLS_CASES: bool;

    /// The starts of pieces in a window of `text`, whose masks show `whole` bytes, and below which byte they are certain.
    fn starts(self, masks: &Masks, text: &[u8], whole: usize) -> (u64, usize);
}

/// [`gpt2`]
#[derive(Clone, Copy)]
pub(super) struct Gpt2;

impl Starts for Gpt2 {
    const TELLS_NEWLINES: bool = false;
    const TELLS_CASES: bool = false;

    #[inline(always)]
    fn starts(self, masks: &Masks, text: &[u8], whole: usize) -> (u64, usize) {
        gpt2(masks, text, whole)
    }
}

/// [`cl100k`]
#[derive(Clone, Copy)]
pub(super) struct Cl100k<const MAX_DIGITS: usize>;

impl<const MAX_DIGITS: usize> Starts for Cl100k<MAX_DIGITS> {
    const TELLS_NEWLINES: bool = true;
    const TELLS_CASES: bool = false;

    #[inline(always)]
    fn starts(self, masks: &Masks, text: &[u8], whole: usize) -> (u64, usize) {
        cl100k(masks, text, whole, MAX_DIGITS)
    }
}

/// [`o200k`]
#[derive(Clone, Copy)]
pub(super) struct O200k;

impl Starts for O200k {
    const TELLS_NEWLINES: bool = true;
    const TELLS_CASES: bool = true;

    #[inline(always)]
    fn starts(self, masks: &Masks, text: &[u8], whole: usize) -> (u64, usize) {
        o200k(masks, text, whole)
    }
}

/// How far ahead a rule looks from a byte: over the longest contraction, and over the rest of a character and one more.
const AHEAD: usize = 4;

/// Bits below `count`.
#[inline(always)]
fn below(count: usize) -> u64 {
    if count >= WINDOW { u64::MAX } else { (1 << count) - 1 }
}

/// The bits of `mask` whose byte before is not set.
#[inline(always)]
fn starts(mask: u64) -> u64 {
    mask & !(mask << 1)
}

/// The last white space characters before something else: `last` marks their last bytes, the result their first.
#[inline(always)]
fn first_bytes(last: u64, inner: u64) -> u64 {
    let mut at = last;
    if inner == 0 {
        return at;
    }
    // No white space has more than three bytes.
    for _ in 0..2 {
        at = at & !inner | (at & inner) >> 1;
    }
    at
}

/// Goes through the set bits, lowest first.
#[inline(always)]
fn for_each_bit(mut mask: u64, mut visit: impl FnMut(usize)) {
    while mask != 0 {
        visit(mask.trailing_zeros() as usize);
        mask &= mask - 1;
    }
}

/// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
#[inline(always)]
fn gpt2(masks: &Masks, text: &[u8], whole: usize) -> (u64, usize) {
    let Masks { letter, number, space, blank, .. } = *masks;
    let known = whole - AHEAD;
    let some = letter | number | space;
    let other = !some & below(whole);
    let visible = (letter | number | other) & below(whole);
    let other_starts = starts(other);
    let run_starts = starts(letter) | starts(number) | other_starts;
    let last_space = first_bytes(space & visible >> 1, masks.inner);
    let mut pieces = run_starts & !(blank << 1) | starts(space) | last_space;
    let candidates = masks.apostrophe & other_starts & !(blank << 1) & letter >> 1 & below(known);
    for_each_bit(candidates, |at| {
        let n_bytes = contraction(text, at, false);
        if n_bytes > 0 {
            pieces = pieces & !(2 << at) | 1 << (at + n_bytes);
        }
    });
    (pieces, known)
}

/// What the patterns from cl100k on have in common: everything but the insides of words.
///
/// Gives the starts of pieces, up to where they are certain, and the starts of runs of other characters that no blank leads,
/// where an apostrophe may begin a contraction.
#[inline(always)]
fn newer(masks: &Masks, whole: usize, slash: bool) -> (u64, usize, u64) {
    let Masks { letter, number, space, blank, newline, inner, .. } = *masks;
    let mut known = whole - AHEAD;
    let other = !(letter | number | space) & below(whole);
    let visible = letter | number | other;
    let level = space & !newline;

    // One character that is neither letter, number nor newline may lead letters, unless a blank leads it.
    let led_starts = starts(other) & !(blank << 1);
    let mut after_first = led_starts << 1;
    if inner != 0 {
        for _ in 0..3 {
            after_first = after_first & !inner | (after_first & inner) << 1;
        }
    }
    let letter_starts = starts(letter) & !(level << 1) & !after_first;

    // Newlines after other characters belong to them.
    let taken = {
        let seeds = newline & other << 1;
        newline & !newline.wrapping_add(seeds)
    };
    if slash {
        let unclear = taken << 1 & masks.slash;
        known = known.min(unclear.trailing_zeros() as usize);
    }
    let left = space & !taken;

    // White space up to its last newline is a piece. Of what follows the last newline, the last character stands apart.
    let indents = level & newline << 1;
    let behind = level.wrapping_add(indents) & !level;
    let mut indent_starts = indents;
    if behind & newline != 0 {
        indent_starts = 0;
        for_each_bit(indents, |at| {
            let end = at + (!(level >> at)).trailing_zeros() as usize;
            if end >= whole {
                known = known.min(at);
            } else if newline >> end & 1 == 0 {
                indent_starts |= 1 << at;
            }
        });
    } else if indents != 0 {
        // The last run of white space may reach the end of the window.
        let at = (WINDOW - 1) - indents.leading_zeros() as usize;
        let end = at + (!(level >> at)).trailing_zeros() as usize;
        if end >= whole {
            known = known.min(at);
        }
    }
    let last_level = first_bytes(level & visible >> 1, inner);

    let pieces = letter_starts | starts(other) & !(blank << 1) | starts(left) | indent_starts | last_level;
    (pieces, known, led_starts)
}

/// The starts of numbers that are cut every three digits, and where that is not certain.
#[inline(always)]
fn threes(masks: &Masks) -> (u64, usize) {
    let number = masks.number;
    let in_run = number & number << 1 & number << 2 & number << 3;
    let mut pieces = 0;
    let mut at = starts(number);
    while at != 0 {
        pieces |= at;
        at = at << 3 & in_run;
    }
    // Digits of several bytes are counted one by one elsewhere.
    (pieces, (number & masks.wide).trailing_zeros() as usize)
}

/// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
#[inline(always)]
fn cl100k(masks: &Masks, text: &[u8], whole: usize, max_digits: usize) -> (u64, usize) {
    let (mut pieces, mut known, led_starts) = newer(masks, whole, false);
    if max_digits == 1 {
        pieces |= masks.number & !masks.inner;
    } else {
        let (numbers, certain) = threes(masks);
        pieces |= numbers;
        known = known.min(certain);
    }
    let candidates = masks.apostrophe & led_starts & masks.letter >> 1 & below(known);
    for_each_bit(candidates, |at| {
        let n_bytes = contraction(text, at, true);
        if n_bytes > 0 {
            pieces |= 1 << (at + n_bytes);
        }
    });
    (pieces, known)
}

/// cl100k, with words cut where lower case turns into upper case and contractions that end words.
#[inline(always)]
fn o200k(masks: &Masks, text: &[u8], whole: usize) -> (u64, usize) {
    let (mut pieces, mut known, _) = newer(masks, whole, true);
    let (numbers, certain) = threes(masks);
    pieces |= numbers | masks.upper & masks.lower << 1 & !masks.inner;
    // Marks, and upper case after letters without case, depend on what the whole word has.
    let unclear = masks.mark | masks.upper & masks.caseless << 1;
    known = known.min(certain).min(unclear.trailing_zeros() as usize);
    let candidates = masks.apostrophe & masks.letter << 1 & masks.letter >> 1 & below(known);
    let mut end_of_last = WINDOW;
    for_each_bit(candidates, |at| {
        // An apostrophe right after a contraction starts a piece of its own.
        let n_bytes = if at == end_of_last { 0 } else { contraction(text, at, true) };
        if n_bytes > 0 {
            end_of_last = at + n_bytes;
            pieces = pieces & !(below(n_bytes) << at) | 1 << end_of_last;
        }
    });
    (pieces, known)
}
