use std::time::Duration;

use ironmill_compute::Device;
use ironmill_data::{Loader, Sampler, TokenStream};
use ironmill_graph::Stage;
use ironmill_model::{ModelConfig, TrainOptions, Trainer};

use crate::{backends, kinds, model, objective, options};

#[test]
fn the_stages_of_a_profiled_step_add_up_to_it() {
    for kind in kinds() {
        for (device, _) in backends() {
            let profile = trainer(device, kind.clone()).profile_step(&loader()).unwrap();
            let sum: Duration = profile.stages().iter().map(|stage| stage.1).sum();
            assert_eq!(sum, profile.report.elapsed);
            let other = profile.kernels.iter().filter(|kernel| kernel.stage == Stage::Other);
            let is_hosts = |name| ["data", "host"].contains(&name);
            assert!(
                other.clone().all(|kernel| is_hosts(kernel.kernel)),
                "a launch has no stage: {profile:?}"
            );
            for stage in Stage::ALL {
                assert!(profile.kernels.iter().any(|kernel| kernel.stage == stage), "{stage}: {profile:?}");
            }
        }
    }
}

#[test]
fn a_profiled_step_is_the_step() {
    for kind in kinds() {
        let losses = |profiled: bool| {
            let mut trainer = trainer(backends().remove(1).0, kind.clone());
            let step = |_| match profiled {
                true => trainer.profile_step(&loader()).unwrap().report.loss,
                false => trainer.step(&loader()).unwrap().loss,
            };
            (0..3).map(step).collect::<Vec<f64>>()
        };
        assert_eq!(losses(true), losses(false));
    }
}

#[test]
fn products_are_counted_over_all_micro_batches() {
    let kind = kinds().remove(0);
    let trainer = trainer(backends().remove(0).0, kind.clone());
    // Four products a block and the head, each with two gradients, in both micro-batches.
    assert_eq!(trainer.products_per_step(), 2 * 3 * (4 * kind.layers + 1));
}

fn trainer(device: Box<dyn Device>, kind: ModelConfig) -> Trainer {
    let options = TrainOptions { objective: objective(&kind), ..options(4, 2) };
    let model = model(kind);
    let values = model.initial_values(1);
    Trainer::new(device, model, options, &values).unwrap()
}

fn loader() -> Loader {
    let tokens = (0..1000).map(|i| (i * i) % 37).collect();
    Loader::new(TokenStream::from_tokens(tokens, 1000), Sampler::Random, 1, 12, 4).unwrap()
}
