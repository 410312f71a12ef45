//! `[model]`: from a preset, a depth or nothing at all to every size.

use super::super::presets::{Preset, of_depth};
use super::*;
use ironmill_model::{Architecture, Gemma, Mlp, ModelConfig as Sizes, RopeScaling};

/// No size of a model is larger, so that products of sizes always fit into a machine word.
const LARGEST: u64 = 1 << 24;

/// Fills in the defaults of `[model]`: those of the preset, of the depth or of the architecture. A typed key always wins,
/// and what follows from it follows it: a typed width brings its own head size and MLP.
pub(super) fn resolve(mut section: Section<'_>) -> Result<ModelConfig> {
    let usual = usual_sizes(&mut section)?;
    let architecture = usual.architecture.name();
    let is_llama = usual.architecture == Architecture::Llama;
    if !is_llama {
        let without = ["kv_heads", "head_dim", "qk_norm", "rope_theta", "rope_scaling", "gemma"];
        let why = format!(
            "to model.architecture = \"{architecture}\", which has no such thing: remove it, or use \"llama\""
        );
        section.refuse(&without, &why)?;
    }
    let layers = section.count("layers", usual.layers as u64);
    let given_heads = section.given_count("heads");
    let given_width = section.given_count("width");
    let heads = given_heads.unwrap_or(usual.heads as u64);
    let width = given_width.unwrap_or(usual.width as u64);
    for (name, value) in [("model.layers", layers), ("model.heads", heads), ("model.width", width)] {
        between(name, value, 1, LARGEST)?;
    }
    let has_usual_width = given_heads.is_none() && given_width.is_none();
    let head_dim = match section.given_count("head_dim") {
        Some(head_dim) => head_dim,
        None if has_usual_width => usual.head_dim as u64,
        None if width.is_multiple_of(heads) => width / heads,
        None => {
            let near = (width / heads).max(1) * heads;
            return Err(bad(format!(
                "model.width = {width} is not a multiple of model.heads = {heads}: use a width such as {near}"
            )));
        }
    };
    let given_mlp = section.given_text("mlp");
    let has_usual_mlp = given_width.is_none() && given_mlp.is_none();
    let mlp = given_mlp.unwrap_or_else(|| usual.mlp.name().into());
    let mlp_width = match has_usual_mlp {
        true => usual.mlp_width as u64,
        false => mlp_width(&mlp, width),
    };
    let kv_heads = given_heads.unwrap_or(usual.kv_heads as u64);
    let model = ModelConfig {
        architecture: architecture.into(),
        layers,
        heads,
        kv_heads: is_llama.then(|| section.count("kv_heads", kv_heads)),
        width,
        head_dim: is_llama.then_some(head_dim),
        mlp_width: section.count("mlp_width", mlp_width),
        mlp,
        context: section.count("context", usual.context as u64),
        dropout: section.number("dropout", 0.0),
        bias: section.switch("bias", usual.bias),
        tied: section.switch("tied", usual.tied),
        qk_norm: is_llama.then(|| section.switch("qk_norm", usual.qk_norm)),
        window: section.count("window", usual.window as u64),
        norm_eps: section.number("norm_eps", as_written(usual.norm_eps)),
        rope_theta: is_llama.then(|| section.number("rope_theta", usual.rope_theta)),
        rope_scaling: is_llama.then(|| section.text("rope_scaling", "none")),
        gemma: is_llama.then(|| section.text("gemma", "none")),
    };
    at_least("model.context", model.context, 1)?;
    within("model.dropout", model.dropout, 0.0, 0.99)?;
    within("model.norm_eps", model.norm_eps, f64::MIN_POSITIVE, 1.0)?;
    // The vocabulary comes later; whatever it is, it changes nothing about the other sizes.
    model.sizes(1)?.check()?;
    Ok(model)
}

/// What a preset, a depth or an architecture has if nothing else is said.
fn usual_sizes(section: &mut Section<'_>) -> Result<Sizes> {
    let (preset, depth) = (section.given_text("preset"), section.given_count("depth"));
    let named = section.given_text("architecture");
    let named = named.as_deref().map(architecture_of).transpose()?;
    let architecture = named.unwrap_or(Architecture::Gpt2);
    match (preset, depth) {
        (Some(_), Some(_)) => {
            Err(bad("model.preset and model.depth both say how large the model is: remove one"))
        }
        (Some(name), None) => {
            let sizes = Preset::find(&name).map(Preset::sizes).ok_or_else(|| unknown("preset", &name))?;
            if named.is_some_and(|named| named != sizes.architecture) {
                return Err(bad(format!(
                    "model.preset = \"{name}\" has the architecture \"{}\", not \"{}\": remove one of the two keys",
                    sizes.architecture.name(),
                    architecture.name()
                )));
            }
            Ok(sizes)
        }
        (None, Some(depth)) => {
            between("model.depth", depth, 1, LARGEST / 64)?;
            Ok(of_depth(architecture, depth as usize))
        }
        (None, None) => Ok(Sizes::new(architecture, 4, 6, 192)),
    }
}

/// A gated MLP has three matrices instead of two, so it is two thirds as wide, rounded up to a multiple of 64.
fn mlp_width(mlp: &str, width: u64) -> u64 {
    if [Mlp::SiluGate, Mlp::GeluGate].iter().any(|gated| gated.name() == mlp) {
        (width * 8 / 3).next_multiple_of(64)
    } else {
        width * 4
    }
}

/// A single-precision number as the double that is written the same: 1e-5 rather than 0.000009999999747378752.
fn as_written(number: f32) -> f64 {
    number.to_string().parse().unwrap_or(f64::from(number))
}

impl ModelConfig {
    /// The sizes of the model for a vocabulary.
    pub fn sizes(&self, vocab_size: u64) -> Result<Sizes> {
        let size = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
        let architecture = architecture_of(&self.architecture)?;
        let usual = Sizes::new(architecture, size(self.layers), size(self.heads), size(self.width));
        Ok(Sizes {
            vocab_size: size(vocab_size),
            context: size(self.context),
            kv_heads: self.kv_heads.map_or(usual.kv_heads, size),
            head_dim: self.head_dim.map_or(usual.head_dim, size),
            mlp_width: size(self.mlp_width),
            mlp: mlp_of(&self.mlp)?,
            dropout: self.dropout as f32,
            bias: self.bias,
            tied: self.tied,
            qk_norm: self.qk_norm.unwrap_or(false),
            window: size(self.window),
            norm_eps: self.norm_eps as f32,
            rope_theta: self.rope_theta.unwrap_or(usual.rope_theta),
            rope_scaling: self.rope_scaling.as_deref().map_or(Ok(RopeScaling::None), rope_scaling)?,
            gemma: self.gemma.as_deref().map_or(Ok(None), gemma)?,
            ..usual
        })
    }
}

fn architecture_of(name: &str) -> Result<Architecture> {
    Architecture::ALL.into_iter().find(|one| one.name() == name).ok_or_else(|| unknown("architecture", name))
}

fn mlp_of(name: &str) -> Result<Mlp> {
    Mlp::ALL.into_iter().find(|one| one.name() == name).ok_or_else(|| unknown("mlp", name))
}

fn unknown(key: &str, name: &str) -> Failure {
    bad(format!("model.{key} = \"{name}\" is not known: use one that `ironmill config show` prints"))
}

/// Reads `none` or `SCALAR:EVERY:THETA`.
fn gemma(text: &str) -> Result<Option<Gemma>> {
    let numbers: Option<Vec<f64>> = text.split(':').map(|part| part.parse().ok()).collect();
    match (text, numbers.as_deref()) {
        ("none", _) => Ok(None),
        (_, Some(&[query_scalar, every, local_rope_theta])) if every >= 1.0 && every.fract() == 0.0 => {
            Ok(Some(Gemma { query_scalar, global_every: every as usize, local_rope_theta }))
        }
        _ => Err(bad(format!(
            "model.gemma = \"{text}\" is no Gemma-3: use \"none\" or numbers such as \"256:6:10000\" (what scores are divided by \
             the root of, every how many blocks one sees everything, the base of rotary frequencies of the others)"
        ))),
    }
}

/// The keys of `[model]` that make a model of these sizes, apart from its context and dropout.
pub fn keys_of(sizes: &Sizes) -> Vec<Override> {
    let mut keys = vec![
        ("architecture", sizes.architecture.name().to_string()),
        ("layers", sizes.layers.to_string()),
        ("heads", sizes.heads.to_string()),
        ("width", sizes.width.to_string()),
        ("mlp", sizes.mlp.name().to_string()),
        ("mlp_width", sizes.mlp_width.to_string()),
        ("bias", sizes.bias.to_string()),
        ("tied", sizes.tied.to_string()),
        ("window", sizes.window.to_string()),
        ("norm_eps", as_written(sizes.norm_eps).to_string()),
    ];
    if sizes.architecture == Architecture::Llama {
        keys.extend([
            ("kv_heads", sizes.kv_heads.to_string()),
            ("head_dim", sizes.head_dim.to_string()),
            ("qk_norm", sizes.qk_norm.to_string()),
            ("rope_theta", sizes.rope_theta.to_string()),
            ("rope_scaling", scaling_name(sizes.rope_scaling)),
            ("gemma", sizes.gemma.map_or("none".into(), |gemma| gemma.to_string())),
        ]);
    }
    keys.into_iter().map(|(key, value)| Override { path: format!("model.{key}"), value }).collect()
}

/// A scaling as the key has it.
fn scaling_name(scaling: RopeScaling) -> String {
    match scaling {
        RopeScaling::None => "none".into(),
        RopeScaling::Linear { factor } => format!("linear:{factor}"),
        RopeScaling::Llama3 { factor, low_frequency_factor, high_frequency_factor, original_context } => {
            format!("llama3:{factor}:{low_frequency_factor}:{high_frequency_factor}:{original_context}")
        }
    }
}

/// Reads `none`, `linear:FACTOR` or `llama3:FACTOR:LOW:HIGH:CONTEXT`.
fn rope_scaling(text: &str) -> Result<RopeScaling> {
    let parts: Vec<&str> = text.split(':').collect();
    let numbers: Option<Vec<f64>> = parts[1..].iter().map(|part| part.parse().ok()).collect();
    let is_factor = |factor: f64| factor.is_finite() && factor >= 1.0;
    match (parts[0], numbers.as_deref()) {
        ("none", Some([])) => Ok(RopeScaling::None),
        ("linear", Some(&[factor])) if is_factor(factor) => Ok(RopeScaling::Linear { factor }),
        ("llama3", Some(&[factor, low, high, original_context]))
            if is_factor(factor)
                && low > 0.0
                && low < high
                && high.is_finite()
                && is_factor(original_context) =>
        {
            Ok(RopeScaling::Llama3 {
                factor,
                low_frequency_factor: low,
                high_frequency_factor: high,
                original_context,
            })
        }
        _ => Err(bad(format!(
            "model.rope_scaling = \"{text}\" is not a scaling: use \"none\", \"linear:2\" (a factor of at least 1) or \
             \"llama3:8:1:4:8192\" (factor, low and high frequency factors, the context before stretching)"
        ))),
    }
}
