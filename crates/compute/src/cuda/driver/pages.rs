//! Addresses without memory, and memory that is put behind some of them.
#![expect(unsafe_code, reason = "calls into a C library")]

use std::ffi::{c_int, c_ulonglong, c_void};

use super::{Driver, OUT_OF_MEMORY};
use crate::error::{Error, Result};

const ON_DEVICE: c_int = 1;
const PINNED: c_int = 1;
const READ_AND_WRITE: c_int = 3;
/// The smallest pieces there are, rather than those that are recommended.
const MINIMUM: c_int = 0;

/// Where memory is: `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Location {
    kind: c_int,
    id: c_int,
}

/// What memory is asked for: `CUmemAllocationProp`.
#[repr(C)]
pub(super) struct Properties {
    kind: c_int,
    handle_kinds: c_int,
    location: Location,
    windows: *mut c_void,
    flags: [u8; 8],
}

impl Properties {
    fn on(device: c_int) -> Self {
        let location = Location { kind: ON_DEVICE, id: device };
        Properties { kind: PINNED, handle_kinds: 0, location, windows: std::ptr::null_mut(), flags: [0; 8] }
    }
}

/// Who may use it, and how: `CUmemAccessDesc`.
#[repr(C)]
pub(super) struct Access {
    location: Location,
    flags: c_int,
}

impl Driver {
    /// Memory comes in multiples of so many bytes.
    pub fn page_bytes(&self, device: c_int) -> Result<usize> {
        let mut bytes = 0;
        // SAFETY: the driver reads the properties and writes one size.
        let status =
            unsafe { (self.api.cuMemGetAllocationGranularity)(&mut bytes, &Properties::on(device), MINIMUM) };
        self.check("cuMemGetAllocationGranularity", status)?;
        Ok(bytes)
    }

    /// Addresses for whole pages, with nothing behind them.
    pub fn reserve(&self, bytes: usize) -> Result<u64> {
        let mut address = 0;
        // SAFETY: the driver writes one address.
        let status = unsafe { (self.api.cuMemAddressReserve)(&mut address, bytes, 0, 0, 0) };
        self.check("cuMemAddressReserve", status)?;
        Ok(address)
    }

    /// Forgets addresses that have nothing behind them.
    pub fn unreserve(&self, address: u64, bytes: usize) {
        // SAFETY: the caller owns the addresses and forgets them.
        unsafe { (self.api.cuMemAddressFree)(address, bytes) };
    }

    /// Puts new memory behind reserved addresses, whole pages of them. Gives its handle.
    pub fn map(&self, device: c_int, address: u64, bytes: usize) -> Result<c_ulonglong> {
        let mut handle = 0;
        // SAFETY: the driver writes one handle and reads the properties.
        let status = unsafe { (self.api.cuMemCreate)(&mut handle, bytes, &Properties::on(device), 0) };
        if status == OUT_OF_MEMORY {
            return Err(Error::OutOfMemory { device: super::super::DEVICE, bytes });
        }
        self.check("cuMemCreate", status)?;
        // SAFETY: the caller owns the addresses, and nothing is behind them.
        let status = unsafe { (self.api.cuMemMap)(address, bytes, 0, handle, 0) };
        if let Err(error) = self.check("cuMemMap", status) {
            // SAFETY: the memory is behind no address.
            unsafe { (self.api.cuMemRelease)(handle) };
            return Err(error);
        }
        let access = Access { location: Location { kind: ON_DEVICE, id: device }, flags: READ_AND_WRITE };
        // SAFETY: the addresses have memory since the call before.
        let status = unsafe { (self.api.cuMemSetAccess)(address, bytes, &access, 1) };
        if let Err(error) = self.check("cuMemSetAccess", status) {
            self.unmap(address, bytes, handle);
            return Err(error);
        }
        Ok(handle)
    }

    /// Gives memory back that `map` put behind these addresses. Nothing on the device uses it any more.
    pub fn unmap(&self, address: u64, bytes: usize, handle: c_ulonglong) {
        // SAFETY: the caller's addresses and handle belong together, and it forgets them.
        unsafe {
            (self.api.cuMemUnmap)(address, bytes);
            (self.api.cuMemRelease)(handle);
        }
    }
}
