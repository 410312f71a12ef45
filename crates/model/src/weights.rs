//! Parameters in Hugging Face's names and layouts, written as `model.safetensors`; [`stored`](crate::stored) reads them.

use std::{borrow::Cow, path::Path};

use half::{bf16, f16};
use ironmill_data::{
    durable::Disk,
    safetensors::{Dtype, TensorInfo, Writer},
};
use ironmill_graph::Parameter;

use crate::{
    architecture::Model,
    config::{Architecture, ModelConfig},
    error::{Error, Result},
    stored::Stored,
};

/// Writes flat values as the `model.safetensors` of a Hugging Face folder.
///
/// A GPT-2 without biases gets biases of zero in the file, because readers of the format expect them; a Llama with biases gets
/// one of zero behind attention where its kind has one.
pub fn save_weights(path: &Path, model: &Model, values: &[f32]) -> Result<()> {
    save_weights_on(&Disk::default(), path, model, values)
}

/// Writes flat values as a `model.safetensors`, on a disk that may be watched.
pub(crate) fn save_weights_on(disk: &Disk, path: &Path, model: &Model, values: &[f32]) -> Result<()> {
    let mut file = WeightsFile::create(disk, path, model, Dtype::F32)?;
    for parameter in model.layout().parameters() {
        file.write(parameter, &values[parameter.range()])?;
    }
    file.finish()
}

/// Writes a stored model as a `model.safetensors` of f32, f16 or bf16, one parameter at a time.
pub fn copy_weights(path: &Path, stored: &Stored, dtype: Dtype) -> Result<()> {
    let mut file = WeightsFile::create(&Disk::default(), path, stored.model(), dtype)?;
    stored.for_each(&mut |parameter, values| file.write(parameter, values))?;
    file.finish()
}

/// A `model.safetensors` on its way.
struct WeightsFile<'m> {
    model: &'m Model,
    dtype: Dtype,
    writer: Writer,
    bytes: Vec<u8>,
}

impl<'m> WeightsFile<'m> {
    fn create(disk: &Disk, path: &Path, model: &'m Model, dtype: Dtype) -> Result<Self> {
        if ![Dtype::F32, Dtype::F16, Dtype::BF16].contains(&dtype) {
            let reason = "weights are written as F32, F16 or BF16".into();
            return Err(Error::Setting { key: "dtype", value: dtype.name().into(), reason });
        }
        let mut tensors = Vec::new();
        for parameter in model.layout().parameters() {
            let mut shape: Vec<u64> = parameter.shape.dims().iter().map(|&dim| dim as u64).collect();
            if is_transposed(model, parameter) {
                shape.reverse();
            }
            tensors.push(TensorInfo { name: parameter.name.clone(), dtype, shape });
            if let Some((name, outputs)) = zero_bias(model.config(), parameter) {
                tensors.push(TensorInfo { name, dtype, shape: vec![outputs as u64] });
            }
        }
        let writer = Writer::create_on(disk, path, tensors, &[("format".into(), "pt".into())])?;
        Ok(WeightsFile { model, dtype, writer, bytes: Vec::new() })
    }

    /// Writes the next parameter of the layout.
    fn write(&mut self, parameter: &Parameter, values: &[f32]) -> Result<()> {
        let stored: Cow<'_, [f32]> = match is_transposed(self.model, parameter) {
            true => transpose(values, parameter.shape.rows(), parameter.shape.columns()).into(),
            false => values.into(),
        };
        self.tensor(&parameter.name, &stored)?;
        match zero_bias(self.model.config(), parameter) {
            Some((name, outputs)) => self.tensor(&name, &vec![0.0; outputs]),
            None => Ok(()),
        }
    }

    fn tensor(&mut self, name: &str, values: &[f32]) -> Result<()> {
        self.bytes.clear();
        match self.dtype {
            Dtype::F16 => self.bytes.extend(values.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes())),
            Dtype::BF16 => self.bytes.extend(values.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes())),
            _ => return Ok(self.writer.tensor(name, bytemuck::cast_slice(values))?),
        }
        Ok(self.writer.tensor(name, &self.bytes)?)
    }

    fn finish(self) -> Result<()> {
        Ok(self.writer.finish()?)
    }
}

/// A bias that readers of the format expect beside a parameter and the model does not have.
fn zero_bias(config: &ModelConfig, parameter: &Parameter) -> Option<(String, usize)> {
    let name = &parameter.name;
    let is_expected = match config.architecture {
        Architecture::Gpt2 => {
            !config.bias && (name.contains(".ln_") || name.contains(".attn.c_") || name.contains(".mlp.c_"))
        }
        Architecture::Llama => config.bias && config.qk_norm && name.ends_with(".o_proj.weight"),
        Architecture::Encoder => false,
    };
    is_expected.then(|| (name.replace(".weight", ".bias"), parameter.shape.dims()[0]))
}

/// Whether Hugging Face stores a parameter with inputs first (GPT-2's Conv1D), the other way round than here.
pub(crate) fn is_transposed(model: &Model, parameter: &Parameter) -> bool {
    let name = &parameter.name;
    model.config().architecture == Architecture::Gpt2
        && (name.contains(".attn.c_") || name.contains(".mlp.c_"))
        && name.ends_with(".weight")
}

pub(crate) fn transpose(data: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(data.len());
    for column in 0..columns {
        out.extend((0..rows).map(|row| data[row * columns + column]));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Gemma, Mlp, tests::tiny};
    use ironmill_data::safetensors::SafeTensors;

    fn load(folder: &Path, model: &Model) -> Result<Vec<f32>> {
        Stored::of(folder, model.clone())?.values()
    }

    #[test]
    fn weights_survive_the_hugging_face_form() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        for config in [
            tiny(Architecture::Gpt2),
            ModelConfig { bias: false, tied: false, ..tiny(Architecture::Gpt2) },
            ModelConfig { kv_heads: 1, qk_norm: true, bias: true, ..tiny(Architecture::Llama) },
            ModelConfig {
                mlp: Mlp::GeluGate,
                window: 4,
                gemma: Some(Gemma { query_scalar: 8.0, global_every: 2, local_rope_theta: 1e4 }),
                ..tiny(Architecture::Llama)
            },
            tiny(Architecture::Encoder),
            ModelConfig { has_head: false, ..tiny(Architecture::Encoder) },
        ] {
            let model = Model::new(config).unwrap();
            let values = model.initial_values(3);
            save_weights(&path, &model, &values).unwrap();
            assert_eq!(load(folder.path(), &model).unwrap(), values);
            if model.config().architecture == Architecture::Gpt2 {
                assert!(SafeTensors::open(&path).unwrap().contains("transformer.h.1.mlp.c_fc.bias"));
            }
        }
    }

    #[test]
    fn weights_of_another_shape_are_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let tiny = tiny(Architecture::Gpt2);
        let model = Model::new(tiny.clone()).unwrap();
        save_weights(&path, &model, &model.initial_values(1)).unwrap();
        let wider =
            ModelConfig { context: 12, vocab_size: 37, ..ModelConfig::new(Architecture::Gpt2, 2, 3, 48) };
        let message = load(folder.path(), &Model::new(wider).unwrap()).unwrap_err().to_string();
        assert!(message.contains("transformer.wte.weight") && message.contains("[37, 24]"), "{message}");
        let deeper = Model::new(ModelConfig { layers: 3, ..tiny }).unwrap();
        let message = load(folder.path(), &deeper).unwrap_err().to_string();
        assert!(message.contains("transformer.h.2"), "{message}");
    }
}
