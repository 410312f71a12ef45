//! What runs programs: blocks of warps that take turns, each a few thousand steps at a time.
//!
//! Lanes of a warp share one place in the program while they can. Where they part, those that are furthest behind go first, so they meet
//! again where their ways do; what lanes must do together waits for all of them. Blocks run one cluster after another, or all side
//! by side where a launch asks for it.

mod accesses;
mod arrivals;
mod collective;
mod copies;
mod execute;
mod history;
mod lanewise;
mod launch;
mod lockstep;
mod matrices;
mod meetings;
mod memory;
mod order;
mod pages;
mod places;
mod reach;
mod tensor;
mod warp;

pub use history::{By, History, Told};
pub use launch::{Launch, MOST_SHARED_BYTES, Timing, run};
pub use memory::{Region, Table, raw};
pub use tensor::Tensor;
