//! The fuse pass: groups of kernels that a backend does better in one.
//!
//! Every rule looks for a producer and its only consumers and puts one kernel in their place whose expansion is exactly
//! what was there. Rules never move a write to state across another write to the same state.

mod attention;
pub(crate) mod biases;
pub(crate) mod gate;
mod norms;
mod pairs;
pub(crate) mod slopes;

use ironmill_compute::{DType, HeadLoss, Kernel, LossShape, Op, TensorType, kernel::head_chunk_rows};

use crate::graph::{Graph, Kind, Node, Tensor};

/// Fuses what can be fused and drops values that nobody reads.
pub(crate) fn apply(graph: &mut Graph, head_elements: usize) {
    fuse_state_writes(graph);
    while fuse_one_head(graph, head_elements) {}
    while fuse_one_add_and_norm(graph) {}
    while pairs::fuse_one_norm_gradient_and_add(graph) {}
    while norms::fuse_one_norm_gradients(graph) {}
    while norms::fuse_one_bias_gradient(graph) {}
    while pairs::fuse_one_product_and_gelu(graph) {}
    while pairs::fuse_one_product_and_gelu_gradient(graph) {}
    while attention::fuse_one_split(graph) {}
    while pairs::fuse_one_bias_gradient(graph) {}
    while attention::fuse_one_cached(graph) {}
    while gate::fuse_one_split(graph) {}
    drop_unread(graph);
}

/// Gradient ops whose results only go into the gradient buffer write there themselves.
fn fuse_state_writes(graph: &mut Graph) {
    let readers = graph.readers();
    let mut removed = vec![false; graph.nodes.len()];
    for index in 0..graph.nodes.len() {
        let node = &graph.nodes[index];
        let Kernel::Op(op) = &node.kernel else { continue };
        if !matches!(
            op,
            Op::LinearGradWeight { .. }
                | Op::LinearGradBias
                | Op::LayerNormGradParams { .. }
                | Op::RmsNormGradGain { .. }
                | Op::EmbedGrad { .. }
        ) {
            continue;
        }
        let writes: Option<Vec<(usize, bool, Tensor)>> = node
            .outputs
            .iter()
            .map(|output| match readers[output.0][..] {
                [reader] => match graph.nodes[reader].kernel {
                    Kernel::StateWrite { add } => Some((reader, add, graph.nodes[reader].outputs[0])),
                    _ => None,
                },
                _ => None,
            })
            .collect();
        let Some(writes) = writes else { continue };
        let add = writes[0].1;
        let in_the_way =
            writes.iter().any(|&(write, _, state)| touches(&graph.nodes[index + 1..write], graph, state));
        if in_the_way
            || writes.iter().any(|write| write.1 != add)
            || node.outputs.iter().any(|t| graph.kept.contains(t))
        {
            continue;
        }
        let fused = Node {
            kernel: Kernel::OpInto { op: op.clone(), add },
            inputs: node.inputs.clone(),
            outputs: writes.iter().map(|write| write.2).collect(),
            stage: node.stage,
        };
        writes.iter().for_each(|write| removed[write.0] = true);
        graph.nodes[index] = fused;
    }
    remove(graph, &removed);
}

/// The head's product, the loss and their gradients run over a few rows at a time, if nothing else reads the logits.
fn fuse_one_head(graph: &mut Graph, head_elements: usize) -> bool {
    let readers = graph.readers();
    for linear in 0..graph.nodes.len() {
        if let Some(head) = match_head(graph, &readers, linear) {
            replace_head(graph, head, head_elements);
            return true;
        }
    }
    false
}

/// The nodes of a head that can be fused.
struct Head {
    linear: usize,
    loss: usize,
    shape: LossShape,
    products: DType,
    loss_grad: Option<usize>,
    grad_input: Option<usize>,
    grad_weight: Option<usize>,
}

fn match_head(graph: &Graph, readers: &[Vec<usize>], linear: usize) -> Option<Head> {
    let node = &graph.nodes[linear];
    let Kernel::Op(Op::Linear { bias: false, products }) = node.kernel else { return None };
    let logits = node.outputs[0];
    let (&loss, rest) = readers[logits.0].split_first()?;
    let Kernel::Op(Op::CrossEntropy(shape)) = graph.nodes[loss].kernel else { return None };
    if [logits, graph.nodes[loss].outputs[1]].iter().any(|t| graph.kept.contains(t)) {
        return None;
    }
    let mut head =
        Head { linear, loss, shape, products, loss_grad: None, grad_input: None, grad_weight: None };
    let log_sum_exp = graph.nodes[loss].outputs[1];
    match rest {
        [] => return readers[log_sum_exp.0].is_empty().then_some(head),
        [grad] if graph.nodes[*grad].kernel == Kernel::Op(Op::CrossEntropyGrad(shape)) => {
            head.loss_grad = Some(*grad)
        }
        _ => return None,
    }
    let loss_grad = head.loss_grad?;
    let d_logits = graph.nodes[loss_grad].outputs[0];
    if readers[log_sum_exp.0] != [loss_grad] || graph.kept.contains(&d_logits) {
        return None;
    }
    // The gradient of the losses must not itself need them, for the fused kernel makes both at once.
    if depends(graph, head.loss..loss_grad, graph.nodes[loss].outputs[0])[graph.nodes[loss_grad].inputs[4].0]
    {
        return None;
    }
    for &reader in &readers[d_logits.0] {
        let (kernel, inputs) = (&graph.nodes[reader].kernel, &graph.nodes[reader].inputs);
        match kernel {
            Kernel::Op(Op::LinearGradInput { products: other })
                if *other == products && inputs[1] == node.inputs[1] && head.grad_input.is_none() =>
            {
                head.grad_input = Some(reader);
            }
            Kernel::OpInto { op: Op::LinearGradWeight { products: other }, .. }
                if *other == products && inputs[1] == node.inputs[0] && head.grad_weight.is_none() =>
            {
                // The write moves up to the loss's gradient, so no other write to the same place may lie between.
                if touches(&graph.nodes[loss_grad + 1..reader], graph, graph.nodes[reader].outputs[0]) {
                    return None;
                }
                head.grad_weight = Some(reader);
            }
            _ => return None,
        }
    }
    Some(head)
}

fn replace_head(graph: &mut Graph, head: Head, head_elements: usize) {
    let [x, w] = graph.nodes[head.linear].inputs[..] else {
        return;
    };
    let [_, targets, weights] = graph.nodes[head.loss].inputs[..] else {
        return;
    };
    let losses = graph.nodes[head.loss].outputs[0];
    let vocabulary = graph.shape(w).rows();
    let chunk_rows = head_chunk_rows(graph.shape(x), vocabulary, head_elements);
    let workspace = graph.value(TensorType::new(&[chunk_rows, vocabulary], graph.info(x).of.dtype));
    let mut inputs = vec![x, w, targets, weights];
    let mut outputs = vec![losses, workspace];
    let mut d_weight = None;
    if let Some(loss_grad) = head.loss_grad {
        inputs.push(graph.nodes[loss_grad].inputs[4]);
    }
    if let Some(grad_input) = head.grad_input {
        outputs.push(graph.nodes[grad_input].outputs[0]);
    }
    if let Some(grad_weight) = head.grad_weight {
        if let Kernel::OpInto { add, .. } = graph.nodes[grad_weight].kernel {
            d_weight = Some(add);
        }
        outputs.push(graph.nodes[grad_weight].outputs[0]);
    }
    let (loss, d_input) = (head.shape, head.grad_input.is_some());
    let kernel = Kernel::HeadLoss(HeadLoss { chunk_rows, loss, products: head.products, d_input, d_weight });

    // What reads the losses before the gradient exists (their sum, its bookkeeping) moves behind the fused kernel.
    let place = head.loss_grad.unwrap_or(head.loss);
    let tainted = depends(graph, head.loss..place, losses);
    let moved: Vec<bool> = (0..graph.nodes.len())
        .map(|index| {
            let reads_losses = graph.nodes[index].inputs.iter().any(|input| tainted[input.0]);
            (head.loss + 1..place).contains(&index) && reads_losses
        })
        .collect();
    let replaced = [Some(head.linear), Some(head.loss), head.loss_grad, head.grad_input, head.grad_weight];
    graph.stage(graph.nodes[head.linear].stage);
    let nodes = std::mem::take(&mut graph.nodes);
    let mut late = Vec::new();
    for (index, node) in nodes.into_iter().enumerate() {
        if index == place {
            graph.push(kernel.clone(), inputs.clone(), outputs.clone());
            graph.nodes.append(&mut late);
        } else if moved[index] {
            late.push(node);
        } else if !replaced.contains(&Some(index)) {
            graph.nodes.push(node);
        }
    }
}

/// A residual and the norm that reads it become one pass over the rows.
fn fuse_one_add_and_norm(graph: &mut Graph) -> bool {
    let producers = producers(graph);
    for norm in 0..graph.nodes.len() {
        let kernel = match graph.nodes[norm].kernel {
            Kernel::Op(Op::LayerNorm { eps, bias }) => Kernel::AddLayerNorm { eps, bias },
            Kernel::Op(Op::RmsNorm { eps }) => Kernel::AddRmsNorm { eps },
            _ => continue,
        };
        let Some(add) = producers[graph.nodes[norm].inputs[0].0] else {
            continue;
        };
        let parameters = &graph.nodes[norm].inputs[1..];
        // The fused kernel stands where the sum was, so whatever else it reads must exist by then.
        if graph.nodes[add].kernel != Kernel::Op(Op::Add) || parameters.iter().any(|&t| graph.is_value(t)) {
            continue;
        }
        let mut inputs = graph.nodes[add].inputs.clone();
        inputs.extend_from_slice(parameters);
        let mut outputs = graph.nodes[add].outputs.clone();
        outputs.extend_from_slice(&graph.nodes[norm].outputs);
        let stage = graph.nodes[norm].stage;
        graph.nodes[add] = Node { kernel, inputs, outputs, stage };
        graph.nodes.remove(norm);
        return true;
    }
    false
}

/// Removes nodes whose every result is a value that nobody reads.
fn drop_unread(graph: &mut Graph) {
    loop {
        let readers = graph.readers();
        let unread = |tensor: &Tensor| {
            graph.is_value(*tensor) && readers[tensor.0].is_empty() && !graph.kept.contains(tensor)
        };
        let removed: Vec<bool> = graph.nodes.iter().map(|node| node.outputs.iter().all(unread)).collect();
        if !removed.contains(&true) {
            return;
        }
        remove(graph, &removed);
    }
}

/// For every tensor, whether some nodes make it from `source`, directly or not.
fn depends(graph: &Graph, nodes: std::ops::Range<usize>, source: Tensor) -> Vec<bool> {
    let mut tainted = vec![false; graph.tensors.len()];
    tainted[source.0] = true;
    for node in &graph.nodes[nodes] {
        if node.inputs.iter().any(|input| tainted[input.0]) {
            node.outputs.iter().for_each(|output| tainted[output.0] = true);
        }
    }
    tainted
}

/// Whether some of the nodes read or write the elements of a state tensor.
pub(crate) fn touches(nodes: &[Node], graph: &Graph, state: Tensor) -> bool {
    writes(nodes, graph, state) || nodes.iter().any(|node| overlaps(graph, &node.inputs, state))
}

/// Whether some of the nodes write the elements of a state tensor.
pub(crate) fn writes(nodes: &[Node], graph: &Graph, state: Tensor) -> bool {
    nodes.iter().any(|node| overlaps(graph, &node.outputs, state))
}

/// Whether some tensors share elements with a state tensor.
fn overlaps(graph: &Graph, tensors: &[Tensor], state: Tensor) -> bool {
    let place = |tensor: &Tensor| match graph.info(*tensor).kind {
        Kind::State { state, offset } => Some((state, offset, offset + graph.shape(*tensor).elements())),
        Kind::Input { .. } | Kind::Value => None,
    };
    let Some((buffer, start, end)) = place(&state) else { return false };
    tensors.iter().filter_map(place).any(|(other, from, to)| other == buffer && from < end && start < to)
}

/// For every value, the node that writes it.
pub(crate) fn producers(graph: &Graph) -> Vec<Option<usize>> {
    let mut producers = vec![None; graph.tensors.len()];
    for (index, node) in graph.nodes.iter().enumerate() {
        for output in &node.outputs {
            if graph.info(*output).kind == Kind::Value {
                producers[output.0] = Some(index);
            }
        }
    }
    producers
}

pub(crate) fn remove(graph: &mut Graph, removed: &[bool]) {
    let mut index = 0;
    graph.nodes.retain(|_| {
        index += 1;
        !removed[index - 1]
    });
}
