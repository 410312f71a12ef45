//! llama.cpp's models: which metadata and tensors of a GGUF file are which sizes and parameters of ours, both ways.
//!
//! Three things are stored otherwise than here. Rows of queries and keys of a Llama lie so that the two channels that turn together
//! are neighbours. Gains of a Gemma have their 1 in them. Llama 3's rotary scaling is a tensor of divisors. Keys that begin
//! with `ironmill.` say what the format has no key for.

mod names;
mod sizes;

use std::path::Path;

use ironmill_data::gguf::{Gguf, TensorInfo, Type, Value, Writer};
use ironmill_graph::Parameter;

use crate::{
    architecture::Model,
    config::{Architecture, ModelConfig, RopeScaling},
    error::{Error, Result},
    stored::{Source, Stored},
};
use names::tensor_name;

/// The tensor of divisors of rotary frequencies.
const ROPE_DIVISORS: &str = "rope_freqs.weight";

/// Opens a file: its sizes, and where its parameters are read from.
pub(crate) fn open(path: &Path) -> Result<Stored> {
    let file = Gguf::open(path)?;
    let not_ours = |problem| Error::NotAModel { path: path.to_path_buf(), problem };
    let config = sizes::read(&file).map_err(not_ours)?;
    Stored::from_source(config, Box::new(File { file }), path)
}

/// Writes a stored model as a GGUF file, one parameter at a time. Matrices are of type `of`, vectors F32; a matrix whose rows are no whole
/// blocks of Q8_0 is F16. `entries` are metadata about all but sizes, such as the tokenizer.
pub fn save_gguf(path: &Path, stored: &Stored, of: Type, entries: Vec<(String, Value)>) -> Result<()> {
    let model = stored.model();
    let mut metadata = sizes::write(model.config(), of)?;
    metadata.extend(entries);
    let mut tensors = Vec::new();
    let divisors = rope_divisors(model.config());
    if let Some(divisors) = &divisors {
        let shape = vec![divisors.len() as u64];
        tensors.push(TensorInfo { name: ROPE_DIVISORS.into(), of: Type::F32, shape });
    }
    for parameter in model.layout().parameters() {
        let shape: Vec<u64> = parameter.shape.dims().iter().map(|&dim| dim as u64).collect();
        let of = match (shape.as_slice(), of) {
            ([_], _) => Type::F32,
            ([.., columns], of) if !columns.is_multiple_of(of.block_elements() as u64) => Type::F16,
            _ => of,
        };
        tensors.push(TensorInfo { name: name_of(model.config(), parameter)?, of, shape });
        tensors.extend(zero_bias(model.config(), parameter)?.map(|(name, elements)| TensorInfo {
            name,
            of: Type::F32,
            shape: vec![elements as u64],
        }));
    }
    let mut writer = Writer::create(path, &metadata, tensors)?;
    if let Some(divisors) = &divisors {
        writer.tensor(ROPE_DIVISORS, divisors)?;
    }
    stored.for_each(&mut |parameter, values| {
        let config = model.config();
        let mut stored = values.to_vec();
        if let Some(heads) = turned_heads(config, &parameter.name) {
            move_rows(values, &mut stored, heads, parameter.shape.columns(), interleaved);
        }
        if has_one_added(config, &parameter.name) {
            stored.iter_mut().for_each(|gain| *gain += 1.0);
        }
        writer.tensor(&name_of(config, parameter)?, &stored)?;
        match zero_bias(config, parameter)? {
            Some((name, elements)) => Ok(writer.tensor(&name, &vec![0.0; elements])?),
            None => Ok(()),
        }
    })?;
    Ok(writer.finish()?)
}

/// An open file as a source of parameters.
struct File {
    file: Gguf,
}

impl Source for File {
    fn tensors(&self) -> usize {
        self.file.tensors().count()
    }

    fn check(&self, model: &Model, parameter: &Parameter) -> Result<()> {
        let name = name_of(model.config(), parameter)?;
        let other = |problem| Error::OtherShape { path: self.file.path().to_path_buf(), problem };
        let Some(info) = self.file.tensor(&name) else {
            return Err(other(format!("there is no tensor {name}, which is {}", parameter.name)));
        };
        let expected: Vec<u64> = parameter.shape.dims().iter().map(|&dim| dim as u64).collect();
        if info.shape != expected {
            return Err(other(format!(
                "tensor {name} is {:?}, but the model needs {expected:?}",
                info.shape
            )));
        }
        Ok(())
    }

    fn read(&self, model: &Model, parameter: &Parameter, out: &mut [f32]) -> Result<()> {
        let config = model.config();
        self.file.read_f32(&name_of(config, parameter)?, out)?;
        if let Some(heads) = turned_heads(config, &parameter.name) {
            let stored = out.to_vec();
            move_rows(&stored, out, heads, parameter.shape.columns(), apart);
        }
        if has_one_added(config, &parameter.name) {
            out.iter_mut().for_each(|gain| *gain -= 1.0);
        }
        Ok(())
    }
}

fn name_of(config: &ModelConfig, parameter: &Parameter) -> Result<String> {
    tensor_name(config, &parameter.name).ok_or_else(|| Error::Model {
        key: "GGUF",
        value: parameter.name.clone(),
        reason: "the format has no tensor for it; export to Hugging Face's form instead".into(),
    })
}

/// The heads of a parameter whose rows lie in another order in the file.
fn turned_heads(config: &ModelConfig, name: &str) -> Option<usize> {
    let heads = if name.contains("self_attn.q_proj.") {
        config.heads
    } else if name.contains("self_attn.k_proj.") {
        config.kv_heads
    } else {
        return None;
    };
    (sizes::architecture(config) == "llama").then_some(heads)
}

/// Whether the file stores 1 more than we do.
fn has_one_added(config: &ModelConfig, name: &str) -> bool {
    config.gemma.is_some() && name.ends_with("norm.weight")
}

/// A bias that the format wants beside a parameter of a model that has none.
fn zero_bias(config: &ModelConfig, parameter: &Parameter) -> Result<Option<(String, usize)>> {
    let is_product_or_norm = ["ln_", "attn.c_", "mlp.c_"].iter().any(|part| parameter.name.contains(part));
    if config.architecture != Architecture::Gpt2 || config.bias || !is_product_or_norm {
        return Ok(None);
    }
    let name = name_of(config, parameter)?.replace(".weight", ".bias");
    Ok(Some((name, parameter.shape.dims()[0])))
}

/// Puts row `i` of every head where `place(i, rows of a head)` says.
fn move_rows(
    from: &[f32],
    to: &mut [f32],
    heads: usize,
    columns: usize,
    place: impl Fn(usize, usize) -> usize,
) {
    let rows = from.len() / columns / heads;
    for (head, from) in from.chunks_exact(rows * columns).enumerate() {
        for (row, from) in from.chunks_exact(columns).enumerate() {
            let at = (head * rows + place(row, rows)) * columns;
            to[at..at + columns].copy_from_slice(from);
        }
    }
}

/// Where the file has a row of ours: channels i and i + D/2, which turn together, are neighbours.
fn interleaved(row: usize, rows: usize) -> usize {
    let half = rows / 2;
    2 * (row % half) + row / half
}

/// The other way round.
fn apart(row: usize, rows: usize) -> usize {
    row / 2 + row % 2 * (rows / 2)
}

/// What rotary frequencies are divided by, where that is no single number.
fn rope_divisors(config: &ModelConfig) -> Option<Vec<f32>> {
    if !matches!(config.rope_scaling, RopeScaling::Llama3 { .. }) {
        return None;
    }
    let plain = ModelConfig { rope_scaling: RopeScaling::None, ..config.clone() }.rope_frequencies();
    let scaled = config.rope_frequencies();
    Some(plain.iter().zip(scaled).map(|(plain, scaled)| (plain / scaled) as f32).collect())
}

#[cfg(test)]
mod tests;
