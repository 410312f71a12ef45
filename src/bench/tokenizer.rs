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
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

/// What to measure.
pub struct Plan {
    /// The text.
    pub inputs: Vec<String>,
    /// Measure encoding with this tokenizer alone, instead of training one.
    pub tokenizer: Option<PathBuf>,
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
    if let Some(path) = &plan.tokenizer {
        let rounds = if plan.quick { 1 } else { 5 };
        let coding = Coding::measure(|| Ok(Tokenizer::load(path)?), &inputs, rounds, plan.threads)?;
        return coding.show(show, limits.peak.read_bytes_per_s);
    }
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
    let forgetting = || {
        tokenizer.expect(FrequentPieces::default());
        Ok(tokenizer.clone())
    };
    let coding = Coding::measure(forgetting, &inputs, rounds, plan.threads)?;

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
    ] {
        show_phase(show, phase, &spread, threads, n_bytes, read_rate)?;
    }
    coding.show(show, read_rate)
}

fn show_phase(
    show: &Show,
    phase: &str,
    spread: &Spread,
    threads: usize,
    n_bytes: u64,
    read_rate: f64,
) -> Result<()> {
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
    show.result(&line, &object)
}

/// The times of encoding all text on one thread and on all, and of decoding it.
struct Coding {
    n_bytes: u64,
    threads: usize,
    /// Reading the tokenizer, if it is read, and making its tables.
    start: Spread,
    /// By an encoder that has not seen the text.
    first: Spread,
    /// By one that has.
    again: Spread,
    /// The same on one thread and on several, by the wall clock; none for one thread.
    in_parallel: Option<[Spread; 2]>,
    decode: Spread,
}

impl Coding {
    /// `fresh` gives a tokenizer that has encoded nothing.
    fn measure(
        fresh: impl Fn() -> Result<Tokenizer>,
        inputs: &Inputs,
        rounds: usize,
        threads: usize,
    ) -> Result<Coding> {
        let mut text = String::new();
        for document in inputs.documents() {
            text += &document?.text;
        }
        // Memory that has been written before: a fresh page costs more than the tokens on it.
        let mut ids = vec![1; text.len()];
        let mut decoded = vec![1; text.len()];
        let (mut start, mut first, mut again, mut decode) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut in_parallel = [Vec::new(), Vec::new()];
        for _ in 0..rounds {
            let clock = Clock::now();
            let tokenizer = fresh()?;
            tokenizer.encode(b"makes the tables", &mut Vec::new())?;
            start.push(clock.elapsed().counted(1));
            for times in [&mut first, &mut again] {
                ids.clear();
                let clock = Clock::now();
                tokenizer.encode(text.as_bytes(), &mut ids)?;
                times.push(clock.elapsed().counted(1));
            }
            if threads > 1 {
                // The first time all threads get to know the text, the second time counts.
                for n_threads in [threads, threads, 1] {
                    ids.clear();
                    let clock = Clock::now();
                    tokenizer.encode_parallel(text.as_bytes(), false, n_threads, &mut ids)?;
                    in_parallel[usize::from(n_threads > 1)].push(clock.elapsed().wall);
                }
                in_parallel[1].remove(in_parallel[1].len() - 2);
            }
            decoded.clear();
            let clock = Clock::now();
            tokenizer.decode_into(&ids, &mut decoded)?;
            decode.push(clock.elapsed().counted(1));
        }
        let n_bytes = text.len() as u64;
        let [start, first, again, decode] = [start, first, again, decode].map(Spread::of);
        let in_parallel = (threads > 1).then(|| in_parallel.map(Spread::of));
        Ok(Coding { n_bytes, threads, start, first, again, in_parallel, decode })
    }

    fn show(&self, show: &Show, read_rate: f64) -> Result<()> {
        let mut phases = vec![
            ("encoder start", &self.start, 1),
            ("encode, first time", &self.first, 1),
            ("encode, again", &self.again, 1),
            ("decode", &self.decode, 1),
        ];
        if let Some([_, several]) = &self.in_parallel {
            phases.insert(3, ("encode, all threads", several, self.threads));
        }
        for (phase, spread, threads) in phases {
            show_phase(show, phase, spread, threads, self.n_bytes, read_rate)?;
        }
        let Some([one, several]) = &self.in_parallel else { return Ok(()) };
        let (speedup, threads) = (one.best / several.best, self.threads);
        let line = format!("{threads} threads encode {speedup:.2} times as fast as one, best against best");
        show.result(&line, &json!({"kind": "threads", "threads": threads, "speedup": speedup}))
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
