//! How lanes reach memory.

use std::ops::Range;

use super::{accesses::Touch, launch::Blocks, order::Part, warp::Warp};
use crate::{
    lanes::{LANES, lanes_of},
    program::{Address, Space, Strength},
};

impl Warp {
    /// Lanes read or write at places, which tells others what that strength of an access tells, or finds it.
    pub fn touch(
        &mut self,
        blocks: &mut Blocks<'_>,
        address: Address,
        places: &[u64; LANES],
        bytes: usize,
        (writes, strength): (bool, Strength),
        active: u32,
    ) -> Result<(), String> {
        let shared = blocks.shared_span(self.block);
        let meets = strength != Strength::Weak && blocks.launch.together;
        if meets && !writes {
            self.meet_at(blocks, places, (writes, strength), active);
        }
        let is_shared = |at: u64| address.space == Space::Shared || shared.contains(&at);
        if strength == Strength::Weak
            && places.get(active.trailing_zeros() as usize).is_some_and(|&at| is_shared(at))
        {
            match writes {
                true => self.since.write(places, bytes, self.at, active),
                false => {
                    let outcome = self.since.read(places, bytes, active);
                    outcome.map_err(|(lane, step)| blocks.not_met(&format!("lane {lane}"), step))?;
                }
            }
        }
        let touch = Touch { is_strong: strength != Strength::Weak, ..Touch::of(self, Part::Itself, writes) };
        let block = self.block;
        let mut reach = |piece: Range<u64>| match piece.start {
            at if is_shared(at) => blocks.touch_shared(at, (piece.end - at) as usize, &touch),
            at => blocks.touch_global(block, at, (piece.end - at) as usize, &touch),
        };
        // Neighbouring lanes are most often at neighbouring places, or at the same.
        let mut piece = 0..0;
        for lane in lanes_of(active) {
            let (at, end) = (places[lane], places[lane] + bytes as u64);
            if at == piece.end {
                piece.end = end;
            } else if at < piece.start || end > piece.end {
                let before = std::mem::replace(&mut piece, at..end);
                if !before.is_empty() {
                    reach(before)?;
                }
            }
        }
        reach(piece)?;
        if meets && writes {
            self.meet_at(blocks, places, (writes, strength), active);
        }
        Ok(())
    }

    /// Lanes change what nobody comes between: they find and tell.
    pub fn touch_in_turn(
        &mut self,
        blocks: &mut Blocks<'_>,
        address: Address,
        places: &[u64; LANES],
        bytes: usize,
        strength: Strength,
        active: u32,
    ) -> Result<(), String> {
        if address.space == Space::Shared {
            let changed: Vec<u64> = lanes_of(active).map(|lane| places[lane]).collect();
            return blocks.change_in_turn(self, &changed, bytes);
        }
        if blocks.launch.together {
            self.meet_at(blocks, places, (false, strength), active);
        }
        self.touch(blocks, address, places, bytes, (true, strength), active)
    }

    fn meet_at(
        &mut self,
        blocks: &mut Blocks<'_>,
        places: &[u64; LANES],
        (tells, strength): (bool, Strength),
        active: u32,
    ) {
        let is_ordered = strength == Strength::Ordered;
        for lane in lanes_of(active) {
            let meeting = blocks.learnt.entry(places[lane]).or_default();
            match tells {
                true => self.standing.tell(meeting, is_ordered),
                false => self.standing.find(meeting, is_ordered),
            }
        }
    }

    /// Where lanes read or write so many bytes: addresses that exist, at multiples of that size.
    pub fn places(
        &self,
        blocks: &mut Blocks<'_>,
        address: Address,
        bytes: usize,
        active: u32,
    ) -> Result<[u64; LANES], String> {
        let program = blocks.launch.program;
        let mut places = [0; LANES];
        match address.space {
            Space::Shared => {
                let base = self.word(program, address.base);
                for lane in lanes_of(active) {
                    let at = base[lane].wrapping_add(address.offset as u32);
                    places[lane] = blocks.shared(self.block, at, bytes)?;
                }
            }
            Space::Global => {
                let base = self.double(program, address.base);
                for lane in lanes_of(active) {
                    let at = base[lane].wrapping_add(address.offset as u64);
                    places[lane] = blocks.global(self.block, at, bytes)?;
                }
            }
        }
        match lanes_of(active).find(|&lane| places[lane] % bytes as u64 != 0) {
            Some(lane) => {
                Err(format!("{bytes} bytes at {:#x} in lane {lane}, no multiple of that", places[lane]))
            }
            None => Ok(places),
        }
    }
}
