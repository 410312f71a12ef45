//! A training step allocates nothing after the first one. Alone in its binary, because it counts for the whole process.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicU64, Ordering},
};

use ironmill_compute::Cpu;
use ironmill_data::{Loader, Sampler, TokenStream};
use ironmill_model::{Architecture, Decay, Model, ModelConfig, Schedule, TrainOptions, Trainer};

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

#[test]
fn a_step_allocates_nothing_after_the_first() {
    let sizes = ModelConfig::new(Architecture::Llama, 2, 2, 32);
    let model = Model::new(ModelConfig { vocab_size: 101, context: 32, dropout: 0.1, ..sizes }).unwrap();
    let values = model.initial_values(1);
    let schedule = Schedule { peak: 1e-3, floor: 1e-4, warmup: 2, steps: 10, decay: Decay::Cosine };
    let options = TrainOptions { borders: true, micro_rows: 4, ..TrainOptions::new(8, 32, schedule) };
    let mut trainer = Trainer::new(Box::new(Cpu::new(2).unwrap()), model, options, &values).unwrap();
    let stream = TokenStream::from_tokens((0..5000).map(|i| i % 101).collect(), 5000);
    let loader = Loader::new(stream, Sampler::Shuffled, 1, 32, 8).unwrap();
    trainer.step(&loader).unwrap();
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    for _ in 0..5 {
        trainer.step(&loader).unwrap();
    }
    assert_eq!(ALLOCATIONS.load(Ordering::Relaxed) - before, 0);
}
