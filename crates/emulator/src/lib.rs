//! emulator
mod error;
mod arithmetic;
mod lanes;
mod numbers;
mod program;
mod ptx;
pub use error::{Error, Result};
pub use ptx::parse;
pub use program::Program;
