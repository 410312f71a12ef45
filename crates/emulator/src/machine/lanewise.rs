//! What each lane does by itself, and what the machine tells it.

use super::{launch::Blocks, warp::Warp};
use crate::{
    lanes::{LANES, Lanewise},
    program::{Program, Special},
};

impl Warp {
    pub fn lanes(
        &mut self,
        program: &Program,
        operation: Lanewise,
        d: u32,
        [a, b, c]: [u32; 3],
        active: u32,
    ) {
        let word = |slot| self.word(program, slot);
        let double = |slot| self.double(program, slot);
        match operation {
            Lanewise::W1(f) => {
                let y = f.of(word(a));
                self.put_word(d, &y, active);
            }
            Lanewise::W2(f) => {
                let y = f.of(word(a), word(b));
                self.put_word(d, &y, active);
            }
            Lanewise::W3(f) => {
                let y = f.of(word(a), word(b), word(c));
                self.put_word(d, &y, active);
            }
            Lanewise::D1(f) => {
                let y = f.of(double(a));
                self.put_double(d, &y, active);
            }
            Lanewise::D2(f) => {
                let y = f.of(double(a), double(b));
                self.put_double(d, &y, active);
            }
            Lanewise::D3(f) => {
                let y = f.of(double(a), double(b), double(c));
                self.put_double(d, &y, active);
            }
            Lanewise::WordToDouble(f) => {
                let y = f.of(word(a));
                self.put_double(d, &y, active);
            }
            Lanewise::WordsToDouble(f) => {
                let y = f.of(word(a), word(b));
                self.put_double(d, &y, active);
            }
            Lanewise::DoubleToWord(f) => {
                let y = f.of(double(a));
                self.put_word(d, &y, active);
            }
            Lanewise::Shift(f) => {
                let y = f.of(double(a), word(b));
                self.put_double(d, &y, active);
            }
            Lanewise::CompareWords(f) => {
                let y = f.of(word(a), word(b));
                self.put_predicate(d, y, active);
            }
            Lanewise::CompareDoubles(f) => {
                let y = f.of(double(a), double(b));
                self.put_predicate(d, y, active);
            }
        }
    }

    pub fn special(&mut self, blocks: &Blocks<'_>, special: Special, d: u32, active: u32) {
        let launch = blocks.launch;
        let block = blocks.block(self.block);
        let value = match special {
            // Blocks have one direction.
            Special::Thread(0) => {
                let first = (self.number * LANES) as u32;
                return self.put_word(d, &std::array::from_fn(|lane| first + lane as u32), active);
            }
            Special::Thread(_) => 0,
            Special::Threads(0) => launch.threads as u32,
            Special::Threads(_) => 1,
            Special::Block(direction) => block.place[direction],
            Special::Blocks(direction) => launch.grid[direction],
            Special::RankInCluster => block.rank as u32,
            Special::BlocksOfCluster => launch.cluster as u32,
            Special::Lane => return self.put_word(d, &std::array::from_fn(|lane| lane as u32), active),
            Special::Clock => return self.put_double(d, &[blocks.steps; LANES], active),
        };
        self.put_word(d, &[value; LANES], active);
    }
}
