//! Models that have a name, and the one dial that makes a model of any size.
//!
//! A preset or a depth gives defaults: a key that is typed still wins. Neither says anything about the tokenizer, so the
//! published numbers of parameters need the published vocabulary too.

use ironmill_model::{Architecture, ModelConfig};

/// A named model.
#[derive(Debug)]
pub struct Preset {
    /// What people type.
    pub name: &'static str,
    /// The family.
    architecture: Architecture,
    /// Blocks, heads, key and value heads.
    counts: [usize; 3],
    /// Width, head size, MLP width, context.
    sizes: [usize; 4],
    /// What differs from the family's usual choices.
    tweak: fn(ModelConfig) -> ModelConfig,
}

/// All of them. Sizes are those of the published models; `nano`, `mini` and `llama-125m` are our own.
pub const PRESETS: [Preset; 13] = [
    preset("nano", Architecture::Gpt2, [3, 3, 3], [96, 32, 384, 128]),
    preset("mini", Architecture::Gpt2, [6, 6, 6], [384, 64, 1536, 256]),
    preset("gpt2", Architecture::Gpt2, [12, 12, 12], [768, 64, 3072, 1024]),
    preset("gpt2-medium", Architecture::Gpt2, [24, 16, 16], [1024, 64, 4096, 1024]),
    preset("gpt2-large", Architecture::Gpt2, [36, 20, 20], [1280, 64, 5120, 1024]),
    preset("gpt2-xl", Architecture::Gpt2, [48, 25, 25], [1600, 64, 6400, 1024]),
    preset("llama-15m", Architecture::Llama, [6, 6, 6], [288, 48, 768, 256]),
    preset("llama-125m", Architecture::Llama, [12, 12, 12], [768, 64, 2048, 1024]),
    tweaked(preset("smollm2-135m", Architecture::Llama, [30, 9, 3], [576, 64, 1536, 2048]), smollm2),
    tweaked(preset("smollm2-360m", Architecture::Llama, [32, 15, 5], [960, 64, 2560, 2048]), smollm2),
    tweaked(preset("qwen3-0.6b", Architecture::Llama, [28, 16, 8], [1024, 128, 3072, 4096]), qwen3),
    preset("minilm", Architecture::Encoder, [6, 12, 12], [384, 32, 1536, 512]),
    preset("bert-base", Architecture::Encoder, [12, 12, 12], [768, 64, 3072, 512]),
];

/// The keys of `[model]` that a preset decides.
pub const PRESET_DECIDES: &[&str] = &[
    "architecture",
    "layers",
    "heads",
    "kv_heads",
    "width",
    "head_dim",
    "mlp",
    "mlp_width",
    "context",
    "bias",
    "tied",
    "qk_norm",
    "norm_eps",
    "rope_theta",
    "rope_scaling",
];

/// The keys of `[model]` that a depth decides.
pub const DEPTH_DECIDES: &[&str] = &["layers", "heads", "kv_heads", "width", "head_dim", "mlp_width"];

/// What may be typed, in the order of the table.
pub const NAMES: [&str; PRESETS.len()] = {
    let mut names = [""; PRESETS.len()];
    let mut idx = 0;
    while idx < names.len() {
        names[idx] = PRESETS[idx].name;
        idx += 1;
    }
    names
};

impl Preset {
    /// The preset of that name.
    pub fn find(name: &str) -> Option<&'static Preset> {
        PRESETS.iter().find(|preset| preset.name == name)
    }

    /// Its sizes.
    pub fn sizes(&self) -> ModelConfig {
        let [layers, heads, kv_heads] = self.counts;
        let [width, head_dim, mlp_width, context] = self.sizes;
        let usual = ModelConfig::new(self.architecture, layers, heads, width);
        (self.tweak)(ModelConfig { kv_heads, head_dim, mlp_width, context, ..usual })
    }
}

/// The sizes of a depth: as many blocks and heads, each head 64 channels wide, so that depth 12 has GPT-2's shape.
pub fn of_depth(architecture: Architecture, depth: usize) -> ModelConfig {
    ModelConfig::new(architecture, depth, depth, depth.saturating_mul(64))
}

const fn preset(
    name: &'static str,
    architecture: Architecture,
    counts: [usize; 3],
    sizes: [usize; 4],
) -> Preset {
    Preset { name, architecture, counts, sizes, tweak: as_it_is }
}

const fn tweaked(preset: Preset, tweak: fn(ModelConfig) -> ModelConfig) -> Preset {
    Preset { tweak, ..preset }
}

fn as_it_is(sizes: ModelConfig) -> ModelConfig {
    sizes
}

fn smollm2(sizes: ModelConfig) -> ModelConfig {
    ModelConfig { rope_theta: 100_000.0, ..sizes }
}

fn qwen3(sizes: ModelConfig) -> ModelConfig {
    ModelConfig { qk_norm: true, rope_theta: 1_000_000.0, norm_eps: 1e-6, ..sizes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ironmill_model::Model;

    fn parameters(sizes: ModelConfig, vocab_size: usize) -> usize {
        Model::new(ModelConfig { vocab_size, ..sizes }).unwrap().layout().count()
    }

    #[test]
    fn published_models_have_their_published_numbers_of_parameters() {
        for (name, vocab_size, expected) in [
            ("gpt2", 50_257, 124_439_808),
            ("gpt2-medium", 50_257, 354_823_168),
            ("gpt2-large", 50_257, 774_030_080),
            ("gpt2-xl", 50_257, 1_557_611_200),
            ("llama-15m", 32_000, 15_191_712),
            ("smollm2-135m", 49_152, 134_515_008),
            ("smollm2-360m", 49_152, 361_821_120),
            ("qwen3-0.6b", 151_936, 596_049_920),
            // The published encoders have a pooler of C² + C, and no masked-token head of C² + C + 2C + V.
            ("minilm", 30_522, 22_713_216 + 2 * 384 + 30_522),
            ("bert-base", 30_522, 109_482_240 + 2 * 768 + 30_522),
        ] {
            assert_eq!(parameters(Preset::find(name).unwrap().sizes(), vocab_size), expected, "{name}");
        }
    }

    #[test]
    fn every_preset_is_a_model() {
        for preset in &PRESETS {
            preset.sizes().check().unwrap();
        }
        assert_eq!(NAMES[0], "nano");
    }

    #[test]
    fn depth_twelve_is_the_shape_of_gpt2() {
        let (deep, gpt2) = (of_depth(Architecture::Gpt2, 12), Preset::find("gpt2").unwrap().sizes());
        assert_eq!(ModelConfig { context: gpt2.context, ..deep }, gpt2);
    }
}
