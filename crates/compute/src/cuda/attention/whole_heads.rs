//! Gradients of whole heads in one kernel, `attention_whole_heads.cu`: which heads it takes, and its launch.

use super::{
    super::{
        AttentionBy,
        call::{Arg, Builder, Grid},
        modules::Source,
        warpgroups::MOST_SHARED_BYTES,
    },
    Heads, InBytes,
    warpgroups::{Backward, Gradients},
};
use crate::error::Result;

/// Elements of a head that the kernel is written for.
const HEAD: usize = 64;
/// Keys that a block has at a time; positions come in whole ones.
const KEYS: usize = 128;
const THREADS: u32 = 512;
/// Shared memory of a block but for what is known of queries: `AT_KNOWN` of the kernel. The numbers known of a query, of this head and of
/// the next, come to it.
const FIXED_BYTES: usize = 175_360;
const QUERY_BYTES: usize = 2 * 2 * size_of::<f32>();
/// The positions that it was found to be faster with. Of more, the sums of d_q outgrow the second cache; of fewer, heads begin and end
/// more often.
const MEASURED_POSITIONS: usize = 1024;
/// How many of a hundred multiprocessors a last round of heads must keep busy, so that it takes less time than these heads take by tiles.
/// Of 132, a round of all takes 130 µs and one of 56 takes 105; by tiles a head takes 1.2 µs.
const LEAST_BUSY: usize = 70;

/// How many of all samples' heads the kernel is to take, the first of them: all, none, or as many as make whole rounds of all
/// multiprocessors.
pub(super) fn count(builder: &Builder<'_>, heads: &Heads) -> usize {
    let is_possible = heads.size == HEAD
        && heads.group() == 1
        && heads.queries == heads.keys
        && heads.queries.is_multiple_of(KEYS)
        && heads.q_stride == heads.kv_stride
        && shared_bytes(heads) <= MOST_SHARED_BYTES;
    let is_asked_for = builder.attention_by() == AttentionBy::WholeHeads;
    if !is_possible || !(is_asked_for || heads.queries == MEASURED_POSITIONS) {
        return 0;
    }
    let (all_heads, at_once) = (heads.batch * heads.attention.heads, builder.multiprocessors());
    let rest = all_heads % at_once;
    if 100 * rest >= LEAST_BUSY * at_once || is_asked_for && all_heads < at_once {
        all_heads
    } else {
        all_heads - rest
    }
}

fn shared_bytes(heads: &Heads) -> usize {
    FIXED_BYTES + heads.queries * QUERY_BYTES
}

/// Adds the kernel for the first so many heads.
pub(super) fn add(builder: &mut Builder<'_>, of: &Backward<'_>, count: usize) -> Result<()> {
    let heads = of.heads;
    let blocks = count.min(builder.multiprocessors());
    let sums = builder.scratch(blocks * heads.queries * HEAD * size_of::<f32>());
    let mut arguments = of.known.to_vec();
    arguments.push(sums);
    let (name, to, last) = match &of.gradients {
        Gradients::Halves(to) => ("attention_whole_heads", to.to_vec(), vec![]),
        Gradients::Bytes(InBytes { rows, transposed, partials, unit, top }) => {
            let to = heads.parts_of_bytes(*rows, *transposed).concat();
            let last = vec![*partials, *unit, Arg::U32(*top), Arg::from(heads.batch)];
            ("attention_whole_heads_eight", to, last)
        }
    };
    arguments.extend(to);
    arguments.extend(of.column_sums);
    let counts = [heads.queries, heads.attention.heads, count, heads.q_stride, of.columns];
    arguments.extend(counts.map(Arg::from));
    arguments.extend([heads.causal(), heads.scale()]);
    arguments.extend(last);
    let mut grid = Grid::new(blocks, THREADS);
    grid.shared_bytes = u32::try_from(shared_bytes(heads)).expect("a block's shared memory");
    builder.give_maps(&of.tensors)?;
    let defines = [("HEAD", heads.size)];
    builder.kernel(Source::AttentionWholeHeads, name, heads.real, &defines, grid, &arguments)
}
