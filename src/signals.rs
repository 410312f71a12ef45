//! Ctrl-C, SIGTERM and SIGUSR1: the first asks the work to stop, the second ends the program at once.

use crate::failure::{Code, Failure, Result};
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::flag;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The signals, and how a program ends that does not wait for its work: with 128 and the number of the signal. Batch systems
/// send SIGUSR1 some time before they take the machine away.
const SIGNALS: [(i32, i32); 3] = [(SIGINT, 130), (SIGTERM, 143), (SIGUSR1, 128 + SIGUSR1)];

/// A flag that the first signal sets; a second one is the end.
///
/// Commands that have nothing to save never call this and keep the system's own behaviour.
pub fn stop_flag() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for (signal, exit_code) in SIGNALS {
        // The order matters: the shutdown sees the flag as it was before this signal.
        flag::register_conditional_shutdown(signal, exit_code, Arc::clone(&stop))
            .and_then(|_| flag::register(signal, Arc::clone(&stop)))
            .map_err(|error| Failure::new(Code::Failed, format!("cannot listen for signals ({error})")))?;
    }
    Ok(stop)
}
