//! Saving while training goes on: a thread writes a snapshot, and only one at a time.

use std::{
    path::PathBuf,
    sync::Arc,
    thread::{self, JoinHandle},
};

use ironmill_data::durable::Disk;

use super::{Keep, Record, rotate, save};
use crate::{
    architecture::Model,
    error::{Error, Result},
};

/// Writes checkpoints into a folder, each in a thread of its own, and lets old ones go.
///
/// At most one save is under way, so at most one snapshot waits in memory: [`begin`](Self::begin) first waits for the one
/// before. What went wrong in the background is told by whatever call comes next. Dropping it waits too.
pub struct Saver {
    disk: Disk,
    folder: PathBuf,
    model: Arc<Model>,
    keep: Keep,
    under_way: Option<JoinHandle<Result<PathBuf>>>,
}

impl Saver {
    /// A saver for the checkpoints of one model.
    pub fn new(disk: Disk, folder: PathBuf, model: Model, keep: Keep) -> Self {
        Saver { disk, folder, model: Arc::new(model), keep, under_way: None }
    }

    /// Begins to write a checkpoint. Returns the path of the one before, if that was still under way.
    pub fn begin(&mut self, record: Record) -> Result<Option<PathBuf>> {
        let before = self.wait()?;
        let (disk, folder) = (self.disk.clone(), self.folder.clone());
        let (model, keep) = (Arc::clone(&self.model), self.keep);
        let work = move || {
            let path = save(&disk, &folder, &model, &record)?;
            // The numbers are large and no longer needed; rotation may take a while.
            drop(record);
            rotate(&disk, &folder, keep)?;
            Ok(path)
        };
        let thread = thread::Builder::new().name("checkpoint".into()).spawn(work);
        self.under_way = Some(thread.map_err(Error::io(&self.folder))?);
        Ok(before)
    }

    /// The path of the checkpoint that was finished since the last call, without waiting.
    pub fn poll(&mut self) -> Result<Option<PathBuf>> {
        if self.under_way.as_ref().is_some_and(JoinHandle::is_finished) { self.wait() } else { Ok(None) }
    }

    /// Waits for the save that is under way and returns its path.
    pub fn wait(&mut self) -> Result<Option<PathBuf>> {
        let Some(thread) = self.under_way.take() else { return Ok(None) };
        match thread.join() {
            Ok(outcome) => outcome.map(Some),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

impl Drop for Saver {
    fn drop(&mut self) {
        if let Some(thread) = self.under_way.take() {
            // Whoever drops it without waiting has another failure to report.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        checkpoint::{list, tests::snapshot, verify},
        config::{Architecture, tests::tiny},
    };
    use ironmill_data::durable::{Act, Watch};
    use std::{io, path::Path};

    #[test]
    fn saves_follow_one_another_and_old_ones_go() {
        let folder = tempfile::tempdir().unwrap();
        let model = Model::new(tiny(Architecture::Gpt2)).unwrap();
        let keep = Keep { last: 2, ..Keep::default() };
        let mut saver = Saver::new(Disk::default(), folder.path().into(), model.clone(), keep);
        for step in 1..=4 {
            saver.begin(Record::new(snapshot(&model, step))).unwrap();
        }
        let path = saver.wait().unwrap().unwrap();
        assert!(path.ends_with("step-00000004"));
        let found = list(folder.path()).unwrap();
        assert_eq!(found.iter().map(|found| found.0).collect::<Vec<_>>(), [3, 4]);
        found.iter().for_each(|found| verify(&found.1).unwrap());
        assert!(saver.poll().unwrap().is_none());
    }

    struct Full;

    impl Watch for Full {
        fn before(&self, act: Act, _: &Path) -> io::Result<()> {
            if act == Act::Write { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
        }
    }

    #[test]
    fn what_went_wrong_in_the_background_is_told_by_the_next_call() {
        let folder = tempfile::tempdir().unwrap();
        let model = Model::new(tiny(Architecture::Gpt2)).unwrap();
        let disk = Disk::watched(Arc::new(Full));
        let mut saver = Saver::new(disk, folder.path().into(), model.clone(), Keep::default());
        saver.begin(Record::new(snapshot(&model, 1))).unwrap();
        assert!(saver.begin(Record::new(snapshot(&model, 2))).is_err());
        assert!(list(folder.path()).unwrap().is_empty());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left behind");
    }
}
