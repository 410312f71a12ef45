//! The card and what it has.
#![expect(unsafe_code, reason = "an interface of C")]

use std::{
    ffi::{CStr, CString, c_char, c_int, c_uint},
    ptr,
};

use super::{answer, functions};
use crate::{
    driver::state::{
        CAPTURE_INVALIDATED, INVALID_HANDLE, INVALID_IMAGE, INVALID_VALUE, LAUNCH_FAILED, NOT_FOUND,
        OUT_OF_MEMORY, Status, TOTAL_BYTES, reason,
    },
    machine::MOST_SHARED_BYTES,
};

/// The driver's version that is claimed: CUDA 13.0.
const VERSION: c_int = 13_000;
const NAME: &CStr = c"Ironmill's emulator of a Hopper card";
/// Multiprocessors, unless the environment says another number: few, since blocks that stay run side by side.
const MULTIPROCESSORS: usize = 16;
fn multiprocessors() -> usize {
    let asked = std::env::var("IRONMILL_EMULATOR_MULTIPROCESSORS").ok();
    asked.and_then(|count| count.parse().ok()).unwrap_or(MULTIPROCESSORS)
}

functions! {
    /// Begins.
    fn cuInit(_flags: c_uint) { 0 }

    /// The version of CUDA that the driver runs.
    fn cuDriverGetVersion(version: *mut c_int) {
        // SAFETY: the caller's promise.
        unsafe { answer(version, VERSION) }
    }

    /// A status by its name.
    fn cuGetErrorName(error: c_int, name: *mut *const c_char) {
        let text = match error {
            0 => c"CUDA_SUCCESS",
            INVALID_VALUE => c"CUDA_ERROR_INVALID_VALUE",
            OUT_OF_MEMORY => c"CUDA_ERROR_OUT_OF_MEMORY",
            INVALID_IMAGE => c"CUDA_ERROR_INVALID_IMAGE",
            INVALID_HANDLE => c"CUDA_ERROR_INVALID_HANDLE",
            NOT_FOUND => c"CUDA_ERROR_NOT_FOUND",
            LAUNCH_FAILED => c"CUDA_ERROR_LAUNCH_FAILED",
            _ => c"CUDA_ERROR_UNKNOWN",
        };
        // SAFETY: the caller's promise.
        unsafe { answer(name, text.as_ptr()) }
    }

    /// What a status means; of a kernel that failed, what it did.
    fn cuGetErrorString(error: c_int, text: *mut *const c_char) {
        let said = match error {
            INVALID_VALUE | INVALID_IMAGE | LAUNCH_FAILED | CAPTURE_INVALIDATED => reason(),
            OUT_OF_MEMORY => "out of memory".into(),
            other => format!("status {other}"),
        };
        // Whoever asks keeps the text as long as they like.
        let said = CString::new(said.replace('\0', " ")).unwrap_or_default().into_raw();
        // SAFETY: the caller's promise.
        unsafe { answer(text, said.cast_const()) }
    }

    /// One card.
    fn cuDeviceGetCount(count: *mut c_int) {
        // SAFETY: the caller's promise.
        unsafe { answer(count, 1) }
    }

    /// The card by its number.
    fn cuDeviceGet(device: *mut c_int, ordinal: c_int) {
        if ordinal != 0 {
            return INVALID_VALUE;
        }
        // SAFETY: the caller's promise.
        unsafe { answer(device, 0) }
    }

    /// Its name.
    fn cuDeviceGetName(name: *mut c_char, len: c_int, _device: c_int) {
        // SAFETY: the caller's promise.
        unsafe { put_text(name, len, NAME) }
    }

    /// Its place on the bus.
    fn cuDeviceGetPCIBusId(name: *mut c_char, len: c_int, _device: c_int) {
        // SAFETY: the caller's promise.
        unsafe { put_text(name, len, c"0000:00:00.0") }
    }

    /// What the card has.
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, _device: c_int) {
        let found = match attribute {
            16 => multiprocessors() as c_int,
            75 => 9,
            76 => 0,
            97 => MOST_SHARED_BYTES as c_int,
            102 => 1,
            _ => return INVALID_VALUE,
        };
        // SAFETY: the caller's promise.
        unsafe { answer(value, found) }
    }

    /// Its memory.
    fn cuDeviceTotalMem_v2(bytes: *mut usize, _device: c_int) {
        // SAFETY: the caller's promise.
        unsafe { answer(bytes, TOTAL_BYTES) }
    }

    /// How its context behaves, which is always the same.
    fn cuDevicePrimaryCtxSetFlags_v2(_device: c_int, _flags: c_uint) { 0 }

    /// The one context.
    fn cuDevicePrimaryCtxRetain(context: *mut usize, _device: c_int) {
        // SAFETY: the caller's promise.
        unsafe { answer(context, 1) }
    }

    /// Gives it back.
    fn cuDevicePrimaryCtxRelease_v2(_device: c_int) { 0 }

    /// Makes it the thread's.
    fn cuCtxSetCurrent(_context: usize) { 0 }
}

/// # Safety
/// `to` has room for `room` characters.
unsafe fn put_text(to: *mut c_char, room: c_int, text: &CStr) -> Status {
    let bytes = text.to_bytes_with_nul();
    if bytes.len() > room as usize {
        return INVALID_VALUE;
    }
    // SAFETY: the caller's promise.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr().cast(), to, bytes.len()) };
    0
}
