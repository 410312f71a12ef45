//! A kernel as the machine runs it: statements turned into codes, with places for registers that no two living ones share.

mod allocate;
mod engines;
mod instruction;
mod memory;
mod operands;
mod outstanding;
mod registers;
mod translate;

pub use instruction::{
    Address, BoxLoad, CONSTANT, Change, Code, Count, Element, GroupProduct, Left, Meeting, Product, Shuffle,
    Slot, Space, Special, Strength, Vote,
};
pub use registers::Role;

use crate::{
    error::Result,
    lanes::{Doubles, Words},
    ptx::{Function, Source},
};

/// Where shared memory of a block begins: a card keeps the first kilobyte for itself.
pub const SHARED_BASE: usize = 1024;

/// A step of a program.
#[derive(Clone, Debug)]
pub struct Step {
    /// Lanes where a predicate is not so leave the step out.
    pub guard: Option<(Slot, bool)>,
    /// What is done.
    pub code: Code,
    /// Which of the program's statements it was.
    pub statement: usize,
}

/// A kernel that can be run.
#[derive(Clone, Debug)]
pub struct Program {
    /// Its name.
    pub name: String,
    /// What it does.
    pub steps: Vec<Step>,
    /// What stands in the text, with the line: for people.
    pub statements: Vec<(u32, String)>,
    /// How many words, doubles and predicates a warp has.
    pub registers: Registers,
    /// Constants that are words.
    pub words: Vec<Words>,
    /// Constants that are doubles.
    pub doubles: Vec<Doubles>,
    /// Constant predicates: none and all.
    pub predicates: [u32; 2],
    /// Where each parameter lies among the bytes of all, and its size.
    pub parameters: Vec<(usize, usize)>,
    /// Bytes of shared memory that the kernel has of its own, and where those begin that a launch adds.
    pub shared: SharedLayout,
    /// Blocks of a cluster, where the kernel says so.
    pub cluster: Option<u32>,
    /// The most threads of a block, where the kernel says so.
    pub most_threads: Option<u32>,
}

/// Places that a warp needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    /// Of words.
    pub words: usize,
    /// Of doubles.
    pub doubles: usize,
    /// Of predicates.
    pub predicates: usize,
}

/// How a kernel divides its shared memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedLayout {
    /// Bytes of its own variables.
    pub own_bytes: usize,
    /// Where memory begins whose size the launch says.
    pub dynamic_at: usize,
}

impl Program {
    /// Makes a kernel ready to run.
    pub fn new(source: &Source, function: &Function) -> Result<Self> {
        let mut program = translate::translate(source, function)?;
        outstanding::check(&mut program)?;
        program.registers = allocate::allocate(&mut program.steps);
        Ok(program)
    }

    /// The bytes of all parameters.
    pub fn parameter_bytes(&self) -> usize {
        self.parameters.last().map_or(0, |(offset, bytes)| offset + bytes)
    }
}
