//! Training: a step is `micro` (forward, backward, accumulate) run per micro-batch, then `update`.

mod options;
mod schedule;
mod trainer;

pub use options::{Batch, Betas, OptimizerOptions, TrainOptions};
pub use schedule::{Decay, Schedule};
pub use trainer::{MemoryPlan, StepReport, Trainer};
