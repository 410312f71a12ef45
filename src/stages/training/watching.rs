//! The machine under a training: its memory, how busy it is, and what the run is about.

use super::Session;
use crate::failure::{Failure, Result};
use crate::show::Show;
use crate::stages::peak::Peak;
use crate::stages::plan::Plan;
use crate::stages::{cuda, machine};
use ironmill_compute::cuda::Gauge;
use ironmill_data::Split;
use ironmill_model::{StepParts, StepReport, Trainer};
use ironmill_text::durable;
use serde_json::{Map, Value, json};
use std::time::{Duration, Instant};

/// How often the machine is looked at. Asking a card's driver takes up to milliseconds.
const INTERVAL: Duration = Duration::from_secs(1);
/// How often a step is taken apart. A card runs such a step without its graph, a little slower.
const PROFILE_INTERVAL: Duration = Duration::from_secs(60);

/// What is known of the machine, and when it was last looked at.
pub(super) struct Watch {
    /// What MFU is a share of.
    peak: Option<Peak>,
    parameters: usize,
    flops_per_token: f64,
    planned_bytes: u64,
    gauge: Option<Gauge>,
    last: Option<Instant>,
    profiled: Option<Instant>,
    /// What the next line tells besides.
    findings: Map<String, Value>,
}

impl Watch {
    pub(super) fn new(plan: &Plan, device: &str) -> Watch {
        Watch {
            peak: None,
            parameters: plan.memory.parameters,
            flops_per_token: plan.memory.flops_per_token as f64,
            planned_bytes: plan.total_bytes() as u64,
            gauge: cuda::ordinal(device).and_then(|card| Gauge::open(card, &cuda::places())),
            last: None,
            profiled: None,
            findings: Map::new(),
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

    /// Whether the next step is to be taken apart: one behind the first, which pays for memory that is touched for the first time,
    /// then one a minute. A step that a device has been given already goes on as it is.
    pub(super) fn is_due_for_a_profile(&self, trainer: &Trainer) -> bool {
        let is_due = self.profiled.is_none_or(|last| last.elapsed() >= PROFILE_INTERVAL);
        is_due && self.last.is_some() && !trainer.is_ahead()
    }

    /// The share of the device's peak at a rate: (6 × parameters used in products + 12·L·C·T) a token.
    pub(super) fn mfu(&self, tokens_per_s: f64) -> Option<f64> {
        self.peak.as_ref().map(|peak| tokens_per_s * self.flops_per_token / peak.flops_per_s)
    }
}

impl Session<'_> {
    /// Adds to a line what the machine says of itself, if it was not asked a moment ago.
    pub(super) fn look_at_the_machine(&mut self, line: &mut Value) {
        for (key, finding) in std::mem::take(&mut self.watch.findings) {
            line[key] = finding;
        }
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
        if let Some(reading) = self.watch.gauge.as_ref().map(Gauge::read) {
            let used = reading.used_bytes.map(|bytes| bytes as f64);
            let keys = ["gpu_utilization", "gpu_watts", "gpu_memory_bytes"];
            for (key, number) in keys.into_iter().zip([reading.utilization, reading.watts, used]) {
                if let Some(number) = number {
                    line[key] = number.into();
                }
            }
        }
    }

    /// Takes a step and says where its time went.
    pub(super) fn take_apart(&mut self) -> ironmill_model::Result<StepReport> {
        let profile = self.trainer.profile_step(&self.loader)?;
        self.watch.profiled = Some(Instant::now());
        let StepParts { data, forward, head, backward, update, host } = profile.parts;
        let parts = [data, forward, head, backward, update, host].map(|part| part.as_secs_f64());
        let names = ["data", "forward", "head", "backward", "update", "host"];
        let parts: Map<String, Value> =
            names.into_iter().zip(parts).map(|(name, seconds)| (name.into(), json!(seconds))).collect();
        self.watch.findings.insert("profile".into(), parts.into());
        Ok(profile.report)
    }

    /// Looks at the norms of the model's parts, for the line of the step that was just taken.
    pub(super) fn look_inside(&mut self) -> Result<()> {
        let norms = self.trainer.part_norms()?;
        let groups: Map<String, Value> = norms
            .into_iter()
            .map(|part| (part.name, json!({"gradient": part.gradient, "weight": part.weight})))
            .collect();
        self.watch.findings.insert("groups".into(), groups.into());
        Ok(())
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
