//! Memory of the card, which is memory of this process: addresses are the same.
//!
//! Kernels name any address they like. A [`Table`] knows which of them exist, and nothing is touched before it was asked.
#![expect(unsafe_code, reason = "memory that kernels address")]

use std::{
    alloc::{Layout, alloc, dealloc, handle_alloc_error},
    ptr,
};

/// What new memory is full of: neither zero nor a number in any type of floats.
pub const POISON: u8 = 0xff;
/// Larger pieces are not filled, so that the system need not find memory for what nobody touches.
const MOST_POISONED: usize = 16 << 20;

/// A piece of memory.
#[derive(Debug)]
pub struct Region {
    start: *mut u8,
    layout: Layout,
}

// SAFETY: a region is a plain address to which nobody else has a reference; reads and writes through it are raw.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// So many bytes at a multiple of 1024.
    pub fn new(bytes: usize) -> Self {
        let layout = Layout::from_size_align(bytes.max(1), 1024).expect("a size that memory can have");
        // SAFETY: the layout has a size.
        let start = unsafe { alloc(layout) };
        if start.is_null() {
            handle_alloc_error(layout);
        }
        let region = Region { start, layout };
        if bytes <= MOST_POISONED {
            region.poison();
        }
        region
    }

    /// Makes its content mean nothing.
    pub fn poison(&self) {
        // SAFETY: the region is that long.
        unsafe { ptr::write_bytes(self.start, POISON, self.layout.size()) };
    }

    /// Where it begins.
    pub fn address(&self) -> u64 {
        self.start as u64
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.layout.size()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: `new` got it with this layout.
        unsafe { dealloc(self.start, self.layout) };
    }
}

/// Addresses from one to before another.
pub type Span = (u64, u64);

/// All addresses that exist, in order.
#[derive(Clone, Debug, Default)]
pub struct Table(Vec<Span>);

impl Table {
    /// Adds a piece.
    pub fn add(&mut self, address: u64, bytes: usize) {
        let at = self.0.partition_point(|span| span.0 < address);
        self.0.insert(at, (address, address + bytes as u64));
    }

    /// Takes the piece away that begins at an address.
    pub fn remove(&mut self, address: u64) {
        self.0.retain(|span| span.0 != address);
    }

    /// The piece that holds an address.
    pub fn find(&self, address: u64) -> Option<Span> {
        let behind = self.0.partition_point(|span| span.0 <= address);
        self.0[..behind].last().copied().filter(|span| address < span.1)
    }
}

/// What is at addresses. Whoever calls these has asked a table, or owns the region.
pub mod raw {
    use super::ptr;

    /// An element of 1, 2, 4 or 8 bytes.
    #[inline]
    pub fn read(at: u64, bytes: usize) -> u64 {
        // SAFETY: the module's promise. Elements may lie anywhere.
        unsafe {
            match bytes {
                1 => ptr::read(at as *const u8).into(),
                2 => ptr::read_unaligned(at as *const u16).into(),
                4 => ptr::read_unaligned(at as *const u32).into(),
                _ => ptr::read_unaligned(at as *const u64),
            }
        }
    }

    /// Writes one.
    #[inline]
    pub fn write(at: u64, bytes: usize, value: u64) {
        // SAFETY: the module's promise.
        unsafe {
            match bytes {
                1 => ptr::write(at as *mut u8, value as u8),
                2 => ptr::write_unaligned(at as *mut u16, value as u16),
                4 => ptr::write_unaligned(at as *mut u32, value as u32),
                _ => ptr::write_unaligned(at as *mut u64, value),
            }
        }
    }

    /// Copies bytes.
    #[inline]
    pub fn copy(to: u64, from: u64, bytes: usize) {
        // SAFETY: the module's promise; both may overlap.
        unsafe { ptr::copy(from as *const u8, to as *mut u8, bytes) };
    }

    /// Fills bytes.
    #[inline]
    pub fn fill(to: u64, value: u8, bytes: usize) {
        // SAFETY: the module's promise.
        unsafe { ptr::write_bytes(to as *mut u8, value, bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_knows_what_exists() {
        let mut table = Table::default();
        table.add(4096, 100);
        table.add(1024, 10);
        assert_eq!(table.find(1023), None);
        assert_eq!(table.find(1024), Some((1024, 1034)));
        assert_eq!(table.find(1034), None);
        assert_eq!(table.find(4195), Some((4096, 4196)));
        table.remove(4096);
        assert_eq!(table.find(4100), None);
    }

    #[test]
    fn new_memory_is_no_number() {
        let region = Region::new(64);
        assert!(f32::from_bits(raw::read(region.address(), 4) as u32).is_nan());
        assert!(f64::from_bits(raw::read(region.address() + 8, 8)).is_nan());
        raw::write(region.address() + 3, 2, 0x1234);
        assert_eq!(raw::read(region.address() + 3, 2), 0x1234);
    }
}
