//! Files that lie: every reader of models, fed with mutations of good files, ends in a model or in an error, in little memory. Alone in its
//! binary, because it counts the memory of the whole process.
//!
//! `IRONMILL_FUZZ_SECONDS=3600 cargo test --release -p ironmill-model --test hostile -- --nocapture` takes an hour for every kind of file;
//! `IRONMILL_FUZZ_FILE=config.json` leaves all but one out.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where by panicking")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use ironmill_data::gguf::{Gguf, Type};
use ironmill_model::{Architecture, Model, ModelConfig, Stored, save_gguf, save_weights};

struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

#[expect(unsafe_code, reason = "an allocator that counts can only be written with it")]
// SAFETY: every call is handed on to the system's allocator as it came; counting touches no memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        MOST.fetch_max(now, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`, which is the system's too.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the pointer came from `alloc` above, that is from the system's allocator, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The good files are kilobytes; nothing made of them takes more than this.
const MOST_BYTES: usize = 64 << 20;

/// A small generator of its own, so that a run can be repeated.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % below.max(1)
    }

    /// Some changes of the kinds that break readers: bits, lengths of all sizes, cuts, repeated and missing stretches.
    fn mutate(&mut self, good: &[u8]) -> Vec<u8> {
        let mut bytes = good.to_vec();
        for _ in 0..=self.roll(4) {
            // Headers are at the beginning, and there are more ways to break them.
            let within = if self.roll(4) > 0 { bytes.len().min(2048) } else { bytes.len() };
            let at = self.roll(within);
            match self.roll(7) {
                0 => bytes.truncate(at),
                1 if at < bytes.len() => bytes[at] ^= 1 << self.roll(8),
                2 if at < bytes.len() => bytes[at] = [0, 1, 0x7f, 0x80, 0xff, b'9', b'{', b'['][self.roll(8)],
                3 if at + 8 <= bytes.len() => {
                    let odd = [u64::MAX, 1 << 63, 1 << 62, 1 << 32, u64::from(u32::MAX), 0, 1 << 24, 7];
                    bytes[at..at + 8].copy_from_slice(&odd[self.roll(8)].to_le_bytes());
                }
                4 => {
                    let end = (at + self.roll(64)).min(bytes.len());
                    let piece = bytes[at.min(end)..end].to_vec();
                    bytes.splice(at.min(end)..at.min(end), piece);
                }
                5 => {
                    let end = (at + self.roll(16)).min(bytes.len());
                    bytes.drain(at.min(end)..end);
                }
                _ => {
                    // Digits of JSON become longer, and brackets deep.
                    let text = [&b"99999999999999999999"[..], b"16777216", b"-1", b"1e308", &[b'['; 300]]
                        [self.roll(5)];
                    bytes.splice(at.min(bytes.len())..at.min(bytes.len()), text.iter().copied());
                }
            }
        }
        bytes
    }
}

fn seconds() -> Duration {
    let asked = std::env::var("IRONMILL_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs_f64(asked.unwrap_or(1.0))
}

/// Reads all of what there is, as far as it can be read.
fn read(path: &Path) {
    if let Ok(stored) = Stored::open(path) {
        let _ = stored.values();
    }
    if let Ok(file) = Gguf::open(path) {
        let names: Vec<(String, u64)> =
            file.tensors().map(|info| (info.name.clone(), info.shape.iter().product())).collect();
        for (name, elements) in names {
            let mut out = vec![0.0; elements as usize];
            let _ = file.read_f32(&name, &mut out);
        }
    }
}

/// Mutates one file of a model, time and again, and reads the model.
fn attack(file: &Path, model: &Path, seed: u64) {
    if std::env::var("IRONMILL_FUZZ_FILE").is_ok_and(|asked| !file.ends_with(asked)) {
        return;
    }
    let good = fs::read(file).unwrap();
    let (began, mut dice, mut tried) = (Instant::now(), Dice(seed), 0u64);
    let mut slowest = Duration::ZERO;
    while began.elapsed() < seconds() {
        fs::write(file, dice.mutate(&good)).unwrap();
        let before = NOW.load(Ordering::Relaxed);
        MOST.store(before, Ordering::Relaxed);
        let start = Instant::now();
        read(model);
        slowest = slowest.max(start.elapsed());
        let most = MOST.load(Ordering::Relaxed).saturating_sub(before);
        assert!(most < MOST_BYTES, "{most} bytes for mutation {tried} of {}", file.display());
        assert!(slowest < Duration::from_secs(10), "{slowest:?} for mutation {tried} of {}", file.display());
        tried += 1;
    }
    fs::write(file, good).unwrap();
    #[expect(clippy::print_stderr, reason = "a long run says what it did")]
    {
        eprintln!("{}: {tried} mutations, the slowest {slowest:?}", file.display());
    }
}

/// A tiny Llama as a Hugging Face folder.
fn folder(at: &Path) -> PathBuf {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/models/mistral");
    for entry in fs::read_dir(golden).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, at.join(path.file_name().unwrap())).unwrap();
    }
    at.to_path_buf()
}

/// A checkpoint of llm.c with random weights.
fn llmc(at: &Path) -> PathBuf {
    let (context, vocabulary, layers, heads, width) = (4u32, 5u32, 2u32, 2u32, 8u32);
    let mut words = [0u32; 256];
    words[..8].copy_from_slice(&[20_240_326, 3, context, vocabulary, layers, heads, width, 6]);
    let block = 12 * width * width + 13 * width;
    let floats = 6 * width + context * width + layers * block + 2 * width;
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.extend((0..floats).flat_map(|i| (i as f32 / 100.0).to_le_bytes()));
    let path = at.join("model.bin");
    fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn no_mutation_of_a_model_s_file_ends_in_more_than_an_error() {
    let room = tempfile::tempdir().unwrap();
    let model = folder(room.path());
    assert!(Stored::open(&model).unwrap().values().is_ok());
    for (seed, name) in ["model-00001-of-00003.safetensors", "model.safetensors.index.json", "config.json"]
        .into_iter()
        .enumerate()
    {
        attack(&model.join(name), &model, seed as u64);
    }
    let path = room.path().join("model.gguf");
    save_gguf(&path, &Stored::open(&model).unwrap(), Type::Q8_0, Vec::new()).unwrap();
    assert!(Stored::open(&path).unwrap().values().is_ok());
    attack(&path, &path, 3);
    let types = room.path().join("types.gguf");
    fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/gguf/types.gguf"), &types)
        .unwrap();
    attack(&types, &types, 4);
    let path = llmc(room.path());
    assert!(Stored::open(&path).unwrap().values().is_ok());
    attack(&path, &path, 5);
    let path = room.path().join("llama2c.bin");
    fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/llama2c/tiny.bin"), &path)
        .unwrap();
    assert!(Stored::open(&path).unwrap().values().is_ok());
    attack(&path, &path, 6);
}

#[test]
fn a_checkpoint_of_llm_c_is_the_model_that_it_says() {
    let room = tempfile::tempdir().unwrap();
    let stored = Stored::open(&llmc(room.path())).unwrap();
    let sizes = ModelConfig { vocab_size: 5, context: 4, ..ModelConfig::new(Architecture::Gpt2, 2, 2, 8) };
    assert_eq!(stored.model().config(), &sizes);
    let values = stored.values().unwrap();
    let of = |name: &str| {
        let parameter = stored.model().layout().parameters().iter().find(|p| p.name == name).unwrap();
        values[parameter.range()].to_vec()
    };
    let at = |i: usize| i as f32 / 100.0;
    // Six rows of tokens of which five are the model's, then positions, then kind by kind.
    assert_eq!(of("transformer.wte.weight"), (0..40).map(at).collect::<Vec<_>>());
    assert_eq!(of("transformer.wpe.weight"), (48..80).map(at).collect::<Vec<_>>());
    assert_eq!(of("transformer.h.0.ln_1.weight"), (80..88).map(at).collect::<Vec<_>>());
    assert_eq!(of("transformer.h.1.ln_1.weight"), (88..96).map(at).collect::<Vec<_>>());
    assert_eq!(of("transformer.h.0.ln_1.bias"), (96..104).map(at).collect::<Vec<_>>());
    assert_eq!(of("transformer.h.1.attn.c_attn.weight")[..2], [at(112 + 192), at(113 + 192)]);
    let last = 48 + 32 + 2 * (12 * 64 + 13 * 8);
    assert_eq!(of("transformer.ln_f.bias"), (last + 8..last + 16).map(at).collect::<Vec<_>>());
    // The folder that it becomes is the same model.
    let model = Model::new(sizes).unwrap();
    save_weights(&room.path().join("model.safetensors"), &model, &values).unwrap();
}
