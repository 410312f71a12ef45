//! Llama style: rotary positions, RMS norm before each branch, gated MLP, key heads that query heads share.
//! Gemma-3 is one of its kinds.

use ironmill_compute::Mask;
use ironmill_graph::{Graph, Heads, Stage, Tensor};

use super::{
    Attend, DEVIATION, InGraph, Tokens,
    parts::{Declare, Joined, Linear, Norm},
};
use crate::{config::ModelConfig, error::Result};

#[derive(Clone, Debug)]
pub(super) struct Llama {
    tokens: usize,
    blocks: Vec<Block>,
    norm: Norm,
    head: usize,
}

#[derive(Clone, Debug)]
struct Block {
    norm1: Norm,
    qkv: Joined,
    /// Norms of queries and of keys.
    head_norms: Option<[Norm; 2]>,
    projection: Linear,
    norm2: Norm,
    /// Norms behind attention and behind the MLP (Gemma).
    behind: Option<[Norm; 2]>,
    /// The gate, where there is one, and the product that it gates.
    up: Joined,
    down: Linear,
}

impl Llama {
    pub fn declare(config: &ModelConfig, declare: &mut Declare) -> Self {
        let (c, v, m) = (config.width, config.vocab_size, config.mlp_width);
        let (queries, keys) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
        let branch_end = DEVIATION / (2.0 * config.layers as f32).sqrt();
        let is_gemma = config.gemma.is_some();
        let norm = |declare: &mut Declare, name: &str, columns| match is_gemma {
            true => declare.norm_less_one(name, columns),
            false => declare.norm(name, columns, false),
        };
        let tokens = declare.embedding("model.embed_tokens.weight", v, c);
        let blocks = (0..config.layers)
            .map(|l| {
                let at = |name: &str| format!("model.layers.{l}.{name}");
                let qkv = [("q", queries), ("k", keys), ("v", keys)];
                let qkv = qkv.map(|(name, size)| (at(&format!("self_attn.{name}_proj")), size));
                let mut up = vec![(at("mlp.gate_proj"), m), (at("mlp.up_proj"), m)];
                if !config.mlp.is_gated() {
                    up.remove(0);
                }
                // Gemma gives the name of Llama's second norm to the one behind attention.
                let (norm2, behind): (_, &[&str]) = match config.gemma {
                    None => ("post_attention_layernorm", &[]),
                    Some(_) => (
                        "pre_feedforward_layernorm",
                        &["post_attention_layernorm", "post_feedforward_layernorm"],
                    ),
                };
                Block {
                    norm1: norm(declare, &at("input_layernorm"), c),
                    qkv: declare.joined(&qkv, c, DEVIATION, config.bias),
                    head_norms: config.qk_norm.then(|| {
                        ["q", "k"].map(|name| {
                            norm(declare, &at(&format!("self_attn.{name}_norm")), config.head_dim)
                        })
                    }),
                    projection: declare.linear(&at("self_attn.o_proj"), [c, queries], branch_end, false),
                    norm2: norm(declare, &at(norm2), c),
                    behind: match behind {
                        [attention, mlp] => Some([attention, mlp].map(|name| norm(declare, &at(name), c))),
                        _ => None,
                    },
                    up: declare.joined(&up, c, DEVIATION, false),
                    down: declare.linear(&at("mlp.down_proj"), [c, m], branch_end, false),
                }
            })
            .collect();
        let norm = norm(declare, "model.norm", c);
        let head = if config.tied { tokens } else { declare.embedding("lm_head.weight", v, c) };
        Llama { tokens, blocks, norm, head }
    }

    pub fn hidden(&self, g: &mut Graph, model: InGraph<'_>, tokens: Tokens<'_>) -> Result<Tensor> {
        let table = model.parameter(g, self.tokens);
        let mut token = g.embed(table, tokens.ids)?;
        if model.config().gemma.is_some() {
            token = g.affine(token, (model.config().width as f32).sqrt(), 0.0)?;
        }
        let mut x = model.dropout(g, token, tokens.attend)?;
        for (index, block) in self.blocks.iter().enumerate() {
            x = match tokens.recompute {
                true => g.recompute(|g| block.forward(g, model, x, index, tokens))?,
                false => block.forward(g, model, x, index, tokens)?,
            };
        }
        model.rms_norm(g, x, self.norm)
    }

    pub fn logits(&self, g: &mut Graph, model: InGraph<'_>, hidden: Tensor) -> Result<Tensor> {
        let head = model.parameter(g, self.head);
        Ok(g.linear(hidden, head, None)?)
    }
}

impl Block {
    /// Queries and keys are turned before they are split from the values where nothing comes between: then attention reads all
    /// three where the turning wrote them.
    fn queries_keys_values(
        &self,
        g: &mut Graph,
        model: InGraph<'_>,
        h: Tensor,
        index: usize,
        tokens: Tokens<'_>,
    ) -> Result<[Tensor; 3]> {
        let angles = model.rope_table(g, index);
        if self.head_norms.is_none()
            && model.config().gemma.is_none()
            && let Some(qkv) = model.joint_product(g, h, &self.qkv)?
        {
            let turned = g.rope_before(model.config().kv_heads, qkv, tokens.positions, angles)?;
            let parts = g.split(turned, &self.qkv.sizes())?;
            return Ok([parts[0], parts[1], parts[2]]);
        }
        let qkv = model.products(g, h, &self.qkv)?;
        let (mut q, mut k) = (qkv[0], qkv[1]);
        if let Some([q_norm, k_norm]) = self.head_norms {
            (q, k) = (model.rms_norm(g, q, q_norm)?, model.rms_norm(g, k, k_norm)?);
        }
        (q, k) = (g.rope(q, tokens.positions, angles)?, g.rope(k, tokens.positions, angles)?);
        // Attention itself divides by the root of the head's size.
        let size = model.config().head_dim as f64;
        if let Some(gemma) = model.config().gemma.filter(|gemma| gemma.query_scalar != size) {
            q = g.affine(q, (size / gemma.query_scalar).sqrt() as f32, 0.0)?;
        }
        Ok([q, k, qkv[2]])
    }

    fn forward(
        &self,
        g: &mut Graph,
        model: InGraph<'_>,
        x: Tensor,
        index: usize,
        tokens: Tokens<'_>,
    ) -> Result<Tensor> {
        let config = model.config();
        let heads = Heads {
            queries: config.heads,
            keys: config.kv_heads,
            mask: Mask::Causal,
            window: config.window_of(index),
        };
        g.stage(Stage::Attention);
        let h = model.rms_norm(g, x, self.norm1)?;
        let [q, k, v] = self.queries_keys_values(g, model, h, index, tokens)?;
        let a = match tokens.attend {
            Attend::Whole { borders, .. } => g.attention([q, k, v], borders, heads)?,
            Attend::Cached { caches, places } => {
                g.cached_attention([q, k, v], caches[index], places, heads)?
            }
        };
        let mut a = model.linear(g, a, self.projection)?;
        if let Some([norm, _]) = self.behind {
            a = model.rms_norm(g, a, norm)?;
        }
        let a = model.dropout(g, a, tokens.attend)?;
        let x = g.add(x, a)?;

        g.stage(Stage::Mlp);
        let h = model.rms_norm(g, x, self.norm2)?;
        let up = model.products(g, h, &self.up)?;
        let h = model.activate(g, &up)?;
        let mut h = model.linear(g, h, self.down)?;
        if let Some([_, norm]) = self.behind {
            h = model.rms_norm(g, h, norm)?;
        }
        let h = model.dropout(g, h, tokens.attend)?;
        Ok(g.add(x, h)?)
    }
}
