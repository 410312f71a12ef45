//! One query per sample over a cache: `attention_decode.cu`, and what launches before it may ask the second cache for.

use super::{
    super::{
        call::{Arg, Builder, CachesAhead},
        modules::Source,
    },
    Heads,
};
use crate::{
    device::{Launch, View},
    error::Result,
    kernel::Kernel,
    op::Op,
};

/// Query heads that one block of `attention_decode` reads keys for at most, and how many elements they may have.
const MOST_DECODE_GROUP: usize = 8;
const MOST_DECODE_ELEMENTS: usize = 1024;
/// Keys of a cache that four warps of `attention_decode` share; of more, eight.
const FEW_KEYS: usize = 512;
/// Keys of each sample that another launch may ask the second cache for: as many as come from memory in the time that it has.
const AHEAD: usize = 32;

/// What a product may ask for that comes before a norm, queries, keys and values, and this attention over caches. Nothing where the launches
/// behind it are others, or where the one before it writes what must be known for that.
pub(in super::super) fn ahead(builder: &Builder<'_>, behind: &[Launch]) -> Option<CachesAhead> {
    let [_, product, Launch { kernel, inputs, outputs }, ..] = behind else { return None };
    let (Kernel::Op(Op::Linear { .. }), Kernel::CachedAttention(attention)) = (&product.kernel, kernel)
    else {
        return None;
    };
    let [qkv, places, caches] = [&inputs[0], &inputs[1], &outputs[2]];
    let heads = Heads::beside_cache(attention, qkv, caches, kernel.name()).ok()?;
    let is_aligned = (heads.kv_stride * heads.real.bytes()).is_multiple_of(16)
        && outputs[2..4].iter().all(|view| view.offset_bytes.is_multiple_of(16));
    if heads.queries != 1 || attention.window > 0 || !is_aligned || !builder.is_settled(places) {
        return None;
    }
    Some(CachesAhead {
        caches: [&outputs[2], &outputs[3]].map(|view| builder.pointer(view)),
        places: builder.pointer(places),
        rows: heads.key_rows,
        keys: heads.keys,
        columns: heads.kv_stride,
        first: keys_of_a_turn(&heads),
        count: AHEAD,
    })
}

/// Query heads and warps of a block of `attention_decode`.
fn block(heads: &Heads) -> [usize; 2] {
    // By the caches' length alone, since it decides the order of sums.
    let warps = if heads.keys <= FEW_KEYS { 4 } else { 8 };
    let most = MOST_DECODE_GROUP.min(MOST_DECODE_ELEMENTS / heads.padded());
    [heads.group().next_power_of_two().min(most), warps]
}

/// Keys that such a block has on their way at a time: `TEAMS * FLIGHT` there.
fn keys_of_a_turn(heads: &Heads) -> usize {
    let ([group, warps], padded) = (block(heads), heads.padded());
    let (teams, flight) = (32 * warps / (padded / 8), if group * padded <= 256 { 4 } else { 2 });
    teams * flight
}

/// One query per sample: queries, caches, the new rows that go into them first (or 0), results, places. `read_first` are places and caches.
pub(super) fn add(
    builder: &mut Builder<'_>,
    heads: &Heads,
    defines: &[(&'static str, usize)],
    operands: [Arg; 8],
    read_first: [&View; 3],
) -> Result<()> {
    let [group, warps] = block(heads);
    let mut settings = defines.to_vec();
    settings.extend([("GROUP", group), ("WARPS", warps)]);
    let kv_heads = heads.attention.kv_heads;
    let grid = heads.grid(heads.group().div_ceil(group), kv_heads, 32 * warps as u32, 0);
    let is_settled = read_first.into_iter().all(|view| builder.is_settled(view));
    let mut arguments = operands.to_vec();
    arguments.extend([heads.key_rows, heads.keys, heads.attention.heads].map(Arg::from));
    arguments.extend([heads.group(), heads.size].map(Arg::from));
    arguments.extend([heads.q_stride, heads.kv_stride].map(Arg::from));
    arguments.extend([heads.window(), heads.scale(), Arg::U32(u32::from(is_settled))]);
    builder.kernel(Source::AttentionDecode, "attention_decode", heads.real, &settings, grid, &arguments)?;
    builder.start_early(1);
    Ok(())
}
