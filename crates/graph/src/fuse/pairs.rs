//! Pairs of kernels of which the second works on what the first has just written.

use ironmill_compute::{Kernel, Op};

use super::{norms::can_move, producers, touches};
use crate::graph::{Graph, Node, Tensor};

/// The gradient of a norm and the sum with the gradient that flows around it become one pass over the rows.
pub(super) fn fuse_one_norm_gradient_and_add(graph: &mut Graph) -> bool {
    fuse_one(graph, |graph, add, producer| {
        if graph.nodes[add].kernel != Kernel::Op(Op::Add) {
            return None;
        }
        let &[a, b] = &graph.nodes[add].inputs[..] else { return None };
        [(a, b), (b, a)].into_iter().find_map(|(d_x, other)| {
            let norm = producer(d_x)?;
            let kernel = match graph.nodes[norm].kernel {
                Kernel::Op(Op::LayerNormGradInput) => Kernel::LayerNormGradAdd,
                Kernel::Op(Op::RmsNormGradInput) => Kernel::RmsNormGradAdd,
                _ => return None,
            };
            let mut inputs = graph.nodes[norm].inputs.clone();
            inputs.push(other);
            let (outputs, stage) = (graph.nodes[add].outputs.clone(), graph.nodes[norm].stage);
            Some((norm, Node { kernel, inputs, outputs, stage }))
        })
    })
}

/// The slope of an activation is multiplied into a product's tiles as they are finished.
pub(super) fn fuse_one_product_and_gelu_gradient(graph: &mut Graph) -> bool {
    fuse_one(graph, |graph, slope, producer| {
        if graph.nodes[slope].kernel != Kernel::Op(Op::GeluGrad) {
            return None;
        }
        let &[h, d_y] = &graph.nodes[slope].inputs[..] else { return None };
        let product = producer(d_y)?;
        let Kernel::Op(Op::LinearGradInput { products }) = graph.nodes[product].kernel else { return None };
        let mut inputs = graph.nodes[product].inputs.clone();
        inputs.push(h);
        let kernel = Kernel::LinearGradGelu { products, slope: false };
        let (outputs, stage) = (graph.nodes[slope].outputs.clone(), graph.nodes[product].stage);
        Some((product, Node { kernel, inputs, outputs, stage }))
    })
}

/// The gradient of the bias of the product before an attention or an activation is the sum of the rows that the gradient of these
/// writes.
pub(super) fn fuse_one_bias_gradient(graph: &mut Graph) -> bool {
    let found = (0..graph.nodes.len()).find_map(|bias| {
        let Kernel::OpInto { op: Op::LinearGradBias, add } = graph.nodes[bias].kernel else { return None };
        let d_y = graph.nodes[bias].inputs[0];
        let index = (0..bias).find(|&index| graph.nodes[index].outputs[0] == d_y)?;
        let kernel = match graph.nodes[index].kernel {
            Kernel::JointAttentionGrad(of) => Kernel::JointAttentionGrads { of, add },
            Kernel::LinearGradGelu { products, slope } => Kernel::LinearGradGelus { products, slope, add },
            _ => return None,
        };
        can_move(graph, bias, index).then_some((index, bias, kernel))
    });
    let Some((index, bias, kernel)) = found else { return false };
    let d_bias = graph.nodes[bias].outputs[0];
    graph.nodes[index].kernel = kernel;
    graph.nodes[index].outputs.push(d_bias);
    graph.nodes.remove(bias);
    true
}

/// Finds a second node and the fused one that takes its place, and removes the first. `producer` gives the node that
/// writes a value if nobody but the second reads it and what it reads itself is unchanged until then.
fn fuse_one(
    graph: &mut Graph,
    matched: impl Fn(&Graph, usize, &dyn Fn(Tensor) -> Option<usize>) -> Option<(usize, Node)>,
) -> bool {
    let (readers, producers) = (graph.readers(), producers(graph));
    for second in 0..graph.nodes.len() {
        let producer = |value: Tensor| {
            let first = producers[value.0]?;
            let is_private = readers[value.0] == [second] && !graph.kept.contains(&value);
            let between = &graph.nodes[first + 1..second];
            let is_steady = graph.nodes[first].inputs.iter().all(|&input| !touches(between, graph, input));
            (is_private && is_steady).then_some(first)
        };
        if let Some((first, fused)) = matched(graph, second, &producer) {
            graph.nodes[second] = fused;
            graph.nodes.remove(first);
            return true;
        }
    }
    false
}

/// An activation is computed from a product's tiles as they are finished; its argument is still written, for the backward.
pub(super) fn fuse_one_product_and_gelu(graph: &mut Graph) -> bool {
    let producers = producers(graph);
    for gelu in 0..graph.nodes.len() {
        if graph.nodes[gelu].kernel != Kernel::Op(Op::Gelu) {
            continue;
        }
        let h = graph.nodes[gelu].inputs[0];
        let Some(linear) = producers[h.0] else { continue };
        let Kernel::Op(Op::Linear { bias, products }) = graph.nodes[linear].kernel else { continue };
        let outputs = vec![h, graph.nodes[gelu].outputs[0]];
        let inputs = graph.nodes[linear].inputs.clone();
        let stage = graph.nodes[linear].stage;
        let kernel = Kernel::LinearGelu { bias, products, slope: false };
        graph.nodes[linear] = Node { kernel, inputs, outputs, stage };
        graph.nodes.remove(gelu);
        return true;
    }
    false
}
