//! Where the time of a training step goes.

use std::{cmp::Ordering, time::Duration};

use ironmill_compute::kernel::Work;
use ironmill_data::Loader;
use ironmill_graph::{LaunchTime, Stage};

use super::{report::StepReport, trainer::Trainer};
use crate::error::Result;

/// The launches of one kernel in one stage, taken together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KernelTime {
    /// The part of the step.
    pub stage: Stage,
    /// The kernel, or what the host did.
    pub kernel: &'static str,
    /// How often.
    pub calls: usize,
    /// How long in all.
    pub time: Duration,
    /// What they had to do at least.
    pub work: Work,
}

/// A step by what it does, in the order in which it does it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepParts {
    /// Filling the batch.
    pub data: Duration,
    /// Up to the head.
    pub forward: Duration,
    /// The head with the loss and their gradients, which are one kernel.
    pub head: Duration,
    /// Behind the head, with what is computed again.
    pub backward: Duration,
    /// Norm, tests and optimiser.
    pub update: Duration,
    /// Uploads, the reading of results and bookkeeping.
    pub host: Duration,
}

/// One step, taken apart.
#[derive(Clone, Debug, PartialEq)]
pub struct StepProfile {
    /// What the step did.
    pub report: StepReport,
    /// Kernels by stage, the longest of a stage first. Their times add up to the step's. The host's own work belongs to
    /// [`Stage::Other`]: `data` is the filling of the batch, `host` are uploads, the reading of results and bookkeeping.
    pub kernels: Vec<KernelTime>,
    /// The same time by what was done.
    pub parts: StepParts,
}

impl StepProfile {
    /// The time of each stage. The stages add up to the step.
    pub fn stages(&self) -> [(Stage, Duration); Stage::ALL.len()] {
        Stage::ALL.map(|stage| {
            let of_stage = self.kernels.iter().filter(|kernel| kernel.stage == stage);
            (stage, of_stage.map(|kernel| kernel.time).sum())
        })
    }
}

impl Trainer {
    /// Takes one step on the next samples of a loader and says where its time went.
    pub fn profile_step(&mut self, loader: &Loader) -> Result<StepProfile> {
        let (mut kernels, mut parts) = (Vec::new(), StepParts::default());
        let update = self.update_program();
        let report = self.step_by(loader, &mut |runtime, program| {
            let launches = runtime.profile(program)?;
            // A program that is not fused has the loss and its gradient apart, with nothing of the model between them.
            let is_head = |launch: &LaunchTime| ["head_loss", "cross_entropy_grad"].contains(&launch.kernel);
            let head = launches.iter().position(is_head).unwrap_or(launches.len());
            for (index, LaunchTime { stage, kernel, work, time }) in launches.into_iter().enumerate() {
                add(&mut kernels, stage, kernel, time, work);
                *match index.cmp(&head) {
                    _ if program == update => &mut parts.update,
                    Ordering::Less => &mut parts.forward,
                    Ordering::Equal => &mut parts.head,
                    Ordering::Greater => &mut parts.backward,
                } += time;
            }
            Ok(())
        })?;
        let launched: Duration = kernels.iter().map(|kernel| kernel.time).sum();
        let host = report.elapsed.saturating_sub(report.waited + launched);
        add(&mut kernels, Stage::Other, "data", report.waited, Work::default());
        add(&mut kernels, Stage::Other, "host", host, Work::default());
        kernels.sort_by_key(|kernel| (kernel.stage, std::cmp::Reverse(kernel.time)));
        (parts.data, parts.host) = (report.waited, host);
        Ok(StepProfile { report, kernels, parts })
    }
}

fn add(kernels: &mut Vec<KernelTime>, stage: Stage, kernel: &'static str, time: Duration, work: Work) {
    match kernels.iter_mut().find(|known| known.stage == stage && known.kernel == kernel) {
        Some(known) => {
            known.calls += 1;
            known.time += time;
            known.work.flops += work.flops;
            known.work.bytes += work.bytes;
        }
        None => kernels.push(KernelTime { stage, kernel, calls: 1, time, work }),
    }
}
