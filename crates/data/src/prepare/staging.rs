//! The hidden folder in which shards wait until all of them are complete.
//!
//! Its shards are named by their section. When all are there, the manifest is written into the folder, which decides the matter: from
//! then on the shards are only moved, the old manifest going first and the new one last, so that at no moment a manifest lies
//! beside shards that are not its own. Whoever opens the folder next finishes a move that was cut off.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use ironmill_text::durable::Disk;

use super::journal::{JOURNAL_NAME, Journal};
use crate::dataset::Split;
use crate::error::{Error, Result};
use crate::manifest::{MANIFEST_NAME, Manifest, ShardRecord, TOKENIZER_NAME, hex};
use crate::shard::Shard;

/// A folder inside the output folder. Dropped, it stays if there is something in it to go on from; otherwise it is removed, and the
/// output folder too if that was made for it.
pub(super) struct Staging {
    out_dir: PathBuf,
    path: PathBuf,
    disk: Disk,
    made_out_dir: bool,
    /// Held as long as this process works here.
    _lock: File,
}

const STAGING_NAME: &str = ".prepare";
const LOCK_NAME: &str = "lock";
const SHARD_ENDING: &str = ".shard";

/// The name of a shard in a data set.
pub(super) fn shard_name(split: Split, shard_idx: usize) -> String {
    format!("{}-{shard_idx:05}{SHARD_ENDING}", split.name())
}

impl Staging {
    /// Opens the folder, alone, and finishes what was cut off while shards were moved.
    pub(super) fn open(out_dir: &Path, disk: &Disk) -> Result<Staging> {
        let made_out_dir = !out_dir.exists();
        let path = out_dir.join(STAGING_NAME);
        fs::create_dir_all(&path).map_err(Error::write(&path))?;
        let lock_path = path.join(LOCK_NAME);
        let lock = File::create(&lock_path).map_err(Error::write(&lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(Error::InUse { path: out_dir.to_path_buf() }),
            // Some file systems have no locks; then nobody can be kept out.
            Err(TryLockError::Error(_)) => {}
        }
        let staging =
            Staging { out_dir: out_dir.to_path_buf(), path, disk: disk.clone(), made_out_dir, _lock: lock };
        if let Ok(manifest) = Manifest::load(&staging.path) {
            staging.move_out(&manifest)?;
        }
        Ok(staging)
    }

    /// Removes what a run left that was killed after its last move, as far as that is possible.
    pub(super) fn sweep(out_dir: &Path, disk: &Disk) {
        let path = out_dir.join(STAGING_NAME);
        // With a manifest in it, the folder belongs to another data set, whose move nobody asked to finish.
        if path.exists() && !path.join(MANIFEST_NAME).exists() {
            drop(Staging::open(out_dir, disk));
        }
    }

    /// Where shards are to be written.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// What has been done here so far. All else that killed runs left is removed.
    pub(super) fn journal(&self) -> Result<Journal> {
        let journal = Journal::open(&self.path, &self.disk)?;
        for name in names_in(&self.path)? {
            if name != LOCK_NAME && name != JOURNAL_NAME && !journal.knows(&name) {
                let path = self.path.join(name);
                ignore_missing(fs::remove_file(&path)).map_err(Error::write(&path))?;
            }
        }
        Ok(journal)
    }

    /// The name of a section's shard here.
    pub(super) fn section_shard(fingerprint: &str, split: Split, shard_idx: usize) -> String {
        format!("{}-{}", &fingerprint[..fingerprint.len().min(16)], shard_name(split, shard_idx))
    }

    /// Whether a shard is here and is the one that the record means.
    pub(super) fn has(&self, record: &ShardRecord) -> bool {
        is_shard(&self.path.join(&record.file), record)
    }

    /// Takes over shards of the data set that is there, for a section; none if they are not all right.
    pub(super) fn take_over(
        &self,
        fingerprint: &str,
        old: [&[ShardRecord]; 2],
    ) -> Result<Option<[Vec<ShardRecord>; 2]>> {
        if !old
            .iter()
            .flat_map(|shards| shards.iter())
            .all(|old| is_shard(&self.out_dir.join(&old.file), old))
        {
            return Ok(None);
        }
        let mut taken = [Vec::new(), Vec::new()];
        for split in Split::ALL {
            for (idx, record) in old[split as usize].iter().enumerate() {
                let file = Staging::section_shard(fingerprint, split, idx);
                let (from, to) = (self.out_dir.join(&record.file), self.path.join(&file));
                ignore_missing(fs::remove_file(&to)).map_err(Error::write(&to))?;
                // The old data set stays as it is until the new one takes its place.
                fs::hard_link(&from, &to)
                    .or_else(|_| fs::copy(&from, &to).and_then(|_| File::open(&to)?.sync_all()))
                    .map_err(Error::write(&to))?;
                taken[split as usize].push(ShardRecord { file, ..record.clone() });
            }
        }
        self.disk.sync_dir(&self.path).map_err(Error::write(&self.path))?;
        Ok(Some(taken))
    }

    /// Makes the shards a data set, with the tokenizer that made them beside them.
    pub(super) fn commit(self, manifest: &Manifest, tokenizer: &str) -> Result<()> {
        let path = self.path.join(TOKENIZER_NAME);
        self.disk.write(&path, tokenizer.as_bytes()).map_err(Error::write(&path))?;
        manifest.save_on(&self.disk, &self.path)?;
        self.move_out(manifest)
    }

    /// Moves the shards of a manifest and their tokenizer into place, as far as they are not there yet, then the manifest; then
    /// removes the shards of an older data set.
    fn move_out(&self, manifest: &Manifest) -> Result<()> {
        let manifest_path = self.out_dir.join(MANIFEST_NAME);
        ignore_missing(fs::remove_file(&manifest_path)).map_err(Error::write(&manifest_path))?;
        self.disk.sync_dir(&self.out_dir).map_err(Error::write(&self.out_dir))?;
        let mut first = [0, 0];
        for section in &manifest.sections {
            let counts = [section.train_shards as usize, section.validation_shards as usize];
            for split in Split::ALL {
                let shards = &manifest.split(split).shards[first[split as usize]..][..counts[split as usize]];
                for (idx, shard) in shards.iter().enumerate() {
                    let from = self.path.join(Staging::section_shard(&section.fingerprint, split, idx));
                    let to = self.out_dir.join(&shard.file);
                    if from.exists() {
                        self.disk.rename(&from, &to).map_err(Error::write(&to))?;
                    }
                }
                first[split as usize] += counts[split as usize];
            }
        }
        let (tokenizer, to) = (self.path.join(TOKENIZER_NAME), self.out_dir.join(TOKENIZER_NAME));
        if tokenizer.exists() {
            self.disk.rename(&tokenizer, &to).map_err(Error::write(&to))?;
        }
        self.disk.sync_dir(&self.out_dir).map_err(Error::write(&self.out_dir))?;
        let staged = self.path.join(MANIFEST_NAME);
        // The journal's shards are no longer here.
        ignore_missing(fs::remove_file(self.path.join(JOURNAL_NAME))).map_err(Error::write(&self.path))?;
        self.disk.rename(&staged, &manifest_path).map_err(Error::write(&manifest_path))?;
        self.disk.sync_dir(&self.out_dir).map_err(Error::write(&self.out_dir))?;
        self.remove_stale(manifest)
    }

    /// Removes files that are named like shards and are none of the manifest's.
    fn remove_stale(&self, manifest: &Manifest) -> Result<()> {
        for name in names_in(&self.out_dir)? {
            let is_stale = Split::ALL.into_iter().any(|split| {
                let number = name.strip_prefix(split.name()).and_then(|rest| rest.strip_prefix('-'));
                let number = number.and_then(|rest| rest.strip_suffix(SHARD_ENDING));
                let number = number.and_then(|digits| digits.parse::<usize>().ok());
                number.is_some_and(|idx| {
                    idx >= manifest.split(split).shards.len() && shard_name(split, idx) == name
                })
            });
            if is_stale {
                let path = self.out_dir.join(name);
                ignore_missing(fs::remove_file(&path)).map_err(Error::write(&path))?;
            }
        }
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        let is_shard = |name: &String| name.ends_with(SHARD_ENDING) && !name.starts_with('.');
        if self.path.join(JOURNAL_NAME).exists()
            && names_in(&self.path).is_ok_and(|names| names.iter().any(is_shard))
        {
            return;
        }
        // A folder that cannot be removed is never read, and the next run removes it.
        let _ = fs::remove_dir_all(&self.path);
        if self.made_out_dir {
            // This removes only an empty folder: after a commit there are files in it.
            let _ = fs::remove_dir(&self.out_dir);
        }
    }
}

/// Whether a file is the shard that a record means, as far as its header and its last bytes tell.
fn is_shard(path: &Path, record: &ShardRecord) -> bool {
    Shard::open(path).is_ok_and(|shard| {
        let header = shard.header();
        header.tokens == record.tokens
            && header.documents == record.documents
            && hex(&shard.hash()) == record.blake3
    })
}

fn names_in(dir: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(Error::read(dir))? {
        names.extend(entry.map_err(Error::read(dir))?.file_name().into_string().ok());
    }
    names.sort();
    Ok(names)
}

fn ignore_missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
