//! The invariants of ARCHITECTURE.md that a compiler does not check: the direction of rooms, where unsafe code may live,
//! what libraries keep their hands off, and what we depend on.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

/// Rooms in order, and the rooms that each may use.
const ROOMS: [(&str, &[&str]); 7] = [
    ("ironmill-emulator", &[]),
    ("ironmill-text", &[]),
    ("ironmill-compute", &[]),
    ("ironmill-graph", &["ironmill-compute"]),
    ("ironmill-data", &["ironmill-text"]),
    ("ironmill-model", &["ironmill-compute", "ironmill-data", "ironmill-graph"]),
    ("ironmill", &["ironmill-compute", "ironmill-data", "ironmill-graph", "ironmill-model", "ironmill-text"]),
];

/// The room that stands for a card in tests, which any test may use and no product.
const FOR_TESTS: &str = "ironmill-emulator";

/// Files that may contain unsafe code: SIMD, the thread pool, and memory that threads share in tiles.
const UNSAFE_FILES: &[&str] = &[
    "crates/compute/src/cpu/gemm/int8.rs",
    "crates/compute/src/cpu/gemm/micro.rs",
    "crates/compute/src/cpu/gemm/mod.rs",
    "crates/compute/src/cpu/gemm/pack.rs",
    "crates/compute/src/cpu/gemm/packed.rs",
    "crates/compute/src/cpu/gemm/stream.rs",
    "crates/compute/src/cpu/gemm/strips.rs",
    "crates/compute/src/cpu/memory.rs",
    "crates/compute/src/cpu/peak.rs",
    "crates/compute/src/cpu/pool.rs",
    "crates/compute/src/cpu/shared.rs",
    "crates/compute/src/cpu/vector.rs",
    "crates/compute/src/cuda/blas.rs",
    "crates/compute/src/cuda/cudnn.rs",
    "crates/compute/src/cuda/driver.rs",
    "crates/compute/src/cuda/driver/pages.rs",
    "crates/compute/src/cuda/library.rs",
    "crates/compute/src/cuda/milestones.rs",
    "crates/compute/src/cuda/nvml.rs",
    "crates/compute/src/cuda/nvrtc.rs",
    "crates/compute/src/cuda/staging.rs",
    "crates/compute/src/cuda/symbols.rs",
    "crates/text/src/bpe/encode/lookup.rs",
    "crates/text/src/pages.rs",
    "crates/text/src/prefetch.rs",
    "crates/text/src/scan/simd.rs",
];

/// Licences that a dependency may offer.
const LICENCES: [&str; 11] = [
    "BSL-1.0",
    "MIT",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
    "bzip2-1.0.6",
];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn metadata() -> Value {
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--format-version",
            "1",
            "--locked",
            "--offline",
            "--filter-platform",
            "x86_64-unknown-linux-gnu",
        ])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("cargo metadata is JSON")
}

fn packages(metadata: &Value) -> impl Iterator<Item = &Value> {
    metadata["packages"].as_array().expect("packages").iter()
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
        if entry.is_dir() {
            sources(&entry, found);
        } else if entry.extension().is_some_and(|extension| extension == "rs") {
            found.push(entry);
        }
    }
}

/// The product's own code: library and binary sources up to their tests.
fn product_code() -> Vec<(String, String)> {
    let mut files = Vec::new();
    for room in [
        "src",
        "crates/text/src",
        "crates/compute/src",
        "crates/graph/src",
        "crates/data/src",
        "crates/model/src",
    ] {
        sources(&root().join(room), &mut files);
    }
    files
        .into_iter()
        .map(|path| {
            let text = fs::read_to_string(&path).expect("source is text");
            let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default().to_string();
            (path.strip_prefix(root()).expect("inside").display().to_string(), code)
        })
        .collect()
}

#[test]
fn rooms_only_use_the_rooms_before_them() {
    let metadata = metadata();
    let allowed: BTreeMap<&str, &[&str]> = ROOMS.into_iter().collect();
    let mut seen = 0;
    for package in packages(&metadata).filter(|package| package["source"].is_null()) {
        let name = package["name"].as_str().expect("a name");
        seen += 1;
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            let is_for_tests = dependency["kind"] == "dev";
            let dependency = dependency["name"].as_str().expect("a name");
            if dependency.starts_with("ironmill") && !(is_for_tests && dependency == FOR_TESTS) {
                assert!(allowed[name].contains(&dependency), "{name} must not use {dependency}");
            }
        }
    }
    assert_eq!(seen, ROOMS.len());
}

#[test]
fn unsafe_code_lives_only_in_the_named_places() {
    for (path, code) in product_code() {
        let has_unsafe = code.lines().any(|line| {
            let line = line.split("//").next().unwrap_or_default();
            line.contains("unsafe {") || line.contains("unsafe fn") || line.contains("unsafe impl")
        });
        let named = UNSAFE_FILES.contains(&path.as_str());
        assert!(!has_unsafe || named, "{path} has unsafe code but is not a named place");
        assert!(has_unsafe || !named, "{path} is a named place without unsafe code: take it off the list");
    }
}

#[test]
fn libraries_do_not_read_the_environment_or_hold_global_state() {
    for (path, code) in product_code().into_iter().filter(|(path, _)| path.starts_with("crates/")) {
        for forbidden in ["std::env", "env::var", "static mut", "OnceLock", "LazyLock", "thread_local!"] {
            assert!(!code.contains(forbidden), "{path} uses {forbidden}");
        }
    }
}

#[test]
fn dependencies_come_from_the_registry_under_permissive_licences() {
    for package in packages(&metadata()) {
        let name = package["name"].as_str().expect("a name");
        let source = package["source"].as_str().unwrap_or("registry+own");
        assert!(source.starts_with("registry+"), "{name} comes from {source}");
        let licence = package["license"].as_str().unwrap_or("none").replace('/', " OR ");
        // In an expression like `(MIT OR Apache-2.0) AND Unicode-3.0` every part joined by AND must offer one that we take.
        let acceptable = licence.split(" AND ").all(|part| {
            let part = part.trim_matches(['(', ')']);
            part.split(" OR ").any(|choice| LICENCES.contains(&choice.trim().trim_matches(['(', ')'])))
        });
        assert!(acceptable, "{name} has licence {licence}");
    }
}
