//! Attention over whole sequences on matrix units that every card has, or on none: `attention.cu` and `attention_f32.cu`.

use super::{
    super::call::{Arg, Builder, Grid},
    Heads,
};
use crate::{device::View, error::Result, op::Attention};

/// Queries whose ranges are summed up together: `RANGE_BLOCK` in `attention.cuh`.
const RANGE_BLOCK: usize = 64;
/// Threads of a block of the kernels over whole sequences.
const THREADS: u32 = 128;

/// The tiles of a kernel: what `attention.cu` and `attention_f32.cu` say at the kernel.
struct Tiles {
    /// Rows that a block owns.
    own: usize,
    shared_bytes: usize,
}

impl Tiles {
    fn forward(heads: &Heads) -> Self {
        if !heads.suits_units() {
            return Tiles::single(heads, 1);
        }
        let others = if heads.padded() == 64 { 64 } else { 32 };
        Tiles { own: 128, shared_bytes: (128 + 4 * others) * heads.row_bytes() }
    }

    fn by_query(heads: &Heads) -> Self {
        if !heads.suits_units() {
            return Tiles::single(heads, 2);
        }
        let own = if heads.padded() == 64 { 128 } else { 64 };
        Tiles { own, shared_bytes: (2 * own + 4 * 64) * heads.row_bytes() }
    }

    fn by_key(heads: &Heads) -> Self {
        if !heads.suits_units() {
            return Tiles::single(heads, 2);
        }
        let (own, others) = (64, if heads.padded() == 64 { 64 } else { 32 });
        let statistics = 4 * others * size_of::<f32>();
        Tiles { own, shared_bytes: (2 * own + 4 * others) * heads.row_bytes() + statistics }
    }

    /// Without matrix units, all in f32: some tensors' own rows, two of others in longer rows, and a factor for every pair of rows.
    fn single(heads: &Heads, own_tensors: usize) -> Self {
        let (own, others, padded) = (32, 32, heads.padded());
        let floats = own_tensors * own * padded + 2 * others * (padded + 4) + own * others;
        Tiles { own, shared_bytes: floats * size_of::<f32>() }
    }
}

/// Operands are queries, keys and values, results, and places, or 0.
pub(super) fn forward(
    builder: &mut Builder<'_>,
    heads: &Heads,
    defines: &[(&'static str, usize)],
    [q, k, v, out, log_sum_exp, places]: [Arg; 6],
    borders: Option<&View>,
) -> Result<()> {
    let [ranges, spreads] = ranges(builder, heads, defines, borders)?;
    let tiles = Tiles::forward(heads);
    let grid =
        heads.grid(heads.queries.div_ceil(tiles.own), heads.attention.heads, THREADS, tiles.shared_bytes);
    let rows = Arg::from(heads.key_rows);
    let mut arguments = vec![q, k, v, out, log_sum_exp, places, rows, ranges, spreads];
    arguments.extend(heads.constants());
    builder.kernel(heads.source(), "attention_forward", heads.real, defines, grid, &arguments)
}

/// Where samples have borders, what every query sees is worked out once: `[ranges, spreads]` of `attention.cuh`.
fn ranges(
    builder: &mut Builder<'_>,
    heads: &Heads,
    defines: &[(&'static str, usize)],
    borders: Option<&View>,
) -> Result<[Arg; 2]> {
    if !heads.attention.borders {
        return Ok([Arg::Pointer(0); 2]);
    }
    let borders = builder.pointer(borders.expect("checked at bind"));
    let blocks = heads.queries.div_ceil(RANGE_BLOCK);
    let ranges = builder.scratch(heads.batch * heads.queries * size_of::<[i32; 2]>());
    let spreads = builder.scratch(heads.batch * blocks * size_of::<[i32; 4]>());
    let count = |blocks: usize| u32::try_from(blocks).expect("a grid's blocks");
    let grid =
        Grid { blocks: [count(blocks), count(heads.batch), 1], threads: RANGE_BLOCK as u32, shared_bytes: 0 };
    let arguments = [borders, ranges, spreads, Arg::from(heads.queries), heads.causal(), heads.window()];
    builder.kernel(heads.source(), "attention_ranges", heads.real, defines, grid, &arguments)?;
    Ok([ranges, spreads])
}

/// The gradients on matrix units that every card has, or on none.
pub(super) fn backward(
    builder: &mut Builder<'_>,
    heads: &Heads,
    [[q, k, v], [d_q, d_k, d_v]]: [[Arg; 3]; 2],
    [inputs, outputs]: [&[View]; 2],
    extras: &[View],
) -> Result<()> {
    if heads.is_empty() {
        return Ok(());
    }
    let Attention { heads: query_heads, kv_heads, .. } = heads.attention;
    let defines = heads.defines(inputs.iter().chain(outputs));
    let [d_out, out, log_sum_exp] = [&inputs[0], &extras[0], &extras[1]].map(|view| builder.pointer(view));
    let [ranges, spreads] = ranges(builder, heads, &defines, extras.get(2))?;

    let delta = builder.scratch(heads.batch * query_heads * heads.queries * size_of::<f32>());
    let grid = heads.grid(heads.queries.div_ceil(32), query_heads, 256, 0);
    let sizes = [heads.queries, query_heads, heads.size].map(Arg::from);
    let arguments = [d_out, out, delta, sizes[0], sizes[1], sizes[2]];
    builder.kernel(heads.source(), "attention_delta", heads.real, &defines, grid, &arguments)?;

    let given = [d_out, q, k, v, log_sum_exp, delta];
    let mut add = |name, gradients: &[Arg], tiles: &Tiles, rows: usize, count: usize| {
        let mut arguments = given.to_vec();
        arguments.extend_from_slice(gradients);
        arguments.extend([ranges, spreads]);
        arguments.extend(heads.constants());
        let grid = heads.grid(rows.div_ceil(tiles.own), count, THREADS, tiles.shared_bytes);
        builder.kernel(heads.source(), name, heads.real, &defines, grid, &arguments)
    };
    add("attention_d_q", &[d_q], &Tiles::by_query(heads), heads.queries, query_heads)?;
    add("attention_d_kv", &[d_k, d_v], &Tiles::by_key(heads), heads.keys, kv_heads)
}
