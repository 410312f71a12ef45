//! The `ironmill` program: raw text to a trained language model.

mod bench;
mod cli;
mod config;
mod failure;
mod faults;
mod report;
mod run_lock;
mod show;
mod signals;
mod stages;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main(std::env::args_os().collect())
}
