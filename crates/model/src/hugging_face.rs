//! The `config.json` of a Hugging Face folder, both ways.
//!
//! Keys that start with `ironmill_` say what `transformers` has no key for; a model that uses one of those choices is
//! still a folder that our own reader understands.

use ironmill_data::safetensors::Dtype;
use serde_json::{Map, Value, json};

use crate::config::{Architecture, Gemma, Mlp, ModelConfig, RopeScaling};

/// The `config.json` of a model whose weights are stored in this type.
pub fn config_json(config: &ModelConfig, dtype: Dtype) -> Value {
    let mut json = to_json(config);
    json["dtype"] = json!(match dtype {
        Dtype::F16 => "float16",
        Dtype::BF16 => "bfloat16",
        _ => "float32",
    });
    json
}

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
        Architecture::Llama => llama_json(config),
        Architecture::Encoder => json!({
            "architectures": [if config.has_head { "BertForMaskedLM" } else { "BertModel" }],
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

/// The kinds of Llama that `transformers` has names for.
fn llama_json(config: &ModelConfig) -> Value {
    let (name, model_type) = match (config.gemma, config.qk_norm, config.bias, config.window) {
        (Some(_), ..) => ("Gemma3ForCausalLM", "gemma3_text"),
        (None, true, ..) => ("Qwen3ForCausalLM", "qwen3"),
        (None, false, true, _) => ("Qwen2ForCausalLM", "qwen2"),
        (None, false, false, 0) => ("LlamaForCausalLM", "llama"),
        (None, false, false, _) => ("MistralForCausalLM", "mistral"),
    };
    let mut json = json!({
        "architectures": [name],
        "model_type": model_type,
        "hidden_act": activation_name(config.mlp),
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
        "sliding_window": if config.window > 0 { json!(config.window) } else { Value::Null },
        "ironmill_gated": config.mlp.is_gated(),
        "ironmill_qk_norm": config.qk_norm,
        "ironmill_dropout": config.dropout,
    });
    let layer_types = |is_local: &dyn Fn(usize) -> bool| {
        let name = |l| if is_local(l) { "sliding_attention" } else { "full_attention" };
        (0..config.layers).map(name).collect::<Vec<_>>()
    };
    if let Some(gemma) = config.gemma {
        json["hidden_activation"] = json!(activation_name(config.mlp));
        json["query_pre_attn_scalar"] = whole_if_it_is(gemma.query_scalar);
        json["layer_types"] = json!(layer_types(&|l| config.is_local(l)));
        json["sliding_window_pattern"] = json!(gemma.global_every);
        json["rope_local_base_freq"] = json!(gemma.local_rope_theta);
        json["rope_parameters"] = json!({
            "full_attention": rope_parameters(config),
            "sliding_attention": {"rope_type": "default", "rope_theta": gemma.local_rope_theta},
        });
    } else if config.window > 0 && model_type != "mistral" {
        json["use_sliding_window"] = json!(true);
        json["max_window_layers"] = json!(0);
        json["layer_types"] = json!(layer_types(&|_| true));
    }
    json
}

/// A number as `transformers` wants it: without a point where there is nothing behind it.
fn whole_if_it_is(number: f64) -> Value {
    if number.fract() == 0.0 && number.abs() < 1e15 { json!(number as i64) } else { json!(number) }
}

/// Reads what `transformers` or we wrote; the error says what is missing or not supported.
pub(crate) fn from_json(json: &Value) -> Result<ModelConfig, String> {
    let Value::Object(map) = json else { return Err("config.json is not an object".into()) };
    let keys = Keys(map);
    let config = match keys.text("model_type").unwrap_or("none") {
        "gpt2" => read_gpt2(&keys)?,
        "llama" | "mistral" | "qwen2" | "qwen3" | "gemma3_text" => read_llama(&keys)?,
        "bert" => read_encoder(&keys)?,
        other => {
            let known =
                "\"gpt2\", \"llama\", \"mistral\", \"qwen2\", \"qwen3\", \"gemma3_text\" and \"bert\"";
            return Err(format!("config.json has model_type {other:?}, and only {known} are supported"));
        }
    };
    config.check().map_err(|error| error.to_string())?;
    Ok(config)
}

fn read_gpt2(keys: &Keys<'_>) -> Result<ModelConfig, String> {
    let (layers, heads, width) = (keys.size("n_layer")?, keys.size("n_head")?, keys.size("n_embd")?);
    let usual = ModelConfig::new(Architecture::Gpt2, layers, heads, width);
    Ok(ModelConfig {
        vocab_size: keys.size("vocab_size")?,
        context: keys.size("n_positions")?,
        mlp_width: keys.size("n_inner").unwrap_or(usual.mlp_width),
        mlp: keys.activation("activation_function", "gelu_new")?,
        dropout: keys.number("resid_pdrop", 0.0) as f32,
        bias: keys.flag("ironmill_bias", true),
        tied: keys.flag("tie_word_embeddings", true),
        norm_eps: keys.number("layer_norm_epsilon", 1e-5) as f32,
        window: keys.size("ironmill_window").unwrap_or(0),
        ..usual
    })
}

fn read_llama(keys: &Keys<'_>) -> Result<ModelConfig, String> {
    let (layers, heads, width) =
        (keys.size("num_hidden_layers")?, keys.size("num_attention_heads")?, keys.size("hidden_size")?);
    let model_type = keys.text("model_type").unwrap_or_default();
    if keys.flag("mlp_bias", false) {
        return Err("config.json has mlp_bias, which is not supported".into());
    }
    for key in ["final_logit_softcapping", "attn_logit_softcapping"] {
        if keys.0.get(key).is_some_and(|value| !value.is_null()) {
            return Err(format!("config.json has {key}, which is not supported"));
        }
    }
    if keys.flag("use_bidirectional_attention", false) {
        return Err("config.json has use_bidirectional_attention, which is not supported".into());
    }
    if keys.rope_number("partial_rotary_factor").is_some_and(|share| share != 1.0) {
        return Err("config.json has partial_rotary_factor, which is not supported".into());
    }
    let is_gemma = model_type == "gemma3_text";
    Ok(ModelConfig {
        vocab_size: keys.size("vocab_size")?,
        context: keys.size("max_position_embeddings")?,
        kv_heads: keys.size("num_key_value_heads").unwrap_or(heads),
        head_dim: keys.size("head_dim").unwrap_or(width / heads.max(1)),
        mlp_width: keys.size("intermediate_size")?,
        mlp: keys.llama_mlp()?,
        dropout: keys.number("ironmill_dropout", 0.0) as f32,
        bias: keys.flag("attention_bias", false) || model_type == "qwen2",
        tied: keys.flag("tie_word_embeddings", is_gemma),
        qk_norm: keys.flag("ironmill_qk_norm", is_gemma || model_type == "qwen3"),
        window: keys.window(layers)?,
        norm_eps: keys.number("rms_norm_eps", 1e-6) as f32,
        rope_theta: keys.rope_number("rope_theta").unwrap_or(if is_gemma { 1e6 } else { 1e4 }),
        rope_scaling: keys.rope_scaling()?,
        gemma: is_gemma.then(|| keys.gemma(layers)).transpose()?,
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
        has_head: keys.first("architectures").is_none_or(|name| name.ends_with("ForMaskedLM")),
        window: keys.size("ironmill_window").unwrap_or(0),
        ..ModelConfig::new(Architecture::Encoder, layers, heads, width)
    })
}

fn activation_name(mlp: Mlp) -> &'static str {
    match mlp {
        Mlp::Gelu => "gelu_new",
        Mlp::GeluGate => "gelu_pytorch_tanh",
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

    /// The first text of a list.
    fn first(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.as_array()?.first()?.as_str()
    }

    fn llama_mlp(&self) -> Result<Mlp, String> {
        let act = self.text("hidden_activation").or(self.text("hidden_act"));
        if !self.flag("ironmill_gated", true) {
            return self.activation("hidden_act", "relu2");
        }
        match act {
            None | Some("silu" | "swish") => Ok(Mlp::SiluGate),
            Some("gelu_new" | "gelu_pytorch_tanh") => Ok(Mlp::GeluGate),
            Some(other) => {
                let known = "\"silu\" and \"gelu_pytorch_tanh\"";
                Err(format!("config.json has hidden_act {other:?}, and only {known} are supported"))
            }
        }
    }

    /// The window of a Llama's blocks; 0 is none.
    fn window(&self, layers: usize) -> Result<usize, String> {
        let Ok(window) = self.size("sliding_window") else {
            return Ok(self.size("ironmill_window").unwrap_or(0));
        };
        match self.text("model_type") {
            Some("mistral" | "gemma3_text") => Ok(window),
            Some("qwen2" | "qwen3") if self.flag("use_sliding_window", false) => {
                // The first so many blocks of a Qwen see everything.
                match self.size("max_window_layers").unwrap_or(layers) {
                    0 => Ok(window),
                    first if first >= layers => Ok(0),
                    first => Err(format!(
                        "config.json has max_window_layers {first} of {layers}: a window in some layers is not supported"
                    )),
                }
            }
            _ => Ok(self.size("ironmill_window").unwrap_or(0)),
        }
    }

    fn gemma(&self, layers: usize) -> Result<Gemma, String> {
        let global_every = self.size("sliding_window_pattern").unwrap_or(6);
        let types = self.0.get("layer_types").and_then(Value::as_array);
        let global_every = match types {
            None => global_every,
            Some(types) => {
                let is_full = |at: usize| types.get(at).and_then(Value::as_str) == Some("full_attention");
                let every = (0..layers).find(|&at| is_full(at)).map_or(layers + 1, |at| at + 1);
                if types.len() != layers
                    || (0..layers).any(|at| is_full(at) != (at + 1).is_multiple_of(every))
                {
                    return Err(
                        "config.json has layer_types that follow no even pattern, which is not supported"
                            .into(),
                    );
                }
                every
            }
        };
        let nested = || self.0.get("rope_parameters")?.get("sliding_attention")?.get("rope_theta")?.as_f64();
        Ok(Gemma {
            query_scalar: self.number("query_pre_attn_scalar", 256.0),
            global_every,
            local_rope_theta: nested().unwrap_or_else(|| self.number("rope_local_base_freq", 1e4)),
        })
    }

    /// Where rotary positions are described, the first place first: the new `rope_parameters`, whole or of blocks that see
    /// everything, then the old `rope_scaling`.
    fn rope_places(&self) -> impl Iterator<Item = &Value> {
        let new = self.0.get("rope_parameters");
        let full = new.and_then(|new| new.get("full_attention"));
        [full, new, self.0.get("rope_scaling")].into_iter().flatten()
    }

    /// A number of those places, or of the configuration itself.
    fn rope_number(&self, key: &str) -> Option<f64> {
        self.rope_places().find_map(|place| place.get(key)?.as_f64()).or_else(|| self.0.get(key)?.as_f64())
    }

    fn rope_scaling(&self) -> Result<RopeScaling, String> {
        let kind = self
            .rope_places()
            .find_map(|place| place.get("rope_type").or_else(|| place.get("type"))?.as_str());
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
            ModelConfig { has_head: false, ..tiny(Architecture::Encoder) },
            ModelConfig { window: 5, mlp: Mlp::GeluGate, ..tiny(Architecture::Llama) },
            ModelConfig { window: 5, bias: true, ..tiny(Architecture::Llama) },
            ModelConfig {
                window: 5,
                qk_norm: true,
                mlp: Mlp::GeluGate,
                rope_scaling: RopeScaling::Linear { factor: 8.0 },
                gemma: Some(Gemma { query_scalar: 6.5, global_every: 2, local_rope_theta: 1e3 }),
                ..tiny(Architecture::Llama)
            },
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
