//! The gradient of a norm takes over the sums over rows that read what it reads or writes.

use ironmill_compute::{Kernel, NormGrads, Op};

use super::touches;
use crate::graph::{Graph, Node, Tensor};

/// The gradient of a norm's input and those of its parameters become one pass over the rows.
pub(super) fn fuse_one_norm_gradients(graph: &mut Graph) -> bool {
    let found = (0..graph.nodes.len()).find_map(|index| {
        let node = &graph.nodes[index];
        let centred = match node.kernel {
            Kernel::LayerNormGradAdd => true,
            Kernel::RmsNormGradAdd => false,
            _ => return None,
        };
        let (_, own) = node.inputs.split_last()?;
        let operands = [&own[..2], &own[3..]].concat();
        (0..graph.nodes.len()).find_map(|params| {
            let (shift, add) = match graph.nodes[params].kernel {
                Kernel::OpInto { op: Op::LayerNormGradParams { bias }, add } => (bias, add),
                Kernel::OpInto { op: Op::RmsNormGradGain { .. }, add } => (false, add),
                _ => return None,
            };
            let fits = graph.nodes[params].inputs == operands && can_move(graph, params, index);
            fits.then_some((index, params, NormGrads { centred, shift, bias: false, add }))
        })
    });
    let Some((index, params, of)) = found else { return false };
    take_over(graph, index, params, of);
    true
}

/// The gradient of the bias of the product before a norm's residual is the sum of the rows that the norm's gradient writes.
pub(super) fn fuse_one_bias_gradient(graph: &mut Graph) -> bool {
    let found = (0..graph.nodes.len()).find_map(|bias| {
        let Kernel::OpInto { op: Op::LinearGradBias, add } = graph.nodes[bias].kernel else { return None };
        let d_y = graph.nodes[bias].inputs[0];
        let index = (0..bias).find(|&index| graph.nodes[index].outputs[0] == d_y)?;
        let node = &graph.nodes[index];
        let Kernel::NormGrads(of @ NormGrads { bias: false, .. }) = node.kernel else { return None };
        let is_whole = graph.shape(node.inputs[2]).elements() == graph.shape(d_y).columns();
        let fits = of.add == add && is_whole && can_move(graph, bias, index);
        fits.then_some((index, bias, NormGrads { bias: true, ..of }))
    });
    let Some((index, bias, of)) = found else { return false };
    take_over(graph, index, bias, of);
    true
}

/// Whether the writes of a node may happen at another's place: nothing between touches what it writes.
pub(super) fn can_move(graph: &Graph, from: usize, to: usize) -> bool {
    let between = &graph.nodes[from.min(to) + 1..from.max(to)];
    graph.nodes[from].outputs.iter().all(|&state| !touches(between, graph, state))
}

/// Puts a kernel in place of a node that also writes what another one wrote, and removes that one.
fn take_over(graph: &mut Graph, index: usize, other: usize, of: NormGrads) {
    let outputs: Vec<Tensor> = [&graph.nodes[index].outputs[..], &graph.nodes[other].outputs].concat();
    let node = &graph.nodes[index];
    let (inputs, stage) = (node.inputs.clone(), node.stage);
    graph.nodes[index] = Node { kernel: Kernel::NormGrads(of), inputs, outputs, stage };
    graph.nodes.remove(other);
}
