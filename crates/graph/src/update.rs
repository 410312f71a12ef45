//! The second program of a training step: global norm, tests, clip and optimiser over the flat buffers.

use ironmill_compute::{AdamW, DType, Kernel, TensorType};

use crate::graph::{Graph, StateId, Tensor};

/// The flat buffers that an optimiser works on.
#[derive(Clone, Copy, Debug)]
pub struct OptimiserState {
    /// The masters.
    pub parameters: StateId,
    /// What the micro-batches left.
    pub gradients: StateId,
    /// Running mean of gradients.
    pub first_moment: StateId,
    /// Running mean of squared gradients.
    pub second_moment: StateId,
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
    /// Output: the global norm before clipping; when it is not finite, nothing was changed.
    pub norm: Tensor,
}

/// Builds the update of an AdamW step.
pub fn adamw_update(state: OptimiserState, adamw: AdamW) -> Update {
    let mut graph = Graph::new();
    let flat = TensorType::new(&[state.len], DType::F32);
    let gradients = graph.state(state.gradients, 0, flat);
    let learning_rate = graph.input("learning_rate", &[1], DType::F32);
    let norm = graph.value(TensorType::new(&[1], DType::F32));
    graph.push(Kernel::GlobalNorm, vec![gradients], vec![norm]);
    let parameters = graph.state(state.parameters, 0, flat);
    let first = graph.state(state.first_moment, 0, flat);
    let second = graph.state(state.second_moment, 0, flat);
    let counter = graph.state(state.counter, 0, TensorType::new(&[1], DType::U32));
    graph.push(
        Kernel::AdamW(adamw),
        vec![gradients, norm, learning_rate],
        vec![parameters, first, second, counter],
    );
    graph.keep(norm);
    Update { graph, learning_rate, norm }
}
