//! `ironmill embed`: texts as vectors.

use super::Context;
use crate::failure::{Code, Failure, Result};
use crate::stages::model;
use clap::ValueEnum;
use ironmill_model::Pooling;
use ironmill_text::Tokenizer;
use serde_json::json;
use std::io::{BufRead, BufReader, stdin};
use std::path::PathBuf;

/// The flags of `embed`.
#[derive(clap::Args)]
#[command(after_help = "\
Every line of the input, or every --text, becomes one line of the output: the numbers of its vector, of length 1 unless
--raw. Texts longer than the model's context are cut.

Examples:
  ironmill embed all-MiniLM-L6-v2 --text 'A fox in the snow' --text 'Winter animals'
  ironmill embed all-MiniLM-L6-v2 sentences.txt > vectors.txt
  ironmill embed all-MiniLM-L6-v2 sentences.txt --json > vectors.jsonl")]
pub struct Args {
    /// A Hugging Face folder, a run folder or a checkpoint
    #[arg(value_name = "RUN|MODEL")]
    model: PathBuf,
    /// A text file, a text a line [default: stdin, unless there is --text]
    #[arg(value_name = "INPUT", conflicts_with = "text")]
    input: Option<PathBuf>,
    /// A text; may be repeated
    #[arg(long, value_name = "TEXT")]
    text: Vec<String>,
    /// How the hidden states of a text become one vector
    #[arg(long, value_enum, default_value = "mean", value_name = "WAY")]
    pooling: Way,
    /// Leave vectors as long as they are
    #[arg(long)]
    raw: bool,
    /// Texts that go through the model at once
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    rows: u16,
    /// The tokenizer [default: the model's]
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// Where to run: auto, cpu, cuda, cuda:1 … or reference
    #[arg(long, default_value = "auto", value_name = "DEVICE")]
    device: String,
}

#[derive(Clone, Copy, ValueEnum)]
enum Way {
    /// Their mean
    Mean,
    /// The first one, as BERT's [CLS]
    First,
    /// The last one
    Last,
}

/// Writes a vector for each text.
pub fn run(context: &Context, args: &Args) -> Result<()> {
    context.refuse_overrides("embed")?;
    let found = model::find(&args.model, &context.show)?;
    let (tokenizer, file) = found.tokenizer(args.tokenizer.as_deref())?;
    let mut engine = found.engine(&args.device, context.threads)?;
    found.check_vocabulary(&engine, &tokenizer, &file)?;
    let longest = engine.model().config().context;
    let pooling = match args.pooling {
        Way::Mean => Pooling::Mean,
        Way::First => Pooling::First,
        Way::Last => Pooling::Last,
    };
    let mut cut = 0u64;
    let mut texts = args.texts()?;
    loop {
        let batch: Vec<String> = texts.by_ref().take(usize::from(args.rows)).collect::<Result<_>>()?;
        if batch.is_empty() {
            break;
        }
        let mut ids = Vec::with_capacity(batch.len());
        for text in &batch {
            let (tokens, is_cut) = encode(&tokenizer, text, longest)?;
            cut += u64::from(is_cut);
            ids.push(tokens);
        }
        for (text, mut vector) in batch.iter().zip(engine.embed(&ids, pooling)?) {
            if !args.raw {
                normalise(&mut vector);
            }
            let numbers: Vec<String> = vector.iter().map(ToString::to_string).collect();
            context.show.result(&numbers.join(" "), &json!({"text": text, "vector": vector}))?;
        }
    }
    if cut > 0 {
        context.show.warn(&format!("{cut} texts were longer than the model's {longest} tokens and were cut"));
    }
    Ok(())
}

impl Args {
    /// The texts, as they are read.
    fn texts(&self) -> Result<Box<dyn Iterator<Item = Result<String>> + '_>> {
        if !self.text.is_empty() {
            return Ok(Box::new(self.text.iter().cloned().map(Ok)));
        }
        let Some(path) = &self.input else {
            let failed = |error: std::io::Error| {
                Failure::new(Code::Io, format!("cannot read stdin ({error}): check what feeds it"))
            };
            return Ok(Box::new(stdin().lines().map(move |line| line.map_err(failed))));
        };
        let file = std::fs::File::open(path).map_err(|error| Failure::read(path, &error))?;
        let lines = BufReader::new(file).lines();
        Ok(Box::new(lines.map(move |line| line.map_err(|error| Failure::read(path, &error)))))
    }
}

/// The tokens of a text between those that the vocabulary's makers put around one, and whether some were left out.
fn encode(tokenizer: &Tokenizer, text: &str, longest: usize) -> Result<(Vec<u32>, bool)> {
    let (before, after) = tokenizer.around();
    let room = longest.saturating_sub(before.len() + after.len());
    let mut inner = Vec::new();
    tokenizer.encode(text.as_bytes(), &mut inner)?;
    let is_cut = inner.len() > room;
    inner.truncate(room);
    let mut ids = before.to_vec();
    ids.extend(inner);
    ids.extend(after);
    if ids.is_empty() {
        let advice = "this tokenizer puts nothing around it; leave empty lines out";
        return Err(Failure::new(Code::BadData, format!("an empty text has no vector: {advice}")));
    }
    Ok((ids, is_cut))
}

fn normalise(vector: &mut [f32]) {
    let length = vector.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt().max(1e-12);
    vector.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
}
