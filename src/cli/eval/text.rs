//! `eval --text`: the loss of one text, and the logits behind its tokens for whoever compares programs.

use crate::cli::Context;
use crate::failure::{Code, Failure, Result};
use crate::show::numbers::grouped;
use crate::stages::model::Found;
use crate::stages::sampling::check_can_write;
use ironmill_data::safetensors::{self, Dtype, TensorView};
use ironmill_model::{Continuation, Engine};
use ironmill_text::Tokenizer;
use serde_json::json;
use std::f64::consts::LN_2;
use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// Measures a model on a text.
pub fn run(
    context: &Context,
    args: &super::Args,
    found: &Found,
    (tokenizer, file): (&Tokenizer, &Path),
    text: &str,
) -> Result<()> {
    let text = match text.strip_prefix('@').map(Path::new) {
        Some(path) => fs::read_to_string(path).map_err(|error| Failure::read(path, &error))?,
        None => text.to_owned(),
    };
    let ids = encode(tokenizer, &text)?;
    let mut engine = found.engine_in(args.storage, &args.device, context.threads)?;
    check_can_write(&engine, &args.model)?;
    found.check_vocabulary(&engine, tokenizer, file)?;
    let longest = engine.model().config().context;
    if ids.len() > longest {
        let message = format!(
            "the text has {} tokens and the model a context of {}: shorten it, or prepare it and give --data",
            grouped(ids.len() as u64),
            grouped(longest as u64)
        );
        return Err(Failure::new(Code::BadData, message));
    }
    let predicted = ids.len() - 1;
    let whole = Continuation { ids, asked: predicted };
    let never = AtomicBool::new(false);
    // One text is one row of one program.
    let likelihoods = engine.log_likelihoods(std::slice::from_ref(&whole), predicted, &mut |_| (), &never)?;
    let nats: f64 = -likelihoods.iter().sum::<f64>();
    if let Some(path) = &args.logits {
        write_logits(path, &mut engine, &whole.ids)?;
    }
    let (loss, bits) = (nats / predicted as f64, nats / LN_2 / text.len().max(1) as f64);
    let line = format!(
        "{}: loss {loss:.4} nats a token, perplexity {:.2}, {bits:.4} bits per byte, over {} tokens",
        found.weights.display(),
        loss.exp(),
        grouped(predicted as u64),
    );
    let object = json!({
        "model": found.weights,
        "loss": loss,
        "perplexity": loss.exp(),
        "bits_per_byte": bits,
        "tokens": predicted,
        "ids": whole.ids,
        "logits": args.logits,
    });
    context.show.result(&line, &object)
}

/// The tokens of a text between those that the vocabulary's makers put around one.
fn encode(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>> {
    let (before, after) = tokenizer.around();
    let mut ids = before.to_vec();
    tokenizer.encode(text.as_bytes(), &mut ids)?;
    ids.extend_from_slice(after);
    if ids.len() < 2 {
        let advice = "a token is predicted from one before it, so give a longer text";
        let message = format!("the text has {} tokens: {advice}", ids.len());
        return Err(Failure::new(Code::BadData, message));
    }
    Ok(ids)
}

/// A file with `ids` [tokens] and `logits` [tokens, vocabulary].
fn write_logits(path: &Path, engine: &mut Engine, ids: &[u32]) -> Result<()> {
    let logits: Vec<u8> = engine.logits(ids)?.iter().flat_map(|logit| logit.to_le_bytes()).collect();
    let id_bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    let (tokens, vocabulary) = (ids.len() as u64, engine.model().config().vocab_size as u64);
    let tensors = [
        TensorView { name: "ids", dtype: Dtype::U32, shape: &[tokens], bytes: &id_bytes },
        TensorView { name: "logits", dtype: Dtype::F32, shape: &[tokens, vocabulary], bytes: &logits },
    ];
    Ok(safetensors::write(path, &tensors, &[])?)
}
