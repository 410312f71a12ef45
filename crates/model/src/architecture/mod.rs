//! The architectures: each a list of parameters with their Hugging Face names, and a forward program.
//!
//! B samples, T positions, C channels, H heads, D head size, V vocabulary. Products are stored [outputs, inputs].

mod encoder;
mod gpt2;
mod llama;
mod parts;

use ironmill_compute::{DType, TensorType, philox};
use ironmill_graph::{
    Graph, Layout, Parameter, Passes, Precision, Randomness, Stage, StateId, Tensor, rope_table,
};

use crate::{
    config::{Architecture, ModelConfig},
    error::Result,
};
use parts::Declare;

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

/// The standard deviation of initial weights, as GPT-2 has it.
const DEVIATION: f32 = 0.02;

/// A model: its sizes, where its parameters lie, and how a program computes it.
#[derive(Clone, Debug)]
pub struct Model {
    config: ModelConfig,
    layout: Layout,
    initial: Vec<Initial>,
    body: Body,
}

#[derive(Clone, Debug)]
enum Body {
    Gpt2(gpt2::Gpt2),
    Llama(llama::Llama),
    Encoder(encoder::Encoder),
}

/// The persistent buffers that a model's programs read.
#[derive(Clone, Copy, Debug)]
pub struct Buffers {
    /// The flat parameters.
    pub parameters: StateId,
    /// What is computed once from the sizes: see [`Model::constants`].
    pub constants: StateId,
    /// The copy of the parameters that programs read, where there is one.
    pub working: Option<Working>,
}

/// A copy of the parameters in another type, laid out as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Working {
    /// The type.
    pub dtype: DType,
    /// The copy.
    pub copy: StateId,
    /// Whether activations are kept in this type, too; otherwise only products read the copy.
    pub activations: bool,
}

impl Buffers {
    /// The passes of a program over these buffers.
    pub(crate) fn passes(&self, passes: &Passes) -> Passes {
        match self.working {
            Some(Working { dtype, copy, activations: true }) => {
                Passes { precision: Precision::Working { dtype, masters: self.parameters, copy }, ..*passes }
            }
            Some(Working { dtype, copy, activations: false }) => {
                Passes { precision: Precision::Weights { dtype, masters: self.parameters, copy }, ..*passes }
            }
            None => *passes,
        }
    }

    /// The type that activations are kept in.
    pub(crate) fn activations(&self) -> DType {
        self.working.filter(|working| working.activations).map_or(DType::F32, |working| working.dtype)
    }
}

/// The tokens that a program reads.
#[derive(Clone, Copy, Debug)]
pub struct Tokens<'a> {
    /// Token ids: `u32[B,T]`.
    pub ids: Tensor,
    /// Their positions: `u32[B,T]`.
    pub positions: Tensor,
    /// How they hang together.
    pub attend: Attend<'a>,
    /// Whether the backward computes a block's values again instead of keeping them.
    pub recompute: bool,
}

/// How the positions of a program hang together.
#[derive(Clone, Copy, Debug)]
pub enum Attend<'a> {
    /// Samples are whole.
    Whole {
        /// The index of the first position of each position's document, where samples hold several: `u32[B,T]`.
        borders: Option<Tensor>,
        /// Where dropout draws from; none turns it off.
        randomness: Option<Randomness>,
    },
    /// Positions continue what the caches hold: a key and a value cache for each block, and each sample's place in them.
    Cached {
        /// Key and value cache of each block: `[R, S, Hkv·D]`.
        caches: &'a [[Tensor; 2]],
        /// Each sample's row of the caches, and its length so far: `u32[B,2]`.
        places: Tensor,
    },
}

impl Attend<'_> {
    /// Whole samples of one document each, without dropout.
    pub const PLAIN: Attend<'static> = Attend::Whole { borders: None, randomness: None };
}

impl Model {
    /// Lays out a model of these sizes.
    pub fn new(config: ModelConfig) -> Result<Self> {
        config.check()?;
        let mut declare = Declare::default();
        let body = match config.architecture {
            Architecture::Gpt2 => Body::Gpt2(gpt2::Gpt2::declare(&config, &mut declare)),
            Architecture::Llama => Body::Llama(llama::Llama::declare(&config, &mut declare)),
            Architecture::Encoder => Body::Encoder(encoder::Encoder::declare(&config, &mut declare)),
        };
        let Declare { layout, initial } = declare;
        Ok(Model { config, layout, initial, body })
    }

    /// The sizes.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Where the parameters lie in the flat buffers.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The final hidden states `[B,T,C]` of some tokens.
    pub fn hidden(&self, g: &mut Graph, buffers: Buffers, tokens: Tokens<'_>) -> Result<Tensor> {
        let model = InGraph { model: self, buffers };
        g.stage(Stage::Embed);
        match &self.body {
            Body::Gpt2(gpt2) => gpt2.hidden(g, model, tokens),
            Body::Llama(llama) => llama.hidden(g, model, tokens),
            Body::Encoder(encoder) => encoder.hidden(g, model, tokens),
        }
    }

    /// The logits `[..,V]` of hidden states.
    pub fn logits(&self, g: &mut Graph, buffers: Buffers, hidden: Tensor) -> Result<Tensor> {
        let model = InGraph { model: self, buffers };
        g.stage(Stage::Head);
        match &self.body {
            Body::Gpt2(gpt2) => gpt2.logits(g, model, hidden),
            Body::Llama(llama) => llama.logits(g, model, hidden),
            Body::Encoder(encoder) => encoder.logits(g, model, hidden),
        }
    }

    /// What programs look up and no one learns: the cosines and sines of rotary positions, those of blocks that turn by another
    /// base behind the others', or a single 0.
    pub fn constants(&self) -> Vec<f32> {
        match self.config.architecture {
            Architecture::Llama => {
                let mut tables = rope_table(self.config.context, &self.config.rope_frequencies());
                if let Some(frequencies) = self.config.local_rope_frequencies() {
                    tables.extend(rope_table(self.config.context, &frequencies));
                }
                tables
            }
            Architecture::Gpt2 | Architecture::Encoder => vec![0.0],
        }
    }

    /// The first values of all parameters, in the flat layout, as a pure function of the seed.
    pub fn initial_values(&self, seed: u64) -> Vec<f32> {
        self.initial_values_by(1, seed)
    }

    /// The same values, drawn by several threads: a large model has more of them than one draws in half a minute.
    pub fn initial_values_by(&self, threads: usize, seed: u64) -> Vec<f32> {
        /// Values that are worth a thread, an even number because they are drawn in pairs.
        const PIECE: usize = 1 << 16;
        let key = philox::key(seed, philox::Purpose::Initialise);
        let mut values = vec![0.0; self.layout.len()];
        for (index, (parameter, initial)) in self.layout.parameters().iter().zip(&self.initial).enumerate() {
            let out = &mut values[parameter.range()];
            match *initial {
                Initial::Ones => out.fill(1.0),
                Initial::Zeros => {}
                Initial::Normal(deviation) => {
                    let draw = |first_pair: usize, out: &mut [f32]| {
                        for (pair, out) in (first_pair..).zip(out.chunks_mut(2)) {
                            let counter = [pair as u32, (pair >> 32) as u32, index as u32, 0];
                            let (first, second) = philox::normal_pair(philox::philox(key, counter));
                            for (out, normal) in out.iter_mut().zip([first, second]) {
                                *out = (normal * f64::from(deviation)) as f32;
                            }
                        }
                    };
                    let piece = out.len().div_ceil(threads.max(1)).next_multiple_of(PIECE);
                    std::thread::scope(|scope| {
                        let mut pieces = out.chunks_mut(piece).enumerate();
                        let own = pieces.next();
                        for (number, out) in pieces {
                            scope.spawn(move || draw(number * piece / 2, out));
                        }
                        own.into_iter().for_each(|(_, out)| draw(0, out));
                    });
                }
            }
        }
        values
    }
}

/// A model whose parameters a program reads from some buffers.
#[derive(Clone, Copy)]
struct InGraph<'a> {
    model: &'a Model,
    buffers: Buffers,
}

impl InGraph<'_> {
    fn config(&self) -> &ModelConfig {
        &self.model.config
    }

    fn parameter(&self, g: &mut Graph, index: usize) -> Tensor {
        g.parameter(self.buffers.parameters, &self.model.layout.parameters()[index])
    }

    fn joined(&self, g: &mut Graph, parameter: &Parameter) -> Tensor {
        g.parameter(self.buffers.parameters, parameter)
    }

    /// The angles of a block.
    fn rope_table(&self, g: &mut Graph, block: usize) -> Tensor {
        let of = TensorType::new(&[self.config().context, self.config().head_dim], DType::F32);
        let offset = if self.config().is_local(block) { of.shape.elements() } else { 0 };
        g.state(self.buffers.constants, offset, of)
    }

    /// Drops activations while training; hands them through otherwise.
    fn dropout(&self, g: &mut Graph, x: Tensor, attend: Attend<'_>) -> Result<Tensor> {
        match attend {
            Attend::Whole { randomness: Some(randomness), .. } => {
                Ok(g.dropout(x, self.config().dropout, randomness)?)
            }
            Attend::Whole { randomness: None, .. } | Attend::Cached { .. } => Ok(x),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::tiny;

    fn model(config: ModelConfig) -> Model {
        Model::new(config).unwrap()
    }

    #[test]
    fn parameters_are_counted_once_when_the_head_is_tied() {
        for architecture in [Architecture::Gpt2, Architecture::Llama] {
            let tied = model(tiny(architecture)).layout().count();
            let untied = model(ModelConfig { tied: false, ..tiny(architecture) }).layout().count();
            assert_eq!(untied - tied, 37 * 24);
        }
    }

    #[test]
    fn known_models_have_their_known_sizes() {
        let gpt2 = ModelConfig::new(Architecture::Gpt2, 12, 12, 768);
        let gpt2 = ModelConfig { vocab_size: 50257, context: 1024, ..gpt2 };
        assert_eq!(model(gpt2).layout().count(), 124_439_808);
        let smollm2 = ModelConfig {
            vocab_size: 49152,
            kv_heads: 3,
            mlp_width: 1536,
            ..ModelConfig::new(Architecture::Llama, 30, 9, 576)
        };
        assert_eq!(model(smollm2).layout().count(), 134_515_008);
        let minilm = ModelConfig {
            vocab_size: 30522,
            context: 512,
            ..ModelConfig::new(Architecture::Encoder, 6, 12, 384)
        };
        // The published encoder has a pooler of C² + C, and no masked-token head of C² + C + 2C + V.
        assert_eq!(model(minilm).layout().count(), 22_713_216 + 2 * 384 + 30522);
    }

    #[test]
    fn initial_values_follow_the_table_and_the_seed() {
        let model = model(tiny(Architecture::Gpt2));
        let values = model.initial_values(1);
        assert_eq!(values, model.initial_values(1));
        assert_ne!(values, model.initial_values(2));
        let wide = Model::new(ModelConfig { vocab_size: 9001, ..tiny(Architecture::Gpt2) }).unwrap();
        assert_eq!(wide.initial_values_by(3, 1), wide.initial_values(1));
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
