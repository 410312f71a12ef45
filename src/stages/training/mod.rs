//! The training of a run: step by step, measured, saved and shown, resumed from where it stopped.
//!
//! This file has the loop; its rooms have what the loop does beside steps: [`saving`], [`measuring`], [`telling`],
//! [`watching`] the machine, and in [`cadence`] when each of them is due.

mod cadence;
mod measuring;
mod saving;
mod stopping;
mod telling;
mod watching;

use super::corpus::Corpus;
use super::events::Events;
use super::machine::check_fits;
use super::metrics::{Account, Beside, Metrics};
use super::model;
use super::peak::Peak;
use super::plan::{self, Plan, Samples};
use super::run_folder::RunFolder;
use super::sampling::Completion;
use crate::cli::Context;
use crate::config::Config;
use crate::failure::{Code, Failure, Result};
use crate::report::{self, Record};
use crate::show::numbers::grouped;
use cadence::Due;
use ironmill_data::Loader;
use ironmill_model::{Evaluation, Model, Trainer, checkpoint};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use stopping::EarlyStop;
use telling::Pace;
use watching::Watch;

/// What a finished training has to show.
pub struct Outcome {
    /// Steps taken in all.
    pub steps: u64,
    /// How many times they went over the training tokens.
    pub epochs: f64,
    /// The last measurement, if there is something to measure on.
    pub evaluation: Option<Evaluation>,
    /// What the finished model writes.
    pub completions: Vec<Completion>,
    /// Where the time of the training went.
    pub account: Account,
}

/// Trains until the configured end, from the newest checkpoint if there is one.
pub fn train(
    run: &RunFolder,
    config: &Config,
    corpus: &Corpus,
    init_from: Option<&Path>,
    context: &Context,
    stop: &AtomicBool,
) -> Result<Outcome> {
    let began = Instant::now();
    let mut session = Session::start(run, config, corpus, init_from, context)?;
    session.metrics.spend(Beside::Startup, began.elapsed());
    let mut evaluation = None;
    context.show.start_training(session.steps, session.trainer.step_count());
    let outcome = loop {
        let step = session.trainer.step_count();
        if step >= session.steps {
            break Ok(());
        }
        if let Some(reason) = session.early.reason().filter(|_| !session.trainer.is_ahead()) {
            context.show.note(&reason);
            break Ok(());
        }
        let is_stopping = stop.load(Ordering::Relaxed);
        // A step that the device is already working on ends first.
        if is_stopping && !session.trainer.is_ahead() {
            break session.save().and_then(|()| Err(stopped(run, step)));
        }
        match session.step(is_stopping) {
            Ok(measured) => evaluation = measured.or(evaluation),
            Err(failure) => break Err(failure),
        }
    };
    context.show.finish_training();
    outcome?;
    session.finish(evaluation)
}

/// A training on its way.
struct Session<'a> {
    run: &'a RunFolder,
    /// The configuration, with what was left to the machine decided.
    config: Config,
    corpus: &'a Corpus,
    context: &'a Context,
    trainer: Trainer,
    loader: Loader,
    steps: u64,
    metrics: Metrics,
    events: Events,
    watch: Watch,
    early: EarlyStop,
    /// The step of the newest checkpoint, so that none is written twice.
    saved_step: Option<u64>,
    evaluate: Due,
    sample: Due,
    save: Due,
    pace: Pace,
}

impl<'a> Session<'a> {
    fn start(
        run: &'a RunFolder,
        config: &'a Config,
        corpus: &'a Corpus,
        init_from: Option<&Path>,
        context: &'a Context,
    ) -> Result<Session<'a>> {
        let loader = plan::loader(config, corpus)?;
        let steps = model::steps(config, loader.samples_per_epoch());
        let objective = model::objective(config, &corpus.tokenizer)?;
        let vocab_size = corpus.tokenizer.vocab_size() as u64;
        let plan = Plan::new(config, vocab_size, objective, Samples::of(&loader), steps)?;
        telling::describe(&plan, config, &loader, steps, context);
        check_fits(&config.train.device, plan.total_bytes() as u64)?;
        let mut config = config.clone();
        config.train.recompute = plan.recompute_name().into();
        run.store(&config)?;
        let values = initial_values(&plan.model, &config, init_from)?;
        let mut watch = Watch::new(&plan, &config.train.device);
        let device = model::device(&config.train.device, context.threads, Some(run.kernel_choices()))?;
        let mut trainer = Trainer::new(device, plan.model, plan.options, &values)?;
        let described = trainer.engine().describe_device();
        context.show.detail(&format!("device: {described}"));
        let precision = &config.train.precision;
        watch
            .find_peak(Peak::of(&config.train.device, &described, precision, context.threads), &context.show);

        let skipped = &mut |error: &ironmill_model::Error| {
            context.show.warn(&format!("a checkpoint is passed over: {error}"))
        };
        let newest = checkpoint::newest(&run.checkpoints(), skipped)?;
        if let Some(path) = &newest {
            let snapshot = checkpoint::load(path, trainer.engine().model())?;
            trainer.restore(&snapshot)?;
            context.show.note(&format!("resumed from {}", path.display()));
        }
        let step = trainer.step_count();
        let mut early = EarlyStop::new(&config.train);
        let metrics = Metrics::open(&run.metrics(), step, &mut |line| early.recall(line))?;
        let events = Events::open(run.path(), step, telling::now())?;
        let mut session = Session {
            run,
            corpus,
            context,
            loader,
            steps,
            metrics,
            events,
            watch,
            early,
            saved_step: newest.map(|_| step),
            evaluate: Due::new(config.train.eval_every),
            sample: Due::new(config.train.sample_every),
            save: Due::new(config.train.checkpoint_every),
            pace: Pace::default(),
            trainer,
            config,
        };
        session.write_about()?;
        Ok(session)
    }

    /// One step, and what is due after it. Where nothing is, the device may go on with the next step meanwhile.
    fn step(&mut self, is_stopping: bool) -> Result<Option<Evaluation>> {
        let step = self.trainer.step_count() + 1;
        let pauses = is_stopping
            || step >= self.steps
            || [&self.evaluate, &self.save, &self.sample].iter().any(|due| due.will_be(step));
        let report = match self.watch.is_due_for_a_profile(&self.trainer) {
            true => self.take_apart()?,
            false => self.trainer.step_ahead(&self.loader, !pauses)?,
        };
        self.tell_refusal(&report);
        if self.trainer.is_ahead() {
            self.tell(&report, None)?;
            return Ok(None);
        }
        let is_last = report.step >= self.steps;
        let measured = if self.evaluate.now(report.step) || is_last { self.measure()? } else { None };
        self.tell(&report, measured)?;
        if self.save.now(report.step) {
            self.save()?;
        }
        // The last sample is the result of the run; here are those on the way.
        if self.sample.now(report.step) && !is_last {
            for completion in self.write_samples()? {
                self.context.show.sample(report.step, &completion.prompt, &completion.text);
            }
        }
        Ok(measured)
    }

    /// Saves before anything else can fail, then measures if the last step did not, then writes.
    fn finish(mut self, evaluation: Option<Evaluation>) -> Result<Outcome> {
        self.save()?;
        let evaluation = match evaluation {
            Some(evaluation) => Some(evaluation),
            None => self.measure()?,
        };
        let completions = self.write_samples()?;
        let epochs = self.loader.epoch(self.trainer.next_sample());
        let account = self.metrics.account();
        let record = Record::read(self.run.path())?;
        report::write(&self.run.report(), &record.name, std::slice::from_ref(&record), &[])?;
        Ok(Outcome { steps: self.trainer.step_count(), epochs, evaluation, completions, account })
    }
}

fn stopped(run: &RunFolder, step: u64) -> Failure {
    let message = format!(
        "stopped after step {} and saved in {}: run the same command again to go on",
        grouped(step),
        run.path().display()
    );
    Failure::new(Code::Stopped, message)
}

/// The parameters to begin with: of another model of the same shape, or drawn by the seed.
fn initial_values(model: &Model, config: &Config, init_from: Option<&Path>) -> Result<Vec<f32>> {
    let Some(path) = init_from else { return Ok(model.initial_values(config.seed)) };
    let (other, values) = checkpoint::load_model(path)?;
    let (mut theirs, ours) = (other.config().clone(), model.config());
    theirs.dropout = ours.dropout;
    if theirs != *ours {
        let message = format!(
            "{} has {theirs}, but the configuration has {ours}: give [model] the same values and use the model's tokenizer",
            path.display(),
        );
        return Err(Failure::new(Code::BadData, message));
    }
    Ok(values)
}
