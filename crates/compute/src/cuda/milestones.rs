//! How far the compute stream has come, and waiting for it without burning the processor.
//!
//! The stream writes the numbers of milestones into memory of the host's, where looking costs nothing. The driver's own ways to wait
//! either spin, or sleep until an interrupt whose handling costs more than all calls of a step together.
#![expect(unsafe_code, reason = "memory that the card writes by itself")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use super::driver::Driver;
use crate::error::Result;

/// A point that the compute stream will pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Milestone(u32);

impl Milestone {
    /// What the stream writes when it passes.
    pub fn number(self) -> u32 {
        self.0
    }
}

/// The milestones of a stream.
pub(super) struct Milestones {
    driver: Arc<Driver>,
    stream: usize,
    /// Pinned: the card writes the last milestone that it passed.
    passed: *mut u8,
    last: u32,
}

/// How long a kind of wait usually takes: it is slept through in steps that become shorter towards its end. A card with little on
/// the way idles for as long as it is overslept, and waking costs too much to do it often.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Patience {
    usual: Duration,
}

/// No sleep is shorter: the system's timer is not finer.
const SHORTEST_SLEEP: Duration = Duration::from_micros(20);
/// No sleep is longer: whoever stops a run does not wait for one.
const LONGEST_SLEEP: Duration = Duration::from_millis(200);
/// How often the driver is asked whether something went wrong, which the milestones would never tell.
const ASKING_PERIOD: Duration = Duration::from_millis(500);

impl Milestones {
    pub fn new(driver: Arc<Driver>, stream: usize) -> Result<Self> {
        let passed = driver.allocate_pinned(size_of::<u32>())?;
        let milestones = Milestones { driver, stream, passed, last: 0 };
        milestones.word().store(0, Ordering::Relaxed);
        Ok(milestones)
    }

    /// Where the stream writes.
    pub fn address(&self) -> u64 {
        self.passed as u64
    }

    /// The next milestone, for the caller to put on the stream.
    pub fn next(&mut self) -> Milestone {
        self.last = self.last.wrapping_add(1);
        Milestone(self.last)
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: pinned memory is aligned to pages, lives as long as this value, and is only ever used as this atomic.
        unsafe { &*self.passed.cast::<AtomicU32>() }
    }

    fn has_passed(&self, milestone: Milestone) -> bool {
        // Numbers wrap around; there are never half of them on the way.
        self.word().load(Ordering::Acquire).wrapping_sub(milestone.0) < 1 << 31
    }

    /// Sleeps until the stream has passed a milestone.
    pub fn wait(&self, milestone: Milestone, patience: &mut Patience) -> Result<()> {
        if self.has_passed(milestone) {
            return Ok(());
        }
        let began = Instant::now();
        let mut asked = began;
        // Much that is waited for is nearly done.
        let mut is_first = true;
        while !self.has_passed(milestone) {
            if asked.elapsed() > ASKING_PERIOD {
                // A stream that is idle has passed everything: then the loop ends by itself.
                self.driver.is_idle(self.stream)?;
                asked = Instant::now();
            }
            std::thread::sleep(if is_first { SHORTEST_SLEEP } else { patience.sleep(began.elapsed()) });
            is_first = false;
        }
        patience.learn(began.elapsed());
        Ok(())
    }
}

impl Patience {
    /// How long to sleep after having waited for so long: most of what is left, at least a small part of the whole, and more the
    /// longer nobody expected it.
    fn sleep(self, waited: Duration) -> Duration {
        let (left, beyond) = (self.usual.saturating_sub(waited), waited.saturating_sub(self.usual));
        (left * 3 / 4).max(self.usual / 32).max(beyond / 8).clamp(SHORTEST_SLEEP, LONGEST_SLEEP)
    }

    /// A shorter wait is believed at once, because expecting too much idles the card; expecting too little only wakes more often.
    fn learn(&mut self, took: Duration) {
        self.usual = took.min((self.usual + took) / 2);
    }
}

impl Drop for Milestones {
    fn drop(&mut self) {
        self.driver.free_pinned(self.passed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_usual_wait_takes_few_sleeps_and_ends_soon_after_its_time() {
        let mut patience = Patience::default();
        (0..8).for_each(|_| patience.learn(Duration::from_millis(100)));
        let sleeps = |patience: Patience, until: Duration| {
            let (mut waited, mut count) = (SHORTEST_SLEEP, 1);
            while waited < until {
                waited += patience.sleep(waited);
                count += 1;
            }
            (waited, count)
        };
        for ms in [97, 100, 103] {
            let (waited, count) = sleeps(patience, Duration::from_millis(ms));
            assert!(
                count <= 7 && waited < Duration::from_millis(ms + 5),
                "{ms} ms: {waited:?}, {count} sleeps"
            );
        }
        // A wait that nobody expected takes more sleeps, not thousands.
        assert!(sleeps(Patience::default(), Duration::from_millis(100)).1 < 100);
        patience.learn(Duration::from_millis(5));
        assert_eq!(patience.usual, Duration::from_millis(5));
    }
}
