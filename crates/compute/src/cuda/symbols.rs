//! Functions of libraries that are found at run time.

/// Declares a table of C functions that return a status, and its loading by name.
///
/// The declarations are taken from the vendor's headers: that they match is what makes a call through the table sound.
macro_rules! symbols {
    ($(#[$doc:meta])* $table:ident { $($name:ident($($argument:ident: $of:ty),* $(,)?);)* }) => {
        $(#[$doc])*
        #[allow(non_snake_case, reason = "the vendor's spelling")]
        struct $table {
            $($name: unsafe extern "C" fn($($argument: $of),*) -> i32,)*
            // Keeps the functions where they are.
            _library: libloading::Library,
        }

        impl $table {
            /// Finds every function in a library, or names the one that is missing.
            fn load(library: libloading::Library) -> std::result::Result<Self, &'static str> {
                Ok($table {
                    $($name: {
                        let symbol = concat!(stringify!($name), "\0");
                        // SAFETY: the declared type is that of the vendor's header.
                        match unsafe { library.get::<unsafe extern "C" fn($($of),*) -> i32>(symbol.as_bytes()) } {
                            Ok(function) => *function,
                            Err(_) => return Err(stringify!($name)),
                        }
                    },)*
                    _library: library,
                })
            }
        }
    };
}

pub(super) use symbols;
