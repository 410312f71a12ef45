//! What surely happens before what: the order that barriers make, whatever turns warps take.
//!
//! Everybody who touches memory is an agent with a time of its own: a warp, what does copies, stores and products for it while it goes on, and
//! what brings bytes that a barrier counts. A warp knows of every agent until when all that it did has happened. Who meets
//! shares that, and who touches memory must know of all that was done there before, unless both only read.

use crate::lanes::has_wide_vectors;

/// Somebody who touches memory.
pub type Agent = u16;

/// The kernel before, whose only time is its end.
pub const KERNEL_BEFORE: Agent = 0;
/// The end of the kernel before.
pub const ENDED: u32 = 1;

/// What a warp does by itself, and what is done for it meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// What its own instructions do.
    Itself,
    /// Copies into shared memory, which it waits for by groups.
    Copies,
    /// What the copy engine reads of shared memory for it.
    Stores,
    /// What the matrix units read of shared memory for it.
    Products,
}

/// The agents of a warp.
const PARTS: usize = 4;
/// Barriers of a block to which bytes come.
pub const MOST_BRINGERS: usize = 32;

/// Who is who among the agents of blocks that share memory: warps first, then those that bring bytes, then what is done for warps, since
/// clocks are as long as the last that did anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Agents {
    /// Warps of all these blocks.
    pub warps: usize,
    pub blocks: usize,
}

impl Agents {
    /// A part of a warp.
    pub fn part(self, warp: usize, part: Part) -> Agent {
        let before = match part {
            Part::Itself => 0,
            part => self.bringers_end() + (part as usize - 1) * self.warps,
        };
        (1 + before + warp) as Agent
    }

    /// Who brings bytes to the barrier of a number.
    pub fn bringer(self, number: usize) -> Agent {
        (1 + self.warps + number) as Agent
    }

    fn bringers_end(self) -> usize {
        self.warps + MOST_BRINGERS * self.blocks
    }

    /// The warp that an agent is of, and its part; nothing for the others.
    pub fn warp_of(self, agent: Agent) -> Option<(usize, Part)> {
        let number = usize::from(agent).checked_sub(1)?;
        if number < self.warps {
            return Some((number, Part::Itself));
        }
        let behind = number.checked_sub(self.bringers_end())?;
        let part = [Part::Copies, Part::Stores, Part::Products].get(behind / self.warps)?;
        Some((behind % self.warps, *part))
    }

    /// Whether an agent writes as threads do: copy engine and matrix units see that behind a fence.
    pub fn is_thread(self, agent: Agent) -> bool {
        matches!(self.warp_of(agent), Some((_, Part::Itself | Part::Copies)))
    }
}

/// Of every agent the time until which all that it did has happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Clock(Vec<u32>);

impl Clock {
    pub fn knows(&self, agent: Agent, time: u32) -> bool {
        self.0.get(usize::from(agent)).is_some_and(|&known| time <= known)
    }

    pub fn learn(&mut self, agent: Agent, time: u32) {
        let index = usize::from(agent);
        if self.0.len() <= index {
            self.0.resize(index + 1, 0);
        }
        self.0[index] = self.0[index].max(time);
    }

    pub fn join(&mut self, other: &Clock) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        take_greatest(&mut self.0, &other.0);
    }
}

/// Of each pair of numbers the greater.
fn take_greatest(mine: &mut [u32], theirs: &[u32]) {
    #[inline(always)]
    fn all(mine: &mut [u32], theirs: &[u32]) {
        for (mine, &theirs) in mine.iter_mut().zip(theirs) {
            *mine = (*mine).max(theirs);
        }
    }
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2")]
        fn wide(mine: &mut [u32], theirs: &[u32]) {
            all(mine, theirs);
        }
        if has_wide_vectors() {
            #[expect(unsafe_code, reason = "a function that not every processor can run")]
            // SAFETY: the processor was asked.
            return unsafe { wide(mine, theirs) };
        }
    }
    all(mine, theirs);
}

/// What somebody knows: what has happened, and which of the writes of threads copy engine and matrix units see as well.
#[derive(Clone, Debug, Default)]
pub struct Knowledge {
    pub happened: Clock,
    pub fenced: Clock,
    /// Until when reads have come to their end, which goes round by relaxed accesses, too: a thread has what it read before it tells
    /// what it made of it.
    pub read: Clock,
}

impl Knowledge {
    pub fn join(&mut self, other: &Knowledge) {
        self.happened.join(&other.happened);
        self.fenced.join(&other.fenced);
        self.read.join(&other.read);
    }

    /// Whether what an agent did until a time has come to its end, of which reads need not be seen.
    pub fn knows(&self, agent: Agent, time: u32, is_read: bool) -> bool {
        self.happened.knows(agent, time) || is_read && self.read.knows(agent, time)
    }

    /// From now on copy engine and matrix units see all that has happened.
    pub fn fence(&mut self) {
        self.fenced.join(&self.happened);
    }

    pub fn knows_end_of_kernel_before(&self) -> bool {
        self.happened.knows(KERNEL_BEFORE, ENDED)
    }
}

/// What those know who meet: those of the phase that goes on, and all of the phases that have passed.
#[derive(Clone, Debug, Default)]
pub struct Meeting {
    arriving: Knowledge,
    pub met: Knowledge,
    /// Who brings bytes here, and how often that was asked for.
    pub bringer: Option<(Agent, u32)>,
}

impl Meeting {
    pub fn arrive(&mut self, knowledge: &Knowledge) {
        self.arriving.join(knowledge);
    }

    /// Bytes come to the phase that goes on.
    pub fn bring(&mut self, agent: Agent, time: u32) {
        self.arriving.happened.learn(agent, time);
    }

    pub fn pass(&mut self) {
        let arrived = std::mem::take(&mut self.arriving);
        self.met.join(&arrived);
    }
}

/// The times of a warp's parts, and what it knows.
#[derive(Clone, Debug)]
pub struct Standing {
    agents: Agents,
    /// The warp's number among those that share memory.
    warp: usize,
    times: [u32; PARTS],
    pub knowledge: Knowledge,
    /// What was known at the last fence, and what relaxed reads have found since.
    published: Knowledge,
    found: Knowledge,
}

impl Standing {
    pub fn new(agents: Agents, warp: usize) -> Self {
        let nothing = Knowledge::default;
        let mut standing = Standing {
            agents,
            warp,
            times: [1; PARTS],
            knowledge: nothing(),
            published: nothing(),
            found: nothing(),
        };
        standing.knowledge.happened.learn(agents.part(warp, Part::Itself), 1);
        standing
    }

    /// Who does something now, and when.
    pub fn now(&self, part: Part) -> (Agent, u32) {
        (self.agents.part(self.warp, part), self.times[part as usize])
    }

    /// What the warp does from now on is not what others have learnt.
    pub fn told(&mut self) {
        self.times[Part::Itself as usize] += 1;
        let (agent, time) = self.now(Part::Itself);
        self.knowledge.happened.learn(agent, time);
    }

    /// Tells what others find at a place: all, or what was known at the last fence.
    pub fn tell(&mut self, meeting: &mut Meeting, is_ordered: bool) {
        meeting.arrive(if is_ordered { &self.knowledge } else { &self.published });
        meeting.arriving.read.join(&self.knowledge.happened);
        meeting.arriving.read.join(&self.knowledge.read);
        meeting.pass();
        self.told();
    }

    /// Finds what others told at a place, to know it now or from the next fence on.
    pub fn find(&mut self, meeting: &Meeting, is_ordered: bool) {
        if is_ordered { &mut self.knowledge } else { &mut self.found }.join(&meeting.met);
        self.knowledge.read.join(&meeting.met.read);
    }

    pub fn fence_threads(&mut self) {
        self.knowledge.join(&self.found);
        self.published = self.knowledge.clone();
        self.told();
    }

    /// A group of what is done for the warp ends.
    pub fn end_group(&mut self, part: Part) {
        self.times[part as usize] += 1;
    }

    /// All groups but so many have been waited for.
    pub fn wait_for_groups(&mut self, part: Part, left: usize) {
        let done = (self.times[part as usize] as usize).saturating_sub(1 + left);
        self.knowledge.happened.learn(self.agents.part(self.warp, part), done as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: Agents = Agents { warps: 2, blocks: 1 };

    #[test]
    fn who_meets_knows_what_others_did_before_and_not_what_they_do_behind() {
        let (mut first, mut second) = (Standing::new(TWO, 0), Standing::new(TWO, 1));
        let before = first.now(Part::Itself);
        let mut meeting = Meeting::default();
        meeting.arrive(&first.knowledge);
        first.told();
        let behind = first.now(Part::Itself);
        second.knowledge.join(&meeting.met);
        assert!(!second.knowledge.happened.knows(before.0, before.1), "the phase goes on");
        meeting.pass();
        second.knowledge.join(&meeting.met);
        assert!(second.knowledge.happened.knows(before.0, before.1));
        assert!(!second.knowledge.happened.knows(behind.0, behind.1));
        assert!(first.knowledge.happened.knows(behind.0, behind.1), "what it does itself");
    }

    #[test]
    fn groups_are_done_when_they_were_waited_for() {
        let mut warp = Standing::new(TWO, 1);
        let first = warp.now(Part::Stores);
        warp.end_group(Part::Stores);
        let second = warp.now(Part::Stores);
        warp.end_group(Part::Stores);
        warp.wait_for_groups(Part::Stores, 1);
        assert!(warp.knowledge.happened.knows(first.0, first.1));
        assert!(!warp.knowledge.happened.knows(second.0, second.1));
        warp.wait_for_groups(Part::Stores, 0);
        assert!(warp.knowledge.happened.knows(second.0, second.1));
    }

    #[test]
    fn writes_of_threads_are_told_from_those_of_engines() {
        for (part, is) in
            [(Part::Itself, true), (Part::Copies, true), (Part::Stores, false), (Part::Products, false)]
        {
            let agent = TWO.part(1, part);
            assert_eq!(TWO.warp_of(agent), Some((1, part)));
            assert_eq!(TWO.is_thread(agent), is);
        }
        for other in [TWO.bringer(0), TWO.bringer(MOST_BRINGERS - 1), KERNEL_BEFORE] {
            assert_eq!(TWO.warp_of(other), None);
            assert!(!TWO.is_thread(other));
        }
    }
}
