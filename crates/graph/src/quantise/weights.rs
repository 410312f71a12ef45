//! Weights are known before a step begins, so all of them are quantised together, where the first is needed.
//!
//! Transposed copies wait for the backward in any case, and at its beginning, where a plan is largest, copies as they stand have been
//! read: a plan hardly grows.

use ironmill_compute::{DType, Kernel, Quantise};

use crate::{
    fuse::{remove, writes},
    graph::{Graph, Kind, Node},
};

/// Puts one kernel in the place of all that quantise weights.
pub(super) fn gather(graph: &mut Graph) {
    let found = find(graph);
    let [(first, _), _, ..] = found[..] else { return };
    let nodes: Vec<&Node> = found.iter().map(|&(index, _)| &graph.nodes[index]).collect();
    let elements = |node: &&&Node| graph.shape(node.inputs[0]).elements();
    let stage = nodes.iter().max_by_key(elements).map_or(nodes[0].stage, |node| node.stage);
    let gathered = Node {
        kernel: Kernel::QuantiseWeights(found.iter().map(|&(_, of)| of).collect()),
        inputs: nodes.iter().map(|node| node.inputs[0]).collect(),
        outputs: nodes.iter().flat_map(|node| node.outputs.clone()).collect(),
        stage,
    };
    let mut removed = vec![false; graph.nodes.len()];
    found[1..].iter().for_each(|&(index, _)| removed[index] = true);
    graph.nodes[first] = gathered;
    remove(graph, &removed);
}

/// The nodes that quantise weights of one type, none of which is written between the first and its own.
fn find(graph: &Graph) -> Vec<(usize, Quantise)> {
    let mut found: Vec<(usize, Quantise)> = Vec::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        let Kernel::Quantise(of) = node.kernel else { continue };
        let weight = node.inputs[0];
        let is_weight =
            of.is_plain() && of.of == DType::E4M3 && matches!(graph.info(weight).kind, Kind::State { .. });
        let fits = found.first().is_none_or(|&(first, _)| {
            let dtype = graph.info(graph.nodes[first].inputs[0]).of.dtype;
            graph.info(weight).of.dtype == dtype && !writes(&graph.nodes[first..index], graph, weight)
        });
        if is_weight && fits {
            found.push((index, of));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use ironmill_compute::TensorType;

    use crate::{Graph, States, quantise};

    use super::*;

    #[test]
    fn a_weight_that_is_written_first_is_quantised_on_its_own() {
        let mut states = States::default();
        let state = states.declare("weights", DType::F32, 3 * 16 * 16);
        let mut g = Graph::new();
        let square = TensorType::new(&[16, 16], DType::F32);
        let [a, b, c] = [0, 1, 2].map(|index| g.state(state, index * 16 * 16, square));
        let x = g.input("x", &[16, 16], DType::F32);
        let x = g.linear(x, a, None).unwrap();
        g.write_state(x, b, false);
        let x = g.linear(x, b, None).unwrap();
        let x = g.linear(x, c, None).unwrap();
        g.keep(x);
        quantise::apply(&mut g, false);
        let quantised = |node: &Node| match &node.kernel {
            Kernel::QuantiseWeights(_) | Kernel::Quantise(_) => Some(node.inputs.clone()),
            _ => None,
        };
        let quantised: Vec<Vec<_>> = g.nodes().iter().filter_map(quantised).collect();
        assert!(quantised.contains(&vec![a, c]) && quantised.contains(&vec![b]), "{quantised:?}");
    }
}
