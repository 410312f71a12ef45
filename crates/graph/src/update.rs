//! The second program of a training step: global norm, tests, clip and optimiser over the flat buffers.

use ironmill_compute::{
    Adam, DType, Descend, GUARD_REPORT, GUARD_STATISTICS, Guard, Kernel, Op, Sgd, TensorType,
};

use crate::{
    graph::{Graph, StateId, Tensor},
    precision::push_refresh,
    stage::Stage,
};

/// The flat buffers that an optimiser works on.
#[derive(Clone, Copy, Debug)]
pub struct OptimiserState {
    /// The masters.
    pub parameters: StateId,
    /// What the micro-batches left.
    pub gradients: StateId,
    /// Running mean or sum of gradients.
    pub first_moment: StateId,
    /// Running mean of squared gradients, for optimisers that have one.
    pub second_moment: Option<StateId>,
    /// Updates made so far: `u32[1]`.
    pub counter: StateId,
    /// The sum of the step's losses, as the micro-batches left it.
    pub loss: StateId,
    /// What the guard keeps: [`GUARD_STATISTICS`] numbers.
    pub guard: StateId,
    /// The running average of the masters and the share of it that a step keeps, where there is one.
    pub average: Option<(StateId, f32)>,
    /// The working copy of the masters and its type, where there is one. It equals them, rounded, before and after every step.
    pub working: Option<(StateId, DType)>,
    /// Elements of each flat buffer.
    pub len: usize,
}

/// The update program with the tensors that the host writes and reads.
pub struct Update {
    /// The program.
    pub graph: Graph,
    /// Input: the learning rate of this step.
    pub learning_rate: Tensor,
    /// Input: the loss of this step was multiplied by two to the power of this; nothing if it is not written.
    pub exponent: Tensor,
    /// Input: how many targets the sum of losses is over; a step without any teaches the guard nothing.
    pub targets: Tensor,
    /// Output: the global norm of that multiple, before clipping.
    pub norm: Tensor,
    /// Output: what the guard says: see [`Guard`].
    pub report: Tensor,
}

/// How gradients move parameters.
#[derive(Clone, Debug, PartialEq)]
pub enum Optimiser {
    /// Adam or AdamW; needs a second moment.
    Adam(Adam),
    /// Gradient descent with momentum.
    Sgd(Sgd),
    /// Muon for matrices and Adam for the rest; needs a second moment.
    Muon(Muon),
}

/// Muon (Jordan et al., 2024): the momentum of a matrix is brought near to the orthogonal matrix next to it before parameters
/// move along it. The step's length grows with the root of the matrix's larger side, so that its elements are as large as those
/// of a step of Adam (Liu et al., 2025) and both can have one learning rate.
#[derive(Clone, Debug, PartialEq)]
pub struct Muon {
    /// Decay of the running mean of gradients.
    pub momentum: f32,
    /// What it updates.
    pub matrices: Vec<MuonMatrix>,
    /// What updates everything else.
    pub rest: Adam,
}

/// A matrix in the flat buffers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MuonMatrix {
    /// First element.
    pub start: usize,
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub columns: usize,
    /// Weight decay, before multiplication by the learning rate.
    pub weight_decay: f32,
    /// What the learning rate is multiplied with here.
    pub rate: f32,
}

/// The size of an element in a step of Adam, as measured.
const ADAM_STEP: f32 = 0.2;
/// Newton–Schulz steps towards the orthogonal matrix, and the coefficients of their polynomial.
const ORTHOGONAL_STEPS: usize = 5;
const ORTHOGONAL: [f32; 3] = [3.4445, -4.775, 2.0315];

/// Builds the update of an optimiser behind a guard.
pub fn update_program(state: OptimiserState, guard: Guard, optimiser: Optimiser) -> Update {
    let mut graph = Graph::new();
    graph.stage(Stage::Optimiser);
    let (flat, number) = (TensorType::new(&[state.len], DType::F32), TensorType::new(&[1], DType::F32));
    let gradients = graph.state(state.gradients, 0, flat);
    let learning_rate = graph.input("learning_rate", &[1], DType::F32);
    let exponent = graph.input("loss_exponent", &[1], DType::F32);
    let targets = graph.input("targets", &[1], DType::F32);
    let norm = graph.value(number);
    graph.push(Kernel::GlobalNorm, vec![gradients], vec![norm]);

    let loss = graph.state(state.loss, 0, number);
    let statistics = graph.state(state.guard, 0, TensorType::new(&[GUARD_STATISTICS], DType::F32));
    let scale = graph.value(number);
    let report = graph.value(TensorType::new(&[GUARD_REPORT], DType::F32));
    let seen = vec![norm, loss, targets, exponent];
    graph.push(Kernel::Guard(guard), seen, vec![scale, report, statistics]);

    let rule = Rule { state, gradients, scale, learning_rate };
    // What Adam does not touch never changes, so it can keep a working copy up to date by itself.
    let is_adam = matches!(optimiser, Optimiser::Adam(_));
    match optimiser {
        Optimiser::Adam(adam) => rule.push(&mut graph, Kernel::Adam(adam), state.working),
        Optimiser::Sgd(sgd) => rule.push(&mut graph, Kernel::Sgd(sgd), None),
        Optimiser::Muon(muon) => {
            for &matrix in &muon.matrices {
                rule.push_muon(&mut graph, muon.momentum, matrix);
            }
            rule.push(&mut graph, Kernel::Adam(muon.rest), None);
        }
    }
    if let (Some((copy, dtype)), false) = (state.working, is_adam) {
        push_refresh(&mut graph, state.len, dtype, state.parameters, copy);
    }
    if let Some((average, decay)) = state.average {
        let parameters = graph.state(state.parameters, 0, flat);
        let counter = graph.state(state.counter, 0, TensorType::new(&[1], DType::U32));
        let average = graph.state(average, 0, flat);
        graph.push(Kernel::Average { decay }, vec![parameters, scale, counter], vec![average]);
    }
    graph.keep(norm);
    graph.keep(report);
    Update { graph, learning_rate, exponent, targets, norm, report }
}

/// What every optimiser reads and writes.
struct Rule {
    state: OptimiserState,
    gradients: Tensor,
    scale: Tensor,
    learning_rate: Tensor,
}

impl Rule {
    /// A kernel over the flat buffers, and over a working copy where it is given one.
    fn push(&self, graph: &mut Graph, kernel: Kernel, working: Option<(StateId, DType)>) {
        let (state, flat) = (self.state, TensorType::new(&[self.state.len], DType::F32));
        let mut changed =
            vec![graph.state(state.parameters, 0, flat), graph.state(state.first_moment, 0, flat)];
        changed.extend(state.second_moment.map(|second| graph.state(second, 0, flat)));
        changed.push(graph.state(state.counter, 0, TensorType::new(&[1], DType::U32)));
        changed.extend(working.map(|(copy, dtype)| graph.state(copy, 0, flat.with_dtype(dtype))));
        graph.push(kernel, vec![self.gradients, self.scale, self.learning_rate], changed);
    }

    /// A step of Muon for one matrix: momentum, then the orthogonal matrix next to it, then the parameters.
    fn push_muon(&self, graph: &mut Graph, momentum: f32, matrix: MuonMatrix) {
        let MuonMatrix { start, rows, columns, weight_decay, rate } = matrix;
        let of = TensorType::new(&[rows, columns], DType::F32);
        let [gradients, momenta, parameters] =
            [self.state.gradients, self.state.first_moment, self.state.parameters]
                .map(|state| graph.state(state, start, of));
        let ahead = graph.value(of);
        graph.push(Kernel::Momentum { decay: momentum }, vec![gradients, self.scale], vec![momenta, ahead]);
        let direction = orthogonal(graph, ahead, [rows, columns]);
        let length = rate * ADAM_STEP * (rows.max(columns) as f32).sqrt();
        let descend = Descend { length, weight_decay: rate * weight_decay };
        graph.push(
            Kernel::Descend(descend),
            vec![direction, self.scale, self.learning_rate],
            vec![parameters],
        );
    }
}

/// Near the orthogonal matrix next to x: with X = x / ‖x‖ and G = X·Xᵀ, some steps of X ← aX + (bG + cG²)·X, which bring all
/// singular values near to 1. Of a tall matrix G = Xᵀ·X is the smaller one, and multiplies from the right.
fn orthogonal(graph: &mut Graph, x: Tensor, [rows, columns]: [usize; 2]) -> Tensor {
    let is_tall = rows > columns;
    let side = rows.min(columns);
    let products = DType::F32;
    let (whole, square) =
        (TensorType::new(&[rows, columns], DType::F32), TensorType::new(&[side, side], DType::F32));
    let mut push = |kernel: Kernel, inputs: Vec<Tensor>, of: TensorType| {
        let value = graph.value(of);
        graph.push(kernel, inputs, vec![value]);
        value
    };
    let norm = push(Kernel::GlobalNorm, vec![x], TensorType::new(&[1], DType::F32));
    let mut x = push(Kernel::Normalise, vec![x, norm], whole);
    let [a, b, c] = ORTHOGONAL;
    for _ in 0..ORTHOGONAL_STEPS {
        let gram = match is_tall {
            true => Op::LinearGradWeight { products },
            false => Op::Linear { bias: false, products },
        };
        let gram = push(Kernel::Op(gram), vec![x, x], square);
        // G is symmetric, so G·Gᵀ is its square.
        let squared = push(Kernel::Op(Op::Linear { bias: false, products }), vec![gram, gram], square);
        let mixed = push(Kernel::Combine([b, c]), vec![gram, squared], square);
        let factors = if is_tall { vec![x, mixed] } else { vec![mixed, x] };
        let moved = push(Kernel::Op(Op::LinearGradInput { products }), factors, whole);
        x = push(Kernel::Combine([a, 1.0]), vec![x, moved], whole);
    }
    x
}
