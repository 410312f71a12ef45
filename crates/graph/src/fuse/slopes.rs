//! Products with GELU keep its slope in place of its argument.
//!
//! The gradient wants nothing else of the argument, and its product then ends in one multiplication where it ended in exponentials. The
//! product forward has them at hand.

use ironmill_compute::{DType, GeluProduct, Kernel};

use crate::graph::{Graph, Node};

/// Changes every product with GELU of such a type whose argument nobody but one gradient reads, and that gradient.
pub(crate) fn keep(graph: &mut Graph, suits: impl Fn(DType) -> bool) {
    let readers = graph.readers();
    for index in 0..graph.nodes.len() {
        let forward = &graph.nodes[index];
        let (Some(with_slope), &h) = (kept_by(forward), &forward.outputs[0]) else { continue };
        let &[reader] = &readers[h.0][..] else { continue };
        let backward = &graph.nodes[reader];
        let is_argument = backward.inputs.iter().filter(|&&input| input == h).count() == 1
            && backward.inputs.last() == Some(&h)
            && !graph.kept.contains(&h);
        let Some(of_slope) = read_by(backward) else { continue };
        if is_argument && suits(graph.info(h).of.dtype) {
            graph.nodes[index].kernel = with_slope;
            graph.nodes[reader].kernel = of_slope;
        }
    }
}

/// What a product with GELU, which writes its argument first, becomes.
fn kept_by(node: &Node) -> Option<Kernel> {
    match node.kernel {
        Kernel::LinearGelu { bias, products, .. } => Some(Kernel::LinearGelu { bias, products, slope: true }),
        Kernel::GeluProduct(of @ GeluProduct::Forward { .. }) => Some(Kernel::GeluProduct(of.with_slope())),
        _ => None,
    }
}

/// What its gradient, which reads the argument last, becomes.
fn read_by(node: &Node) -> Option<Kernel> {
    match node.kernel {
        Kernel::LinearGradGelu { products, .. } => Some(Kernel::LinearGradGelu { products, slope: true }),
        Kernel::LinearGradGelus { products, add, .. } => {
            Some(Kernel::LinearGradGelus { products, slope: true, add })
        }
        Kernel::GeluProduct(of @ GeluProduct::Backward { .. }) => Some(Kernel::GeluProduct(of.with_slope())),
        _ => None,
    }
}
