//! What has been done so far, so that nothing is done twice.
//!
//! The journal is a file of lines, each a JSON value, a tab and the xxh3 of its bytes. A line says that a shard is complete, and where
//! the encoding of its split goes on: at which token of which part of the section's text. Lines behind one that was cut off by
//! a crash do not exist. Whatever does not belong to the sections at hand is never looked at.

use std::path::{Path, PathBuf};

use ironmill_text::durable::Disk;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::dataset::Split;
use crate::error::{Error, Result};
use crate::manifest::ShardRecord;

/// The name of the journal in its folder.
pub(super) const JOURNAL_NAME: &str = "journal";

/// A journal, open for appending.
pub(super) struct Journal {
    path: PathBuf,
    disk: Disk,
    lines: Vec<Line>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Line {
    section: String,
    /// A complete shard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    shard: Option<DoneShard>,
    /// The section is complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    end: Option<DoneSection>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct DoneShard {
    /// 0 for the training split, 1 for the other.
    split: usize,
    record: ShardRecord,
    next: Cursor,
}

/// Where the encoding of a split goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Cursor {
    /// The number of the part of the section's text.
    pub(super) part: u64,
    /// How many of its tokens are in complete shards.
    pub(super) tokens: u64,
}

/// A complete section: its shards by split, under their names in the staging folder.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct DoneSection {
    pub(super) shards: [Vec<ShardRecord>; 2],
    pub(super) skipped_documents: u64,
    pub(super) duplicate_documents: u64,
}

impl DoneSection {
    /// How many documents a split has of it.
    pub(super) fn documents(&self, split: Split) -> u64 {
        self.shards[split as usize].iter().map(|shard| shard.documents).sum()
    }
}

/// How far a section has come.
#[derive(Clone, Debug, Default)]
pub(super) struct Started {
    /// The complete shards of each split.
    pub(super) shards: [Vec<ShardRecord>; 2],
    /// Where each split goes on.
    pub(super) next: [Cursor; 2],
    /// All of it, if it is complete.
    pub(super) end: Option<DoneSection>,
}

impl Journal {
    /// Reads the journal of a folder, and forgets what a crash left at its end.
    pub(super) fn open(dir: &Path, disk: &Disk) -> Result<Journal> {
        let path = dir.join(JOURNAL_NAME);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(source) => return Err(Error::Read { path, source }),
        };
        let (mut lines, mut whole) = (Vec::new(), 0);
        for line in bytes.split_inclusive(|&byte| byte == b'\n') {
            let Some(read) = parse(line) else { break };
            lines.push(read);
            whole += line.len();
        }
        if whole < bytes.len() {
            disk.write(&path, &bytes[..whole]).map_err(Error::write(&path))?;
        }
        Ok(Journal { path, disk: disk.clone(), lines })
    }

    /// Whether a file is one of the complete shards.
    pub(super) fn knows(&self, name: &str) -> bool {
        self.lines.iter().any(|line| {
            let of_section = line.end.iter().flat_map(|done| done.shards.iter().flatten());
            line.shard.iter().map(|shard| &shard.record).chain(of_section).any(|record| record.file == name)
        })
    }

    /// How far a section has come, as far as its shards are still there.
    pub(super) fn section(&self, fingerprint: &str, is_there: impl Fn(&ShardRecord) -> bool) -> Started {
        let mut started = Started::default();
        for line in self.lines.iter().filter(|line| line.section == fingerprint) {
            if let Some(done) = &line.end {
                if done.shards.iter().flatten().all(&is_there) {
                    started.end = Some(done.clone());
                }
                return started;
            }
            let Some(shard) = line.shard.as_ref().filter(|shard| shard.split < 2 && is_there(&shard.record))
            else {
                return started;
            };
            started.shards[shard.split].push(shard.record.clone());
            started.next[shard.split] = shard.next;
        }
        started
    }

    /// Says that a shard is complete, and where its split goes on.
    pub(super) fn shard(
        &mut self,
        section: &str,
        split: Split,
        record: &ShardRecord,
        next: Cursor,
    ) -> Result<()> {
        let shard = Some(DoneShard { split: split as usize, record: record.clone(), next });
        self.append(Line { section: section.into(), shard, end: None })
    }

    /// Says that a section is complete.
    pub(super) fn end(&mut self, section: &str, done: &DoneSection) -> Result<()> {
        self.append(Line { section: section.into(), shard: None, end: Some(done.clone()) })
    }

    fn append(&mut self, line: Line) -> Result<()> {
        let json = serde_json::to_string(&line)
            .map_err(|error| Error::BadManifest { path: self.path.clone(), reason: error.to_string() })?;
        let text = format!("{json}\t{:016x}\n", xxh3_64(json.as_bytes()));
        self.disk.append(&self.path, text.as_bytes()).map_err(Error::write(&self.path))?;
        self.lines.push(line);
        Ok(())
    }
}

fn parse(line: &[u8]) -> Option<Line> {
    let line = std::str::from_utf8(line.strip_suffix(b"\n")?).ok()?;
    let (json, sum) = line.rsplit_once('\t')?;
    (sum == format!("{:016x}", xxh3_64(json.as_bytes()))).then(|| serde_json::from_str(json).ok())?
}
