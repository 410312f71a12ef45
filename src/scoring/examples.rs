//! Questions from a file, a JSON object a line.

use crate::failure::{Code, Failure, Result};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::fs;
use std::path::Path;

/// Something that is read from a line.
pub trait Example: DeserializeOwned {
    /// What a line looks like.
    const FORM: &'static str;

    /// What is wrong with it, if anything.
    fn problem(&self) -> Option<String>;
}

/// A question with choices.
#[derive(Clone, Debug, Deserialize)]
pub struct ChoiceExample {
    /// What comes before.
    pub prompt: String,
    /// What may follow.
    pub choices: Vec<String>,
    answer: Which,
}

/// A choice, by its number from 0 or by its text.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Which {
    Number(usize),
    Text(String),
}

impl ChoiceExample {
    /// The number of the right choice.
    pub fn right(&self) -> Option<usize> {
        match &self.answer {
            Which::Number(number) => Some(*number).filter(|&number| number < self.choices.len()),
            Which::Text(text) => self.choices.iter().position(|choice| choice == text),
        }
    }
}

impl Example for ChoiceExample {
    const FORM: &'static str = r#"{"prompt": "2 + 2 =", "choices": [" 3", " 4"], "answer": 1}"#;

    fn problem(&self) -> Option<String> {
        match self.right() {
            None => Some("its answer is none of its choices".into()),
            Some(_) => {
                self.choices.iter().any(String::is_empty).then(|| "one of its choices is empty".into())
            }
        }
    }
}

/// A question with answers, any of which is right.
#[derive(Clone, Debug, Deserialize)]
pub struct AnswerExample {
    /// The question.
    pub prompt: String,
    #[serde(alias = "answer")]
    answers: OneOrMany,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl AnswerExample {
    /// The answers that are right.
    pub fn answers(&self) -> &[String] {
        match &self.answers {
            OneOrMany::One(answer) => std::slice::from_ref(answer),
            OneOrMany::Many(answers) => answers,
        }
    }
}

impl Example for AnswerExample {
    const FORM: &'static str = r#"{"prompt": "Who wrote Emma?", "answers": ["Jane Austen", "Austen"]}"#;

    fn problem(&self) -> Option<String> {
        self.answers().is_empty().then(|| "it has no answer".into())
    }
}

/// The first examples of a file, at most `most`.
pub fn read<E: Example>(path: &Path, most: usize) -> Result<Vec<E>> {
    let text = fs::read_to_string(path).map_err(|error| Failure::read(path, &error))?;
    let mut examples = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).take(most) {
        let bad = |why: String| {
            let message = format!("{}:{}: {why}: a line looks like {}", path.display(), number + 1, E::FORM);
            Failure::new(Code::BadData, message)
        };
        let example: E = serde_json::from_str(line).map_err(|error| bad(error.to_string()))?;
        if let Some(problem) = example.problem() {
            return Err(bad(problem));
        }
        examples.push(example);
    }
    if examples.is_empty() {
        let message = format!("{} has no example: a line looks like {}", path.display(), E::FORM);
        return Err(Failure::new(Code::NoInput, message));
    }
    Ok(examples)
}
