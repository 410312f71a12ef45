//! The driver's interface: what a program that opens `libcuda.so.1` finds here.
//!
//! Streams do at once what they are given, in the thread that gives it. Addresses are those of this process, so copies in both directions
//! are plain ones, and the products' library needs nothing from here but what is being captured.

mod calls;
mod state;

pub(crate) use calls::functions;
pub use state::{Work, give, state};
