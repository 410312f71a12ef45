//! Biases move from products into the norms behind them.
//!
//! Where a library's product with a bias takes longer than one without, the norm that adds the product to a residual adds the bias on the
//! way: it waits for memory, and a bias is as long as one row.

use ironmill_compute::{Kernel, Op};

use super::producers;
use crate::graph::Graph;

/// Moves a bias of a product of at least so many rows that only a norm's residual reads.
pub(crate) fn move_one(graph: &mut Graph, least_rows: usize) -> bool {
    let (readers, producers) = (graph.readers(), producers(graph));
    for norm in 0..graph.nodes.len() {
        let Kernel::AddLayerNorm { eps, bias: shift } = graph.nodes[norm].kernel else { continue };
        let inputs = &graph.nodes[norm].inputs;
        for (product, other) in [(inputs[1], inputs[0]), (inputs[0], inputs[1])] {
            let Some(linear) = producers[product.0] else { continue };
            let Kernel::Op(Op::Linear { bias: true, products }) = graph.nodes[linear].kernel else {
                continue;
            };
            let is_private =
                readers[product.0] == [norm] && product != other && !graph.kept.contains(&product);
            let bias = graph.nodes[linear].inputs[2];
            if !is_private || graph.shape(product).rows() < least_rows || graph.is_value(bias) {
                continue;
            }
            let operands = [&[other, product, bias], &inputs[2..]].concat();
            graph.nodes[linear].inputs.truncate(2);
            graph.nodes[linear].kernel = Kernel::Op(Op::Linear { bias: false, products });
            graph.nodes[norm].inputs = operands;
            graph.nodes[norm].kernel = Kernel::AddBiasedLayerNorm { eps, shift };
            return true;
        }
    }
    false
}
