//! Where a model keeps its chat templates, and the special tokens that they speak of.

use crate::failure::{Code, Failure, Result};
use serde_json::{Map, Value, json};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// What a template is called that is not called anything.
const DEFAULT: &str = "default";

/// The turns of ChatML, for models that were trained on them and do not say so.
const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}\
                      {% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// The special tokens that templates are told.
const SPECIAL: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// The most bytes of a file that is read here.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// The chat templates of a model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Templates {
    /// By name, in the order of the file.
    named: Vec<(String, String)>,
    /// The special tokens by the names that templates have for them.
    special: Map<String, Value>,
}

impl Templates {
    /// The templates of a Hugging Face folder: `chat_template.jinja` and those in `additional_chat_templates`, or else those
    /// of `tokenizer_config.json`, a string or a list with names.
    pub fn read(folder: &Path) -> Result<Templates> {
        let config_path = folder.join("tokenizer_config.json");
        let config = read_json(&config_path)?.unwrap_or_default();
        let mut special =
            special_tokens(&read_json(&folder.join("special_tokens_map.json"))?.unwrap_or_default());
        special.extend(special_tokens(&config));
        let file = folder.join("chat_template.jinja");
        let mut named = match read_text(&file)? {
            Some(template) => vec![(DEFAULT.into(), template)],
            None => of_config(&config, &config_path)?,
        };
        for file in jinja_files(&folder.join("additional_chat_templates"))? {
            let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            named.extend(read_text(&file)?.map(|template| (name, template)));
        }
        Ok(Templates { named, special })
    }

    /// The template to use: the one asked for by name or as `@` and a file, or else the model's own.
    pub fn choose(&self, asked: Option<&str>, model: &Path) -> Result<&str> {
        let name = asked.unwrap_or(DEFAULT);
        if let Some((_, template)) = self.named.iter().find(|(known, _)| known == name) {
            return Ok(template);
        }
        match asked {
            Some("chatml") => Ok(CHATML),
            Some(name) => {
                let known: Vec<&str> = self.named.iter().map(|(name, _)| &**name).chain(["chatml"]).collect();
                let message = format!(
                    "{} has no chat template \"{name}\": use {}, or @ and a file",
                    model.display(),
                    known.join(", ")
                );
                Err(Failure::new(Code::Usage, message))
            }
            None => Err(Failure::new(Code::BadData, self.why_none(model))),
        }
    }

    fn why_none(&self, model: &Path) -> String {
        let advice = "give one with --template @FILE, try --template chatml, or continue plain text with `ironmill sample`";
        let model = model.display();
        match self.named.first() {
            Some((name, _)) => format!(
                "{model} has chat templates with names only: choose one with --template, such as --template {name}"
            ),
            None => format!(
                "{model} has no chat template, neither chat_template.jinja nor in tokenizer_config.json, \
                 so it was probably not trained to converse: {advice}"
            ),
        }
    }

    /// The special tokens by the names that templates have for them.
    pub fn special(&self) -> &Map<String, Value> {
        &self.special
    }

    /// The text of the token that ends what the model says.
    pub fn end(&self) -> Option<&str> {
        self.special.get("eos_token")?.as_str()
    }
}

/// Reads a template file of the user's.
pub fn read_file(path: &Path) -> Result<String> {
    read_text(path)?.ok_or_else(|| Failure::read(path, &io::ErrorKind::NotFound.into()))
}

fn of_config(config: &Value, path: &Path) -> Result<Vec<(String, String)>> {
    let wrong = || {
        let message = format!(
            "{}: chat_template is neither a string nor a list of objects with name and template: mend it or remove it",
            path.display()
        );
        Failure::new(Code::BadData, message)
    };
    match config.get("chat_template") {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::String(template)) => Ok(vec![(DEFAULT.into(), template.clone())]),
        Some(Value::Array(list)) => {
            let entry = |entry: &Value| {
                let text = |key: &str| entry[key].as_str().map(str::to_owned);
                text("name").zip(text("template")).ok_or_else(wrong)
            };
            list.iter().map(entry).collect()
        }
        Some(_) => Err(wrong()),
    }
}

/// Special tokens are strings, or objects that say more about them.
fn special_tokens(config: &Value) -> Map<String, Value> {
    let text = |key: &str| config[key].as_str().or(config[key]["content"].as_str());
    SPECIAL.into_iter().filter_map(|key| Some((key.to_owned(), json!(text(key)?)))).collect()
}

fn jinja_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(Vec::new()) };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(|error| Failure::read(folder, &error))?.path();
        files.extend(path.extension().is_some_and(|extension| extension == "jinja").then_some(path));
    }
    files.sort();
    Ok(files)
}

/// A JSON file of the model's, or nothing where there is none.
pub fn read_json(path: &Path) -> Result<Option<Value>> {
    let Some(text) = read_text(path)? else { return Ok(None) };
    let parsed = serde_json::from_str(&text);
    let bad =
        |error| Failure::new(Code::BadData, format!("{} is not JSON ({error}): restore it", path.display()));
    parsed.map(Some).map_err(bad)
}

fn read_text(path: &Path) -> Result<Option<String>> {
    let length = match fs::metadata(path) {
        Ok(found) => found.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Failure::read(path, &error)),
    };
    if length > MAX_FILE_BYTES {
        let message =
            format!("{} has {length} bytes, which no such file has: check what it is", path.display());
        return Err(Failure::new(Code::BadData, message));
    }
    fs::read_to_string(path).map(Some).map_err(|error| Failure::read(path, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        folder
    }

    fn chosen(files: &[(&str, &str)], asked: Option<&str>) -> Result<String> {
        let folder = folder(files);
        Templates::read(folder.path())?.choose(asked, Path::new("m")).map(str::to_owned)
    }

    #[test]
    fn the_file_of_its_own_wins_over_the_configuration() {
        let config = ("tokenizer_config.json", r#"{"chat_template": "in config"}"#);
        assert_eq!(chosen(&[config], None).unwrap(), "in config");
        assert_eq!(chosen(&[config, ("chat_template.jinja", "own")], None).unwrap(), "own");
        let other = ("additional_chat_templates/rag.jinja", "other");
        assert_eq!(chosen(&[config, other], Some("rag")).unwrap(), "other");
    }

    #[test]
    fn templates_have_names() {
        let list = r#"{"chat_template": [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]}"#;
        let config = ("tokenizer_config.json", list);
        assert_eq!(chosen(&[config], None).unwrap(), "a");
        assert_eq!(chosen(&[config], Some("tool_use")).unwrap(), "b");
        let said = chosen(&[config], Some("rag")).unwrap_err().to_string();
        assert!(said.contains("default, tool_use, chatml"), "{said}");
        let named = ("tokenizer_config.json", r#"{"chat_template": [{"name": "x", "template": "a"}]}"#);
        assert!(chosen(&[named], None).unwrap_err().to_string().contains("--template x"));
        assert_eq!(chosen(&[], Some("chatml")).unwrap(), CHATML);
    }

    #[test]
    fn a_model_without_a_template_says_what_to_do() {
        let said =
            chosen(&[("tokenizer_config.json", r#"{"chat_template": null}"#)], None).unwrap_err().to_string();
        assert!(said.contains("has no chat template") && said.contains("--template @FILE"), "{said}");
        for bad in [r#"{"chat_template": 3}"#, r#"{"chat_template": [{"name": "x"}]}"#, "{"] {
            let failure = chosen(&[("tokenizer_config.json", bad)], None).unwrap_err();
            assert_eq!(failure.code(), Code::BadData, "{failure}");
        }
    }

    #[test]
    fn special_tokens_come_as_strings_and_as_objects() {
        let folder = folder(&[
            (
                "special_tokens_map.json",
                r#"{"bos_token": "<old>", "unk_token": {"content": "<unk>", "lstrip": false}}"#,
            ),
            (
                "tokenizer_config.json",
                r#"{"bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": null}"#,
            ),
        ]);
        let templates = Templates::read(folder.path()).unwrap();
        let expected = json!({"bos_token": "<s>", "unk_token": "<unk>", "eos_token": "</s>"});
        assert_eq!(Value::Object(templates.special().clone()), expected);
        assert_eq!(templates.end(), Some("</s>"));
    }
}
