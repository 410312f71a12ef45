//! Training: a step is `micro` (forward, backward, accumulate) run per micro-batch, then `update`.

mod batch;
mod inside;
mod options;
mod profile;
mod report;
mod scale;
mod schedule;
mod trainer;

pub use batch::Batch;
pub use inside::PartNorms;
pub use options::{Betas, Fault, GuardOptions, OptimizerOptions, ParameterGroup, TrainOptions};
pub use profile::{KernelTime, StepParts, StepProfile};
pub use report::{Alarm, GuardState, StepReport};
pub use scale::LossScale;
pub use schedule::{Decay, Plateau, Schedule};
pub use trainer::{MemoryPlan, Trainer};
