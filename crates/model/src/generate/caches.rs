//! The caches of a model's keys and values, and the programs that fill and read them.

use ironmill_compute::{DType, HostData, TensorType};
use ironmill_graph::{Graph, Passes, ProgramId, Runtime, StateId, Tensor};

use super::{
    adjusting::{Adjust, Adjusting},
    telling::Telling,
};
use crate::{
    architecture::{Attend, Buffers, Model, Tokens},
    error::Result,
    sampling::LogProbability,
};

/// Key and value caches of all blocks: rows of `context` positions. Programs take any of the rows, in any order.
///
/// Where rows are long, memory comes as texts grow: a device maps it page by page, so a long context costs what is said in it.
pub(crate) struct Caches {
    rows: usize,
    context: usize,
    dtype: DType,
    /// Elements of a position.
    width: usize,
    /// Of every row, how many positions have memory.
    backed: Vec<usize>,
    states: Vec<[StateId; 2]>,
    steps: Vec<Step>,
    copies: Vec<Copy>,
    flights: Vec<Flight>,
}

/// The program that reads some positions of some samples and gives the logits behind each sample's last one, if they are wanted.
#[derive(Clone, Copy)]
struct Step {
    rows: usize,
    positions: usize,
    program: ProgramId,
    ids: Tensor,
    position_ids: Tensor,
    places: Tensor,
    /// Each sample's last position, and the logits behind it.
    wanted: Option<[Tensor; 2]>,
}

/// The program of one step that draws on the device and finds its input where the step before left it.
struct Flight {
    rows: usize,
    program: ProgramId,
    limits: Tensor,
    keys: Tensor,
    adjust: Option<Adjust>,
    telling: Option<Telling>,
    /// Ids, positions, places, lengths and what was drawn.
    states: [StateId; 5],
    /// What the states hold, if they were not written since.
    at: Vec<Pilot>,
    /// Steps since the lengths were written.
    flown: usize,
}

/// Where a row is when the device begins to draw on its own, and how it draws.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pilot {
    /// The row of the caches.
    pub row: usize,
    /// Positions of the row that are filled.
    pub cached: usize,
    /// The token that is read next.
    pub id: u32,
    /// The length of the text so far.
    pub length: usize,
    /// Temperature, top-p and min-p.
    pub limits: [f32; 3],
    /// The random key, the sample's number and top-k.
    pub keys: [u32; 4],
    /// What is done to the logits before.
    pub adjusting: Option<Adjusting>,
}

impl Pilot {
    /// A row that nobody looks at.
    fn idle(row: usize, cached: usize) -> Pilot {
        Pilot { row, cached, id: 0, length: 0, limits: [0.0; 3], keys: [0; 4], adjusting: None }
    }
}

/// Steps that a device was given, whose tokens nobody has read.
pub(crate) struct Airborne {
    /// The number of the flight.
    flight: usize,
    pilots: Vec<Pilot>,
    /// How many steps.
    pub steps: usize,
}

/// What the rows of a flight drew, one row behind the other.
pub(crate) struct Drawn {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// As many probabilities, if a row asks for them.
    pub log_probabilities: Vec<LogProbability>,
}

/// The most steps of a flight.
pub(super) const MOST_AHEAD: usize = 64;

/// Rows of so many bytes, keys or values of one block, get their memory as they grow: several of the pages that a card has, because those
/// are what rows share at their borders.
const GROWS_FROM_BYTES: usize = 8 << 20;
/// Positions behind the last that is written which kernels may still look at, without any effect: they load keys in tiles.
const LOOKED_AT: usize = 256;

/// The program that makes so many copies of rows.
#[derive(Clone, Copy)]
struct Copy {
    moves: usize,
    program: ProgramId,
    input: Tensor,
}

/// Tokens of one sample that a step reads.
pub(crate) struct Feed<'a> {
    /// The row of the caches.
    pub row: usize,
    /// Positions of the row that are filled.
    pub cached: usize,
    /// The tokens that come next.
    pub tokens: &'a [u32],
}

/// The first positions of one row, to be those of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Move {
    pub from: usize,
    pub to: usize,
    pub length: usize,
}

impl Caches {
    /// Empty caches in a device's memory.
    pub fn new(
        runtime: &mut Runtime,
        model: &Model,
        buffers: Buffers,
        rows: usize,
        context: usize,
    ) -> Result<Self> {
        let config = model.config();
        let dtype = buffers.activations();
        let width = config.kv_heads * config.head_dim;
        let grows = context * width * runtime.device().element_bytes(dtype) >= GROWS_FROM_BYTES;
        let mut caches = Caches {
            rows,
            context,
            dtype,
            width,
            backed: vec![if grows { 0 } else { context }; rows],
            states: Vec::new(),
            steps: Vec::new(),
            copies: Vec::new(),
            flights: Vec::new(),
        };
        for _ in 0..config.layers {
            for _ in 0..2 {
                let elements = rows * context * width;
                let state = if grows {
                    runtime.add_reserved_state(dtype, elements)
                } else {
                    runtime.add_state(dtype, elements)
                };
                match state {
                    Ok(state) => caches.hold(state),
                    Err(error) => {
                        caches.free(runtime);
                        return Err(error.into());
                    }
                }
            }
        }
        Ok(caches)
    }

    /// Whether these are of such a size.
    pub fn have(&self, rows: usize, context: usize) -> bool {
        (self.rows, self.context) == (rows, context)
    }

    /// Gives the memory and the programs back.
    pub fn free(self, runtime: &mut Runtime) {
        let programs = self.steps.iter().map(|step| step.program);
        let programs = programs.chain(self.flights.iter().map(|flight| flight.program));
        programs
            .chain(self.copies.iter().map(|copy| copy.program))
            .for_each(|program| runtime.forget(program));
        let mut freed: Vec<StateId> = self.states.into_iter().flatten().collect();
        // A lone key cache stands for its pair.
        freed.dedup();
        freed.extend(self.flights.iter().flat_map(|flight| flight.states));
        freed.extend(self.flights.iter().flat_map(|flight| flight.adjust.iter().flat_map(Adjust::states)));
        freed.extend(self.flights.iter().flat_map(|flight| flight.telling.iter().flat_map(Telling::states)));
        freed.into_iter().for_each(|state| runtime.free_state(state));
    }

    /// Lets the next flights write where every row is: what they knew was of requests that are no longer.
    pub fn forget_requests(&mut self) {
        self.flights.iter_mut().for_each(|flight| flight.at.clear());
    }

    fn hold(&mut self, state: StateId) {
        match self.states.last_mut() {
            Some(pair) if pair[0] == pair[1] => pair[1] = state,
            _ => self.states.push([state; 2]),
        }
    }

    fn tensors(&self, g: &mut Graph) -> Vec<[Tensor; 2]> {
        let of = TensorType::new(&[self.rows, self.context, self.width], self.dtype);
        self.states.iter().map(|pair| pair.map(|cache| g.state(cache, 0, of))).collect()
    }

    /// Sees to it that rows have memory for so many positions each.
    fn back(&mut self, runtime: &mut Runtime, rows: impl Iterator<Item = (usize, usize)>) -> Result<()> {
        for (row, positions) in rows {
            let (before, needed) = (self.backed[row], (positions + LOOKED_AT).min(self.context));
            if needed <= before {
                continue;
            }
            let start = row * self.context;
            let elements = (start + before) * self.width..(start + needed) * self.width;
            for state in self.states.iter().flatten() {
                runtime.back_state(*state, elements.clone())?;
            }
            self.backed[row] = needed;
        }
        Ok(())
    }

    /// Reads the tokens of some samples into the caches. `logits` gets those behind each sample's last token, if they are wanted. The program has
    /// `rows` rows of `positions`; rows that no sample needs read `idle` ones, whose caches stay as they are up to their
    /// length.
    pub fn step(
        &mut self,
        (runtime, model, buffers): (&mut Runtime, &Model, Buffers),
        [rows, positions]: [usize; 2],
        feeds: &[Feed<'_>],
        idle: &[(usize, usize)],
        logits: Option<&mut Vec<f32>>,
    ) -> Result<()> {
        let step = self.step_program(runtime, model, buffers, [rows, positions], logits.is_some())?;
        let mut ids = vec![0; rows * positions];
        let mut position_ids = vec![0; rows * positions];
        let mut places = Vec::with_capacity(2 * rows);
        let mut last = vec![0; rows];
        let padding = idle.iter().map(|&(row, cached)| Feed { row, cached, tokens: &[] });
        let padding: Vec<Feed<'_>> = padding.take(rows - feeds.len()).collect();
        let written = feeds.iter().chain(&padding).map(|feed| (feed.row, feed.cached + positions));
        self.back(runtime, written)?;
        for (index, feed) in feeds.iter().chain(&padding).enumerate() {
            // What lies behind a sample's own tokens is padding: later tokens overwrite it before anything reads it.
            ids[index * positions..][..feed.tokens.len()].copy_from_slice(feed.tokens);
            for (t, position) in position_ids[index * positions..][..positions].iter_mut().enumerate() {
                *position = (feed.cached + t).min(self.context - 1) as u32;
            }
            places.extend([feed.row as u32, feed.cached as u32]);
            last[index] = (index * positions + feed.tokens.len().saturating_sub(1)) as u32;
        }
        runtime.write(step.program, step.ids, HostData::U32(&ids))?;
        runtime.write(step.program, step.position_ids, HostData::U32(&position_ids))?;
        runtime.write(step.program, step.places, HostData::U32(&places))?;
        let (Some(logits), Some([last_of, logits_of])) = (logits, step.wanted) else {
            return Ok(runtime.run(step.program)?);
        };
        runtime.write(step.program, last_of, HostData::U32(&last))?;
        runtime.run(step.program)?;
        logits.resize(rows * model.config().vocab_size, 0.0);
        Ok(runtime.read(step.program, logits_of, logits)?)
    }

    /// Lets the device draw `steps` tokens for each of some rows without waiting for any of them, with probabilities if it `tells` them.
    /// `idle` rows fill up the program as in [`Caches::step`].
    pub fn take_off(
        &mut self,
        (runtime, model, buffers): (&mut Runtime, &Model, Buffers),
        (rows, tells): (usize, bool),
        pilots: Vec<(Pilot, &[u32])>,
        idle: &[(usize, usize)],
        steps: usize,
    ) -> Result<Airborne> {
        let padding = idle.iter().map(|&(row, cached)| (Pilot::idle(row, cached), &[][..]));
        let (pilots, texts): (Vec<Pilot>, Vec<&[u32]>) = pilots.into_iter().chain(padding).take(rows).unzip();
        self.back(runtime, pilots.iter().map(|pilot| (pilot.row, pilot.cached + steps)))?;
        let adjusts = pilots.iter().any(|pilot| pilot.adjusting.is_some());
        let context = self.context;
        let number = self.flight_program((runtime, model, buffers), rows, [adjusts, tells])?;
        let flight = &mut self.flights[number];
        if flight.at != pilots {
            if let Some(adjust) = &flight.adjust {
                let rows: Vec<Option<&Adjusting>> =
                    pilots.iter().map(|pilot| pilot.adjusting.as_ref()).collect();
                let is_as_before = |row: usize| flight.at.get(row) == pilots.get(row);
                adjust.write(runtime, flight.program, &rows, &texts, is_as_before)?;
            }
            let flat = |of: &dyn Fn(&Pilot) -> Vec<u32>| -> Vec<u32> { pilots.iter().flat_map(of).collect() };
            let [ids, positions, places, lengths] = [
                flat(&|pilot| vec![pilot.id]),
                flat(&|pilot| vec![pilot.cached.min(context - 1) as u32]),
                flat(&|pilot| vec![pilot.row as u32, pilot.cached as u32]),
                flat(&|pilot| vec![pilot.length as u32, 0]),
            ];
            for (state, words) in flight.states.into_iter().zip([ids, positions, places, lengths]) {
                runtime.write_state(state, 0..words.len(), HostData::U32(&words))?;
            }
            let keys = flat(&|pilot| pilot.keys.to_vec());
            let limits: Vec<f32> = pilots.iter().flat_map(|pilot| pilot.limits).collect();
            runtime.write(flight.program, flight.keys, HostData::U32(&keys))?;
            runtime.write(flight.program, flight.limits, HostData::F32(&limits))?;
            flight.flown = 0;
        }
        // Where rows are is known again when somebody has read what they drew.
        flight.at.clear();
        runtime.run_times(flight.program, steps)?;
        Ok(Airborne { flight: number, pilots, steps })
    }

    /// Waits for the tokens of a flight.
    pub fn land(&mut self, (runtime, model): (&mut Runtime, &Model), airborne: Airborne) -> Result<Drawn> {
        let Airborne { flight, mut pilots, steps } = airborne;
        let flight = &mut self.flights[flight];
        let mut drawn = vec![0.0; flight.rows * MOST_AHEAD];
        runtime.read_state(flight.states[4], 0..drawn.len(), &mut drawn)?;
        let first = flight.flown;
        let tokens: Vec<u32> = drawn
            .chunks_exact(MOST_AHEAD)
            .flat_map(|row| (first..first + steps).map(|step| row[step % MOST_AHEAD] as u32))
            .collect();
        let log_probabilities = match &flight.telling {
            Some(telling) => telling.read(runtime, first..first + steps, model.config().vocab_size)?,
            None => Vec::new(),
        };
        flight.flown += steps;
        for (pilot, tokens) in pilots.iter_mut().zip(tokens.chunks_exact(steps)) {
            (pilot.id, pilot.cached, pilot.length) =
                (tokens[steps - 1], pilot.cached + steps, pilot.length + steps);
        }
        flight.at = pilots;
        Ok(Drawn { tokens, log_probabilities })
    }

    /// The number of the flight of so many rows.
    fn flight_program(
        &mut self,
        (runtime, model, buffers): (&mut Runtime, &Model, Buffers),
        rows: usize,
        [adjusts, tells]: [bool; 2],
    ) -> Result<usize> {
        let parts = |flight: &Flight| [flight.adjust.is_some(), flight.telling.is_some()];
        let is_known = |flight: &Flight| flight.rows == rows && parts(flight) == [adjusts, tells];
        if let Some(known) = self.flights.iter().position(is_known) {
            return Ok(known);
        }
        let widths = [1, 1, 2, 2, MOST_AHEAD];
        let mut states = Vec::with_capacity(widths.len());
        for width in widths {
            states.push(runtime.add_state(DType::U32, rows * width)?);
        }
        let states: [StateId; 5] = std::array::from_fn(|index| states[index]);
        let mut g = Graph::new();
        let limits = g.input("limits", &[rows, 3], DType::F32);
        let keys = g.input("keys", &[rows, 4], DType::U32);
        let words: [Tensor; 5] = std::array::from_fn(|index| {
            g.state(states[index], 0, TensorType::new(&[rows, widths[index]], DType::U32))
        });
        let [ids, positions, places, lengths, _] = words;
        let caches = self.tensors(&mut g);
        let attend = Attend::Cached { caches: &caches, places };
        let hidden = model.hidden(&mut g, buffers, Tokens { ids, positions, attend, recompute: false })?;
        let logits = model.logits(&mut g, buffers, hidden)?;
        let adjust =
            adjusts.then(|| Adjust::new(runtime, &mut g, [rows, model.config().vocab_size])).transpose()?;
        let adjusted = adjust.as_ref().map_or(logits, |adjust| adjust.add(&mut g, [logits, ids, lengths]));
        g.draw([adjusted, limits, keys], words, self.context);
        let telling = tells.then(|| Telling::new(runtime, &mut g, rows)).transpose()?;
        if let Some(telling) = &telling {
            telling.add(&mut g, [logits, ids, lengths]);
        }
        let program = runtime.compile(g, &buffers.passes(&Passes::ALL))?;
        let (at, flown) = (Vec::new(), 0);
        self.flights.push(Flight { rows, program, limits, keys, adjust, telling, states, at, flown });
        Ok(self.flights.len() - 1)
    }

    /// Copies the beginnings of rows. No row that a move writes is named by another one.
    pub fn copy(&mut self, runtime: &mut Runtime, moves: &[Move]) -> Result<()> {
        let count = moves.len().next_power_of_two();
        let copy = match self.copies.iter().find(|copy| copy.moves == count) {
            Some(copy) => *copy,
            None => {
                let mut g = Graph::new();
                let input = g.input("moves", &[count, 3], DType::U32);
                for cache in self.tensors(&mut g).into_iter().flatten() {
                    g.cache_copy(cache, input);
                }
                let program = runtime.compile(g, &Passes::ALL)?;
                self.copies.push(Copy { moves: count, program, input });
                Copy { moves: count, program, input }
            }
        };
        self.back(runtime, moves.iter().map(|moved| (moved.to, moved.length)))?;
        // What is left over names rows that there are not.
        let mut words = vec![u32::MAX; 3 * count];
        for (words, moved) in words.chunks_exact_mut(3).zip(moves) {
            words.copy_from_slice(&[moved.from as u32, moved.to as u32, moved.length as u32]);
        }
        runtime.write(copy.program, copy.input, HostData::U32(&words))?;
        Ok(runtime.run(copy.program)?)
    }

    fn step_program(
        &mut self,
        runtime: &mut Runtime,
        model: &Model,
        buffers: Buffers,
        [rows, positions]: [usize; 2],
        gives_logits: bool,
    ) -> Result<Step> {
        let is_known = |step: &&Step| {
            (step.rows, step.positions, step.wanted.is_some()) == (rows, positions, gives_logits)
        };
        if let Some(step) = self.steps.iter().find(is_known) {
            return Ok(*step);
        }
        let mut g = Graph::new();
        let dims = [rows, positions];
        let ids = g.input("ids", &dims, DType::U32);
        let position_ids = g.input("positions", &dims, DType::U32);
        let places = g.input("places", &[rows, 2], DType::U32);
        let caches = self.tensors(&mut g);
        let attend = Attend::Cached { caches: &caches, places };
        let tokens = Tokens { ids, positions: position_ids, attend, recompute: false };
        let hidden = model.hidden(&mut g, buffers, tokens)?;
        // Where nobody wants logits, all is left out that no cache needs.
        let mut wanted = None;
        if gives_logits {
            let last = g.input("last", &[rows], DType::U32);
            // With one position each there is nothing to choose from.
            let hidden = if positions == 1 { hidden } else { g.embed(hidden, last)? };
            let logits = model.logits(&mut g, buffers, hidden)?;
            g.keep(logits);
            wanted = Some([last, logits]);
        }
        let program = runtime.compile(g, &buffers.passes(&Passes::ALL))?;
        let step = Step { rows, positions, program, ids, position_ids, places, wanted };
        self.steps.push(step);
        Ok(step)
    }
}
