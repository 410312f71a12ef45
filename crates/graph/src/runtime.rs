//! A device with the memory of a run: persistent state, one arena that all programs share, and the compiled programs.

use std::{ops::Range, time::Duration};

use ironmill_compute::{
    BufferId, DType, Device, Frozen, HostData, Kernel, Launch, Op, ReadId, SequenceId, Shape, TensorType,
    View,
    kernel::{PROCESSOR_LOGITS, Work},
};

use crate::{
    error::{Error, Result},
    fuse,
    graph::{Graph, Kind, StateId, Tensor},
    parameters::States,
    plan::{self, Plan},
    precision::{self, Precision},
    quantise::{self, EightBits},
    stage::Stage,
};

/// Which passes run, in this fixed order: precision, fuse, quantise, plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passes {
    /// The element types of activations and products.
    pub precision: Precision,
    /// Whether groups of kernels are fused.
    pub fuse: bool,
    /// Which products are of eight bits.
    pub eight_bits: EightBits,
    /// Elements of logits that a fused head keeps at a time.
    pub head_elements: usize,
    /// Rows from which on a product leaves its bias to the norm behind it, if groups are fused.
    pub bare_rows: usize,
    /// Whether values that do not live at the same time share memory.
    pub share_memory: bool,
}

impl Passes {
    /// All passes, in f32. Products add their own biases, which costs a processor nothing.
    pub const ALL: Passes = Passes {
        precision: Precision::F32,
        fuse: true,
        eight_bits: EightBits::Nowhere,
        head_elements: PROCESSOR_LOGITS,
        bare_rows: usize::MAX,
        share_memory: true,
    };
    /// The program as it was written: the oracle of the passes.
    pub const NONE: Passes = Passes { fuse: false, share_memory: false, ..Passes::ALL };
}

/// Runs the passes over a program and plans its memory, without a device: what `--dry-run` prints.
pub fn dry_run(mut graph: Graph, passes: &Passes) -> Result<Plan> {
    run_passes(&mut graph, passes)?;
    Ok(plan::plan(&graph, passes.share_memory, &DType::bytes))
}

/// A compiled program of a [`Runtime`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramId(usize);

/// A launch that was timed.
#[derive(Clone, Copy, Debug)]
pub struct LaunchTime {
    /// The part of the step that it belongs to.
    pub stage: Stage,
    /// The kernel's name.
    pub kernel: &'static str,
    /// What it had to do at least.
    pub work: Work,
    /// How long it took.
    pub time: Duration,
}

/// A device and everything a run keeps on it.
pub struct Runtime {
    device: Box<dyn Device>,
    states: Vec<State>,
    arena: Option<BufferId>,
    arena_bytes: usize,
    /// Forgotten programs leave a gap, because an id is never used twice.
    programs: Vec<Option<Program>>,
}

/// A persistent buffer; none once it was given back.
#[derive(Clone, Copy)]
struct State {
    buffer: Option<BufferId>,
    dtype: DType,
    len: usize,
}

struct Program {
    graph: Graph,
    plan: Plan,
    inputs: Option<BufferId>,
    sequence: SequenceId,
}

impl Runtime {
    /// Takes the memory of all declared states on a device.
    pub fn new(device: Box<dyn Device>, states: &States) -> Result<Self> {
        let mut runtime =
            Runtime { device, states: Vec::new(), arena: None, arena_bytes: 0, programs: Vec::new() };
        for spec in &states.specs {
            runtime.add_state(spec.dtype, spec.len)?;
        }
        Ok(runtime)
    }

    /// Takes the memory of one more state, zero at first.
    pub fn add_state(&mut self, dtype: DType, len: usize) -> Result<StateId> {
        let buffer = self.device.allocate(len * self.device.element_bytes(dtype))?;
        self.states.push(State { buffer: Some(buffer), dtype, len });
        Ok(StateId(self.states.len() - 1))
    }

    /// The same for a state of which only parts may ever be needed: those that [`Runtime::back_state`] was asked for may be used.
    pub fn add_reserved_state(&mut self, dtype: DType, len: usize) -> Result<StateId> {
        let buffer = self.device.reserve(len * self.device.element_bytes(dtype))?;
        self.states.push(State { buffer: Some(buffer), dtype, len });
        Ok(StateId(self.states.len() - 1))
    }

    /// Makes sure that there is memory, zero at first, for elements of a reserved state.
    pub fn back_state(&mut self, state: StateId, range: Range<usize>) -> Result<()> {
        let bytes = self.device.element_bytes(self.states[state.0].dtype);
        let buffer = self.state_buffer(state);
        Ok(self.device.back(buffer, range.start * bytes..range.end * bytes)?)
    }

    /// Gives the memory of a state back. Programs that read it must have been forgotten.
    pub fn free_state(&mut self, state: StateId) {
        if let Some(buffer) = self.states[state.0].buffer.take() {
            self.device.free(buffer);
        }
    }

    /// Gives back what a program holds on the device. It can no longer be run.
    pub fn forget(&mut self, program: ProgramId) {
        if let Some(program) = self.programs[program.0].take() {
            self.device.unbind(program.sequence);
            program.inputs.into_iter().for_each(|inputs| self.device.free(inputs));
        }
    }

    /// The device, for its name and description.
    pub fn device(&self) -> &dyn Device {
        &*self.device
    }

    /// Bytes of the arena that all programs share.
    pub fn arena_bytes(&self) -> usize {
        self.arena_bytes
    }

    /// Runs the passes over a program, plans its memory and makes it ready on the device.
    pub fn compile(&mut self, mut graph: Graph, passes: &Passes) -> Result<ProgramId> {
        run_passes(&mut graph, passes)?;
        if passes.fuse {
            fuse::slopes::keep(&mut graph, |of| self.device.keeps_slopes(of));
            fuse::gate::join_products(&mut graph, |of| self.device.keeps_slopes(of));
        }
        let plan = plan::plan(&graph, passes.share_memory, &|dtype| self.device.element_bytes(dtype));
        let inputs = match plan.input_bytes {
            0 => None,
            bytes => Some(self.device.allocate(bytes)?),
        };
        let grown =
            if plan.arena_bytes > self.arena_bytes { self.grow_arena(plan.arena_bytes) } else { Ok(()) };
        let sequence = match grown.and_then(|()| self.bind(&graph, &plan, inputs)) {
            Ok(sequence) => sequence,
            Err(error) => {
                inputs.into_iter().for_each(|inputs| self.device.free(inputs));
                return Err(error);
            }
        };
        self.programs.push(Some(Program { graph, plan, inputs, sequence }));
        Ok(ProgramId(self.programs.len() - 1))
    }

    /// Says that the weights of a program's products are never written again, so that the device may keep them as products read
    /// them best, or in eight bits if that is asked for, made from the masters where products read a copy. Weights that are rounded on
    /// their way to be multiplied stay as they are.
    /// Programs that were compiled before and name them must be forgotten.
    pub fn freeze_weights(&mut self, mut graph: Graph, passes: &Passes, how: Frozen) -> Result<()> {
        precision::apply(&mut graph, passes.precision)?;
        for node in &graph.nodes {
            let Kernel::Op(Op::Linear { products, .. }) = node.kernel else { continue };
            let info = graph.info(node.inputs[1]);
            if let Kind::State { state, offset } = info.kind
                && info.of.dtype == products
            {
                let view = self.view_in_state(state, offset, info.of);
                let numbers = match passes.precision {
                    Precision::Working { masters, copy, .. } | Precision::Weights { masters, copy, .. }
                        if copy == state =>
                    {
                        self.view_in_state(masters, offset, info.of.with_dtype(DType::F32))
                    }
                    _ => view,
                };
                self.device.freeze(&view, &numbers, how)?;
            }
        }
        Ok(())
    }

    /// The memory plan of a program.
    pub fn plan(&self, program: ProgramId) -> &Plan {
        &self.program(program).plan
    }

    /// How many kernels a run of the program launches.
    pub fn launches(&self, program: ProgramId) -> usize {
        self.program(program).graph.nodes.len()
    }

    /// The kernels that a run of the program launches, in order.
    pub fn kernels(&self, program: ProgramId) -> impl Iterator<Item = &Kernel> {
        self.program(program).graph.nodes.iter().map(|node| &node.kernel)
    }

    /// Writes an input of a program. It stays until it is written again.
    pub fn write(&mut self, program: ProgramId, input: Tensor, data: HostData<'_>) -> Result<()> {
        let Program { graph, plan, inputs, .. } = self.program(program);
        let info = graph.info(input);
        let (Kind::Input { name }, Some(buffer)) = (&info.kind, *inputs) else {
            return Err(Error::NotAnOutput(input.0));
        };
        if data.len() != info.of.shape.elements() {
            return Err(Error::InputLength {
                name: name.clone(),
                expected: info.of.to_string(),
                given: data.len(),
            });
        }
        let view = View { buffer, offset_bytes: plan.offsets[input.0], of: info.of };
        Ok(self.device.upload(&view, data)?)
    }

    /// Runs a program to its end.
    pub fn run(&mut self, program: ProgramId) -> Result<()> {
        let sequence = self.program(program).sequence;
        Ok(self.device.run(sequence)?)
    }

    /// Runs a program so many times, one after the other.
    pub fn run_times(&mut self, program: ProgramId, times: usize) -> Result<()> {
        let sequence = self.program(program).sequence;
        Ok(self.device.run_times(sequence, times)?)
    }

    /// Runs a program to its end and says how long each launch took, and what it had to do at least.
    pub fn profile(&mut self, program: ProgramId) -> Result<Vec<LaunchTime>> {
        let Program { graph, sequence, .. } = self.program(program);
        let (sequence, mut times) = (*sequence, vec![Duration::ZERO; graph.nodes.len()]);
        self.device.run_timed(sequence, &mut times)?;
        let Program { graph, .. } = self.program(program);
        let types = |tensors: &[Tensor]| -> Vec<TensorType> {
            tensors.iter().map(|&tensor| graph.info(tensor).of).collect()
        };
        let launches = graph.nodes.iter().zip(times).map(|(node, time)| LaunchTime {
            stage: node.stage,
            kernel: node.kernel.name(),
            work: node.kernel.work(&types(&node.inputs), &types(&node.outputs)),
            time,
        });
        Ok(launches.collect())
    }

    /// Reads a kept value of the program that ran last.
    pub fn read(&self, program: ProgramId, tensor: Tensor, out: &mut [f32]) -> Result<()> {
        let view = self.kept_view(program, tensor)?;
        Ok(self.device.download(&view, out)?)
    }

    /// Whether a run may return before its work is done.
    pub fn runs_ahead(&self) -> bool {
        self.device.runs_ahead()
    }

    /// Begins to read two kept values of a program that was just run and the first number of a state, as they are when
    /// everything that was run so far has ended.
    pub fn begin_read(&mut self, program: ProgramId, kept: [Tensor; 2], state: StateId) -> Result<ReadId> {
        let [first, second] = kept.map(|tensor| self.kept_view(program, tensor));
        let views = [first?, second?, self.state_view(state, 0..1)];
        Ok(self.device.begin_read(&views)?)
    }

    /// Waits for such a read and gives its numbers one behind the other.
    pub fn end_read<const N: usize>(&mut self, read: ReadId) -> Result<[f32; N]> {
        let mut numbers = [0.0; N];
        self.device.end_read(read, &mut numbers)?;
        Ok(numbers)
    }

    /// Reads a kept value in double precision, for checks on the reference backend.
    pub fn read_f64(&self, program: ProgramId, tensor: Tensor) -> Result<Vec<f64>> {
        let view = self.kept_view(program, tensor)?;
        let mut out = vec![0.0; view.of.shape.elements()];
        self.device.download_f64(&view, &mut out)?;
        Ok(out)
    }

    /// Writes elements of a state.
    pub fn write_state(&mut self, state: StateId, range: Range<usize>, data: HostData<'_>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let view = self.state_view(state, range);
        Ok(self.device.upload(&view, data)?)
    }

    /// Reads elements of a state.
    pub fn read_state(&self, state: StateId, range: Range<usize>, out: &mut [f32]) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        Ok(self.device.download(&self.state_view(state, range), out)?)
    }

    /// The same in double precision.
    pub fn read_state_f64(&self, state: StateId, range: Range<usize>) -> Result<Vec<f64>> {
        let mut out = vec![0.0; range.len()];
        if !range.is_empty() {
            self.device.download_f64(&self.state_view(state, range), &mut out)?;
        }
        Ok(out)
    }

    fn state_view(&self, state: StateId, range: Range<usize>) -> View {
        let State { dtype, len, .. } = self.states[state.0];
        assert!(range.end <= len, "elements {range:?} of a state of {len}");
        self.view_in_state(state, range.start, TensorType { shape: Shape::new(&[range.len()]), dtype })
    }

    /// A tensor that begins so many elements behind the beginning of a state.
    fn view_in_state(&self, state: StateId, offset: usize, of: TensorType) -> View {
        let bytes = self.device.element_bytes(self.states[state.0].dtype);
        View { buffer: self.state_buffer(state), offset_bytes: offset * bytes, of }
    }

    /// # Panics
    /// When the state was given back.
    fn state_buffer(&self, state: StateId) -> BufferId {
        self.states[state.0].buffer.unwrap_or_else(|| panic!("{state:?} was given back"))
    }

    /// # Panics
    /// When the program was forgotten.
    fn program(&self, program: ProgramId) -> &Program {
        self.programs[program.0].as_ref().unwrap_or_else(|| panic!("{program:?} was forgotten"))
    }

    fn kept_view(&self, program: ProgramId, tensor: Tensor) -> Result<View> {
        let Program { graph, plan, .. } = self.program(program);
        match (graph.kept.contains(&tensor) && graph.is_value(tensor), self.arena) {
            (true, Some(buffer)) => {
                Ok(View { buffer, offset_bytes: plan.offsets[tensor.0], of: graph.info(tensor).of })
            }
            _ => Err(Error::NotAnOutput(tensor.0)),
        }
    }

    /// Makes room for a larger program. If there is none, the arena is as it was and the other programs can still be run.
    fn grow_arena(&mut self, bytes: usize) -> Result<()> {
        let before = self.arena_bytes;
        let Err(error) = self.place_arena(bytes) else { return Ok(()) };
        if before > 0 {
            self.place_arena(before)?;
        }
        Err(error)
    }

    /// Programs bound to the old arena are bound again; values never outlive a run, so nothing is copied.
    fn place_arena(&mut self, bytes: usize) -> Result<()> {
        if let Some(arena) = self.arena.take() {
            self.device.free(arena);
        }
        self.arena_bytes = 0;
        self.arena = Some(self.device.allocate(bytes)?);
        self.arena_bytes = bytes;
        for index in 0..self.programs.len() {
            let Some(Program { graph, plan, inputs, sequence }) = &self.programs[index] else { continue };
            let (launches, is_kept) = (self.launch_list(graph, plan, *inputs), !graph.kept.is_empty());
            self.device.unbind(*sequence);
            let sequence = self.bind_launches(&launches, is_kept)?;
            if let Some(program) = &mut self.programs[index] {
                program.sequence = sequence;
            }
        }
        Ok(())
    }

    fn bind(&mut self, graph: &Graph, plan: &Plan, inputs: Option<BufferId>) -> Result<SequenceId> {
        let launches = self.launch_list(graph, plan, inputs);
        self.bind_launches(&launches, !graph.kept.is_empty())
    }

    /// `is_kept` where values of the program are read after it has run.
    fn bind_launches(&mut self, launches: &[Launch], is_kept: bool) -> Result<SequenceId> {
        Ok(if is_kept { self.device.bind(launches)? } else { self.device.bind_for_state(launches)? })
    }

    fn launch_list(&self, graph: &Graph, plan: &Plan, inputs: Option<BufferId>) -> Vec<Launch> {
        let view = |&tensor: &Tensor| {
            let info = graph.info(tensor);
            let planned = plan.offsets[tensor.0];
            let buffer = match info.kind {
                Kind::Input { .. } => inputs,
                Kind::Value => self.arena,
                Kind::State { state, offset } => return self.view_in_state(state, offset, info.of),
            };
            // A program with inputs has an input buffer and one with values an arena: both are made before binding.
            let buffer = buffer.unwrap_or_else(|| unreachable!("memory is allocated before binding"));
            View { buffer, offset_bytes: planned, of: info.of }
        };
        graph
            .nodes
            .iter()
            .map(|node| Launch {
                kernel: node.kernel.clone(),
                inputs: node.inputs.iter().map(view).collect(),
                outputs: node.outputs.iter().map(view).collect(),
            })
            .collect()
    }
}

fn run_passes(graph: &mut Graph, passes: &Passes) -> Result<()> {
    precision::apply(graph, passes.precision)?;
    if passes.fuse {
        fuse::apply(graph, passes.head_elements);
        while fuse::biases::move_one(graph, passes.bare_rows) {}
    }
    if passes.eight_bits != EightBits::Nowhere {
        quantise::apply(graph, passes.eight_bits == EightBits::BlocksAndHead);
    }
    Ok(())
}
