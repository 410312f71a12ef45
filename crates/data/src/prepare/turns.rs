//! Batches of several threads that are written in the order in which they were read.
//!
//! Whoever hands in a batch whose turn it is writes it, while it is near, and those that waited for it; while one thread
//! writes, others leave their batches to it and go on. So nobody waits for anybody but when all batches are in use, and their
//! number bounds the memory.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// The batches of a pipeline, with their memory.
pub(super) struct Turns<B> {
    max_batches: usize,
    state: Mutex<State<B>>,
    /// A batch was given back, or all is over.
    changed: Condvar,
}

struct State<B> {
    n_made: usize,
    /// Batches of which nothing is needed any more; the last one given back is still near, and is taken first.
    spare: Vec<B>,
    /// Batches that came before their turn.
    waiting: BTreeMap<u64, B>,
    next: u64,
    is_writing: bool,
    is_over: bool,
}

impl<B> Turns<B> {
    /// There are to be no more than so many batches.
    pub(super) fn new(max_batches: usize) -> Turns<B> {
        let state = State {
            n_made: 0,
            spare: Vec::new(),
            waiting: BTreeMap::new(),
            next: 0,
            is_writing: false,
            is_over: false,
        };
        Turns { max_batches, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// A batch to fill, once there is one; `None` when all is over.
    pub(super) fn take(&self, make: impl FnOnce() -> B) -> Option<B> {
        let mut state = self.lock();
        loop {
            if state.is_over {
                return None;
            }
            if let Some(batch) = state.spare.pop() {
                return Some(batch);
            }
            if state.n_made < self.max_batches {
                state.n_made += 1;
                drop(state);
                return Some(make());
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes the batch of a number, of which every one from 0 on comes once, and lets `write` have all whose turn it is, unless
    /// another thread is at it. All is over once `write` says `false`.
    pub(super) fn hand_in(&self, number: u64, batch: B, mut write: impl FnMut(&mut B) -> bool) {
        let mut state = self.lock();
        state.waiting.insert(number, batch);
        if state.is_writing || state.is_over {
            return;
        }
        state.is_writing = true;
        while let Some(mut batch) = state.next_in_turn() {
            drop(state);
            let goes_on = write(&mut batch);
            state = self.lock();
            state.spare.push(batch);
            self.changed.notify_one();
            if !goes_on {
                state.end(&self.changed);
            }
        }
        state.is_writing = false;
    }

    /// Ends all if the thread that holds the answer panics, so that nobody waits for it.
    pub(super) fn alarm(&self) -> Alarm<'_, B> {
        Alarm(self)
    }

    fn lock(&self) -> MutexGuard<'_, State<B>> {
        // Nothing that is done under the lock leaves the state half-changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<B> State<B> {
    fn next_in_turn(&mut self) -> Option<B> {
        let batch = self.waiting.remove(&self.next).filter(|_| !self.is_over)?;
        self.next += 1;
        Some(batch)
    }

    fn end(&mut self, changed: &Condvar) {
        self.is_over = true;
        changed.notify_all();
    }
}

/// See [`Turns::alarm`].
pub(super) struct Alarm<'a, B>(&'a Turns<B>);

impl<B> Drop for Alarm<'_, B> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.lock().end(&self.0.changed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

    use super::*;

    /// Lets threads number batches until one is told to end; gives what was written and how many batches were made.
    fn write(threads: usize, max_batches: usize, last: u64) -> (Vec<u64>, usize) {
        let turns = Turns::new(max_batches);
        let (numbers, n_made, written) = (AtomicU64::new(0), AtomicUsize::new(0), Mutex::new(Vec::new()));
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    let make = || {
                        n_made.fetch_add(1, Ordering::Relaxed);
                        0
                    };
                    while let Some(mut batch) = turns.take(make) {
                        let number = numbers.fetch_add(1, Ordering::Relaxed);
                        batch = number.max(batch);
                        // Some take longer than others.
                        (0..number * 7919 % 5).for_each(|_| thread::yield_now());
                        turns.hand_in(number, batch, |&mut batch| {
                            written.lock().unwrap().push(batch);
                            batch < last
                        });
                    }
                });
            }
        });
        (written.into_inner().unwrap(), n_made.into_inner())
    }

    #[test]
    fn batches_are_written_in_order_and_their_number_is_bounded() {
        for (threads, max_batches) in [(1, 1), (2, 2), (3, 4), (8, 3)] {
            let (written, n_made) = write(threads, max_batches, 500);
            assert!(written.iter().copied().eq(0..=500), "{threads} threads");
            assert!(n_made <= max_batches);
        }
    }

    #[test]
    fn a_panic_of_one_thread_ends_the_others() {
        let turns = Turns::<u64>::new(1);
        let panicked = thread::scope(|scope| {
            let holder = scope.spawn(|| {
                let _alarm = turns.alarm();
                let _batch = turns.take(|| 0);
                panic!("on purpose");
            });
            let panicked = holder.join().is_err();
            // The only batch is lost, so this would wait forever.
            assert_eq!(turns.take(|| 0), None);
            panicked
        });
        assert!(panicked);
    }
}
