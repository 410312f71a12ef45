//! `bench generate`: how fast prompts are read and tokens written, against what memory and arithmetic allow.

use super::card::CardLimits;
use super::limits::Limits;
use super::random::Random;
use super::step::Sizes;
use super::{Precision, Settings, Spread, cpu};
use crate::failure::Result;
use crate::show::Show;
use crate::show::numbers::{bytes, grouped};
use crate::stages::cuda;
use crate::stages::model::{self, Weights};
use ironmill_compute::{Cuda, Device, int8};
use ironmill_model::{Engine, Generator, GeneratorOptions, Model, ModelConfig, Request, Sampling};
use serde_json::{Value, json};
use std::time::Instant;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The model; its batch is not used.
    pub sizes: Sizes,
    /// How many texts are written at a time, one measurement each.
    pub batches: Vec<usize>,
    /// Tokens of a prompt.
    pub prompt: usize,
    /// Tokens that are written behind it.
    pub tokens: usize,
    /// Tokens are drawn from so many of the likeliest; 0 takes the likeliest.
    pub top_k: usize,
    /// What weights are kept in, where the precision does not say it.
    pub weights: Option<Weights>,
    /// How many of the likeliest tokens are asked for with every token, with their probabilities.
    pub log_probabilities: Option<usize>,
    /// Times that all of it is done; the median counts.
    pub rounds: usize,
}

/// The limits that generation is measured against.
struct Machine {
    line: String,
    json: Value,
    flops_per_s: f64,
    read_bytes_per_s: f64,
    /// A processor's, whose memory is what neighbours leave of it: looked at again and again.
    limits: Option<Limits>,
}

/// Seconds that count where noise hides what tokens take, as with tiny models.
const SHORTEST: f64 = 1e-6;

/// One batch size.
struct Measured {
    batch: usize,
    /// Seconds to read all prompts and draw a first token for each.
    prefill: Spread,
    /// Seconds of all tokens behind the first ones.
    decode: Spread,
    /// Seconds from the requests to the last token.
    whole: Spread,
    /// Bytes that a processor read a second around the rounds.
    reading: Option<Spread>,
}

/// Measures and shows every batch size.
pub fn run(show: &Show, device_name: &str, plan: &Plan, settings: Settings) -> Result<()> {
    let precision = match settings.precision {
        Precision::Fp32 => model::Precision::Fp32,
        Precision::Bf16 | Precision::Fp8 | Precision::Fp8Head => model::Precision::Bf16,
    };
    let (keep, name, bits) = match plan.weights {
        Some(weights) => (weights.keep(precision, device_name)?, "int8", 8.0 + 32.0 / int8::GROUP as f64),
        None => {
            let bits = 8.0 * settings.precision.stored().bytes() as f64;
            (precision.keep(device_name), settings.precision.name(), bits)
        }
    };
    let (machine, device): (Machine, Box<dyn Device>) = match cuda::ordinal(device_name) {
        Some(ordinal) => {
            let mut card = Cuda::new(&cuda::options(ordinal, None))?;
            let limits = CardLimits::measure(&mut card, settings.precision, settings.quick)?;
            let machine = Machine {
                line: limits.line(),
                json: limits.to_json(),
                flops_per_s: limits.flops_per_s,
                read_bytes_per_s: limits.copy_bytes_per_s,
                limits: None,
            };
            (machine, Box::new(card))
        }
        None => {
            let device = cpu(device_name, settings.threads)?;
            let limits = Limits::measure(&device, settings.quick)?;
            let machine = Machine {
                line: limits.line(),
                json: limits.to_json(),
                // Pairs of sixteen bits are multiplied as fast as those of bf16.
                flops_per_s: match plan.weights {
                    Some(Weights::Int8) => Precision::Bf16.flops_per_s(&limits),
                    None => settings.precision.flops_per_s(&limits),
                },
                read_bytes_per_s: limits.peak.read_bytes_per_s,
                limits: (!settings.quick).then_some(limits),
            };
            (machine, Box::new(device))
        }
    };
    let mut object = machine.json.clone();
    object["kind"] = "limits".into();
    show.result(&machine.line, &object)?;

    let config = ModelConfig { context: plan.prompt + plan.tokens, ..plan.sizes.config() };
    let model = Model::new(config.clone())?;
    let values = model.initial_values_by(settings.threads, 1);
    let parameters = model.layout().count();
    let mut engine = Engine::keeping(device, model, &values, keep)?;
    drop(values);
    // A processor keeps caches in f32.
    let is_card = cuda::ordinal(device_name).is_some();
    let cache_bytes = if is_card { settings.precision.stored().bytes() } else { size_of::<f32>() };
    let work = Work::new(&config, bits / 8.0, cache_bytes);
    let used = engine.used_bytes();
    let memory = used.map_or(String::new(), |used| format!(", {} of the card's memory", bytes(used as u64)));
    let what = format!(
        "{}, {} parameters in {}, {} of weights a step{memory}; prompt {}, {} new tokens",
        config.architecture.name(),
        grouped(parameters as u64),
        name,
        bytes(work.weight_bytes as u64),
        plan.prompt,
        plan.tokens
    );
    let object = json!({
        "kind": "model",
        "parameters": parameters,
        "precision": name,
        "weight_bytes": work.weight_bytes,
        "used_bytes": used,
        "prompt": plan.prompt,
        "tokens": plan.tokens,
    });
    show.result(&what, &object)?;
    for &batch in &plan.batches {
        let measured = measure(&mut engine, plan, batch, machine.limits.as_ref())?;
        let (text, object) = measured.told(plan, &machine, &work);
        show.result(&text, &object)?;
    }
    Ok(())
}

/// What a model must do and read.
struct Work {
    /// Bytes of the weights of all products, the head's included.
    weight_bytes: f64,
    /// Bytes of keys and values of a position.
    cache_bytes: f64,
    /// Operations for a position of a prompt, without the head and attention.
    prefill_flops: f64,
}

impl Work {
    fn new(config: &ModelConfig, weight_bytes: f64, cache_bytes: usize) -> Work {
        let head = config.vocab_size * config.width;
        let weights = config.product_parameters();
        let cache = 2 * config.layers * config.kv_heads * config.head_dim;
        Work {
            weight_bytes: weights as f64 * weight_bytes,
            cache_bytes: (cache * cache_bytes) as f64,
            prefill_flops: 2.0 * (weights - head) as f64,
        }
    }

    /// Bytes that a step of a batch reads at least, at a number of positions.
    fn step_bytes(&self, batch: usize, positions: f64) -> f64 {
        self.weight_bytes + batch as f64 * positions * self.cache_bytes
    }
}

fn measure(engine: &mut Engine, plan: &Plan, batch: usize, limits: Option<&Limits>) -> Result<Measured> {
    let vocabulary = engine.model().config().vocab_size;
    let options = GeneratorOptions { rows: batch, ..GeneratorOptions::default() };
    let mut generator = Generator::new(engine, options)?;
    let mut random = Random::new(7);
    let sampling = Sampling {
        temperature: if plan.top_k > 0 { 1.0 } else { 0.0 },
        top_k: plan.top_k,
        seed: 1,
        ..Sampling::GREEDY
    };
    // Seconds from requests of so many tokens to the last of them.
    let mut seconds = |tokens: usize| -> Result<f64> {
        let began = Instant::now();
        for sample in 0..batch {
            // Prompts of their own, so that nothing is shared.
            let prompt = (0..plan.prompt).map(|_| random.below(vocabulary)).collect();
            let request = Request {
                sampling: sampling.clone(),
                sample: sample as u32,
                log_probabilities: plan.log_probabilities,
                ..Request::new(prompt, tokens)
            };
            generator.submit(request)?;
        }
        while generator.next_token()?.is_some() {}
        Ok(began.elapsed().as_secs_f64())
    };
    let (mut prefill, mut decode, mut whole) = (Vec::new(), Vec::new(), Vec::new());
    let mut reading: Vec<f64> = limits.map(Limits::reading_now).into_iter().collect();
    // The first round builds the programs and does not count.
    for round in 0..=plan.rounds {
        // A device may draw many tokens before any is seen, so what the first ones take is measured apart.
        let (first, all) = (seconds(1)?, seconds(plan.tokens)?);
        if round > 0 {
            prefill.push(first);
            decode.push((all - first).max(SHORTEST));
            whole.push(all);
        }
        reading.extend(limits.map(Limits::reading_now));
    }
    let reading = Some(reading).filter(|rates| !rates.is_empty()).map(Spread::of_rates);
    let [prefill, decode, whole] = [prefill, decode, whole].map(Spread::of);
    Ok(Measured { batch, prefill, decode, whole, reading })
}

impl Measured {
    fn told(&self, plan: &Plan, machine: &Machine, work: &Work) -> (String, Value) {
        let batch = self.batch as f64;
        let prompts = batch * plan.prompt as f64;
        let steps = (plan.tokens - 1).max(1) as f64;
        let prefill_per_s = prompts / self.prefill.median;
        let decode_per_s = batch * steps / self.decode.median;
        let whole_per_s = batch * plan.tokens as f64 / self.whole.median;
        let prefill_share = prefill_per_s * work.prefill_flops / machine.flops_per_s;
        let positions = plan.prompt as f64 + plan.tokens as f64 / 2.0;
        let bytes_per_s = steps * work.step_bytes(self.batch, positions) / self.decode.median;
        let read_share = bytes_per_s / machine.read_bytes_per_s;
        let now_share = self.reading.as_ref().map(|reading| bytes_per_s / reading.median);
        let now = now_share
            .map_or(String::new(), |share| format!(", {:.0} % of what it was meanwhile", 100.0 * share));
        let text = format!(
            "batch {:>3}: prefill {:>9} tok/s ({:>3.0} % of peak) · decode {:>9} tok/s, {:>8.1} µs a step, {:>7.1} GB/s \
             ({:>3.0} % of reading{now}) · in all {:>9} tok/s",
            self.batch,
            grouped(prefill_per_s as u64),
            100.0 * prefill_share,
            rate(decode_per_s),
            1e6 * self.decode.median / steps,
            bytes_per_s / 1e9,
            100.0 * read_share,
            rate(whole_per_s),
        );
        let object = json!({
            "kind": "generate",
            "batch": self.batch,
            "prefill_tokens_per_s": prefill_per_s,
            "prefill_share": prefill_share,
            "decode_tokens_per_s": decode_per_s,
            "decode_best_tokens_per_s": batch * steps / self.decode.best,
            "step_s": self.decode.median / steps,
            "bytes_per_s": bytes_per_s,
            "read_share": read_share,
            "read_share_meanwhile": now_share,
            "tokens_per_s": whole_per_s,
        });
        (text, object)
    }
}

/// A rate with as many digits as say something.
fn rate(per_s: f64) -> String {
    if per_s < 1000.0 { format!("{per_s:.1}") } else { grouped(per_s as u64) }
}
