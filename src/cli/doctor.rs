//! `ironmill doctor`: what this machine has, and what this program makes of it.

mod machine;
mod measure;

use super::{Context, target};
use crate::config::auto_precision;
use crate::failure::Result;
use crate::show::numbers::bytes;
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
    cuda: Vec<(&'static str, std::path::PathBuf)>,
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
            cache: machine::cache_folder(),
            free_disk_bytes: machine::free_disk_bytes(Path::new(".")),
            cuda: machine::cuda_libraries(),
        })
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
        let cuda = match self.cuda.is_empty() {
            true => "no libraries found; not used in this version".to_string(),
            false => {
                let paths: Vec<String> =
                    self.cuda.iter().map(|(_, path)| path.display().to_string()).collect();
                format!("{} found; not used in this version", paths.join(", "))
            }
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
            ("devices", "cpu; reference, textbook loops for checking".into()),
            ("CUDA", cuda),
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
        if cfg!(debug_assertions) {
            text += "advice     this is a debug build: build with --release for full speed\n";
        }
        text
    }

    fn to_json(&self) -> Value {
        let cuda: Vec<Value> =
            self.cuda.iter().map(|(name, path)| json!({"library": name, "path": path})).collect();
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
            "devices": ["cpu", "reference"],
            "cuda": {"libraries": cuda, "is_used": false},
            "flops_per_s": self.flops_per_s,
            "read_bytes_per_s": self.read_bytes_per_s,
        })
    }
}
