//! The sizes of a model, and what follows from them.

use std::fmt;

use crate::error::{Error, Result};

/// The kinds of models there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// GPT-2 style: learned positions, LayerNorm, GELU, biases.
    Gpt2,
    /// Llama style: rotary positions, RMS norm, gated MLP, shared key heads.
    Llama,
    /// BERT style: a bidirectional encoder with norms behind its branches, trained to fill in masked tokens.
    Encoder,
}

impl Architecture {
    /// All of them.
    pub const ALL: [Architecture; 3] = [Architecture::Gpt2, Architecture::Llama, Architecture::Encoder];

    /// The name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Architecture::Gpt2 => "gpt2",
            Architecture::Llama => "llama",
            Architecture::Encoder => "encoder",
        }
    }

    /// Whether the model predicts what follows, and so can generate.
    pub fn is_causal(self) -> bool {
        self != Architecture::Encoder
    }
}

/// What an MLP does between its products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mlp {
    /// GELU in GPT-2's tanh form.
    Gelu,
    /// GELU by the error function.
    GeluErf,
    /// σ(gate)·gate·up, with a product of its own for the gate.
    SiluGate,
    /// GELU of the gate in its tanh form, times up.
    GeluGate,
    /// max(x, 0)².
    ReluSquared,
}

impl Mlp {
    /// All of them.
    pub const ALL: [Mlp; 5] = [Mlp::Gelu, Mlp::GeluErf, Mlp::SiluGate, Mlp::GeluGate, Mlp::ReluSquared];

    /// The name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Mlp::Gelu => "gelu",
            Mlp::GeluErf => "gelu_erf",
            Mlp::SiluGate => "swiglu",
            Mlp::GeluGate => "geglu",
            Mlp::ReluSquared => "relu2",
        }
    }

    /// Whether there is a product of its own for a gate.
    pub fn is_gated(self) -> bool {
        matches!(self, Mlp::SiluGate | Mlp::GeluGate)
    }

    /// Products that widen: a gate has one of its own.
    pub fn widening_products(self) -> usize {
        if self.is_gated() { 2 } else { 1 }
    }
}

/// How rotary positions are stretched beyond the context that a model was trained with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// As they are.
    None,
    /// All frequencies divided by a factor.
    Linear {
        /// The factor.
        factor: f64,
    },
    /// Llama 3.1: low frequencies divided by a factor, high ones kept, those between interpolated.
    Llama3 {
        /// What low frequencies are divided by.
        factor: f64,
        /// Wavelengths above `original_context` over this are low frequencies.
        low_frequency_factor: f64,
        /// Wavelengths below `original_context` over this are high frequencies.
        high_frequency_factor: f64,
        /// The context before stretching.
        original_context: f64,
    },
}

/// What a Gemma-3 does otherwise than a Llama, besides what these numbers say: embeddings are multiplied with the root of the
/// width, branches are normalised behind as well as before, and gains are stored less 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gemma {
    /// Scores are divided by the root of this; elsewhere it is the size of a head.
    pub query_scalar: f64,
    /// Every so many-th block sees all positions, those between only the window.
    pub global_every: usize,
    /// The base of rotary frequencies of blocks that see only the window.
    pub local_rope_theta: f64,
}

/// The sizes of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// The kind of model.
    pub architecture: Architecture,
    /// Token ids are below this.
    pub vocab_size: usize,
    /// The most positions a sample has.
    pub context: usize,
    /// Transformer blocks.
    pub layers: usize,
    /// Attention heads of a block.
    pub heads: usize,
    /// Key and value heads of a block; divides `heads`.
    pub kv_heads: usize,
    /// Channels of the residual stream.
    pub width: usize,
    /// Channels of a head.
    pub head_dim: usize,
    /// Channels inside an MLP.
    pub mlp_width: usize,
    /// What an MLP does.
    pub mlp: Mlp,
    /// The share of activations dropped in training: after the embedding and at the end of both branches of a block.
    pub dropout: f32,
    /// Whether products and norms have biases. In Llama style: the products of queries, keys and values.
    pub bias: bool,
    /// Whether the head is the token embedding.
    pub tied: bool,
    /// Whether queries and keys are normalised, head by head (Llama style).
    pub qk_norm: bool,
    /// How many positions back a query sees; 0 is all of them.
    pub window: usize,
    /// Added to variances in norms.
    pub norm_eps: f32,
    /// The base of rotary frequencies (Llama style).
    pub rope_theta: f64,
    /// How rotary positions are stretched (Llama style).
    pub rope_scaling: RopeScaling,
    /// Whether the model is a Gemma-3 (Llama style).
    pub gemma: Option<Gemma>,
    /// Whether there is a head that predicts tokens. Only an encoder can lack it: then it gives hidden states alone.
    pub has_head: bool,
}

/// More than any size of a model.
const MOST_SIZE: usize = 1 << 24;

impl ModelConfig {
    /// A model of an architecture with its usual choices for all but the sizes. The MLP of a gated model is two thirds as
    /// wide, rounded up to a multiple of 64, so that both kinds have about the same number of parameters.
    pub fn new(architecture: Architecture, layers: usize, heads: usize, width: usize) -> Self {
        let llama = architecture == Architecture::Llama;
        // A width beyond all models is refused by `check`, and until then nothing may overflow.
        let mlp_width = 4 * width.min(MOST_SIZE);
        ModelConfig {
            architecture,
            vocab_size: 256,
            context: 256,
            layers,
            heads,
            kv_heads: heads,
            width,
            head_dim: width / heads.max(1),
            mlp_width: if llama { (mlp_width * 2 / 3).next_multiple_of(64) } else { mlp_width },
            mlp: match architecture {
                Architecture::Gpt2 => Mlp::Gelu,
                Architecture::Llama => Mlp::SiluGate,
                Architecture::Encoder => Mlp::GeluErf,
            },
            dropout: 0.0,
            bias: !llama,
            tied: true,
            qk_norm: false,
            window: 0,
            norm_eps: if architecture == Architecture::Encoder { 1e-12 } else { 1e-5 },
            rope_theta: 10_000.0,
            rope_scaling: RopeScaling::None,
            gemma: None,
            has_head: true,
        }
    }

    /// Refuses sizes that make no model.
    pub fn check(&self) -> Result<()> {
        let fail = |key, value: String, reason: &str| Err(Error::Model { key, value, reason: reason.into() });
        let sizes = [
            ("vocab_size", self.vocab_size),
            ("context", self.context),
            ("layers", self.layers),
            ("heads", self.heads),
            ("kv_heads", self.kv_heads),
            ("width", self.width),
            ("head_dim", self.head_dim),
            ("mlp_width", self.mlp_width),
        ];
        for (key, value) in sizes {
            if value == 0 {
                return fail(key, value.to_string(), "must be at least 1");
            }
        }
        for (key, value) in sizes.into_iter().chain([("window", self.window)]) {
            if value > MOST_SIZE {
                let reason = "is larger than any model this program can run (16,777,216)";
                return fail(key, value.to_string(), reason);
            }
        }
        let llama = self.architecture == Architecture::Llama;
        if !llama && self.width != self.heads * self.head_dim {
            let reason = format!("the width {} must be a multiple of it", self.width);
            return fail("heads", self.heads.to_string(), &reason);
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            let reason = format!("must divide the {} heads", self.heads);
            return fail("kv_heads", self.kv_heads.to_string(), &reason);
        }
        if llama && !self.head_dim.is_multiple_of(2) {
            return fail("head_dim", self.head_dim.to_string(), "rotary positions need an even size");
        }
        if !llama && (self.kv_heads != self.heads || self.qk_norm) {
            let key = if self.qk_norm { "qk_norm" } else { "kv_heads" };
            let value = if self.qk_norm { "true".into() } else { self.kv_heads.to_string() };
            return fail(key, value, "only the llama architecture has it");
        }
        if self.architecture == Architecture::Encoder && !(self.bias && self.tied) {
            let key = if self.bias { "tied" } else { "bias" };
            return fail(key, "false".into(), "an encoder has biases and a tied head");
        }
        if !llama && self.mlp.is_gated() {
            return fail("mlp", self.mlp.name().into(), "only the llama architecture has a gated MLP");
        }
        if !(0.0..1.0).contains(&self.dropout) {
            return fail("dropout", self.dropout.to_string(), "must be at least 0 and below 1");
        }
        if !self.has_head && self.architecture != Architecture::Encoder {
            return fail("has_head", "false".into(), "only an encoder can be without a head");
        }
        if let Some(gemma) = self.gemma {
            let told = gemma.to_string();
            if !llama {
                return fail("gemma", told, "only the llama architecture has it");
            }
            if !(gemma.query_scalar.is_finite() && gemma.query_scalar > 0.0) {
                return fail("gemma", told, "the scalar of queries must be above 0");
            }
            if gemma.global_every == 0 || self.window == 0 {
                return fail("gemma", told, "needs a window, and some block that sees everything");
            }
            if !(gemma.local_rope_theta.is_finite() && gemma.local_rope_theta > 1.0) {
                return fail("gemma", told, "the base of local rotary frequencies must be above 1");
            }
        }
        if !(self.rope_theta.is_finite() && self.rope_theta > 1.0) {
            return fail("rope_theta", self.rope_theta.to_string(), "must be above 1");
        }
        Ok(())
    }

    /// Parameters that a token meets in products: all matrices, the head included even when it is tied.
    pub fn product_parameters(&self) -> usize {
        let (queries, keys) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let attention = self.width * (2 * queries + 2 * keys);
        let mlp = (self.mlp.widening_products() + 1) * self.width * self.mlp_width;
        let transform = if self.architecture == Architecture::Encoder { self.width * self.width } else { 0 };
        self.layers * (attention + mlp) + self.vocab_size * self.width + transform
    }

    /// Floating-point operations to train on one token: 6 for each parameter used in a product, and 12·L·C·T of attention.
    pub fn flops_per_token(&self) -> u64 {
        let attention = 12 * self.layers * self.heads * self.head_dim * self.context;
        (6 * self.product_parameters() + attention) as u64
    }

    /// The frequencies of rotary positions, one for each pair of a head's channels.
    pub fn rope_frequencies(&self) -> Vec<f64> {
        let frequencies = self.frequencies(self.rope_theta).into_iter();
        frequencies.map(|frequency| self.rope_scaling.apply(frequency)).collect()
    }

    /// The same of blocks that see only the window, where these turn by another base. They are never stretched.
    pub fn local_rope_frequencies(&self) -> Option<Vec<f64>> {
        self.gemma.map(|gemma| self.frequencies(gemma.local_rope_theta))
    }

    fn frequencies(&self, base: f64) -> Vec<f64> {
        let pairs = self.head_dim / 2;
        (0..pairs).map(|i| base.powf(-(i as f64) / pairs as f64)).collect()
    }

    /// Whether a block sees only the window though others see everything.
    pub fn is_local(&self, block: usize) -> bool {
        self.gemma.is_some_and(|gemma| !(block + 1).is_multiple_of(gemma.global_every))
    }

    /// How many positions back the queries of a block see; 0 is all of them.
    pub fn window_of(&self, block: usize) -> usize {
        if self.gemma.is_none() || self.is_local(block) { self.window } else { 0 }
    }
}

impl fmt::Display for ModelConfig {
    /// The sizes in words, for messages that set two models side by side.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ModelConfig { layers, heads, kv_heads, width, context, vocab_size, bias, tied, .. } = self;
        write!(
            f,
            "architecture {}, {layers} layers, {heads} heads ({kv_heads} of keys), width {width}, MLP {} of {}, \
             context {context}, vocabulary {vocab_size}, bias {bias}, tied {tied}",
            self.architecture.name(),
            self.mlp.name(),
            self.mlp_width,
        )?;
        self.gemma.map_or(Ok(()), |gemma| write!(f, ", gemma {gemma}"))
    }
}

impl fmt::Display for Gemma {
    /// As configurations write it: `SCALAR:EVERY:THETA`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.query_scalar, self.global_every, self.local_rope_theta)
    }
}

impl RopeScaling {
    fn apply(self, frequency: f64) -> f64 {
        match self {
            RopeScaling::None => frequency,
            RopeScaling::Linear { factor } => frequency / factor,
            RopeScaling::Llama3 { factor, low_frequency_factor, high_frequency_factor, original_context } => {
                let wavelength = std::f64::consts::TAU / frequency;
                let turns = original_context / wavelength;
                let share = (turns - low_frequency_factor) / (high_frequency_factor - low_frequency_factor);
                let share = share.clamp(0.0, 1.0);
                (1.0 - share) * frequency / factor + share * frequency
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn tiny(architecture: Architecture) -> ModelConfig {
        ModelConfig { vocab_size: 37, context: 12, ..ModelConfig::new(architecture, 2, 3, 24) }
    }

    #[test]
    fn sizes_that_make_no_model_are_refused_by_name() {
        let gpt2 = tiny(Architecture::Gpt2);
        let message = ModelConfig { heads: 5, kv_heads: 5, ..gpt2.clone() }.check().unwrap_err().to_string();
        assert!(message.contains("heads = 5") && message.contains("24"), "{message}");
        assert!(ModelConfig { layers: 0, ..gpt2.clone() }.check().is_err());
        assert!(ModelConfig { dropout: 1.0, ..gpt2.clone() }.check().is_err());
        assert!(ModelConfig { width: usize::MAX / 2, ..gpt2.clone() }.check().is_err());
        assert!(ModelConfig { window: usize::MAX, ..gpt2.clone() }.check().is_err());
        for architecture in [Architecture::Gpt2, Architecture::Llama, Architecture::Encoder] {
            assert!(ModelConfig::new(architecture, 2, 3, usize::MAX).check().is_err());
        }
        assert!(ModelConfig { kv_heads: 1, ..gpt2.clone() }.check().is_err());
        assert!(ModelConfig { mlp: Mlp::SiluGate, ..gpt2 }.check().is_err());
        let llama = tiny(Architecture::Llama);
        assert!(ModelConfig { kv_heads: 2, ..llama.clone() }.check().is_err());
        assert!(ModelConfig { head_dim: 7, ..llama.clone() }.check().is_err());
        let gemma = Gemma { query_scalar: 8.0, global_every: 2, local_rope_theta: 1e4 };
        let gemma = ModelConfig { gemma: Some(gemma), window: 4, ..llama };
        assert!(gemma.check().is_ok());
        assert!(ModelConfig { window: 0, ..gemma.clone() }.check().is_err());
        assert!(ModelConfig { has_head: false, ..gemma }.check().is_err());
        assert!(ModelConfig { tied: false, ..tiny(Architecture::Encoder) }.check().is_err());
    }

    #[test]
    fn gpt2_small_has_its_known_cost() {
        let small = ModelConfig {
            vocab_size: 50257,
            context: 1024,
            ..ModelConfig::new(Architecture::Gpt2, 12, 12, 768)
        };
        let products = 12 * 12 * 768 * 768 + 50257 * 768;
        assert_eq!(small.flops_per_token(), (6 * products + 12 * 12 * 768 * 1024) as u64);
    }

    #[test]
    fn llama3_scaling_keeps_high_frequencies_and_divides_low_ones() {
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_frequency_factor: 1.0,
            high_frequency_factor: 4.0,
            original_context: 8192.0,
        };
        assert_eq!(scaling.apply(1.0), 1.0);
        assert_eq!(scaling.apply(1e-5), 1e-5 / 8.0);
        // A wavelength of 8192 / 2.5 lies half-way between the two limits.
        let middle = std::f64::consts::TAU * 2.5 / 8192.0;
        assert!((scaling.apply(middle) / middle - (0.5 / 8.0 + 0.5)).abs() < 1e-12);
        assert_eq!(RopeScaling::Linear { factor: 4.0 }.apply(1.0), 0.25);
    }
}
