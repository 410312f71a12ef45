//! Training: a step is `micro` (forward, backward, accumulate) run per micro-batch, then `update`.

mod schedule;
mod trainer;

pub use schedule::{Decay, Schedule};
pub use trainer::{Batch, MemoryPlan, StepReport, TrainOptions, Trainer};
