//! What a model in training can do: its loss on validation data, and what it writes.

use super::Session;
use super::telling::now;
use crate::failure::{Code, Failure, Result};
use crate::stages::metrics::Beside;
use crate::stages::sampling::{Completion, Settings, complete};
use ironmill_data::Split;
use ironmill_model::{Evaluation, EvaluationSet};
use ironmill_text::durable;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::time::Instant;

impl Session<'_> {
    pub(super) fn measure(&mut self) -> Result<Option<Evaluation>> {
        let validation = self.corpus.dataset.split(Split::Validation);
        if validation.is_empty() {
            return Ok(None);
        }
        let began = Instant::now();
        let (set, objective) = (self.evaluation_set(), self.trainer.options().objective);
        let mut rows = self.trainer.options().micro_rows;
        let evaluation = loop {
            match self.trainer.engine().evaluate_until(validation, objective, set, rows, self.stop) {
                Err(error) if error.is_out_of_memory() && rows > 1 => {
                    rows /= 2;
                    self.context
                        .show
                        .warn(&format!("{error}; the evaluation goes on with {rows} rows at a time"));
                }
                outcome => break outcome?,
            }
        };
        self.measured = Some((self.trainer.step_count(), evaluation.loss));
        self.metrics.spend(Beside::Evaluation, began.elapsed());
        self.trainer.observe(evaluation.loss);
        self.early.observe(self.trainer.step_count(), evaluation.loss);
        self.look_inside()?;
        Ok(Some(evaluation))
    }

    /// The tokens that the next evaluation predicts.
    fn evaluation_set(&self) -> EvaluationSet {
        let train = &self.config.train;
        match (train.eval_tokens, train.eval_set.as_str()) {
            (None, _) => EvaluationSet::Complete,
            (Some(tokens), "sampled") => {
                EvaluationSet::Sampled { tokens, seed: self.config.seed, draw: self.trainer.step_count() }
            }
            (Some(tokens), _) => EvaluationSet::First(tokens),
        }
    }

    pub(super) fn write_samples(&mut self) -> Result<Vec<Completion>> {
        // An encoder has no prompts, because it continues no text.
        if self.config.sample.prompts.is_empty() {
            return Ok(Vec::new());
        }
        let (began, step) = (Instant::now(), self.trainer.step_count());
        let (prompts, settings) = (&self.config.sample.prompts, Settings::from(&self.config.sample));
        let stop = self.stop;
        let is_stopping = || stop.load(Ordering::Relaxed);
        let until_stopped = &mut |_: usize, _: &str| match is_stopping() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        };
        let engine = self.trainer.engine();
        let completions = complete(engine, &self.corpus.tokenizer, prompts, &settings, until_stopped);
        let completions = match completions {
            Err(failure) if failure.code() == Code::OutOfMemory => {
                self.context.show.warn(&format!("{failure}; no samples are written after step {step}"));
                return Ok(Vec::new());
            }
            completions => completions?,
        };
        if is_stopping() {
            return Err(ironmill_model::Error::Stopped.into());
        }
        let folder = self.run.samples();
        let path = folder.join(format!("step-{step:08}.txt"));
        let texts: Vec<String> =
            completions.iter().map(|made| format!("{}{}\n", made.prompt, made.text)).collect();
        std::fs::create_dir_all(&folder)
            .and_then(|()| durable::write(&path, texts.join("\n").as_bytes()))
            .map_err(|error| Failure::write(&path, &error))?;
        for (idx, made) in completions.iter().enumerate() {
            let text = format!("{}{}", made.prompt, made.text);
            self.events.append_text(now(), step, &format!("sample/{}", idx + 1), &text)?;
        }
        self.metrics.spend(Beside::Sampling, began.elapsed());
        Ok(completions)
    }
}
