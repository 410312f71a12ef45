//! Norms and their gradients with respect to what they normalise.

use super::{
    super::{
        call::{Arg, Builder, Grid},
        modules::Source,
        views::is_read,
    },
    Launch, THREADS, WIDE_BYTES, all_aligned, count, flag, most_blocks,
    reduce::finish_columns,
    width,
};
use crate::{
    device::{self, View},
    error::Result,
    kernel::{Kernel, NormGrads},
    op::Op,
    tensor::DType,
};

/// The most packs of a row that a thread keeps, before more threads share the row.
const MOST_PACKS: usize = 8;
/// The same where a thread keeps sums of its columns, too, and a warp has the row.
const MOST_SUMMED_PACKS: usize = 3;
/// Threads of a block that sums where a row has a warp or less of them.
const SUM_THREADS: usize = 128;
/// Rows that are few: so many warps, or blocks, run at once.
const FEW_ROWS: usize = 64;
/// The most packs of a row that a thread keeps where rows are few: with no more, a warp is done before the threads of a block have waited
/// for each other.
const MOST_PACKS_OF_FEW: usize = 4;
/// The most threads of a block.
const MOST_THREADS: usize = 1024;

/// How threads share a row; see the kernels.
struct Teams {
    team: usize,
    packs: usize,
    is_wide: bool,
    has_few_rows: bool,
}

impl Teams {
    fn new(real: DType, columns: usize, accesses: &[Arg]) -> Self {
        // As many packs to a thread as registers hold.
        let of_blocks = |packs: usize| packs.div_ceil(MOST_PACKS).next_power_of_two().min(MOST_THREADS);
        Teams::with_packs(MOST_PACKS, of_blocks, real, columns, accesses)
    }

    /// For few rows: a warp to each, or a block with as few packs to a thread as possible.
    fn of_few_rows(real: DType, columns: usize, accesses: &[Arg]) -> Self {
        let of_blocks = |packs: usize| packs.div_ceil(packs.div_ceil(MOST_THREADS)).next_multiple_of(32);
        Teams {
            has_few_rows: true,
            ..Teams::with_packs(MOST_PACKS_OF_FEW, of_blocks, real, columns, accesses)
        }
    }

    /// The same where threads keep sums of their columns, too.
    fn summing(real: DType, columns: usize, accesses: &[Arg]) -> Self {
        // As few packs to a thread as possible.
        let of_blocks = |packs: usize| packs.div_ceil(packs.div_ceil(MOST_THREADS)).next_multiple_of(32);
        Teams::with_packs(MOST_SUMMED_PACKS, of_blocks, real, columns, accesses)
    }

    /// Up to a warp, a pack per thread; then a warp, as long as none of its threads has more than `most`; then whole blocks.
    fn with_packs(
        most: usize,
        of_blocks: impl Fn(usize) -> usize,
        real: DType,
        columns: usize,
        accesses: &[Arg],
    ) -> Self {
        let is_wide = all_aligned(accesses) && columns.is_multiple_of(width(real));
        let packs = columns.div_ceil(if is_wide { width(real) } else { 1 }).max(1);
        let team = match packs {
            _ if packs <= 32 => packs.next_power_of_two(),
            _ if packs <= 32 * most => 32,
            _ => of_blocks(packs),
        };
        Teams { team, packs: packs.div_ceil(team), is_wide, has_few_rows: false }
    }

    /// Of a kernel that sums: threads of a block, rows that it works on at a time, and blocks that a large card runs at a time.
    /// All depends on the shape alone, because it decides the order of sums. See `SUM_BLOCKS` and `AT_ONCE` there.
    fn sums(&self) -> [usize; 3] {
        let (at_once, warps) = match self.is_ahead() {
            _ if self.team <= 32 => return [SUM_THREADS, SUM_THREADS / self.team, 4 * 132],
            true => (2, 28),
            false => (1, 16),
        };
        [self.team, at_once, (32 * warps / self.team).max(1) * 132]
    }

    /// Whether a kernel that sums copies whole rows ahead: `AHEAD` there.
    fn is_ahead(&self) -> bool {
        self.is_wide && self.packs == 1 && (33..=512).contains(&self.team)
    }

    fn defines(&self) -> [(&'static str, usize); 4] {
        let [wide, few_rows] = [self.is_wide, self.has_few_rows].map(usize::from);
        [("TEAM", self.team), ("PACKS", self.packs), ("WIDE", wide), ("FEW_ROWS", few_rows)]
    }

    fn add(
        &self,
        builder: &mut Builder<'_>,
        name: &'static str,
        real: DType,
        rows: usize,
        arguments: &[Arg],
    ) -> Result<()> {
        let defines = self.defines();
        let (threads, rows_at_once) =
            if self.team <= 32 { (THREADS, THREADS / self.team) } else { (self.team, 1) };
        let blocks = rows.div_ceil(rows_at_once).clamp(1, most_blocks(builder));
        builder.kernel(Source::Norm, name, real, &defines, Grid::new(blocks, threads as u32), arguments)
    }
}

/// What happens before a layer norm.
#[derive(Clone, Copy)]
pub(super) enum Before {
    Nothing,
    Sum,
    /// A sum whose second operand is a product that has left its bias.
    BiasedSum,
}

/// `(x, gain, shift if any) → y, mean, rstd`; with a sum, `(a, b, bias if any, gain, shift if any) → a + (b + bias), y, mean, rstd`.
pub(super) fn layer_norm(
    builder: &mut Builder<'_>,
    launch: Launch<'_>,
    eps: f32,
    before: Before,
) -> Result<()> {
    let (name, before_gain, results_of_rows) = match before {
        Before::Nothing => ("layer_norm", 1, 1),
        Before::Sum => ("add_layer_norm", 2, 2),
        Before::BiasedSum => ("add_biased_layer_norm", 3, 2),
    };
    let real = launch.real(launch.inputs.iter().chain(&launch.outputs[..results_of_rows]))?;
    launch.ensure_f32(&launch.outputs[results_of_rows..])?;
    let shape = launch.inputs[0].of.shape;
    let operands = |views: &[_]| -> Vec<Arg> { views.iter().map(|view| builder.pointer(view)).collect() };
    let (mut arguments, results) = (operands(launch.inputs), operands(launch.outputs));
    let mut accesses = arguments.clone();
    accesses.extend(&results[..results_of_rows]);
    if arguments.len() == before_gain + 1 {
        arguments.push(Arg::Pointer(0));
    }
    arguments.extend(results);
    let is_settled = launch.inputs[before_gain..].iter().all(|view| builder.is_settled(view));
    arguments.extend([count(shape.rows()), shape.columns().into(), Arg::F32(eps), flag(is_settled)]);
    forward(builder, name, real, [shape.rows(), shape.columns()], &accesses, &arguments)
}

/// `(x, gain) → y, rstd`; with a sum, `(a, b, gain) → a + b, y, rstd`. Rows are as long as the gain.
pub(super) fn rms_norm(builder: &mut Builder<'_>, launch: Launch<'_>, eps: f32, has_sum: bool) -> Result<()> {
    let summands = 1 + usize::from(has_sum);
    let real = launch.real(launch.inputs.iter().chain(&launch.outputs[..summands]))?;
    launch.ensure_f32(&launch.outputs[summands..])?;
    let columns = launch.inputs[summands].of.shape.elements();
    let rows = launch.inputs[0].of.shape.elements() / columns;
    let operands = |views: &[_]| -> Vec<Arg> { views.iter().map(|view| builder.pointer(view)).collect() };
    let (mut arguments, results) = (operands(launch.inputs), operands(launch.outputs));
    let mut accesses = arguments.clone();
    accesses.extend(&results[..summands]);
    arguments.extend(results);
    let is_settled = builder.is_settled(&launch.inputs[summands]);
    arguments.extend([count(rows), columns.into(), Arg::F32(eps), flag(is_settled)]);
    let name = if has_sum { "add_rms_norm" } else { "rms_norm" };
    forward(builder, name, real, [rows, columns], &accesses, &arguments)
}

/// Rows of tables and the norm behind them, by which a step begins, as one kernel: the sum of two tables' rows and a layer norm, or the rows
/// of one and an RMS norm. Says for how many launches it stands: none where they are others, or where anybody else reads the rows that
/// are added up.
pub(in super::super) fn add_embedded(
    builder: &mut Builder<'_>,
    launches: &[device::Launch],
) -> Result<usize> {
    let is_lookup = |launch: &device::Launch| {
        launch.kernel == Kernel::Op(Op::Embed) && builder.int8(&launch.inputs[0]).is_none()
    };
    let tables = launches.iter().take_while(|launch| is_lookup(launch)).count();
    let (tables, rest) = launches.split_at(tables);
    let Some((norm, behind)) = rest.split_first() else { return Ok(0) };
    let (name, eps) = match (&norm.kernel, tables.len()) {
        (Kernel::AddLayerNorm { eps, .. }, 2) => ("embed_add_layer_norm", *eps),
        (Kernel::Op(Op::RmsNorm { eps }), 1) => ("embed_rms_norm", *eps),
        _ => return Ok(0),
    };
    let (summands, parameters) = norm.inputs.split_at(tables.len());
    let are_private = tables.len() == 1 || tables.iter().all(|table| !is_read(&table.outputs[0], behind));
    let are_summands = tables.iter().zip(summands).all(|(table, of)| table.outputs[0] == *of);
    let columns = parameters[0].of.shape.elements();
    if !are_private || !are_summands || summands[0].of.shape.columns() != columns {
        return Ok(0);
    }
    // A row of one table is what is kept; a sum is the norm's own result.
    let kept = if tables.len() == 1 { summands } else { &[][..] };
    let results: Vec<View> = kept.iter().chain(&norm.outputs).copied().collect();
    let (rows_of, statistics) = results.split_at(2);
    let launch = Launch { name: norm.kernel.name(), inputs: parameters, outputs: rows_of };
    let sources = tables.iter().map(|table| &table.inputs[0]);
    let real = launch.real(sources.clone().chain(parameters).chain(rows_of))?;
    launch.ensure_f32(statistics)?;

    builder.begin_launch();
    let at = |view: &View| builder.pointer(view);
    let accesses: Vec<Arg> = sources.chain(parameters).chain(rows_of).map(at).collect();
    let mut arguments: Vec<Arg> = tables.iter().flat_map(|table| &table.inputs).map(at).collect();
    arguments.extend(parameters.iter().map(at));
    if tables.len() == 2 && parameters.len() == 1 {
        arguments.push(Arg::Pointer(0));
    }
    arguments.extend(results.iter().map(at));
    arguments.extend(tables.iter().map(|table| Arg::from(table.inputs[0].of.shape.rows())));
    let rows = summands[0].of.shape.elements() / columns;
    let is_settled = parameters.iter().all(|view| builder.is_settled(view));
    arguments.extend([Arg::Fault, count(rows), columns.into(), Arg::F32(eps), flag(is_settled)]);
    forward(builder, name, real, [rows, columns], &accesses, &arguments)?;
    builder.end_launch(&results);
    Ok(tables.len() + 1)
}

fn forward(
    builder: &mut Builder<'_>,
    name: &'static str,
    real: DType,
    [rows, columns]: [usize; 2],
    accesses: &[Arg],
    arguments: &[Arg],
) -> Result<()> {
    if rows > FEW_ROWS {
        return Teams::new(real, columns, accesses).add(builder, name, real, rows, arguments);
    }
    Teams::of_few_rows(real, columns, accesses).add(builder, name, real, rows, arguments)
}

/// `(d_y, x, gain, mean, rstd, other if any) → d_x`, plus `other`.
pub(super) fn layer_norm_grad(builder: &mut Builder<'_>, launch: Launch<'_>) -> Result<()> {
    gradient(builder, launch, "layer_norm_grad", 2)
}

/// `(d_y, x, gain, rstd, other if any) → d_x`, plus `other`.
pub(super) fn rms_norm_grad(builder: &mut Builder<'_>, launch: Launch<'_>) -> Result<()> {
    gradient(builder, launch, "rms_norm_grad", 1)
}

fn gradient(
    builder: &mut Builder<'_>,
    launch: Launch<'_>,
    name: &'static str,
    statistics: usize,
) -> Result<()> {
    let (before, rest) = launch.inputs.split_at(3);
    let (statistics, other) = rest.split_at(statistics);
    let real = launch.real(before.iter().chain(other).chain(launch.outputs))?;
    launch.ensure_f32(statistics)?;
    let columns = before[2].of.shape.elements();
    let rows = before[0].of.shape.elements() / columns;
    let mut arguments: Vec<Arg> = launch.inputs.iter().map(|view| builder.pointer(view)).collect();
    if other.is_empty() {
        arguments.push(Arg::Pointer(0));
    }
    let d_x = launch.output(builder, 0);
    let accesses: Vec<Arg> =
        before.iter().chain(other).map(|view| builder.pointer(view)).chain([d_x]).collect();
    arguments.extend([d_x, count(rows), columns.into()]);
    Teams::new(real, columns, &accesses).add(builder, name, real, rows, &arguments)
}

/// All gradients of a norm; see [`NormGrads`] for the operands.
pub(super) fn grads(builder: &mut Builder<'_>, launch: Launch<'_>, of: NormGrads) -> Result<()> {
    let (other, own) = launch.inputs.split_last().expect("checked at bind");
    let (d_x, sums) = launch.outputs.split_first().expect("checked at bind");
    let (before, statistics) = own.split_at(3);
    let real = launch.real(before.iter().chain([other, d_x]))?;
    launch.ensure_f32(statistics.iter().chain(sums))?;
    let columns = before[2].of.shape.elements();
    let rows = before[0].of.shape.elements() / columns;

    let at = |view: &View| builder.pointer(view);
    let accesses: Vec<Arg> = before.iter().chain([other, d_x]).map(at).collect();
    let mut arguments: Vec<Arg> = own.iter().map(at).collect();
    let teams = Teams::summing(real, columns, &accesses);
    let [threads, rows_at_once, most] = teams.sums();
    let blocks = rows.div_ceil(rows_at_once).clamp(1, most);
    let partials = builder.scratch(4 * blocks * sums.len() * columns);
    arguments.extend([builder.pointer(other), builder.pointer(d_x), partials, count(rows), columns.into()]);
    let name = if of.centred { "layer_norm_grads" } else { "rms_norm_grads" };
    let mut defines = teams.defines().to_vec();
    defines.extend([("SHIFTS", usize::from(of.shift)), ("SUMS_ROWS", usize::from(of.bias))]);
    // Two rows of three tensors where a warp has a row, four where a block works on two; otherwise the sums of a block's teams.
    let pack_bytes = if teams.is_wide { WIDE_BYTES } else { real.bytes() };
    let packs = threads * teams.packs;
    let shared_bytes = match teams.team {
        32 if teams.is_wide => 6 * packs * pack_bytes,
        ..=32 => packs * pack_bytes / real.bytes() * size_of::<f32>(),
        _ if teams.is_ahead() => 12 * packs * pack_bytes,
        _ => 0,
    };
    let grid = Grid { shared_bytes: shared_bytes as u32, ..Grid::new(blocks, threads as u32) };
    builder.kernel(Source::Norm, name, real, &defines, grid, &arguments)?;
    finish_columns(builder, real, partials, sums, [blocks, columns], of.add)
}
