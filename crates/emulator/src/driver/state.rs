//! What the driver remembers: memory, kernels, streams, and what is being captured.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError},
    thread::{self, ThreadId},
    time::Instant,
};

use crate::{
    error::Error,
    machine::{self, By, History, Launch, Region, Table, Timing, Told, raw},
    products::Product,
    program::{Program, SHARED_BASE},
    ptx::Source,
};

/// A status as the vendor numbers them.
pub type Status = i32;
pub const INVALID_VALUE: Status = 1;
pub const OUT_OF_MEMORY: Status = 2;
pub const INVALID_IMAGE: Status = 200;
pub const INVALID_HANDLE: Status = 400;
pub const NOT_FOUND: Status = 500;
pub const LAUNCH_FAILED: Status = 719;
pub const NOT_SUPPORTED: Status = 801;
pub const CAPTURE_INVALIDATED: Status = 901;

/// Memory of the card.
pub const TOTAL_BYTES: usize = 16 << 30;
/// Dynamic shared memory that a kernel has without asking, less its own.
const FREE_SHARED_BYTES: usize = 48 << 10;

/// Something that a stream is given.
#[derive(Clone)]
pub enum Work {
    /// Bytes from one place to another.
    Copy { to: u64, from: u64, bytes: usize },
    /// Bytes of one value.
    Fill { to: u64, value: u8, bytes: usize },
    /// A kernel.
    Kernel(Box<Kernel>),
    /// A product of the library.
    Product(Box<Product>),
}

/// A kernel with what it is launched with.
#[derive(Clone)]
pub struct Kernel {
    pub program: Arc<Program>,
    pub grid: [u32; 3],
    pub threads: usize,
    pub cluster: usize,
    pub shared_bytes: usize,
    pub together: bool,
    /// Whether it may begin before the one before has ended.
    pub early: bool,
    pub parameters: Vec<u8>,
}

#[derive(Default)]
pub struct State {
    /// What exists, for kernels that run meanwhile.
    pub table: Arc<Table>,
    pub regions: HashMap<u64, Region>,
    pub used_bytes: usize,
    /// Memory without addresses: its size.
    pub pieces: HashMap<u64, usize>,
    pub streams: HashMap<usize, Stream>,
    pub events: HashMap<usize, Event>,
    pub modules: HashMap<usize, Arc<Source>>,
    pub functions: HashMap<usize, Function>,
    pub captures: HashMap<usize, Capture>,
    pub graphs: HashMap<usize, Arc<Vec<Captured>>>,
    last_handle: usize,
}

#[derive(Clone, Default)]
pub struct Stream {
    /// What is being captured from it.
    pub capture: Option<usize>,
    /// The last that was captured from it.
    pub last: Option<usize>,
    /// What of other streams comes before the next.
    pub waits_for: Vec<usize>,
}

impl Stream {
    /// What has been captured when the stream is where it is.
    pub fn behind(&self) -> Vec<usize> {
        self.waits_for.iter().copied().chain(self.last).collect()
    }
}

#[derive(Clone, Default)]
pub struct Event {
    pub recorded: Option<Instant>,
    /// What was being captured when it was recorded, and how far that was.
    pub capture: Option<usize>,
    pub behind: Vec<usize>,
}

/// What a stream is given while it is captured.
pub struct Capture {
    pub captured: Vec<Captured>,
    by: ThreadId,
    /// What another thread did meanwhile that the vendor's library does not bear.
    pub disturbed: Option<&'static str>,
}

impl Capture {
    /// Nothing yet, by the calling thread.
    pub fn begin() -> Self {
        Capture { captured: Vec::new(), by: thread::current().id(), disturbed: None }
    }
}

/// Something that was captured.
pub struct Captured {
    pub work: Work,
    /// What of its stream comes before it, and what of others.
    pub last: Option<usize>,
    pub waits_for: Vec<usize>,
}

#[derive(Clone)]
pub struct Function {
    pub program: Arc<Program>,
    pub module: usize,
    /// Dynamic shared memory that was asked for.
    pub shared_bytes: usize,
}

impl State {
    /// A number for something new.
    pub fn handle(&mut self) -> usize {
        self.last_handle += 16;
        self.last_handle
    }

    /// Says what the calling thread does beside the captures of others, which the vendor's library fails now and then.
    pub fn disturb(&mut self, what: &'static str) {
        let caller = thread::current().id();
        for capture in self.captures.values_mut().filter(|capture| capture.by != caller) {
            capture.disturbed.get_or_insert(what);
        }
    }

    pub fn change_table(&mut self, change: impl FnOnce(&mut Table)) {
        change(Arc::make_mut(&mut self.table));
    }
}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(Mutex::default);
/// What the last kernel that failed did, for people.
static REASON: Mutex<String> = Mutex::new(String::new());

pub fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What to say of the last failure.
pub fn reason() -> String {
    REASON.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

pub fn fail(error: &Error, status: Status) -> Status {
    *REASON.lock().unwrap_or_else(PoisonError::into_inner) = error.to_string();
    status
}

/// When copies are done, of which the environment decides.
pub fn timing() -> Timing {
    static TIMING: LazyLock<Timing> = LazyLock::new(|| match std::env::var("IRONMILL_EMULATOR_COPIES") {
        Ok(late) if late == "late" => Timing::Late,
        _ => Timing::Early,
    });
    *TIMING
}

/// Does something now, or keeps it where the stream is being captured.
pub fn give(stream: usize, work: Work) -> Status {
    let mut all = state();
    let table = Arc::clone(&all.table);
    let State { streams, captures, .. } = &mut *all;
    let Some(stream) = streams.get_mut(&stream) else { return INVALID_HANDLE };
    match stream.capture.and_then(|capture| captures.get_mut(&capture)) {
        Some(Capture { captured, .. }) => {
            let last = stream.last.replace(captured.len());
            captured.push(Captured { work, last, waits_for: std::mem::take(&mut stream.waits_for) });
            0
        }
        None => {
            drop(all);
            act(&work, &table, None)
        }
    }
}

/// Does what was captured.
pub fn act_all(graph: &[Captured], table: &Table) -> Status {
    let mut history = History::default();
    for Captured { work, last, waits_for } in graph {
        let mut behind = waits_for.clone();
        // Copies let nothing begin early.
        let early_behind = last.filter(|&last| {
            work.is_early() && matches!(graph[last].work, Work::Kernel(_) | Work::Product(_))
        });
        if early_behind.is_none() {
            behind.extend(last);
        }
        history.begin(work.name(), &behind, early_behind);
        let status = act(work, table, Some(&mut history));
        if status != 0 {
            return status;
        }
    }
    0
}

impl Work {
    fn name(&self) -> String {
        match self {
            Work::Copy { .. } => "a copy".into(),
            Work::Fill { .. } => "a fill".into(),
            Work::Product(_) => "a product of the library".into(),
            Work::Kernel(kernel) => kernel.program.name.clone(),
        }
    }

    fn is_early(&self) -> bool {
        match self {
            Work::Kernel(kernel) => kernel.early,
            Work::Product(_) => true,
            Work::Copy { .. } | Work::Fill { .. } => false,
        }
    }
}

/// Does something, as a part of a graph or by itself.
fn act(work: &Work, table: &Table, mut history: Option<&mut History>) -> Status {
    let mut told = Told::default();
    let outcome = match work {
        Work::Copy { to, from, bytes } => {
            raw::copy(*to, *from, *bytes);
            touch(&mut history, &[(*from, *bytes, false), (*to, *bytes, true)], By::default())
        }
        Work::Fill { to, value, bytes } => {
            raw::fill(*to, *value, *bytes);
            touch(&mut history, &[(*to, *bytes, true)], By::default())
        }
        Work::Product(product) => {
            told.at_end = true;
            let by = By { has_waited: true, ..By::default() };
            product.run(table).and_then(|()| touch(&mut history, &product.touched(), by))
        }
        Work::Kernel(kernel) => {
            let launch = Launch {
                program: &kernel.program,
                grid: kernel.grid,
                threads: kernel.threads,
                cluster: kernel.cluster,
                shared_bytes: kernel.shared_bytes,
                together: kernel.together,
                parameters: &kernel.parameters,
                memory: table,
                timing: timing(),
            };
            match machine::run(&launch, history.as_deref_mut()) {
                Ok(it) => told = it,
                Err(error @ Error::Launch { .. }) => return fail(&error, INVALID_VALUE),
                Err(error) => return fail(&error, LAUNCH_FAILED),
            }
            Ok(())
        }
    };
    if let Some(history) = history {
        history.end(told);
    }
    match outcome {
        Ok(()) => 0,
        Err(detail) => fail(&Error::Launch { kernel: work.name(), detail }, LAUNCH_FAILED),
    }
}

/// Pieces of memory are read or written by what begins when all before it has ended.
fn touch(history: &mut Option<&mut History>, pieces: &[(u64, usize, bool)], by: By) -> Result<(), String> {
    let Some(history) = history else { return Ok(()) };
    pieces.iter().try_for_each(|&(at, bytes, writes)| history.touch(at, bytes, writes, by))
}

/// Whether a kernel may have so much shared memory beside its own.
pub fn may_share(function: &Function, shared_bytes: usize) -> bool {
    let own = function.program.shared.dynamic_at - SHARED_BASE;
    shared_bytes <= function.shared_bytes.max(FREE_SHARED_BYTES.saturating_sub(own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_thread_does_disturbs_a_capture_and_what_its_own_does_does_not() {
        let mut all = State::default();
        all.captures.insert(1, Capture::begin());
        all.disturb("ran a product");
        assert_eq!(all.captures[&1].disturbed, None);
        thread::scope(|scope| scope.spawn(|| all.disturb("closed a library")).join()).unwrap();
        assert_eq!(all.captures[&1].disturbed, Some("closed a library"));
    }
}
