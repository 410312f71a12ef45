//! The sizes of a model, and what follows from them.

use serde_json::{Value, json};

use crate::error::{Error, Result};

/// The sizes of a GPT-2-style model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Token ids are below this.
    pub vocab_size: usize,
    /// The most positions a sample has.
    pub context: usize,
    /// Transformer blocks.
    pub layers: usize,
    /// Attention heads of a block.
    pub heads: usize,
    /// Channels of the residual stream.
    pub width: usize,
    /// The share of activations dropped in training: after the embedding and at the end of both branches of a block.
    pub dropout: f32,
    /// Whether products and norms have biases.
    pub bias: bool,
    /// Whether the head is the token embedding.
    pub tied: bool,
    /// Added to variances in norms.
    pub norm_eps: f32,
}

impl ModelConfig {
    /// The hidden width of a block's MLP.
    pub fn mlp_width(&self) -> usize {
        4 * self.width
    }

    /// Refuses sizes that make no model.
    pub fn check(&self) -> Result<()> {
        let fail = |key, value: usize, reason: &str| {
            Err(Error::Model { key, value: value.to_string(), reason: reason.into() })
        };
        for (key, value) in [
            ("vocab_size", self.vocab_size),
            ("context", self.context),
            ("layers", self.layers),
            ("heads", self.heads),
            ("width", self.width),
        ] {
            if value == 0 {
                return fail(key, value, "must be at least 1");
            }
            if value > 1 << 24 {
                return fail(key, value, "is larger than any model this program can run (16,777,216)");
            }
        }
        if self.width % self.heads != 0 {
            let reason = format!("the width {} must be a multiple of it", self.width);
            return fail("heads", self.heads, &reason);
        }
        if !(0.0..1.0).contains(&self.dropout) {
            let value = self.dropout.to_string();
            return Err(Error::Model {
                key: "dropout",
                value,
                reason: "must be at least 0 and below 1".into(),
            });
        }
        Ok(())
    }

    /// Floating-point operations to train on one token: 6 for each parameter used in a product, and 12·L·C·T of attention.
    pub fn flops_per_token(&self) -> u64 {
        let block = 3 * self.width * self.width + self.width * self.width + 2 * self.width * self.mlp_width();
        let products = self.layers * block + self.vocab_size * self.width;
        (6 * products + 12 * self.layers * self.width * self.context) as u64
    }

    /// The `config.json` of a Hugging Face folder.
    pub fn to_hugging_face(&self) -> Value {
        json!({
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "activation_function": "gelu_new",
            "vocab_size": self.vocab_size,
            "n_positions": self.context,
            "n_ctx": self.context,
            "n_embd": self.width,
            "n_layer": self.layers,
            "n_head": self.heads,
            "n_inner": null,
            "embd_pdrop": self.dropout,
            "resid_pdrop": self.dropout,
            "attn_pdrop": 0.0,
            "layer_norm_epsilon": self.norm_eps,
            "tie_word_embeddings": self.tied,
            "dtype": "float32",
            "bos_token_id": null,
            "eos_token_id": null,
            "ironmill_bias": self.bias,
        })
    }

    /// Reads the `config.json` of a Hugging Face folder; the error says what is missing or not supported.
    pub fn from_hugging_face(config: &Value) -> std::result::Result<ModelConfig, String> {
        let model_type = config.get("model_type").and_then(Value::as_str).unwrap_or("none");
        if model_type != "gpt2" {
            return Err(format!("config.json has model_type {model_type:?}, and only \"gpt2\" is supported"));
        }
        let activation = config.get("activation_function").and_then(Value::as_str).unwrap_or("gelu_new");
        if !matches!(activation, "gelu_new" | "gelu_pytorch_tanh") {
            return Err(format!(
                "config.json has activation_function {activation:?}, and only \"gelu_new\" is supported"
            ));
        }
        let size = |key: &str| {
            config
                .get(key)
                .and_then(Value::as_u64)
                .and_then(|value| usize::try_from(value).ok())
                .ok_or_else(|| format!("config.json has no whole number {key}"))
        };
        let width = size("n_embd")?;
        if let Some(inner) = config.get("n_inner").and_then(Value::as_u64)
            && inner != 4 * width as u64
        {
            return Err(format!("config.json has n_inner {inner}, and only 4 × n_embd is supported"));
        }
        let number =
            |key: &str, default: f64| config.get(key).and_then(Value::as_f64).unwrap_or(default) as f32;
        let flag = |key: &str| config.get(key).and_then(Value::as_bool).unwrap_or(true);
        let model = ModelConfig {
            vocab_size: size("vocab_size")?,
            context: size("n_positions")?,
            layers: size("n_layer")?,
            heads: size("n_head")?,
            width,
            dropout: number("resid_pdrop", 0.0),
            bias: flag("ironmill_bias"),
            tied: flag("tie_word_embeddings"),
            norm_eps: number("layer_norm_epsilon", 1e-5),
        };
        model.check().map_err(|error| error.to_string())?;
        Ok(model)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn tiny() -> ModelConfig {
        ModelConfig {
            vocab_size: 37,
            context: 12,
            layers: 2,
            heads: 3,
            width: 24,
            dropout: 0.0,
            bias: true,
            tied: true,
            norm_eps: 1e-5,
        }
    }

    #[test]
    fn a_config_survives_the_hugging_face_form() {
        for (bias, tied) in [(true, true), (false, false)] {
            let config = ModelConfig { bias, tied, dropout: 0.1, ..tiny() };
            assert_eq!(ModelConfig::from_hugging_face(&config.to_hugging_face()), Ok(config));
        }
    }

    #[test]
    fn sizes_that_make_no_model_are_refused_by_name() {
        let message = ModelConfig { heads: 5, ..tiny() }.check().unwrap_err().to_string();
        assert!(message.contains("heads = 5") && message.contains("24"), "{message}");
        assert!(ModelConfig { layers: 0, ..tiny() }.check().is_err());
        assert!(ModelConfig { dropout: 1.0, ..tiny() }.check().is_err());
        assert!(ModelConfig { width: usize::MAX / 2, ..tiny() }.check().is_err());
    }

    #[test]
    fn gpt2_small_has_its_known_size_and_cost() {
        let small =
            ModelConfig { vocab_size: 50257, context: 1024, layers: 12, heads: 12, width: 768, ..tiny() };
        let products = 12 * 12 * 768 * 768 + 50257 * 768;
        assert_eq!(small.flops_per_token(), (6 * products + 12 * 12 * 768 * 1024) as u64);
    }
}
