//! A model on a device: its parameters, and the programs that evaluate it.

use std::sync::atomic::{AtomicBool, Ordering};

use ironmill_compute::{DType, Device, Frozen, HostData, IGNORED, LossShape};
use ironmill_data::TokenStream;
use ironmill_graph::{Graph, Passes, ProgramId, Runtime, StateId, States, Tensor, refresh_program};

use crate::{
    architecture::{Attend, Buffers, Model, Tokens, Working},
    embed::EmbedProgram,
    error::{Error, Result},
    evaluation::EvaluationSet,
    generate::Caches,
    objective::Objective,
    stored::Stored,
};

/// A model whose parameters lie on a device.
pub struct Engine {
    pub(crate) model: Model,
    pub(crate) runtime: Runtime,
    /// What training changes.
    pub(crate) buffers: Buffers,
    /// What evaluation and generation read: the same, or an average of the parameters.
    pub(crate) shown: Buffers,
    /// Brings the working copy of the parameters up to date.
    refresh: Option<ProgramId>,
    /// Brings the average into the working copy, where there are both.
    show_average: Option<ProgramId>,
    /// Whether the working copy is that of the average now.
    copy_is_average: bool,
    pub(crate) caches: Option<Caches>,
    evaluation: Option<EvaluationProgram>,
    pub(crate) embedders: Vec<EmbedProgram>,
}

/// What a model is kept in on a device, besides the f32 that it came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Parameters and activations in this type; f32 is all there is then.
    Everything(DType),
    /// Weights of products in this type, which is what decoding reads; all else in f32.
    Weights(DType),
    /// Weights of products in [eight bits](ironmill_compute::int8), where the device has such products; parameters besides and activations in
    /// this type.
    Int8(DType),
}

impl Keep {
    /// How parameters that are multiplied lie on a device that does not train them.
    fn frozen(self) -> Frozen {
        if matches!(self, Keep::Int8(_)) { Frozen::Int8 } else { Frozen::Exact }
    }
}

/// What an evaluation found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    /// Mean loss of a token, in nats.
    pub loss: f64,
    /// Tokens that were predicted.
    pub tokens: u64,
    /// Bits that the model needs for a byte of the original text; none if the text's size is not known or the objective
    /// does not code the text.
    pub bits_per_byte: Option<f64>,
}

impl Evaluation {
    /// e to the mean loss.
    pub fn perplexity(&self) -> f64 {
        self.loss.exp()
    }
}

/// The seed of masks in evaluation: the same tokens are asked for every time.
const EVALUATION_SEED: u64 = 0;

struct EvaluationProgram {
    program: ProgramId,
    rows: usize,
    ids: Tensor,
    targets: Tensor,
    loss: Tensor,
}

impl Engine {
    /// A model on a device with these parameter values, in the flat layout, which do not change any more.
    pub fn new(device: Box<dyn Device>, model: Model, values: &[f32]) -> Result<Self> {
        Self::keeping(device, model, values, Keep::Everything(DType::F32))
    }

    /// The same, kept in another type.
    pub fn keeping(device: Box<dyn Device>, model: Model, values: &[f32], keep: Keep) -> Result<Self> {
        let mut states = States::default();
        let buffers = Self::declare(&mut states, &model, keep);
        let runtime = Runtime::new(device, &states)?;
        let mut engine = Self::with_runtime(runtime, model, buffers, values)?;
        engine.freeze(keep.frozen())?;
        Ok(engine)
    }

    /// A stored model on a device. Parameters go there one at a time, so memory holds the model once.
    pub fn open(device: Box<dyn Device>, stored: Stored) -> Result<Self> {
        Self::open_keeping(device, stored, Keep::Everything(DType::F32))
    }

    /// The same, kept in another type.
    pub fn open_keeping(device: Box<dyn Device>, stored: Stored, keep: Keep) -> Result<Self> {
        let mut states = States::default();
        let buffers = Self::declare(&mut states, stored.model(), keep);
        let mut runtime = Runtime::new(device, &states)?;
        stored.for_each(&mut |parameter, values| {
            Ok(runtime.write_state(buffers.parameters, parameter.range(), HostData::F32(values))?)
        })?;
        let mut engine = Self::around(runtime, stored.into_model(), buffers)?;
        engine.refresh_copy()?;
        engine.freeze(keep.frozen())?;
        Ok(engine)
    }

    /// From now on parameters are only read, so the device may keep those that are multiplied as products read them best.
    fn freeze(&mut self, how: Frozen) -> Result<()> {
        let mut g = Graph::new();
        let dims = [1, 1];
        let (ids, positions) = (g.input("ids", &dims, DType::U32), g.input("positions", &dims, DType::U32));
        let tokens = Tokens { ids, positions, attend: Attend::PLAIN, recompute: false };
        let hidden = self.model.hidden(&mut g, self.shown, tokens)?;
        if self.model.config().has_head {
            self.model.logits(&mut g, self.shown, hidden)?;
        }
        self.runtime.freeze_weights(g, &self.shown.passes(&Passes::ALL), how)?;
        if let Some(refresh) = self.refresh.take() {
            self.runtime.forget(refresh);
        }
        // What eight bits were made from is in memory twice otherwise, and larger than all else.
        if let (Frozen::Int8, Some(Working { copy, activations: true, .. })) = (how, self.buffers.working) {
            self.runtime.free_state(self.buffers.parameters);
            self.buffers.parameters = copy;
            self.shown.parameters = copy;
        }
        Ok(())
    }

    /// The buffers that a model's programs read.
    pub(crate) fn declare(states: &mut States, model: &Model, keep: Keep) -> Buffers {
        let len = model.layout().len();
        let (dtype, activations) = match keep {
            Keep::Everything(dtype) | Keep::Int8(dtype) => (dtype, true),
            Keep::Weights(dtype) => (dtype, false),
        };
        Buffers {
            parameters: states.declare("parameters", DType::F32, len),
            constants: states.declare("constants", DType::F32, model.constants().len()),
            working: (dtype != DType::F32).then(|| {
                let copy = states.declare("working copy", dtype, len);
                Working { dtype, copy, activations }
            }),
        }
    }

    pub(crate) fn with_runtime(
        runtime: Runtime,
        model: Model,
        buffers: Buffers,
        values: &[f32],
    ) -> Result<Self> {
        let mut engine = Self::around(runtime, model, buffers)?;
        engine.set_parameters(values)?;
        Ok(engine)
    }

    /// An engine over buffers whose parameters are there, or will be.
    fn around(mut runtime: Runtime, model: Model, buffers: Buffers) -> Result<Self> {
        let refresh = match buffers.working {
            Some(Working { dtype, copy, .. }) => {
                let program = refresh_program(model.layout().len(), dtype, buffers.parameters, copy);
                Some(runtime.compile(program, &Passes::ALL)?)
            }
            None => None,
        };
        let mut engine = Engine {
            model,
            runtime,
            buffers,
            shown: buffers,
            refresh,
            show_average: None,
            copy_is_average: false,
            caches: None,
            evaluation: None,
            embedders: Vec::new(),
        };
        let constants = engine.model.constants();
        engine.runtime.write_state(buffers.constants, 0..constants.len(), HostData::F32(&constants))?;
        Ok(engine)
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// One line about the device.
    pub fn describe_device(&self) -> String {
        self.runtime.device().describe()
    }

    /// Bytes of the device's memory that are in use, where that is known.
    pub fn used_bytes(&self) -> Option<usize> {
        self.runtime.device().used_bytes()
    }

    /// All parameters, in the flat layout.
    pub fn parameters(&self) -> Result<Vec<f32>> {
        let mut values = vec![0.0; self.model.layout().len()];
        self.runtime.read_state(self.buffers.parameters, 0..values.len(), &mut values)?;
        Ok(values)
    }

    /// Replaces all parameters, which only an engine that trains can.
    pub fn set_parameters(&mut self, values: &[f32]) -> Result<()> {
        self.runtime.write_state(self.buffers.parameters, 0..values.len(), HostData::F32(values))?;
        self.refresh_copy()
    }

    /// Brings the working copy up to date, where there is one.
    fn refresh_copy(&mut self) -> Result<()> {
        self.copy_is_average = false;
        if let Some(refresh) = self.refresh {
            self.runtime.run(refresh)?;
        }
        Ok(())
    }

    /// From now on evaluates and generates with an average of the parameters, which lies in a state of the same layout.
    pub(crate) fn show_average(&mut self, average: StateId) -> Result<()> {
        self.shown.parameters = average;
        if let Some(Working { dtype, copy, .. }) = self.buffers.working {
            let program = refresh_program(self.model.layout().len(), dtype, average, copy);
            self.show_average = Some(self.runtime.compile(program, &Passes::ALL)?);
        }
        Ok(())
    }

    /// Makes ready what evaluation and generation read.
    pub(crate) fn show(&mut self) -> Result<()> {
        if let Some(program) = self.show_average {
            self.runtime.run(program)?;
            self.copy_is_average = true;
        }
        Ok(())
    }

    /// Makes ready what training reads.
    pub(crate) fn unshow(&mut self) -> Result<()> {
        if let (true, Some(refresh)) = (self.copy_is_average, self.refresh) {
            self.runtime.run(refresh)?;
            self.copy_is_average = false;
        }
        Ok(())
    }

    /// The mean loss over a stream, or a part of it: its first tokens if `set` is a number. It is read as windows of the model's
    /// context, of which `rows` run at a time. For the next-token objective each token but the first is predicted once; for the
    /// masked-token one a fixed choice of tokens is.
    pub fn evaluate(
        &mut self,
        stream: &TokenStream,
        objective: Objective,
        set: impl Into<EvaluationSet>,
        rows: usize,
    ) -> Result<Evaluation> {
        self.evaluate_until(stream, objective, set, rows, &AtomicBool::new(false))
    }

    /// Does the same, and ends in [`Error::Stopped`] soon after `stop` is set.
    pub fn evaluate_until(
        &mut self,
        stream: &TokenStream,
        objective: Objective,
        set: impl Into<EvaluationSet>,
        rows: usize,
        stop: &AtomicBool,
    ) -> Result<Evaluation> {
        self.evaluate_behind(&[], stream, objective, set.into(), rows, stop)
    }

    /// Does the same with some tokens before every window that does not begin with them, as [`evaluate_until`](Self::evaluate_until)
    /// otherwise. They are part of the context and never asked for, here or where a document begins: the `<bos>` without which some
    /// models are at a loss.
    pub fn evaluate_behind(
        &mut self,
        before: &[u32],
        stream: &TokenStream,
        objective: Objective,
        set: EvaluationSet,
        rows: usize,
        stop: &AtomicBool,
    ) -> Result<Evaluation> {
        let predictable = stream.tokens().saturating_sub(1);
        if predictable.min(set.tokens()) == 0 {
            let reason = "evaluation needs at least two tokens".into();
            return Err(Error::Setting { key: "eval_tokens", value: set.tokens().to_string(), reason });
        }
        let (context, vocab_size) = (self.model.config().context, self.model.config().vocab_size);
        let room = context.saturating_sub(before.len());
        if room == 0 {
            let reason = format!("{} tokens before the text leave nothing of it", before.len());
            return Err(Error::Setting { key: "context", value: context.to_string(), reason });
        }
        self.prepare_evaluation(rows)?;
        self.show()?;
        let Some(evaluation) = &self.evaluation else { unreachable!("it was just prepared") };
        let mut ids = vec![0; rows * context];
        let mut targets = vec![IGNORED; rows * context];
        let mut window = vec![0; room + 1];
        let mut windows = set.windows(predictable, room as u64).peekable();
        let (mut sum, mut predicted, mut seen) = (0.0, 0, 0);
        while windows.peek().is_some() {
            if stop.load(Ordering::Relaxed) {
                return Err(Error::Stopped);
            }
            targets.fill(IGNORED);
            for (ids, targets) in ids.chunks_exact_mut(context).zip(targets.chunks_exact_mut(context)) {
                let Some((position, count)) = windows.next() else { break };
                stream.read(position, &mut window[..=count])?;
                let put = if window[..=count].starts_with(before) { &[] } else { before };
                ids[..put.len()].copy_from_slice(put);
                let (ids, targets) = (&mut ids[put.len()..], &mut targets[put.len()..]);
                ids[..count].copy_from_slice(&window[..count]);
                for (target, &next) in targets.iter_mut().zip(&window[1..=count]) {
                    *target = if before.contains(&next) { IGNORED } else { next };
                }
                seen += count as u64;
                objective.prepare(EVALUATION_SEED, (position / room as u64) as u32, vocab_size, ids, targets);
                predicted += targets.iter().filter(|&&target| target != IGNORED).count() as u64;
            }
            self.runtime.write(evaluation.program, evaluation.ids, HostData::U32(&ids))?;
            self.runtime.write(evaluation.program, evaluation.targets, HostData::U32(&targets))?;
            self.runtime.run(evaluation.program)?;
            let mut loss = [0.0];
            self.runtime.read(evaluation.program, evaluation.loss, &mut loss)?;
            sum += f64::from(loss[0]);
        }
        let loss = sum / predicted.max(1) as f64;
        let bytes_per_token = stream.raw_bytes() as f64 / stream.tokens() as f64;
        let is_code = objective == Objective::NextToken && bytes_per_token > 0.0;
        let bits_per_byte = is_code.then(|| sum / std::f64::consts::LN_2 / (bytes_per_token * seen as f64));
        Ok(Evaluation { loss, tokens: predicted, bits_per_byte })
    }

    fn prepare_evaluation(&mut self, rows: usize) -> Result<()> {
        if self.evaluation.as_ref().is_some_and(|evaluation| evaluation.rows == rows) {
            return Ok(());
        }
        let context = self.model.config().context;
        let mut g = Graph::new();
        let batch = BatchInputs::declare(&mut g, rows, context);
        let tokens =
            Tokens { ids: batch.ids, positions: batch.positions, attend: Attend::PLAIN, recompute: false };
        let hidden = self.model.hidden(&mut g, self.shown, tokens)?;
        let logits = self.model.logits(&mut g, self.shown, hidden)?;
        let losses = g.cross_entropy(logits, batch.targets, batch.weights, LossShape::default())?;
        let loss = g.sum(losses)?;
        g.keep(loss);
        let program = self.runtime.compile(g, &self.shown.passes(&Passes::ALL))?;
        batch.write_positions(&mut self.runtime, program)?;
        self.runtime.write(program, batch.weights, HostData::F32(&vec![1.0; rows * context]))?;
        let BatchInputs { ids, targets, .. } = batch;
        self.evaluation = Some(EvaluationProgram { program, rows, ids, targets, loss });
        Ok(())
    }
}

/// The inputs that every program over whole samples has.
#[derive(Clone, Copy)]
pub(crate) struct BatchInputs {
    pub ids: Tensor,
    pub positions: Tensor,
    pub targets: Tensor,
    pub weights: Tensor,
    rows: usize,
    context: usize,
}

impl BatchInputs {
    pub fn declare(g: &mut Graph, rows: usize, context: usize) -> Self {
        let dims = [rows, context];
        BatchInputs {
            ids: g.input("ids", &dims, DType::U32),
            positions: g.input("positions", &dims, DType::U32),
            targets: g.input("targets", &dims, DType::U32),
            weights: g.input("weights", &dims, DType::F32),
            rows,
            context,
        }
    }

    /// Positions count from 0 in every sample and never change, so they are written once.
    pub fn write_positions(&self, runtime: &mut Runtime, program: ProgramId) -> Result<()> {
        let positions: Vec<u32> = (0..self.rows).flat_map(|_| 0..self.context as u32).collect();
        Ok(runtime.write(program, self.positions, HostData::U32(&positions))?)
    }
}
