//! The two loops that every short piece goes through: from text to places in a table, and from places to tokens.
//!
//! Between them the memory of a whole batch of places comes near. They are written for the few instructions that a piece may
//! take: nothing is checked a second time, tokens go where they will stay, and one of two keys is chosen, not branched to.
//! The portable code is compiled for the instructions of the machine too, which turns the hashes into vectors.

#![expect(unsafe_code, reason = "loads of text, tables and room whose bounds are checked once a batch")]

use super::Id;
use super::key::{Key, LONG, MAX_KEYED, ONES};
use super::table::{Answer, MAX_TOKENS, PieceTable, TOKEN_BITS};
use crate::scan::{Instructions, MAX_ENDS};

/// The pieces of one batch.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Batch {
    keys: [Key; MAX_ENDS],
    /// Buckets of a table of `n_buckets`.
    places: [u32; MAX_ENDS],
    n_buckets: usize,
    n_pieces: usize,
    instructions: Instructions,
}

impl Batch {
    /// An empty batch.
    pub(super) fn new() -> Self {
        Self {
            keys: [LONG; MAX_ENDS],
            places: [0; MAX_ENDS],
            n_buckets: 0,
            n_pieces: 0,
            instructions: Instructions::detect(),
        }
    }

    /// The key of a piece of the batch.
    pub(super) fn key(&self, idx: usize) -> Key {
        self.keys[idx]
    }

    /// Takes the pieces of valid `text` that start at `start` and end at `ends`, and asks for their places in `table`.
    pub(super) fn ask(&mut self, table: &PieceTable, text: &[u8], start: usize, ends: &[usize]) {
        assert!(ends.len() <= MAX_ENDS, "a batch holds the pieces of one scan");
        self.n_pieces = ends.len();
        self.n_buckets = table.buckets().len();
        match self.instructions {
            Instructions::Portable => self.ask_by(table, text, start, ends),
            // SAFETY: `detect` has found the instructions.
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 => unsafe { self.ask_avx2(table, text, start, ends) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512 => unsafe { self.ask_avx512(table, text, start, ends) },
        }
    }

    /// Appends the tokens of the pieces from `first` on, up to one that `table` does not have or to the end, and says which
    /// that is.
    pub(super) fn answer<I: Id>(&self, table: &PieceTable, first: usize, out: &mut Vec<I>) -> usize {
        assert_eq!(table.buckets().len(), self.n_buckets, "places are those of another table");
        let n_left = self.n_pieces.saturating_sub(first);
        out.reserve((n_left + 1) * MAX_TOKENS);
        match self.instructions {
            // SAFETY: the places are in the table, whose size is asserted, and there is room for all answers.
            Instructions::Portable => unsafe { self.answer_by(table, first, out) },
            // SAFETY: as above, and `detect` has found the instructions.
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 => unsafe { self.answer_avx2(table, first, out) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512 => unsafe { self.answer_avx512(table, first, out) },
        }
    }

    #[inline(always)]
    fn ask_by(&mut self, table: &PieceTable, text: &[u8], start: usize, ends: &[usize]) {
        // Behind the first so many bytes of the text there is a key's worth of it.
        let n_starts = (text.len() + 1).saturating_sub(size_of::<Key>());
        let mut from = start;
        for (&end, key) in ends.iter().zip(&mut self.keys) {
            *key = if from < n_starts {
                let ones = &ONES[(end - from).min(MAX_KEYED + 1)];
                // SAFETY: `text` goes on for a key's worth of bytes.
                unsafe { load(text.as_ptr().add(from), ones) }
            } else {
                Key::of_text(&text[from..end])
            };
            from = end;
        }
        // Sixteen at a time, whether they are there or not: a fixed number becomes vectors.
        let shift = table.shift();
        let (keys, places) = (self.keys.as_chunks::<16>().0, self.places.as_chunks_mut::<16>().0);
        for (keys, places) in keys.iter().zip(places).take(ends.len().div_ceil(16)) {
            for (key, place) in keys.iter().zip(places) {
                *place = (key.hash() >> shift) as u32;
            }
        }
        for &place in &self.places[..ends.len()] {
            prefetch(table, place);
        }
    }

    /// # Safety
    ///
    /// The places must be in `table`, and `out` must have room for an answer of every piece from `first` on, and for one more.
    #[inline(always)]
    unsafe fn answer_by<I: Id>(&self, table: &PieceTable, first: usize, out: &mut Vec<I>) -> usize {
        let n_before = out.len();
        let mut n_tokens = 0;
        let mut idx = first;
        let asked = first.min(self.n_pieces)..self.n_pieces;
        for (key, &place) in self.keys[asked.clone()].iter().zip(&self.places[asked]) {
            // SAFETY: the caller sees to it that places are in the table.
            let bucket = unsafe { table.buckets().get_unchecked(place as usize) };
            // Which of two it is cannot be foretold, so it is no branch: one is chosen, and that is nearly always the right
            // one. Two keys of one bucket that start alike are told apart by whoever asks for what is missing here.
            let chosen = usize::from(bucket.keys[1].0[0] == key.0[0]);
            let answer = &bucket.answers[chosen];
            // SAFETY: the caller sees to it that there is room for this answer.
            unsafe { store(answer, out.as_mut_ptr().add(n_before + n_tokens)) };
            if !is_same(key, &bucket.keys[chosen]) {
                break;
            }
            // The number of tokens is from the table, because what was just written takes longer to read.
            n_tokens += answer.n_tokens();
            idx += 1;
        }
        // SAFETY: so many tokens were written above, since no answer says that it has more than it holds.
        unsafe { out.set_len(n_before + n_tokens) };
        idx
    }
}

#[cfg(target_arch = "x86_64")]
impl Batch {
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    fn ask_avx2(&mut self, table: &PieceTable, text: &[u8], start: usize, ends: &[usize]) {
        self.ask_by(table, text, start, ends);
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi1,bmi2,lzcnt,popcnt")]
    fn ask_avx512(&mut self, table: &PieceTable, text: &[u8], start: usize, ends: &[usize]) {
        self.ask_by(table, text, start, ends);
    }

    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    unsafe fn answer_avx2<I: Id>(&self, table: &PieceTable, first: usize, out: &mut Vec<I>) -> usize {
        // SAFETY: the caller's.
        unsafe { self.answer_by(table, first, out) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi1,bmi2,lzcnt,popcnt")]
    unsafe fn answer_avx512<I: Id>(&self, table: &PieceTable, first: usize, out: &mut Vec<I>) -> usize {
        // SAFETY: the caller's.
        unsafe { self.answer_by(table, first, out) }
    }
}

/// The 16 bytes at `text` with `ones` behind those of the piece.
///
/// # Safety
///
/// The bytes must be readable.
#[inline(always)]
unsafe fn load(text: *const u8, ones: &Key) -> Key {
    // One register, which the compiler does not find by itself: it gathers, which takes twice as long.
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::*;
        let mut key = LONG;
        // SAFETY: SSE2 is part of x86-64, and so many bytes are there: of the text by the caller's word, of keys by their type.
        unsafe {
            let word = _mm_or_si128(_mm_loadu_si128(text.cast()), _mm_load_si128(ones.0.as_ptr().cast()));
            _mm_store_si128(key.0.as_mut_ptr().cast(), word);
        }
        key
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        // SAFETY: the caller's.
        let word = unsafe { text.cast::<[u64; 2]>().read_unaligned() }.map(u64::from_le);
        Key([word[0] | ones.0[0], word[1] | ones.0[1]])
    }
}

/// Writes the tokens of the answer, and something behind them if they are fewer than fit.
///
/// # Safety
///
/// There must be room for it.
#[inline(always)]
unsafe fn store<I: Id>(answer: &Answer, room: *mut I) {
    // One register, which the compiler breaks apart where it sees that the number of tokens is used, too.
    #[cfg(target_arch = "x86_64")]
    let tokens = {
        use std::arch::x86_64::*;
        let mut tokens = [0; MAX_TOKENS];
        // SAFETY: SSE2 is part of x86-64, and all three are arrays of 16 bytes.
        unsafe {
            let words = _mm_loadu_si128(answer.words().as_ptr().cast());
            let tokens_of = _mm_loadu_si128(TOKEN_BITS.as_ptr().cast());
            _mm_storeu_si128(tokens.as_mut_ptr().cast(), _mm_and_si128(words, tokens_of));
        }
        tokens
    };
    #[cfg(not(target_arch = "x86_64"))]
    let tokens: [u32; MAX_TOKENS] = std::array::from_fn(|idx| answer.words()[idx] & TOKEN_BITS[idx]);
    // SAFETY: the caller's.
    unsafe { room.cast::<[I; MAX_TOKENS]>().write_unaligned(tokens.map(I::narrowed)) };
}

/// `a == b` in one register.
#[inline(always)]
fn is_same(a: &Key, b: &Key) -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::*;
        // SAFETY: SSE2 is part of x86-64, and keys have 16 bytes and that alignment.
        unsafe {
            let [a, b] = [a, b].map(|key| _mm_load_si128(key.0.as_ptr().cast()));
            _mm_movemask_epi8(_mm_cmpeq_epi8(a, b)) == 0xffff
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        a == b
    }
}

/// Starts to bring a bucket near.
#[inline(always)]
fn prefetch(table: &PieceTable, place: u32) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: SSE is part of x86-64, and a prefetch neither reads nor writes what the program sees, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(table.buckets().as_ptr().wrapping_add(place as usize).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (table, place);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_answers_as_its_table_does_under_all_instructions() {
        let text: Vec<u8> = (0..3000u32).map(|n| b'a' + (n * n / 7 % 19) as u8).collect();
        // Pieces of every length up to beyond keys.
        let ends: Vec<usize> = (0..200)
            .scan(0, |end, number| {
                *end += 1 + number % 18;
                Some(*end)
            })
            .collect();
        let starts = || [0].into_iter().chain(ends.iter().copied());
        let pieces: Vec<&[u8]> = starts().zip(&ends).map(|(start, &end)| &text[start..end]).collect();
        let mut table = PieceTable::with_room(1 << 12);
        for (piece, number) in pieces.iter().zip(0..).filter(|(_, number)| number % 5 > 0) {
            let tokens = [number, number + 1, number + 2, number + 3];
            let answer = Answer::new(&tokens[..1 + number as usize % 4]).unwrap();
            if let Some(key) = Key::of(piece) {
                assert!(table.insert(key, &answer));
            }
        }
        let tokens = |piece: &&[u8]| {
            let answer = Key::of(piece).and_then(|key| table.get(key));
            answer.map(|answer| answer.tokens().collect::<Vec<u32>>())
        };
        for instructions in Instructions::available() {
            for n_pieces in [1, 2, 17, ends.len()] {
                // The last pieces have nothing behind them.
                let text = &text[..ends[n_pieces - 1]];
                let mut batch = Batch { instructions, ..Batch::new() };
                batch.ask(&table, text, 0, &ends[..n_pieces]);
                let (mut wide, mut narrow) = (vec![7u32], vec![7u16]);
                let mut unknown = Vec::new();
                let mut first = 0;
                while first < n_pieces {
                    let last = batch.answer(&table, first, &mut wide);
                    assert_eq!(batch.answer(&table, first, &mut narrow), last);
                    unknown.extend((last < n_pieces).then_some(last));
                    first = last + 1;
                }
                let known: Vec<Option<Vec<u32>>> = pieces[..n_pieces].iter().map(tokens).collect();
                assert!((0..n_pieces).filter(|&idx| known[idx].is_none()).eq(unknown));
                assert_eq!(wide[1..], known.into_iter().flatten().flatten().collect::<Vec<u32>>());
                assert!(narrow.iter().map(|&id| u32::from(id)).eq(wide));
            }
        }
    }
}
