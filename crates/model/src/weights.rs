//! Parameters in Hugging Face's names and layouts: `model.safetensors` both ways.

use std::{borrow::Cow, path::Path};

use ironmill_data::{
    durable::Disk,
    safetensors::{self, Dtype, SafeTensors, TensorView},
};
use ironmill_graph::Parameter;

use crate::{
    architecture::Model,
    config::Architecture,
    error::{Error, Result},
};

/// Writes flat values as the `model.safetensors` of a Hugging Face folder.
///
/// A GPT-2 without biases gets biases of zero in the file, because readers of the format expect them.
pub fn save_weights(path: &Path, model: &Model, values: &[f32]) -> Result<()> {
    save_weights_on(&Disk::default(), path, model, values)
}

/// Writes flat values as a `model.safetensors`, on a disk that may be watched.
pub(crate) fn save_weights_on(disk: &Disk, path: &Path, model: &Model, values: &[f32]) -> Result<()> {
    // Only what is stored another way round is copied.
    let mut tensors: Vec<(String, Vec<u64>, Cow<'_, [f32]>)> = Vec::new();
    for parameter in model.layout().parameters() {
        let data = &values[parameter.range()];
        let [rows, columns] = rows_and_columns(parameter);
        if is_transposed(model, parameter) {
            let dims = vec![columns as u64, rows as u64];
            tensors.push((parameter.name.clone(), dims, transpose(data, rows, columns).into()));
        } else {
            let dims = parameter.shape.dims().iter().map(|&dim| dim as u64).collect();
            tensors.push((parameter.name.clone(), dims, data.into()));
        }
        let has_bias = parameter.name.contains(".ln_") || is_transposed(model, parameter);
        if !model.config().bias && has_bias {
            let name = parameter.name.replace(".weight", ".bias");
            let outputs = parameter.shape.dims()[0];
            tensors.push((name, vec![outputs as u64], vec![0.0; outputs].into()));
        }
    }
    let views: Vec<TensorView<'_>> = tensors
        .iter()
        .map(|(name, shape, data)| TensorView {
            name,
            dtype: Dtype::F32,
            shape,
            bytes: bytemuck::cast_slice(data.as_ref()),
        })
        .collect();
    safetensors::write_on(disk, path, &views, &[("format".into(), "pt".into())])?;
    Ok(())
}

/// Reads flat values from a `model.safetensors`; names may lack the `transformer.` or `bert.` in
/// front, as in the first GPT-2 files.
pub fn load_weights(path: &Path, model: &Model) -> Result<Vec<f32>> {
    let file = SafeTensors::open(path)?;
    let mut values = vec![0.0; model.layout().len()];
    for parameter in model.layout().parameters() {
        let short = parameter.name.trim_start_matches("transformer.").trim_start_matches("bert.");
        let name = if file.contains(&parameter.name) { &parameter.name } else { short };
        let other = |problem: String| Error::OtherShape { path: path.to_path_buf(), problem };
        if !file.contains(name) {
            return Err(other(format!("there is no tensor {}", parameter.name)));
        }
        let [rows, columns] = rows_and_columns(parameter);
        let transposed = is_transposed(model, parameter);
        let expected: Vec<u64> = match transposed {
            true => vec![columns as u64, rows as u64],
            false => parameter.shape.dims().iter().map(|&dim| dim as u64).collect(),
        };
        let shape = file.shape(name)?;
        if shape != expected {
            return Err(other(format!("tensor {name} is {shape:?}, but the model needs {expected:?}")));
        }
        let out = &mut values[parameter.range()];
        if transposed {
            let mut stored = vec![0.0; out.len()];
            file.read_f32(name, &mut stored)?;
            out.copy_from_slice(&transpose(&stored, columns, rows));
        } else {
            file.read_f32(name, out)?;
        }
    }
    Ok(values)
}

/// Whether Hugging Face stores a parameter with inputs first (GPT-2's Conv1D), the other way round than here.
fn is_transposed(model: &Model, parameter: &Parameter) -> bool {
    let name = &parameter.name;
    model.config().architecture == Architecture::Gpt2
        && (name.contains(".attn.c_") || name.contains(".mlp.c_"))
        && name.ends_with(".weight")
}

fn rows_and_columns(parameter: &Parameter) -> [usize; 2] {
    [parameter.shape.rows(), parameter.shape.columns()]
}

fn transpose(data: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(data.len());
    for column in 0..columns {
        out.extend((0..rows).map(|row| data[row * columns + column]));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ModelConfig, tests::tiny};

    #[test]
    fn weights_survive_the_hugging_face_form() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        for config in [
            tiny(Architecture::Gpt2),
            ModelConfig { bias: false, tied: false, ..tiny(Architecture::Gpt2) },
            ModelConfig { kv_heads: 1, qk_norm: true, bias: true, ..tiny(Architecture::Llama) },
            tiny(Architecture::Encoder),
        ] {
            let model = Model::new(config).unwrap();
            let values = model.initial_values(3);
            save_weights(&path, &model, &values).unwrap();
            assert_eq!(load_weights(&path, &model).unwrap(), values);
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
        let message = load_weights(&path, &Model::new(wider).unwrap()).unwrap_err().to_string();
        assert!(message.contains("transformer.wte.weight") && message.contains("[37, 24]"), "{message}");
        let deeper = Model::new(ModelConfig { layers: 3, ..tiny }).unwrap();
        let message = load_weights(&path, &deeper).unwrap_err().to_string();
        assert!(message.contains("transformer.h.2"), "{message}");
    }
}
