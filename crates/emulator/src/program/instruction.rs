//! What a warp can be told to do.

use crate::lanes::Lanewise;

/// Where a register lies among those of its class. While a program is made it is the register's number in its function; constants have
/// the highest bit set, and lie among the program's constants.
pub type Slot = u32;

/// Set in the slot of a constant.
pub const CONSTANT: Slot = 1 << 31;

/// The spaces of memory that an address may be in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// Addresses of 64 bits: global memory, parameters, and shared memory as programs see it beside them.
    Global,
    /// Addresses of 32 bits in the shared memory of the block, or of a block of its cluster.
    Shared,
}

/// An address in a register, and bytes behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// Where it is.
    pub space: Space,
    /// A double, or a word in shared memory.
    pub base: Slot,
    /// Bytes from there.
    pub offset: i64,
}

/// What a register of the machine says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// The thread's place in its block, along x, y and z.
    Thread(usize),
    /// The block's size.
    Threads(usize),
    /// The block's place in its grid.
    Block(usize),
    /// The grid's size.
    Blocks(usize),
    /// The block's number in its cluster.
    RankInCluster,
    /// The blocks of a cluster.
    BlocksOfCluster,
    /// The lane.
    Lane,
    /// A clock of the machine.
    Clock,
}

/// What an atomic operation leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The sum.
    Add,
    /// The less of two, as whole numbers without a sign, and with.
    Min,
    /// The same with a sign.
    MinSigned,
    /// The greater.
    Max,
    /// The greater with a sign.
    MaxSigned,
    /// The sum of numbers in single precision.
    AddSingle,
    /// The other number where the first is there.
    Swap,
    /// The number itself.
    Exchange,
    /// Bits of both, and of either.
    And,
    /// Of either.
    Or,
}

/// From which lane a lane takes a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shuffle {
    /// Its own number and another, exclusively.
    Butterfly,
    /// That many below.
    Up,
    /// That many above.
    Down,
    /// One that is named.
    Index,
}

/// What lanes find out together of a predicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vote {
    /// A bit for everyone.
    Ballot,
    /// Whether any has it.
    Any,
    /// Whether all have.
    All,
}

/// What threads that meet find out of their predicates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// How many have it.
    Population,
    /// Whether any has.
    Or,
    /// Whether all have.
    And,
}

/// What threads of a block meet at.
#[derive(Clone, Debug, PartialEq)]
pub struct Meeting {
    /// The barrier's number.
    pub barrier: Slot,
    /// How many threads meet; all of the block if nothing is said.
    pub threads: Option<Slot>,
    /// Whether those who come go on at once.
    pub only_arrives: bool,
    /// What is found out, of which predicate or its opposite, and where that goes.
    pub count: Option<(Count, Slot, bool, Slot)>,
}

/// Elements of factors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// Half precision.
    F16,
    /// The upper half of single precision.
    Bf16,
    /// Eight bits.
    E4m3,
    /// Eight bits.
    E5m2,
}

/// A product of a warp: 16 rows, 8 columns, 16 terms.
#[derive(Clone, Debug, PartialEq)]
pub struct Product {
    /// What factors are of.
    pub of: Element,
    /// The result.
    pub d: [Slot; 4],
    /// The left factor.
    pub a: [Slot; 4],
    /// The right one.
    pub b: [Slot; 2],
    /// What is added.
    pub c: [Slot; 4],
}

/// Where the left factor of a warpgroup's product is.
#[derive(Clone, Debug, PartialEq)]
pub enum Left {
    /// In registers.
    Registers([Slot; 4]),
    /// In shared memory, by a description; the other way round if so said.
    Shared(Slot, bool),
}

/// A warp's part of a product of a warpgroup: 16 of its 64 rows.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupProduct {
    /// Elements of the left factor, and of the right.
    pub of: [Element; 2],
    /// Columns.
    pub columns: usize,
    /// Sums.
    pub d: Vec<Slot>,
    /// The left factor.
    pub left: Left,
    /// The right one's description.
    pub right: Slot,
    /// Whether it is the other way round.
    pub right_turned: bool,
    /// Whether sums go on, rather than begin.
    pub adds: Slot,
}

/// A copy of a box of a tensor into shared memory.
#[derive(Clone, Debug, PartialEq)]
pub struct BoxLoad {
    /// Where to.
    pub to: Slot,
    /// What says where the tensor is.
    pub map: Slot,
    /// The box's first element, the innermost coordinate first.
    pub at: Vec<Slot>,
    /// Who learns of it.
    pub barrier: Slot,
    /// Which blocks of the cluster get it, if not this one alone.
    pub blocks: Option<Slot>,
}

/// What an access means for those who look at the same place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strength {
    /// Nothing: nobody else may be there.
    #[default]
    Weak,
    /// Others may look there and write there meanwhile.
    Relaxed,
    /// And who finds what was written knows all that its writer knew.
    Ordered,
}

/// What a warp does in one step.
#[derive(Clone, Debug)]
pub enum Code {
    /// Each lane by itself: where the result goes, and what it is made of.
    Lanes(Lanewise, Slot, [Slot; 3]),
    /// One of two words, by a predicate.
    SelectWord([Slot; 4]),
    /// One of two doubles.
    SelectDouble([Slot; 4]),
    /// Bits of a word put into another: result, from, into, first, how many.
    InsertWord([Slot; 5]),
    /// The same of doubles, whose places are words.
    InsertDouble([Slot; 5]),
    /// A predicate of two: all lanes at once.
    Logic(fn(u32, u32) -> u32, [Slot; 3]),
    /// What the machine says.
    Special(Special, Slot),
    /// A parameter's bytes: how many, from where on; with its sign if so said.
    Parameter {
        /// Where it goes.
        d: Slot,
        /// Among the bytes of all parameters.
        offset: usize,
        /// 1, 2, 4 or 8.
        bytes: usize,
    },
    /// The address of a parameter.
    ParameterAddress(Slot, usize),
    /// Two words side by side.
    Pack([Slot; 3]),
    /// The lower and the upper word of a double, where they are wanted.
    Unpack(Slot, [Option<Slot>; 2]),
    /// Two halves side by side.
    PackHalves([Slot; 3]),
    /// The lower and the upper half of a word.
    UnpackHalves(Slot, [Option<Slot>; 2]),
    /// Neighbouring elements of memory.
    Load {
        /// From where.
        from: Address,
        /// Of one.
        bytes: usize,
        /// Whether shorter ones keep their sign.
        signed: bool,
        /// What it means for others.
        strength: Strength,
        /// Whether it does not matter that others write meanwhile.
        is_unordered: bool,
        /// Where they go.
        to: Vec<Slot>,
    },
    /// The same the other way.
    Store {
        /// Where to.
        to: Address,
        /// Of one element.
        bytes: usize,
        /// What it means for others.
        strength: Strength,
        /// What.
        from: Vec<Slot>,
    },
    /// A change of a word that nobody comes between, and what was there before.
    Atomic {
        /// What is left.
        change: Change,
        /// What it means for others.
        strength: Strength,
        /// Of what; several neighbours where there are as many operands, one after another.
        at: Address,
        /// Where what was there goes.
        before: Option<Slot>,
        /// What it is changed by.
        by: Vec<Slot>,
        /// What it is exchanged for, where that is a change.
        other: Option<Slot>,
    },
    /// Goes on elsewhere.
    Branch(usize),
    /// Ends.
    Exit,
    /// Threads of the block meet.
    Meet(Box<Meeting>),
    /// Lanes meet: those of a mask.
    MeetLanes(Slot),
    /// Lanes exchange words: result, whether the other lane counts, number, lane, limits, who.
    Exchange(Shuffle, [Slot; 5], Option<Slot>),
    /// Lanes vote: result, predicate or its opposite, who.
    Vote(Vote, Slot, Slot, bool, Slot),
    /// The greatest word of lanes.
    Greatest([Slot; 3]),
    /// A product of a warp.
    Product(Box<Product>),
    /// Four matrices from shared memory: registers, address, whether they are turned.
    LoadMatrices([Slot; 4], Slot, bool),
    /// The other way.
    StoreMatrices([Slot; 4], Slot, bool),
    /// A product of a warpgroup.
    GroupProduct(Box<GroupProduct>),
    /// A copy into shared memory that goes on while the thread does: to, from, bytes, and how many of them there are.
    Copy {
        /// Where to, in shared memory.
        to: Slot,
        /// Where from, in global memory.
        from: Slot,
        /// How many bytes.
        bytes: usize,
        /// How many of them are read; zeroes behind.
        there: Option<Slot>,
    },
    /// Ends a group of such copies.
    CopiesCommit,
    /// Waits until no more than so many groups are under way.
    CopiesWait(usize),
    /// A piece of memory by the copy engine: to, from, bytes, who learns of it.
    BulkLoad([Slot; 4]),
    /// A box of a tensor.
    BoxLoad(Box<BoxLoad>),
    /// A box into a tensor: map, from, the first element.
    BoxStore(Slot, Slot, Vec<Slot>),
    /// Ends a group of stores by the copy engine.
    StoresCommit,
    /// Waits until no more than so many groups still have to be read from shared memory.
    StoresWait(usize),
    /// A barrier in shared memory begins, for so many.
    BarrierBegin(Slot, Slot),
    /// A thread arrives at one, which may expect more bytes then.
    BarrierArrive(Slot, Option<Slot>),
    /// Whether the phase of a parity has passed: result, barrier, parity.
    BarrierTest([Slot; 3]),
    /// The place of an address in the shared memory of another block of the cluster: result, address, block.
    Elsewhere([Slot; 3]),
    /// The address of shared memory as programs see it beside others.
    SharedAsGlobal([Slot; 2]),
    /// The other way.
    GlobalAsShared([Slot; 2]),
    /// Arrives at the barrier of the cluster.
    ClusterArrive,
    /// Waits there.
    ClusterWait,
    /// Ends a group of products of the warpgroup.
    ProductsCommit,
    /// Waits until no more than so many groups are under way.
    ProductsWait(usize),
    /// What threads wrote is for the copy engine and the matrix units to see.
    FenceForEngines,
    /// Relaxed accesses behind it tell what was known here, and what those before it found is known from here on.
    FenceThreads,
    /// Waits until the kernel before has ended.
    WaitForKernelBefore,
    /// Lets the next kernel begin.
    LetNextBegin,
    /// A hint, or an order that this machine keeps by itself.
    Nothing,
}
