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
    /// The model as the source has it, where that is more.
    whole: Option<Model>,
    source: Box<dyn Source>,
}

/// Where parameters are read from.
pub(crate) trait Source {
    /// How many tensors there are: a model has no more blocks than that.
    fn tensors(&self) -> usize;

    /// Refuses a parameter that is not there or has another shape there.
    fn check(&self, model: &Model, parameter: &Parameter) -> Result<()>;

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
        let config = checkpoint::read_config(path)?;
        let source = Folder { path: path.to_path_buf(), parts: Parts::open(path)? };
        source.check_output_bias(&config)?;
        Self::from_source(config, Box::new(source), path)
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

    /// A model of these sizes whose parameters come from somewhere. Nothing is laid out that the source cannot have, so that sizes
    /// that are lies cost nothing.
    pub(crate) fn from_source(config: ModelConfig, source: Box<dyn Source>, path: &Path) -> Result<Stored> {
        config.check()?;
        if config.layers > source.tensors() {
            let problem = format!("says {} blocks and has {} tensors", config.layers, source.tensors());
            return Err(Error::NotAModel { path: path.to_path_buf(), problem });
        }
        let model = Model::new(config)?;
        model.layout().parameters().iter().try_for_each(|parameter| source.check(&model, parameter))?;
        Ok(Stored { model, whole: None, source })
    }

    /// The same of a model whose sizes are known.
    pub(crate) fn of(folder: &Path, model: Model) -> Result<Stored> {
        let source = Folder { path: folder.to_path_buf(), parts: Parts::open(folder)? };
        source.check_output_bias(model.config())?;
        model.layout().parameters().iter().try_for_each(|parameter| source.check(&model, parameter))?;
        Ok(Stored { model, whole: None, source: Box::new(source) })
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Hands out every parameter with its values, in the order of the layout. One parameter is in memory at a time.
    pub fn for_each(&self, with: &mut dyn FnMut(&Parameter, &[f32]) -> Result<()>) -> Result<()> {
        let mut values = Vec::new();
        let whole = self.whole.as_ref().unwrap_or(&self.model);
        for (parameter, stored) in self.model.layout().parameters().iter().zip(whole.layout().parameters()) {
            values.resize(stored.range().len(), 0.0);
            self.source.read(whole, stored, &mut values)?;
            with(parameter, &values[..parameter.range().len()])?;
        }
        Ok(())
    }

    /// The same model with fewer tokens, or positions, or both: the first ones of its tables.
    pub fn cut_to(mut self, vocab_size: usize, context: usize) -> Result<Stored> {
        let config = self.model.config();
        for (key, asked, there) in
            [("vocab_size", vocab_size, config.vocab_size), ("context", context, config.context)]
        {
            if asked > there {
                let reason = format!("the stored model has {there}; use at most that");
                return Err(Error::Model { key, value: asked.to_string(), reason });
            }
        }
        let cut = Model::new(ModelConfig { vocab_size, context, ..config.clone() })?;
        let whole = std::mem::replace(&mut self.model, cut);
        self.whole.get_or_insert(whole);
        Ok(self)
    }

    /// All values, in the flat layout.
    pub fn values(&self) -> Result<Vec<f32>> {
        let mut values = vec![0.0; self.model.layout().len()];
        self.for_each(&mut |parameter, read| {
            values[parameter.range()].copy_from_slice(read);
            Ok(())
        })?;
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
    fn tensors(&self) -> usize {
        self.parts.names().count()
    }

    fn check(&self, model: &Model, parameter: &Parameter) -> Result<()> {
        let name = self.name_of(&parameter.name);
        if !self.parts.contains(name) {
            return Err(self.other(format!("there is no tensor {}", parameter.name)));
        }
        let mut expected: Vec<u64> = parameter.shape.dims().iter().map(|&dim| dim as u64).collect();
        if is_transposed(model, parameter) {
            expected.reverse();
        }
        let shape = &self.parts.info(name)?.shape;
        if *shape != expected {
            return Err(self.other(format!("tensor {name} is {shape:?}, but the model needs {expected:?}")));
        }
        Ok(())
    }

    fn read(&self, model: &Model, parameter: &Parameter, out: &mut [f32]) -> Result<()> {
        let name = self.name_of(&parameter.name);
        if is_transposed(model, parameter) {
            let mut stored = vec![0.0; out.len()];
            self.parts.read_f32(name, &mut stored)?;
            out.copy_from_slice(&transpose(&stored, parameter.shape.columns(), parameter.shape.rows()));
        } else {
            self.parts.read_f32(name, out)?;
        }
        Ok(())
    }
}
