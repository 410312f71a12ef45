//! Writing GGUF files as a stream: aside, synced, then renamed.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use ironmill_text::durable::StagedFile;

use super::{ALIGNMENT, MAGIC, TensorInfo, Type, VERSION, Value, bad};
use crate::error::{Error, Result};

/// A tensor to write, with its place in the data.
#[derive(Debug)]
struct Tensor {
    info: TensorInfo,
    bytes: u64,
}

impl Tensor {
    /// A tensor that will be given; an error if its rows are not whole blocks of its type.
    fn new(path: &Path, info: TensorInfo) -> Result<Tensor> {
        let fastest_first: Vec<u64> = info.shape.iter().rev().copied().collect();
        let fault =
            || bad(path, format!("tensor {} cannot be {:?} of shape {:?}", info.name, info.of, info.shape));
        let bytes = info.of.bytes_of(&fastest_first).ok_or_else(fault)?;
        Ok(Tensor { info, bytes })
    }
}

/// Writes a file whose tensors are declared first and then given one after the other.
///
/// Dropping it before [`Writer::finish`] removes what was written.
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    file: StagedFile,
    tensors: Vec<Tensor>,
    next: usize,
}

impl Writer {
    /// Starts a file that will appear at `path` when it is finished.
    pub fn create(path: &Path, metadata: &[(String, Value)], tensors: Vec<TensorInfo>) -> Result<Writer> {
        let tensors: Vec<Tensor> =
            tensors.into_iter().map(|info| Tensor::new(path, info)).collect::<Result<_>>()?;
        let mut header = Vec::from(MAGIC);
        header.extend(VERSION.to_le_bytes());
        header.extend((tensors.len() as u64).to_le_bytes());
        header.extend((metadata.len() as u64).to_le_bytes());
        for (key, value) in metadata {
            put_text(&mut header, key);
            put_value(&mut header, value).map_err(|reason| bad(path, format!("{key} {reason}")))?;
        }
        let mut offset = 0u64;
        for tensor in &tensors {
            put_text(&mut header, &tensor.info.name);
            header.extend((tensor.info.shape.len() as u32).to_le_bytes());
            tensor.info.shape.iter().rev().for_each(|dim| header.extend(dim.to_le_bytes()));
            header.extend(tensor.info.of.number().to_le_bytes());
            header.extend(offset.to_le_bytes());
            offset += tensor.bytes.next_multiple_of(ALIGNMENT);
        }
        header.resize(header.len().next_multiple_of(ALIGNMENT as usize), 0);
        let mut file = StagedFile::create(path).map_err(Error::write(path))?;
        file.write_all(&header).map_err(Error::write(path))?;
        Ok(Writer { path: path.to_path_buf(), file, tensors, next: 0 })
    }

    /// Writes the next declared tensor, whose name must be this.
    pub fn tensor(&mut self, name: &str, values: &[f32]) -> Result<()> {
        let fault = |reason: String| Error::BadTensor { path: self.path.clone(), name: name.into(), reason };
        let Some(tensor) = self.tensors.get(self.next) else {
            return Err(fault("was given but not declared".into()));
        };
        if tensor.info.name != name {
            return Err(fault(format!("was given, but the next one is {}", tensor.info.name)));
        }
        let bytes = f32_bytes(tensor.info.of, values)
            .ok_or_else(|| fault("is of a type that is not written".into()))?;
        if bytes.len() as u64 != tensor.bytes {
            return Err(fault(format!("has {} bytes, but was given {}", tensor.bytes, bytes.len())));
        }
        let padding = vec![0; bytes.len().next_multiple_of(ALIGNMENT as usize) - bytes.len()];
        self.file
            .write_all(&bytes)
            .and_then(|()| self.file.write_all(&padding))
            .map_err(Error::write(&self.path))?;
        self.next += 1;
        Ok(())
    }

    /// Completes the file: it is synced and then appears under its name.
    pub fn finish(self) -> Result<()> {
        if let Some(tensor) = self.tensors.get(self.next) {
            let (name, reason) = (tensor.info.name.clone(), "was declared but not given".into());
            return Err(Error::BadTensor { path: self.path, name, reason });
        }
        self.file.commit().map_err(Error::write(&self.path))
    }
}

/// Numbers as F32, F16, BF16 or Q8_0 stores them; none for types that are only read.
pub fn f32_bytes(of: Type, values: &[f32]) -> Option<Vec<u8>> {
    Some(match of {
        Type::F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
        Type::F16 => values.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect(),
        Type::BF16 => values.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect(),
        Type::Q8_0 => values.chunks(of.block_elements()).flat_map(eight_bits).collect(),
        _ => return None,
    })
}

/// A block of Q8_0: the scale that makes the largest number 127, then every number in units of it.
fn eight_bits(block: &[f32]) -> Vec<u8> {
    let largest = block.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
    let scale = largest / 127.0;
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    let mut bytes = Vec::from(f16::from_f32(scale).to_le_bytes());
    bytes.extend(block.iter().map(|x| (x * inverse).round() as i8 as u8));
    bytes
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// Writes a value with its type in front; the error says what does not fit.
fn put_value(out: &mut Vec<u8>, value: &Value) -> std::result::Result<(), String> {
    let mut put = |of: u32, bytes: &[u8]| {
        out.extend(of.to_le_bytes());
        out.extend(bytes);
    };
    match value {
        Value::Unsigned(value) => match u32::try_from(*value) {
            Ok(value) => put(4, &value.to_le_bytes()),
            Err(_) => put(10, &value.to_le_bytes()),
        },
        Value::Signed(value) => match i32::try_from(*value) {
            Ok(value) => put(5, &value.to_le_bytes()),
            Err(_) => put(11, &value.to_le_bytes()),
        },
        Value::Float(value) => put(6, &(*value as f32).to_le_bytes()),
        Value::Bool(value) => put(7, &[u8::from(*value)]),
        Value::Text(text) => {
            put(8, &[]);
            put_text(out, text);
        }
        Value::Texts(texts) => {
            put_list(out, 8, texts.len());
            texts.iter().for_each(|text| put_text(out, text));
        }
        Value::Integers(values) => {
            put_list(out, 5, values.len());
            for &value in values {
                let value = i32::try_from(value).map_err(|_| format!("lists {value}, which is too large"))?;
                out.extend(value.to_le_bytes());
            }
        }
        Value::Floats(values) => {
            put_list(out, 6, values.len());
            values.iter().for_each(|value| out.extend(value.to_le_bytes()));
        }
        Value::Bools(values) => {
            put_list(out, 7, values.len());
            out.extend(values.iter().map(|&value| u8::from(value)));
        }
    }
    Ok(())
}

fn put_list(out: &mut Vec<u8>, of: u32, count: usize) {
    out.extend(9u32.to_le_bytes());
    out.extend(of.to_le_bytes());
    out.extend((count as u64).to_le_bytes());
}
