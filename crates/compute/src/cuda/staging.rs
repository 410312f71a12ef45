//! The way between host and device: pinned memory that the device copies by itself, so that an upload costs the host a copy of
//! its own and no wait.
//!
//! What is uploaded lies in a pinned ring until something on the compute stream needs it; then one launch puts all of it into its
//! places. The card reads little from the host's memory itself. More goes to a ring of the card's first, on a stream of its own
//! and while the card may still be computing. Each half of the ring is used again only when the compute stream has passed
//! the last launch that reads it.
#![expect(unsafe_code, reason = "memory that the card copies by itself")]

use std::sync::Arc;

use super::{
    call::Grid,
    driver::{Driver, Function},
    milestones::{Milestone, Milestones, Patience},
    modules::{Modules, Source},
};
use crate::{
    device::{READ_NUMBERS, READS},
    error::Result,
    tensor::DType,
};

/// Bytes of half a ring.
const HALF_BYTES: usize = 8 << 20;

/// Bytes of a read's numbers, with those of a fault behind them.
const SLOT_BYTES: usize = 4 * READ_NUMBERS + 64;

/// As many pieces go into one launch as `PIECES` in transfer.cu.
const PIECES: usize = 8;
/// The most pieces of a read.
pub(super) const READ_PIECES: usize = PIECES;

/// Up to this many bytes the card reads from the host's memory: a copy of its own and waiting for it would cost the host more
/// calls, and the card a few microseconds.
const READ_IN_PLACE_BYTES: usize = 256 << 10;

/// Bytes that one block of the launch copies, about.
const BLOCK_BYTES: usize = 16 << 10;

/// How the launches of `transfer.cu` are shaped.
const THREADS: u32 = 256;

/// The ring and its streams.
pub(super) struct Staging {
    driver: Arc<Driver>,
    compute: usize,
    uploads: usize,
    deliver: Function,
    report: Function,
    milestones: Milestones,
    pinned: *mut u8,
    ring: u64,
    arrived: usize,
    halves: [Half; 2],
    current: usize,
    /// Pieces that lie in the pinned ring and not yet in their places: where to, where in the ring, how many bytes.
    pending: Vec<(u64, usize, usize)>,
    patience_for_room: Patience,
    /// Pinned memory for the numbers of reads that are under way, and what is passed when they have come.
    numbers: *mut u8,
    reads: [Milestone; READS],
    next_read: usize,
    patience_for_reads: Patience,
}

// SAFETY: the pinned memory belongs to this value alone and may be used from whatever thread owns it.
unsafe impl Send for Staging {}

#[derive(Default)]
struct Half {
    used: usize,
    /// How much of it has been given to a stream.
    sent: usize,
    /// Passed by the compute stream when everything in this half has reached its place.
    drained: Milestone,
}

impl Staging {
    pub fn new(driver: Arc<Driver>, compute: usize, modules: &mut Modules) -> Result<Self> {
        let mut function = |name| modules.function(Source::Transfer, name, DType::F32, &[], 0);
        let (deliver, report) = (function("deliver")?, function("report")?);
        let uploads = driver.create_stream()?;
        let pinned = driver.allocate_pinned(2 * HALF_BYTES)?;
        let ring = driver.allocate(2 * HALF_BYTES)?;
        let arrived = driver.create_event(false)?;
        let numbers = driver.allocate_pinned(READS * SLOT_BYTES)?;
        Ok(Staging {
            milestones: Milestones::new(Arc::clone(&driver), compute)?,
            driver,
            compute,
            uploads,
            deliver,
            report,
            pinned,
            ring,
            arrived,
            halves: Default::default(),
            current: 0,
            pending: Vec::with_capacity(64),
            patience_for_room: Patience::default(),
            numbers,
            reads: [Milestone::default(); READS],
            next_read: 0,
            patience_for_reads: Patience::default(),
        })
    }

    /// Sends bytes to an address, in pieces that `fill` writes: it is given where in the whole a piece starts. `unit` divides
    /// the bytes of every piece.
    pub fn upload(
        &mut self,
        to: u64,
        bytes: usize,
        unit: usize,
        mut fill: impl FnMut(usize, &mut [u8]),
    ) -> Result<()> {
        // Pieces of one launch do not wait for each other, so an address that is written twice is two launches.
        let meets =
            |&(other, _, len): &(u64, usize, usize)| other < to + bytes as u64 && to < other + len as u64;
        if self.pending.iter().any(meets) {
            self.deliver()?;
        }
        let mut done = 0;
        while done < bytes {
            let room = (HALF_BYTES - self.halves[self.current].used) / unit * unit;
            let piece = (bytes - done).min(room);
            if piece == 0 {
                self.turn()?;
                continue;
            }
            let at = self.current * HALF_BYTES + self.halves[self.current].used;
            // SAFETY: the piece lies inside this half of the pinned memory, which no copy reads: `turn` waited for them.
            let memory = unsafe { std::slice::from_raw_parts_mut(self.pinned.add(at), piece) };
            fill(done, memory);
            self.pending.push((to + done as u64, at, piece));
            self.halves[self.current].used += piece.next_multiple_of(256);
            done += piece;
        }
        Ok(())
    }

    /// Puts what was uploaded into its places before anything that the compute stream is given next.
    pub fn deliver(&mut self) -> Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let start = self.current * HALF_BYTES;
        let half = &mut self.halves[self.current];
        let (at, bytes) = (start + half.sent, half.used - half.sent);
        half.sent = half.used;
        let source = if bytes <= READ_IN_PLACE_BYTES {
            self.pinned as u64
        } else {
            // SAFETY: the bytes lie inside this half and stay as they are until it is entered again.
            unsafe { self.driver.copy_in(self.ring + at as u64, self.pinned.add(at), bytes, self.uploads)? };
            self.driver.record(self.arrived, self.uploads)?;
            self.driver.wait(self.compute, self.arrived)?;
            self.ring
        };
        for pieces in self.pending.chunks(PIECES) {
            let mut words = [0; 3 * PIECES];
            for (words, &(to, at, bytes)) in words.chunks_exact_mut(3).zip(pieces) {
                words.copy_from_slice(&[to, source + at as u64, bytes as u64]);
            }
            let longest = pieces.iter().map(|piece| piece.2).max().unwrap_or(0);
            let blocks = [longest.div_ceil(BLOCK_BYTES) as u32, pieces.len() as u32, 1];
            let grid = Grid { blocks, threads: THREADS, shared_bytes: 0 };
            self.driver.launch_with(self.deliver, &grid, &words, self.compute)?;
        }
        self.pending.clear();
        Ok(())
    }

    /// Leaves this half and enters the other, which must have been emptied.
    fn turn(&mut self) -> Result<()> {
        self.deliver()?;
        self.halves[self.current].drained = self.mark()?;
        self.current = 1 - self.current;
        self.milestones.wait(self.halves[self.current].drained, &mut self.patience_for_room)?;
        let half = &mut self.halves[self.current];
        (half.used, half.sent) = (0, 0);
        Ok(())
    }

    /// A milestone behind everything that the compute stream was given so far.
    pub fn mark(&mut self) -> Result<Milestone> {
        self.put_report(self.numbers as u64, std::iter::empty())
    }

    /// Sleeps until the compute stream has passed a milestone.
    pub fn wait(&self, milestone: Milestone, patience: &mut Patience) -> Result<()> {
        self.milestones.wait(milestone, patience)
    }

    /// Gives the compute stream a report: numbers of so many words at addresses, and the milestone that it returns.
    fn put_report(&mut self, to: u64, pieces: impl Iterator<Item = (u64, usize)>) -> Result<Milestone> {
        let milestone = self.milestones.next();
        let mut words = [0; 3 + 2 * PIECES];
        words[..3].copy_from_slice(&[to, self.milestones.address(), u64::from(milestone.number())]);
        for (words, (from, count)) in words[3..].chunks_exact_mut(2).zip(pieces) {
            words.copy_from_slice(&[from, count as u64]);
        }
        let grid = Grid { blocks: [1; 3], threads: 32, shared_bytes: 0 };
        self.driver.launch_with(self.report, &grid, &words, self.compute)?;
        Ok(milestone)
    }

    /// Begins to bring single numbers from addresses, one behind the other, after everything on the compute stream: each piece has
    /// so many words of four bytes. Returns the number of the read.
    pub fn begin_read(&mut self, pieces: &[(u64, usize)]) -> Result<usize> {
        self.deliver()?;
        let words: usize = pieces.iter().map(|piece| piece.1).sum();
        assert!(
            pieces.len() <= PIECES && 4 * words <= SLOT_BYTES,
            "a read of {} pieces, {words} words",
            pieces.len()
        );
        let number = self.next_read;
        let slot = number % READS;
        let to = self.numbers as u64 + (slot * SLOT_BYTES) as u64;
        self.reads[slot] = self.put_report(to, pieces.iter().copied())?;
        self.next_read += 1;
        Ok(number)
    }

    /// Waits for a read and gives its bytes, in the order in which they were asked for.
    pub fn end_read(&mut self, number: usize) -> Result<&[u8]> {
        let slot = number % READS;
        self.milestones.wait(self.reads[slot], &mut self.patience_for_reads)?;
        // SAFETY: the slot lies inside the pinned memory, and the launch that writes it has ended.
        Ok(unsafe { std::slice::from_raw_parts(self.numbers.add(slot * SLOT_BYTES), SLOT_BYTES) })
    }

    /// Brings bytes from an address after everything on the compute stream, and gives them to `take` in pieces.
    pub fn download(
        &mut self,
        from: u64,
        bytes: usize,
        unit: usize,
        mut take: impl FnMut(usize, &[u8]),
    ) -> Result<()> {
        self.deliver()?;
        // Everything on the stream ends here, so both halves are free.
        let mut done = 0;
        loop {
            let piece = (bytes - done).min(2 * HALF_BYTES / unit * unit);
            // SAFETY: the pinned memory has room, and nothing else uses it: the stream is waited for before and after.
            unsafe {
                if done == 0 {
                    self.driver.synchronize(self.compute)?;
                }
                self.driver.copy_out(self.pinned, from + done as u64, piece, self.compute)?;
                self.driver.synchronize(self.compute)?;
                take(done, std::slice::from_raw_parts(self.pinned, piece));
            }
            done += piece;
            if done >= bytes {
                break;
            }
        }
        let half = &mut self.halves[self.current];
        (half.used, half.sent) = (0, 0);
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // Nothing can be done about an error while ending.
        let _ = self.driver.synchronize(self.uploads);
        let _ = self.driver.synchronize(self.compute);
        self.driver.free_pinned(self.numbers);
        self.driver.destroy_event(self.arrived);
        self.driver.free(self.ring);
        self.driver.free_pinned(self.pinned);
        self.driver.destroy_stream(self.uploads);
    }
}
