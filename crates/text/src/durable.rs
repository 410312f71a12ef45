//! Files that are either whole or not there: written aside, synced, renamed, and the folder synced.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Writes `bytes` to `path` so that after a crash the file has either its old or its new content.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    Disk::default().write(path, bytes)
}

/// Makes the names in the folder `path` survive a crash.
///
/// Windows cannot open a folder for syncing and journals renames itself, so there this does nothing.
pub fn sync_dir(path: &Path) -> io::Result<()> {
    Disk::default().sync_dir(path)
}

/// Something that is about to be done to a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Some bytes go into a file.
    Write,
    /// A file or a folder is synced.
    Sync,
    /// A file or a folder gets another name.
    Rename,
    /// A folder is removed with all that is in it.
    Remove,
}

/// Is asked before everything that is done to a [`Disk`], and may refuse. Tests end a save at every point this way.
pub trait Watch: Send + Sync {
    /// Lets the act happen, or fails it.
    fn before(&self, act: Act, path: &Path) -> io::Result<()>;

    /// The free space to tell, given the true one.
    fn free_bytes(&self, truly: u64) -> u64 {
        truly
    }
}

/// The disk that durable files lie on, watched if a test asks for that.
#[derive(Clone, Default)]
pub struct Disk {
    watch: Option<Arc<dyn Watch>>,
}

impl std::fmt::Debug for Disk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.watch.is_some() { "Disk (watched)" } else { "Disk" })
    }
}

impl Disk {
    /// A disk that asks before everything that is done to it.
    pub fn watched(watch: Arc<dyn Watch>) -> Self {
        Disk { watch: Some(watch) }
    }

    /// Writes `bytes` to `path` so that after a crash the file has either its old or its new content.
    pub fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut staged = StagedFile::create_on(self, path)?;
        staged.write_all(bytes)?;
        staged.commit()
    }

    /// Appends `bytes` to the file at `path`, which is made if need be, and syncs it. After a crash the file may end inside
    /// them.
    pub fn append(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut file = OpenOptions::new().create(true).append(true).open(path)?;
        self.before(Act::Write, path)?;
        file.write_all(bytes)?;
        self.before(Act::Sync, path)?;
        file.sync_data()
    }

    /// Makes the names in the folder `path` survive a crash; see [`sync_dir`].
    pub fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.before(Act::Sync, path)?;
        if cfg!(unix) { File::open(path)?.sync_all() } else { Ok(()) }
    }

    /// Gives a file or folder another name.
    pub fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.before(Act::Rename, to)?;
        fs::rename(from, to)
    }

    /// Removes a folder and all that is in it; one that is not there is no error.
    pub fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        if !path.exists() {
            return Ok(());
        }
        self.before(Act::Remove, path)?;
        fs::remove_dir_all(path)
    }

    /// The bytes that may still be written in the folder `path`, where the system says.
    pub fn free_bytes(&self, path: &Path) -> Option<u64> {
        let truly = free_bytes(path)?;
        Some(self.watch.as_ref().map_or(truly, |watch| watch.free_bytes(truly)))
    }

    fn before(&self, act: Act, path: &Path) -> io::Result<()> {
        self.watch.as_ref().map_or(Ok(()), |watch| watch.before(act, path))
    }
}

#[cfg(unix)]
fn free_bytes(path: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(path).ok()?;
    // Some file systems have no blocks to count, and say 0 of 0.
    (found.f_blocks > 0).then(|| found.f_bavail.saturating_mul(found.f_frsize))
}

#[cfg(not(unix))]
fn free_bytes(_: &Path) -> Option<u64> {
    None
}

/// A file that asks before it writes.
#[derive(Debug)]
struct WatchedFile {
    file: File,
    disk: Disk,
    path: PathBuf,
}

impl Write for WatchedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.disk.before(Act::Write, &self.path)?;
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Seek for WatchedFile {
    fn seek(&mut self, position: SeekFrom) -> io::Result<u64> {
        self.file.seek(position)
    }
}

/// A buffered file under a temporary name beside its final one, which [`commit`](Self::commit) gives it.
///
/// Dropped without commit, the temporary file is removed and the final name is untouched. A link is followed, so
/// that what it names is replaced and not the link; a device or a pipe cannot be replaced and is written directly.
#[derive(Debug)]
pub struct StagedFile {
    /// `None` only after `commit` has taken it.
    file: Option<BufWriter<WatchedFile>>,
    /// `None` for a device or a pipe.
    staged_path: Option<PathBuf>,
    final_path: PathBuf,
}

/// More leftovers of killed processes than this in one folder mean that something else is wrong.
const MAX_NAME_ATTEMPTS: u32 = 10_000;

impl StagedFile {
    /// Opens a temporary file in the folder of `path`, which must exist.
    pub fn create(path: &Path) -> io::Result<Self> {
        Self::create_on(&Disk::default(), path)
    }

    /// Opens a temporary file on a disk that may be watched.
    pub fn create_on(disk: &Disk, path: &Path) -> io::Result<Self> {
        let buffered =
            |file| Some(BufWriter::new(WatchedFile { file, disk: disk.clone(), path: path.to_owned() }));
        let followed = match fs::symlink_metadata(path) {
            Ok(found) if found.is_symlink() => fs::canonicalize(path).ok(),
            _ => None,
        };
        let path = followed.as_deref().unwrap_or(path);
        match fs::metadata(path) {
            Ok(found) if found.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
            Ok(found) if !found.is_file() => {
                let file = buffered(OpenOptions::new().write(true).open(path)?);
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
                    let file = buffered(file);
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
        let writer = self.writer()?;
        writer.flush()?;
        let WatchedFile { file, disk, path } = writer.get_ref();
        let (file, disk) = (file.try_clone()?, disk.clone());
        disk.before(Act::Sync, path)?;
        let Some(staged_path) = &self.staged_path else { return Ok(()) };
        file.sync_all()?;
        disk.rename(staged_path, &self.final_path)?;
        self.file = None;
        match self.final_path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => disk.sync_dir(folder),
            _ => disk.sync_dir(Path::new(".")),
        }
    }

    fn writer(&mut self) -> io::Result<&mut BufWriter<WatchedFile>> {
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
