//! What a warp can be told to do.

use crate::{lanes::Lanewise, ptx::Class};

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
        /// Whether what others write is looked for, so that they should come to write it.
        polls: bool,
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
        /// What.
        from: Vec<Slot>,
    },
    /// A change of a word that nobody comes between, and what was there before.
    Atomic {
        /// What is left.
        change: Change,
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
    Fence,
    /// Waits until the kernel before has ended.
    WaitForKernelBefore,
    /// Lets the next kernel begin.
    LetNextBegin,
    /// A hint, or an order that this machine keeps by itself.
    Nothing,
}

/// What an instruction does with a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Needs what is in it.
    Reads,
    /// Puts something into it.
    Writes,
    /// Both.
    Changes,
}

impl Code {
    /// All registers, each place of one once, with their classes and what happens to them.
    pub fn visit(&mut self, see: &mut dyn FnMut(&mut Slot, Class, Role)) {
        use Class::{Double, Predicate, Word};
        use Role::{Changes, Reads, Writes};
        let base = |address: &mut Address, see: &mut dyn FnMut(&mut Slot, Class, Role)| {
            let class = if address.space == Space::Shared { Word } else { Double };
            see(&mut address.base, class, Reads);
        };
        let of_bytes = |bytes: usize| if bytes == 8 { Double } else { Word };
        match self {
            Code::Lanes(operation, d, from) => {
                let (result, classes): (Class, &[Class]) = match operation {
                    Lanewise::W1(_) => (Word, &[Word]),
                    Lanewise::W2(_) => (Word, &[Word, Word]),
                    Lanewise::W3(_) => (Word, &[Word, Word, Word]),
                    Lanewise::D1(_) => (Double, &[Double]),
                    Lanewise::D2(_) => (Double, &[Double, Double]),
                    Lanewise::D3(_) => (Double, &[Double, Double, Double]),
                    Lanewise::WordToDouble(_) => (Double, &[Word]),
                    Lanewise::WordsToDouble(_) => (Double, &[Word, Word]),
                    Lanewise::DoubleToWord(_) => (Word, &[Double]),
                    Lanewise::Shift(_) => (Double, &[Double, Word]),
                    Lanewise::CompareWords(_) => (Predicate, &[Word, Word]),
                    Lanewise::CompareDoubles(_) => (Predicate, &[Double, Double]),
                };
                for (slot, class) in from.iter_mut().zip(classes) {
                    see(slot, *class, Reads);
                }
                see(d, result, Writes);
            }
            Code::SelectWord([d, a, b, by]) => {
                visit_all(see, &mut [(a, Word), (b, Word), (by, Predicate)], d, Word)
            }
            Code::SelectDouble([d, a, b, by]) => {
                visit_all(see, &mut [(a, Double), (b, Double), (by, Predicate)], d, Double);
            }
            Code::InsertWord([d, a, b, at, count]) => {
                visit_all(see, &mut [(a, Word), (b, Word), (at, Word), (count, Word)], d, Word);
            }
            Code::InsertDouble([d, a, b, at, count]) => {
                visit_all(see, &mut [(a, Double), (b, Double), (at, Word), (count, Word)], d, Double);
            }
            Code::Logic(_, [d, a, b]) => visit_all(see, &mut [(a, Predicate), (b, Predicate)], d, Predicate),
            Code::Special(Special::Clock, d) | Code::ParameterAddress(d, _) => see(d, Double, Writes),
            Code::Special(_, d) => see(d, Word, Writes),
            Code::Parameter { d, bytes, .. } => see(d, of_bytes(*bytes), Writes),
            Code::Pack([d, a, b]) => visit_all(see, &mut [(a, Word), (b, Word)], d, Double),
            Code::Unpack(a, parts) => {
                see(a, Double, Reads);
                parts.iter_mut().flatten().for_each(|d| see(d, Word, Writes));
            }
            Code::PackHalves([d, a, b]) => visit_all(see, &mut [(a, Word), (b, Word)], d, Word),
            Code::UnpackHalves(a, parts) => {
                see(a, Word, Reads);
                parts.iter_mut().flatten().for_each(|d| see(d, Word, Writes));
            }
            Code::Load { from, bytes, to, .. } => {
                base(from, see);
                to.iter_mut().for_each(|d| see(d, of_bytes(*bytes), Writes));
            }
            Code::Store { to, bytes, from } => {
                base(to, see);
                from.iter_mut().for_each(|a| see(a, of_bytes(*bytes), Reads));
            }
            Code::Atomic { at, before, by, other, .. } => {
                base(at, see);
                by.iter_mut().chain(other).for_each(|a| see(a, Word, Reads));
                before.iter_mut().for_each(|d| see(d, Word, Writes));
            }
            Code::Branch(_)
            | Code::Exit
            | Code::CopiesCommit
            | Code::CopiesWait(_)
            | Code::StoresCommit
            | Code::StoresWait(_)
            | Code::ClusterArrive
            | Code::ClusterWait
            | Code::ProductsCommit
            | Code::ProductsWait(_)
            | Code::Fence
            | Code::WaitForKernelBefore
            | Code::LetNextBegin
            | Code::Nothing => (),
            Code::Meet(meeting) => {
                see(&mut meeting.barrier, Word, Reads);
                meeting.threads.iter_mut().for_each(|a| see(a, Word, Reads));
                if let Some((count, of, _, d)) = &mut meeting.count {
                    see(of, Predicate, Reads);
                    see(d, if *count == Count::Population { Word } else { Predicate }, Writes);
                }
            }
            Code::MeetLanes(mask) => see(mask, Word, Reads),
            Code::Exchange(_, [d, a, b, c, mask], counts) => {
                visit_all(see, &mut [(a, Word), (b, Word), (c, Word), (mask, Word)], d, Word);
                counts.iter_mut().for_each(|p| see(p, Predicate, Writes));
            }
            Code::Vote(vote, d, of, _, mask) => {
                let class = if *vote == Vote::Ballot { Word } else { Predicate };
                visit_all(see, &mut [(of, Predicate), (mask, Word)], d, class);
            }
            Code::Greatest([d, a, mask]) => visit_all(see, &mut [(a, Word), (mask, Word)], d, Word),
            Code::Product(product) => {
                let Product { d, a, b, c, .. } = &mut **product;
                a.iter_mut().chain(b).chain(c).for_each(|slot| see(slot, Word, Reads));
                d.iter_mut().for_each(|slot| see(slot, Word, Writes));
            }
            Code::LoadMatrices(to, from, _) => {
                see(from, Word, Reads);
                to.iter_mut().for_each(|d| see(d, Word, Writes));
            }
            Code::StoreMatrices(from, to, _) => {
                see(to, Word, Reads);
                from.iter_mut().for_each(|a| see(a, Word, Reads));
            }
            Code::GroupProduct(product) => {
                let GroupProduct { d, left, right, adds, .. } = &mut **product;
                match left {
                    Left::Registers(a) => a.iter_mut().for_each(|slot| see(slot, Word, Reads)),
                    Left::Shared(description, _) => see(description, Double, Reads),
                }
                see(right, Double, Reads);
                see(adds, Predicate, Reads);
                d.iter_mut().for_each(|slot| see(slot, Word, Changes));
            }
            Code::Copy { to, from, there, .. } => {
                see(to, Word, Reads);
                see(from, Double, Reads);
                there.iter_mut().for_each(|a| see(a, Word, Reads));
            }
            Code::BulkLoad([to, from, bytes, barrier]) => {
                see(from, Double, Reads);
                [to, bytes, barrier].into_iter().for_each(|a| see(a, Word, Reads));
            }
            Code::BoxLoad(load) => {
                see(&mut load.map, Double, Reads);
                let words = [&mut load.to, &mut load.barrier].into_iter().chain(&mut load.at);
                words.chain(&mut load.blocks).for_each(|a| see(a, Word, Reads));
            }
            Code::BoxStore(map, from, at) => {
                see(map, Double, Reads);
                see(from, Word, Reads);
                at.iter_mut().for_each(|a| see(a, Word, Reads));
            }
            Code::BarrierBegin(barrier, count) => {
                see(barrier, Word, Reads);
                see(count, Word, Reads);
            }
            Code::BarrierArrive(barrier, bytes) => {
                see(barrier, Word, Reads);
                bytes.iter_mut().for_each(|a| see(a, Word, Reads));
            }
            Code::BarrierTest([d, barrier, parity]) => {
                visit_all(see, &mut [(barrier, Word), (parity, Word)], d, Predicate);
            }
            Code::Elsewhere([d, a, block]) => visit_all(see, &mut [(a, Word), (block, Word)], d, Word),
            Code::SharedAsGlobal([d, a]) | Code::GlobalAsShared([d, a]) => {
                visit_all(see, &mut [(a, Double)], d, Double);
            }
        }
    }

    /// Whether the warp may go on elsewhere than behind it.
    pub fn target(&self) -> Option<usize> {
        match self {
            Code::Branch(target) => Some(*target),
            _ => None,
        }
    }
}

fn visit_all(
    see: &mut dyn FnMut(&mut Slot, Class, Role),
    reads: &mut [(&mut Slot, Class)],
    d: &mut Slot,
    result: Class,
) {
    for (slot, class) in reads {
        see(slot, *class, Role::Reads);
    }
    see(d, result, Role::Writes);
}
