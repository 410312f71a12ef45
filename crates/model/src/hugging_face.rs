//! The `config.json` of a Hugging Face folder, both ways.
//!
//! Keys that start with `ironmill_` say what `transformers` has no key for; a model that uses one of those choices is
//! still a folder that our own reader understands.

use serde_json::{Map, Value, json};

use crate::config::{Architecture, Mlp, ModelConfig, RopeScaling};

/// Writes the configuration as `transformers` reads it.
pub(crate) fn to_json(config: &ModelConfig) -> Value {
    let mut json = match config.architecture {
        Architecture::Gpt2 => json!({
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "activation_function": activation_name(config.mlp),
            "n_positions": config.context,
            "n_ctx": config.context,
            "n_embd": config.width,
            "n_layer": config.layers,
            "n_head": config.heads,
            "n_inner": config.mlp_width,
            "embd_pdrop": config.dropout,
            "resid_pdrop": config.dropout,
            "attn_pdrop": 0.0,
            "layer_norm_epsilon": config.norm_eps,
            "ironmill_bias": config.bias,
        }),
        Architecture::Llama => {
            let (name, model_type) = match (config.qk_norm, config.bias) {
                (true, _) => ("Qwen3ForCausalLM", "qwen3"),
                (false, true) => ("Qwen2ForCausalLM", "qwen2"),
                (false, false) => ("LlamaForCausalLM", "llama"),
            };
            json!({
                "architectures": [name],
                "model_type": model_type,
                "hidden_act": if config.mlp == Mlp::SiluGate { "silu" } else { activation_name(config.mlp) },
                "max_position_embeddings": config.context,
                "hidden_size": config.width,
                "intermediate_size": config.mlp_width,
                "num_hidden_layers": config.layers,
                "num_attention_heads": config.heads,
                "num_key_value_heads": config.kv_heads,
                "head_dim": config.head_dim,
                "rms_norm_eps": config.norm_eps,
                "attention_bias": config.bias,
                "mlp_bias": false,
                "rope_theta": config.rope_theta,
                "rope_parameters": rope_parameters(config),
                "ironmill_gated": config.mlp == Mlp::SiluGate,
                "ironmill_qk_norm": config.qk_norm,
                "ironmill_dropout": config.dropout,
            })
        }
        Architecture::Encoder => json!({
            "architectures": ["BertForMaskedLM"],
            "model_type": "bert",
            "hidden_act": activation_name(config.mlp),
            "max_position_embeddings": config.context,
            "hidden_size": config.width,
            "intermediate_size": config.mlp_width,
            "num_hidden_layers": config.layers,
            "num_attention_heads": config.heads,
            "type_vocab_size": 2,
            "hidden_dropout_prob": config.dropout,
            "attention_probs_dropout_prob": 0.0,
            "layer_norm_eps": config.norm_eps,
        }),
    };
    let common = json!({
        "vocab_size": config.vocab_size,
        "tie_word_embeddings": config.tied,
        "dtype": "float32",
        "bos_token_id": null,
        "eos_token_id": null,
        "ironmill_window": config.window,
    });
    if let (Value::Object(json), Value::Object(common)) = (&mut json, common) {
        json.extend(common);
    }
    json
}

/// Reads what `transformers` or we wrote; the error says what is missing or not supported.
pub(crate) fn from_json(json: &Value) -> Result<ModelConfig, String> {
    let Value::Object(map) = json else { return Err("config.json is not an object".into()) };
    let keys = Keys(map);
    let config = match keys.text("model_type").unwrap_or("none") {
        "gpt2" => read_gpt2(&keys)?,
        "llama" | "qwen2" | "qwen3" => read_llama(&keys)?,
        "bert" => read_encoder(&keys)?,
        other => {
            let known = "\"gpt2\", \"llama\", \"qwen2\", \"qwen3\" and \"bert\"";
            return Err(format!("config.json has model_type {other:?}, and only {known} are supported"));
        }
    };
    config.check().map_err(|error| error.to_string())?;
    Ok(config)
}

fn read_gpt2(keys: &Keys<'_>) -> Result<ModelConfig, String> {
    let (layers, heads, width) = (keys.size("n_layer")?, keys.size("n_head")?, keys.size("n_embd")?);
    Ok(ModelConfig {
        vocab_size: keys.size("vocab_size")?,
        context: keys.size("n_positions")?,
        mlp_width: keys.size("n_inner").unwrap_or(4 * width),
        mlp: keys.activation("activation_function", "gelu_new")?,
        dropout: keys.number("resid_pdrop", 0.0) as f32,
        bias: keys.flag("ironmill_bias", true),
        tied: keys.flag("tie_word_embeddings", true),
        norm_eps: keys.number("layer_norm_epsilon", 1e-5) as f32,
        window: keys.size("ironmill_window").unwrap_or(0),
        ..ModelConfig::new(Architecture::Gpt2, layers, heads, width)
    })
}

fn read_llama(keys: &Keys<'_>) -> Result<ModelConfig, String> {
    let (layers, heads, width) =
        (keys.size("num_hidden_layers")?, keys.size("num_attention_heads")?, keys.size("hidden_size")?);
    let model_type = keys.text("model_type").unwrap_or_default();
    if keys.flag("mlp_bias", false) {
        return Err("config.json has mlp_bias, which is not supported".into());
    }
    let window = match keys.size("sliding_window") {
        Ok(window) if keys.flag("use_sliding_window", model_type == "mistral") => window,
        _ => keys.size("ironmill_window").unwrap_or(0),
    };
    Ok(ModelConfig {
        vocab_size: keys.size("vocab_size")?,
        context: keys.size("max_position_embeddings")?,
        kv_heads: keys.size("num_key_value_heads").unwrap_or(heads),
        head_dim: keys.size("head_dim").unwrap_or(width / heads.max(1)),
        mlp_width: keys.size("intermediate_size")?,
        mlp: match keys.flag("ironmill_gated", true) {
            true if matches!(keys.text("hidden_act"), None | Some("silu" | "swish")) => Mlp::SiluGate,
            true => {
                return Err(format!(
                    "config.json has hidden_act {:?}, and only \"silu\" is supported",
                    keys.text("hidden_act")
                ));
            }
            false => keys.activation("hidden_act", "relu2")?,
        },
        dropout: keys.number("ironmill_dropout", 0.0) as f32,
        bias: keys.flag("attention_bias", model_type == "qwen2"),
        tied: keys.flag("tie_word_embeddings", false),
        qk_norm: keys.flag("ironmill_qk_norm", model_type == "qwen3"),
        window,
        norm_eps: keys.number("rms_norm_eps", 1e-6) as f32,
        rope_theta: keys.rope_number("rope_theta").unwrap_or(10_000.0),
        rope_scaling: keys.rope_scaling()?,
        ..ModelConfig::new(Architecture::Llama, layers, heads, width)
    })
}

fn read_encoder(keys: &Keys<'_>) -> Result<ModelConfig, String> {
    let (layers, heads, width) =
        (keys.size("num_hidden_layers")?, keys.size("num_attention_heads")?, keys.size("hidden_size")?);
    let positions = keys.text("position_embedding_type").unwrap_or("absolute");
    if positions != "absolute" {
        return Err(format!(
            "config.json has position_embedding_type {positions:?}, and only \"absolute\" is supported"
        ));
    }
    Ok(ModelConfig {
        vocab_size: keys.size("vocab_size")?,
        context: keys.size("max_position_embeddings")?,
        mlp_width: keys.size("intermediate_size")?,
        mlp: keys.activation("hidden_act", "gelu")?,
        dropout: keys.number("hidden_dropout_prob", 0.0) as f32,
        norm_eps: keys.number("layer_norm_eps", 1e-12) as f32,
        window: keys.size("ironmill_window").unwrap_or(0),
        ..ModelConfig::new(Architecture::Encoder, layers, heads, width)
    })
}

fn activation_name(mlp: Mlp) -> &'static str {
    match mlp {
        Mlp::Gelu => "gelu_new",
        Mlp::GeluErf => "gelu",
        Mlp::SiluGate => "silu",
        Mlp::ReluSquared => "relu2",
    }
}

fn rope_parameters(config: &ModelConfig) -> Value {
    let theta = config.rope_theta;
    match config.rope_scaling {
        RopeScaling::None => json!({"rope_type": "default", "rope_theta": theta}),
        RopeScaling::Linear { factor } => {
            json!({"rope_type": "linear", "rope_theta": theta, "factor": factor})
        }
        RopeScaling::Llama3 { factor, low_frequency_factor, high_frequency_factor, original_context } => {
            json!({
                "rope_type": "llama3",
                "rope_theta": theta,
                "factor": factor,
                "low_freq_factor": low_frequency_factor,
                "high_freq_factor": high_frequency_factor,
                "original_max_position_embeddings": original_context as u64,
            })
        }
    }
}

/// The keys of a `config.json`; a null counts as absent.
struct Keys<'a>(&'a Map<String, Value>);

impl Keys<'_> {
    fn text(&self, key: &str) -> Option<&str> {
        self.0.get(key).and_then(Value::as_str)
    }

    fn size(&self, key: &str) -> Result<usize, String> {
        let value = self.0.get(key).and_then(Value::as_u64).and_then(|value| usize::try_from(value).ok());
        value.ok_or_else(|| format!("config.json has no whole number {key}"))
    }

    fn number(&self, key: &str, default: f64) -> f64 {
        self.0.get(key).and_then(Value::as_f64).unwrap_or(default)
    }

    fn flag(&self, key: &str, default: bool) -> bool {
        self.0.get(key).and_then(Value::as_bool).unwrap_or(default)
    }

    fn activation(&self, key: &str, default: &str) -> Result<Mlp, String> {
        match self.text(key).unwrap_or(default) {
            "gelu_new" | "gelu_pytorch_tanh" => Ok(Mlp::Gelu),
            "gelu" => Ok(Mlp::GeluErf),
            "relu2" => Ok(Mlp::ReluSquared),
            other => Err(format!("config.json has {key} {other:?}, which is not supported")),
        }
    }

    /// A number of the new `rope_parameters`, of the old `rope_scaling`, or of the configuration itself.
    fn rope_number(&self, key: &str) -> Option<f64> {
        let nested = ["rope_parameters", "rope_scaling"].map(|name| self.0.get(name)?.get(key)?.as_f64());
        nested[0].or(nested[1]).or_else(|| self.0.get(key)?.as_f64())
    }

    fn rope_scaling(&self) -> Result<RopeScaling, String> {
        let kind = ["rope_parameters", "rope_scaling"].into_iter().find_map(|name| {
            let scaling = self.0.get(name)?;
            scaling.get("rope_type").or_else(|| scaling.get("type"))?.as_str()
        });
        let number = |key: &str| {
            self.rope_number(key).ok_or_else(|| format!("config.json has rope scaling without {key}"))
        };
        match kind {
            None | Some("default") => Ok(RopeScaling::None),
            Some("linear") => Ok(RopeScaling::Linear { factor: number("factor")? }),
            Some("llama3") => Ok(RopeScaling::Llama3 {
                factor: number("factor")?,
                low_frequency_factor: number("low_freq_factor")?,
                high_frequency_factor: number("high_freq_factor")?,
                original_context: number("original_max_position_embeddings")?,
            }),
            Some(other) => Err(format!("config.json has rope type {other:?}, which is not supported")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::tiny;

    #[test]
    fn a_config_survives_the_hugging_face_form() {
        let llama3 = RopeScaling::Llama3 {
            factor: 8.0,
            low_frequency_factor: 1.0,
            high_frequency_factor: 4.0,
            original_context: 8192.0,
        };
        for config in [
            tiny(Architecture::Gpt2),
            ModelConfig { bias: false, tied: false, dropout: 0.1, window: 5, ..tiny(Architecture::Gpt2) },
            tiny(Architecture::Llama),
            ModelConfig {
                kv_heads: 1,
                qk_norm: true,
                tied: false,
                head_dim: 10,
                ..tiny(Architecture::Llama)
            },
            ModelConfig {
                bias: true,
                rope_scaling: llama3,
                rope_theta: 500_000.0,
                ..tiny(Architecture::Llama)
            },
            ModelConfig {
                mlp: Mlp::ReluSquared,
                rope_scaling: RopeScaling::Linear { factor: 2.0 },
                ..tiny(Architecture::Llama)
            },
            ModelConfig { dropout: 0.1, ..tiny(Architecture::Encoder) },
        ] {
            assert_eq!(from_json(&to_json(&config)), Ok(config));
        }
    }

    #[test]
    fn published_configs_are_read() {
        let smollm2 = json!({
            "model_type": "llama", "hidden_act": "silu", "hidden_size": 576, "intermediate_size": 1536,
            "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152,
            "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 100000, "rope_scaling": null,
            "tie_word_embeddings": true,
        });
        let config = from_json(&smollm2).unwrap();
        assert_eq!(
            (config.kv_heads, config.head_dim, config.rope_theta, config.tied),
            (3, 64, 100_000.0, true)
        );
        let old_llama3 = json!({
            "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1,
            "num_attention_heads": 4, "vocab_size": 100, "max_position_embeddings": 64,
            "rope_theta": 500000.0, "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192, "rope_type": "llama3"},
        });
        assert!(matches!(
            from_json(&old_llama3).unwrap().rope_scaling,
            RopeScaling::Llama3 { factor: 32.0, .. }
        ));
    }

    #[test]
    fn what_is_not_supported_is_refused_by_name() {
        for (json, part) in [
            (json!({"model_type": "mamba"}), "mamba"),
            (json!([]), "not an object"),
            (json!({"model_type": "gpt2", "n_layer": 1, "n_head": 1}), "n_embd"),
            (
                json!({"model_type": "gpt2", "n_layer": 1, "n_head": 1, "n_embd": 8, "vocab_size": 9, "n_positions": 4,
                "activation_function": "tanh"}),
                "tanh",
            ),
            (json!({"model_type": "gpt2", "n_layer": -1, "n_head": 1, "n_embd": 8}), "n_layer"),
        ] {
            let message = from_json(&json).unwrap_err();
            assert!(message.contains(part), "{message}");
        }
    }
}
