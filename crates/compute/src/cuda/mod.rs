//! NVIDIA cards. Everything is found at run time: the driver, the compiler of kernels and the library of products.
//!
//! Kernels are the `.cu` files of `kernels/`, compiled for the card when a sequence first needs them and kept on disk. A bound
//! sequence is captured once and replayed as one graph, so running it costs the host one call. Results depend on shapes, on the
//! card and on the stored choices of algorithms: every sum has one owner or a fixed order, and no two threads add to one number.

mod alone;
mod aside;
mod attention;
mod batch;
mod blas;
mod branches;
mod call;
mod choices;
mod cudnn;
mod driver;
mod gate;
mod gelu;
mod int8;
mod library;
mod linear;
mod milestones;
mod modules;
mod numbers;
mod nvml;
mod nvrtc;
mod pages;
mod probe;
mod quantise;
mod rows;
mod sequence;
mod staging;
mod step;
mod symbols;
mod views;
mod warpgroups;
mod weight_gradient;

pub use library::{Needed, Places};
pub use nvml::{Gauge, Reading};
pub use probe::{CardReport, LibraryReport, compile_all, probe};

use std::{
    cell::RefCell, collections::BTreeSet, ffi::c_int, ops::Range, path::PathBuf, sync::Arc, time::Duration,
};

use alone::Alone;
use aside::write_aside;
use blas::Blas;
use branches::{Side, Track};
use call::{Builder, Call, Calls, Machine};
use choices::{Kept, choices_name, merged};
use cudnn::Cudnn;
use driver::{Attribute, Driver};
use milestones::Patience;
use modules::Modules;
use numbers::{check_length, decode, encode};
use nvrtc::Nvrtc;
use pages::Pages;
use probe::{architecture, capability};
use sequence::{Derived, Filled, InFlight, REPEATS, Sequence, fill};
use staging::{READ_PIECES, Staging};

use crate::{
    check::{self, Stored},
    device::{
        BufferId, Device, Frozen, HostData, Launch, READ_NUMBERS, ReadId, SequenceId, View, check_times,
    },
    error::{Error, Result},
    tensor::DType,
};

/// The backend's name.
const DEVICE: &str = "cuda";
/// The types that numbers are stored in.
const STORED: [DType; 5] = [DType::F32, DType::BF16, DType::F16, DType::E4M3, DType::E5M2];
/// The oldest cards that the kernels run on.
const OLDEST_CAPABILITY: usize = 80;
/// The first cards that multiply numbers of eight bits: Ada and Hopper.
const EIGHT_BIT_CAPABILITY: usize = 89;

/// What a caller decides about the backend.
#[derive(Clone, Debug, Default)]
pub struct CudaOptions {
    /// Which card, counted from 0 as the driver does.
    pub ordinal: usize,
    /// Where libraries are looked for besides the system's own places.
    pub places: Places,
    /// Where compiled kernels are kept; nowhere if absent.
    pub kernel_cache: Option<PathBuf>,
    /// A file of the algorithms that were chosen for products and attentions: read if it is there, and written when there are
    /// new ones. What it does not say is taken from the choices that the kernel cache keeps for the card, so that runs on one
    /// machine are alike.
    pub choices: Option<PathBuf>,
    /// What computes attention.
    pub attention: AttentionBy,
}

/// What computes attention where cuDNN can.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AttentionBy {
    /// Whatever takes less time here.
    #[default]
    Fastest,
    /// Our own kernels.
    Kernels,
    /// Our own kernels, gradients in one of whole heads for any number of positions, and of fewer heads than multiprocessors, too.
    WholeHeads,
    /// cuDNN.
    Cudnn,
}

/// The backend.
pub struct Cuda {
    // Fields are dropped in this order: what uses the driver's objects before them.
    sequences: Vec<Option<Sequence>>,
    modules: Modules,
    blas: Blas,
    cudnn: Option<Cudnn>,
    staging: RefCell<Staging>,
    side: Side,
    buffers: Vec<Option<Buffer>>,
    /// How many writes to them there were.
    writes: u64,
    frozen: int8::Matrices,
    fault: u64,
    events: Vec<usize>,
    stream: usize,
    driver: Arc<Driver>,
    context: usize,
    card: String,
    capability: usize,
    multiprocessors: usize,
    /// The device, if memory can be put behind addresses later.
    paged: Option<c_int>,
    attention: AttentionBy,
    free_at_first: usize,
    choices: Vec<PathBuf>,
    in_flight: InFlight,
    kept: Kept,
    last: LastOut,
}

/// Gives the stream back when everything else is gone, and only then lets other threads in. The card's context stays until the process
/// ends: the vendor's libraries keep state in it that they do not make anew for a second one.
struct LastOut {
    driver: Arc<Driver>,
    stream: usize,
    /// Taken when the card begins to end.
    alone: Option<Alone>,
}

impl Drop for LastOut {
    fn drop(&mut self) {
        self.driver.destroy_stream(self.stream);
        drop(self.alone.take());
    }
}

struct Buffer {
    address: u64,
    bytes: usize,
    /// Where memory comes when it is needed.
    pages: Option<Pages>,
    /// The number of the last write to it.
    written: u64,
}

impl Buffer {
    /// Gives the memory back, which nothing on the device uses any more.
    fn free(self, driver: &Driver) {
        match self.pages {
            Some(pages) => pages.free(driver),
            None => driver.free(self.address),
        }
    }
}

/// Words in which a kernel reports an id that is out of range.
const FAULT_WORDS: usize = 4;
/// What the first of them says where a block waited in vain for another.
const LOST: u32 = 2;

impl Cuda {
    /// Opens a card.
    pub fn new(options: &CudaOptions) -> Result<Self> {
        let _alone = Alone::take();
        let driver = Arc::new(Driver::open(&options.places)?);
        let count = driver.device_count()?;
        if options.ordinal >= count {
            return Err(Error::Cuda {
                call: "cuDeviceGet",
                detail: format!("card {} of {count}", options.ordinal),
                advice: "choose one that nvidia-smi lists, or use --device cpu",
            });
        }
        let device = driver.device(options.ordinal)?;
        let (card, capability) = (driver.device_name(device)?, capability(&driver, device)?);
        if capability < OLDEST_CAPABILITY {
            return Err(Error::Cuda {
                call: "cuDeviceGetAttribute",
                detail: format!("{card} has compute capability {}.{}", capability / 10, capability % 10),
                advice: "cards since Ampere (8.0) are supported; use --device cpu",
            });
        }
        let nvrtc = Nvrtc::open(&options.places)?;
        let context = driver.retain_context(device)?;
        driver.make_current(context)?;
        let multiprocessors = driver.attribute(device, Attribute::Multiprocessors)?;
        let paged = (driver.attribute(device, Attribute::Pages)? != 0).then_some(device);
        let free_at_first = driver.free_memory()?;
        let stream = driver.create_stream()?;
        let last = LastOut { driver: Arc::clone(&driver), stream, alone: None };
        let mut blas = Blas::open(Arc::clone(&driver), &options.places)?;
        let mut cudnn =
            Cudnn::open(&options.places, options.attention, capability, driver.total_memory(device)?, stream);
        let cached =
            options.kernel_cache.as_ref().map(|folder| folder.join(choices_name(&card, blas.version())));
        let choices: Vec<PathBuf> = [cached, options.choices.clone()].into_iter().flatten().collect();
        let mut kept = Kept::default();
        // The run's own come last and win.
        for text in choices.iter().filter_map(|file| std::fs::read_to_string(file).ok()) {
            let found = Kept::new(&text);
            blas.take_choices(&found.products);
            if let Some(cudnn) = &mut cudnn {
                cudnn.take_choices(&found.attentions);
            }
            kept.take(found);
        }
        let side = Side::new(Arc::clone(&driver))?;
        let fault = driver.allocate(4 * FAULT_WORDS)?;
        driver.clear(fault, 4 * FAULT_WORDS, stream)?;
        let mut modules =
            Modules::new(Arc::clone(&driver), nvrtc, architecture(capability), options.kernel_cache.clone());
        let staging = RefCell::new(Staging::new(Arc::clone(&driver), stream, &mut modules)?);
        Ok(Cuda {
            sequences: Vec::new(),
            modules,
            blas,
            cudnn,
            staging,
            side,
            buffers: Vec::new(),
            writes: 0,
            frozen: int8::Matrices::default(),
            fault,
            events: Vec::new(),
            stream,
            driver,
            context,
            card,
            capability,
            multiprocessors,
            paged,
            attention: options.attention,
            free_at_first,
            choices,
            in_flight: InFlight::default(),
            kept,
            last,
        })
    }

    fn buffer(&self, kernel: &'static str, view: &View) -> Result<u64> {
        let Some(Some(buffer)) = self.buffers.get(view.buffer.0) else {
            return Err(Error::Binding { kernel, detail: "a buffer that was freed".into() });
        };
        let bytes = view.of.shape.elements() * view.of.dtype.bytes();
        if view.offset_bytes + bytes > buffer.bytes
            || !view.offset_bytes.is_multiple_of(view.of.dtype.bytes())
        {
            let detail =
                format!("{} at byte {} of a buffer of {} bytes", view.of, view.offset_bytes, buffer.bytes);
            return Err(Error::Binding { kernel, detail });
        }
        Ok(buffer.address + view.offset_bytes as u64)
    }

    /// The same for what is read or written at once, so that there must be memory.
    fn memory(&self, call: &'static str, view: &View) -> Result<u64> {
        let address = self.buffer(call, view)?;
        let end = view.offset_bytes + view.of.shape.elements() * view.of.dtype.bytes();
        let pages = self.buffers[view.buffer.0].as_ref().and_then(|buffer| buffer.pages.as_ref());
        if pages.is_some_and(|pages| !pages.are_backed(view.offset_bytes..end)) {
            return Err(Error::Binding {
                kernel: call,
                detail: "reserved memory that was not asked for".into(),
            });
        }
        Ok(address)
    }

    fn issue(&self, call: &Call) -> Result<()> {
        call.issue(&self.driver, &self.blas, self.stream)
    }

    /// Writes choices that are new.
    fn keep_choices(&mut self) {
        let products = self.blas.new_choices();
        let attentions = self.cudnn.as_mut().and_then(Cudnn::new_choices);
        let is_kept = self.choices.iter().all(|file| file.exists());
        if products.is_none() && attentions.is_none() && is_kept {
            return;
        }
        self.kept.products = products.unwrap_or_else(|| std::mem::take(&mut self.kept.products));
        self.kept.attentions = attentions.unwrap_or_else(|| std::mem::take(&mut self.kept.attentions));
        for file in &self.choices {
            // Another run may have kept choices there meanwhile: what it has stays, so that no choice is ever made twice.
            let there = Kept::new(&std::fs::read_to_string(file).unwrap_or_default());
            let products = merged(&self.kept.products, &there.products);
            let attentions = merged(&self.kept.attentions, &there.attentions);
            // Choices that cannot be kept are made again by the next run.
            let _ = write_aside(file, format!("{products}{attentions}").as_bytes());
        }
    }

    fn sequence(&self, sequence: SequenceId) -> Result<&Sequence> {
        self.sequences.get(sequence.0).and_then(Option::as_ref).ok_or_else(unbound)
    }

    /// Whether a kernel met an id outside its table since the last look, or its blocks lost each other.
    fn check_fault(&self) -> Result<()> {
        let mut words = [0u32; FAULT_WORDS];
        self.staging.borrow_mut().download(self.fault, 4 * FAULT_WORDS, 4, |_, bytes| {
            words.copy_from_slice(bytemuck::cast_slice(bytes));
        })?;
        self.refuse_fault(words)
    }

    fn refuse_fault(&self, words: [u32; FAULT_WORDS]) -> Result<()> {
        if words[0] == 0 {
            return Ok(());
        }
        self.driver.clear(self.fault, 4 * FAULT_WORDS, self.stream)?;
        if words[0] == LOST {
            let detail = "a block waited in vain for another".into();
            return Err(Error::Binding { kernel: "decode step", detail });
        }
        Err(Error::IndexOutOfRange { op: "embed", index: words[1] as usize, rows: words[2] as usize })
    }

    fn read(&self, from: &View, mut take: impl FnMut(usize, &[u8])) -> Result<()> {
        self.driver.make_current(self.context)?;
        let address = self.memory("download", from)?;
        let unit = from.of.dtype.bytes();
        let bytes = from.of.shape.elements() * unit;
        self.staging.borrow_mut().download(address, bytes, unit, |at, piece| take(at / unit, piece))?;
        self.check_fault()
    }

    /// Checks launches and makes them ready. Where `for_state` alone, nobody looks at values afterwards.
    fn make_ready(&mut self, launches: &[Launch], for_state: bool) -> Result<SequenceId> {
        self.driver.make_current(self.context)?;
        for launch in launches {
            check::check(launch, DEVICE, Stored { numbers: &STORED, weights: None })?;
            check::disjoint(launch)?;
            self.frozen.check(launch)?;
            for view in launch.inputs.iter().chain(&launch.outputs) {
                self.buffer(launch.kernel.name(), view)?;
            }
        }
        self.staging.get_mut().deliver()?;
        let _alone = Alone::take();
        let outcome = self.build(launches, for_state);
        self.blas.end_timing();
        let mut sequence = outcome?;
        sequence.graph = self.capture(&sequence, 1)?;
        self.keep_choices();
        self.sequences.push(Some(sequence));
        Ok(SequenceId(self.sequences.len() - 1))
    }

    /// Forgets all sequences that name a buffer.
    fn forget_sequences(&mut self, buffer: BufferId) {
        let _alone = Alone::take();
        for sequence in &mut self.sequences {
            if sequence.as_ref().is_some_and(|sequence| sequence.buffers.contains(&buffer)) {
                *sequence = None;
            }
        }
    }

    /// What adds calls, given where buffers are.
    fn builder<'a>(&'a mut self, address: &'a dyn Fn(BufferId) -> u64) -> Builder<'a> {
        let machine = Machine {
            driver: &self.driver,
            modules: &mut self.modules,
            blas: &mut self.blas,
            cudnn: self.cudnn.as_mut(),
            attention: self.attention,
            fault: self.fault,
            multiprocessors: self.multiprocessors,
            stream: self.stream,
        };
        Builder::new(machine, address, &self.frozen)
    }

    fn build(&mut self, launches: &[Launch], for_state: bool) -> Result<Sequence> {
        let driver = Arc::clone(&self.driver);
        let take = |bytes: usize| -> Result<Option<(u64, usize)>> {
            if bytes == 0 { Ok(None) } else { Ok(Some((driver.allocate(bytes)?, bytes))) }
        };
        let at = |memory: Option<(u64, usize)>| memory.map_or(0, |(address, _)| address);
        // The first number that no buffer has.
        let apart = BufferId(self.buffers.len());
        let branches = if for_state { branches::split(launches, apart) } else { None };
        let branch_memory = take(branches.as_ref().map_or(0, |branches| branches.bytes))?;
        let buffers = std::mem::take(&mut self.buffers);
        let address = |id: BufferId| match buffers.get(id.0) {
            Some(buffer) => buffer.as_ref().map_or(0, |buffer| buffer.address),
            None => at(branch_memory),
        };
        let mut builder = self.builder(&address);
        let outcome = fill(&mut builder, launches, for_state, branches.as_ref());
        let (memory_bytes, constants) = (builder.memory_bytes(), builder.constants().to_vec());
        let finished = outcome.and_then(|filled| {
            let (memory, constant_memory) = (take(memory_bytes)?, take(constants.len())?);
            let calls = builder.finish(at(constant_memory), at(memory))?;
            Ok((calls, filled, memory, constant_memory))
        });
        self.buffers = buffers;
        let (calls, Filled { ends, tracks }, memory, constant_memory) =
            finished.inspect_err(|_| self.driver.free(at(branch_memory)))?;
        if let Some((address, bytes)) = constant_memory {
            self.staging.borrow_mut().upload(address, bytes, 1, |at, piece| {
                piece.copy_from_slice(&constants[at..at + piece.len()]);
            })?;
        }
        let outputs = || launches.iter().flat_map(|launch| &launch.outputs);
        let Calls { every_run, derived, derived_from } = calls;
        Ok(Sequence {
            calls: every_run,
            tracks,
            ends,
            buffers: named(launches.iter().flat_map(|launch| &launch.inputs).chain(outputs())),
            written: named(outputs()),
            derived: Derived { calls: derived, from: named(&derived_from), at: None },
            graph: 0,
            many: 0,
            memory,
            constants: constant_memory,
            branches: branch_memory,
            patience: Patience::default(),
            driver: Arc::clone(&self.driver),
        })
    }

    /// Gets a sequence ready to run once more: what it finds made of weights is made anew where they were written since.
    fn prepare(&mut self, sequence: SequenceId) -> Result<()> {
        let newest = |buffers: &[BufferId]| {
            let written = |id: &BufferId| self.buffers[id.0].as_ref().map_or(0, |buffer| buffer.written);
            buffers.iter().map(written).max().unwrap_or(0)
        };
        let Derived { calls, from, at } = &self.sequence(sequence)?.derived;
        let is_stale = at.is_none_or(|at| newest(from) > at);
        self.staging.borrow_mut().deliver()?;
        if is_stale {
            calls.iter().try_for_each(|call| self.issue(call))?;
        }
        let writes = self.writes;
        self.writes += 1;
        let Some(Some(bound)) = self.sequences.get_mut(sequence.0) else { return Err(unbound()) };
        if is_stale {
            bound.derived.at = Some(writes);
        }
        for id in &bound.written {
            if let Some(buffer) = &mut self.buffers[id.0] {
                buffer.written = self.writes;
            }
        }
        Ok(())
    }

    /// A graph of so many runs of a sequence.
    fn capture(&self, sequence: &Sequence, runs: usize) -> Result<usize> {
        self.driver.begin_capture(self.stream)?;
        let issued = (0..runs).try_for_each(|_| self.issue_all(sequence));
        let graph = self.driver.end_capture(self.stream);
        issued.and(graph)
    }

    /// Puts all calls of a sequence on the stream, those of its second half on the one beside it.
    fn issue_all(&self, sequence: &Sequence) -> Result<()> {
        let mut is_parted = false;
        for (call, track) in sequence.calls.iter().zip(&sequence.tracks) {
            match track {
                Track::Trunk if is_parted => self.side.meet(self.stream)?,
                Track::Half(_) if !is_parted => self.side.part(self.stream)?,
                _ => {}
            }
            is_parted = *track != Track::Trunk;
            let stream = if *track == Track::Half(1) { self.side.stream } else { self.stream };
            call.issue(&self.driver, &self.blas, stream)?;
        }
        Ok(())
    }
}

/// Every buffer of some views once.
fn named<'a>(views: impl IntoIterator<Item = &'a View>) -> Vec<BufferId> {
    let all: BTreeSet<BufferId> = views.into_iter().map(|view| view.buffer).collect();
    all.into_iter().collect()
}

fn unbound() -> Error {
    let detail = "the sequence was unbound, or a buffer that it names was freed".into();
    Error::Binding { kernel: "run", detail }
}

impl Device for Cuda {
    fn name(&self) -> &'static str {
        DEVICE
    }

    fn describe(&self) -> String {
        let mut text = format!(
            "{DEVICE}: {}, compute capability {}.{}, cuBLASLt {}",
            self.card,
            self.capability / 10,
            self.capability % 10,
            self.blas.version()
        );
        if let Some(cudnn) = &self.cudnn {
            text += ", ";
            text += &cudnn.describe();
        }
        text
    }

    fn element_bytes(&self, dtype: DType) -> usize {
        dtype.bytes()
    }

    fn allocate(&mut self, bytes: usize) -> Result<BufferId> {
        self.driver.make_current(self.context)?;
        let address = self.driver.allocate(bytes)?;
        self.driver.clear(address, bytes, self.stream)?;
        self.buffers.push(Some(Buffer { address, bytes, pages: None, written: 0 }));
        Ok(BufferId(self.buffers.len() - 1))
    }

    fn reserve(&mut self, bytes: usize) -> Result<BufferId> {
        let Some(device) = self.paged else { return self.allocate(bytes) };
        self.driver.make_current(self.context)?;
        let pages = Pages::reserve(&self.driver, device, bytes)?;
        self.buffers.push(Some(Buffer { address: pages.address(), bytes, pages: Some(pages), written: 0 }));
        Ok(BufferId(self.buffers.len() - 1))
    }

    fn back(&mut self, buffer: BufferId, bytes: Range<usize>) -> Result<()> {
        self.driver.make_current(self.context)?;
        let Some(Some(buffer)) = self.buffers.get_mut(buffer.0) else {
            return Err(Error::Binding { kernel: "back", detail: "a buffer that was freed".into() });
        };
        if bytes.end > buffer.bytes {
            let detail = format!("bytes up to {} of a buffer of {}", bytes.end, buffer.bytes);
            return Err(Error::Binding { kernel: "back", detail });
        }
        match &mut buffer.pages {
            Some(pages) => pages.back(&self.driver, bytes, self.stream),
            None => Ok(()),
        }
    }

    fn free(&mut self, buffer: BufferId) {
        if self.driver.make_current(self.context).is_err() || self.driver.synchronize(self.stream).is_err() {
            return;
        }
        self.forget_sequences(buffer);
        if let Some(buffer) = self.buffers.get_mut(buffer.0).and_then(Option::take) {
            buffer.free(&self.driver);
        }
        self.frozen.forget(buffer);
    }

    fn upload(&mut self, to: &View, data: HostData<'_>) -> Result<()> {
        self.driver.make_current(self.context)?;
        let address = self.memory("upload", to)?;
        if let Some(matrix) = self.frozen.overlapping(to).next() {
            let detail = format!("{} is frozen and cannot be written any more", matrix.of);
            return Err(Error::Binding { kernel: "upload", detail });
        }
        let (elements, dtype) = (to.of.shape.elements(), to.of.dtype);
        if elements != data.len() {
            let detail = format!("{} elements for a view of {elements}", data.len());
            return Err(Error::Binding { kernel: "upload", detail });
        }
        self.writes += 1;
        if let Some(Some(buffer)) = self.buffers.get_mut(to.buffer.0) {
            buffer.written = self.writes;
        }
        let unit = dtype.bytes();
        self.staging.get_mut().upload(address, elements * unit, unit, |at, piece| {
            encode(dtype, data, at / unit, piece);
        })
    }

    fn freeze(&mut self, matrix: &View, numbers: &View, how: Frozen) -> Result<()> {
        match how {
            Frozen::Exact => Ok(()),
            Frozen::Int8 => self.freeze_in_int8(matrix, numbers),
        }
    }

    fn download(&self, from: &View, out: &mut [f32]) -> Result<()> {
        check_length(from, out.len())?;
        self.read(from, |at, piece| {
            decode(from.of.dtype, piece, |index, value| out[at + index] = value as f32);
        })?;
        self.read_frozen(from, |index, value| out[index] = value)
    }

    fn download_f64(&self, from: &View, out: &mut [f64]) -> Result<()> {
        check_length(from, out.len())?;
        self.read(from, |at, piece| {
            decode(from.of.dtype, piece, |index, value| out[at + index] = value);
        })?;
        self.read_frozen(from, |index, value| out[index] = f64::from(value))
    }

    fn used_bytes(&self) -> Option<usize> {
        self.driver.make_current(self.context).ok()?;
        Some(self.free_at_first.saturating_sub(self.driver.free_memory().ok()?))
    }

    fn keeps_slopes(&self, activations: DType) -> bool {
        self.modules.has_warpgroup_products() && matches!(activations, DType::BF16 | DType::F16)
    }

    fn runs_ahead(&self) -> bool {
        true
    }

    fn begin_read(&mut self, views: &[View]) -> Result<ReadId> {
        self.driver.make_current(self.context)?;
        let numbers: usize = views.iter().map(|view| view.of.shape.elements()).sum();
        let is_of_f32 = views.iter().all(|view| view.of.dtype == DType::F32);
        if numbers > READ_NUMBERS || views.len() >= READ_PIECES || !is_of_f32 {
            let detail = format!(
                "{numbers} numbers of {} views where a read has at most {READ_NUMBERS} of f32, of {} views",
                views.len(),
                READ_PIECES - 1
            );
            return Err(Error::Binding { kernel: "read", detail });
        }
        // The fault comes first, so that its place does not depend on how much is read.
        let mut pieces = [(self.fault, FAULT_WORDS); READ_PIECES];
        for (piece, view) in pieces[1..].iter_mut().zip(views) {
            *piece = (self.memory("read", view)?, view.of.shape.elements());
        }
        Ok(ReadId(self.staging.get_mut().begin_read(&pieces[..=views.len()])?))
    }

    fn end_read(&mut self, read: ReadId, out: &mut [f32]) -> Result<()> {
        self.driver.make_current(self.context)?;
        let mut words = [0u32; FAULT_WORDS];
        let bytes = self.staging.get_mut().end_read(read.0)?;
        let (fault, numbers) = bytes.split_at(4 * FAULT_WORDS);
        words.copy_from_slice(bytemuck::cast_slice(fault));
        out.copy_from_slice(&bytemuck::cast_slice(numbers)[..out.len()]);
        self.refuse_fault(words)
    }

    fn bind(&mut self, launches: &[Launch]) -> Result<SequenceId> {
        self.make_ready(launches, false)
    }

    fn bind_for_state(&mut self, launches: &[Launch]) -> Result<SequenceId> {
        self.make_ready(launches, true)
    }

    fn unbind(&mut self, sequence: SequenceId) {
        if self.driver.make_current(self.context).is_ok()
            && self.driver.synchronize(self.stream).is_ok()
            && let Some(slot) = self.sequences.get_mut(sequence.0)
        {
            let _alone = Alone::take();
            *slot = None;
        }
    }

    fn run(&mut self, sequence: SequenceId) -> Result<()> {
        self.run_times(sequence, 1)
    }

    fn run_times(&mut self, sequence: SequenceId, times: usize) -> Result<()> {
        self.driver.make_current(self.context)?;
        if times >= REPEATS && self.sequence(sequence)?.many == 0 {
            let _alone = Alone::take();
            let many = self.capture(self.sequence(sequence)?, REPEATS)?;
            if let Some(Some(bound)) = self.sequences.get_mut(sequence.0) {
                bound.many = many;
            }
        }
        self.prepare(sequence)?;
        let bound = self.sequences.get_mut(sequence.0).and_then(Option::as_mut).ok_or_else(unbound)?;
        let staging = self.staging.get_mut();
        let mut left = times;
        while left > 0 {
            let (graph, runs) = if left >= REPEATS { (bound.many, REPEATS) } else { (bound.graph, 1) };
            let calls = runs * bound.calls.len();
            self.in_flight.wait_for_room(calls, staging, &mut bound.patience)?;
            staging.deliver()?;
            self.driver.launch_graph(graph, self.stream)?;
            self.in_flight.add(calls, staging)?;
            left -= runs;
        }
        Ok(())
    }

    fn run_timed(&mut self, sequence: SequenceId, times: &mut [Duration]) -> Result<()> {
        self.driver.make_current(self.context)?;
        let launches = self.sequence(sequence)?.ends.len();
        check_times(launches, times.len())?;
        self.prepare(sequence)?;
        while self.events.len() <= launches {
            self.events.push(self.driver.create_event(true)?);
        }
        let bound = self.sequence(sequence)?;
        let _alone = Alone::take();
        self.driver.record(self.events[0], self.stream)?;
        let mut start = 0;
        for (launch, &end) in bound.ends.iter().enumerate() {
            for call in &bound.calls[start..end] {
                self.issue(call)?;
            }
            self.driver.record(self.events[launch + 1], self.stream)?;
            start = end;
        }
        self.driver.synchronize(self.stream)?;
        for (launch, time) in times.iter_mut().enumerate() {
            let seconds = self.driver.seconds_between(self.events[launch], self.events[launch + 1])?;
            *time = Duration::from_secs_f64(seconds.max(1e-9));
        }
        Ok(())
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        // The libraries' handles and the modules go behind this, as fields.
        self.last.alone = Some(Alone::take());
        if self.driver.make_current(self.context).is_err() {
            return;
        }
        // Nothing can be done about an error while ending.
        let _ = self.driver.synchronize(self.stream);
        self.sequences.clear();
        for buffer in self.buffers.drain(..).flatten() {
            buffer.free(&self.driver);
        }
        for &event in &self.events {
            self.driver.destroy_event(event);
        }
        self.driver.free(self.fault);
    }
}
