//! Training on a card: whatever is promised of every run, in every type, where there is a card to try it on.

use std::path::Path;

use ironmill_compute::DType;
use ironmill_data::{Loader, Sampler, TokenStream};
use ironmill_graph::{EightBits, Passes};
use ironmill_model::{Architecture, ModelConfig, TrainOptions, Trainer};

use crate::{backends, cuda_with, model, options, tiny};

/// What activations are kept in, and which products are of eight bits.
type Types = (Option<DType>, EightBits);

const TYPES: [Types; 5] = [
    (None, EightBits::Nowhere),
    (Some(DType::BF16), EightBits::Nowhere),
    (Some(DType::F16), EightBits::Nowhere),
    (Some(DType::BF16), EightBits::Blocks),
    (Some(DType::BF16), EightBits::BlocksAndHead),
];

/// Wide enough for products of eight bits.
fn config() -> ModelConfig {
    let tiny = tiny(Architecture::Gpt2);
    ModelConfig {
        dropout: 0.3,
        vocab_size: 48,
        context: tiny.context,
        ..ModelConfig::new(Architecture::Gpt2, 2, 3, 48)
    }
}

/// Trainers of one folder choose the same algorithms, as runs of one run folder do.
fn trainer((working, eight_bits): Types, folder: &Path) -> Option<Trainer> {
    let passes = Passes { eight_bits, ..Passes::ALL };
    let options = TrainOptions { working, passes, ..options(8, 4) };
    let values = model(config()).initial_values(1);
    Some(
        Trainer::new(cuda_with(Some(folder.join("kernels.txt")))?, model(config()), options, &values)
            .unwrap(),
    )
}

fn loader() -> Loader {
    let tokens = (0..500u32).map(|i| (i * i + i / 7) % 36).collect();
    Loader::new(TokenStream::from_tokens(tokens, 500), Sampler::Shuffled, 5, 12, 8).unwrap()
}

/// Losses of steps, and the parameters behind the last.
fn train(trainer: &mut Trainer, steps: usize, ahead: bool) -> (Vec<f64>, Vec<f32>) {
    let loader = loader();
    let losses =
        (1..=steps).map(|step| trainer.step_ahead(&loader, ahead && step < steps).unwrap().loss).collect();
    (losses, trainer.engine().parameters().unwrap())
}

#[test]
fn two_runs_and_a_run_ahead_are_the_same_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    for types in TYPES {
        let Some(mut first) = trainer(types, folder.path()) else { return };
        let once = train(&mut first, 12, false);
        assert_eq!(train(&mut trainer(types, folder.path()).unwrap(), 12, false), once, "{types:?}");
        assert_eq!(train(&mut trainer(types, folder.path()).unwrap(), 12, true), once, "{types:?}, ahead");
    }
}

#[test]
fn a_restored_run_repeats_the_uninterrupted_one_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    for types in TYPES {
        let Some(mut straight) = trainer(types, folder.path()) else { return };
        train(&mut straight, 5, true);
        let snapshot = straight.snapshot().unwrap();
        let expected = train(&mut straight, 7, true);
        let mut resumed = trainer(types, folder.path()).unwrap();
        resumed.restore(&snapshot).unwrap();
        assert_eq!(train(&mut resumed, 7, false), expected, "{types:?}");
    }
}

#[test]
fn fewer_bits_learn_what_thirty_two_do() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut exact) = trainer(TYPES[0], folder.path()) else { return };
    let (losses, _) = train(&mut exact, 20, false);
    let epsilons = [DType::BF16, DType::F16, DType::E4M3, DType::E4M3].map(DType::epsilon);
    for (types, epsilon) in TYPES[1..].iter().zip(epsilons) {
        let (ours, _) = train(&mut trainer(*types, folder.path()).unwrap(), 20, false);
        let far = losses.iter().zip(&ours).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(far < 8.0 * epsilon.min(2f64.powi(-5)), "{types:?}: {far}");
    }
}

/// On any backend: a step that is asked for ahead is the step that would have come.
#[test]
fn steps_given_ahead_are_the_steps_that_would_have_come() {
    let values = model(config()).initial_values(1);
    for ((one, _), (two, _)) in backends().into_iter().zip(backends()) {
        let [mut one, mut two] =
            [one, two].map(|device| Trainer::new(device, model(config()), options(8, 4), &values).unwrap());
        assert_eq!(train(&mut one, 6, false), train(&mut two, 6, true));
        assert_eq!((one.step_count(), one.next_sample()), (two.step_count(), two.next_sample()));
        assert!(!two.is_ahead());
    }
}
