//! The model files of llm.c: a header of 256 words, then the parameters of a GPT-2 kind by kind, every kind for all layers.
//!
//! Version 3 has f32, version 5 bf16. The table of tokens is padded to a round number of rows, of which the model has the first.

use std::fs::File;
use std::path::{Path, PathBuf};

use half::bf16;

use crate::error::{Error, Result};
use crate::positioned::read_exact_at;

/// The first word of a file.
pub const MAGIC: u32 = 20_240_326;
const HEADER_WORDS: usize = 256;

/// What a file holds, in its order; `L` stands for the number of layers.
const KINDS: [(&str, bool); 16] = [
    ("wte", false),
    ("wpe", false),
    ("ln_1.weight", true),
    ("ln_1.bias", true),
    ("attn.c_attn.weight", true),
    ("attn.c_attn.bias", true),
    ("attn.c_proj.weight", true),
    ("attn.c_proj.bias", true),
    ("ln_2.weight", true),
    ("ln_2.bias", true),
    ("mlp.c_fc.weight", true),
    ("mlp.c_fc.bias", true),
    ("mlp.c_proj.weight", true),
    ("mlp.c_proj.bias", true),
    ("ln_f.weight", false),
    ("ln_f.bias", false),
];

/// An open file.
#[derive(Debug)]
pub struct Llmc {
    path: PathBuf,
    file: File,
    /// Whether elements are bf16 instead of f32.
    is_half: bool,
    /// The most positions of a sample.
    pub context: usize,
    /// Token ids are below this.
    pub vocab_size: usize,
    /// Rows of the table of tokens in the file.
    padded_vocab_size: usize,
    /// Blocks.
    pub layers: usize,
    /// Heads of a block.
    pub heads: usize,
    /// Channels of the residual stream.
    pub width: usize,
}

impl Llmc {
    /// Opens a file and checks that it has the size that its header says.
    pub fn open(path: &Path) -> Result<Llmc> {
        let bad = |reason: String| Error::BadLlmc { path: path.to_path_buf(), reason };
        let file = File::open(path).map_err(Error::read(path))?;
        let file_bytes = file.metadata().map_err(Error::read(path))?.len();
        let mut header = [0; 4 * HEADER_WORDS];
        if file_bytes < header.len() as u64 {
            return Err(bad(format!("it has {file_bytes} bytes and so no header")));
        }
        read_exact_at(&file, &mut header, 0).map_err(Error::read(path))?;
        let words: Vec<u32> =
            header.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
        if words[0] != MAGIC {
            return Err(bad(format!("its first word is {}, not {MAGIC}", words[0])));
        }
        let is_half = match words[1] {
            3 => false,
            5 => true,
            other => return Err(bad(format!("it is of version {other}, and 3 (f32) and 5 (bf16) are read"))),
        };
        if let Some(word) = words[2..8].iter().find(|&&word| word == 0 || word > 1 << 24) {
            return Err(bad(format!("its header has the size {word}")));
        }
        let [context, vocab_size, layers, heads, width, padded_vocab_size] =
            [2, 3, 4, 5, 6, 7].map(|at| words[at] as usize);
        if vocab_size > padded_vocab_size {
            return Err(bad(format!("it has {vocab_size} tokens in a table of {padded_vocab_size}")));
        }
        let path = path.to_path_buf();
        let opened =
            Llmc { path, file, is_half, context, vocab_size, padded_vocab_size, layers, heads, width };
        match opened.begin_of(KINDS.len()) {
            Some(expected) if expected == file_bytes => Ok(opened),
            expected => {
                let expected = expected.map_or("more than any file".into(), |bytes| bytes.to_string());
                let reason = format!("its header says {expected} bytes, the file has {file_bytes}");
                Err(Error::BadLlmc { path: opened.path, reason })
            }
        }
    }

    /// Fills `out` with a parameter by Hugging Face's name, without `transformer.` in front; products are [outputs, inputs]. The
    /// rows that pad the table of tokens are left out.
    pub fn read_f32(&self, name: &str, out: &mut [f32]) -> Result<()> {
        let fault = |reason: String| Error::BadTensor { path: self.path.clone(), name: name.into(), reason };
        let (layer, kind) = match name.strip_prefix("h.").and_then(|rest| rest.split_once('.')) {
            Some((layer, kind)) => (layer.parse().ok().filter(|&layer: &usize| layer < self.layers), kind),
            None => {
                (Some(0), name.strip_suffix(".weight").filter(|_| !name.starts_with("ln_")).unwrap_or(name))
            }
        };
        let found = KINDS.iter().position(|(known, _)| *known == kind);
        let (Some(layer), Some(kind)) = (layer, found) else { return Err(fault("is missing".into())) };
        let elements = self.elements(kind);
        let wanted = if kind == 0 { self.vocab_size * self.width } else { elements };
        if out.len() != wanted {
            return Err(fault(format!("has {wanted} elements, not {}", out.len())));
        }
        let size = self.element_bytes();
        let begin = self.begin_of(kind).unwrap_or_default() + (layer * elements) as u64 * size;
        let mut chunk = vec![0; CHUNK_ELEMENTS * size as usize];
        for (part, out) in out.chunks_mut(CHUNK_ELEMENTS).enumerate() {
            let stored = &mut chunk[..out.len() * size as usize];
            let at = begin + (part * CHUNK_ELEMENTS) as u64 * size;
            read_exact_at(&self.file, stored, at).map_err(Error::read(&self.path))?;
            if self.is_half {
                out.iter_mut()
                    .zip(stored.as_chunks::<2>().0)
                    .for_each(|(out, bytes)| *out = bf16::from_le_bytes(*bytes).to_f32());
            } else {
                out.iter_mut()
                    .zip(stored.as_chunks::<4>().0)
                    .for_each(|(out, bytes)| *out = f32::from_le_bytes(*bytes));
            }
        }
        Ok(())
    }

    fn element_bytes(&self) -> u64 {
        if self.is_half { 2 } else { 4 }
    }

    /// Elements of a kind, of one layer.
    fn elements(&self, kind: usize) -> usize {
        let c = self.width;
        match KINDS[kind].0 {
            "wte" => self.padded_vocab_size * c,
            "wpe" => self.context * c,
            "attn.c_attn.weight" => 3 * c * c,
            "attn.c_attn.bias" => 3 * c,
            "attn.c_proj.weight" => c * c,
            "mlp.c_fc.weight" | "mlp.c_proj.weight" => 4 * c * c,
            "mlp.c_fc.bias" => 4 * c,
            _ => c,
        }
    }

    /// Where a kind begins in the file; behind the last one, where the file ends. Sizes are below 2²⁴, so a kind of one layer fits.
    fn begin_of(&self, kind: usize) -> Option<u64> {
        let mut elements = 0u64;
        for (before, (_, of_layers)) in KINDS.iter().enumerate().take(kind) {
            let layers = if *of_layers { self.layers as u64 } else { 1 };
            elements = (self.elements(before) as u64)
                .checked_mul(layers)
                .and_then(|more| elements.checked_add(more))?;
        }
        elements.checked_mul(self.element_bytes())?.checked_add(4 * HEADER_WORDS as u64)
    }
}

/// Elements that are read at once.
const CHUNK_ELEMENTS: usize = 1 << 14;
