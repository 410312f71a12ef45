//! A warp: its registers, and where its lanes are in the program.

use super::{lockstep::Since, order::Standing};
use crate::{
    lanes::{Doubles, LANES, Words, lanes_of, put},
    program::{CONSTANT, Program, Slot},
};

/// Lanes that are at the same place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// The next step.
    pub at: usize,
    /// Which lanes.
    pub mask: u32,
    /// Whether they wait for others to come to this place.
    pub waits: bool,
}

/// What a warp waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing.
    Ready,
    /// Others of its block.
    Meets,
    /// Others of its cluster.
    MeetsCluster,
    /// Nothing any more.
    Ended,
}

/// A copy into shared memory that a thread asked for and has not waited for.
#[derive(Clone, Copy, Debug)]
pub struct Copy {
    /// The lane, and the number of its group.
    pub lane: usize,
    pub group: u32,
    pub to: u64,
    pub from: u64,
    /// Bytes that are there, and zeroes behind them.
    pub there: usize,
    pub bytes: usize,
}

/// A warp.
pub struct Warp {
    pub words: Vec<Words>,
    pub doubles: Vec<Doubles>,
    pub predicates: Vec<u32>,
    pub fragments: Vec<Fragment>,
    /// Whether the lanes furthest behind should let others go first.
    pub lets_others: bool,
    /// Lanes that have not ended.
    pub live: u32,
    pub state: State,
    /// Its block among those that run, and its number there.
    pub block: usize,
    pub number: usize,
    /// How often it arrived at the cluster's barrier.
    pub cluster_arrivals: u64,
    pub copies: Vec<Copy>,
    /// Groups of copies that each lane has ended.
    pub groups: Words,
    /// What it knows of what others did, and when it does something.
    pub standing: Standing,
    /// What its lanes wrote to shared memory since they met.
    pub since: Since,
    /// The step that is being done.
    pub at: usize,
}

impl Warp {
    /// A warp for a program, of a block with so many threads.
    pub fn new(
        program: &Program,
        block: usize,
        number: usize,
        (threads, standing): (usize, Standing),
    ) -> Self {
        let registers = program.registers;
        let count = (threads - number * LANES).min(LANES);
        let live = if count == LANES { u32::MAX } else { (1 << count) - 1 };
        Warp {
            words: vec![[0; LANES]; registers.words],
            doubles: vec![[0; LANES]; registers.doubles],
            predicates: vec![0; registers.predicates],
            fragments: vec![Fragment { at: 0, mask: live, waits: false }],
            lets_others: false,
            live,
            state: State::Ready,
            block,
            number,
            cluster_arrivals: 0,
            copies: Vec::new(),
            groups: [0; LANES],
            standing,
            since: Since::default(),
            at: 0,
        }
    }

    #[inline]
    pub fn word<'a>(&'a self, program: &'a Program, slot: Slot) -> &'a Words {
        if slot & CONSTANT == 0 {
            &self.words[slot as usize]
        } else {
            &program.words[(slot ^ CONSTANT) as usize]
        }
    }

    #[inline]
    pub fn double<'a>(&'a self, program: &'a Program, slot: Slot) -> &'a Doubles {
        if slot & CONSTANT == 0 {
            &self.doubles[slot as usize]
        } else {
            &program.doubles[(slot ^ CONSTANT) as usize]
        }
    }

    #[inline]
    pub fn predicate(&self, program: &Program, slot: Slot) -> u32 {
        if slot & CONSTANT == 0 {
            self.predicates[slot as usize]
        } else {
            program.predicates[(slot ^ CONSTANT) as usize]
        }
    }

    #[inline]
    pub fn put_word(&mut self, slot: Slot, value: &Words, mask: u32) {
        put(&mut self.words[slot as usize], value, mask);
    }

    #[inline]
    pub fn put_double(&mut self, slot: Slot, value: &Doubles, mask: u32) {
        put(&mut self.doubles[slot as usize], value, mask);
    }

    #[inline]
    pub fn put_predicate(&mut self, slot: Slot, value: u32, mask: u32) {
        let old = &mut self.predicates[slot as usize];
        *old = *old & !mask | value & mask;
    }

    /// Of lanes that must have the same number, that number.
    pub fn uniform(&self, program: &Program, slot: Slot, mask: u32) -> Result<u32, String> {
        let numbers = self.word(program, slot);
        let first = numbers[mask.trailing_zeros() as usize % LANES];
        if lanes_of(mask).all(|lane| numbers[lane] == first) {
            return Ok(first);
        }
        Err("lanes of a warp differ in what must be the same for all of them".into())
    }

    /// Joins lanes that are at the same place, and gives those that go next: of those that wait for nobody the ones furthest behind, or
    /// the next if these are to let others go.
    pub fn next_fragment(&mut self) -> Option<usize> {
        self.fragments.sort_unstable_by_key(|fragment| fragment.at);
        self.fragments.dedup_by(|later, first| {
            let meet = later.at == first.at;
            if meet {
                first.mask |= later.mask;
                first.waits = false;
            }
            meet
        });
        let mut ready = self.fragments.iter().enumerate().filter(|(_, fragment)| !fragment.waits);
        let first = ready.next().map(|(index, _)| index);
        let second = ready.next().map(|(index, _)| index);
        if std::mem::take(&mut self.lets_others) { second.or(first) } else { first }
    }
}
