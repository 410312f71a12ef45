//! Checkpoints: a Hugging Face folder plus `trainer/`, whole or not there.
//!
//! A checkpoint is staged in a folder of its own, every file synced, a manifest with sizes and BLAKE3 sums written last,
//! then the folder renamed. So a name like `step-00000020` means a complete checkpoint; the manifest still proves it,
//! because disks and copies fail too. Readers take the newest one that proves whole. A [`Saver`] writes in the background
//! and [`Keep`] says which checkpoints stay.
//!
//! ```text
//! step-00000020/
//!   config.json  generation_config.json  model.safetensors      what `transformers` reads, with the caller's tokenizer files
//!   trainer/optimizer.safetensors                                the optimiser's moments, by parameter name; where an average
//!                                                                of the parameters is kept, that is the model, and what
//!                                                                training goes on with is here
//!   trainer/state.json                                           step, data position, seed, counters, and the run's health
//!   trainer/manifest.json                                        sizes and sums of all of the above
//! ```

mod background;
mod keep;

pub use background::Saver;
pub use keep::{Keep, forget_after, newest_healthy, rotate};

use std::{
    fs,
    path::{Path, PathBuf},
};

use ironmill_data::{
    durable::Disk,
    safetensors::{self, Dtype, SafeTensors, TensorView},
};
use serde::{Deserialize, Serialize};

use crate::{
    architecture::Model,
    config::ModelConfig,
    error::{Error, Result},
    hugging_face,
    stored::Stored,
    train::{GuardState, LossScale, Plateau},
    weights::save_weights_on,
};

/// The version of `state.json` and `manifest.json`. Version 1 had no `run` in its state; all versions so far can be read.
const VERSION: u32 = 2;
const MANIFEST: &str = "trainer/manifest.json";
const STATE: &str = "trainer/state.json";
const OPTIMISER: &str = "trainer/optimizer.safetensors";
const WEIGHTS: &str = "model.safetensors";
const CONFIG: &str = "config.json";
/// How the name of a checkpoint ends that a newer one of the same step replaces.
const REPLACED: &str = ".replaced";
/// What the headers of tensor files, the manifest and the like come to at most.
const SMALL_FILES: u64 = 1 << 20;

/// Where a run stands, apart from its tensors.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainerState {
    /// Steps taken.
    pub step: u64,
    /// The global index of the next sample.
    pub samples: u64,
    /// Tokens trained on.
    pub tokens: u64,
    /// Updates that the optimiser counts.
    pub updates: u32,
    /// The seed of the run's random numbers; with the step it is all the state that they have.
    pub seed: u64,
    /// The optimiser that the moments belong to.
    pub optimizer: String,
    /// The loss scale, where training has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<LossScale>,
    /// What outliers are told by.
    #[serde(default)]
    pub guard: GuardState,
    /// What the learning rate follows, where it follows the validation loss.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plateau: Option<Plateau>,
}

/// All that a resumed run needs.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// The parameters, in the flat layout.
    pub parameters: Vec<f32>,
    /// The running average of the parameters, where one is kept.
    pub average: Option<Vec<f32>>,
    /// The optimiser's running mean (or sum) of gradients.
    pub first_moment: Vec<f32>,
    /// The optimiser's running mean of squared gradients, if it has one.
    pub second_moment: Option<Vec<f32>>,
    /// Where the run stands.
    pub state: TrainerState,
}

/// What a run knows beyond its trainer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RunState {
    /// The validation loss of these very weights, if it was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation_loss: Option<f64>,
    /// Whether all numbers are finite and no step was refused since the checkpoint before.
    pub healthy: bool,
    /// Where in the data steps were lately refused: the global index of each one's first sample.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<u64>,
}

impl Default for RunState {
    /// What a run has that never had any trouble.
    fn default() -> Self {
        RunState { validation_loss: None, healthy: true, refused: Vec::new() }
    }
}

/// A checkpoint to write.
#[derive(Clone, Debug)]
pub struct Record {
    /// What the trainer needs to go on.
    pub snapshot: Snapshot,
    /// What the run knows beyond that.
    pub run: RunState,
    /// Files that travel with the model, such as the tokenizer: names and contents.
    pub files: std::sync::Arc<Vec<(String, Vec<u8>)>>,
}

impl Record {
    /// A checkpoint of a trainer alone.
    pub fn new(snapshot: Snapshot) -> Self {
        Record { snapshot, run: RunState::default(), files: Default::default() }
    }

    /// How much space it takes on a disk, rounded up.
    pub fn bytes(&self) -> u64 {
        let numbers: usize = self.tensors().map(Vec::len).sum();
        let files: usize = self.files.iter().map(|file| file.1.len()).sum();
        (4 * numbers + files) as u64 + SMALL_FILES
    }

    fn is_finite(&self) -> bool {
        self.tensors().all(|values| values.iter().all(|value| value.is_finite()))
    }

    fn tensors(&self) -> impl Iterator<Item = &Vec<f32>> {
        let Snapshot { parameters, average, first_moment, second_moment, .. } = &self.snapshot;
        [parameters, first_moment].into_iter().chain(average).chain(second_moment)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct VersionedState {
    version: u32,
    state: TrainerState,
    #[serde(default)]
    run: RunState,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    version: u32,
    files: Vec<ManifestFile>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ManifestFile {
    path: String,
    bytes: u64,
    blake3: String,
}

/// Writes a checkpoint into the folder of checkpoints and returns its path.
pub fn save(disk: &Disk, folder: &Path, model: &Model, record: &Record) -> Result<PathBuf> {
    let name = format!("step-{:08}", record.snapshot.state.step);
    let (path, staged) = (folder.join(&name), folder.join(format!(".{name}.partial")));
    fs::create_dir_all(folder).map_err(Error::io(folder))?;
    remove(disk, &staged)?;
    let (needed, free) = (record.bytes(), disk.free_bytes(folder).unwrap_or(u64::MAX));
    if free < needed {
        return Err(Error::NoSpace { path: folder.to_path_buf(), needed, free });
    }
    let outcome = stage(disk, &staged, model, record).and_then(|()| publish(disk, folder, &staged, &path));
    if outcome.is_err() {
        // A failed save must not leave the disk fuller than it was; what failed is the error to report.
        let _ = remove(disk, &staged);
    }
    outcome.map(|()| path)
}

fn stage(disk: &Disk, staged: &Path, model: &Model, record: &Record) -> Result<()> {
    let snapshot = &record.snapshot;
    let trainer = staged.join("trainer");
    fs::create_dir_all(&trainer).map_err(Error::io(&trainer))?;
    let weights = snapshot.average.as_ref().unwrap_or(&snapshot.parameters);
    save_weights_on(disk, &staged.join(WEIGHTS), model, weights)?;
    save_moments(disk, &staged.join(OPTIMISER), model, snapshot)?;
    let mut texts = vec![
        (CONFIG.to_string(), pretty(&hugging_face::to_json(model.config()))),
        ("generation_config.json".to_string(), pretty(&serde_json::json!({"do_sample": true}))),
    ];
    let run = RunState { healthy: record.run.healthy && record.is_finite(), ..record.run.clone() };
    let state = VersionedState { version: VERSION, state: snapshot.state.clone(), run };
    let state = serde_json::to_value(state).map_err(|error| damaged(staged, error))?;
    texts.push((STATE.to_string(), pretty(&state)));
    texts.extend(record.files.iter().cloned());
    for (name, bytes) in &texts {
        let path = staged.join(name);
        disk.write(&path, bytes).map_err(Error::io(&path))?;
    }

    let mut names: Vec<String> = texts.into_iter().map(|text| text.0).collect();
    names.extend([WEIGHTS.to_string(), OPTIMISER.to_string()]);
    names.sort();
    let mut files = Vec::with_capacity(names.len());
    for name in names {
        let (bytes, blake3) = sum(&staged.join(&name))?;
        files.push(ManifestFile { path: name, bytes, blake3 });
    }
    let manifest =
        serde_json::to_value(Manifest { version: VERSION, files }).map_err(|error| damaged(staged, error))?;
    let path = staged.join(MANIFEST);
    disk.write(&path, &pretty(&manifest)).map_err(Error::io(&path))?;
    disk.sync_dir(&trainer).map_err(Error::io(&trainer))?;
    disk.sync_dir(staged).map_err(Error::io(staged))
}

/// Gives a staged checkpoint its name. One of the same step that is there already, from before a resume or a rollback, gives
/// way; until the new one has its name, [`list`] finds the old one under its other name.
fn publish(disk: &Disk, folder: &Path, staged: &Path, path: &Path) -> Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let replaced = folder.join(format!(".{name}{REPLACED}"));
    if path.exists() {
        remove(disk, &replaced)?;
        disk.rename(path, &replaced).map_err(Error::io(path))?;
    }
    disk.rename(staged, path).map_err(Error::io(path))?;
    disk.sync_dir(folder).map_err(Error::io(folder))?;
    remove(disk, &replaced)
}

/// The checkpoints of a folder, oldest first, whether whole or not. One that was being replaced when the program ended counts
/// if what replaces it never got its name.
pub fn list(folder: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(found),
        Err(error) => return Err(Error::io(folder)(error)),
    };
    for entry in entries {
        let path = entry.map_err(Error::io(folder))?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        let replaced = name.strip_prefix('.').and_then(|name| name.strip_suffix(REPLACED));
        if replaced.is_some_and(|name| folder.join(name).exists()) {
            continue;
        }
        if let Some(step) = replaced.unwrap_or(name).strip_prefix("step-").and_then(|step| step.parse().ok())
        {
            found.push((step, path));
        }
    }
    found.sort();
    Ok(found)
}

/// The newest checkpoint that proves whole; damaged ones are passed to `skipped` and left alone.
pub fn newest(folder: &Path, skipped: &mut dyn FnMut(&Error)) -> Result<Option<PathBuf>> {
    for (_, path) in list(folder)?.into_iter().rev() {
        match verify(&path) {
            Ok(()) => return Ok(Some(path)),
            Err(error) => skipped(&error),
        }
    }
    Ok(None)
}

/// Checks every file of a checkpoint against its manifest.
pub fn verify(checkpoint: &Path) -> Result<()> {
    let path = checkpoint.join(MANIFEST);
    let manifest: Manifest = parse(&path)?;
    check_version(&path, manifest.version)?;
    for required in [CONFIG, WEIGHTS, STATE, OPTIMISER] {
        if !manifest.files.iter().any(|file| file.path == required) {
            return Err(damaged(&path, format!("does not list {required}")));
        }
    }
    for file in &manifest.files {
        let path = checkpoint.join(&file.path);
        let (bytes, blake3) = sum(&path)?;
        if (bytes, &blake3) != (file.bytes, &file.blake3) {
            return Err(damaged(&path, "its content is not what was written"));
        }
    }
    Ok(())
}

/// Where the run of a checkpoint stood.
pub fn run_state(checkpoint: &Path) -> Result<RunState> {
    Ok(read_state(checkpoint)?.run)
}

fn read_state(checkpoint: &Path) -> Result<VersionedState> {
    let path = checkpoint.join(STATE);
    let state: VersionedState = parse(&path)?;
    check_version(&path, state.version)?;
    Ok(state)
}

fn check_version(path: &Path, version: u32) -> Result<()> {
    if (1..=VERSION).contains(&version) {
        return Ok(());
    }
    Err(damaged(
        path,
        format!("version {version} is of a newer program than this one, which knows {VERSION}"),
    ))
}

/// Reads a checkpoint of this model.
pub fn load(checkpoint: &Path, model: &Model) -> Result<Snapshot> {
    let (stored, wanted) = (read_config(checkpoint)?, model.config());
    if (ModelConfig { dropout: 0.0, ..stored.clone() }) != (ModelConfig { dropout: 0.0, ..wanted.clone() }) {
        let problem =
            format!("was made by another model: it has {}, the configuration has {}", stored, wanted);
        return Err(Error::OtherShape { path: checkpoint.to_path_buf(), problem });
    }
    let state = read_state(checkpoint)?;
    let weights = Stored::of(checkpoint, model.clone())?.values()?;
    let path = checkpoint.join(OPTIMISER);
    let file = SafeTensors::open(&path)?;
    let has = |suffix: &str| file.names().any(|name| name.ends_with(suffix));
    let moments = |suffix: &str| -> Result<Vec<f32>> {
        let mut values = vec![0.0; model.layout().len()];
        for parameter in model.layout().parameters() {
            file.read_f32(&format!("{}.{suffix}", parameter.name), &mut values[parameter.range()])?;
        }
        Ok(values)
    };
    let (parameters, average) =
        if has(".master") { (moments("master")?, Some(weights)) } else { (weights, None) };
    Ok(Snapshot {
        parameters,
        average,
        first_moment: moments("exp_avg")?,
        second_moment: has(".exp_avg_sq").then(|| moments("exp_avg_sq")).transpose()?,
        state: state.state,
    })
}

/// Reads a model folder: a checkpoint or what `transformers` wrote. Returns the model and its flat parameters.
pub fn load_model(folder: &Path) -> Result<(Model, Vec<f32>)> {
    let stored = Stored::open(folder)?;
    let values = stored.values()?;
    Ok((stored.into_model(), values))
}

fn save_moments(disk: &Disk, path: &Path, model: &Model, snapshot: &Snapshot) -> Result<()> {
    let mut kinds = vec![("exp_avg", &snapshot.first_moment)];
    kinds.extend(snapshot.second_moment.as_ref().map(|second| ("exp_avg_sq", second)));
    // The weights file has the average then.
    kinds.extend(snapshot.average.as_ref().map(|_| ("master", &snapshot.parameters)));
    let mut tensors = Vec::new();
    for parameter in model.layout().parameters() {
        let shape: Vec<u64> = parameter.shape.dims().iter().map(|&dim| dim as u64).collect();
        for (kind, values) in &kinds {
            tensors.push((format!("{}.{kind}", parameter.name), shape.clone(), &values[parameter.range()]));
        }
    }
    let views: Vec<TensorView<'_>> = tensors
        .iter()
        .map(|(name, shape, data)| TensorView {
            name,
            dtype: Dtype::F32,
            shape,
            bytes: bytemuck::cast_slice(data),
        })
        .collect();
    safetensors::write_on(disk, path, &views, &[])?;
    Ok(())
}

pub(crate) fn read_config(folder: &Path) -> Result<ModelConfig> {
    let path = folder.join(CONFIG);
    if !path.is_file() {
        return Err(Error::NotAModel { path: folder.to_path_buf(), problem: "has no config.json".into() });
    }
    let config: serde_json::Value = parse(&path)?;
    hugging_face::from_json(&config).map_err(|problem| Error::NotAModel { path, problem })
}

fn parse<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(damaged(path, "is missing"));
        }
        Err(error) => return Err(Error::io(path)(error)),
    };
    serde_json::from_slice(&text).map_err(|error| damaged(path, error))
}

fn sum(path: &Path) -> Result<(u64, String)> {
    let file = match fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(damaged(path, "is missing"));
        }
        Err(error) => return Err(Error::io(path)(error)),
    };
    let mut hasher = blake3::Hasher::new();
    let bytes = std::io::copy(&mut &file, &mut hasher).map_err(Error::io(path))?;
    Ok((bytes, hasher.finalize().to_hex().to_string()))
}

fn remove(disk: &Disk, path: &Path) -> Result<()> {
    disk.remove_dir_all(path).map_err(Error::io(path))
}

fn damaged(path: &Path, problem: impl std::fmt::Display) -> Error {
    Error::Damaged { path: path.to_path_buf(), problem: problem.to_string() }
}

fn pretty(value: &serde_json::Value) -> Vec<u8> {
    format!("{value:#}\n").into_bytes()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::config::{Architecture, tests::tiny};

    pub(crate) fn snapshot(model: &Model, step: u64) -> Snapshot {
        let state = TrainerState {
            step,
            samples: 4 * step,
            tokens: 48 * step,
            updates: step as u32,
            loss_scale: None,
            guard: GuardState { steps: 7.0, loss: 3.1, ..GuardState::default() },
            plateau: Some(Plateau { best: Some(3.3), waited: 1, lowered: 2 }),
            seed: 9,
            optimizer: "adamw".into(),
        };
        let parameters = model.initial_values(step);
        let moment = |factor: f32| parameters.iter().map(|x| x * factor).collect();
        Snapshot {
            average: None,
            first_moment: moment(0.5),
            second_moment: Some(moment(0.25)),
            parameters,
            state,
        }
    }

    pub(super) fn write(folder: &Path, model: &Model, step: u64) -> PathBuf {
        save(&Disk::default(), folder, model, &Record::new(snapshot(model, step))).unwrap()
    }

    #[test]
    fn a_checkpoint_reads_back_exactly_with_its_extra_files() {
        let folder = tempfile::tempdir().unwrap();
        let model = Model::new(tiny(Architecture::Gpt2)).unwrap();
        let written = snapshot(&model, 7);
        let files = vec![("tokenizer.json".to_string(), b"{}".to_vec())];
        let run = RunState { validation_loss: Some(2.5), healthy: true, refused: vec![8] };
        let record = Record { snapshot: written.clone(), run: run.clone(), files: files.into() };
        let path = save(&Disk::default(), folder.path(), &model, &record).unwrap();
        assert!(path.ends_with("step-00000007"));
        verify(&path).unwrap();
        assert_eq!(load(&path, &model).unwrap(), written);
        assert_eq!(run_state(&path).unwrap(), run);
        assert_eq!(load_model(&path).unwrap().1, written.parameters);
        assert_eq!(fs::read(path.join("tokenizer.json")).unwrap(), b"{}");
        write(folder.path(), &model, 7);
        verify(&path).unwrap();
    }

    #[test]
    fn an_average_is_the_model_and_what_training_goes_on_with_is_kept_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let model = Model::new(tiny(Architecture::Gpt2)).unwrap();
        let average = model.initial_values(99);
        let written = Snapshot { average: Some(average.clone()), ..snapshot(&model, 7) };
        let path = save(&Disk::default(), folder.path(), &model, &Record::new(written.clone())).unwrap();
        assert_eq!(load(&path, &model).unwrap(), written);
        assert_eq!(load_model(&path).unwrap().1, average);
    }

    #[test]
    fn a_checkpoint_that_is_not_finite_is_not_healthy() {
        let folder = tempfile::tempdir().unwrap();
        let model = Model::new(tiny(Architecture::Gpt2)).unwrap();
        let mut record = Record::new(snapshot(&model, 1));
        record.snapshot.first_moment[3] = f32::NAN;
        let path = save(&Disk::default(), folder.path(), &model, &record).unwrap();
        verify(&path).unwrap();
        assert!(!run_state(&path).unwrap().healthy);
    }

    #[test]
    fn the_first_version_can_be_read() {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/checkpoint-v1");
        let path = newest(&golden, &mut |error| panic!("{error}")).unwrap().unwrap();
        let (model, values) = load_model(&path).unwrap();
        let read = load(&path, &model).unwrap();
        assert_eq!(read.parameters, values);
        assert_eq!((read.state.step, read.state.samples, read.state.tokens), (3, 12, 96));
        assert!(read.second_moment.is_some());
        assert_eq!(run_state(&path).unwrap(), RunState::default());
    }

    #[test]
    fn a_version_of_the_future_is_refused_by_its_number() {
        let folder = tempfile::tempdir().unwrap();
        let model = Model::new(tiny(Architecture::Gpt2)).unwrap();
        let path = write(folder.path(), &model, 1).join(STATE);
        let text = fs::read_to_string(&path).unwrap().replace("\"version\": 2", "\"version\": 3");
        fs::write(&path, text).unwrap();
        let said = load(path.parent().unwrap().parent().unwrap(), &model).unwrap_err().to_string();
        assert!(said.contains("version 3"), "{said}");
    }

    #[test]
    fn a_damaged_or_unfinished_checkpoint_is_passed_over_for_the_newest_whole_one() {
        let folder = tempfile::tempdir().unwrap();
        let model = Model::new(tiny(Architecture::Gpt2)).unwrap();
        let first = write(folder.path(), &model, 1);
        let second = write(folder.path(), &model, 2);
        fs::create_dir_all(folder.path().join(".step-00000003.partial/trainer")).unwrap();
        fs::create_dir_all(folder.path().join("step-00000004")).unwrap();
        let mut skipped = Vec::new();
        let found = newest(folder.path(), &mut |error| skipped.push(error.to_string())).unwrap();
        assert_eq!((found, skipped.len()), (Some(second.clone()), 1));

        let weights = second.join(WEIGHTS);
        let mut bytes = fs::read(&weights).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(&weights, bytes).unwrap();
        assert_eq!(newest(folder.path(), &mut |_| ()).unwrap(), Some(first));
    }

    #[test]
    fn a_checkpoint_of_another_shape_is_refused_with_both_sizes() {
        let folder = tempfile::tempdir().unwrap();
        let model = Model::new(tiny(Architecture::Gpt2)).unwrap();
        let path = write(folder.path(), &model, 1);
        let other = Model::new(ModelConfig { layers: 3, ..tiny(Architecture::Gpt2) }).unwrap();
        let message = load(&path, &other).unwrap_err().to_string();
        assert!(message.contains("2 layers") && message.contains("3 layers"), "{message}");
    }
}
