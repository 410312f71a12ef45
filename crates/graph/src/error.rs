//! Everything that can go wrong while a program is built, compiled or run.

/// An error of building or running a program.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A derivative of an op was asked for that has none.
    #[error(
        "{op} has no derivative: gradient ops and state writes cannot be differentiated again; take the gradient of the forward program only"
    )]
    NotDifferentiable {
        /// The op's name.
        op: &'static str,
    },
    /// Nothing below the loss can be trained.
    #[error("no trainable parameter lies below the loss; unfreeze one")]
    NothingToTrain,
    /// An input was given another number of elements than it has.
    #[error(
        "input {name} is {expected}, but {given} elements were given; this is a bug in Ironmill, please report it"
    )]
    InputLength {
        /// The input's name.
        name: String,
        /// Its type.
        expected: String,
        /// What came.
        given: usize,
    },
    /// A tensor was read that the program does not keep.
    #[error("tensor {0} is not an output of the program; this is a bug in Ironmill, please report it")]
    NotAnOutput(usize),
    /// The backend or a shape rule refused.
    #[error(transparent)]
    Compute(#[from] ironmill_compute::Error),
}

/// The result of calls into this crate.
pub type Result<T> = std::result::Result<T, Error>;
