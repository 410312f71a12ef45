//! Checkpoints: a Hugging Face folder plus `trainer/`, whole or not there.
//!
//! A checkpoint is staged in a folder of its own, every file synced, a manifest with sizes and BLAKE3 sums written last,
//! then the folder renamed. So a name like `step-00000020` means a complete checkpoint; the manifest still proves it,
//! because disks and copies fail too. Readers take the newest one that proves whole.
//!
//! ```text
//! step-00000020/
//!   config.json  generation_config.json  model.safetensors      what `transformers` reads, with the caller's tokenizer files
//!   trainer/optimizer.safetensors                                the optimiser's moments, by parameter name; where an average
//!                                                                of the parameters is kept, that is the model, and what
//!                                                                training goes on with is here
//!   trainer/state.json                                           step, data position, seed, counters
//!   trainer/manifest.json                                        sizes and sums of all of the above
//! ```

use std::{
    fs,
    path::{Path, PathBuf},
};

use ironmill_data::{
    durable,
    safetensors::{self, Dtype, SafeTensors, TensorView},
};
use serde::{Deserialize, Serialize};

use crate::{
    architecture::Model,
    config::ModelConfig,
    error::{Error, Result},
    hugging_face,
    train::{GuardState, LossScale, Plateau},
    weights::{load_weights, save_weights},
};

/// The version of `state.json` and `manifest.json`.
const VERSION: u32 = 1;
const MANIFEST: &str = "trainer/manifest.json";
const STATE: &str = "trainer/state.json";
const OPTIMISER: &str = "trainer/optimizer.safetensors";
const WEIGHTS: &str = "model.safetensors";
const CONFIG: &str = "config.json";

/// Where a run stands, apart from its tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct VersionedState {
    version: u32,
    state: TrainerState,
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

/// Writes a checkpoint into the folder of checkpoints and returns its path. `extra` are files that travel with the model,
/// such as the tokenizer.
pub fn save(
    folder: &Path,
    model: &Model,
    snapshot: &Snapshot,
    extra: &[(String, Vec<u8>)],
) -> Result<PathBuf> {
    let name = format!("step-{:08}", snapshot.state.step);
    let (path, staged) = (folder.join(&name), folder.join(format!(".{name}.partial")));
    fs::create_dir_all(folder).map_err(Error::io(folder))?;
    remove_folder(&staged)?;
    let outcome = stage(&staged, model, snapshot, extra).and_then(|()| publish(folder, &staged, &path));
    if outcome.is_err() {
        // A failed save must not leave the disk fuller than it was; what failed is the error to report.
        let _ = remove_folder(&staged);
    }
    outcome.map(|()| path)
}

fn stage(staged: &Path, model: &Model, snapshot: &Snapshot, extra: &[(String, Vec<u8>)]) -> Result<()> {
    let trainer = staged.join("trainer");
    fs::create_dir_all(&trainer).map_err(Error::io(&trainer))?;
    save_weights(&staged.join(WEIGHTS), model, snapshot.average.as_ref().unwrap_or(&snapshot.parameters))?;
    save_moments(&staged.join(OPTIMISER), model, snapshot)?;
    let mut texts = vec![
        (CONFIG.to_string(), pretty(&hugging_face::to_json(model.config()))),
        ("generation_config.json".to_string(), pretty(&serde_json::json!({"do_sample": true}))),
    ];
    let state = VersionedState { version: VERSION, state: snapshot.state.clone() };
    let state = serde_json::to_value(state).map_err(|error| damaged(staged, error))?;
    texts.push((STATE.to_string(), pretty(&state)));
    texts.extend(extra.iter().cloned());
    for (name, bytes) in &texts {
        let path = staged.join(name);
        durable::write(&path, bytes).map_err(Error::io(&path))?;
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
    durable::write(&path, &pretty(&manifest)).map_err(Error::io(&path))?;
    durable::sync_dir(&trainer).map_err(Error::io(&trainer))?;
    durable::sync_dir(staged).map_err(Error::io(staged))
}

/// Gives a staged checkpoint its name. One of the same step that is there already, from before a resume, gives way.
fn publish(folder: &Path, staged: &Path, path: &Path) -> Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let replaced = folder.join(format!(".{name}.replaced"));
    remove_folder(&replaced)?;
    if path.exists() {
        fs::rename(path, &replaced).map_err(Error::io(path))?;
    }
    fs::rename(staged, path).map_err(Error::io(path))?;
    durable::sync_dir(folder).map_err(Error::io(folder))?;
    remove_folder(&replaced)
}

/// The checkpoints of a folder, oldest first, whether whole or not.
pub fn list(folder: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(found),
        Err(error) => return Err(Error::io(folder)(error)),
    };
    for entry in entries {
        let path = entry.map_err(Error::io(folder))?.path();
        let step = path.file_name().and_then(|name| name.to_str()?.strip_prefix("step-")?.parse().ok());
        if let Some(step) = step {
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
    if manifest.version != VERSION {
        return Err(damaged(&path, format!("version {} is not known to this program", manifest.version)));
    }
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

/// Reads a checkpoint of this model.
pub fn load(checkpoint: &Path, model: &Model) -> Result<Snapshot> {
    let (stored, wanted) = (read_config(checkpoint)?, model.config());
    if (ModelConfig { dropout: 0.0, ..stored.clone() }) != (ModelConfig { dropout: 0.0, ..wanted.clone() }) {
        let problem =
            format!("was made by another model: it has {}, the configuration has {}", stored, wanted);
        return Err(Error::OtherShape { path: checkpoint.to_path_buf(), problem });
    }
    let path = checkpoint.join(STATE);
    let state: VersionedState = parse(&path)?;
    if state.version != VERSION {
        return Err(damaged(&path, format!("version {} is not known to this program", state.version)));
    }
    let weights = load_weights(&checkpoint.join(WEIGHTS), model)?;
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
    let model = Model::new(read_config(folder)?)?;
    let values = load_weights(&folder.join(WEIGHTS), &model)?;
    Ok((model, values))
}

/// Deletes all but the newest `keep` checkpoints; at least one always stays.
pub fn rotate(folder: &Path, keep: usize) -> Result<()> {
    let mut checkpoints = list(folder)?;
    checkpoints.truncate(checkpoints.len().saturating_sub(keep.max(1)));
    for (_, path) in checkpoints {
        // Renamed first, so that a kill half-way never leaves a folder that looks like a checkpoint.
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let leaving = folder.join(format!(".{name}.replaced"));
        remove_folder(&leaving)?;
        fs::rename(&path, &leaving).map_err(Error::io(&path))?;
        remove_folder(&leaving)?;
    }
    Ok(())
}

fn save_moments(path: &Path, model: &Model, snapshot: &Snapshot) -> Result<()> {
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
    safetensors::write(path, &views, &[])?;
    Ok(())
}

fn read_config(folder: &Path) -> Result<ModelConfig> {
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

fn remove_folder(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Error::io(path)(error)),
        _ => Ok(()),
    }
}

fn damaged(path: &Path, problem: impl std::fmt::Display) -> Error {
    Error::Damaged { path: path.to_path_buf(), problem: problem.to_string() }
}

fn pretty(value: &serde_json::Value) -> Vec<u8> {
    format!("{value:#}\n").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Architecture, tests::tiny};

    fn snapshot(model: &Model, step: u64) -> Snapshot {
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

    #[test]
    fn a_checkpoint_reads_back_exactly_with_its_extra_files() {
        let folder = tempfile::tempdir().unwrap();
        let model = Model::new(tiny(Architecture::Gpt2)).unwrap();
        let written = snapshot(&model, 7);
        let path =
            save(folder.path(), &model, &written, &[("tokenizer.json".into(), b"{}".to_vec())]).unwrap();
        assert!(path.ends_with("step-00000007"));
        verify(&path).unwrap();
        assert_eq!(load(&path, &model).unwrap(), written);
        assert_eq!(load_model(&path).unwrap().1, written.parameters);
        assert_eq!(fs::read(path.join("tokenizer.json")).unwrap(), b"{}");
        save(folder.path(), &model, &written, &[]).unwrap();
        verify(&path).unwrap();
    }

    #[test]
    fn an_average_is_the_model_and_what_training_goes_on_with_is_kept_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let model = Model::new(tiny(Architecture::Gpt2)).unwrap();
        let average = model.initial_values(99);
        let written = Snapshot { average: Some(average.clone()), ..snapshot(&model, 7) };
        let path = save(folder.path(), &model, &written, &[]).unwrap();
        assert_eq!(load(&path, &model).unwrap(), written);
        assert_eq!(load_model(&path).unwrap().1, average);
    }

    #[test]
    fn a_damaged_or_unfinished_checkpoint_is_passed_over_for_the_newest_whole_one() {
        let folder = tempfile::tempdir().unwrap();
        let model = Model::new(tiny(Architecture::Gpt2)).unwrap();
        let first = save(folder.path(), &model, &snapshot(&model, 1), &[]).unwrap();
        let second = save(folder.path(), &model, &snapshot(&model, 2), &[]).unwrap();
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
    fn rotation_keeps_the_newest_and_never_all_go() {
        let folder = tempfile::tempdir().unwrap();
        let model = Model::new(tiny(Architecture::Gpt2)).unwrap();
        for step in 1..=4 {
            save(folder.path(), &model, &snapshot(&model, step), &[]).unwrap();
        }
        rotate(folder.path(), 2).unwrap();
        assert_eq!(list(folder.path()).unwrap().iter().map(|c| c.0).collect::<Vec<_>>(), [3, 4]);
        rotate(folder.path(), 0).unwrap();
        assert_eq!(list(folder.path()).unwrap().len(), 1);
    }

    #[test]
    fn a_checkpoint_of_another_shape_is_refused_with_both_sizes() {
        let folder = tempfile::tempdir().unwrap();
        let model = Model::new(tiny(Architecture::Gpt2)).unwrap();
        let path = save(folder.path(), &model, &snapshot(&model, 1), &[]).unwrap();
        let other = Model::new(ModelConfig { layers: 3, ..tiny(Architecture::Gpt2) }).unwrap();
        let message = load(&path, &other).unwrap_err().to_string();
        assert!(message.contains("2 layers") && message.contains("3 layers"), "{message}");
    }
}
