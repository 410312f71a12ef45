//! What the machine says about itself. Whatever cannot be found out is left open.

pub use crate::stages::machine::{Memory, memory};
use std::path::Path;

/// The system's name and the kernel's version.
pub fn system() -> String {
    let named = read("/etc/os-release").and_then(|text| {
        let name = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
        Some(name.trim_matches('"').to_string())
    });
    let name = named.unwrap_or_else(|| std::env::consts::OS.to_string());
    match kernel() {
        Some(kernel) => format!("{name}, {kernel}"),
        None => name,
    }
}

#[cfg(unix)]
fn kernel() -> Option<String> {
    let names = rustix::system::uname();
    Some(format!("{} {}", names.sysname().to_string_lossy(), names.release().to_string_lossy()))
}

#[cfg(not(unix))]
fn kernel() -> Option<String> {
    None
}

/// The processor's name.
pub fn processor() -> Option<String> {
    field(&read("/proc/cpuinfo")?, "model name")
}

/// Vector instructions that the processor has and that kernels could use, the widest last.
pub fn instructions() -> Vec<&'static str> {
    let mut found = Vec::new();
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::is_x86_feature_detected as has;
        for (name, is_there) in [
            ("SSE4.2", has!("sse4.2")),
            ("AVX", has!("avx")),
            ("AVX2", has!("avx2")),
            ("FMA", has!("fma")),
            ("F16C", has!("f16c")),
            ("AVX-512F", has!("avx512f")),
            ("AVX-512-VNNI", has!("avx512vnni")),
            ("AVX-512-BF16", has!("avx512bf16")),
        ] {
            found.extend(is_there.then_some(name));
        }
    }
    #[cfg(target_arch = "aarch64")]
    found.push("NEON");
    found
}

/// Free bytes on the disk of a folder, for this user.
#[cfg(unix)]
pub fn free_disk_bytes(folder: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(folder).ok()?;
    Some(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// Free bytes on the disk of a folder, for this user.
#[cfg(not(unix))]
pub fn free_disk_bytes(_folder: &Path) -> Option<u64> {
    None
}

fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// The value behind `name:` in a text of such lines.
fn field(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (found, value) = line.split_once(':')?;
        (found.trim() == name).then(|| value.trim().to_string())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "MemTotal:  16 kB\nMemTotalX: 3 kB\nmodel name\t: Some CPU @ 2 GHz\n";
        assert_eq!(field(text, "MemTotal").as_deref(), Some("16 kB"));
        assert_eq!(field(text, "model name").as_deref(), Some("Some CPU @ 2 GHz"));
        assert_eq!(field(text, "Mem"), None);
    }
}
