//! Steps of a warp, one after another, until it must wait or others should have their turn.

use super::{
    copies,
    launch::Blocks,
    matrices,
    memory::raw,
    order::{ENDED, KERNEL_BEFORE, Part},
    warp::{State, Warp},
};
use crate::{
    arithmetic,
    lanes::{LANES, lanes_of},
    program::{Change, Code, Program, Strength},
};

/// Why a warp stopped for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Others should have their turn.
    Turn,
    /// It looked for what is not there yet.
    Waits,
    /// It has come to a barrier of its block: the step.
    Meets(usize, u32),
    /// It waits for its cluster.
    MeetsCluster,
    /// It has ended.
    Ended,
}

/// Steps of a turn.
const TURN: u32 = 4096;
/// Steps that looking for what others write counts as.
const LOOK: u32 = 64;

impl Warp {
    /// Goes on for a turn. What is wrong comes with the step where it is.
    pub fn run(&mut self, blocks: &mut Blocks<'_>) -> Result<Stop, (usize, String)> {
        let mut left = TURN;
        let stop = self.steps(blocks, &mut left);
        blocks.steps += u64::from(TURN - left.min(TURN));
        stop
    }

    fn steps(&mut self, blocks: &mut Blocks<'_>, left: &mut u32) -> Result<Stop, (usize, String)> {
        let program = blocks.launch.program;
        'fragments: loop {
            let Some(index) = self.next_fragment() else {
                return match self.fragments.first() {
                    None => {
                        self.state = State::Ended;
                        Ok(Stop::Ended)
                    }
                    Some(fragment) => {
                        Err((fragment.at, "lanes of a warp wait here for others that wait elsewhere".into()))
                    }
                };
            };
            let others = self.fragments.iter().map(|fragment| fragment.at);
            let mut at = self.fragments[index].at;
            let mask = self.fragments[index].mask;
            // Where these lanes may meet others.
            let limit = others.filter(|&other| other > at).min().unwrap_or(usize::MAX);
            let is_alone = self.fragments.len() == 1;
            loop {
                let step = &program.steps[at];
                let active = match step.guard {
                    None => mask,
                    Some((guard, wanted)) => {
                        let holds = self.predicate(program, guard);
                        mask & if wanted { holds } else { !holds }
                    }
                };
                *left = left.saturating_sub(1);
                match &step.code {
                    Code::Branch(target) => {
                        if active == mask {
                            at = *target;
                            if !is_alone {
                                self.fragments[index].at = at;
                                if *left == 0 {
                                    return Ok(self.give_turn(Stop::Turn));
                                }
                                continue 'fragments;
                            }
                        } else if active == 0 {
                            at += 1;
                        } else {
                            let fragment = &mut self.fragments[index];
                            (fragment.at, fragment.mask) = (at + 1, mask & !active);
                            let taken = super::warp::Fragment { at: *target, mask: active, waits: false };
                            self.fragments.push(taken);
                            continue 'fragments;
                        }
                    }
                    Code::Exit => {
                        self.live &= !active;
                        let fragment = &mut self.fragments[index];
                        (fragment.at, fragment.mask) = (at + 1, mask & !active);
                        self.fragments.retain(|fragment| fragment.mask != 0);
                        continue 'fragments;
                    }
                    code => {
                        if active != 0 {
                            let needed = self.needed(program, code, active).map_err(|detail| (at, detail))?;
                            if needed & !active != 0 {
                                // Lanes that a predicate leaves out will never come here.
                                if needed & !active & mask != 0 {
                                    return Err((
                                        at,
                                        "some lanes of a warp leave out what all must do".into(),
                                    ));
                                }
                                self.fragments[index].at = at;
                                self.fragments[index].waits = true;
                                continue 'fragments;
                            }
                            self.at = at;
                            let stop = self.step(blocks, code, active).map_err(|detail| (at, detail))?;
                            if let Some(stop) = stop {
                                let stop = match stop {
                                    Stop::Meets(..) => Stop::Meets(at, active),
                                    stop => stop,
                                };
                                self.fragments[index].at = at + 1;
                                return Ok(self.give_turn(stop));
                            }
                            if let Code::Load { strength: Strength::Relaxed | Strength::Ordered, .. } = code {
                                *left = left.saturating_sub(LOOK);
                            }
                        }
                        at += 1;
                    }
                }
                if at >= limit || *left == 0 {
                    self.fragments[index].at = at;
                    if *left == 0 {
                        return Ok(self.give_turn(Stop::Turn));
                    }
                    continue 'fragments;
                }
            }
        }
    }

    /// Lanes that are behind the others let them go on next time.
    fn give_turn(&mut self, stop: Stop) -> Stop {
        self.lets_others = self.fragments.len() > 1 && matches!(stop, Stop::Turn | Stop::Waits);
        stop
    }

    /// The lanes that must do something together.
    fn needed(&self, program: &Program, code: &Code, active: u32) -> Result<u32, String> {
        let named = |slot| self.uniform(program, slot, active).map(|mask| mask & self.live);
        match code {
            Code::MeetLanes(mask)
            | Code::Exchange(_, [.., mask], _)
            | Code::Vote(.., mask)
            | Code::Greatest([.., mask]) => named(*mask),
            Code::Meet(_)
            | Code::Product(_)
            | Code::LoadMatrices(..)
            | Code::StoreMatrices(..)
            | Code::GroupProduct(_)
            | Code::ClusterArrive
            | Code::ClusterWait => Ok(self.live),
            _ => Ok(0),
        }
    }

    /// One step of the active lanes. Gives why the warp must stop behind it, if it must.
    fn step(&mut self, blocks: &mut Blocks<'_>, code: &Code, active: u32) -> Result<Option<Stop>, String> {
        let program = blocks.launch.program;
        match code {
            Code::Lanes(operation, d, [a, b, c]) => self.lanes(program, *operation, *d, [*a, *b, *c], active),
            Code::SelectWord([d, a, b, by]) => {
                let by = self.predicate(program, *by);
                let (a, b) = (self.word(program, *a), self.word(program, *b));
                let chosen = std::array::from_fn(|lane| if by >> lane & 1 == 1 { a[lane] } else { b[lane] });
                self.put_word(*d, &chosen, active);
            }
            Code::SelectDouble([d, a, b, by]) => {
                let by = self.predicate(program, *by);
                let (a, b) = (self.double(program, *a), self.double(program, *b));
                let chosen = std::array::from_fn(|lane| if by >> lane & 1 == 1 { a[lane] } else { b[lane] });
                self.put_double(*d, &chosen, active);
            }
            Code::InsertWord([d, from, into, at, count]) => {
                let [from, into, at, count] = [from, into, at, count].map(|slot| self.word(program, *slot));
                let put = |lane: usize| {
                    let [from, into] = [from[lane], into[lane]].map(u64::from);
                    arithmetic::insert(from, into, at[lane] & 0xff, count[lane] & 0xff, 32) as u32
                };
                self.put_word(*d, &std::array::from_fn(put), active);
            }
            Code::InsertDouble([d, from, into, at, count]) => {
                let [from, into] = [from, into].map(|slot| self.double(program, *slot));
                let [at, count] = [at, count].map(|slot| self.word(program, *slot));
                let put = |lane: usize| {
                    arithmetic::insert(from[lane], into[lane], at[lane] & 0xff, count[lane] & 0xff, 64)
                };
                self.put_double(*d, &std::array::from_fn(put), active);
            }
            Code::Logic(function, [d, a, b]) => {
                let value = function(self.predicate(program, *a), self.predicate(program, *b));
                self.put_predicate(*d, value, active);
            }
            Code::Special(special, d) => self.special(blocks, *special, *d, active),
            Code::Parameter { d, offset, bytes } => {
                let value = raw::read(blocks.parameter(*offset, *bytes)?, *bytes);
                if *bytes == 8 {
                    self.put_double(*d, &[value; LANES], active);
                } else {
                    self.put_word(*d, &[value as u32; LANES], active);
                }
            }
            Code::ParameterAddress(d, offset) => {
                let address = blocks.parameter(*offset, 1)?;
                self.put_double(*d, &[address; LANES], active);
            }
            Code::Pack([d, low, high]) => {
                let (low, high) = (self.word(program, *low), self.word(program, *high));
                let both = std::array::from_fn(|lane| u64::from(low[lane]) | u64::from(high[lane]) << 32);
                self.put_double(*d, &both, active);
            }
            Code::Unpack(a, parts) => {
                let both = *self.double(program, *a);
                for (part, shift) in parts.iter().zip([0, 32]) {
                    if let Some(d) = part {
                        self.put_word(*d, &both.map(|both| (both >> shift) as u32), active);
                    }
                }
            }
            Code::PackHalves([d, low, high]) => {
                let (low, high) = (self.word(program, *low), self.word(program, *high));
                let both = std::array::from_fn(|lane| low[lane] & 0xffff | high[lane] << 16);
                self.put_word(*d, &both, active);
            }
            Code::UnpackHalves(a, parts) => {
                let both = *self.word(program, *a);
                for (part, shift) in parts.iter().zip([0, 16]) {
                    if let Some(d) = part {
                        self.put_word(*d, &both.map(|both| both >> shift & 0xffff), active);
                    }
                }
            }
            Code::Load { from, bytes, signed, strength, is_unordered, to } => {
                let places = self.places(blocks, *from, bytes * to.len(), active)?;
                if !is_unordered {
                    self.touch(blocks, *from, &places, bytes * to.len(), (false, *strength), active)?;
                }
                for (index, d) in to.iter().enumerate() {
                    let mut found = [0; LANES];
                    for lane in lanes_of(active) {
                        found[lane] = raw::read(places[lane] + (index * bytes) as u64, *bytes);
                    }
                    match (bytes, signed) {
                        (8, _) => self.put_double(*d, &found, active),
                        (1, true) => self.put_word(*d, &found.map(|x| i32::from(x as i8) as u32), active),
                        (2, true) => self.put_word(*d, &found.map(|x| i32::from(x as i16) as u32), active),
                        _ => self.put_word(*d, &found.map(|x| x as u32), active),
                    }
                }
            }
            Code::Store { to, bytes, strength, from } => {
                let places = self.places(blocks, *to, bytes * from.len(), active)?;
                self.touch(blocks, *to, &places, bytes * from.len(), (true, *strength), active)?;
                for (index, a) in from.iter().enumerate() {
                    let values = match bytes {
                        8 => *self.double(program, *a),
                        _ => self.word(program, *a).map(u64::from),
                    };
                    for lane in lanes_of(active) {
                        raw::write(places[lane] + (index * bytes) as u64, *bytes, values[lane]);
                    }
                }
            }
            Code::Atomic { change, strength, at, before, by, other } => {
                let places = self.places(blocks, *at, 4 * by.len(), active)?;
                self.touch_in_turn(blocks, *at, &places, 4 * by.len(), *strength, active)?;
                for (index, by) in by.iter().enumerate() {
                    let by = *self.word(program, *by);
                    let other = other.map_or([0; LANES], |other| *self.word(program, other));
                    let mut old = [0; LANES];
                    for lane in lanes_of(active) {
                        let place = places[lane] + 4 * index as u64;
                        old[lane] = raw::read(place, 4) as u32;
                        raw::write(place, 4, changed(*change, old[lane], by[lane], other[lane]).into());
                    }
                    if let Some(d) = before {
                        self.put_word(*d, &old, active);
                    }
                }
            }
            Code::Meet(_) => {
                self.since.lanes_met();
                return Ok(Some(Stop::Meets(0, active)));
            }
            Code::MeetLanes(_) => {
                if active == self.live {
                    self.since.lanes_met();
                }
            }
            Code::Nothing => (),
            Code::Exchange(shuffle, [d, a, b, c, _], counts) => {
                self.exchange(program, *shuffle, [*d, *a, *b, *c], *counts, active);
            }
            Code::Vote(vote, d, of, opposite, _) => self.vote(program, *vote, *d, (*of, *opposite), active),
            Code::Greatest([d, a, _]) => {
                let numbers = self.word(program, *a);
                let greatest = lanes_of(active).map(|lane| numbers[lane]).max().unwrap_or(0);
                self.put_word(*d, &[greatest; LANES], active);
            }
            Code::Product(product) => matrices::product(self, program, product, active),
            Code::LoadMatrices(to, from, turned) => {
                matrices::load(self, blocks, *to, *from, *turned, active)?;
            }
            Code::StoreMatrices(from, to, turned) => {
                matrices::store(self, blocks, *from, *to, *turned, active)?;
            }
            Code::GroupProduct(product) => matrices::group_product(self, blocks, product, active)?,
            Code::Copy { to, from, bytes, there } => {
                copies::begin(self, blocks, (*to, *from), *bytes, *there, active)?;
            }
            Code::CopiesCommit => {
                lanes_of(active).for_each(|lane| self.groups[lane] += 1);
                self.standing.end_group(Part::Copies);
            }
            Code::CopiesWait(left) => {
                copies::finish(self, *left as u32, active);
                self.standing.wait_for_groups(Part::Copies, *left);
            }
            Code::BulkLoad(operands) => copies::bulk(self, blocks, *operands, active)?,
            Code::BoxLoad(load) => copies::load_box(self, blocks, load, active)?,
            Code::BoxStore(map, from, at) => copies::store_box(self, blocks, (*map, *from, at), active)?,
            Code::StoresCommit => {
                blocks.end_store_group(self.block, self.number, active);
                self.standing.end_group(Part::Stores);
            }
            Code::StoresWait(left) => {
                blocks.finish_stores(self.block, self.number, active, *left)?;
                self.standing.wait_for_groups(Part::Stores, *left);
            }
            Code::ProductsCommit => self.standing.end_group(Part::Products),
            Code::ProductsWait(left) => self.standing.wait_for_groups(Part::Products, *left),
            Code::FenceThreads => self.standing.fence_threads(),
            Code::FenceForEngines => self.standing.knowledge.fence(),
            Code::LetNextBegin => blocks.let_next_begin(self),
            Code::WaitForKernelBefore => self.standing.knowledge.happened.learn(KERNEL_BEFORE, ENDED),
            Code::BarrierBegin(barrier, count) => {
                let counts = *self.word(program, *count);
                let barriers = *self.word(program, *barrier);
                for lane in lanes_of(active) {
                    blocks.begin_barrier(self.block, barriers[lane], counts[lane])?;
                }
            }
            Code::BarrierArrive(barrier, bytes) => {
                let announced = bytes.map_or([0; LANES], |bytes| *self.word(program, bytes));
                let barriers = *self.word(program, *barrier);
                for lane in lanes_of(active) {
                    blocks.arrive_at_barrier(self, barriers[lane], announced[lane])?;
                }
                self.standing.told();
            }
            Code::BarrierTest([d, barrier, parity]) => {
                let (barriers, parities) = (*self.word(program, *barrier), *self.word(program, *parity));
                let mut passed = 0;
                for lane in lanes_of(active) {
                    if blocks.has_passed(self, barriers[lane], parities[lane])? {
                        passed |= 1 << lane;
                    }
                }
                self.put_predicate(*d, passed, active);
                if passed != 0 {
                    self.since.lanes_met();
                }
                return Ok((passed != active).then_some(Stop::Waits));
            }
            Code::Elsewhere([d, a, block]) => {
                let (a, block) = (self.word(program, *a), self.word(program, *block));
                // Lanes that are not active have any number.
                let moved =
                    std::array::from_fn(|lane| a[lane] & 0xff_ffff | block[lane].wrapping_add(1) << 24);
                self.put_word(*d, &moved, active);
            }
            Code::SharedAsGlobal([d, a]) => {
                let start = blocks.shared_start(self.block);
                let moved = self.double(program, *a).map(|a| a + start);
                self.put_double(*d, &moved, active);
            }
            Code::GlobalAsShared([d, a]) => {
                let start = blocks.shared_start(self.block);
                let moved = self.double(program, *a).map(|a| a.wrapping_sub(start));
                self.put_double(*d, &moved, active);
            }
            Code::ClusterArrive => {
                self.since.lanes_met();
                self.cluster_arrivals += 1;
                blocks.arrive_at_cluster(self);
            }
            Code::ClusterWait => {
                if !blocks.cluster_has_met(self) {
                    return Ok(Some(Stop::MeetsCluster));
                }
            }
            Code::Branch(_) | Code::Exit => {
                unreachable!("these are seen to where lanes are chosen")
            }
        }
        Ok(None)
    }
}

fn changed(change: Change, old: u32, by: u32, other: u32) -> u32 {
    match change {
        Change::Add => old.wrapping_add(by),
        Change::Min => old.min(by),
        Change::MinSigned => (old as i32).min(by as i32) as u32,
        Change::Max => old.max(by),
        Change::MaxSigned => (old as i32).max(by as i32) as u32,
        Change::AddSingle => (f32::from_bits(old) + f32::from_bits(by)).to_bits(),
        Change::Swap => {
            if old == by {
                other
            } else {
                old
            }
        }
        Change::Exchange => by,
        Change::And => old & by,
        Change::Or => old | by,
    }
}
