//! The GGUF container: metadata and named tensors in one file, quantised or not.
//!
//! A file is the magic `GGUF`, a version, the numbers of tensors and of metadata entries, the entries, the descriptions of the
//! tensors, and, aligned, their data. Read are versions 2 and 3, little-endian; written is version 3. Quantised tensors are read
//! by dequantising. Hostile files are errors, never panics: every length is checked against what is left of the file, and against
//! [`MAX_HEADER_BYTES`], before anything is allocated by it; tensors may not overlap or lie outside the file.

mod dequantise;
mod read;
mod write;

pub use read::Gguf;
pub use write::{Writer, f32_bytes};

use std::path::Path;

use crate::error::Error;

/// What metadata and descriptions of tensors may take together. The largest vocabularies take a tenth of it.
pub const MAX_HEADER_BYTES: u64 = 128 << 20;

const MAGIC: [u8; 4] = *b"GGUF";
const VERSION: u32 = 3;
/// Data are aligned to this unless the file says otherwise.
const ALIGNMENT: u64 = 32;
/// The most dimensions of a tensor.
const MAX_DIMS: usize = 4;

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(non_camel_case_types, missing_docs, reason = "the names are those of the format")]
pub enum Type {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
}

impl Type {
    /// Types with their number in the format, elements of a block, and bytes of a block.
    const ALL: [(Type, u32, usize, usize); 13] = [
        (Type::F32, 0, 1, 4),
        (Type::F16, 1, 1, 2),
        (Type::BF16, 30, 1, 2),
        (Type::Q4_0, 2, 32, 18),
        (Type::Q4_1, 3, 32, 20),
        (Type::Q5_0, 6, 32, 22),
        (Type::Q5_1, 7, 32, 24),
        (Type::Q8_0, 8, 32, 34),
        (Type::Q2_K, 10, 256, 84),
        (Type::Q3_K, 11, 256, 110),
        (Type::Q4_K, 12, 256, 144),
        (Type::Q5_K, 13, 256, 176),
        (Type::Q6_K, 14, 256, 210),
    ];

    fn from_number(number: u32) -> Option<Type> {
        Self::ALL.iter().find(|row| row.1 == number).map(|row| row.0)
    }

    fn number(self) -> u32 {
        Self::ALL[self as usize].1
    }

    /// Elements that are stored together.
    pub fn block_elements(self) -> usize {
        Self::ALL[self as usize].2
    }

    /// Bytes of so many elements.
    pub fn block_bytes(self) -> usize {
        Self::ALL[self as usize].3
    }

    /// Bytes of a tensor; `None` if that overflows or its rows are not whole blocks.
    fn bytes_of(self, dims: &[u64]) -> Option<u64> {
        let block = self.block_elements() as u64;
        let row = dims.first().copied().unwrap_or(1);
        if !row.is_multiple_of(block) {
            return None;
        }
        let start = (row / block).checked_mul(self.block_bytes() as u64)?;
        dims.iter().skip(1).try_fold(start, |bytes, &dim| bytes.checked_mul(dim))
    }
}

/// A value of the metadata. Integers of all widths are read into the widest; lists of lists are refused.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// An unsigned integer; written as 32 bits where it fits.
    Unsigned(u64),
    /// A signed integer; written as 32 bits where it fits.
    Signed(i64),
    /// A number; written as 32 bits.
    Float(f64),
    /// Yes or no.
    Bool(bool),
    /// A text.
    Text(String),
    /// A list of texts.
    Texts(Vec<String>),
    /// A list of integers; written as 32 bits.
    Integers(Vec<i64>),
    /// A list of numbers; written as 32 bits.
    Floats(Vec<f32>),
    /// A list of yes and no.
    Bools(Vec<bool>),
}

/// A tensor as the file describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// The name.
    pub name: String,
    /// The type of its elements.
    pub of: Type,
    /// The extent of each dimension, the slowest first, as everywhere else in this program. The file lists the fastest first.
    pub shape: Vec<u64>,
}

/// A bad file, in one word for the readers and writers of this module.
fn bad(path: &Path, reason: impl Into<String>) -> Error {
    Error::BadGguf { path: path.to_path_buf(), reason: reason.into() }
}

#[cfg(test)]
mod tests;
