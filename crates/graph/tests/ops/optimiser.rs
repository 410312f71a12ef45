//! Global norm, clipping and the optimisers, on every backend against the reference.

use std::sync::Arc;

use ironmill_compute::{
    Adam, DType, Device, GUARD_STATISTICS, Guard, HostData, Reference, Sgd, UpdateRange, Verdict,
};
use ironmill_graph::{
    EightBits, Layout, Muon, MuonMatrix, Optimiser, OptimiserState, Passes, Runtime, States, update_program,
};

use crate::{
    cases::normals,
    harness::{DEVICES, cpu, exact},
    tolerance::{assert_close, relative},
};

/// An optimiser without its ranges.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Adam { decoupled: bool },
    Sgd { momentum: f32 },
}

const KINDS: [Kind; 4] = [
    Kind::Adam { decoupled: true },
    Kind::Adam { decoupled: false },
    Kind::Sgd { momentum: 0.9 },
    Kind::Sgd { momentum: 0.0 },
];

impl Kind {
    fn with(self, ranges: Arc<[UpdateRange]>) -> Optimiser {
        match self {
            Kind::Adam { decoupled } => {
                Optimiser::Adam(Adam { beta1: 0.9, beta2: 0.95, eps: 1e-8, decoupled, ranges })
            }
            Kind::Sgd { momentum } => Optimiser::Sgd(Sgd { momentum, ranges }),
        }
    }

    /// Where decay adds to the gradient it stays below a clipped one: where the two nearly cancel, Adam's direction would
    /// magnify rounding.
    fn weight_decay(self) -> f32 {
        match self {
            Kind::Adam { decoupled: false } => 1e-4,
            Kind::Adam { decoupled: true } | Kind::Sgd { .. } => 0.1,
        }
    }
}

/// The flat buffers after some steps, and the norms on the way.
#[derive(PartialEq)]
struct Outcome {
    norms: Vec<f64>,
    verdicts: Vec<Verdict>,
    parameters: Vec<f64>,
    moments: Vec<Vec<f64>>,
    counter: f64,
}

/// Two parameters that decay and do not, one that is frozen, and padding behind each.
fn layout() -> Layout {
    let mut layout = Layout::default();
    layout.add("weight", &[70, 131], true);
    layout.add("bias", &[131], false);
    layout.add("frozen", &[5], true);
    layout.parameters_mut()[2].trainable = false;
    layout
}

/// Runs a step per list of gradients.
fn steps(device: Box<dyn Device>, kind: Kind, clip: f32, gradients: &[Vec<f64>]) -> Outcome {
    let layout = layout();
    let optimiser = kind.with(layout.update_ranges(kind.weight_decay()));
    run(device, clipping(clip), optimiser, 0.01, &normals(1, layout.len()), gradients)
}

/// A guard that refuses only what is not finite.
fn clipping(clip: f32) -> Guard {
    Guard { clip, loss_outlier: 0.0, norm_outlier: 0.0, warmup: 0, holds: false }
}

/// The buffers of an optimiser.
fn declare(states: &mut States, optimiser: &Optimiser, len: usize) -> OptimiserState {
    let mut flat = |name| states.declare(name, DType::F32, len);
    let (parameters, gradient_state, first_moment) =
        (flat("parameters"), flat("gradients"), flat("first moment"));
    let second_moment = (!matches!(optimiser, Optimiser::Sgd(_))).then(|| flat("second moment"));
    let counter = states.declare("counter", DType::U32, 1);
    OptimiserState {
        parameters,
        gradients: gradient_state,
        first_moment,
        second_moment,
        counter,
        loss: states.declare("loss", DType::F32, 1),
        guard: states.declare("guard", DType::F32, GUARD_STATISTICS),
        average: None,
        working: None,
        len,
    }
}

fn run(
    device: Box<dyn Device>,
    guard: Guard,
    optimiser: Optimiser,
    rate: f32,
    start: &[f64],
    gradients: &[Vec<f64>],
) -> Outcome {
    let len = start.len();
    let mut states = States::default();
    let state = declare(&mut states, &optimiser, len);
    let OptimiserState { parameters, first_moment, second_moment, counter, .. } = state;
    let update = update_program(state, guard, optimiser);
    let mut runtime = Runtime::new(device, &states).unwrap();
    let program = runtime.compile(update.graph, &Passes::ALL).unwrap();
    runtime.write_state(state.parameters, 0..len, HostData::F64(start)).unwrap();
    runtime.write(program, update.learning_rate, HostData::F32(&[rate])).unwrap();
    runtime.write(program, update.targets, HostData::F32(&[1.0])).unwrap();
    let (mut norms, mut verdicts) = (Vec::new(), Vec::new());
    for gradients in gradients {
        runtime.write_state(state.gradients, 0..len, HostData::F64(gradients)).unwrap();
        runtime.run(program).unwrap();
        norms.push(runtime.read_f64(program, update.norm).unwrap()[0]);
        let report = runtime.read_f64(program, update.report).unwrap();
        verdicts.push(Verdict::from_number(report[0] as f32));
    }
    let read = |state| runtime.read_state_f64(state, 0..len).unwrap();
    Outcome {
        norms,
        verdicts,
        parameters: read(parameters),
        moments: [Some(first_moment), second_moment].into_iter().flatten().map(read).collect(),
        counter: runtime.read_state_f64(counter, 0..1).unwrap()[0],
    }
}

/// Gradients away from zero, where Adam's direction would magnify rounding; zero outside the trained parameters.
fn gradients(step: u32) -> Vec<f64> {
    let layout = layout();
    let mut gradients = vec![0.0; layout.len()];
    for parameter in layout.parameters().iter().filter(|p| p.trainable) {
        for (element, x) in parameter.range().zip(normals(10 + step, layout.len())) {
            gradients[element] = f64::from((x + x.signum()) as f32);
        }
    }
    gradients
}

#[test]
fn cpu_updates_as_the_reference_does() {
    let gradients: Vec<Vec<f64>> = (0..4).map(gradients).collect();
    let epsilon = DType::F32.epsilon();
    for kind in KINDS {
        for clip in [0.0, 1.0, 1e6] {
            let expected = steps(exact(), kind, clip, &gradients);
            let got = steps(cpu(2), kind, clip, &gradients);
            let name = |what| format!("{what} of {kind:?}, clip {clip}");
            assert_close(&name("norms"), &got.norms, &expected.norms, relative(1.0, epsilon, 1));
            let bound = relative(4.0, epsilon, 1);
            assert_close(&name("parameters"), &got.parameters, &expected.parameters, bound);
            assert_eq!(got.moments.len(), expected.moments.len());
            for (got, expected) in got.moments.iter().zip(&expected.moments) {
                assert_close(&name("moments"), got, expected, bound);
            }
            assert_eq!(got.counter, 4.0);
        }
    }
}

/// Whatever moves the masters, their working copy is what they round to; what is frozen is there from the beginning.
#[test]
fn a_working_copy_follows_its_masters() {
    let layout = layout();
    let (len, start) = (layout.len(), normals(1, layout.len()));
    for kind in KINDS {
        let optimiser = kind.with(layout.update_ranges(kind.weight_decay()));
        let mut states = States::default();
        let state = declare(&mut states, &optimiser, len);
        let copy = states.declare("working copy", DType::BF16, len);
        let state = OptimiserState { working: Some((copy, DType::BF16)), ..state };
        let update = update_program(state, clipping(1.0), optimiser);
        let mut runtime = Runtime::new(Box::new(Reference::rounded()), &states).unwrap();
        let program = runtime.compile(update.graph, &Passes::ALL).unwrap();
        let rounded = |masters: &[f64]| masters.iter().map(|&x| DType::BF16.round(x)).collect::<Vec<_>>();
        runtime.write_state(state.parameters, 0..len, HostData::F64(&start)).unwrap();
        runtime.write_state(copy, 0..len, HostData::F64(&rounded(&start))).unwrap();
        runtime.write(program, update.learning_rate, HostData::F32(&[0.01])).unwrap();
        runtime.write(program, update.targets, HostData::F32(&[1.0])).unwrap();
        // The second step is refused.
        for gradients in [gradients(0), vec![f64::NAN; len], gradients(1)] {
            runtime.write_state(state.gradients, 0..len, HostData::F64(&gradients)).unwrap();
            runtime.run(program).unwrap();
            let [masters, copied] =
                [state.parameters, copy].map(|state| runtime.read_state_f64(state, 0..len).unwrap());
            assert_ne!(masters, start);
            assert_eq!(copied, rounded(&masters), "{kind:?}");
        }
    }
}

/// One parameter, two steps with the same gradient, by hand: rate 0.1, decay 0.1, gradient 0.5, parameter 1 at first.
#[test]
fn two_steps_of_every_optimiser_have_the_values_of_their_definitions() {
    // AdamW's direction is 1 for a constant gradient: 1·0.99 − 0.1 = 0.89, then 0.89·0.99 − 0.1.
    let adam_w = [0.89, 0.7811];
    // Adam's gradient is 0.5 + 0.1·parameter: 0.6, then 0.59.
    let (first, second): (f64, f64) =
        ((0.09 * 0.6 + 0.1 * 0.59) / 0.19, (0.95 * 0.05 * 0.36 + 0.05 * 0.59 * 0.59) / 0.0975);
    let adam = [0.9, 0.9 - 0.1 * first / second.sqrt()];
    // The running sum is 0.6, then 0.9·0.6 + 0.594; without momentum 0.6, then 0.594.
    let momentum = [0.94, 0.94 - 0.1134];
    let plain = [0.94, 0.94 - 0.0594];
    for (kind, expected) in KINDS.into_iter().zip([adam_w, adam, momentum, plain]) {
        let ranges: Arc<[UpdateRange]> =
            Arc::from([UpdateRange { start: 0, len: 1, weight_decay: 0.1, rate: 1.0 }]);
        for device in DEVICES {
            for steps in [1, 2] {
                let optimiser = kind.with(ranges.clone());
                let outcome = run(device(), clipping(0.0), optimiser, 0.1, &[1.0], &vec![vec![0.5]; steps]);
                // The constants are numbers of f32.
                assert_close(&format!("{kind:?}"), &outcome.parameters, &[expected[steps - 1]], 1e-6);
            }
        }
    }
}

/// Gradients scaled by hand have the norm of the clip, so clipping the originals must give the same.
#[test]
fn clipping_scales_all_gradients_to_the_norm_that_is_allowed() {
    for kind in KINDS {
        let norm = steps(exact(), kind, 0.0, &[gradients(0)]).norms[0];
        let scaled: Vec<f64> = gradients(0).iter().map(|gradient| gradient * 2.0 / norm).collect();
        let clipped = steps(exact(), kind, 2.0, &[gradients(0)]);
        let by_hand = steps(exact(), kind, 0.0, &[scaled]);
        assert_close("parameters", &clipped.parameters, &by_hand.parameters, 1e-12);
        assert_close("momentum", &clipped.moments[0], &by_hand.moments[0], 1e-12);
    }
}

#[test]
fn frozen_parameters_and_padding_never_move() {
    let layout = layout();
    let before = normals(1, layout.len());
    for kind in KINDS {
        for device in DEVICES {
            let after = steps(device(), kind, 1.0, &[gradients(0)]);
            for (element, (after, before)) in after.parameters.iter().zip(&before).enumerate() {
                let trained = layout.parameters().iter().any(|p| p.trainable && p.range().contains(&element));
                assert_eq!(after != before, trained, "{kind:?}, element {element}");
            }
        }
    }
}

#[test]
fn a_gradient_that_is_not_finite_changes_nothing() {
    for kind in KINDS {
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            for (device, clip) in DEVICES.into_iter().flat_map(|device| [(device, 1.0), (device, 0.0)]) {
                let mut broken = gradients(1);
                broken[4321] = bad;
                let skipped = steps(device(), kind, clip, &[gradients(0), broken, gradients(2)]);
                let clean = steps(device(), kind, clip, &[gradients(0), gradients(2)]);
                assert!(!skipped.norms[1].is_finite());
                assert!(skipped.parameters == clean.parameters && skipped.moments == clean.moments);
                assert_eq!(skipped.counter, 2.0);
            }
        }
    }
}

/// Steps whose norms go up and down a little, then one of a hundred times the gradients, then plain ones again.
#[test]
fn an_outlier_changes_nothing_and_a_guard_that_holds_refuses_what_follows() {
    let mut all: Vec<Vec<f64>> = (0..8).map(gradients).collect();
    all[6].iter_mut().for_each(|gradient| *gradient *= 100.0);
    for kind in KINDS {
        for (device, holds) in DEVICES.into_iter().flat_map(|device| [(device, false), (device, true)]) {
            let guard = Guard { norm_outlier: 5.0, warmup: 6, holds, ..clipping(1.0) };
            let optimiser = || kind.with(layout().update_ranges(kind.weight_decay()));
            let start = normals(1, layout().len());
            let guarded = run(device(), guard, optimiser(), 0.01, &start, &all);
            let mut kept = all.clone();
            kept.truncate(if holds { 6 } else { 8 });
            if !holds {
                kept.remove(6);
            }
            let clean = run(device(), clipping(1.0), optimiser(), 0.01, &start, &kept);
            let last = if holds { Verdict::Held } else { Verdict::Applied };
            assert_eq!(guarded.verdicts[..6], [Verdict::Applied; 6], "{kind:?}");
            assert_eq!(guarded.verdicts[6..], [Verdict::NormOutlier, last], "{kind:?}");
            assert!(guarded.parameters == clean.parameters && guarded.moments == clean.moments);
            assert_eq!(guarded.counter, clean.counter);
        }
    }
}

/// A range of half the rate moves as one at half the learning rate does.
#[test]
fn a_range_has_a_rate_of_its_own() {
    for kind in KINDS {
        for device in DEVICES {
            let ranges = |rate| -> Arc<[UpdateRange]> {
                Arc::from([UpdateRange { start: 0, len: 1, weight_decay: 0.1, rate }])
            };
            let go = |rate, share| {
                run(device(), clipping(0.0), kind.with(ranges(share)), rate, &[1.0], &vec![vec![0.5]; 3])
            };
            assert_close(&format!("{kind:?}"), &go(0.1, 0.5).parameters, &go(0.05, 1.0).parameters, 1e-6);
        }
    }
}

/// Eight bits are for the products of layers; those that make a matrix orthogonal would be spoilt by them.
#[test]
fn products_of_an_optimiser_are_never_of_eight_bits() {
    let adam = Adam { beta1: 0.9, beta2: 0.95, eps: 1e-8, decoupled: true, ranges: Arc::from([]) };
    let matrix = MuonMatrix { start: 0, rows: 32, columns: 48, weight_decay: 0.0, rate: 1.0 };
    let optimiser = Optimiser::Muon(Muon { momentum: 0.9, matrices: vec![matrix], rest: adam });
    let mut states = States::default();
    let state = declare(&mut states, &optimiser, 32 * 48);
    let update = update_program(state, clipping(1.0), optimiser);
    let mut runtime = Runtime::new(exact(), &states).unwrap();
    let passes = Passes { eight_bits: EightBits::Blocks, ..Passes::ALL };
    let program = runtime.compile(update.graph, &passes).unwrap();
    assert!(runtime.kernels(program).all(|kernel| !kernel.name().contains("quantise")));
    assert_eq!(runtime.kernels(program).map(|kernel| kernel.matrix_products()).sum::<usize>(), 15);
}
