//! A launch: which blocks run when, and what their warps share.

use super::{
    arrivals::Arrivals,
    copies::{Arrival, Stored},
    execute::Stop,
    memory::{Region, Span, Table, raw},
    warp::{State, Warp},
};
use crate::{
    error::{Error, Result},
    lanes::{ALL, LANES},
    program::{Code, Count, Meeting, Program, SHARED_BASE, Slot},
};

/// When the copy engine does what it was asked for. Programs must be right with either.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Timing {
    /// At once: what overwrites something that is still being read shows.
    #[default]
    Early,
    /// When somebody waits for it: what is read too early shows.
    Late,
}

/// What is launched, and how.
pub struct Launch<'a> {
    /// The kernel.
    pub program: &'a Program,
    /// Blocks along three directions.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub threads: usize,
    /// Blocks of a cluster, along the first direction.
    pub cluster: usize,
    /// Shared memory besides the kernel's own.
    pub shared_bytes: usize,
    /// Whether all blocks run side by side.
    pub together: bool,
    /// The bytes of all parameters.
    pub parameters: &'a [u8],
    /// What memory exists.
    pub memory: &'a Table,
    /// When copies are done.
    pub timing: Timing,
}

/// Barriers of a block.
const BARRIERS: usize = 16;
/// The most threads of a block.
const MOST_THREADS: usize = 1024;
/// The most shared memory of a block.
pub const MOST_SHARED_BYTES: usize = 232_448;
/// Rounds without any progress after which nobody believes in one.
const PATIENCE: usize = 20_000;

/// A block that runs.
pub struct Block {
    shared: Region,
    shared_end: usize,
    /// Its place in the grid.
    pub place: [u32; 3],
    /// Its number in its cluster, whose blocks follow each other.
    pub rank: usize,
    number: usize,
    live_warps: usize,
    barriers: [Barrier; BARRIERS],
}

/// A barrier of a block.
#[derive(Clone, Debug, Default)]
struct Barrier {
    arrived: usize,
    /// How many threads meet, where that was said.
    threads: Option<u32>,
    waiting: Vec<Waiting>,
    population: u32,
    is_any: bool,
    is_missing: bool,
}

/// A warp that waits at one, and what it wants to know.
#[derive(Clone, Debug)]
struct Waiting {
    warp: usize,
    count: Option<(Count, Slot)>,
    lanes: u32,
}

/// The barrier of a cluster.
#[derive(Clone, Copy, Debug, Default)]
struct Cluster {
    arrived: usize,
    met: u64,
}

/// The blocks that run side by side, and what they have in common.
pub struct Blocks<'a> {
    pub launch: &'a Launch<'a>,
    parameters: Region,
    blocks: Vec<Block>,
    clusters: Vec<Cluster>,
    /// Steps so far, which is the machine's clock.
    pub steps: u64,
    /// Where global memory was touched last.
    last: Span,
    pub arrivals: Vec<Arrival>,
    pub stores: Vec<Stored>,
}

/// Runs a launch and says how many steps it took.
pub fn run(launch: &Launch<'_>) -> Result<u64> {
    check(launch)?;
    let parameters = Region::new(launch.parameters.len());
    for (index, &byte) in launch.parameters.iter().enumerate() {
        raw::write(parameters.address() + index as u64, 1, byte.into());
    }
    let mut blocks = Blocks {
        launch,
        parameters,
        blocks: Vec::new(),
        clusters: Vec::new(),
        steps: 0,
        last: (1, 0),
        arrivals: Vec::new(),
        stores: Vec::new(),
    };
    let count: usize = launch.grid.iter().map(|&size| size as usize).product();
    let at_once = if launch.together { count } else { launch.cluster };
    let mut first = 0;
    while first < count {
        blocks.begin(first, at_once);
        blocks.run()?;
        first += at_once;
    }
    Ok(blocks.steps)
}

fn check(launch: &Launch<'_>) -> Result<()> {
    let Program { name, most_threads, shared, cluster, .. } = launch.program;
    let refuse = |detail: String| Err(Error::Launch { kernel: name.clone(), detail });
    let most = most_threads.map_or(MOST_THREADS, |most| most as usize);
    if launch.threads == 0 || launch.threads > most {
        return refuse(format!("{} threads of at most {most}", launch.threads));
    }
    let bytes = shared.dynamic_at - SHARED_BASE + launch.shared_bytes;
    if bytes > MOST_SHARED_BYTES {
        return refuse(format!("{bytes} bytes of shared memory"));
    }
    if launch.cluster == 0 || !(launch.grid[0] as usize).is_multiple_of(launch.cluster) {
        return refuse(format!("{} blocks in clusters of {}", launch.grid[0], launch.cluster));
    }
    if cluster.is_some_and(|cluster| cluster as usize != launch.cluster) {
        return refuse(format!("clusters of {} where the kernel has {cluster:?}", launch.cluster));
    }
    if launch.parameters.len() != launch.program.parameter_bytes() {
        return refuse(format!("{} bytes of parameters", launch.parameters.len()));
    }
    Ok(())
}

impl Blocks<'_> {
    /// Makes room for blocks from one on.
    fn begin(&mut self, first: usize, count: usize) {
        let launch = self.launch;
        let shared_end = launch.program.shared.dynamic_at + launch.shared_bytes;
        let live_warps = launch.threads.div_ceil(LANES);
        let mut regions: Vec<Region> = self.blocks.drain(..).map(|block| block.shared).collect();
        for number in first..first + count {
            let shared = match regions.pop() {
                Some(region) => {
                    region.poison();
                    region
                }
                None => Region::new(shared_end),
            };
            let [x, y] = [launch.grid[0] as usize, launch.grid[1] as usize];
            let place = [number % x, number / x % y, number / x / y].map(|place| place as u32);
            let barriers = std::array::from_fn(|_| Barrier::default());
            let rank = number % launch.cluster;
            self.blocks.push(Block { shared, shared_end, place, rank, number, live_warps, barriers });
        }
        self.clusters = vec![Cluster::default(); count / launch.cluster];
    }

    /// Runs the blocks to their end.
    fn run(&mut self) -> Result<()> {
        let launch = self.launch;
        let warps_of_block = launch.threads.div_ceil(LANES);
        let mut warps: Vec<Warp> = (0..self.blocks.len() * warps_of_block)
            .map(|index| {
                let (block, number) = (index / warps_of_block, index % warps_of_block);
                Warp::new(launch.program, block, number, launch.threads)
            })
            .collect();
        let mut live = warps.len();
        let mut idle = 0;
        while live > 0 {
            let (mut has_run, mut has_progress) = (false, false);
            for turn in 0..warps.len() {
                let index = match launch.timing {
                    Timing::Early => turn,
                    Timing::Late => warps.len() - 1 - turn,
                };
                if warps[index].state != State::Ready {
                    continue;
                }
                has_run = true;
                let warp = &mut warps[index];
                let stop = warp.run(self).map_err(|(at, detail)| self.fault(&warps[index], at, detail))?;
                has_progress |= stop != Stop::Waits;
                match stop {
                    Stop::Turn | Stop::Waits => (),
                    Stop::Meets(at, lanes) => self.meet(&mut warps, index, at, lanes)?,
                    Stop::MeetsCluster => warps[index].state = State::MeetsCluster,
                    Stop::Ended => {
                        live -= 1;
                        self.end_warp(&mut warps, index)?;
                    }
                }
            }
            self.wake_clusters(&mut warps);
            idle = if has_progress { 0 } else { idle + 1 };
            let waits_in_vain = !has_run && !warps.iter().any(|warp| warp.state == State::Ready);
            if live > 0 && (waits_in_vain || idle > PATIENCE) {
                let is_stuck = |warp: &&Warp| warp.state != State::Ended;
                let Some(warp) = warps.iter().find(is_stuck) else { break };
                let at = warp.fragments.first().map_or(0, |fragment| fragment.at.saturating_sub(1));
                return Err(self.fault(warp, at, "all warps wait for each other".into()));
            }
        }
        if let Some(arrival) = self.arrivals.first() {
            let detail =
                format!("{} bytes were still on their way into a block that has ended", arrival.bytes());
            return Err(Error::Launch { kernel: launch.program.name.clone(), detail });
        }
        self.finish_all_stores()
            .map_err(|detail| Error::Launch { kernel: launch.program.name.clone(), detail })
    }

    fn fault(&self, warp: &Warp, at: usize, detail: String) -> Error {
        let program = self.launch.program;
        let (line, statement) = program.statements[program.steps[at].statement].clone();
        Error::Fault {
            kernel: program.name.clone(),
            detail,
            line,
            statement,
            block: self.blocks[warp.block].number,
            thread: warp.number * LANES,
        }
    }

    /// A warp has come to a barrier of its block.
    fn meet(&mut self, warps: &mut [Warp], index: usize, at: usize, lanes: u32) -> Result<()> {
        let Code::Meet(meeting) = &self.launch.program.steps[at].code else {
            unreachable!("only meetings stop a warp so");
        };
        let outcome = self.arrive(warps, index, meeting, lanes);
        outcome.map_err(|detail| self.fault(&warps[index], at, detail))
    }

    fn arrive(
        &mut self,
        warps: &mut [Warp],
        index: usize,
        meeting: &Meeting,
        lanes: u32,
    ) -> std::result::Result<(), String> {
        let program = self.launch.program;
        let warp = &warps[index];
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

    fn meet_if_all_are_there(
        &mut self,
        warps: &mut [Warp],
        block: usize,
        number: usize,
    ) -> std::result::Result<(), String> {
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
    fn end_warp(&mut self, warps: &mut [Warp], index: usize) -> Result<()> {
        let at = self.launch.program.steps.len() - 1;
        if !warps[index].copies.is_empty() {
            let detail = "copies were still on their way when their warp ended".into();
            return Err(self.fault(&warps[index], at, detail));
        }
        let block = warps[index].block;
        self.blocks[block].live_warps -= 1;
        for number in 0..BARRIERS {
            if self.blocks[block].barriers[number].threads.is_none() {
                let outcome = self.meet_if_all_are_there(warps, block, number);
                outcome.map_err(|detail| self.fault(&warps[index], at, detail))?;
            }
        }
        self.meet_cluster(block);
        Ok(())
    }

    // ---- The cluster ----

    pub fn arrive_at_cluster(&mut self, block: usize) {
        self.clusters[block / self.launch.cluster].arrived += 1;
        self.meet_cluster(block);
    }

    fn meet_cluster(&mut self, block: usize) {
        let size = self.launch.cluster;
        let first = block / size * size;
        let live: usize = self.blocks[first..first + size].iter().map(|block| block.live_warps).sum();
        let cluster = &mut self.clusters[block / size];
        if cluster.arrived > 0 && cluster.arrived >= live {
            *cluster = Cluster { arrived: 0, met: cluster.met + 1 };
        }
    }

    /// Whether the cluster of a block has met so often.
    pub fn cluster_has_met(&self, block: usize, times: u64) -> bool {
        self.clusters[block / self.launch.cluster].met >= times
    }

    fn wake_clusters(&mut self, warps: &mut [Warp]) {
        for warp in warps.iter_mut().filter(|warp| warp.state == State::MeetsCluster) {
            if self.cluster_has_met(warp.block, warp.cluster_arrivals) {
                warp.state = State::Ready;
            }
        }
    }

    // ---- Places ----

    pub fn block(&self, block: usize) -> &Block {
        &self.blocks[block]
    }

    /// Where a block's shared memory begins, for addresses of 64 bits.
    pub fn shared_start(&self, block: usize) -> u64 {
        self.blocks[block].shared.address()
    }

    /// Where a parameter's bytes are.
    pub fn parameter(&self, offset: usize, bytes: usize) -> std::result::Result<u64, String> {
        if offset + bytes > self.launch.parameters.len() {
            return Err(format!("byte {offset} of the parameters, which are fewer"));
        }
        Ok(self.parameters.address() + offset as u64)
    }

    /// Where so many bytes are at an address of shared memory: the block's own, or behind a block's number that of its cluster.
    #[inline]
    pub fn shared(&self, block: usize, address: u32, bytes: usize) -> std::result::Result<u64, String> {
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

    /// The same in global memory, where parameters and the block's shared memory can be named, too.
    #[inline]
    pub fn global(&mut self, block: usize, address: u64, bytes: usize) -> std::result::Result<u64, String> {
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

    // ---- Barriers in shared memory ----

    pub fn begin_barrier(
        &mut self,
        block: usize,
        address: u32,
        count: u32,
    ) -> std::result::Result<(), String> {
        let place = self.barrier_place(block, address)?;
        raw::write(place, 8, Arrivals::new(count)?.bits());
        Ok(())
    }

    pub fn change_barrier(
        &mut self,
        block: usize,
        address: u32,
        change: impl FnOnce(&mut Arrivals) -> std::result::Result<(), String>,
    ) -> std::result::Result<(), String> {
        let place = self.barrier_place(block, address)?;
        change_at(place, change)
    }

    /// Whether a phase has passed. What copies were to bring by then has come.
    pub fn has_passed(
        &mut self,
        block: usize,
        address: u32,
        parity: u32,
    ) -> std::result::Result<bool, String> {
        let place = self.barrier_place(block, address)?;
        let passed = || Arrivals::from_bits(raw::read(place, 8)).map(|barrier| barrier.has_passed(parity));
        if passed()? {
            return Ok(true);
        }
        let (mine, others) = self.arrivals.drain(..).partition(|arrival| arrival.barrier() == place);
        self.arrivals = others;
        let mine: Vec<Arrival> = mine;
        for arrival in mine {
            arrival.happen(self)?;
        }
        passed()
    }

    pub fn barrier_place(&self, block: usize, address: u32) -> std::result::Result<u64, String> {
        let place = self.shared(block, address, 8)?;
        if place % 8 != 0 {
            return Err(format!("a barrier at {address:#x}, no multiple of 8"));
        }
        Ok(place)
    }
}

/// Changes the barrier that lies at a place.
pub fn change_at(
    place: u64,
    change: impl FnOnce(&mut Arrivals) -> std::result::Result<(), String>,
) -> std::result::Result<(), String> {
    let mut barrier = Arrivals::from_bits(raw::read(place, 8))?;
    change(&mut barrier)?;
    raw::write(place, 8, barrier.bits());
    Ok(())
}
