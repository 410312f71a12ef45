//! `ironmill doctor`: what this machine has, and what this program makes of it.

use super::Context;
use crate::failure::Result;
use crate::show::numbers::bytes;
use serde_json::json;
use std::hint::black_box;
use std::time::Instant;

/// The flags of `doctor`.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  ironmill doctor
  ironmill doctor --json
  ironmill doctor --threads 1")]
pub struct Args {}

/// Looks at the machine and measures it for a moment.
pub fn run(context: &Context, _args: &Args) -> Result<()> {
    context.refuse_overrides("doctor")?;
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let memory = memory_bytes();
    let features = cpu_features();
    let copy_bytes_per_s = measure_copy(context.threads);
    let version = env!("CARGO_PKG_VERSION");
    let platform = format!("{} on {}", std::env::consts::ARCH, std::env::consts::OS);
    let build = if cfg!(debug_assertions) { "debug, slow: build with --release" } else { "release" };

    let text = format!(
        "ironmill   {version} ({build})\n\
         machine    {platform}, {cores} cores, {} of memory\n\
         processor  {}\n\
         threads    {}\n\
         memory     {}/s copied by {} threads, measured now\n\
         devices    cpu, reference; CUDA is not available in this version\n",
        memory.map_or("unknown size".into(), bytes),
        if features.is_empty() {
            "no vector extensions that this program uses".into()
        } else {
            features.join(", ")
        },
        context.threads,
        bytes(copy_bytes_per_s as u64),
        context.threads,
    );
    let object = json!({
        "version": version,
        "build": build,
        "arch": std::env::consts::ARCH,
        "os": std::env::consts::OS,
        "cores": cores,
        "threads": context.threads,
        "memory_bytes": memory,
        "cpu_features": features,
        "copy_bytes_per_s": copy_bytes_per_s,
        "devices": ["cpu", "reference"],
    });
    context.show.result(&text, &object)
}

#[cfg(target_os = "linux")]
fn memory_bytes() -> Option<u64> {
    let info = rustix::system::sysinfo();
    Some(info.totalram as u64 * u64::from(info.mem_unit))
}

#[cfg(not(target_os = "linux"))]
fn memory_bytes() -> Option<u64> {
    None
}

/// The vector extensions that the CPU backend can choose between.
#[cfg(target_arch = "x86_64")]
fn cpu_features() -> Vec<&'static str> {
    [
        ("AVX2", std::is_x86_feature_detected!("avx2")),
        ("FMA", std::is_x86_feature_detected!("fma")),
        ("AVX-512", std::is_x86_feature_detected!("avx512f")),
        ("AVX-512-BF16", std::is_x86_feature_detected!("avx512bf16")),
    ]
    .into_iter()
    .filter_map(|(name, is_there)| is_there.then_some(name))
    .collect()
}

#[cfg(not(target_arch = "x86_64"))]
fn cpu_features() -> Vec<&'static str> {
    Vec::new()
}

/// Bytes read and written a second when every thread copies from one large buffer to another.
fn measure_copy(threads: usize) -> f64 {
    // Far larger than any cache, small enough for any machine.
    const BUFFER_BYTES: usize = 64 << 20;
    const ROUNDS: usize = 8;
    let share = BUFFER_BYTES / threads;
    let started = Instant::now();
    let seconds: f64 = std::thread::scope(|scope| {
        let copy = || {
            let from = vec![1u8; share];
            let mut to = vec![0u8; share];
            let started = Instant::now();
            for _ in 0..ROUNDS {
                to.copy_from_slice(black_box(&from));
                black_box(&mut to);
            }
            started.elapsed().as_secs_f64()
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(copy)).collect();
        workers.into_iter().filter_map(|worker| worker.join().ok()).fold(0.0, f64::max)
    });
    let seconds = if seconds > 0.0 { seconds } else { started.elapsed().as_secs_f64() };
    (2 * share * threads * ROUNDS) as f64 / seconds.max(1e-9)
}
