//! What the machine has left for a run: the one place that asks it.

/// The share of the free memory that a run on the CPU may plan with; the rest is for the system and its caches.
const SHARE: f64 = 0.8;

/// How much memory a run on the CPU may take, if the machine says.
pub fn memory_for_a_run() -> Option<u64> {
    let free = [free_in_system(), free_in_group()].into_iter().flatten().min()?;
    Some((free as f64 * SHARE) as u64)
}

/// What the kernel believes it can hand out without swapping.
fn free_in_system() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    free_of_meminfo(&text)
}

/// What the control group of a container has left.
fn free_in_group() -> Option<u64> {
    let read =
        |name: &str| std::fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok()?.trim().parse().ok();
    let (limit, used): (u64, u64) = (read("memory.max")?, read("memory.current")?);
    Some(limit.saturating_sub(used))
}

fn free_of_meminfo(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_available_line_is_found_and_nothing_else() {
        let text = "MemTotal:       32 kB\nMemFree:         8 kB\nMemAvailable:   16 kB\n";
        assert_eq!(free_of_meminfo(text), Some(16 * 1024));
        assert_eq!(free_of_meminfo("MemTotal: 32 kB\n"), None);
        assert_eq!(free_of_meminfo("MemAvailable: much\n"), None);
    }

    #[test]
    fn a_machine_that_says_nothing_sets_no_limit() {
        if std::path::Path::new("/proc/meminfo").exists() {
            assert!(memory_for_a_run().unwrap() > 0);
        } else {
            assert_eq!(memory_for_a_run(), None);
        }
    }
}
