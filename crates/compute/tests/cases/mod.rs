//! A launch with its data: inputs, initial state, and how far a backend in f32 may be from the oracle.

#![allow(dead_code, reason = "every test binary uses a part of it")]

mod list;

pub use list::all;
#[allow(unused_imports, reason = "only a card has them")]
pub use list::{
    UNLIKELY, adams_with_copies, eight_bit_heads, embedding_gradients, gates_in_tiles, gelu_products,
    products_of_rows, quantised, quantised_attention_grads, quantised_norm_grads, quantised_norms,
    quantised_weights, scaled_products, unlikely_targets,
};
#[allow(unused_imports, reason = "only tests of libraries use them")]
pub use list::{
    attentions_in_whole_tiles, attentions_of_wide_heads, gelus_in_tiles, grads_of_many_heads,
    grads_of_whole_heads, quantised_grads_of_whole_heads, weight_gradients_in_wide_tiles,
};

/// What products can be of.
pub const PRODUCTS: [DType; 2] = [DType::F32, DType::BF16];

use ironmill_compute::{
    DType, Device, Error, GeluProduct, HostData, IGNORED, Kernel, Launch, LossShape, Op, Quantise, Reference,
    Result, SequenceId, TensorType, View,
    philox::{normal_pair, philox},
};

/// Elements of an operand.
#[derive(Clone, Debug)]
pub enum Data {
    Real(Vec<f32>),
    Index(Vec<u32>),
}

/// An operand with its shape.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub of: TensorType,
    pub data: Data,
}

impl Tensor {
    /// The elements of an operand that has numbers.
    fn reals(&self) -> Vec<f64> {
        match &self.data {
            Data::Real(data) => data.iter().map(|&x| x.into()).collect(),
            Data::Index(_) => panic!("numbers"),
        }
    }
}

/// One launch.
#[derive(Clone, Debug)]
pub struct Case {
    pub kernel: Kernel,
    pub inputs: Vec<Tensor>,
    /// Outputs with what is in them before.
    pub outputs: Vec<Tensor>,
    /// The length of the longest sum behind an element.
    pub terms: usize,
}

impl Case {
    pub fn name(&self) -> String {
        let inputs: Vec<String> = self.inputs.iter().map(|tensor| tensor.of.to_string()).collect();
        format!("{:?} of {}", self.kernel, inputs.join(", "))
    }

    /// The largest error that is allowed in an output: `c·ε·√terms` times the largest element of it, or of the state that
    /// the kernel adds to.
    pub fn bound(&self, output: usize, expected: &[f64]) -> f64 {
        let adds = match self.kernel {
            Kernel::OpInto { add, .. } | Kernel::StateWrite { add } | Kernel::ScaledProduct { add, .. } => {
                add
            }
            Kernel::NormGrads(of) => of.add && output > 0,
            Kernel::JointAttentionGrads { add, .. } | Kernel::LinearGradGelus { add, .. } => {
                add && output > 0
            }
            _ => false,
        };
        let before = match &self.outputs[output].data {
            Data::Real(data) if adds => data.iter().fold(0.0f32, |max, x| max.max(x.abs())),
            _ => 0.0,
        };
        let scale = largest(expected).max(before.into());
        // The matrix units keep some 14 bits of a sum of products of eight bits.
        let epsilon = match self.kernel {
            Kernel::ScaledProduct { .. } => 2f64.powi(-12),
            _ => DType::F32.epsilon(),
        };
        let sums = roundings(&self.kernel) * epsilon * (self.terms as f64).sqrt() * scale;
        // A factor that is itself computed may lie so near to the middle of two bf16 that f32 rounds it the other way.
        let factors = if self.has_computed_factors() { 1.0 } else { 0.0 };
        // What is stored narrowly may be rounded the other way; a fused kernel may skip a rounding that its parts make.
        let stored = match self.rounded_like(output) {
            DType::F32 | DType::U32 => 0.0,
            dtype => 2.0 * dtype.epsilon(),
        };
        // Values may cancel each other.
        let scale = match &self.kernel {
            Kernel::Op(Op::Attention(_)) if output == 0 => scale.max(largest(&self.inputs[2].reals())),
            Kernel::JointAttention(_) if output == 0 => scale.max(largest(&self.inputs[0].reals())),
            Kernel::CachedAttention(_) if output == 0 => {
                scale.max(largest(&self.inputs[0].reals())).max(largest(&self.outputs[3].reals()))
            }
            // So do the rows of a sum, whose errors add up.
            Kernel::JointAttentionGrads { .. } if output == 1 => {
                let rows = self.inputs[0].of.shape.rows() as f64;
                scale.max(rows.sqrt() * largest(&self.inputs[0].reals()))
            }
            Kernel::LinearGradGelus { .. } if output == 1 => {
                let rows = self.inputs[0].of.shape.rows() as f64;
                let factors = largest(&self.inputs[0].reals()) * largest(&self.inputs[1].reals());
                scale.max((rows * self.terms as f64).sqrt() * factors)
            }
            _ => scale,
        };
        let products = self.products().epsilon();
        sums + (factors * products + stored) * scale
    }

    /// The type that an output was rounded to, or that what it is the sum of was.
    fn rounded_like(&self, output: usize) -> DType {
        let is_sum_of_first = match self.kernel {
            Kernel::NormGrads(of) => of.bias && output == self.outputs.len() - 1,
            Kernel::JointAttentionGrads { .. } | Kernel::LinearGradGelus { .. } => output == 1,
            _ => false,
        };
        self.outputs[if is_sum_of_first { 0 } else { output }].of.dtype
    }

    /// The same launch with activations and weights in a narrower type, as a program under a working precision has it:
    /// statistics, losses, weight gradients and optimiser state stay f32. Nothing for a launch that is all f32 there.
    pub fn in_working_type(&self, dtype: DType) -> Option<Case> {
        let (stays, results_stay) = f32_operands(&self.kernel)?;
        if self.products() != DType::F32 {
            return None;
        }
        let mut case = self.clone();
        let narrow = |tensors: &mut [Tensor], stays: &[usize]| {
            for (index, tensor) in tensors.iter_mut().enumerate() {
                if let Data::Real(data) = &mut tensor.data
                    && !stays.contains(&index)
                {
                    tensor.of = tensor.of.with_dtype(dtype);
                    data.iter_mut().for_each(|x| *x = dtype.round((*x).into()) as f32);
                }
            }
        };
        narrow(&mut case.inputs, &stays);
        let is_finite = |tensor: &Tensor| match &tensor.data {
            Data::Real(data) => data.iter().all(|x| x.is_finite()),
            Data::Index(_) => true,
        };
        if !case.inputs.iter().all(is_finite) {
            return None;
        }
        narrow(&mut case.outputs, &results_stay);
        match &mut case.kernel {
            Kernel::Op(op) | Kernel::OpInto { op, .. } => {
                if let Some(products) = op.products_mut() {
                    *products = dtype;
                }
            }
            Kernel::HeadLoss(head) => head.products = dtype,
            Kernel::LinearGelu { products, .. }
            | Kernel::LinearGradGelu { products, .. }
            | Kernel::LinearGradGelus { products, .. }
            | Kernel::LinearGate { products }
            | Kernel::LinearGradGate { products } => *products = dtype,
            Kernel::JointAttention(of)
            | Kernel::JointAttentionGrad(of)
            | Kernel::JointAttentionGrads { of, .. }
            | Kernel::CachedAttention(of) => {
                of.products = dtype;
            }
            _ => (),
        }
        Some(case)
    }

    /// The same launch with operands of products rounded to another type; nothing for a launch without any.
    pub fn with_products(&self, dtype: DType) -> Option<Case> {
        let mut case = self.clone();
        match &mut case.kernel {
            Kernel::Op(op) | Kernel::OpInto { op, .. } => *op.products_mut()? = dtype,
            Kernel::HeadLoss(head) => head.products = dtype,
            Kernel::LinearGelu { products, .. }
            | Kernel::LinearGradGelu { products, .. }
            | Kernel::LinearGradGelus { products, .. }
            | Kernel::LinearGate { products }
            | Kernel::LinearGradGate { products } => *products = dtype,
            Kernel::JointAttention(of)
            | Kernel::JointAttentionGrad(of)
            | Kernel::JointAttentionGrads { of, .. }
            | Kernel::CachedAttention(of) => {
                of.products = dtype;
            }
            _ => return None,
        }
        Some(case)
    }

    /// What operands of products are rounded to.
    pub fn products(&self) -> DType {
        match &self.kernel {
            Kernel::Op(op) | Kernel::OpInto { op, .. } => {
                op.clone().products_mut().copied().unwrap_or(DType::F32)
            }
            Kernel::HeadLoss(head) => head.products,
            Kernel::LinearGelu { products, .. }
            | Kernel::LinearGradGelu { products, .. }
            | Kernel::LinearGradGelus { products, .. }
            | Kernel::LinearGate { products }
            | Kernel::LinearGradGate { products } => *products,
            Kernel::JointAttention(of)
            | Kernel::JointAttentionGrad(of)
            | Kernel::JointAttentionGrads { of, .. }
            | Kernel::CachedAttention(of) => of.products,
            _ => DType::F32,
        }
    }

    /// Whether factors of bf16 products are computed rather than given.
    pub fn has_computed_factors(&self) -> bool {
        let is_computed = match &self.kernel {
            Kernel::Op(op) => matches!(op, Op::Attention(_) | Op::AttentionGrad(_)),
            kernel => matches!(
                kernel,
                Kernel::HeadLoss(_)
                    | Kernel::JointAttention(_)
                    | Kernel::JointAttentionGrad(_)
                    | Kernel::JointAttentionGrads { .. }
                    | Kernel::CachedAttention(_)
            ),
        };
        self.products() != DType::F32 && is_computed
    }

    /// The meaning of the kernel: with bf16 products, the reference rounds their operands too.
    pub fn expected(&self) -> Vec<Vec<f64>> {
        let operands = self.inputs.iter().chain(&self.outputs);
        let is_narrow =
            operands.map(|tensor| tensor.of.dtype).chain([self.products()]).any(|of| of.bytes() < 4);
        let mut reference = if is_narrow { Reference::rounded() } else { Reference::exact() };
        run(&mut reference, self).expect("the reference runs every case")
    }
}

/// Where and by how much an output is further from the oracle than allowed.
pub fn compare(case: &Case, actual: &[Vec<f64>], expected: &[Vec<f64>]) -> std::result::Result<(), String> {
    compare_within(1.0, case, actual, expected)
}

/// The same with bounds that many times as wide.
pub fn compare_within(
    slack: f64,
    case: &Case,
    actual: &[Vec<f64>],
    expected: &[Vec<f64>],
) -> std::result::Result<(), String> {
    for (output, (actual, expected)) in actual.iter().zip(expected).enumerate() {
        let bound = slack * case.bound(output, expected);
        for (index, (a, e)) in actual.iter().zip(expected).enumerate() {
            // Equal infinities have no difference.
            let error = if a == e { 0.0 } else { (a - e).abs() };
            // NaN on either side fails too.
            if error > bound || error.is_nan() {
                return Err(format!(
                    "output {output} element {index} is {a}, not {e}: error {error:.2e}, bound {bound:.2e}, in {}",
                    case.name()
                ));
            }
        }
    }
    Ok(())
}

pub fn largest(values: &[f64]) -> f64 {
    values.iter().fold(0.0, |max, x| max.max(x.abs()))
}

/// The table of tolerances: how many roundings of the largest number, other than those of the longest sum, may add up.
fn roundings(kernel: &Kernel) -> f64 {
    match kernel {
        Kernel::Op(op) | Kernel::OpInto { op, .. } => match op {
            Op::Embed | Op::Split { .. } | Op::Concat | Op::Broadcast { .. } => 0.0,
            Op::Linear { .. } | Op::LinearGradInput { .. } | Op::LinearGradWeight { .. } => 0.5,
            Op::Add | Op::Mul | Op::Affine { .. } => 1.0,
            Op::Dropout { .. } | Op::Sum | Op::EmbedGrad { .. } | Op::LinearGradBias => 1.0,
            Op::Rope { .. } | Op::ReluSquared | Op::ReluSquaredGrad => 1.0,
            Op::LayerNorm { .. } | Op::LayerNormGradParams { .. } => 1.0,
            Op::RmsNorm { .. } | Op::RmsNormGradGain { .. } => 1.0,
            Op::LayerNormGradInput | Op::RmsNormGradInput => 4.0,
            Op::Attention(_) | Op::CrossEntropy(_) => 1.0,
            Op::AttentionGrad(_) => 4.0,
            Op::Gelu | Op::GeluGrad | Op::GeluErf | Op::GeluErfGrad => 4.0,
            Op::SiluGate | Op::SiluGateGrad | Op::CrossEntropyGrad(_) => 4.0,
        },
        Kernel::Cast | Kernel::CacheAppend | Kernel::CacheCopy | Kernel::Adjust | Kernel::Draw(_) => 0.0,
        Kernel::StateWrite { .. } | Kernel::GlobalNorm | Kernel::LogProbabilities(_) => 1.0,
        Kernel::AddLayerNorm { .. } | Kernel::AddRmsNorm { .. } => 1.0,
        Kernel::AddBiasedLayerNorm { .. } => 1.0,
        Kernel::JointAttention(_) | Kernel::CachedAttention(_) => 1.0,
        Kernel::LayerNormGradAdd | Kernel::RmsNormGradAdd | Kernel::JointAttentionGrad(_) => 4.0,
        Kernel::JointAttentionGrads { .. } => 4.0,
        Kernel::NormGrads(_) | Kernel::JointSiluGate | Kernel::JointSiluGateGrad => 4.0,
        Kernel::LinearGelu { .. } | Kernel::LinearGradGelu { .. } | Kernel::LinearGradGelus { .. } => 4.0,
        Kernel::LinearGate { .. } | Kernel::LinearGradGate { .. } => 4.0,
        Kernel::HeadLoss(_) => 4.0,
        Kernel::Quantise(_) | Kernel::QuantiseWeights(_) | Kernel::QuantisedNorm(_) => 0.0,
        Kernel::RoundTargets => 0.0,
        Kernel::QuantisedNormGrads(_) | Kernel::QuantisedAttentionGrad(_) => 0.0,
        Kernel::ScaledProduct { .. } | Kernel::GeluProduct(_) => 0.5,
        Kernel::Guard(_) | Kernel::Adam(_) | Kernel::Sgd(_) => 4.0,
        Kernel::Momentum { .. } | Kernel::Descend(_) | Kernel::Average { .. } => 4.0,
        Kernel::Normalise | Kernel::Combine(_) => 2.0,
    }
}

/// Which inputs and outputs stay f32 whatever the working type; nothing for kernels that are all f32.
fn f32_operands(kernel: &Kernel) -> Option<(Vec<usize>, Vec<usize>)> {
    let (inputs, outputs): (&[usize], &[usize]) = match kernel {
        Kernel::Op(op) | Kernel::OpInto { op, .. } => match op {
            Op::LayerNorm { .. } => (&[], &[1, 2]),
            Op::RmsNorm { .. } | Op::Attention(_) => (&[], &[1]),
            Op::Rope { .. } => (&[2], &[]),
            Op::CrossEntropy(_) => (&[2], &[0, 1]),
            Op::CrossEntropyGrad(_) => (&[2, 3, 4], &[]),
            Op::Sum | Op::EmbedGrad { .. } | Op::LinearGradWeight { .. } | Op::LinearGradBias => (&[], &[0]),
            Op::LayerNormGradInput => (&[3, 4], &[]),
            Op::LayerNormGradParams { .. } => (&[2, 3], &[0, 1]),
            Op::RmsNormGradInput => (&[3], &[]),
            Op::RmsNormGradGain { .. } => (&[2], &[0]),
            Op::AttentionGrad(_) => (&[5], &[]),
            _ => (&[], &[]),
        },
        Kernel::Cast => (&[0], &[]),
        Kernel::Adjust => (&[1, 5], &[1]),
        Kernel::Draw(_) => (&[1], &[]),
        Kernel::LogProbabilities(_) => (&[], &[1]),
        Kernel::StateWrite { .. } => (&[], &[0]),
        Kernel::AddLayerNorm { .. } | Kernel::AddBiasedLayerNorm { .. } => (&[], &[2, 3]),
        Kernel::AddRmsNorm { .. } => (&[], &[2]),
        Kernel::LayerNormGradAdd => (&[3, 4], &[]),
        Kernel::RmsNormGradAdd => (&[3], &[]),
        Kernel::NormGrads(of) if of.centred => (&[3, 4], &[1, 2, 3]),
        Kernel::NormGrads(_) => (&[3], &[1, 2]),
        Kernel::JointSiluGate | Kernel::JointSiluGateGrad => (&[], &[]),
        Kernel::JointAttention(_) | Kernel::CachedAttention(_) => (&[], &[1]),
        Kernel::JointAttentionGrad(_) => (&[3], &[]),
        Kernel::JointAttentionGrads { .. } => (&[3], &[1]),
        Kernel::LinearGradGelus { .. } => (&[], &[1]),
        Kernel::Quantise(_) => (&[], &[0, 1, 2, 3]),
        Kernel::QuantisedNormGrads(of) => {
            let statistics = if of.0.centred { vec![3, 4] } else { vec![3] };
            return Some((statistics, (1..of.0.sums() + 4).collect()));
        }
        Kernel::QuantisedAttentionGrad(_) => (&[3], &[0, 1, 2, 3]),
        Kernel::QuantiseWeights(all) => {
            let outputs = all.iter().map(Quantise::output_count).sum();
            return Some((Vec::new(), (0..outputs).collect()));
        }
        Kernel::QuantisedNorm(of) if of.adds => (&[], &[1, 2, 3, 4, 5]),
        Kernel::QuantisedNorm(_) => (&[], &[0, 1, 2, 3, 4]),
        Kernel::ScaledProduct { add: true, .. } => (&[0, 1, 2, 3], &[0]),
        Kernel::ScaledProduct { .. } => (&[0, 1, 2, 3], &[]),
        Kernel::GeluProduct(GeluProduct::Forward { .. }) => (&[0, 1, 2, 3], &[1, 2, 3]),
        Kernel::GeluProduct(GeluProduct::Backward { .. }) => (&[0, 1, 2, 3], &[0, 1, 2, 3]),
        Kernel::HeadLoss(head) if head.d_input => (&[3, 4], &[0, 3]),
        Kernel::HeadLoss(_) => (&[3, 4], &[0, 2]),
        Kernel::RoundTargets
        | Kernel::CacheAppend
        | Kernel::CacheCopy
        | Kernel::LinearGelu { .. }
        | Kernel::LinearGradGelu { .. }
        | Kernel::LinearGate { .. }
        | Kernel::LinearGradGate { .. } => (&[], &[]),
        Kernel::GlobalNorm
        | Kernel::Guard(_)
        | Kernel::Adam(_)
        | Kernel::Sgd(_)
        | Kernel::Momentum { .. }
        | Kernel::Normalise
        | Kernel::Combine(_)
        | Kernel::Descend(_)
        | Kernel::Average { .. } => return None,
    };
    Some((inputs.to_vec(), outputs.to_vec()))
}

/// A launch that is bound on a device.
pub struct Bound {
    pub sequence: SequenceId,
    outputs: Vec<View>,
}

impl Bound {
    /// Where the outputs are.
    pub fn outputs(&self) -> &[View] {
        &self.outputs
    }
}

pub fn bind(device: &mut dyn Device, case: &Case) -> Result<Bound> {
    let mut place = |tensor: &Tensor| -> Result<View> {
        let buffer = device.allocate(tensor.of.shape.elements() * device.element_bytes(tensor.of.dtype))?;
        let view = View { buffer, offset_bytes: 0, of: tensor.of };
        match &tensor.data {
            Data::Real(data) => device.upload(&view, HostData::F32(data))?,
            Data::Index(data) => device.upload(&view, HostData::U32(data))?,
        }
        Ok(view)
    };
    let inputs = case.inputs.iter().map(&mut place).collect::<Result<Vec<_>>>()?;
    let outputs = case.outputs.iter().map(&mut place).collect::<Result<Vec<_>>>()?;
    let sequence =
        device.bind(&[Launch { kernel: case.kernel.clone(), inputs, outputs: outputs.clone() }])?;
    Ok(Bound { sequence, outputs })
}

/// Runs a case and gives its outputs, without the workspace of a fused head, which has no meaning.
pub fn run(device: &mut dyn Device, case: &Case) -> Result<Vec<Vec<f64>>> {
    let bound = bind(device, case)?;
    device.run(bound.sequence)?;
    let mut results = Vec::new();
    for (index, view) in bound.outputs.iter().enumerate() {
        let mut data = vec![0.0; view.of.shape.elements()];
        device.download_f64(view, &mut data)?;
        if !(index == 1 && matches!(case.kernel, Kernel::HeadLoss(_))) {
            results.push(data);
        }
    }
    Ok(results)
}

/// An id outside the table that it indexes is an error that names both, in every kernel that has such ids.
pub fn check_ids_outside_tables(device: &mut dyn Device) {
    let mut check = |op: Op, inputs: Vec<Tensor>, expected: (usize, usize)| {
        let types: Vec<TensorType> = inputs.iter().map(|tensor| tensor.of).collect();
        let outputs = op
            .outputs(&types)
            .expect("the operands fit")
            .iter()
            .map(|of| random(of.shape.dims(), 1))
            .collect();
        let case = Case { kernel: Kernel::Op(op), inputs, outputs, terms: 1 };
        match run(device, &case) {
            Err(Error::IndexOutOfRange { index, rows, .. }) => assert_eq!((index, rows), expected),
            other => panic!("{other:?}"),
        }
    };
    check(Op::Embed, vec![random(&[5, 2], 1), indices(&[3], vec![4, 5, 0])], (5, 5));
    check(
        Op::EmbedGrad { rows: 5 },
        vec![indices(&[1], vec![u32::MAX]), random(&[1, 2], 1)],
        (u32::MAX as usize, 5),
    );
    let logits = || vec![random(&[2, 3], 1), indices(&[2], vec![IGNORED, 3]), random(&[2], 2)];
    check(Op::CrossEntropy(LossShape::default()), logits(), (3, 3));
    let mut inputs = logits();
    inputs.extend([random(&[2], 3), random(&[2], 4)]);
    check(Op::CrossEntropyGrad(LossShape::default()), inputs, (3, 3));
    let turned = vec![random(&[1, 2, 4], 1), indices(&[1, 2], vec![6, 7]), random(&[7, 4], 2)];
    check(Op::Rope { inverse: false, still: 0 }, turned, (7, 7));
}

pub fn reals(dims: &[usize], data: Vec<f32>) -> Tensor {
    Tensor { of: TensorType::new(dims, DType::F32), data: Data::Real(data) }
}

pub fn indices(dims: &[usize], data: Vec<u32>) -> Tensor {
    Tensor { of: TensorType::new(dims, DType::U32), data: Data::Index(data) }
}

/// Normal numbers, others for every salt.
pub fn random(dims: &[usize], salt: u32) -> Tensor {
    let of = TensorType::new(dims, DType::F32);
    let draw = |i: u32| normal_pair(philox([salt, 7], [i, 0, 0, 0])).0 as f32;
    reals(dims, (0..of.shape.elements() as u32).map(draw).collect())
}

fn map(tensor: Tensor, f: impl Fn(f32) -> f32) -> Tensor {
    let Data::Real(data) = tensor.data else { panic!("numbers") };
    Tensor { data: Data::Real(data.into_iter().map(f).collect()), ..tensor }
}

fn ids(dims: &[usize], below: usize, salt: u32) -> Tensor {
    let count: usize = dims.iter().product();
    indices(dims, (0..count as u32).map(|i| philox([salt, 8], [i, 0, 0, 0])[0] % below as u32).collect())
}

/// Targets of which every fifth is ignored.
fn targets(dims: &[usize], vocabulary: usize, salt: u32) -> Tensor {
    let Data::Index(mut data) = ids(dims, vocabulary, salt).data else { panic!("ids") };
    data.iter_mut().skip(2).step_by(5).for_each(|target| *target = IGNORED);
    indices(dims, data)
}

/// For every position of every sample, where its document starts. The documents of a sample have these lengths, again and
/// again, and every sample begins with the next of them.
fn borders([samples, positions]: [usize; 2], lengths: &[usize]) -> Tensor {
    let sample = |b: usize| {
        let mut starts = Vec::new();
        for &length in lengths.iter().cycle().skip(b) {
            let start = starts.len();
            starts.extend(vec![start as u32; length.min(positions - start)]);
            if starts.len() == positions {
                return starts;
            }
        }
        starts
    };
    indices(&[samples, positions], (0..samples).flat_map(sample).collect())
}

fn op(op: Op, inputs: Vec<Tensor>, terms: usize) -> Case {
    let types: Vec<TensorType> = inputs.iter().map(|tensor| tensor.of).collect();
    let outputs = op.outputs(&types).expect("the case fits its op");
    // Whatever was there before must not matter.
    let outputs = outputs.iter().map(|of| map(random(of.shape.dims(), 99), |_| f32::NAN)).collect();
    Case { kernel: Kernel::Op(op), inputs, outputs, terms }
}

/// The same op written into state, with and without what is there.
fn into_state(case: &Case) -> [Case; 2] {
    let Kernel::Op(op) = &case.kernel else { panic!("an op") };
    [false, true].map(|add| {
        let outputs = case.outputs.iter().map(|tensor| random(tensor.of.shape.dims(), 98)).collect();
        Case { kernel: Kernel::OpInto { op: op.clone(), add }, outputs, ..case.clone() }
    })
}
