//! Which checkpoints stay.

use std::path::{Path, PathBuf};

use ironmill_data::durable::Disk;

use super::{RunState, list, read_state, remove, verify};
use crate::error::{Error, Result};

/// Which checkpoints stay. The newest, and the newest healthy one, always do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keep {
    /// So many of the newest.
    pub last: usize,
    /// So many of those with the lowest validation loss.
    pub best: usize,
    /// Those whose step is a multiple of this; 0 is none.
    pub every: u64,
}

impl Keep {
    /// The places of those that go in a list that is sorted by step.
    fn leaving(&self, found: &[(u64, RunState)]) -> Vec<usize> {
        let mut stays = vec![false; found.len()];
        let newest = found.len().saturating_sub(self.last.max(1));
        stays[newest..].fill(true);
        if let Some(healthy) = found.iter().rposition(|(_, run)| run.healthy) {
            stays[healthy] = true;
        }
        let mut measured: Vec<(f64, usize)> = found
            .iter()
            .enumerate()
            .filter_map(|(idx, (_, run))| Some((run.validation_loss.filter(|loss| loss.is_finite())?, idx)))
            .collect();
        // Of equally good ones the earlier is the better.
        measured.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        measured.iter().take(self.best).for_each(|&(_, idx)| stays[idx] = true);
        for (stays, (step, _)) in stays.iter_mut().zip(found) {
            *stays |= self.every > 0 && step.is_multiple_of(self.every);
        }
        (0..found.len()).filter(|&idx| !stays[idx]).collect()
    }
}

/// Deletes the checkpoints that need not stay. One whose state cannot be read is left alone and does not count.
pub fn rotate(disk: &Disk, folder: &Path, keep: Keep) -> Result<()> {
    let (mut states, mut paths) = (Vec::new(), Vec::new());
    for (step, path) in list(folder)? {
        if let Ok(state) = read_state(&path) {
            states.push((step, state.run));
            paths.push(path);
        }
    }
    keep.leaving(&states).into_iter().try_for_each(|idx| discard(disk, folder, &paths[idx]))
}

/// Deletes the checkpoints of later steps, newest first: what a run leaves when it goes back.
pub fn forget_after(disk: &Disk, folder: &Path, step: u64) -> Result<()> {
    let later = list(folder)?.into_iter().rev().take_while(|found| found.0 > step);
    later.map(|found| found.1).try_for_each(|path| discard(disk, folder, &path))
}

/// The newest checkpoint that is whole and healthy.
pub fn newest_healthy(folder: &Path) -> Result<Option<PathBuf>> {
    let is_good =
        |path: &PathBuf| read_state(path).is_ok_and(|state| state.run.healthy) && verify(path).is_ok();
    Ok(list(folder)?.into_iter().rev().map(|found| found.1).find(is_good))
}

/// Deletes a checkpoint. It is renamed first, so that a kill half-way never leaves a folder that looks like one.
fn discard(disk: &Disk, folder: &Path, path: &Path) -> Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let leaving = folder.join(format!(".{}.leaving", name.trim_start_matches('.')));
    remove(disk, &leaving)?;
    disk.rename(path, &leaving).map_err(Error::io(path))?;
    remove(disk, &leaving)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        architecture::Model,
        checkpoint::{Record, save, tests::snapshot},
        config::{Architecture, tests::tiny},
    };

    fn found(runs: &[(u64, Option<f64>, bool)]) -> Vec<(u64, RunState)> {
        runs.iter()
            .map(|&(step, validation_loss, healthy)| {
                (step, RunState { validation_loss, healthy, ..RunState::default() })
            })
            .collect()
    }

    #[test]
    fn the_last_the_best_and_every_so_many_stay() {
        let runs = found(&[
            (10, Some(3.0), true),
            (20, Some(1.0), true),
            (30, Some(2.0), true),
            (40, None, true),
            (50, Some(f64::NAN), true),
            (60, Some(1.0), true),
            (70, Some(4.0), true),
        ]);
        let going = |keep: Keep| keep.leaving(&runs).iter().map(|&idx| runs[idx].0).collect::<Vec<_>>();
        assert_eq!(going(Keep { last: 2, ..Keep::default() }), [10, 20, 30, 40, 50]);
        assert_eq!(going(Keep { last: 1, best: 1, every: 0 }), [10, 30, 40, 50, 60]);
        assert_eq!(going(Keep { last: 1, best: 3, every: 0 }), [10, 40, 50]);
        assert_eq!(going(Keep { last: 1, best: 0, every: 40 }), [10, 20, 30, 50, 60]);
        assert_eq!(going(Keep::default()), [10, 20, 30, 40, 50, 60], "the newest always stays");
    }

    #[test]
    fn the_newest_healthy_one_stays_however_many_sick_ones_follow() {
        let runs = found(&[(1, None, true), (2, None, true), (3, None, false), (4, None, false)]);
        assert_eq!(Keep { last: 2, ..Keep::default() }.leaving(&runs), [0]);
        assert_eq!(Keep { last: 1, ..Keep::default() }.leaving(&runs), [0, 2]);
    }

    #[test]
    fn a_run_that_goes_back_leaves_nothing_of_later_steps() {
        let folder = tempfile::tempdir().unwrap();
        let model = Model::new(tiny(Architecture::Gpt2)).unwrap();
        let disk = Disk::default();
        for (step, healthy) in [(1, true), (2, true), (3, false), (4, false)] {
            let mut record = Record::new(snapshot(&model, step));
            record.run.healthy = healthy;
            save(&disk, folder.path(), &model, &record).unwrap();
        }
        let healthy = newest_healthy(folder.path()).unwrap().unwrap();
        assert!(healthy.ends_with("step-00000002"));
        forget_after(&disk, folder.path(), 2).unwrap();
        let left: Vec<u64> = list(folder.path()).unwrap().into_iter().map(|found| found.0).collect();
        assert_eq!(left, [1, 2]);
    }
}
