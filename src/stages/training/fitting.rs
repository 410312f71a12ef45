//! Memory that does not suffice after all: the same step, in smaller pieces.

use super::{Session, saving};
use crate::cli::Context;
use crate::config::Config;
use crate::failure::{Failure, Result};
use crate::stages::model;
use crate::stages::plan::smaller_rows;
use crate::stages::run_folder::RunFolder;
use ironmill_model::{Model, TrainOptions, Trainer};
use std::sync::Arc;

/// Makes a trainer on the device of a configuration. Where its memory does not suffice, with fewer rows at a time.
pub(super) fn open(
    run: &RunFolder,
    config: &mut Config,
    model: Model,
    mut options: TrainOptions,
    values: &[f32],
    context: &Context,
) -> Result<Trainer> {
    loop {
        let device = model::device(&config.train.device, context.threads, Some(run.kernel_choices()))?;
        match Trainer::new(device, model.clone(), options.clone(), values) {
            Err(error) if error.is_out_of_memory() && options.micro_rows > 1 => {
                shrink(run, config, &mut options, &error.into(), context)?;
            }
            trainer => return Ok(trainer?),
        }
    }
}

/// Lowers the rows of a micro-batch, tells it and stores it, so that a resumed run begins with what fits.
fn shrink(
    run: &RunFolder,
    config: &mut Config,
    options: &mut TrainOptions,
    why: &Failure,
    context: &Context,
) -> Result<()> {
    let before = options.micro_rows;
    options.micro_rows = smaller_rows(options.rows, before);
    config.train.micro_batch = Some(options.micro_rows as u64);
    context.show.warn(&format!(
        "{why}; train.micro_batch {before} → {}: a step is still {} sequences in the same order",
        options.micro_rows, options.rows
    ));
    run.store(config)
}

impl<'a> Session<'a> {
    /// Whether a micro-batch can be smaller.
    pub(super) fn can_shrink(&self) -> bool {
        self.trainer.options().micro_rows > 1 && !self.trainer.is_ahead()
    }

    /// The same training with smaller micro-batches. The step that failed has changed nothing and is taken again.
    pub(super) fn with_fewer_rows(mut self, why: &Failure) -> Result<Session<'a>> {
        let snapshot = self.trainer.snapshot()?;
        let (model, mut options) = (self.trainer.engine().model().clone(), self.trainer.options().clone());
        shrink(self.run, &mut self.config, &mut options, why, self.context)?;
        // The memory of the old trainer is given back before the new one takes its own.
        drop(self.trainer);
        let parameters = &snapshot.parameters;
        let mut trainer = open(self.run, &mut self.config, model, options, parameters, self.context)?;
        trainer.restore(&snapshot)?;
        trainer.stop_when(Arc::clone(self.stop));
        let files = Arc::new(saving::travelling_files(&self.corpus.tokenizer, &self.config)?);
        Ok(Session { trainer, files, ..self })
    }
}
