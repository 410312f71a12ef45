//! Parts of the forward that the backward computes again: the same bits, in less memory.

use ironmill_compute::{DType, Device, HostData, Kernel, Mask, TensorType};
use ironmill_graph::{
    Accumulate, Error, Graph, Heads, Layout, Passes, Randomness, Result, Runtime, States, Tensor, dry_run,
    rope_table,
};

use crate::{
    cases::{borders, normals},
    harness::{DEVICES, exact},
    tiny::{MEDIUM, Model, SMALL, Size, Trial, train},
};

const FUSE: Passes = Passes { fuse: true, ..Passes::NONE };
const SHARE: Passes = Passes { share_memory: true, ..Passes::NONE };
const PASSES: [Passes; 4] = [Passes::NONE, FUSE, SHARE, Passes::ALL];

/// With dropout on: a mask that is drawn again is the same mask.
#[test]
fn recomputing_every_layer_changes_no_bit_of_losses_gradients_and_parameters() {
    for size in [SMALL, MEDIUM] {
        let (kept, again) = (Model::new(size), Model::new(Size { recompute: true, ..size }));
        for device in DEVICES {
            for passes in PASSES {
                assert_eq!(
                    train(&again, device(), &passes),
                    train(&kept, device(), &passes),
                    "{}, {passes:?}",
                    device().name()
                );
            }
        }
    }
}

#[test]
fn a_deep_stack_needs_less_memory_when_its_layers_are_computed_again() {
    let arena = |layers, recompute, passes: &Passes| {
        let model = Model::new(Size { layers, recompute, ..MEDIUM });
        dry_run(model.micro(3, false).graph, passes).unwrap().arena_bytes
    };
    for passes in [SHARE, Passes::ALL] {
        assert!(arena(12, true, &passes) < arena(12, false, &passes) / 3, "{passes:?}");
        // A layer more keeps what it reads, and nothing else.
        let residual = 3 * MEDIUM.positions * MEDIUM.channels * DType::F32.bytes();
        let growth = (arena(20, true, &passes) - arena(12, true, &passes)) / 8;
        assert!(growth <= residual.next_multiple_of(256), "{growth} a layer, a residual is {residual}");
    }
}

#[test]
fn the_head_is_fused_and_gradients_are_written_in_place_as_without() {
    let model = Model::new(Size { recompute: true, ..SMALL });
    let mut trial = Trial::new(&model, exact(), &Passes::ALL);
    let program = trial.compile(model.micro(3, false), &Passes::ALL);
    let count = |is: fn(&Kernel) -> bool| trial.runtime.kernels(program.id).filter(|k| is(k)).count();
    assert_eq!(count(|kernel| matches!(kernel, Kernel::HeadLoss(_))), 1);
    assert_eq!(count(|kernel| matches!(kernel, Kernel::StateWrite { .. })), 0);
    // The four of the forward, and the residual inside each layer once more.
    assert_eq!(count(|kernel| matches!(kernel, Kernel::AddLayerNorm { .. })), 4 + 2);
}

/// Layers below all that is trained are not computed again, and a loss above nothing trained is still an error.
#[test]
fn what_needs_no_backward_is_not_computed_again() {
    let mut model = Model::new(Size { recompute: true, ..SMALL });
    for parameter in model.layout.parameters_mut() {
        parameter.trainable = parameter.name.starts_with("1.");
    }
    let forward = model.forward(2).graph.nodes().len();
    let micro = model.micro(2, false);
    let backward = &micro.graph.nodes()[forward..];
    let attentions = backward.iter().filter(|node| node.kernel.name() == "attention").count();
    assert_eq!(attentions, 1, "only the second layer is differentiated");

    for parameter in model.layout.parameters_mut() {
        parameter.trainable = false;
    }
    let mut frozen = model.forward(2);
    let into = Accumulate { gradients: model.optimiser.gradients, add: false };
    let seed = frozen.graph.input("seed", &[1], DType::F32);
    let error = frozen.graph.train(frozen.loss, seed, into).unwrap_err();
    assert!(matches!(error, Error::NothingToTrain), "{error}");
}

#[test]
fn a_part_that_writes_state_cannot_be_computed_again() {
    let mut states = States::default();
    let state = states.declare("state", DType::F32, 3);
    let mut g = Graph::new();
    let [x, seed] = ["x", "seed"].map(|name| g.input(name, &[3], DType::F32));
    let state = g.state(state, 0, TensorType::new(&[3], DType::F32));
    let y = g
        .recompute(|g| {
            let y = g.gelu(x)?;
            g.write_state(y, state, false);
            g.gelu(y)
        })
        .unwrap();
    let message = g.gradients(&[(y, seed)], &[x]).unwrap_err().to_string();
    assert!(message.contains("state_write"), "{message}");
}

/// How the parts of [`story`] are wrapped.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Parts {
    /// Not at all: the oracle.
    None,
    /// Each of the two on its own.
    Each,
    /// Both in one.
    Both,
    /// Each on its own, and both in one.
    Nested,
    /// The same up to the loss, so that two parts end together.
    Whole,
}

impl Parts {
    fn wrap(
        self,
        g: &mut Graph,
        wraps: &[Parts],
        part: impl FnOnce(&mut Graph) -> Result<Tensor>,
    ) -> Result<Tensor> {
        if wraps.contains(&self) { g.recompute(part) } else { part(g) }
    }
}

const SAMPLES: usize = 2;
const POSITIONS: usize = 7;
const CHANNELS: usize = 12;
const HEAD_DIM: usize = 4;

/// A program of two Llama-like parts that read each other's inner values: losses and gradients of x and the weights.
fn story(parts: Parts, device: Box<dyn Device>, passes: &Passes) -> Vec<Vec<f64>> {
    let mut layout = Layout::default();
    for (name, dims) in [
        ("gain", &[CHANNELS][..]),
        ("head gain", &[HEAD_DIM]),
        ("mix", &[CHANNELS, CHANNELS]),
        ("gate", &[CHANNELS, CHANNELS]),
        ("up", &[CHANNELS, CHANNELS]),
    ] {
        layout.add(name, dims, false);
    }
    let mut states = States::default();
    let parameters = states.declare("parameters", DType::F32, layout.len());
    let gradients = states.declare("gradients", DType::F32, layout.len());

    let mut g = Graph::new();
    let [gain, head_gain, mix, gate, up] =
        std::array::from_fn(|i| g.parameter(parameters, &layout.parameters()[i]));
    let x = g.input("x", &[SAMPLES, POSITIONS, CHANNELS], DType::F32);
    let [positions, documents] =
        ["positions", "borders"].map(|name| g.input(name, &[SAMPLES, POSITIONS], DType::U32));
    let table = g.input("angles", &[POSITIONS, HEAD_DIM], DType::F32);
    let key = g.input("key", &[3], DType::U32);
    let samples = g.input("samples", &[SAMPLES], DType::U32);
    let seed = g.input("seed", &[1], DType::F32);
    let random = Randomness { key, samples };
    let heads = Heads { queries: 3, keys: 3, mask: Mask::Causal, window: 3 };

    let mut inner = x;
    let attend = |g: &mut Graph, inner: &mut Tensor| {
        let normal = g.rms_norm(x, gain, 1e-5)?;
        let mixed = g.linear(normal, mix, None)?;
        let q = g.rms_norm(mixed, head_gain, 1e-5)?;
        let q = g.rope(q, positions, table)?;
        // What the other part reads of this one.
        *inner = q;
        let a = g.attention([q, mixed, normal], Some(documents), heads)?;
        let a = g.dropout(a, 0.3, random)?;
        g.add(x, a)
    };
    let gated = |g: &mut Graph, h: Tensor, inner: Tensor| {
        let gate = g.linear(h, gate, None)?;
        let up = g.linear(inner, up, None)?;
        let y = g.silu_gate(gate, up)?;
        let y = g.relu_squared(y)?;
        let y = g.dropout(y, 0.3, random)?;
        g.add(h, y)
    };
    let both = |g: &mut Graph| {
        let h = parts.wrap(g, &[Parts::Each, Parts::Nested, Parts::Whole], |g| attend(g, &mut inner))?;
        let y = parts.wrap(g, &[Parts::Each, Parts::Nested, Parts::Whole], |g| gated(g, h, inner))?;
        // And what is read of a part from outside all of them.
        let y = g.add(y, inner)?;
        let y = g.gelu_erf(y)?;
        parts.wrap(g, &[Parts::Whole], |g| g.sum(y))
    };
    let loss = parts.wrap(&mut g, &[Parts::Both, Parts::Nested, Parts::Whole], both).unwrap();
    let d_x = g.gradients(&[(loss, seed)], &[x]).unwrap()[0].unwrap();
    g.train(loss, seed, Accumulate { gradients, add: true }).unwrap();
    g.keep(loss);
    g.keep(d_x);

    let mut runtime = Runtime::new(device, &states).unwrap();
    let program = runtime.compile(g, passes).unwrap();
    let all = 0..layout.len();
    runtime.write_state(parameters, all.clone(), HostData::F64(&normals(3, all.len()))).unwrap();
    runtime.write(program, x, HostData::F64(&normals(4, SAMPLES * POSITIONS * CHANNELS))).unwrap();
    let starts: Vec<usize> = (0..SAMPLES).flat_map(|b| borders(b, POSITIONS, &[3, 1])).collect();
    let words = |f: &dyn Fn(usize) -> usize| -> Vec<u32> { (0..starts.len()).map(|i| f(i) as u32).collect() };
    runtime.write(program, documents, HostData::U32(&words(&|i| starts[i]))).unwrap();
    runtime.write(program, positions, HostData::U32(&words(&|i| i % POSITIONS - starts[i]))).unwrap();
    runtime.write(program, table, HostData::F32(&rope_table(POSITIONS, &[1.0, 0.1]))).unwrap();
    runtime.write(program, key, HostData::U32(&[1, 2, 3])).unwrap();
    runtime.write(program, samples, HostData::U32(&[4, 5])).unwrap();
    runtime.write(program, seed, HostData::F32(&[0.5])).unwrap();
    runtime.run(program).unwrap();
    vec![
        runtime.read_f64(program, loss).unwrap(),
        runtime.read_f64(program, d_x).unwrap(),
        runtime.read_state_f64(gradients, all).unwrap(),
    ]
}

#[test]
fn parts_may_read_each_other_and_lie_in_each_other() {
    for device in DEVICES {
        for passes in PASSES {
            let expected = story(Parts::None, device(), &passes);
            assert!(expected.iter().flatten().all(|x| x.is_finite()));
            for parts in [Parts::Each, Parts::Both, Parts::Nested, Parts::Whole] {
                assert_eq!(story(parts, device(), &passes), expected, "{parts:?}, {passes:?}");
            }
        }
    }
}
