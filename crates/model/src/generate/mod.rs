//! Generation: requests in, tokens out, one by one.
//!
//! A [`Generator`] runs many requests at a time, each in a row of the key-value caches. Prompts are read in chunks, several
//! together; then every run of a program gives all rows their next token. What a row of the caches holds stays known after
//! its request has ended, so that a prompt that begins like an earlier one, or like another sample's, is read only from
//! where they part.
//!
//! A token depends on its own request alone: sums are taken in the same order for any number of rows, and draws are by
//! (seed, sample, position). [`Engine::next_logits`], which has no cache, is the oracle of all this.

mod adjusting;
mod caches;
mod flying;
mod reading;
mod telling;
mod window;

pub(crate) use caches::Caches;
pub use window::Window;

use std::{borrow::BorrowMut, collections::VecDeque, ops::ControlFlow};

use ironmill_compute::{DType, HostData, philox};
use ironmill_graph::{Graph, Passes, Runtime};

use crate::{
    architecture::{Attend, Buffers, Model, Tokens},
    engine::Engine,
    error::{Error, Result},
    sampling::{LogProbability, Place, Sampler, Sampling},
};
use adjusting::Adjusting;
use caches::{Airborne, Feed, MOST_AHEAD, Move, Pilot};
use reading::{Reading, bucket};
use telling::MOST_LIKELIEST;

/// What a generator is made for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GeneratorOptions {
    /// Requests that run at the same time; 0 is one. Others wait.
    pub rows: usize,
    /// The most positions of a row; 0 is the model's context, and so is more than that.
    pub context: usize,
    /// Tokens that the device draws before the host looks at them; 1 looks at every one, 0 is as suits the device. A device that runs
    /// ahead draws as many again while those are handed out, unless another request could begin in between. Requests that ask for the
    /// probabilities of more than 20 of the likeliest tokens are drawn by the host.
    pub ahead: usize,
}

/// What to continue, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The tokens to continue.
    pub prompt: Vec<u32>,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// The number of the sample: requests that differ in nothing else draw differently.
    pub sample: u32,
    /// The most tokens to add.
    pub max_tokens: usize,
    /// The fewest: stop tokens are not chosen before.
    pub min_tokens: usize,
    /// Tokens that end the sample; the one that does is its last token.
    pub stop: Vec<u32>,
    /// Leading tokens of the prompt that stay when the context is full.
    pub keep: usize,
    /// How many of the likeliest tokens to give with every token, with their probabilities; none gives no probability at all.
    pub log_probabilities: Option<usize>,
}

impl Request {
    /// At most `max_tokens` of the likeliest tokens behind a prompt.
    pub fn new(prompt: Vec<u32>, max_tokens: usize) -> Self {
        Request {
            prompt,
            sampling: Sampling::GREEDY,
            sample: 0,
            max_tokens,
            min_tokens: 0,
            stop: Vec::new(),
            keep: 0,
            log_probabilities: None,
        }
    }
}

/// A request that was given to a generator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(u64);

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

/// What became of a context that was full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refill {
    /// Tokens that the model still sees.
    pub kept: usize,
    /// Tokens that it no longer sees.
    pub dropped: usize,
}

/// A token of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    /// Whose it is.
    pub request: RequestId,
    /// The token.
    pub id: u32,
    /// Its probability, if asked for.
    pub log_probability: Option<LogProbability>,
    /// Set if the context was full before this token, and so a part of the text was left out.
    pub refill: Option<Refill>,
    /// Set on the last token: why it is.
    pub finish: Option<Finish>,
}

/// What a generator has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GeneratorCounts {
    /// Tokens of prompts and refills that were read by the model.
    pub prefilled: u64,
    /// Those that did not have to be, because a row of the caches held them.
    pub reused: u64,
    /// Tokens that were given.
    pub generated: u64,
    /// How often a context was full.
    pub refills: u64,
}

/// Runs requests on an engine, which it has or borrows. While it lives nobody trains the engine, so what its caches hold stays
/// true.
///
/// ```
/// use ironmill_compute::Cpu;
/// use ironmill_model::{Architecture, Engine, Generator, GeneratorOptions, Model, ModelConfig, Request};
///
/// let sizes = ModelConfig { vocab_size: 8, context: 8, ..ModelConfig::new(Architecture::Llama, 1, 2, 16) };
/// let model = Model::new(sizes)?;
/// let values = model.initial_values(1);
/// let engine = Engine::new(Box::new(Cpu::new(1)?), model, &values)?;
///
/// let mut generator = Generator::new(engine, GeneratorOptions { rows: 2, ..GeneratorOptions::default() })?;
/// let first = generator.submit(Request::new(vec![1, 2, 3], 4))?;
/// generator.submit(Request::new(vec![1, 2, 5], 2))?;
/// let mut ids = Vec::new();
/// while let Some(token) = generator.next_token()? {
///     if token.request == first {
///         ids.push(token.id);
///     }
/// }
/// assert_eq!(ids.len(), 4);
/// # Ok::<(), ironmill_model::Error>(())
/// ```
pub struct Generator<E: BorrowMut<Engine>> {
    engine: E,
    rows: Vec<Row>,
    context: usize,
    ahead: usize,
    reading: Reading,
    waiting: VecDeque<Sample>,
    ready: VecDeque<Token>,
    /// The rows of a flight whose tokens were not read, and the flight.
    airborne: Option<(Vec<usize>, Airborne)>,
    sampler: Sampler,
    logits: Vec<f32>,
    submitted: u64,
    /// Counts admissions, so that the row that was left longest ago is taken first.
    clock: u64,
    counts: GeneratorCounts,
}

/// A row of the caches.
#[derive(Default)]
struct Row {
    /// The tokens whose keys and values it holds.
    cached: Vec<u32>,
    sample: Option<Sample>,
    used: u64,
}

impl Row {
    /// Where it is as the one of this number, and its text.
    fn pilot(&self, index: usize) -> Option<(Pilot, &[u32])> {
        let sample = self.sample.as_ref()?;
        let Sampling { temperature, top_k, top_p, min_p, seed, .. } = sample.request.sampling;
        let [key0, key1] = philox::key(seed, philox::Purpose::Sample);
        let pilot = Pilot {
            row: index,
            cached: self.cached.len(),
            id: *sample.pending.first()?,
            length: sample.tokens.len(),
            limits: [temperature, top_p, min_p],
            keys: [key0, key1, sample.request.sample, u32::try_from(top_k).unwrap_or(u32::MAX)],
            adjusting: sample.adjusting(),
        };
        Some((pilot, &sample.tokens))
    }
}

/// A request on its way.
struct Sample {
    id: RequestId,
    request: Request,
    /// The prompt and what was added.
    tokens: Vec<u32>,
    window: Window,
    /// Tokens of the window that the model has not read.
    pending: Vec<u32>,
    refill: Option<Refill>,
}

impl Sample {
    fn generated(&self) -> usize {
        self.tokens.len() - self.request.prompt.len()
    }

    /// Whether a device's draw does all that is asked for.
    fn suits_a_device(&self) -> bool {
        self.request.log_probabilities.is_none_or(|count| count <= MOST_LIKELIEST)
    }

    /// Tokens that it cannot end with yet.
    fn barred(&self) -> &[u32] {
        let Request { min_tokens, stop, .. } = &self.request;
        if self.generated() < *min_tokens { stop } else { &[] }
    }

    /// How many tokens it may get before something other than its text changes what they are drawn from.
    fn room(&self) -> usize {
        let Request { max_tokens, min_tokens, .. } = self.request;
        let end = if self.barred().is_empty() { max_tokens } else { max_tokens.min(min_tokens) };
        end - self.generated()
    }

    /// What is done to its logits.
    fn adjusting(&self) -> Option<Adjusting> {
        let (sampling, barred) = (&self.request.sampling, self.barred());
        let bars = barred.iter().map(|&id| (id, f32::NEG_INFINITY));
        (sampling.adjusts() || !barred.is_empty()).then(|| Adjusting {
            request: self.id,
            penalties: sampling.penalties(),
            prompt: self.request.prompt.len(),
            bias: sampling.bias.iter().copied().chain(bars).collect(),
        })
    }

    /// Lets the window follow the text; a row that holds `cached` keeps what it shares with the window.
    fn follow(&mut self, cached: &mut Vec<u32>) {
        if let Some(dropped) = self.window.follow(self.tokens.len()) {
            let window = self.window.of(&self.tokens);
            self.refill = Some(Refill { kept: window.len(), dropped });
            self.set_window(window, cached);
        }
    }

    fn set_window(&mut self, window: Vec<u32>, cached: &mut Vec<u32>) {
        // The last token is read in any case: its logits are what is wanted.
        let shared = common(cached, &window).min(window.len() - 1);
        cached.truncate(shared);
        self.pending = window[shared..].to_vec();
    }
}

/// How many tokens two lists begin with alike.
fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

impl<E: BorrowMut<Engine>> Generator<E> {
    /// A generator with empty caches.
    pub fn new(mut engine: E, options: GeneratorOptions) -> Result<Self> {
        let rows = options.rows.max(1);
        let borrowed = engine.borrow_mut();
        let config = borrowed.model.config();
        if !config.architecture.is_causal() {
            let advice = "sample from a gpt2 or llama model";
            return Err(Error::Prompt(format!("a bidirectional encoder cannot continue text; {advice}")));
        }
        let context = match options.context {
            0 => config.context,
            asked => asked.min(config.context),
        };
        let ahead = match options.ahead {
            0 if borrowed.runtime.runs_ahead() => MOST_AHEAD,
            asked => asked.clamp(1, MOST_AHEAD),
        };
        let reading = if borrowed.runtime.runs_ahead() { Reading::CARD } else { Reading::PROCESSOR };
        borrowed.show()?;
        borrowed.make_caches(rows, context)?;
        Ok(Generator {
            engine,
            rows: (0..rows).map(|_| Row::default()).collect(),
            context,
            ahead,
            reading,
            waiting: VecDeque::new(),
            ready: VecDeque::new(),
            airborne: None,
            sampler: Sampler::default(),
            logits: Vec::new(),
            submitted: 0,
            clock: 0,
            counts: GeneratorCounts::default(),
        })
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        self.engine.borrow()
    }

    /// The most positions of a row.
    pub fn context(&self) -> usize {
        self.context
    }

    /// What was done so far.
    pub fn counts(&self) -> GeneratorCounts {
        self.counts
    }

    /// Takes a request. It begins as soon as a row is free.
    pub fn submit(&mut self, request: Request) -> Result<RequestId> {
        let vocabulary = self.engine().model.config().vocab_size;
        if request.prompt.is_empty() {
            return Err(Error::Prompt("the prompt has no token; give at least one character of text".into()));
        }
        if let Some(id) = request.prompt.iter().find(|&&id| id as usize >= vocabulary) {
            let advice = "use the tokenizer that the model was trained with";
            return Err(Error::Prompt(format!(
                "token {id} is outside the model's vocabulary of {vocabulary}; {advice}"
            )));
        }
        if request.max_tokens == 0 {
            return Err(Error::Prompt("a request for no token at all; ask for at least one".into()));
        }
        if request.keep >= self.context {
            return Err(Error::Prompt(format!(
                "{} tokens that stay leave no room in a context of {}; shorten what stays",
                request.keep, self.context
            )));
        }
        let id = RequestId(self.submitted);
        self.submitted += 1;
        self.waiting.push_back(Sample {
            id,
            tokens: request.prompt.clone(),
            window: Window::new(request.keep.min(request.prompt.len()), self.context),
            pending: Vec::new(),
            refill: None,
            request,
        });
        Ok(id)
    }

    /// Ends a request; false if it has ended before. Its tokens that were not yet taken are lost.
    pub fn cancel(&mut self, request: RequestId) -> bool {
        let ready = self.ready.len();
        self.ready.retain(|token| token.request != request);
        let waiting = self.waiting.len();
        self.waiting.retain(|sample| sample.id != request);
        let row =
            self.rows.iter_mut().find(|row| row.sample.as_ref().is_some_and(|sample| sample.id == request));
        let was_running = row.is_some_and(|row| row.sample.take().is_some());
        was_running || self.waiting.len() < waiting || self.ready.len() < ready
    }

    /// The next token of any request, or nothing when all have ended.
    pub fn next_token(&mut self) -> Result<Option<Token>> {
        loop {
            if let Some(token) = self.ready.pop_front() {
                return Ok(Some(token));
            }
            if let Some((chosen, airborne)) = self.airborne.take() {
                self.land(&chosen, airborne)?;
                continue;
            }
            self.admit();
            if self.rows.iter().all(|row| row.sample.is_none()) {
                return Ok(None);
            }
            self.share()?;
            self.advance()?;
        }
    }

    /// Gives waiting requests free rows: the one that holds most of the prompt, or else the one that was left longest ago.
    fn admit(&mut self) {
        while let Some(mut sample) = self.waiting.pop_front() {
            let mut window = self.window_of(&mut sample);
            let best = self
                .rows
                .iter()
                .enumerate()
                .filter(|(_, row)| row.sample.is_none())
                .max_by_key(|(_, row)| (common(&row.cached, &window), std::cmp::Reverse(row.used)))
                .map(|(index, _)| index);
            let Some(index) = best else {
                self.waiting.push_front(sample);
                return;
            };
            let row = &mut self.rows[index];
            sample.set_window(std::mem::take(&mut window), &mut row.cached);
            self.counts.reused += row.cached.len() as u64;
            self.clock += 1;
            row.used = self.clock;
            row.sample = Some(sample);
        }
    }

    /// What a sample that has not begun shows the model.
    fn window_of(&mut self, sample: &mut Sample) -> Vec<u32> {
        if let Some(dropped) = sample.window.follow(sample.tokens.len()) {
            sample.refill = Some(Refill { kept: sample.window.of(&sample.tokens).len(), dropped });
        }
        sample.window.of(&sample.tokens)
    }

    /// Copies what other rows hold of prompts that are still to be read.
    fn share(&mut self) -> Result<()> {
        let mut moves: Vec<Move> = Vec::new();
        for to in 0..self.rows.len() {
            let Some(sample) = &self.rows[to].sample else { continue };
            if sample.pending.len() < 2 {
                continue;
            }
            let window = [&self.rows[to].cached[..], &sample.pending].concat();
            let others = self.rows.iter().enumerate().filter(|(from, _)| *from != to);
            let best = others
                .map(|(from, row)| (common(&row.cached, &window[..window.len() - 1]), from))
                .max_by_key(|&(length, from)| (length, std::cmp::Reverse(from)));
            let Some((length, from)) = best.filter(|(length, _)| *length > self.rows[to].cached.len()) else {
                continue;
            };
            if moves.iter().any(|earlier| earlier.to == from || earlier.from == to) {
                self.copy(&std::mem::take(&mut moves))?;
            }
            moves.push(Move { from, to, length });
            let row = &mut self.rows[to];
            self.counts.reused += (length - row.cached.len()) as u64;
            row.cached = window[..length].to_vec();
            if let Some(sample) = &mut row.sample {
                sample.pending = window[length..].to_vec();
            }
        }
        if moves.is_empty() { Ok(()) } else { self.copy(&moves) }
    }

    fn copy(&mut self, moves: &[Move]) -> Result<()> {
        let (runtime, _, _, caches) = self.engine.borrow_mut().cached();
        caches.copy(runtime, moves)
    }

    /// Reads more of the prompts, if there is more to read; otherwise gives every sample its next token.
    fn advance(&mut self) -> Result<()> {
        let mut reading = self.reading();
        if reading.is_empty() {
            let decoding: Vec<usize> =
                (0..self.rows.len()).filter(|&index| self.rows[index].sample.is_some()).collect();
            return match self.flight_steps(&decoding) {
                0 => self.run(&decoding, 1),
                steps => self.take_off(decoding, steps),
            };
        }
        let prompts: Vec<usize> = reading.iter().map(|&index| self.unread(index)).collect();
        let [rows, positions] = self.reading.next(&prompts, self.rows.len(), self.context);
        reading.truncate(rows);
        self.run(&reading, positions)
    }

    /// Rows that nothing is read into fill up a program; behind their end nothing is lost.
    fn idle_rows(&self, chosen: &[usize]) -> Vec<(usize, usize)> {
        let others = (0..self.rows.len()).filter(|index| !chosen.contains(index));
        others.map(|index| (index, self.rows[index].cached.len())).collect()
    }

    /// The rows whose prompts are read next. A prompt that begins like one that is being read waits for it, and copies.
    fn reading(&self) -> Vec<usize> {
        let window = |index: usize| -> Vec<u32> {
            let row = &self.rows[index];
            let pending = row.sample.as_ref().map_or(&[][..], |sample| &sample.pending);
            [&row.cached[..], pending].concat()
        };
        let mut reading: Vec<(usize, Vec<u32>)> = Vec::new();
        for index in (0..self.rows.len()).filter(|&index| self.pending(index) > 1) {
            let own = window(index);
            let cached = self.rows[index].cached.len();
            let waits = reading.iter().any(|(_, other)| common(other, &own[..own.len() - 1]) > cached);
            if !waits {
                reading.push((index, own));
            }
        }
        reading.into_iter().map(|(index, _)| index).collect()
    }

    fn pending(&self, index: usize) -> usize {
        self.rows[index].sample.as_ref().map_or(0, |sample| sample.pending.len())
    }

    /// Lets some rows read their next tokens, and those that have read all of them choose one.
    fn run(&mut self, chosen: &[usize], positions: usize) -> Result<()> {
        let bucket = bucket(chosen.len(), self.rows.len());
        let vocabulary = self.engine().model.config().vocab_size;
        let mut feeds = Vec::with_capacity(chosen.len());
        for &index in chosen {
            let row = &self.rows[index];
            let pending = row.sample.as_ref().map_or(&[][..], |sample| &sample.pending);
            let tokens = &pending[..self.fed(index, positions)];
            feeds.push(Feed { row: index, cached: row.cached.len(), tokens });
        }
        let idle = self.idle_rows(chosen);
        let ends: Vec<bool> =
            chosen.iter().map(|&index| self.fed(index, positions) == self.pending(index)).collect();
        let (runtime, model, buffers, caches) = self.engine.borrow_mut().cached();
        let is_read = ends.contains(&true).then_some(&mut self.logits);
        caches.step((runtime, model, buffers), [bucket, positions], &feeds, &idle, is_read)?;
        for (at, &index) in chosen.iter().enumerate() {
            let taken = self.fed(index, positions);
            self.take_in(index, taken);
            self.counts.prefilled += if positions > 1 { taken as u64 } else { 0 };
            if self.pending(index) == 0 {
                self.choose(index, at * vocabulary..(at + 1) * vocabulary);
            }
        }
        Ok(())
    }

    /// Tokens of a row's prompt that are left to read. The last one is left to the step that draws the next one on the device.
    fn unread(&self, index: usize) -> usize {
        let Some(sample) = &self.rows[index].sample else { return 0 };
        sample.pending.len() - usize::from(self.ahead > 1 && sample.suits_a_device())
    }

    /// Tokens that a row reads in a run of so many positions.
    fn fed(&self, index: usize, positions: usize) -> usize {
        if positions == 1 { self.pending(index).min(1) } else { self.unread(index).min(positions) }
    }

    /// What was read is in the cache now.
    fn take_in(&mut self, index: usize, taken: usize) {
        let row = &mut self.rows[index];
        if let Some(sample) = &mut row.sample {
            row.cached.extend(sample.pending.drain(..taken));
        }
    }

    /// Chooses the next token of a row whose tokens have all been read.
    fn choose(&mut self, index: usize, logits: std::ops::Range<usize>) {
        let Some(sample) = &self.rows[index].sample else { return };
        let (request, logits) = (&sample.request, &self.logits[logits]);
        let place = Place {
            tokens: &sample.tokens,
            prompt: request.prompt.len(),
            sample: request.sample,
            barred: sample.barred(),
        };
        let id = self.sampler.choose(&request.sampling, logits, place);
        let log_probability = request.log_probabilities.map(|count| LogProbability::of(logits, id, count));
        self.accept(index, id, log_probability);
    }

    /// Adds a token to a row's text, and ends the text where it is due.
    fn accept(&mut self, index: usize, id: u32, log_probability: Option<LogProbability>) {
        let added = self.extend(index, &[id]);
        self.ready.extend(added.told(0, id, log_probability));
    }

    /// Adds tokens to a row's text up to the one that ends it. The row has read all of them but the last.
    fn extend(&mut self, index: usize, ids: &[u32]) -> Added {
        let row = &mut self.rows[index];
        let Some(sample) = &mut row.sample else { return Added::default() };
        let stop = ids.iter().position(|id| sample.request.stop.contains(id));
        let count = stop.map_or(ids.len(), |at| at + 1);
        sample.tokens.extend_from_slice(&ids[..count]);
        row.cached.extend_from_slice(&ids[..count - 1]);
        let refill = sample.refill.take();
        self.counts.generated += count as u64;
        self.counts.refills += u64::from(refill.is_some());
        let is_long = sample.generated() >= sample.request.max_tokens;
        let finish = if stop.is_some() { Some(Finish::Stop) } else { is_long.then_some(Finish::Length) };
        let added = Added { request: Some(sample.id), count, refill, finish };
        if finish.is_some() {
            row.sample = None;
        } else {
            sample.pending.extend_from_slice(&ids[count - 1..count]);
            sample.follow(&mut row.cached);
        }
        added
    }
}

/// What became of tokens that were added to a text.
#[derive(Default)]
struct Added {
    /// Whose they are, if the row has a text.
    request: Option<RequestId>,
    /// How many were added.
    count: usize,
    /// What is told with the first.
    refill: Option<Refill>,
    /// What is told with the last.
    finish: Option<Finish>,
}

impl Added {
    /// Tells of the token of this number, if it was added.
    fn told(&self, number: usize, id: u32, log_probability: Option<LogProbability>) -> Option<Token> {
        let request = self.request.filter(|_| number < self.count)?;
        let refill = self.refill.filter(|_| number == 0);
        let finish = self.finish.filter(|_| number + 1 == self.count);
        Some(Token { request, id, log_probability, refill, finish })
    }
}

/// What to generate for several prompts at once.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerateOptions {
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// The most tokens to add to a prompt.
    pub max_tokens: usize,
    /// Tokens that end a sample; they are part of it.
    pub stop: Vec<u32>,
}

/// A generated sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generated {
    /// The tokens behind the prompt.
    pub ids: Vec<u32>,
    /// Why it ended.
    pub finish: Finish,
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
        let mut generator =
            Generator::new(self, GeneratorOptions { rows: prompts.len(), ..GeneratorOptions::default() })?;
        let nothing = Generated { ids: Vec::new(), finish: Finish::Length };
        let mut made = vec![nothing; prompts.len()];
        let mut ids = Vec::with_capacity(prompts.len());
        for (index, prompt) in prompts.iter().enumerate() {
            if options.max_tokens == 0 {
                continue;
            }
            let request = Request {
                sampling: options.sampling.clone(),
                sample: index as u32,
                stop: options.stop.clone(),
                ..Request::new(prompt.clone(), options.max_tokens)
            };
            ids.push(generator.submit(request)?);
        }
        while let Some(token) = generator.next_token()? {
            let Some(index) = ids.iter().position(|id| *id == token.request) else { continue };
            made[index].ids.push(token.id);
            made[index].finish = token.finish.unwrap_or(Finish::Length);
            if on_token(index, token.id).is_break() {
                generator.cancel(token.request);
                made[index].finish = Finish::Cancelled;
            }
        }
        Ok(made)
    }

    /// The logits behind the last of some tokens, computed over all of them without a cache.
    pub fn next_logits(&mut self, ids: &[u32]) -> Result<Vec<f32>> {
        self.logits_at(ids, &[ids.len().saturating_sub(1) as u32])
    }

    /// The logits behind each of some tokens, a row of the vocabulary's size for every one.
    pub fn logits(&mut self, ids: &[u32]) -> Result<Vec<f32>> {
        self.logits_at(ids, &(0..ids.len() as u32).collect::<Vec<u32>>())
    }

    /// The logits behind the tokens at some places.
    fn logits_at(&mut self, ids: &[u32], places: &[u32]) -> Result<Vec<f32>> {
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
        let wanted = g.input("places", &[places.len()], DType::U32);
        let tokens_in = Tokens { ids: tokens, positions, attend: Attend::PLAIN, recompute: false };
        let hidden = self.model.hidden(&mut g, self.shown, tokens_in)?;
        let hidden = g.embed(hidden, wanted)?;
        let logits = self.model.logits(&mut g, self.shown, hidden)?;
        g.keep(logits);
        let program = self.runtime.compile(g, &self.shown.passes(&Passes::ALL))?;
        let counting: Vec<u32> = (0..ids.len() as u32).collect();
        self.runtime.write(program, tokens, HostData::U32(ids))?;
        self.runtime.write(program, positions, HostData::U32(&counting))?;
        self.runtime.write(program, wanted, HostData::U32(places))?;
        self.runtime.run(program)?;
        let mut out = vec![0.0; places.len() * self.model.config().vocab_size];
        self.runtime.read(program, logits, &mut out)?;
        self.runtime.forget(program);
        Ok(out)
    }

    /// What a program over the caches needs.
    fn cached(&mut self) -> (&mut Runtime, &Model, Buffers, &mut Caches) {
        let Engine { runtime, model, shown, caches, .. } = self;
        let caches = caches.as_mut().unwrap_or_else(|| unreachable!("a generator makes them first"));
        (runtime, model, *shown, caches)
    }

    /// Makes caches of so many rows, unless there are.
    fn make_caches(&mut self, rows: usize, context: usize) -> Result<()> {
        if let Some(caches) = self.caches.as_mut().filter(|caches| caches.have(rows, context)) {
            caches.forget_requests();
            return Ok(());
        }
        // Freed first, so that old and new do not exist at once.
        if let Some(caches) = self.caches.take() {
            caches.free(&mut self.runtime);
        }
        self.caches = Some(Caches::new(&mut self.runtime, &self.model, self.shown, rows, context)?);
        Ok(())
    }
}
