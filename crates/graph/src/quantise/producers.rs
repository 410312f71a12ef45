//! What is only computed to be quantised is computed on the way there, or quantised where it is computed.

use ironmill_compute::{
    DType, GeluProduct, Kernel, Op, Quantise, QuantisedAttentionGrad, QuantisedNorm, QuantisedNormGrads,
    quantise::{MOST_NORM_COLUMNS, Source},
};

use crate::{
    fuse::producers,
    graph::{Graph, Node, Tensor},
};

/// A tensor that is quantised, by which node, and which node computes it.
struct Quantised {
    by: usize,
    of: Quantise,
    tensor: Tensor,
    producer: usize,
    readers: Vec<usize>,
    /// Whether nobody else needs it.
    is_all: bool,
}

/// Fuses as long as there is something to fuse.
pub(super) fn fuse(graph: &mut Graph) {
    for rule in [
        compute_on_the_way,
        quantise_in_norm,
        quantise_in_norm_grads,
        quantise_in_attention,
        quantise_in_product,
    ] {
        while quantised(graph).iter().any(|at| rule(graph, at)) {}
    }
}

/// All such tensors. Of two operands the second is the one that a product computes.
fn quantised(graph: &Graph) -> Vec<Quantised> {
    let (readers, producers) = (graph.readers(), producers(graph));
    let at = |by: usize| {
        let Kernel::Quantise(of) = graph.nodes[by].kernel else { return None };
        let &tensor = graph.nodes[by].inputs.last()?;
        let readers = readers[tensor.0].clone();
        let is_all = readers == [by] && !graph.kept.contains(&tensor);
        Some(Quantised { by, of, tensor, producer: producers[tensor.0]?, readers, is_all })
    };
    (0..graph.nodes.len()).filter_map(at).collect()
}

/// An activation or its slope.
fn compute_on_the_way(graph: &mut Graph, at: &Quantised) -> bool {
    let source = match graph.nodes[at.producer].kernel {
        Kernel::Op(Op::Gelu) => Source::Gelu,
        Kernel::Op(Op::GeluGrad) => Source::GeluGrad,
        _ => return false,
    };
    if at.of.source != Source::Stored || !at.is_all {
        return false;
    }
    graph.nodes[at.by].inputs = graph.nodes[at.producer].inputs.clone();
    graph.nodes[at.by].kernel = Kernel::Quantise(Quantise { source, ..at.of });
    graph.nodes.remove(at.producer);
    true
}

/// A norm whose result only goes into quantised copies writes those itself, where it was.
fn quantise_in_norm(graph: &mut Graph, at: &Quantised) -> bool {
    let Some(norm) = quantised_norm(graph, at.producer, at.tensor) else { return false };
    if !(at.of.is_plain() && at.of.of == norm.copies().of && at.is_all) {
        return false;
    }
    let copies = graph.nodes.remove(at.by).outputs;
    let node = &mut graph.nodes[at.producer];
    node.kernel = Kernel::QuantisedNorm(QuantisedNorm { rows: at.of.rows, columns: at.of.columns, ..norm });
    node.outputs.retain(|&output| output != at.tensor);
    node.outputs.extend(copies);
    true
}

/// What a node becomes that writes y in eight bits, if y is the result of a norm over rows that are not too long for that.
fn quantised_norm(graph: &Graph, node: usize, y: Tensor) -> Option<QuantisedNorm> {
    let Node { kernel, inputs, outputs, .. } = &graph.nodes[node];
    let (centred, shift, eps, adds) = match *kernel {
        Kernel::Op(Op::LayerNorm { eps, bias }) => (true, bias, eps, false),
        Kernel::AddLayerNorm { eps, bias: shift } | Kernel::AddBiasedLayerNorm { eps, shift } => {
            (true, shift, eps, true)
        }
        Kernel::Op(Op::RmsNorm { eps }) => (false, false, eps, false),
        Kernel::AddRmsNorm { eps } => (false, false, eps, true),
        _ => return None,
    };
    let bias = matches!(kernel, Kernel::AddBiasedLayerNorm { .. });
    let norm = QuantisedNorm { centred, shift, eps, adds, bias, rows: true, columns: true };
    let (columns, gain) = (graph.shape(y).columns(), graph.shape(inputs[norm.before_gain()]));
    let is_whole = columns <= MOST_NORM_COLUMNS && gain.elements() == columns;
    (is_whole && outputs[usize::from(adds)] == y).then_some(norm)
}

/// The gradient that a norm's gradients write for others, too, becomes both copies where it is computed.
fn quantise_in_norm_grads(graph: &mut Graph, at: &Quantised) -> bool {
    let Node { kernel: Kernel::NormGrads(of), inputs, outputs, .. } = &graph.nodes[at.producer] else {
        return false;
    };
    let fused = QuantisedNormGrads(*of);
    let suits = QuantisedNormGrads::suits(graph.info(at.tensor).of, graph.info(inputs[2]).of);
    if !(outputs[0] == at.tensor && at.of == fused.copies() && suits) {
        return false;
    }
    let copies = graph.nodes[at.by].outputs.clone();
    let node = &mut graph.nodes[at.producer];
    node.kernel = Kernel::QuantisedNormGrads(fused);
    node.outputs.extend(copies);
    graph.nodes.remove(at.by);
    true
}

/// The gradient of an attention whose both copies are wanted is written in eight bits where it is computed.
fn quantise_in_attention(graph: &mut Graph, at: &Quantised) -> bool {
    let Kernel::JointAttentionGrad(of) = graph.nodes[at.producer].kernel else { return false };
    let is_whole = at.of.source == Source::Stored && at.of.of == DType::E5M2 && at.of.rows && at.of.columns;
    if !(is_whole && at.is_all && QuantisedAttentionGrad::suits(&of, graph.shape(at.tensor))) {
        return false;
    }
    let Node { inputs, stage, .. } = graph.nodes[at.producer].clone();
    let kernel = Kernel::QuantisedAttentionGrad(QuantisedAttentionGrad { of, sums: at.of.sums });
    let outputs = graph.nodes[at.by].outputs.clone();
    graph.nodes[at.by] = Node { kernel, inputs, outputs, stage };
    graph.nodes.remove(at.producer);
    true
}

/// A product that is quantised behind an activation, or with its slope, is quantised where it is computed.
fn quantise_in_product(graph: &mut Graph, at: &Quantised) -> bool {
    let Kernel::ScaledProduct { bias, add: false } = graph.nodes[at.producer].kernel else { return false };
    let product = match at.of.source {
        // The product moves to where it is quantised, so nobody may read it before.
        Source::Gelu if at.readers.iter().all(|&reader| reader >= at.by) => {
            GeluProduct::Forward { bias, slope: false }
        }
        Source::GeluGrad if !bias && at.is_all => GeluProduct::Backward { sums: at.of.sums, slope: false },
        _ => return false,
    };
    let mut inputs = graph.nodes[at.producer].inputs.clone();
    let is_narrow = graph.info(inputs[0]).of.dtype == at.of.of;
    if product.quantise() != at.of || !is_narrow {
        return false;
    }
    let node = &mut graph.nodes[at.by];
    match product {
        GeluProduct::Forward { .. } => node.outputs.insert(0, at.tensor),
        GeluProduct::Backward { .. } => inputs.push(node.inputs[0]),
    }
    node.kernel = Kernel::GeluProduct(product);
    node.inputs = inputs;
    graph.nodes.remove(at.producer);
    true
}
