//! Accumulation, frozen parameters, thread counts, and what cannot be trained.

use ironmill_compute::{DType, HostData, Kernel, Mask, TensorType};
use ironmill_graph::{Accumulate, Error, Graph, Heads, Kind, Layout, Passes, States};

use crate::{
    harness::{DEVICES, cpu, exact},
    passes::{MODEL_CONSTANT, assert_gradients_close},
    tiny::{MEDIUM, Model, SMALL, Trial, train},
    tolerance::{assert_close, largest, relative},
};

#[test]
fn gradients_of_a_whole_model_match_central_differences() {
    const H: f64 = 1e-5;
    let model = Model::new(SMALL);
    let mut trial = Trial::new(&model, exact(), &Passes::ALL);
    let program = trial.compile(model.micro(2, false), &Passes::ALL);
    trial.run(&program, 0..2, 2, 0);
    let gradients = trial.gradients();
    let bound = 1e-6 * largest(&gradients).max(1.0);
    // The seed is the f32 nearest to one over the number of targets.
    let seed = f64::from((1.0 / (2 * SMALL.positions) as f64) as f32);
    let values = trial.parameters();
    for parameter in model.layout.parameters() {
        let middle = parameter.offset + parameter.shape.elements() / 2;
        for element in [parameter.offset, middle, parameter.range().end - 1] {
            let mut at = |x: f64| {
                let state = model.optimiser.parameters;
                trial.runtime.write_state(state, element..element + 1, HostData::F64(&[x])).unwrap();
                seed * trial.run(&program, 0..2, 2, 0)
            };
            let numeric = (at(values[element] + H) - at(values[element] - H)) / (2.0 * H);
            at(values[element]);
            let error = (gradients[element] - numeric).abs();
            assert!(
                error <= bound,
                "{}: {} and {numeric} are apart by {error:e}",
                parameter.name,
                gradients[element]
            );
        }
    }
}

/// With dropout on: a mask belongs to a sample, not to its place in a micro-batch.
#[test]
fn two_micro_batches_accumulate_to_the_gradients_of_one_batch() {
    let bound = relative(MODEL_CONSTANT, DType::F32.epsilon(), 4 * MEDIUM.channels);
    let model = Model::new(MEDIUM);
    for (device, bound) in DEVICES.into_iter().zip([1e-12, bound]) {
        for passes in [Passes::ALL, Passes::NONE] {
            let mut whole = Trial::new(&model, device(), &passes);
            let batch = whole.compile(model.micro(4, false), &passes);
            let loss = whole.run(&batch, 8..12, 4, 3);

            let mut parts = Trial::new(&model, device(), &passes);
            let first = parts.compile(model.micro(2, false), &passes);
            let others = parts.compile(model.micro(2, true), &passes);
            // Whatever an earlier step left is overwritten by the first micro-batch.
            parts.run(&first, 0..2, 4, 2);
            let sum = parts.run(&first, 8..10, 4, 3) + parts.run(&others, 10..12, 4, 3);

            assert_close("loss", &[sum], &[loss], bound);
            assert_gradients_close(&model, "accumulated", &parts.gradients(), &whole.gradients(), bound);
        }
    }
}

#[test]
fn dropout_depends_on_the_step_and_the_sample() {
    let model = Model::new(SMALL);
    let mut trial = Trial::new(&model, exact(), &Passes::ALL);
    let program = trial.compile(model.micro(1, false), &Passes::ALL);
    let mut gradients = |samples: std::ops::Range<u32>, step| {
        trial.run(&program, samples, 1, step);
        trial.gradients()
    };
    let first = gradients(0..1, 0);
    assert_ne!(first, gradients(0..1, 1));
    assert_ne!(first, gradients(1..2, 0));
    assert_eq!(first, gradients(0..1, 0));
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let model = Model::new(MEDIUM);
    let one = train(&model, cpu(1), &Passes::ALL);
    for threads in [2, 3] {
        assert_eq!(train(&model, cpu(threads), &Passes::ALL), one, "{threads} threads");
    }
}

#[test]
fn frozen_parameters_get_no_gradient_and_cost_no_backward() {
    let mut model = Model::new(SMALL);
    let names: Vec<String> = model.layout.parameters().iter().map(|p| p.name.clone()).collect();
    for parameter in model.layout.parameters_mut() {
        parameter.trainable = parameter.name.starts_with("1.down") || parameter.name == "norm.gain";
    }
    let micro = model.micro(2, false);
    let forward = model.forward(2).graph.nodes().len();
    let backward: Vec<&str> = micro.graph.nodes()[forward..].iter().map(|node| node.kernel.name()).collect();
    let expected = [
        "broadcast",
        "cross_entropy_grad",
        "linear_grad_input",
        "layer_norm_grad_input",
        "layer_norm_grad_params",
        "state_write",
        "dropout",
        "linear_grad_weight",
        "linear_grad_bias",
        "state_write",
        "state_write",
    ];
    assert_eq!(backward, expected);
    for node in micro.graph.nodes() {
        for &output in &node.outputs {
            if let Kind::State { offset, .. } = micro.graph.info(output).kind {
                let written = model.layout.parameters().iter().find(|p| p.offset == offset).unwrap();
                assert!(written.trainable, "{} is written by {}", written.name, node.kernel.name());
            }
        }
    }

    let mut trial = Trial::new(&model, exact(), &Passes::ALL);
    let program = trial.compile(micro, &Passes::ALL);
    let sentinel = vec![7.0; model.layout.len()];
    trial
        .runtime
        .write_state(model.optimiser.gradients, 0..sentinel.len(), HostData::F64(&sentinel))
        .unwrap();
    let before = trial.parameters();
    trial.run(&program, 0..2, 2, 0);
    trial.update();
    let (gradients, after) = (trial.gradients(), trial.parameters());
    for name in &names {
        let range = model.range(name);
        let trained = name.starts_with("1.down") || name == "norm.gain";
        assert_eq!(gradients[range.clone()].contains(&7.0), !trained, "{name}");
        assert_eq!(after[range.clone()] == before[range], !trained, "{name}");
    }
}

#[test]
fn a_loss_above_no_trainable_parameter_cannot_be_trained() {
    let (mut layout, mut states) = (Layout::default(), States::default());
    layout.add("used", &[3], true);
    layout.add("unused", &[3], true);
    let parameters = states.declare("parameters", DType::F32, layout.len());
    let gradients = states.declare("gradients", DType::F32, layout.len());
    let mut train = |used_trains: bool, unused_trains: bool| {
        layout.parameters_mut()[0].trainable = used_trains;
        layout.parameters_mut()[1].trainable = unused_trains;
        let mut g = Graph::new();
        let [used, _] = [0, 1].map(|i| g.parameter(parameters, &layout.parameters()[i]));
        let seed = g.input("seed", &[1], DType::F32);
        let loss = g.sum(used).unwrap();
        g.train(loss, seed, Accumulate { gradients, add: false })
    };
    assert!(train(true, true).is_ok());
    for unused_trains in [false, true] {
        let error = train(false, unused_trains).unwrap_err();
        assert!(matches!(error, Error::NothingToTrain), "{error}");
    }
}

#[test]
fn a_gradient_cannot_be_differentiated_again() {
    let mut g = Graph::new();
    let x = g.input("x", &[3], DType::F32);
    let seed = g.input("seed", &[3], DType::F32);
    let y = g.gelu(x).unwrap();
    let d_x = g.gradients(&[(y, seed)], &[x]).unwrap()[0].unwrap();
    assert_refused(g.gradients(&[(d_x, seed)], &[x]).unwrap_err(), "gelu_grad");
}

#[test]
fn the_weights_of_a_loss_have_no_gradient() {
    let mut g = Graph::new();
    let logits = g.input("logits", &[2, 3], DType::F32);
    let targets = g.input("targets", &[2], DType::U32);
    let weights = g.input("weights", &[2], DType::F32);
    let seed = g.input("seed", &[2], DType::F32);
    let losses = g.cross_entropy(logits, targets, weights, Default::default()).unwrap();
    assert_refused(g.gradients(&[(losses, seed)], &[weights]).unwrap_err(), "cross_entropy");
}

#[test]
fn attention_over_a_cache_has_no_gradient() {
    let mut states = States::default();
    let caches = ["keys", "values"].map(|name| states.declare(name, DType::F32, 8 * 4));
    let mut g = Graph::new();
    let caches = caches.map(|cache| g.state(cache, 0, TensorType::new(&[1, 8, 4], DType::F32)));
    let qkv = ["q", "k", "v"].map(|name| g.input(name, &[1, 2, 4], DType::F32));
    let places = g.input("places", &[1, 2], DType::U32);
    let seed = g.input("seed", &[1, 2, 4], DType::F32);
    let heads = Heads { queries: 2, keys: 2, mask: Mask::Causal, window: 0 };
    let out = g.cached_attention(qkv, caches, places, heads).unwrap();
    assert_refused(g.gradients(&[(out, seed)], &qkv).unwrap_err(), "attention");
}

#[test]
fn nothing_flows_to_a_tensor_that_the_loss_does_not_use() {
    let mut g = Graph::new();
    let [x, other, seed] = ["x", "other", "seed"].map(|name| g.input(name, &[3], DType::F32));
    let y = g.gelu(x).unwrap();
    let gradients = g.gradients(&[(y, seed)], &[x, other]).unwrap();
    assert!(gradients[0].is_some() && gradients[1].is_none());
    assert!(g.nodes().iter().all(|node| matches!(node.kernel, Kernel::Op(_))));
}

fn assert_refused(error: Error, op: &str) {
    let message = error.to_string();
    assert!(message.starts_with(&format!("{op} has no derivative")), "{message}");
}
