//! Everything that can go wrong below the graph.

use crate::tensor::DType;

/// An error of a device or a shape rule.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An op was given tensors that it has no meaning for.
    #[error("{op}: {detail}; check the model's sizes")]
    Shape {
        /// The op's name.
        op: &'static str,
        /// What does not fit, with the shapes.
        detail: String,
    },
    /// A backend has no kernel for what was asked.
    #[error("the {device} backend has no {kernel} kernel in {dtype}; use another precision or device")]
    Unsupported {
        /// The backend.
        device: &'static str,
        /// The kernel's name.
        kernel: &'static str,
        /// The element type that is missing.
        dtype: DType,
    },
    /// A backend has no products with weights of eight bits.
    #[error(
        "the {device} backend keeps no weights in int8; keep them as they are stored, or use a processor"
    )]
    NoInt8 {
        /// The backend.
        device: &'static str,
    },
    /// An id points outside the table that it indexes.
    #[error(
        "{op}: id {index} is outside the {rows} there are; the data and the model have different vocabularies: prepare again or change the model"
    )]
    IndexOutOfRange {
        /// The op's name.
        op: &'static str,
        /// The id.
        index: usize,
        /// How many ids there are.
        rows: usize,
    },
    /// A launch does not fit the memory it names, or its operands overlap.
    #[error("{kernel}: {detail}; this is a bug in Ironmill, please report it")]
    Binding {
        /// The kernel's name.
        kernel: &'static str,
        /// What is wrong.
        detail: String,
    },
    /// The device could not give the memory.
    #[error("cannot allocate {bytes} bytes on {device}; make micro_batch, context or the model smaller")]
    OutOfMemory {
        /// The backend.
        device: &'static str,
        /// What was asked for.
        bytes: usize,
    },
    /// A library of a device's vendor is not there, or is not what it should be.
    #[error("{library}: {detail}; {advice}")]
    LibraryMissing {
        /// The library's name.
        library: &'static str,
        /// What was found.
        detail: String,
        /// What gets it.
        advice: &'static str,
    },
    /// A call into a device's driver or library failed.
    #[error("cuda: {call}: {detail}; {advice}")]
    Cuda {
        /// The function.
        call: &'static str,
        /// What it says, and for which kernel.
        detail: String,
        /// What to do.
        advice: &'static str,
    },
    /// A kernel did not compile.
    #[error("cuda: {call} on {file}: status {status}\n{log}\nthis is a bug in Ironmill, please report it")]
    KernelCompile {
        /// The kernel's file.
        file: String,
        /// The function.
        call: &'static str,
        /// What it returned.
        status: i32,
        /// What the compiler says.
        log: String,
    },
    /// A worker thread could not be started.
    #[error("cannot start a worker thread: {0}; lower --threads or the machine's process count")]
    Threads(std::io::Error),
}

/// The result of calls into this crate.
pub type Result<T> = std::result::Result<T, Error>;
