//! What a training run is made of, apart from the model and the data.

use ironmill_compute::{Adam, DType, Guard, LossShape, Sgd};
use ironmill_graph::{Layout, Muon, MuonMatrix, Optimiser, Parameter, Passes, Precision};

use super::schedule::Schedule;
use crate::{
    architecture::Model,
    error::{Error, Result},
    objective::Objective,
};

/// The settings of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainOptions {
    /// The seed of dropout masks and hidden tokens.
    pub seed: u64,
    /// What the model is asked.
    pub objective: Objective,
    /// Lengths that samples can have, ascending; at most the model's context.
    pub lengths: Vec<usize>,
    /// Whether samples hold several documents (or padding), which attention must keep apart.
    pub borders: bool,
    /// Samples of a step, over all its micro-batches.
    pub rows: usize,
    /// Samples of a micro-batch; divides `rows`.
    pub micro_rows: usize,
    /// The learning rate.
    pub schedule: Schedule,
    /// How gradients move parameters.
    pub optimizer: OptimizerOptions,
    /// Weight decay of matrices and embeddings.
    pub weight_decay: f32,
    /// Parameters with a rate or a decay of their own; the first group that has a parameter decides.
    pub groups: Vec<ParameterGroup>,
    /// The share of the running average of parameters that a step keeps; none is kept where this is 0.
    pub average: f32,
    /// The largest global gradient norm; 0 turns clipping off.
    pub grad_clip: f32,
    /// Which steps are refused.
    pub guard: GuardOptions,
    /// Faults to inject, for tests of what happens then.
    pub faults: Vec<Fault>,
    /// How the loss departs from plain cross-entropy.
    pub loss: LossShape,
    /// Whether the backward computes the values of a block again instead of keeping them.
    pub recompute: bool,
    /// The type that activations and a copy of the weights are kept in, where that is not f32; the device must store it.
    pub working: Option<DType>,
    /// Which passes run; all of them unless a test compares.
    pub passes: Passes,
}

/// Which steps are refused before they change anything: those whose loss or gradient norm is not finite, and outliers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GuardOptions {
    /// How many standard deviations a loss may lie above its running mean; 0 allows any.
    pub loss_outlier: f32,
    /// The same for the gradient norm.
    pub norm_outlier: f32,
    /// Steps that must have been seen before anything is called an outlier.
    pub warmup: u32,
    /// Whether a refused step ends in [`Error::Refused`], with everything as it was before it, rather than in a report of a
    /// step that changed nothing.
    pub stops: bool,
}

impl Default for GuardOptions {
    /// Only what is not finite is refused, and ends the run.
    fn default() -> Self {
        GuardOptions { loss_outlier: 0.0, norm_outlier: 0.0, warmup: 100, stops: true }
    }
}

impl GuardOptions {
    pub(super) fn build(&self, clip: f32) -> Guard {
        let GuardOptions { loss_outlier, norm_outlier, warmup, stops } = *self;
        Guard { clip, loss_outlier, norm_outlier, warmup, holds: stops }
    }
}

/// A fault in the data: the losses of a sample are multiplied by a factor, which may be far too large or not a number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fault {
    /// The global index of the sample.
    pub sample: u32,
    /// What its losses are multiplied with.
    pub factor: f32,
}

/// An optimiser with its constants.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OptimizerOptions {
    /// Adam with decoupled weight decay.
    AdamW(Betas),
    /// Adam with weight decay in the gradient.
    Adam(Betas),
    /// Gradient descent with momentum.
    Sgd {
        /// Decay of the running sum of gradients.
        momentum: f32,
    },
    /// Muon for hidden matrices, and AdamW for embeddings, head, norms and biases.
    Muon {
        /// Decay of the running mean of gradients.
        momentum: f32,
        /// The constants of AdamW.
        rest: Betas,
    },
}

/// Parameters by name, and what is different for them.
#[derive(Clone, Debug, PartialEq)]
pub struct ParameterGroup {
    /// The name, in which `*` stands for any text.
    pub pattern: String,
    /// What the learning rate is multiplied with.
    pub rate: f32,
    /// The weight decay, where it is not that of the others.
    pub weight_decay: Option<f32>,
}

impl ParameterGroup {
    /// Whether a parameter of this name belongs to it.
    pub fn has(&self, name: &str) -> bool {
        let mut parts = self.pattern.split('*');
        let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else { return false };
        let mut last = None;
        for part in parts {
            // What a star stands for is as short as can be; only the last part must reach the end.
            if let Some(previous) = last.replace(part) {
                let Some(at) = rest.find(previous) else { return false };
                rest = &rest[at + str::len(previous)..];
            }
        }
        last.map_or(rest.is_empty(), |last| rest.ends_with(last))
    }
}

/// The constants of Adam.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Betas {
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added to the root of the second moment.
    pub eps: f32,
}

impl Default for Betas {
    /// What language models are usually trained with.
    fn default() -> Self {
        Betas { beta1: 0.9, beta2: 0.95, eps: 1e-8 }
    }
}

impl OptimizerOptions {
    /// The name in configurations and checkpoints.
    pub fn name(&self) -> &'static str {
        match self {
            OptimizerOptions::AdamW(_) => "adamw",
            OptimizerOptions::Adam(_) => "adam",
            OptimizerOptions::Sgd { .. } => "sgd",
            OptimizerOptions::Muon { .. } => "muon",
        }
    }

    pub(super) fn has_second_moment(&self) -> bool {
        !matches!(self, OptimizerOptions::Sgd { .. })
    }
}

impl TrainOptions {
    /// Next-token training with AdamW on samples of one length, one micro-batch a step, with the usual constants.
    pub fn new(rows: usize, length: usize, schedule: Schedule) -> Self {
        TrainOptions {
            seed: 1,
            objective: Objective::NextToken,
            lengths: vec![length],
            borders: false,
            rows,
            micro_rows: rows,
            schedule,
            optimizer: OptimizerOptions::AdamW(Betas::default()),
            weight_decay: 0.1,
            groups: Vec::new(),
            average: 0.0,
            grad_clip: 1.0,
            guard: GuardOptions::default(),
            faults: Vec::new(),
            loss: LossShape::default(),
            recompute: false,
            working: None,
            passes: Passes::ALL,
        }
    }

    /// The longest samples.
    pub fn longest(&self) -> usize {
        self.lengths.iter().copied().max().unwrap_or(0)
    }

    /// Whether the loss is scaled, because gradients could vanish in f16.
    pub(super) fn scales_loss(&self) -> bool {
        self.working == Some(DType::F16) || self.passes.precision == Precision::Products(DType::F16)
    }

    /// Gives samples the weights of the faults that are asked for; without any, all stay 1.
    pub(super) fn inject_faults(&self, samples: &[u32], weights: &mut [f32]) {
        if self.faults.is_empty() {
            return;
        }
        let length = weights.len() / samples.len().max(1);
        for (weights, sample) in weights.chunks_exact_mut(length.max(1)).zip(samples) {
            let fault = self.faults.iter().find(|fault| fault.sample == *sample);
            weights.fill(fault.map_or(1.0, |fault| fault.factor));
        }
    }

    /// The weight decay of a parameter, and what the learning rate is multiplied with for it.
    fn rule(&self, parameter: &Parameter) -> (f32, f32) {
        let usual = if parameter.decays { self.weight_decay } else { 0.0 };
        match self.groups.iter().find(|group| group.has(&parameter.name)) {
            Some(group) => (group.weight_decay.unwrap_or(usual), group.rate),
            None => (usual, 1.0),
        }
    }

    /// The optimiser of a model.
    pub(super) fn optimiser(&self, layout: &Layout) -> Optimiser {
        let ranges = || layout.update_ranges_by(|parameter| Some(self.rule(parameter)));
        let adam = |Betas { beta1, beta2, eps }: Betas, decoupled, ranges| Adam {
            beta1,
            beta2,
            eps,
            decoupled,
            ranges,
        };
        match self.optimizer {
            OptimizerOptions::AdamW(betas) => Optimiser::Adam(adam(betas, true, ranges())),
            OptimizerOptions::Adam(betas) => Optimiser::Adam(adam(betas, false, ranges())),
            OptimizerOptions::Sgd { momentum } => Optimiser::Sgd(Sgd { momentum, ranges: ranges() }),
            OptimizerOptions::Muon { momentum, rest } => {
                let others = |parameter: &Parameter| (!parameter.is_hidden).then(|| self.rule(parameter));
                Optimiser::Muon(Muon {
                    momentum,
                    matrices: self.hidden_matrices(layout),
                    rest: adam(rest, true, layout.update_ranges_by(others)),
                })
            }
        }
    }

    fn hidden_matrices(&self, layout: &Layout) -> Vec<MuonMatrix> {
        let hidden =
            layout.parameters().iter().filter(|parameter| parameter.is_hidden && parameter.trainable);
        hidden
            .map(|parameter| {
                let (weight_decay, rate) = self.rule(parameter);
                let (rows, columns) = (parameter.shape.rows(), parameter.shape.columns());
                MuonMatrix { start: parameter.offset, rows, columns, weight_decay, rate }
            })
            .collect()
    }

    pub(super) fn check(&self, model: &Model) -> Result<()> {
        let fail =
            |key, value: usize, reason: String| Err(Error::Setting { key, value: value.to_string(), reason });
        let limit = model.config().context;
        if let Some(&length) = self.lengths.iter().find(|&&length| length == 0 || length > limit) {
            return fail("context", length, format!("must be between 1 and the model's {limit}"));
        }
        if self.lengths.is_empty() || self.rows == 0 {
            return fail("batch_tokens", 0, "must hold at least one sample of the model's context".into());
        }
        if self.micro_rows == 0 || !self.rows.is_multiple_of(self.micro_rows) {
            let reason = format!("must divide the {} samples of a step", self.rows);
            return fail("micro_batch", self.micro_rows, reason);
        }
        let names = || model.layout().parameters().iter().map(|parameter| parameter.name.as_str());
        if let Some(group) = self.groups.iter().find(|group| !names().any(|name| group.has(name))) {
            let known: Vec<&str> = names().take(4).collect();
            let reason = format!("no parameter has such a name; there are {} …", known.join(", "));
            return Err(Error::Setting { key: "groups", value: group.pattern.clone(), reason });
        }
        if let Objective::MaskedToken { mask } = self.objective
            && mask as usize >= model.config().vocab_size
        {
            let reason = format!("must be below the vocabulary's {}", model.config().vocab_size);
            return fail("mask token", mask as usize, reason);
        }
        if (self.objective == Objective::NextToken) != model.config().architecture.is_causal() {
            let (key, value) = ("objective", format!("{:?}", self.objective));
            let reason = format!("does not fit the {} architecture", model.config().architecture.name());
            return Err(Error::Setting { key, value, reason });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_text() {
        let has = |pattern: &str, name: &str| {
            ParameterGroup { pattern: pattern.into(), rate: 1.0, weight_decay: None }.has(name)
        };
        let name = "model.layers.10.mlp.up_proj.weight";
        for pattern in
            ["*", name, "model.*", "*.weight", "*mlp*", "model.layers.*.mlp.*.weight", "*up*weight", "**"]
        {
            assert!(has(pattern, name), "{pattern}");
        }
        for pattern in ["", "model", "weight", "*.bias", "model.layers.1.*", "*weight*weight", "*.weightx"] {
            assert!(!has(pattern, name), "{pattern}");
        }
    }
}
