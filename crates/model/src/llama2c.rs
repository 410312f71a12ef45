//! Models of llama2.c: Llamas with the usual choices.

use std::path::Path;

use ironmill_data::llama2c::Llama2c;
use ironmill_graph::Parameter;

use crate::{
    architecture::Model,
    config::{Architecture, ModelConfig},
    error::Result,
    stored::{Source, Stored},
};

/// Opens a file: its sizes, and where its parameters are read from.
pub(crate) fn open(path: &Path) -> Result<Stored> {
    let file = Llama2c::open(path)?;
    let config = ModelConfig {
        vocab_size: file.vocab_size,
        context: file.context,
        kv_heads: file.kv_heads,
        mlp_width: file.mlp_width,
        tied: file.tied,
        ..ModelConfig::new(Architecture::Llama, file.layers, file.heads, file.width)
    };
    Stored::from_source(config, Box::new(file), path)
}

impl Source for Llama2c {
    fn tensors(&self) -> usize {
        self.layers
    }

    /// A file has exactly the tensors of its sizes.
    fn check(&self, _: &Model, _: &Parameter) -> Result<()> {
        Ok(())
    }

    fn read(&self, _: &Model, parameter: &Parameter, out: &mut [f32]) -> Result<()> {
        Ok(self.read_f32(&parameter.name, out)?)
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf};

    use ironmill_compute::Cpu;
    use serde_json::Value;

    use super::*;
    use crate::{Engine, GenerateOptions, Sampling};

    fn golden(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/llama2c").join(name)
    }

    fn json(name: &str) -> Value {
        serde_json::from_str(&fs::read_to_string(golden(name)).unwrap()).unwrap()
    }

    fn ids(value: &Value) -> Vec<u32> {
        value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
    }

    fn engine(path: &Path) -> Engine {
        Engine::open(Box::new(Cpu::new(2).unwrap()), Stored::open(path).unwrap()).unwrap()
    }

    /// The likeliest continuation of some tokens to so many in all.
    fn greedy(engine: &mut Engine, start: &[u32], length: usize) -> Vec<u32> {
        let options =
            GenerateOptions { sampling: Sampling::GREEDY, max_tokens: length - start.len(), stop: vec![] };
        let go_on = &mut |_, _| std::ops::ControlFlow::Continue(());
        let made = engine.generate(&[start.to_vec()], &options, go_on).unwrap();
        [start, &made[0].ids].concat()
    }

    #[test]
    fn logits_and_greedy_tokens_are_llama2c_s() {
        let golden_of = json("tiny.json");
        for name in ["tiny", "untied"] {
            let mut engine = engine(&golden(&format!("{name}.bin")));
            let (start, expected) = (ids(&golden_of[name]["start"]), ids(&golden_of[name]["ids"]));
            let logits = engine.next_logits(&start).unwrap();
            for (found, wanted) in logits.iter().zip(golden_of[name]["logits"].as_array().unwrap()) {
                let wanted = wanted.as_f64().unwrap();
                assert!(
                    (f64::from(*found) - wanted).abs() < 1e-4 * wanted.abs().max(1.0),
                    "{found} {wanted}"
                );
            }
            assert_eq!(greedy(&mut engine, &start, expected.len()), expected);
        }
    }

    #[test]
    fn the_story_model_tells_the_story_that_llama2c_tells() {
        // Weights that are not ours to ship; where they are, they lie beside the repository.
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/stories260K/stories260K.bin");
        if !path.is_file() {
            eprintln!("skipped: {} is not there", path.display());
            return;
        }
        let mut engine = engine(&path);
        for case in json("stories260K.json").as_array().unwrap() {
            let (start, expected) = (ids(&case["start"]), ids(&case["ids"]));
            assert_eq!(greedy(&mut engine, &start, expected.len()), expected, "{}", case["prompt"]);
        }
    }
}
