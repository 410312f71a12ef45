//! The second program of a training step: global norm, tests, clip and optimiser over the flat buffers.

use ironmill_compute::{Adam, DType, Kernel, Sgd, TensorType};

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
    /// Output: the global norm of that multiple, before clipping; when it is not finite, nothing was changed.
    pub norm: Tensor,
}

/// How gradients move parameters.
#[derive(Clone, Debug, PartialEq)]
pub enum Optimiser {
    /// Adam or AdamW; needs a second moment.
    Adam(Adam),
    /// Gradient descent with momentum.
    Sgd(Sgd),
}

/// Builds the update of an optimiser.
pub fn update_program(state: OptimiserState, optimiser: Optimiser) -> Update {
    let mut graph = Graph::new();
    graph.stage(Stage::Optimiser);
    let flat = TensorType::new(&[state.len], DType::F32);
    let gradients = graph.state(state.gradients, 0, flat);
    let learning_rate = graph.input("learning_rate", &[1], DType::F32);
    let exponent = graph.input("loss_exponent", &[1], DType::F32);
    let norm = graph.value(TensorType::new(&[1], DType::F32));
    graph.push(Kernel::GlobalNorm, vec![gradients], vec![norm]);
    let mut changed = vec![graph.state(state.parameters, 0, flat), graph.state(state.first_moment, 0, flat)];
    changed.extend(state.second_moment.map(|second| graph.state(second, 0, flat)));
    changed.push(graph.state(state.counter, 0, TensorType::new(&[1], DType::U32)));
    let kernel = match optimiser {
        Optimiser::Adam(adam) => Kernel::Adam(adam),
        Optimiser::Sgd(sgd) => Kernel::Sgd(sgd),
    };
    graph.push(kernel, vec![gradients, norm, learning_rate, exponent], changed);
    graph.keep(norm);
    Update { graph, learning_rate, exponent, norm }
}
