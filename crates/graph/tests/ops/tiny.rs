//! A GPT-2-like model of few layers: every op, a tied head, and dropout wherever GPT-2 has it.
//!
//! B samples, T positions, C channels, V vocabulary.

use std::ops::Range;

use ironmill_compute::{
    Adam, DType, Device, GUARD_STATISTICS, Guard, HostData, IGNORED, LossShape, Mask,
    philox::{Purpose, key, philox},
};
use ironmill_graph::{
    Accumulate, Graph, Heads, Layout, Optimiser, OptimiserState, Passes, ProgramId, Randomness, Result,
    Runtime, StateId, States, Tensor, Update, update_program,
};

use crate::cases::normals;

/// The sizes of a model.
#[derive(Clone, Copy)]
pub struct Size {
    /// T.
    pub positions: usize,
    /// C.
    pub channels: usize,
    pub heads: usize,
    /// V.
    pub vocabulary: usize,
    pub dropout: f32,
    pub layers: usize,
    /// Whether the backward computes the values of a layer again.
    pub recompute: bool,
}

/// Small enough for double precision in a moment.
pub const SMALL: Size =
    Size { positions: 5, channels: 8, heads: 2, vocabulary: 11, dropout: 0.1, layers: 2, recompute: false };
/// Large enough to cross the tiles of a fast backend and to give several threads something to do.
pub const MEDIUM: Size =
    Size { positions: 37, channels: 48, heads: 3, vocabulary: 97, dropout: 0.1, layers: 2, recompute: false };

const EPS: f32 = 1e-5;
pub const LEARNING_RATE: f32 = 0.01;
/// Far above what rounding leaves of a gradient that is zero in truth, as a key's bias has; a smaller one would make steps
/// of the full learning rate out of noise.
pub const ADAM_EPS: f32 = 1e-3;

/// A model's parameters and the persistent buffers of its training.
pub struct Model {
    pub size: Size,
    pub layout: Layout,
    pub states: States,
    pub optimiser: OptimiserState,
    /// A copy of the parameters in bf16.
    pub working: StateId,
}

/// A micro-batch's program and its inputs.
pub struct Micro {
    pub graph: Graph,
    ids: Tensor,
    positions: Tensor,
    targets: Tensor,
    weights: Tensor,
    key: Tensor,
    samples: Tensor,
    seed: Tensor,
    pub loss: Tensor,
}

impl Model {
    pub fn new(size: Size) -> Self {
        let c = size.channels;
        let mut layout = Layout::default();
        layout.add("tokens", &[size.vocabulary, c], true);
        layout.add("positions", &[size.positions, c], true);
        let norm = |layout: &mut Layout, name: String| {
            layout.add(format!("{name}.gain"), &[c], false);
            layout.add(format!("{name}.shift"), &[c], false);
        };
        let linear = |layout: &mut Layout, name: String, outputs: usize, inputs: usize| {
            layout.add(format!("{name}.weight"), &[outputs, inputs], true);
            layout.add(format!("{name}.bias"), &[outputs], false);
        };
        for layer in 0..size.layers {
            norm(&mut layout, format!("{layer}.norm1"));
            linear(&mut layout, format!("{layer}.qkv"), 3 * c, c);
            linear(&mut layout, format!("{layer}.projection"), c, c);
            norm(&mut layout, format!("{layer}.norm2"));
            linear(&mut layout, format!("{layer}.up"), 4 * c, c);
            linear(&mut layout, format!("{layer}.down"), c, 4 * c);
        }
        norm(&mut layout, "norm".into());

        let mut states = States::default();
        let len = layout.len();
        let mut flat = |name| states.declare(name, DType::F32, len);
        let (parameters, gradients) = (flat("parameters"), flat("gradients"));
        let (first_moment, second_moment) = (flat("first moment"), Some(flat("second moment")));
        let counter = states.declare("counter", DType::U32, 1);
        let working = states.declare("working copy", DType::BF16, len);
        let loss = states.declare("loss", DType::F32, 1);
        let guard = states.declare("guard", DType::F32, GUARD_STATISTICS);
        let optimiser = OptimiserState {
            parameters,
            gradients,
            first_moment,
            second_moment,
            counter,
            loss,
            guard,
            average: None,
            working: None,
            len,
        };
        Model { size, layout, states, optimiser, working }
    }

    /// Forward and backward of a micro-batch; `add` says whether gradients add to what is there.
    pub fn micro(&self, samples: usize, add: bool) -> Micro {
        let mut micro = self.forward(samples);
        let into = Accumulate { gradients: self.optimiser.gradients, add };
        micro.graph.train(micro.loss, micro.seed, into).unwrap();
        micro
    }

    /// The forward program alone.
    pub fn forward(&self, samples: usize) -> Micro {
        let t = self.size.positions;
        let mut g = Graph::new();
        let ids = g.input("ids", &[samples, t], DType::U32);
        let positions = g.input("positions", &[samples, t], DType::U32);
        let targets = g.input("targets", &[samples, t], DType::U32);
        let weights = g.input("weights", &[samples, t], DType::F32);
        let key = g.input("key", &[3], DType::U32);
        let sample_ids = g.input("samples", &[samples], DType::U32);
        let seed = g.input("seed", &[1], DType::F32);

        let random = Randomness { key, samples: sample_ids };
        let table = self.parameter(&mut g, "tokens");
        let places = self.parameter(&mut g, "positions");
        let (token, place) = (g.embed(table, ids).unwrap(), g.embed(places, positions).unwrap());
        let x = g.add(token, place).unwrap();
        let mut x = g.dropout(x, self.size.dropout, random).unwrap();
        for layer in 0..self.size.layers {
            x = match self.size.recompute {
                true => g.recompute(|g| self.layer(g, x, layer, random)).unwrap(),
                false => self.layer(&mut g, x, layer, random).unwrap(),
            };
        }
        let x = self.norm(&mut g, x, "norm");
        let logits = g.linear(x, table, None).unwrap();
        let losses = g.cross_entropy(logits, targets, weights, LossShape::default()).unwrap();
        let loss = g.sum(losses).unwrap();
        g.keep(loss);
        Micro { graph: g, ids, positions, targets, weights, key, samples: sample_ids, seed, loss }
    }

    /// Attention and perceptron, each with its norm before and its residual around it.
    fn layer(&self, g: &mut Graph, x: Tensor, layer: usize, random: Randomness) -> Result<Tensor> {
        let Size { channels, heads, dropout, .. } = self.size;
        let heads = Heads { queries: heads, keys: heads, mask: Mask::Causal, window: 0 };
        let h = self.norm(g, x, &format!("{layer}.norm1"));
        let qkv = self.linear(g, h, &format!("{layer}.qkv"));
        let [q, k, v] = g.split(qkv, &[channels; 3])?[..] else { unreachable!("three parts") };
        let a = g.attention([q, k, v], None, heads)?;
        let a = self.linear(g, a, &format!("{layer}.projection"));
        let a = g.dropout(a, dropout, random)?;
        let x = g.add(x, a)?;
        let h = self.norm(g, x, &format!("{layer}.norm2"));
        let h = self.linear(g, h, &format!("{layer}.up"));
        let h = g.gelu(h)?;
        let h = self.linear(g, h, &format!("{layer}.down"));
        let h = g.dropout(h, dropout, random)?;
        g.add(x, h)
    }

    /// The place of a parameter in the flat buffers.
    pub fn range(&self, name: &str) -> Range<usize> {
        self.layout.parameters().iter().find(|p| p.name == name).unwrap().range()
    }

    fn parameter(&self, g: &mut Graph, name: &str) -> Tensor {
        let parameter = self.layout.parameters().iter().find(|p| p.name == name).unwrap();
        g.parameter(self.optimiser.parameters, parameter)
    }

    fn linear(&self, g: &mut Graph, x: Tensor, name: &str) -> Tensor {
        let weight = self.parameter(g, &format!("{name}.weight"));
        let bias = self.parameter(g, &format!("{name}.bias"));
        g.linear(x, weight, Some(bias)).unwrap()
    }

    fn norm(&self, g: &mut Graph, x: Tensor, name: &str) -> Tensor {
        let gain = self.parameter(g, &format!("{name}.gain"));
        let shift = self.parameter(g, &format!("{name}.shift"));
        g.layer_norm(x, gain, Some(shift), EPS).unwrap()
    }
}

/// A model on a device.
pub struct Trial<'a> {
    model: &'a Model,
    pub runtime: Runtime,
    update: ProgramId,
    learning_rate: Tensor,
}

/// A compiled micro-batch.
pub struct Program {
    pub id: ProgramId,
    micro: Micro,
}

impl<'a> Trial<'a> {
    pub fn new(model: &'a Model, device: Box<dyn Device>, passes: &Passes) -> Self {
        let mut runtime = Runtime::new(device, &model.states).unwrap();
        for (index, parameter) in model.layout.parameters().iter().enumerate() {
            let mut values = normals(100 + index as u32, parameter.shape.elements());
            let centre = if parameter.name.ends_with("gain") { 1.0 } else { 0.0 };
            values.iter_mut().for_each(|x| *x = f64::from((centre + 0.3 * *x) as f32));
            runtime
                .write_state(model.optimiser.parameters, parameter.range(), HostData::F64(&values))
                .unwrap();
        }
        let ranges = model.layout.update_ranges(0.1);
        let adam = Adam { beta1: 0.9, beta2: 0.95, eps: ADAM_EPS, decoupled: true, ranges };
        let guard = Guard { clip: 1.0, loss_outlier: 0.0, norm_outlier: 0.0, warmup: 0, holds: false };
        let Update { graph, learning_rate, .. } =
            update_program(model.optimiser, guard, Optimiser::Adam(adam));
        let update = runtime.compile(graph, passes).unwrap();
        runtime.write(update, learning_rate, HostData::F32(&[LEARNING_RATE])).unwrap();
        Trial { model, runtime, update, learning_rate }
    }

    pub fn compile(&mut self, mut micro: Micro, passes: &Passes) -> Program {
        let graph = std::mem::take(&mut micro.graph);
        Program { id: self.runtime.compile(graph, passes).unwrap(), micro }
    }

    /// Runs a micro-batch of these samples out of a step of `total`, and returns the sum of its losses.
    pub fn run(&mut self, program: &Program, samples: Range<u32>, total: usize, step: u32) -> f64 {
        let Size { positions: t, vocabulary, .. } = self.model.size;
        let elements =
            || samples.clone().flat_map(|sample| (0..t as u32).map(move |position| (sample, position)));
        let draw = |sample, position, what| philox([sample, what], [position, step, 0, 0])[0];
        let id = |(sample, position), what| draw(sample, position, what) % vocabulary as u32;
        let ids: Vec<u32> = elements().map(|at| id(at, 1)).collect();
        let positions: Vec<u32> = elements().map(|(_, position)| position).collect();
        let targets: Vec<u32> =
            elements().map(|at| if draw(at.0, at.1, 3) % 7 == 0 { IGNORED } else { id(at, 2) }).collect();
        let weights: Vec<f32> = elements().map(|(sample, _)| 1.0 + (sample % 2) as f32).collect();
        let [key0, key1] = key(5, Purpose::Dropout);
        let seed = 1.0 / (total * t) as f64;

        let Micro { seed: seed_input, .. } = program.micro;
        let words = [
            (program.micro.ids, ids),
            (program.micro.positions, positions),
            (program.micro.targets, targets),
            (program.micro.key, vec![key0, key1, step]),
            (program.micro.samples, samples.clone().collect()),
        ];
        for (input, words) in &words {
            self.runtime.write(program.id, *input, HostData::U32(words)).unwrap();
        }
        self.runtime.write(program.id, program.micro.weights, HostData::F32(&weights)).unwrap();
        self.runtime.write(program.id, seed_input, HostData::F32(&[seed as f32])).unwrap();
        self.runtime.run(program.id).unwrap();
        self.runtime.read_f64(program.id, program.micro.loss).unwrap()[0]
    }

    /// Moves the parameters.
    pub fn update(&mut self) {
        self.runtime.write(self.update, self.learning_rate, HostData::F32(&[LEARNING_RATE])).unwrap();
        self.runtime.run(self.update).unwrap();
    }

    pub fn gradients(&self) -> Vec<f64> {
        self.runtime.read_state_f64(self.model.optimiser.gradients, 0..self.model.layout.len()).unwrap()
    }

    pub fn parameters(&self) -> Vec<f64> {
        self.runtime.read_state_f64(self.model.optimiser.parameters, 0..self.model.layout.len()).unwrap()
    }
}

/// What two steps of training leave behind.
#[derive(Debug, PartialEq)]
pub struct Outcome {
    pub losses: Vec<f64>,
    /// Of the first step.
    pub gradients: Vec<f64>,
    /// After both.
    pub parameters: Vec<f64>,
}

/// Two steps of three samples each: the second starts from moved parameters and a used arena.
pub fn train(model: &Model, device: Box<dyn Device>, passes: &Passes) -> Outcome {
    let mut trial = Trial::new(model, device, passes);
    let program = trial.compile(model.micro(3, false), passes);
    let first = trial.run(&program, 0..3, 3, 0);
    let gradients = trial.gradients();
    trial.update();
    let second = trial.run(&program, 3..6, 3, 1);
    trial.update();
    Outcome { losses: vec![first, second], gradients, parameters: trial.parameters() }
}
