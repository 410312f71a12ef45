//! Structured examples that are made into tokens once: a question in a chat template, say, which comes again in every run.
//!
//! A cache is a file of records behind a header that names the tokenizer by its hash, so that tokens of another one are never
//! found. What was made into tokens is known by the BLAKE3 of all its parts: a template and a question, for example. Every record
//! has a checksum, and what a crash left at the end is cut off when the file is opened.

use std::fs;
use std::path::{Path, PathBuf};

use hashbrown::HashMap;
use ironmill_text::durable::Disk;
use xxhash_rust::xxh3::xxh3_64;

use crate::error::{Error, Result};

const MAGIC: &[u8; 8] = b"IRONTOKS";
const VERSION: u32 = 2;
/// Magic, version, four zeros, the hash of the tokenizer.
const HEADER_BYTES: usize = 48;
/// The hash of the parts, the number of tokens, and a checksum of all of the record.
const RECORD_BYTES: usize = 32 + 8 + 8;
/// A cache is held in memory; a file that has grown beyond this is begun anew.
const MAX_BYTES: u64 = 256 << 20;

/// The tokens of structured examples, in memory and in a file.
#[derive(Debug)]
pub struct TokenCache {
    path: PathBuf,
    /// All tokens, one example after the other.
    tokens: Vec<u32>,
    places: HashMap<[u8; 32], (usize, usize)>,
    /// Records that the file does not have yet.
    unsaved: Vec<u8>,
}

impl TokenCache {
    /// Opens the cache of a tokenizer in a folder, or begins one; the folder is made if need be.
    pub fn open(dir: &Path, tokenizer_hash: &[u8; 32]) -> Result<TokenCache> {
        fs::create_dir_all(dir).map_err(Error::write(dir))?;
        let name: String = tokenizer_hash[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        let path = dir.join(format!("tokens-{name}.cache"));
        let is_usable = fs::metadata(&path).is_ok_and(|file| file.len() <= MAX_BYTES);
        let bytes = if is_usable { fs::read(&path).map_err(Error::read(&path))? } else { Vec::new() };
        let mut cache = TokenCache { path, tokens: Vec::new(), places: HashMap::new(), unsaved: Vec::new() };
        let header = header(tokenizer_hash);
        let whole =
            if bytes.starts_with(&header) { HEADER_BYTES + cache.read(&bytes[HEADER_BYTES..]) } else { 0 };
        if whole == 0 || whole < bytes.len() {
            let kept = if whole == 0 { &header[..] } else { &bytes[..whole] };
            Disk::default().write(&cache.path, kept).map_err(Error::write(&cache.path))?;
        }
        Ok(cache)
    }

    /// How many different examples there are.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there is no example.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The tokens that were made of these parts.
    pub fn get(&self, parts: &[&str]) -> Option<&[u32]> {
        let &(start, end) = self.places.get(&key(parts))?;
        Some(&self.tokens[start..end])
    }

    /// Keeps the tokens that were made of these parts, unless there are some.
    pub fn insert(&mut self, parts: &[&str], ids: &[u32]) {
        let key = key(parts);
        if !self.places.contains_key(&key) {
            append_record(&mut self.unsaved, &key, ids);
            self.keep(key, ids);
        }
    }

    /// Appends what is new to the file.
    pub fn save(&mut self) -> Result<()> {
        if !self.unsaved.is_empty() {
            Disk::default().append(&self.path, &self.unsaved).map_err(Error::write(&self.path))?;
            self.unsaved.clear();
        }
        Ok(())
    }

    fn keep(&mut self, key: [u8; 32], ids: &[u32]) {
        let start = self.tokens.len();
        self.tokens.extend_from_slice(ids);
        self.places.insert(key, (start, self.tokens.len()));
    }

    /// Reads records up to the first that is not whole; says how many bytes those before it take.
    fn read(&mut self, bytes: &[u8]) -> usize {
        let mut whole = 0;
        while let Some((key, ids, n_bytes)) = record(&bytes[whole..]) {
            self.keep(key, &ids);
            whole += n_bytes;
        }
        whole
    }
}

/// Every part with its length, so that no two lists of parts are the same bytes.
fn key(parts: &[&str]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    *hasher.finalize().as_bytes()
}

fn header(tokenizer_hash: &[u8; 32]) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header[16..].copy_from_slice(tokenizer_hash);
    header
}

fn append_record(out: &mut Vec<u8>, key: &[u8; 32], ids: &[u32]) {
    let start = out.len();
    out.extend_from_slice(key);
    out.extend_from_slice(&(ids.len() as u64).to_le_bytes());
    out.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
    let checksum = xxh3_64(&out[start..]);
    out.extend_from_slice(&checksum.to_le_bytes());
}

/// The record at the start of some bytes, and how many it takes; none if it is not whole.
fn record(bytes: &[u8]) -> Option<([u8; 32], Vec<u32>, usize)> {
    let key: [u8; 32] = bytes.get(..32)?.try_into().ok()?;
    let count = u64::from_le_bytes(bytes.get(32..40)?.try_into().ok()?);
    let n_bytes = usize::try_from(count).ok()?.checked_mul(4)?.checked_add(RECORD_BYTES)?;
    let (content, checksum) = bytes.get(..n_bytes)?.split_at(n_bytes - 8);
    if xxh3_64(content).to_le_bytes() != checksum {
        return None;
    }
    let ids = content[40..].as_chunks::<4>().0.iter().map(|four| u32::from_le_bytes(*four)).collect();
    Some((key, ids, n_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: [u8; 32] = [7; 32];

    /// Parts and their tokens: some have the same text cut otherwise, one has no tokens.
    fn examples() -> Vec<([String; 2], Vec<u32>)> {
        let example = |i: u32| {
            let text = format!("{{{{ question }}}} {} of {i}", i % 100);
            let (head, tail) = text.split_at(1 + i as usize % 10);
            ([head.to_owned(), tail.to_owned()], (0..i % 30).map(|t| t * i).collect())
        };
        (0..300).map(example).collect()
    }

    fn parts(example: &[String; 2]) -> [&str; 2] {
        [&example[0], &example[1]]
    }

    /// A cache of all examples, saved.
    fn filled(folder: &Path) -> TokenCache {
        let mut cache = TokenCache::open(folder, &HASH).unwrap();
        for (example, ids) in examples() {
            assert!(cache.get(&parts(&example)).is_none());
            cache.insert(&parts(&example), &ids);
            cache.insert(&parts(&example), &[1]);
        }
        cache.save().unwrap();
        cache
    }

    #[test]
    fn examples_are_kept_once_and_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("made/here");
        let path = filled(&dir).path;
        let written = fs::metadata(&path).unwrap().len();
        let mut cache = TokenCache::open(&dir, &HASH).unwrap();
        assert!(cache.len() == 300 && !cache.is_empty());
        for (example, ids) in examples() {
            assert_eq!(cache.get(&parts(&example)), Some(&ids[..]));
            assert_eq!(cache.get(&[&example.concat()]), None);
        }
        cache.save().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), written);
    }

    #[test]
    fn what_is_cut_off_or_damaged_is_never_served() {
        let folder = tempfile::tempdir().unwrap();
        let path = filled(folder.path()).path;
        let good = fs::read(&path).unwrap();
        for at in (0..good.len()).step_by(97) {
            for cut in [true, false] {
                let mut bad = good.clone();
                if cut {
                    bad.truncate(at)
                } else {
                    bad[at] ^= 16
                }
                fs::write(&path, bad).unwrap();
                let mut cache = TokenCache::open(folder.path(), &HASH).unwrap();

                for (example, ids) in examples() {
                    assert!(cache.get(&parts(&example)).is_none_or(|found| found == ids), "{at}");
                    cache.insert(&parts(&example), &ids);
                }
                cache.save().unwrap();
                assert_eq!(TokenCache::open(folder.path(), &HASH).unwrap().len(), 300);
            }
        }
    }

    #[test]
    fn another_tokenizer_has_another_cache_and_one_that_grew_too_large_is_begun_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = filled(folder.path()).path;
        assert!(TokenCache::open(folder.path(), &[8; 32]).unwrap().is_empty());
        let large = fs::OpenOptions::new().write(true).open(&path).unwrap();
        large.set_len(MAX_BYTES + 1).unwrap();
        assert!(TokenCache::open(folder.path(), &HASH).unwrap().is_empty());
        assert_eq!(fs::metadata(&path).unwrap().len(), HEADER_BYTES as u64);
    }
}
