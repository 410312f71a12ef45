//! The two clocks of a measurement: what a wall clock says, and the processor time of all threads.

use std::time::{Duration, Instant};

/// A moment on both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    wall: Instant,
    processor: Duration,
}

/// A time on both clocks, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Time {
    /// What passed.
    pub wall: f64,
    /// What this process used of all processors; the wall time where the system does not say.
    pub processor: f64,
}

impl Clock {
    /// Now.
    pub fn now() -> Self {
        Clock { wall: Instant::now(), processor: processor() }
    }

    /// Since then.
    pub fn elapsed(&self) -> Time {
        let now = Clock::now();
        let wall = (now.wall - self.wall).as_secs_f64();
        let processor = now.processor.saturating_sub(self.processor).as_secs_f64();
        Time { wall, processor: if processor > 0.0 { processor } else { wall } }
    }
}

impl Time {
    /// The time that counts: one thread is measured by what it used, which neighbours do not stretch; several are measured
    /// by the wall clock, because waiting for each other is part of their work.
    pub fn counted(&self, threads: usize) -> f64 {
        if threads == 1 { self.processor } else { self.wall }
    }
}

/// The name of the clock that counts.
pub fn counted_name(threads: usize) -> &'static str {
    if threads == 1 { "cpu" } else { "wall" }
}

#[cfg(unix)]
fn processor() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

#[cfg(not(unix))]
fn processor() -> Duration {
    Duration::ZERO
}
