//! What a bound launch becomes: a list of calls, each a kernel of ours, or a product or an attention of a library.
//!
//! A [`Builder`] collects the calls of one sequence. Working memory is asked for while building and found only when all calls
//! are known: the launches of a sequence run one after the other, so all of them share one piece of the largest size.

mod race;

use std::sync::Arc;

use super::{
    AttentionBy,
    blas::{Blas, Prepared, Product, ProductPlan},
    cudnn::{self, Cudnn},
    driver::{Arguments, Driver, FactorBoxes, Function, HeadRows, MatrixBoxes, TensorMap},
    int8::{Matrices, Sizes},
    modules::{Modules, Source},
    views::meet,
};
use crate::{
    device::{BufferId, Launch, View},
    error::Result,
    tensor::DType,
};

pub(super) use race::Fill;

/// A kernel's argument. Kernels declare a pointer, `unsigned`, `float` or `unsigned long long` in its place.
#[derive(Clone, Copy, Debug)]
pub(super) enum Arg {
    /// An address in the device's memory, or 0 for "not there".
    Pointer(u64),
    /// An address in the sequence's constants.
    Constant(usize),
    /// An address in the sequence's working memory, from its beginning.
    Scratch(usize),
    /// An address in what launches of the sequence hand to each other beside its values.
    Kept(usize),
    /// Where a kernel reports an id that is out of range: `unsigned[4]`, see `kernels/prelude.cuh`.
    Fault,
    /// `unsigned`.
    U32(u32),
    /// `unsigned long long`.
    U64(u64),
    /// `float`.
    F32(f32),
}

impl Arg {
    /// The address this many bytes further.
    ///
    /// # Panics
    /// Where it is no address.
    pub fn plus(self, bytes: usize) -> Self {
        match self {
            Arg::Pointer(address) => Arg::Pointer(address + bytes as u64),
            Arg::Constant(offset) => Arg::Constant(offset + bytes),
            Arg::Scratch(offset) => Arg::Scratch(offset + bytes),
            Arg::Kept(offset) => Arg::Kept(offset + bytes),
            Arg::Fault | Arg::U32(_) | Arg::U64(_) | Arg::F32(_) => panic!("{self:?} is no address"),
        }
    }
}

impl From<usize> for Arg {
    /// A count as `unsigned`.
    ///
    /// # Panics
    /// Where it does not fit: flat sizes are passed as `U64`.
    fn from(count: usize) -> Self {
        Arg::U32(u32::try_from(count).expect("a count that a kernel takes as unsigned"))
    }
}

/// How many threads run a kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grid {
    /// Blocks in x, y, z.
    pub blocks: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
}

impl Grid {
    /// As many blocks in a row, without dynamic shared memory.
    pub fn new(blocks: usize, threads: u32) -> Self {
        Grid { blocks: [u32::try_from(blocks).expect("a grid's blocks"), 1, 1], threads, shared_bytes: 0 }
    }
}

/// When the blocks of a kernel start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// When everything before has ended.
    InTurn,
    /// All of them at once, since they wait for each other.
    Together,
    /// In clusters of so many, as soon as the kernel before lets the next one begin. It waits for that one itself, before it touches
    /// what others write, and lets its own successor begin only then: so all but the one before have ended.
    Early { cluster: u32 },
    /// In clusters of so many, when everything before has ended.
    Clusters { cluster: u32 },
}

/// One thing to put on the stream.
pub(super) enum Call {
    /// A kernel of ours.
    Kernel { function: Function, grid: Grid, arguments: Arguments, start: Start },
    /// A product of the library.
    Product(ProductPlan),
    /// An attention of the library, one run for every piece of the batch.
    Attention(cudnn::Call),
    /// Zeroes bytes.
    Clear { at: u64, bytes: usize },
}

impl Call {
    /// Puts it on a stream.
    pub fn issue(&self, driver: &Driver, blas: &Blas, stream: usize) -> Result<()> {
        match self {
            Call::Kernel { function, grid, arguments, start } => {
                driver.launch(*function, grid, *start, arguments, stream)
            }
            Call::Product(plan) => blas.run(plan, stream),
            Call::Attention(attention) => attention.run(),
            Call::Clear { at, bytes } => driver.clear(*at, *bytes, stream),
        }
    }
}

/// What calls are made with.
pub(super) struct Machine<'a> {
    pub driver: &'a Arc<Driver>,
    pub modules: &'a mut Modules,
    pub blas: &'a mut Blas,
    pub cudnn: Option<&'a mut Cudnn>,
    pub attention: AttentionBy,
    pub fault: u64,
    pub multiprocessors: usize,
    pub stream: usize,
}

/// Collects the calls of a sequence.
pub(super) struct Builder<'a> {
    machine: Machine<'a>,
    address: &'a dyn Fn(BufferId) -> u64,
    pending: Vec<Pending>,
    /// What is made of weights, and the views that it is made of.
    derived: Vec<Pending>,
    derived_from: Vec<View>,
    scratch_used: usize,
    scratch_bytes: usize,
    kept_bytes: usize,
    constants: Vec<u8>,
    /// What the next kernel takes before its arguments.
    maps: Vec<TensorMap>,
    /// What the launch before writes, where there is one.
    just_written: Option<Vec<View>>,
    /// The matrices that lie in eight bits, and the one that this launch finds widened in working memory.
    frozen: &'a Matrices,
    stand_in: Option<(View, Arg)>,
    /// What this launch may ask the second cache for.
    ahead: Option<CachesAhead>,
}

/// Keys and values of caches `[rows, keys, columns]` that a later launch reads: of every sample the `count` behind the `first` ones, which it
/// asks for itself before its turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct CachesAhead {
    pub caches: [Arg; 2],
    pub places: Arg,
    pub rows: usize,
    pub keys: usize,
    pub columns: usize,
    pub first: usize,
    pub count: usize,
}

enum Pending {
    Kernel { function: Function, grid: Grid, maps: Vec<TensorMap>, arguments: Vec<Arg>, start: Start },
    Product(Prepared),
    Attention(cudnn::Prepared),
    Clear { at: Arg, bytes: usize },
}

impl<'a> Builder<'a> {
    pub fn new(machine: Machine<'a>, address: &'a dyn Fn(BufferId) -> u64, frozen: &'a Matrices) -> Self {
        Builder {
            machine,
            address,
            pending: Vec::new(),
            derived: Vec::new(),
            derived_from: Vec::new(),
            scratch_used: 0,
            scratch_bytes: 0,
            kept_bytes: 0,
            constants: Vec::new(),
            maps: Vec::new(),
            just_written: None,
            frozen,
            stand_in: None,
            ahead: None,
        }
    }

    /// Begins another launch, which may use all of the working memory again.
    pub fn begin_launch(&mut self) {
        self.scratch_used = 0;
    }

    /// Tells the next launch what a later one will read.
    pub fn look_ahead(&mut self, ahead: Option<CachesAhead>) {
        self.ahead = ahead;
    }

    /// What was told of a later launch.
    pub fn ahead(&self) -> Option<CachesAhead> {
        self.ahead
    }

    /// Ends a launch that writes these.
    pub fn end_launch(&mut self, outputs: &[View]) {
        self.just_written = Some(outputs.to_vec());
        self.ahead = None;
    }

    /// The next launch comes behind this one, and not behind the one that was added last.
    pub fn go_on_behind(&mut self, launch: Option<&Launch>) {
        self.just_written = launch.map(|launch| launch.outputs.clone());
    }

    /// Whether a kernel that starts early may read this before it has waited: the launch before, which alone may still run then, does
    /// not write it.
    pub fn is_settled(&self, view: &View) -> bool {
        !self.is_widened(view)
            && self
                .just_written
                .as_ref()
                .is_some_and(|written| !written.iter().any(|other| meet(view, other)))
    }

    /// How many calls there are so far.
    pub fn len(&self) -> usize {
        self.pending.len()
    }

    /// Multiprocessors of the card: what a kernel that loops over its work sizes its grid by.
    pub fn multiprocessors(&self) -> usize {
        self.machine.multiprocessors
    }

    /// What is to compute attentions.
    pub fn attention_by(&self) -> AttentionBy {
        self.machine.attention
    }

    /// The library of attentions, where it is there.
    pub fn cudnn(&mut self) -> Option<&mut Cudnn> {
        self.machine.cudnn.as_deref_mut()
    }

    /// Where a view lies.
    pub fn pointer(&self, view: &View) -> Arg {
        match self.stand_in {
            Some((of, wide)) if of == *view => wide,
            _ => Arg::Pointer(self.address(view)),
        }
    }

    /// The size of a matrix that lies in eight bits.
    pub fn int8(&self, view: &View) -> Option<Sizes> {
        self.frozen.find(view)
    }

    /// From now on a matrix that lies in eight bits is found widened in working memory.
    pub fn stand_in(&mut self, matrix: &View, wide: Arg) {
        self.stand_in = Some((*matrix, wide));
    }

    pub fn end_stand_in(&mut self) {
        self.stand_in = None;
    }

    /// Whether a view is found in working memory, which the same launch has just written.
    pub fn is_widened(&self, view: &View) -> bool {
        self.stand_in.is_some_and(|(of, _)| of == *view)
    }

    /// The same as a number, for a table of them among the constants.
    pub fn address(&self, view: &View) -> u64 {
        (self.address)(view.buffer) + view.offset_bytes as u64
    }

    /// Working memory of the current launch, aligned to 256 bytes; what is in it is anybody's guess.
    pub fn scratch(&mut self, bytes: usize) -> Arg {
        let at = self.scratch_used;
        self.scratch_used += bytes.next_multiple_of(256);
        self.scratch_bytes = self.scratch_bytes.max(self.scratch_used);
        Arg::Scratch(at)
    }

    /// Memory in which one launch leaves something for others, aligned to 256 bytes.
    pub fn keep(&mut self, bytes: usize) -> Arg {
        let at = self.kept_bytes;
        self.kept_bytes += bytes.next_multiple_of(256);
        Arg::Kept(at)
    }

    /// The calls that `fill` adds are run before the sequence is, the first time and when these were written since.
    pub fn derive(&mut self, from: &[View], fill: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let first = self.pending.len();
        fill(self)?;
        self.derived.extend(self.pending.drain(first..));
        self.derived_from.extend_from_slice(from);
        Ok(())
    }

    /// Bytes that every run of the sequence finds on the device, aligned to 256.
    pub fn constant(&mut self, bytes: &[u8]) -> Arg {
        let at = self.constants.len();
        self.constants.extend_from_slice(bytes);
        self.constants.resize(self.constants.len().next_multiple_of(256), 0);
        Arg::Constant(at)
    }

    /// Whether the card multiplies by warpgroups, which Hopper alone does.
    pub fn has_warpgroup_products(&self) -> bool {
        self.machine.modules.has_warpgroup_products()
    }

    /// Whether the card multiplies numbers of eight bits, which Ada was the first to do.
    pub fn has_eight_bit_products(&self) -> bool {
        self.machine.modules.has_eight_bit_products()
    }

    /// Gives the next kernel maps by which the copy engine finds these heads: it takes them before its arguments.
    pub fn give_maps(&mut self, tensors: &[HeadRows]) -> Result<()> {
        for rows in tensors {
            self.maps.push(self.machine.driver.tensor_map(rows)?);
        }
        Ok(())
    }

    /// The same for boxes of matrices.
    pub fn give_matrix_maps(&mut self, matrices: &[MatrixBoxes]) -> Result<()> {
        for matrix in matrices {
            self.maps.push(self.machine.driver.matrix_map(matrix)?);
        }
        Ok(())
    }

    /// The same for factors of eight bits.
    pub fn give_factor_maps(&mut self, factors: &[FactorBoxes]) -> Result<()> {
        for factor in factors {
            self.maps.push(self.machine.driver.factor_map(factor)?);
        }
        Ok(())
    }

    /// Adds a kernel of a source file compiled for one element type. `defines` are further `NAME=value` settings of the
    /// file, such as a head size.
    pub fn kernel(
        &mut self,
        source: Source,
        name: &'static str,
        real: DType,
        defines: &[(&'static str, usize)],
        grid: Grid,
        arguments: &[Arg],
    ) -> Result<()> {
        let function = self.machine.modules.function(source, name, real, defines, grid.shared_bytes)?;
        let (maps, arguments) = (std::mem::take(&mut self.maps), arguments.to_vec());
        self.pending.push(Pending::Kernel { function, grid, maps, arguments, start: Start::InTurn });
        if source.takes_turns() {
            self.start_early(1);
        }
        Ok(())
    }

    /// Lets the kernel that was added last start early, in clusters of so many blocks, where the card can do that. It is one that waits for
    /// the kernel before it.
    pub fn start_early(&mut self, cluster: usize) {
        if !self.has_warpgroup_products() {
            return;
        }
        let cluster = u32::try_from(cluster).expect("blocks of a cluster");
        if let Some(Pending::Kernel { start, .. }) = self.pending.last_mut() {
            *start = Start::Early { cluster };
        }
    }

    /// Lets a kernel that would start early start when everything before has ended.
    pub fn start_in_turn(&mut self, index: usize) {
        if let Some(Pending::Kernel { start, .. }) = self.pending.get_mut(index)
            && let Start::Early { cluster } = *start
        {
            *start = Start::Clusters { cluster };
        }
    }

    /// Whether all calls so far are kernels of ours.
    pub fn has_kernels_alone(&self) -> bool {
        self.pending.iter().all(|pending| matches!(pending, Pending::Kernel { .. }))
    }

    /// Takes back all calls so far.
    pub fn take_back(&mut self) {
        self.pending.clear();
        self.derived.clear();
        self.derived_from.clear();
        self.kept_bytes = 0;
        self.just_written = None;
    }

    /// The same for a kernel whose blocks wait for each other; false, and nothing added, where the card does not run them all at once.
    pub fn kernel_together(
        &mut self,
        source: Source,
        name: &'static str,
        real: DType,
        defines: &[(&'static str, usize)],
        grid: Grid,
        arguments: &[Arg],
    ) -> Result<bool> {
        let function = self.machine.modules.function(source, name, real, defines, grid.shared_bytes)?;
        let at_once = self.machine.driver.blocks_at_once(function, &grid)? * self.machine.multiprocessors;
        let blocks: u32 = grid.blocks.iter().product();
        if at_once < blocks as usize {
            return Ok(false);
        }
        self.kernel(source, name, real, defines, grid, arguments)?;
        if let Some(Pending::Kernel { start, .. }) = self.pending.last_mut() {
            *start = Start::Together;
        }
        Ok(true)
    }

    /// Adds a matrix product of the library; false where it has none like it.
    pub fn product(&mut self, product: Product) -> Result<bool> {
        let prepared = self.machine.blas.prepare(product)?;
        let is_there = prepared.is_some();
        self.pending.extend(prepared.map(Pending::Product));
        Ok(is_there)
    }

    /// Adds an attention of the library.
    pub fn attention(&mut self, prepared: cudnn::Prepared) {
        self.pending.push(Pending::Attention(prepared));
    }

    /// Zeroes memory.
    pub fn clear(&mut self, at: Arg, bytes: usize) {
        self.pending.push(Pending::Clear { at, bytes });
    }

    /// Bytes of working memory that all launches together need.
    pub fn scratch_bytes(&self) -> usize {
        self.scratch_bytes
    }

    /// Bytes of working memory, and behind it of what launches hand to each other.
    pub fn memory_bytes(&self) -> usize {
        self.scratch_bytes + self.kept_bytes
    }

    /// The constants of all launches, for the caller to upload.
    pub fn constants(&self) -> &[u8] {
        &self.constants
    }

    /// The calls with every address in its place; `memory` has as many bytes as were asked for.
    pub fn finish(self, constants: u64, memory: u64) -> Result<Calls> {
        let Machine { blas, fault, stream, .. } = self.machine;
        let kept = memory + self.scratch_bytes as u64;
        let place = |arg: Arg| match arg {
            Arg::Pointer(address) => address,
            Arg::Constant(offset) => constants + offset as u64,
            Arg::Scratch(offset) => memory + offset as u64,
            Arg::Kept(offset) => kept + offset as u64,
            Arg::Fault => fault,
            Arg::U32(count) => u64::from(count),
            Arg::U64(count) => count,
            Arg::F32(number) => u64::from(number.to_bits()),
        };
        let mut placed = |all: Vec<Pending>| -> Result<Vec<Call>> {
            let of = |pending| {
                Ok(match pending {
                    Pending::Kernel { function, grid, maps, arguments, start } => {
                        let words = arguments.into_iter().map(place).collect();
                        Call::Kernel { function, grid, arguments: Arguments { maps, words }, start }
                    }
                    Pending::Product(prepared) => Call::Product(blas.plan(prepared, &place, stream)?),
                    Pending::Attention(prepared) => Call::Attention(prepared.placed(&place)?),
                    Pending::Clear { at, bytes } => Call::Clear { at: place(at), bytes },
                })
            };
            all.into_iter().map(of).collect()
        };
        Ok(Calls {
            every_run: placed(self.pending)?,
            derived: placed(self.derived)?,
            derived_from: self.derived_from,
        })
    }
}

/// What a builder has collected.
pub(super) struct Calls {
    pub every_run: Vec<Call>,
    /// What is made of weights, and of which.
    pub derived: Vec<Call>,
    pub derived_from: Vec<View>,
}

impl Machine<'_> {
    /// The same, for a builder that ends before this one goes on.
    fn again(&mut self) -> Machine<'_> {
        Machine {
            driver: self.driver,
            modules: self.modules,
            blas: self.blas,
            cudnn: self.cudnn.as_deref_mut(),
            attention: self.attention,
            fault: self.fault,
            multiprocessors: self.multiprocessors,
            stream: self.stream,
        }
    }
}
