//! Places for registers: those that live at the same time have different ones, and few places keep a warp in the processor's caches.
//!
//! The compiler gives every value a register of its own. What lives where is found as compilers do, block by block from the end; a
//! register then lives from the first to the last step where it does in any block, and takes the first place that is free for so long.

use std::collections::HashMap;

use super::{CONSTANT, Code, Registers, Role, Slot, Step};
use crate::ptx::Class;

/// Gives every register a place and says how many there are.
pub fn allocate(steps: &mut [Step]) -> Registers {
    let mut uses = Vec::with_capacity(steps.len());
    let mut classes = HashMap::new();
    for step in steps.iter_mut() {
        let mut seen = Seen::default();
        let is_conditional = step.guard.is_some();
        visit(step, &mut |slot, class, role| {
            if *slot & CONSTANT != 0 {
                return;
            }
            classes.insert(*slot, class);
            // What may stay as it was is needed.
            if role != Role::Writes || is_conditional {
                seen.reads.push(*slot);
            }
            if role != Role::Reads {
                seen.writes.push(*slot);
            }
        });
        uses.push(seen);
    }
    let lives = lives(steps, &uses);
    let places = places(&lives, &classes);
    let mut registers = Registers::default();
    for step in steps.iter_mut() {
        visit(step, &mut |slot, class, _| {
            if *slot & CONSTANT != 0 {
                return;
            }
            *slot = places[&*slot];
            let count = match class {
                Class::Word => &mut registers.words,
                Class::Double => &mut registers.doubles,
                Class::Predicate => &mut registers.predicates,
            };
            *count = (*count).max(*slot as usize + 1);
        });
    }
    registers
}

/// The registers of a step and of what it hangs on.
pub fn visit(step: &mut Step, see: &mut dyn FnMut(&mut Slot, Class, Role)) {
    if let Some((guard, _)) = &mut step.guard {
        see(guard, Class::Predicate, Role::Reads);
    }
    step.code.visit(see);
}

#[derive(Default)]
struct Seen {
    reads: Vec<Slot>,
    writes: Vec<Slot>,
}

/// Registers as bits.
#[derive(Clone, PartialEq, Eq)]
struct Set(Vec<u64>);

impl Set {
    fn new(count: usize) -> Self {
        Set(vec![0; count.div_ceil(64)])
    }

    fn insert(&mut self, slot: Slot) {
        self.0[slot as usize / 64] |= 1 << (slot % 64);
    }

    fn remove(&mut self, slot: Slot) {
        self.0[slot as usize / 64] &= !(1 << (slot % 64));
    }

    /// Adds all of another and says whether that was news.
    fn add(&mut self, other: &Set) -> bool {
        let mut is_news = false;
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            is_news |= *theirs & !*mine != 0;
            *mine |= theirs;
        }
        is_news
    }

    fn iter(&self) -> impl Iterator<Item = Slot> + '_ {
        self.0.iter().enumerate().flat_map(|(index, &word)| {
            (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| (index * 64) as Slot + bit)
        })
    }
}

/// The first and the last step of every register's life; a step's results begin between it and the next.
fn lives(steps: &[Step], uses: &[Seen]) -> Vec<Option<(usize, usize)>> {
    let count =
        uses.iter().flat_map(|seen| seen.reads.iter().chain(&seen.writes)).max().map_or(0, |max| max + 1);
    let mut lives: Vec<Option<(usize, usize)>> = vec![None; count as usize];
    let blocks = blocks(steps);
    let block_of: HashMap<usize, usize> =
        blocks.iter().enumerate().map(|(index, range)| (range.start, index)).collect();
    let successors: Vec<Vec<usize>> = blocks
        .iter()
        .map(|range| {
            let last = &steps[range.end - 1];
            let goes_on = !matches!(last.code, Code::Branch(_) | Code::Exit) || last.guard.is_some();
            let behind = goes_on.then_some(range.end);
            let starts = last.code.target().into_iter().chain(behind);
            starts.filter_map(|start| block_of.get(&start).copied()).collect()
        })
        .collect();
    let mut at_begin = vec![Set::new(count as usize); blocks.len()];
    let mut at_end = at_begin.clone();
    let mut changes = true;
    while changes {
        changes = false;
        for index in (0..blocks.len()).rev() {
            let mut live = std::mem::replace(&mut at_end[index], Set::new(0));
            for &successor in &successors[index] {
                live.add(&at_begin[successor]);
            }
            at_end[index] = live.clone();
            for seen in uses[blocks[index].clone()].iter().rev() {
                seen.writes.iter().for_each(|&slot| live.remove(slot));
                seen.reads.iter().for_each(|&slot| live.insert(slot));
            }
            changes |= at_begin[index].add(&live);
        }
    }
    let mut extend = |slot: Slot, place: usize| {
        let life = lives[slot as usize].get_or_insert((place, place));
        *life = (life.0.min(place), life.1.max(place));
    };
    for (index, range) in blocks.iter().enumerate() {
        at_begin[index].iter().for_each(|slot| extend(slot, 2 * range.start));
        at_end[index].iter().for_each(|slot| extend(slot, 2 * range.end - 1));
        for step in range.clone() {
            uses[step].reads.iter().for_each(|&slot| extend(slot, 2 * step));
            uses[step].writes.iter().for_each(|&slot| extend(slot, 2 * step + 1));
        }
    }
    lives
}

/// Runs of steps that are entered at the first and left behind the last alone.
fn blocks(steps: &[Step]) -> Vec<std::ops::Range<usize>> {
    let mut begins = vec![false; steps.len() + 1];
    begins[0] = true;
    begins[steps.len()] = true;
    for (index, step) in steps.iter().enumerate() {
        if let Some(target) = step.code.target() {
            begins[target] = true;
        }
        if matches!(step.code, Code::Branch(_) | Code::Exit) {
            begins[index + 1] = true;
        }
    }
    let starts: Vec<usize> = (0..=steps.len()).filter(|&step| begins[step]).collect();
    starts.windows(2).map(|pair| pair[0]..pair[1]).collect()
}

fn places(lives: &[Option<(usize, usize)>], classes: &HashMap<Slot, Class>) -> HashMap<Slot, Slot> {
    let mut order: Vec<(usize, usize, Slot)> = lives
        .iter()
        .enumerate()
        .filter_map(|(slot, life)| life.map(|(first, last)| (first, last, slot as Slot)))
        .collect();
    order.sort_unstable();
    let mut places = HashMap::new();
    // Of every class, until when each place is taken.
    let mut taken: HashMap<Class, Vec<usize>> = HashMap::new();
    for (first, last, slot) in order {
        let taken = taken.entry(classes[&slot]).or_default();
        let place = match taken.iter().position(|&until| until < first) {
            Some(place) => place,
            None => {
                taken.push(0);
                taken.len() - 1
            }
        };
        taken[place] = last;
        places.insert(slot, place as Slot);
    }
    places
}
