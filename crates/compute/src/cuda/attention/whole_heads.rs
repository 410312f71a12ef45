//! Gradients of whole heads in one kernel, `attention_whole_heads.cu`: which attentions it takes, and its launch.

use super::{Arg, Builder, Gradients, Grid, HeadRows, Heads, InBytes, Result, Source};
use crate::cuda::AttentionBy;

/// Elements of a head that the kernel is written for.
const HEAD: usize = 64;
/// Keys that a block has at a time; positions come in whole ones.
const KEYS: usize = 128;
const THREADS: u32 = 512;
/// Shared memory of a block but for what is known of queries: `AT_KNOWN` of the kernel. The numbers known of a query, of this head and of
/// the next, come to it.
const FIXED_BYTES: usize = 175_360;
const QUERY_BYTES: usize = 2 * 2 * size_of::<f32>();
/// The most that a block may have.
const MOST_SHARED_BYTES: usize = 232_448;
/// The positions that it was found to be faster with. Of more, the sums of d_q outgrow the second cache; of fewer, heads begin and end
/// more often.
const MEASURED_POSITIONS: usize = 1024;
/// How many of a hundred multiprocessors must have a head in the mean, so that those without one at the end lose less than is won:
/// with all of them busy the kernel takes at least 14 % less time than those by tiles.
const LEAST_BUSY: usize = 90;

/// Whether the kernel is to compute the gradient.
pub(super) fn suits(builder: &Builder<'_>, heads: &Heads) -> bool {
    let is_possible = heads.size == HEAD
        && heads.group() == 1
        && heads.queries == heads.keys
        && heads.queries.is_multiple_of(KEYS)
        && heads.q_stride == heads.kv_stride
        && shared_bytes(heads) <= MOST_SHARED_BYTES;
    let all_heads = heads.batch * heads.attention.heads;
    let is_worth_it = heads.queries == MEASURED_POSITIONS
        && 100 * all_heads >= LEAST_BUSY * all_heads.next_multiple_of(builder.multiprocessors());
    is_possible && (is_worth_it || builder.attention_by() == AttentionBy::WholeHeads)
}

fn shared_bytes(heads: &Heads) -> usize {
    FIXED_BYTES + heads.queries * QUERY_BYTES
}

/// See `warpgroups_by_tiles` for the operands.
pub(super) fn add(
    builder: &mut Builder<'_>,
    heads: &Heads,
    tensors: &[HeadRows],
    known: [Arg; 3],
    gradients: Gradients,
    (column_sums, columns): ([Arg; 3], usize),
) -> Result<()> {
    let all_heads = heads.batch * heads.attention.heads;
    let blocks = all_heads.min(builder.multiprocessors());
    let sums = builder.scratch(blocks * heads.queries * HEAD * size_of::<f32>());
    let mut arguments = known.to_vec();
    arguments.push(sums);
    let (name, to, last) = match gradients {
        Gradients::Halves(to) => ("attention_whole_heads", to.to_vec(), vec![]),
        Gradients::Bytes(InBytes { rows, transposed, partials, unit, top }) => {
            let to = heads.parts_of_bytes(rows, transposed).concat();
            ("attention_whole_heads_eight", to, vec![partials, unit, Arg::U32(top)])
        }
    };
    arguments.extend(to);
    arguments.extend(column_sums);
    let counts = [heads.queries, heads.attention.heads, all_heads, heads.q_stride, columns];
    arguments.extend(counts.map(Arg::from));
    arguments.extend([heads.causal(), heads.scale()]);
    arguments.extend(last);
    let mut grid = Grid::new(blocks, THREADS);
    grid.shared_bytes = u32::try_from(shared_bytes(heads)).expect("a block's shared memory");
    builder.give_maps(tensors)?;
    let defines = [("HEAD", heads.size)];
    builder.kernel(Source::AttentionWholeHeads, name, heads.real, &defines, grid, &arguments)
}
