//! What a person and the metrics are told of a training.

use super::Session;
use crate::cli::Context;
use crate::config::Config;
use crate::failure::Result;
use crate::show::StepLine;
use crate::show::numbers::{bytes, grouped};
use crate::stages::plan::Plan;
use ironmill_data::Loader;
use ironmill_model::{Evaluation, StepReport, Verdict};
use serde_json::json;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

impl Session<'_> {
    /// Says why a step changed nothing, if it did not.
    pub(super) fn tell_refusal(&self, report: &StepReport) {
        let show = &self.context.show;
        match report.verdict {
            Verdict::Applied => (),
            Verdict::Overflow => show.detail(&format!(
                "step {}: gradients overflowed fp16, nothing was changed and the loss scale is halved",
                report.step
            )),
            verdict => show.warn(&format!(
                "step {} is skipped and nothing was changed: {} (loss {:.4}, gradient norm {:.4})",
                report.step,
                verdict.name().replace('_', " "),
                report.loss,
                report.norm
            )),
        }
    }

    pub(super) fn tell(&mut self, report: &StepReport, measured: Option<Evaluation>) -> Result<()> {
        let tokens_per_s = self.pace.tokens_per_s(report);
        let (seconds, next_sample) = (report.elapsed.as_secs_f64(), self.trainer.next_sample());
        let mut object = json!({
            "step": report.step,
            "time": now(),
            "loss": report.loss,
            "learning_rate": report.learning_rate,
            "norm": report.norm,
            "tokens": self.trainer.token_count(),
            "epoch": self.loader.epoch(next_sample),
            "data_seen": self.loader.seen_share(next_sample),
            "seconds": seconds,
            "wait_seconds": report.waited.as_secs_f64(),
            "tokens_per_s": report.tokens as f64 / seconds.max(1e-9),
        });
        if let Some(mfu) = self.watch.mfu(report.tokens as f64 / seconds.max(1e-9)) {
            object["mfu"] = mfu.into();
        }
        if !report.is_applied() {
            object["verdict"] = report.verdict.name().into();
        }
        if let Some(evaluation) = measured {
            object["validation_loss"] = evaluation.loss.into();
            object["perplexity"] = evaluation.perplexity().into();
            object["bits_per_byte"] = evaluation.bits_per_byte.into();
            if let Some(smoothed) = self.early.smoothed() {
                object["validation_smoothed"] = smoothed.into();
            }
        }
        self.look_at_the_machine(&mut object);
        self.metrics.append(&mut object)?;
        self.events.append(&object)?;
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
            mfu: self.watch.mfu(tokens_per_s),
            wait: Some(self.pace.wait()),
            left: Duration::try_from_secs_f64(seconds_left).unwrap_or(Duration::MAX),
        });
        Ok(())
    }
}

/// Seconds since 1970.
pub(super) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

pub(super) fn describe(plan: &Plan, config: &Config, loader: &Loader, steps: u64, context: &Context) {
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
    if config.train.micro_batch.is_none() {
        let (micro, rows) = (plan.options.micro_rows, plan.options.rows);
        show.note(&format!(
            "micro_batch: {micro} of the {rows} sequences of a step go through the model at once"
        ));
    }
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

/// Running means of what steps take, so that one slow step does not shake the line.
#[derive(Default)]
pub(super) struct Pace {
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
