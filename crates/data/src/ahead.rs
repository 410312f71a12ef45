//! Threads that fill batches before they are asked for.
//!
//! A few sets of buffers go round between the workers and whoever takes batches: a worker fills a free set with the next step's
//! samples, and the step copies them out and frees the set. What a step gets is what [`Loader::fill`](crate::Loader::fill) gives
//! without workers, because every sample is a function of its number; who fills it and when changes nothing. Asking for another
//! step than the next one (after a resume, or when a run goes back) starts anew from there. After the start nothing is allocated.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use crate::error::{Error, Result};
use crate::loader::{BatchMut, Loader};

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

/// A set of buffers and what is in it. The buffers are away while somebody fills or copies them.
struct Set {
    buffers: Option<Box<Buffers>>,
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

struct Buffers {
    ids: Vec<u32>,
    targets: Vec<u32>,
    positions: Vec<u32>,
    borders: Vec<u32>,
    samples: Vec<u32>,
}

impl Ahead {
    /// Starts workers that fill what `loader` fills.
    pub(crate) fn start(loader: &Loader, workers: usize) -> Result<Ahead> {
        let numbers = loader.rows() * loader.lengths().last().copied().unwrap_or_default();
        let sets = (0..workers + 1)
            .map(|_| Set {
                buffers: Some(Box::new(Buffers::new(numbers, loader.rows()))),
                content: Content::Nothing,
            })
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

    /// Copies the step that starts at `first_sample` into the batch, once it is there; `false` if the workers are gone.
    pub(crate) fn take(&self, first_sample: u64, batch: &mut BatchMut<'_>) -> Result<bool> {
        let mut state = self.shared.lock();
        if !state.sets.iter().any(|set| set.content.is(first_sample, state.order)) {
            state.order += 1;
            state.next_sample = first_sample;
            for set in &mut state.sets {
                set.content = Content::Nothing;
            }
            self.shared.has_room.notify_all();
        }
        let idx = loop {
            if state.is_over {
                return Ok(false);
            }
            let is_there = |set: &Set| set.content.is_there(first_sample);
            match state.sets.iter().position(is_there) {
                Some(idx) => break idx,
                None => {
                    state = self.shared.has_batch.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
        };
        let content = std::mem::replace(&mut state.sets[idx].content, Content::Nothing);
        let buffers = state.sets[idx].buffers.take();
        drop(state);
        let result = match (content, &buffers) {
            (Content::Failed { failure, .. }, _) => Err(failure),
            (_, Some(buffers)) => {
                buffers.copy_to(batch);
                Ok(true)
            }
            (_, None) => Ok(false),
        };
        self.shared.lock().sets[idx].buffers = buffers;
        self.shared.has_room.notify_one();
        result
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

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that is done under the lock leaves the state half-changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self, loader: &Loader) {
        let _alarm = Alarm(self);
        let mut state = self.lock();
        loop {
            if state.is_over {
                return;
            }
            let is_free = |set: &Set| matches!(set.content, Content::Nothing) && set.buffers.is_some();
            let Some(idx) = state.sets.iter().position(is_free).filter(|_| state.order > 0) else {
                state = self.has_room.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let (first_sample, order) = (state.next_sample, state.order);
            state.next_sample = first_sample.wrapping_add(loader.rows() as u64);
            let set = &mut state.sets[idx];
            set.content = Content::Step { first_sample, order };
            let Some(mut buffers) = set.buffers.take() else { continue };
            drop(state);
            let filled = loader.fill_now(first_sample, buffers.batch(loader, first_sample));
            state = self.lock();
            let is_wanted = state.order == order;
            let set = &mut state.sets[idx];
            set.buffers = Some(buffers);
            set.content = match filled {
                _ if !is_wanted => Content::Nothing,
                Ok(()) => Content::Filled { first_sample },
                Err(failure) => Content::Failed { first_sample, failure },
            };
            self.has_batch.notify_all();
        }
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

impl Buffers {
    fn new(numbers: usize, rows: usize) -> Buffers {
        let [ids, targets, positions, borders] = [(); 4].map(|()| vec![0; numbers]);
        Buffers { ids, targets, positions, borders, samples: vec![0; rows] }
    }

    /// As much of it as a step takes.
    fn batch(&mut self, loader: &Loader, first_sample: u64) -> BatchMut<'_> {
        let numbers = loader.rows() * loader.length(first_sample);
        BatchMut {
            ids: &mut self.ids[..numbers],
            targets: &mut self.targets[..numbers],
            positions: &mut self.positions[..numbers],
            borders: &mut self.borders[..numbers],
            samples: &mut self.samples,
        }
    }

    fn copy_to(&self, batch: &mut BatchMut<'_>) {
        let numbers = batch.ids.len();
        batch.ids.copy_from_slice(&self.ids[..numbers]);
        batch.targets.copy_from_slice(&self.targets[..numbers]);
        batch.positions.copy_from_slice(&self.positions[..numbers]);
        batch.borders.copy_from_slice(&self.borders[..numbers]);
        batch.samples.copy_from_slice(&self.samples);
    }
}
