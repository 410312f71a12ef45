//! What the tests of several modules share.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use ironmill_text::{BpeOptions, Pattern, PieceCounts, Silent, Tokenizer, train_bpe};

use crate::{InputOptions, Inputs, PrepareOptions, Prepared, Result, prepare};

/// A small tokenizer with an end-of-text token.
pub(crate) fn tokenizer() -> Tokenizer {
    tokenizer_with(&["<|endoftext|>"])
}

/// A small tokenizer with these special tokens.
pub(crate) fn tokenizer_with(special: &[&str]) -> Tokenizer {
    let special: Vec<String> = special.iter().map(|&text| text.to_owned()).collect();
    let mut counts = PieceCounts::new(&Pattern::Gpt2, &special).unwrap();
    counts.add_document(b"the cat sat on the mat and the dog sat on the log in the hall").unwrap();
    train_bpe(&counts, &BpeOptions { special, ..BpeOptions::new(280) }, &Silent).unwrap().0
}

/// The specs as [`Inputs`], read with default options.
pub(crate) fn inputs(specs: &[&Path]) -> Inputs {
    inputs_with(specs, &InputOptions::default()).unwrap()
}

/// The specs as [`Inputs`].
pub(crate) fn inputs_with(specs: &[&Path], options: &InputOptions) -> Result<Inputs> {
    let specs: Vec<String> = specs.iter().map(|path| path.to_str().unwrap().to_owned()).collect();
    Inputs::from_specs(&specs, options)
}

/// Prepares without progress or stop.
pub(crate) fn prepare_quietly(inputs: &Inputs, out: &Path, options: &PrepareOptions) -> Result<Prepared> {
    prepare(inputs, &tokenizer(), out, options, &Silent, &AtomicBool::new(false))
}
