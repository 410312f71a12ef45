//! Whole models: against PyTorch's numbers, against central differences, and against themselves cut in other ways.

mod generation;
mod golden;
mod gradients;
mod training;

use ironmill_compute::{Cpu, Device, Reference};
use ironmill_graph::Passes;
use ironmill_model::{Decay, Model, ModelConfig, Schedule, TrainOptions};

/// Every backend that a model can run on, with the unit of its rounding errors.
fn backends() -> Vec<(Box<dyn Device>, f64)> {
    let cpu = Cpu::new(2).expect("a CPU has threads");
    vec![(Box::new(Reference::exact()), 1e-12), (Box::new(cpu), f64::from(f32::EPSILON))]
}

fn tiny() -> ModelConfig {
    ModelConfig {
        vocab_size: 37,
        context: 12,
        layers: 2,
        heads: 3,
        width: 24,
        dropout: 0.0,
        bias: true,
        tied: true,
        norm_eps: 1e-5,
    }
}

fn model(config: ModelConfig) -> Model {
    Model::new(config).expect("the sizes fit")
}

fn options(rows: usize, micro_rows: usize) -> TrainOptions {
    TrainOptions {
        seed: 3,
        context: 12,
        rows,
        micro_rows,
        schedule: Schedule { peak: 1e-2, floor: 1e-3, warmup: 3, steps: 20, decay: Decay::Cosine },
        beta1: 0.9,
        beta2: 0.95,
        eps: 1e-8,
        weight_decay: 0.1,
        grad_clip: 1.0,
        passes: Passes::ALL,
    }
}

/// The largest difference of two lists.
fn distance(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

fn to_f64(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value)).collect()
}
