//! Global norm, clipping and AdamW, on every backend against the reference.

use ironmill_compute::{AdamW, DType, Device, HostData};
use ironmill_graph::{Layout, OptimiserState, Passes, Runtime, States, adamw_update};

use crate::{
    cases::normals,
    harness::{DEVICES, cpu, exact},
    tolerance::{assert_close, relative},
};

/// The flat buffers after some steps, and the norms on the way.
#[derive(PartialEq)]
struct Outcome {
    norms: Vec<f64>,
    parameters: Vec<f64>,
    moments: [Vec<f64>; 2],
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
fn steps(device: Box<dyn Device>, clip: f32, gradients: &[Vec<f64>]) -> Outcome {
    let layout = layout();
    let len = layout.len();
    let mut states = States::default();
    let mut flat = |name| states.declare(name, DType::F32, len);
    let state = OptimiserState {
        parameters: flat("parameters"),
        gradients: flat("gradients"),
        first_moment: flat("first moment"),
        second_moment: flat("second moment"),
        counter: states.declare("counter", DType::U32, 1),
        len,
    };
    let adamw = AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8, clip, ranges: layout.update_ranges(0.1) };
    let update = adamw_update(state, adamw);
    let mut runtime = Runtime::new(device, &states).unwrap();
    let program = runtime.compile(update.graph, &Passes::ALL).unwrap();
    runtime.write_state(state.parameters, 0..len, HostData::F64(&normals(1, len))).unwrap();
    runtime.write(program, update.learning_rate, HostData::F32(&[0.01])).unwrap();
    let mut norms = Vec::new();
    for gradients in gradients {
        runtime.write_state(state.gradients, 0..len, HostData::F64(gradients)).unwrap();
        runtime.run(program).unwrap();
        norms.push(runtime.read_f64(program, update.norm).unwrap()[0]);
    }
    let read = |state| runtime.read_state_f64(state, 0..len).unwrap();
    Outcome {
        norms,
        parameters: read(state.parameters),
        moments: [read(state.first_moment), read(state.second_moment)],
        counter: runtime.read_state_f64(state.counter, 0..1).unwrap()[0],
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
    for clip in [0.0, 1.0, 1e6] {
        let expected = steps(exact(), clip, &gradients);
        let got = steps(cpu(2), clip, &gradients);
        let epsilon = DType::F32.epsilon();
        assert_close("norms", &got.norms, &expected.norms, relative(1.0, epsilon, 1));
        assert_close("parameters", &got.parameters, &expected.parameters, relative(4.0, epsilon, 1));
        for (got, expected) in got.moments.iter().zip(&expected.moments) {
            assert_close("moments", got, expected, relative(4.0, epsilon, 1));
        }
        assert_eq!(got.counter, 4.0);
    }
}

#[test]
fn frozen_parameters_and_padding_never_move() {
    let layout = layout();
    let before = normals(1, layout.len());
    for device in DEVICES {
        let after = steps(device(), 1.0, &[gradients(0)]);
        for (element, (after, before)) in after.parameters.iter().zip(&before).enumerate() {
            let trained = layout.parameters().iter().any(|p| p.trainable && p.range().contains(&element));
            assert_eq!(after != before, trained, "element {element}");
        }
    }
}

#[test]
fn a_gradient_that_is_not_finite_changes_nothing() {
    for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        for device in DEVICES {
            let mut broken = gradients(1);
            broken[4321] = bad;
            let skipped = steps(device(), 1.0, &[gradients(0), broken, gradients(2)]);
            let clean = steps(device(), 1.0, &[gradients(0), gradients(2)]);
            assert!(!skipped.norms[1].is_finite());
            assert!(skipped.parameters == clean.parameters && skipped.moments == clean.moments);
            assert_eq!(skipped.counter, 2.0);
        }
    }
}
