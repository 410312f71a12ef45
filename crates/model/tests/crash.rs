//! A save that ends at every write, sync, rename and removal it makes: there is always a whole checkpoint, and the newest.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use ironmill_data::durable::{Act, Disk, Watch};
use ironmill_model::{
    Architecture, Error, Model, ModelConfig,
    checkpoint::{self, Keep, Record, Snapshot, TrainerState},
};

/// Allows so many acts. As after a kill, nothing happens behind them; or only what needs space fails.
struct Ends {
    left: AtomicUsize,
    only_writes: bool,
}

impl Ends {
    fn after(acts: usize, only_writes: bool) -> Arc<Self> {
        Arc::new(Ends { left: AtomicUsize::new(acts), only_writes })
    }
}

impl Watch for Ends {
    fn before(&self, act: Act, _: &Path) -> io::Result<()> {
        if self.only_writes && act != Act::Write {
            return Ok(());
        }
        let took = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        took.map(|_| ()).map_err(|_| io::ErrorKind::StorageFull.into())
    }
}

struct Nothing(u64);

impl Watch for Nothing {
    fn before(&self, _: Act, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn free_bytes(&self, _: u64) -> u64 {
        self.0
    }
}

fn model() -> Model {
    let sizes = ModelConfig { context: 8, vocab_size: 31, ..ModelConfig::new(Architecture::Gpt2, 1, 1, 24) };
    Model::new(sizes).unwrap()
}

fn record(model: &Model, step: u64, seed: u64) -> Record {
    let parameters = model.initial_values(seed);
    let state = TrainerState { step, samples: step, tokens: step, ..TrainerState::default() };
    let first_moment = parameters.clone();
    Record::new(Snapshot { average: None, first_moment, second_moment: None, parameters, state })
}

fn save(disk: &Disk, folder: &Path, model: &Model, record: &Record, keep: Keep) -> Result<(), Error> {
    checkpoint::save(disk, folder, model, record)?;
    checkpoint::rotate(disk, folder, keep)
}

/// The step and the seed of the checkpoint that a resume takes.
fn newest(folder: &Path, model: &Model) -> (u64, u64) {
    let path = checkpoint::newest(folder, &mut |error| panic!("{error}")).unwrap().expect("a checkpoint");
    let found = checkpoint::load(&path, model).unwrap();
    let seed = (0..100).find(|&seed| found.parameters == model.initial_values(seed)).expect("a known one");
    (found.state.step, seed)
}

/// Ends a save after every number of acts until it succeeds. `before` are the steps that are there, `step` is saved.
fn end_everywhere(before: &[u64], step: u64, keep: Keep, only_writes: bool) -> usize {
    let model = model();
    for acts in 0.. {
        let folder = tempfile::tempdir().unwrap();
        for &step in before {
            checkpoint::save(&Disk::default(), folder.path(), &model, &record(&model, step, step)).unwrap();
        }
        let old = newest(folder.path(), &model);
        let disk = Disk::watched(Ends::after(acts, only_writes));
        let outcome = save(&disk, folder.path(), &model, &record(&model, step, 50), keep);
        let found = newest(folder.path(), &model);
        match outcome {
            Ok(()) => {
                assert_eq!(found, (step, 50), "a save that succeeded is the newest");
                return acts;
            }
            // A save that ended before its name was there is not found; behind that only tidying was left.
            Err(_) => assert!(found == old || found == (step, 50), "{found:?} after {acts} acts"),
        }
        // The next attempt is not in the way of what is left lying.
        save(&Disk::default(), folder.path(), &model, &record(&model, step, 51), keep).unwrap();
        assert_eq!(newest(folder.path(), &model), (step, 51));
        let left: Vec<_> =
            std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        let hidden = left.iter().filter(|name| name.to_string_lossy().ends_with(".partial")).count();
        assert_eq!(hidden, 0, "{left:?}");
    }
    unreachable!("a save has an end");
}

#[test]
fn a_save_that_is_killed_anywhere_leaves_the_newest_whole_checkpoint() {
    let acts = end_everywhere(&[1, 2], 3, Keep { last: 2, ..Keep::default() }, false);
    assert!(acts > 30, "{acts} acts: files are written, synced and renamed one by one");
}

#[test]
fn a_save_that_replaces_the_only_checkpoint_never_leaves_none() {
    end_everywhere(&[5], 5, Keep { last: 1, ..Keep::default() }, false);
}

#[test]
fn a_disk_that_fills_up_leaves_the_checkpoints_before_and_nothing_else() {
    end_everywhere(&[1, 2], 3, Keep { last: 2, ..Keep::default() }, true);
    let (folder, model) = (tempfile::tempdir().unwrap(), model());
    checkpoint::save(&Disk::default(), folder.path(), &model, &record(&model, 1, 1)).unwrap();
    let disk = Disk::watched(Ends::after(3, true));
    checkpoint::save(&disk, folder.path(), &model, &record(&model, 2, 2)).unwrap_err();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_disk_without_room_is_told_before_anything_is_written() {
    let (folder, model) = (tempfile::tempdir().unwrap(), model());
    let record = record(&model, 1, 1);
    let disk = Disk::watched(Arc::new(Nothing(record.bytes() - 1)));
    let error = checkpoint::save(&disk, folder.path(), &model, &record).unwrap_err();
    assert!(matches!(error, Error::NoSpace { .. }), "{error}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    let disk = Disk::watched(Arc::new(Nothing(record.bytes())));
    checkpoint::save(&disk, folder.path(), &model, &record).unwrap();
}
