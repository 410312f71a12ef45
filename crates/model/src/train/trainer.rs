//! The trainer: one step at a time, nothing allocated after the first.

use std::time::{Duration, Instant};

use ironmill_compute::{AdamW, DType, Device, HostData, IGNORED, TensorType, philox};
use ironmill_data::{BatchMut, Loader};
use ironmill_graph::{
    Accumulate, Graph, OptimiserState, Passes, ProgramId, Randomness, Runtime, StateId, States, Tensor,
    adamw_update, dry_run,
};

use super::schedule::Schedule;
use crate::{
    checkpoint::{Snapshot, TrainerState},
    engine::{BatchInputs, Engine},
    error::{Error, Result},
    gpt2::{Attend, Model},
};

/// What a training run is made of, apart from the model and the data.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainOptions {
    /// The seed of dropout masks.
    pub seed: u64,
    /// Tokens of a sample; at most the model's context.
    pub context: usize,
    /// Samples of a step, over all its micro-batches.
    pub rows: usize,
    /// Samples of a micro-batch; divides `rows`.
    pub micro_rows: usize,
    /// The learning rate.
    pub schedule: Schedule,
    /// Decay of AdamW's first moment.
    pub beta1: f32,
    /// Decay of AdamW's second moment.
    pub beta2: f32,
    /// Added to the root of AdamW's second moment.
    pub eps: f32,
    /// Decoupled weight decay of matrices and embeddings.
    pub weight_decay: f32,
    /// The largest global gradient norm; 0 turns clipping off.
    pub grad_clip: f32,
    /// Which passes run; all of them unless a test compares.
    pub passes: Passes,
}

/// The samples of one step.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Token ids, `rows × context`.
    pub ids: Vec<u32>,
    /// What follows each token; [`IGNORED`] is not counted.
    pub targets: Vec<u32>,
    /// The weight of each target's loss.
    pub weights: Vec<f32>,
    /// The position of each token in its document.
    pub positions: Vec<u32>,
    /// Where in its row each token's document begins.
    pub borders: Vec<u32>,
    /// The global index of each sample.
    pub samples: Vec<u32>,
}

impl Batch {
    /// Room for a step's samples.
    pub fn new(rows: usize, context: usize) -> Self {
        let tokens = rows * context;
        Batch {
            ids: vec![0; tokens],
            targets: vec![0; tokens],
            weights: vec![1.0; tokens],
            positions: (0..rows).flat_map(|_| 0..context as u32).collect(),
            borders: vec![0; tokens],
            samples: vec![0; rows],
        }
    }

    /// How many targets count in the mean: those that are not ignored and weigh something.
    pub fn counted(&self) -> usize {
        self.targets
            .iter()
            .zip(&self.weights)
            .filter(|&(&target, &weight)| target != IGNORED && weight > 0.0)
            .count()
    }
}

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
    /// Steps taken so far, this one included.
    pub step: u64,
    /// Mean loss of the counted targets, in nats.
    pub loss: f64,
    /// The global gradient norm before clipping.
    pub norm: f64,
    /// The learning rate.
    pub learning_rate: f64,
    /// Tokens trained on.
    pub tokens: u64,
    /// The whole step.
    pub elapsed: Duration,
    /// The part of it that waited for data.
    pub waited: Duration,
}

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
    engine: Engine,
    options: TrainOptions,
    buffers: Buffers,
    first: Micro,
    more: Micro,
    update: ProgramId,
    learning_rate: Tensor,
    norm: Tensor,
    batch: Batch,
    dropout_key: [u32; 2],
    step: u64,
    /// The global index of the next sample: where the data stands.
    samples: u64,
    tokens: u64,
}

/// The persistent buffers of training beside the parameters.
#[derive(Clone, Copy)]
struct Buffers {
    optimiser: OptimiserState,
    loss: StateId,
}

/// The forward and backward of one micro-batch.
#[derive(Clone, Copy)]
struct Micro {
    program: ProgramId,
    tensors: MicroTensors,
}

#[derive(Clone, Copy)]
struct MicroTensors {
    batch: BatchInputs,
    key: Tensor,
    samples: Tensor,
    seed: Tensor,
}

impl Trainer {
    /// Makes a model ready for training on a device, with its initial parameters.
    pub fn new(device: Box<dyn Device>, model: Model, options: TrainOptions, values: &[f32]) -> Result<Self> {
        check(&model, &options)?;
        let mut states = States::default();
        let buffers = declare(&mut states, &model);
        let mut runtime = Runtime::new(device, &states)?;
        let mut compile = |add: bool| -> Result<Micro> {
            let (graph, tensors) = micro_graph(&model, buffers, &options, add)?;
            let program = runtime.compile(graph, &options.passes)?;
            tensors.batch.write_positions(&mut runtime, program)?;
            Ok(Micro { program, tensors })
        };
        let (first, more) = (compile(false)?, compile(true)?);
        let adamw = AdamW {
            beta1: options.beta1,
            beta2: options.beta2,
            eps: options.eps,
            clip: options.grad_clip,
            ranges: model.layout().update_ranges(options.weight_decay),
        };
        let step = adamw_update(buffers.optimiser, adamw);
        let update = runtime.compile(step.graph, &options.passes)?;
        let batch = Batch::new(options.rows, options.context);
        let mut engine = Engine::with_runtime(runtime, model, buffers.optimiser.parameters);
        engine.set_parameters(values)?;
        Ok(Trainer {
            dropout_key: philox::key(options.seed, philox::Purpose::Dropout),
            engine,
            options,
            buffers,
            first,
            more,
            update,
            learning_rate: step.learning_rate,
            norm: step.norm,
            batch,
            step: 0,
            samples: 0,
            tokens: 0,
        })
    }

    /// What a run would need, without a device.
    pub fn plan(model: &Model, options: &TrainOptions) -> Result<MemoryPlan> {
        check(model, options)?;
        let mut states = States::default();
        let buffers = declare(&mut states, model);
        let (graph, _) = micro_graph(model, buffers, options, false)?;
        let plan = dry_run(graph, &options.passes)?;
        Ok(MemoryPlan {
            parameters: model.layout().count(),
            flops_per_token: model.config().flops_per_token(),
            states: states
                .specs()
                .iter()
                .map(|spec| (spec.name.clone(), spec.len * spec.dtype.bytes()))
                .collect(),
            arena_bytes: plan.arena_bytes,
            unshared_bytes: plan.unshared_bytes,
            // The first and the further micro-batches are two programs with inputs of their own.
            input_bytes: 2 * plan.input_bytes,
        })
    }

    /// The model with the parameters as they are now, to evaluate and sample from.
    pub fn engine(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// Steps taken so far.
    pub fn step_count(&self) -> u64 {
        self.step
    }

    /// Tokens trained on so far.
    pub fn token_count(&self) -> u64 {
        self.tokens
    }

    /// Takes one step on the next samples of a loader.
    pub fn step(&mut self, loader: &Loader) -> Result<StepReport> {
        let started = Instant::now();
        let mut batch = std::mem::replace(&mut self.batch, Batch::new(0, 0));
        let first_sample = self.samples;
        let filled = loader.fill(
            first_sample,
            BatchMut {
                ids: &mut batch.ids,
                targets: &mut batch.targets,
                positions: &mut batch.positions,
                borders: &mut batch.borders,
                samples: &mut batch.samples,
            },
        );
        let waited = started.elapsed();
        let outcome = filled.map_err(Error::from).and_then(|()| self.step_on(&batch));
        self.batch = batch;
        outcome.map(|report| StepReport { waited, elapsed: started.elapsed(), ..report })
    }

    /// Takes one step on these samples.
    ///
    /// The loss is the mean over the counted targets of the whole step, however it is cut into micro-batches.
    pub fn step_on(&mut self, batch: &Batch) -> Result<StepReport> {
        let started = Instant::now();
        let counted = batch.counted();
        let seed = 1.0 / counted.max(1) as f32;
        let rows = self.options.micro_rows;
        let width = rows * self.options.context;
        for index in 0..self.options.rows / rows {
            let micro = if index == 0 { self.first } else { self.more };
            let (tokens, samples) = (index * width..(index + 1) * width, index * rows..(index + 1) * rows);
            let Micro { program, tensors } = micro;
            let runtime = &mut self.engine.runtime;
            let key = [self.dropout_key[0], self.dropout_key[1], self.step as u32];
            runtime.write(program, tensors.batch.ids, HostData::U32(&batch.ids[tokens.clone()]))?;
            runtime.write(program, tensors.batch.targets, HostData::U32(&batch.targets[tokens.clone()]))?;
            runtime.write(program, tensors.batch.weights, HostData::F32(&batch.weights[tokens]))?;
            runtime.write(program, tensors.samples, HostData::U32(&batch.samples[samples]))?;
            runtime.write(program, tensors.key, HostData::U32(&key))?;
            runtime.write(program, tensors.seed, HostData::F32(&[seed]))?;
            runtime.run(program)?;
        }

        let learning_rate = self.options.schedule.rate(self.step);
        let runtime = &mut self.engine.runtime;
        runtime.write(self.update, self.learning_rate, HostData::F32(&[learning_rate as f32]))?;
        runtime.run(self.update)?;
        let (mut loss, mut norm) = ([0.0], [0.0]);
        runtime.read(self.update, self.norm, &mut norm)?;
        runtime.read_state(self.buffers.loss, 0..1, &mut loss)?;
        let (loss, norm) = (f64::from(loss[0]) / counted.max(1) as f64, f64::from(norm[0]));
        if !norm.is_finite() {
            return Err(Error::Diverged { step: self.step + 1, loss, norm });
        }
        self.step += 1;
        self.samples += self.options.rows as u64;
        let tokens = batch.ids.len() as u64;
        self.tokens += tokens;
        let (step, elapsed, waited) = (self.step, started.elapsed(), Duration::ZERO);
        Ok(StepReport { step, loss, norm, learning_rate, tokens, elapsed, waited })
    }

    /// The gradients that the last step left, in the flat layout.
    pub fn gradients(&self) -> Result<Vec<f64>> {
        let OptimiserState { gradients, len, .. } = self.buffers.optimiser;
        Ok(self.engine.runtime.read_state_f64(gradients, 0..len)?)
    }

    /// All that a resumed run needs.
    pub fn snapshot(&self) -> Result<Snapshot> {
        let OptimiserState { parameters, first_moment, second_moment, counter, len, .. } =
            self.buffers.optimiser;
        let read = |state: StateId, len: usize| -> Result<Vec<f32>> {
            let mut values = vec![0.0; len];
            self.engine.runtime.read_state(state, 0..len, &mut values)?;
            Ok(values)
        };
        let state = TrainerState {
            step: self.step,
            tokens: self.tokens,
            updates: self.engine.runtime.read_state_f64(counter, 0..1)?[0] as u32,
            seed: self.options.seed,
            samples: self.samples,
        };
        Ok(Snapshot {
            parameters: read(parameters, len)?,
            first_moment: read(first_moment, len)?,
            second_moment: read(second_moment, len)?,
            state,
        })
    }

    /// Goes on from a snapshot exactly as the run that made it would have.
    pub fn restore(&mut self, snapshot: &Snapshot) -> Result<()> {
        let OptimiserState { parameters, first_moment, second_moment, counter, len, .. } =
            self.buffers.optimiser;
        let runtime = &mut self.engine.runtime;
        runtime.write_state(parameters, 0..len, HostData::F32(&snapshot.parameters))?;
        runtime.write_state(first_moment, 0..len, HostData::F32(&snapshot.first_moment))?;
        runtime.write_state(second_moment, 0..len, HostData::F32(&snapshot.second_moment))?;
        runtime.write_state(counter, 0..1, HostData::U32(&[snapshot.state.updates]))?;
        self.step = snapshot.state.step;
        self.samples = snapshot.state.samples;
        self.tokens = snapshot.state.tokens;
        Ok(())
    }
}

fn check(model: &Model, options: &TrainOptions) -> Result<()> {
    let fail =
        |key, value: usize, reason: String| Err(Error::Setting { key, value: value.to_string(), reason });
    let limit = model.config().context;
    if options.context == 0 || options.context > limit {
        return fail("context", options.context, format!("must be between 1 and the model's {limit}"));
    }
    if options.rows == 0 {
        return fail("batch_tokens", 0, "must hold at least one sample of the model's context".into());
    }
    if options.micro_rows == 0 || options.rows % options.micro_rows != 0 {
        let reason = format!("must divide the {} samples of a step", options.rows);
        return fail("micro_batch", options.micro_rows, reason);
    }
    Ok(())
}

fn declare(states: &mut States, model: &Model) -> Buffers {
    let len = model.layout().len();
    let mut flat = |name| states.declare(name, DType::F32, len);
    let optimiser = OptimiserState {
        parameters: flat("parameters"),
        gradients: flat("gradients"),
        first_moment: flat("first moment"),
        second_moment: flat("second moment"),
        counter: states.declare("update counter", DType::U32, 1),
        len,
    };
    Buffers { optimiser, loss: states.declare("loss", DType::F32, 1) }
}

/// Forward, loss and backward of one micro-batch; gradients and the loss are written (or added) to state.
fn micro_graph(
    model: &Model,
    buffers: Buffers,
    options: &TrainOptions,
    add: bool,
) -> Result<(Graph, MicroTensors)> {
    let rows = options.micro_rows;
    let OptimiserState { parameters, gradients, .. } = buffers.optimiser;
    let mut g = Graph::new();
    let batch = BatchInputs::declare(&mut g, rows, options.context);
    let key = g.input("dropout key", &[3], DType::U32);
    let samples = g.input("samples", &[rows], DType::U32);
    let seed = g.input("loss seed", &[1], DType::F32);
    let attend = Attend::Whole(Some(Randomness { key, samples }));
    let hidden = model.hidden(&mut g, parameters, batch.ids, batch.positions, attend)?;
    let logits = model.logits(&mut g, parameters, hidden)?;
    let losses = g.cross_entropy(logits, batch.targets, batch.weights)?;
    let loss = g.sum(losses)?;
    let total = g.state(buffers.loss, 0, TensorType::new(&[1], DType::F32));
    g.write_state(loss, total, add);
    g.train(loss, seed, Accumulate { gradients, add })?;
    Ok((g, MicroTensors { batch, key, samples, seed }))
}
