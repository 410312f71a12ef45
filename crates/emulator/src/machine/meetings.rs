//! Where warps meet: barriers of a block, of a cluster, and those that lie in shared memory.

use super::{
    accesses::Touch,
    arrivals::Arrivals,
    copies::Arrival,
    launch::Blocks,
    memory::raw,
    order::{Agent, Knowledge, MOST_BRINGERS, Meeting as Learnt, Part},
    warp::{State, Warp},
};
use crate::{
    error::Result,
    lanes::{ALL, LANES},
    program::{Code, Count, Meeting, Slot},
};

type Outcome<T> = std::result::Result<T, String>;

/// Barriers of a block.
pub const BARRIERS: usize = 16;

/// A barrier of a block.
#[derive(Clone, Debug, Default)]
pub struct Barrier {
    arrived: usize,
    /// How many threads meet, where that was said.
    threads: Option<u32>,
    waiting: Vec<Waiting>,
    population: u32,
    is_any: bool,
    is_missing: bool,
    /// What those know who have arrived.
    knowledge: Knowledge,
}

/// A warp that waits at one, and what it wants to know.
#[derive(Clone, Debug)]
struct Waiting {
    warp: usize,
    count: Option<(Count, Slot)>,
    lanes: u32,
}

/// The barrier of a cluster.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    arrived: usize,
    met: u64,
    learnt: Learnt,
}

impl Blocks<'_> {
    /// A warp has come to a barrier of its block.
    pub fn meet(&mut self, warps: &mut [Warp], index: usize, at: usize, lanes: u32) -> Result<()> {
        let Code::Meet(meeting) = &self.launch.program.steps[at].code else {
            unreachable!("only meetings stop a warp so");
        };
        let outcome = self.arrive(warps, index, meeting, lanes);
        outcome.map_err(|detail| self.fault(&warps[index], at, detail))
    }

    fn arrive(&mut self, warps: &mut [Warp], index: usize, meeting: &Meeting, lanes: u32) -> Outcome<()> {
        let program = self.launch.program;
        let warp = &mut warps[index];
        let number = warp.uniform(program, meeting.barrier, lanes)? as usize;
        let threads = meeting.threads.map(|slot| warp.uniform(program, slot, lanes)).transpose()?;
        if number >= BARRIERS || threads.is_some_and(|threads| threads == 0 || threads % LANES as u32 != 0) {
            return Err(format!("barrier {number} for {threads:?} threads"));
        }
        let barrier = &mut self.blocks[warp.block].barriers[number];
        if barrier.arrived == 0 {
            *barrier = Barrier { threads, ..Barrier::default() };
        } else if barrier.threads != threads {
            return Err(format!("barrier {number} is for {:?} threads and for {threads:?}", barrier.threads));
        }
        barrier.arrived += LANES;
        barrier.knowledge.join(&warp.standing.knowledge);
        warp.standing.told();
        let mut wanted = None;
        if let Some((count, of, opposite, d)) = meeting.count {
            let predicate = warp.predicate(program, of);
            let holds = lanes & if opposite { !predicate } else { predicate };
            barrier.population += holds.count_ones();
            barrier.is_any |= holds != 0;
            barrier.is_missing |= holds != lanes;
            wanted = Some((count, d));
        }
        if !meeting.only_arrives {
            barrier.waiting.push(Waiting { warp: index, count: wanted, lanes });
            warps[index].state = State::Meets;
        }
        self.meet_if_all_are_there(warps, warps[index].block, number)
    }

    fn meet_if_all_are_there(&mut self, warps: &mut [Warp], block: usize, number: usize) -> Outcome<()> {
        let block = &mut self.blocks[block];
        let barrier = &mut block.barriers[number];
        let needed = barrier.threads.map_or(block.live_warps * LANES, |threads| threads as usize);
        if barrier.arrived == 0 || barrier.arrived < needed {
            return Ok(());
        }
        if barrier.arrived > needed {
            return Err(format!("{} threads at barrier {number} for {needed}", barrier.arrived));
        }
        let met = std::mem::take(barrier);
        for Waiting { warp, count, lanes } in met.waiting {
            let warp = &mut warps[warp];
            warp.state = State::Ready;
            warp.standing.knowledge.join(&met.knowledge);
            let all = |is: bool| if is { ALL } else { 0 };
            match count {
                None => (),
                Some((Count::Population, d)) => warp.put_word(d, &[met.population; LANES], lanes),
                Some((Count::Or, d)) => warp.put_predicate(d, all(met.is_any), lanes),
                Some((Count::And, d)) => warp.put_predicate(d, all(!met.is_missing), lanes),
            }
        }
        Ok(())
    }

    /// Others wait for one warp less.
    pub fn end_warp(&mut self, warps: &mut [Warp], index: usize) -> Result<()> {
        let at = self.launch.program.steps.len() - 1;
        if !warps[index].copies.is_empty() {
            let detail = "copies were still on their way when their warp ended".into();
            return Err(self.fault(&warps[index], at, detail));
        }
        let block = warps[index].block;
        let of_block = &mut self.blocks[block];
        of_block.has_waited |= warps[index].standing.knowledge.knows_end_of_kernel_before();
        of_block.live_warps -= 1;
        if of_block.live_warps == 0 {
            self.told.at_end |= of_block.has_waited;
            self.told.to_next |= of_block.told_next.unwrap_or(of_block.has_waited);
        }
        for number in 0..BARRIERS {
            if self.blocks[block].barriers[number].threads.is_none() {
                let outcome = self.meet_if_all_are_there(warps, block, number);
                outcome.map_err(|detail| self.fault(&warps[index], at, detail))?;
            }
        }
        self.meet_cluster(block);
        Ok(())
    }

    /// The next kernel may begin, as far as this block is concerned.
    pub fn let_next_begin(&mut self, warp: &Warp) {
        let has_waited = warp.standing.knowledge.knows_end_of_kernel_before();
        let told = &mut self.blocks[warp.block].told_next;
        *told = Some(told.unwrap_or(true) && has_waited);
    }

    // ---- The cluster ----

    pub fn arrive_at_cluster(&mut self, warp: &mut Warp) {
        let cluster = &mut self.clusters[warp.block / self.launch.cluster];
        cluster.arrived += 1;
        cluster.learnt.arrive(&warp.standing.knowledge);
        warp.standing.told();
        self.meet_cluster(warp.block);
    }

    fn meet_cluster(&mut self, block: usize) {
        let size = self.launch.cluster;
        let first = block / size * size;
        let live: usize = self.blocks[first..first + size].iter().map(|block| block.live_warps).sum();
        let cluster = &mut self.clusters[block / size];
        if cluster.arrived > 0 && cluster.arrived >= live {
            cluster.arrived = 0;
            cluster.met += 1;
            cluster.learnt.pass();
        }
    }

    /// Whether the warp's cluster has met as often as the warp has arrived, which then learns what the others knew.
    pub fn cluster_has_met(&self, warp: &mut Warp) -> bool {
        let cluster = &self.clusters[warp.block / self.launch.cluster];
        let has_met = cluster.met >= warp.cluster_arrivals;
        if has_met {
            warp.standing.knowledge.join(&cluster.learnt.met);
        }
        has_met
    }

    pub fn wake_clusters(&self, warps: &mut [Warp]) {
        for warp in warps.iter_mut().filter(|warp| warp.state == State::MeetsCluster) {
            if self.cluster_has_met(warp) {
                warp.state = State::Ready;
            }
        }
    }

    // ---- Barriers in shared memory ----

    pub fn begin_barrier(&mut self, block: usize, address: u32, count: u32) -> Outcome<()> {
        let place = self.barrier_place(block, address)?;
        raw::write(place, 8, Arrivals::new(count)?.bits());
        self.learnt.remove(&place);
        Ok(())
    }

    /// A warp's lane arrives and announces bytes.
    pub fn arrive_at_barrier(&mut self, warp: &Warp, address: u32, announced: u32) -> Outcome<()> {
        let place = self.barrier_place(warp.block, address)?;
        self.learnt.entry(place).or_default().arrive(&warp.standing.knowledge);
        self.change_barrier(place, |barrier| barrier.arrive(1, announced))
    }

    /// Changes the barrier at a place, of whose phase then others may learn that it has passed.
    pub fn change_barrier(
        &mut self,
        place: u64,
        change: impl FnOnce(&mut Arrivals) -> Outcome<()>,
    ) -> Outcome<()> {
        let before = Arrivals::from_bits(raw::read(place, 8))?;
        let mut barrier = before;
        change(&mut barrier)?;
        raw::write(place, 8, barrier.bits());
        if barrier.phase() != before.phase() {
            self.learnt.entry(place).or_default().pass();
        }
        Ok(())
    }

    /// Whether a phase has passed, of which the warp then learns. What copies were to bring by then has come.
    pub fn has_passed(&mut self, warp: &mut Warp, address: u32, parity: u32) -> Outcome<bool> {
        let place = self.barrier_place(warp.block, address)?;
        let passed = || Arrivals::from_bits(raw::read(place, 8)).map(|barrier| barrier.has_passed(parity));
        if !passed()? {
            let (mine, others) = self.arrivals.drain(..).partition(|arrival| arrival.barrier() == place);
            self.arrivals = others;
            let mine: Vec<Arrival> = mine;
            for arrival in mine {
                arrival.happen(self)?;
            }
        }
        let has_passed = passed()?;
        if let (true, Some(learnt)) = (has_passed, self.learnt.get(&place)) {
            warp.standing.knowledge.join(&learnt.met);
        }
        Ok(has_passed)
    }

    pub fn barrier_place(&self, block: usize, address: u32) -> Outcome<u64> {
        let place = self.shared(block, address, 8)?;
        if place % 8 != 0 {
            return Err(format!("a barrier at {address:#x}, no multiple of 8"));
        }
        Ok(place)
    }

    /// Bytes are on their way that a barrier counts: who brings them to this phase, and when.
    pub fn bring(&mut self, barrier: u64) -> Outcome<(Agent, u32)> {
        let agents = self.agents();
        let learnt = self.learnt.entry(barrier).or_default();
        let (agent, time) = match learnt.bringer {
            Some(known) => known,
            None if self.bringers == MOST_BRINGERS * agents.blocks => {
                return Err(format!("bytes come to more than {MOST_BRINGERS} barriers of a block"));
            }
            None => {
                self.bringers += 1;
                (agents.bringer(self.bringers - 1), 0)
            }
        };
        learnt.bringer = Some((agent, time + 1));
        learnt.bring(agent, time + 1);
        Ok((agent, time + 1))
    }

    /// Words of shared memory that are changed with nobody between: who changes them knows what those knew who did before, and tells it on.
    /// That holds for relaxed changes, too, since what a thread did with shared memory before has come to its end.
    pub fn change_in_turn(&mut self, warp: &mut Warp, places: &[u64], bytes: usize) -> Outcome<()> {
        for place in places {
            warp.standing.knowledge.join(&self.learnt.entry(*place).or_default().met);
        }
        for &place in places {
            self.touch_shared(place, bytes, &Touch::of(warp, Part::Itself, true))?;
            let learnt = self.learnt.entry(place).or_default();
            learnt.arrive(&warp.standing.knowledge);
            learnt.pass();
        }
        warp.standing.told();
        Ok(())
    }
}
