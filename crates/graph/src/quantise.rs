//! The quantise pass: products of the layers between embedding and head are of eight bits.
//!
//! Both factors of such a product are quantised first, each tensor once: the copy as it stands is a factor of one product, the
//! transposed one of another. Weights and activations become e4m3, gradients e5m2. A product whose sizes the matrix units do not
//! take stays as it is. Everything else keeps its type: the results of products, the residual stream, masters and gradients of parameters.
//!
//! What is only computed to be quantised is computed on the way: a norm, an activation, its slope, the gradient of an attention, and a
//! bias's gradient, which is a sum over the same numbers. Where both copies are wanted, the product before an activation or its slope is one kernel with that. Weights
//! are quantised together.

mod producers;
mod weights;

use std::collections::BTreeMap;

use ironmill_compute::{
    DType, HeadLoss, Kernel, Op, Quantise, TensorType,
    kernel::eight_bit_workspace_rows,
    quantise::{Source, suits},
};

use crate::{
    fuse::touches,
    graph::{Graph, Node, Tensor},
    stage::Stage,
};

/// Which products are of eight bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EightBits {
    /// None.
    #[default]
    Nowhere,
    /// Those of the layers between embedding and head.
    Blocks,
    /// Those and the head's.
    BlocksAndHead,
}

/// Applies the pass to a program.
pub(crate) fn apply(graph: &mut Graph, takes_head: bool) {
    separate(graph);
    if takes_head {
        take_head(graph);
    }
    let gradients = quantised_gradients(graph, takes_head);
    let mut pass = Pass { takes_head, gradients, ..Pass::default() };
    for node in std::mem::take(&mut graph.nodes) {
        pass.add(graph, node);
    }
    graph.nodes = pass.finish();
    producers::fuse(graph);
    weights::gather(graph);
}

/// Whether a kernel is a product that the pass takes, given its operands.
fn is_taken(graph: &Graph, node: &Node, takes_head: bool) -> bool {
    let is_product = match &node.kernel {
        Kernel::Op(op) | Kernel::OpInto { op, .. } => {
            matches!(op, Op::Linear { .. } | Op::LinearGradInput { .. } | Op::LinearGradWeight { .. })
        }
        kernel => matches!(
            kernel,
            Kernel::LinearGelu { .. } | Kernel::LinearGradGelu { .. } | Kernel::LinearGradGelus { .. }
        ),
    };
    let factors = node.inputs.iter().take(2);
    let is_in_place = match node.stage {
        Stage::Optimiser => false,
        Stage::Head => takes_head,
        _ => true,
    };
    is_product && is_in_place && factors.into_iter().all(|&factor| suits(graph.shape(factor)))
}

/// Activations leave the products that they were fused with, and the gradients of biases those of attentions and activations: all
/// of it costs nothing while numbers are quantised.
fn separate(graph: &mut Graph) {
    for node in std::mem::take(&mut graph.nodes) {
        let Node { inputs, outputs, stage, .. } = node.clone();
        match node.kernel {
            Kernel::LinearGelu { bias, products, .. } if is_taken(graph, &node, false) => {
                let product = Kernel::Op(Op::Linear { bias, products });
                graph.nodes.push(Node { kernel: product, inputs, outputs: vec![outputs[0]], stage });
                let (inputs, outputs) = (vec![outputs[0]], vec![outputs[1]]);
                graph.nodes.push(Node { kernel: Kernel::Op(Op::Gelu), inputs, outputs, stage });
            }
            Kernel::LinearGradGelu { products, .. } | Kernel::LinearGradGelus { products, .. }
                if is_taken(graph, &node, false) =>
            {
                let d_y = graph.value(graph.info(outputs[0]).of);
                let (product, h) = (Kernel::Op(Op::LinearGradInput { products }), inputs[2]);
                let (inputs, d_h) = (inputs[..2].to_vec(), vec![outputs[0]]);
                graph.nodes.push(Node { kernel: product, inputs, outputs: vec![d_y], stage });
                let slope = Kernel::Op(Op::GeluGrad);
                graph.nodes.push(Node { kernel: slope, inputs: vec![h, d_y], outputs: d_h, stage });
                if let Kernel::LinearGradGelus { add, .. } = node.kernel {
                    separate_sums(graph, &node, add);
                }
            }
            Kernel::JointAttentionGrads { of, add } => {
                let (kernel, d_qkv) = (Kernel::JointAttentionGrad(of), vec![outputs[0]]);
                graph.nodes.push(Node { kernel, inputs, outputs: d_qkv, stage });
                separate_sums(graph, &node, add);
            }
            _ => graph.nodes.push(node),
        }
    }
}

/// The second output of a node as a node of its own: the gradient of a bias, from the first.
fn separate_sums(graph: &mut Graph, node: &Node, add: bool) {
    let kernel = Kernel::OpInto { op: Op::LinearGradBias, add };
    let (inputs, outputs) = (vec![node.outputs[0]], vec![node.outputs[1]]);
    graph.nodes.push(Node { kernel, inputs, outputs, stage: node.stage });
}

/// Fused heads have products of eight bits, and room for their factors.
fn take_head(graph: &mut Graph) {
    for index in 0..graph.nodes.len() {
        let Kernel::HeadLoss(head) = &graph.nodes[index].kernel else { continue };
        let [x, w] = [0, 1].map(|input| graph.info(graph.nodes[index].inputs[input]).of);
        let is_narrow = [x, w].iter().all(|of| of.dtype.bytes() == 2);
        if !(is_narrow && suits(x.shape) && suits(w.shape)) {
            continue;
        }
        let (rows, vocabulary) = (x.shape.rows(), w.shape.rows());
        let chunk_rows = head.chunk_rows.next_multiple_of(16).min(rows);
        let kernel = Kernel::HeadLoss(HeadLoss { chunk_rows, products: DType::E4M3, ..head.clone() });
        let workspace = graph.nodes[index].outputs[1];
        let least = eight_bit_workspace_rows(x.shape, vocabulary, chunk_rows);
        graph.tensors[workspace.0].of = TensorType::new(&[least, vocabulary], x.dtype);
        graph.nodes[index].kernel = kernel;
    }
}

/// The gradients that products take.
fn quantised_gradients(graph: &Graph, takes_head: bool) -> Vec<Tensor> {
    let is_gradient = |node: &&Node| match &node.kernel {
        Kernel::Op(op) | Kernel::OpInto { op, .. } => {
            !matches!(op, Op::Linear { .. }) && is_taken(graph, node, takes_head)
        }
        _ => false,
    };
    graph.nodes.iter().filter(is_gradient).map(|node| node.inputs[0]).collect()
}

#[derive(Default)]
struct Pass {
    takes_head: bool,
    gradients: Vec<Tensor>,
    nodes: Vec<Slot>,
    /// Where a tensor is quantised, as a gradient or not.
    quantised: BTreeMap<(Tensor, bool), usize>,
}

/// A node of the new program, or the place where a tensor is quantised.
enum Slot {
    Node(Node),
    Quantise(Copies),
}

/// A tensor with those of its copies that somebody reads.
struct Copies {
    tensor: Tensor,
    of: DType,
    stage: Stage,
    unit: Tensor,
    rows: Option<Tensor>,
    columns: Option<Tensor>,
    /// Where the sums of its columns go, and whether they add to what is there.
    sums: Option<(Tensor, bool)>,
}

impl Pass {
    fn add(&mut self, graph: &mut Graph, node: Node) {
        if self.add_sums(graph, &node) {
            return;
        }
        let (op, add) = match &node.kernel {
            Kernel::Op(op) => (op, false),
            Kernel::OpInto { op, add } => (op, *add),
            _ => return self.nodes.push(Slot::Node(node)),
        };
        if !is_taken(graph, &node, self.takes_head) {
            return self.nodes.push(Slot::Node(node));
        }
        let (first, second) = (node.inputs[0], node.inputs[1]);
        let mut rows = |pass: &mut Self, tensor, of| pass.rows(graph, tensor, of, node.stage);
        let (bias, mut inputs) = match op {
            Op::Linear { bias, .. } => {
                let [x, w] = [first, second].map(|tensor| rows(self, tensor, DType::E4M3));
                (*bias, [x, w].concat())
            }
            Op::LinearGradInput { .. } => {
                let d_y = rows(self, first, DType::E5M2);
                (false, [d_y, self.columns(graph, second, DType::E4M3, node.stage)].concat())
            }
            _ => {
                let d_y = self.columns(graph, first, DType::E5M2, node.stage);
                (false, [d_y, self.columns(graph, second, DType::E4M3, node.stage)].concat())
            }
        };
        inputs.extend_from_slice(&node.inputs[2..]);
        let kernel = Kernel::ScaledProduct { bias, add };
        self.nodes.push(Slot::Node(Node { kernel, inputs, ..node }));
    }

    /// A bias's gradient is summed while the gradient is quantised, unless that would move it past somebody else's write.
    fn add_sums(&mut self, graph: &mut Graph, node: &Node) -> bool {
        let &Kernel::OpInto { op: Op::LinearGradBias, add } = &node.kernel else { return false };
        let (d_y, state) = (node.inputs[0], node.outputs[0]);
        if !self.gradients.contains(&d_y) {
            return false;
        }
        let place = self.place(graph, d_y, DType::E5M2, node.stage);
        let between = self.nodes[place + 1..].iter().filter_map(|slot| match slot {
            Slot::Node(node) => Some(node.clone()),
            Slot::Quantise(_) => None,
        });
        if touches(&between.collect::<Vec<_>>(), graph, state) {
            return false;
        }
        let Slot::Quantise(copies) = &mut self.nodes[place] else { return false };
        let is_free = copies.sums.is_none();
        copies.sums.get_or_insert((state, add));
        is_free
    }

    /// Where a tensor is quantised: here, if nowhere before.
    fn place(&mut self, graph: &mut Graph, tensor: Tensor, of: DType, stage: Stage) -> usize {
        let key = (tensor, of == DType::E5M2);
        if let Some(&place) = self.quantised.get(&key) {
            return place;
        }
        let unit = graph.value(TensorType::new(&[1], DType::F32));
        let copies = Copies { tensor, of, stage, unit, rows: None, columns: None, sums: None };
        self.nodes.push(Slot::Quantise(copies));
        self.quantised.insert(key, self.nodes.len() - 1);
        self.nodes.len() - 1
    }

    fn copies(&mut self, graph: &mut Graph, tensor: Tensor, of: DType, stage: Stage) -> &mut Copies {
        let place = self.place(graph, tensor, of, stage);
        match &mut self.nodes[place] {
            Slot::Quantise(copies) => copies,
            Slot::Node(_) => unreachable!("places are of quantised tensors"),
        }
    }

    /// The copy of a tensor as it stands, with its unit.
    fn rows(&mut self, graph: &mut Graph, tensor: Tensor, of: DType, stage: Stage) -> Vec<Tensor> {
        let copy = TensorType { dtype: of, ..graph.info(tensor).of };
        let fresh = graph.value(copy);
        let copies = self.copies(graph, tensor, of, stage);
        vec![*copies.rows.get_or_insert(fresh), copies.unit]
    }

    /// The transposed copy of a tensor, with its unit.
    fn columns(&mut self, graph: &mut Graph, tensor: Tensor, of: DType, stage: Stage) -> Vec<Tensor> {
        let shape = graph.shape(tensor);
        let fresh = graph.value(TensorType::new(&[shape.columns(), shape.rows()], of));
        let copies = self.copies(graph, tensor, of, stage);
        vec![*copies.columns.get_or_insert(fresh), copies.unit]
    }

    fn finish(self) -> Vec<Node> {
        let node = |slot: Slot| match slot {
            Slot::Node(node) => node,
            Slot::Quantise(copies) => copies.node(),
        };
        self.nodes.into_iter().map(node).collect()
    }
}

impl Copies {
    fn node(self) -> Node {
        let Copies { tensor, of, stage, unit, rows, columns, sums } = self;
        let kernel = Kernel::Quantise(Quantise {
            of,
            source: Source::Stored,
            rows: rows.is_some(),
            columns: columns.is_some(),
            sums: sums.map(|(_, add)| add),
        });
        let outputs = [Some(unit), rows, columns, sums.map(|(state, _)| state)];
        Node { kernel, inputs: vec![tensor], outputs: outputs.into_iter().flatten().collect(), stage }
    }
}
