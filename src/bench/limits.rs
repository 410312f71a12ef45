//! What the machine can do at best, and how busy it is.

use crate::failure::{Code, Failure, Result};
use crate::show::numbers::counted;
use ironmill_compute::cpu::InstructionSet;
use ironmill_compute::cpu::peak::{Bursts, Effort, Peak, reading_now};
use ironmill_compute::{Cpu, DType};
use serde_json::{Value, json};

/// The measured limits and what they were measured beside.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The limits.
    pub peak: Peak,
    /// The last-level cache.
    pub cache_bytes: usize,
    /// Programs that wanted to run in the last minute, on average; figures of a busy machine say little.
    pub load: Option<f64>,
}

impl Limits {
    /// Measures the machine with the instructions and threads of a device.
    pub fn measure(cpu: &Cpu, quick: bool) -> Result<Limits> {
        let cache_bytes = cache_bytes();
        let effort = if quick { Effort::glance() } else { Effort::thorough(cache_bytes) };
        let load = load();
        match Peak::measure(cpu.instruction_set(), cpu.threads(), effort) {
            Some(peak) => Ok(Limits { peak, cache_bytes, load }),
            None => Err(missing(cpu.instruction_set())),
        }
    }

    /// Bursts of arithmetic with the instructions that were measured.
    pub fn bursts(&self, products: DType) -> Result<Bursts> {
        let set = self.peak.instruction_set;
        Bursts::new(set, products).ok_or_else(|| missing(set))
    }

    /// Bytes read a second as memory is now.
    pub fn reading_now(&self) -> f64 {
        reading_now(self.peak.threads, self.cache_bytes)
    }

    /// One line for people.
    pub fn line(&self) -> String {
        let peak = &self.peak;
        let bf16 =
            peak.bf16_flops_per_s.map_or("no bf16 products".into(), |bf16| format!("{:.1} bf16", bf16 / 1e9));
        format!(
            "{}, {}: {:.1} GFLOP/s fp32, {bf16}; {:.1} GB/s read, {:.1} copied, {:.1} updated; load {}",
            peak.instruction_set,
            counted(peak.threads as u64, "thread"),
            peak.f32_flops_per_s / 1e9,
            peak.read_bytes_per_s / 1e9,
            peak.copy_bytes_per_s / 1e9,
            peak.update_bytes_per_s / 1e9,
            self.load.map_or("unknown".into(), |load| format!("{load:.1}")),
        )
    }

    /// The same for programs.
    pub fn to_json(self) -> Value {
        let peak = self.peak;
        json!({
            "instruction_set": peak.instruction_set.to_string(),
            "threads": peak.threads,
            "f32_flops_per_s": peak.f32_flops_per_s,
            "bf16_flops_per_s": peak.bf16_flops_per_s,
            "read_bytes_per_s": peak.read_bytes_per_s,
            "copy_bytes_per_s": peak.copy_bytes_per_s,
            "update_bytes_per_s": peak.update_bytes_per_s,
            "cache_bytes": self.cache_bytes,
            "load": self.load,
        })
    }
}

fn missing(set: InstructionSet) -> Failure {
    Failure::new(Code::OurBug, format!("this processor does not have {set}"))
}

/// The size of the last-level cache as the system tells it.
fn cache_bytes() -> usize {
    // As large as that of most machines, for systems that do not tell.
    const USUAL: usize = 32 << 20;
    let of_level = |level: usize| {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index{level}/size");
        let text = std::fs::read_to_string(path).ok()?;
        text.trim().strip_suffix('K')?.parse::<usize>().ok()
    };
    (0..5).filter_map(of_level).max().map_or(USUAL, |kibibytes| kibibytes << 10)
}

#[cfg(target_os = "linux")]
fn load() -> Option<f64> {
    // The kernel counts in units of 2⁻¹⁶.
    Some(rustix::system::sysinfo().loads[0] as f64 / 65536.0)
}

#[cfg(not(target_os = "linux"))]
fn load() -> Option<f64> {
    None
}
