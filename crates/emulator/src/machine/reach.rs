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
        let is_shared = |at: u64| address.space == Space::Shared || shared.contains(&at);
        let is_strong = strength != Strength::Weak;
        let meets = is_strong && blocks.launch.together;
        if meets && !writes {
            self.meet_at(blocks, places, (writes, strength), active);
        }
        let first = places[active.trailing_zeros() as usize % LANES];
        match (is_shared(first) && !is_strong, writes) {
            (false, _) => (),
            (true, true) => self.since.write(places, bytes, self.at, active),
            (true, false) => {
                let outcome = self.since.read(places, bytes, active);
                outcome.map_err(|(lane, step)| blocks.not_met(&format!("lane {lane}"), step))?;
            }
        }
        let touch = Touch { is_strong, ..Touch::of(self, Part::Itself, writes) };
        each_piece(places, bytes as u64, active, |piece| {
            let bytes = (piece.end - piece.start) as usize;
            match piece.start {
                at if is_shared(at) => blocks.touch_shared(at, bytes, &touch),
                at => blocks.touch_global(self.block, at, bytes, &touch),
            }
        })?;
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

/// The pieces of memory that lanes touch: neighbouring lanes are most often at neighbouring places, or at the same.
fn each_piece(
    places: &[u64; LANES],
    bytes: u64,
    active: u32,
    mut touch: impl FnMut(Range<u64>) -> Result<(), String>,
) -> Result<(), String> {
    let mut piece = 0..0;
    for lane in lanes_of(active) {
        let (at, end) = (places[lane], places[lane] + bytes);
        if at == piece.end {
            piece.end = end;
        } else if at < piece.start || end > piece.end {
            let before = std::mem::replace(&mut piece, at..end);
            if !before.is_empty() {
                touch(before)?;
            }
        }
    }
    if piece.is_empty() { Ok(()) } else { touch(piece) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_side_by_side_touch_one_piece() {
        let pieces = |of: &dyn Fn(u64) -> u64, active: u32| {
            let places = std::array::from_fn(|lane| 4096 + of(lane as u64));
            let mut found = Vec::new();
            each_piece(&places, 4, active, |piece| {
                found.push((piece.start - 4096, piece.end - 4096));
                Ok(())
            })
            .expect("nothing is wrong with them");
            found
        };
        assert_eq!(pieces(&|lane| 4 * lane, u32::MAX), [(0, 128)]);
        assert_eq!(pieces(&|_| 8, u32::MAX), [(8, 12)]);
        assert_eq!(pieces(&|lane| 8 * lane, 0b101), [(0, 4), (16, 20)]);
        assert_eq!(pieces(&|lane| 4 * (lane % 2) + 64 * (lane / 2), 0b1111), [(0, 8), (64, 72)]);
        assert_eq!(pieces(&|lane| lane, 0), []);
    }
}
