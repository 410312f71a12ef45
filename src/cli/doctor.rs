//! `ironmill doctor`: what this machine has, and what this program makes of it.

use super::Context;
use crate::failure::Result;
use crate::show::numbers::bytes;
use crate::stages::model::device;
use ironmill_compute::{DType, Device, HostData, Kernel, Launch, Op, TensorType, View};
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
    let mut cpu = device("cpu", context.threads)?;
    let described = cpu.describe();
    let flops_per_s = measure_products(cpu.as_mut())?;
    let copy_bytes_per_s = measure_copy(context.threads);
    let version = env!("CARGO_PKG_VERSION");
    let platform = format!("{} on {}", std::env::consts::ARCH, std::env::consts::OS);
    let build = if cfg!(debug_assertions) { "debug, slow: build with --release" } else { "release" };

    let text = format!(
        "ironmill   {version} ({build})\n\
         machine    {platform}, {cores} cores, {} of memory\n\
         devices    {described}\n\
         {:10} reference: textbook loops, for checking\n\
         {:10} CUDA is not available in this version\n\
         measured   {:.1} GFLOP/s in fp32 products, {}/s copied, by {} threads\n",
        memory.map_or("unknown size".into(), bytes),
        "",
        "",
        flops_per_s / 1e9,
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
        "cpu": described,
        "flops_per_s": flops_per_s,
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

/// Floating-point operations a second of the device's matrix product, the best of a few.
fn measure_products(device: &mut dyn Device) -> Result<f64> {
    // As large as the products of a small model, and long enough to fill every thread.
    const SIZE: usize = 768;
    const ROUNDS: usize = 10;
    let of = TensorType::new(&[SIZE, SIZE], DType::F32);
    let mut place = || -> Result<View> {
        let buffer = device.allocate(SIZE * SIZE * device.element_bytes(DType::F32))?;
        let view = View { buffer, offset_bytes: 0, of };
        device.upload(&view, HostData::F32(&vec![0.5; SIZE * SIZE]))?;
        Ok(view)
    };
    let (x, w, y) = (place()?, place()?, place()?);
    let product =
        Launch { kernel: Kernel::Op(Op::Linear { bias: false }), inputs: vec![x, w], outputs: vec![y] };
    let sequence = device.bind(&[product])?;
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let started = Instant::now();
        device.run(sequence)?;
        best = best.min(started.elapsed().as_secs_f64());
    }
    Ok(2.0 * (SIZE as f64).powi(3) / best.max(1e-9))
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
