//! What goes wrong.

/// What this crate's functions give.
pub type Result<T> = std::result::Result<T, Error>;

/// What goes wrong, in words for whoever wrote the kernel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Text that the parser does not understand.
    #[error("line {line} of the assembly: {detail}")]
    Text {
        /// Counted from one.
        line: u32,
        /// What is wrong there.
        detail: String,
    },
    /// An instruction that the machine does not have.
    #[error("line {line} of the assembly, `{statement}`: {detail}")]
    Instruction {
        /// Counted from one.
        line: u32,
        /// The instruction's name.
        statement: String,
        /// What it has that is not known.
        detail: String,
    },
    /// A kernel that did what a card does not let it do.
    #[error(
        "{kernel}: {detail}, in line {line} of the assembly, `{statement}`, block {block}, thread {thread}"
    )]
    Fault {
        /// The kernel.
        kernel: String,
        /// What it did.
        detail: String,
        /// Counted from one.
        line: u32,
        /// The instruction.
        statement: String,
        /// The block, counted along the grid.
        block: usize,
        /// The first thread of the warp that did it.
        thread: usize,
    },
    /// A launch that cannot be.
    #[error("{kernel}: {detail}")]
    Launch {
        /// The kernel.
        kernel: String,
        /// Why not.
        detail: String,
    },
    /// A capture beside which another thread did what the vendor's library does not bear.
    #[error("another thread {what} during a capture")]
    Disturbed {
        /// What it did.
        what: &'static str,
    },
}
