//! Rows of a table by id, the gradient of that, and rotary positions.

use super::{
    super::{
        call::{Arg, Builder, Grid},
        modules::Source,
    },
    Launch, THREADS, all_aligned, count, flag, looping, width,
};
use crate::error::Result;

/// Positions whose ids are counted together, places that are summed together, and bytes of what is known of a place: as in
/// `kernels/embed.cu`.
const CHUNK: usize = 1024;
const TILE: usize = 32;
const PLACE_BYTES: usize = 16;

fn wide(is_wide: bool) -> [(&'static str, usize); 1] {
    [("WIDE", usize::from(is_wide))]
}

pub(super) fn embed(builder: &mut Builder<'_>, launch: Launch<'_>) -> Result<()> {
    let real = launch.real([&launch.inputs[0], &launch.outputs[0]])?;
    let table = launch.inputs[0].of.shape;
    let rows = launch.inputs[1].of.shape.elements();
    let (from, to) = (launch.input(builder, 0), launch.output(builder, 0));
    let is_wide = all_aligned(&[from, to]) && table.columns().is_multiple_of(width(real));
    let arguments = [
        from,
        launch.input(builder, 1),
        to,
        count(rows),
        table.columns().into(),
        table.rows().into(),
        Arg::Fault,
    ];
    let grid = looping(builder, 32 * rows);
    builder.kernel(Source::Embed, "embed", real, &wide(is_wide), grid, &arguments)
}

/// Sorts positions by id and sums tiles of them; see the kernels.
pub(super) fn embed_grad(builder: &mut Builder<'_>, launch: Launch<'_>, adds: bool) -> Result<()> {
    let real = launch.real([&launch.inputs[1]])?;
    launch.ensure_f32(launch.outputs)?;
    let (ids, d_y, d_table) = (launch.input(builder, 0), launch.input(builder, 1), launch.output(builder, 0));
    let n = launch.inputs[0].of.shape.elements();
    let table = launch.outputs[0].of.shape;
    let (rows, columns) = (table.rows(), table.columns());
    let is_wide = all_aligned(&[d_y, d_table]) && columns.is_multiple_of(width(real));
    let pack = if is_wide { width(real) } else { 1 };
    let (chunks, tiles, id_blocks) = (n.div_ceil(CHUNK), n.div_ceil(TILE), rows.div_ceil(THREADS));

    let packs = columns.div_ceil(pack);
    let tile_threads = packs.next_multiple_of(32).min(THREADS);
    let slices = packs.div_ceil(tile_threads);

    // Counts of ids, of blocks that have scanned, and of tiles and groups of them that have been summed: all of them begin with zero.
    let counts_bytes = 4 * chunks * rows;
    let cleared_bytes = counts_bytes + 4 * (1 + 2 * tiles * slices);
    let counts = builder.scratch(cleared_bytes);
    let (scanned, summed) = (counts.plus(counts_bytes), counts.plus(counts_bytes + 4));
    let ranks = builder.scratch(4 * n);
    let places = builder.scratch(PLACE_BYTES * tiles * TILE);
    let totals = builder.scratch(4 * rows);
    let starts = builder.scratch(4 * rows);
    let blocks = builder.scratch(4 * (id_blocks + 1));
    let heads = builder.scratch(4 * tiles * columns);
    let tails = builder.scratch(4 * tiles * columns);

    builder.clear(counts, cleared_bytes);
    let mut add = |name, grid, arguments: &[Arg]| {
        builder.kernel(Source::Embed, name, real, &wide(is_wide), grid, arguments)
    };
    let across = |[blocks, slices]: [usize; 2], threads: usize| Grid {
        blocks: [blocks as u32, slices as u32, 1],
        threads: threads as u32,
        shared_bytes: 0,
    };
    add(
        "embed_grad_rank",
        across([chunks, CHUNK / THREADS], THREADS),
        &[ids, ranks, counts, n.into(), rows.into(), Arg::Fault],
    )?;
    add(
        "embed_grad_scan",
        across([id_blocks, 1], THREADS),
        &[counts, totals, starts, blocks, scanned, chunks.into(), rows.into()],
    )?;
    add(
        "embed_grad_place",
        across([n.div_ceil(THREADS), 1], THREADS),
        &[ids, ranks, counts, totals, starts, blocks, places, n.into(), rows.into()],
    )?;
    let zeroing = if adds { 0 } else { rows.div_ceil(TILE) };
    add(
        "embed_grad_tiles",
        across([tiles + zeroing, slices], tile_threads),
        &[
            places,
            d_y,
            totals,
            blocks.plus(4 * id_blocks),
            d_table,
            heads,
            tails,
            summed,
            columns.into(),
            rows.into(),
            tiles.into(),
            flag(adds),
        ],
    )
}

pub(super) fn rope(builder: &mut Builder<'_>, launch: Launch<'_>, inverse: bool, still: usize) -> Result<()> {
    let real = launch.real([&launch.inputs[0], &launch.outputs[0]])?;
    launch.ensure_f32([&launch.inputs[2]])?;
    let (x, table) = (launch.inputs[0].of.shape, launch.inputs[2].of.shape);
    let half = table.columns() / 2;
    let (from, to, angles) = (launch.input(builder, 0), launch.output(builder, 0), launch.input(builder, 2));
    let is_wide = all_aligned(&[from, to, angles]) && half.is_multiple_of(width(real));
    let packs = half / if is_wide { width(real) } else { 1 };
    let arguments = [
        from,
        launch.input(builder, 1),
        angles,
        to,
        count(x.rows()),
        (x.columns() / table.columns()).into(),
        still.into(),
        packs.into(),
        table.rows().into(),
        Arg::F32(if inverse { -1.0 } else { 1.0 }),
        Arg::Fault,
    ];
    let grid = looping(builder, x.rows() * packs);
    builder.kernel(Source::Embed, "rope", real, &wide(is_wide), grid, &arguments)
}
