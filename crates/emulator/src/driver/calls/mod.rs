//! The driver's functions, by the names and with the types of the vendor's header.
//!
//! Callers promise what that header asks of them: that pointers point to what they say. Nothing else is believed.
#![expect(unsafe_code, reason = "an interface of C")]

mod device;
mod kernels;
mod memory;
mod streams;

use std::ptr;

use super::state::Status;

/// Writes what a caller asked for.
///
/// # Safety
/// `to` points to a place for it.
unsafe fn answer<T>(to: *mut T, value: T) -> Status {
    // SAFETY: the caller's promise.
    unsafe { ptr::write(to, value) };
    0
}

/// Declares functions of the interface: every one is exported by its name, and gives a status.
macro_rules! functions {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $of:ty),* $(,)?) $body:block)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// Pointers point to what the vendor's header says of them.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $of),*) -> Status $body
        )*
    };
}
pub(crate) use functions;
