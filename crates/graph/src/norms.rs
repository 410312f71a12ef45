//! Norms of parts of the flat buffers: a look at a model's inside, in one pass over its gradients and weights.

use std::ops::Range;

use ironmill_compute::{DType, Kernel, TensorType};

use crate::{
    graph::{Graph, StateId, Tensor},
    stage::Stage,
};

/// A program that computes the Euclidean norm of ranges of flat buffers. Gives for every range the norm in each buffer.
pub fn norms_program<const N: usize>(
    buffers: [StateId; N],
    ranges: &[Range<usize>],
) -> (Graph, Vec<[Tensor; N]>) {
    let mut graph = Graph::new();
    graph.stage(Stage::Other);
    let mut norm = |buffer: StateId, range: &Range<usize>| {
        let part = graph.state(buffer, range.start, TensorType::new(&[range.len()], DType::F32));
        let norm = graph.value(TensorType::new(&[1], DType::F32));
        graph.push(Kernel::GlobalNorm, vec![part], vec![norm]);
        graph.keep(norm);
        norm
    };
    let norms = ranges.iter().map(|range| buffers.map(|buffer| norm(buffer, range))).collect();
    (graph, norms)
}

#[cfg(test)]
mod tests {
    use ironmill_compute::{HostData, Reference};

    use super::*;
    use crate::{Passes, Runtime, States};

    #[test]
    fn every_range_has_its_own_norm_in_every_buffer() {
        let mut states = States::default();
        let buffers = ["a", "b"].map(|name| states.declare(name, DType::F32, 192));
        let mut runtime = Runtime::new(Box::new(Reference::rounded()), &states).unwrap();
        let numbers: Vec<f32> = (0..192).map(|i| if i < 64 { 3.0 } else { 0.5 }).collect();
        runtime.write_state(buffers[0], 0..192, HostData::F32(&numbers)).unwrap();
        runtime.write_state(buffers[1], 64..65, HostData::F32(&[-7.0])).unwrap();
        let (graph, norms) = norms_program(buffers, &[0..64, 64..192]);
        let program = runtime.compile(graph, &Passes::ALL).unwrap();
        runtime.run(program).unwrap();
        let read = |tensor: Tensor| {
            let mut number = [0.0];
            runtime.read(program, tensor, &mut number).unwrap();
            number[0]
        };
        let found: Vec<[f32; 2]> = norms.iter().map(|pair| pair.map(read)).collect();
        assert_eq!(found, [[24.0, 0.0], [32f32.sqrt(), 7.0]]);
    }
}
