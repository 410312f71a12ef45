//! Memory, and copies of it.
#![expect(unsafe_code, reason = "an interface of C")]

use std::{
    ffi::{c_int, c_uint, c_void},
    ptr,
};

use super::{answer, functions};
use crate::{
    driver::state::{INVALID_VALUE, OUT_OF_MEMORY, Status, TOTAL_BYTES, Work, give, state},
    machine::Region,
};

/// Pieces in which memory is put behind addresses.
const PAGE_BYTES: usize = 2 << 20;
/// What one access moves at most.
const WIDEST_BYTES: usize = 16;

functions! {
    /// Memory that is free, and all of it.
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        let used = state().used_bytes;
        // SAFETY: the caller's promise.
        unsafe {
            answer(free, TOTAL_BYTES.saturating_sub(used));
            answer(total, TOTAL_BYTES)
        }
    }

    /// Memory with addresses.
    fn cuMemAlloc_v2(address: *mut u64, bytes: usize) {
        let mut all = state();
        if all.used_bytes + bytes > TOTAL_BYTES {
            return OUT_OF_MEMORY;
        }
        // A card gives whole packs of the widest access, and more: what a kernel reads of the last one behind its end is poison.
        let bytes = bytes.next_multiple_of(WIDEST_BYTES);
        let region = Region::new(bytes);
        let at = region.address();
        all.used_bytes += bytes;
        all.change_table(|table| table.add(at, bytes));
        all.regions.insert(at, region);
        // SAFETY: the caller's promise.
        unsafe { answer(address, at) }
    }

    /// Gives it back.
    fn cuMemFree_v2(address: u64) {
        let mut all = state();
        let Some(region) = all.regions.remove(&address) else { return INVALID_VALUE };
        all.used_bytes -= region.bytes();
        all.change_table(|table| table.remove(address));
        0
    }

    /// The pieces in which memory is put behind addresses.
    fn cuMemGetAllocationGranularity(bytes: *mut usize, _of: *const c_void, _which: c_int) {
        // SAFETY: the caller's promise.
        unsafe { answer(bytes, PAGE_BYTES) }
    }

    /// Addresses without memory.
    fn cuMemAddressReserve(address: *mut u64, bytes: usize, _alignment: usize, _wanted: u64, _flags: u64) {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: new addresses that nobody has.
        match unsafe { mmap_anonymous(ptr::null_mut(), bytes, ProtFlags::empty(), flags) } {
            // SAFETY: the caller's promise.
            Ok(at) => unsafe { answer(address, at as u64) },
            Err(_) => OUT_OF_MEMORY,
        }
    }

    /// Forgets them.
    fn cuMemAddressFree(address: u64, bytes: usize) {
        // SAFETY: the caller reserved these addresses and forgets them.
        match unsafe { rustix::mm::munmap(address as *mut c_void, bytes) } {
            Ok(()) => 0,
            Err(_) => INVALID_VALUE,
        }
    }

    /// Memory without addresses.
    fn cuMemCreate(handle: *mut u64, bytes: usize, _of: *const c_void, _flags: u64) {
        let mut all = state();
        if !bytes.is_multiple_of(PAGE_BYTES) {
            return INVALID_VALUE;
        }
        if all.used_bytes + bytes > TOTAL_BYTES {
            return OUT_OF_MEMORY;
        }
        all.used_bytes += bytes;
        let number = all.handle() as u64;
        all.pieces.insert(number, bytes);
        // SAFETY: the caller's promise.
        unsafe { answer(handle, number) }
    }

    /// Gives it back.
    fn cuMemRelease(handle: u64) {
        let mut all = state();
        let Some(bytes) = all.pieces.remove(&handle) else { return INVALID_VALUE };
        all.used_bytes -= bytes;
        0
    }

    /// Puts it behind addresses.
    fn cuMemMap(address: u64, bytes: usize, offset: usize, handle: u64, _flags: u64) {
        let mut all = state();
        if all.pieces.get(&handle) != Some(&bytes) || offset != 0 {
            return INVALID_VALUE;
        }
        let both = rustix::mm::MprotectFlags::READ | rustix::mm::MprotectFlags::WRITE;
        // SAFETY: the caller reserved these addresses; nobody has used them.
        if unsafe { rustix::mm::mprotect(address as *mut c_void, bytes, both) }.is_err() {
            return INVALID_VALUE;
        }
        all.change_table(|table| table.add(address, bytes));
        0
    }

    /// Takes it away from there.
    fn cuMemUnmap(address: u64, bytes: usize) {
        let mut all = state();
        all.change_table(|table| table.remove(address));
        let none = rustix::mm::MprotectFlags::empty();
        // SAFETY: the caller mapped memory there and uses it no more.
        match unsafe { rustix::mm::mprotect(address as *mut c_void, bytes, none) } {
            Ok(()) => 0,
            Err(_) => INVALID_VALUE,
        }
    }

    /// Everyone may use what there is.
    fn cuMemSetAccess(_address: u64, _bytes: usize, _access: *const c_void, _count: usize) { 0 }

    /// Memory of the host's that the card can use.
    fn cuMemHostAlloc(address: *mut *mut c_void, bytes: usize, _flags: c_uint) {
        let region = Region::new(bytes);
        let at = region.address();
        let mut all = state();
        all.change_table(|table| table.add(at, bytes));
        all.regions.insert(at, region);
        // SAFETY: the caller's promise.
        unsafe { answer(address, at as *mut c_void) }
    }

    /// Gives it back.
    fn cuMemFreeHost(address: *mut c_void) {
        let mut all = state();
        all.change_table(|table| table.remove(address as u64));
        if all.regions.remove(&(address as u64)).is_some() { 0 } else { INVALID_VALUE }
    }

    /// Copies to the card.
    fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: usize) {
        if !exists(to, bytes) {
            return INVALID_VALUE;
        }
        give(stream, Work::Copy { to, from: from as u64, bytes })
    }

    /// Copies from the card.
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, stream: usize) {
        if !exists(from, bytes) {
            return INVALID_VALUE;
        }
        give(stream, Work::Copy { to: to as u64, from, bytes })
    }

    /// Copies on the card.
    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: usize) {
        if !exists(to, bytes) || !exists(from, bytes) {
            return INVALID_VALUE;
        }
        give(stream, Work::Copy { to, from, bytes })
    }

    /// Fills bytes.
    fn cuMemsetD8Async(to: u64, value: u8, bytes: usize, stream: usize) {
        if !exists(to, bytes) {
            return INVALID_VALUE;
        }
        give(stream, Work::Fill { to, value, bytes })
    }
}

/// Whether memory of the card is there.
fn exists(address: u64, bytes: usize) -> bool {
    let span = state().table.find(address);
    span.is_some_and(|(_, end)| address + bytes as u64 <= end)
}
