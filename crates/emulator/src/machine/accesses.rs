//! Who touched shared memory last, and global memory where blocks run together, byte by byte: what nothing orders is an error that names both.

use std::ops::Range;

use super::{
    launch::{Block, Blocks},
    order::{Agent, Knowledge, Part, is_thread},
    warp::Warp,
};
use crate::{lanes::LANES, program::SHARED_BASE};

type Outcome<T> = Result<T, String>;

/// Bytes that are remembered together.
const CELL: usize = 16;

/// Bytes of global memory whose accesses are kept together.
const PAGE: u64 = 1 << 12;

/// Something that was done to some bytes of a cell.
#[derive(Clone, Copy, Debug)]
struct Access {
    agent: Agent,
    /// Which bytes.
    bytes: u16,
    writes: bool,
    /// Whether others may be there, too.
    is_strong: bool,
    time: u32,
    /// The step of the program.
    step: u32,
}

/// Who does something to shared memory, and what is known then.
pub struct Touch<'a> {
    pub agent: Agent,
    pub time: u32,
    pub step: usize,
    pub writes: bool,
    pub is_strong: bool,
    pub knowledge: &'a Knowledge,
}

impl<'a> Touch<'a> {
    /// Of a warp, or of what does something for it.
    pub fn of(warp: &'a Warp, part: Part, writes: bool) -> Self {
        let (agent, time) = warp.standing.now(part);
        Touch { agent, time, step: warp.at, writes, is_strong: false, knowledge: &warp.standing.knowledge }
    }
}

/// What was done to the shared memory of a block.
#[derive(Default)]
pub struct Accesses {
    cells: Vec<Vec<Access>>,
    /// The warps among which agents are numbered.
    warps: usize,
}

impl Accesses {
    /// Nothing, for so many bytes.
    pub fn begin(&mut self, bytes: usize, warps: usize) {
        self.cells.iter_mut().for_each(Vec::clear);
        self.cells.resize(bytes.div_ceil(CELL), Vec::new());
        self.warps = warps;
    }

    /// Does something to so many bytes from an offset on. What it is not ordered behind comes back: its agent and its step.
    pub fn touch(&mut self, at: usize, bytes: usize, touch: &Touch<'_>) -> Result<(), (Agent, usize)> {
        let mut from = at;
        while from < at + bytes {
            let end = (at + bytes).min((from / CELL + 1) * CELL);
            let mask = (((1u32 << (end - from)) - 1) << (from % CELL)) as u16;
            self.touch_cell(from / CELL, mask, touch)?;
            from = end;
        }
        Ok(())
    }

    fn touch_cell(&mut self, cell: usize, mask: u16, touch: &Touch<'_>) -> Result<(), (Agent, usize)> {
        let (warps, mut is_there) = (self.warps, false);
        let sees_fenced = !is_thread(touch.agent, warps);
        for access in &mut self.cells[cell] {
            let is_allowed = touch.is_strong && access.is_strong || !touch.writes && !access.writes;
            if access.bytes & mask != 0 && !is_allowed {
                let is_fenced = sees_fenced && access.writes && is_thread(access.agent, warps);
                let Touch { knowledge, .. } = touch;
                let is_known = match is_fenced {
                    true => knowledge.fenced.knows(access.agent, access.time),
                    false => knowledge.knows(access.agent, access.time, !access.writes),
                };
                if !is_known {
                    return Err((access.agent, access.step as usize));
                }
            }
            let is_same = access.agent == touch.agent
                && access.writes == touch.writes
                && access.is_strong == touch.is_strong;
            if is_same && access.time == touch.time {
                access.bytes |= mask;
                is_there = true;
            } else if touch.writes || is_same {
                // Whoever is ordered behind this is behind that, too.
                access.bytes &= !mask;
            }
        }
        if !is_there {
            let cell = &mut self.cells[cell];
            cell.retain(|access| access.bytes != 0);
            let Touch { agent, time, step, writes, is_strong, .. } = *touch;
            cell.push(Access { agent, bytes: mask, writes, is_strong, time, step: step as u32 });
        }
        Ok(())
    }
}

impl Blocks<'_> {
    /// Something is done to bytes at a place in shared memory of a block or its cluster.
    pub fn touch_shared(&mut self, place: u64, bytes: usize, touch: &Touch<'_>) -> Outcome<()> {
        let Some(owner) = self.owner_of(place) else { return Ok(()) };
        let block = &mut self.blocks[owner];
        let offset = (place - block.shared.address()) as usize;
        let outcome = block.accesses.touch(offset, bytes, touch);
        outcome.map_err(|before| {
            self.race(&format!("{bytes} bytes at {offset} of shared memory"), touch, before)
        })
    }

    /// Something is done to global memory by one of the blocks that run together.
    pub fn touch_together(&mut self, place: u64, bytes: usize, touch: &Touch<'_>) -> Outcome<()> {
        if !self.launch.together {
            return Ok(());
        }
        let warps = self.warps();
        let (mut at, end) = (place, place + bytes as u64);
        while at < end {
            let behind = end.min((at / PAGE + 1) * PAGE);
            let page = self.pages.entry(at / PAGE).or_insert_with(|| {
                let mut page = Accesses::default();
                page.begin(PAGE as usize, warps);
                page
            });
            let outcome = page.touch((at % PAGE) as usize, (behind - at) as usize, touch);
            let what = || format!("{bytes} bytes at {place:#x} of global memory");
            outcome.map_err(|before| self.race(&what(), touch, before))?;
            at = behind;
        }
        Ok(())
    }

    fn race(&self, what: &str, touch: &Touch<'_>, (agent, step): (Agent, usize)) -> String {
        let program = self.launch.program;
        let (line, statement) = &program.statements[program.steps[step].statement];
        let (now, before) = (self.agent_name(touch.agent), self.agent_name(agent));
        let does = if touch.writes { "writes" } else { "reads" };
        format!(
            "{now} {does} {what}, and nothing orders that behind what {before} did there in line {line}, `{statement}`"
        )
    }

    /// Where the shared memory of a block is.
    pub fn shared_span(&self, block: usize) -> Range<u64> {
        let Block { shared, shared_end, .. } = &self.blocks[block];
        shared.address() + SHARED_BASE as u64..shared.address() + *shared_end as u64
    }

    /// The block whose shared memory holds a place.
    fn owner_of(&mut self, place: u64) -> Option<usize> {
        let holds = |block: usize| self.shared_span(block).contains(&place);
        if !holds(self.last_owner) {
            self.last_owner = (0..self.blocks.len()).find(|&block| holds(block))?;
        }
        Some(self.last_owner)
    }

    fn agent_name(&self, agent: Agent) -> String {
        const NAMES: [&str; 4] = ["", "'s copies", "'s stores by the copy engine", "'s products"];
        let warps_of_block = self.launch.threads.div_ceil(LANES);
        match (usize::from(agent) - 1) / NAMES.len() {
            warp if warp < self.warps() => {
                let part = NAMES[(usize::from(agent) - 1) % NAMES.len()];
                format!(
                    "warp {} of block {} of those that run{part}",
                    warp % warps_of_block,
                    warp / warps_of_block
                )
            }
            _ => "the copy engine".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::order::Standing;

    const WARPS: usize = 2;

    fn touch<'a>(of: &'a Standing, part: Part, writes: bool) -> Touch<'a> {
        let (agent, time) = of.now(part);
        Touch { agent, time, step: 7, writes, is_strong: false, knowledge: &of.knowledge }
    }

    fn memory() -> (Accesses, Standing, Standing) {
        let mut memory = Accesses::default();
        memory.begin(256, WARPS);
        (memory, Standing::new(0), Standing::new(1))
    }

    #[test]
    fn a_read_must_be_behind_the_write() {
        let (mut memory, mut writer, mut reader) = memory();
        memory.touch(12, 8, &touch(&writer, Part::Itself, true)).unwrap();
        memory.touch(12, 8, &touch(&writer, Part::Itself, false)).expect("its own");
        memory.touch(20, 4, &touch(&reader, Part::Itself, false)).expect("other bytes");
        assert!(memory.touch(16, 4, &touch(&reader, Part::Itself, false)).is_err());
        reader.knowledge.join(&writer.knowledge);
        writer.told();
        memory.touch(16, 4, &touch(&reader, Part::Itself, false)).expect("they have met");
        assert!(memory.touch(16, 4, &touch(&writer, Part::Itself, true)).is_err(), "it is still being read");
        memory.touch(16, 4, &touch(&writer, Part::Itself, false)).expect("both read");
        writer.knowledge.join(&reader.knowledge);
        memory.touch(16, 4, &touch(&writer, Part::Itself, true)).unwrap();
    }

    #[test]
    fn engines_see_what_threads_wrote_behind_a_fence() {
        let (mut memory, mut warp, _) = memory();
        memory.touch(0, 16, &touch(&warp, Part::Itself, true)).unwrap();
        assert!(memory.touch(0, 16, &touch(&warp, Part::Stores, false)).is_err());
        warp.knowledge.fence();
        memory.touch(0, 16, &touch(&warp, Part::Stores, false)).unwrap();
        assert!(memory.touch(0, 16, &touch(&warp, Part::Itself, true)).is_err(), "it is still being stored");
        warp.end_group(Part::Stores);
        warp.wait_for_groups(Part::Stores, 0);
        memory.touch(0, 16, &touch(&warp, Part::Itself, true)).unwrap();
    }
}
