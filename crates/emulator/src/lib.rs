//! A Hopper card in software, for tests on machines without one.
//!
//! A program that looks for NVIDIA's libraries finds this one in their place: the driver, the compiler of kernels (which asks the real one,
//! whose wheel needs no card, for assembly) and the library of products. So the same code runs that runs on a card: kernels as they were
//! compiled, launches with their clusters and shared memory, captured graphs. What a kernel does that a card would not let it do is an
//! error that says where, and so is what a card lets it do with a result that nobody can tell:
//!
//! - warps that touch the same bytes of shared memory with nothing between that orders them,
//! - lanes that read what others of their warp wrote without having met,
//! - engines that read without a fence what threads wrote,
//! - blocks of one launch that do not keep out of each other's way,
//! - blocks that let others of their cluster go before what they read of them is sure to be there,
//! - kernels that touch what another did whose end they have not waited for,
//! - threads that open, close or use the library of products, or capture, while another captures.
//!
//! ```text
//! kernel.cu ─ NVRTC ─► assembly ─ ptx ─► statements ─ program ─► steps ─ machine ─► memory
//! ```
//!
//! It says nothing about time, and three things are simpler than on a card: what a stream is given is done at once, a kernel begins when
//! the one before has ended, and sums in matrix units round where a card cuts off. What may begin early is held to that all the same, and
//! products of the library are taken for kernels that do: those for Hopper wait by themselves and let the next begin. Copies that go
//! on while threads do are done as early as they may be, or with `IRONMILL_EMULATOR_COPIES=late` as late: a program must be right with
//! either.

mod arithmetic;
mod compiler;
mod driver;
mod error;
mod lanes;
mod machine;
mod numbers;
mod products;
mod program;
mod ptx;

pub use error::{Error, Result};
pub use machine::{By, History, Launch, Region, Table, Timing, Told, run};
pub use program::Program;
pub use ptx::parse;

use std::{
    fmt::Display,
    io,
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
};

/// The names under which programs look for the libraries that this one stands for.
const NAMES: [&str; 3] = ["libcuda.so.1", "libnvrtc.so.13", "libcublasLt.so.13"];
/// The file that the build makes of this crate.
const FILE: &str = "libironmill_emulator.so";

/// What `open` gives for a card of this machine, or, where there is none, with the emulator's folder; nothing where there is neither,
/// which is told, or, with `IRONMILL_REQUIRE_CUDA`, a failure.
#[expect(clippy::print_stderr, reason = "a test that skips says so")]
pub fn card_or_emulator<T, E: Display>(
    open: impl Fn(Option<PathBuf>) -> std::result::Result<T, E>,
) -> Option<T> {
    let error = match open(None) {
        Ok(card) => return Some(card),
        Err(error) => error,
    };
    assert!(std::env::var_os("IRONMILL_REQUIRE_CUDA").is_none(), "{error}");
    match folder() {
        Ok(Some(folder)) => match open(Some(folder)) {
            Ok(emulated) => {
                STANDS_IN.store(true, Ordering::Relaxed);
                Some(emulated)
            }
            Err(error) => panic!("the emulator stands for a card, but: {error}"),
        },
        Ok(None) => {
            eprintln!("skipped: no CUDA card ({error}), and no compiler of kernels for its emulator");
            None
        }
        Err(error) => panic!("the emulator's folder: {error}"),
    }
}

static STANDS_IN: AtomicBool = AtomicBool::new(false);

/// Whether `card_or_emulator` gave the emulator: what takes a card moments takes it minutes, so tests do less.
pub fn stands_in() -> bool {
    STANDS_IN.load(Ordering::Relaxed)
}

/// A folder where a program finds the emulator in the place of NVIDIA's libraries, made beside the running test; nothing where there is no
/// compiler of kernels.
pub fn folder() -> io::Result<Option<PathBuf>> {
    if !compiler::is_there() {
        return Ok(None);
    }
    let program = std::env::current_exe()?;
    // Tests lie where the build puts libraries, programs one folder above.
    let beside = program.ancestors().skip(1).map(|folder| folder.join(FILE)).find(|file| file.exists());
    let Some(library) = beside else { return Ok(None) };
    let folder = library.with_file_name("ironmill-emulator");
    std::fs::create_dir_all(&folder)?;
    for name in NAMES {
        match link(&library, &folder.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => (),
        }
    }
    Ok(Some(folder))
}

#[cfg(unix)]
fn link(library: &std::path::Path, name: &std::path::Path) -> io::Result<()> {
    std::os::unix::fs::symlink(library, name)
}

#[cfg(not(unix))]
fn link(_: &std::path::Path, _: &std::path::Path) -> io::Result<()> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "the emulator stands for libraries of Linux"))
}
