//! GPT-2 style: learned positions, LayerNorm before each branch, GELU, optional biases.

use ironmill_compute::Mask;
use ironmill_graph::{Graph, Heads, Stage, Tensor};

use super::{
    Attend, DEVIATION, InGraph, Tokens,
    parts::{Declare, Linear, Norm},
};
use crate::{config::ModelConfig, error::Result};

#[derive(Clone, Debug)]
pub(super) struct Gpt2 {
    tokens: usize,
    positions: usize,
    blocks: Vec<Block>,
    norm: Norm,
    head: usize,
}

#[derive(Clone, Debug)]
struct Block {
    norm1: Norm,
    qkv: Linear,
    projection: Linear,
    norm2: Norm,
    up: Linear,
    down: Linear,
}

impl Gpt2 {
    pub fn declare(config: &ModelConfig, declare: &mut Declare) -> Self {
        let (c, v, m, bias) = (config.width, config.vocab_size, config.mlp_width, config.bias);
        // The ends of residual branches are scaled down by the number of branches, so that the residual stream keeps its
        // size with depth.
        let branch_end = DEVIATION / (2.0 * config.layers as f32).sqrt();
        let tokens = declare.embedding("transformer.wte.weight", v, c);
        let positions = declare.embedding("transformer.wpe.weight", config.context, c);
        let blocks = (0..config.layers)
            .map(|l| {
                let at = |name: &str| format!("transformer.h.{l}.{name}");
                Block {
                    norm1: declare.norm(&at("ln_1"), c, bias),
                    qkv: declare.linear(&at("attn.c_attn"), [3 * c, c], DEVIATION, bias),
                    projection: declare.linear(&at("attn.c_proj"), [c, c], branch_end, bias),
                    norm2: declare.norm(&at("ln_2"), c, bias),
                    up: declare.linear(&at("mlp.c_fc"), [m, c], DEVIATION, bias),
                    down: declare.linear(&at("mlp.c_proj"), [c, m], branch_end, bias),
                }
            })
            .collect();
        let norm = declare.norm("transformer.ln_f", c, bias);
        let head = if config.tied { tokens } else { declare.embedding("lm_head.weight", v, c) };
        Gpt2 { tokens, positions, blocks, norm, head }
    }

    pub fn hidden(&self, g: &mut Graph, model: InGraph<'_>, tokens: Tokens<'_>) -> Result<Tensor> {
        let (token_table, position_table) =
            (model.parameter(g, self.tokens), model.parameter(g, self.positions));
        let token = g.embed(token_table, tokens.ids)?;
        let position = g.embed(position_table, tokens.positions)?;
        let sum = g.add(token, position)?;
        let mut x = model.dropout(g, sum, tokens.attend)?;
        for (index, block) in self.blocks.iter().enumerate() {
            x = match tokens.recompute {
                true => g.recompute(|g| block.forward(g, model, x, index, tokens.attend))?,
                false => block.forward(g, model, x, index, tokens.attend)?,
            };
        }
        model.layer_norm(g, x, self.norm)
    }

    pub fn logits(&self, g: &mut Graph, model: InGraph<'_>, hidden: Tensor) -> Result<Tensor> {
        let head = model.parameter(g, self.head);
        Ok(g.linear(hidden, head, None)?)
    }
}

impl Block {
    fn forward(
        &self,
        g: &mut Graph,
        model: InGraph<'_>,
        x: Tensor,
        index: usize,
        attend: Attend<'_>,
    ) -> Result<Tensor> {
        let config = model.config();
        let (c, heads) = (config.width, config.heads);
        let heads = Heads { queries: heads, keys: heads, mask: Mask::Causal, window: config.window };
        g.stage(Stage::Attention);
        let h = model.layer_norm(g, x, self.norm1)?;
        let qkv = model.linear(g, h, self.qkv)?;
        let qkv = g.split(qkv, &[c, c, c])?;
        let qkv = [qkv[0], qkv[1], qkv[2]];
        let a = match attend {
            Attend::Whole { borders, .. } => g.attention(qkv, borders, heads)?,
            Attend::Cached { caches, places } => g.cached_attention(qkv, caches[index], places, heads)?,
        };
        let a = model.linear(g, a, self.projection)?;
        let a = model.dropout(g, a, attend)?;
        let x = g.add(x, a)?;

        g.stage(Stage::Mlp);
        let h = model.layer_norm(g, x, self.norm2)?;
        let h = model.linear(g, h, self.up)?;
        let h = model.activate(g, &[h])?;
        let h = model.linear(g, h, self.down)?;
        let h = model.dropout(g, h, attend)?;
        Ok(g.add(x, h)?)
    }
}
