//! Training the same thing in different ways must give the same result.

use std::sync::atomic::AtomicBool;

use ironmill_compute::{Cpu, DType, IGNORED, LossShape};
use ironmill_data::durable::Disk;
use ironmill_data::{Loader, Sampler, TokenStream};
use ironmill_graph::{Passes, Precision};
use ironmill_model::{
    Alarm, Architecture, Batch, Betas, Continuation, Decay, Error, EvaluationSet, Fault, ModelConfig,
    Objective, OptimizerOptions, ParameterGroup, Schedule, TrainOptions, Trainer, Verdict, checkpoint,
};

use crate::{backends, distance, kinds, model, objective, options, tiny, to_f64};

fn dropping() -> ModelConfig {
    ModelConfig { dropout: 0.3, ..tiny(Architecture::Gpt2) }
}

fn trainer(threads: usize, options: TrainOptions) -> Trainer {
    trainer_of(dropping(), threads, options)
}

fn trainer_of(config: ModelConfig, threads: usize, options: TrainOptions) -> Trainer {
    let options = TrainOptions { objective: objective(&config), ..options };
    let model = model(config);
    let values = model.initial_values(1);
    Trainer::new(Box::new(Cpu::new(threads).unwrap()), model, options, &values).unwrap()
}

fn loader(sampler: Sampler) -> Loader {
    let tokens = (0..500u32).map(|i| (i * i + i / 7) % 36).collect();
    Loader::new(TokenStream::from_tokens(tokens, 500), sampler, 5, 12, 8).unwrap()
}

fn losses(trainer: &mut Trainer, loader: &Loader, steps: usize) -> Vec<f64> {
    (0..steps).map(|_| trainer.step(loader).unwrap().loss).collect()
}

#[test]
fn micro_batches_accumulate_to_the_large_batch_with_dropout_and_ignored_targets() {
    let mut batch = Batch::new(8, 12);
    for (i, id) in batch.ids.iter_mut().enumerate() {
        *id = (i * 7 % 37) as u32;
    }
    for (i, target) in batch.targets.iter_mut().enumerate() {
        // Most of the first samples is ignored, so a mean of micro-batch means would be wrong.
        *target = if i < 30 && i % 4 != 0 { IGNORED } else { (i * 5 % 37) as u32 };
    }
    batch.samples = (100..108).collect();
    for (device, eps) in backends() {
        let values = model(dropping()).initial_values(1);
        let mut whole = Trainer::new(device, model(dropping()), options(8, 8), &values).unwrap();
        let report = whole.step_on(&batch).unwrap();
        for micro_rows in [1, 2, 4] {
            for (device, other_eps) in backends().into_iter().filter(|(_, other)| *other == eps) {
                let mut cut =
                    Trainer::new(device, model(dropping()), options(8, micro_rows), &values).unwrap();
                let cut_report = cut.step_on(&batch).unwrap();
                let bound = 50.0 * other_eps;
                assert!((report.loss - cut_report.loss).abs() < bound.max(1e-6), "{micro_rows}");
                let difference = distance(&whole.gradients().unwrap(), &cut.gradients().unwrap());
                assert!(difference < bound, "{micro_rows}: {difference}");
                assert!((report.norm - cut_report.norm).abs() < bound.max(1e-6), "{micro_rows}");
                assert_eq!((report.targets, cut_report.targets), (74, 74));
            }
        }
    }
}

#[test]
fn the_number_of_threads_does_not_change_a_single_bit() {
    for config in kinds() {
        let config = ModelConfig { dropout: 0.3, ..config };
        let run = |threads| {
            let mut trainer = trainer_of(config.clone(), threads, options(8, 4));
            let losses = losses(&mut trainer, &loader(Sampler::Random), 4);
            (losses, trainer.engine().parameters().unwrap())
        };
        let one = run(1);
        assert_eq!(one, run(2));
        assert_eq!(one, run(3));
    }
}

#[test]
fn a_restored_run_repeats_the_uninterrupted_one_bit_for_bit() {
    let betas = Betas::default();
    let optimizers = [
        OptimizerOptions::AdamW(betas),
        OptimizerOptions::Adam(betas),
        OptimizerOptions::Sgd { momentum: 0.9 },
        OptimizerOptions::Muon { momentum: 0.95, rest: betas },
    ];
    for (index, config) in kinds().into_iter().enumerate() {
        let config = ModelConfig { dropout: 0.3, ..config };
        let sampler = [Sampler::Random, Sampler::Shuffled, Sampler::Sequential][index % 3];
        let average = if index % 2 == 0 { 0.99 } else { 0.0 };
        let options = TrainOptions { optimizer: optimizers[index % 4], average, ..options(8, 4) };
        let loader = loader(sampler);
        let mut straight = trainer_of(config.clone(), 2, options.clone());
        let straight_losses = losses(&mut straight, &loader, 12);

        let folder = tempfile::tempdir().unwrap();
        let mut first = trainer_of(config.clone(), 2, options.clone());
        let mut resumed_losses = losses(&mut first, &loader, 7);
        let snapshot = first.snapshot().unwrap();
        let path = checkpoint::save(
            &Disk::default(),
            folder.path(),
            first.engine().model(),
            &checkpoint::Record::new(snapshot),
        );
        drop(first);
        let mut second = trainer_of(config, 1, options);
        let snapshot = checkpoint::load(&path.unwrap(), second.engine().model()).unwrap();
        second.restore(&snapshot).unwrap();
        resumed_losses.extend(losses(&mut second, &loader, 5));
        assert_eq!(straight_losses, resumed_losses);
        assert_eq!(straight.snapshot().unwrap(), second.snapshot().unwrap());
    }
}

/// Products of f16 on a processor, with a loss scale that overflows now and then.
#[test]
fn a_restored_run_of_f16_products_repeats_the_uninterrupted_one_bit_for_bit() {
    let passes = Passes { precision: Precision::Products(DType::F16), ..Passes::ALL };
    let options = TrainOptions { passes, average: 0.9, ..options(8, 4) };
    let loader = loader(Sampler::Shuffled);
    // A weight that makes the first gradients overflow until the scale has come down.
    let scaled = || {
        let faults = (0..96).map(|sample| Fault { sample, factor: 300.0 }).collect();
        trainer(2, TrainOptions { faults, ..options.clone() })
    };
    let go = |trainer: &mut Trainer, steps: usize| -> Vec<(f64, Verdict)> {
        let mut step = || trainer.step(&loader).map(|report| (report.loss, report.verdict)).unwrap();
        (0..steps).map(|_| step()).collect()
    };
    let mut straight = scaled();
    let expected = go(&mut straight, 12);
    assert!(expected.iter().any(|step| step.1 == Verdict::Overflow), "{expected:?}");
    assert!(expected.iter().any(|step| step.1 == Verdict::Applied), "{expected:?}");
    let mut cut = Vec::new();
    let mut trainer = scaled();
    for steps in [1, 4, 2, 5] {
        let snapshot = trainer.snapshot().unwrap();
        trainer = scaled();
        trainer.restore(&snapshot).unwrap();
        cut.extend(go(&mut trainer, steps));
    }
    assert_eq!(cut, expected);
    assert_eq!(trainer.snapshot().unwrap(), straight.snapshot().unwrap());
}

/// Every schedule goes on where it was, the one that follows the validation loss too.
#[test]
fn a_restored_run_has_the_learning_rates_of_the_uninterrupted_one() {
    for decay in [
        Decay::Linear,
        Decay::StableDecay { share: 0.3 },
        Decay::Restarts { period: 3, factor: 2 },
        Decay::OneCycle,
        Decay::Exponential,
        Decay::Plateau { factor: 0.5, patience: 1 },
    ] {
        let schedule = Schedule { decay, ..options(8, 8).schedule };
        let go = |trainer: &mut Trainer, steps: usize| -> Vec<f64> {
            let loader = loader(Sampler::Random);
            let mut step = || {
                trainer.observe(4.0);
                trainer.step(&loader).unwrap().learning_rate
            };
            (0..steps).map(|_| step()).collect()
        };
        let options = TrainOptions { schedule, ..options(8, 8) };
        let mut straight = trainer(1, options.clone());
        let rates = go(&mut straight, 14);
        assert!(decay != Decay::Plateau { factor: 0.5, patience: 1 } || rates[13] < 0.5 * rates[3]);
        let mut first = trainer(1, options.clone());
        let mut cut = go(&mut first, 6);
        let mut second = trainer(1, options);
        second.restore(&first.snapshot().unwrap()).unwrap();
        cut.extend(go(&mut second, 8));
        assert_eq!(cut, rates, "{decay:?}");
        assert_eq!(straight.snapshot().unwrap(), second.snapshot().unwrap());
    }
}

/// Of a run and of one step by step, by the definition.
#[test]
fn an_average_of_the_parameters_is_evaluated_and_the_parameters_are_trained() {
    for ((one, _), (two, eps)) in backends().into_iter().zip(backends()) {
        let config = tiny(Architecture::Gpt2);
        let values = model(config.clone()).initial_values(1);
        let averaged = TrainOptions { average: 0.9, ..options(8, 4) };
        let mut averaged = Trainer::new(one, model(config.clone()), averaged, &values).unwrap();
        let mut plain = Trainer::new(two, model(config.clone()), options(8, 4), &values).unwrap();
        let (loader, mut expected) = (loader(Sampler::Random), to_f64(&values));
        for step in 1..=6 {
            for trainer in [&mut averaged, &mut plain] {
                trainer.step(&loader).unwrap();
            }
            let kept = 0.9f64.min((1.0 + f64::from(step)) / (10.0 + f64::from(step)));
            let parameters = to_f64(&plain.engine().parameters().unwrap());
            for (average, parameter) in expected.iter_mut().zip(parameters) {
                *average = kept * *average + (1.0 - kept) * parameter;
            }
        }
        // Keeping an average does not change what is learnt.
        let snapshot = averaged.snapshot().unwrap();
        assert_eq!(snapshot.parameters, plain.snapshot().unwrap().parameters);
        let average = snapshot.average.unwrap();
        assert!(distance(&to_f64(&average), &expected) < 10.0 * eps.max(1e-7));
        let stream = TokenStream::from_tokens((0..300u32).map(|i| i % 5).collect(), 300);
        let evaluate = |trainer: &mut Trainer| {
            trainer.engine().evaluate(&stream, Objective::NextToken, u64::MAX, 4).unwrap().loss
        };
        let shown = evaluate(&mut averaged);
        assert_ne!(shown, evaluate(&mut plain));
        plain.engine().set_parameters(&average).unwrap();
        assert!((shown - evaluate(&mut plain)).abs() < 1e-6);
    }
}

#[test]
fn groups_of_parameters_have_rates_and_decays_of_their_own() {
    let group =
        |pattern: &str, rate, weight_decay| ParameterGroup { pattern: pattern.into(), rate, weight_decay };
    let groups = vec![group("*.mlp.*", 0.0, None), group("*.ln_1.*", 1.0, Some(0.5))];
    for optimizer in [
        OptimizerOptions::AdamW(Betas::default()),
        OptimizerOptions::Muon { momentum: 0.95, rest: Betas::default() },
    ] {
        let mut one = trainer(1, TrainOptions { optimizer, ..options(8, 8) });
        let mut two = trainer(1, TrainOptions { optimizer, groups: groups.clone(), ..options(8, 8) });
        let before = one.engine().parameters().unwrap();
        for trainer in [&mut one, &mut two] {
            trainer.step(&loader(Sampler::Random)).unwrap();
        }
        let [usual, grouped] = [&mut one, &mut two].map(|trainer| trainer.engine().parameters().unwrap());
        for parameter in model(dropping()).layout().parameters() {
            let of = |values: &[f32]| values[parameter.range()].to_vec();
            if parameter.name.contains(".mlp.") {
                assert_eq!(of(&grouped), of(&before), "{}", parameter.name);
            } else if parameter.name.ends_with("ln_1.weight") {
                assert!(of(&grouped).iter().zip(of(&usual)).all(|(grouped, usual)| *grouped < usual));
            } else if !parameter.name.contains(".ln_1.") {
                assert_eq!(of(&grouped), of(&usual), "{}", parameter.name);
            }
        }
    }
    let unknown = TrainOptions { groups: vec![group("*.lora", 1.0, None)], ..options(8, 8) };
    let values = model(dropping()).initial_values(1);
    let device = Box::new(Cpu::new(1).unwrap());
    let message = Trainer::new(device, model(dropping()), unknown, &values).err().unwrap().to_string();
    assert!(message.contains("*.lora") && message.contains("transformer.wte.weight"), "{message}");
}

#[test]
fn muon_learns_and_does_not_depend_on_threads_or_micro_batches() {
    let optimizer = OptimizerOptions::Muon { momentum: 0.95, rest: Betas::default() };
    let run = |threads, micro_rows| {
        let options = TrainOptions { optimizer, ..options(8, micro_rows) };
        let mut trainer = trainer_of(tiny(Architecture::Llama), threads, options);
        losses(&mut trainer, &loader(Sampler::Random), 20)
    };
    let one = run(1, 8);
    assert!(one[19] < 0.95 * one[0], "{one:?}");
    assert_eq!(run(2, 8), one);
    assert!(distance(&run(1, 2), &one) < 1e-2);
}

#[test]
fn a_run_does_not_go_on_with_another_optimiser() {
    let snapshot = trainer(1, options(8, 4)).snapshot().unwrap();
    let mut other =
        trainer(1, TrainOptions { optimizer: OptimizerOptions::Sgd { momentum: 0.9 }, ..options(8, 4) });
    let message = other.restore(&snapshot).unwrap_err().to_string();
    assert!(message.contains("optimizer = sgd") && message.contains("adamw"), "{message}");
}

#[test]
fn computing_blocks_again_changes_no_bit_and_saves_memory() {
    for config in kinds() {
        let config = ModelConfig { dropout: 0.3, layers: 4, ..config };
        let run = |recompute| {
            let options = TrainOptions { recompute, ..options(8, 4) };
            let mut trainer = trainer_of(config.clone(), 2, options.clone());
            let losses = losses(&mut trainer, &loader(Sampler::Random), 3);
            let options = TrainOptions { objective: objective(&config), ..options };
            let plan = Trainer::plan(&model(config.clone()), &options).unwrap();
            (losses, trainer.engine().parameters().unwrap(), plan.arena_bytes)
        };
        let (kept, again) = (run(false), run(true));
        assert_eq!((kept.0, kept.1), (again.0, again.1));
        assert!(again.2 < kept.2 * 3 / 4, "{} {}", again.2, kept.2);
    }
}

#[test]
fn label_smoothing_and_z_loss_reach_the_loss() {
    let first_loss = |loss| {
        let mut trainer = trainer(1, TrainOptions { loss, ..options(8, 8) });
        losses(&mut trainer, &loader(Sampler::Random), 1)[0]
    };
    let plain = first_loss(LossShape::default());
    let z = first_loss(LossShape { label_smoothing: 0.0, z_loss: 0.1 });
    // Untrained logits are near 0, so their log-sum-exp is near ln 37.
    assert!((z - plain - 0.1 * 37f64.ln().powi(2)).abs() < 0.05, "{plain} {z}");
    assert_ne!(plain, first_loss(LossShape { label_smoothing: 0.2, z_loss: 0.0 }));
}

#[test]
fn passes_do_not_change_what_is_learnt() {
    let mut fused = trainer(2, options(8, 4));
    let mut plain = trainer(2, TrainOptions { passes: Passes::NONE, ..options(8, 4) });
    let (a, b) =
        (losses(&mut fused, &loader(Sampler::Random), 10), losses(&mut plain, &loader(Sampler::Random), 10));
    assert!(distance(&a, &b) < 1e-4, "{a:?} {b:?}");
    let distance = distance(
        &to_f64(&fused.engine().parameters().unwrap()),
        &to_f64(&plain.engine().parameters().unwrap()),
    );
    assert!(distance < 1e-3, "{distance}");
}

#[test]
fn training_lowers_the_loss_and_evaluation_sees_it() {
    let stream = TokenStream::from_tokens((0..997u32).map(|i| i % 5).collect(), 997);
    let loader = Loader::new(stream.clone(), Sampler::Shuffled, 5, 12, 8).unwrap();
    let mut trainer = trainer(2, options(8, 8));
    let before = trainer.engine().evaluate(&stream, Objective::NextToken, u64::MAX, 4).unwrap();
    let losses = losses(&mut trainer, &loader, 20);
    let after = trainer.engine().evaluate(&stream, Objective::NextToken, u64::MAX, 4).unwrap();
    assert!((before.loss - 37f64.ln()).abs() < 0.2, "{before:?}");
    assert!(after.loss < 0.6 * before.loss, "{before:?} {after:?} {losses:?}");
    assert_eq!(after.tokens, 996);
    let bits = after.loss / std::f64::consts::LN_2;
    assert!((after.bits_per_byte.unwrap() - bits).abs() < 1e-9);
    // The mean over all windows does not depend on how many run at a time.
    let again = trainer.engine().evaluate(&stream, Objective::NextToken, u64::MAX, 7).unwrap();
    assert!((again.loss - after.loss).abs() < 1e-5);
    assert_eq!(trainer.engine().evaluate(&stream, Objective::NextToken, 100, 4).unwrap().tokens, 100);
}

#[test]
fn tokens_before_every_window_are_seen_and_not_predicted() {
    let tokens: Vec<u32> = (0..30).map(|i| i * 7 % 31).collect();
    let stream = TokenStream::from_tokens(tokens.clone(), 30);
    let mut trainer = trainer(2, options(8, 8));
    losses(&mut trainer, &loader(Sampler::Random), 3);
    let engine = trainer.engine();
    let never = AtomicBool::new(false);
    let before = [36, 35];
    let room = engine.model().config().context - before.len();
    // The first token of a window is only seen: the window before has predicted it.
    let windows: Vec<Continuation> = (0..29)
        .step_by(room)
        .map(|start| {
            let window = &tokens[start..(start + room + 1).min(30)];
            Continuation { ids: [&before, window].concat(), asked: window.len() - 1 }
        })
        .collect();
    let sum: f64 = engine.log_likelihoods(&windows, 64, &mut |_| (), &never).unwrap().iter().sum();
    let mut evaluate = |before: &[u32], rows| {
        let set = EvaluationSet::Complete;
        engine.evaluate_behind(before, &stream, Objective::NextToken, set, rows, &never)
    };
    for rows in [1, 2, 5] {
        let found = evaluate(&before, rows).unwrap();
        assert_eq!(found.tokens, 29);
        assert!((found.loss + sum / 29.0).abs() < 1e-5, "{found:?} {sum}");
    }
    assert_ne!(evaluate(&before, 2).unwrap().loss, evaluate(&[], 2).unwrap().loss);
    assert!(evaluate(&[0; 12], 2).is_err());
}

#[test]
fn tokens_that_begin_documents_are_not_put_before_them_again_nor_predicted() {
    let document = |from: u32| [36].into_iter().chain((from..from + 10).map(|i| i * 7 % 31));
    let tokens: Vec<u32> = document(0).chain(document(3)).collect();
    let stream = TokenStream::from_tokens(tokens.clone(), 20);
    let mut trainer = trainer(2, options(8, 8));
    losses(&mut trainer, &loader(Sampler::Random), 3);
    let engine = trainer.engine();
    assert_eq!(engine.model().config().context, 12, "a document is a window less the token before it");
    let never = AtomicBool::new(false);
    let documents: Vec<Continuation> =
        tokens.chunks(11).map(|ids| Continuation { ids: ids.to_vec(), asked: 10 }).collect();
    let sum: f64 = engine.log_likelihoods(&documents, 64, &mut |_| (), &never).unwrap().iter().sum();
    let set = EvaluationSet::Complete;
    let found = engine.evaluate_behind(&[36], &stream, Objective::NextToken, set, 2, &never).unwrap();
    assert_eq!(found.tokens, 20);
    assert!((found.loss + sum / 20.0).abs() < 1e-5, "{found:?} {sum}");
    // A token that begins a document has no bytes and is not asked for, so it is a token of neither.
    let bytes = 20.0 / 22.0 * 21.0;
    let bits = -sum / std::f64::consts::LN_2 / bytes;
    assert!((found.bits_per_byte.unwrap() - bits).abs() < 1e-5, "{found:?} {bits}");
}

#[test]
fn a_gradient_that_is_not_finite_stops_the_run_and_leaves_the_weights() {
    let mut trainer = trainer(2, options(8, 4));
    let loader = loader(Sampler::Random);
    losses(&mut trainer, &loader, 2);
    let mut poisoned = trainer.engine().parameters().unwrap();
    poisoned[0] = f32::NAN;
    trainer.engine().set_parameters(&poisoned).unwrap();
    let before = trainer.snapshot().unwrap();
    match trainer.step(&loader).unwrap_err() {
        Error::Refused { step: 3, verdict: Verdict::NotFinite, .. } => {}
        error => panic!("{error}"),
    }
    let after = trainer.snapshot().unwrap();
    assert_eq!(before.state, after.state);
    assert_eq!(before.first_moment, after.first_moment);
    let same = before.parameters.iter().zip(&after.parameters).all(|(a, b)| a.to_bits() == b.to_bits());
    assert!(same, "parameters changed");
}

#[test]
fn a_step_without_targets_is_an_alarm() {
    for (device, _) in backends() {
        let values = model(dropping()).initial_values(1);
        let mut trainer = Trainer::new(device, model(dropping()), options(8, 4), &values).unwrap();
        let mut batch = Batch::new(8, 12);
        batch.targets.fill(IGNORED);
        let report = trainer.step_on(&batch).unwrap();
        assert_eq!((report.alarm(), report.targets, report.norm), (Some(Alarm::NoTargets), 0, 0.0));
        assert_eq!(trainer.snapshot().unwrap().state.guard.steps, 0.0);
    }
}

#[test]
fn an_encoder_learns_to_fill_in_hidden_tokens() {
    let stream = TokenStream::from_tokens((0..997u32).map(|i| i % 5).collect(), 997);
    let loader = Loader::new(stream.clone(), Sampler::Shuffled, 5, 12, 8).unwrap();
    let config = tiny(Architecture::Encoder);
    let masked = objective(&config);
    let mut trainer = trainer_of(config, 2, options(8, 8));
    let before = trainer.engine().evaluate(&stream, masked, u64::MAX, 4).unwrap();
    for _ in 0..60 {
        trainer.step(&loader).unwrap();
    }
    let after = trainer.engine().evaluate(&stream, masked, u64::MAX, 4).unwrap();
    assert!(after.loss < 0.6 * before.loss, "{before:?} {after:?}");
    assert_eq!((after.tokens, after.bits_per_byte), (before.tokens, None));
    assert!((0.1..0.2).contains(&(after.tokens as f64 / 996.0)), "{after:?}");
}

#[test]
fn settings_that_make_no_step_are_refused_by_name() {
    let gpt2 = || model(tiny(Architecture::Gpt2));
    let values = gpt2().initial_values(1);
    for (options, key) in [
        (options(8, 3), "micro_batch"),
        (options(0, 1), "batch_tokens"),
        (TrainOptions { lengths: vec![13], ..options(8, 4) }, "context"),
        (TrainOptions { objective: Objective::MaskedToken { mask: 1 }, ..options(8, 4) }, "objective"),
    ] {
        let device = Box::new(Cpu::new(1).unwrap());
        let message = Trainer::new(device, gpt2(), options, &values).err().unwrap().to_string();
        assert!(message.contains(key), "{message}");
    }
}

#[test]
fn the_memory_plan_counts_what_a_run_takes() {
    let gpt2 = model(tiny(Architecture::Gpt2));
    let plan = Trainer::plan(&gpt2, &options(8, 4)).unwrap();
    let flat = gpt2.layout().len() * 4;
    assert_eq!(plan.states.iter().filter(|state| state.1 == flat).count(), 4);
    assert!(plan.arena_bytes < plan.unshared_bytes * 2 / 3, "{plan:?}");
    let larger = Trainer::plan(&gpt2, &options(8, 8)).unwrap();
    assert!(larger.arena_bytes > plan.arena_bytes);
}
