//! Generation through the key-value cache: prompts in chunks, then a token a run for all samples at once.
//!
//! When a sample fills the context, the last half of its window is kept and read again from position 0 (cached positions
//! cannot slide). [`Engine::next_logits`], which has no cache, is the oracle of all this.

use std::ops::ControlFlow;

use ironmill_compute::{DType, HostData, TensorType};
use ironmill_graph::{Graph, Passes, ProgramId, StateId, Tensor};

use crate::{
    architecture::{Attend, Tokens},
    engine::Engine,
    error::{Error, Result},
    sampling::Sampling,
};

/// Positions that a run of the prefill program takes, smallest first; a context that is smaller takes its place.
const CHUNKS: [usize; 4] = [16, 64, 256, 1024];

/// What to generate.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerateOptions {
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// The most tokens to add to a prompt.
    pub max_tokens: usize,
    /// Tokens that end a sample; they are part of it.
    pub stop: Vec<u32>,
}

/// Why a sample ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// It has as many tokens as asked for.
    Length,
    /// It reached a stop token.
    Stop,
    /// The caller ended it.
    Cancelled,
}

/// A generated sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generated {
    /// The tokens behind the prompt.
    pub ids: Vec<u32>,
    /// Why it ended.
    pub finish: Finish,
}

/// Where the window of a sample with `len` tokens starts, given where it started before: it moves only when the context is
/// full, and then keeps the last half.
pub fn window_start(len: usize, start: usize, context: usize) -> usize {
    if len - start <= context { start } else { len - (context / 2).max(1) }
}

/// The caches of some samples and the programs that feed them.
pub(crate) struct Generator {
    rows: usize,
    caches: Vec<[StateId; 2]>,
    programs: Vec<(usize, Decode)>,
}

/// The program that reads some positions of every sample and gives the logits behind each sample's last one.
#[derive(Clone, Copy)]
struct Decode {
    program: ProgramId,
    ids: Tensor,
    positions: Tensor,
    starts: Tensor,
    last: Tensor,
    logits: Tensor,
}

/// A sample on its way.
struct Row {
    tokens: Vec<u32>,
    prompt: usize,
    start: usize,
    cached: usize,
    finish: Option<Finish>,
}

impl Engine {
    /// Continues prompts, all at once. Sample `i` draws by (seed, i, position), whatever the other samples are.
    ///
    /// Every token is handed to `on_token` with its sample's index as soon as it is known.
    pub fn generate(
        &mut self,
        prompts: &[Vec<u32>],
        options: &GenerateOptions,
        on_token: &mut dyn FnMut(usize, u32) -> ControlFlow<()>,
    ) -> Result<Vec<Generated>> {
        let (context, vocabulary) = (self.model.config().context, self.model.config().vocab_size);
        if !self.model.config().architecture.is_causal() {
            let advice = "sample from a gpt2 or llama model";
            return Err(Error::Prompt(format!("a bidirectional encoder cannot continue text; {advice}")));
        }
        self.show()?;
        let mut rows = Vec::with_capacity(prompts.len());
        for prompt in prompts {
            if prompt.is_empty() {
                return Err(Error::Prompt(
                    "the prompt has no token; give at least one character of text".into(),
                ));
            }
            if let Some(id) = prompt.iter().find(|&&id| id as usize >= vocabulary) {
                let advice = "use the tokenizer that the model was trained with";
                return Err(Error::Prompt(format!(
                    "token {id} is outside the model's vocabulary of {vocabulary}; {advice}"
                )));
            }
            let finish = (options.max_tokens == 0).then_some(Finish::Length);
            rows.push(Row { tokens: prompt.clone(), prompt: prompt.len(), start: 0, cached: 0, finish });
        }
        let mut logits = vec![0.0; rows.len() * vocabulary];
        while rows.iter().any(|row| row.finish.is_none()) {
            let mut longest = 0;
            for row in rows.iter_mut().filter(|row| row.finish.is_none()) {
                let start = window_start(row.tokens.len(), row.start, context);
                if start != row.start {
                    (row.start, row.cached) = (start, 0);
                }
                longest = longest.max(row.tokens.len() - row.start - row.cached);
            }
            let fed = self.feed(&rows, chunk(longest, context), &mut logits)?;
            for (index, (row, fed)) in rows.iter_mut().zip(fed).enumerate() {
                row.cached += fed;
                if row.finish.is_some() || row.start + row.cached < row.tokens.len() {
                    continue;
                }
                let logits = &logits[index * vocabulary..][..vocabulary];
                let id = options.sampling.choose(logits, index as u32, row.tokens.len() as u32);
                row.tokens.push(id);
                row.finish = if on_token(index, id).is_break() {
                    Some(Finish::Cancelled)
                } else if options.stop.contains(&id) {
                    Some(Finish::Stop)
                } else {
                    (row.tokens.len() - row.prompt == options.max_tokens).then_some(Finish::Length)
                };
            }
        }
        let ended = |row: Row| Generated {
            ids: row.tokens[row.prompt..].to_vec(),
            finish: row.finish.unwrap_or(Finish::Length),
        };
        Ok(rows.into_iter().map(ended).collect())
    }

    /// The logits behind the last of some tokens, computed over all of them without a cache.
    pub fn next_logits(&mut self, ids: &[u32]) -> Result<Vec<f32>> {
        let context = self.model.config().context;
        if ids.is_empty() || ids.len() > context {
            return Err(Error::Prompt(format!(
                "{} tokens where 1 to {context} fit; shorten the text",
                ids.len()
            )));
        }
        self.show()?;
        let mut g = Graph::new();
        let dims = [1, ids.len()];
        let (tokens, positions) =
            (g.input("ids", &dims, DType::U32), g.input("positions", &dims, DType::U32));
        let last = g.input("last", &[1], DType::U32);
        let tokens_in = Tokens { ids: tokens, positions, attend: Attend::PLAIN, recompute: false };
        let hidden = self.model.hidden(&mut g, self.shown, tokens_in)?;
        let hidden = g.embed(hidden, last)?;
        let logits = self.model.logits(&mut g, self.shown, hidden)?;
        g.keep(logits);
        let program = self.runtime.compile(g, &Passes::ALL)?;
        let counting: Vec<u32> = (0..ids.len() as u32).collect();
        self.runtime.write(program, tokens, HostData::U32(ids))?;
        self.runtime.write(program, positions, HostData::U32(&counting))?;
        self.runtime.write(program, last, HostData::U32(&[ids.len() as u32 - 1]))?;
        self.runtime.run(program)?;
        let mut out = vec![0.0; self.model.config().vocab_size];
        self.runtime.read(program, logits, &mut out)?;
        Ok(out)
    }

    /// Feeds every sample its next tokens, at most `chunk`, and returns how many each took.
    fn feed(&mut self, rows: &[Row], chunk: usize, logits: &mut [f32]) -> Result<Vec<usize>> {
        let decode = self.decode_program(rows.len(), chunk)?;
        let last_position = self.model.config().context - 1;
        let mut ids = vec![0; rows.len() * chunk];
        let mut positions = vec![0; rows.len() * chunk];
        let mut starts = vec![0; rows.len()];
        let mut last = vec![0; rows.len()];
        let mut fed = vec![0; rows.len()];
        for (index, row) in rows.iter().enumerate() {
            // What lies behind a sample's own tokens is padding: later tokens overwrite it before anything reads it.
            let pending = &row.tokens[(row.start + row.cached).min(row.tokens.len())..];
            let taken = if row.finish.is_some() { 0 } else { pending.len().min(chunk) };
            ids[index * chunk..][..taken].copy_from_slice(&pending[..taken]);
            for (t, position) in positions[index * chunk..][..chunk].iter_mut().enumerate() {
                *position = (row.cached + t).min(last_position) as u32;
            }
            starts[index] = row.cached as u32;
            last[index] = (index * chunk + taken.saturating_sub(1)) as u32;
            fed[index] = taken;
        }
        let runtime = &mut self.runtime;
        runtime.write(decode.program, decode.ids, HostData::U32(&ids))?;
        runtime.write(decode.program, decode.positions, HostData::U32(&positions))?;
        runtime.write(decode.program, decode.starts, HostData::U32(&starts))?;
        runtime.write(decode.program, decode.last, HostData::U32(&last))?;
        runtime.run(decode.program)?;
        runtime.read(decode.program, decode.logits, logits)?;
        Ok(fed)
    }

    fn decode_program(&mut self, rows: usize, chunk: usize) -> Result<Decode> {
        let config = self.model.config();
        let (context, layers, width) = (config.context, config.layers, config.kv_heads * config.head_dim);
        if self.generator.as_ref().is_none_or(|generator| generator.rows != rows) {
            let mut caches = Vec::with_capacity(layers);
            for _ in 0..layers {
                let mut cache = || self.runtime.add_state(DType::F32, rows * context * width);
                caches.push([cache()?, cache()?]);
            }
            self.generator = Some(Generator { rows, caches, programs: Vec::new() });
        }
        let Some(generator) = &mut self.generator else { unreachable!("it was just made") };
        if let Some((_, decode)) = generator.programs.iter().find(|(positions, _)| *positions == chunk) {
            return Ok(*decode);
        }
        let mut g = Graph::new();
        let dims = [rows, chunk];
        let (ids, positions) = (g.input("ids", &dims, DType::U32), g.input("positions", &dims, DType::U32));
        let (starts, last) = (g.input("starts", &[rows], DType::U32), g.input("last", &[rows], DType::U32));
        let of = TensorType::new(&[rows, context, width], DType::F32);
        let caches: Vec<[Tensor; 2]> =
            generator.caches.iter().map(|pair| pair.map(|cache| g.state(cache, 0, of))).collect();
        let attend = Attend::Cached { caches: &caches, starts };
        let tokens = Tokens { ids, positions, attend, recompute: false };
        let hidden = self.model.hidden(&mut g, self.shown, tokens)?;
        let hidden = g.embed(hidden, last)?;
        let logits = self.model.logits(&mut g, self.shown, hidden)?;
        g.keep(logits);
        let program = self.runtime.compile(g, &Passes::ALL)?;
        let decode = Decode { program, ids, positions, starts, last, logits };
        generator.programs.push((chunk, decode));
        Ok(decode)
    }
}

/// The positions of the program that takes `longest` pending tokens best.
fn chunk(longest: usize, context: usize) -> usize {
    if longest == 1 {
        return 1;
    }
    let largest = CHUNKS[CHUNKS.len() - 1];
    CHUNKS.into_iter().find(|&chunk| chunk >= longest).unwrap_or(largest).min(context)
}
