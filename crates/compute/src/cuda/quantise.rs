//! Products of eight bits: the kernels that write their factors, and the library's products of them.

mod attention;
mod gelu;
mod head;
mod norm;
mod norm_grads;
mod weights;

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
    quantise::{Quantise, Source, bounded_top, sample_stride},
    tensor::{DType, TensorType},
};

/// Rows and columns of the tile that a block quantises.
const TILE: usize = 128;
const THREADS: u32 = 512;
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
        Kernel::QuantiseWeights(_) => DType::E4M3,
        Kernel::QuantisedNorm(of) => of.copies().of,
        Kernel::QuantisedNormGrads(_) | Kernel::QuantisedAttentionGrad(_) => DType::E5M2,
        Kernel::ScaledProduct { .. } => inputs[0].of.dtype,
        Kernel::GeluProduct(_) => inputs[0].of.dtype,
        Kernel::HeadLoss(head) => head.products,
        _ => return Ok(false),
    };
    let unsupported = || Error::Unsupported { device: "cuda", kernel: kernel.name(), dtype };
    if !builder.has_eight_bit_products() {
        return Err(unsupported());
    }
    let is_there = match kernel {
        Kernel::Quantise(of) => {
            let operands: Vec<(Arg, usize)> =
                inputs.iter().map(|view| (builder.pointer(view), view.of.shape.columns())).collect();
            quantise(builder, of, (&operands, inputs[0].of), outputs)?;
            true
        }
        Kernel::QuantiseWeights(all) => {
            weights::add(builder, all, inputs, outputs)?;
            true
        }
        Kernel::QuantisedNorm(of) => {
            norm::add(builder, of, inputs, outputs)?;
            true
        }
        Kernel::QuantisedNormGrads(of) => {
            norm_grads::add(builder, of, inputs, outputs)?;
            true
        }
        Kernel::QuantisedAttentionGrad(of) => {
            attention::add(builder, of, inputs, outputs)?;
            true
        }
        &Kernel::ScaledProduct { bias, add } => {
            let product = scaled_product(builder, inputs, &outputs[0], bias, add);
            builder.product(product)?
        }
        Kernel::GeluProduct(of) => gelu::add(builder, *of, [inputs, outputs])?,
        Kernel::HeadLoss(of) => head::head_loss(builder, of, inputs, outputs)?,
        _ => false,
    };
    if is_there { Ok(true) } else { Err(unsupported()) }
}

/// Operands, each with its columns, of as many rows and one type become the outputs.
fn quantise(
    builder: &mut Builder<'_>,
    of: &Quantise,
    (operands, x): (&[(Arg, usize)], TensorType),
    outputs: &[View],
) -> Result<()> {
    let copies = Copies::new(builder, of, outputs);
    let [rows, columns] = [x.shape.rows(), x.shape.columns()];
    let addresses: Vec<Arg> = operands.iter().map(|&(at, _)| at).collect();
    let partials = match of.source {
        Source::Bounded { .. } => {
            let (at, columns) = operands[1];
            Sampled::stored(at, x.dtype, rows).largest(builder, columns)?
        }
        source => Sampled::every(source, &addresses, x.dtype, rows).largest(builder, columns)?,
    };
    let numbers = Numbers { source: of.source, operands: &addresses, real: x.dtype, rows, columns };
    let Some(adds) = of.sums else { return numbers.write(builder, copies, partials, None) };
    let tiles = rows.div_ceil(TILE);
    let sums = builder.scratch(4 * tiles * columns);
    numbers.write(builder, copies, partials, Some(sums))?;
    rows::finish_columns(builder, x.dtype, sums, &outputs[outputs.len() - 1..], [tiles, columns], adds)
}

/// What is quantised.
struct Numbers<'a> {
    source: Source,
    operands: &'a [Arg],
    real: DType,
    rows: usize,
    columns: usize,
}

/// Where the copies of a tensor go.
#[derive(Clone, Copy)]
struct Copies {
    of: DType,
    unit: Arg,
    as_it_is: Option<Arg>,
    transposed: Option<Arg>,
}

impl Copies {
    /// Those that are wanted, where a launch has them.
    fn new(builder: &Builder<'_>, of: &Quantise, outputs: &[View]) -> Self {
        let mut others = outputs[1..].iter();
        let mut copy = |is_wanted: bool| {
            let view = if is_wanted { others.next() } else { None };
            view.map(|view| builder.pointer(view))
        };
        let (as_it_is, transposed) = (copy(of.rows), copy(of.columns));
        Copies { of: of.of, unit: builder.pointer(&outputs[0]), as_it_is, transposed }
    }
}

/// "Not there", as kernels take it.
const NOTHING: Arg = Arg::Pointer(0);

impl Numbers<'_> {
    /// Writes the copies and, for every tile of rows, the sums of its columns, given what was found of the largest number.
    fn write(
        &self,
        builder: &mut Builder<'_>,
        copies: Copies,
        partials: Arg,
        sums: Option<Arg>,
    ) -> Result<()> {
        let &Numbers { source, operands, real, rows, columns } = self;
        let name = match (source, copies.of == DType::E5M2) {
            (Source::Stored, false) => "e4m3_stored",
            (Source::Stored, true) => "e5m2_stored",
            (Source::Bounded { .. }, _) => "e5m2_bounded",
            (Source::Gelu, false) => "e4m3_gelu",
            (Source::Gelu, true) => "e5m2_gelu",
            (Source::GeluGrad, false) => "e4m3_gelu_grad",
            (Source::GeluGrad, true) => "e5m2_gelu_grad",
            (Source::Slope, false) => "e4m3_slope",
            (Source::Slope, true) => "e5m2_slope",
        };
        let (first, second) = (operands[0], operands.get(1).copied().unwrap_or(NOTHING));
        let Copies { unit, as_it_is, transposed, .. } = copies;
        let [as_it_is, transposed, sums] = [as_it_is, transposed, sums].map(|at| at.unwrap_or(NOTHING));
        let mut arguments =
            vec![first, second, partials, unit, as_it_is, transposed, sums, rows.into(), columns.into()];
        if let Source::Bounded { powers } = source {
            arguments.push(Arg::U32(bounded_top(powers)));
        }
        // As many rows to a thread as the kernels say.
        let threads = if source.op().is_none() { THREADS } else { THREADS / 2 };
        builder.kernel(File::Quantise, name, real, &[], tiles(rows, columns, threads), &arguments)
    }
}

/// Rows in which the largest number is looked for: of every operand, where the first is, and how many rows lie from one to the next.
struct Sampled {
    source: Source,
    operands: [(Arg, usize); 2],
    real: DType,
    rows: usize,
}

impl Sampled {
    /// Of numbers that lie in memory.
    fn stored(at: Arg, real: DType, rows: usize) -> Self {
        Sampled::every(Source::Stored, &[at], real, rows)
    }

    /// Rows in equal steps, of one operand or two.
    fn every(source: Source, operands: &[Arg], real: DType, rows: usize) -> Self {
        let stride = sample_stride(rows);
        let operand = |index: usize| (operands.get(index).copied().unwrap_or(NOTHING), stride);
        Sampled { source, operands: [operand(0), operand(1)], real, rows: rows.div_ceil(stride) }
    }

    /// Where the kernels that quantise find the largest numbers of some blocks.
    fn largest(&self, builder: &mut Builder<'_>, columns: usize) -> Result<Arg> {
        let name = match self.source {
            Source::Stored | Source::Bounded { .. } => "largest_stored",
            Source::Gelu => "largest_gelu",
            Source::GeluGrad => "largest_gelu_grad",
            Source::Slope => "largest_slope",
        };
        let [(first, stride), (second, second_stride)] = self.operands;
        let partials = builder.scratch(4 * PARTIALS);
        let sizes = [self.rows, columns, stride, second_stride].map(Arg::from);
        let arguments = [&[first, second, partials], &sizes[..]].concat();
        builder.kernel(File::Quantise, name, self.real, &[], Grid::new(PARTIALS, THREADS), &arguments)?;
        Ok(partials)
    }
}

/// A block for every tile.
fn tiles(rows: usize, columns: usize, threads: u32) -> Grid {
    let blocks = [columns.div_ceil(TILE) as u32, rows.div_ceil(TILE) as u32, 1];
    Grid { blocks, threads, shared_bytes: 0 }
}

/// A factor of eight bits: rows in which the summed dimension lies innermost.
#[derive(Clone, Copy)]
struct Rows {
    at: Arg,
    of: DType,
    unit: Arg,
    rows: usize,
    columns: usize,
    /// Elements from one row to the next.
    leading: usize,
}

impl Rows {
    fn factor(self, transposed: bool) -> Factor {
        Factor { at: self.at, of: self.of, leading: self.leading, transposed, unit: Some(self.unit) }
    }
}

/// a·bᵀ: the one form that the matrix units take.
fn product(a: Rows, b: Rows, (out, out_type): (Arg, DType), add: bool, epilogue: Epilogue) -> Product {
    Product {
        rows: a.rows,
        columns: b.rows,
        inner: a.columns,
        left: a.factor(false),
        right: b.factor(true),
        out,
        out_type,
        out_leading: b.rows,
        add,
        epilogue,
    }
}

fn scaled_product(builder: &Builder<'_>, inputs: &[View], out: &View, bias: bool, add: bool) -> Product {
    let (factors, epilogue) = (factors(builder, inputs), epilogue(builder, inputs, bias));
    product(factors[0], factors[1], (builder.pointer(out), out.of.dtype), add, epilogue)
}

/// The factors of a product, each before its unit.
fn factors(builder: &Builder<'_>, inputs: &[View]) -> [Rows; 2] {
    [[0, 1], [2, 3]].map(|[factor, unit]| {
        let (view, unit) = (&inputs[factor], builder.pointer(&inputs[unit]));
        let [rows, columns] = [view.of.shape.rows(), view.of.shape.columns()];
        Rows { at: builder.pointer(view), of: view.of.dtype, unit, rows, columns, leading: columns }
    })
}

fn epilogue(builder: &Builder<'_>, inputs: &[View], bias: bool) -> Epilogue {
    if bias { Epilogue::Bias(builder.pointer(&inputs[4])) } else { Epilogue::Nothing }
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
