//! Copies that go on while threads do.

use super::{
    accesses::Touch,
    launch::{Blocks, Timing},
    memory::raw,
    order::Part,
    tensor::{DIMENSIONS, TENSOR_BYTES, Tensor, swizzled},
    warp::{Copy, Warp},
};
use crate::{
    lanes::lanes_of,
    program::{BoxLoad, Slot},
};

type Outcome<T> = Result<T, String>;

// ---- Copies of a thread, in groups ----

pub fn begin(
    warp: &mut Warp,
    blocks: &mut Blocks<'_>,
    (to, from): (Slot, Slot),
    bytes: usize,
    there: Option<Slot>,
    active: u32,
) -> Outcome<()> {
    let program = blocks.launch.program;
    for lane in lanes_of(active) {
        let there = there.map_or(bytes, |there| (warp.word(program, there)[lane] as usize).min(bytes));
        let to = blocks.shared(warp.block, warp.word(program, to)[lane], bytes)?;
        let mut from = warp.double(program, from)[lane];
        // Nothing is read of what is not there.
        if there > 0 {
            from = blocks.global(warp.block, from, there)?;
            blocks.touch_global(warp.block, from, there, &Touch::of(warp, Part::Itself, false))?;
        }
        if to % bytes as u64 != 0 || (there > 0 && !from.is_multiple_of(bytes as u64)) {
            return Err(format!(
                "a copy of {bytes} bytes from {from:#x}, or to a place that is no multiple of that"
            ));
        }
        blocks.touch_shared(to, bytes, &Touch::of(warp, Part::Copies, true))?;
        let copy = Copy { lane, group: warp.groups[lane], to, from, there, bytes };
        match blocks.launch.timing {
            Timing::Early => copy.happen(),
            Timing::Late => warp.copies.push(copy),
        }
    }
    Ok(())
}

/// Waits for all groups of these lanes but so many.
pub fn finish(warp: &mut Warp, left: u32, active: u32) {
    let groups = warp.groups;
    warp.copies.retain(|copy| {
        let is_due = active >> copy.lane & 1 == 1 && copy.group + left < groups[copy.lane];
        if is_due {
            copy.happen();
        }
        !is_due
    });
}

impl Copy {
    fn happen(&self) {
        raw::copy(self.to, self.from, self.there);
        raw::fill(self.to + self.there as u64, 0, self.bytes - self.there);
    }
}

// ---- Copies into shared memory by the copy engine ----

/// A copy that somebody will learn of.
#[derive(Clone, Debug)]
pub enum Arrival {
    /// A piece of memory.
    Piece { to: u64, from: u64, bytes: usize, barrier: u64 },
    /// A box of a tensor, into a block's shared memory from an address on.
    Box { block: usize, to: u32, tensor: Tensor, at: [i32; DIMENSIONS], barrier: u64 },
}

impl Arrival {
    pub fn bytes(&self) -> usize {
        match self {
            Arrival::Piece { bytes, .. } => *bytes,
            Arrival::Box { tensor, .. } => tensor.box_bytes(),
        }
    }

    /// Where the barrier is that learns of it.
    pub fn barrier(&self) -> u64 {
        match self {
            Arrival::Piece { barrier, .. } | Arrival::Box { barrier, .. } => *barrier,
        }
    }

    pub fn happen(&self, blocks: &mut Blocks<'_>) -> Outcome<()> {
        match self {
            Arrival::Piece { to, from, bytes, .. } => raw::copy(*to, *from, *bytes),
            Arrival::Box { block, to, tensor, at, .. } => {
                let pieces = Pieces::new(tensor)?;
                for (row, there) in tensor.rows(at) {
                    // Elements that do not exist are zeroes.
                    let mut line = [0u8; ROW_BYTES];
                    if let Some((first, count, address)) = there {
                        let from = blocks.global(*block, address, count * tensor.bytes)?;
                        let into = line[first * tensor.bytes..].as_mut_ptr() as u64;
                        raw::copy(into, from, count * tensor.bytes);
                    }
                    for piece in 0..ROW_BYTES / PIECE_BYTES {
                        let place = blocks.shared(*block, pieces.place(*to, row, piece), PIECE_BYTES)?;
                        raw::copy(place, line[piece * PIECE_BYTES..].as_ptr() as u64, PIECE_BYTES);
                    }
                }
            }
        }
        let bytes = self.bytes() as u32;
        blocks.change_barrier(self.barrier(), |barrier| {
            barrier.come(bytes);
            Ok(())
        })
    }
}

/// Bytes of a row of a box, all that this machine knows, and of what its rows are mixed by.
const ROW_BYTES: usize = 128;
const PIECE_BYTES: usize = 16;

/// Where the pieces of a box lie.
struct Pieces;

impl Pieces {
    fn new(tensor: &Tensor) -> Outcome<Self> {
        let row_bytes = tensor.boxes[0] as usize * tensor.bytes;
        if row_bytes != ROW_BYTES {
            return Err(format!("boxes with rows of {row_bytes} bytes, where only {ROW_BYTES} are known"));
        }
        Ok(Pieces)
    }

    fn place(&self, to: u32, row: usize, piece: usize) -> u32 {
        swizzled(to + (row * ROW_BYTES + piece * PIECE_BYTES) as u32)
    }
}

/// The elements of a box in global memory are read or written.
fn touch_box(
    warp: &Warp,
    blocks: &mut Blocks<'_>,
    tensor: &Tensor,
    first: &[i32],
    writes: bool,
) -> Outcome<()> {
    let touch = Touch::of(warp, Part::Itself, writes);
    tensor.rows(first).try_for_each(|(_, there)| match there {
        Some((_, count, address)) => blocks.touch_global(warp.block, address, count * tensor.bytes, &touch),
        None => Ok(()),
    })
}

/// Asks the copy engine for bytes that will be at a place.
fn ask(warp: &Warp, blocks: &mut Blocks<'_>, place: u64, arrival: Arrival) -> Outcome<()> {
    let (agent, time) = blocks.bring(arrival.barrier())?;
    let touch = Touch { agent, time, ..Touch::of(warp, Part::Itself, true) };
    blocks.touch_shared(place, arrival.bytes(), &touch)?;
    match blocks.launch.timing {
        Timing::Early => arrival.happen(blocks),
        Timing::Late => {
            blocks.arrivals.push(arrival);
            Ok(())
        }
    }
}

pub fn bulk(
    warp: &Warp,
    blocks: &mut Blocks<'_>,
    [to, from, bytes, barrier]: [Slot; 4],
    active: u32,
) -> Outcome<()> {
    let program = blocks.launch.program;
    for lane in lanes_of(active) {
        let bytes = warp.word(program, bytes)[lane] as usize;
        let to = blocks.shared(warp.block, warp.word(program, to)[lane], bytes)?;
        let from = blocks.global(warp.block, warp.double(program, from)[lane], bytes)?;
        if !bytes.is_multiple_of(16) || to % 16 != 0 || from % 16 != 0 {
            return Err(format!("a bulk copy of {bytes} bytes from {from:#x}: not all are multiples of 16"));
        }
        blocks.touch_global(warp.block, from, bytes, &Touch::of(warp, Part::Itself, false))?;
        let barrier = blocks.barrier_place(warp.block, warp.word(program, barrier)[lane])?;
        ask(warp, blocks, to, Arrival::Piece { to, from, bytes, barrier })?;
    }
    Ok(())
}

pub fn load_box(warp: &Warp, blocks: &mut Blocks<'_>, load: &BoxLoad, active: u32) -> Outcome<()> {
    let program = blocks.launch.program;
    for lane in lanes_of(active) {
        let map = blocks.global(warp.block, warp.double(program, load.map)[lane], TENSOR_BYTES)?;
        let tensor = Tensor::read(map)?;
        let mut at = [0; DIMENSIONS];
        for (place, slot) in at.iter_mut().zip(&load.at) {
            *place = warp.word(program, *slot)[lane] as i32;
        }
        if load.at.len() != tensor.rank {
            return Err(format!("{} coordinates of {} dimensions", load.at.len(), tensor.rank));
        }
        let (to, barrier) = (warp.word(program, load.to)[lane], warp.word(program, load.barrier)[lane]);
        if to % 128 != 0 {
            return Err(format!("a box to {to:#x}, no multiple of 128"));
        }
        touch_box(warp, blocks, &tensor, &at, false)?;
        let cluster = blocks.launch.cluster;
        let first = warp.block / cluster * cluster;
        let given = match load.blocks {
            None => 1 << (warp.block - first),
            Some(slot) => warp.word(program, slot)[lane] & 0xffff,
        };
        for rank in lanes_of(given) {
            if rank >= cluster {
                return Err(format!("a box for block {rank} of a cluster of {cluster}"));
            }
            // A block that was named keeps its place; others have the same.
            let block = first + rank;
            let barrier = blocks.barrier_place(block, barrier & 0xff_ffff)?;
            let to = to & 0xff_ffff;
            let place = blocks.shared(block, to, tensor.box_bytes())?;
            ask(warp, blocks, place, Arrival::Box { block, to, tensor, at, barrier })?;
        }
    }
    Ok(())
}

// ---- Copies out of shared memory by the copy engine ----

/// A box that is to be stored.
#[derive(Clone, Debug)]
pub struct Stored {
    block: usize,
    warp: usize,
    lane: usize,
    /// How many groups the thread has ended since.
    age: Option<usize>,
    from: u32,
    tensor: Tensor,
    at: [i32; DIMENSIONS],
}

impl Stored {
    fn happen(&self, blocks: &mut Blocks<'_>) -> Outcome<()> {
        let pieces = Pieces::new(&self.tensor)?;
        for (row, there) in self.tensor.rows(&self.at) {
            let Some((first, count, address)) = there else { continue };
            let mut line = [0u8; ROW_BYTES];
            for piece in 0..ROW_BYTES / PIECE_BYTES {
                let place = blocks.shared(self.block, pieces.place(self.from, row, piece), PIECE_BYTES)?;
                raw::copy(line[piece * PIECE_BYTES..].as_mut_ptr() as u64, place, PIECE_BYTES);
            }
            let bytes = self.tensor.bytes;
            let to = blocks.global(self.block, address, count * bytes)?;
            raw::copy(to, line[first * bytes..].as_ptr() as u64, count * bytes);
        }
        Ok(())
    }
}

pub fn store_box(
    warp: &Warp,
    blocks: &mut Blocks<'_>,
    (map, from, at): (Slot, Slot, &[Slot]),
    active: u32,
) -> Outcome<()> {
    let program = blocks.launch.program;
    for lane in lanes_of(active) {
        let map = blocks.global(warp.block, warp.double(program, map)[lane], TENSOR_BYTES)?;
        let tensor = Tensor::read(map)?;
        let mut first = [0; DIMENSIONS];
        for (first, slot) in first.iter_mut().zip(at) {
            *first = warp.word(program, *slot)[lane] as i32;
        }
        let from = warp.word(program, from)[lane];
        let place = blocks.shared(warp.block, from, tensor.box_bytes())?;
        blocks.touch_shared(place, tensor.box_bytes(), &Touch::of(warp, Part::Stores, false))?;
        let piece = place..place + tensor.box_bytes() as u64;
        let outcome = warp.since.read_piece(&piece, Some(lane));
        outcome.map_err(|step| blocks.not_met("a store by the copy engine", step))?;
        touch_box(warp, blocks, &tensor, &first, true)?;
        let stored =
            Stored { block: warp.block, warp: warp.number, lane, age: None, from, tensor, at: first };
        match blocks.launch.timing {
            Timing::Early => stored.happen(blocks)?,
            Timing::Late => blocks.stores.push(stored),
        }
    }
    Ok(())
}

impl Blocks<'_> {
    pub fn end_store_group(&mut self, block: usize, warp: usize, active: u32) {
        let mine = |stored: &&mut Stored| {
            stored.block == block && stored.warp == warp && active >> stored.lane & 1 == 1
        };
        for stored in self.stores.iter_mut().filter(mine) {
            stored.age = Some(stored.age.map_or(0, |age| age + 1));
        }
    }

    /// Waits until at most so many groups of these threads have still to be read.
    pub fn finish_stores(&mut self, block: usize, warp: usize, active: u32, left: usize) -> Outcome<()> {
        let is_due = |stored: &Stored| {
            let is_mine = stored.block == block && stored.warp == warp && active >> stored.lane & 1 == 1;
            is_mine && stored.age.is_some_and(|age| age >= left)
        };
        let (due, others) = self.stores.drain(..).partition(is_due);
        self.stores = others;
        let due: Vec<Stored> = due;
        due.iter().try_for_each(|stored| stored.happen(self))
    }

    /// Those that nobody waited for happen before the next blocks begin; their shared memory is still there.
    pub fn finish_all_stores(&mut self) -> Outcome<()> {
        match self.stores.first() {
            None => Ok(()),
            Some(_) => Err("a block ended while boxes of its shared memory were still to be stored".into()),
        }
    }
}
