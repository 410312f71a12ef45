//! Which part of a model a node belongs to: the rows of the table that says where a step's time goes.

use std::fmt;

use crate::graph::Graph;

/// A part of a model or of a training step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Token and position tables.
    Embed,
    /// Attention with the products around it.
    Attention,
    /// The products and activations between attentions.
    Mlp,
    /// Norms, wherever they are.
    Norm,
    /// Logits and loss.
    Head,
    /// Global norm, clipping and the update of parameters.
    Optimiser,
    /// What no model has named, and the host's own work.
    #[default]
    Other,
}

impl Stage {
    /// All of them, in the order of a step.
    pub const ALL: [Stage; 7] = [
        Stage::Embed,
        Stage::Attention,
        Stage::Mlp,
        Stage::Norm,
        Stage::Head,
        Stage::Optimiser,
        Stage::Other,
    ];

    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Embed => "embed",
            Stage::Attention => "attention",
            Stage::Mlp => "mlp",
            Stage::Norm => "norms",
            Stage::Head => "head",
            Stage::Optimiser => "optimiser",
            Stage::Other => "other",
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Graph {
    /// Nodes that follow belong to this stage. Gives the stage that they would have belonged to, so that a part can put it
    /// back. Derivatives belong to the stage of what they derive, fused kernels to that of their main part.
    pub fn stage(&mut self, stage: Stage) -> Stage {
        std::mem::replace(&mut self.current_stage, stage)
    }
}

#[cfg(test)]
mod tests {
    use ironmill_compute::{DType, Kernel};

    use super::*;
    use crate::{Accumulate, Layout, States, fuse};

    /// A table, a sum, a norm and a tied head, each in a stage of its own.
    fn program() -> Graph {
        let (mut layout, mut states) = (Layout::default(), States::default());
        let (table, gain) = (layout.add("table", &[5, 4], true), layout.add("gain", &[4], true));
        let parameters = states.declare("parameters", DType::F32, layout.len());
        let gradients = states.declare("gradients", DType::F32, layout.len());
        let mut g = Graph::new();
        let [table, gain] = [table, gain].map(|index| g.parameter(parameters, &layout.parameters()[index]));
        let ids = g.input("ids", &[2, 3], DType::U32);
        let weights = g.input("weights", &[2, 3], DType::F32);
        let seed = g.input("seed", &[1], DType::F32);
        g.stage(Stage::Embed);
        let x = g.embed(table, ids).unwrap();
        g.stage(Stage::Mlp);
        let y = g.gelu(x).unwrap();
        let sum = g.add(x, y).unwrap();
        g.stage(Stage::Norm);
        let x = g.layer_norm(sum, gain, None, 1e-5).unwrap();
        g.stage(Stage::Head);
        let logits = g.linear(x, table, None).unwrap();
        let losses = g.cross_entropy(logits, ids, weights, Default::default()).unwrap();
        let loss = g.sum(losses).unwrap();
        g.keep(loss);
        assert_eq!(g.stage(Stage::Other), Stage::Head);
        g.train(loss, seed, Accumulate { gradients, add: false }).unwrap();
        g
    }

    fn stages(g: &Graph, name: &str) -> Vec<Stage> {
        g.nodes().iter().filter(|node| node.kernel.name() == name).map(|node| node.stage).collect()
    }

    #[test]
    fn derivatives_belong_to_the_stage_of_what_they_derive() {
        let mut g = program();
        for (name, stage) in [
            ("embed_grad", Stage::Embed),
            ("gelu_grad", Stage::Mlp),
            ("layer_norm_grad_input", Stage::Norm),
            ("linear_grad_weight", Stage::Head),
            ("cross_entropy_grad", Stage::Head),
        ] {
            assert_eq!(stages(&g, name), [stage], "{name}");
        }
        assert!(g.nodes().iter().all(|node| node.stage != Stage::Other));
        assert_eq!(g.stage(Stage::Norm), Stage::Other, "the backward puts the stage back");
    }

    #[test]
    fn fused_kernels_belong_to_the_stage_of_their_main_part() {
        let mut g = program();
        fuse::apply(&mut g, ironmill_compute::kernel::PROCESSOR_LOGITS);
        assert_eq!(stages(&g, "head_loss"), [Stage::Head]);
        assert_eq!(stages(&g, "add_layer_norm"), [Stage::Norm]);
        let into = |node: &&crate::Node| matches!(node.kernel, Kernel::OpInto { .. });
        assert!(g.nodes().iter().filter(into).all(|node| node.stage != Stage::Other));
        assert_eq!(stages(&g, "embed_grad"), [Stage::Embed]);
    }
}
