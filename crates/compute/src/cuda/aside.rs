//! Files that other runs, and other threads of this one, may be reading or writing at the same time.

use std::{io::Result, path::Path};

/// Writes a file aside and renames it, so that whoever reads it finds a whole one.
pub(super) fn write_aside(file: &Path, bytes: &[u8]) -> Result<()> {
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let writer = format!("{}-{:?}.part", std::process::id(), std::thread::current().id());
    let aside = file.with_extension(writer);
    std::fs::write(&aside, bytes)?;
    std::fs::rename(aside, file)
}
