//! Models of llm.c: GPT-2s with the activations and biases of the original.

use std::path::Path;

use ironmill_data::llmc::Llmc;
use ironmill_graph::Parameter;

use crate::{
    architecture::Model,
    config::{Architecture, ModelConfig},
    error::Result,
    stored::{Source, Stored},
};

/// Opens a file: its sizes, and where its parameters are read from.
pub(crate) fn open(path: &Path) -> Result<Stored> {
    let file = Llmc::open(path)?;
    let config = ModelConfig {
        vocab_size: file.vocab_size,
        context: file.context,
        ..ModelConfig::new(Architecture::Gpt2, file.layers, file.heads, file.width)
    };
    Stored::from_source(config, Box::new(file), path)
}

impl Source for Llmc {
    fn tensors(&self) -> usize {
        self.layers
    }

    /// A file has exactly the tensors of its sizes.
    fn check(&self, _: &Model, _: &Parameter) -> Result<()> {
        Ok(())
    }

    fn read(&self, _: &Model, parameter: &Parameter, out: &mut [f32]) -> Result<()> {
        Ok(self.read_f32(parameter.name.trim_start_matches("transformer."), out)?)
    }
}
