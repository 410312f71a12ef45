//! The GPT-2-style architecture: learned positions, LayerNorm before each branch, GELU, optional biases.
//!
//! B samples, T positions, C channels, V vocabulary. Parameters are declared once, with their Hugging Face names, shapes
//! and initial values; products are stored [outputs, inputs].

use ironmill_compute::{Mask, philox};
use ironmill_graph::{Graph, Heads, Layout, Randomness, StateId, Tensor};

use crate::{config::ModelConfig, error::Result};

/// Where a parameter's first values come from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Initial {
    /// All ones: gains.
    Ones,
    /// All zeros: biases.
    Zeros,
    /// Normal numbers with this standard deviation.
    Normal(f32),
}

/// A model: its sizes, where its parameters lie, and how a program computes it.
#[derive(Clone, Debug)]
pub struct Model {
    config: ModelConfig,
    layout: Layout,
    initial: Vec<Initial>,
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

#[derive(Clone, Copy, Debug)]
struct Norm {
    gain: usize,
    shift: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
struct Linear {
    weight: usize,
    bias: Option<usize>,
}

/// How the positions of a program hang together.
#[derive(Clone, Copy, Debug)]
pub enum Attend<'a> {
    /// Samples are whole: every position attends to those before it. With randomness, dropout is on.
    Whole(Option<Randomness>),
    /// Positions continue what the caches hold: a key and a value cache for each block, and each sample's length so far.
    Cached {
        /// Key and value cache of each block: `[B, S, C]`.
        caches: &'a [[Tensor; 2]],
        /// The length of each sample so far: `u32[B]`.
        starts: Tensor,
    },
}

impl Model {
    /// Lays out a model of these sizes.
    pub fn new(config: ModelConfig) -> Result<Self> {
        config.check()?;
        let (c, v) = (config.width, config.vocab_size);
        // GPT-2's table of initial values; the ends of residual branches are scaled down by the number of branches so
        // that the residual stream keeps its size with depth.
        let normal = Initial::Normal(0.02);
        let branch_end = Initial::Normal(0.02 / (2.0 * config.layers as f32).sqrt());
        let mut declare = Declare { layout: Layout::default(), initial: Vec::new(), bias: config.bias };
        let tokens = declare.add("transformer.wte.weight", &[v, c], normal);
        let positions = declare.add("transformer.wpe.weight", &[config.context, c], normal);
        let blocks = (0..config.layers)
            .map(|l| {
                let at = |name: &str| format!("transformer.h.{l}.{name}");
                Block {
                    norm1: declare.norm(&at("ln_1"), c),
                    qkv: declare.linear(&at("attn.c_attn"), 3 * c, c, normal),
                    projection: declare.linear(&at("attn.c_proj"), c, c, branch_end),
                    norm2: declare.norm(&at("ln_2"), c),
                    up: declare.linear(&at("mlp.c_fc"), config.mlp_width(), c, normal),
                    down: declare.linear(&at("mlp.c_proj"), c, config.mlp_width(), branch_end),
                }
            })
            .collect();
        let norm = declare.norm("transformer.ln_f", c);
        let head = if config.tied { tokens } else { declare.add("lm_head.weight", &[v, c], normal) };
        let Declare { layout, initial, .. } = declare;
        Ok(Model { config, layout, initial, tokens, positions, blocks, norm, head })
    }

    /// The sizes.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Where the parameters lie in the flat buffers.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The final hidden states `[B,T,C]` of token ids and positions `u32[B,T]`.
    pub fn hidden(
        &self,
        g: &mut Graph,
        parameters: StateId,
        ids: Tensor,
        positions: Tensor,
        attend: Attend<'_>,
    ) -> Result<Tensor> {
        let p = |g: &mut Graph, index: usize| g.parameter(parameters, &self.layout.parameters()[index]);
        let linear = |g: &mut Graph, x: Tensor, linear: Linear| {
            let (weight, bias) = (p(g, linear.weight), linear.bias.map(|bias| p(g, bias)));
            g.linear(x, weight, bias)
        };
        let normalise = |g: &mut Graph, x: Tensor, norm: Norm| {
            let (gain, shift) = (p(g, norm.gain), norm.shift.map(|shift| p(g, shift)));
            g.layer_norm(x, gain, shift, self.config.norm_eps)
        };
        let dropout = |g: &mut Graph, x: Tensor| match attend {
            Attend::Whole(Some(randomness)) => g.dropout(x, self.config.dropout, randomness),
            Attend::Whole(None) | Attend::Cached { .. } => Ok(x),
        };
        let (c, heads) = (self.config.width, self.config.heads);
        let heads = Heads { queries: heads, keys: heads, mask: Mask::Causal };

        let (token_table, position_table) = (p(g, self.tokens), p(g, self.positions));
        let (token, position) = (g.embed(token_table, ids)?, g.embed(position_table, positions)?);
        let sum = g.add(token, position)?;
        let mut x = dropout(g, sum)?;
        for (index, block) in self.blocks.iter().enumerate() {
            let h = normalise(g, x, block.norm1)?;
            let qkv = linear(g, h, block.qkv)?;
            let parts = g.split(qkv, &[c, c, c])?;
            let a = match attend {
                Attend::Whole(_) => g.attention(parts[0], parts[1], parts[2], heads)?,
                Attend::Cached { caches, starts } => {
                    g.cached_attention([parts[0], parts[1], parts[2]], caches[index], starts, heads)?
                }
            };
            let a = linear(g, a, block.projection)?;
            let a = dropout(g, a)?;
            x = g.add(x, a)?;

            let h = normalise(g, x, block.norm2)?;
            let h = linear(g, h, block.up)?;
            let h = g.gelu(h)?;
            let h = linear(g, h, block.down)?;
            let h = dropout(g, h)?;
            x = g.add(x, h)?;
        }
        Ok(normalise(g, x, self.norm)?)
    }

    /// The logits `[..,V]` of hidden states.
    pub fn logits(&self, g: &mut Graph, parameters: StateId, hidden: Tensor) -> Result<Tensor> {
        let head = g.parameter(parameters, &self.layout.parameters()[self.head]);
        Ok(g.linear(hidden, head, None)?)
    }

    /// The first values of all parameters, in the flat layout, as a pure function of the seed.
    pub fn initial_values(&self, seed: u64) -> Vec<f32> {
        let key = philox::key(seed, philox::Purpose::Initialise);
        let mut values = vec![0.0; self.layout.len()];
        for (index, (parameter, initial)) in self.layout.parameters().iter().zip(&self.initial).enumerate() {
            let out = &mut values[parameter.range()];
            match *initial {
                Initial::Ones => out.fill(1.0),
                Initial::Zeros => {}
                Initial::Normal(deviation) => {
                    for (pair, out) in out.chunks_mut(2).enumerate() {
                        let counter = [pair as u32, (pair >> 32) as u32, index as u32, 0];
                        let (first, second) = philox::normal_pair(philox::philox(key, counter));
                        for (out, normal) in out.iter_mut().zip([first, second]) {
                            *out = (normal * f64::from(deviation)) as f32;
                        }
                    }
                }
            }
        }
        values
    }

    /// Whether Hugging Face stores a parameter with inputs first (GPT-2's Conv1D), the other way round than here.
    pub(crate) fn is_stored_transposed(name: &str) -> bool {
        (name.contains(".attn.c_") || name.contains(".mlp.c_")) && name.ends_with(".weight")
    }
}

/// Declares parameters with their initial values. Matrices and embeddings decay, vectors do not.
struct Declare {
    layout: Layout,
    initial: Vec<Initial>,
    bias: bool,
}

impl Declare {
    fn add(&mut self, name: &str, dims: &[usize], initial: Initial) -> usize {
        self.initial.push(initial);
        self.layout.add(name, dims, dims.len() > 1)
    }

    fn norm(&mut self, name: &str, columns: usize) -> Norm {
        let gain = self.add(&format!("{name}.weight"), &[columns], Initial::Ones);
        let shift = self.bias.then(|| self.add(&format!("{name}.bias"), &[columns], Initial::Zeros));
        Norm { gain, shift }
    }

    fn linear(&mut self, name: &str, outputs: usize, inputs: usize, initial: Initial) -> Linear {
        let weight = self.add(&format!("{name}.weight"), &[outputs, inputs], initial);
        let bias = self.bias.then(|| self.add(&format!("{name}.bias"), &[outputs], Initial::Zeros));
        Linear { weight, bias }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::tiny;

    #[test]
    fn parameters_are_counted_once_when_the_head_is_tied() {
        let tied = Model::new(tiny()).unwrap().layout().count();
        let untied = Model::new(ModelConfig { tied: false, ..tiny() }).unwrap().layout().count();
        assert_eq!(untied - tied, 37 * 24);
        let small =
            ModelConfig { vocab_size: 50257, context: 1024, layers: 12, heads: 12, width: 768, ..tiny() };
        assert_eq!(Model::new(small).unwrap().layout().count(), 124_439_808);
    }

    #[test]
    fn initial_values_follow_the_table_and_the_seed() {
        let model = Model::new(tiny()).unwrap();
        let values = model.initial_values(1);
        assert_eq!(values, model.initial_values(1));
        assert_ne!(values, model.initial_values(2));
        let of = |name: &str| {
            let parameter = model.layout().parameters().iter().find(|p| p.name == name).unwrap();
            &values[parameter.range()]
        };
        assert!(of("transformer.h.1.ln_2.weight").iter().all(|&x| x == 1.0));
        assert!(of("transformer.h.0.attn.c_attn.bias").iter().all(|&x| x == 0.0));
        let deviation = |x: &[f32]| (x.iter().map(|x| x * x).sum::<f32>() / x.len() as f32).sqrt();
        assert!((deviation(of("transformer.wte.weight")) - 0.02).abs() < 0.002);
        assert!((deviation(of("transformer.h.0.mlp.c_proj.weight")) - 0.01).abs() < 0.001);
    }
}
