//! What a model in training can do: its loss on validation data, and what it writes.

use super::Session;
use super::telling::now;
use crate::failure::{Failure, Result};
use crate::stages::metrics::Beside;
use crate::stages::sampling::{Completion, complete};
use ironmill_data::Split;
use ironmill_model::{Evaluation, EvaluationSet};
use ironmill_text::durable;
use std::ops::ControlFlow;
use std::time::Instant;

impl Session<'_> {
    pub(super) fn measure(&mut self) -> Result<Option<Evaluation>> {
        let validation = self.corpus.dataset.split(Split::Validation);
        if validation.is_empty() {
            return Ok(None);
        }
        let (set, rows) = (self.evaluation_set(), self.config.train.micro_batch as usize);
        let objective = self.trainer.options().objective;
        let began = Instant::now();
        let evaluation = self.trainer.engine().evaluate(validation, objective, set, rows)?;
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
        for (idx, made) in completions.iter().enumerate() {
            let text = format!("{}{}", made.prompt, made.text);
            self.events.append_text(now(), step, &format!("sample/{}", idx + 1), &text)?;
        }
        self.metrics.spend(Beside::Sampling, began.elapsed());
        Ok(completions)
    }
}
