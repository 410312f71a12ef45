//! The gradient of a whole tiny model against central differences, in double precision on the reference backend.

use ironmill_compute::{DType, HostData, LossShape, Reference, philox};
use ironmill_graph::{Accumulate, Graph, Passes, Randomness, Runtime, States};
use ironmill_model::{Attend, Buffers, Mlp, ModelConfig, Tokens};

use crate::{kinds, model};

#[test]
fn the_gradient_of_a_whole_model_matches_central_differences() {
    for (index, config) in kinds().into_iter().enumerate() {
        let dropout = if index % 2 == 0 { 0.0 } else { 0.2 };
        // Small enough that every parameter can be moved; heads keep an even size for rotary positions.
        let config = ModelConfig {
            dropout,
            vocab_size: 11,
            width: 6,
            head_dim: 2,
            mlp_width: 10,
            context: 5,
            window: config.window.min(3),
            ..config
        };
        check(config, index % 2 == 1);
    }
}

fn check(config: ModelConfig, recompute: bool) {
    let name = format!("{config:?}");
    let kink = config.mlp == Mlp::ReluSquared;
    let model = model(config);
    let layout = model.layout().clone();
    let constants = model.constants();
    let mut states = States::default();
    let buffers = Buffers {
        working: None,
        parameters: states.declare("parameters", DType::F32, layout.len()),
        constants: states.declare("constants", DType::F32, constants.len()),
    };
    let gradients = states.declare("gradients", DType::F32, layout.len());
    let mut g = Graph::new();
    let ids = g.input("ids", &[2, 5], DType::U32);
    let positions = g.input("positions", &[2, 5], DType::U32);
    let borders = g.input("borders", &[2, 5], DType::U32);
    let targets = g.input("targets", &[2, 5], DType::U32);
    let weights = g.input("weights", &[2, 5], DType::F32);
    let key = g.input("key", &[3], DType::U32);
    let samples = g.input("samples", &[2], DType::U32);
    let seed = g.input("seed", &[1], DType::F32);
    let attend = Attend::Whole { borders: Some(borders), randomness: Some(Randomness { key, samples }) };
    let hidden = model.hidden(&mut g, buffers, Tokens { ids, positions, attend, recompute }).unwrap();
    let logits = model.logits(&mut g, buffers, hidden).unwrap();
    let shape = LossShape { label_smoothing: 0.1, z_loss: 1e-3 };
    let losses = g.cross_entropy(logits, targets, weights, shape).unwrap();
    let loss = g.sum(losses).unwrap();
    g.keep(loss);
    g.train(loss, seed, Accumulate { gradients, add: false }).unwrap();

    let mut runtime = Runtime::new(Box::new(Reference::exact()), &states).unwrap();
    let program = runtime.compile(g, &Passes::ALL).unwrap();
    runtime.write_state(buffers.constants, 0..constants.len(), HostData::F32(&constants)).unwrap();
    // Larger than initial weights are, so that no gradient is close to nothing.
    let value = |i: usize| {
        let (a, _) = philox::normal_pair(philox::philox([5, 6], [i as u32, 0, 0, 0]));
        0.4 * a
    };
    let mut values: Vec<f64> = (0..layout.len()).map(value).collect();
    runtime.write(program, ids, HostData::U32(&[1, 2, 3, 4, 5, 10, 9, 8, 7, 6])).unwrap();
    runtime.write(program, positions, HostData::U32(&[0, 1, 0, 1, 2, 0, 1, 2, 3, 4])).unwrap();
    runtime.write(program, borders, HostData::U32(&[0, 0, 2, 2, 2, 0, 0, 0, 0, 0])).unwrap();
    runtime.write(program, targets, HostData::U32(&[2, 3, 4, u32::MAX, 6, 9, 8, 7, 6, 0])).unwrap();
    let weight = [1.0, 0.5, 1.0, 1.0, 2.0, 1.0, 1.0, 0.0, 1.0, 1.0];
    runtime.write(program, weights, HostData::F32(&weight)).unwrap();
    runtime.write(program, key, HostData::U32(&[11, 12, 13])).unwrap();
    runtime.write(program, samples, HostData::U32(&[40, 41])).unwrap();
    runtime.write(program, seed, HostData::F32(&[1.0])).unwrap();
    let mut loss_of = |values: &[f64]| {
        runtime.write_state(buffers.parameters, 0..values.len(), HostData::F64(values)).unwrap();
        runtime.run(program).unwrap();
        let gradient = runtime.read_state_f64(gradients, 0..values.len()).unwrap();
        (runtime.read_f64(program, loss).unwrap()[0], gradient)
    };

    let (_, analytic) = loss_of(&values);
    let scale = analytic.iter().fold(1.0f64, |max, g| max.max(g.abs()));
    // The second derivative of a squared ReLU jumps at 0, which costs central differences an order of accuracy there.
    let bound = if kink { 1e-5 } else { 1e-6 } * scale;
    for parameter in layout.parameters() {
        for i in parameter.range().step_by(3) {
            let (kept, h) = (values[i], 1e-5);
            values[i] = kept + h;
            let above = loss_of(&values).0;
            values[i] = kept - h;
            let below = loss_of(&values).0;
            values[i] = kept;
            let numeric = (above - below) / (2.0 * h);
            let difference = (analytic[i] - numeric).abs();
            assert!(difference <= bound, "{} {i}: {} {numeric} in {name}", parameter.name, analytic[i]);
        }
    }
}
