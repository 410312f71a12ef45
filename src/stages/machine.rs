//! The memory of this machine: the one place that asks for it.

use super::cuda;

/// The share of the free memory that a run on the CPU may plan with; the rest is for the system and its caches.
const SHARE: f64 = 0.8;

/// Memory in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Memory {
    /// All that this program may have: what the machine has, or the limit of its group if that is less.
    pub total: Option<u64>,
    /// What is free, or can be made free without swapping.
    pub available: Option<u64>,
}

/// The memory of this machine. Whatever cannot be found out is left open.
pub fn memory() -> Memory {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let group = |name: &str| read(&format!("/sys/fs/cgroup/{name}"))?.trim().parse::<u64>().ok();
    let limit = group("memory.max").map(|limit| (limit, group("memory.current").unwrap_or(0)));
    memory_of(&read("/proc/meminfo").unwrap_or_default(), limit)
}

/// The memory that a device's numbers lie in.
fn memory_of_device(device: &str) -> Memory {
    let Some(ordinal) = cuda::ordinal(device) else { return memory() };
    let card = cuda::find().cards.into_iter().nth(ordinal);
    Memory {
        total: card.as_ref().map(|card| card.memory_bytes as u64),
        available: card.map(|card| card.free_bytes as u64),
    }
}

/// How much memory a run on a device may take, if the machine says.
pub fn memory_for_a_run(device: &str) -> Option<u64> {
    // Nothing but the run uses a card's memory.
    let share = if cuda::ordinal(device).is_some() { 0.97 } else { SHARE };
    memory_of_device(device).available.map(|free| (free as f64 * share) as u64)
}

/// More than this can never be had: all memory of the machine, or what is free of a card's, which is not made free by waiting.
pub fn most_memory(device: &str) -> Option<u64> {
    let memory = memory_of_device(device);
    if cuda::ordinal(device).is_some() { memory.available } else { memory.total }
}

/// What this process has in memory, where the system says.
pub fn resident_bytes() -> Option<u64> {
    kibibytes(&std::fs::read_to_string("/proc/self/status").ok()?, "VmRSS")
}

/// The bytes of a line like `VmRSS:   1234 kB`.
fn kibibytes(info: &str, name: &str) -> Option<u64> {
    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
}

/// What the kernel says, within the limit of a container, of which so much is used.
fn memory_of(info: &str, limit: Option<(u64, u64)>) -> Memory {
    let (total, available) = (kibibytes(info, "MemTotal"), kibibytes(info, "MemAvailable"));
    let Some((limit, used)) = limit else { return Memory { total, available } };
    let left = limit.saturating_sub(used);
    Memory { total: total.map(|all| all.min(limit)), available: available.map(|free| free.min(left)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found_by_their_whole_name() {
        let text = "MemTotal:       32 kB\nMemFree:         8 kB\nMemAvailable:   16 kB\n";
        assert_eq!(memory_of(text, None), Memory { total: Some(32 * 1024), available: Some(16 * 1024) });
        assert_eq!(memory_of("MemTotalX: 32 kB\nMemAvailable: much\n", None), Memory::default());
    }

    #[test]
    fn the_limit_of_a_container_counts() {
        let text = "MemTotal: 32 kB\nMemAvailable: 16 kB\n";
        let limited = memory_of(text, Some((20 * 1024, 10 * 1024)));
        assert_eq!(limited, Memory { total: Some(20 * 1024), available: Some(10 * 1024) });
        assert_eq!(memory_of(text, Some((1 << 40, 0))), memory_of(text, None));
    }

    #[test]
    fn only_what_can_never_fit_is_too_much() {
        assert_eq!(most_memory("cpu"), memory().total);
    }

    #[test]
    fn a_machine_that_says_nothing_sets_no_limit() {
        let is_told = std::path::Path::new("/proc/meminfo").exists();
        assert_eq!(memory_for_a_run("cpu").is_some(), is_told);
    }
}
