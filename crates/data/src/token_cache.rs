//! Texts that are encoded once: prompts, answers and filled-in templates, which come again in every epoch and every run.
//!
//! A cache is a file of records behind a header that names the tokenizer by its hash, so that tokens of another one are never
//! found. A text is known by its BLAKE3. Before a run all texts are [given](TokenCache::encode) to the cache, which encodes those
//! it does not have, on several threads, and appends them; in a step [`tokens`](TokenCache::tokens) only looks up. Every record has
//! a checksum, and what a crash left at the end is cut off when the file is opened.

use std::fs;
use std::path::{Path, PathBuf};

use hashbrown::HashMap;
use ironmill_text::Tokenizer;
use ironmill_text::durable::Disk;
use xxhash_rust::xxh3::xxh3_64;

use crate::error::{Error, Result};

const MAGIC: &[u8; 8] = b"IRONTOKS";
const VERSION: u32 = 1;
/// Magic, version, four zeros, the hash of the tokenizer.
const HEADER_BYTES: usize = 48;
/// The hash of the text, the number of tokens, and a checksum of all of the record.
const RECORD_BYTES: usize = 32 + 8 + 8;

/// The tokens of texts, in memory and in a file.
#[derive(Debug)]
pub struct TokenCache {
    path: PathBuf,
    tokenizer: Tokenizer,
    /// All tokens, one text after the other.
    tokens: Vec<u32>,
    places: HashMap<[u8; 32], TokenRange>,
}

/// Where the tokens of a text are in their cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenRange {
    start: usize,
    end: usize,
}

impl TokenRange {
    /// How many tokens the text has.
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// Whether the text has none.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }
}

impl TokenCache {
    /// Opens the cache of a tokenizer in a folder, or begins one; the folder must exist.
    pub fn open(dir: &Path, tokenizer: &Tokenizer) -> Result<TokenCache> {
        let hash = tokenizer.hash();
        let name: String = hash[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        let path = dir.join(format!("tokens-{name}.cache"));
        let mut cache =
            TokenCache { path, tokenizer: tokenizer.clone(), tokens: Vec::new(), places: HashMap::new() };
        let bytes = match fs::read(&cache.path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(source) => return Err(Error::Read { path: cache.path, source }),
        };
        let header = header(&hash);
        let whole =
            if bytes.starts_with(&header) { HEADER_BYTES + cache.read(&bytes[HEADER_BYTES..]) } else { 0 };
        if whole == 0 || whole < bytes.len() {
            let kept = if whole == 0 { &header[..] } else { &bytes[..whole] };
            Disk::default().write(&cache.path, kept).map_err(Error::write(&cache.path))?;
        }
        Ok(cache)
    }

    /// How many different texts there are.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there is no text.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Where the tokens of these texts are. Those that are not there yet are encoded on up to `threads` threads, special tokens
    /// recognised, and kept in the file.
    pub fn encode<T: AsRef<str> + Sync>(&mut self, texts: &[T], threads: usize) -> Result<Vec<TokenRange>> {
        let keys: Vec<[u8; 32]> = texts.iter().map(|text| key(text.as_ref())).collect();
        let mut missing: Vec<(usize, &str)> = Vec::new();
        let mut listed: HashMap<[u8; 32], ()> = HashMap::new();
        for (idx, key) in keys.iter().enumerate() {
            if !self.places.contains_key(key) && listed.insert(*key, ()).is_none() {
                missing.push((idx, texts[idx].as_ref()));
            }
        }
        let mut records = Vec::new();
        for group in missing.chunks(GROUP_TEXTS) {
            for ((idx, _), ids) in group.iter().zip(self.encode_group(group, threads)?) {
                append_record(&mut records, &keys[*idx], &ids);
                self.keep(keys[*idx], &ids);
            }
        }
        if !records.is_empty() {
            Disk::default().append(&self.path, &records).map_err(Error::write(&self.path))?;
        }
        Ok(keys.iter().map(|key| self.places[key]).collect())
    }

    /// The tokens of a text that was encoded.
    pub fn tokens(&self, range: TokenRange) -> &[u32] {
        &self.tokens[range.start..range.end]
    }

    fn encode_group(&self, group: &[(usize, &str)], threads: usize) -> Result<Vec<Vec<u32>>> {
        let share = group.len().div_ceil(threads.max(1)).max(1);
        let work = |part: &[(usize, &str)]| -> Result<Vec<Vec<u32>>> {
            part.iter()
                .map(|(idx, text)| {
                    let mut ids = Vec::new();
                    self.tokenizer.encode_with_special(text.as_bytes(), &mut ids).map_err(|source| {
                        Error::Encode { file: format!("text {idx}"), position: 0, source }
                    })?;
                    Ok(ids)
                })
                .collect()
        };
        let parts: Vec<Result<Vec<Vec<u32>>>> = std::thread::scope(|scope| {
            let threads: Vec<_> = group.chunks(share).map(|part| scope.spawn(move || work(part))).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            threads.into_iter().map(join).collect()
        });
        let mut all = Vec::with_capacity(group.len());
        for part in parts {
            all.extend(part?);
        }
        Ok(all)
    }

    fn keep(&mut self, key: [u8; 32], ids: &[u32]) {
        let start = self.tokens.len();
        self.tokens.extend_from_slice(ids);
        self.places.insert(key, TokenRange { start, end: self.tokens.len() });
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

/// How many texts are encoded before their records are made.
const GROUP_TEXTS: usize = 4096;

fn key(text: &str) -> [u8; 32] {
    *blake3::hash(text.as_bytes()).as_bytes()
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
    use crate::testing::tokenizer;

    fn texts() -> Vec<String> {
        (0..300).map(|i| format!("Question {}: the cat<|endoftext|>Answer {i}", i % 100)).collect()
    }

    #[test]
    fn texts_are_encoded_once_and_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let tokenizer = tokenizer();
        let texts = texts();
        let mut cache = TokenCache::open(folder.path(), &tokenizer).unwrap();
        let ranges = cache.encode(&[&texts[..], &texts[..50]].concat(), 3).unwrap();
        assert_eq!((cache.len(), ranges.len()), (300, 350));
        assert_eq!(ranges[..50], ranges[300..]);
        let check = |cache: &TokenCache, ranges: &[TokenRange]| {
            for (text, &range) in texts.iter().zip(ranges) {
                let mut expected = Vec::new();
                tokenizer.encode_with_special(text.as_bytes(), &mut expected).unwrap();
                assert_eq!(cache.tokens(range), expected);
                assert!(!range.is_empty() && range.len() == expected.len());
            }
        };
        check(&cache, &ranges);
        let path = cache.path.clone();
        let written = fs::metadata(&path).unwrap().len();
        drop(cache);
        let mut cache = TokenCache::open(folder.path(), &tokenizer).unwrap();
        assert_eq!(cache.len(), 300);
        let ranges = cache.encode(&texts, 1).unwrap();
        check(&cache, &ranges);
        assert_eq!(fs::metadata(&path).unwrap().len(), written);
    }

    #[test]
    fn what_is_cut_off_or_damaged_is_encoded_anew_and_never_served() {
        let folder = tempfile::tempdir().unwrap();
        let tokenizer = tokenizer();
        let texts = texts();
        let mut cache = TokenCache::open(folder.path(), &tokenizer).unwrap();
        let ranges = cache.encode(&texts, 1).unwrap();
        let expected: Vec<Vec<u32>> = ranges.iter().map(|&range| cache.tokens(range).to_vec()).collect();
        let good = fs::read(&cache.path).unwrap();
        for at in (0..good.len()).step_by(97) {
            for cut in [true, false] {
                let mut bad = good.clone();
                if cut {
                    bad.truncate(at)
                } else {
                    bad[at] ^= 16
                }
                fs::write(&cache.path, bad).unwrap();
                let mut again = TokenCache::open(folder.path(), &tokenizer).unwrap();
                let ranges = again.encode(&texts, 1).unwrap();
                assert!(ranges.iter().zip(&expected).all(|(&range, ids)| again.tokens(range) == ids), "{at}");
            }
        }
    }

    #[test]
    fn another_tokenizer_has_another_cache() {
        let folder = tempfile::tempdir().unwrap();
        let other = Tokenizer::byte(&["<|endoftext|>".to_owned()]).unwrap();
        let mut first = TokenCache::open(folder.path(), &tokenizer()).unwrap();
        first.encode(&["the cat"], 1).unwrap();
        let mut second = TokenCache::open(folder.path(), &other).unwrap();
        assert!(second.is_empty());
        let ranges = second.encode(&["the cat"], 1).unwrap();
        let mut expected = Vec::new();
        other.encode(b"the cat", &mut expected).unwrap();
        assert_eq!(second.tokens(ranges[0]), expected);
    }
}
