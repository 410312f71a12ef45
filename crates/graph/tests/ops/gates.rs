//! Gates inside the products around them, for devices that keep slopes.

use ironmill_compute::{DType, Device, HostData, Kernel, Reference};
use ironmill_graph::{Accumulate, Graph, Layout, Passes, Runtime, States};

use crate::{cases::normals, harness::exact, tolerance::assert_close};

const ROWS: usize = 5;
const CHANNELS: usize = 6;
const HIDDEN: usize = 9;
const LAYERS: usize = 2;

/// What differs between programs.
#[derive(Clone, Copy, Default)]
struct Form {
    /// Layers are computed again for the backward.
    recompute: bool,
    /// Somebody wants to see what the first layer's gate reads.
    shown: bool,
    /// Nobody asks for gradients.
    forward_only: bool,
}

/// Layers with a gate, and a residual around each: the loss, the gradients of all weights, and how many gates are in products, forward and
/// backward.
fn gated(form: Form, device: Box<dyn Device>, passes: &Passes) -> (Vec<f64>, [usize; 2]) {
    let mut layout = Layout::default();
    for _ in 0..LAYERS {
        layout.add("gate and up", &[2 * HIDDEN, CHANNELS], false);
        layout.add("down", &[CHANNELS, HIDDEN], false);
    }
    let mut states = States::default();
    let [parameters, gradients] =
        ["parameters", "gradients"].map(|name| states.declare(name, DType::F32, layout.len()));
    let mut g = Graph::new();
    let weights: Vec<_> = layout.parameters().iter().map(|of| g.parameter(parameters, of)).collect();
    let x = g.input("x", &[ROWS, CHANNELS], DType::F32);
    let seed = g.input("seed", &[1], DType::F32);
    let (mut h, mut first) = (x, None);
    for weights in weights.chunks(2) {
        let mut layer = |g: &mut Graph| {
            let gate_up = g.linear(h, weights[0], None)?;
            first.get_or_insert(gate_up);
            let halves = g.split(gate_up, &[HIDDEN; 2])?;
            let y = g.silu_gate(halves[0], halves[1])?;
            let y = g.linear(y, weights[1], None)?;
            g.add(h, y)
        };
        h = if form.recompute { g.recompute(layer).unwrap() } else { layer(&mut g).unwrap() };
    }
    let loss = g.sum(h).unwrap();
    let mut shown = vec![loss];
    if !form.forward_only {
        g.train(loss, seed, Accumulate { gradients, add: false }).unwrap();
    }
    shown.extend(first.filter(|_| form.shown));
    shown.iter().for_each(|&tensor| g.keep(tensor));

    let mut runtime = Runtime::new(device, &states).unwrap();
    let program = runtime.compile(g, passes).unwrap();
    let all = 0..layout.len();
    runtime.write_state(parameters, all.clone(), HostData::F64(&normals(1, all.len()))).unwrap();
    runtime.write(program, x, HostData::F64(&normals(2, ROWS * CHANNELS))).unwrap();
    if !form.forward_only {
        runtime.write(program, seed, HostData::F32(&[0.5])).unwrap();
    }
    runtime.run(program).unwrap();
    let count = |is: fn(&Kernel) -> bool| runtime.kernels(program).filter(|kernel| is(kernel)).count();
    let counts = [
        count(|kernel| matches!(kernel, Kernel::LinearGate { .. })),
        count(|kernel| matches!(kernel, Kernel::LinearGradGate { .. })),
    ];
    let mut results: Vec<f64> =
        shown.iter().flat_map(|&tensor| runtime.read_f64(program, tensor).unwrap()).collect();
    if !form.forward_only {
        results.extend(runtime.read_state_f64(gradients, all).unwrap());
    }
    (results, counts)
}

#[test]
fn a_device_that_wants_slopes_has_gates_in_the_products_around_them() {
    let device = || Box::new(Reference::exact().with_slopes());
    for (form, expected) in [
        (Form::default(), LAYERS),
        (Form { recompute: true, ..Form::default() }, LAYERS),
        // What somebody wants to see stays what it is.
        (Form { shown: true, ..Form::default() }, LAYERS - 1),
        (Form { forward_only: true, ..Form::default() }, 0),
    ] {
        let (plain, none) = gated(form, exact(), &Passes::NONE);
        assert_eq!(none, [0, 0]);
        let (joined, counts) = gated(form, device(), &Passes::ALL);
        assert_eq!(counts, [expected; 2]);
        assert_close("loss and gradients", &joined, &plain, 1e-12);
        let (_, without) = gated(form, exact(), &Passes::ALL);
        assert_eq!(without, [0, 0], "the device does not ask for slopes");
    }
}
