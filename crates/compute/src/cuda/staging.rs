//! The way between host and device: pinned memory that the device copies by itself, so that an upload costs the host a copy of
//! its own and no wait.
//!
//! An upload goes to a ring on its own stream, together with those around it and while the card may still be computing, and from
//! there to its place in the order of the compute stream, as soon as something there needs it. Each half of the ring is used again only when the compute stream has passed the last copy out of it.
#![expect(unsafe_code, reason = "memory that the card copies by itself")]

use std::sync::Arc;

use super::driver::Driver;
use crate::{
    device::{READ_NUMBERS, READS},
    error::Result,
};

/// Bytes of half a ring.
const HALF_BYTES: usize = 8 << 20;

/// Bytes of a read's numbers, with those of a fault behind them.
const SLOT_BYTES: usize = 4 * READ_NUMBERS + 64;

/// The ring and its streams.
pub(super) struct Staging {
    driver: Arc<Driver>,
    compute: usize,
    uploads: usize,
    pinned: *mut u8,
    ring: u64,
    arrived: usize,
    halves: [Half; 2],
    current: usize,
    /// Pieces that lie in the ring and not yet in their places: where to, where from, how many bytes.
    pending: Vec<(u64, u64, usize)>,
    /// Pinned memory for the numbers of reads that are under way, and what is passed when they have come.
    numbers: *mut u8,
    read: [usize; READS],
    next_read: usize,
}

// SAFETY: the pinned memory belongs to this value alone and may be used from whatever thread owns it.
unsafe impl Send for Staging {}

struct Half {
    used: usize,
    /// How much of it has been given to the stream of uploads.
    sent: usize,
    /// Passed by the compute stream when everything in this half has reached its place.
    drained: usize,
}

impl Staging {
    pub fn new(driver: Arc<Driver>, compute: usize) -> Result<Self> {
        let uploads = driver.create_stream()?;
        let pinned = driver.allocate_pinned(2 * HALF_BYTES)?;
        let ring = driver.allocate(2 * HALF_BYTES)?;
        let arrived = driver.create_event(false)?;
        let half = || -> Result<Half> { Ok(Half { used: 0, sent: 0, drained: driver.create_event(false)? }) };
        let halves = [half()?, half()?];
        let numbers = driver.allocate_pinned(READS * SLOT_BYTES)?;
        let mut read = [0; READS];
        for event in &mut read {
            *event = driver.create_event(false)?;
        }
        Ok(Staging {
            driver,
            compute,
            uploads,
            pinned,
            ring,
            arrived,
            halves,
            current: 0,
            pending: Vec::with_capacity(64),
            numbers,
            read,
            next_read: 0,
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
            self.pending.push((to + done as u64, self.ring + at as u64, piece));
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
        // SAFETY: the bytes lie inside this half and stay as they are until it is entered again.
        unsafe { self.driver.copy_in(self.ring + at as u64, self.pinned.add(at), bytes, self.uploads)? };
        self.driver.record(self.arrived, self.uploads)?;
        self.driver.wait(self.compute, self.arrived)?;
        for (to, from, bytes) in self.pending.drain(..) {
            self.driver.copy(to, from, bytes, self.compute)?;
        }
        Ok(())
    }

    /// Leaves this half and enters the other, which must have been emptied.
    fn turn(&mut self) -> Result<()> {
        self.deliver()?;
        self.driver.record(self.halves[self.current].drained, self.compute)?;
        self.current = 1 - self.current;
        self.driver.synchronize_event(self.halves[self.current].drained)?;
        let half = &mut self.halves[self.current];
        (half.used, half.sent) = (0, 0);
        Ok(())
    }

    /// Begins to bring single numbers from addresses, one behind the other, after everything on the compute stream. Returns the
    /// number of the read.
    pub fn begin_read(&mut self, pieces: impl Iterator<Item = (u64, usize)>) -> Result<usize> {
        self.deliver()?;
        let number = self.next_read;
        let slot = number % READS;
        let mut used = 0;
        for (from, bytes) in pieces {
            assert!(used + bytes <= SLOT_BYTES, "a read has at most {SLOT_BYTES} bytes");
            // SAFETY: the piece lies inside this read's slot, which nothing touches until the read has ended.
            unsafe {
                let to = self.numbers.add(slot * SLOT_BYTES + used);
                self.driver.copy_out(to, from, bytes, self.compute)?;
            }
            used += bytes;
        }
        self.driver.record(self.read[slot], self.compute)?;
        self.next_read += 1;
        Ok(number)
    }

    /// Waits for a read and gives its bytes, in the order in which they were asked for.
    pub fn end_read(&self, number: usize) -> Result<&[u8]> {
        let slot = number % READS;
        self.driver.synchronize_event(self.read[slot])?;
        // SAFETY: the slot lies inside the pinned memory, and the copies into it have ended.
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
        for half in &self.halves {
            self.driver.destroy_event(half.drained);
        }
        for &event in &self.read {
            self.driver.destroy_event(event);
        }
        self.driver.free_pinned(self.numbers);
        self.driver.destroy_event(self.arrived);
        self.driver.free(self.ring);
        self.driver.free_pinned(self.pinned);
        self.driver.destroy_stream(self.uploads);
    }
}
