//! Models as they lie on a disk: a Hugging Face folder, a GGUF file, a checkpoint of llm.c or a model of llama2.c, read one parameter at a time: whatever the container, what comes out is a [`Model`] and
//! values in the flat layout.

use std::{
    fs,
    io::Read as _,
    path::{Path, PathBuf},
};

use ironmill_data::{llmc::MAGIC, safetensors::Parts};
use ironmill_graph::Parameter;

use crate::{
    architecture::Model,
    checkpoint,
    config::{Architecture, ModelConfig},
    error::{Error, Result},
    gguf, llama2c, llmc,
    weights::{is_transposed, transpose},
};

/// A model whose sizes are known and whose parameters are still on disk.
pub struct Stored {
    model: Model,
    source: Box<dyn Source>,
}

/// Where parameters are read from.
pub(crate) trait Source {
    /// Fills `out` with the values of a parameter, in its own shape.
    fn read(&self, model: &Model, parameter: &Parameter, out: &mut [f32]) -> Result<()>;
}

impl Stored {
    /// Opens a checkpoint or any other Hugging Face folder, a GGUF file, a checkpoint of llm.c or a model of llama2.c: sizes and
    /// names are checked, values are not read yet.
    pub fn open(path: &Path) -> Result<Stored> {
        if path.is_file() {
            return Self::open_file(path);
        }
        Self::of(path, Model::new(checkpoint::read_config(path)?)?)
    }

    fn open_file(path: &Path) -> Result<Stored> {
        let mut start = [0; 4];
        let read = fs::File::open(path).and_then(|mut file| file.read(&mut start));
        let length = read.map_err(Error::io(path))?;
        match &start[..length] {
            b"GGUF" => gguf::open(path),
            word if word == MAGIC.to_le_bytes() => llmc::open(path),
            // A zip, as PyTorch writes it, or a bare pickle.
            [b'P', b'K', ..] | [0x80, ..] => Err(ironmill_data::Error::Pickle { path: path.into() }.into()),
            // Without a magic number: the size of the file must be what its first words say.
            _ => llama2c::open(path).map_err(|error| match error {
                Error::Data(ironmill_data::Error::BadLlama2c { reason, .. }) => {
                    let problem =
                        format!("is neither a GGUF file nor of llm.c, and not of llama2.c because {reason}");
                    Error::NotAModel { path: path.into(), problem }
                }
                error => error,
            }),
        }
    }

    /// A model whose parameters come from somewhere.
    pub(crate) fn new(model: Model, source: Box<dyn Source>) -> Stored {
        Stored { model, source }
    }

    /// The same of a model whose sizes are known.
    pub(crate) fn of(folder: &Path, model: Model) -> Result<Stored> {
        let source = Folder { path: folder.to_path_buf(), parts: Parts::open(folder)? };
        source.check_output_bias(model.config())?;
        Ok(Stored { model, source: Box::new(source) })
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Hands out every parameter with its values, in the order of the layout. One parameter is in memory at a time.
    pub fn for_each(&self, with: &mut dyn FnMut(&Parameter, &[f32]) -> Result<()>) -> Result<()> {
        let mut values = Vec::new();
        for parameter in self.model.layout().parameters() {
            values.resize(parameter.range().len(), 0.0);
            self.source.read(&self.model, parameter, &mut values)?;
            with(parameter, &values)?;
        }
        Ok(())
    }

    /// All values, in the flat layout.
    pub fn values(&self) -> Result<Vec<f32>> {
        let mut values = vec![0.0; self.model.layout().len()];
        for parameter in self.model.layout().parameters() {
            self.source.read(&self.model, parameter, &mut values[parameter.range()])?;
        }
        Ok(values)
    }

    /// The model without what is read.
    pub fn into_model(self) -> Model {
        self.model
    }
}

/// A Hugging Face folder.
struct Folder {
    path: PathBuf,
    parts: Parts,
}

impl Folder {
    /// Files of a model without its head lack the first part of names.
    fn name_of<'n>(&self, name: &'n str) -> &'n str {
        let short = ["transformer.", "bert.", "model."].iter().find_map(|prefix| name.strip_prefix(prefix));
        if self.parts.contains(name) { name } else { short.unwrap_or(name) }
    }

    /// Some kinds of Llama can have biases behind attention, which are none of ours. Zeroes change nothing.
    fn check_output_bias(&self, config: &ModelConfig) -> Result<()> {
        if config.architecture != Architecture::Llama {
            return Ok(());
        }
        for name in self.parts.names().filter(|name| name.ends_with("self_attn.o_proj.bias")) {
            let mut bias = vec![0.0; config.width];
            self.parts.read_f32(name, &mut bias)?;
            if bias.iter().any(|&value| value != 0.0) {
                let problem = format!("has {name}, a bias behind attention, which is not supported");
                return Err(Error::NotAModel { path: self.path.clone(), problem });
            }
        }
        Ok(())
    }

    fn other(&self, problem: String) -> Error {
        Error::OtherShape { path: self.path.clone(), problem }
    }
}

impl Source for Folder {
    fn read(&self, model: &Model, parameter: &Parameter, out: &mut [f32]) -> Result<()> {
        let name = self.name_of(&parameter.name);
        if !self.parts.contains(name) {
            return Err(self.other(format!("there is no tensor {}", parameter.name)));
        }
        let [rows, columns] = [parameter.shape.rows(), parameter.shape.columns()];
        let transposed = is_transposed(model, parameter);
        let expected: Vec<u64> = match transposed {
            true => vec![columns as u64, rows as u64],
            false => parameter.shape.dims().iter().map(|&dim| dim as u64).collect(),
        };
        let shape = &self.parts.info(name)?.shape;
        if *shape != expected {
            return Err(self.other(format!("tensor {name} is {shape:?}, but the model needs {expected:?}")));
        }
        if transposed {
            let mut stored = vec![0.0; out.len()];
            self.parts.read_f32(name, &mut stored)?;
            out.copy_from_slice(&transpose(&stored, columns, rows));
        } else {
            self.parts.read_f32(name, out)?;
        }
        Ok(())
    }
}
