//! One thread at a time where the vendor's libraries ask for it.

use std::sync::{Condvar, Mutex, PoisonError};

/// Whether a thread is alone. Nothing else lies behind the lock, so nothing was left half done by one that panicked.
static IS_TAKEN: Mutex<bool> = Mutex::new(false);
static IS_FREE: Condvar = Condvar::new();

/// Held by whoever opens a card, binds, ends something that was bound, or the card. Candidates are timed undisturbed that way, and the
/// vendor's product library fails now and then where one thread captures while others open it, close it, run it call by call or capture
/// themselves. Unlike a lock's guard it may be held by what threads give each other, as a card is.
pub(super) struct Alone(());

impl Alone {
    /// Waits until no other thread is alone. A thread that already is would wait for itself.
    pub fn take() -> Self {
        let is_taken = IS_TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        let mut is_taken =
            IS_FREE.wait_while(is_taken, |is_taken| *is_taken).unwrap_or_else(PoisonError::into_inner);
        *is_taken = true;
        Alone(())
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        *IS_TAKEN.lock().unwrap_or_else(PoisonError::into_inner) = false;
        IS_FREE.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn one_thread_is_alone_at_a_time_and_one_that_panics_lets_go() {
        let inside = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let inside = &inside;
                scope.spawn(move || {
                    for round in 0..200 {
                        let outcome = std::panic::catch_unwind(|| {
                            let _alone = Alone::take();
                            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "alone");
                            std::thread::yield_now();
                            inside.fetch_sub(1, Ordering::SeqCst);
                            if (round + thread) % 50 == 0 {
                                std::panic::resume_unwind(Box::new("on its way out"));
                            }
                        });
                        let is_ours = outcome.is_err_and(|panic| panic.is::<&str>());
                        assert_eq!(is_ours, (round + thread) % 50 == 0);
                    }
                });
            }
        });
    }
}
