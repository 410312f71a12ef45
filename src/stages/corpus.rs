//! What a run trains on: a tokenizer and a prepared data set, made or found.

use super::data;
use super::model;
use super::run_folder::RunFolder;
use super::tokenizer::{self, Budget, Counting};
use crate::cli::Context;
use crate::config::{Config, DEFAULT_MEMORY, MASK, TokenizerConfig, TokenizerTraining};
use crate::failure::{Code, Failure, Result};
use crate::faults::Faults;
use crate::show::numbers::grouped;
use ironmill_data::manifest::{MANIFEST_NAME, TOKENIZER_NAME};
use ironmill_data::{BadUtf8, Dataset, InputOptions, Inputs, PrepareOptions, Split, ngram_yardsticks};
use ironmill_text::{Tokenizer, durable};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

/// A tokenizer and the tokens it made.
pub struct Corpus {
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// The prepared tokens.
    pub dataset: Dataset,
}

/// Finds what was prepared, or makes what is missing: the tokenizer, then the shards.
pub fn make(run: &RunFolder, config: &Config, context: &Context, stop: &AtomicBool) -> Result<Corpus> {
    // Once there is a checkpoint, its tokenizer and tokens are part of the run and are not made again.
    if prepared_input(config).is_some() || run.has_checkpoint()? {
        return find(run, config);
    }
    if config.data.input.is_empty() {
        let advice = "name files or folders, or \"builtin:stories:20MB\", in [data] or with --data.input";
        return Err(Failure::new(Code::BadConfig, format!("data.input is missing: {advice}")));
    }
    let inputs = Inputs::from_specs(&config.data.input, &input_options(config)?)?;
    let tokenizer = match &config.tokenizer {
        TokenizerConfig::File { file } => {
            let tokenizer = Tokenizer::load(file)?;
            check_objective(config, &tokenizer, file)?;
            tokenizer.save(&run.tokenizer())?;
            tokenizer
        }
        TokenizerConfig::Train(settings) => {
            if config.model.architecture == "encoder" {
                let why = "an encoder learns by filling in what it hides";
                context.show.note(&format!("tokenizer: {MASK} is a special token, because {why}"));
            }
            train_or_reuse(run, settings, &inputs, context, stop)?
        }
    };
    let options = PrepareOptions {
        validation: config.data.validation,
        shard_tokens: config.data.shard_tokens,
        drop_duplicates: config.data.drop_duplicates,
        threads: context.threads,
        disk: Faults::from_environment()?.disk(),
    };
    let prepared = data::prepare(&inputs, &tokenizer, &run.data(), &options, &context.show, stop)?;
    context.show.note(&format!("data: {}", prepared.summary()));
    Ok(Corpus { tokenizer, dataset: Dataset::open(&run.data())? })
}

/// Finds what was prepared: the folder that the configuration names, or the one of the run.
pub fn find(run: &RunFolder, config: &Config) -> Result<Corpus> {
    let (dir, beside) = match prepared_input(config) {
        Some(dir) => (dir.clone(), dir.join(TOKENIZER_NAME)),
        None => (run.data(), run.tokenizer()),
    };
    if !dir.join(MANIFEST_NAME).is_file() {
        let message = format!(
            "{} holds no prepared data: use `ironmill run`, which prepares and trains, \
             or `ironmill data prepare` and set data.input to its folder",
            dir.display()
        );
        return Err(Failure::new(Code::NoInput, message));
    }
    let dataset = Dataset::open(&dir)?;
    let file = match &config.tokenizer {
        TokenizerConfig::File { file } => file.clone(),
        TokenizerConfig::Train(_) => beside,
    };
    let tokenizer = Tokenizer::load(&file)?;
    check_match(&tokenizer, &file, &dataset, &dir)?;
    check_objective(config, &tokenizer, &file)?;
    Ok(Corpus { tokenizer, dataset })
}

/// Refuses a tokenizer with which the model has nothing to learn from.
fn check_objective(config: &Config, tokenizer: &Tokenizer, file: &Path) -> Result<()> {
    model::objective(config, tokenizer)
        .map(|_| ())
        .map_err(|failure| Failure::new(failure.code(), format!("{}: {failure}", file.display())))
}

/// Refuses a tokenizer that did not make the tokens.
pub fn check_match(tokenizer: &Tokenizer, file: &Path, dataset: &Dataset, dir: &Path) -> Result<()> {
    if dataset.check_tokenizer(&tokenizer.hash()).is_ok() {
        return Ok(());
    }
    let message = format!(
        "{} has {} tokens but is not the tokenizer that {} was prepared with ({} tokens): \
         use that one, or prepare the data again",
        file.display(),
        grouped(tokenizer.vocab_size() as u64),
        dir.display(),
        grouped(dataset.manifest().vocab_size)
    );
    Err(Failure::new(Code::BadData, message))
}

/// Tells what a loss is measured against, if there is something to measure on.
pub fn show_yardsticks(corpus: &Corpus, context: &Context) -> Result<Option<ironmill_data::Yardsticks>> {
    let (train, validation) = (corpus.dataset.split(Split::Train), corpus.dataset.split(Split::Validation));
    if validation.is_empty() {
        context.show.note("no validation tokens: the loss is measured on training tokens only");
        return Ok(None);
    }
    let bars = ngram_yardsticks(train, validation, corpus.tokenizer.vocab_size() as u64)?;
    context.show.note(&format!(
        "yardsticks, in nats a token: {:.4} knowing nothing (ln of the vocabulary), {:.4} by unigram counts, \
         {:.4} by bigram counts",
        bars.uniform, bars.unigram, bars.bigram
    ));
    Ok(Some(bars))
}

/// How a configuration says that inputs are read.
pub fn input_options(config: &Config) -> Result<InputOptions> {
    Ok(InputOptions {
        document_separator: config.data.document_separator.clone(),
        text_key: config.data.text_key.clone(),
        on_bad_utf8: BadUtf8::from_name(&config.data.on_bad_utf8)?,
        sample: None,
        seed: config.seed,
        may_read_stdin: false,
    })
}

/// The folder of prepared tokens that the configuration names as its input, if it does.
pub fn prepared_input(config: &Config) -> Option<PathBuf> {
    let [input] = config.data.input.as_slice() else { return None };
    let dir = PathBuf::from(input);
    dir.join(MANIFEST_NAME).is_file().then_some(dir)
}

/// Trains a tokenizer unless the run already has one that was trained on the same inputs in the same way.
fn train_or_reuse(
    run: &RunFolder,
    settings: &TokenizerTraining,
    inputs: &Inputs,
    context: &Context,
    stop: &AtomicBool,
) -> Result<Tokenizer> {
    let reading = inputs.options();
    let memory = settings.memory.unwrap_or(DEFAULT_MEMORY);
    // How much memory it took to make is no part of what was made.
    let settings = &TokenizerTraining { memory: None, ..settings.clone() };
    let made_of = json!({
        "version": 1,
        "settings": settings,
        "inputs": inputs.records(),
        "document_separator": reading.document_separator,
        "text_key": reading.text_key,
        "on_bad_utf8": reading.on_bad_utf8.name(),
        "seed": reading.seed,
    });
    let made_of = format!("{made_of:#}\n");
    if std::fs::read_to_string(run.tokenizer_inputs()).is_ok_and(|stored| stored == made_of)
        && let Ok(tokenizer) = Tokenizer::load(&run.tokenizer())
    {
        let size = grouped(tokenizer.vocab_size() as u64);
        context.show.note(&format!("tokenizer: already trained; {size} tokens"));
        return Ok(tokenizer);
    }
    let budget = Budget::new(memory, context.threads, Some(run.path().to_path_buf()), false)?;
    let counting = Counting { by_lines: false, max_token_length: None, budget };
    let trained = tokenizer::train(inputs, settings, &counting, &context.show, stop)?;
    trained.tokenizer.save(&run.tokenizer())?;
    counting.budget.forget_counts();
    let path = run.tokenizer_inputs();
    durable::write(&path, made_of.as_bytes()).map_err(|error| Failure::write(&path, &error))?;
    context.show.note(&format!("tokenizer: {}", trained.summary));
    Ok(trained.tokenizer)
}
