//! Attention over whole sequences on Hopper's own units: `attention_hopper.cu`, and `attention_whole_heads.cu` for whole heads.

use super::{
    super::{
        call::{Arg, Builder, Grid},
        driver::HeadRows,
        modules::Source,
        rows,
    },
    Heads, whole_heads,
};
use crate::{device::View, error::Result};

/// Where a gradient goes in eight bits: as it stands and transposed, in a unit that follows from what was found of the largest number of
/// the output's gradient, and from what that comes below.
pub(in super::super) struct InBytes {
    pub rows: Arg,
    pub transposed: Arg,
    pub partials: Arg,
    pub unit: Arg,
    pub top: u32,
}

/// Where the gradients of queries, keys and values go.
pub(super) enum Gradients {
    /// As numbers of 16 bits.
    Halves([Arg; 3]),
    /// Side by side in eight bits.
    Bytes(InBytes),
}

/// The warpgroups of a kernel of `attention_hopper.cu`, which says why there are so many: each owns 64 rows, and all of them walk
/// over what is in the stages.
struct Warpgroups {
    count: usize,
    stages: usize,
    /// Tensors of which a warpgroup keeps its own rows.
    own_tensors: usize,
    /// Rows of each of the two tensors in a stage.
    others: usize,
    /// Bytes of a stage besides.
    known_bytes: usize,
}

impl Warpgroups {
    const ROWS: usize = 64;

    fn forward(heads: &Heads) -> Self {
        let others = if heads.size == 64 { 128 } else { 64 };
        Warpgroups { count: 2, stages: 2, own_tensors: 1, others, known_bytes: 0 }
    }

    fn by_query(heads: &Heads) -> Self {
        let (count, stages) = if heads.size == 64 { (2, 4) } else { (3, 3) };
        Warpgroups { count, stages, own_tensors: 2, others: 64, known_bytes: 0 }
    }

    fn by_key(heads: &Heads) -> Self {
        let stages = if heads.size == 64 { 3 } else { 2 };
        let known_bytes = 2 * Self::ROWS * size_of::<f32>();
        Warpgroups { count: 1, stages, own_tensors: 2, others: 64, known_bytes }
    }

    /// A block for so many rows of each of so many heads.
    fn grid(&self, heads: &Heads, rows: usize, all_heads: usize) -> Grid {
        const GROUP_THREADS: usize = 128;
        let ring_bytes = 8 + 24 * self.stages;
        let stage_bytes = 2 * self.others * heads.row_bytes() + self.known_bytes;
        let own_bytes = self.count * self.own_tensors * Self::ROWS * heads.row_bytes();
        let shared_bytes = own_bytes + self.stages * stage_bytes + ring_bytes;
        let mut grid = Grid::new(
            rows.div_ceil(self.count * Self::ROWS) * all_heads,
            u32::try_from(self.count * GROUP_THREADS).expect("a block's threads"),
        );
        grid.shared_bytes = u32::try_from(shared_bytes).expect("a block's shared memory");
        grid
    }
}

pub(super) fn forward(
    builder: &mut Builder<'_>,
    heads: &Heads,
    parts: [Arg; 3],
    [out, log_sum_exp]: [Arg; 2],
) -> Result<()> {
    let all_heads = heads.batch * heads.attention.heads;
    let grid = Warpgroups::forward(heads).grid(heads, heads.queries, all_heads);
    builder.give_maps(&heads.all_rows(parts))?;
    let mut arguments = vec![out, log_sum_exp];
    let counts = [heads.queries, heads.keys, heads.attention.heads, heads.group(), all_heads];
    arguments.extend(counts.map(Arg::from));
    arguments.extend([heads.causal(), heads.scale()]);
    let defines = [("HEAD", heads.size)];
    builder.kernel(
        Source::AttentionHopper,
        "attention_hopper_forward",
        heads.real,
        &defines,
        grid,
        &arguments,
    )
}

/// With `sums`, the sums of the rows of all three gradients go where its view is, or are added to that.
pub(super) fn backward(
    builder: &mut Builder<'_>,
    heads: &Heads,
    parts: [Arg; 3],
    [d_out, out, log_sum_exp]: [Arg; 3],
    gradients: Gradients,
    sums: Option<(&[View], bool)>,
) -> Result<()> {
    let [q, k, v] = heads.all_rows(parts);
    let tensors = [heads.rows(d_out, true, heads.attention.heads * heads.size), q, k, v];
    // Every warpgroup leaves the sums of its rows: a row of them for each 64 positions, in the order of the columns.
    let (chunks, columns) = (heads.batch * heads.queries.div_ceil(Warpgroups::ROWS), heads.q_stride);
    let partials = match sums {
        Some(_) => builder.scratch(chunks * columns * size_of::<f32>()),
        None => Arg::Pointer(0),
    };
    let [q_sums, k_sums, v_sums] = heads.parts_before().map(|before| match sums {
        Some(_) => partials.plus(before * size_of::<f32>()),
        None => partials,
    });
    let all_heads = heads.batch * heads.attention.heads;
    let whole = whole_heads::count(builder, heads);
    let of = Backward {
        heads,
        tensors,
        known: [d_out, out, log_sum_exp],
        gradients,
        column_sums: [q_sums, k_sums, v_sums],
        columns,
    };
    if whole == all_heads {
        whole_heads::add(builder, &of, whole)?;
    } else {
        let statistics = of.by_queries(builder, whole)?;
        if whole > 0 {
            // It fills the multiprocessors as they come free, and the last kernel those where it ends.
            whole_heads::add(builder, &of, whole)?;
            builder.start_early(1);
        }
        of.by_keys(builder, whole, statistics)?;
        if whole > 0 {
            builder.start_early(1);
        }
    }
    match sums {
        Some((to, adds)) => rows::finish_columns(builder, heads.real, partials, to, [chunks, columns], adds),
        None => Ok(()),
    }
}

/// A gradient by warpgroups.
pub(super) struct Backward<'a> {
    pub heads: &'a Heads,
    /// The output's gradient, queries, keys and values.
    pub tensors: [HeadRows; 4],
    /// The output's gradient, the output and its log-sum-exp.
    pub known: [Arg; 3],
    pub gradients: Gradients,
    /// Where the sums of each gradient's columns go, in rows of so many.
    pub column_sums: [Arg; 3],
    pub columns: usize,
}

impl Backward<'_> {
    /// Adds the gradient by tiles of queries, of all heads but the first so many. Returns what is then known of the queries.
    fn by_queries(&self, builder: &mut Builder<'_>, first_head: usize) -> Result<Arg> {
        let Heads { queries, q_stride, .. } = *self.heads;
        let all_heads = self.heads.batch * self.heads.attention.heads;
        let blocks = all_heads * queries.div_ceil(Warpgroups::ROWS);
        let statistics = builder.scratch(blocks * 2 * Warpgroups::ROWS * size_of::<f32>());
        let (name, d_q, last) = match &self.gradients {
            Gradients::Halves([d_q, ..]) => ("attention_hopper_d_q", vec![*d_q], vec![]),
            Gradients::Bytes(InBytes { rows, transposed, partials, unit, top }) => {
                let [d_q, ..] = self.heads.parts_of_bytes(*rows, *transposed);
                ("attention_hopper_d_q_eight", d_q.to_vec(), vec![*partials, *unit, Arg::U32(*top)])
            }
        };
        let [q_sums, ..] = self.column_sums;
        let operands = [&self.known[..], &[statistics], &d_q, &[q_sums]].concat();
        let grid = Warpgroups::by_query(self.heads).grid(self.heads, queries, all_heads - first_head);
        self.add_tiles(builder, name, grid, &operands, [first_head, all_heads, q_stride], &last)?;
        Ok(statistics)
    }

    /// The same by tiles of keys.
    fn by_keys(&self, builder: &mut Builder<'_>, first_kv_head: usize, statistics: Arg) -> Result<()> {
        let Heads { keys, kv_stride, .. } = *self.heads;
        let all_heads = self.heads.batch * self.heads.attention.kv_heads;
        let (name, d_kv, last) = match &self.gradients {
            Gradients::Halves([_, d_k, d_v]) => ("attention_hopper_d_kv", vec![*d_k, *d_v], vec![]),
            Gradients::Bytes(InBytes { rows, transposed, partials, top, .. }) => {
                let [_, d_k, d_v] = self.heads.parts_of_bytes(*rows, *transposed);
                ("attention_hopper_d_kv_eight", [d_k, d_v].concat(), vec![*partials, Arg::U32(*top)])
            }
        };
        let [_, k_sums, v_sums] = self.column_sums;
        let operands = [&[statistics], &d_kv[..], &[k_sums, v_sums]].concat();
        let grid = Warpgroups::by_key(self.heads).grid(self.heads, keys, all_heads - first_kv_head);
        self.add_tiles(builder, name, grid, &operands, [first_kv_head, all_heads, kv_stride], &last)
    }

    fn add_tiles(
        &self,
        builder: &mut Builder<'_>,
        name: &'static str,
        grid: Grid,
        operands: &[Arg],
        [first_head, all_heads, stride]: [usize; 3],
        last: &[Arg],
    ) -> Result<()> {
        let Heads { queries, keys, size, real, .. } = *self.heads;
        let mut arguments = operands.to_vec();
        let counts = [queries, keys, self.heads.attention.heads, self.heads.group(), first_head, all_heads];
        arguments.extend(counts.map(Arg::from));
        arguments.extend([stride, self.columns].map(Arg::from));
        arguments.extend([self.heads.causal(), self.heads.scale()]);
        arguments.extend_from_slice(last);
        builder.give_maps(&self.tensors)?;
        builder.kernel(Source::AttentionHopper, name, real, &[("HEAD", size)], grid, &arguments)
    }
}
