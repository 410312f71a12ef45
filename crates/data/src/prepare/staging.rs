//! The hidden folder in which shards wait until all of them are complete.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ironmill_text::durable;

use crate::dataset::Split;
use crate::error::{Error, Result};
use crate::manifest::{MANIFEST_NAME, Manifest, ShardRecord};

/// A folder inside the output folder; dropping it removes it, and the output folder too if that was made for it.
pub(super) struct Staging {
    out_dir: PathBuf,
    path: PathBuf,
    made_out_dir: bool,
}

impl Staging {
    pub(super) fn create(out_dir: &Path) -> Result<Staging> {
        let made_out_dir = !out_dir.exists();
        fs::create_dir_all(out_dir).map_err(Error::write(out_dir))?;
        let path = out_dir.join(STAGING_NAME);
        let staging = Staging { out_dir: out_dir.to_path_buf(), path, made_out_dir };
        // A killed run may have left its folder behind.
        ignore_missing(fs::remove_dir_all(&staging.path)).map_err(Error::write(&staging.path))?;
        fs::create_dir(&staging.path).map_err(Error::write(&staging.path))?;
        Ok(staging)
    }

    /// Where shards are to be written.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Moves the shards into place and writes the manifest; then removes shards of an older data set.
    ///
    /// The old manifest goes first, so that at no moment a manifest lies beside shards that are not its own.
    pub(super) fn commit(self, manifest: &Manifest) -> Result<()> {
        let old = Manifest::load(&self.out_dir).ok();
        let manifest_path = self.out_dir.join(MANIFEST_NAME);
        ignore_missing(fs::remove_file(&manifest_path)).map_err(Error::write(&manifest_path))?;
        for shard in shards(manifest) {
            let target = self.out_dir.join(&shard.file);
            fs::rename(self.path.join(&shard.file), &target).map_err(Error::write(&target))?;
        }
        durable::sync_dir(&self.out_dir).map_err(Error::write(&self.out_dir))?;
        manifest.save(&self.out_dir)?;
        let stale = |file: &str| shards(manifest).all(|shard| shard.file != file);
        for shard in old.iter().flat_map(shards).filter(|shard| stale(&shard.file)) {
            let path = self.out_dir.join(&shard.file);
            ignore_missing(fs::remove_file(&path)).map_err(Error::write(&path))?;
        }
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // A folder that cannot be removed is never read, and the next run removes it.
        let _ = fs::remove_dir_all(&self.path);
        if self.made_out_dir {
            // This removes only an empty folder: after a commit there are files in it.
            let _ = fs::remove_dir(&self.out_dir);
        }
    }
}

const STAGING_NAME: &str = ".prepare";

fn shards(manifest: &Manifest) -> impl Iterator<Item = &ShardRecord> {
    Split::ALL.into_iter().flat_map(|split| &manifest.split(split).shards)
}

fn ignore_missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
