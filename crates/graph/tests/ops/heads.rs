//! Heads and losses alone: several chunks of logits, every choice of gradients, and shapes that must not be fused.

use ironmill_compute::{DType, Device, HostData, IGNORED, Kernel, LossShape, Op, philox::philox};
use ironmill_graph::{Accumulate, Graph, Layout, Passes, Runtime, StateId, States, Tensor};

use crate::{
    cases::normals,
    harness::{cpu, exact},
    tolerance::{assert_close, relative},
};

const CHANNELS: usize = 3;

/// A product and a loss over its result: rows, vocabulary, and what is trained below it.
#[derive(Clone, Copy)]
struct Head {
    rows: usize,
    vocabulary: usize,
    /// Whether a parameter lies below the head's input, so that the input needs a gradient.
    input_trains: bool,
    weight_trains: bool,
    loss: LossShape,
    /// How the losses become one number.
    reduce: Reduce,
}

#[derive(Clone, Copy, PartialEq)]
enum Reduce {
    Sum,
    /// Σ gelu(loss): the gradient of a loss needs the loss.
    GeluSum,
    /// Σ loss + Σ table[id], with the rows taken between the product and the loss, so that in the backward another write
    /// to the table's gradient comes between the loss's gradient and the product's.
    AndRows,
}

/// A head as a program, and its buffers.
struct Built {
    graph: Graph,
    states: States,
    layout: Layout,
    parameters: StateId,
    gradients: StateId,
    inputs: [Tensor; 4],
    loss: Tensor,
}

impl Head {
    fn build(&self, add: bool) -> Built {
        let mut layout = Layout::default();
        layout.add("mix", &[CHANNELS, CHANNELS], true);
        layout.add("table", &[self.vocabulary, CHANNELS], true);
        layout.parameters_mut()[0].trainable = self.input_trains;
        layout.parameters_mut()[1].trainable = self.weight_trains;
        let mut states = States::default();
        let parameters = states.declare("parameters", DType::F32, layout.len());
        let gradients = states.declare("gradients", DType::F32, layout.len());

        let mut g = Graph::new();
        let [mix, table] = [0, 1].map(|i| g.parameter(parameters, &layout.parameters()[i]));
        let x = g.input("x", &[self.rows, CHANNELS], DType::F32);
        let targets = g.input("targets", &[self.rows], DType::U32);
        let weights = g.input("weights", &[self.rows], DType::F32);
        let seed = g.input("seed", &[1], DType::F32);
        let mixed = g.linear(x, mix, None).unwrap();
        let logits = g.linear(mixed, table, None).unwrap();
        let between = (self.reduce == Reduce::AndRows).then(|| {
            let ids = g.input("ids", &[2], DType::U32);
            let rows = g.embed(table, ids).unwrap();
            g.sum(rows).unwrap()
        });
        let mut losses = g.cross_entropy(logits, targets, weights, self.loss).unwrap();
        if self.reduce == Reduce::GeluSum {
            losses = g.gelu(losses).unwrap();
        }
        let mut loss = g.sum(losses).unwrap();
        if let Some(between) = between {
            loss = g.add(loss, between).unwrap();
        }
        g.keep(loss);
        if self.input_trains || self.weight_trains {
            g.train(loss, seed, Accumulate { gradients, add }).unwrap();
        }
        Built { graph: g, states, layout, parameters, gradients, inputs: [x, targets, weights, seed], loss }
    }

    /// The loss and the gradients that one run leaves in a buffer of ones, and how many fused heads ran.
    fn run(&self, add: bool, device: Box<dyn Device>, passes: &Passes) -> (f64, Vec<f64>, usize) {
        let built = self.build(add);
        let mut runtime = Runtime::new(device, &built.states).unwrap();
        let program = runtime.compile(built.graph, passes).unwrap();
        let all = 0..built.layout.len();
        let values = normals(31, all.len());
        runtime.write_state(built.parameters, all.clone(), HostData::F64(&values)).unwrap();
        runtime.write_state(built.gradients, all.clone(), HostData::F64(&vec![1.0; all.len()])).unwrap();

        let target = |row: usize| match philox([1, 2], [row as u32, 0, 0, 0])[0] {
            word if word % 5 == 0 => IGNORED,
            word => word % self.vocabulary as u32,
        };
        let [x, targets, weights, seed] = built.inputs;
        let ids: Vec<u32> = (0..self.rows).map(target).collect();
        runtime.write(program, x, HostData::F64(&normals(32, self.rows * CHANNELS))).unwrap();
        runtime.write(program, targets, HostData::U32(&ids)).unwrap();
        runtime.write(program, weights, HostData::F32(&vec![0.75; self.rows])).unwrap();
        runtime.write(program, seed, HostData::F32(&[0.5])).unwrap();
        runtime.run(program).unwrap();
        let loss = runtime.read_f64(program, built.loss).unwrap()[0];
        let gradients = runtime.read_state_f64(built.gradients, all).unwrap();
        let fused = runtime.kernels(program).filter(|kernel| matches!(kernel, Kernel::HeadLoss(_))).count();
        (loss, gradients, fused)
    }

    /// The program with passes on does what it does with passes off, on the reference and on the CPU.
    fn check(&self, fused_heads: usize) {
        for add in [false, true] {
            let (loss, gradients, _) = self.run(add, exact(), &Passes::NONE);
            let (fused_loss, fused_gradients, heads) = self.run(add, exact(), &Passes::ALL);
            assert_eq!(heads, fused_heads);
            assert_close("loss on the reference", &[fused_loss], &[loss], 1e-12);
            assert_close("gradients on the reference", &fused_gradients, &gradients, 1e-12);

            let (cpu_loss, cpu_gradients, _) = self.run(add, cpu(2), &Passes::ALL);
            let bound = relative(1.0, DType::F32.epsilon(), self.rows.max(self.vocabulary));
            assert_close("loss on the CPU", &[cpu_loss], &[loss], bound);
            assert_close("gradients on the CPU", &cpu_gradients, &gradients, bound);
        }
    }
}

const HEAD: Head = Head {
    rows: 21,
    vocabulary: 13,
    input_trains: true,
    weight_trains: true,
    loss: LossShape { label_smoothing: 0.0, z_loss: 0.0 },
    reduce: Reduce::Sum,
};

const SHAPED: LossShape = LossShape { label_smoothing: 0.1, z_loss: 0.01 };

#[test]
fn a_fused_head_computes_the_gradients_that_are_wanted_and_no_others() {
    for (input_trains, weight_trains) in [(true, true), (true, false), (false, true), (false, false)] {
        Head { input_trains, weight_trains, ..HEAD }.check(1);
    }
}

/// Chunks are 512 rows for a small vocabulary and 16 for a large one; in both shapes the last one is short.
#[test]
fn a_fused_head_of_several_chunks_equals_one_over_all_rows() {
    Head { rows: 600, vocabulary: 33, ..HEAD }.check(1);
    Head { rows: 37, vocabulary: 70_001, ..HEAD }.check(1);
}

#[test]
fn a_fused_head_shapes_its_loss_as_the_ops_do() {
    for (label_smoothing, z_loss) in [(0.1, 0.0), (0.0, 0.01), (0.3, 0.1)] {
        let loss = LossShape { label_smoothing, z_loss };
        for (input_trains, weight_trains) in [(true, true), (true, false), (false, true), (false, false)] {
            Head { input_trains, weight_trains, loss, ..HEAD }.check(1);
        }
    }
    Head { rows: 600, vocabulary: 33, loss: SHAPED, ..HEAD }.check(1);
    Head { rows: 37, vocabulary: 70_001, loss: SHAPED, ..HEAD }.check(1);
    let plain = HEAD.run(false, exact(), &Passes::ALL);
    let shaped = Head { loss: SHAPED, ..HEAD }.run(false, exact(), &Passes::ALL);
    assert!(plain.0 != shaped.0 && plain.1 != shaped.1);
}

#[test]
fn a_head_of_one_row_or_one_choice_is_fused_like_any_other() {
    Head { rows: 1, ..HEAD }.check(1);
    Head { vocabulary: 1, ..HEAD }.check(1);
}

#[test]
fn a_head_is_not_fused_when_the_gradient_of_the_losses_needs_the_losses() {
    Head { reduce: Reduce::GeluSum, ..HEAD }.check(0);
    Head { reduce: Reduce::GeluSum, loss: SHAPED, ..HEAD }.check(0);
}

#[test]
fn a_head_is_not_fused_when_its_gradient_would_move_across_another_write_to_it() {
    Head { reduce: Reduce::AndRows, ..HEAD }.check(0);
}

#[test]
fn logits_and_statistics_that_are_kept_can_be_read_with_passes_on() {
    let mut g = Graph::new();
    let x = g.input("x", &[2, CHANNELS], DType::F32);
    let table = g.input("table", &[5, CHANNELS], DType::F32);
    let targets = g.input("targets", &[2], DType::U32);
    let weights = g.input("weights", &[2], DType::F32);
    let logits = g.linear(x, table, None).unwrap();
    let outputs = g.op(Op::CrossEntropy(HEAD.loss), &[logits, targets, weights]).unwrap();
    for kept in [[logits, outputs[0]], [outputs[1], outputs[0]]] {
        let mut g = g.clone();
        kept.iter().for_each(|&tensor| g.keep(tensor));
        let mut runtime = Runtime::new(exact(), &States::default()).unwrap();
        let program = runtime.compile(g, &Passes::ALL).unwrap();
        runtime.write(program, x, HostData::F64(&normals(1, 2 * CHANNELS))).unwrap();
        runtime.write(program, table, HostData::F64(&normals(2, 5 * CHANNELS))).unwrap();
        runtime.run(program).unwrap();
        assert!(runtime.read_f64(program, kept[0]).unwrap().iter().all(|&value| value != 0.0));
    }
}
