//! Buffers whose memory comes page by page, when it is first needed.

use std::{ffi::c_int, ops::Range};

use super::driver::Driver;
use crate::error::Result;

/// A buffer's addresses, and the memory behind some of them.
pub(super) struct Pages {
    device: c_int,
    address: u64,
    page_bytes: usize,
    /// Of every page, whether there is memory behind it.
    are_there: Vec<bool>,
    pieces: Vec<Piece>,
}

/// Pages that came together.
struct Piece {
    address: u64,
    bytes: usize,
    handle: u64,
}

impl Pages {
    /// Addresses for at least so many bytes.
    pub fn reserve(driver: &Driver, device: c_int, bytes: usize) -> Result<Self> {
        let page_bytes = driver.page_bytes(device)?;
        let count = bytes.div_ceil(page_bytes).max(1);
        let address = driver.reserve(count * page_bytes)?;
        Ok(Pages { device, address, page_bytes, are_there: vec![false; count], pieces: Vec::new() })
    }

    pub fn address(&self) -> u64 {
        self.address
    }

    /// Puts memory, zeroed by the stream, behind those of the bytes that have none.
    pub fn back(&mut self, driver: &Driver, bytes: Range<usize>, stream: usize) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let (mut page, end) = (bytes.start / self.page_bytes, bytes.end.div_ceil(self.page_bytes));
        while page < end {
            let count = self.are_there[page..end].iter().take_while(|is_there| !**is_there).count();
            if count > 0 {
                let (address, bytes) =
                    (self.address + (page * self.page_bytes) as u64, count * self.page_bytes);
                let handle = driver.map(self.device, address, bytes)?;
                self.pieces.push(Piece { address, bytes, handle });
                self.are_there[page..page + count].fill(true);
                driver.clear(address, bytes, stream)?;
            }
            page += count + 1;
        }
        Ok(())
    }

    /// Whether there is memory behind all of these bytes.
    pub fn are_backed(&self, bytes: Range<usize>) -> bool {
        let pages = bytes.start / self.page_bytes..bytes.end.div_ceil(self.page_bytes);
        bytes.is_empty() || self.are_there[pages].iter().all(|is_there| *is_there)
    }

    /// Gives everything back. Nothing on the device uses it any more.
    pub fn free(self, driver: &Driver) {
        for Piece { address, bytes, handle } in self.pieces {
            driver.unmap(address, bytes, handle);
        }
        driver.unreserve(self.address, self.are_there.len() * self.page_bytes);
    }
}
