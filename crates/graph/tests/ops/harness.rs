//! Builds a case into a program, fills it, and runs it on a device.

use ironmill_compute::{Cpu, DType, Device, HostData, Op, Reference};
use ironmill_graph::{Graph, Passes, ProgramId, Runtime, States, Tensor};

use crate::cases::{Case, Fill, normals};

/// The fast backend with this many threads.
pub fn cpu(threads: usize) -> Box<dyn Device> {
    Box::new(Cpu::new(threads).unwrap())
}

/// The reference without rounding: what everything is measured against.
pub fn exact() -> Box<dyn Device> {
    Box::new(Reference::exact())
}

/// Makes a device anew, so that no run sees another's memory.
pub type NewDevice = fn() -> Box<dyn Device>;

/// The exact reference, then the backends that are compared with it.
pub const DEVICES: [NewDevice; 2] = [exact, || cpu(2)];

/// The results of a case, each with what it is of.
pub struct Results {
    /// The op's outputs, statistics included.
    pub outputs: Vec<Vec<f64>>,
    /// The gradients of the real operands, by operand.
    pub gradients: Vec<(usize, Vec<f64>)>,
}

impl Results {
    /// Everything, with a name for messages.
    pub fn all(&self) -> impl Iterator<Item = (String, &Vec<f64>)> {
        let outputs = self.outputs.iter().enumerate().map(|(i, x)| (format!("output {i}"), x));
        let gradients = self.gradients.iter().map(|(i, x)| (format!("gradient of operand {i}"), x));
        outputs.chain(gradients)
    }
}

/// A case as a program, with its operands and the gradients of its outputs as inputs.
pub struct Built {
    graph: Graph,
    operands: Vec<Tensor>,
    outputs: Vec<Tensor>,
    seeds: Vec<(Tensor, Tensor)>,
}

impl Built {
    /// The forward program of a case.
    pub fn forward(case: &Case) -> Self {
        let mut graph = Graph::new();
        let operands: Vec<Tensor> = case
            .operands
            .iter()
            .map(|operand| graph.input("operand", &operand.dims, operand.dtype()))
            .collect();
        let outputs = graph.op(case.op.clone(), &operands).unwrap();
        outputs.iter().for_each(|&output| graph.keep(output));
        Built { graph, operands, outputs, seeds: Vec::new() }
    }

    /// Appends the gradients of some operands, seeded at the outputs that have a derivative.
    pub fn derive(&mut self, case: &Case, of: &[usize]) -> Vec<(usize, Tensor)> {
        for &output in &self.outputs[..differentiable_outputs(case)] {
            let dims = self.graph.shape(output);
            let seed = self.graph.input("seed", dims.dims(), DType::F32);
            self.seeds.push((output, seed));
        }
        let wanted: Vec<Tensor> = of.iter().map(|&operand| self.operands[operand]).collect();
        let gradients = self.graph.gradients(&self.seeds, &wanted).unwrap();
        let found =
            gradients.into_iter().map(|gradient| gradient.expect("a gradient flows to every real operand"));
        let found: Vec<(usize, Tensor)> = of.iter().copied().zip(found).collect();
        found.iter().for_each(|&(_, gradient)| self.graph.keep(gradient));
        found
    }
}

/// How many of a case's outputs have a derivative; those behind them are statistics for the backward.
pub fn differentiable_outputs(case: &Case) -> usize {
    match &case.op {
        Op::Split { sizes } => sizes.len(),
        _ => 1,
    }
}

/// The operands that the case is differentiated by.
pub fn real_operands(case: &Case) -> Vec<usize> {
    (0..case.operands.len()).filter(|&i| matches!(case.operands[i].fill, Fill::Real)).collect()
}

/// The operands' values. They differ between operands, and between cases with other shapes.
pub fn operand_values(case: &Case) -> Vec<Vec<f64>> {
    case.operands.iter().enumerate().map(|(index, operand)| operand.values(index as u32 + 1)).collect()
}

/// The gradient of an output: a random projection, so that no derivative can hide in a symmetry.
pub fn seed_values(output: usize, elements: usize) -> Vec<f64> {
    normals(1000 + output as u32, elements)
}

/// A forward program that is run again and again with other operands.
pub struct Forward {
    runtime: Runtime,
    program: ProgramId,
    operands: Vec<Tensor>,
    outputs: Vec<Tensor>,
}

impl Forward {
    pub fn new(case: &Case, device: Box<dyn Device>) -> Self {
        let built = Built::forward(case);
        let mut runtime = Runtime::new(device, &States::default()).unwrap();
        let program = runtime.compile(built.graph, &Passes::NONE).unwrap();
        let mut forward = Forward { runtime, program, operands: built.operands, outputs: built.outputs };
        for (index, values) in operand_values(case).iter().enumerate() {
            forward.write(case, index, values);
        }
        forward
    }

    pub fn write(&mut self, case: &Case, operand: usize, values: &[f64]) {
        let dtype = case.operands[operand].dtype();
        write(&mut self.runtime, self.program, self.operands[operand], dtype, values);
    }

    /// Runs and reads the first outputs.
    pub fn run(&mut self, outputs: usize) -> Vec<Vec<f64>> {
        self.runtime.run(self.program).unwrap();
        self.outputs[..outputs].iter().map(|&t| self.runtime.read_f64(self.program, t).unwrap()).collect()
    }
}

/// Runs a case forward and backward for all its real operands.
pub fn run(case: &Case, device: Box<dyn Device>, operands: &[Vec<f64>]) -> Results {
    run_for(case, device, operands, &real_operands(case))
}

/// Runs a case forward, and backward for some operands.
pub fn run_for(case: &Case, device: Box<dyn Device>, operands: &[Vec<f64>], of: &[usize]) -> Results {
    run_seeded(case, device, operands, of, &seed_values)
}

/// Runs a case forward, and backward for some operands from given gradients of its outputs.
pub fn run_seeded(
    case: &Case,
    device: Box<dyn Device>,
    operands: &[Vec<f64>],
    of: &[usize],
    seed_values: &dyn Fn(usize, usize) -> Vec<f64>,
) -> Results {
    let mut built = Built::forward(case);
    let gradients = built.derive(case, of);
    let Built { graph, operands: inputs, outputs, seeds } = built;
    let elements: Vec<usize> = outputs.iter().map(|&output| graph.shape(output).elements()).collect();

    let mut runtime = Runtime::new(device, &States::default()).unwrap();
    let program = runtime.compile(graph, &Passes::NONE).unwrap();
    for (index, (&input, values)) in inputs.iter().zip(operands).enumerate() {
        write(&mut runtime, program, input, case.operands[index].dtype(), values);
    }
    for (output, &(_, seed)) in seeds.iter().enumerate() {
        write(&mut runtime, program, seed, DType::F32, &seed_values(output, elements[output]));
    }
    runtime.run(program).unwrap();

    let outputs = outputs.iter().map(|&output| runtime.read_f64(program, output).unwrap()).collect();
    let gradients = gradients
        .iter()
        .map(|&(operand, gradient)| {
            // The gradient of an addend is the seed itself, which is no value of the program.
            let values = match seeds.iter().position(|&(_, seed)| seed == gradient) {
                Some(output) => seed_values(output, elements[output]),
                None => runtime.read_f64(program, gradient).unwrap(),
            };
            (operand, values)
        })
        .collect();
    Results { outputs, gradients }
}

fn write(runtime: &mut Runtime, program: ProgramId, input: Tensor, dtype: DType, values: &[f64]) {
    if dtype == DType::U32 {
        let words: Vec<u32> = values.iter().map(|&x| x as u32).collect();
        runtime.write(program, input, HostData::U32(&words)).unwrap();
    } else {
        runtime.write(program, input, HostData::F64(values)).unwrap();
    }
}
