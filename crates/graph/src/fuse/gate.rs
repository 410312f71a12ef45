//! Gates that read their operands where the product before them wrote them, and gates inside products.

use ironmill_compute::{DType, Kernel, Op};

use super::{producers, touches};
use crate::graph::{Graph, Node, Tensor};

/// A split whose halves only a gate and its gradient read, and the concatenation of the halves' gradients.
struct Joint {
    split: usize,
    gate: usize,
    /// The gate's gradient and the concatenation.
    gradient: Option<[usize; 2]>,
}

/// Removes one split and the concatenation that is its gradient: the gate then works on columns of the joint tensors.
pub(super) fn fuse_one_split(graph: &mut Graph) -> bool {
    let readers = graph.readers();
    let Some(joint) = (0..graph.nodes.len()).find_map(|split| matched(graph, &readers, split)) else {
        return false;
    };
    let gate_up = graph.nodes[joint.split].inputs[0];
    let forward = &mut graph.nodes[joint.gate];
    forward.kernel = Kernel::JointSiluGate;
    forward.inputs = vec![gate_up];
    let mut removed = vec![joint.split];
    if let Some([gradient, concat]) = joint.gradient {
        let inputs = vec![gate_up, graph.nodes[gradient].inputs[2]];
        let (outputs, stage) = (graph.nodes[concat].outputs.clone(), graph.nodes[gradient].stage);
        graph.nodes[gradient] = Node { kernel: Kernel::JointSiluGateGrad, inputs, outputs, stage };
        removed.push(concat);
    }
    let removed: Vec<bool> = (0..graph.nodes.len()).map(|index| removed.contains(&index)).collect();
    super::remove(graph, &removed);
    true
}

fn matched(graph: &Graph, readers: &[Vec<usize>], split: usize) -> Option<Joint> {
    let node = &graph.nodes[split];
    let (Kernel::Op(Op::Split { .. }), &[gate, up]) = (&node.kernel, &node.outputs[..]) else { return None };
    let are_kept = graph.kept.contains(&gate) || graph.kept.contains(&up);
    let (&forward, rest) = readers[gate.0].split_first()?;
    let is_gate = graph.nodes[forward].kernel == Kernel::Op(Op::SiluGate)
        && graph.nodes[forward].inputs == [gate, up]
        && readers[up.0] == readers[gate.0];
    if are_kept || !is_gate {
        return None;
    }
    let gradient = match *rest {
        [] => None,
        [gradient] => Some([gradient, concat_of(graph, readers, gradient)?]),
        _ => return None,
    };
    Some(Joint { split, gate: forward, gradient })
}

/// The concatenation that is all that reads the gradients of a gate's operands.
fn concat_of(graph: &Graph, readers: &[Vec<usize>], gradient: usize) -> Option<usize> {
    let node = &graph.nodes[gradient];
    if node.kernel != Kernel::Op(Op::SiluGateGrad) {
        return None;
    }
    let &[concat] = &readers[node.outputs[0].0][..] else { return None };
    let is_whole = graph.nodes[concat].kernel == Kernel::Op(Op::Concat)
        && graph.nodes[concat].inputs == node.outputs
        && node.outputs.iter().all(|d| readers[d.0] == [concat] && !graph.kept.contains(d));
    is_whole.then_some(concat)
}

/// A gate between two products: the one that gives its operands, and the one whose gradient comes back to it.
struct Between {
    product: usize,
    gate: usize,
    d_product: usize,
    gradient: usize,
    products: [DType; 2],
}

/// Puts gates with a gradient into the products around them, where operands of such a type suit. Slopes take the place of a gate's
/// operands, which nobody else reads.
pub(crate) fn join_products(graph: &mut Graph, suits: impl Fn(DType) -> bool) {
    let mut removed = vec![false; graph.nodes.len()];
    let (readers, producers) = (graph.readers(), producers(graph));
    for gate in 0..graph.nodes.len() {
        let Some(between) = between_products(graph, &readers, &producers, gate) else { continue };
        let slopes = graph.nodes[gate].inputs[0];
        if !suits(graph.info(slopes).of.dtype) {
            continue;
        }
        let Between { product, gate, d_product, gradient, products: [forward, backward] } = between;
        let y = graph.nodes[gate].outputs[0];
        let d_gate_up = graph.nodes[gradient].outputs[0];
        let node = &mut graph.nodes[product];
        node.kernel = Kernel::LinearGate { products: forward };
        node.outputs.push(y);
        let Node { mut inputs, stage, .. } = graph.nodes[d_product].clone();
        inputs.push(slopes);
        let kernel = Kernel::LinearGradGate { products: backward };
        graph.nodes[gradient] = Node { kernel, inputs, outputs: vec![d_gate_up], stage };
        removed[gate] = true;
        removed[d_product] = true;
    }
    super::remove(graph, &removed);
}

fn between_products(
    graph: &Graph,
    readers: &[Vec<usize>],
    producers: &[Option<usize>],
    gate: usize,
) -> Option<Between> {
    let node = &graph.nodes[gate];
    if node.kernel != Kernel::JointSiluGate {
        return None;
    }
    let gate_up = node.inputs[0];
    let &[first, gradient] = &readers[gate_up.0][..] else { return None };
    let is_gradient = first == gate && graph.nodes[gradient].kernel == Kernel::JointSiluGateGrad;
    if !is_gradient || graph.kept.contains(&gate_up) {
        return None;
    }
    let d_y = graph.nodes[gradient].inputs[1];
    let (product, d_product) = (producers[gate_up.0]?, producers[d_y.0]?);
    let is_private =
        |value: Tensor, reader: usize| readers[value.0] == [reader] && !graph.kept.contains(&value);
    // The gradient's product moves to where the gradient is.
    let between = &graph.nodes[d_product + 1..gradient];
    let is_steady = graph.nodes[d_product].inputs.iter().all(|&input| !touches(between, graph, input));
    match (&graph.nodes[product].kernel, &graph.nodes[d_product].kernel) {
        (
            &Kernel::Op(Op::Linear { bias: false, products: forward }),
            &Kernel::Op(Op::LinearGradInput { products: backward }),
        ) if is_private(d_y, gradient) && is_steady => {
            Some(Between { product, gate, d_product, gradient, products: [forward, backward] })
        }
        _ => None,
    }
}
