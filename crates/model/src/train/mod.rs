//! Training: a step is `micro` (forward, backward, accumulate) run per micro-batch, then `update`.

mod options;
mod profile;
mod scale;
mod schedule;
mod trainer;

pub use options::{Batch, Betas, OptimizerOptions, TrainOptions};
pub use profile::{KernelTime, StepProfile};
pub use scale::LossScale;
pub use schedule::{Decay, Schedule};
pub use trainer::{MemoryPlan, StepReport, Trainer};
