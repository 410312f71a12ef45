//! Models in and out: from whatever holds one to a Hugging Face folder or a GGUF file, and the proof that it is the same model.

mod companions;
mod frame;
mod vocabulary;

pub use companions::{Companions, end_ids};
pub use frame::tokenizer_of_folder;

use super::model::device;
use crate::failure::{Code, Failure, Result};
use ironmill_data::gguf::Type;
use ironmill_data::safetensors::Dtype;
use ironmill_model::{
    Engine, GenerateOptions, Pooling, Sampling, Stored, config_json, copy_weights, save_gguf,
};
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// The type of the elements of what is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Elements {
    /// Single precision
    F32,
    /// Half precision
    F16,
    /// The upper half of single precision
    Bf16,
    /// Eight bits and a scale for every 32; GGUF only
    #[value(name = "q8_0")]
    Q8_0,
}

impl Elements {
    /// As a safetensors file has it; eight bits are GGUF's alone.
    fn dtype(self) -> Result<Dtype> {
        match self {
            Elements::F32 => Ok(Dtype::F32),
            Elements::F16 => Ok(Dtype::F16),
            Elements::Bf16 => Ok(Dtype::BF16),
            Elements::Q8_0 => {
                let message = "--dtype q8_0 is for GGUF files: use f32, f16 or bf16, or give --out a name that ends in .gguf";
                Err(Failure::new(Code::Usage, message))
            }
        }
    }

    fn gguf(self) -> Type {
        match self {
            Elements::F32 => Type::F32,
            Elements::F16 => Type::F16,
            Elements::Bf16 => Type::BF16,
            Elements::Q8_0 => Type::Q8_0,
        }
    }

    /// How far logits may be from those before, in units of the largest. Rounding weights to fewer bits moves them.
    fn slack(self) -> f32 {
        match self {
            Elements::F32 => 1e-5,
            Elements::F16 => 1e-2,
            Elements::Bf16 | Elements::Q8_0 => 1e-1,
        }
    }
}

/// Writes a model as a Hugging Face folder, which appears under its name when it is whole.
pub fn write_folder(stored: &Stored, companions: &Companions, out: &Path, elements: Elements) -> Result<()> {
    let dtype = elements.dtype()?;
    if fs::read_dir(out).is_ok_and(|mut entries| entries.next().is_some()) || out.is_file() {
        let message = format!("{} is there already: choose another --out, or remove it", out.display());
        return Err(Failure::new(Code::CannotWrite, message));
    }
    let staged = staged(out)?;
    let outcome = fill_folder(stored, companions, &staged, dtype);
    if outcome.is_err() {
        // What failed is the error to report.
        let _ = fs::remove_dir_all(&staged);
    }
    outcome?;
    if out.is_dir() {
        fs::remove_dir(out).map_err(|error| Failure::write(out, &error))?;
    }
    fs::rename(&staged, out).map_err(|error| Failure::write(out, &error))
}

fn fill_folder(stored: &Stored, companions: &Companions, staged: &Path, dtype: Dtype) -> Result<()> {
    let mut config = config_json(stored.model().config(), dtype);
    companions.describe(&mut config);
    let mut files = companions.files(stored.model().config().context)?;
    files.push(("config.json".into(), format!("{config:#}\n").into_bytes()));
    for (name, bytes) in files {
        let path = staged.join(name);
        let parent = path.parent().unwrap_or(staged);
        fs::create_dir_all(parent).map_err(|error| Failure::write(parent, &error))?;
        fs::write(&path, bytes).map_err(|error| Failure::write(&path, &error))?;
    }
    Ok(copy_weights(&staged.join("model.safetensors"), stored, dtype)?)
}

/// A new folder beside the one to be.
fn staged(out: &Path) -> Result<PathBuf> {
    let name = out.file_name().ok_or_else(|| {
        let message = format!("--out {} has no name of its own: give a folder to be made", out.display());
        Failure::new(Code::Usage, message)
    })?;
    let staged = out.with_file_name(format!(".{}.partial", name.to_string_lossy()));
    let _ = fs::remove_dir_all(&staged);
    fs::create_dir_all(&staged).map_err(|error| Failure::write(&staged, &error))?;
    Ok(staged)
}

/// Writes a model as a GGUF file.
pub fn write_gguf(stored: &Stored, companions: &Companions, out: &Path, elements: Elements) -> Result<()> {
    let entries = companions.gguf_entries(stored.model().config().vocab_size)?;
    Ok(save_gguf(out, stored, elements.gguf(), entries)?)
}

/// What a check found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Checked {
    /// The largest difference of two logits, or of two hidden numbers of an encoder.
    pub difference: f32,
    /// The largest logit.
    pub largest: f32,
    /// Greedy tokens that were compared, and how many agree before the first that does not.
    pub greedy: (usize, usize),
}

/// Tokens whose logits are compared, and greedy tokens behind them.
const COMPARED: usize = 24;
const GREEDY: usize = 16;

/// Reads what was written and compares logits and greedy tokens with those of the source.
pub fn check(source: &Path, written: &Path, elements: Elements, threads: usize) -> Result<Checked> {
    let before = Sight::of(source, threads)?;
    let after = Sight::of(written, threads)?;
    let difference =
        before.numbers.iter().zip(&after.numbers).fold(0.0f32, |most, (a, b)| most.max((a - b).abs()));
    let largest = before.numbers.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    let same = before.greedy.iter().zip(&after.greedy).take_while(|(a, b)| a == b).count();
    let checked = Checked { difference, largest, greedy: (before.greedy.len(), same) };
    let is_near = before.numbers.len() == after.numbers.len() && difference <= elements.slack() * largest;
    let is_same = elements != Elements::F32 || same == before.greedy.len();
    if is_near && is_same {
        return Ok(checked);
    }
    let message = format!(
        "{} is not the model that it was made of: logits differ by {difference:.3e} (the largest is {largest:.2}) and {same} of {} \
         greedy tokens agree; keep the source, and write it again or with --dtype f32",
        written.display(),
        before.greedy.len()
    );
    Err(Failure::new(Code::BadData, message))
}

/// What a model makes of some tokens.
struct Sight {
    numbers: Vec<f32>,
    greedy: Vec<u32>,
}

impl Sight {
    fn of(path: &Path, threads: usize) -> Result<Sight> {
        let stored = Stored::open(path)?;
        let config = stored.model().config();
        let is_causal = config.architecture.is_causal();
        // Tokens from all over the vocabulary, the same for both models.
        let count = COMPARED.min(config.context);
        let ids: Vec<u32> = (0..count).map(|i| (i * 7919 % config.vocab_size) as u32).collect();
        let short = config.context.min(COMPARED + GREEDY);
        let vocab_size = config.vocab_size;
        let mut engine = Engine::open(device("cpu", threads, None)?, stored.cut_to(vocab_size, short)?)?;
        if !is_causal {
            let numbers = engine.embed(&[ids], Pooling::Mean)?.concat();
            return Ok(Sight { numbers, greedy: Vec::new() });
        }
        let numbers = engine.next_logits(&ids)?;
        let options = GenerateOptions {
            sampling: Sampling::GREEDY,
            max_tokens: short.saturating_sub(count),
            stop: Vec::new(),
        };
        let made = engine.generate(&[ids], &options, &mut |_, _| ControlFlow::Continue(()))?;
        Ok(Sight { numbers, greedy: made.into_iter().flat_map(|made| made.ids).collect() })
    }
}
