//! Products of eight bits that go through GELU, or are multiplied with its slope, and become eight bits again: by `gelu_eight.cu`, which says
//! how, or one after the other.

use super::{NOTHING, Rows, Sampled, epilogue, factors, product, quantise, scaled_product};
use crate::{
    cuda::{
        blas::{Epilogue, WORTH_TIMING},
        call::{Arg, Builder, Fill, Grid},
        driver::{FactorBoxes, Side},
        modules::Source as File,
        rows,
        warpgroups::{MOST_SHARED_BYTES, boxes},
    },
    device::View,
    error::Result,
    quantise::{GeluProduct, sample_stride},
    tensor::DType,
};

/// Adds the fastest way to run it; false where there is none.
pub(super) fn add(builder: &mut Builder<'_>, of: GeluProduct, views: [&[View]; 2]) -> Result<bool> {
    let [inputs, _] = views;
    let shapes = [0, 2].map(|factor| inputs[factor].of.shape);
    let [rows, columns, depth] = [shapes[0].rows(), shapes[1].rows(), shapes[0].columns()];
    let kind = match of {
        GeluProduct::Forward { .. } => "",
        GeluProduct::Backward { sums: None, .. } => "_gradient",
        GeluProduct::Backward { sums: Some(_), .. } => "_gradient_sums",
    };
    let kept = if of.has_slope() { "_slope" } else { "" };
    let key = format!("quantised_gelu{kind}{kept}{} {rows}x{columns}x{depth}", inputs.len());
    let is_worth_timing = rows as f64 * columns as f64 * depth as f64 >= WORTH_TIMING;
    let at_once: &Fill<'_> = &|builder, inputs, outputs| at_once(builder, of, inputs, outputs);
    let apart: &Fill<'_> = &|builder, inputs, outputs| apart(builder, of, inputs, outputs);
    builder.fastest(key, is_worth_timing, views, &[at_once, apart])
}

/// The library's product, then quantising.
fn apart(builder: &mut Builder<'_>, of: GeluProduct, inputs: &[View], outputs: &[View]) -> Result<bool> {
    match of {
        GeluProduct::Forward { bias, slope } => {
            let product = scaled_product(builder, inputs, &outputs[0], bias, false);
            if !builder.product(product)? {
                return Ok(false);
            }
            let h = [(builder.pointer(&outputs[0]), outputs[0].of.shape.columns())];
            quantise(builder, &of.quantise(), (&h, outputs[0].of), &outputs[1..])?;
            if slope {
                rows::gelu_slope(builder, &outputs[0])?;
            }
        }
        GeluProduct::Backward { .. } => {
            let ([d_y, w], h) = (factors(builder, inputs), &inputs[4]);
            let d = builder.scratch(h.of.shape.elements() * h.of.dtype.bytes());
            if !builder.product(product(d_y, w, (d, h.of.dtype), false, Epilogue::Nothing))? {
                return Ok(false);
            }
            let operands = [builder.pointer(h), d].map(|at| (at, h.of.shape.columns()));
            quantise(builder, &of.quantise(), (&operands, h.of), outputs)?;
        }
    }
    Ok(true)
}

/// Columns of a tile.
const COLUMNS: usize = 128;

/// Our own product, which quantises on the way. The largest number is looked for in the library's product of a part of the rows.
fn at_once(builder: &mut Builder<'_>, of: GeluProduct, inputs: &[View], outputs: &[View]) -> Result<bool> {
    let [a, b] = factors(builder, inputs);
    let (h, copies) = match of {
        GeluProduct::Forward { .. } => (&outputs[0], &outputs[1..]),
        GeluProduct::Backward { .. } => (&inputs[4], outputs),
    };
    let is_aligned = inputs.iter().chain(outputs).all(|view| view.offset_bytes.is_multiple_of(16));
    let is_whole = a.rows.is_multiple_of(FactorBoxes::ROWS) && b.rows.is_multiple_of(COLUMNS);
    let is_there = builder.has_warpgroup_products() && h.of.dtype == DType::BF16;
    if !(is_aligned && is_whole && is_there) {
        return Ok(false);
    }
    let Some(partials) = sampled_largest(builder, of, [a, b], inputs)? else { return Ok(false) };
    let (unit, results) = (builder.pointer(&copies[0]), [h, &copies[1], &copies[2]]);
    match of {
        GeluProduct::Forward { bias, .. } => {
            let bias = if bias { builder.pointer(&inputs[4]) } else { NOTHING };
            multiply(builder, of, [a, b], results, [bias, partials, unit])?;
        }
        GeluProduct::Backward { sums: None, .. } => {
            multiply(builder, of, [a, b], results, [partials, unit, NOTHING])?;
        }
        GeluProduct::Backward { sums: Some(adds), .. } => {
            let chunks = a.rows / FactorBoxes::ROWS;
            let sums = builder.scratch(chunks * b.rows * size_of::<f32>());
            multiply(builder, of, [a, b], results, [partials, unit, sums])?;
            rows::finish_columns(builder, h.of.dtype, sums, &copies[3..], [chunks, b.rows], adds)?;
        }
    }
    Ok(true)
}

/// Adds a kernel of `gelu_eight.cu`: h and the copies are the results, and three arguments are its own.
fn multiply(
    builder: &mut Builder<'_>,
    of: GeluProduct,
    [a, b]: [Rows; 2],
    results: [&View; 3],
    own: [Arg; 3],
) -> Result<()> {
    let address = |at: Arg| match at {
        Arg::Pointer(at) => at,
        _ => unreachable!("operands have addresses"),
    };
    let factor = |side: Side, factor: Rows| FactorBoxes {
        at: address(factor.at),
        of: factor.of,
        rows: factor.rows,
        terms: factor.columns,
        side,
    };
    let boxes = results.map(|view| boxes(builder, view, FactorBoxes::ROWS));
    builder.give_factor_maps(&[factor(Side::Left, a), factor(Side::Right, b)])?;
    builder.give_matrix_maps(&boxes)?;
    let sizes = [a.rows, b.rows, a.columns].map(Arg::from);
    let arguments = [&[a.unit, b.unit], &own[..], &sizes].concat();
    let grid = grid(builder, a.rows / FactorBoxes::ROWS * (b.rows / COLUMNS));
    let name = match of {
        GeluProduct::Forward { .. } => "product_gelu_bytes",
        GeluProduct::Backward { .. } => "product_gelu_slope_bytes",
    };
    let settings = [("SLOPE", usize::from(of.has_slope()))];
    builder.kernel(File::GeluEight, name, DType::BF16, &settings, grid, &arguments)?;
    builder.start_early(1);
    Ok(())
}

/// The largest numbers of what is to be quantised in a part of the rows; nothing where the library has no such product.
fn sampled_largest(
    builder: &mut Builder<'_>,
    of: GeluProduct,
    [a, b]: [Rows; 2],
    inputs: &[View],
) -> Result<Option<Arg>> {
    let stride = sample_stride(a.rows);
    let rows = a.rows.div_ceil(stride);
    let real = DType::BF16;
    let out = builder.scratch(rows * b.rows * real.bytes());
    let sampled = Rows { rows, leading: stride * a.leading, ..a };
    let epilogue = epilogue(builder, inputs, of.bias());
    if !builder.product(product(sampled, b, (out, real), false, epilogue))? {
        return Ok(None);
    }
    let operands = match of {
        GeluProduct::Forward { .. } => [(out, 1), (NOTHING, 1)],
        GeluProduct::Backward { .. } => [(builder.pointer(&inputs[4]), stride), (out, 1)],
    };
    let sampled = Sampled { source: of.quantise().source, operands, real, rows };
    sampled.largest(builder, b.rows).map(Some)
}

/// A block for every multiprocessor, which stays there, but not more than there are tiles.
fn grid(builder: &Builder<'_>, tiles: usize) -> Grid {
    const THREADS: u32 = 640;
    // All of what there is: stages of the ring take what results leave.
    Grid {
        shared_bytes: MOST_SHARED_BYTES as u32,
        ..Grid::new(tiles.min(builder.multiprocessors()), THREADS)
    }
}
