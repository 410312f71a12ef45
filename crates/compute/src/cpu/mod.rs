//! The processor's own backend: blocked, vectorised and threaded kernels. Everything is stored and summed in f32; products
//! can be of bf16.
//!
//! Results depend on the shapes and the instruction set, never on the number of threads: work is cut into tiles by shape
//! alone, and every sum has one owner or runs over a fixed list of tiles in order. Working memory is set aside when a
//! sequence is bound, so running one allocates nothing.

mod attention;
mod gemm;
mod head;
mod launch;
mod memory;
pub mod peak;
mod pool;
mod rows;
mod shared;
mod simd;
mod sync;
mod vector;

pub use simd::InstructionSet;

use gemm::{int8, strips};
use memory::{DEVICE, FrozenWords, Memory, Operation, Scratch};
use pool::Pool;
use simd::Simd;

use std::time::{Duration, Instant};

use crate::{
    check::{self, Stored},
    device::{BufferId, Device, Frozen, HostData, Launch, ReadId, Reads, SequenceId, View, check_times},
    error::{Error, Result},
    kernel::Kernel,
    tensor::DType,
};

/// The backend. Its threads are its own and end with it.
pub struct Cpu {
    simd: Simd,
    pool: Pool,
    memory: Memory,
    sequences: Vec<Option<Vec<Step>>>,
    shared: Scratch,
    partials: Vec<f64>,
    reads: Reads,
}

/// A launch that was checked against memory.
struct Step {
    kernel: Kernel,
    operation: Operation,
}

impl Cpu {
    /// A backend that computes on `threads` threads, the caller's included, with the widest instructions there are.
    pub fn new(threads: usize) -> Result<Self> {
        Self::with_simd(threads, Simd::widest())
    }

    /// A backend that uses one instruction set; nothing when this processor does not have it. For tests, which try them all
    /// on one machine.
    pub fn with_instruction_set(threads: usize, set: InstructionSet) -> Option<Result<Self>> {
        Simd::new(set).map(|simd| Self::with_simd(threads, simd))
    }

    fn with_simd(threads: usize, simd: Simd) -> Result<Self> {
        Ok(Cpu {
            simd,
            pool: Pool::new(threads)?,
            memory: Memory::default(),
            sequences: Vec::new(),
            shared: Scratch::default(),
            partials: Vec::new(),
            reads: Reads::default(),
        })
    }

    /// How many threads compute.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// The instructions in use.
    pub fn instruction_set(&self) -> InstructionSet {
        self.simd.set()
    }

    /// Runs a sequence and tells `after` the index of every launch that has ended.
    fn run_and(&mut self, sequence: SequenceId, mut after: impl FnMut(usize)) -> Result<()> {
        let Cpu { simd, pool, memory, sequences, shared, partials, .. } = self;
        let Some(Some(steps)) = sequences.get(sequence.0) else {
            let detail = "the sequence was unbound, or memory that it names was freed or frozen".into();
            return Err(Error::Binding { kernel: "run", detail });
        };
        let mut context = Context { simd: *simd, pool, shared, partials };
        for (index, step) in steps.iter().enumerate() {
            launch::run(&mut context, &step.kernel, &mut memory.operands(&step.operation))?;
            after(index);
        }
        Ok(())
    }

    /// Forgets all sequences with an operation that can no longer be run.
    fn forget_sequences(&mut self, is_over: impl Fn(&Operation) -> bool) {
        for sequence in &mut self.sequences {
            if sequence.as_ref().is_some_and(|steps| steps.iter().any(|step| is_over(&step.operation))) {
                *sequence = None;
            }
        }
    }

    fn reserve(&mut self, needs: Needs) -> Result<()> {
        self.shared.reserve(needs.shared)?;
        self.pool.reserve(needs.scratch)?;
        if needs.partials > self.partials.len() {
            self.partials.resize(needs.partials, 0.0);
        }
        Ok(())
    }
}

/// Working memory of a launch, in elements.
#[derive(Clone, Copy, Default)]
struct Needs {
    /// Of every thread.
    scratch: usize,
    /// Of all threads together.
    shared: usize,
    /// Sums of tiles in double precision.
    partials: usize,
}

impl Needs {
    /// Makes this enough for another launch too.
    fn include(&mut self, other: Needs) {
        self.scratch = self.scratch.max(other.scratch);
        self.shared = self.shared.max(other.shared);
        self.partials = self.partials.max(other.partials);
    }
}

/// What a running kernel may use besides its operands.
struct Context<'a> {
    simd: Simd,
    pool: &'a mut Pool,
    shared: &'a mut Scratch,
    partials: &'a mut [f64],
}

impl Device for Cpu {
    fn name(&self) -> &'static str {
        DEVICE
    }

    fn describe(&self) -> String {
        let threads = self.threads();
        let plural = if threads == 1 { "" } else { "s" };
        format!("{DEVICE}: {} kernels, {threads} thread{plural}", self.simd.set())
    }

    fn element_bytes(&self, dtype: DType) -> usize {
        dtype.bytes()
    }

    fn allocate(&mut self, bytes: usize) -> Result<BufferId> {
        self.memory.allocate(bytes)
    }

    fn free(&mut self, buffer: BufferId) {
        self.memory.free(buffer);
        self.forget_sequences(|operation| operation.names(buffer));
    }

    fn upload(&mut self, to: &View, data: HostData<'_>) -> Result<()> {
        let of = to.of;
        refuse_pairs("upload", of.dtype)?;
        let elements = self.memory.write("upload", to)?;
        check_length("upload", elements.len(), data.len())?;
        if of.dtype == DType::U32 {
            let indices: &mut [u32] = bytemuck::cast_slice_mut(elements);
            match data {
                HostData::U32(data) => indices.copy_from_slice(data),
                HostData::F32(data) => convert(data, indices, |x| x as u32),
                HostData::F64(data) => convert(data, indices, |x| x as u32),
            }
        } else {
            match data {
                HostData::F32(data) => elements.copy_from_slice(data),
                HostData::F64(data) => convert(data, elements, |x| x as f32),
                HostData::U32(data) => convert(data, elements, |x| x as f32),
            }
        }
        Ok(())
    }

    fn freeze(&mut self, matrix: &View, _: &View, how: Frozen) -> Result<()> {
        let (lines, columns, dtype) = (matrix.of.shape.rows(), matrix.of.shape.columns(), matrix.of.dtype);
        let suits = match how {
            Frozen::Exact => {
                strips::suit(self.simd, dtype) && (dtype == DType::F32 || columns.is_multiple_of(2))
            }
            Frozen::Int8 => dtype == DType::F32 && int8::words(lines, columns) <= lines * columns,
        };
        if !suits || self.memory.is_frozen(matrix)? {
            return Ok(());
        }
        let words = self.memory.write("freeze", matrix)?;
        self.pool.reserve(strips::layout_scratch(words.len(), lines))?;
        match how {
            Frozen::Exact => strips::lay_out(self.simd, &mut self.pool, words, lines),
            Frozen::Int8 => int8::lay_out(&mut self.pool, words, lines),
        }
        let frozen = self.memory.freeze(matrix, how)?;
        if how == Frozen::Int8 {
            self.memory.keep_words(&frozen, int8::words(lines, columns));
        }
        self.forget_sequences(|operation| operation.overlaps(&frozen));
        Ok(())
    }

    fn download(&self, from: &View, out: &mut [f32]) -> Result<()> {
        refuse_pairs("download", from.of.dtype)?;
        let elements = self.memory.read("download", from)?;
        check_length("download", elements.len(), out.len())?;
        match from.of.dtype {
            DType::U32 => convert(bytemuck::cast_slice::<f32, u32>(elements), out, |x| x as f32),
            _ => out.copy_from_slice(elements),
        }
        for frozen in self.memory.frozen_inside("download", from)? {
            take_apart(&frozen, elements, &mut out[frozen.words.clone()]);
        }
        Ok(())
    }

    fn download_f64(&self, from: &View, out: &mut [f64]) -> Result<()> {
        refuse_pairs("download", from.of.dtype)?;
        let elements = self.memory.read("download", from)?;
        check_length("download", elements.len(), out.len())?;
        match from.of.dtype {
            DType::U32 => convert(bytemuck::cast_slice::<f32, u32>(elements), out, f64::from),
            _ => convert(elements, out, f64::from),
        }
        for frozen in self.memory.frozen_inside("download", from)? {
            let mut numbers = vec![0.0; frozen.words.len()];
            take_apart(&frozen, elements, &mut numbers);
            convert(&numbers, &mut out[frozen.words.clone()], f64::from);
        }
        Ok(())
    }

    fn used_bytes(&self) -> Option<usize> {
        None
    }

    fn runs_ahead(&self) -> bool {
        false
    }

    fn begin_read(&mut self, views: &[View]) -> Result<ReadId> {
        let mut reads = std::mem::take(&mut self.reads);
        let read = reads.begin(views, |view, out| self.download(view, out));
        self.reads = reads;
        read
    }

    fn end_read(&mut self, read: ReadId, out: &mut [f32]) -> Result<()> {
        self.reads.end(read, out)
    }

    fn bind(&mut self, launches: &[Launch]) -> Result<SequenceId> {
        let mut steps = Vec::with_capacity(launches.len());
        let mut needs = Needs::default();
        for launch in launches {
            check::check(launch, DEVICE, Stored { numbers: &[DType::F32], weights: Some(DType::BF16) })?;
            let operation = self.memory.check(launch)?;
            refuse_frozen(launch, &operation)?;
            needs.include(launch::needs(self.simd, launch, &operation));
            steps.push(Step { kernel: launch.kernel.clone(), operation });
        }
        self.reserve(needs)?;
        self.sequences.push(Some(steps));
        Ok(SequenceId(self.sequences.len() - 1))
    }

    fn unbind(&mut self, sequence: SequenceId) {
        if let Some(slot) = self.sequences.get_mut(sequence.0) {
            *slot = None;
        }
    }

    fn run(&mut self, sequence: SequenceId) -> Result<()> {
        self.run_and(sequence, |_| ())
    }

    fn run_timed(&mut self, sequence: SequenceId, times: &mut [Duration]) -> Result<()> {
        if let Some(Some(steps)) = self.sequences.get(sequence.0) {
            check_times(steps.len(), times.len())?;
        }
        let mut before = Instant::now();
        self.run_and(sequence, |index| {
            let now = Instant::now();
            times[index] = now - before;
            before = now;
        })
    }
}

/// Copies of weights in 16 bits are made and read on the device alone.
fn refuse_pairs(kernel: &'static str, dtype: DType) -> Result<()> {
    if dtype == DType::BF16 { Err(Error::Unsupported { device: DEVICE, kernel, dtype }) } else { Ok(()) }
}

/// Few kernels read frozen matrices, of which the others would see numbers in an order that they do not know.
fn refuse_frozen(launch: &Launch, operation: &Operation) -> Result<()> {
    for (index, view) in launch.inputs.iter().enumerate() {
        if operation.frozen(index).is_some() && !launch::reads_frozen(&launch.kernel, index, view.of.dtype) {
            let detail = format!("input {index} ({}) is frozen, and this kernel needs it as it was", view.of);
            return Err(Error::Binding { kernel: launch.kernel.name(), detail });
        }
    }
    Ok(())
}

/// The numbers of a frozen matrix, row by row, from the words that it lies among.
fn take_apart(frozen: &FrozenWords, words: &[f32], out: &mut [f32]) {
    let words = &words[frozen.words.clone()];
    match frozen.how {
        Frozen::Exact => strips::take_apart(words, frozen.rows, out),
        Frozen::Int8 => int8::take_apart(words, frozen.rows, out),
    }
}

fn check_length(kernel: &'static str, view: usize, host: usize) -> Result<()> {
    if view == host {
        return Ok(());
    }
    Err(Error::Binding { kernel, detail: format!("{host} elements for a view of {view}") })
}

fn convert<A: Copy, B>(from: &[A], to: &mut [B], each: impl Fn(A) -> B) {
    for (to, &from) in to.iter_mut().zip(from) {
        *to = each(from);
    }
}
