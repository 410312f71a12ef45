//! Checkpoints of a run on its way.

use super::Session;
use crate::config::{Config, MASK};
use crate::failure::Result;
use crate::stages::metrics::Beside;
use ironmill_model::checkpoint::{Keep, Record, RunState};
use ironmill_text::{Kind, Tokenizer};
use serde_json::json;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

impl Session<'_> {
    /// Begins to write a checkpoint of this step, unless it has one. The writing goes on beside the training; only a save
    /// that is still under way is waited for, so that no more than one snapshot is in memory.
    pub(super) fn save(&mut self) -> Result<()> {
        let step = self.trainer.step_count();
        if self.saved_step == Some(step) {
            return Ok(());
        }
        let began = Instant::now();
        let before = self.saver.wait()?;
        self.tell_of(before);
        let validation_loss = self.measured.filter(|measured| measured.0 == step).map(|measured| measured.1);
        let record = Record {
            snapshot: self.trainer.snapshot()?,
            run: RunState { validation_loss, ..self.health.state() },
            files: Arc::clone(&self.files),
        };
        self.saver.begin(record)?;
        self.saved_step = Some(step);
        self.metrics.spend(Beside::Saving, began.elapsed());
        self.health.saved();
        Ok(())
    }

    /// Writes a checkpoint of this step and waits until it is on the disk.
    pub(super) fn save_now(&mut self) -> Result<()> {
        self.save()?;
        let written = self.saver.wait()?;
        self.tell_of(written);
        Ok(())
    }

    /// Tells of a checkpoint that was finished meanwhile, or what went wrong with it.
    pub(super) fn tell_saved(&mut self) -> Result<()> {
        let written = self.saver.poll()?;
        self.tell_of(written);
        Ok(())
    }

    pub(super) fn tell_of(&self, written: Option<PathBuf>) {
        if let Some(path) = written {
            self.context.show.detail(&format!("saved {}", path.display()));
        }
    }
}

/// Which checkpoints of a run stay.
pub(super) fn keep(config: &Config) -> Keep {
    let train = &config.train;
    let count = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    Keep { last: count(train.keep_last), best: count(train.keep_best), every: train.keep_every }
}

/// The files that make a checkpoint complete for other programs and for a later self.
pub(super) fn travelling_files(tokenizer: &Tokenizer, config: &Config) -> Result<Vec<(String, Vec<u8>)>> {
    let mut files = vec![
        ("tokenizer.json".to_string(), tokenizer.to_json().into_bytes()),
        ("config.toml".to_string(), config.to_toml()?.into_bytes()),
    ];
    if matches!(tokenizer.kind(), Kind::Bpe | Kind::SentencePiece | Kind::WordPiece) {
        let mut about = json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": config.model.context,
            "clean_up_tokenization_spaces": false,
        });
        let mut special = json!({});
        let name_of = |id: u32| {
            let found = tokenizer.special_tokens().iter().find(|&&(_, other)| other == id);
            found.map(|(name, _)| name.clone())
        };
        if let Some(end) = tokenizer.end_of_text().and_then(name_of) {
            // Where nothing stands before a text, the end of the one before it does.
            let start =
                tokenizer.around().0.first().and_then(|&id| name_of(id)).unwrap_or_else(|| end.clone());
            for (key, name) in [("bos_token", start), ("eos_token", end)] {
                about[key] = name.as_str().into();
                special[key] = name.into();
            }
        }
        if let Some((name, _)) = tokenizer.special_tokens().iter().find(|(name, _)| name == MASK) {
            about["mask_token"] = name.as_str().into();
            special["mask_token"] = name.as_str().into();
        }
        files.push(("tokenizer_config.json".into(), format!("{about:#}\n").into_bytes()));
        files.push(("special_tokens_map.json".into(), format!("{special:#}\n").into_bytes()));
    }
    Ok(files)
}
