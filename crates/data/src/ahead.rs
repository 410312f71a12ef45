//! Threads that fill batches before they are asked for.
//!
//! A few sets of buffers go round between the workers and whoever takes batches: a worker fills a free set with the next step's
//! samples, and the step exchanges its own buffers for them. Whoever finds his batch not there yet fills the next free set like a
//! worker, so that a loader that is never waited for and one that always is both keep every core busy. What a step gets is what
//! [`Loader::fill`](crate::Loader::fill) gives without workers, because every sample is a function of its number; who fills it and
//! when changes nothing. Asking for another step than the next one (after a resume, or when a run goes back) starts anew from
//! there. After the start nothing is allocated.

use std::fmt;
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use crate::batch::Batch;
use crate::error::{Error, Result};
use crate::loader::Loader;

/// Sets of buffers beyond one for each that fills: while one waits to be taken, nobody waits for room.
const SPARE_SETS: usize = 2;

/// The workers of a loader. Dropped, they end.
pub(crate) struct Ahead {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    /// A set of buffers was freed, or everything has another order.
    has_room: Condvar,
    /// A set of buffers was filled.
    has_batch: Condvar,
}

struct State {
    sets: Vec<Set>,
    /// The first sample of the step that the next free worker fills.
    next_sample: u64,
    /// Counts how often the order was changed; what was begun before is of no use.
    order: u64,
    is_over: bool,
}

/// A set of buffers and what is in it. The buffers are away while somebody fills them.
struct Set {
    batch: Option<Batch>,
    content: Content,
}

#[derive(Debug)]
enum Content {
    Nothing,
    /// On its way.
    Step {
        first_sample: u64,
        order: u64,
    },
    Filled {
        first_sample: u64,
    },
    Failed {
        first_sample: u64,
        failure: Error,
    },
}

impl Ahead {
    /// Starts workers that fill what `loader` fills.
    pub(crate) fn start(loader: &Loader, workers: usize) -> Result<Ahead> {
        let sets = (0..workers + SPARE_SETS)
            .map(|_| Set { batch: Some(loader.batch()), content: Content::Nothing })
            .collect();
        let state = Mutex::new(State { sets, next_sample: 0, order: 0, is_over: false });
        let shared = Arc::new(Shared { state, has_room: Condvar::new(), has_batch: Condvar::new() });
        let mut ahead = Ahead { shared, threads: Vec::with_capacity(workers) };
        for idx in 0..workers {
            let (shared, loader) = (Arc::clone(&ahead.shared), loader.clone());
            let thread =
                thread::Builder::new().name(format!("loader-{idx}")).spawn(move || shared.work(&loader));
            ahead.threads.push(thread.map_err(|error| Error::BadSetting {
                name: "workers",
                value: workers.to_string(),
                advice: format!("the system has no room for so many threads ({error})"),
            })?);
        }
        Ok(ahead)
    }

    /// Gives the batch the samples of the step that starts at `first_sample`, once they are there.
    pub(crate) fn take(&self, loader: &Loader, first_sample: u64, batch: &mut Batch) -> Result<()> {
        let mut state = self.shared.lock();
        if !state.sets.iter().any(|set| set.content.is(first_sample, state.order)) {
            state.start_at(first_sample);
            self.shared.has_room.notify_all();
        }
        let order = state.order;
        loop {
            if let Some(set) = state.sets.iter_mut().find(|set| set.content.is_there(first_sample)) {
                let content = mem::replace(&mut set.content, Content::Nothing);
                if let Some(filled) = &mut set.batch {
                    mem::swap(filled, batch);
                }
                drop(state);
                self.shared.has_room.notify_one();
                return match content {
                    Content::Failed { failure, .. } => Err(failure),
                    _ => Ok(()),
                };
            }
            // The workers are gone, or somebody else takes other steps from them.
            if state.is_over || state.order != order {
                drop(state);
                return loader.fill_now(first_sample, batch);
            }
            let filled;
            (state, filled) = self.shared.fill_next(loader, state);
            if !filled {
                state = self.shared.has_batch.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

impl fmt::Debug for Ahead {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Ahead ({} workers)", self.threads.len())
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        self.shared.has_room.notify_all();
        for thread in self.threads.drain(..) {
            // A worker that panicked has said so itself.
            let _ = thread.join();
        }
    }
}

impl Content {
    /// Whether it is the step that starts there, or will be.
    fn is(&self, sample: u64, now: u64) -> bool {
        match self {
            Content::Step { first_sample, order } => *first_sample == sample && *order == now,
            _ => self.is_there(sample),
        }
    }

    fn is_there(&self, sample: u64) -> bool {
        match self {
            Content::Filled { first_sample } | Content::Failed { first_sample, .. } => {
                *first_sample == sample
            }
            Content::Nothing | Content::Step { .. } => false,
        }
    }
}

impl State {
    /// Leaves what was filled and begun; the next step to fill starts there.
    fn start_at(&mut self, first_sample: u64) {
        self.order += 1;
        self.next_sample = first_sample;
        for set in &mut self.sets {
            set.content = Content::Nothing;
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that is done under the lock leaves the state half-changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self, loader: &Loader) {
        let _alarm = Alarm(self);
        let mut state = self.lock();
        while !state.is_over {
            let filled;
            (state, filled) = self.fill_next(loader, state);
            if !filled {
                state = self.has_room.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Fills a free set with the next step, unless there is none or nothing was ever asked for; says whether it did.
    fn fill_next<'a>(
        &'a self,
        loader: &Loader,
        mut state: MutexGuard<'a, State>,
    ) -> (MutexGuard<'a, State>, bool) {
        let (first_sample, order) = (state.next_sample, state.order);
        let is_free = |set: &Set| matches!(set.content, Content::Nothing) && set.batch.is_some();
        let Some(idx) = state.sets.iter().position(is_free).filter(|_| order > 0) else {
            return (state, false);
        };
        let Some(mut batch) = state.sets[idx].batch.take() else { return (state, false) };
        state.sets[idx].content = Content::Step { first_sample, order };
        state.next_sample = first_sample.wrapping_add(loader.rows() as u64);
        drop(state);
        let filled = loader.fill_now(first_sample, &mut batch);
        state = self.lock();
        let is_wanted = state.order == order;
        let set = &mut state.sets[idx];
        set.batch = Some(batch);
        set.content = match filled {
            _ if !is_wanted => Content::Nothing,
            Ok(()) => Content::Filled { first_sample },
            Err(failure) => Content::Failed { first_sample, failure },
        };
        self.has_batch.notify_all();
        (state, true)
    }
}

/// Tells whoever waits for a batch that none will come if a worker panics.
struct Alarm<'a>(&'a Shared);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.lock().is_over = true;
            self.0.has_batch.notify_all();
        }
    }
}
