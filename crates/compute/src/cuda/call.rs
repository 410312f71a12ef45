//! What a bound launch becomes: a list of calls, each a kernel of ours or a product of the library.
//!
//! A [`Builder`] collects the calls of one sequence. Working memory is asked for while building and found only when all calls
//! are known: the launches of a sequence run one after the other, so all of them share one piece of the largest size.

use super::{
    blas::{Blas, Prepared, Product, ProductPlan},
    driver::Function,
    modules::{Modules, Source},
};
use crate::{
    device::{BufferId, View},
    error::Result,
    tensor::DType,
};

/// A kernel's argument. Kernels declare a pointer, `unsigned`, `float` or `unsigned long long` in its place.
#[derive(Clone, Copy, Debug)]
pub(super) enum Arg {
    /// An address in the device's memory, or 0 for "not there".
    Pointer(u64),
    /// An address in the sequence's constants.
    Constant(usize),
    /// An address in the sequence's working memory, from its beginning.
    Scratch(usize),
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

/// One thing to put on the stream.
pub(super) enum Call {
    /// A kernel of ours. Every argument fills eight bytes, of which the driver reads as many as the kernel declares.
    Kernel { function: Function, grid: Grid, arguments: Vec<u64> },
    /// A product of the library.
    Product(ProductPlan),
    /// Zeroes bytes.
    Clear { at: u64, bytes: usize },
}

/// Collects the calls of a sequence.
pub(super) struct Builder<'a> {
    modules: &'a mut Modules,
    blas: &'a mut Blas,
    address: &'a dyn Fn(BufferId) -> u64,
    fault: u64,
    multiprocessors: usize,
    pending: Vec<Pending>,
    scratch_used: usize,
    scratch_bytes: usize,
    constants: Vec<u8>,
}

enum Pending {
    Kernel { function: Function, grid: Grid, arguments: Vec<Arg> },
    Product(Prepared),
    Clear { at: Arg, bytes: usize },
}

impl<'a> Builder<'a> {
    pub fn new(
        modules: &'a mut Modules,
        blas: &'a mut Blas,
        address: &'a dyn Fn(BufferId) -> u64,
        fault: u64,
        multiprocessors: usize,
    ) -> Self {
        Builder {
            modules,
            blas,
            address,
            fault,
            multiprocessors,
            pending: Vec::new(),
            scratch_used: 0,
            scratch_bytes: 0,
            constants: Vec::new(),
        }
    }

    /// Begins another launch, which may use all of the working memory again.
    pub fn begin_launch(&mut self) {
        self.scratch_used = 0;
    }

    /// How many calls there are so far.
    pub fn len(&self) -> usize {
        self.pending.len()
    }

    /// Multiprocessors of the card: what a kernel that loops over its work sizes its grid by.
    pub fn multiprocessors(&self) -> usize {
        self.multiprocessors
    }

    /// Where a view lies.
    pub fn pointer(&self, view: &View) -> Arg {
        Arg::Pointer((self.address)(view.buffer) + view.offset_bytes as u64)
    }

    /// Working memory of the current launch, aligned to 256 bytes; what is in it is anybody's guess.
    pub fn scratch(&mut self, bytes: usize) -> Arg {
        let at = self.scratch_used;
        self.scratch_used += bytes.next_multiple_of(256);
        self.scratch_bytes = self.scratch_bytes.max(self.scratch_used);
        Arg::Scratch(at)
    }

    /// Bytes that every run of the sequence finds on the device, aligned to 256.
    pub fn constant(&mut self, bytes: &[u8]) -> Arg {
        let at = self.constants.len();
        self.constants.extend_from_slice(bytes);
        self.constants.resize(self.constants.len().next_multiple_of(256), 0);
        Arg::Constant(at)
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
        let function = self.modules.function(source, name, real, defines, grid.shared_bytes)?;
        self.pending.push(Pending::Kernel { function, grid, arguments: arguments.to_vec() });
        Ok(())
    }

    /// Adds a matrix product of the library; false where it has none like it.
    pub fn product(&mut self, product: Product) -> Result<bool> {
        let prepared = self.blas.prepare(product)?;
        let is_there = prepared.is_some();
        self.pending.extend(prepared.map(Pending::Product));
        Ok(is_there)
    }

    /// Zeroes memory.
    pub fn clear(&mut self, at: Arg, bytes: usize) {
        self.pending.push(Pending::Clear { at, bytes });
    }

    /// Bytes of working memory that all launches together need.
    pub fn scratch_bytes(&self) -> usize {
        self.scratch_bytes
    }

    /// The constants of all launches, for the caller to upload.
    pub fn constants(&self) -> &[u8] {
        &self.constants
    }

    /// The calls with every address in its place.
    pub fn finish(self, constants: u64, scratch: u64, stream: usize) -> Result<Vec<Call>> {
        let fault = self.fault;
        let place = |arg: Arg| match arg {
            Arg::Pointer(address) => address,
            Arg::Constant(offset) => constants + offset as u64,
            Arg::Scratch(offset) => scratch + offset as u64,
            Arg::Fault => fault,
            Arg::U32(count) => u64::from(count),
            Arg::U64(count) => count,
            Arg::F32(number) => u64::from(number.to_bits()),
        };
        let mut calls = Vec::with_capacity(self.pending.len());
        for pending in self.pending {
            calls.push(match pending {
                Pending::Kernel { function, grid, arguments } => {
                    Call::Kernel { function, grid, arguments: arguments.into_iter().map(place).collect() }
                }
                Pending::Product(prepared) => Call::Product(self.blas.plan(prepared, &place, stream)?),
                Pending::Clear { at, bytes } => Call::Clear { at: place(at), bytes },
            });
        }
        Ok(calls)
    }
}
