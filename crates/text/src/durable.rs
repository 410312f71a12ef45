//! Files that are either whole or not there: written aside, synced, renamed, and the folder synced.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Writes `bytes` to `path` so that after a crash the file has either its old or its new content.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut staged = StagedFile::create(path)?;
    staged.write_all(bytes)?;
    staged.commit()
}

/// Makes the names in the folder `path` survive a crash.
///
/// Windows cannot open a folder for syncing and journals renames itself, so there this does nothing.
pub fn sync_dir(path: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(path)?.sync_all() } else { Ok(()) }
}

/// A buffered file under a temporary name beside its final one, which [`commit`](Self::commit) gives it.
///
/// Dropped without commit, the temporary file is removed and the final name is untouched. A link is followed, so
/// that what it names is replaced and not the link; a device or a pipe cannot be replaced and is written directly.
#[derive(Debug)]
pub struct StagedFile {
    /// `None` only after `commit` has taken it.
    file: Option<BufWriter<File>>,
    /// `None` for a device or a pipe.
    staged_path: Option<PathBuf>,
    final_path: PathBuf,
}

/// More leftovers of killed processes than this in one folder mean that something else is wrong.
const MAX_NAME_ATTEMPTS: u32 = 10_000;

impl StagedFile {
    /// Opens a temporary file in the folder of `path`, which must exist.
    pub fn create(path: &Path) -> io::Result<Self> {
        let followed = match fs::symlink_metadata(path) {
            Ok(found) if found.is_symlink() => fs::canonicalize(path).ok(),
            _ => None,
        };
        let path = followed.as_deref().unwrap_or(path);
        match fs::metadata(path) {
            Ok(found) if found.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
            Ok(found) if !found.is_file() => {
                let file = Some(BufWriter::new(OpenOptions::new().write(true).open(path)?));
                return Ok(Self { file, staged_path: None, final_path: path.to_owned() });
            }
            _ => {}
        }
        let name = path.file_name().ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, format!("{} has no file name", path.display()))
        })?;
        for attempt in 0..MAX_NAME_ATTEMPTS {
            let mut staged_name = OsString::from(".");
            staged_name.push(name);
            staged_name.push(format!(".{}-{attempt}.partial", std::process::id()));
            let staged_path = path.with_file_name(staged_name);
            match OpenOptions::new().read(true).write(true).create_new(true).open(&staged_path) {
                Ok(file) => {
                    let file = Some(BufWriter::new(file));
                    return Ok(Self { file, staged_path: Some(staged_path), final_path: path.to_owned() });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            format!("no free temporary name beside {}; remove old .partial files", path.display()),
        ))
    }

    /// Syncs the content, gives the file its final name (replacing what had it) and syncs the folder.
    pub fn commit(mut self) -> io::Result<()> {
        let file = self.writer()?.get_ref().try_clone()?;
        self.writer()?.flush()?;
        let Some(staged_path) = &self.staged_path else { return Ok(()) };
        file.sync_all()?;
        fs::rename(staged_path, &self.final_path)?;
        self.file = None;
        match self.final_path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => sync_dir(folder),
            _ => sync_dir(Path::new(".")),
        }
    }

    fn writer(&mut self) -> io::Result<&mut BufWriter<File>> {
        self.file.as_mut().ok_or_else(|| io::Error::other("the file was already committed"))
    }
}

impl Write for StagedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer()?.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer()?.flush()
    }
}

impl Seek for StagedFile {
    fn seek(&mut self, position: SeekFrom) -> io::Result<u64> {
        self.writer()?.seek(position)
    }
}

impl Drop for StagedFile {
    fn drop(&mut self) {
        if let (Some(_), Some(staged_path)) = (self.file.take(), &self.staged_path) {
            // Nothing can be reported from here, and a leftover is harmless: it is never read.
            let _ = fs::remove_file(staged_path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names_in(folder: &Path) -> Vec<OsString> {
        let mut names: Vec<_> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    }

    #[test]
    fn write_replaces_the_old_content_and_leaves_no_other_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        write(&path, b"old").unwrap();
        write(&path, b"new content").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new content");
        assert_eq!(names_in(folder.path()), ["a.json"]);
    }

    #[test]
    fn a_dropped_file_leaves_the_final_name_untouched() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        write(&path, b"old").unwrap();
        let mut staged = StagedFile::create(&path).unwrap();
        staged.write_all(b"half").unwrap();
        assert_eq!(names_in(folder.path()).len(), 2);
        drop(staged);
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(names_in(folder.path()), ["a.json"]);
    }

    #[test]
    fn a_folder_is_refused_before_anything_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let error = StagedFile::create(folder.path()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::IsADirectory);
    }

    #[test]
    #[cfg(unix)]
    fn a_link_is_followed_and_a_device_is_written_in_place() {
        use std::os::unix::fs::{FileTypeExt, symlink};
        let folder = tempfile::tempdir().unwrap();
        let (link, file) = (folder.path().join("link"), folder.path().join("file"));
        write(&file, b"old").unwrap();
        symlink(&file, &link).unwrap();
        write(&link, b"new").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"new");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());

        // Through a link, so that a mistake here replaces the link and not a device of the machine.
        let null = folder.path().join("null");
        symlink("/dev/null", &null).unwrap();
        write(&null, b"gone").unwrap();
        assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
        assert_eq!(names_in(folder.path()), ["file", "link", "null"]);
    }

    #[test]
    fn two_staged_files_of_one_name_do_not_mix() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let mut first = StagedFile::create(&path).unwrap();
        let mut second = StagedFile::create(&path).unwrap();
        first.write_all(b"first").unwrap();
        second.write_all(b"second").unwrap();
        second.commit().unwrap();
        first.commit().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"first");
    }

    #[test]
    fn a_header_can_be_filled_in_before_commit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let mut staged = StagedFile::create(&path).unwrap();
        staged.write_all(b"????body").unwrap();
        staged.seek(SeekFrom::Start(0)).unwrap();
        staged.write_all(b"head").unwrap();
        staged.commit().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"headbody");
    }

    #[test]
    fn a_missing_folder_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        assert!(write(&folder.path().join("no/a"), b"").is_err());
    }
}
