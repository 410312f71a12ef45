//! Checkpoints of a run on its way.

use super::Session;
use crate::config::{Config, MASK};
use crate::failure::Result;
use crate::stages::metrics::Beside;
use ironmill_model::checkpoint;
use ironmill_text::{Kind, Tokenizer};
use serde_json::json;
use std::time::Instant;

impl Session<'_> {
    /// Writes a checkpoint, unless this step has one, and lets old ones go.
    pub(super) fn save(&mut self) -> Result<()> {
        let step = self.trainer.step_count();
        if self.saved_step == Some(step) {
            return Ok(());
        }
        let began = Instant::now();
        let snapshot = self.trainer.snapshot()?;
        let extra = travelling_files(&self.corpus.tokenizer, &self.config)?;
        let folder = self.run.checkpoints();
        let path = checkpoint::save(&folder, self.trainer.engine().model(), &snapshot, &extra)?;
        checkpoint::rotate(&folder, self.config.train.keep_last as usize)?;
        self.saved_step = Some(step);
        self.metrics.spend(Beside::Saving, began.elapsed());
        self.context.show.detail(&format!("saved {}", path.display()));
        Ok(())
    }
}

/// The files that make a checkpoint complete for other programs and for a later self.
fn travelling_files(tokenizer: &Tokenizer, config: &Config) -> Result<Vec<(String, Vec<u8>)>> {
    let mut files = vec![
        ("tokenizer.json".to_string(), tokenizer.to_json().into_bytes()),
        ("config.toml".to_string(), config.to_toml()?.into_bytes()),
    ];
    if tokenizer.kind() == Kind::Bpe {
        let mut about = json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": config.model.context,
            "clean_up_tokenization_spaces": false,
        });
        let mut special = json!({});
        if tokenizer.end_of_text().is_some() {
            for name in ["bos_token", "eos_token"] {
                about[name] = "<|endoftext|>".into();
                special[name] = "<|endoftext|>".into();
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
