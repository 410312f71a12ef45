//! One process a run: a lock on a file of the run folder, so that two never write the same checkpoints.

use crate::failure::{Code, Failure, Result};
use crate::show::Show;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::Path;

/// The file that is locked. It stays when the lock ends, because removing it would race with the next process.
const NAME: &str = "run.lock";

/// The right to write to a run folder, until this is dropped or the process ends in whatever way.
#[derive(Debug)]
pub struct RunLock {
    _file: File,
}

impl RunLock {
    /// Takes the lock of an existing folder, or says who has it.
    pub fn take(folder: &Path, show: &Show) -> Result<RunLock> {
        let path = folder.join(NAME);
        let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let mut file = options.map_err(|error| Failure::write(&path, &error))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(taken(folder, &mut file)),
            // Some network disks have no locks; a run there goes on as if it were alone.
            Err(TryLockError::Error(error)) => show.warn(&format!(
                "{} cannot be locked ({error}): take care that no second process uses this folder",
                folder.display()
            )),
        }
        // The number is for the message to others only, so a run does not fail for it.
        let _ = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(RunLock { _file: file })
    }
}

fn taken(folder: &Path, file: &mut File) -> Failure {
    let mut holder = String::new();
    let by = match file.read_to_string(&mut holder) {
        Ok(_) if !holder.trim().is_empty() => format!(" (process {})", holder.trim()),
        _ => String::new(),
    };
    let message = format!(
        "{} is in use by another ironmill{by}: wait until it ends, stop it, or choose another --out",
        folder.display()
    );
    Failure::new(Code::CannotWrite, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::Style;

    #[test]
    fn a_second_lock_is_refused_until_the_first_ends() {
        let folder = tempfile::tempdir().unwrap();
        let show = Show::new(Style { quiet: true, ..Style::default() });
        let first = RunLock::take(folder.path(), &show).unwrap();
        let failure = RunLock::take(folder.path(), &show).unwrap_err();
        assert_eq!(failure.code(), Code::CannotWrite);
        assert!(failure.to_string().contains(&std::process::id().to_string()), "{failure}");
        drop(first);
        RunLock::take(folder.path(), &show).unwrap();
    }
}
