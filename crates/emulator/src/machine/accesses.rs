//! Who touched shared memory last, and global memory where blocks run together, byte by byte: what nothing orders is an error that names both.

use std::ops::Range;

use super::{
    launch::{Block, Blocks},
    order::{Agent, Agents, Knowledge, Part},
    warp::Warp,
};
use crate::{lanes::LANES, program::SHARED_BASE};

type Outcome<T> = Result<T, String>;

/// Bytes that are remembered together.
const CELL: usize = 16;

/// Bytes of global memory whose accesses are kept together.
const PAGE: u64 = 1 << 12;

/// Something that was done to some bytes of a cell: nothing, where it has none.
#[derive(Clone, Copy, Debug, Default)]
struct Access {
    agent: Agent,
    /// Which bytes.
    bytes: u16,
    kind: Kind,
    time: u32,
    /// The step of the program.
    step: u32,
}

/// What was done: whether it writes, and whether others may be there, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Kind {
    writes: bool,
    is_strong: bool,
}

/// What was done to the bytes of a cell, most often by one.
#[derive(Clone, Debug, Default)]
struct Cell {
    first: Access,
    others: Vec<Access>,
}

/// So many are remembered beside the first. Of more readers some are forgotten.
const MOST_OTHERS: usize = 12;

impl Cell {
    fn put(&mut self, access: Access) {
        let places = std::iter::once(&mut self.first).chain(&mut self.others);
        if let Some(place) = places.into_iter().find(|place| place.bytes == 0) {
            *place = access;
        } else if self.others.len() < MOST_OTHERS {
            self.others.push(access);
        } else {
            let place = &mut self.others[usize::from(access.agent) % MOST_OTHERS];
            if !place.kind.writes {
                *place = access;
            }
        }
    }
}

/// Who does something to memory, and what is known then.
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

/// What was done to the shared memory of a block, or to a page of global memory.
#[derive(Default)]
pub struct Accesses {
    cells: Vec<Cell>,
    agents: Agents,
}

impl Accesses {
    /// Nothing, for so many bytes.
    pub fn begin(&mut self, bytes: usize, agents: Agents) {
        for cell in &mut self.cells {
            cell.first.bytes = 0;
            cell.others.clear();
        }
        self.cells.resize(bytes.div_ceil(CELL), Cell::default());
        self.agents = agents;
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
        let agents = self.agents;
        let Touch { agent, time, step, writes, is_strong, knowledge } = *touch;
        let kind = Kind { writes, is_strong };
        let sees_fenced = !agents.is_thread(agent);
        let mut is_there = false;
        let cell = &mut self.cells[cell];
        for access in std::iter::once(&mut cell.first).chain(&mut cell.others) {
            let is_allowed = is_strong && access.kind.is_strong || !writes && !access.kind.writes;
            if access.bytes & mask != 0 && !is_allowed {
                let is_fenced = sees_fenced && access.kind.writes && agents.is_thread(access.agent);
                let is_known = match is_fenced {
                    true => knowledge.fenced.knows(access.agent, access.time),
                    false => knowledge.knows(access.agent, access.time, !access.kind.writes),
                };
                if !is_known {
                    return Err((access.agent, access.step as usize));
                }
            }
            let is_same = access.agent == agent && access.kind == kind;
            if is_same && access.time == time && access.bytes != 0 {
                access.bytes |= mask;
                is_there = true;
            } else if writes || is_same {
                // Whoever is ordered behind this is behind that, too.
                access.bytes &= !mask;
            }
        }
        if !is_there {
            cell.put(Access { agent, bytes: mask, kind, time, step: step as u32 });
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
        let agents = self.agents();
        let (mut at, end) = (place, place + bytes as u64);
        while at < end {
            let behind = end.min((at / PAGE + 1) * PAGE);
            let page = self.pages.get(at / PAGE, || {
                let mut page = Accesses::default();
                page.begin(PAGE as usize, agents);
                page
            });
            let outcome = page.touch((at % PAGE) as usize, (behind - at) as usize, touch);
            let what = || format!("{bytes} bytes at {place:#x} of global memory");
            outcome.map_err(|before| self.race(&what(), touch, before))?;
            at = behind;
        }
        Ok(())
    }

    /// Somebody reads what lanes of the same warp wrote.
    pub fn not_met(&self, who: &str, step: usize) -> String {
        let program = self.launch.program;
        let (line, statement) = &program.statements[program.steps[step].statement];
        format!(
            "{who} reads what another lane of the warp wrote to shared memory in line {line}, `{statement}`, and they have not met since"
        )
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
        let Some((warp, part)) = self.agents().warp_of(agent) else { return "the copy engine".into() };
        let part = match part {
            Part::Itself => "",
            Part::Copies => "'s copies",
            Part::Stores => "'s stores by the copy engine",
            Part::Products => "'s products",
        };
        let warps = self.launch.threads.div_ceil(LANES);
        format!("warp {} of block {} of those that run{part}", warp % warps, warp / warps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::order::Standing;

    const TWO: Agents = Agents { warps: 2, blocks: 1 };

    fn touch<'a>(of: &'a Standing, part: Part, writes: bool) -> Touch<'a> {
        let (agent, time) = of.now(part);
        Touch { agent, time, step: 7, writes, is_strong: false, knowledge: &of.knowledge }
    }

    fn memory() -> (Accesses, Standing, Standing) {
        let mut memory = Accesses::default();
        memory.begin(256, TWO);
        (memory, Standing::new(TWO, 0), Standing::new(TWO, 1))
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
