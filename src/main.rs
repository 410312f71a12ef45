//! The `ironmill` program: raw text to a trained language model.

mod bench;
mod chat;
mod cli;
mod config;
mod failure;
mod faults;
mod report;
mod run_lock;
mod scoring;
mod show;
mod signals;
mod stages;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    if chat::sandbox::is_asked(&arguments) {
        return chat::sandbox::serve();
    }
    cli::main(arguments)
}
