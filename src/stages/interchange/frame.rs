//! What a model's folder says about the tokens around a text, besides its `tokenizer.json`.

use super::companions::read_object;
use crate::failure::Result;
use ironmill_text::Tokenizer;
use serde_json::Value;
use std::path::Path;

/// The tokenizer of a Hugging Face folder. Where `tokenizer_config.json` says whether `<bos>` and `<eos>` are put around a text, it
/// has the last word over the post-processor of `tokenizer.json`, as in `transformers`.
pub fn tokenizer_of_folder(folder: &Path) -> Result<Tokenizer> {
    let tokenizer = Tokenizer::load(&folder.join("tokenizer.json"))?;
    let config = read_object(&folder.join("tokenizer_config.json"));
    if !["add_bos_token", "add_eos_token"].iter().any(|key| config.contains_key(*key)) {
        return Ok(tokenizer);
    }
    let named = read_object(&folder.join("special_tokens_map.json"));
    let text = |flag: &str, name: &str| {
        let is_added = config.get(flag).and_then(Value::as_bool).unwrap_or(false);
        let said = config.get(name).or_else(|| named.get(name)).filter(|_| is_added)?;
        let text = said.as_str().or_else(|| said.get("content")?.as_str())?;
        Some((text, tokenizer.special_id(text)?))
    };
    let (before, after) = (text("add_bos_token", "bos_token"), text("add_eos_token", "eos_token"));
    let ids = |token: Option<(&str, u32)>| token.map(|(_, id)| id).into_iter().collect::<Vec<u32>>();
    if tokenizer.around() == (&ids(before)[..], &ids(after)[..]) {
        return Ok(tokenizer);
    }
    let texts = |token: Option<(&'_ str, u32)>| token.map(|(text, _)| text.to_owned());
    let (before, after) = (texts(before), texts(after));
    Ok(tokenizer.with_around(before.as_deref().as_slice(), after.as_deref().as_slice())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::fs;

    /// What stands around a text by a folder with this `tokenizer_config.json`.
    fn around(config: &Value, framed: bool) -> (Vec<u32>, Vec<u32>) {
        let folder = tempfile::tempdir().unwrap();
        let vocab: serde_json::Map<String, Value> =
            ["a", "b", "<s>", "</s>"].iter().zip(0..).map(|(text, id)| ((*text).into(), json!(id))).collect();
        let added = |id: u32, text: &str| {
            json!({"id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
                   "normalized": false, "special": true})
        };
        let file = json!({
            "version": "1.0",
            "added_tokens": [added(2, "<s>"), added(3, "</s>")],
            "normalizer": null,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
            "post_processor": framed.then(|| json!({
                "type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [],
                "special_tokens": {"<s>": {"id": "<s>", "ids": [2], "tokens": ["<s>"]}},
            })),
            "decoder": {"type": "ByteLevel"},
            "model": {"type": "BPE", "vocab": vocab, "merges": []},
        });
        fs::write(folder.path().join("tokenizer.json"), file.to_string()).unwrap();
        fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
        fs::write(folder.path().join("special_tokens_map.json"), r#"{"eos_token": {"content": "</s>"}}"#)
            .unwrap();
        let tokenizer = tokenizer_of_folder(folder.path()).unwrap();
        let (before, after) = tokenizer.around();
        (before.to_vec(), after.to_vec())
    }

    #[test]
    fn the_configuration_has_the_last_word_about_what_is_around_a_text() {
        let bos = "<s>";
        for (config, framed, expected) in [
            (json!({"bos_token": bos}), true, (vec![2], vec![])),
            (json!({"bos_token": bos}), false, (vec![], vec![])),
            (json!({"bos_token": bos, "add_bos_token": true}), true, (vec![2], vec![])),
            (json!({"bos_token": {"content": bos}, "add_bos_token": true}), false, (vec![2], vec![])),
            (json!({"bos_token": bos, "add_bos_token": false}), true, (vec![], vec![])),
            (json!({"bos_token": bos, "add_eos_token": true}), true, (vec![], vec![3])),
            (
                json!({"bos_token": bos, "add_bos_token": true, "add_eos_token": true}),
                false,
                (vec![2], vec![3]),
            ),
            (json!({"add_bos_token": true}), false, (vec![], vec![])),
        ] {
            assert_eq!(around(&config, framed), expected, "{config}, {framed}");
        }
    }
}
