//! Memory in large pages.

#![expect(unsafe_code, reason = "advice to the system about memory is a call by address")]

/// Room for `n` values, in large pages where whole ones lie inside it: tables that are looked up all over need one translation of
/// addresses for 2 MiB instead of 512.
pub(crate) fn room_in_large_pages<T>(n: usize) -> Vec<T> {
    let mut room = Vec::with_capacity(n);
    let free = room.spare_capacity_mut();
    ask_for_large_pages(free.as_mut_ptr().cast(), size_of_val(free));
    room
}

#[cfg(target_os = "linux")]
fn ask_for_large_pages(start: *mut u8, bytes: usize) {
    const LARGE_PAGE: usize = 2 << 20;
    let skipped = start.align_offset(LARGE_PAGE);
    let whole = bytes.saturating_sub(skipped) / LARGE_PAGE * LARGE_PAGE;
    if whole > 0 {
        let advice = rustix::mm::Advice::LinuxHugepage;
        // SAFETY: the range lies inside memory that the caller owns, and the advice changes no content. A system that does not
        // take it goes on with small pages.
        let _ = unsafe { rustix::mm::madvise(start.wrapping_add(skipped).cast(), whole, advice) };
    }
}

#[cfg(not(target_os = "linux"))]
fn ask_for_large_pages(_: *mut u8, _: usize) {}
