//! The products of a model, and its head: what the library computes, with our own kernel where it cannot.

use super::{
    batch,
    blas::{Epilogue, Factor, Product, WORTH_TIMING},
    call::{Arg, Builder, Fill, Grid},
    gate,
    gelu::{self, Tiles},
    modules::Source,
    rows, weight_gradient,
};
use crate::{
    device::View,
    error::Result,
    kernel::{HeadLoss, Kernel},
    op::Op,
    tensor::DType,
};

/// A matrix in memory: rows of `columns` elements, `leading` apart.
#[derive(Clone, Copy)]
struct Matrix {
    at: Arg,
    of: DType,
    rows: usize,
    columns: usize,
    leading: usize,
}

impl Matrix {
    fn of(builder: &Builder<'_>, view: &View) -> Self {
        let (rows, columns) = (view.of.shape.rows(), view.of.shape.columns());
        Matrix { at: builder.pointer(view), of: view.of.dtype, rows, columns, leading: columns }
    }

    /// Some of its rows.
    fn rows(&self, start: usize, rows: usize) -> Self {
        let bytes = start * self.leading * self.of.bytes();
        Matrix { at: self.at.plus(bytes), rows, ..*self }
    }

    /// The matrix in the type that it is multiplied in, as a copy where it is stored in another.
    fn rounded(self, builder: &mut Builder<'_>, products: DType) -> Result<Self> {
        if self.of != DType::F32 || products == DType::F32 {
            return Ok(self);
        }
        let elements = self.rows * self.leading;
        let at = builder.scratch(elements * products.bytes());
        let grid = Grid::new(elements.div_ceil(256).min(8 * builder.multiprocessors()), 256);
        let arguments = [self.at, at, Arg::U64(elements as u64)];
        builder.kernel(Source::Gemm, "round_operand", products, &[("OUT", 0)], grid, &arguments)?;
        Ok(Matrix { at, of: products, ..self })
    }

    /// A copy with rows and columns changed over.
    fn turned(self, builder: &mut Builder<'_>) -> Result<Self> {
        const TILE: usize = 64;
        let at = builder.scratch(self.rows * self.columns * self.of.bytes());
        let blocks = [self.columns.div_ceil(TILE) as u32, self.rows.div_ceil(TILE) as u32, 1];
        let arguments = [self.at, at, self.rows.into(), self.columns.into(), self.leading.into()];
        let grid = Grid { blocks, threads: 256, shared_bytes: 0 };
        builder.kernel(Source::Gemm, "turn", self.of, &[("OUT", 0)], grid, &arguments)?;
        Ok(Matrix { at, rows: self.columns, columns: self.rows, leading: self.rows, ..self })
    }

    fn factor(&self, transposed: bool) -> Factor {
        Factor { at: self.at, of: self.of, leading: self.leading, transposed, unit: None }
    }
}

/// Adds the calls of one launch; false for what is no product.
pub(super) fn add(
    builder: &mut Builder<'_>,
    kernel: &Kernel,
    inputs: &[View],
    outputs: &[View],
) -> Result<bool> {
    let matrix = |builder: &Builder<'_>, view: &View| Matrix::of(builder, view);
    match kernel {
        Kernel::Op(op) | Kernel::OpInto { op, .. } => {
            let adds = matches!(kernel, Kernel::OpInto { add: true, .. });
            match *op {
                Op::Linear { bias, products } => {
                    if !adds && own_product(builder, [inputs, &outputs[..1]], bias, products)? {
                        return Ok(true);
                    }
                    let epilogue =
                        if bias { Epilogue::Bias(builder.pointer(&inputs[2])) } else { Epilogue::Nothing };
                    forward(builder, inputs, matrix(builder, &outputs[0]), products, adds, epilogue)?;
                }
                Op::LinearGradInput { products } => {
                    input_gradient(builder, inputs, matrix(builder, &outputs[0]), products, adds)?;
                }
                Op::LinearGradWeight { products } => {
                    weight_gradient(builder, [inputs, outputs], products, adds)?;
                }
                _ => return Ok(false),
            }
        }
        &Kernel::LinearGelu { bias, products, slope } => {
            if slope || !own_product(builder, [inputs, outputs], bias, products)? {
                gelu_product(builder, [inputs, outputs], bias, products, slope)?;
            }
        }
        &Kernel::LinearGradGelu { products, slope } => {
            gelu_gradient(builder, [inputs, outputs], products, slope, None)?;
        }
        &Kernel::LinearGradGelus { products, slope, add } => {
            gelu_gradient(builder, [inputs, outputs], products, slope, Some(add))?;
        }
        &Kernel::LinearGate { products } => gate_product(builder, [inputs, outputs], products)?,
        &Kernel::LinearGradGate { products } => gate_gradient(builder, [inputs, outputs], products)?,
        Kernel::HeadLoss(head) if head.products.is_eight_bits() => return Ok(false),
        Kernel::HeadLoss(head) => head_loss(builder, head, inputs, outputs)?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// The most rows that `few_rows.cu` multiplies: with more, matrix units are faster.
pub(super) const MOST_FEW_ROWS: usize = 4;

/// A product whose operands are of one type and lie so that our own kernels can read them: `x, w, bias, y` and the GELU of `y`, with
/// rows, outputs and terms of a sum.
pub(super) struct Shaped {
    pub real: DType,
    pub operands: [Arg; 5],
    pub sizes: [usize; 3],
}

pub(super) fn shaped(
    builder: &Builder<'_>,
    [inputs, outputs]: [&[View]; 2],
    bias: bool,
    products: DType,
) -> Option<Shaped> {
    let (x, w) = (&inputs[0], &inputs[1]);
    let (rows, outputs_of, depth) = (x.of.shape.rows(), w.of.shape.rows(), w.of.shape.columns());
    let real = x.of.dtype;
    let is_one_type = inputs.iter().chain(outputs).all(|view| view.of.dtype == real)
        && (real != DType::F32 || products == DType::F32);
    let is_aligned = (depth * real.bytes()).is_multiple_of(16)
        && inputs.iter().chain(outputs).all(|view| view.offset_bytes.is_multiple_of(16));
    if rows == 0 || outputs_of == 0 || depth == 0 || !is_one_type || !is_aligned {
        return None;
    }
    let pointer = |view: Option<&View>| view.map_or(Arg::Pointer(0), |view| builder.pointer(view));
    let operands = [
        builder.pointer(x),
        builder.pointer(w),
        pointer(inputs.get(2).filter(|_| bias)),
        builder.pointer(&outputs[0]),
        pointer(outputs.get(1)),
    ];
    Some(Shaped { real, operands, sizes: [rows, outputs_of, depth] })
}

/// A product of so few rows that we have a kernel for it, and the GELU of it where there is a second output; false where there is none.
fn own_product(builder: &mut Builder<'_>, views: [&[View]; 2], bias: bool, products: DType) -> Result<bool> {
    let Some(Shaped { real, operands, sizes }) = shaped(builder, views, bias, products) else {
        return Ok(false);
    };
    if sizes[0] <= MOST_FEW_ROWS {
        return few_rows(builder, real, operands, sizes, false).map(|()| true);
    }
    let is_settled = views[0][1..].iter().all(|view| builder.is_settled(view));
    batch::add(builder, Shaped { real, operands, sizes }, is_settled)
}

/// The product of few rows, of which `few_rows.cu` says how it works; with weights as they are, or in eight bits.
pub(super) fn few_rows(
    builder: &mut Builder<'_>,
    real: DType,
    operands: [Arg; 5],
    [rows, outputs, depth]: [usize; 3],
    is_int8: bool,
) -> Result<()> {
    const WARPS: usize = 8;
    // As many warps as the card has room for, each with at least one pack for every lane.
    let wanted = 16 * builder.multiprocessors();
    let packs = if is_int8 { depth / 8 } else { depth * real.bytes() / 16 };
    let fits = |split: usize| outputs * split <= wanted && 32 * split <= packs;
    let split = [8, 4, 2].into_iter().find(|&split| fits(split)).unwrap_or(1);
    let grid = Grid::new(outputs.div_ceil(WARPS / split), 32 * WARPS as u32);
    let mut arguments = operands.to_vec();
    arguments.extend([outputs, depth].map(Arg::from));
    let settings = [("ROWS", rows), ("SPLIT", split), ("INT8", is_int8.into())];
    builder.kernel(Source::FewRows, "few_rows", real, &settings, grid, &arguments)
}

/// A product and the GELU of it, by the library in one, by our own kernels, or one after the other: which is faster depends on the
/// shape. The library keeps no slope.
fn gelu_product(
    builder: &mut Builder<'_>,
    views: [&[View]; 2],
    has_bias: bool,
    products: DType,
    slope: bool,
) -> Result<()> {
    let bias = |builder: &Builder<'_>, inputs: &[View]| has_bias.then(|| builder.pointer(&inputs[2]));
    let fused: &Fill<'_> = &|builder, inputs, outputs| {
        let (h, y) = (Matrix::of(builder, &outputs[0]), Matrix::of(builder, &outputs[1]));
        let epilogue = Epilogue::Gelu { before: h.at, bias: bias(builder, inputs) };
        Ok(!slope && has_fused_gelu(y) && try_forward(builder, inputs, y, products, epilogue)?)
    };
    let apart: &Fill<'_> = &|builder, inputs, outputs| {
        let h = Matrix::of(builder, &outputs[0]);
        let plain = bias(builder, inputs).map_or(Epilogue::Nothing, Epilogue::Bias);
        forward(builder, inputs, h, products, false, plain)?;
        rows::add(builder, &Kernel::Op(Op::Gelu), &outputs[..1], &outputs[1..])?;
        if slope {
            rows::gelu_slope(builder, &outputs[0])?;
        }
        Ok(true)
    };
    let [narrow, wide] = [Tiles::NARROW, Tiles::WIDE].map(|tiles| {
        move |builder: &mut Builder<'_>, inputs: &[View], outputs: &[View]| {
            gelu::forward(builder, tiles, slope, inputs, outputs)
        }
    });
    let name = if slope { "gelu_product_slope" } else { "gelu_product" };
    fastest(builder, name, views, &[fused, &narrow, &wide, apart])
}

/// The gradient of a product's argument times GELU's slope, in one by the library, with the weight as it is or turned first, by our
/// own kernels, or one after the other. With `adds`, the sums of its columns as well, which our own kernels take on the way.
fn gelu_gradient(
    builder: &mut Builder<'_>,
    views: [&[View]; 2],
    products: DType,
    has_slope: bool,
    adds: Option<bool>,
) -> Result<()> {
    let with_sums = |builder: &mut Builder<'_>, outputs: &[View], is_there: bool| match adds {
        Some(add) if is_there => {
            let sums = Kernel::OpInto { op: Op::LinearGradBias, add };
            rows::add(builder, &sums, &outputs[..1], &outputs[1..])
        }
        _ => Ok(is_there),
    };
    let slope =
        |builder: &Builder<'_>, inputs: &[View]| Epilogue::GeluSlope { before: builder.pointer(&inputs[2]) };
    let fused: &Fill<'_> = &|builder, inputs, outputs| {
        let (out, epilogue) = (Matrix::of(builder, &outputs[0]), slope(builder, inputs));
        let [d_y, w] = rounded_pair(builder, inputs, products)?;
        let product = product((d_y, false), (w, false), out, false, epilogue);
        let is_there = !has_slope && has_fused_gelu(out) && builder.product(product)?;
        with_sums(builder, outputs, is_there)
    };
    let turned: &Fill<'_> = &|builder, inputs, outputs| {
        let (out, epilogue) = (Matrix::of(builder, &outputs[0]), slope(builder, inputs));
        let [d_y, w] = rounded_pair(builder, inputs, products)?;
        let w = w.turned(builder)?;
        let product = product((d_y, false), (w, true), out, false, epilogue);
        let is_there = !has_slope && has_fused_gelu(out) && builder.product(product)?;
        with_sums(builder, outputs, is_there)
    };
    let apart: &Fill<'_> = &|builder, inputs, outputs| {
        let out = Matrix::of(builder, &outputs[0]);
        input_gradient(builder, inputs, out, products, false)?;
        // Element by element, so the result may take the place of its operand.
        let times_slope = Kernel::Op(if has_slope { Op::Mul } else { Op::GeluGrad });
        let is_there = rows::add(builder, &times_slope, &[inputs[2], outputs[0]], &outputs[..1])?;
        with_sums(builder, outputs, is_there)
    };
    let [narrow, wide] = [Tiles::NARROW, Tiles::WIDE].map(|tiles| {
        move |builder: &mut Builder<'_>, inputs: &[View], outputs: &[View]| {
            gelu::backward(builder, tiles, has_slope, inputs, outputs, adds)
        }
    });
    let name = match (has_slope, adds.is_some()) {
        (false, false) => "gelu_gradient",
        (false, true) => "gelu_gradient_sums",
        (true, false) => "slope_gradient",
        (true, true) => "slope_gradient_sums",
    };
    fastest(builder, name, views, &[fused, turned, &narrow, &wide, apart])
}

/// A product and its gate with the gate's slopes, by our own kernels, every block for itself or in pairs, or one after the other.
fn gate_product(builder: &mut Builder<'_>, views: [&[View]; 2], products: DType) -> Result<()> {
    let apart: &Fill<'_> = &|builder, inputs, outputs| {
        let gate_up = Matrix::of(builder, &outputs[0]);
        forward(builder, inputs, gate_up, products, false, Epilogue::Nothing)?;
        rows::gate_slopes(builder, outputs).map(|()| true)
    };
    let [alone, paired] = gate::CLUSTERS.map(|cluster| {
        move |builder: &mut Builder<'_>, inputs: &[View], outputs: &[View]| {
            gate::forward(builder, cluster, inputs, outputs)
        }
    });
    fastest(builder, "gate_product", views, &[&alone, &paired, apart])
}

/// The gradients of a gate's operands, in the same ways.
fn gate_gradient(builder: &mut Builder<'_>, views: [&[View]; 2], products: DType) -> Result<()> {
    let apart: &Fill<'_> = &|builder, inputs, outputs| {
        // The gradient of the gate's result lies in its first half until both halves are there.
        let both = Matrix::of(builder, &outputs[0]);
        let d_y = Matrix { columns: both.columns / 2, ..both };
        input_gradient(builder, inputs, d_y, products, false)?;
        rows::times_gate_slopes(builder, &inputs[2], &outputs[0]).map(|()| true)
    };
    let [alone, paired] = gate::CLUSTERS.map(|cluster| {
        move |builder: &mut Builder<'_>, inputs: &[View], outputs: &[View]| {
            gate::backward(builder, cluster, inputs, outputs)
        }
    });
    fastest(builder, "gate_gradient", views, &[&alone, &paired, apart])
}

/// `d_yᵀ·x`, by the library or by our own kernel, whose tiles suit some weights better.
fn weight_gradient(
    builder: &mut Builder<'_>,
    views: [&[View]; 2],
    products: DType,
    adds: bool,
) -> Result<()> {
    let by_library: &Fill<'_> = &|builder, inputs, outputs| {
        let [d_y, x] = rounded_pair(builder, inputs, products)?;
        let out = Matrix::of(builder, &outputs[0]);
        multiply(builder, (d_y, true), (x, false), out, adds, Epilogue::Nothing).map(|()| true)
    };
    if weight_gradient::suited(builder, views[0], views[1]).is_none() {
        return by_library(builder, views[0], views[1]).map(|_| ());
    }
    let own: &Fill<'_> = &|builder, inputs, outputs| weight_gradient::add(builder, inputs, outputs, adds);
    let name = if adds { "weight_gradient_add" } else { "weight_gradient" };
    fastest(builder, name, views, &[by_library, own])
}

/// Adds the fastest way to run a product of the first two inputs, of which one always runs.
fn fastest(builder: &mut Builder<'_>, name: &str, views: [&[View]; 2], ways: &[&Fill<'_>]) -> Result<()> {
    let [inputs, outputs] = views;
    let (rows, columns) = (outputs[0].of.shape.rows(), outputs[0].of.shape.columns());
    let inner = inputs[0].of.shape.elements() / rows.max(1);
    let key = format!("{name}{} {rows}x{columns}x{inner} {}", inputs.len(), inputs[0].of.dtype);
    let is_worth_timing = rows as f64 * columns as f64 * inner as f64 >= WORTH_TIMING;
    builder.fastest(key, is_worth_timing, views, ways).map(|_| ())
}

/// Whether the library's GELU is exact enough: its tangent is good for 16 bits, not for 32.
fn has_fused_gelu(out: Matrix) -> bool {
    out.of != DType::F32
}

/// The first two inputs as they are multiplied.
fn rounded_pair(builder: &mut Builder<'_>, inputs: &[View], products: DType) -> Result<[Matrix; 2]> {
    let first = Matrix::of(builder, &inputs[0]).rounded(builder, products)?;
    let second = Matrix::of(builder, &inputs[1]).rounded(builder, products)?;
    Ok([first, second])
}

/// `x·wᵀ`, where the library can do it with this epilogue.
fn try_forward(
    builder: &mut Builder<'_>,
    inputs: &[View],
    out: Matrix,
    products: DType,
    epilogue: Epilogue,
) -> Result<bool> {
    let [x, w] = rounded_pair(builder, inputs, products)?;
    builder.product(product((x, false), (w, true), out, false, epilogue))
}

fn forward(
    builder: &mut Builder<'_>,
    inputs: &[View],
    out: Matrix,
    products: DType,
    adds: bool,
    epilogue: Epilogue,
) -> Result<()> {
    let [x, w] = rounded_pair(builder, inputs, products)?;
    multiply(builder, (x, false), (w, true), out, adds, epilogue)
}

/// `d_y·w`.
fn input_gradient(
    builder: &mut Builder<'_>,
    inputs: &[View],
    out: Matrix,
    products: DType,
    adds: bool,
) -> Result<()> {
    let [d_y, w] = rounded_pair(builder, inputs, products)?;
    multiply(builder, (d_y, false), (w, false), out, adds, Epilogue::Nothing)
}

/// Factors with whether each is multiplied transposed.
fn product(
    (left, left_transposed): (Matrix, bool),
    (right, right_transposed): (Matrix, bool),
    out: Matrix,
    add: bool,
    epilogue: Epilogue,
) -> Product {
    Product {
        rows: out.rows,
        columns: out.columns,
        inner: if left_transposed { left.rows } else { left.columns },
        left: left.factor(left_transposed),
        right: right.factor(right_transposed),
        out: out.at,
        out_type: out.of,
        out_leading: out.leading,
        add,
        epilogue,
    }
}

/// The product by the library, or by our own kernel where it has none.
fn multiply(
    builder: &mut Builder<'_>,
    left: (Matrix, bool),
    right: (Matrix, bool),
    out: Matrix,
    add: bool,
    epilogue: Epilogue,
) -> Result<()> {
    const TILE: usize = 64;
    let product = product(left, right, out, add, epilogue);
    if builder.product(product)? {
        return Ok(());
    }
    let bias = match epilogue {
        Epilogue::Bias(at) => at,
        _ => Arg::Pointer(0),
    };
    let of = product.left.of;
    let is_real = of == product.out_type;
    let blocks = [product.columns.div_ceil(TILE) as u32, product.rows.div_ceil(TILE) as u32, 1];
    let arguments = [
        product.left.at,
        product.right.at,
        bias,
        product.out,
        product.rows.into(),
        product.columns.into(),
        product.inner.into(),
        product.left.leading.into(),
        product.right.leading.into(),
        product.out_leading.into(),
        usize::from(product.left.transposed).into(),
        usize::from(product.right.transposed).into(),
        usize::from(product.add).into(),
    ];
    let grid = Grid { blocks, threads: 256, shared_bytes: 0 };
    builder.kernel(Source::Gemm, "gemm", of, &[("OUT", usize::from(is_real))], grid, &arguments)
}

/// A few rows of logits at a time: product, loss with its gradient in place, and the two products of the gradient.
fn head_loss(builder: &mut Builder<'_>, head: &HeadLoss, inputs: &[View], outputs: &[View]) -> Result<()> {
    // Rows of logits begin at 16-byte places even where the vocabulary is odd: the library is much faster on such.
    const ALIGNMENT: usize = 8;
    let x = Matrix::of(builder, &inputs[0]);
    let w = Matrix::of(builder, &inputs[1]).rounded(builder, head.products)?;
    let vocabulary = w.rows;
    let leading = vocabulary.next_multiple_of(ALIGNMENT);
    let workspace = &outputs[1].of;
    let (leading, chunk) = match workspace.shape.elements() / leading {
        0 => (vocabulary, 1),
        chunk => (leading, chunk.min(x.rows)),
    };
    let [targets, weights] = [2, 3].map(|index| builder.pointer(&inputs[index]));
    let d_losses = head.has_gradient().then(|| builder.pointer(&inputs[4]));
    let losses = builder.pointer(&outputs[0]);
    for start in (0..x.rows).step_by(chunk) {
        let rows = chunk.min(x.rows - start);
        let x = x.rows(start, rows).rounded(builder, head.products)?;
        let logits = Matrix {
            at: builder.pointer(&outputs[1]),
            of: workspace.dtype,
            rows,
            columns: vocabulary,
            leading,
        };
        multiply(builder, (x, false), (w, true), logits, false, Epilogue::Nothing)?;
        rows::add_head_rows(
            builder,
            &head.loss,
            rows::HeadRows {
                logits: logits.at,
                of: logits.of,
                rows,
                vocabulary,
                leading,
                targets: targets.plus(4 * start),
                weights: weights.plus(4 * start),
                d_losses: d_losses.map(|at| at.plus(4 * start)),
                losses: losses.plus(4 * start),
            },
        )?;
        if !head.has_gradient() {
            continue;
        }
        let d_logits = logits.rounded(builder, head.products)?;
        if head.d_input {
            let d_x = Matrix::of(builder, &outputs[2]).rows(start, rows);
            multiply(builder, (d_logits, false), (w, false), d_x, false, Epilogue::Nothing)?;
        }
        if let Some(add) = head.d_weight {
            let d_w = Matrix::of(builder, &outputs[2 + usize::from(head.d_input)]);
            multiply(builder, (d_logits, true), (x, false), d_w, add || start > 0, Epilogue::Nothing)?;
        }
    }
    Ok(())
}
