//! What the driver remembers: memory, kernels, streams, and what is being captured.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use crate::{
    error::Error,
    machine::{self, Launch, Region, Table, Timing, raw},
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
    pub captures: HashMap<usize, Vec<Work>>,
    pub graphs: HashMap<usize, Arc<Vec<Work>>>,
    last_handle: usize,
}

#[derive(Clone, Copy, Default)]
pub struct Stream {
    /// What is being captured from it.
    pub capture: Option<usize>,
}

#[derive(Clone, Copy, Default)]
pub struct Event {
    pub recorded: Option<Instant>,
    /// What was being captured when it was recorded.
    pub capture: Option<usize>,
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
    let Some(Stream { capture }) = all.streams.get(&stream).copied() else { return INVALID_HANDLE };
    let table = Arc::clone(&all.table);
    match capture.and_then(|capture| all.captures.get_mut(&capture)) {
        Some(captured) => {
            captured.push(work);
            0
        }
        None => {
            drop(all);
            act(&work, &table)
        }
    }
}

/// Does something.
pub fn act(work: &Work, table: &Table) -> Status {
    match work {
        Work::Copy { to, from, bytes } => raw::copy(*to, *from, *bytes),
        Work::Fill { to, value, bytes } => raw::fill(*to, *value, *bytes),
        Work::Product(product) => {
            if let Err(detail) = product.run(table) {
                return fail(
                    &Error::Launch { kernel: "a product of the library".into(), detail },
                    LAUNCH_FAILED,
                );
            }
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
            match machine::run(&launch) {
                Ok(_) => (),
                Err(error @ Error::Launch { .. }) => return fail(&error, INVALID_VALUE),
                Err(error) => return fail(&error, LAUNCH_FAILED),
            }
        }
    }
    0
}

/// Whether a kernel may have so much shared memory beside its own.
pub fn may_share(function: &Function, shared_bytes: usize) -> bool {
    let own = function.program.shared.dynamic_at - SHARED_BASE;
    shared_bytes <= function.shared_bytes.max(FREE_SHARED_BYTES.saturating_sub(own))
}
