//! Asking for memory before it is needed.

#![expect(unsafe_code, reason = "prefetching is an instruction")]

/// Starts to bring the cache line of `slice[idx]` near; an index outside does nothing.
#[inline(always)]
pub(crate) fn prefetch<T>(slice: &[T], idx: usize) {
    #[cfg(target_arch = "x86_64")]
    if let Some(place) = slice.get(idx) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: SSE is part of x86-64, and a prefetch neither reads nor writes what the program sees.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(place).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (slice, idx);
}
