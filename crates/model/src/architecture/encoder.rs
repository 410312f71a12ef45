//! BERT style: a bidirectional encoder, norms behind its branches, and a head that fills in masked tokens.

use ironmill_compute::{DType, Mask};
use ironmill_graph::{Graph, Heads, Stage, Tensor};

use super::{
    Attend, DEVIATION, InGraph, Initial, Tokens,
    parts::{Declare, Joined, Linear, Norm},
};
use crate::{
    config::ModelConfig,
    error::{Error, Result},
};

/// Kinds of text that a sample can hold; plain text is kind 0.
const TOKEN_TYPES: usize = 2;

#[derive(Clone, Debug)]
pub(super) struct Encoder {
    tokens: usize,
    positions: usize,
    types: usize,
    norm: Norm,
    blocks: Vec<Block>,
    head: Option<Head>,
}

/// What fills in masked tokens.
#[derive(Clone, Debug)]
struct Head {
    transform: Linear,
    norm: Norm,
    bias: usize,
}

#[derive(Clone, Debug)]
struct Block {
    qkv: Joined,
    projection: Linear,
    norm1: Norm,
    up: Linear,
    down: Linear,
    norm2: Norm,
}

impl Encoder {
    pub fn declare(config: &ModelConfig, declare: &mut Declare) -> Self {
        let (c, v, m) = (config.width, config.vocab_size, config.mlp_width);
        let embedding = |name: &str| format!("bert.embeddings.{name}");
        Encoder {
            tokens: declare.embedding(&embedding("word_embeddings.weight"), v, c),
            positions: declare.embedding(&embedding("position_embeddings.weight"), config.context, c),
            types: declare.embedding(&embedding("token_type_embeddings.weight"), TOKEN_TYPES, c),
            norm: declare.norm(&embedding("LayerNorm"), c, true),
            blocks: (0..config.layers)
                .map(|l| {
                    let at = |name: &str| format!("bert.encoder.layer.{l}.{name}");
                    let qkv =
                        ["query", "key", "value"].map(|name| (at(&format!("attention.self.{name}")), c));
                    Block {
                        qkv: declare.joined(&qkv, c, DEVIATION, true),
                        projection: declare.linear(&at("attention.output.dense"), [c, c], DEVIATION, true),
                        norm1: declare.norm(&at("attention.output.LayerNorm"), c, true),
                        up: declare.linear(&at("intermediate.dense"), [m, c], DEVIATION, true),
                        down: declare.linear(&at("output.dense"), [c, m], DEVIATION, true),
                        norm2: declare.norm(&at("output.LayerNorm"), c, true),
                    }
                })
                .collect(),
            head: config.has_head.then(|| Head {
                transform: declare.linear("cls.predictions.transform.dense", [c, c], DEVIATION, true),
                norm: declare.norm("cls.predictions.transform.LayerNorm", c, true),
                bias: declare.vector("cls.predictions.bias", v, Initial::Zeros),
            }),
        }
    }

    pub fn hidden(&self, g: &mut Graph, model: InGraph<'_>, tokens: Tokens<'_>) -> Result<Tensor> {
        let Attend::Whole { borders, .. } = tokens.attend else {
            let reason = "a bidirectional encoder cannot generate text".into();
            return Err(Error::Model { key: "architecture", value: "encoder".into(), reason });
        };
        // The host never writes this input, so every token is of kind 0.
        let types = g.input("token types", g.shape(tokens.ids).dims().to_vec().as_slice(), DType::U32);
        let tables = [self.tokens, self.positions, self.types].map(|table| model.parameter(g, table));
        let token = g.embed(tables[0], tokens.ids)?;
        let position = g.embed(tables[1], tokens.positions)?;
        let kind = g.embed(tables[2], types)?;
        let sum = g.add(token, kind)?;
        let sum = g.add(sum, position)?;
        let sum = model.layer_norm(g, sum, self.norm)?;
        let mut x = model.dropout(g, sum, tokens.attend)?;
        for block in &self.blocks {
            x = match tokens.recompute {
                true => g.recompute(|g| block.forward(g, model, x, borders, tokens.attend))?,
                false => block.forward(g, model, x, borders, tokens.attend)?,
            };
        }
        Ok(x)
    }

    pub fn logits(&self, g: &mut Graph, model: InGraph<'_>, hidden: Tensor) -> Result<Tensor> {
        let Some(head) = &self.head else {
            let reason = "this encoder gives hidden states and predicts no tokens".into();
            return Err(Error::Model { key: "has_head", value: "false".into(), reason });
        };
        let h = model.linear(g, hidden, head.transform)?;
        let h = model.activate(g, &[h])?;
        let h = model.layer_norm(g, h, head.norm)?;
        let (table, bias) = (model.parameter(g, self.tokens), model.parameter(g, head.bias));
        Ok(g.linear(h, table, Some(bias))?)
    }
}

impl Block {
    fn forward(
        &self,
        g: &mut Graph,
        model: InGraph<'_>,
        x: Tensor,
        borders: Option<Tensor>,
        attend: Attend<'_>,
    ) -> Result<Tensor> {
        let config = model.config();
        let heads =
            Heads { queries: config.heads, keys: config.heads, mask: Mask::Full, window: config.window };
        g.stage(Stage::Attention);
        let qkv = model.products(g, x, &self.qkv)?;
        let a = g.attention([qkv[0], qkv[1], qkv[2]], borders, heads)?;
        let a = model.linear(g, a, self.projection)?;
        let a = model.dropout(g, a, attend)?;
        let sum = g.add(x, a)?;
        let x = model.layer_norm(g, sum, self.norm1)?;

        g.stage(Stage::Mlp);
        let h = model.linear(g, x, self.up)?;
        let h = model.activate(g, &[h])?;
        let h = model.linear(g, h, self.down)?;
        let h = model.dropout(g, h, attend)?;
        let sum = g.add(x, h)?;
        model.layer_norm(g, sum, self.norm2)
    }
}
