//! The precision pass: element types become part of the program.
//!
//! A model is written in f32. Under a working type, every parameter that an op reads is replaced by its working copy, and
//! the types of all values follow from the ops' own rules: activations in the working type; statistics, losses and weight
//! gradients in f32. Masters, gradients and moments stay f32.
//!
//! Where everything is stored in f32 and only products are narrower, nothing is cast: the ops say what they round to.

use ironmill_compute::{DType, Kernel, Op, TensorType};

use crate::{
    error::Result,
    graph::{Graph, Kind, StateId, Tensor},
    stage::Stage,
};

/// Which type activations and products use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// Everything in f32: no casts.
    F32,
    /// Everything is stored in f32, and operands of products are rounded to this type on their way to be multiplied.
    Products(DType),
    /// The same, with the weights of products read from a copy in this type, laid out as the masters are: half the memory to
    /// go through, and the same results. Weights with odd rows are read from the masters.
    Weights {
        /// The type of the copy.
        dtype: DType,
        /// The masters' buffer.
        masters: StateId,
        /// The copy's buffer.
        copy: StateId,
    },
    /// Parameters are read from a copy in this type, laid out as the masters are.
    Working {
        /// The type of the copy.
        dtype: DType,
        /// The masters' buffer.
        masters: StateId,
        /// The copy's buffer.
        copy: StateId,
    },
}

/// Applies a policy to a program.
pub(crate) fn apply(graph: &mut Graph, precision: Precision) -> Result<()> {
    let (dtype, masters, copy) = match precision {
        Precision::F32 => return Ok(()),
        Precision::Products(dtype) => {
            for node in &mut graph.nodes {
                if let Kernel::Op(op) = &mut node.kernel
                    && let Some(products) = op.products_mut()
                {
                    *products = dtype;
                }
            }
            return Ok(());
        }
        Precision::Weights { dtype, masters, copy } => {
            for index in 0..graph.nodes.len() {
                let Kernel::Op(Op::Linear { products, .. }) = &mut graph.nodes[index].kernel else {
                    continue;
                };
                *products = dtype;
                let weight = graph.nodes[index].inputs[1];
                if graph.shape(weight).columns().is_multiple_of(2) {
                    graph.nodes[index].inputs[1] = working(graph, weight, dtype, masters, copy);
                }
            }
            return Ok(());
        }
        Precision::Working { dtype, masters, copy } => (dtype, masters, copy),
    };
    for index in 0..graph.nodes.len() {
        let Kernel::Op(op) = graph.nodes[index].kernel.clone() else {
            continue;
        };
        let mut op = op;
        // Operands that an op computes on its way to a product, such as probabilities, are rounded as stored ones are.
        if let Some(products) = op.products_mut() {
            *products = dtype;
        }
        let mut inputs = graph.nodes[index].inputs.clone();
        for input in &mut inputs {
            *input = working(graph, *input, dtype, masters, copy);
        }
        // Embeddings and products may meet operands of both types only at the loss, whose rules name f32 themselves.
        let types: Vec<TensorType> = inputs.iter().map(|&tensor| graph.info(tensor).of).collect();
        let types = op.outputs(&types)?;
        let outputs = graph.nodes[index].outputs.clone();
        for (output, of) in outputs.into_iter().zip(types) {
            if graph.is_value(output) {
                graph.tensors[output.0].of = of;
            }
        }
        graph.nodes[index].inputs = inputs;
        graph.nodes[index].kernel = Kernel::Op(op);
    }
    Ok(())
}

fn working(graph: &mut Graph, tensor: Tensor, dtype: DType, masters: StateId, copy: StateId) -> Tensor {
    let info = graph.info(tensor).clone();
    match info.kind {
        Kind::State { state, offset } if state == masters => {
            graph.state(copy, offset, info.of.with_dtype(dtype))
        }
        _ => tensor,
    }
}

/// A program that refreshes the working copy from the masters.
pub fn refresh_program(len: usize, dtype: DType, masters: StateId, copy: StateId) -> Graph {
    let mut graph = Graph::new();
    push_refresh(&mut graph, len, dtype, masters, copy);
    graph
}

/// Ends a program with the refreshing of the working copy from the masters.
pub(crate) fn push_refresh(graph: &mut Graph, len: usize, dtype: DType, masters: StateId, copy: StateId) {
    graph.stage(Stage::Optimiser);
    let from = graph.state(masters, 0, TensorType::new(&[len], DType::F32));
    let to = graph.state(copy, 0, TensorType::new(&[len], dtype));
    graph.push(Kernel::Cast, vec![from], vec![to]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Accumulate, Layout, States};

    /// Whether an op's results may be kept in less than f32; the rest of the rules are in [`Op::outputs`].
    fn keeps_f32(op: &Op) -> bool {
        matches!(
            op,
            Op::CrossEntropy(_)
                | Op::Sum
                | Op::LinearGradWeight { .. }
                | Op::LinearGradBias
                | Op::EmbedGrad { .. }
        )
    }

    #[test]
    fn every_product_takes_the_type_of_products_and_nothing_else_changes() {
        let mut g = Graph::new();
        let x = g.input("x", &[2, 3, 4], DType::F32);
        let w = g.input("w", &[4, 4], DType::F32);
        let seed = g.input("seed", &[2, 3, 4], DType::F32);
        let heads = crate::Heads { queries: 2, keys: 2, mask: ironmill_compute::Mask::Causal, window: 0 };
        let a = g.attention([x, x, x], None, heads).unwrap();
        let y = g.linear(a, w, None).unwrap();
        g.gradients(&[(y, seed)], &[x, w]).unwrap();
        let before = g.clone();
        apply(&mut g, Precision::Products(DType::BF16)).unwrap();
        let mut products = 0;
        for node in &mut g.nodes {
            if let Kernel::Op(op) = &mut node.kernel
                && let Some(of) = op.products_mut()
            {
                assert_eq!(std::mem::replace(of, DType::F32), DType::BF16, "{}", node.kernel.name());
                products += 1;
            }
        }
        assert_eq!((products, g.nodes), (5, before.nodes));
        assert_eq!(g.tensors, before.tensors);
    }

    #[test]
    fn activations_take_the_working_type_and_losses_and_weight_gradients_stay_f32() {
        let (mut layout, mut states) = (Layout::default(), States::default());
        let w = layout.add("w", &[5, 4], true);
        let masters = states.declare("parameters", DType::F32, layout.len());
        let gradients = states.declare("gradients", DType::F32, layout.len());
        let copy = states.declare("working", DType::BF16, layout.len());
        let mut g = Graph::new();
        let table = g.parameter(masters, &layout.parameters()[w]);
        let ids = g.input("ids", &[2, 3], DType::U32);
        let weights = g.input("weights", &[2, 3], DType::F32);
        let seed = g.input("seed", &[1], DType::F32);
        let x = g.embed(table, ids).unwrap();
        let x = g.gelu(x).unwrap();
        let logits = g.linear(x, table, None).unwrap();
        let losses = g.cross_entropy(logits, ids, weights, Default::default()).unwrap();
        let loss = g.sum(losses).unwrap();
        g.train(loss, seed, Accumulate { gradients, add: false }).unwrap();
        apply(&mut g, Precision::Working { dtype: DType::BF16, masters, copy }).unwrap();
        for node in g.nodes() {
            let Kernel::Op(op) = &node.kernel else { continue };
            for &input in &node.inputs {
                assert!(
                    !matches!(g.info(input).kind, Kind::State { state, .. } if state == masters),
                    "{}",
                    op.name()
                );
            }
            let expected =
                if keeps_f32(op) || matches!(op, Op::Broadcast { .. }) { DType::F32 } else { DType::BF16 };
            assert_eq!(g.info(node.outputs[0]).of.dtype, expected, "{}", op.name());
        }
    }
}
