//! What lanes of a warp find out from each other.

use super::warp::Warp;
use crate::{
    lanes::{LANES, lanes_of},
    program::{Program, Shuffle, Slot, Vote},
};

impl Warp {
    /// Each lane takes another's number, or keeps its own where that lies beyond its limit.
    pub fn exchange(
        &mut self,
        program: &Program,
        shuffle: Shuffle,
        [d, a, b, c]: [Slot; 4],
        counts: Option<Slot>,
        active: u32,
    ) {
        let (numbers, by, limits) = (*self.word(program, a), self.word(program, b), self.word(program, c));
        let (mut taken, mut counted) = (numbers, 0);
        for lane in lanes_of(active) {
            let (by, limit) = (by[lane] as usize & 0x1f, limits[lane] as usize);
            let (clamp, segments) = (limit & 0x1f, limit >> 8 & 0x1f);
            let last = lane & segments | clamp & !segments;
            let first = lane & segments;
            let (from, is_within) = match shuffle {
                Shuffle::Up => (lane.wrapping_sub(by), lane >= last + by),
                Shuffle::Down => (lane + by, lane + by <= last),
                Shuffle::Butterfly => (lane ^ by, lane ^ by <= last),
                Shuffle::Index => {
                    let from = first | by & !segments;
                    (from, from <= last)
                }
            };
            if is_within {
                taken[lane] = numbers[from % LANES];
                counted |= 1 << lane;
            }
        }
        self.put_word(d, &taken, active);
        if let Some(p) = counts {
            self.put_predicate(p, counted, active);
        }
    }

    pub fn vote(
        &mut self,
        program: &Program,
        vote: Vote,
        d: Slot,
        (of, opposite): (Slot, bool),
        active: u32,
    ) {
        let predicate = self.predicate(program, of);
        let holds = active & if opposite { !predicate } else { predicate };
        match vote {
            Vote::Ballot => self.put_word(d, &[holds; LANES], active),
            Vote::Any => self.put_predicate(d, if holds != 0 { u32::MAX } else { 0 }, active),
            Vote::All => self.put_predicate(d, if holds == active { u32::MAX } else { 0 }, active),
        }
    }
}
