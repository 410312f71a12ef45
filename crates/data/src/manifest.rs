//! The manifest of a prepared data set: `manifest.json`, written last, so that a folder with a manifest is whole.
//!
//! It is JSON whose last entry is `checksum`: the BLAKE3, in lower-case hexadecimal, of all bytes before the comma that
//! precedes that entry. The file always ends in `,⏎  "checksum": "…"⏎}⏎`, byte for byte, so one flipped bit anywhere is found.

use std::fs;
use std::path::Path;

use ironmill_text::durable::Disk;
use serde::{Deserialize, Serialize};

use crate::dataset::Split;
use crate::error::{Error, Result};
use crate::shard::{Header, WrittenShard};

/// The name of the manifest in its folder.
pub const MANIFEST_NAME: &str = "manifest.json";

/// The tokenizer's file in a prepared folder, so that a data set can be read alone.
pub const TOKENIZER_NAME: &str = "tokenizer.json";

/// The version this program writes. It also reads version 1, which knows no sections.
pub const MANIFEST_VERSION: u32 = 2;

/// Everything that is known about a prepared data set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Always `ironmill-dataset`.
    pub format: String,
    /// The version of the manifest, [`MANIFEST_VERSION`].
    pub version: u32,
    /// The tokenizer's hash in hexadecimal.
    pub tokenizer_hash: String,
    /// How many tokens the tokenizer knows.
    pub vocab_size: u64,
    /// The token that ends every document, if the tokenizer has one.
    pub end_of_text: Option<u32>,
    /// How the data were prepared.
    pub settings: Settings,
    /// The files that were read, in order.
    pub inputs: Vec<InputRecord>,
    /// A hash of inputs, settings and tokenizer: if it is the same, preparing again would give the same.
    pub fingerprint: String,
    /// How many documents were left out because their text is not UTF-8.
    pub skipped_documents: u64,
    /// How many documents were left out because an earlier one has the same text.
    #[serde(default)]
    pub duplicate_documents: u64,
    /// The runs of inputs that were prepared each by itself, in order.
    #[serde(default)]
    pub sections: Vec<SectionRecord>,
    /// The tokens to train on.
    pub train: SplitRecord,
    /// The tokens to measure on.
    pub validation: SplitRecord,
}

/// How a data set was prepared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The share of documents that went to the validation split.
    pub validation: f64,
    /// How many tokens a shard holds; the last of a split may hold fewer.
    pub shard_tokens: u64,
    /// The text between documents of a text file, if any.
    pub document_separator: Option<String>,
    /// The field or column that holds the text.
    pub text_key: String,
    /// What was done with text that is not UTF-8.
    pub on_bad_utf8: String,
    /// How many of the input files were taken, if not all.
    pub sample: Option<u64>,
    /// The seed of the split, of the choice of files and of built-in corpora.
    pub seed: u64,
    /// Whether documents with the text of an earlier one were left out.
    #[serde(default)]
    pub drop_duplicates: bool,
    /// The tokens that every document begins with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub document_start: Vec<u32>,
}

/// Some consecutive inputs and what became of them. Their shards hold nothing else, so that inputs that change cost no more than
/// their own section.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SectionRecord {
    /// A hash of all that decides what the shards hold.
    pub fingerprint: String,
    /// How many inputs it has.
    pub inputs: u64,
    /// How many shards of the training split are its own.
    pub train_shards: u64,
    /// How many shards of the validation split are its own.
    pub validation_shards: u64,
    /// How many documents were left out because their text is not UTF-8.
    pub skipped_documents: u64,
    /// How many documents were left out because an earlier one has the same text.
    pub duplicate_documents: u64,
}

/// An input as it was when it was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InputRecord {
    /// The path as it was found, the name of a built-in corpus, or `-` for the standard input.
    pub name: String,
    /// Its size on disk, or the size asked of a built-in corpus.
    pub bytes: u64,
    /// When it was last changed, in nanoseconds since 1970; zero for a built-in corpus, and a hash of the content of what came
    /// from the standard input.
    pub modified_ns: u64,
}

/// One split of a data set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SplitRecord {
    /// How many tokens all its shards hold.
    pub tokens: u64,
    /// How many documents.
    pub documents: u64,
    /// The UTF-8 length of the documents before encoding.
    pub raw_bytes: u64,
    /// Its shards, in order.
    pub shards: Vec<ShardRecord>,
}

/// One shard of a split.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardRecord {
    /// The file's name in the folder of the manifest.
    pub file: String,
    /// How many tokens it holds.
    pub tokens: u64,
    /// How many documents start in it.
    pub documents: u64,
    /// The UTF-8 length of those documents.
    pub raw_bytes: u64,
    /// The BLAKE3 of its content, in hexadecimal.
    pub blake3: String,
}

impl Manifest {
    /// Reads and checks the manifest of a folder.
    pub fn load(dir: &Path) -> Result<Manifest> {
        let path = dir.join(MANIFEST_NAME);
        let bytes = fs::read(&path).map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => Error::NotADataset { path: dir.to_path_buf() },
            _ => Error::Read { path: path.clone(), source },
        })?;
        parse(&bytes).map_err(|reason| Error::BadManifest { path, reason })
    }

    /// Writes the manifest into a folder, aside, synced and renamed.
    pub fn save(&self, dir: &Path) -> Result<()> {
        self.save_on(&Disk::default(), dir)
    }

    /// Writes the manifest on a disk that may be watched.
    pub(crate) fn save_on(&self, disk: &Disk, dir: &Path) -> Result<()> {
        let path = dir.join(MANIFEST_NAME);
        let bytes = to_bytes(self)
            .map_err(|error| Error::BadManifest { path: path.clone(), reason: error.to_string() })?;
        disk.write(&path, &bytes).map_err(Error::write(&path))
    }

    /// The hash of everything that decides what preparing gives: inputs, settings and tokenizer.
    pub(crate) fn fingerprint_of_work(&self) -> Result<String> {
        let work = (self.version, &self.tokenizer_hash, self.vocab_size, &self.settings, &self.inputs);
        let json = serde_json::to_vec(&work)
            .map_err(|error| Error::BadManifest { path: MANIFEST_NAME.into(), reason: error.to_string() })?;
        Ok(blake3::hash(&json).to_hex().to_string())
    }

    /// The record of a split.
    pub fn split(&self, split: Split) -> &SplitRecord {
        match split {
            Split::Train => &self.train,
            Split::Validation => &self.validation,
        }
    }
}

impl SplitRecord {
    /// Adds a shard, and its counts to the split's.
    pub(crate) fn push(&mut self, file: String, shard: &WrittenShard) {
        let header = &shard.header;
        let blake3 = hex(&shard.hash);
        let Header { tokens, documents, raw_bytes, .. } = *header;
        self.push_record(ShardRecord { file, tokens, documents, raw_bytes, blake3 });
    }

    /// Adds a shard that is known by its record.
    pub(crate) fn push_record(&mut self, shard: ShardRecord) {
        self.tokens += shard.tokens;
        self.documents += shard.documents;
        self.raw_bytes += shard.raw_bytes;
        self.shards.push(shard);
    }
}

/// Bytes as lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) const FORMAT: &str = "ironmill-dataset";

fn checksum_ending(content: &[u8]) -> String {
    format!(",\n  \"checksum\": \"{}\"\n}}\n", blake3::hash(content).to_hex())
}

fn to_bytes(manifest: &Manifest) -> serde_json::Result<Vec<u8>> {
    let mut bytes = serde_json::to_vec_pretty(manifest)?;
    // The pretty form ends in a line end and a brace, which the ending brings back after the checksum.
    bytes.truncate(bytes.len() - 2);
    let ending = checksum_ending(&bytes);
    bytes.extend(ending.bytes());
    Ok(bytes)
}

fn parse(bytes: &[u8]) -> std::result::Result<Manifest, String> {
    let ending_bytes = checksum_ending(&[]).len();
    let content_bytes = bytes.len().checked_sub(ending_bytes).ok_or("it is cut short")?;
    let (content, ending) = bytes.split_at(content_bytes);
    if ending != checksum_ending(content).as_bytes() {
        return Err("it does not match its checksum (damaged, cut short or edited)".into());
    }
    let mut object = content.to_vec();
    object.extend(b"\n}");
    let version: Version = serde_json::from_slice(&object).map_err(|error| error.to_string())?;
    if version.format != FORMAT || !(1..=MANIFEST_VERSION).contains(&version.version) {
        return Err(format!(
            "it is {} version {}, this program reads {FORMAT} up to version {MANIFEST_VERSION}",
            version.format, version.version
        ));
    }
    let manifest: Manifest = serde_json::from_slice(&object).map_err(|error| error.to_string())?;
    for split in [&manifest.train, &manifest.validation] {
        check_split(split)?;
    }
    let of_sections =
        |count: fn(&SectionRecord) -> u64| manifest.sections.iter().map(count).fold(0, u64::saturating_add);
    let is_whole = of_sections(|section| section.inputs) == manifest.inputs.len() as u64
        && of_sections(|section| section.train_shards) == manifest.train.shards.len() as u64
        && of_sections(|section| section.validation_shards) == manifest.validation.shards.len() as u64;
    if !is_whole && !manifest.sections.is_empty() {
        return Err("the counts of its sections are not those of its inputs and shards".into());
    }
    Ok(manifest)
}

/// The counts of a split must be those of its shards, and its files must lie in the folder itself.
fn check_split(split: &SplitRecord) -> std::result::Result<(), String> {
    let sum = |count: fn(&ShardRecord) -> u64| {
        split.shards.iter().try_fold(0u64, |sum, shard| sum.checked_add(count(shard)))
    };
    if sum(|shard| shard.tokens) != Some(split.tokens)
        || sum(|shard| shard.documents) != Some(split.documents)
        || sum(|shard| shard.raw_bytes) != Some(split.raw_bytes)
    {
        return Err("the counts of a split are not the sums of its shards".into());
    }
    match split.shards.iter().find(|shard| Path::new(&shard.file).file_name() != Some(shard.file.as_ref())) {
        Some(shard) => Err(format!("shard {} does not lie in the folder of the manifest", shard.file)),
        None => Ok(()),
    }
}

#[derive(Deserialize)]
struct Version {
    format: String,
    version: u32,
}
