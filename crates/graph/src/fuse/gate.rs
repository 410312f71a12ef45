//! Gates that read their operands where the product before them wrote them.

use ironmill_compute::{Kernel, Op};

use crate::graph::{Graph, Node};

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
