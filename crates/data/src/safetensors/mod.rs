//! The safetensors container: named tensors in one file, read and written strictly.
//!
//! A file is an 8-byte little-endian header length, a JSON header padded with spaces, and the tensors' bytes. The header
//! maps each name to `dtype`, `shape` and `data_offsets` (relative to the end of the header), and `__metadata__` to a map of
//! strings. Held strictly on reading: the header has at most 100,000,000 bytes and starts with `{`; names are not repeated;
//! offsets agree with shape and dtype; the tensors cover the data without holes, overlaps or trailing bytes.
//! Hostile files are errors, never panics, and nothing is allocated by a length that was not checked against the file.

mod header;
mod parts;
mod read;
mod write;

pub use parts::Parts;
pub use read::SafeTensors;
pub use write::{TensorView, Writer, write, write_on};

use crate::error::Error;

/// The largest header that a file may have.
pub const MAX_HEADER_BYTES: u64 = 100_000_000;

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the names are those of the format and say everything")]
pub enum Dtype {
    Bool,
    U8,
    I8,
    F8E5M2,
    F8E4M3,
    I16,
    U16,
    F16,
    BF16,
    I32,
    U32,
    F32,
    F64,
    I64,
    U64,
}

impl Dtype {
    const ALL: [(Dtype, &'static str, u64); 15] = [
        (Dtype::Bool, "BOOL", 1),
        (Dtype::U8, "U8", 1),
        (Dtype::I8, "I8", 1),
        (Dtype::F8E5M2, "F8_E5M2", 1),
        (Dtype::F8E4M3, "F8_E4M3", 1),
        (Dtype::I16, "I16", 2),
        (Dtype::U16, "U16", 2),
        (Dtype::F16, "F16", 2),
        (Dtype::BF16, "BF16", 2),
        (Dtype::I32, "I32", 4),
        (Dtype::U32, "U32", 4),
        (Dtype::F32, "F32", 4),
        (Dtype::F64, "F64", 8),
        (Dtype::I64, "I64", 8),
        (Dtype::U64, "U64", 8),
    ];

    /// The name in the header.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// Bytes an element takes.
    pub fn bytes(self) -> u64 {
        Self::ALL[self as usize].2
    }

    fn from_name(name: &str) -> Option<Dtype> {
        Self::ALL.iter().find(|(_, known, _)| *known == name).map(|(dtype, _, _)| *dtype)
    }
}

/// A tensor's name, type and shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// The name.
    pub name: String,
    /// The type of the elements.
    pub dtype: Dtype,
    /// The extent of each dimension; empty for a scalar.
    pub shape: Vec<u64>,
}

impl TensorInfo {
    /// How many bytes the elements take; `None` if that overflows.
    fn bytes(&self) -> Option<u64> {
        self.shape.iter().try_fold(self.dtype.bytes(), |product, &extent| product.checked_mul(extent))
    }
}

/// A bad file, in one word for the readers and writers of this module.
fn bad(path: &std::path::Path, reason: impl Into<String>) -> Error {
    Error::BadSafetensors { path: path.to_path_buf(), reason: reason.into() }
}

/// The largest number of bytes of elements read at once, into a buffer on the stack.
const CHUNK_BYTES: usize = 8_192;

#[cfg(test)]
mod tests;
