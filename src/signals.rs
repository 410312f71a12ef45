//! Ctrl-C and SIGTERM: the first asks the work to stop, the second ends the program at once.

use crate::failure::{Code, Failure, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A flag that the first signal sets; 130 or 143 is the end that a second one brings.
///
/// Commands that have nothing to save never call this and keep the system's own behaviour.
pub fn stop_flag() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for (signal, exit_code) in [(SIGINT, 130), (SIGTERM, 143)] {
        // The order matters: the shutdown sees the flag as it was before this signal.
        flag::register_conditional_shutdown(signal, exit_code, Arc::clone(&stop))
            .and_then(|_| flag::register(signal, Arc::clone(&stop)))
            .map_err(|error| Failure::new(Code::Failed, format!("cannot listen for signals ({error})")))?;
    }
    Ok(stop)
}
