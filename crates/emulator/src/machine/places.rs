//! Where addresses of kernels are: parameters, shared memory of a block and its cluster, global memory.

use super::{
    accesses::Touch,
    history::By,
    launch::{Block, Blocks},
    memory::Span,
};
use crate::program::SHARED_BASE;

type Outcome<T> = Result<T, String>;

impl Blocks<'_> {
    pub fn block(&self, block: usize) -> &Block {
        &self.blocks[block]
    }

    /// Where a block's shared memory begins, for addresses of 64 bits.
    pub fn shared_start(&self, block: usize) -> u64 {
        self.blocks[block].shared.address()
    }

    /// Where a parameter's bytes are.
    pub fn parameter(&self, offset: usize, bytes: usize) -> Outcome<u64> {
        if offset + bytes > self.launch.parameters.len() {
            return Err(format!("byte {offset} of the parameters, which are fewer"));
        }
        Ok(self.parameters.address() + offset as u64)
    }

    /// Where so many bytes are at an address of shared memory: the block's own, or behind a block's number that of its cluster.
    #[inline]
    pub fn shared(&self, block: usize, address: u32, bytes: usize) -> Outcome<u64> {
        let (rank, at) = ((address >> 24) as usize, (address & 0xff_ffff) as usize);
        let owner = match rank {
            0 => block,
            rank if rank <= self.launch.cluster => {
                block / self.launch.cluster * self.launch.cluster + rank - 1
            }
            _ => return Err(format!("{address:#x} is no address in shared memory")),
        };
        let owner = &self.blocks[owner];
        if at < SHARED_BASE || at + bytes > owner.shared_end {
            let end = owner.shared_end;
            return Err(format!("{bytes} bytes at {at} of shared memory, which ends at {end}"));
        }
        if owner.live_warps == 0 {
            return Err("shared memory of a block that has ended".into());
        }
        Ok(owner.shared.address() + at as u64)
    }

    /// Something is done to global memory.
    pub fn touch_global(&mut self, block: usize, place: u64, bytes: usize, touch: &Touch<'_>) -> Outcome<()> {
        self.touch_together(place, bytes, touch)?;
        let Some(history) = &mut self.history else { return Ok(()) };
        let has_waited = touch.knowledge.knows_end_of_kernel_before();
        // Where blocks run together their clocks say it, and who changes words that others change has met them.
        let of = &mut self.blocks[block];
        of.meets_others |= touch.is_strong;
        let block = (!self.launch.together && !of.meets_others).then_some(of.number as u32);
        history.touch(place, bytes, touch.writes, By { has_waited, block })
    }

    /// The same in global memory, where parameters and the block's shared memory can be named, too.
    #[inline]
    pub fn global(&mut self, block: usize, address: u64, bytes: usize) -> Outcome<u64> {
        let end = address.wrapping_add(bytes as u64);
        let holds = |(start, behind): Span| start <= address && end <= behind && address < end;
        if holds(self.last) {
            return Ok(address);
        }
        if let Some(span) = self.launch.memory.find(address).filter(|&span| holds(span)) {
            self.last = span;
            return Ok(address);
        }
        let shared = &self.blocks[block];
        let shared = (
            shared.shared.address() + SHARED_BASE as u64,
            shared.shared.address() + shared.shared_end as u64,
        );
        let first = self.parameters.address();
        if holds(shared) || holds((first, first + self.launch.parameters.len() as u64)) {
            return Ok(address);
        }
        let near = match self.launch.memory.find(address) {
            Some((start, end)) => format!(", {} bytes into {} that exist", address - start, end - start),
            None => String::new(),
        };
        Err(format!("{bytes} bytes at {address:#x} of global memory, which do not exist{near}"))
    }
}
