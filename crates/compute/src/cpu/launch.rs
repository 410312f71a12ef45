//! From a kernel to the function that runs it, and the working memory that it takes.

use super::{
    Context, DEVICE, Needs,
    attention::{self, Sizes},
    gemm,
    gemm::Matrix,
    gemm::Product,
    head,
    memory::{Operands, Operation},
    rows,
    simd::Simd,
    vector,
};
use crate::{
    device::Launch,
    error::{Error, Result},
    kernel::Kernel,
    op::Op,
    tensor::{DType, Shape},
};

/// Whether a kernel reads this input, of this type, as it lies when it is frozen.
pub(super) fn reads_frozen(kernel: &Kernel, index: usize, dtype: DType) -> bool {
    match kernel {
        Kernel::Op(Op::Embed) => index == 0 && dtype == DType::F32,
        Kernel::Op(Op::Linear { products, .. }) | Kernel::LinearGelu { products, .. } => {
            index == 1 && dtype == *products
        }
        Kernel::HeadLoss(of) => index == 1 && dtype == of.products && !of.has_gradient(),
        _ => false,
    }
}

/// The working memory of a checked launch.
pub(super) fn needs(simd: Simd, launch: &Launch, operation: &Operation) -> Needs {
    let input = |index: usize| -> Shape { launch.inputs[index].of.shape };
    let linear = |products: DType| {
        let sizes = [input(0).rows(), input(1).rows(), input(1).columns()];
        gemm::needs_of(simd, products, sizes, operation.frozen(1))
    };
    match &launch.kernel {
        Kernel::Op(op) | Kernel::OpInto { op, .. } => match op {
            Op::Linear { products, .. } => linear(*products),
            Op::LinearGradInput { products } => {
                gemm::needs(simd, *products, [input(0).rows(), input(1).columns(), input(1).rows()])
            }
            Op::LinearGradWeight { products } => {
                gemm::needs(simd, *products, [input(0).columns(), input(1).columns(), input(0).rows()])
            }
            Op::Attention(of) => attention::needs(simd, Sizes::apart(of, input(0), input(1))),
            Op::AttentionGrad(of) => attention::grad_needs(simd, Sizes::apart(of, input(1), input(2))),
            Op::LinearGradBias => rows::norm::sum_needs(input(0).rows(), input(0).columns()),
            Op::LayerNormGradParams { .. } => rows::norm::sum_needs(input(0).rows(), 2 * input(0).columns()),
            _ => Needs::default(),
        },
        Kernel::LinearGelu { products, .. } => linear(*products),
        Kernel::LinearGradGelu { products, .. } | Kernel::LinearGradGelus { products, .. } => {
            let [rows, columns] = [input(0).rows(), input(1).columns()];
            let mut needs = gemm::needs(simd, *products, [rows, columns, input(1).rows()]);
            if matches!(launch.kernel, Kernel::LinearGradGelus { .. }) {
                needs.include(rows::norm::sum_needs(rows, columns));
            }
            needs
        }
        Kernel::NormGrads(of) => rows::norm::grads_needs(*of, input(0), input(2).elements()),
        Kernel::JointAttention(of) => attention::needs(simd, Sizes::joint(of, input(0))),
        Kernel::JointAttentionGrad(of) => attention::grad_needs(simd, Sizes::joint(of, input(1))),
        Kernel::JointAttentionGrads { of, .. } => {
            let mut needs = attention::grad_needs(simd, Sizes::joint(of, input(1)));
            needs.include(rows::norm::sum_needs(input(1).rows(), input(1).columns()));
            needs
        }
        Kernel::CachedAttention(of) => {
            attention::needs(simd, Sizes::beside_cache(of, input(0), launch.outputs[2].of.shape))
        }
        Kernel::HeadLoss(of) => head::needs(simd, of, input(0), input(1), operation.frozen(1)),
        // A place for every id.
        Kernel::Draw(_) | Kernel::LogProbabilities(_) => {
            Needs { scratch: input(0).columns(), ..Needs::default() }
        }
        Kernel::GlobalNorm => {
            Needs { partials: rows::update::partial_count(input(0).elements()), ..Needs::default() }
        }
        Kernel::Cast
        | Kernel::StateWrite { .. }
        | Kernel::CacheAppend
        | Kernel::CacheCopy
        | Kernel::Adjust
        | Kernel::AddLayerNorm { .. }
        | Kernel::AddRmsNorm { .. }
        | Kernel::AddBiasedLayerNorm { .. }
        | Kernel::LayerNormGradAdd
        | Kernel::RmsNormGradAdd
        | Kernel::JointSiluGate
        | Kernel::JointSiluGateGrad
        | Kernel::LinearGate { .. }
        | Kernel::LinearGradGate { .. }
        | Kernel::Quantise(_)
        | Kernel::QuantiseWeights(_)
        | Kernel::RoundTargets
        | Kernel::QuantisedNorm(_)
        | Kernel::QuantisedNormGrads(_)
        | Kernel::QuantisedAttentionGrad(_)
        | Kernel::ScaledProduct { .. }
        | Kernel::GeluProduct(_)
        | Kernel::Guard(_)
        | Kernel::Adam(_)
        | Kernel::Sgd(_)
        | Kernel::Momentum { .. }
        | Kernel::Normalise
        | Kernel::Combine(_)
        | Kernel::Descend(_)
        | Kernel::Average { .. } => Needs::default(),
    }
}

/// Runs a checked launch.
pub(super) fn run(context: &mut Context<'_>, kernel: &Kernel, operands: &mut Operands<'_>) -> Result<()> {
    match kernel {
        Kernel::Op(op) => return run_op(context, op, operands, false),
        Kernel::OpInto { op, add } => return run_op(context, op, operands, *add),
        Kernel::Cast if operands.output_type(0).dtype == DType::BF16 => {
            rows::copy::to_pairs(context, operands)
        }
        Kernel::Cast => rows::pointwise::write(context, operands, false),
        Kernel::StateWrite { add } => rows::pointwise::write(context, operands, *add),
        Kernel::CacheAppend => rows::copy::cache_append(operands),
        Kernel::CacheCopy => rows::copy::cache_copy(operands),
        Kernel::Adjust => rows::draw::adjust(operands),
        Kernel::Draw(of) => rows::draw::draw(context, operands, *of),
        Kernel::LogProbabilities(of) => rows::draw::log_probabilities(context, operands, *of),
        Kernel::AddLayerNorm { eps, .. } => rows::norm::add_layer_norm(context, operands, *eps, false),
        Kernel::AddBiasedLayerNorm { eps, .. } => rows::norm::add_layer_norm(context, operands, *eps, true),
        Kernel::AddRmsNorm { eps } => rows::norm::add_rms_norm(context, operands, *eps),
        Kernel::LayerNormGradAdd => rows::norm::layer_norm_grad_input(context, operands, true),
        Kernel::RmsNormGradAdd => rows::norm::rms_norm_grad_input(context, operands, true),
        Kernel::NormGrads(of) => rows::norm::norm_grads(context, operands, *of),
        Kernel::JointSiluGate => rows::pointwise::joint_silu_gate(context, operands),
        Kernel::JointSiluGateGrad => rows::pointwise::joint_silu_gate_grad(context, operands),
        &Kernel::LinearGelu { bias, products, slope: false } => {
            let (simd, product) = (context.simd, linear(operands, bias, products));
            let outputs = [operands.output(0), operands.output(1)];
            gemm::multiply_then(context, product, outputs, |[h, y], _| {
                for row in 0..h.rows() {
                    vector::gelu(simd, h.row_mut(row), y.row_mut(row));
                }
            });
        }
        &Kernel::LinearGradGelu { products, slope: false } => {
            let d_h = operands.output(0);
            gelu_grad(context, operands, products, d_h);
        }
        &Kernel::LinearGradGelus { products, slope: false, add } => {
            let columns = operands.input_type(2).shape.columns();
            let [d_h, d_bias] = [0, 1].map(|index| operands.output(index));
            gelu_grad(context, operands, products, &mut *d_h);
            rows::norm::bias_sums(context, d_h, columns, d_bias, add);
        }
        Kernel::JointAttention(of) => {
            let sizes = Sizes::joint(of, operands.input_type(0).shape);
            attention::attention(context, operands, sizes);
        }
        Kernel::CachedAttention(of) => {
            let (qkv, cache) = (operands.input_type(0).shape, operands.output_type(2).shape);
            attention::cached_attention(context, operands, Sizes::beside_cache(of, qkv, cache));
        }
        Kernel::JointAttentionGrad(of) => {
            let (sizes, d_qkv) = (Sizes::joint(of, operands.input_type(1).shape), operands.output(0));
            attention::attention_grad(context, operands, [d_qkv], sizes);
        }
        Kernel::JointAttentionGrads { of, add } => {
            let shape = operands.input_type(1).shape;
            let [d_qkv, d_bias] = [0, 1].map(|index| operands.output(index));
            attention::attention_grad(context, operands, [&mut *d_qkv], Sizes::joint(of, shape));
            rows::norm::bias_sums(context, d_qkv, shape.columns(), d_bias, *add);
        }
        Kernel::HeadLoss(of) => return head::head_loss(context, operands, of),
        // Processors have no products of eight bits; binding has refused the type before. They do not ask for slopes.
        Kernel::LinearGelu { slope: true, .. }
        | Kernel::LinearGradGelu { slope: true, .. }
        | Kernel::LinearGradGelus { slope: true, .. }
        | Kernel::LinearGate { .. }
        | Kernel::LinearGradGate { .. }
        | Kernel::Quantise(_)
        | Kernel::QuantiseWeights(_)
        | Kernel::RoundTargets
        | Kernel::QuantisedNorm(_)
        | Kernel::QuantisedNormGrads(_)
        | Kernel::QuantisedAttentionGrad(_)
        | Kernel::ScaledProduct { .. }
        | Kernel::GeluProduct(_) => {
            let dtype = operands.input_type(0).dtype;
            return Err(Error::Unsupported { device: DEVICE, kernel: kernel.name(), dtype });
        }
        Kernel::GlobalNorm => rows::update::global_norm(context, operands),
        Kernel::Guard(of) => rows::update::guard(operands, of),
        Kernel::Adam(of) => rows::update::adam(context, operands, of),
        Kernel::Sgd(of) => rows::update::sgd(context, operands, of),
        Kernel::Momentum { decay } => rows::muon::momentum(context, operands, *decay),
        Kernel::Normalise => rows::muon::normalise(context, operands),
        Kernel::Combine(factors) => rows::muon::combine(context, operands, *factors),
        Kernel::Descend(of) => rows::muon::descend(context, operands, of),
        Kernel::Average { decay } => rows::muon::average(context, operands, *decay),
    }
    Ok(())
}

/// The gradient of an activation's argument, whose slope is multiplied into tiles of the product as they are finished.
fn gelu_grad(context: &mut Context<'_>, operands: &Operands<'_>, products: DType, d_h: &mut [f32]) {
    let (simd, a, b, h) = (context.simd, matrix(operands, 0), matrix(operands, 1), operands.input(2));
    let columns = operands.input_type(2).shape.columns();
    let product = Product { a, b, bias: None, add: false, products };
    gemm::multiply_then(context, product, [d_h], |[d_h], column| {
        for row in 0..d_h.rows() {
            let h = &h[(d_h.row + row) * columns + column..][..d_h.columns()];
            vector::multiply_by_gelu_slope(simd, h, d_h.row_mut(row));
        }
    });
}

/// Runs an op; `add` is only ever set for those that can add to their outputs.
fn run_op(context: &mut Context<'_>, op: &Op, operands: &mut Operands<'_>, add: bool) -> Result<()> {
    match op {
        Op::Embed => return rows::embed::embed(context, operands),
        &Op::Linear { bias, products } => {
            let product = linear(operands, bias, products);
            gemm::multiply(context, product, operands.output(0));
        }
        Op::LayerNorm { eps, bias } => rows::norm::layer_norm(context, operands, *eps, *bias),
        Op::RmsNorm { eps } => rows::norm::rms_norm(context, operands, *eps),
        Op::Rope { inverse, still } => return rows::embed::rope(context, operands, *inverse, *still),
        Op::Split { .. } => rows::copy::split(context, operands),
        Op::Concat => rows::copy::concat(context, operands),
        Op::Attention(of) => {
            let sizes = Sizes::apart(of, operands.input_type(0).shape, operands.input_type(1).shape);
            attention::attention(context, operands, sizes);
        }
        Op::Gelu => rows::pointwise::activate(context, operands, vector::gelu),
        Op::GeluErf => rows::pointwise::activate(context, operands, vector::gelu_erf),
        Op::ReluSquared => rows::pointwise::activate(context, operands, vector::relu_squared),
        Op::SiluGate => rows::pointwise::combine(context, operands, vector::silu_gate),
        Op::Add => rows::pointwise::combine(context, operands, vector::add),
        Op::Mul => rows::pointwise::combine(context, operands, vector::mul),
        Op::Affine { factor, offset } => rows::pointwise::affine(context, operands, *factor, *offset),
        Op::Dropout { probability, number } => {
            rows::pointwise::dropout(context, operands, *probability, *number);
        }
        Op::CrossEntropy(shape) => return rows::loss::cross_entropy(context, operands, *shape),
        Op::Sum => rows::pointwise::sum(context, operands),
        Op::Broadcast { .. } => rows::pointwise::broadcast(context, operands),
        Op::EmbedGrad { .. } => return rows::embed::embed_grad(context, operands, add),
        &Op::LinearGradInput { products } => {
            let (a, b) = (matrix(operands, 0), matrix(operands, 1));
            gemm::multiply(context, Product { a, b, bias: None, add, products }, operands.output(0));
        }
        &Op::LinearGradWeight { products } => {
            let (a, b) = (matrix(operands, 0).transposed(), matrix(operands, 1));
            gemm::multiply(context, Product { a, b, bias: None, add, products }, operands.output(0));
        }
        Op::LinearGradBias => rows::norm::linear_grad_bias(context, operands, add),
        Op::LayerNormGradInput => rows::norm::layer_norm_grad_input(context, operands, false),
        Op::LayerNormGradParams { bias } => rows::norm::layer_norm_grad_params(context, operands, *bias, add),
        Op::AttentionGrad(of) => {
            let sizes = Sizes::apart(of, operands.input_type(1).shape, operands.input_type(2).shape);
            let gradients = [0, 1, 2].map(|index| operands.output(index));
            attention::attention_grad(context, operands, gradients, sizes);
        }
        Op::RmsNormGradInput => rows::norm::rms_norm_grad_input(context, operands, false),
        Op::RmsNormGradGain { .. } => rows::norm::rms_norm_grad_gain(context, operands, add),
        Op::GeluGrad => rows::pointwise::combine(context, operands, vector::gelu_grad),
        Op::GeluErfGrad => rows::pointwise::combine(context, operands, vector::gelu_erf_grad),
        Op::ReluSquaredGrad => rows::pointwise::combine(context, operands, vector::relu_squared_grad),
        Op::SiluGateGrad => rows::pointwise::silu_gate_grad(context, operands),
        Op::CrossEntropyGrad(shape) => {
            return rows::loss::cross_entropy_grad(context, operands, *shape);
        }
    }
    Ok(())
}

/// x·wᵀ of the first two inputs, with the third as bias.
fn linear<'a>(operands: &Operands<'a>, bias: bool, products: DType) -> Product<'a> {
    let bias = bias.then(|| operands.input(2));
    Product { a: matrix(operands, 0), b: weight(operands, 1).transposed(), bias, add: false, products }
}

/// An input that may be a copy in bf16, and may be frozen.
pub(super) fn weight<'a>(operands: &Operands<'a>, index: usize) -> Matrix<'a> {
    let of = operands.input_type(index);
    let weight = match of.dtype {
        DType::BF16 => Matrix::of_pairs(operands.input(index), of.shape.rows(), of.shape.columns()),
        _ => matrix(operands, index),
    };
    weight.laid_out(operands.frozen(index))
}

/// An input as a matrix of its rows.
fn matrix<'a>(operands: &Operands<'a>, index: usize) -> Matrix<'a> {
    let shape = operands.input_type(index).shape;
    Matrix::new(operands.input(index), shape.rows(), shape.columns())
}
