//! The gradient of a whole tiny model against central differences, in double precision on the reference backend.

use ironmill_compute::{DType, HostData, Reference, TensorType, philox};
use ironmill_graph::{Accumulate, Graph, Passes, Randomness, Runtime, States};
use ironmill_model::{Attend, ModelConfig};

use crate::{model, tiny};

#[test]
fn the_gradient_of_a_whole_model_matches_central_differences() {
    for (bias, tied, dropout) in [(true, true, 0.0), (false, false, 0.2)] {
        let model =
            model(ModelConfig { bias, tied, dropout, vocab_size: 11, width: 6, context: 5, ..tiny() });
        let layout = model.layout().clone();
        let mut states = States::default();
        let parameters = states.declare("parameters", DType::F32, layout.len());
        let gradients = states.declare("gradients", DType::F32, layout.len());
        let mut g = Graph::new();
        let ids = g.input("ids", &[2, 5], DType::U32);
        let positions = g.input("positions", &[2, 5], DType::U32);
        let targets = g.input("targets", &[2, 5], DType::U32);
        let weights = g.input("weights", &[2, 5], DType::F32);
        let key = g.input("key", &[3], DType::U32);
        let samples = g.input("samples", &[2], DType::U32);
        let seed = g.input("seed", &[1], DType::F32);
        let attend = Attend::Whole(Some(Randomness { key, samples }));
        let hidden = model.hidden(&mut g, parameters, ids, positions, attend).unwrap();
        let logits = model.logits(&mut g, parameters, hidden).unwrap();
        let losses = g.cross_entropy(logits, targets, weights).unwrap();
        let loss = g.sum(losses).unwrap();
        g.keep(loss);
        assert_eq!(g.info(loss).of, TensorType::new(&[1], DType::F32));
        g.train(loss, seed, Accumulate { gradients, add: false }).unwrap();

        let mut runtime = Runtime::new(Box::new(Reference::exact()), &states).unwrap();
        let program = runtime.compile(g, &Passes::ALL).unwrap();
        // Larger than initial weights are, so that no gradient is close to nothing.
        let value = |i: usize| {
            let (a, _) = philox::normal_pair(philox::philox([5, 6], [i as u32, 0, 0, 0]));
            0.4 * a
        };
        let mut values: Vec<f64> = (0..layout.len()).map(value).collect();
        runtime.write(program, ids, HostData::U32(&[1, 2, 3, 4, 5, 10, 9, 8, 7, 6])).unwrap();
        runtime.write(program, positions, HostData::U32(&[0, 1, 2, 3, 4, 0, 1, 2, 3, 4])).unwrap();
        runtime.write(program, targets, HostData::U32(&[2, 3, 4, u32::MAX, 6, 9, 8, 7, 6, 0])).unwrap();
        runtime
            .write(program, weights, HostData::F32(&[1.0, 0.5, 1.0, 1.0, 2.0, 1.0, 1.0, 0.0, 1.0, 1.0]))
            .unwrap();
        runtime.write(program, key, HostData::U32(&[11, 12, 13])).unwrap();
        runtime.write(program, samples, HostData::U32(&[40, 41])).unwrap();
        runtime.write(program, seed, HostData::F32(&[1.0])).unwrap();
        let mut loss_of = |values: &[f64]| {
            runtime.write_state(parameters, 0..values.len(), HostData::F64(values)).unwrap();
            runtime.run(program).unwrap();
            (
                runtime.read_f64(program, loss).unwrap()[0],
                runtime.read_state_f64(gradients, 0..values.len()).unwrap(),
            )
        };

        let (_, analytic) = loss_of(&values);
        let scale = analytic.iter().fold(1.0f64, |max, g| max.max(g.abs()));
        for parameter in layout.parameters() {
            for i in parameter.range().step_by(5) {
                let (kept, h) = (values[i], 1e-5);
                values[i] = kept + h;
                let above = loss_of(&values).0;
                values[i] = kept - h;
                let below = loss_of(&values).0;
                values[i] = kept;
                let numeric = (above - below) / (2.0 * h);
                assert!(
                    (analytic[i] - numeric).abs() <= 1e-6 * scale,
                    "{} {i}: {} {numeric}",
                    parameter.name,
                    analytic[i]
                );
            }
        }
    }
}
