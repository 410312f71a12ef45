//! Counting the pieces of text, a counter a thread, in memory that does not grow beyond a limit.

use std::path::{Path, PathBuf};

use super::file::{CountSettings, CountTotals, CountsFile, CountsWriter};
use super::hot::{HotTable, Span};
use super::key::{MAX_PACKED, N_PARTITIONS, Packed, hash, hash_packed, pack};
use super::spill::{SPILL_BYTES, Spill};
use super::table::Table;
use crate::pattern::Pattern;
use crate::scan::{Ends, FindEnds};
use crate::scratch::check_free;
use crate::special::{Part, Specials};
use crate::splitter::Splitter;
use crate::{Error, Progress, Result};

/// How many pieces the hot table looks up before the large one sees those that it does not have.
const AT_ONCE: usize = 256;

/// Pieces whose slots are asked for before the first of them is looked up.
const AHEAD: usize = 32;

/// How many partitions of a table are sorted at a time.
const PARTITIONS_SORTED: usize = 16;

/// Counts the distinct pieces of texts exactly. What exceeds its room goes to disk by partition.
#[derive(Debug)]
pub struct PieceCounter {
    splitter: Splitter,
    specials: Specials,
    ends: Box<Ends>,
    hot: HotTable,
    table: Table,
    total: u64,
    room: CounterRoom,
    spill: Option<Spill>,
    loss: Loss,
}

/// What a counter may use.
#[derive(Debug, Clone)]
pub struct CounterRoom {
    /// Memory, in bytes.
    pub memory: usize,
    /// The folder for what does not fit; without one that is an error.
    pub scratch: Option<PathBuf>,
    /// What does not fit is left out, the rarest first, instead of going to the folder.
    pub approximate: bool,
}

/// What approximate counting has left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Loss {
    /// No piece's count is too low by more than this. None is ever too high.
    pub per_piece: u64,
    /// How many pieces are not in the counts.
    pub pieces: u64,
}

impl CounterRoom {
    /// The least memory with which a counter works well enough to be used.
    pub const MIN_MEMORY: usize = 8 << 20;
}

impl PieceCounter {
    /// A counter of the pieces of `pattern`; `special` tokens are taken out of texts before counting.
    pub fn new(pattern: &Pattern, special: &[String], room: CounterRoom) -> Result<Self> {
        let besides = SPILL_BYTES + HotTable::N_BYTES;
        let table = Table::new(room.memory.saturating_sub(besides).max(CounterRoom::MIN_MEMORY / 2));
        Ok(Self {
            splitter: Splitter::new(pattern)?,
            specials: Specials::numbered(special)?,
            ends: Box::new(Ends::new()),
            hot: HotTable::new(),
            table,
            total: 0,
            room,
            spill: None,
            loss: Loss::default(),
        })
    }

    /// Counts the pieces of a document, or of a part of one that [`TextCuts`](crate::TextCuts) has cut.
    ///
    /// After an error the text may be counted in part.
    pub fn add(&mut self, text: &str) -> Result<()> {
        let Self { splitter, specials, ends, hot, table, total, .. } = self;
        let mut spilling = Spilling { room: &self.room, spill: &mut self.spill, loss: &mut self.loss };
        specials.for_each_part(text.as_bytes(), |part| {
            let Part::Text(part) = part else { return Ok(()) };
            // Special tokens are whole characters, so what lies between them is too.
            let (start, end) = (offset_in(text, part), offset_in(text, part) + part.len());
            match (splitter.scanner(), text.get(start..end)) {
                (Some(scanner), Some(part)) => {
                    let mut start = 0;
                    while start < part.len() {
                        scanner.ends(part, start, ends);
                        add_batch(hot, table, part.as_bytes(), &mut start, ends.as_slice());
                        add_total(total, ends.as_slice().len() as u64)?;
                        spilling.if_full(table)?;
                    }
                    Ok(())
                }
                _ => splitter.for_each_piece(part, |piece| {
                    table.add(piece, 1);
                    add_total(total, 1)?;
                    spilling.if_full(table)
                }),
            }
        })
    }

    /// Cuts text into its pieces without counting them, and says how many there are: what counting costs apart from tables.
    pub fn scan(&mut self, text: &str) -> Result<u64> {
        let Self { splitter, specials, ends, .. } = self;
        let mut n_pieces = 0;
        specials.for_each_part(text.as_bytes(), |part| {
            let Part::Text(part) = part else { return Ok(()) };
            let start = offset_in(text, part);
            match (splitter.scanner(), text.get(start..start + part.len())) {
                (Some(scanner), Some(part)) => {
                    let mut start = 0;
                    while start < part.len() {
                        scanner.ends(part, start, ends);
                        n_pieces += ends.as_slice().len() as u64;
                        start = ends.as_slice().last().copied().unwrap_or(part.len());
                    }
                    Ok(())
                }
                _ => splitter.for_each_piece(part, |_| {
                    n_pieces += 1;
                    Ok(())
                }),
            }
        })?;
        Ok(n_pieces)
    }

    /// How many pieces were counted.
    pub fn total(&self) -> u64 {
        self.total
    }
}

/// The offset of `part` in `text`, of which it is a part.
fn offset_in(text: &str, part: &[u8]) -> usize {
    part.as_ptr().addr() - text.as_ptr().addr()
}

fn add_total(total: &mut u64, count: u64) -> Result<()> {
    // The total bounds every single count, so it alone needs the check.
    *total = total.checked_add(count).ok_or_else(|| Error::CountOverflow("all pieces".to_owned()))?;
    Ok(())
}

/// Counts the pieces of `text` between `start` and each of `ends`.
#[inline(never)]
fn add_batch(hot: &mut HotTable, table: &mut Table, text: &[u8], start: &mut usize, ends: &[usize]) {
    let mut missed = [(0, 0); AT_ONCE];
    for ends in ends.chunks(AT_ONCE) {
        let n_missed = hot.add(text, start, ends, &mut missed);
        for spans in missed[..n_missed].chunks(AHEAD) {
            add_spans(hot, table, text, spans);
        }
    }
}

/// Counts pieces that the hot table does not have.
///
/// Keys of a few dozen pieces are made first and their slots asked for, so that the look-ups wait for memory together.
#[inline(always)]
fn add_spans(hot: &mut HotTable, table: &mut Table, text: &[u8], spans: &[Span]) {
    let mut keys: [(Packed, u64); AHEAD] = [(0, 0); AHEAD];
    let mut n_keys = 0;
    for &(start, end) in spans {
        if hot.takes(text, (start, end), table) {
            continue;
        }
        if end - start <= MAX_PACKED {
            let key = pack(text, start, end - start);
            let hash = hash_packed(key);
            table.prefetch(hash);
            keys[n_keys] = (key, hash);
            n_keys += 1;
        } else {
            let piece = &text[start..end];
            table.add_long(piece, hash(piece), 1);
        }
    }
    for &(key, hash) in &keys[..n_keys] {
        table.add_packed(key, hash, 1);
    }
}

struct Spilling<'c> {
    room: &'c CounterRoom,
    spill: &'c mut Option<Spill>,
    loss: &'c mut Loss,
}

impl Spilling<'_> {
    #[inline]
    fn if_full(&mut self, table: &mut Table) -> Result<()> {
        if table.is_full() { self.make_room(table) } else { Ok(()) }
    }

    #[cold]
    fn make_room(&mut self, table: &mut Table) -> Result<()> {
        if !self.room.approximate {
            return self.now(table);
        }
        // A piece that was dropped may come again and be dropped again, so what each time takes at most adds up.
        let (highest, dropped) = table.drop_rare();
        self.loss.per_piece += highest;
        self.loss.pieces += dropped;
        Ok(())
    }

    #[cold]
    fn now(&mut self, table: &mut Table) -> Result<()> {
        let Some(folder) = &self.room.scratch else {
            return Err(Error::NoScratch { memory: self.room.memory as u64 });
        };
        if self.spill.is_none() {
            *self.spill = Some(Spill::create(folder)?);
        }
        match self.spill {
            Some(spill) => spill.take(table),
            None => Ok(()),
        }
    }
}

/// All pieces of a corpus: in memory, or in a counts file when they did not fit.
#[derive(Debug)]
pub struct CountedPieces {
    settings: CountSettings,
    totals: CountTotals,
    store: Store,
    loss: Loss,
}

#[derive(Debug)]
enum Store {
    Table(Box<Table>),
    File(CountsFile),
}

impl CountedPieces {
    /// Puts the counts of several counters together. If they fit `memory` they stay there; otherwise they are summed up
    /// partition by partition into the counts file `spilled`.
    pub fn combine(
        mut counters: Vec<PieceCounter>,
        settings: &CountSettings,
        documents: u64,
        memory: usize,
        spilled: Option<&Path>,
        progress: &dyn Progress,
    ) -> Result<Self> {
        let pieces = counters.iter().try_fold(0u64, |sum, counter| sum.checked_add(counter.total));
        let pieces = pieces.ok_or_else(|| Error::CountOverflow("all pieces".to_owned()))?;
        let mut loss = Loss::default();
        for PieceCounter { hot, table, room, spill, loss: lost, .. } in &mut counters {
            hot.drain_into(table);
            Spilling { room, spill, loss: lost }.if_full(table)?;
            loss.per_piece = loss.per_piece.saturating_add(lost.per_piece);
            loss.pieces += lost.pieces;
        }
        let pieces = pieces - loss.pieces;
        let has_spilled = counters.iter().any(|counter| counter.spill.is_some());
        let mut sizes: Vec<usize> = counters.iter().map(|counter| counter.table.n_bytes()).collect();
        sizes.sort_unstable();
        // While one table takes in another, both exist, and the first may double.
        let needed = sizes.iter().sum::<usize>() + 2 * sizes.last().copied().unwrap_or(0);
        if !has_spilled && (counters.len() == 1 || needed <= memory) {
            let mut tables = counters.into_iter().map(|counter| counter.table);
            let mut table = tables.next().unwrap_or_else(|| Table::new(memory));
            for other in tables {
                other.for_each(|piece, count| {
                    table.add(piece, count);
                    Ok::<(), Error>(())
                })?;
            }
            let totals = CountTotals { distinct: table.len() as u64, pieces, documents };
            return Ok(Self {
                settings: settings.clone(),
                totals,
                store: Store::Table(Box::new(table)),
                loss,
            });
        }
        let Some(path) = spilled else {
            return Err(Error::NoScratch { memory: memory as u64 });
        };
        let mut spills = Vec::new();
        for mut counter in counters {
            Spilling { room: &counter.room, spill: &mut counter.spill, loss: &mut counter.loss }
                .now(&mut counter.table)?;
            spills.extend(counter.spill);
        }
        progress.start("sum", Some(N_PARTITIONS as u64), "partitions");
        let mut writer = CountsWriter::create(path, settings)?;
        for idx in 0..N_PARTITIONS {
            let mut table = Table::new(memory);
            for spill in &mut spills {
                spill.read(idx, &mut table)?;
                if table.n_bytes() > memory {
                    let wanted = (table.n_bytes() * 2) as u64;
                    return Err(Error::PartitionTooLarge { memory: memory as u64, wanted });
                }
            }
            check_free(path.parent().unwrap_or(Path::new(".")), table.n_bytes() as u64)?;
            table.for_each_sorted(idx..idx + 1, |idx, piece, count| writer.add(idx, piece, count))?;
            progress.advance(1);
        }
        progress.finish();
        drop(spills);
        let totals = writer.finish(documents)?;
        let file = CountsFile::open(path)?;
        Ok(Self { settings: settings.clone(), totals, store: Store::File(file), loss })
    }

    /// The pieces of a counts file.
    pub fn from_file(file: CountsFile) -> Self {
        let loss = Loss::default();
        Self { settings: file.settings().clone(), totals: file.totals(), store: Store::File(file), loss }
    }

    /// How much was counted.
    pub fn totals(&self) -> CountTotals {
        self.totals
    }

    /// What approximate counting has left out.
    pub fn loss(&self) -> Loss {
        self.loss
    }

    /// How text was cut.
    pub fn settings(&self) -> &CountSettings {
        &self.settings
    }

    /// What of the pieces is held in memory, in bytes.
    pub fn n_bytes(&self) -> usize {
        match &self.store {
            Store::Table(table) => table.n_bytes(),
            Store::File(_) => 0,
        }
    }

    /// The counts file, if they are in one.
    pub fn file(&self) -> Option<&CountsFile> {
        match &self.store {
            Store::Table(_) => None,
            Store::File(file) => Some(file),
        }
    }

    /// Writes the counts file; the same pieces always give the same bytes.
    pub fn save(&self, path: &Path, progress: &dyn Progress) -> Result<()> {
        let table = match &self.store {
            Store::Table(table) => table,
            Store::File(file) => {
                return merge_one(file, path, progress);
            }
        };
        let mut writer = CountsWriter::create(path, &self.settings)?;
        progress.start("write", Some(N_PARTITIONS as u64), "partitions");
        // A part of the table at a time is copied for sorting, which keeps the copy small.
        for first in (0..N_PARTITIONS).step_by(PARTITIONS_SORTED) {
            table.for_each_sorted(first..first + PARTITIONS_SORTED, |idx, piece, count| {
                writer.add(idx, piece, count)
            })?;
            progress.advance(PARTITIONS_SORTED as u64);
        }
        progress.finish();
        writer.finish(self.totals.documents).map(|_| ())
    }

    /// Every distinct piece and its count. The order is fixed but has no meaning.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(&[u8], u64) -> Result<()>) -> Result<()> {
        match &self.store {
            Store::Table(table) => table.for_each(visit),
            Store::File(file) => {
                let mut pieces = file.pieces()?;
                while pieces.advance()? {
                    let (_, piece, count) = pieces.current();
                    visit(piece, count)?;
                }
                Ok(())
            }
        }
    }
}

fn merge_one(file: &CountsFile, path: &Path, progress: &dyn Progress) -> Result<()> {
    let mut writer = CountsWriter::create(path, file.settings())?;
    progress.start("write", Some(file.totals().distinct), "pieces");
    let mut n_told = 0;
    let mut pieces = file.pieces()?;
    while pieces.advance()? {
        let (idx, piece, count) = pieces.current();
        writer.add(idx, piece, count)?;
        n_told += 1;
        if n_told == 1 << 16 {
            progress.advance(std::mem::take(&mut n_told));
        }
    }
    progress.advance(n_told);
    progress.finish();
    writer.finish(file.totals().documents).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Silent;
    use std::collections::BTreeMap;

    #[test]
    fn approximate_counts_keep_their_bound_and_what_is_frequent() {
        let mut text = String::new();
        let mut state = 1u64;
        for idx in 0..400_000u64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Some pieces come often, most come once, and some of those are long.
            text += &match idx % 4 {
                0 => " often".to_owned(),
                1 => format!(" {}", state >> 54),
                2 => format!(" {}", state >> 20),
                _ => format!(" a{}", "x".repeat((state >> 58) as usize)),
            };
        }
        let count = |approximate| {
            let room = CounterRoom { memory: 0, scratch: None, approximate };
            let room = if approximate { room } else { CounterRoom { memory: 1 << 30, ..room } };
            let mut counter = PieceCounter::new(&Pattern::Gpt2, &[], room).unwrap();
            counter.add(&text).unwrap();
            let settings = CountSettings::new(&Pattern::Gpt2, &[], false);
            CountedPieces::combine(vec![counter], &settings, 1, 1 << 30, None, &Silent).unwrap()
        };
        let counts_of = |pieces: &CountedPieces| {
            let mut counts = BTreeMap::new();
            pieces
                .for_each(|piece, count| {
                    counts.insert(piece.to_vec(), count);
                    Ok(())
                })
                .unwrap();
            counts
        };
        let (exact, approximate) = (count(false), count(true));
        assert_eq!(exact.loss(), Loss::default());
        let loss = approximate.loss();
        assert!(loss.pieces > 0, "it was too little to be approximate");
        assert_eq!(approximate.totals().pieces + loss.pieces, exact.totals().pieces);
        let found = counts_of(&approximate);
        assert_eq!(found.values().sum::<u64>(), approximate.totals().pieces);
        for (piece, count) in counts_of(&exact) {
            let found = found.get(&piece).copied().unwrap_or(0);
            assert!(
                found <= count && count - found <= loss.per_piece,
                "{piece:?}: {found} of {count}, {loss:?}"
            );
        }
        assert_eq!(found[&b" often"[..]], 100_000);
    }
}
