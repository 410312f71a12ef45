//! From text to tokens at the speed of one look into memory a piece.
//!
//! Pieces are found a batch at a time, turned into keys whose places in a table are asked for, and looked up when they have
//! come near ([`lookup`]). The table starts with the pieces that are expected, or with the vocabulary, and lets go of old ones
//! for new ones. What it does not have is merged: short pieces by rank, long ones by [`backtrack`], if the merges allow it.

mod backtrack;
mod cache;
mod key;
mod lookup;
mod table;

use std::sync::{Arc, Mutex, PoisonError};

use hashbrown::HashMap;

use super::merge::MergeTable;
use crate::Result;
use crate::scan::{Ends, FindEnds};
use crate::splitter::Splitter;
use crate::stretches::{Stretch, stretches};
use backtrack::{Backtracker, PairMemo};
use cache::{LongCache, ShortCache};
use key::{Key, LONG};
use lookup::Batch;
use table::{Answer, PieceTable};

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
    pieces: PieceTable,
    /// `None` if the merges are not closed.
    backtracker: Option<Backtracker>,
    /// Whether merges make every token of its bytes, so that a piece that is a token need not be looked for among them.
    all_made: bool,
}

impl Tables {
    fn new(model: &Model, frequent: &[Box<[u8]>]) -> Self {
        let backtracker = Backtracker::new(&model.tokens, &model.merges, &model.table);
        let all_made = backtracker.as_ref().is_some_and(|tracker| tracker.n_made() == model.n_ordinary);
        let mut pieces = PieceTable::with_room(frequent.len().max(model.tokens.len()));
        let mut tokens = Vec::new();
        let mut insert = |piece: &[u8], id: Option<u32>| {
            let Some(key) = Key::of(piece) else { return };
            tokens.clear();
            match id {
                Some(id) => tokens.push(id),
                None if all_made => model.table.encode_piece(piece, &mut tokens),
                None => model.encode_piece(piece, &mut tokens),
            }
            if let Some(answer) = Answer::new(&tokens) {
                pieces.insert(key, &answer);
            }
        };
        frequent.iter().for_each(|piece| insert(piece, None));
        // Where pieces are expected, a token that is none of them would only take the place of one that comes.
        let unexpected: &[_] = if frequent.is_empty() { &model.tokens } else { &[] };
        for (token, id) in unexpected.iter().zip(0..) {
            let is_itself = backtracker.as_ref().is_some_and(|tracker| tracker.is_made(id));
            token.iter().for_each(|bytes| insert(bytes, Some(id).filter(|_| is_itself)));
        }
        Self { pieces, backtracker, all_made }
    }

    /// The token that a piece is whatever the merges say.
    fn whole(&self, model: &Model, piece: &[u8]) -> Option<u32> {
        if self.all_made { None } else { model.whole_pieces.get(piece).copied() }
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
        let idle_or_tables = {
            let mut idle = lock();
            let Idle { frequent, tables, encoders } = &mut *idle;
            encoders.pop().ok_or_else(|| {
                Arc::clone(tables.get_or_insert_with(|| Arc::new(Tables::new(model, frequent))))
            })
        };
        // Several threads may begin at once, each with a copy of the table, which takes milliseconds.
        let mut encoder = idle_or_tables.unwrap_or_else(|tables| Box::new(Encoder::new(tables)));
        let result = work(&mut encoder);
        lock().encoders.push(encoder);
        result
    }
}

/// What one thread needs to encode.
#[derive(Debug)]
pub(super) struct Encoder {
    tables: Arc<Tables>,
    ends: Ends,
    batch: Batch,
    memory: Memory,
}

/// What one thread remembers.
#[derive(Debug)]
struct Memory {
    pieces: PieceTable,
    /// Short pieces of many tokens.
    short: ShortCache,
    long: LongCache,
    memo: PairMemo,
    /// Tokens of the piece in work.
    scratch: Vec<u32>,
}

impl Encoder {
    fn new(tables: Arc<Tables>) -> Self {
        let memory = Memory {
            pieces: tables.pieces.clone(),
            short: ShortCache::new(),
            long: LongCache::new(),
            memo: PairMemo::new(),
            scratch: Vec::new(),
        };
        Self { tables, ends: Ends::new(), batch: Batch::new(), memory }
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

    /// [`encode`](Self::encode) of what is known to be text.
    pub(super) fn encode_text<I: Id>(
        &mut self,
        model: &Model,
        splitter: &Splitter,
        text: &str,
        out: &mut Vec<I>,
    ) -> Result<()> {
        let Some(scanner) = splitter.scanner() else {
            return self.encode(model, splitter, text.as_bytes(), out);
        };
        let (mut work, ends) = self.work(model, out);
        work.encode_text(scanner, ends, text);
        Ok(())
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
        (Work { model, tables, batch, memory, out }, ends)
    }
}

/// One text in work.
struct Work<'w, I> {
    model: &'w Model,
    tables: &'w Tables,
    batch: &'w mut Batch,
    memory: &'w mut Memory,
    out: &'w mut Vec<I>,
}

impl<I: Id> Work<'_, I> {
    fn encode_text(&mut self, scanner: &impl FindEnds, ends: &mut Ends, text: &str) {
        let mut start = 0;
        while start < text.len() {
            scanner.ends(text, start, ends);
            let ends = ends.as_slice();
            self.encode_pieces(text.as_bytes(), start, ends);
            start = ends.last().copied().unwrap_or(text.len());
        }
    }

    /// Appends the tokens of the pieces of valid `text` that start at `start` and end at `ends`.
    fn encode_pieces(&mut self, text: &[u8], start: usize, ends: &[usize]) {
        self.memory.pieces.make_room();
        self.batch.ask(&self.memory.pieces, text, start, ends);
        let mut idx = 0;
        loop {
            idx = self.batch.answer(&self.memory.pieces, idx, self.out);
            let Some(&end) = ends.get(idx) else { return };
            let from = if idx == 0 { start } else { ends[idx - 1] };
            let key = Some(self.batch.key(idx)).filter(|&key| key != LONG);
            self.encode_unanswered(&text[from..end], key);
            idx += 1;
        }
    }

    /// Appends the tokens of any piece.
    fn encode_piece(&mut self, piece: &[u8]) {
        self.encode_unanswered(piece, Key::of(piece));
    }

    /// Appends the tokens of a piece that no batch has answered.
    #[inline(never)]
    fn encode_unanswered(&mut self, piece: &[u8], key: Option<Key>) {
        match key {
            Some(key) => self.memory.encode_short(self.model, self.tables, key, piece, self.out),
            None => write(self.memory.encode_long(self.model, self.tables, piece), self.out),
        }
    }
}

impl Memory {
    /// Appends the tokens of a piece that has a key.
    fn encode_short<I: Id>(
        &mut self,
        model: &Model,
        tables: &Tables,
        key: Key,
        piece: &[u8],
        out: &mut Vec<I>,
    ) {
        let Self { pieces, short, scratch, .. } = self;
        short.prefetch(key);
        if let Some(answer) = pieces.get(key) {
            return out.extend(answer.tokens().map(I::narrowed));
        }
        if let Some(tokens) = short.get(key) {
            return write(tokens, out);
        }
        scratch.clear();
        match tables.whole(model, piece) {
            Some(id) => scratch.push(id),
            None => model.table.encode_piece(piece, scratch),
        }
        match Answer::new(scratch) {
            Some(answer) => pieces.push(key, &answer),
            None => short.insert(key, scratch),
        }
        write(scratch, out);
    }

    /// The tokens of a piece without a key.
    fn encode_long(&mut self, model: &Model, tables: &Tables, piece: &[u8]) -> &[u32] {
        let Self { long, memo, scratch, .. } = self;
        // A piece of megabytes comes once; its room is not kept.
        scratch.clear();
        scratch.shrink_to(MAX_KEPT_TOKENS);
        let place = LongCache::place(piece);
        if let Some(tokens) = place.and_then(|place| long.get(place, piece)) {
            scratch.extend_from_slice(tokens);
            return scratch;
        }
        match (&tables.backtracker, tables.whole(model, piece)) {
            (_, Some(id)) => scratch.push(id),
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
