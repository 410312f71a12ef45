//! The metadata of GGUF files that is about sizes, both ways.

use ironmill_data::gguf::{Gguf, Type, Value};

use super::{ROPE_DIVISORS, rope_divisors};
use crate::{
    config::{Architecture, Gemma, Mlp, ModelConfig, RopeScaling},
    error::{Error, Result},
};

/// What llama.cpp takes for granted about a Gemma-3, whose file does not say it.
const GEMMA_GLOBAL_EVERY: usize = 6;
const GEMMA_LOCAL_THETA: f64 = 10_000.0;
/// The one Gemma-3 whose scores are not scaled by the size of its heads has so many blocks.
const GEMMA_27B_LAYERS: usize = 62;

/// Own keys: what the format has no key for.
const OWN_BIAS: &str = "ironmill.bias";
const OWN_GEMMA: &str = "ironmill.gemma";
const OWN_LLAMA3: &str = "ironmill.rope_llama3";

/// The name of a model's kind in GGUF files.
pub(super) fn architecture(config: &ModelConfig) -> &'static str {
    match config.architecture {
        Architecture::Gpt2 => "gpt2",
        Architecture::Encoder => "bert",
        Architecture::Llama if config.gemma.is_some() => "gemma3",
        Architecture::Llama if config.qk_norm => "qwen3",
        Architecture::Llama if config.bias => "qwen2",
        Architecture::Llama => "llama",
    }
}

/// The sizes of a file's model; the error says what is missing or not supported.
pub(super) fn read(file: &Gguf) -> std::result::Result<ModelConfig, String> {
    let Some(Value::Text(kind)) = file.value("general.architecture") else {
        return Err("the file has no general.architecture".into());
    };
    let keys = Keys { file, kind };
    let (layers, width) = (keys.size("block_count")?, keys.size("embedding_length")?);
    let heads = keys.size("attention.head_count")?;
    let shape_of = |name: &str| file.tensor(name).map(|info| info.shape.as_slice());
    let Some(&[vocab_size, _]) = shape_of("token_embd.weight") else {
        return Err("the file has no matrix token_embd.weight".into());
    };
    let common = |architecture| ModelConfig {
        vocab_size: usize::try_from(vocab_size).unwrap_or(usize::MAX),
        tied: shape_of("output.weight").is_none(),
        ..ModelConfig::new(architecture, layers, heads, width)
    };
    let context = keys.size("context_length")?;
    let mlp_width = keys.size("feed_forward_length")?;
    match kind.as_str() {
        "gpt2" => Ok(ModelConfig {
            context,
            mlp_width,
            bias: !matches!(file.value(OWN_BIAS), Some(Value::Bool(false))),
            norm_eps: keys.number("attention.layer_norm_epsilon").unwrap_or(1e-5) as f32,
            ..common(Architecture::Gpt2)
        }),
        "bert" => Ok(ModelConfig {
            context,
            mlp_width,
            has_head: false,
            tied: true,
            norm_eps: keys.number("attention.layer_norm_epsilon").unwrap_or(1e-12) as f32,
            ..common(Architecture::Encoder)
        }),
        "llama" | "qwen2" | "qwen3" | "gemma3" => keys.llama(ModelConfig {
            context,
            mlp_width,
            bias: kind == "qwen2",
            qk_norm: kind == "qwen3" || kind == "gemma3",
            mlp: if kind == "gemma3" { Mlp::GeluGate } else { Mlp::SiluGate },
            ..common(Architecture::Llama)
        }),
        other => {
            let known = "gpt2, llama, qwen2, qwen3, gemma3 and bert";
            Err(format!("the file has the architecture {other:?}, and only {known} are supported"))
        }
    }
}

/// The metadata of a file of a model. Matrices are of type `of`.
pub(super) fn write(config: &ModelConfig, of: Type) -> Result<Vec<(String, Value)>> {
    let refuse = |key, value: String, reason: &str| Err(Error::Model { key, value, reason: reason.into() });
    let kind = architecture(config);
    let usual = match config.architecture {
        Architecture::Gpt2 => Mlp::Gelu,
        Architecture::Encoder => Mlp::GeluErf,
        Architecture::Llama if config.gemma.is_some() => Mlp::GeluGate,
        Architecture::Llama => Mlp::SiluGate,
    };
    if config.mlp != usual {
        return refuse("mlp", config.mlp.name().into(), "a GGUF file cannot say that its model has it");
    }
    if config.bias && config.qk_norm {
        return refuse("bias", "true".into(), "a GGUF file cannot have it together with qk_norm");
    }
    if config.gemma.is_some() != config.qk_norm && kind == "gemma3" {
        return refuse("qk_norm", "false".into(), "a Gemma in a GGUF file has it");
    }
    if config.architecture == Architecture::Encoder && config.has_head {
        let reason = "a GGUF file has no place for a head that fills in masked tokens";
        return refuse("has_head", "true".into(), reason);
    }
    if config.architecture != Architecture::Llama && config.window > 0 {
        return refuse("window", config.window.to_string(), "a GGUF file of this kind cannot have it");
    }
    let mut entries = vec![("general.architecture".to_string(), Value::Text(kind.into()))];
    let mut put = |key: &str, value: Value| entries.push((key.replace('*', kind), value));
    let file_type = match of {
        Type::F16 => 1,
        Type::Q8_0 => 7,
        Type::BF16 => 32,
        _ => 0,
    };
    put("general.file_type", Value::Unsigned(file_type));
    put("general.quantization_version", Value::Unsigned(2));
    for (key, size) in [
        ("*.block_count", config.layers),
        ("*.context_length", config.context),
        ("*.embedding_length", config.width),
        ("*.feed_forward_length", config.mlp_width),
        ("*.attention.head_count", config.heads),
    ] {
        put(key, Value::Unsigned(size as u64));
    }
    if config.architecture != Architecture::Llama {
        put("*.attention.layer_norm_epsilon", Value::Float(config.norm_eps.into()));
        if config.architecture == Architecture::Encoder {
            put("*.attention.causal", Value::Bool(false));
            put("*.pooling_type", Value::Unsigned(1));
        } else if !config.bias {
            put(OWN_BIAS, Value::Bool(false));
        }
        return Ok(entries);
    }
    put("*.vocab_size", Value::Unsigned(config.vocab_size as u64));
    put("*.attention.head_count_kv", Value::Unsigned(config.kv_heads as u64));
    put("*.attention.key_length", Value::Unsigned(config.head_dim as u64));
    put("*.attention.value_length", Value::Unsigned(config.head_dim as u64));
    put("*.attention.layer_norm_rms_epsilon", Value::Float(config.norm_eps.into()));
    put("*.rope.dimension_count", Value::Unsigned(config.head_dim as u64));
    put("*.rope.freq_base", Value::Float(config.rope_theta));
    if config.window > 0 {
        put("*.attention.sliding_window", Value::Unsigned(config.window as u64));
    }
    match config.rope_scaling {
        RopeScaling::None => {}
        RopeScaling::Linear { factor } => {
            put("*.rope.scaling.type", Value::Text("linear".into()));
            put("*.rope.scaling.factor", Value::Float(factor));
        }
        RopeScaling::Llama3 { factor, low_frequency_factor, high_frequency_factor, original_context } => {
            let numbers = [factor, low_frequency_factor, high_frequency_factor, original_context];
            put(OWN_LLAMA3, Value::Floats(numbers.map(|number| number as f32).to_vec()));
        }
    }
    if let Some(gemma) = config.gemma
        && gemma != usual_gemma(config)
    {
        let numbers = [gemma.query_scalar as f32, gemma.global_every as f32, gemma.local_rope_theta as f32];
        put(OWN_GEMMA, Value::Floats(numbers.to_vec()));
    }
    Ok(entries)
}

/// What a Gemma-3 of these sizes has if its file says nothing else.
fn usual_gemma(config: &ModelConfig) -> Gemma {
    let is_27b = config.layers == GEMMA_27B_LAYERS;
    let scalar = if is_27b { config.width / config.heads.max(1) } else { config.head_dim };
    Gemma {
        query_scalar: scalar as f64,
        global_every: GEMMA_GLOBAL_EVERY,
        local_rope_theta: GEMMA_LOCAL_THETA,
    }
}

/// The entries of one kind of model.
struct Keys<'f> {
    file: &'f Gguf,
    kind: &'f str,
}

impl Keys<'_> {
    fn value(&self, key: &str) -> Option<&Value> {
        self.file.value(&format!("{}.{key}", self.kind))
    }

    fn size(&self, key: &str) -> std::result::Result<usize, String> {
        let size = match self.value(key) {
            Some(&Value::Unsigned(size)) => usize::try_from(size).ok(),
            Some(&Value::Signed(size)) => usize::try_from(size).ok(),
            _ => None,
        };
        size.ok_or_else(|| format!("the file has no whole number {}.{key}", self.kind))
    }

    fn number(&self, key: &str) -> Option<f64> {
        match self.value(key)? {
            Value::Float(number) => Some(*number),
            Value::Unsigned(number) => Some(*number as f64),
            _ => None,
        }
    }

    fn own_numbers(&self, key: &str) -> Option<&[f32]> {
        match self.file.value(key)? {
            Value::Floats(numbers) => Some(numbers),
            _ => None,
        }
    }

    fn llama(&self, sizes: ModelConfig) -> std::result::Result<ModelConfig, String> {
        let head_dim = self.size("attention.key_length").unwrap_or(sizes.width / sizes.heads.max(1));
        if self.size("attention.value_length").unwrap_or(head_dim) != head_dim {
            return Err("keys and values of the file's model have other sizes, which is not supported".into());
        }
        let turned = self.size("rope.dimension_count").unwrap_or(head_dim);
        if turned != head_dim {
            return Err(format!("only {turned} of {head_dim} channels turn, which is not supported"));
        }
        let mut config = ModelConfig {
            head_dim,
            kv_heads: self.size("attention.head_count_kv").unwrap_or(sizes.heads),
            norm_eps: self.number("attention.layer_norm_rms_epsilon").unwrap_or(1e-6) as f32,
            rope_theta: self.number("rope.freq_base").unwrap_or(10_000.0),
            window: self.size("attention.sliding_window").unwrap_or(0),
            ..sizes
        };
        config.rope_scaling = self.rope_scaling(&config)?;
        if self.kind == "gemma3" {
            let own = self.own_numbers(OWN_GEMMA);
            config.gemma = Some(match own {
                Some(&[scalar, every, theta]) => Gemma {
                    query_scalar: scalar.into(),
                    global_every: every as usize,
                    local_rope_theta: theta.into(),
                },
                _ => usual_gemma(&config),
            });
        }
        Ok(config)
    }

    fn rope_scaling(&self, config: &ModelConfig) -> std::result::Result<RopeScaling, String> {
        let kind = match self.value("rope.scaling.type") {
            Some(Value::Text(kind)) => kind.as_str(),
            _ => "none",
        };
        match (kind, self.number("rope.scaling.factor")) {
            ("none", _) => {}
            ("linear", Some(factor)) if factor.is_finite() && factor > 0.0 => {
                return Ok(RopeScaling::Linear { factor });
            }
            (other, _) => return Err(format!("the file has rope scaling {other:?}, which is not supported")),
        }
        let Some(info) = self.file.tensor(ROPE_DIVISORS) else { return Ok(RopeScaling::None) };
        if info.shape != [config.head_dim as u64 / 2] || config.head_dim > 1 << 16 {
            return Err(format!("tensor {ROPE_DIVISORS} is {:?}", info.shape));
        }
        let mut divisors = vec![0.0; config.head_dim / 2];
        self.file.read_f32(ROPE_DIVISORS, &mut divisors).map_err(|error| error.to_string())?;
        // The largest divisor is the factor; all Llamas of the kind have the other numbers in common.
        let factor = divisors.iter().fold(1.0f32, |largest, &divisor| largest.max(divisor));
        let numbers = match self.own_numbers(OWN_LLAMA3) {
            Some(&[factor, low, high, context]) => [factor, low, high, context],
            _ => [factor.round(), 1.0, 4.0, 8192.0],
        };
        let [factor, low_frequency_factor, high_frequency_factor, original_context] = numbers.map(f64::from);
        let scaling =
            RopeScaling::Llama3 { factor, low_frequency_factor, high_frequency_factor, original_context };
        let ours =
            rope_divisors(&ModelConfig { rope_scaling: scaling, ..config.clone() }).unwrap_or_default();
        let is_same = ours.iter().zip(&divisors).all(|(a, b)| (a - b).abs() <= 1e-3 * b.abs());
        if is_same { Ok(scaling) } else { Err(format!("tensor {ROPE_DIVISORS} is no scaling of Llama 3's")) }
    }
}
