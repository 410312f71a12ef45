//! Attention through cuDNN, where the library is there, computes the same bits every time, and is faster than our own kernels.
//!
//! The library is not needed: whatever it lacks or refuses is left to our kernels. Its fast gradient adds into memory in any order,
//! so it is given the graph that keeps the gradient of all scores instead, which has one owner for every sum. That takes
//! 2 bytes for every score of the samples that one call computes; a batch whose scores take too much is cut into pieces.
//!
//! The file is long because everything that touches the library's memory is in it; `graph.rs` beside it is safe.
#![expect(unsafe_code, reason = "calls into a C library")]

mod graph;

use std::{
    collections::BTreeMap,
    ffi::{c_int, c_void},
    fmt::Write as _,
    marker::PhantomData,
    ptr,
    sync::Arc,
};

use super::{
    AttentionBy, attention,
    call::{Arg, Builder},
    driver::missing,
    library::{self, Needed, Places},
    rows,
    symbols::symbols,
};
use crate::{
    device::View,
    error::{Error, Result},
    kernel::Kernel,
    op::{Attention, Mask, Op},
    tensor::DType,
};

symbols! {
    /// The library's functions. Descriptors and handles are pointers.
    Api {
        cudnnGetVersion();
        cudnnCreate(handle: *mut usize);
        cudnnDestroy(handle: usize);
        cudnnSetStream(handle: usize, stream: usize);
        cudnnBackendCreateDescriptor(kind: c_int, descriptor: *mut usize);
        cudnnBackendDestroyDescriptor(descriptor: usize);
        cudnnBackendSetAttribute(descriptor: usize, name: c_int, of: c_int, count: i64, values: *const c_void);
        cudnnBackendGetAttribute(
            descriptor: usize, name: c_int, of: c_int, room: i64, count: *mut i64, values: *mut c_void,
        );
        cudnnBackendFinalize(descriptor: usize);
        cudnnBackendExecute(handle: usize, plan: usize, pack: usize);
    }
}

/// The oldest version whose attention may be masked with −∞, as major·10,000 + minor·100 + patch.
const OLDEST_VERSION: i32 = 91_000;
/// Cards from Blackwell on have gradients of another kind, whose order of sums this graph does not settle.
const NEWEST_CAPABILITY: usize = 99;
/// Positions come in whole tiles: versions up to 9.15 get the gradient of others wrong.
const TILE: usize = 128;
/// The part of a card's memory that one attention may work in.
const MEMORY_SHARE: usize = 128;
/// Attentions below this many multiplications per product are left to our kernels: timing them would cost more than it wins.
const WORTH_TIMING: f64 = 1e8;
/// How much of our kernels' time the library may take: a close race would be won by either from run to run.
const CLEAR_WIN: f64 = 0.95;

/// The library, opened, with its handle.
struct Library {
    api: Api,
    handle: usize,
}

impl Library {
    fn new(api: Api, stream: usize) -> Result<Self> {
        let mut library = Library { api, handle: 0 };
        // SAFETY: the library writes one handle; the stream outlives it.
        unsafe {
            check("cudnnCreate", (library.api.cudnnCreate)(&mut library.handle))?;
            check("cudnnSetStream", (library.api.cudnnSetStream)(library.handle, stream))?;
        }
        Ok(library)
    }

    fn descriptor(self: &Arc<Self>, kind: Kind) -> Result<Descriptor> {
        let mut raw = 0;
        // SAFETY: the library writes one pointer.
        let status = unsafe { (self.api.cudnnBackendCreateDescriptor)(kind as c_int, &mut raw) };
        check("cudnnBackendCreateDescriptor", status)?;
        Ok(Descriptor { library: Arc::clone(self), raw })
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        if self.handle != 0 {
            // SAFETY: the handle is ours and forgotten.
            unsafe { (self.api.cudnnDestroy)(self.handle) };
        }
    }
}

/// What a descriptor describes, with the library's number for it.
#[derive(Clone, Copy)]
enum Kind {
    Pointwise = 0,
    Engine = 2,
    EngineConfig = 3,
    Heuristics = 4,
    ExecutionPlan = 5,
    PointwiseOperation = 13,
    OperationGraph = 15,
    VariantPack = 16,
    Tensor = 17,
    Matmul = 18,
    MatmulOperation = 19,
    Reduction = 21,
    ReductionOperation = 22,
    ReshapeOperation = 31,
}

/// An attribute of a descriptor, whose values are `T`s as the library reads them.
struct Attribute<T> {
    name: c_int,
    of: c_int,
    values: PhantomData<T>,
}

impl<T> Clone for Attribute<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Attribute<T> {}

/// The attributes by name. Modes and element types are numbers of the library's, pointers and descriptors are addresses.
mod attribute {
    use super::{Attribute, PhantomData, c_int};

    const fn number<T>(name: c_int, of: c_int) -> Attribute<T> {
        Attribute { name, of, values: PhantomData }
    }
    const fn data_type(name: c_int) -> Attribute<c_int> {
        number(name, 1)
    }
    const fn boolean(name: c_int) -> Attribute<bool> {
        number(name, 2)
    }
    const fn int64(name: c_int) -> Attribute<i64> {
        number(name, 3)
    }
    const fn pointer(name: c_int) -> Attribute<u64> {
        number(name, 6)
    }
    const fn descriptor(name: c_int) -> Attribute<usize> {
        number(name, 15)
    }

    pub const POINTWISE_MODE: Attribute<c_int> = number(0, 14);
    pub const POINTWISE_PRECISION: Attribute<c_int> = data_type(1);
    pub const POINTWISE_AXIS: Attribute<i64> = int64(9);
    pub const HEURISTICS_MODE: Attribute<c_int> = number(200, 8);
    pub const HEURISTICS_GRAPH: Attribute<usize> = descriptor(201);
    pub const HEURISTICS_RESULTS: Attribute<usize> = descriptor(202);
    pub const CONFIG_ENGINE: Attribute<usize> = descriptor(300);
    pub const PLAN_HANDLE: Attribute<usize> = number(400, 0);
    pub const PLAN_CONFIG: Attribute<usize> = descriptor(401);
    pub const PLAN_WORKSPACE_BYTES: Attribute<i64> = int64(402);
    pub const POINTWISE_SETTINGS: Attribute<usize> = descriptor(750);
    pub const POINTWISE_X: Attribute<usize> = descriptor(751);
    pub const POINTWISE_B: Attribute<usize> = descriptor(752);
    pub const POINTWISE_Y: Attribute<usize> = descriptor(753);
    pub const POINTWISE_T: Attribute<usize> = descriptor(758);
    pub const GRAPH_HANDLE: Attribute<usize> = number(800, 0);
    pub const GRAPH_OPERATIONS: Attribute<usize> = descriptor(801);
    pub const TENSOR_ALIGNMENT: Attribute<i64> = int64(900);
    pub const TENSOR_TYPE: Attribute<c_int> = data_type(901);
    pub const TENSOR_DIMENSIONS: Attribute<i64> = int64(902);
    pub const TENSOR_STRIDES: Attribute<i64> = int64(903);
    pub const TENSOR_ID: Attribute<i64> = int64(906);
    pub const TENSOR_IS_VIRTUAL: Attribute<bool> = boolean(907);
    pub const TENSOR_IS_BY_VALUE: Attribute<bool> = boolean(908);
    pub const PACK_IDS: Attribute<i64> = int64(1000);
    pub const PACK_POINTERS: Attribute<u64> = pointer(1001);
    pub const PACK_WORKSPACE: Attribute<u64> = pointer(1003);
    pub const ENGINE_NUMERICAL_NOTES: Attribute<c_int> = number(1303, 11);
    pub const MATMUL_PRECISION: Attribute<c_int> = data_type(1500);
    pub const MATMUL_A: Attribute<usize> = descriptor(1520);
    pub const MATMUL_B: Attribute<usize> = descriptor(1521);
    pub const MATMUL_C: Attribute<usize> = descriptor(1522);
    pub const MATMUL_SETTINGS: Attribute<usize> = descriptor(1523);
    pub const REDUCTION_OPERATOR: Attribute<c_int> = number(1600, 18);
    pub const REDUCTION_PRECISION: Attribute<c_int> = data_type(1601);
    pub const REDUCTION_X: Attribute<usize> = descriptor(1610);
    pub const REDUCTION_Y: Attribute<usize> = descriptor(1611);
    pub const REDUCTION_SETTINGS: Attribute<usize> = descriptor(1612);
    pub const RESHAPE_X: Attribute<usize> = descriptor(2200);
    pub const RESHAPE_Y: Attribute<usize> = descriptor(2201);
}

/// A description inside the library, given back when dropped.
struct Descriptor {
    library: Arc<Library>,
    raw: usize,
}

impl Descriptor {
    fn set<T>(&self, attribute: Attribute<T>, values: &[T]) -> Result<()> {
        let Attribute { name, of, .. } = attribute;
        // SAFETY: the attribute's values are of this type, of which the library copies as many as it is told.
        let status = unsafe {
            (self.library.api.cudnnBackendSetAttribute)(
                self.raw,
                name,
                of,
                values.len() as i64,
                values.as_ptr().cast(),
            )
        };
        check_attribute("cudnnBackendSetAttribute", name, status)
    }

    /// Writes as many values as there are and as fit, and gives their number.
    fn get<T>(&self, attribute: Attribute<T>, values: &mut [T]) -> Result<usize> {
        let Attribute { name, of, .. } = attribute;
        let mut count = 0;
        // SAFETY: the attribute's values are of this type, of which the library writes no more than there is room for.
        let status = unsafe {
            (self.library.api.cudnnBackendGetAttribute)(
                self.raw,
                name,
                of,
                values.len() as i64,
                &mut count,
                if values.is_empty() { ptr::null_mut() } else { values.as_mut_ptr().cast() },
            )
        };
        check_attribute("cudnnBackendGetAttribute", name, status)?;
        Ok(count as usize)
    }

    fn finalize(&self) -> Result<()> {
        // SAFETY: the descriptor is alive.
        let status = unsafe { (self.library.api.cudnnBackendFinalize)(self.raw) };
        check("cudnnBackendFinalize", status)
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours and forgotten.
        unsafe { (self.library.api.cudnnBackendDestroyDescriptor)(self.raw) };
    }
}

/// The sizes of one attention or gradient, and how its heads lie.
#[derive(Clone, Copy, Debug)]
struct Problem {
    attention: Attention,
    is_gradient: bool,
    /// Whether the rows of a gradient are summed too, and if so whether that adds to what is there.
    sums: Option<bool>,
    real: DType,
    batch: usize,
    positions: usize,
    /// Elements of a head.
    size: usize,
    /// Elements from one position's queries to the next, and the same for keys and for values.
    rows: [usize; 2],
}

impl Problem {
    /// What a kernel asks for; nothing where it is not of a kind that the library is asked about.
    fn of(kernel: &Kernel, inputs: &[View]) -> Option<Self> {
        let (attention, is_gradient, is_joint) = match kernel {
            Kernel::Op(Op::Attention(attention)) => (attention, false, false),
            Kernel::Op(Op::AttentionGrad(attention)) => (attention, true, false),
            Kernel::JointAttention(attention) => (attention, false, true),
            Kernel::JointAttentionGrad(attention) | Kernel::JointAttentionGrads { of: attention, .. } => {
                (attention, true, true)
            }
            _ => return None,
        };
        let sums = match kernel {
            Kernel::JointAttentionGrads { add, .. } => Some(*add),
            _ => None,
        };
        let q = &inputs[usize::from(is_gradient)];
        let &[batch, positions, q_row] = q.of.shape.dims() else { return None };
        let (keys, kv_row, heads_in_row) = if is_joint {
            (positions, q_row, attention.heads + 2 * attention.kv_heads)
        } else {
            let &[_, keys, kv_row] = inputs[usize::from(is_gradient) + 1].of.shape.dims() else {
                return None;
            };
            (keys, kv_row, attention.heads)
        };
        let problem = Problem {
            attention: *attention,
            is_gradient,
            sums,
            real: q.of.dtype,
            batch,
            positions,
            size: q_row / heads_in_row,
            rows: [q_row, kv_row],
        };
        let is_plain = !attention.cached && !attention.borders && attention.window == 0;
        let is_usual = matches!(problem.size, 64 | 128) && keys == positions && batch > 0 && positions > 0;
        let is_narrow = matches!(problem.real, DType::BF16 | DType::F16);
        (is_plain && is_usual && is_narrow && positions.is_multiple_of(TILE)).then_some(problem)
    }

    /// Everything that the choice depends on.
    fn key(&self) -> String {
        let Attention { heads, kv_heads, mask, .. } = self.attention;
        format!(
            "attention {} {}x{} {heads}/{kv_heads}x{} {} {} rows {}/{}",
            match self.sums {
                Some(_) => "backward with sums",
                None if self.is_gradient => "backward",
                None => "forward",
            },
            self.batch,
            self.positions,
            self.size,
            self.real,
            if mask == Mask::Causal { "causal" } else { "full" },
            self.rows[0],
            self.rows[1],
        )
    }

    fn scores(&self, batch: usize) -> usize {
        batch * self.attention.heads * self.positions * self.positions
    }

    /// The operands in the order of the graph, each with the bytes of one sample: for a forward pass queries, keys, values, the
    /// output and its log-sum-exp; for a gradient the gradient of the output before them and those of queries, keys and values
    /// behind them.
    fn operands(&self, builder: &Builder<'_>, inputs: &[View], outputs: &[View]) -> Vec<(Arg, usize)> {
        let Attention { heads, kv_heads, .. } = self.attention;
        let bytes = |row: usize| self.positions * row * self.real.bytes();
        let [q_bytes, kv_bytes] = self.rows.map(bytes);
        let (out_bytes, statistics_bytes) =
            (bytes(heads * self.size), heads * self.positions * size_of::<f32>());
        // Queries, keys and values are three tensors, or parts of the rows of one.
        let is_joint = |views: usize| views == 1;
        let parts = |views: &[View]| -> Vec<(Arg, usize)> {
            let sizes = [q_bytes, kv_bytes, kv_bytes];
            if is_joint(views.len()) {
                let at = builder.pointer(&views[0]);
                [0, heads, heads + kv_heads]
                    .map(|before| (at.plus(before * self.size * self.real.bytes()), q_bytes))
                    .to_vec()
            } else {
                views.iter().map(|view| builder.pointer(view)).zip(sizes).collect()
            }
        };
        let one = |view: &View, bytes: usize| (builder.pointer(view), bytes);
        if !self.is_gradient {
            let [out, statistics] = [one(&outputs[0], out_bytes), one(&outputs[1], statistics_bytes)];
            return [parts(inputs), vec![out, statistics]].concat();
        }
        let [d_out, given @ .., out, statistics] = inputs else { unreachable!("checked at bind") };
        let given = [vec![one(d_out, out_bytes)], parts(given)].concat();
        let results = vec![one(out, out_bytes), one(statistics, statistics_bytes)];
        [given, results, parts(outputs)].concat()
    }
}

/// A graph that the library can run, over some samples of a batch.
struct Plan {
    plan: Descriptor,
    samples: usize,
    /// The graph's names of the operands, in their order, and of the memory between the two halves of a gradient.
    ids: Vec<i64>,
    /// Numbers that the library reads where they lie.
    values: Vec<(i64, f32)>,
    workspace_bytes: usize,
    /// What the plan was made of.
    _parts: Vec<Descriptor>,
}

impl Plan {
    /// Adds the calls of an attention.
    fn add(
        self: &Arc<Self>,
        problem: &Problem,
        builder: &mut Builder<'_>,
        [inputs, outputs]: [&[View]; 2],
    ) -> Result<()> {
        let (gradients, sums) = outputs.split_at(outputs.len() - usize::from(problem.sums.is_some()));
        let mut operands = problem.operands(builder, inputs, gradients);
        if problem.is_gradient {
            // What the products of outputs and their gradients sum to, for every query.
            let sums_bytes = problem.attention.heads * problem.positions * size_of::<f32>();
            operands.push((builder.scratch(problem.batch * sums_bytes), sums_bytes));
        }
        let workspace = builder.scratch(self.workspace_bytes);
        let pieces = (0..problem.batch / self.samples)
            .map(|piece| operands.iter().map(|(at, bytes)| at.plus(piece * self.samples * bytes)).collect())
            .collect();
        builder.attention(Prepared { plan: Arc::clone(self), pieces, workspace });
        if let Some(add) = problem.sums {
            rows::add(builder, &Kernel::OpInto { op: Op::LinearGradBias, add }, gradients, sums)?;
        }
        Ok(())
    }

    fn pack(&self, addresses: &[u64], workspace: u64) -> Result<Descriptor> {
        let values = self.values.iter().map(|(_, value)| ptr::from_ref(value) as u64);
        let pointers: Vec<u64> = addresses.iter().copied().chain(values).collect();
        let ids: Vec<i64> = self.ids.iter().copied().chain(self.values.iter().map(|(id, _)| *id)).collect();
        let pack = self.plan.library.descriptor(Kind::VariantPack)?;
        pack.set(attribute::PACK_IDS, &ids)?;
        pack.set(attribute::PACK_POINTERS, &pointers)?;
        pack.set(attribute::PACK_WORKSPACE, &[workspace])?;
        pack.finalize()?;
        Ok(pack)
    }
}

/// An attention without its addresses.
pub(super) struct Prepared {
    plan: Arc<Plan>,
    /// The operands of every piece of the batch.
    pieces: Vec<Vec<Arg>>,
    workspace: Arg,
}

impl Prepared {
    /// The same with every address in its place.
    pub fn placed(self, place: &dyn Fn(Arg) -> u64) -> Result<Call> {
        let workspace = place(self.workspace);
        let pack = |operands: &Vec<Arg>| {
            let addresses: Vec<u64> = operands.iter().map(|&operand| place(operand)).collect();
            self.plan.pack(&addresses, workspace)
        };
        let packs = self.pieces.iter().map(pack).collect::<Result<_>>()?;
        Ok(Call { plan: self.plan, packs })
    }
}

/// An attention that is ready to run on the stream that the library was opened with.
pub(super) struct Call {
    plan: Arc<Plan>,
    packs: Vec<Descriptor>,
}

impl Call {
    pub fn run(&self) -> Result<()> {
        let Plan { plan, .. } = &*self.plan;
        let Library { api, handle } = &*plan.library;
        self.packs.iter().try_for_each(|pack| {
            // SAFETY: plan and pack are finalized; the values that the pack points to belong to the plan, and its other addresses
            // are those of operands of the sizes that the graph was made for.
            let status = unsafe { (api.cudnnBackendExecute)(*handle, plan.raw, pack.raw) };
            check("cudnnBackendExecute", status)
        })
    }
}

/// The library with the choices made so far.
pub(super) struct Cudnn {
    /// Until it is first used: using it loads much more.
    api: Option<Api>,
    library: Option<Arc<Library>>,
    version: i32,
    stream: usize,
    by: AttentionBy,
    most_workspace_bytes: usize,
    /// For every attention that was asked for, its plan, or nothing where our kernels compute it.
    plans: BTreeMap<String, Option<Arc<Plan>>>,
    /// Whether the library was faster, for every attention that was timed.
    choices: BTreeMap<String, bool>,
    chosen_anew: bool,
}

impl Cudnn {
    /// Opens the library if it is there and of use on such a card.
    pub fn open(
        places: &Places,
        by: AttentionBy,
        capability: usize,
        memory_bytes: usize,
        stream: usize,
    ) -> Option<Self> {
        let api = Api::load(library::open(Needed::Cudnn, places)?.library).ok()?;
        let version = version(&api);
        let is_of_use = ![AttentionBy::Kernels, AttentionBy::WholeHeads].contains(&by)
            && capability <= NEWEST_CAPABILITY
            && version >= OLDEST_VERSION;
        is_of_use.then_some(Cudnn {
            api: Some(api),
            library: None,
            version,
            stream,
            by,
            most_workspace_bytes: memory_bytes / MEMORY_SHARE,
            plans: BTreeMap::new(),
            choices: BTreeMap::new(),
            chosen_anew: false,
        })
    }

    /// One line for people: the version, and what it computes.
    pub fn describe(&self) -> String {
        let is_used = |way: &str| {
            self.plans.iter().any(|(key, plan)| plan.is_some() && key.split(' ').nth(1) == Some(way))
        };
        let ways: Vec<&str> = ["forward", "backward"].into_iter().filter(|way| is_used(way)).collect();
        let mut text = format!("cuDNN {}", spelled(self.version));
        if !ways.is_empty() {
            let _ = write!(text, " (attention {})", ways.join(" and "));
        }
        text
    }

    /// The choices as lines of text, if there are new ones since the last call.
    pub fn new_choices(&mut self) -> Option<String> {
        if !std::mem::take(&mut self.chosen_anew) {
            return None;
        }
        let mut text = format!("{}\n", self.heading());
        for (key, is_faster) in &self.choices {
            let _ = writeln!(text, "{key}\t{}", if *is_faster { "cudnn" } else { "kernels" });
        }
        Some(text)
    }

    /// Takes choices that an earlier run made with this version of the library.
    pub fn take_choices(&mut self, text: &str) {
        let heading = self.heading();
        let lines = text.lines().skip_while(|line| *line != heading).skip(1);
        for (key, choice) in lines.map_while(|line| line.split_once('\t')) {
            self.choices.insert(key.into(), choice == "cudnn");
        }
    }

    fn heading(&self) -> String {
        format!("{CHOICES} {}", self.version)
    }

    fn library(&mut self) -> Result<Arc<Library>> {
        if let Some(api) = self.api.take() {
            self.library = Some(Arc::new(Library::new(api, self.stream)?));
        }
        self.library.clone().ok_or_else(|| missing(Needed::Cudnn, "it did not start"))
    }

    /// A plan for as many samples at a time as its memory allows.
    fn plan(&mut self, problem: &Problem) -> Result<Option<Arc<Plan>>> {
        let library = self.library()?;
        let least_bytes = |samples: usize| {
            if problem.is_gradient { problem.scores(samples) * problem.real.bytes() } else { 0 }
        };
        let fitting = (1..=problem.batch).rev().filter(|samples| {
            problem.batch.is_multiple_of(*samples) && least_bytes(*samples) <= self.most_workspace_bytes
        });
        for samples in fitting {
            let plan = graph::plan(&library, problem, samples)?;
            if plan.workspace_bytes <= self.most_workspace_bytes {
                return Ok(Some(Arc::new(plan)));
            }
        }
        Ok(None)
    }
}

/// What the lines of choices begin with, before the version.
pub(super) const CHOICES: &str = "cudnn";

/// The version and the place of the library, for `doctor`.
pub(super) fn describe(places: &Places) -> Result<String> {
    let found =
        library::open(Needed::Cudnn, places).ok_or_else(|| missing(Needed::Cudnn, "it was not found"))?;
    let api = Api::load(found.library)
        .map_err(|symbol| missing(Needed::Cudnn, &format!("the one found has no {symbol}")))?;
    Ok(format!("{} at {}", spelled(version(&api)), found.path.display()))
}

/// Adds an attention or its gradient if the library is to compute it; false for what is left to others.
pub(super) fn add(
    builder: &mut Builder<'_>,
    kernel: &Kernel,
    inputs: &[View],
    outputs: &[View],
) -> Result<bool> {
    let Some(problem) = Problem::of(kernel, inputs) else { return Ok(false) };
    // The graph promises the library addresses of 16 bytes.
    let is_aligned = |view: &View| view.offset_bytes.is_multiple_of(16);
    if builder.cudnn().is_none() || !inputs.iter().chain(outputs).all(is_aligned) {
        return Ok(false);
    }
    let plan = chosen(builder, &problem, kernel, [inputs, outputs])?;
    if let Some(plan) = &plan {
        plan.add(&problem, builder, [inputs, outputs])?;
    }
    Ok(plan.is_some())
}

/// The library's plan, if it is to be used.
fn chosen(
    builder: &mut Builder<'_>,
    problem: &Problem,
    kernel: &Kernel,
    views: [&[View]; 2],
) -> Result<Option<Arc<Plan>>> {
    let key = problem.key();
    let Some(cudnn) = builder.cudnn() else { return Ok(None) };
    if let Some(plan) = cudnn.plans.get(&key) {
        return Ok(plan.clone());
    }
    let is_forced = cudnn.by == AttentionBy::Cudnn;
    let earlier = cudnn.choices.get(&key).copied().or(is_forced.then_some(true));
    let multiplications = (problem.scores(problem.batch) * problem.size) as f64;
    let plan = if earlier == Some(false) || (earlier.is_none() && multiplications < WORTH_TIMING) {
        None
    } else {
        match race(builder, problem, kernel, views, earlier) {
            // What the library cannot do here, our kernels can.
            Err(_) if !is_forced => None,
            outcome => outcome?,
        }
    };
    if let Some(cudnn) = builder.cudnn() {
        cudnn.plans.insert(key, plan.clone());
    }
    Ok(plan)
}

/// Runs the library's plan, and our kernels too where an earlier choice does not settle it.
fn race(
    builder: &mut Builder<'_>,
    problem: &Problem,
    kernel: &Kernel,
    views: [&[View]; 2],
    earlier: Option<bool>,
) -> Result<Option<Arc<Plan>>> {
    let Some(plan) = builder.cudnn().map(|cudnn| cudnn.plan(problem)).transpose()?.flatten() else {
        return Ok(None);
    };
    // Running it once is needed in any case: it loads kernels, which a capture could not.
    let theirs = builder.time(views, &|trial, inputs, outputs| {
        plan.add(problem, trial, [inputs, outputs])?;
        Ok(true)
    })?;
    if earlier == Some(true) {
        return Ok(Some(plan));
    }
    let ours =
        builder.time(views, &|trial, inputs, outputs| attention::add(trial, kernel, inputs, outputs))?;
    let is_faster = match (theirs, ours) {
        (Some(theirs), Some(ours)) => theirs < CLEAR_WIN * ours,
        (theirs, _) => theirs.is_some(),
    };
    if let Some(cudnn) = builder.cudnn() {
        cudnn.choices.insert(problem.key(), is_faster);
        cudnn.chosen_anew = true;
    }
    Ok(is_faster.then_some(plan))
}

fn version(api: &Api) -> i32 {
    // SAFETY: the function takes nothing; its size_t result is a small number.
    unsafe { (api.cudnnGetVersion)() }
}

fn spelled(version: i32) -> String {
    format!("{}.{}.{}", version / 10_000, version % 10_000 / 100, version % 100)
}

fn check(call: &'static str, status: c_int) -> Result<()> {
    if status == 0 {
        return Ok(());
    }
    let detail = match status / 1000 {
        1 => "the library could not start",
        2 => "an argument is invalid",
        3 => "such an attention is not supported",
        4 => "an internal error of the library",
        5 => "the attention did not run",
        _ => "an unknown status",
    };
    Err(Error::Cuda {
        call,
        detail: format!("{detail} (status {status})"),
        advice: "check nvidia-smi, then report this",
    })
}

fn check_attribute(call: &'static str, name: c_int, status: c_int) -> Result<()> {
    check(call, status).map_err(|error| match error {
        Error::Cuda { call, detail, advice } => {
            Error::Cuda { call, detail: format!("{detail}, at attribute {name}"), advice }
        }
        other => other,
    })
}
