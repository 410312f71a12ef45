//! The model files of llama2.c: seven words, then the parameters of a Llama kind by kind, every kind for all layers, in f32.
//!
//! This is the first form that llama2.c wrote, without a magic number, so its size is what tells it. Of queries and keys the rows of a
//! head are in pairs that turn together; everybody else has the first of all pairs before the second ones, and so has what is
//! read here.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::positioned::read_exact_at;

const HEADER_BYTES: u64 = 28;
/// What later forms of llama2.c's files begin with.
const LATER_MAGIC: u32 = 0x616b_3432;
/// Elements that are read at once.
const CHUNK_ELEMENTS: usize = 1 << 16;

/// What a file holds, in its order: Hugging Face's name, and whether every layer has one. The two tables of angles are computed
/// anew by all who read them.
const KINDS: [(&str, bool); 14] = [
    ("embed_tokens", false),
    ("input_layernorm", true),
    ("self_attn.q_proj", true),
    ("self_attn.k_proj", true),
    ("self_attn.v_proj", true),
    ("self_attn.o_proj", true),
    ("post_attention_layernorm", true),
    ("mlp.gate_proj", true),
    ("mlp.down_proj", true),
    ("mlp.up_proj", true),
    ("norm", false),
    ("cosines", false),
    ("sines", false),
    ("lm_head", false),
];

/// An open file.
#[derive(Debug)]
pub struct Llama2c {
    path: PathBuf,
    file: File,
    /// Channels of the residual stream.
    pub width: usize,
    /// Channels inside an MLP.
    pub mlp_width: usize,
    /// Blocks.
    pub layers: usize,
    /// Heads of a block.
    pub heads: usize,
    /// Key and value heads of a block.
    pub kv_heads: usize,
    /// Token ids are below this.
    pub vocab_size: usize,
    /// Whether the head is the token embedding.
    pub tied: bool,
    /// The most positions of a sample.
    pub context: usize,
}

impl Llama2c {
    /// Opens a file and checks that it has the size that its header says.
    pub fn open(path: &Path) -> Result<Llama2c> {
        let bad = |reason: String| Error::BadLlama2c { path: path.to_path_buf(), reason };
        let file = File::open(path).map_err(Error::read(path))?;
        let file_bytes = file.metadata().map_err(Error::read(path))?.len();
        let mut header = [0; HEADER_BYTES as usize];
        if file_bytes < HEADER_BYTES {
            return Err(bad(format!("it has {file_bytes} bytes and so no header")));
        }
        read_exact_at(&file, &mut header, 0).map_err(Error::read(path))?;
        let words: Vec<i32> =
            header.as_chunks::<4>().0.iter().map(|word| i32::from_le_bytes(*word)).collect();
        if words[0] as u32 == LATER_MAGIC {
            return Err(bad("it is of a later form; write it with llama2.c's export.py --version 0".into()));
        }
        // A head of its own is said by a vocabulary below zero.
        let sizes: Vec<usize> = words.iter().map(|word| word.unsigned_abs() as usize).collect();
        let is_negative = |at: usize| words[at] < 0 && at != 5;
        if let Some(at) = (0..7).find(|&at| sizes[at] == 0 || sizes[at] > 1 << 24 || is_negative(at)) {
            return Err(bad(format!("word {at} of its header is {}, which is no size", words[at])));
        }
        let [width, mlp_width, layers, heads, kv_heads, vocab_size, context] =
            [0, 1, 2, 3, 4, 5, 6].map(|at| sizes[at]);
        if !width.is_multiple_of(heads)
            || !(width / heads).is_multiple_of(2)
            || !heads.is_multiple_of(kv_heads)
        {
            let reason =
                format!("{width} channels do not go into {heads} heads, or those not into {kv_heads}");
            return Err(bad(reason));
        }
        let (path, tied) = (path.to_path_buf(), words[5] > 0);
        let opened =
            Llama2c { path, file, width, mlp_width, layers, heads, kv_heads, vocab_size, tied, context };
        match opened.begin_of(KINDS.len()) {
            Some(expected) if expected == file_bytes => Ok(opened),
            expected => {
                let expected = expected.map_or("more than any file".into(), |bytes| bytes.to_string());
                let reason = format!("its header says {expected} bytes, the file has {file_bytes}");
                Err(Error::BadLlama2c { path: opened.path, reason })
            }
        }
    }

    /// Fills `out` with a parameter by Hugging Face's name.
    pub fn read_f32(&self, name: &str, out: &mut [f32]) -> Result<()> {
        let fault = |reason: String| Error::BadTensor { path: self.path.clone(), name: name.into(), reason };
        let short = name.strip_prefix("model.").unwrap_or(name);
        let short = short.strip_suffix(".weight").unwrap_or(short);
        let (layer, kind) = match short.strip_prefix("layers.").and_then(|rest| rest.split_once('.')) {
            Some((layer, kind)) => (layer.parse().ok().filter(|&layer: &usize| layer < self.layers), kind),
            None => (Some(0), short),
        };
        let found =
            KINDS.iter().position(|(known, _)| *known == kind).filter(|&kind| self.elements(kind) > 0);
        let (Some(layer), Some(kind)) = (layer, found) else { return Err(fault("is missing".into())) };
        let elements = self.elements(kind);
        if out.len() != elements {
            return Err(fault(format!("has {elements} elements, not {}", out.len())));
        }
        let begin = self.begin_of(kind).unwrap_or_default() + 4 * (layer * elements) as u64;
        let mut chunk = vec![0; 4 * CHUNK_ELEMENTS.min(elements)];
        for (part, out) in out.chunks_mut(CHUNK_ELEMENTS).enumerate() {
            let stored = &mut chunk[..4 * out.len()];
            let at = begin + 4 * (part * CHUNK_ELEMENTS) as u64;
            read_exact_at(&self.file, stored, at).map_err(Error::read(&self.path))?;
            for (out, bytes) in out.iter_mut().zip(stored.as_chunks::<4>().0) {
                *out = f32::from_le_bytes(*bytes);
            }
        }
        if name.contains("q_proj") || name.contains("k_proj") {
            self.part_pairs(out);
        }
        Ok(())
    }

    /// Puts the first rows of a head's pairs before the second ones.
    fn part_pairs(&self, rows: &mut [f32]) {
        let head_dim = self.width / self.heads;
        let mut parted = vec![0.0; head_dim * self.width];
        for head in rows.chunks_exact_mut(parted.len()) {
            for (row, values) in head.chunks_exact(self.width).enumerate() {
                let to = row / 2 + row % 2 * (head_dim / 2);
                parted[to * self.width..][..self.width].copy_from_slice(values);
            }
            head.copy_from_slice(&parted);
        }
    }

    /// Elements of a kind, of one layer where every layer has one.
    fn elements(&self, kind: usize) -> usize {
        let keys = self.width / self.heads * self.kv_heads;
        match KINDS[kind].0 {
            "embed_tokens" => self.vocab_size * self.width,
            "input_layernorm" | "post_attention_layernorm" | "norm" => self.width,
            "self_attn.q_proj" | "self_attn.o_proj" => self.width * self.width,
            "self_attn.k_proj" | "self_attn.v_proj" => keys * self.width,
            "mlp.gate_proj" | "mlp.down_proj" | "mlp.up_proj" => self.mlp_width * self.width,
            "cosines" | "sines" => self.context * (self.width / self.heads / 2),
            _ if self.tied => 0,
            _ => self.vocab_size * self.width,
        }
    }

    /// Where a kind begins, if a file can be that long.
    fn begin_of(&self, kind: usize) -> Option<u64> {
        let mut begin = HEADER_BYTES;
        for (idx, (_, every_layer)) in KINDS.iter().enumerate().take(kind) {
            let layers = if *every_layer { self.layers as u64 } else { 1 };
            begin = begin.checked_add((self.elements(idx) as u64).checked_mul(layers)?.checked_mul(4)?)?;
        }
        Some(begin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn golden(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/llama2c").join(name)
    }

    #[test]
    fn both_heads_are_read() {
        for (name, tied) in [("tiny.bin", true), ("untied.bin", false)] {
            let file = Llama2c::open(&golden(name)).unwrap();
            assert_eq!((file.width, file.layers, file.kv_heads, file.tied), (16, 2, 2, tied));
            let mut head = vec![0.0; file.vocab_size * file.width];
            assert_eq!(file.read_f32("lm_head.weight", &mut head).is_ok(), !tied);
            file.read_f32("model.embed_tokens.weight", &mut head).unwrap();
            assert!(file.read_f32("model.layers.2.mlp.up_proj.weight", &mut [0.0; 320]).is_err());
            assert!(file.read_f32("model.norm.weight", &mut [0.0; 3]).is_err());
        }
    }

    #[test]
    fn damaged_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.bin");
        let whole = fs::read(golden("tiny.bin")).unwrap();
        let with_word = |at: usize, word: i32| {
            let mut bytes = whole.clone();
            bytes[4 * at..][..4].copy_from_slice(&word.to_le_bytes());
            bytes
        };
        let mut files =
            vec![whole[..10].to_vec(), whole[..whole.len() - 1].to_vec(), [&whole[..], &[0]].concat()];
        for at in 0..7 {
            files.extend([0, -7, 1 << 24, i32::MAX, i32::MIN].map(|word| with_word(at, word)));
        }
        files.push(with_word(0, LATER_MAGIC as i32));
        for bytes in files {
            fs::write(&path, &bytes).unwrap();
            let said = Llama2c::open(&path).unwrap_err().to_string();
            assert!(said.contains("is not a model of llama2.c"), "{said}");
        }
    }
}
