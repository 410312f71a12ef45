//! `ironmill doctor`: what this machine has, and what this program makes of it.

mod machine;
mod measure;

use super::{Context, target};
use crate::config::auto_precision;
use crate::failure::Result;
use crate::show::numbers::bytes;
use crate::stages::cuda;
use ironmill_compute::cuda::{CardReport, LibraryReport};
use ironmill_compute::{Cpu, Device};
use serde_json::{Value, json};
use std::path::Path;

/// The flags of `doctor`.
#[derive(clap::Args)]
#[command(after_help = "\
The rates are measured in about two seconds; another program that runs at the same time lowers them.

Examples:
  ironmill doctor
  ironmill doctor --json
  ironmill doctor --threads 1")]
pub struct Args {}

/// Looks at the machine and measures it for a moment.
pub fn run(context: &Context, _args: &Args) -> Result<()> {
    context.refuse_overrides("doctor")?;
    let found = Findings::collect(context.threads)?;
    context.show.result(&found.to_text(), &found.to_json())
}

struct Findings {
    system: String,
    processor: Option<String>,
    cores: usize,
    threads: usize,
    instructions: Vec<&'static str>,
    kernels: String,
    memory: machine::Memory,
    flops_per_s: f64,
    read_bytes_per_s: f64,
    cache: Option<std::path::PathBuf>,
    free_disk_bytes: Option<u64>,
    cuda: cuda::Found,
}

impl Findings {
    fn collect(threads: usize) -> Result<Findings> {
        let mut cpu = Cpu::new(threads)?;
        let memory = machine::memory();
        Ok(Findings {
            system: machine::system(),
            processor: machine::processor(),
            cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            threads,
            instructions: machine::instructions(),
            kernels: cpu.instruction_set().to_string(),
            flops_per_s: measure::products(&mut cpu as &mut dyn Device)?,
            read_bytes_per_s: measure::reading(threads, memory.available.unwrap_or_default())?,
            memory,
            cache: cuda::cache_folder(),
            free_disk_bytes: machine::free_disk_bytes(Path::new(".")),
            cuda: cuda::find(),
        })
    }

    /// The devices that a run can use, the one that `auto` means first.
    fn devices(&self) -> Vec<&'static str> {
        if self.cuda.is_usable() { vec!["cuda", "cpu"] } else { vec!["cpu"] }
    }

    fn to_text(&self) -> String {
        let size = |size: Option<u64>| size.map_or("unknown".into(), bytes);
        let instructions = match self.instructions.is_empty() {
            true => "none known".to_string(),
            false => self.instructions.join(", "),
        };
        let cache = match &self.cache {
            Some(path) if path.is_dir() => path.display().to_string(),
            Some(path) => format!("{} (not there yet)", path.display()),
            None => "unknown: set XDG_CACHE_HOME or HOME".into(),
        };
        let rows = [
            ("ironmill", format!("{}, {}", env!("CARGO_PKG_VERSION"), target())),
            ("system", self.system.clone()),
            (
                "processor",
                format!(
                    "{}, {} cores",
                    self.processor.as_deref().unwrap_or(std::env::consts::ARCH),
                    self.cores
                ),
            ),
            ("vectors", format!("{instructions}; kernels use {}", self.kernels)),
            ("precision", format!("train.precision = \"auto\" is {}", auto_precision("cpu"))),
            ("memory", format!("{}, {} available", size(self.memory.total), size(self.memory.available))),
            ("disk", format!("{} free in this folder", size(self.free_disk_bytes))),
            ("cache", cache),
            ("devices", format!("{}; reference, textbook loops for checking", self.devices().join(", "))),
            (
                "measured",
                format!(
                    "{:.1} GFLOP/s in fp32 products, {}/s read from memory, by {} threads",
                    self.flops_per_s / 1e9,
                    bytes(self.read_bytes_per_s as u64),
                    self.threads
                ),
            ),
        ];
        let mut text: String = rows.iter().map(|(name, row)| format!("{name:10} {row}\n")).collect();
        for library in &self.cuda.libraries {
            let row = match &library.found {
                Ok(found) => found,
                Err(problem) if library.needed.is_required() => problem,
                Err(_) => "not found; not needed",
            };
            text += &format!("{:10} {row}\n", library.needed.name());
        }
        for card in &self.cuda.cards {
            text += &format!("card       {}\n", card_text(card));
        }
        if cfg!(debug_assertions) {
            text += "advice     this is a debug build: build with --release for full speed\n";
        }
        text
    }

    fn to_json(&self) -> Value {
        let libraries: Vec<Value> = self.cuda.libraries.iter().map(library_json).collect();
        let cards: Vec<Value> = self.cuda.cards.iter().map(card_json).collect();
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "target": format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS),
            "is_release": !cfg!(debug_assertions),
            "system": self.system,
            "processor": self.processor,
            "cores": self.cores,
            "threads": self.threads,
            "instructions": self.instructions,
            "auto_precision": auto_precision("cpu"),
            "kernels": self.kernels,
            "memory_bytes": self.memory.total,
            "available_memory_bytes": self.memory.available,
            "free_disk_bytes": self.free_disk_bytes,
            "cache": self.cache,
            "devices": self.devices(),
            "cuda": {"libraries": libraries, "cards": cards, "is_used": self.cuda.is_usable()},
            "flops_per_s": self.flops_per_s,
            "read_bytes_per_s": self.read_bytes_per_s,
        })
    }
}

fn card_text(card: &CardReport) -> String {
    format!(
        "{}, compute capability {}.{}, {} multiprocessors, {}, {} free",
        card.name,
        card.capability / 10,
        card.capability % 10,
        card.multiprocessors,
        bytes(card.memory_bytes as u64),
        bytes(card.free_bytes as u64)
    )
}

fn card_json(card: &CardReport) -> Value {
    json!({
        "name": card.name,
        "capability": card.capability,
        "multiprocessors": card.multiprocessors,
        "memory_bytes": card.memory_bytes,
        "free_bytes": card.free_bytes,
    })
}

fn library_json(library: &LibraryReport) -> Value {
    let needed = library.needed;
    match &library.found {
        Ok(found) => json!({"library": needed.name(), "found": found}),
        Err(_) => json!({"library": needed.name(), "found": null, "advice": needed.advice()}),
    }
}
