//! Everything that can go wrong between a configuration and a trained model.

use std::path::PathBuf;

use ironmill_compute::Verdict;

/// An error of a model, a training run or a checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The sizes of a model do not fit together.
    #[error("{key} = {value}: {reason}; change it in [model]")]
    Model {
        /// The configuration key.
        key: &'static str,
        /// Its value.
        value: String,
        /// Why it cannot be.
        reason: String,
    },
    /// A setting of the trainer cannot be used.
    #[error("{key} = {value}: {reason}; change it in [train]")]
    Setting {
        /// The configuration key.
        key: &'static str,
        /// Its value.
        value: String,
        /// Why it cannot be.
        reason: String,
    },
    /// A checkpoint or model folder is damaged or incomplete.
    #[error(
        "{path}: {problem}; delete this checkpoint to go on from an older one, or restore it from a copy"
    )]
    Damaged {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// A folder is not a model that this program can read.
    #[error(
        "{path}: {problem}; pass a run folder, a checkpoint, or a Hugging Face folder of a supported model"
    )]
    NotAModel {
        /// The file or folder.
        path: PathBuf,
        /// Why not.
        problem: String,
    },
    /// A checkpoint belongs to a model of another shape.
    #[error(
        "{path}: {problem}; use the configuration that the checkpoint was made with, or start a new run folder"
    )]
    OtherShape {
        /// The checkpoint.
        path: PathBuf,
        /// Which sizes differ.
        problem: String,
    },
    /// A step was refused before it changed anything.
    #[error(
        "step {step}: {}, so it was not applied and the weights are those of step {}; lower learning_rate, raise warmup, or check the data around this step",
        refusal(*verdict, *loss, *norm), step - 1
    )]
    Refused {
        /// The step, counted from 1.
        step: u64,
        /// Why.
        verdict: Verdict,
        /// Its loss.
        loss: f64,
        /// Its gradient norm.
        norm: f64,
    },
    /// The disk has no room for a checkpoint.
    #[error(
        "{path}: a checkpoint takes {needed} bytes and the disk has {free} left, so none was written and the ones before are as they were; free some space, or lower keep_last, keep_best or keep_every in [train]"
    )]
    NoSpace {
        /// The folder of checkpoints.
        path: PathBuf,
        /// What is needed.
        needed: u64,
        /// What there is.
        free: u64,
    },
    /// Someone asked to stop; what was under way is undone and can be done again.
    #[error("stopped before the end; run the same command again to go on")]
    Stopped,
    /// A prompt or a token list cannot be used.
    #[error("{0}")]
    Prompt(String),
    /// A file could not be read or written.
    #[error("{path}: {source}; check the path, the permissions and the free space")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The graph or the device failed.
    #[error(transparent)]
    Graph(#[from] ironmill_graph::Error),
    /// The data failed.
    #[error(transparent)]
    Data(#[from] ironmill_data::Error),
}

impl Error {
    /// Whether the device has no memory for what was asked; less may still fit.
    pub fn is_out_of_memory(&self) -> bool {
        use ironmill_compute::Error::OutOfMemory;
        matches!(self, Error::Graph(ironmill_graph::Error::Compute(OutOfMemory { .. })))
    }

    pub(crate) fn io(path: &std::path::Path) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.to_path_buf();
        move |source| Error::Io { path, source }
    }
}

/// Why a step was refused, with its numbers.
fn refusal(verdict: Verdict, loss: f64, norm: f64) -> String {
    match verdict {
        Verdict::LossOutlier => format!("the loss {loss:.4} is far above its running mean"),
        Verdict::NormOutlier => format!("the gradient norm {norm:.4} is far above its running mean"),
        _ => format!("the gradient norm is {norm} (loss {loss})"),
    }
}

impl From<ironmill_compute::Error> for Error {
    fn from(error: ironmill_compute::Error) -> Self {
        Error::Graph(error.into())
    }
}

/// The result of calls into this crate.
pub type Result<T> = std::result::Result<T, Error>;
