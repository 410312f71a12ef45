//! A launch: which blocks run when, and what their warps share.

use std::collections::HashMap;

use super::{
    accesses::Accesses,
    copies::{Arrival, Stored},
    execute::Stop,
    history::{History, Told},
    meetings::{BARRIERS, Barrier, Cluster},
    memory::{Region, Span, Table, raw},
    order::{Agents, Meeting, Standing},
    pages::Pages,
    warp::{State, Warp},
};
use crate::{
    error::{Error, Result},
    lanes::LANES,
    program::{Program, SHARED_BASE},
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

/// The most threads of a block.
const MOST_THREADS: usize = 1024;
/// The most shared memory of a block.
pub const MOST_SHARED_BYTES: usize = 232_448;
/// Rounds without any progress after which nobody believes in one.
const PATIENCE: usize = 20_000;

/// A block that runs.
pub struct Block {
    pub shared: Region,
    /// Where its shared memory ends.
    pub shared_end: usize,
    /// Who touched what of it.
    pub accesses: Accesses,
    /// Its place in the grid.
    pub place: [u32; 3],
    /// Its number in its cluster, whose blocks follow each other.
    pub rank: usize,
    /// Its number in the grid.
    pub number: usize,
    pub live_warps: usize,
    /// Whether it has touched global memory that other blocks touch meanwhile.
    pub meets_others: bool,
    /// Whether one of its warps has waited for the kernel before, and whether those that let the next begin had.
    pub has_waited: bool,
    pub told_next: Option<bool>,
    pub barriers: [Barrier; BARRIERS],
}

/// The blocks that run side by side, and what they have in common.
pub struct Blocks<'a> {
    pub launch: &'a Launch<'a>,
    pub parameters: Region,
    pub blocks: Vec<Block>,
    pub clusters: Vec<Cluster>,
    /// What those know who meet at places in memory.
    pub learnt: HashMap<u64, Meeting>,
    /// Barriers in shared memory that bring bytes.
    pub bringers: usize,
    /// Who touched what of global memory, where blocks run together.
    pub pages: Pages<Accesses>,
    /// Steps so far, which is the machine's clock.
    pub steps: u64,
    /// Where global memory was touched last.
    pub last: Span,
    /// Whose shared memory was touched last.
    pub last_owner: usize,
    /// What other launches did.
    pub history: Option<&'a mut History>,
    /// What this one tells of the one before.
    pub told: Told,
    pub arrivals: Vec<Arrival>,
    pub stores: Vec<Stored>,
}

/// Runs a launch and says what others may learn from it. What it does to global memory goes into the history of its graph.
pub fn run(launch: &Launch<'_>, history: Option<&mut History>) -> Result<Told> {
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
        learnt: HashMap::new(),
        bringers: 0,
        pages: Pages::default(),
        steps: 0,
        last: (1, 0),
        last_owner: 0,
        history,
        told: Told::default(),
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
    Ok(blocks.told)
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
        let agents = Agents { warps: live_warps * count, blocks: count };
        let mut before = std::mem::take(&mut self.blocks);
        for number in first..first + count {
            let (shared, mut accesses) = match before.pop() {
                Some(Block { shared, accesses, .. }) => {
                    shared.poison();
                    (shared, accesses)
                }
                None => (Region::new(shared_end), Accesses::default()),
            };
            accesses.begin(shared_end, agents);
            let [x, y] = [launch.grid[0] as usize, launch.grid[1] as usize];
            let place = [number % x, number / x % y, number / x / y].map(|place| place as u32);
            let barriers = std::array::from_fn(|_| Barrier::default());
            let rank = number % launch.cluster;
            self.blocks.push(Block {
                shared,
                shared_end,
                accesses,
                place,
                rank,
                number,
                live_warps,
                meets_others: false,
                has_waited: false,
                told_next: None,
                barriers,
            });
        }
        self.learnt.clear();
        self.bringers = 0;
        self.last_owner = 0;
        self.clusters = vec![Cluster::default(); count / launch.cluster];
    }

    /// Runs the blocks to their end.
    fn run(&mut self) -> Result<()> {
        let launch = self.launch;
        let (warps_of_block, agents) = (launch.threads.div_ceil(LANES), self.agents());
        let mut warps: Vec<Warp> = (0..self.blocks.len() * warps_of_block)
            .map(|index| {
                let (block, number) = (index / warps_of_block, index % warps_of_block);
                Warp::new(launch.program, block, number, (launch.threads, Standing::new(agents, index)))
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

    /// Who touches memory.
    pub fn agents(&self) -> Agents {
        let blocks = self.blocks.len();
        Agents { warps: blocks * self.launch.threads.div_ceil(LANES), blocks }
    }

    pub fn fault(&self, warp: &Warp, at: usize, detail: String) -> Error {
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
}
