//! `bench step`: a training step as it is, its share of the machine's peak, and where its time goes.

mod batching;
mod sizes;

pub use sizes::Sizes;

use super::card::CardLimits;
use super::clock::counted_name;
use super::limits::Limits;
use super::random::Random;
use super::{Clock, Settings, Spread, Time, cpu};
use crate::failure::{Code, Failure, Result};
use crate::show::Show;
use crate::show::numbers::{bytes, grouped};
use crate::stages::cuda;
use batching::Batching;
use ironmill_compute::{Cuda, DType, Device};
use ironmill_data::{Loader, Sampler, TokenStream};
use ironmill_graph::Passes;
use ironmill_model::{Decay, KernelTime, Model, Schedule, StepProfile, TrainOptions, Trainer};
use serde_json::{Value, json};
use std::fmt::Write;

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The model and its batch.
    pub sizes: Sizes,
    /// Steps to measure; none takes as many as fit into a few seconds.
    pub steps: Option<usize>,
    /// Whether to compare a large batch with many small ones.
    pub batching: bool,
    /// Samples of a micro-batch; divides the batch.
    pub micro_rows: usize,
    /// Whether to show every kernel.
    pub kernels: bool,
}

/// What was measured.
struct Measured {
    plan: Plan,
    settings: Settings,
    machine: Machine,
    wall: Spread,
    processor: Spread,
    counted: Spread,
    /// Processor time of a micro-batch without its data.
    host: Spread,
    steps: usize,
    parameters: usize,
    flops_per_token: f64,
    products: usize,
    /// Bytes that were planned, and that are in use on a device that says.
    memory: (usize, Option<usize>),
    profile: StepProfile,
    batching: Option<Batching>,
}

/// What a step is measured against.
struct Machine {
    line: String,
    json: Value,
    flops_per_s: f64,
    copy_bytes_per_s: f64,
}

/// How much of a step's time the machine needs at its limits, and how much is left to win, in seconds.
struct Left {
    limit: f64,
    left: f64,
}

impl Left {
    fn columns(&self) -> String {
        format!("  limit {:>9.3} ms, left {:>9.3} ms", 1e3 * self.limit, 1e3 * self.left)
    }
}

impl Machine {
    fn of_processor(limits: &Limits, settings: Settings) -> Machine {
        Machine {
            line: limits.line(),
            json: limits.to_json(),
            flops_per_s: settings.precision.flops_per_s(limits),
            copy_bytes_per_s: limits.peak.copy_bytes_per_s,
        }
    }

    fn of_card(limits: &CardLimits) -> Machine {
        Machine {
            line: limits.line(),
            json: limits.to_json(),
            flops_per_s: limits.flops_per_s,
            copy_bytes_per_s: limits.copy_bytes_per_s,
        }
    }

    /// The seconds that work would take at the machine's limits: operations at its peak or bytes at its copy, whichever is longer.
    fn limit(&self, kernel: &KernelTime) -> f64 {
        (kernel.work.flops / self.flops_per_s).max(kernel.work.bytes / self.copy_bytes_per_s)
    }

    /// That as a share of the time that it took. Small operands stay in caches, so that memory-bound work may come out above 1.
    fn roofline(&self, kernel: &KernelTime) -> f64 {
        self.limit(kernel) / kernel.time.as_secs_f64().max(1e-9)
    }

    /// The limits of some kernels together, and what the slower of them could still win. Work that nobody counted has no limit, and
    /// nothing is said to be left of it.
    fn left<'a>(&self, kernels: impl Iterator<Item = &'a KernelTime>) -> Left {
        let counted = kernels.filter(|kernel| kernel.work.bytes > 0.0);
        counted.fold(Left { limit: 0.0, left: 0.0 }, |sum, kernel| Left {
            limit: sum.limit + self.limit(kernel),
            left: sum.left + (kernel.time.as_secs_f64() - self.limit(kernel)).max(0.0),
        })
    }
}

/// Trains for a few seconds and shows how that went.
pub fn run(show: &Show, device_name: &str, plan: Plan, settings: Settings) -> Result<()> {
    let passes = settings.precision.passes();
    let (machine, mut subject) = match cuda::ordinal(device_name) {
        Some(ordinal) => {
            if plan.batching {
                let message = "--batching measures the processor: use --device cpu";
                return Err(Failure::new(Code::Usage, message));
            }
            on_card(ordinal, plan.sizes, plan.micro_rows, settings)?
        }
        None => {
            let device = cpu(device_name, settings.threads)?;
            let limits = Limits::measure(&device, settings.quick)?;
            let subject = Subject::new(Box::new(device), plan.sizes, plan.micro_rows, passes, None)?;
            (Machine::of_processor(&limits, settings), subject)
        }
    };
    let seconds = if settings.quick { 0.0 } else { 4.0 };
    let (least, most) = plan.steps.map_or((3, 200), |steps| (steps.max(1), steps.max(1)));
    let times = subject.times(seconds, least, most)?;
    let profile = subject.profile(if settings.quick { 1 } else { 5 }, seconds)?;
    let spread = |of: &dyn Fn(&Time) -> f64| Spread::of(times.iter().map(of).collect());
    let measured = Measured {
        wall: spread(&|time| time.wall),
        processor: spread(&|time| time.processor),
        counted: spread(&|time| time.counted(settings.threads)),
        host: Spread::of(subject.host.clone()),
        steps: times.len(),
        parameters: subject.trainer.engine().model().layout().count(),
        flops_per_token: plan.sizes.config().flops_per_token() as f64,
        products: subject.trainer.products_per_step(),
        memory: (
            subject.planned_bytes + cuda::library_bytes(device_name),
            subject.trainer.engine().used_bytes(),
        ),
        profile,
        batching: plan.batching.then(|| Batching::measure(plan.sizes, passes, settings)).transpose()?,
        plan,
        settings,
        machine,
    };
    show.result(&measured.text(), &measured.to_json())
}

/// The kernels of training steps on a card, each against the card's limits: those of nanoGPT's character model and of GPT-2, by the
/// time that they take inside a step. Their results are the business of the op tests, which run on the same card.
pub fn card_kernels(show: &Show, ordinal: usize, only: Option<&str>, settings: Settings) -> Result<()> {
    let models = match settings.quick {
        true => vec![Sizes::TINY],
        false => vec![Sizes { batch: 64, ..Sizes::BABY }, Sizes { batch: 64, context: 1024, ..Sizes::GPT2 }],
    };
    for sizes in models {
        let (machine, mut subject) = on_card(ordinal, sizes, sizes.batch, settings)?;
        subject.step()?;
        let profile = subject.profile(5, 4.0)?;
        let heading = format!("{}; {}\n{}", sizes.line(), settings.precision.name(), machine.line);
        show.result(&heading, &machine.json)?;
        for kernel in profile.kernels.iter().filter(|kernel| kernel.work.bytes > 0.0) {
            let name = format!("{} · {}", kernel.stage.name(), kernel.kernel);
            if only.is_some_and(|only| !name.contains(only)) {
                continue;
            }
            let (seconds, work) = (kernel.time.as_secs_f64(), kernel.work);
            let share = machine.roofline(kernel);
            let text = format!(
                "  {name:<36} {:>9.3} ms × {:<4} {:>7.1} TFLOP/s {:>6.2} TB/s {:>4.0} % of roofline",
                1e3 * seconds / kernel.calls as f64,
                kernel.calls,
                work.flops / seconds / 1e12,
                work.bytes / seconds / 1e12,
                100.0 * share
            );
            let object = json!({
                "kind": "kernel",
                "stage": kernel.stage.name(),
                "kernel": kernel.kernel,
                "calls": kernel.calls,
                "seconds": seconds,
                "flops": work.flops,
                "bytes": work.bytes,
                "share_of_roofline": share,
            });
            show.result(&text, &object)?;
        }
    }
    Ok(())
}

/// A model in training on a card, and the card's limits.
fn on_card(
    ordinal: usize,
    sizes: Sizes,
    micro_rows: usize,
    settings: Settings,
) -> Result<(Machine, Subject)> {
    let mut card: Box<dyn Device> = Box::new(Cuda::new(&cuda::options(ordinal, None))?);
    let limits = CardLimits::measure(&mut *card, settings.precision, settings.quick)?;
    let working = Some(settings.precision.stored()).filter(|dtype| *dtype != DType::F32);
    let passes = settings.precision.card_passes();
    Ok((Machine::of_card(&limits), Subject::new(card, sizes, micro_rows, passes, working)?))
}

/// A model in training on tokens without meaning.
struct Subject {
    trainer: Trainer,
    loader: Loader,
    planned_bytes: usize,
    host: Vec<f64>,
}

impl Subject {
    fn new(
        device: Box<dyn Device>,
        sizes: Sizes,
        micro_rows: usize,
        passes: Passes,
        working: Option<DType>,
    ) -> Result<Self> {
        let model = Model::new(sizes.config())?;
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
        let values = model.initial_values_by(threads, 1);
        let schedule = Schedule { peak: 1e-4, floor: 1e-4, warmup: 0, steps: 1000, decay: Decay::Constant };
        let options = TrainOptions {
            micro_rows,
            passes,
            working,
            ..TrainOptions::new(sizes.batch, sizes.context, schedule)
        };
        let planned_bytes = Trainer::plan(&model, &options)?.total_bytes();
        let trainer = Trainer::new(device, model, options, &values)?;
        let mut random = Random::new(7);
        let length = 50 * (sizes.tokens() + 1);
        let tokens = (0..length).map(|_| random.below(sizes.vocab)).collect();
        let stream = TokenStream::from_tokens(tokens, length as u64);
        let loader = Loader::new(stream, Sampler::Random, 1, sizes.context, sizes.batch)?;
        Ok(Subject { trainer, loader, planned_bytes, host: Vec::new() })
    }

    /// A step, with the next one given ahead to a device that can take it: as training does.
    fn step(&mut self) -> Result<Time> {
        let started = Clock::now();
        let report = self.trainer.step_ahead(&self.loader, true)?;
        let time = started.elapsed();
        let options = self.trainer.options();
        let micros = (options.rows / options.micro_rows) as f64;
        self.host.push((time.processor - report.waited.as_secs_f64()).max(0.0) / micros);
        Ok(time)
    }

    /// The times of steps behind a first one, which touches all memory.
    fn times(&mut self, seconds: f64, least: usize, most: usize) -> Result<Vec<Time>> {
        self.step()?;
        let mut times = Vec::new();
        let began = Clock::now();
        while times.len() < least || (times.len() < most && began.elapsed().wall < seconds) {
            times.push(self.step()?);
        }
        Ok(times)
    }

    /// A step in its parts: of a few, the one in the middle, so that its parts are those of one real step.
    fn profile(&mut self, most: usize, seconds: f64) -> Result<StepProfile> {
        // The step that is under way ends first.
        self.trainer.step_ahead(&self.loader, false)?;
        let began = Clock::now();
        let mut profiles = vec![self.trainer.profile_step(&self.loader)?];
        while profiles.len() < most && began.elapsed().wall < seconds {
            profiles.push(self.trainer.profile_step(&self.loader)?);
        }
        profiles.sort_by_key(|profile| profile.report.elapsed);
        Ok(profiles.swap_remove(profiles.len() / 2))
    }
}

impl Measured {
    fn tokens_per_s(&self, seconds: f64) -> f64 {
        self.plan.sizes.tokens() as f64 / seconds
    }

    fn flops_per_s(&self, seconds: f64) -> f64 {
        self.tokens_per_s(seconds) * self.flops_per_token
    }

    fn share(&self, seconds: f64) -> f64 {
        self.flops_per_s(seconds) / self.machine.flops_per_s
    }

    fn text(&self) -> String {
        let counted = self.counted;
        let mut text = format!(
            "model       {}; {}\n\
             machine     {}\n\
             step        {:.2} ms wall (best {:.2}), {:.2} ms processor time (best {:.2}); medians of {} steps\n\
             tokens      {} tok/s by {} time (best {})\n\
             arithmetic  {:.1} GFLOP/s, {:.1} % of peak (best {:.1} %); {:.2} MFLOP a token, 6 × parameters in products + 12·L·C·T\n\
             products    {} matrix products a step; {} parameters\n",
            self.plan.sizes.line(),
            self.settings.precision.name(),
            self.machine.line,
            1e3 * self.wall.median,
            1e3 * self.wall.best,
            1e3 * self.processor.median,
            1e3 * self.processor.best,
            self.steps,
            grouped(self.tokens_per_s(counted.median) as u64),
            counted_name(self.settings.threads),
            grouped(self.tokens_per_s(counted.best) as u64),
            self.flops_per_s(counted.median) / 1e9,
            100.0 * self.share(counted.median),
            100.0 * self.share(counted.best),
            self.flops_per_token / 1e6,
            self.products,
            grouped(self.parameters as u64),
        );
        let (planned, used) = self.memory;
        if used.is_some() {
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "host        {:.3} ms processor time a micro-batch, its data apart (best {:.3})",
                1e3 * self.host.median,
                1e3 * self.host.best
            );
        }
        let used = used.map_or(String::new(), |used| {
            format!(", {} in use ({:.2} of it)", bytes(used as u64), used as f64 / planned as f64)
        });
        let _ = writeln!(text, "memory      {} planned{used}", bytes(planned as u64));
        if let Some(batching) = &self.batching {
            text.push_str(&batching.line());
        }
        let total = self.profile.report.elapsed.as_secs_f64();
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "stages      of one step, by wall time; at the machine's limits, and what is left to win"
        );
        let mut line = |indent: &str, name: &str, seconds: f64, rest: &str| {
            let (ms, share) = (1e3 * seconds, 100.0 * seconds / total.max(1e-9));
            let line = format!(
                "{indent}{name:<width$} {ms:>10.3} ms {share:>6.1} %{rest}",
                width = 26 - indent.len()
            );
            let _ = writeln!(text, "{}", line.trim_end());
        };
        for (stage, time) in self.profile.stages() {
            let kernels = || self.profile.kernels.iter().filter(|kernel| kernel.stage == stage);
            line("  ", stage.name(), time.as_secs_f64(), &self.machine.left(kernels()).columns());
            for kernel in kernels().filter(|_| self.plan.kernels) {
                let left = self.machine.left(std::iter::once(kernel));
                let mut rest = format!("{}  × {:<4}", left.columns(), kernel.calls);
                if kernel.work.bytes > 0.0 {
                    rest += &format!("{:>4.0} % of roofline", 100.0 * self.machine.roofline(kernel));
                }
                line("    ", kernel.kernel, kernel.time.as_secs_f64(), &rest);
            }
        }
        line("  ", "step", total, &self.machine.left(self.profile.kernels.iter()).columns());
        text
    }

    fn to_json(&self) -> Value {
        let sizes = self.plan.sizes;
        let total = self.profile.report.elapsed.as_secs_f64();
        let stages: Vec<Value> = self
            .profile
            .stages()
            .iter()
            .map(|(stage, time)| {
                let seconds = time.as_secs_f64();
                let kernels = self.profile.kernels.iter().filter(|kernel| kernel.stage == *stage);
                let Left { limit, left } = self.machine.left(kernels);
                json!({
                    "stage": stage.name(),
                    "seconds": seconds,
                    "share": seconds / total.max(1e-9),
                    "limit_s": limit,
                    "left_s": left,
                })
            })
            .collect();
        let kernels: Vec<Value> = self
            .profile
            .kernels
            .iter()
            .map(|kernel| {
                json!({
                    "stage": kernel.stage.name(),
                    "kernel": kernel.kernel,
                    "calls": kernel.calls,
                    "seconds": kernel.time.as_secs_f64(),
                    "flops": kernel.work.flops,
                    "bytes": kernel.work.bytes,
                    "share_of_roofline": self.machine.roofline(kernel),
                })
            })
            .collect();
        json!({
            "kind": "step",
            "architecture": sizes.style.name(),
            "layers": sizes.layers,
            "heads": sizes.heads,
            "width": sizes.width,
            "context": sizes.context,
            "batch": sizes.batch,
            "vocab": sizes.vocab,
            "parameters": self.parameters,
            "precision": self.settings.precision.name(),
            "threads": self.settings.threads,
            "steps": self.steps,
            "wall_s": {"median": self.wall.median, "best": self.wall.best},
            "cpu_s": {"median": self.processor.median, "best": self.processor.best},
            "host_s": {"median": self.host.median, "best": self.host.best},
            "clock": counted_name(self.settings.threads),
            "tokens_per_s": self.tokens_per_s(self.counted.median),
            "flops_per_token": self.flops_per_token,
            "flops_per_s": self.flops_per_s(self.counted.median),
            "share_of_peak": self.share(self.counted.median),
            "best_share_of_peak": self.share(self.counted.best),
            "products_per_step": self.products,
            "micro_batch": self.plan.micro_rows,
            "planned_bytes": self.memory.0,
            "used_bytes": self.memory.1,
            "profiled_s": total,
            "stages": stages,
            "kernels": kernels,
            "batching": self.batching.as_ref().map(Batching::to_json),
            "peak": self.machine.json,
        })
    }
}
