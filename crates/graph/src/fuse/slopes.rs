//! Products with GELU keep its slope in place of its argument.
//!
//! The gradient wants nothing else of the argument, and its product then ends in one multiplication where it ended in exponentials. The
//! product forward has them at hand.

use ironmill_compute::{DType, Kernel};

use crate::graph::Graph;

/// Changes every product with GELU of such a type whose argument nobody but one gradient reads, and that gradient.
pub(crate) fn keep(graph: &mut Graph, suits: impl Fn(DType) -> bool) {
    let readers = graph.readers();
    for forward in 0..graph.nodes.len() {
        let Kernel::LinearGelu { slope: false, .. } = graph.nodes[forward].kernel else { continue };
        let h = graph.nodes[forward].outputs[0];
        let &[backward] = &readers[h.0][..] else { continue };
        let is_argument = graph.nodes[backward].inputs.iter().position(|&input| input == h) == Some(2);
        if !is_argument || graph.kept.contains(&h) || !suits(graph.info(h).of.dtype) {
            continue;
        }
        if let Kernel::LinearGradGelu { slope, .. } | Kernel::LinearGradGelus { slope, .. } =
            &mut graph.nodes[backward].kernel
        {
            *slope = true;
            if let Kernel::LinearGelu { slope, .. } = &mut graph.nodes[forward].kernel {
                *slope = true;
            }
        }
    }
}
