//! From text to tokens at the speed of one look into memory a piece.
//!
//! Pieces are found a batch at a time, turned into keys whose places in a table are asked for, and looked up when they have
//! come near. There are two tables: a small one holds what came last, a larger one what came at all. Both start with the
//! vocabulary and the pieces that are expected, and let go of the old for the new. What neither has is merged: short pieces by
//! rank, long ones by [`backtrack`], if the merges allow it.

mod backtrack;
mod cache;
mod table;

use std::sync::{Arc, Mutex, PoisonError};

use hashbrown::HashMap;

use super::merge::MergeTable;
use crate::Result;
use crate::count::key::{MAX_PACKED, Packed, hash_packed, pack};
use crate::scan::{Ends, FindEnds};
use crate::splitter::Splitter;
use crate::stretches::{Stretch, stretches};
use backtrack::{Backtracker, PairMemo};
use cache::{LongCache, ShortCache};
use table::{Answer, MAX_TOKENS, PieceTable};

/// A number that holds a token id.
pub(crate) trait Id: Copy {
    /// The id, which is known to fit.
    fn narrowed(id: u32) -> Self;
}

impl Id for u32 {
    #[inline(always)]
    fn narrowed(id: u32) -> Self {
        id
    }
}

impl Id for u16 {
    #[inline(always)]
    fn narrowed(id: u32) -> Self {
        id as u16
    }
}

/// What the tokens of a piece depend on.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) tokens: Vec<Option<Box<[u8]>>>,
    /// Pairs of ids, in order of rank.
    pub(super) merges: Vec<(u32, u32)>,
    pub(super) table: MergeTable,
    /// How many tokens are not special.
    pub(super) n_ordinary: usize,
    /// Pieces that are a token whatever the merges say.
    pub(super) whole_pieces: HashMap<Box<[u8]>, u32>,
}

impl Model {
    /// Appends the tokens of a piece the way that is right for any vocabulary.
    pub(super) fn encode_piece(&self, piece: &[u8], out: &mut Vec<u32>) {
        match self.whole_pieces.get(piece) {
            Some(&id) => out.push(id),
            None => self.table.encode_piece(piece, out),
        }
    }
}

impl Model {
    /// Whether every piece has the same tokens in both; `false` also where merges that are not closed leave it open.
    pub(super) fn encodes_as(&self, other: &Self) -> bool {
        let merges = |model: &Self| {
            Backtracker::new(&model.tokens, &model.merges, &model.table).map(|tracker| tracker.merges())
        };
        // A token that merges make of its bytes is what its piece becomes, whether or not whole pieces are looked up.
        let are_made =
            |model: &Self, n_made: usize| !model.whole_pieces.is_empty() || n_made + 256 == model.n_ordinary;
        match (merges(self), merges(other)) {
            (Some(ours), Some(theirs)) => {
                self.tokens == other.tokens
                    && ours == theirs
                    && are_made(self, ours.len())
                    && are_made(other, ours.len())
            }
            _ => false,
        }
    }
}

/// What all encoders of one vocabulary start with.
#[derive(Debug)]
struct Tables {
    hot: PieceTable,
    known: PieceTable,
    /// `None` if the merges are not closed.
    backtracker: Option<Backtracker>,
}

/// Places of the small table: 4 MiB, since what is asked for early may come from the third cache.
const MAX_HOT: usize = 1 << 16;

/// Places of the large table: 8 MiB.
const MAX_KNOWN: usize = 1 << 17;

impl Tables {
    fn new(model: &Model, frequent: &[Box<[u8]>]) -> Self {
        let n_pieces = frequent.len() + model.tokens.len();
        let mut hot = PieceTable::new(n_pieces.next_power_of_two().clamp(1 << 8, MAX_HOT));
        let mut known = PieceTable::new(n_pieces.next_power_of_two().clamp(1 << 8, MAX_KNOWN));
        let vocabulary = model.tokens.iter().flatten();
        let mut tokens = Vec::new();
        for piece in frequent.iter().chain(vocabulary).filter(|piece| (1..=MAX_PACKED).contains(&piece.len()))
        {
            tokens.clear();
            model.encode_piece(piece, &mut tokens);
            if let Some(answer) = table::answer(&tokens) {
                let key = pack(piece, 0, piece.len());
                hot.insert(key, hash_packed(key), &answer);
                known.insert(key, hash_packed(key), &answer);
            }
        }
        let backtracker = Backtracker::new(&model.tokens, &model.merges, &model.table);
        Self { hot, known, backtracker }
    }
}

/// Encoders that nobody uses at the moment, and the tables of all of them, which the first use makes.
#[derive(Debug, Default)]
pub(super) struct Pool {
    inner: Mutex<Idle>,
}

#[derive(Debug, Default)]
struct Idle {
    /// Pieces known to be frequent, the most frequent first.
    frequent: Vec<Box<[u8]>>,
    tables: Option<Arc<Tables>>,
    encoders: Vec<Box<Encoder>>,
}

impl Pool {
    /// Lets the table start with these pieces, the most frequent first.
    pub(super) fn expect(&self, frequent: Vec<Box<[u8]>>) {
        let mut idle = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        *idle = Idle { frequent, ..Idle::default() };
    }

    /// Runs `work` with an encoder of its own. A panic there loses the encoder and nothing else.
    pub(super) fn with_encoder<T>(&self, model: &Model, work: impl FnOnce(&mut Encoder) -> T) -> T {
        let lock = || self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let mut encoder = {
            let mut idle = lock();
            match idle.encoders.pop() {
                Some(encoder) => encoder,
                None => {
                    let Idle { frequent, tables, .. } = &mut *idle;
                    let tables = tables.get_or_insert_with(|| Arc::new(Tables::new(model, frequent)));
                    Box::new(Encoder::new(Arc::clone(tables)))
                }
            }
        };
        let result = work(&mut encoder);
        lock().encoders.push(encoder);
        result
    }
}

/// Pieces between asking for their places and looking there.
const AHEAD: usize = 64;

/// Room for the tokens of [`AHEAD`] short pieces, however many they have, and for the end of the last copy.
const BUFFERED: usize = AHEAD * MAX_PACKED + size_of::<Answer>();

/// What one thread needs to encode.
#[derive(Debug)]
pub(super) struct Encoder {
    tables: Arc<Tables>,
    ends: Ends,
    batch: Batch,
    memory: Memory,
}

/// Where one thread works.
#[derive(Debug)]
struct Batch {
    /// The key of each piece, and its place in the small table.
    keys: [(Packed, usize); AHEAD],
    /// Tokens that are not in the caller's memory yet.
    buffer: [u32; BUFFERED],
}

/// What one thread remembers.
#[derive(Debug)]
struct Memory {
    hot: PieceTable,
    known: PieceTable,
    /// Short pieces of many tokens.
    short: ShortCache,
    long: LongCache,
    memo: PairMemo,
    /// Tokens of the piece in work.
    scratch: Vec<u32>,
}

/// A key that no piece has: that of pieces too long for one.
const LONG: Packed = Packed::MAX;

impl Encoder {
    fn new(tables: Arc<Tables>) -> Self {
        let memory = Memory {
            hot: tables.hot.clone(),
            known: tables.known.clone(),
            short: ShortCache::new(),
            long: LongCache::new(),
            memo: PairMemo::new(),
            scratch: Vec::new(),
        };
        let batch = Batch { keys: [(0, 0); AHEAD], buffer: [0; BUFFERED] };
        Self { tables, ends: Ends::new(), batch, memory }
    }

    /// Appends the tokens of `text`.
    pub(super) fn encode<I: Id>(
        &mut self,
        model: &Model,
        splitter: &Splitter,
        text: &[u8],
        out: &mut Vec<I>,
    ) -> Result<()> {
        if let Some(scanner) = splitter.scanner() {
            self.encode_cut_by(model, scanner, text, out);
            return Ok(());
        }
        let (mut work, _) = self.work(model, out);
        splitter.for_each_piece(text, |piece| {
            work.encode_piece(piece);
            Ok(())
        })
    }

    /// Appends the tokens of `text`, whose pieces `scanner` finds; stretches that are no text are pieces.
    pub(super) fn encode_cut_by<I: Id>(
        &mut self,
        model: &Model,
        scanner: &impl FindEnds,
        text: &[u8],
        out: &mut Vec<I>,
    ) {
        let (mut work, ends) = self.work(model, out);
        for stretch in stretches(text) {
            match stretch {
                Stretch::Text(text) => work.encode_text(scanner, ends, text),
                Stretch::Invalid(bytes) => work.encode_piece(bytes),
            }
        }
    }

    fn work<'w, I: Id>(&'w mut self, model: &'w Model, out: &'w mut Vec<I>) -> (Work<'w, I>, &'w mut Ends) {
        let Self { tables, ends, batch, memory } = self;
        (Work { model, backtracker: tables.backtracker.as_ref(), batch, memory, out }, ends)
    }
}

/// One text in work.
struct Work<'w, I> {
    model: &'w Model,
    backtracker: Option<&'w Backtracker>,
    batch: &'w mut Batch,
    memory: &'w mut Memory,
    out: &'w mut Vec<I>,
}

impl<I: Id> Work<'_, I> {
    fn encode_text(&mut self, scanner: &impl FindEnds, ends: &mut Ends, text: &str) {
        let mut start = 0;
        while start < text.len() {
            scanner.ends(text, start, ends);
            for ends in ends.as_slice().chunks(AHEAD) {
                self.encode_pieces(text.as_bytes(), start, ends);
                start = ends.last().copied().unwrap_or(start);
            }
        }
    }

    /// Appends the tokens of any piece.
    fn encode_piece(&mut self, piece: &[u8]) {
        self.encode_pieces(piece, 0, &[piece.len()]);
    }

    /// Appends the tokens of the pieces of `text`, at most [`AHEAD`], that start at `start` and end at `ends`.
    #[inline(always)]
    fn encode_pieces(&mut self, text: &[u8], start: usize, ends: &[usize]) {
        self.ask(text, start, ends);
        let Self { model, backtracker, batch: Batch { keys, buffer }, memory, out } = self;
        let mut n_buffered = 0;
        let mut from = start;
        for (&end, &(key, place)) in ends.iter().zip(&*keys) {
            // There is room for the longest answer of every piece, so this is never `None`.
            let room = buffer.get_mut(n_buffered..).and_then(|room| room.first_chunk_mut());
            if let Some(room) = room
                && let Some(n_tokens) = memory.hot.get(place, key, room)
            {
                n_buffered += n_tokens;
            } else if key == LONG {
                write(&buffer[..n_buffered], out);
                n_buffered = 0;
                write(memory.encode_long(model, *backtracker, &text[from..end]), out);
            } else {
                n_buffered += memory.encode_short(model, key, &text[from..end], &mut buffer[n_buffered..]);
            }
            from = end;
        }
        write(&buffer[..n_buffered], out);
    }

    /// Packs the pieces, and asks for their places in the small table.
    #[inline(always)]
    fn ask(&mut self, text: &[u8], start: usize, ends: &[usize]) {
        let hot = &self.memory.hot;
        let mut from = start;
        for (&end, key) in ends.iter().zip(&mut self.batch.keys) {
            let n_bytes = end - from;
            *key = if n_bytes <= MAX_PACKED {
                let packed = pack(text, from, n_bytes);
                (packed, hot.place(hash_packed(packed)))
            } else {
                (LONG, 0)
            };
            hot.prefetch(key.1);
            from = end;
        }
    }
}

impl Memory {
    /// Writes the tokens of a piece that the small table does not have, and says how many there are.
    #[inline(never)]
    fn encode_short(&mut self, model: &Model, key: Packed, piece: &[u8], room: &mut [u32]) -> usize {
        let Self { hot, known, short, scratch, .. } = self;
        let hash = hash_packed(key);
        let mut answer = [0; MAX_TOKENS + 1];
        if let Some(n_tokens) = known.get_displaced(key, hash, &mut answer) {
            hot.push(key, hash, &answer);
            room[..answer.len()].copy_from_slice(&answer);
            return n_tokens;
        }
        if let Some(tokens) = short.get(key, hash) {
            room[..tokens.len()].copy_from_slice(tokens);
            return tokens.len();
        }
        scratch.clear();
        model.encode_piece(piece, scratch);
        if scratch.is_empty() {
            return 0;
        }
        match table::answer(scratch) {
            Some(answer) => {
                hot.push(key, hash, &answer);
                known.push_growing(key, hash, &answer, MAX_KNOWN);
            }
            None => short.insert(key, hash, scratch),
        }
        room[..scratch.len()].copy_from_slice(scratch);
        scratch.len()
    }

    /// The tokens of a piece that is too long for a key.
    #[inline(never)]
    fn encode_long(&mut self, model: &Model, backtracker: Option<&Backtracker>, piece: &[u8]) -> &[u32] {
        let Self { long, memo, scratch, .. } = self;
        // A piece of megabytes comes once; its room is not kept.
        scratch.clear();
        scratch.shrink_to(MAX_KEPT_TOKENS);
        let place = LongCache::place(piece);
        if let Some(tokens) = place.and_then(|place| long.get(place, piece)) {
            scratch.extend_from_slice(tokens);
            return scratch;
        }
        match (backtracker, model.whole_pieces.get(piece)) {
            (_, Some(&id)) => scratch.push(id),
            (Some(backtracker), None) => backtracker.encode(piece, memo, &model.table, scratch),
            (None, None) => model.table.encode_piece(piece, scratch),
        }
        if let Some(place) = place {
            long.insert(place, piece, scratch);
        }
        scratch
    }
}

/// The tokens that an idle encoder keeps room for.
const MAX_KEPT_TOKENS: usize = 1 << 16;

#[inline(always)]
fn write<I: Id>(tokens: &[u32], out: &mut Vec<I>) {
    out.extend(tokens.iter().map(|&id| I::narrowed(id)));
}

#[cfg(test)]
mod tests;
