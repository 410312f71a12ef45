use super::*;
use crate::config::{Gemma, Mlp, tests::tiny};
use crate::weights::save_weights;

/// A model of a kind, stored as Hugging Face does.
fn stored(folder: &Path, config: ModelConfig) -> Stored {
    let model = Model::new(config).unwrap();
    let mut values = model.initial_values(3);
    // Gains and biases that are all alike would hide a mistake.
    values.iter_mut().enumerate().for_each(|(at, value)| *value += (at % 7) as f32 / 64.0);
    save_weights(&folder.join("model.safetensors"), &model, &values).unwrap();
    Stored::of(folder, model).unwrap()
}

fn kinds() -> Vec<ModelConfig> {
    let llama = tiny(Architecture::Llama);
    let llama3 = RopeScaling::Llama3 {
        factor: 8.0,
        low_frequency_factor: 1.0,
        high_frequency_factor: 4.0,
        original_context: 64.0,
    };
    vec![
        tiny(Architecture::Gpt2),
        ModelConfig { bias: false, tied: false, ..tiny(Architecture::Gpt2) },
        ModelConfig { kv_heads: 1, rope_scaling: llama3, ..llama.clone() },
        ModelConfig {
            window: 5,
            tied: false,
            rope_scaling: RopeScaling::Linear { factor: 2.0 },
            ..llama.clone()
        },
        ModelConfig { bias: true, rope_theta: 1e6, ..llama.clone() },
        ModelConfig { qk_norm: true, head_dim: 16, ..llama.clone() },
        ModelConfig {
            qk_norm: true,
            mlp: Mlp::GeluGate,
            window: 4,
            gemma: Some(Gemma { query_scalar: 6.0, global_every: 2, local_rope_theta: 500.0 }),
            ..llama
        },
        ModelConfig { has_head: false, ..tiny(Architecture::Encoder) },
    ]
}

#[test]
fn every_kind_survives_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    for config in kinds() {
        let before = stored(folder.path(), config.clone());
        save_gguf(&path, &before, Type::F32, Vec::new()).unwrap();
        let after = Stored::open(&path).unwrap();
        assert_eq!(after.model().config(), &config);
        assert_eq!(after.model().constants(), before.model().constants());
        let (before_values, after_values) = (before.values().unwrap(), after.values().unwrap());
        for parameter in before.model().layout().parameters() {
            let (a, b) = (&before_values[parameter.range()], &after_values[parameter.range()]);
            // Adding 1 and taking it off again rounds.
            let bound = if has_one_added(&config, &parameter.name) { 1.2e-7 } else { 0.0 };
            assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() <= bound), "{} {config}", parameter.name);
        }
    }
}

#[test]
fn eight_bits_are_for_matrices_of_whole_blocks() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let config = ModelConfig {
        vocab_size: 37,
        context: 8,
        mlp_width: 40,
        ..ModelConfig::new(Architecture::Llama, 1, 2, 32)
    };
    save_gguf(&path, &stored(folder.path(), config), Type::Q8_0, Vec::new()).unwrap();
    let file = Gguf::open(&path).unwrap();
    let of = |name: &str| file.tensor(name).unwrap().of;
    assert_eq!(of("token_embd.weight"), Type::Q8_0);
    assert_eq!(of("blk.0.ffn_down.weight"), Type::F16);
    assert_eq!(of("blk.0.attn_norm.weight"), Type::F32);
}

#[test]
fn what_the_format_cannot_say_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    for (config, part) in [
        (ModelConfig { mlp: Mlp::ReluSquared, ..tiny(Architecture::Llama) }, "relu2"),
        (ModelConfig { bias: true, qk_norm: true, ..tiny(Architecture::Llama) }, "bias"),
        (ModelConfig { window: 3, ..tiny(Architecture::Gpt2) }, "window"),
        (tiny(Architecture::Encoder), "has_head"),
    ] {
        let message =
            save_gguf(&path, &stored(folder.path(), config), Type::F32, Vec::new()).unwrap_err().to_string();
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn rows_go_to_their_places_and_back() {
    for rows in [2, 8, 64] {
        assert!((0..rows).all(|row| apart(interleaved(row, rows), rows) == row));
    }
    assert_eq!([0, 1, 2, 3].map(|row| interleaved(row, 4)), [0, 2, 1, 3]);
}
