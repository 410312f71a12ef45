//! The second program of a training step: global norm, tests, clip and optimiser over the flat buffers.

use ironmill_compute::{Adam, DType, GUARD_REPORT, GUARD_STATISTICS, Guard, Kernel, Sgd, TensorType};

use crate::{
    graph::{Graph, StateId, Tensor},
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
}

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

    let mut changed = vec![graph.state(state.parameters, 0, flat), graph.state(state.first_moment, 0, flat)];
    changed.extend(state.second_moment.map(|second| graph.state(second, 0, flat)));
    changed.push(graph.state(state.counter, 0, TensorType::new(&[1], DType::U32)));
    let kernel = match optimiser {
        Optimiser::Adam(adam) => Kernel::Adam(adam),
        Optimiser::Sgd(sgd) => Kernel::Sgd(sgd),
    };
    graph.push(kernel, vec![gradients, scale, learning_rate], changed);
    graph.keep(norm);
    graph.keep(report);
    Update { graph, learning_rate, exponent, targets, norm, report }
}
