//! Filling a batch allocates nothing. Alone in its binary, because it counts for the whole process.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    error::Error,
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use ironmill_data::{
    Dataset, InputOptions, Inputs, Loader, PrepareOptions, Sampler, Silent, Split, TokenStream, prepare,
};
use ironmill_text::{BpeOptions, Pattern, PieceCounts, train_bpe};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

#[expect(unsafe_code, reason = "an allocator that counts can only be written with it")]
// SAFETY: every call is handed on to the system's allocator as it came; counting touches no memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`, which is the system's too.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `alloc` above, that is from the system's allocator, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const CONTEXT: usize = 64;
const ROWS: usize = 8;

#[test]
fn filling_allocates_nothing_with_any_sampler() {
    let folder = tempfile::tempdir().unwrap();
    let documents = (0..200u32).map(|i| (0..i % 90).collect()).collect();
    for stream in [TokenStream::from_documents(documents, 1), prepared(folder.path()).unwrap()] {
        for (sampler, workers) in Sampler::ALL.into_iter().flat_map(|sampler| [0, 2].map(|n| (sampler, n))) {
            let loader = Loader::new(stream.clone(), sampler, 1, CONTEXT, ROWS).unwrap();
            let loader = loader.with_workers(workers).unwrap();
            // A thread that has just started still allocates for itself.
            std::thread::sleep(std::time::Duration::from_millis(20));
            let mut batch = loader.batch();
            // The first step counts too: blocks are checked when they are first touched, by workers as well.
            let before = ALLOCATIONS.load(Ordering::Relaxed);
            for first_sample in (0..100 * ROWS as u64).step_by(ROWS) {
                loader.fill(first_sample, &mut batch).unwrap();
            }
            assert_eq!(ALLOCATIONS.load(Ordering::Relaxed) - before, 0, "{sampler:?} {workers} workers");
        }
    }
}

/// A data set of several shards on disk.
fn prepared(folder: &Path) -> Result<TokenStream, Box<dyn Error>> {
    let inputs = Inputs::from_specs(&["builtin:stories:100KB".into()], &InputOptions::default())?;
    let special = vec!["<|endoftext|>".to_owned()];
    let mut counts = PieceCounts::new(&Pattern::Gpt2, &special)?;
    for document in inputs.documents() {
        counts.add_document(document?.text.as_bytes())?;
    }
    let (tokenizer, _) = train_bpe(&counts, &BpeOptions { special, ..BpeOptions::new(300) }, &Silent)?;
    let options = PrepareOptions { shard_tokens: 5_000, threads: 1, ..PrepareOptions::default() };
    let out = folder.join("data");
    prepare(&inputs, &tokenizer, &out, &options, &Silent, &AtomicBool::new(false))?;
    Ok(Dataset::open(&out)?.split(Split::Train).clone())
}
