//! The threads of a device.
//!
//! A job is a number of tiles and a function of a tile. Every thread has a share of them, tiles that lie together, and claims
//! those first, one at a time: it then walks through memory in order, and finds in its caches what it wrote in the job before.
//! Afterwards it claims what is left of other shares, so a thread that a neighbour's program holds up costs a tile, not its
//! share of the job. Which thread runs a tile never shows in a result: tiles are cut by shape alone and write to places of
//! their own.
//!
//! Workers spin for a bounded time after a job, because the next launch usually follows within microseconds, and then sleep
//! on a condition, so that an idle device burns nothing. A worker that wakes too late for a job is not waited for: the
//! caller closes the gate when no tile is left, and waits only for the workers that are inside.
#![expect(unsafe_code, reason = "workers borrow a job that lives on the caller's stack")]

use std::{
    any::Any,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{Arc, PoisonError},
    time::Duration,
};

use super::{
    memory::Scratch,
    sync::{
        AtomicBool, AtomicU64, AtomicUsize, Builder, Condvar, JoinHandle, Mutex, MutexGuard, Ordering, Slot,
        fence, spin_until,
    },
};
use crate::error::{Error, Result};

/// How long a thread spins before it sleeps: longer than the caller's work between two launches, far shorter than a
/// scheduler's time slice.
const SPIN: Duration = Duration::from_micros(40);

/// A function of a tile's index and the thread's scratch.
type Body<'a> = dyn Fn(usize, &mut [f32]) + Sync + 'a;

/// A fixed number of threads: the caller and its workers.
pub(super) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

impl Pool {
    /// A pool of `threads` threads, one of which is whoever calls [`Pool::run`].
    pub fn new(threads: usize) -> Result<Self> {
        let threads = threads.max(1);
        let shared = Arc::new(Shared {
            gate: Padded(AtomicU64::new(0)),
            next: (0..threads).map(|_| Padded(AtomicUsize::new(0))).collect(),
            job: Slot::new(None),
            started: AtomicUsize::new(0),
            sleepers: AtomicUsize::new(0),
            lock: Mutex::new(()),
            work: Condvar::new(),
            done: Condvar::new(),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
            scratch: (0..threads).map(|_| Mutex::new(Scratch::default())).collect(),
        });
        let mut pool = Pool { shared, workers: Vec::with_capacity(threads - 1) };
        for thread_idx in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let builder = Builder::new().name(format!("compute-{thread_idx}"));
            // On failure the pool is dropped, which ends the workers that did start.
            pool.workers.push(builder.spawn(move || shared.work(thread_idx)).map_err(Error::Threads)?);
        }
        pool.shared.wait_for_start(threads - 1);
        Ok(pool)
    }

    /// How many threads there are, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Gives every thread scratch of at least `floats` numbers.
    pub fn reserve(&mut self, floats: usize) -> Result<()> {
        self.shared.scratch.iter().try_for_each(|scratch| ignore_poison(scratch).reserve(floats))
    }

    /// Calls `body` once for every tile below `tiles`, on all threads, and returns when all calls have.
    ///
    /// # Panics
    /// With the payload of a tile that panicked; the other tiles may then not have run.
    pub fn run(&mut self, tiles: usize, body: &Body<'_>) {
        let shared = &*self.shared;
        if tiles <= 1 || self.workers.is_empty() {
            let mut scratch = ignore_poison(&shared.scratch[0]);
            (0..tiles).for_each(|tile| body(tile, scratch.as_mut_slice()));
            return;
        }
        // SAFETY: the gate is closed and nobody is inside, since every call leaves it so and `&mut self` keeps calls
        // apart; so nobody reads the job. The lifetime that the transmute erases outlasts every use, because `close`
        // below returns only when all workers that saw the job have left it.
        unsafe {
            let body = std::mem::transmute::<*const Body<'_>, *const Body<'static>>(body);
            shared.job.with_mut(|job| *job = Some(Job { body, tiles }));
        }
        for (thread_idx, next) in shared.next.iter().enumerate() {
            next.0.store(share(self.threads(), tiles, thread_idx).start, Ordering::Relaxed);
        }
        shared.open();
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| shared.claim(tiles, body, 0))) {
            shared.abandon(tiles, panic);
        }
        shared.close();
        let panic = ignore_poison(&shared.panic).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        drop(ignore_poison(&self.shared.lock));
        self.shared.work.notify_all();
        for worker in self.workers.drain(..) {
            // A worker catches the panics of its tiles, so it ends in order.
            let _ = worker.join();
        }
    }
}

/// The tiles that a thread claims first.
fn share(threads: usize, tiles: usize, thread_idx: usize) -> Range<usize> {
    tiles * thread_idx / threads..tiles * (thread_idx + 1) / threads
}

/// The tile that a thread most likely claims after this one, unless its share ends here.
pub(super) fn following(threads: usize, tiles: usize, tile: usize) -> Option<usize> {
    let is_end = (0..threads).any(|thread_idx| share(threads, tiles, thread_idx).end == tile + 1);
    (!is_end).then_some(tile + 1)
}

/// Keeps what all threads write on cache lines of its own.
#[repr(align(128))]
struct Padded<T>(T);

struct Job {
    body: *const Body<'static>,
    tiles: usize,
}

struct Shared {
    /// The job's number times [`EPOCH`], plus [`OPEN`] while workers may enter, plus the workers inside.
    gate: Padded<AtomicU64>,
    /// The first tile of every thread's share that nobody has claimed.
    next: Box<[Padded<AtomicUsize>]>,
    job: Slot<Option<Job>>,
    started: AtomicUsize,
    sleepers: AtomicUsize,
    /// Held while a thread decides to sleep, so that it cannot miss being woken.
    lock: Mutex<()>,
    work: Condvar,
    done: Condvar,
    stop: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    scratch: Box<[Mutex<Scratch>]>,
}

// SAFETY: all fields but `job` are safe to share by their types. `job` is written by the caller while the gate is closed and
// empty, and read only by workers that are inside; the gate's release and acquire operations order the two. The job's body
// is `Sync`, so any thread may call it.
unsafe impl Sync for Shared {}
// SAFETY: as above; the pointer in `job` is only followed while the call that stored it is running.
unsafe impl Send for Shared {}

const INSIDE: u64 = 0xFFFF;
const OPEN: u64 = 0x1_0000;
const EPOCH: u64 = 0x2_0000;

impl Shared {
    /// Waits until the workers have started, since starting allocates and running a sequence must not.
    fn wait_for_start(&self, workers: usize) {
        let mut guard = ignore_poison(&self.lock);
        while self.started.load(Ordering::Relaxed) < workers {
            guard = self.done.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A worker's life.
    fn work(&self, thread_idx: usize) {
        {
            let _guard = ignore_poison(&self.lock);
            self.started.fetch_add(1, Ordering::Relaxed);
            self.done.notify_all();
        }
        let mut seen = 0;
        while let Some(epoch) = self.enter(seen) {
            seen = epoch;
            // SAFETY: `enter` has let this worker in, so the caller has stored a job and is still in `Pool::run`, where it
            // keeps the job alive and unchanged until this worker leaves.
            let (body, tiles) = unsafe {
                self.job.with(|job| match (*job).as_ref() {
                    Some(job) => (&*job.body, job.tiles),
                    None => unreachable!("the gate opens after the job is stored"),
                })
            };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.claim(tiles, body, thread_idx))) {
                self.abandon(tiles, panic);
            }
            self.leave();
        }
    }

    fn claim(&self, tiles: usize, body: &Body<'_>, thread_idx: usize) {
        let mut scratch = ignore_poison(&self.scratch[thread_idx]);
        let threads = self.next.len();
        for owner in (thread_idx..threads).chain(0..thread_idx) {
            let end = share(threads, tiles, owner).end;
            loop {
                let tile = self.next[owner].0.fetch_add(1, Ordering::Relaxed);
                if tile >= end {
                    break;
                }
                body(tile, scratch.as_mut_slice());
            }
        }
    }

    /// Keeps the first panic for the caller and the unclaimed tiles from running.
    fn abandon(&self, tiles: usize, panic: Box<dyn Any + Send>) {
        self.next.iter().for_each(|next| next.0.store(tiles, Ordering::Relaxed));
        ignore_poison(&self.panic).get_or_insert(panic);
    }

    fn open(&self) {
        let gate = self.gate.0.load(Ordering::Relaxed);
        self.gate.0.store((gate & !INSIDE & !OPEN).wrapping_add(EPOCH) | OPEN, Ordering::Release);
        // With the fence of a thread that goes to sleep: either this sees the sleeper, or the sleeper sees the open gate.
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            drop(ignore_poison(&self.lock));
            self.work.notify_all();
        }
    }

    /// Lets nobody else in and waits for those inside.
    fn close(&self) {
        self.gate.0.fetch_and(!OPEN, Ordering::AcqRel);
        let is_empty = || self.gate.0.load(Ordering::Acquire) & INSIDE == 0;
        if spin_until(SPIN, is_empty) {
            return;
        }
        let mut guard = ignore_poison(&self.lock);
        while !is_empty() {
            guard = self.done.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for a job other than `seen` and enters it; nothing when the pool ends.
    fn enter(&self, seen: u64) -> Option<u64> {
        let mut entered = None;
        let mut is_over = || {
            entered = self.try_enter(seen);
            entered.is_some() || self.stop.load(Ordering::Relaxed)
        };
        if !spin_until(SPIN, &mut is_over) {
            let mut guard = ignore_poison(&self.lock);
            self.sleepers.fetch_add(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            while !is_over() {
                guard = self.work.wait(guard).unwrap_or_else(PoisonError::into_inner);
            }
            self.sleepers.fetch_sub(1, Ordering::Relaxed);
        }
        entered
    }

    fn try_enter(&self, seen: u64) -> Option<u64> {
        let mut gate = self.gate.0.load(Ordering::Acquire);
        while gate & OPEN != 0 && gate / EPOCH != seen {
            match self.gate.0.compare_exchange_weak(gate, gate + 1, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Some(gate / EPOCH),
                Err(now) => gate = now,
            }
        }
        None
    }

    fn leave(&self) {
        let before = self.gate.0.fetch_sub(1, Ordering::AcqRel);
        if before & (OPEN | INSIDE) == 1 {
            drop(ignore_poison(&self.lock));
            self.done.notify_all();
        }
    }
}

/// Scratch and signals stay usable after a panic, which `Pool::run` passes on by itself.
fn ignore_poison<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(all(loom, test))]
mod model {
    //! The pool under every order of its threads' steps that has few preemptions.

    use super::*;

    fn check(threads: usize, preemptions: usize, body: impl Fn(&mut Pool) + Sync + Send + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(preemptions);
        model.check(move || {
            let mut pool = Pool::new(threads).unwrap();
            body(&mut pool);
            // Dropping the pool ends the workers, wherever they are; one that slept on would be found as a deadlock.
        });
    }

    /// A cell for each tile.
    struct Cells(Vec<Slot<usize>>);

    // SAFETY: tiles are claimed once each; if they were not, the checker would find two threads at one cell.
    unsafe impl Sync for Cells {}

    impl Cells {
        fn add_one(&self, tile: usize) {
            // SAFETY: nobody else has this tile.
            self.0[tile].with_mut(|cell| unsafe { *cell += 1 });
        }
    }

    fn run_counted(pool: &mut Pool, tiles: usize) {
        let cells = Cells((0..tiles).map(|_| Slot::new(0)).collect());
        pool.run(tiles, &|tile, _| cells.add_one(tile));
        // SAFETY: the job is over; if a worker were not done, the checker would find it.
        assert!(cells.0.iter().all(|cell| cell.with(|cell| unsafe { *cell }) == 1));
    }

    #[test]
    fn a_pool_that_is_dropped_ends() {
        check(2, 5, |_| {});
    }

    #[test]
    fn every_tile_runs_once_and_is_seen_by_the_caller() {
        check(2, 5, |pool| run_counted(pool, 2));
    }

    #[test]
    fn jobs_follow_each_other() {
        check(2, 3, |pool| {
            run_counted(pool, 2);
            run_counted(pool, 3);
        });
    }

    #[test]
    fn three_threads_share_a_job() {
        check(3, 2, |pool| run_counted(pool, 3));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tile_runs_once_for_any_number_of_threads() {
        for threads in [1, 2, 3, 7] {
            let mut pool = Pool::new(threads).unwrap();
            for tiles in [0, 1, 2, 5, 1000] {
                let counts: Vec<AtomicUsize> = (0..tiles).map(|_| AtomicUsize::new(0)).collect();
                pool.run(tiles, &|tile, _| {
                    counts[tile].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn a_thread_is_followed_through_its_share_to_the_end() {
        for (threads, tiles) in [(1, 5), (2, 5), (3, 2), (4, 16)] {
            for thread_idx in 0..threads {
                let share = share(threads, tiles, thread_idx);
                for tile in share.clone() {
                    let expected = Some(tile + 1).filter(|next| *next < share.end);
                    assert_eq!(following(threads, tiles, tile), expected, "{threads} threads, {tiles} tiles");
                }
            }
        }
    }

    #[test]
    fn workers_that_slept_are_woken() {
        let mut pool = Pool::new(2).unwrap();
        for _ in 0..20 {
            std::thread::sleep(4 * SPIN);
            let ran = AtomicUsize::new(0);
            pool.run(64, &|_, _| {
                ran.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(ran.into_inner(), 64);
        }
    }

    #[test]
    fn jobs_in_quick_succession_do_not_mix() {
        let mut pool = Pool::new(3).unwrap();
        for job in 0..3000 {
            let sum = AtomicUsize::new(0);
            pool.run(4, &|tile, _| {
                sum.fetch_add(job * 10 + tile, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), job * 40 + 6);
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let mut pool = Pool::new(2).unwrap();
        for bad in [0, 63] {
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                pool.run(64, &|tile, _| assert!(tile != bad, "tile {tile} is bad"));
            }));
            let message = *outcome.unwrap_err().downcast::<String>().unwrap();
            assert_eq!(message, format!("tile {bad} is bad"));
            let ran = AtomicUsize::new(0);
            pool.run(8, &|_, _| {
                ran.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(ran.into_inner(), 8);
        }
    }

    /// A neighbour's threads hold every core: workers wake late or not at all, and callers must neither wait for them nor
    /// spin their time away.
    #[test]
    fn pools_beside_each_other_on_busy_cores_all_finish() {
        let cores = std::thread::available_parallelism().map_or(2, |cores| cores.get());
        let stop = AtomicBool::new(false);
        let work = |tile: usize| {
            (0..2000).fold(tile as u64, |sum, i| std::hint::black_box(sum.wrapping_mul(31) + i % 7))
        };
        let expected = (0..32).fold(0u64, |sum, tile| sum.wrapping_add(work(tile)));
        std::thread::scope(|scope| {
            for _ in 0..cores {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let callers: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        let mut pool = Pool::new(cores.min(8)).unwrap();
                        for _ in 0..300 {
                            let sum = AtomicU64::new(0);
                            pool.run(32, &|tile, _| {
                                sum.fetch_add(work(tile), Ordering::Relaxed);
                            });
                            assert_eq!(sum.into_inner(), expected);
                        }
                    })
                })
                .collect();
            let outcomes: Vec<_> = callers.into_iter().map(|caller| caller.join()).collect();
            stop.store(true, Ordering::Relaxed);
            assert!(outcomes.iter().all(|outcome| outcome.is_ok()));
        });
    }

    #[test]
    fn every_thread_has_the_scratch_it_was_promised() {
        let mut pool = Pool::new(2).unwrap();
        pool.reserve(1000).unwrap();
        pool.run(32, &|_, scratch| {
            assert!(scratch.len() >= 1000);
            scratch.fill(1.0);
        });
    }
}
