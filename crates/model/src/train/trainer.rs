//! The trainer: one step at a time, nothing allocated after the first.

use std::{
    mem,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use ironmill_compute::{
    DType, Device, GUARD_STATISTICS, HostData, Kernel, ReadId, TensorType, Verdict, philox,
};
use ironmill_data::Loader;
use ironmill_graph::{
    Accumulate, Graph, OptimiserState, ProgramId, Randomness, Runtime, StateId, States, Tensor, Update,
    dry_run, update_program,
};

use super::{
    batch::{Batch, BatchView},
    inside::Inside,
    options::TrainOptions,
    report::{GuardState, StepReport},
    scale::LossScale,
    schedule::{Decay, Plateau},
};
use crate::{
    architecture::{Attend, Buffers, Model, Tokens, Working},
    checkpoint::{Snapshot, TrainerState},
    engine::{BatchInputs, Engine, Keep},
    error::{Error, Result},
};

/// What a run needs, known before the device is touched.
#[derive(Clone, Debug)]
pub struct MemoryPlan {
    /// The model's numbers.
    pub parameters: usize,
    /// Floating-point operations to train on a token.
    pub flops_per_token: u64,
    /// Persistent buffers: name and bytes.
    pub states: Vec<(String, usize)>,
    /// The arena that activations share.
    pub arena_bytes: usize,
    /// What they would take if none shared a place.
    pub unshared_bytes: usize,
    /// Inputs of the programs.
    pub input_bytes: usize,
}

impl MemoryPlan {
    /// All of it.
    pub fn total_bytes(&self) -> usize {
        self.states.iter().map(|state| state.1).sum::<usize>() + self.arena_bytes + self.input_bytes
    }
}

/// A model in training.
pub struct Trainer {
    pub(super) engine: Engine,
    options: TrainOptions,
    pub(super) state: TrainingState,
    /// For each length of samples, the programs of the first and of the further micro-batches.
    micros: Vec<(usize, [Micro; 2])>,
    update: ProgramId,
    update_inputs: UpdateInputs,
    /// What the host reads of an update: the norm, and what the guard says.
    told: [Tensor; 2],
    /// The samples of the step that was last given, and the weights of their targets.
    batch: ironmill_data::Batch,
    weights: Vec<f32>,
    dropout_key: [u32; 2],
    step: u64,
    /// The global index of the next sample: where the data stands.
    samples: u64,
    tokens: u64,
    scale: LossScale,
    plateau: Plateau,
    /// The exponent of the scale that the last reported step was taken with.
    pub(super) last_exponent: i32,
    /// The step that the device is already working on.
    queued: Option<Queued>,
    /// When the last step ended.
    ended: Option<Instant>,
    /// What looks at the norms of the model's parts.
    pub(super) inside: Option<Inside>,
    /// Whether to leave a step that is under way.
    stop: Option<Arc<AtomicBool>>,
}

/// A step whose work the device has been given, and whose results have not been read.
#[derive(Clone, Copy)]
struct Queued {
    read: ReadId,
    counted: usize,
    samples: usize,
    tokens: usize,
    learning_rate: f64,
    exponent: i32,
    began: Instant,
    waited: Duration,
}

/// The persistent buffers of training.
#[derive(Clone, Copy)]
pub(super) struct TrainingState {
    model: Buffers,
    pub(super) optimiser: OptimiserState,
}

/// What the host writes for an update.
#[derive(Clone, Copy)]
struct UpdateInputs {
    learning_rate: Tensor,
    exponent: Tensor,
    targets: Tensor,
}

/// The forward and backward of one micro-batch.
struct Micro {
    program: ProgramId,
    inputs: MicroInputs,
    sent: Sent,
}

/// What a micro-batch was last told of its targets' weights and its tokens' places. It is nearly always the same from step to
/// step, and is sent again only when it is not.
#[derive(Default)]
struct Sent {
    positions: Vec<u32>,
    weights: Vec<f32>,
    borders: Vec<u32>,
}

impl Sent {
    fn with_room(tokens: usize) -> Self {
        Sent {
            positions: Vec::with_capacity(tokens),
            weights: Vec::with_capacity(tokens),
            borders: Vec::with_capacity(tokens),
        }
    }
}

/// Whether numbers differ from those that were last sent, which they then replace.
fn is_new<T: bytemuck::NoUninit>(sent: &mut Vec<T>, numbers: &[T]) -> bool {
    // As bytes: what is sent are bits, and the system compares them faster than any loop over floats.
    if bytemuck::cast_slice::<T, u8>(sent) == bytemuck::cast_slice::<T, u8>(numbers) {
        return false;
    }
    sent.clear();
    sent.extend_from_slice(numbers);
    true
}

#[derive(Clone, Copy)]
struct MicroInputs {
    batch: BatchInputs,
    borders: Option<Tensor>,
    key: Tensor,
    samples: Tensor,
    seed: Tensor,
}

impl Trainer {
    /// Makes a model ready for training on a device, with its initial parameters.
    pub fn new(device: Box<dyn Device>, model: Model, options: TrainOptions, values: &[f32]) -> Result<Self> {
        options.check(&model)?;
        let mut states = States::default();
        let state = declare(&mut states, &model, &options);
        let mut runtime = Runtime::new(device, &states)?;
        let passes = state.model.passes(&options.passes);
        let mut micros = Vec::with_capacity(options.lengths.len());
        // Longest first: the arena is then as large as it gets before other programs are bound to it.
        for &length in options.lengths.iter().rev() {
            let mut compile = |add: bool| -> Result<Micro> {
                let (graph, inputs) = micro_graph(&model, state, &options, length, add)?;
                let sent = Sent::with_room(options.micro_rows * length);
                Ok(Micro { program: runtime.compile(graph, &passes)?, inputs, sent })
            };
            micros.push((length, [compile(false)?, compile(true)?]));
        }
        let step = update_graph(&model, state, &options);
        let update = runtime.compile(step.graph, &passes)?;
        let mut engine = Engine::with_runtime(runtime, model, state.model, values)?;
        if let Some((average, _)) = state.optimiser.average {
            engine.runtime.write_state(average, 0..values.len(), HostData::F32(values))?;
            engine.show_average(average)?;
        }
        Ok(Trainer {
            dropout_key: philox::key(options.seed, philox::Purpose::Dropout),
            batch: ironmill_data::Batch::new(options.rows, options.longest()),
            weights: vec![1.0; options.rows * options.longest()],
            engine,
            state,
            micros,
            update,
            update_inputs: UpdateInputs {
                learning_rate: step.learning_rate,
                exponent: step.exponent,
                targets: step.targets,
            },
            told: [step.norm, step.report],
            scale: LossScale::new(options.scales_loss()),
            plateau: Plateau::default(),
            options,
            step: 0,
            samples: 0,
            tokens: 0,
            last_exponent: 0,
            queued: None,
            ended: None,
            inside: None,
            stop: None,
        })
    }

    /// What a run would need, without a device.
    pub fn plan(model: &Model, options: &TrainOptions) -> Result<MemoryPlan> {
        options.check(model)?;
        let mut states = States::default();
        let state = declare(&mut states, model, options);
        let (graph, _) = micro_graph(model, state, options, options.longest(), false)?;
        let passes = state.model.passes(&options.passes);
        let plan = dry_run(graph, &passes)?;
        let update = dry_run(update_graph(model, state, options).graph, &passes)?;
        Ok(MemoryPlan {
            parameters: model.layout().count(),
            flops_per_token: model.config().flops_per_token(),
            states: states
                .specs()
                .iter()
                .map(|spec| (spec.name.clone(), spec.len * spec.dtype.bytes()))
                .collect(),
            arena_bytes: plan.arena_bytes.max(update.arena_bytes),
            unshared_bytes: plan.unshared_bytes,
            // The first and the further micro-batches are two programs with inputs of their own.
            input_bytes: 2 * options.lengths.len() * plan.input_bytes,
        })
    }

    /// The model to evaluate and sample from: with the running average of the parameters where one is kept, else with the
    /// parameters as they are now.
    pub fn engine(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// The settings.
    pub fn options(&self) -> &TrainOptions {
        &self.options
    }

    /// Steps taken so far.
    pub fn step_count(&self) -> u64 {
        self.step
    }

    /// Tokens trained on so far.
    pub fn token_count(&self) -> u64 {
        self.tokens
    }

    /// The global index of the next sample.
    pub fn next_sample(&self) -> u64 {
        self.samples
    }

    /// From now on a step is left between two micro-batches, with [`Error::Stopped`], when the flag is set. It has then changed
    /// nothing.
    pub fn stop_when(&mut self, stop: Arc<AtomicBool>) {
        self.stop = Some(stop);
    }

    /// Takes one step on the next samples of a loader.
    pub fn step(&mut self, loader: &Loader) -> Result<StepReport> {
        self.step_ahead(loader, false)
    }

    /// Takes one step, and if `ahead`, gives the device the step behind it before waiting for this one, so that a device that
    /// works on its own is never idle. The caller must not look at the model before the next call: evaluating, sampling and
    /// saving are for steps that were taken without.
    pub fn step_ahead(&mut self, loader: &Loader, ahead: bool) -> Result<StepReport> {
        let queued = match self.queued.take() {
            Some(queued) => queued,
            None => self.enqueue_next(loader, &mut run)?,
        };
        if ahead && self.engine.runtime.runs_ahead() {
            // Where the data and the schedule stand once the queued step is counted.
            let (step, samples) = (self.step, self.samples);
            (self.step, self.samples) = (step + 1, samples + queued.samples as u64);
            let next = self.enqueue_next(loader, &mut run);
            (self.step, self.samples) = (step, samples);
            // What kept the step behind from being given is met again by the next call, when this one is counted.
            self.queued = next.ok();
        }
        self.complete(queued)
    }

    /// Whether the device is working on a step that has not been reported.
    pub fn is_ahead(&self) -> bool {
        self.queued.is_some()
    }

    /// Takes one step on the next samples of a loader, with another way of running a program.
    pub(super) fn step_by(&mut self, loader: &Loader, run: &mut Run<'_>) -> Result<StepReport> {
        let queued = self.enqueue_next(loader, run)?;
        self.complete(queued)
    }

    fn enqueue_next(&mut self, loader: &Loader, run: &mut Run<'_>) -> Result<Queued> {
        let began = Instant::now();
        self.fill(loader)?;
        let waited = began.elapsed();
        self.options.inject_faults(&self.batch.samples, &mut self.weights);
        // Both are lent to the step, and are back before anything else is done with the trainer.
        let (batch, weights) = (mem::take(&mut self.batch), mem::take(&mut self.weights));
        let outcome = self.enqueue(BatchView::of_loader(&batch, &weights), run);
        (self.batch, self.weights) = (batch, weights);
        outcome.map(|queued| Queued { began, waited, ..queued })
    }

    fn fill(&mut self, loader: &Loader) -> Result<()> {
        let batch = &mut self.batch;
        loader.fill(self.samples, batch)?;
        let length = batch.length();
        self.weights.resize(batch.ids.len(), 1.0);
        let vocab_size = self.engine.model.config().vocab_size;
        let rows = batch.ids.chunks_exact_mut(length).zip(batch.targets.chunks_exact_mut(length));
        for ((ids, targets), &sample) in rows.zip(&batch.samples) {
            self.options.objective.prepare(self.options.seed, sample, vocab_size, ids, targets);
        }
        Ok(())
    }

    /// Takes one step on these samples.
    ///
    /// The loss is the mean over the counted targets of the whole step, however it is cut into micro-batches.
    pub fn step_on(&mut self, batch: &Batch) -> Result<StepReport> {
        let queued = self.enqueue(batch.view(), &mut run)?;
        self.complete(queued)
    }

    /// Gives the device the work of a step.
    fn enqueue(&mut self, batch: BatchView<'_>, run: &mut Run<'_>) -> Result<Queued> {
        let began = Instant::now();
        self.engine.unshow()?;
        let counted = batch.counted();
        let seed = (self.scale.factor() / counted.max(1) as f64) as f32;
        let rows = self.options.micro_rows;
        let length = batch.ids.len() / self.options.rows;
        let Some((_, micros)) = self.micros.iter_mut().find(|micro| micro.0 == length) else {
            let reason = format!("samples must be of one of the lengths {:?}", self.options.lengths);
            return Err(Error::Setting { key: "context", value: length.to_string(), reason });
        };
        // The update's numbers go with the first micro-batch, so that a device has one delivery less.
        let schedule = &self.options.schedule;
        let learning_rate = self.plateau.lower(schedule, schedule.rate(self.step));
        let exponent = self.scale.exponent;
        let inputs = self.update_inputs;
        for (input, number) in [
            (inputs.learning_rate, learning_rate as f32),
            (inputs.exponent, exponent as f32),
            (inputs.targets, counted as f32),
        ] {
            self.engine.runtime.write(self.update, input, HostData::F32(&[number]))?;
        }
        for index in 0..self.options.rows / rows {
            // Nothing is changed before the update, so a step can be left here and taken again.
            if self.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed)) {
                return Err(Error::Stopped);
            }
            let Micro { program, inputs, sent } = &mut micros[index.min(1)];
            let (program, inputs) = (*program, *inputs);
            let (tokens, samples) =
                (index * rows * length..(index + 1) * rows * length, index * rows..(index + 1) * rows);
            let runtime = &mut self.engine.runtime;
            let key = [self.dropout_key[0], self.dropout_key[1], self.step as u32];
            runtime.write(program, inputs.batch.ids, HostData::U32(&batch.ids[tokens.clone()]))?;
            runtime.write(program, inputs.batch.targets, HostData::U32(&batch.targets[tokens.clone()]))?;
            let [positions, borders] =
                [batch.positions, batch.borders].map(|numbers| &numbers[tokens.clone()]);
            if is_new(&mut sent.positions, positions) {
                runtime.write(program, inputs.batch.positions, HostData::U32(positions))?;
            }
            let weights = &batch.weights[tokens];
            if is_new(&mut sent.weights, weights) {
                runtime.write(program, inputs.batch.weights, HostData::F32(weights))?;
            }
            if let Some(input) = inputs.borders
                && is_new(&mut sent.borders, borders)
            {
                runtime.write(program, input, HostData::U32(borders))?;
            }
            runtime.write(program, inputs.samples, HostData::U32(&batch.samples[samples]))?;
            runtime.write(program, inputs.key, HostData::U32(&key))?;
            runtime.write(program, inputs.seed, HostData::F32(&[seed]))?;
            run(runtime, program)?;
        }

        let runtime = &mut self.engine.runtime;
        run(runtime, self.update)?;
        Ok(Queued {
            read: runtime.begin_read(self.update, self.told, self.state.optimiser.loss)?,
            counted,
            samples: self.options.rows,
            tokens: batch.ids.len(),
            learning_rate,
            exponent,
            began,
            waited: Duration::ZERO,
        })
    }

    /// Waits for a step and counts it.
    fn complete(&mut self, queued: Queued) -> Result<StepReport> {
        let numbers: [f32; 6] = self.engine.runtime.end_read(queued.read)?;
        let verdict = Verdict::from_number(numbers[1]);
        let [norm, _, loss_deviation, norm_deviation, usual_norm, loss] = numbers.map(f64::from);
        let (loss, norm) = (loss / queued.counted.max(1) as f64, norm * (-f64::from(queued.exponent)).exp2());
        match verdict {
            Verdict::Applied | Verdict::Overflow => {
                self.scale = self.scale.after(queued.exponent, verdict == Verdict::Overflow);
            }
            _ if self.options.guard.stops => {
                self.forget_steps_behind()?;
                return Err(Error::Refused { step: self.step + 1, verdict, loss, norm });
            }
            _ => (),
        }
        self.last_exponent = queued.exponent;
        self.step += 1;
        self.samples += queued.samples as u64;
        self.tokens += queued.tokens as u64;
        // Steps overlap where one is given ahead: each takes the time since the one before.
        let now = Instant::now();
        let began = self.ended.map_or(queued.began, |ended| ended.max(queued.began));
        self.ended = Some(now);
        Ok(StepReport {
            step: self.step,
            loss,
            norm,
            learning_rate: queued.learning_rate,
            tokens: queued.tokens as u64,
            targets: queued.counted as u64,
            verdict,
            loss_deviation,
            norm_deviation,
            usual_norm,
            elapsed: now - began,
            waited: queued.waited,
        })
    }

    /// Behind a refused step: waits for the one that was given ahead, which the guard held back, and lets the guard go.
    /// Everything is then as it was before the refused step.
    fn forget_steps_behind(&mut self) -> Result<()> {
        if let Some(queued) = self.queued.take() {
            let _: [f32; 6] = self.engine.runtime.end_read(queued.read)?;
        }
        let held = GUARD_STATISTICS - 1..GUARD_STATISTICS;
        Ok(self.engine.runtime.write_state(self.state.optimiser.guard, held, HostData::F32(&[0.0]))?)
    }

    fn follows_validation(&self) -> bool {
        matches!(self.options.schedule.decay, Decay::Plateau { .. })
    }

    /// Tells a schedule that follows the validation loss of a measurement.
    pub fn observe(&mut self, validation_loss: f64) {
        if let Decay::Plateau { patience, .. } = self.options.schedule.decay {
            self.plateau.observe(validation_loss, patience);
        }
    }

    /// Leaves out the next samples of the data. The steps behind them are counted as before.
    ///
    /// # Panics
    /// While a step that was given ahead is under way, which has its samples.
    pub fn skip_samples(&mut self, samples: u64) {
        assert!(!self.is_ahead(), "samples are left out between steps");
        self.samples += samples;
    }

    /// The program of the update.
    pub(super) fn update_program(&self) -> ProgramId {
        self.update
    }

    /// Matrix products that a step of the longest samples launches.
    pub fn products_per_step(&self) -> usize {
        let runtime = &self.engine.runtime;
        let of = |micro: &Micro| runtime.kernels(micro.program).map(Kernel::matrix_products).sum::<usize>();
        let further = self.options.rows / self.options.micro_rows - 1;
        self.micros.first().map_or(0, |(_, [first, rest])| of(first) + further * of(rest))
    }

    /// The gradients that the last step left, in the flat layout.
    pub fn gradients(&self) -> Result<Vec<f64>> {
        let OptimiserState { gradients, len, .. } = self.state.optimiser;
        let mut values = self.engine.runtime.read_state_f64(gradients, 0..len)?;
        let unscale = (-f64::from(self.last_exponent)).exp2();
        values.iter_mut().for_each(|value| *value *= unscale);
        Ok(values)
    }

    /// All that a resumed run needs.
    ///
    /// # Panics
    /// While a step that was given ahead is under way: the device is then past what is counted.
    pub fn snapshot(&self) -> Result<Snapshot> {
        assert!(!self.is_ahead(), "a snapshot is of a step that has ended");
        let OptimiserState { parameters, first_moment, second_moment, counter, average, len, .. } =
            self.state.optimiser;
        let read = |state: StateId| -> Result<Vec<f32>> {
            let mut values = vec![0.0; len];
            self.engine.runtime.read_state(state, 0..len, &mut values)?;
            Ok(values)
        };
        let mut guard = [0.0; 5];
        self.engine.runtime.read_state(self.state.optimiser.guard, 0..5, &mut guard)?;
        let state = TrainerState {
            step: self.step,
            samples: self.samples,
            tokens: self.tokens,
            updates: self.engine.runtime.read_state_f64(counter, 0..1)?[0] as u32,
            seed: self.options.seed,
            optimizer: self.options.optimizer.name().into(),
            loss_scale: self.options.scales_loss().then_some(self.scale),
            guard: GuardState::from_numbers(guard),
            plateau: self.follows_validation().then_some(self.plateau),
        };
        Ok(Snapshot {
            average: average.map(|(average, _)| read(average)).transpose()?,
            parameters: read(parameters)?,
            first_moment: read(first_moment)?,
            second_moment: second_moment.map(read).transpose()?,
            state,
        })
    }

    /// Goes on from a snapshot exactly as the run that made it would have.
    pub fn restore(&mut self, snapshot: &Snapshot) -> Result<()> {
        let OptimiserState { first_moment, second_moment, counter, guard, average, len, .. } =
            self.state.optimiser;
        if snapshot.state.optimizer != self.options.optimizer.name() {
            let value = self.options.optimizer.name().into();
            let reason = format!("the run so far used {}", snapshot.state.optimizer);
            return Err(Error::Setting { key: "optimizer", value, reason });
        }
        self.queued = None;
        self.engine.set_parameters(&snapshot.parameters)?;
        let runtime = &mut self.engine.runtime;
        runtime.write_state(first_moment, 0..len, HostData::F32(&snapshot.first_moment))?;
        if let (Some(state), Some(values)) = (second_moment, &snapshot.second_moment) {
            runtime.write_state(state, 0..len, HostData::F32(values))?;
        }
        if let Some((state, _)) = average {
            // A run that kept no average so far begins with its parameters.
            let values = snapshot.average.as_ref().unwrap_or(&snapshot.parameters);
            runtime.write_state(state, 0..len, HostData::F32(values))?;
        }
        runtime.write_state(counter, 0..1, HostData::U32(&[snapshot.state.updates]))?;
        let statistics = snapshot.state.guard.numbers();
        runtime.write_state(guard, 0..GUARD_STATISTICS, HostData::F32(&statistics))?;
        if let Some(scale) = snapshot.state.loss_scale {
            self.scale = scale;
        }
        self.plateau = snapshot.state.plateau.unwrap_or_default();
        self.step = snapshot.state.step;
        self.samples = snapshot.state.samples;
        self.tokens = snapshot.state.tokens;
        Ok(())
    }
}

/// A way of running a program: plainly, or taking its times.
pub(super) type Run<'a> = dyn FnMut(&mut Runtime, ProgramId) -> Result<()> + 'a;

fn run(runtime: &mut Runtime, program: ProgramId) -> Result<()> {
    Ok(runtime.run(program)?)
}

fn declare(states: &mut States, model: &Model, options: &TrainOptions) -> TrainingState {
    let len = model.layout().len();
    let keep = options.working.map_or(Keep::Everything(DType::F32), Keep::Everything);
    let buffers = Engine::declare(states, model, keep);
    let mut flat = |name| states.declare(name, DType::F32, len);
    let optimiser = OptimiserState {
        parameters: buffers.parameters,
        gradients: flat("gradients"),
        first_moment: flat("first moment"),
        second_moment: options.optimizer.has_second_moment().then(|| flat("second moment")),
        counter: states.declare("update counter", DType::U32, 1),
        loss: states.declare("loss", DType::F32, 1),
        guard: states.declare("guard", DType::F32, GUARD_STATISTICS),
        average: (options.average > 0.0)
            .then(|| (states.declare("average", DType::F32, len), options.average)),
        working: buffers.working.map(|Working { dtype, copy, .. }| (copy, dtype)),
        len,
    };
    TrainingState { model: buffers, optimiser }
}

/// Guard, optimiser and average over the flat buffers and a working copy.
fn update_graph(model: &Model, state: TrainingState, options: &TrainOptions) -> Update {
    let guard = options.guard.build(options.grad_clip);
    update_program(state.optimiser, guard, options.optimiser(model.layout()))
}

/// Forward, loss and backward of one micro-batch; gradients and the loss are written (or added) to state.
fn micro_graph(
    model: &Model,
    state: TrainingState,
    options: &TrainOptions,
    length: usize,
    add: bool,
) -> Result<(Graph, MicroInputs)> {
    let rows = options.micro_rows;
    let mut g = Graph::new();
    let batch = BatchInputs::declare(&mut g, rows, length);
    let borders = options.borders.then(|| g.input("borders", &[rows, length], DType::U32));
    let key = g.input("dropout key", &[3], DType::U32);
    let samples = g.input("samples", &[rows], DType::U32);
    let seed = g.input("loss seed", &[1], DType::F32);
    let tokens = Tokens {
        ids: batch.ids,
        positions: batch.positions,
        attend: Attend::Whole { borders, randomness: Some(Randomness { key, samples }) },
        recompute: options.recompute,
    };
    let hidden = model.hidden(&mut g, state.model, tokens)?;
    let logits = model.logits(&mut g, state.model, hidden)?;
    let losses = g.cross_entropy(logits, batch.targets, batch.weights, options.loss)?;
    let loss = g.sum(losses)?;
    let total = g.state(state.optimiser.loss, 0, TensorType::new(&[1], DType::F32));
    g.write_state(loss, total, add);
    g.train(loss, seed, Accumulate { gradients: state.optimiser.gradients, add })?;
    Ok((g, MicroInputs { batch, borders, key, samples, seed }))
}
