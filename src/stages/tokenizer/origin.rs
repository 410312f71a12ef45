//! What a tokenizer or a counts file was made of, kept beside it.

use super::Counting;
use crate::config::TokenizerTraining;
use crate::failure::{Failure, Result};
use ironmill_data::Inputs;
use ironmill_text::{CountSettings, CountsFile, durable};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// The settings and inputs of a result, as `FILE.origin.json` keeps them.
#[derive(Clone, Debug)]
pub struct Origin {
    content: Value,
}

impl Origin {
    /// The origin of a tokenizer that is learnt from text.
    pub fn of_inputs(settings: &TokenizerTraining, counting: &Counting, inputs: &Inputs) -> Origin {
        let mut content = json!({
            "settings": settings,
            "lines": counting.by_lines,
            "max_token_length": counting.max_token_length,
            "inputs": inputs_of(inputs),
        });
        if let Some((memory, threads)) = counting.budget.shapes_counts() {
            content["approximate"] = json!({"memory": memory, "threads": threads});
        }
        Origin::new(content)
    }

    /// The origin of a tokenizer that is learnt from counts.
    pub fn of_counts(
        settings: &TokenizerTraining,
        max_token_length: Option<usize>,
        counts: &CountsFile,
    ) -> Result<Origin> {
        let sum = counts.checksum()?;
        Ok(Origin::new(json!({
            "settings": settings,
            "max_token_length": max_token_length,
            "counts": sum,
        })))
    }

    /// The origin of counts.
    pub fn of_count(settings: &CountSettings, inputs: &Inputs) -> Origin {
        Origin::new(json!({"settings": settings, "inputs": inputs_of(inputs)}))
    }

    fn new(mut content: Value) -> Origin {
        content["version"] = 1.into();
        Origin { content }
    }

    /// BLAKE3 of the settings and inputs.
    pub fn hash(&self) -> String {
        blake3::hash(self.content.to_string().as_bytes()).to_hex().to_string()
    }

    /// Writes it beside the result.
    pub fn save(&self, result: &Path) -> Result<()> {
        let path = beside(result);
        // A device or a pipe has nothing beside it.
        if !result.is_file() {
            return Ok(());
        }
        durable::write(&path, self.text().as_bytes()).map_err(|error| Failure::write(&path, &error))
    }

    /// Whether it is the origin of a result that was made before.
    pub fn is_of(&self, result: &Path) -> bool {
        std::fs::read_to_string(beside(result)).is_ok_and(|stored| stored == self.text())
    }

    fn text(&self) -> String {
        let mut content = self.content.clone();
        content["hash"] = self.hash().into();
        format!("{content:#}\n")
    }
}

fn beside(result: &Path) -> PathBuf {
    let mut name = result.as_os_str().to_owned();
    name.push(".origin.json");
    name.into()
}

fn inputs_of(inputs: &Inputs) -> Value {
    let reading = inputs.options();
    json!({
        "files": inputs.records(),
        "document_separator": reading.document_separator,
        "text_key": reading.text_key,
        "on_bad_utf8": reading.on_bad_utf8.name(),
        "sample": reading.sample,
        "seed": reading.seed,
    })
}
