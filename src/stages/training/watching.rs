//! The machine under a training: its memory, how busy it is, and what the run is about.

use super::Session;
use crate::failure::{Failure, Result};
use crate::show::Show;
use crate::stages::machine;
use crate::stages::peak::Peak;
use crate::stages::plan::Plan;
use ironmill_data::Split;
use ironmill_text::durable;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// How often the machine is looked at. Asking a card's driver takes up to milliseconds.
const INTERVAL: Duration = Duration::from_secs(1);

/// What is known of the machine, and when it was last looked at.
pub(super) struct Watch {
    /// What MFU is a share of.
    peak: Option<Peak>,
    parameters: usize,
    flops_per_token: f64,
    planned_bytes: u64,
    last: Option<Instant>,
}

impl Watch {
    pub(super) fn new(plan: &Plan) -> Watch {
        Watch {
            peak: None,
            parameters: plan.memory.parameters,
            flops_per_token: plan.memory.flops_per_token as f64,
            planned_bytes: plan.total_bytes() as u64,
            last: None,
        }
    }

    /// Takes note of the device's peak and says it.
    pub(super) fn find_peak(&mut self, peak: Option<Peak>, show: &Show) {
        match &peak {
            Some(peak) => show.note(&peak.line()),
            None => show.note("peak: not known for this device, so MFU is left out"),
        }
        self.peak = peak;
    }

    /// The share of the device's peak at a rate: (6 × parameters used in products + 12·L·C·T) a token.
    pub(super) fn mfu(&self, tokens_per_s: f64) -> Option<f64> {
        self.peak.as_ref().map(|peak| tokens_per_s * self.flops_per_token / peak.flops_per_s)
    }
}

impl Session<'_> {
    /// Adds to a line what the machine says of itself, if it was not asked a moment ago.
    pub(super) fn look_at_the_machine(&mut self, line: &mut Value) {
        if self.watch.last.is_some_and(|last| last.elapsed() < INTERVAL) {
            return;
        }
        self.watch.last = Some(Instant::now());
        line["planned_bytes"] = self.watch.planned_bytes.into();
        if let Some(used) = self.trainer.engine().used_bytes() {
            line["used_bytes"] = used.into();
        }
        if let Some(resident) = machine::resident_bytes() {
            line["host_bytes"] = resident.into();
        }
    }

    /// Writes down what the run is about.
    pub(super) fn write_about(&mut self) -> Result<()> {
        let [train, validation] =
            [Split::Train, Split::Validation].map(|split| self.corpus.dataset.split(split).tokens());
        let about = json!({
            "device": self.trainer.engine().describe_device(),
            "precision": self.config.train.precision,
            "parameters": self.watch.parameters,
            "flops_per_token": self.watch.flops_per_token,
            "peak_flops_per_s": self.watch.peak.as_ref().map(|peak| peak.flops_per_s),
            "peak_source": self.watch.peak.as_ref().map(|peak| &peak.source),
            "planned_bytes": self.watch.planned_bytes,
            "steps": self.steps,
            "samples_per_epoch": self.loader.samples_per_epoch(),
            "train_tokens": train,
            "validation_tokens": validation,
            "vocab_size": self.corpus.tokenizer.vocab_size(),
        });
        let path = self.run.about();
        durable::write(&path, format!("{about:#}\n").as_bytes())
            .map_err(|error| Failure::write(&path, &error))
    }
}
