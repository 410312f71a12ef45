//! Reading GGUF files by name, with positioned reads.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use super::{
    ALIGNMENT, MAGIC, MAX_DIMS, MAX_HEADER_BYTES, TensorInfo, Type, VERSION, Value, bad, dequantise,
};
use crate::error::{Error, Result};
use crate::positioned::read_exact_at;

/// An open GGUF file.
#[derive(Debug)]
pub struct Gguf {
    path: PathBuf,
    file: File,
    metadata: BTreeMap<String, Value>,
    tensors: Vec<(TensorInfo, u64)>,
    by_name: BTreeMap<String, usize>,
}

impl Gguf {
    /// Opens a file and checks its metadata and where its tensors lie.
    pub fn open(path: &Path) -> Result<Gguf> {
        let file = File::open(path).map_err(Error::read(path))?;
        let file_bytes = file.metadata().map_err(Error::read(path))?.len();
        let reader = BufReader::new(&file);
        let mut header = Header { path, reader, at: 0, end: file_bytes.min(MAX_HEADER_BYTES), file_bytes };
        let [n_tensors, n_entries] = header.start()?;
        let mut metadata = BTreeMap::new();
        for _ in 0..n_entries {
            let (key, value) = header.entry()?;
            if metadata.insert(key.clone(), value).is_some() {
                return Err(bad(path, format!("{key} is there twice")));
            }
        }
        let mut described = Vec::new();
        for _ in 0..n_tensors {
            described.push(header.tensor()?);
        }
        let alignment = match metadata.get("general.alignment") {
            None => ALIGNMENT,
            Some(&Value::Unsigned(alignment))
                if (8..=1 << 20).contains(&alignment) && alignment.is_power_of_two() =>
            {
                alignment
            }
            Some(other) => return Err(bad(path, format!("general.alignment is {other:?}"))),
        };
        let data_at = header.at.next_multiple_of(alignment);
        let tensors = place(path, described, data_at, alignment, file_bytes)?;
        let mut by_name = BTreeMap::new();
        for (idx, (info, _)) in tensors.iter().enumerate() {
            if by_name.insert(info.name.clone(), idx).is_some() {
                return Err(bad(path, format!("tensor {} is there twice", info.name)));
            }
        }
        drop(header);
        Ok(Gguf { path: path.to_path_buf(), file, metadata, tensors, by_name })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All entries of the metadata, by key.
    pub fn metadata(&self) -> &BTreeMap<String, Value> {
        &self.metadata
    }

    /// An entry of the metadata.
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.metadata.get(key)
    }

    /// All tensors, in the order of the file.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorInfo> {
        self.tensors.iter().map(|(info, _)| info)
    }

    /// A tensor of that name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).map(|&idx| &self.tensors[idx].0)
    }

    /// Fills `out`, which must have the tensor's number of elements, dequantising what is quantised.
    pub fn read_f32(&self, name: &str, out: &mut [f32]) -> Result<()> {
        let fault = |reason: String| Error::BadTensor { path: self.path.clone(), name: name.into(), reason };
        let Some(&idx) = self.by_name.get(name) else { return Err(fault("is missing".into())) };
        let (info, begin) = &self.tensors[idx];
        let elements: u64 = info.shape.iter().product();
        if out.len() as u64 != elements {
            return Err(fault(format!("has {elements} elements {:?}, not {}", info.shape, out.len())));
        }
        let (elements, bytes) = (info.of.block_elements(), info.of.block_bytes());
        let blocks_at_once = CHUNK_BYTES / bytes;
        let mut chunk = vec![0; blocks_at_once * bytes];
        let mut at = *begin;
        for part in out.chunks_mut(blocks_at_once * elements) {
            let stored = &mut chunk[..part.len() / elements * bytes];
            read_exact_at(&self.file, stored, at).map_err(Error::read(&self.path))?;
            at += stored.len() as u64;
            for (block, out) in stored.chunks_exact(bytes).zip(part.chunks_exact_mut(elements)) {
                dequantise::block(info.of, block, out);
            }
        }
        Ok(())
    }
}

/// Bytes of elements that are read at once.
const CHUNK_BYTES: usize = 1 << 16;

/// Turns offsets of tensors into places of the file, and refuses those that overlap, are not aligned or lie outside.
fn place(
    path: &Path,
    described: Vec<(TensorInfo, u64)>,
    data_at: u64,
    alignment: u64,
    file_bytes: u64,
) -> Result<Vec<(TensorInfo, u64)>> {
    let mut spans = Vec::with_capacity(described.len());
    let mut placed = Vec::with_capacity(described.len());
    for (info, offset) in described {
        let fault = |reason: String| bad(path, format!("tensor {} {reason}", info.name));
        let fastest_first: Vec<u64> = info.shape.iter().rev().copied().collect();
        let bytes = info.of.bytes_of(&fastest_first);
        let bytes =
            bytes.ok_or_else(|| fault(format!("cannot be {:?} of shape {:?}", info.of, info.shape)))?;
        if !offset.is_multiple_of(alignment) {
            return Err(fault(format!("begins at {offset}, which is no multiple of {alignment}")));
        }
        let begin = data_at.checked_add(offset);
        let end = begin.and_then(|begin| begin.checked_add(bytes)).filter(|&end| end <= file_bytes);
        let (Some(begin), Some(end)) = (begin, end) else {
            let advice = "the file is truncated or damaged";
            return Err(fault(format!("of {bytes} bytes at {offset} ends outside the file: {advice}")));
        };
        spans.push((begin, end));
        placed.push((info, begin));
    }
    spans.sort_unstable();
    if let Some(pair) = spans.windows(2).find(|pair| pair[1].0 < pair[0].1) {
        return Err(bad(path, format!("two tensors overlap at byte {}", pair[1].0)));
    }
    Ok(placed)
}

/// The part of a file before the data, of which no more is read than may be there.
struct Header<'f> {
    path: &'f Path,
    reader: BufReader<&'f File>,
    at: u64,
    /// Where the header must end at the latest.
    end: u64,
    file_bytes: u64,
}

impl Header<'_> {
    /// Magic, version, and the numbers of tensors and of metadata entries.
    fn start(&mut self) -> Result<[u64; 2]> {
        if self.bytes::<4>()? != MAGIC {
            return Err(bad(self.path, "it does not begin with GGUF"));
        }
        let version = u32::from_le_bytes(self.bytes()?);
        match version {
            2 | VERSION => {}
            _ if version.swap_bytes() <= VERSION => {
                return Err(bad(
                    self.path,
                    "it is of a big-endian machine, and only little-endian files are read",
                ));
            }
            _ => return Err(bad(self.path, format!("it is of version {version}, and 2 and 3 are read"))),
        }
        let (tensors, entries) = (self.u64()?, self.u64()?);
        // A tensor takes at least its name's length, its dimensions, type and offset; an entry its key's length, type and a byte.
        for (count, what, least) in [(tensors, "tensors", 24), (entries, "metadata entries", 13)] {
            self.room_for(count, least, what)?;
        }
        Ok([tensors, entries])
    }

    fn entry(&mut self) -> Result<(String, Value)> {
        let key = self.text()?;
        let of = u32::from_le_bytes(self.bytes()?);
        let value = match of {
            9 => self.list(&key)?,
            of => self.scalar(of, &key)?,
        };
        Ok((key, value))
    }

    fn scalar(&mut self, of: u32, key: &str) -> Result<Value> {
        Ok(match of {
            0 => Value::Unsigned(self.bytes::<1>()?[0].into()),
            1 => Value::Signed(i8::from_le_bytes(self.bytes()?).into()),
            2 => Value::Unsigned(u16::from_le_bytes(self.bytes()?).into()),
            3 => Value::Signed(i16::from_le_bytes(self.bytes()?).into()),
            4 => Value::Unsigned(u32::from_le_bytes(self.bytes()?).into()),
            5 => Value::Signed(i32::from_le_bytes(self.bytes()?).into()),
            6 => Value::Float(f32::from_le_bytes(self.bytes()?).into()),
            7 => Value::Bool(self.bytes::<1>()?[0] != 0),
            8 => Value::Text(self.text()?),
            10 => Value::Unsigned(self.u64()?),
            11 => Value::Signed(i64::from_le_bytes(self.bytes()?)),
            12 => Value::Float(f64::from_le_bytes(self.bytes()?)),
            other => return Err(bad(self.path, format!("{key} has the unknown type {other}"))),
        })
    }

    fn list(&mut self, key: &str) -> Result<Value> {
        let of = u32::from_le_bytes(self.bytes()?);
        let count = self.u64()?;
        let least = match of {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            8 | 10..=12 => 8,
            9 => return Err(bad(self.path, format!("{key} is a list of lists, which is not supported"))),
            other => return Err(bad(self.path, format!("{key} lists the unknown type {other}"))),
        };
        self.room_for(count, least, key)?;
        let mut list = match of {
            6 | 12 => Value::Floats(Vec::new()),
            7 => Value::Bools(Vec::new()),
            8 => Value::Texts(Vec::new()),
            _ => Value::Integers(Vec::new()),
        };
        for _ in 0..count {
            match (&mut list, self.scalar(of, key)?) {
                (Value::Floats(list), Value::Float(value)) => list.push(value as f32),
                (Value::Bools(list), Value::Bool(value)) => list.push(value),
                (Value::Texts(list), Value::Text(value)) => list.push(value),
                (Value::Integers(list), Value::Signed(value)) => list.push(value),
                (Value::Integers(list), Value::Unsigned(value)) => match i64::try_from(value) {
                    Ok(value) => list.push(value),
                    Err(_) => return Err(bad(self.path, format!("{key} lists {value}, which is too large"))),
                },
                (_, other) => return Err(bad(self.path, format!("{key} lists {other:?}"))),
            }
        }
        Ok(list)
    }

    fn tensor(&mut self) -> Result<(TensorInfo, u64)> {
        let name = self.text()?;
        let n_dims = u32::from_le_bytes(self.bytes()?);
        if n_dims as usize > MAX_DIMS {
            return Err(bad(
                self.path,
                format!("tensor {name} has {n_dims} dimensions, at most {MAX_DIMS} are read"),
            ));
        }
        let mut shape = Vec::with_capacity(MAX_DIMS);
        for _ in 0..n_dims {
            shape.push(self.u64()?);
        }
        shape.reverse();
        let number = u32::from_le_bytes(self.bytes()?);
        let of = Type::from_number(number).ok_or_else(|| {
            let known = "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 and Q2_K to Q6_K";
            bad(self.path, format!("tensor {name} is of type {number}, and only {known} are read"))
        })?;
        Ok((TensorInfo { name, of, shape }, self.u64()?))
    }

    fn text(&mut self) -> Result<String> {
        let length = self.u64()?;
        self.room_for(length, 1, "a text")?;
        let mut bytes = vec![0; length as usize];
        self.fill(&mut bytes)?;
        String::from_utf8(bytes)
            .map_err(|_| bad(self.path, format!("the text before byte {} is not UTF-8", self.at)))
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.bytes()?))
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn fill(&mut self, out: &mut [u8]) -> Result<()> {
        self.room_for(out.len() as u64, 1, "what follows")?;
        self.reader.read_exact(out).map_err(Error::read(self.path))?;
        self.at += out.len() as u64;
        Ok(())
    }

    /// Refuses so many things of at least so many bytes if they cannot all be there.
    fn room_for(&self, count: u64, least_bytes: u64, what: &str) -> Result<()> {
        let needed = count.checked_mul(least_bytes);
        if needed.is_some_and(|needed| needed <= self.end.saturating_sub(self.at)) {
            return Ok(());
        }
        let size =
            format!("the file has {} bytes, of which a header may have {MAX_HEADER_BYTES}", self.file_bytes);
        Err(bad(
            self.path,
            format!("{what} at byte {} would take more than there is ({count}; {size})", self.at),
        ))
    }
}
