//! The training of a run: step by step, measured, saved and shown, resumed from where it stopped.

use super::corpus::Corpus;
use super::machine::check_fits;
use super::metrics::Metrics;
use super::model;
use super::plan::{self, Plan, Samples};
use super::run_folder::RunFolder;
use super::sampling::{Completion, complete};
use crate::cli::Context;
use crate::config::{Cadence, Config, MASK};
use crate::failure::{Code, Failure, Result};
use crate::show::StepLine;
use crate::show::numbers::{bytes, grouped};
use ironmill_data::{Loader, Split};
use ironmill_model::{Evaluation, Model, StepReport, Trainer, checkpoint};
use ironmill_text::{Kind, Tokenizer, durable};
use serde_json::json;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

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
    let mut session = Session::start(run, config, corpus, init_from, context)?;
    let mut evaluation = None;
    context.show.start_training(session.steps, session.trainer.step_count());
    let outcome = loop {
        let step = session.trainer.step_count();
        if step >= session.steps {
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
        describe(&plan, config, &loader, steps, context);
        check_fits(&config.train.device, plan.total_bytes() as u64)?;
        let mut config = config.clone();
        config.train.recompute = plan.recompute_name().into();
        run.store(&config)?;
        let values = initial_values(&plan.model, &config, init_from)?;
        let device = model::device(&config.train.device, context.threads, Some(run.kernel_choices()))?;
        let mut trainer = Trainer::new(device, plan.model, plan.options, &values)?;
        context.show.detail(&format!("device: {}", trainer.engine().describe_device()));

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
        let metrics = Metrics::open(&run.metrics(), step)?;
        Ok(Session {
            run,
            corpus,
            context,
            loader,
            steps,
            metrics,
            saved_step: newest.map(|_| step),
            evaluate: Due::new(config.train.eval_every),
            sample: Due::new(config.train.sample_every),
            save: Due::new(config.train.checkpoint_every),
            pace: Pace::default(),
            trainer,
            config,
        })
    }

    /// One step, and what is due after it. Where nothing is, the device may go on with the next step meanwhile.
    fn step(&mut self, is_stopping: bool) -> Result<Option<Evaluation>> {
        let step = self.trainer.step_count() + 1;
        let pauses = is_stopping
            || step >= self.steps
            || [&self.evaluate, &self.save, &self.sample].iter().any(|due| due.will_be(step));
        let report = self.trainer.step_ahead(&self.loader, !pauses)?;
        if report.skipped {
            self.context.show.detail(&format!(
                "step {}: gradients overflowed fp16, nothing was changed and the loss scale is halved",
                report.step
            ));
        }
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

    fn measure(&mut self) -> Result<Option<Evaluation>> {
        let validation = self.corpus.dataset.split(Split::Validation);
        if validation.is_empty() {
            return Ok(None);
        }
        let (tokens, rows) = (self.config.train.eval_tokens, self.config.train.micro_batch as usize);
        let objective = self.trainer.options().objective;
        Ok(Some(self.trainer.engine().evaluate(validation, objective, tokens, rows)?))
    }

    fn tell(&mut self, report: &StepReport, measured: Option<Evaluation>) -> Result<()> {
        let tokens_per_s = self.pace.tokens_per_s(report);
        let mut object = json!({
            "step": report.step,
            "loss": report.loss,
            "learning_rate": report.learning_rate,
            "norm": report.norm,
            "tokens": self.trainer.token_count(),
            "epoch": self.loader.epoch(self.trainer.next_sample()),
            "seconds": report.elapsed.as_secs_f64(),
            "wait_seconds": report.waited.as_secs_f64(),
        });
        if report.skipped {
            object["skipped"] = true.into();
        }
        if let Some(evaluation) = measured {
            object["validation_loss"] = evaluation.loss.into();
            object["bits_per_byte"] = evaluation.bits_per_byte.into();
        }
        self.metrics.append(&object)?;
        let steps_left = self.steps.saturating_sub(report.step);
        let seconds_left = (steps_left * report.tokens) as f64 / tokens_per_s.max(1e-9);
        self.context.show.step(&StepLine {
            step: report.step,
            steps: self.steps,
            loss: report.loss,
            validation: measured.map(|evaluation| evaluation.loss),
            learning_rate: report.learning_rate,
            norm: report.norm,
            tokens_per_s,
            mfu: None,
            wait: Some(self.pace.wait()),
            left: Duration::try_from_secs_f64(seconds_left).unwrap_or(Duration::MAX),
        });
        Ok(())
    }

    /// Writes a checkpoint, unless this step has one, and lets old ones go.
    fn save(&mut self) -> Result<()> {
        let step = self.trainer.step_count();
        if self.saved_step == Some(step) {
            return Ok(());
        }
        let snapshot = self.trainer.snapshot()?;
        let extra = travelling_files(&self.corpus.tokenizer, &self.config)?;
        let folder = self.run.checkpoints();
        let path = checkpoint::save(&folder, self.trainer.engine().model(), &snapshot, &extra)?;
        checkpoint::rotate(&folder, self.config.train.keep_last as usize)?;
        self.saved_step = Some(step);
        self.context.show.detail(&format!("saved {}", path.display()));
        Ok(())
    }

    fn write_samples(&mut self) -> Result<Vec<Completion>> {
        // An encoder has no prompts, because it continues no text.
        if self.config.sample.prompts.is_empty() {
            return Ok(Vec::new());
        }
        let step = self.trainer.step_count();
        let settings = &self.config.sample;
        let quiet = &mut |_: usize, _: &str| ControlFlow::Continue(());
        let engine = self.trainer.engine();
        let completions = complete(engine, &self.corpus.tokenizer, &settings.prompts, settings, quiet)?;
        let folder = self.run.samples();
        let path = folder.join(format!("step-{step:08}.txt"));
        let texts: Vec<String> =
            completions.iter().map(|made| format!("{}{}\n", made.prompt, made.text)).collect();
        std::fs::create_dir_all(&folder)
            .and_then(|()| durable::write(&path, texts.join("\n").as_bytes()))
            .map_err(|error| Failure::write(&path, &error))?;
        Ok(completions)
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
        Ok(Outcome { steps: self.trainer.step_count(), epochs, evaluation, completions })
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

fn describe(plan: &Plan, config: &Config, loader: &Loader, steps: u64, context: &Context) {
    let show = &context.show;
    let rows = loader.rows() as u64;
    let is_bucketed = loader.lengths().len() > 1;
    show.note(&format!(
        "model: {} parameters; {} steps of {}{} tokens, {} steps an epoch; {} of memory",
        grouped(plan.memory.parameters as u64),
        grouped(steps),
        if is_bucketed { "at most " } else { "" },
        grouped(config.train.batch_tokens),
        grouped(loader.samples_per_epoch().div_ceil(rows)),
        bytes(plan.total_bytes() as u64)
    ));
    show.detail(&format!("sizes: {}", plan.model.config()));
    if let Some(reason) = &plan.recompute.reason {
        show.note(&format!("recompute: {} ({reason})", plan.recompute_name()));
    }
    if config.data.sampler == "bucketed" {
        let lengths: Vec<String> = loader.lengths().iter().map(ToString::to_string).collect();
        show.note(&format!(
            "bucketed: documents in rows of {} tokens; {:.1} % of the rows is padding, {:.1} % of the tokens lie beyond \
             the context and are left out",
            lengths.join(", "),
            loader.padding_share() * 100.0,
            loader.truncated_share() * 100.0
        ));
    }
}

/// The files that make a checkpoint complete for other programs and for a later self.
fn travelling_files(tokenizer: &Tokenizer, config: &Config) -> Result<Vec<(String, Vec<u8>)>> {
    let mut files = vec![
        ("tokenizer.json".to_string(), tokenizer.to_json().into_bytes()),
        ("config.toml".to_string(), config.to_toml()?.into_bytes()),
    ];
    if tokenizer.kind() == Kind::Bpe {
        let mut about = json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": config.model.context,
            "clean_up_tokenization_spaces": false,
        });
        let mut special = json!({});
        if tokenizer.end_of_text().is_some() {
            for name in ["bos_token", "eos_token"] {
                about[name] = "<|endoftext|>".into();
                special[name] = "<|endoftext|>".into();
            }
        }
        if let Some((name, _)) = tokenizer.special_tokens().iter().find(|(name, _)| name == MASK) {
            about["mask_token"] = name.as_str().into();
            special["mask_token"] = name.as_str().into();
        }
        files.push(("tokenizer_config.json".into(), format!("{about:#}\n").into_bytes()));
        files.push(("special_tokens_map.json".into(), format!("{special:#}\n").into_bytes()));
    }
    Ok(files)
}

/// When something is due again.
struct Due {
    cadence: Cadence,
    last: Instant,
}

impl Due {
    fn new(cadence: Cadence) -> Due {
        Due { cadence, last: Instant::now() }
    }

    /// Whether it will be due after a step that is yet to be taken.
    fn will_be(&self, step: u64) -> bool {
        match self.cadence {
            Cadence::Steps(every) => every > 0 && step.is_multiple_of(every),
            Cadence::Time(every) => self.last.elapsed() >= every,
        }
    }

    fn now(&mut self, step: u64) -> bool {
        match self.cadence {
            Cadence::Steps(every) => every > 0 && step.is_multiple_of(every),
            Cadence::Time(every) => {
                let is_due = self.last.elapsed() >= every;
                if is_due {
                    self.last = Instant::now();
                }
                is_due
            }
        }
    }
}

/// Running means of what steps take, so that one slow step does not shake the line.
#[derive(Default)]
struct Pace {
    seconds: f64,
    waited: f64,
    is_started: bool,
}

impl Pace {
    fn tokens_per_s(&mut self, report: &StepReport) -> f64 {
        let keep = if self.is_started { 0.9 } else { 0.0 };
        self.is_started = true;
        self.seconds = keep * self.seconds + (1.0 - keep) * report.elapsed.as_secs_f64();
        self.waited = keep * self.waited + (1.0 - keep) * report.waited.as_secs_f64();
        report.tokens as f64 / self.seconds.max(1e-9)
    }

    fn wait(&self) -> f64 {
        self.waited / self.seconds.max(1e-9)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_due_at_multiples_and_zero_is_never() {
        let due =
            |every| (1..=6).filter(|&step| Due::new(Cadence::Steps(every)).now(step)).collect::<Vec<u64>>();
        assert_eq!(due(2), [2, 4, 6]);
        assert!(due(0).is_empty());
        assert!(!Due::new(Cadence::Time(Duration::from_secs(3600))).now(1));
    }
}
