//! Batches from a data set: how fast they come, and how long a step waits for one.

use super::limits::Limits;
use super::{Spread, cpu};
use crate::failure::{Code, Failure, Result};
use crate::show::Show;
use crate::show::numbers::{bytes, grouped};
use crate::signals;
use ironmill_data::{
    Batch, Dataset, InputOptions, Inputs, Loader, PrepareOptions, Sampler, Silent, Split, TokenStream,
};
use ironmill_text::Tokenizer;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What to measure.
pub struct Plan {
    /// A prepared folder, or none for the built-in stories.
    pub dir: Option<PathBuf>,
    /// One sampler, or none for all.
    pub sampler: Option<String>,
    /// Tokens of a sample.
    pub context: usize,
    /// Samples of a step.
    pub batch: usize,
    /// Threads that fill ahead; 0 for none.
    pub workers: usize,
    /// How long a step takes that waits for batches.
    pub step: Duration,
    /// Threads of the machine to compare with.
    pub threads: usize,
    /// Whether to take only a glance.
    pub quick: bool,
}

/// How much the built-in data set has.
const STORIES: &str = "builtin:stories:20MB";

/// Measures the samplers.
pub fn run(show: &Show, plan: &Plan) -> Result<()> {
    let limits = Limits::measure(&cpu("cpu", plan.threads)?, plan.quick)?;
    let mut object = limits.to_json();
    object["kind"] = "limits".into();
    show.result(&limits.line(), &object)?;
    let scratch = Scratch::new();
    let dir = match &plan.dir {
        Some(dir) => dir.clone(),
        None => prepare_stories(&scratch, plan.threads)?,
    };
    let dataset = Dataset::open(&dir)?;
    let stream = dataset.split(Split::Train);
    let width = if dataset.manifest().vocab_size <= 1 << 16 { 2 } else { 4 };
    let what = format!(
        "{} tokens of {width} bytes ({}), {} documents; steps of {} × {} tokens, {} workers",
        grouped(stream.tokens()),
        bytes(stream.tokens() * width),
        grouped(stream.documents()),
        plan.batch,
        grouped(plan.context as u64),
        plan.workers
    );
    let object = json!({
        "kind": "data", "tokens": stream.tokens(), "token_bytes": width, "documents": stream.documents(),
        "batch": plan.batch, "context": plan.context, "workers": plan.workers,
    });
    show.result(&what, &object)?;
    touch(stream)?;
    for sampler in Sampler::ALL {
        if plan.sampler.as_deref().is_none_or(|name| name == sampler.name()) {
            let measured = Measured::of(stream, sampler, plan)?;
            measured.show(show, sampler, plan, width, limits.peak.copy_bytes_per_s)?;
        }
    }
    Ok(())
}

/// What one sampler does.
struct Measured {
    /// A batch when nobody does anything but look at it.
    batch: Spread,
    /// The tokens of a batch.
    tokens: f64,
    /// The bytes that a batch has to write for a token: id and target, and position and border where they differ from batch to
    /// batch.
    written_bytes: u64,
    /// What a step waits that takes time itself.
    wait: Spread,
}

impl Measured {
    fn of(stream: &TokenStream, sampler: Sampler, plan: &Plan) -> Result<Measured> {
        let loader = Loader::new(stream.clone(), sampler, 1, plan.context, plan.batch)?;
        let loader = loader.with_workers(plan.workers)?;
        let mut batch = loader.batch();
        let fill = |step: u64, batch: &mut Batch| loader.fill(step * loader.rows() as u64, batch);
        let (rounds, per_round) =
            if plan.quick { (3, 4) } else { (15, (1 << 24) / (plan.batch * plan.context)) };
        let (mut step, mut seconds, mut tokens) = (0, Vec::new(), 0);
        for _ in 0..rounds {
            let began = Instant::now();
            for _ in 0..per_round.max(4) {
                fill(step, &mut batch)?;
                look_at(&batch);
                tokens += batch.ids.len();
                step += 1;
            }
            seconds.push(began.elapsed().as_secs_f64() / per_round.max(4) as f64);
        }
        let mut waits = Vec::new();
        for _ in 0..if plan.quick { 5 } else { 100 } {
            std::thread::sleep(plan.step);
            let began = Instant::now();
            fill(step, &mut batch)?;
            step += 1;
            waits.push(began.elapsed().as_secs_f64());
        }
        let batches = (rounds * per_round.max(4)) as f64;
        Ok(Measured {
            batch: Spread::of(seconds),
            tokens: tokens as f64 / batches,
            written_bytes: if loader.has_borders() { 16 } else { 8 },
            wait: Spread::of(waits),
        })
    }

    fn show(&self, show: &Show, sampler: Sampler, plan: &Plan, width: u64, copy_rate: f64) -> Result<()> {
        let rate = self.tokens * width as f64 / self.batch.median;
        // Every stored token has to be read and every number of the batch written once, at the rate at which memory is copied.
        let limit = copy_rate * width as f64 / (width + self.written_bytes) as f64;
        let (step, wait) = (plan.step.as_secs_f64(), self.wait.median);
        let line = format!(
            "{:10} {:9.1} µs a batch (best {:.1}) {:7.2} GB/s of stored tokens, {:.1} % of the {:.2} that memory allows; a step of {:.0} ms waits {:.0} µs ({:.2} %)",
            sampler.name(),
            self.batch.median * 1e6,
            self.batch.best * 1e6,
            rate / 1e9,
            100.0 * rate / limit,
            limit / 1e9,
            step * 1e3,
            wait * 1e6,
            100.0 * wait / (wait + step)
        );
        let object = json!({
            "kind": "sampler", "sampler": sampler.name(), "batch_s": self.batch.median, "best_batch_s": self.batch.best,
            "stored_bytes_per_s": rate, "tokens_per_s": self.tokens / self.batch.median, "share": rate / limit,
            "step_s": step, "wait_s": wait, "wait_share": wait / (wait + step),
        });
        show.result(&line, &object)
    }
}

/// Reads what a step would be given: a batch that lies in another core's cache has not come yet.
fn look_at(batch: &Batch) {
    let sum = |numbers: &[u32]| numbers.iter().fold(0u32, |sum, &number| sum.wrapping_add(number));
    std::hint::black_box(sum(&batch.ids).wrapping_add(sum(&batch.targets)));
}

/// Reads everything once: blocks are checked when they are first touched, which is not what is measured.
fn touch(stream: &TokenStream) -> Result<()> {
    let mut buffer = vec![0; 1 << 20];
    let mut position = 0;
    while position < stream.tokens() {
        let count = (stream.tokens() - position).min(buffer.len() as u64);
        stream.read(position, &mut buffer[..count as usize])?;
        position += count;
    }
    Ok(())
}

/// A folder that goes when it is not needed any more.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        Scratch(std::env::temp_dir().join(format!("ironmill-bench-loader-{}", std::process::id())))
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // It may never have been made.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The built-in stories byte by byte, which takes no tokenizer and makes many tokens.
fn prepare_stories(scratch: &Scratch, threads: usize) -> Result<PathBuf> {
    let inputs = Inputs::from_specs(&[STORIES.into()], &InputOptions::default())?;
    let tokenizer = Tokenizer::byte(&["<|endoftext|>".to_string()])?;
    let options = PrepareOptions { threads, ..PrepareOptions::default() };
    let stop = signals::stop_flag()?;
    ironmill_data::prepare(&inputs, &tokenizer, scratch.path(), &options, &Silent, &stop)?;
    Ok(scratch.path().to_path_buf())
}

/// The name of a sampler, if there is one.
pub fn check_sampler(name: &str) -> Result<()> {
    Sampler::from_name(name).map(|_| ()).map_err(|error| Failure::new(Code::Usage, error.to_string()))
}
