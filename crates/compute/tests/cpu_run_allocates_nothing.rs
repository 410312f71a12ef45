//! Running a bound sequence allocates nothing, counted over all threads by the allocator itself.
#![expect(unsafe_code, reason = "an allocator that counts is an implementation of an unsafe trait")]

mod cases;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering},
};

use ironmill_compute::{Cpu, Device};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the caller keeps the contract of `alloc`, which is the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `alloc` above, which is the system's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn running_any_kernel_allocates_nothing() {
    for case in cases::all() {
        let mut cpu = Cpu::new(2).unwrap();
        let sequence = cases::bind(&mut cpu, &case).unwrap().sequence;
        cpu.run(sequence).unwrap();
        let before = ALLOCATIONS.load(Ordering::SeqCst);
        cpu.run(sequence).unwrap();
        assert_eq!(ALLOCATIONS.load(Ordering::SeqCst), before, "{}", case.name());
    }
}
