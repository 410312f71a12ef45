//! What the pool is made of: the standard library's primitives, or those of a model checker, which runs a test under every
//! order of steps that the memory model allows (`--cfg loom`, see CONTRIBUTING.md).

#[cfg(not(all(loom, test)))]
pub(super) use std::{
    sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence},
    },
    thread::{Builder, JoinHandle},
};

#[cfg(all(loom, test))]
pub(super) use loom::{
    cell::UnsafeCell as Slot,
    sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence},
    },
    thread::{Builder, JoinHandle},
};

use std::time::Duration;

/// A place that threads take turns with; whoever follows its pointers says why it is their turn.
#[cfg(not(all(loom, test)))]
pub(super) struct Slot<T>(std::cell::UnsafeCell<T>);

#[cfg(not(all(loom, test)))]
impl<T> Slot<T> {
    /// A place with something in it.
    pub fn new(value: T) -> Self {
        Slot(std::cell::UnsafeCell::new(value))
    }

    /// Calls `read` with a pointer to read through.
    pub fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    /// Calls `write` with a pointer to write through.
    pub fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}

/// Spins until the condition holds or the time is over, and says whether it held.
#[cfg(not(all(loom, test)))]
pub(super) fn spin_until(time: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let start = std::time::Instant::now();
    loop {
        for _ in 0..64 {
            if condition() {
                return true;
            }
            std::hint::spin_loop();
        }
        if start.elapsed() > time {
            return false;
        }
    }
}

/// Looks once: the checker tries every moment at which that may be.
#[cfg(all(loom, test))]
pub(super) fn spin_until(_: Duration, mut condition: impl FnMut() -> bool) -> bool {
    condition()
}
