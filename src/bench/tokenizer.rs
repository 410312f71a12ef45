//! Training a tokenizer and encoding with it, phase by phase, against the rate at which the machine reads memory.

use super::clock::{Clock, counted_name};
use super::limits::Limits;
use super::{Spread, cpu};
use crate::config::DEFAULT_MEMORY;
use crate::failure::Result;
use crate::show::Show;
use crate::show::numbers::{bytes, counted};
use crate::stages::tokenizer::{Budget, count_pieces};
use ironmill_data::{Chunk, InputOptions, Inputs};
use ironmill_text::{
    BpeOptions, CountSettings, CounterRoom, FrequentPieces, Pattern, PieceCounter, Silent, TextCuts,
    Tokenizer, learn_bpe,
};
use serde_json::json;
use std::sync::atomic::AtomicBool;

/// What to measure.
pub struct Plan {
    /// The text.
    pub inputs: Vec<String>,
    /// The vocabulary to learn.
    pub vocab_size: usize,
    /// How text is cut.
    pub pattern: Pattern,
    /// How many threads count.
    pub threads: usize,
    /// Whether to take only a glance.
    pub quick: bool,
}

/// Text is handed on in chunks of this size, as in training.
const CHUNK_BYTES: usize = 1 << 20;

/// Measures reading, scanning, counting, learning, encoding and decoding.
pub fn run(show: &Show, plan: &Plan) -> Result<()> {
    let limits = Limits::measure(&cpu("cpu", plan.threads)?, plan.quick)?;
    let mut object = limits.to_json();
    object["kind"] = "limits".into();
    show.result(&limits.line(), &object)?;
    let inputs = Inputs::from_specs(&plan.inputs, &InputOptions::default())?;
    let special = vec!["<|endoftext|>".to_string()];
    let settings = CountSettings::new(&plan.pattern, &special, false);
    let rounds = if plan.quick { 1 } else { 5 };

    let mut n_bytes = 0;
    let read = repeat(rounds, 1, || {
        n_bytes = 0;
        for_each_text(&inputs, &plan.pattern, &special, |text| {
            n_bytes += text.len() as u64;
            Ok(())
        })
    })?;
    let room = CounterRoom { memory: DEFAULT_MEMORY as usize, scratch: None, approximate: false };
    let mut n_pieces = 0;
    let scan = repeat(rounds, 1, || {
        let mut counter = PieceCounter::new(&plan.pattern, &special, room.clone())?;
        n_pieces = 0;
        for_each_text(&inputs, &plan.pattern, &special, |text| {
            n_pieces += counter.scan(text)?;
            Ok(())
        })
    })?;
    let never = AtomicBool::new(false);
    let budget = Budget::new(DEFAULT_MEMORY, plan.threads, None, false)?;
    let quiet = Show::new(crate::show::Style { quiet: true, ..Default::default() });
    let mut distinct = 0;
    let count = repeat(rounds, plan.threads, || {
        distinct = count_pieces(&inputs, &settings, &budget, &quiet, &never)?.totals().distinct;
        Ok(())
    })?;
    let options = BpeOptions { pattern: plan.pattern.clone(), special, ..BpeOptions::new(plan.vocab_size) };
    let mut n_merges = 0;
    let mut learn = Vec::new();
    let mut learnt = None;
    for _ in 0..rounds {
        let pieces = count_pieces(&inputs, &settings, &budget, &quiet, &never)?;
        let clock = Clock::now();
        let (tokenizer, report) = learn_bpe(pieces, &options, &budget.for_learning(), &Silent)?;
        learn.push(clock.elapsed().counted(1));
        n_merges = report.merges;
        learnt = Some(tokenizer);
    }
    let learn = Spread::of(learn);
    let Some(tokenizer) = learnt else { return Ok(()) };
    let coding = Coding::measure(&tokenizer, &inputs, plan, &options.special, rounds)?;

    let what = format!(
        "{} of text, {}, {}, {}; pattern {}",
        bytes(n_bytes),
        counted(n_pieces, "piece"),
        counted(distinct, "distinct piece"),
        counted(n_merges, "merge"),
        plan.pattern
    );
    let object = json!({"kind": "corpus", "bytes": n_bytes, "pieces": n_pieces, "distinct": distinct, "merges": n_merges});
    show.result(&what, &object)?;
    let only_scan = Spread { median: scan.median - read.median, best: scan.best - read.best };
    let read_rate = limits.peak.read_bytes_per_s;
    for (phase, spread, threads) in [
        ("read", read, 1),
        ("scan", only_scan, 1),
        ("read, scan and count", count, plan.threads),
        ("learn", learn, 1),
        ("encode, first time", coding.first, 1),
        ("encode, again", coding.again, 1),
        ("decode", coding.decode, 1),
    ] {
        let rate = n_bytes as f64 / spread.median;
        let line = format!(
            "{phase:22} {:8.3} s {:4} (best {:.3}) {:8.0} MB/s {:6.1} % of reading memory",
            spread.median,
            counted_name(threads),
            spread.best,
            rate / 1e6,
            100.0 * rate / read_rate
        );
        let object = json!({
            "kind": "phase",
            "phase": phase,
            "median_s": spread.median,
            "best_s": spread.best,
            "clock": counted_name(threads),
            "threads": threads,
            "bytes_per_s": rate,
            "share": rate / read_rate,
        });
        show.result(&line, &object)?;
    }
    Ok(())
}

/// The times of encoding all text on one thread, and of decoding it.
struct Coding {
    /// By an encoder that knows the vocabulary alone.
    first: Spread,
    /// By one that has seen the text.
    again: Spread,
    decode: Spread,
}

impl Coding {
    fn measure(
        tokenizer: &Tokenizer,
        inputs: &Inputs,
        plan: &Plan,
        special: &[String],
        rounds: usize,
    ) -> Result<Coding> {
        let mut text = String::new();
        for_each_text(inputs, &plan.pattern, special, |part| {
            text += part;
            Ok(())
        })?;
        // Memory that has been written before: a fresh page costs more than the tokens on it.
        let mut ids = vec![1; text.len()];
        let (mut first, mut again) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            tokenizer.expect(FrequentPieces::default());
            tokenizer.encode(b"makes the tables", &mut Vec::new())?;
            for times in [&mut first, &mut again] {
                ids.clear();
                let clock = Clock::now();
                tokenizer.encode(text.as_bytes(), &mut ids)?;
                times.push(clock.elapsed().counted(1));
            }
        }
        let mut decoded = vec![1; text.len()];
        let decode = repeat(rounds, 1, || {
            decoded.clear();
            Ok(tokenizer.decode_into(&ids, &mut decoded)?)
        })?;
        Ok(Coding { first: Spread::of(first), again: Spread::of(again), decode })
    }
}

fn repeat(rounds: usize, threads: usize, mut work: impl FnMut() -> Result<()>) -> Result<Spread> {
    let mut seconds = Vec::new();
    for _ in 0..rounds {
        let clock = Clock::now();
        work()?;
        seconds.push(clock.elapsed().counted(threads));
    }
    Ok(Spread::of(seconds))
}

fn for_each_text(
    inputs: &Inputs,
    pattern: &Pattern,
    special: &[String],
    mut visit: impl FnMut(&str) -> Result<()>,
) -> Result<()> {
    let cuts = TextCuts::new(pattern, special, false)?;
    let mut chunks = inputs.chunks(cuts, CHUNK_BYTES, usize::MAX);
    let mut chunk = Chunk::default();
    while chunks.next(&mut chunk)? {
        chunk.parts().try_for_each(|(text, _)| visit(text))?;
    }
    Ok(())
}
