//! Which of several ways to run a launch is the fastest: they are timed once for every shape, on random numbers somewhere else.

use std::sync::Arc;

use super::{
    super::{
        blas::{Blas, IN_A_ROW},
        driver::Driver,
        int8::Matrices,
    },
    Builder, Call,
};
use crate::{
    device::{BufferId, View},
    error::Result,
};

/// Adds the calls of a launch with these inputs and outputs; false where there are none.
pub(in super::super) type Fill<'a> = dyn Fn(&mut Builder<'_>, &[View], &[View]) -> Result<bool> + 'a;

/// Times that something is timed to begin with.
const TIMED: usize = 3;
/// What is slower than the fastest by more than this factor cannot win.
const WITHIN_REACH: f64 = 1.25;
/// Turns of every way that may win, of which the first does not count, how long one lasts, and the most runs of one.
const TURNS: usize = 4;
const TURN_SECONDS: f64 = 0.05;
const MOST_RUNS_OF_A_TURN: f64 = 1000.0;

impl Builder<'_> {
    /// Adds the calls of the fastest of several ways to run a launch; false where there is none. The ways are timed once for
    /// every key, if that is worth it; otherwise the first that there is runs. What ran is kept in either case.
    pub fn fastest(
        &mut self,
        key: String,
        is_worth_timing: bool,
        views: [&[View]; 2],
        ways: &[&Fill<'_>],
    ) -> Result<bool> {
        let [inputs, outputs] = views;
        let kept = self.machine.blas.way(&key);
        let chosen = match kept {
            None if is_worth_timing => self.race(views, ways)?,
            kept => kept,
        };
        let before = self.pending.len();
        for way in chosen.filter(|&way| way < ways.len()).into_iter().chain(0..ways.len()) {
            if ways[way](self, inputs, outputs)? {
                if kept.is_none() {
                    self.machine.blas.keep_way(key, way);
                }
                return Ok(true);
            }
            // What it prepared for a product that there is not.
            self.pending.truncate(before);
        }
        Ok(false)
    }

    /// The way that takes the least time. A card that has rested is faster than one at work, and ways differ in how much power they
    /// draw: those that may win take turns that are long enough for the card's clock to follow.
    fn race(&mut self, views: [&[View]; 2], ways: &[&Fill<'_>]) -> Result<Option<usize>> {
        let (driver, stream) = (Arc::clone(self.machine.driver), self.machine.stream);
        let mut trials = Vec::with_capacity(ways.len());
        for (way, fill) in ways.iter().enumerate() {
            let Some(trial) = self.trial(&driver, views, fill)? else { continue };
            trials.push((trial.least_time(&driver, self.machine.blas, stream)?, way, trial));
        }
        let least = trials.iter().map(|&(seconds, ..)| seconds).fold(f64::INFINITY, f64::min);
        trials.retain(|&(seconds, ..)| seconds <= WITHIN_REACH * least);
        if let [_, _, ..] = trials[..] {
            let runs = |least: f64| (TURN_SECONDS / least).clamp(1.0, MOST_RUNS_OF_A_TURN) as usize;
            let mut times = vec![Vec::with_capacity(TURNS); trials.len()];
            for _ in 0..TURNS {
                for ((least, _, trial), times) in trials.iter().zip(&mut times) {
                    times.push(trial.time(&driver, self.machine.blas, stream, runs(*least))?);
                }
            }
            // The first turns bring the card to its pace.
            for ((seconds, ..), times) in trials.iter_mut().zip(&mut times) {
                *seconds = median(&mut times[1..]);
            }
        }
        Ok(trials.iter().min_by(|a, b| a.0.total_cmp(&b.0)).map(|&(_, way, _)| way))
    }

    /// The least time of the calls that `fill` adds for a launch with such operands, which lie in memory of random numbers while
    /// it runs. Nothing where `fill` adds none.
    pub fn time(&mut self, views: [&[View]; 2], fill: &Fill<'_>) -> Result<Option<f64>> {
        let (driver, stream) = (Arc::clone(self.machine.driver), self.machine.stream);
        let trial = self.trial(&driver, views, fill)?;
        trial.map(|trial| trial.least_time(&driver, self.machine.blas, stream)).transpose()
    }

    /// The calls that `fill` adds for a launch with such operands somewhere else. Nothing where it adds none.
    fn trial<'d>(
        &mut self,
        driver: &'d Driver,
        [inputs, outputs]: [&[View]; 2],
        fill: &Fill<'_>,
    ) -> Result<Option<Trial<'d>>> {
        let stream = self.machine.stream;
        let mut starts = Vec::with_capacity(inputs.len() + outputs.len());
        let mut bytes = 0;
        let mut elsewhere = |view: &View| {
            starts.push(bytes as u64);
            bytes += (view.of.shape.elements() * view.of.dtype.bytes()).next_multiple_of(256);
            View { buffer: BufferId(starts.len() - 1), offset_bytes: 0, of: view.of }
        };
        let inputs: Vec<View> = inputs.iter().map(&mut elsewhere).collect();
        let outputs: Vec<View> = outputs.iter().map(&mut elsewhere).collect();
        let base = self.machine.blas.random_memory(bytes, stream)?;
        let address = |id: BufferId| base + starts[id.0];

        let nothing_frozen = Matrices::default();
        let mut trial = Builder::new(self.machine.again(), &address, &nothing_frozen);
        if !fill(&mut trial, &inputs, &outputs)? {
            return Ok(None);
        }
        let constants = trial.constants().to_vec();
        let memory = Lent::new(driver, [trial.memory_bytes(), constants.len()])?;
        let [scratch_at, constants_at] = memory.addresses;
        driver.copy_in_and_wait(constants_at, &constants, stream)?;
        Ok(Some(Trial { calls: trial.finish(constants_at, scratch_at)?.every_run, _memory: memory }))
    }
}

/// Calls that are only timed, and the memory that they work in.
struct Trial<'d> {
    calls: Vec<Call>,
    _memory: Lent<'d>,
}

impl Trial<'_> {
    /// The least of a few times. The first loads kernels and does not count.
    fn least_time(&self, driver: &Driver, blas: &Blas, stream: usize) -> Result<f64> {
        self.time(driver, blas, stream, IN_A_ROW)?;
        let mut least = f64::INFINITY;
        for _ in 0..TIMED {
            least = least.min(self.time(driver, blas, stream, IN_A_ROW)?);
        }
        Ok(least)
    }

    /// The time of one of so many runs that follow each other without a pause.
    fn time(&self, driver: &Driver, blas: &Blas, stream: usize, runs: usize) -> Result<f64> {
        let [start, end] = [driver.create_event(true)?, driver.create_event(true)?];
        let timed = || -> Result<f64> {
            driver.record(start, stream)?;
            for _ in 0..runs {
                self.calls.iter().try_for_each(|call| call.issue(driver, blas, stream))?;
            }
            driver.record(end, stream)?;
            driver.synchronize_event(end)?;
            Ok(driver.seconds_between(start, end)? / runs as f64)
        };
        let seconds = timed();
        driver.destroy_event(start);
        driver.destroy_event(end);
        seconds
    }
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Memory that is given back when dropped.
struct Lent<'a> {
    driver: &'a Driver,
    addresses: [u64; 2],
}

impl<'a> Lent<'a> {
    fn new(driver: &'a Driver, [first, second]: [usize; 2]) -> Result<Self> {
        let mut lent = Lent { driver, addresses: [driver.allocate(first)?, 0] };
        lent.addresses[1] = driver.allocate(second)?;
        Ok(lent)
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        // The driver takes a 0 for nothing.
        self.addresses.iter().for_each(|&address| self.driver.free(address));
    }
}
