//! The training of a run: step by step, measured, saved and shown, resumed from where it stopped.
//!
//! This file has the loop; its rooms have what the loop does beside steps: [`saving`], [`measuring`], [`telling`],
//! [`watching`] the machine, [`fitting`] into memory, [`refusing`] steps, and in [`cadence`] when each of them is due.

mod cadence;
mod fitting;
mod measuring;
mod refusing;
mod saving;
mod stopping;
mod telling;
mod watching;

use super::corpus::Corpus;
use super::events::Events;
use super::metrics::{Account, Beside, Metrics};
use super::model;
use super::peak::Peak;
use super::plan::{self, Plan, Samples};
use super::run_folder::RunFolder;
use super::sampling::Completion;
use crate::cli::Context;
use crate::config::{Cadence, Config};
use crate::failure::{Code, Failure, Result};
use crate::faults::Faults;
use crate::report::{self, Record};
use crate::show::numbers::grouped;
use cadence::Due;
use ironmill_data::Loader;
use ironmill_model::checkpoint::{self, Saver};
use ironmill_model::{Evaluation, Model, ModelConfig as Sizes, Stored, Trainer};
use refusing::Health;
use saving::keep;
use std::path::Path;
use std::sync::Arc;
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
    stop: &Arc<AtomicBool>,
) -> Result<Outcome> {
    let began = Instant::now();
    let mut session = Session::start(run, config, corpus, init_from, context, stop)?;
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
            break Err(stopped(run, step));
        }
        match session.step(is_stopping) {
            Ok(measured) => evaluation = measured.or(evaluation),
            Err(failure) if failure.code() == Code::OutOfMemory && session.can_shrink() => {
                session = session.with_fewer_rows(&failure)?;
            }
            Err(failure) => break Err(failure),
        }
    };
    context.show.finish_training();
    match outcome {
        Ok(()) => session.finish(evaluation),
        Err(failure) => Err(session.leave(failure)),
    }
}

/// A training on its way.
struct Session<'a> {
    run: &'a RunFolder,
    /// The configuration, with what was left to the machine decided.
    config: Config,
    corpus: &'a Corpus,
    context: &'a Context,
    stop: &'a Arc<AtomicBool>,
    faults: Faults,
    trainer: Trainer,
    loader: Loader,
    steps: u64,
    metrics: Metrics,
    events: Events,
    watch: Watch,
    early: EarlyStop,
    saver: Saver,
    /// The files that make a checkpoint complete.
    files: Arc<Vec<(String, Vec<u8>)>>,
    /// The step of the newest checkpoint, so that none is written twice.
    saved_step: Option<u64>,
    /// The last measurement of the validation loss, and after which step it was made.
    measured: Option<(u64, f64)>,
    health: Health,
    evaluate: Due,
    sample: Due,
    save: Due,
    /// Checkpoints that are kept for good.
    keep: Due,
    pace: Pace,
}

impl<'a> Session<'a> {
    fn start(
        run: &'a RunFolder,
        config: &'a Config,
        corpus: &'a Corpus,
        init_from: Option<&Path>,
        context: &'a Context,
        stop: &'a Arc<AtomicBool>,
    ) -> Result<Session<'a>> {
        let loader = plan::loader(config, corpus)?;
        let steps = model::steps(config, loader.samples_per_epoch());
        let objective = model::objective(config, &corpus.tokenizer)?;
        let vocab_size = corpus.tokenizer.vocab_size() as u64;
        let mut plan = Plan::new(config, vocab_size, objective, Samples::of(&loader), steps)?;
        telling::describe(&plan, config, &loader, steps, context);
        plan.check_fits(config)?;
        let mut config = config.clone();
        config.train.recompute = plan.recompute_name().into();
        config.train.micro_batch = Some(plan.options.micro_rows as u64);
        run.store(&config)?;
        let values = initial_values(&plan.model, &config, init_from)?;
        let check_stop = || if stop.load(Ordering::Relaxed) { Err(stopped_early(run)) } else { Ok(()) };
        check_stop()?;
        let faults = Faults::from_environment()?;
        plan.options.faults = faults.in_data();
        let saver = Saver::new(faults.disk(), run.checkpoints(), plan.model.clone(), keep(&config));
        let mut watch = Watch::new(&plan, &config.train.device);
        let mut trainer = fitting::open(run, &mut config, plan.model, plan.options, &values, context)?;
        trainer.stop_when(Arc::clone(stop));
        check_stop()?;
        let described = trainer.engine().describe_device();
        context.show.detail(&format!("device: {described}"));
        let precision = &config.train.precision;
        watch
            .find_peak(Peak::of(&config.train.device, &described, precision, context.threads), &context.show);

        let skipped = &mut |error: &ironmill_model::Error| {
            context.show.warn(&format!("a checkpoint is passed over: {error}"))
        };
        let newest = checkpoint::newest(&run.checkpoints(), skipped)?;
        let mut health = Health::default();
        if let Some(path) = &newest {
            health = Health::of(&checkpoint::run_state(path)?);
            let snapshot = checkpoint::load(path, trainer.engine().model())?;
            trainer.restore(&snapshot)?;
            context.show.note(&format!("resumed from {}", path.display()));
        }
        check_stop()?;
        let step = trainer.step_count();
        let mut early = EarlyStop::new(&config.train);
        let metrics = Metrics::open(&run.metrics(), step, &mut |line| early.recall(line))?;
        let events = Events::open(run.path(), step, telling::now())?;
        let mut session = Session {
            run,
            corpus,
            context,
            stop,
            faults,
            loader,
            steps,
            metrics,
            events,
            watch,
            early,
            saver,
            files: Arc::new(saving::travelling_files(&corpus.tokenizer, &config)?),
            saved_step: newest.map(|_| step),
            measured: None,
            health,
            evaluate: Due::new(config.train.eval_every),
            sample: Due::new(config.train.sample_every),
            save: Due::new(config.train.checkpoint_every),
            keep: Due::new(Cadence::Steps(config.train.keep_every)),
            pace: Pace::default(),
            trainer,
            config,
        };
        session.write_about()?;
        session.secure_a_way_back()?;
        Ok(session)
    }

    /// One step, and what is due after it. Where nothing is, the device may go on with the next step meanwhile.
    fn step(&mut self, is_stopping: bool) -> Result<Option<Evaluation>> {
        let step = self.trainer.step_count() + 1;
        let pauses = is_stopping
            || step >= self.steps
            || [&self.evaluate, &self.save, &self.keep, &self.sample].iter().any(|due| due.will_be(step));
        self.tell_saved()?;
        if !self.trainer.is_ahead() {
            self.faults.before_step(step, self.trainer.options().micro_rows)?;
        }
        let taken = match self.watch.is_due_for_a_profile(&self.trainer) {
            true => self.take_apart(),
            false => self.trainer.step_ahead(&self.loader, !pauses),
        };
        let report = match taken {
            Err(refusal @ ironmill_model::Error::Refused { .. }) => {
                self.go_back(refusal)?;
                return Ok(None);
            }
            report => report?,
        };
        self.tell_refusal(&report);
        self.bear_refusal(&report)?;
        if self.trainer.is_ahead() {
            self.tell(&report, None)?;
            return Ok(None);
        }
        let is_last = report.step >= self.steps;
        let saves = self.save.now(report.step) | self.keep.now(report.step);
        // Which checkpoints are best is known only of those that are measured.
        let compares = saves && self.config.train.keep_best > 0;
        let measured =
            if self.evaluate.now(report.step) || is_last || compares { self.measure()? } else { None };
        self.tell(&report, measured)?;
        if saves {
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
        self.save_now()?;
        let (run, steps) = (self.run, self.trainer.step_count());
        self.show_results(evaluation).map_err(|failure| match failure.code() {
            Code::Stopped => stopped(run, steps),
            _ => failure,
        })
    }

    fn show_results(mut self, evaluation: Option<Evaluation>) -> Result<Outcome> {
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

    /// Whatever ends a training early, what was learnt so far is saved if that can still be done.
    fn leave(mut self, failure: Failure) -> Failure {
        // The device may be past what is counted; then there is nothing between two steps to save.
        let saved = if self.trainer.is_ahead() { Ok(()) } else { self.save_now() };
        match (failure.code(), saved) {
            (Code::Stopped, Ok(())) => stopped(self.run, self.trainer.step_count()),
            (Code::Stopped, Err(problem)) => problem,
            _ => failure,
        }
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

fn stopped_early(run: &RunFolder) -> Failure {
    let message = format!(
        "stopped before training began; what is prepared is in {}: run the same command again to go on",
        run.path().display()
    );
    Failure::new(Code::Stopped, message)
}

/// The parameters to begin with: of another model of the same shape, which may know more tokens and positions, or drawn by the
/// seed.
fn initial_values(model: &Model, config: &Config, init_from: Option<&Path>) -> Result<Vec<f32>> {
    let Some(path) = init_from else { return Ok(model.initial_values(config.seed)) };
    let stored = Stored::open(path)?;
    let (theirs, ours) = (stored.model().config().clone(), model.config());
    let fitted = Sizes {
        dropout: ours.dropout,
        context: theirs.context.min(ours.context),
        vocab_size: theirs.vocab_size.min(ours.vocab_size),
        has_head: ours.has_head,
        ..theirs.clone()
    };
    if fitted != *ours {
        let message = format!(
            "{} has {theirs}, but the configuration has {ours}: give [model] the same values and use the model's tokenizer",
            path.display(),
        );
        return Err(Failure::new(Code::BadData, message));
    }
    // A head that the other model does not have starts as in a new one.
    let mut values = match theirs.has_head {
        true => vec![0.0; model.layout().len()],
        false => model.initial_values(config.seed),
    };
    stored.cut_to(ours.vocab_size, ours.context)?.for_each(&mut |theirs, read| {
        let ours = model.layout().parameters().iter().find(|ours| ours.name == theirs.name);
        if let Some(ours) = ours {
            values[ours.range()].copy_from_slice(read);
        }
        Ok(())
    })?;
    Ok(values)
}
