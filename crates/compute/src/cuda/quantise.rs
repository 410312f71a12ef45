//! Products of eight bits: the kernels that write their factors, and the library's products of them.

use super::{
    blas::{Epilogue, Factor, Product},
    call::{Arg, Builder, Grid},
    modules::Source as File,
    rows,
};
use crate::{
    device::View,
    error::{Error, Result},
    kernel::Kernel,
    quantise::{Quantise, Source, sample_stride},
    tensor::DType,
};

/// Rows and columns of the tile that a block quantises.
const TILE: usize = 128;
const THREADS: u32 = 256;
/// Blocks that look for the largest number, each of which leaves one.
const PARTIALS: usize = 256;

/// Adds the calls of one launch; false for what has nothing to do with eight bits.
pub(super) fn add(
    builder: &mut Builder<'_>,
    kernel: &Kernel,
    inputs: &[View],
    outputs: &[View],
) -> Result<bool> {
    let dtype = match kernel {
        Kernel::Quantise(of) => of.of,
        Kernel::ScaledProduct { .. } => inputs[0].of.dtype,
        _ => return Ok(false),
    };
    let unsupported = || Error::Unsupported { device: "cuda", kernel: kernel.name(), dtype };
    if !builder.has_eight_bit_products() {
        return Err(unsupported());
    }
    match kernel {
        Kernel::Quantise(of) => quantise(builder, of, inputs, outputs).map(|()| true),
        &Kernel::ScaledProduct { bias, add } => {
            let is_there = builder.product(scaled_product(builder, inputs, &outputs[0], bias, add))?;
            if is_there { Ok(true) } else { Err(unsupported()) }
        }
        _ => Ok(false),
    }
}

fn quantise(builder: &mut Builder<'_>, of: &Quantise, inputs: &[View], outputs: &[View]) -> Result<()> {
    let x = inputs[0].of;
    let (real, rows, columns) = (x.dtype, x.shape.rows(), x.shape.columns());
    let is_gradient = of.of == DType::E5M2;
    let [largest, name] = match (of.source, is_gradient) {
        (Source::Stored, false) => ["largest_stored", "e4m3_stored"],
        (Source::Stored, true) => ["largest_stored", "e5m2_stored"],
        (Source::Gelu, false) => ["largest_gelu", "e4m3_gelu"],
        (Source::Gelu, true) => ["largest_gelu", "e5m2_gelu"],
        (Source::GeluGrad, false) => ["largest_gelu_grad", "e4m3_gelu_grad"],
        (Source::GeluGrad, true) => ["largest_gelu_grad", "e5m2_gelu_grad"],
    };
    let nothing = Arg::Pointer(0);
    let first = builder.pointer(&inputs[0]);
    let second = inputs.get(1).map_or(nothing, |view| builder.pointer(view));
    let partials = builder.scratch(4 * PARTIALS);
    let arguments = [first, second, partials, rows.into(), columns.into(), sample_stride(rows).into()];
    builder.kernel(File::Quantise, largest, real, &[], Grid::new(PARTIALS, THREADS), &arguments)?;

    let mut others = outputs[1..].iter();
    let mut copy = |is_wanted: bool| {
        let view = if is_wanted { others.next() } else { None };
        view.map_or(nothing, |view| builder.pointer(view))
    };
    let (as_it_is, transposed) = (copy(of.rows), copy(of.columns));
    let (tiles_across, tiles_down) = (columns.div_ceil(TILE), rows.div_ceil(TILE));
    let sums = match of.sums {
        Some(_) => builder.scratch(4 * tiles_down * columns),
        None => nothing,
    };
    let unit = builder.pointer(&outputs[0]);
    let arguments = [first, second, partials, unit, as_it_is, transposed, sums, rows.into(), columns.into()];
    let blocks = [tiles_across as u32, tiles_down as u32, 1];
    let grid = Grid { blocks, threads: THREADS, shared_bytes: 0 };
    builder.kernel(File::Quantise, name, real, &[], grid, &arguments)?;
    match of.sums {
        Some(adds) => {
            let out = &outputs[outputs.len() - 1..];
            rows::finish_columns(builder, real, sums, out, [tiles_down, columns], adds)
        }
        None => Ok(()),
    }
}

/// a·bᵀ, in both of which the summed dimension lies innermost: the one form that the matrix units take.
fn scaled_product(builder: &Builder<'_>, inputs: &[View], out: &View, bias: bool, add: bool) -> Product {
    let factor = |view: &View, unit: &View, transposed: bool| Factor {
        at: builder.pointer(view),
        of: view.of.dtype,
        leading: view.of.shape.columns(),
        transposed,
        unit: Some(builder.pointer(unit)),
    };
    let [a, b] = [&inputs[0], &inputs[2]];
    Product {
        rows: a.of.shape.rows(),
        columns: b.of.shape.rows(),
        inner: a.of.shape.columns(),
        left: factor(a, &inputs[1], false),
        right: factor(b, &inputs[3], true),
        out: builder.pointer(out),
        out_type: out.of.dtype,
        out_leading: out.of.shape.columns(),
        add,
        epilogue: if bias { Epilogue::Bias(builder.pointer(&inputs[4])) } else { Epilogue::Nothing },
    }
}

/// Bits behind the point and the bias of the exponent.
fn layout(of: DType) -> (i32, i32) {
    if of == DType::E5M2 { (2, 15) } else { (3, 7) }
}

/// The byte of the nearest number.
pub(super) fn encode(of: DType, x: f32) -> u8 {
    let (mantissa, bias) = layout(of);
    let sign = u8::from(x.is_sign_negative()) << 7;
    let rounded = of.round(f64::from(x)).abs();
    if rounded.is_nan() {
        return sign | 0x7F;
    }
    let exponent = ((rounded.to_bits() >> 52) as i32 - 1023).max(1 - bias);
    let steps = (rounded / 2f64.powi(exponent - mantissa)) as i32;
    let is_normal = steps >= 1 << mantissa;
    let code = if is_normal { ((exponent + bias - 1) << mantissa) + steps } else { steps };
    sign | code as u8
}

/// The number of a byte.
pub(super) fn decode(of: DType, byte: u8) -> f64 {
    let (mantissa, bias) = layout(of);
    let (exponent, steps) = (i32::from(byte & 0x7F) >> mantissa, i32::from(byte) & ((1 << mantissa) - 1));
    let sign = if byte & 0x80 == 0 { 1.0 } else { -1.0 };
    let size = match (of, exponent, steps) {
        (DType::E5M2, 31, 0) => f64::INFINITY,
        (DType::E5M2, 31, _) | (DType::E4M3, 15, 7) => f64::NAN,
        (_, 0, _) => f64::from(steps) * 2f64.powi(1 - bias - mantissa),
        _ => f64::from(steps + (1 << mantissa)) * 2f64.powi(exponent - bias - mantissa),
    };
    sign * size
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_the_code_of_its_number() {
        for of in [DType::E4M3, DType::E5M2] {
            for byte in 0..=u8::MAX {
                let x = decode(of, byte);
                if x.is_finite() {
                    assert_eq!(of.round(x), x, "{of} {byte:#x}");
                    assert_eq!(encode(of, x as f32), byte, "{of} {byte:#x}");
                }
            }
        }
        assert_eq!(decode(DType::E4M3, 0x7E), 448.0);
        assert_eq!(decode(DType::E5M2, 0x7B), 57_344.0);
        assert!(decode(DType::E4M3, encode(DType::E4M3, f32::NAN)).is_nan());
    }
}
