//! A bound list of launches: how its calls are collected, what they need, and how many runs of it are on the way.

use std::{collections::VecDeque, sync::Arc};

use super::{
    DEVICE, attention,
    batch::{self, Between},
    branches::{Branches, Track},
    call::{Builder, Call},
    cudnn,
    driver::Driver,
    int8, linear,
    milestones::{Milestone, Patience},
    quantise, rows,
    staging::Staging,
    step,
};
use crate::{
    device::{BufferId, Launch},
    error::{Error, Result},
    tensor::DType,
};

/// A bound list of launches.
pub(super) struct Sequence {
    pub calls: Vec<Call>,
    /// For every call, where it runs.
    pub tracks: Vec<Track>,
    /// For every launch, the end of its calls.
    pub ends: Vec<usize>,
    pub buffers: Vec<BufferId>,
    pub written: Vec<BufferId>,
    pub derived: Derived,
    pub graph: usize,
    /// The same of [`REPEATS`] runs, or 0 until they are first wanted.
    pub many: usize,
    /// What launches work in, and hand to each other beside values.
    pub memory: Option<(u64, usize)>,
    pub constants: Option<(u64, usize)>,
    /// What halves of rows keep apart.
    pub branches: Option<(u64, usize)>,
    /// For the room that a run of it waits for.
    pub patience: Patience,
    pub driver: Arc<Driver>,
}

/// Calls that make of weights what every run finds made.
pub(super) struct Derived {
    pub calls: Vec<Call>,
    pub from: Vec<BufferId>,
    /// How many writes there had been when they last ran.
    pub at: Option<u64>,
}

impl Drop for Sequence {
    fn drop(&mut self) {
        for graph in [self.graph, self.many].into_iter().filter(|&graph| graph != 0) {
            self.driver.destroy_graph(graph);
        }
        for (address, _) in [self.memory, self.constants, self.branches].into_iter().flatten() {
            self.driver.free(address);
        }
    }
}

/// For every launch the end of its calls, and for every call where it runs.
#[derive(Default)]
pub(super) struct Filled {
    pub ends: Vec<usize>,
    pub tracks: Vec<Track>,
}

/// Adds the calls of all launches. Where nobody looks at values afterwards, one call may stand for many launches, or halves of their rows
/// may run beside each other.
pub(super) fn fill(
    builder: &mut Builder<'_>,
    launches: &[Launch],
    for_state: bool,
    branches: Option<&Branches>,
) -> Result<Filled> {
    let mut filled = Filled::default();
    if for_state && let Some(stood_for) = step::add(builder, launches)? {
        filled.ends.resize(stood_for, builder.len());
    } else if let Some(branches) = branches {
        filled = fill_halves(builder, branches)?;
    }
    let first = builder.len();
    let mut between = None;
    while filled.ends.len() < launches.len() {
        let behind = filled.ends.len();
        let stood_for = fill_next(builder, launches, behind, for_state, &mut between)?;
        filled.ends.resize(behind + stood_for, builder.len());
    }
    // Where halves meet there are two kernels before.
    if filled.tracks.contains(&Track::Half(1)) {
        builder.start_in_turn(first);
    }
    filled.tracks.resize(builder.len(), Track::Trunk);
    Ok(filled)
}

/// Adds the calls of both halves, or none where they cannot run beside each other: what needs working memory, as the library's products
/// do, runs by turns.
fn fill_halves(builder: &mut Builder<'_>, branches: &Branches) -> Result<Filled> {
    if let Some(filled) = fill_alike(builder, branches)?
        && builder.has_kernels_alone()
        && builder.scratch_bytes() == 0
    {
        return Ok(filled);
    }
    builder.take_back();
    Ok(Filled::default())
}

/// Adds the calls of both halves by turns; none where what suits the rows of one does not suit those of the other.
fn fill_alike(builder: &mut Builder<'_>, branches: &Branches) -> Result<Option<Filled>> {
    let mut filled = Filled::default();
    let mut between = [None; 2];
    while filled.ends.len() < branches.halves[0].len() {
        let index = filled.ends.len();
        let mut stood_for = [0; 2];
        for (half, launches) in branches.halves.iter().enumerate() {
            let first = builder.len();
            // What a kernel that starts early waits for is the one before of its own half.
            builder.go_on_behind(index.checked_sub(1).map(|before| &launches[before]));
            stood_for[half] = fill_next(builder, launches, index, true, &mut between[half])?;
            // It waits on its own stream alone, and here there is none before.
            if half == 1 && index == 0 {
                builder.start_in_turn(first);
            }
            filled.tracks.resize(builder.len(), Track::Half(half));
        }
        let [first, second] = stood_for;
        if first != second {
            return Ok(None);
        }
        filled.ends.resize(index + first, builder.len());
    }
    Ok(Some(filled))
}

/// Adds the calls of a launch and of those behind it that they stand for, and says how many launches that are.
fn fill_next(
    builder: &mut Builder<'_>,
    launches: &[Launch],
    index: usize,
    for_state: bool,
    between: &mut Option<Between>,
) -> Result<usize> {
    let mut stood_for = if for_state { rows::add_embedded(builder, &launches[index..])? } else { 0 };
    if for_state && stood_for == 0 {
        stood_for = batch::add_around_norm(builder, launches, index, between)?;
    }
    if stood_for == 0 {
        builder.look_ahead(attention::ahead(builder, &launches[index + 1..]));
        fill_one(builder, &launches[index])?;
        stood_for = 1;
    }
    Ok(stood_for)
}

/// Adds the calls of one launch.
pub(super) fn fill_one(builder: &mut Builder<'_>, Launch { kernel, inputs, outputs }: &Launch) -> Result<()> {
    builder.begin_launch();
    let is_there = int8::add(builder, kernel, inputs, outputs)?
        || rows::add(builder, kernel, inputs, outputs)?
        || linear::add(builder, kernel, inputs, outputs)?
        || quantise::add(builder, kernel, inputs, outputs)?
        || cudnn::add(builder, kernel, inputs, outputs)?
        || attention::add(builder, kernel, inputs, outputs)?;
    if !is_there {
        let dtype = outputs.first().map_or(DType::F32, |view| view.of.dtype);
        return Err(Error::Unsupported { device: DEVICE, kernel: kernel.name(), dtype });
    }
    builder.end_launch(outputs);
    Ok(())
}

/// Runs that the card was given and may not have ended.
#[derive(Default)]
pub(super) struct InFlight {
    /// What is passed at the end of each, and how many calls it has, the oldest first.
    runs: VecDeque<(Milestone, usize)>,
}

/// Runs of a sequence that one graph holds, where many are wanted: between graphs the card pauses for some microseconds.
pub(super) const REPEATS: usize = 8;
/// How many runs the card may be given ahead: enough to keep it busy.
const MOST_RUNS: usize = 4;
/// How many calls of more than two runs may be on the way: the driver spins while it waits for room for more.
const MOST_CALLS: usize = 1600;

impl InFlight {
    /// Sleeps until there is room for a run of so many calls.
    pub fn wait_for_room(&mut self, calls: usize, staging: &Staging, patience: &mut Patience) -> Result<()> {
        loop {
            let on_the_way: usize = self.runs.iter().map(|run| run.1).sum();
            let is_room =
                self.runs.len() < 2 || self.runs.len() < MOST_RUNS && on_the_way + calls <= MOST_CALLS;
            match self.runs.front() {
                Some((end, _)) if !is_room => staging.wait(*end, patience)?,
                _ => return Ok(()),
            }
            self.runs.pop_front();
        }
    }

    /// Counts a run that was just given.
    pub fn add(&mut self, calls: usize, staging: &mut Staging) -> Result<()> {
        self.runs.push_back((staging.mark()?, calls));
        Ok(())
    }
}
