//! Attention that reads queries, keys and values where the product before it wrote them.

use ironmill_compute::{Attention, Kernel, Op, kernel::joint_parts};

use crate::graph::{Graph, Node, Tensor};

/// A split whose parts only an attention and its gradient read, and the concatenation of the parts' gradients.
struct Joint {
    split: usize,
    attention: usize,
    /// The attention's gradient and the concatenation.
    gradient: Option<[usize; 2]>,
    of: Attention,
}

/// Removes one split and the concatenation that is its gradient: attention then works on columns of the joint tensors.
pub(super) fn fuse_one_split(graph: &mut Graph) -> bool {
    let readers = graph.readers();
    let Some(joint) = (0..graph.nodes.len()).find_map(|split| matched(graph, &readers, split)) else {
        return false;
    };
    let qkv = graph.nodes[joint.split].inputs[0];
    let forward = &mut graph.nodes[joint.attention];
    let borders: Vec<Tensor> = forward.inputs[3..].to_vec();
    forward.kernel = Kernel::JointAttention(joint.of);
    forward.inputs = [vec![qkv], borders].concat();
    let mut removed = vec![joint.split];
    if let Some([gradient, concat]) = joint.gradient {
        let inputs = &graph.nodes[gradient].inputs;
        let inputs = [&[inputs[0], qkv], &inputs[4..]].concat();
        let outputs = graph.nodes[concat].outputs.clone();
        let stage = graph.nodes[gradient].stage;
        graph.nodes[gradient] = Node { kernel: Kernel::JointAttentionGrad(joint.of), inputs, outputs, stage };
        removed.push(concat);
    }
    let removed: Vec<bool> = (0..graph.nodes.len()).map(|index| removed.contains(&index)).collect();
    super::remove(graph, &removed);
    true
}

fn matched(graph: &Graph, readers: &[Vec<usize>], split: usize) -> Option<Joint> {
    let node = &graph.nodes[split];
    let Kernel::Op(Op::Split { sizes }) = &node.kernel else { return None };
    let &[q, k, v] = &node.outputs[..] else { return None };
    if [q, k, v].iter().any(|part| graph.kept.contains(part)) {
        return None;
    }
    let (&attention, rest) = readers[q.0].split_first()?;
    let Kernel::Op(Op::Attention(of)) = graph.nodes[attention].kernel else { return None };
    let fits = sizes[..] == joint_parts(&of, graph.shape(node.inputs[0])) && !of.cached;
    if !fits || graph.nodes[attention].inputs[..3] != [q, k, v] {
        return None;
    }
    if readers[k.0] != readers[q.0] || readers[v.0] != readers[q.0] {
        return None;
    }
    let gradient = match *rest {
        [] => None,
        [gradient] => Some([gradient, concat_of(graph, readers, gradient, of, [q, k, v])?]),
        _ => return None,
    };
    Some(Joint { split, attention, gradient, of })
}

/// The concatenation that is all that reads the gradients of queries, keys and values.
fn concat_of(
    graph: &Graph,
    readers: &[Vec<usize>],
    gradient: usize,
    of: Attention,
    parts: [Tensor; 3],
) -> Option<usize> {
    let node = &graph.nodes[gradient];
    if node.kernel != Kernel::Op(Op::AttentionGrad(of)) || node.inputs[1..4] != parts {
        return None;
    }
    let &[concat] = &readers[node.outputs[0].0][..] else { return None };
    let is_whole = graph.nodes[concat].kernel == Kernel::Op(Op::Concat)
        && graph.nodes[concat].inputs == node.outputs
        && node.outputs.iter().all(|d| readers[d.0] == [concat] && !graph.kept.contains(d));
    is_whole.then_some(concat)
}

/// A split whose queries an attention reads over the caches that its keys and values go into, all in a row.
pub(super) fn fuse_one_cached(graph: &mut Graph) -> bool {
    let readers = graph.readers();
    let Some(split) = (0..graph.nodes.len()).find(|&split| is_cached(graph, &readers, split)) else {
        return false;
    };
    let [qkv, places] = [graph.nodes[split].inputs[0], graph.nodes[split + 1].inputs[1]];
    let [k_cache, v_cache] = [1, 2].map(|behind| graph.nodes[split + behind].outputs[0]);
    let attention = &mut graph.nodes[split + 3];
    let Kernel::Op(Op::Attention(of)) = attention.kernel else { unreachable!("it was just matched") };
    attention.kernel = Kernel::CachedAttention(of);
    attention.inputs = vec![qkv, places];
    attention.outputs.extend([k_cache, v_cache]);
    let removed: Vec<bool> =
        (0..graph.nodes.len()).map(|index| (split..split + 3).contains(&index)).collect();
    super::remove(graph, &removed);
    true
}

fn is_cached(graph: &Graph, readers: &[Vec<usize>], split: usize) -> bool {
    let Some([first, keys, values, attention]) = graph.nodes.get(split..split + 4) else { return false };
    let (Kernel::Op(Op::Split { sizes }), &[q, k, v]) = (&first.kernel, &first.outputs[..]) else {
        return false;
    };
    let Kernel::Op(Op::Attention(of)) = attention.kernel else { return false };
    let places = keys.inputs.get(1).copied();
    let appends = |node: &Node, part: Tensor| {
        node.kernel == Kernel::CacheAppend && node.inputs[0] == part && node.inputs.get(1).copied() == places
    };
    let is_read_once = [(q, split + 3), (k, split + 1), (v, split + 2)]
        .iter()
        .all(|(part, reader)| readers[part.0] == [*reader] && !graph.kept.contains(part));
    of.cached
        && sizes[..] == joint_parts(&of, graph.shape(first.inputs[0]))
        && appends(keys, k)
        && appends(values, v)
        && places
            .is_some_and(|places| attention.inputs[..] == [q, keys.outputs[0], values.outputs[0], places])
        && keys.outputs[0] != values.outputs[0]
        && is_read_once
}
