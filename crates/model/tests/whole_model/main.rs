//! Whole models: against PyTorch's numbers, against central differences, and against themselves cut in other ways.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where by panicking")]

mod card;
mod decode;
mod generation;
mod generator;
mod golden;
mod gradients;
mod guard;
mod imported;
mod optimisers;
mod packing;
mod profile;
mod training;

use std::path::PathBuf;

use ironmill_compute::cuda::Places;
use ironmill_compute::{Cpu, Cuda, CudaOptions, Device, Reference};
use ironmill_model::{
    Architecture, Decay, Gemma, Mlp, Model, ModelConfig, Objective, Schedule, TrainOptions,
};

/// Every backend that a model can run on here, with the unit of its rounding errors.
fn backends() -> Vec<(Box<dyn Device>, f64)> {
    let cpu = Cpu::new(2).expect("a CPU has threads");
    let mut backends: Vec<(Box<dyn Device>, f64)> =
        vec![(Box::new(Reference::exact()), 1e-12), (Box::new(cpu), f64::from(f32::EPSILON))];
    backends.extend(cuda().map(|cuda| (cuda, f64::from(f32::EPSILON))));
    backends
}

/// A card, where there is one to use, or its emulator.
fn cuda() -> Option<Box<dyn Device>> {
    cuda_with(None)
}

/// A card, where there is one, whose choices of algorithms are kept in a file: devices with the same file compute the same bits.
fn cuda_with(choices: Option<PathBuf>) -> Option<Box<dyn Device>> {
    let cuda = ironmill_emulator::card_or_emulator(|emulator| {
        Cuda::new(&CudaOptions {
            choices: choices.clone(),
            places: Places {
                first: emulator.into_iter().collect(),
                last: vec!["/usr/local/cuda/lib64".into()],
            },
            kernel_cache: Some(std::env::temp_dir().join("ironmill-test-kernels")),
            ..CudaOptions::default()
        })
    });
    cuda.map(|cuda| Box::new(cuda) as Box<dyn Device>)
}

fn tiny(architecture: Architecture) -> ModelConfig {
    ModelConfig { vocab_size: 37, context: 12, ..ModelConfig::new(architecture, 2, 3, 24) }
}

/// One model of every kind, with its less usual choices on.
fn kinds() -> Vec<ModelConfig> {
    vec![
        tiny(Architecture::Gpt2),
        ModelConfig { bias: false, tied: false, window: 5, ..tiny(Architecture::Gpt2) },
        tiny(Architecture::Llama),
        ModelConfig {
            kv_heads: 1,
            qk_norm: true,
            bias: true,
            tied: false,
            window: 7,
            ..tiny(Architecture::Llama)
        },
        ModelConfig { mlp: Mlp::ReluSquared, head_dim: 10, ..tiny(Architecture::Llama) },
        ModelConfig {
            kv_heads: 1,
            qk_norm: true,
            mlp: Mlp::GeluGate,
            window: 4,
            gemma: Some(Gemma { query_scalar: 6.0, global_every: 2, local_rope_theta: 500.0 }),
            ..tiny(Architecture::Llama)
        },
        tiny(Architecture::Encoder),
    ]
}

fn causal_kinds() -> impl Iterator<Item = ModelConfig> {
    kinds().into_iter().filter(|config| config.architecture.is_causal())
}

fn model(config: ModelConfig) -> Model {
    Model::new(config).expect("the sizes fit")
}

fn objective(config: &ModelConfig) -> Objective {
    if config.architecture.is_causal() { Objective::NextToken } else { Objective::MaskedToken { mask: 36 } }
}

fn options(rows: usize, micro_rows: usize) -> TrainOptions {
    let schedule = Schedule { peak: 1e-2, floor: 1e-3, warmup: 3, steps: 20, decay: Decay::Cosine };
    TrainOptions { seed: 3, micro_rows, ..TrainOptions::new(rows, 12, schedule) }
}

/// The largest difference of two lists.
fn distance(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

fn to_f64(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value)).collect()
}
