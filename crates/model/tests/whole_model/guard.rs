//! Steps that are refused: on every backend, with the step behind already given and without.

use ironmill_compute::Device;
use ironmill_data::{Loader, Sampler, TokenStream};
use ironmill_model::{
    Architecture, Betas, Error, Fault, GuardOptions, OptimizerOptions, TrainOptions, Trainer, Verdict,
    checkpoint::Snapshot,
};

use crate::{backends, model, options, tiny};

/// The step, counted from 1, that a fault in this sample spoils: steps are of eight samples.
const FAULTY_SAMPLE: u32 = 8 * 6 + 3;
const FAULTY_STEP: u64 = 7;

fn loader() -> Loader {
    let tokens = (0..500u32).map(|i| (i * i + i / 7) % 36).collect();
    Loader::new(TokenStream::from_tokens(tokens, 500), Sampler::Shuffled, 5, 12, 8).unwrap()
}

fn trainer(device: Box<dyn Device>, guard: GuardOptions, factor: Option<f32>) -> Trainer {
    let faults = factor.map(|factor| Fault { sample: FAULTY_SAMPLE, factor }).into_iter().collect();
    let config = tiny(Architecture::Gpt2);
    let values = model(config.clone()).initial_values(1);
    // Muon and AdamW, and an average: all that an update changes.
    let optimizer = OptimizerOptions::Muon { momentum: 0.95, rest: Betas::default() };
    let options = TrainOptions { guard, faults, optimizer, average: 0.9, ..options(8, 4) };
    Trainer::new(device, model(config), options, &values).unwrap()
}

/// What an outlier is told by after few steps.
fn wary(stops: bool) -> GuardOptions {
    GuardOptions { loss_outlier: 20.0, norm_outlier: 20.0, warmup: 5, stops }
}

fn train(trainer: &mut Trainer, steps: u64, ahead: bool) -> Snapshot {
    let loader = loader();
    while trainer.step_count() < steps {
        let ahead = ahead && trainer.step_count() + 1 < steps;
        trainer.step_ahead(&loader, ahead).unwrap();
    }
    trainer.snapshot().unwrap()
}

/// The faults, and what the guard says of each.
const FAULTS: [(f32, Verdict); 3] =
    [(f32::NAN, Verdict::NotFinite), (f32::INFINITY, Verdict::NotFinite), (1e4, Verdict::LossOutlier)];

#[test]
fn after_a_stop_everything_is_as_before_the_bad_step() {
    for (factor, expected) in FAULTS {
        for ahead in [false, true] {
            for ((one, _), (two, _)) in backends().into_iter().zip(backends()) {
                let before = train(&mut trainer(one, wary(true), None), FAULTY_STEP - 1, false);
                let mut trainer = trainer(two, wary(true), Some(factor));
                let loader = loader();
                let error = loop {
                    if let Err(error) = trainer.step_ahead(&loader, ahead) {
                        break error;
                    }
                };
                assert!(
                    matches!(error, Error::Refused { step: FAULTY_STEP, verdict, .. } if verdict == expected),
                    "{error}"
                );
                assert_eq!(trainer.snapshot().unwrap(), before);
                // It can go on behind the bad samples.
                trainer.skip_samples(8);
                assert_eq!(trainer.step(&loader).unwrap().verdict, Verdict::Applied);
                assert_eq!((trainer.step_count(), trainer.next_sample()), (FAULTY_STEP, 64));
            }
        }
    }
}

#[test]
fn a_skipped_step_changes_nothing_but_the_place_in_the_data() {
    for (factor, expected) in FAULTS {
        for ((one, _), (two, _)) in backends().into_iter().zip(backends()) {
            let mut straight = trainer(one, wary(false), Some(factor));
            let before = train(&mut straight, FAULTY_STEP - 1, false);
            let report = straight.step(&loader()).unwrap();
            assert_eq!((report.step, report.verdict, report.alarm()), (FAULTY_STEP, expected, None));
            let after = straight.snapshot().unwrap();
            assert_eq!(after.parameters, before.parameters);
            assert_eq!((&after.first_moment, &after.average), (&before.first_moment, &before.average));
            assert_eq!((after.state.updates, after.state.guard), (before.state.updates, before.state.guard));
            assert_eq!((after.state.step, after.state.samples), (FAULTY_STEP, 8 * FAULTY_STEP));
            let straight = train(&mut straight, 12, false);
            // The step behind it is applied even where it was given before the bad one was known.
            assert_eq!(train(&mut trainer(two, wary(false), Some(factor)), 12, true), straight);
        }
    }
}

#[test]
fn outliers_are_told_by_the_same_statistics_after_a_resume() {
    for ((one, _), (two, _)) in backends().into_iter().zip(backends()) {
        let mut first = trainer(one, wary(false), Some(1e4));
        let snapshot = train(&mut first, FAULTY_STEP - 1, false);
        assert_eq!(snapshot.state.guard.steps, (FAULTY_STEP - 1) as f32);
        let mut resumed = trainer(two, wary(false), Some(1e4));
        resumed.restore(&snapshot).unwrap();
        let (loader, [first, resumed]) = (loader(), [&mut first, &mut resumed]);
        let [straight, again] = [first, resumed].map(|trainer| trainer.step(&loader).unwrap());
        assert_eq!((straight.verdict, again.verdict), (Verdict::LossOutlier, Verdict::LossOutlier));
        assert_eq!(straight.loss_deviation, again.loss_deviation);
        assert!(straight.usual_norm > 0.0 && straight.usual_norm == again.usual_norm);
    }
}
