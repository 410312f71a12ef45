//! Products of up to 128 rows, which is what a step of many texts multiplies, and norms between two of them that take no launch of their own;
//! `batch_rows.cu` and `between_products.cuh` say how both work.

use super::{
    attention,
    call::{Arg, Builder, CachesAhead, Grid},
    linear::{self, MOST_FEW_ROWS, Shaped},
    modules::Source,
    views::{is_read, meet},
    warpgroups::MOST_SHARED_BYTES,
};
use crate::{
    device::{Launch, View},
    error::Result,
    kernel::Kernel,
    op::Op,
    tensor::DType,
};

/// The most rows. The library reads longer prompts as fast, and steps of more than twice as many were not timed.
pub(super) const MOST_ROWS: usize = 128;
/// The numbers of those files.
const TILE: usize = 64;
const OUTPUTS: usize = 64;
const SHEET_DEPTH: usize = 64;
const SHEET_BYTES: usize = 8192;
const THREADS: u32 = 128;
const SPREAD_BYTES: usize = 8;
/// What a multiprocessor keeps for itself of its shared memory with each block.
const RESERVED_BYTES: usize = 1024;
/// Sheets of each factor that a block has room for, the fewest that are worth a part, since parts take longer to add up than to fetch, and
/// blocks of a cluster.
const MOST_SHEETS: usize = 12;
const LEAST_SHEETS: usize = 4;
const MOST_PARTS: usize = 8;

/// A product, as many blocks of a cluster as share the terms of its sums, and whether it may read its weights before its turn.
struct Product {
    of: Shaped,
    parts: usize,
    is_settled: bool,
}

impl Product {
    /// None where the kernel has no room for it, or the library is faster: with many outputs there is work for all of the card.
    fn new(builder: &Builder<'_>, of: Shaped, is_settled: bool, is_alone: bool) -> Option<Self> {
        let [rows, outputs, depth] = of.sizes;
        let (tiles, sheets) = (outputs.div_ceil(OUTPUTS), depth / SHEET_DEPTH);
        let at_once = builder.multiprocessors();
        let fits = depth.is_multiple_of(SHEET_DEPTH) && outputs.is_multiple_of(4);
        let is_there = builder.has_warpgroup_products() && of.real != DType::F32 && rows <= MOST_ROWS;
        if !fits || !is_there || tiles > at_once {
            return None;
        }
        let possible = || {
            (1..=MOST_PARTS).filter(|&parts| sheets.is_multiple_of(parts) && sheets / parts <= MOST_SHEETS)
        };
        // Parts take longer to add up than to fetch. But large blocks take memory from the loads of an attention beside them.
        let few = possible().find(|&parts| is_alone && tiles * parts <= at_once);
        let parts = few.or_else(|| {
            possible()
                .filter(|&parts| parts == 1 || sheets / parts >= LEAST_SHEETS)
                .min_by_key(|&parts| ((tiles * parts).div_ceil(at_once) * (sheets / parts), parts))
        })?;
        let product = Product { of, parts, is_settled };
        // Where blocks of several tiles of rows take turns, the library's larger tiles are faster.
        let each = product.shared_bytes() + RESERVED_BYTES;
        let side_by_side = (MOST_SHARED_BYTES + RESERVED_BYTES) / each * at_once;
        (rows <= TILE || tiles * parts * rows.div_ceil(TILE) <= side_by_side).then_some(product)
    }

    /// Sheets of each factor that a block multiplies.
    fn sheets(&self) -> usize {
        self.of.sizes[2] / SHEET_DEPTH / self.parts
    }

    /// Of a block.
    fn shared_bytes(&self) -> usize {
        2 * self.sheets() * SHEET_BYTES + TILE * (OUTPUTS * size_of::<f32>() + SPREAD_BYTES)
    }

    fn add(&self, builder: &mut Builder<'_>, norm: Norm) -> Result<()> {
        let Product { of: Shaped { real, operands, sizes: [rows, outputs, depth] }, parts, is_settled } =
            self;
        let shared_bytes = u32::try_from(self.shared_bytes()).expect("a block's shared memory");
        let blocks = [outputs.div_ceil(OUTPUTS) * parts, rows.div_ceil(TILE), 1];
        let blocks = blocks.map(|count| u32::try_from(count).expect("a grid's blocks"));
        let grid = Grid { blocks, threads: THREADS, shared_bytes };
        let mut arguments = operands.to_vec();
        arguments.extend([*rows, *outputs, *depth, usize::from(*is_settled)].map(Arg::from));
        match builder.ahead() {
            Some(CachesAhead { caches: [k, v], places, rows, keys, columns, first, count }) => {
                arguments.extend([k, v, places]);
                arguments.extend([rows, keys, columns, first, count].map(Arg::from));
            }
            None => {
                arguments.extend([NOTHING; 3]);
                arguments.extend([0; 5].map(Arg::from));
            }
        }
        let (behind, before, eps) = match norm {
            Norm::Nowhere => ([NOTHING; 5], [NOTHING; 2], 0.0),
            Norm::Behind { operands, .. } => (operands, [NOTHING; 2], 0.0),
            Norm::Before { operands, eps, .. } => ([NOTHING; 5], operands, eps),
        };
        arguments.extend(behind.into_iter().chain(before));
        arguments.push(Arg::F32(eps));
        let mut settings = vec![("PARTS", *parts), ("SHEETS", self.sheets())];
        settings.extend(norm.settings());
        builder.kernel(Source::BatchRows, "batch_rows", *real, &settings, grid, &arguments)?;
        builder.start_early(*parts);
        Ok(())
    }
}

const NOTHING: Arg = Arg::Pointer(0);

/// Where there is a norm of which a product does a part.
#[derive(Clone, Copy)]
enum Norm {
    Nowhere,
    /// Rows to add to, gains, the sums, the sums with gains, and what each piece of a row spreads.
    Behind {
        operands: [Arg; 5],
        centred: bool,
    },
    /// What each piece of a row spreads, and what gains and shifts come to in the product's weights.
    Before {
        operands: [Arg; 2],
        eps: f32,
        centred: bool,
    },
}

impl Norm {
    fn settings(self) -> Vec<(&'static str, usize)> {
        match self {
            Norm::Nowhere => Vec::new(),
            Norm::Behind { centred, .. } => vec![("BEFORE_NORM", 1), ("CENTRED", centred.into())],
            Norm::Before { centred, .. } => vec![("OF_NORM", 1), ("CENTRED", centred.into())],
        }
    }
}

/// Adds a product; false where the kernel does not suit it.
pub(super) fn add(builder: &mut Builder<'_>, of: Shaped, is_settled: bool) -> Result<bool> {
    let Some(product) = Product::new(builder, of, is_settled, false) else { return Ok(false) };
    product.add(builder, Norm::Nowhere)?;
    Ok(true)
}

/// What passes from one product to the next: rows with gains, and what pieces of them spread. One place serves all norms of a chain of
/// launches, since each is read before the next is written.
#[derive(Clone, Copy)]
pub(super) struct Between {
    gained: Arg,
    pieces: Arg,
    columns: usize,
}

/// Adds a product, the norm of sums behind it, and the product of what that gives, as two launches. Says for how many of `launches`, from
/// `first` on, they stand: none where they are others, or where anybody else reads what only such launches by themselves would write.
pub(super) fn add_around_norm(
    builder: &mut Builder<'_>,
    launches: &[Launch],
    first: usize,
    between: &mut Option<Between>,
) -> Result<usize> {
    let Some(around) = Around::find(launches, first).filter(|around| around.is_possible(builder)) else {
        return Ok(0);
    };
    let Some(products) = around.products(builder) else { return Ok(0) };
    around.add(builder, products, between)?;
    Ok(LAUNCHES)
}

/// Launches of two products and the norm between them.
const LAUNCHES: usize = 3;

struct Around<'a> {
    all: &'a [Launch],
    first: usize,
    eps: f32,
    centred: bool,
    products: DType,
    biases: [bool; 2],
}

impl<'a> Around<'a> {
    fn find(all: &'a [Launch], first: usize) -> Option<Self> {
        let [one, norm, other] = all.get(first..first + LAUNCHES)? else { return None };
        let (eps, centred) = match norm.kernel {
            Kernel::AddLayerNorm { eps, .. } => (eps, true),
            Kernel::AddRmsNorm { eps } => (eps, false),
            _ => return None,
        };
        let (Kernel::Op(Op::Linear { bias: of_one, products }), kernel) = (&one.kernel, &other.kernel) else {
            return None;
        };
        let of_other = match kernel {
            Kernel::Op(Op::Linear { bias, .. }) | Kernel::LinearGelu { bias, slope: false, .. } => bias,
            _ => return None,
        };
        let follow = one.outputs[0] == norm.inputs[1] && norm.outputs[1] == other.inputs[0];
        let (products, biases) = (*products, [*of_one, *of_other]);
        follow.then_some(Around { all, first, eps, centred, products, biases })
    }

    fn launches(&self) -> [&'a Launch; LAUNCHES] {
        [0, 1, 2].map(|index| &self.all[self.first + index])
    }

    fn behind(&self) -> &'a [Launch] {
        &self.all[self.first + LAUNCHES..]
    }

    fn is_possible(&self, builder: &Builder<'_>) -> bool {
        let [one, norm, other] = self.launches();
        let (added, normed, statistics) = (&norm.inputs[1], &norm.outputs[1], &norm.outputs[2..]);
        let from_other_on = &self.all[self.first + 2..];
        let is_private = !is_read(added, from_other_on)
            && !is_read(normed, self.behind())
            && statistics.iter().all(|view| !is_read(view, from_other_on));
        // Blocks of the first product write sums while others still read its operands.
        let has_own_place = one.inputs.iter().all(|view| !meet(view, &norm.outputs[0]));
        // In f16 a row with gains could leave the range that a norm's row keeps to.
        let rows = || norm.inputs.iter().chain(&norm.outputs[..2]);
        let is_bf16 = rows().all(|view| view.of.dtype == DType::BF16 && view.offset_bytes.is_multiple_of(16));
        let parameters = || norm.inputs[2..].iter().chain(&other.inputs[1..]);
        let is_written =
            |view: &View| self.all.iter().flat_map(|launch| &launch.outputs).any(|other| meet(view, other));
        let is_plain = [one, other].iter().all(|of| builder.int8(&of.inputs[1]).is_none());
        let columns = norm.inputs[2].of.shape.elements();
        let is_whole = columns.is_multiple_of(OUTPUTS)
            && [one.inputs[1].of.shape.rows(), other.inputs[1].of.shape.columns()] == [columns; 2];
        is_private && has_own_place && is_bf16 && is_plain && is_whole && !parameters().any(is_written)
    }

    fn products(&self, builder: &Builder<'_>) -> Option<[Product; 2]> {
        let [one, norm, other] = self.launches();
        let is_attention =
            |launches: &[Launch]| launches.iter().any(|of| matches!(of.kernel, Kernel::CachedAttention(_)));
        // Queries may be turned before they attend.
        let behind = &self.behind()[..self.behind().len().min(2)];
        let are_alone =
            [!is_attention(&self.all[self.first.saturating_sub(1)..self.first]), !is_attention(behind)];
        let kept = [&norm.inputs[0], &norm.inputs[2]];
        // No launch writes parameters, so the second product never waits for its own.
        let are_settled = [one.inputs[1..].iter().chain(kept).all(|view| builder.is_settled(view)), true];
        let product = |index: usize| {
            let of = [one, other][index];
            let shaped =
                linear::shaped(builder, [&of.inputs, &of.outputs], self.biases[index], self.products)?;
            let suits = shaped.real == DType::BF16 && shaped.sizes[0] > MOST_FEW_ROWS;
            suits.then(|| Product::new(builder, shaped, are_settled[index], are_alone[index]))?
        };
        Some([product(0)?, product(1)?])
    }

    fn add(
        &self,
        builder: &mut Builder<'_>,
        [one, mut other]: [Product; 2],
        between: &mut Option<Between>,
    ) -> Result<()> {
        let &Around { eps, centred, .. } = self;
        let [_, norm, second] = self.launches();
        let columns = norm.inputs[2].of.shape.elements();
        let Between { gained, pieces, .. } = match *between {
            Some(place) if place.columns == columns => place,
            _ => *between.insert(Between {
                gained: builder.keep(MOST_ROWS * columns * DType::BF16.bytes()),
                pieces: builder.keep(MOST_ROWS * columns / OUTPUTS * SPREAD_BYTES),
                columns,
            }),
        };

        builder.begin_launch();
        builder.look_ahead(attention::ahead(builder, &self.all[self.first + 1..]));
        let [kept, gain, sum] =
            [&norm.inputs[0], &norm.inputs[2], &norm.outputs[0]].map(|view| builder.pointer(view));
        one.add(builder, Norm::Behind { operands: [kept, gain, sum, gained, pieces], centred })?;
        builder.end_launch(&norm.outputs[..1]);

        builder.begin_launch();
        let mut through = NOTHING;
        if centred {
            let [_, outputs, depth] = other.of.sizes;
            through = builder.keep(outputs * SPREAD_BYTES);
            let shift = norm.inputs.get(3).map_or(NOTHING, |view| builder.pointer(view));
            let [_, weights, bias, ..] = other.of.operands;
            let arguments = [weights, gain, shift, bias, through, outputs.into(), depth.into()];
            let grid = Grid::new(outputs.div_ceil(THREADS as usize / 32), THREADS);
            let from: Vec<View> = norm.inputs[2..].iter().chain(&second.inputs[1..]).copied().collect();
            builder.derive(&from, |builder| {
                builder.kernel(Source::BatchRows, "through_norm", DType::BF16, &[], grid, &arguments)
            })?;
        }
        other.of.operands[0] = gained;
        builder.look_ahead(attention::ahead(builder, self.behind()));
        other.add(builder, Norm::Before { operands: [pieces, through], eps, centred })?;
        builder.end_launch(&second.outputs);
        Ok(())
    }
}
