//! The assembly language that the compiler of kernels writes, as text comes in and as data goes out.
//!
//! A file is variables and functions; a function is parameters, variables in shared memory and statements. Names are resolved here: a
//! register is a number with a class, a label the number of a statement. What a statement does is not known here.

mod parse;
mod tokens;

pub use parse::parse;

use std::collections::HashMap;

/// How many bits a register has in each lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// One: a predicate.
    Predicate,
    /// Up to 32; what is shorter lies in the low bits, below zeroes.
    Word,
    /// 64.
    Double,
}

/// A register of a function, by its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Register(pub u32);

/// A place to branch to: the number of a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label(pub usize);

/// What a statement is given.
#[derive(Clone, Debug, PartialEq)]
pub enum Operand {
    /// A register.
    Register(Register),
    /// The opposite of a predicate.
    Not(Register),
    /// A number, as the bits of whatever type the statement wants.
    Integer(u64),
    /// The bits of a number in single precision.
    Single(u32),
    /// The bits of a number in double precision.
    Double(u64),
    /// A variable, a parameter, a function or a register that the machine fills.
    Name(String),
    /// What a call is given something in, or gives something back in; the register that holds it.
    Passed(Register),
    /// Where to branch to.
    Label(Label),
    /// A result that nobody wants.
    Nobody,
    /// Several, side by side.
    List(Vec<Operand>),
    /// A result with a predicate beside it.
    Pair(Box<[Operand; 2]>),
    /// A place in memory, and coordinates behind it where it is a tensor.
    Place {
        /// What the address begins with.
        base: Box<Operand>,
        /// Bytes from there.
        offset: i64,
        /// Of a tensor.
        coordinates: Vec<Operand>,
    },
}

/// A statement: an instruction with the predicate that it hangs on.
#[derive(Clone, Debug, PartialEq)]
pub struct Statement {
    /// Lanes where the predicate is not so leave it out.
    pub guard: Option<(Register, bool)>,
    /// The name with all that follows it behind dots.
    pub opcode: String,
    /// What it is given.
    pub operands: Vec<Operand>,
    /// Where it stands in the text.
    pub line: u32,
    /// Whether it may read what others write meanwhile, as a comment behind it says.
    pub is_unordered: bool,
}

/// A variable, or a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// The multiple at which it begins.
    pub alignment: usize,
    /// Its size; nothing where whoever launches says it.
    pub bytes: usize,
    /// What is in it at first, where that is said.
    pub content: Vec<u8>,
}

/// A kernel, or what kernels call.
#[derive(Clone, Debug, Default)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Whether it can be launched.
    pub is_entry: bool,
    /// What it is given.
    pub parameters: Vec<Variable>,
    /// What it gives back.
    pub results: Vec<Variable>,
    /// Its own variables in shared memory.
    pub shared: Vec<Variable>,
    /// Blocks that share a cluster, where the kernel says so.
    pub cluster: Option<u32>,
    /// The most threads of a block, where the kernel says so.
    pub most_threads: Option<u32>,
    /// What it does, in order.
    pub statements: Vec<Statement>,
    /// The class of every register.
    pub classes: Vec<Class>,
}

/// A file.
#[derive(Clone, Debug, Default)]
pub struct Source {
    /// Variables in shared memory that all functions see; those without a size begin where the others end.
    pub shared: Vec<Variable>,
    /// Variables in global memory.
    pub global: Vec<Variable>,
    /// Functions by name.
    pub functions: HashMap<String, Function>,
}
