//! Every kernel on small odd shapes: inputs, initial state, and how far a backend in f32 may be from the oracle.

use std::sync::Arc;

use ironmill_compute::{
    AdamW, Attention, DType, Device, HeadLoss, HostData, IGNORED, Kernel, Launch, Mask, Op, Result,
    SequenceId, Shape, TensorType, UpdateRange, View,
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
        let adds = matches!(self.kernel, Kernel::OpInto { add: true, .. } | Kernel::StateWrite { add: true });
        let before = match &self.outputs[output].data {
            Data::Real(data) if adds => data.iter().fold(0.0f32, |max, x| max.max(x.abs())),
            _ => 0.0,
        };
        let scale = largest(expected).max(before.into());
        roundings(&self.kernel) * DType::F32.epsilon() * (self.terms as f64).sqrt() * scale
    }
}

pub fn largest(values: &[f64]) -> f64 {
    values.iter().fold(0.0, |max, x| max.max(x.abs()))
}

/// The table of tolerances: how many roundings of the largest number, other than those of the longest sum, may add up.
fn roundings(kernel: &Kernel) -> f64 {
    match kernel {
        Kernel::Op(op) | Kernel::OpInto { op, .. } => match op {
            Op::Embed | Op::Split { .. } | Op::Concat | Op::Broadcast { .. } => 0.0,
            Op::Linear { .. } | Op::LinearGradInput | Op::LinearGradWeight => 0.5,
            Op::Add | Op::Dropout { .. } | Op::Sum | Op::EmbedGrad { .. } | Op::LinearGradBias => 1.0,
            Op::LayerNorm { .. } | Op::LayerNormGradParams { .. } => 1.0,
            Op::LayerNormGradInput => 4.0,
            Op::Attention(_) | Op::CrossEntropy => 1.0,
            Op::AttentionGrad(_) => 4.0,
            Op::Gelu | Op::GeluGrad | Op::CrossEntropyGrad => 4.0,
        },
        Kernel::Cast | Kernel::CacheAppend => 0.0,
        Kernel::StateWrite { .. } | Kernel::GlobalNorm => 1.0,
        Kernel::AddLayerNorm { .. } => 1.0,
        Kernel::HeadLoss(_) => 4.0,
        Kernel::AdamW(_) => 4.0,
    }
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

/// All cases.
pub fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    rows(&mut cases);
    products(&mut cases);
    attentions(&mut cases);
    losses(&mut cases);
    states(&mut cases);
    cases
}

fn rows(cases: &mut Vec<Case>) {
    for (v, c, dims) in [(1, 1, &[1][..]), (7, 33, &[5]), (300, 64, &[3, 170]), (65, 130, &[2, 3, 4])] {
        cases.push(op(Op::Embed, vec![random(&[v, c], 1), ids(dims, v, 2)], 1));
        let d_y = random(Shape::new(dims).with_inner(c).dims(), 3);
        let grad = op(Op::EmbedGrad { rows: v }, vec![ids(dims, v, 4), d_y], 1 + 510 / v);
        cases.extend(into_state(&grad));
        cases.push(grad);
    }
    for dims in [&[1, 1][..], &[3, 5], &[2, 7, 33], &[1, 600, 64], &[3, 1031], &[2, 80, 257]] {
        let shape = Shape::new(dims);
        let (n, c) = (shape.rows(), shape.columns());
        for bias in [false, true] {
            let mut inputs = vec![random(dims, 1), random(&[c], 2)];
            inputs.extend(bias.then(|| random(&[c], 3)));
            cases.push(op(Op::LayerNorm { eps: 1e-5, bias }, inputs.clone(), c));
            inputs.insert(0, random(dims, 4));
            let mut outputs = op(Op::LayerNorm { eps: 1e-5, bias }, inputs[1..].to_vec(), c).outputs;
            outputs.insert(0, random(dims, 5));
            cases.push(Case { kernel: Kernel::AddLayerNorm { eps: 1e-5, bias }, inputs, outputs, terms: c });
            let statistics = [random(&[n], 6), map(random(&[n], 7), |x| 0.5 + x.abs())];
            let mut inputs = vec![random(dims, 8), random(dims, 9)];
            inputs.extend(statistics.clone());
            let params = op(Op::LayerNormGradParams { bias }, inputs.clone(), n);
            cases.extend(into_state(&params));
            cases.push(params);
            inputs.insert(2, random(&[c], 10));
            cases.push(op(Op::LayerNormGradInput, inputs, c));
        }
        cases.push(op(Op::Gelu, vec![map(random(dims, 11), |x| 3.0 * x)], 1));
        cases.push(op(Op::GeluGrad, vec![map(random(dims, 12), |x| 3.0 * x), random(dims, 13)], 1));
        cases.push(op(Op::Add, vec![random(dims, 14), random(dims, 15)], 1));
        cases.push(op(Op::Sum, vec![random(dims, 16)], 1));
        cases.push(op(Op::Broadcast { shape }, vec![random(&[1], 17)], 1));
        let bias = op(Op::LinearGradBias, vec![random(dims, 18)], n);
        cases.extend(into_state(&bias));
        cases.push(bias);
        let parts = vec![random(dims, 19), random(shape.with_columns(3).dims(), 20), random(dims, 21)];
        cases.push(op(Op::Concat, parts, 1));
        let joined = shape.with_columns(2 * c + 3);
        cases.push(op(Op::Split { sizes: vec![c, 3, c] }, vec![random(joined.dims(), 22)], 1));
        let key = || indices(&[3], vec![11, 22, 33]);
        let samples = || indices(&[dims[0]], (0..dims[0] as u32).map(|b| 5 + b).collect());
        for probability in [0.0, 0.3] {
            let dropout = Op::Dropout { probability, number: 4 };
            cases.push(op(dropout, vec![random(dims, 23), key(), samples()], 1));
        }
    }
    // Far from zero GELU is 0 or x, and its slope 0 or 1.
    let far = || reals(&[8], vec![-1e30, -40.0, -9.0, -0.0, 0.0, 9.0, 40.0, 1e3]);
    cases.push(op(Op::Gelu, vec![far()], 1));
    cases.push(op(Op::GeluGrad, vec![far(), random(&[8], 24)], 1));
    // More elements in a sample than a tile has.
    let long = vec![random(&[2, 17_001], 25), indices(&[3], vec![1, 2, 3]), indices(&[2], vec![0, 9])];
    cases.push(op(Op::Dropout { probability: 0.5, number: 0 }, long, 1));
}

fn products(cases: &mut Vec<Case>) {
    // Few rows and many, one block of the sum and several, one stage of columns and two, and rests of every kind.
    let shapes = [
        (1, 1, 1),
        (3, 5, 7),
        (1, 100, 777),
        (2, 49, 1537),
        (32, 50, 40),
        (33, 65, 129),
        (37, 49, 1537),
        (101, 97, 16),
        (200, 130, 64),
        (40, 2700, 10),
    ];
    for (m, n, k) in shapes {
        for bias in [false, true] {
            let mut inputs = vec![random(&[m, k], 1), random(&[n, k], 2)];
            inputs.extend(bias.then(|| random(&[n], 3)));
            cases.push(op(Op::Linear { bias }, inputs, k));
        }
        cases.push(op(Op::LinearGradInput, vec![random(&[m, k], 4), random(&[k, n], 5)], k));
        let weight = op(Op::LinearGradWeight, vec![random(&[k, m], 6), random(&[k, n], 7)], k);
        cases.extend(into_state(&weight));
        cases.push(weight);
    }
}

fn attentions(cases: &mut Vec<Case>) {
    let shapes = [(1, 1, 1, 1, 1), (2, 5, 2, 2, 3), (1, 65, 4, 2, 8), (2, 130, 3, 1, 16), (1, 64, 2, 2, 64)];
    for (b, t, heads, kv_heads, d) in shapes {
        let (wide, narrow) = ([b, t, heads * d], [b, t, kv_heads * d]);
        for mask in [Mask::Causal, Mask::Full] {
            let attention = Attention { heads, kv_heads, mask, cached: false };
            let qkv = || vec![random(&wide, 1), random(&narrow, 2), random(&narrow, 3)];
            cases.push(op(Op::Attention(attention), qkv(), t));
            let mut inputs = qkv();
            inputs.insert(0, random(&wide, 4));
            inputs.push(random(&wide, 5));
            let usual = (t as f32).ln() + 1.0;
            inputs.push(map(random(&[b, heads, t], 6), |x| usual + 0.1 * x));
            cases.push(op(Op::AttentionGrad(attention), inputs, t + d));
        }
        let attention = Attention { heads, kv_heads, mask: Mask::Causal, cached: true };
        for (new, s) in [(1, t + 3), (t, t + 70), (t, t)] {
            let (q, kv) = (random(&[b, new, heads * d], 7), [b, s, kv_heads * d]);
            let starts = indices(&[b], (0..b).map(|b| ((s - new) / (b + 1)) as u32).collect());
            cases.push(op(Op::Attention(attention), vec![q, random(&kv, 8), random(&kv, 9), starts], s));
        }
    }
}

fn losses(cases: &mut Vec<Case>) {
    for (dims, v, c, chunk_rows) in
        [(&[1][..], 2, 1, 1), (&[2, 9], 65, 33, 5), (&[70], 301, 48, 40), (&[3, 4], 17_001, 3, 12)]
    {
        let rows: usize = dims.iter().product();
        let wide = |columns: usize, salt| random(Shape::new(dims).with_inner(columns).dims(), salt);
        let weights = || map(random(dims, 2), f32::abs);
        let inputs = vec![wide(v, 1), targets(dims, v, 3), weights()];
        cases.push(op(Op::CrossEntropy, inputs.clone(), 4));
        let mut inputs = inputs;
        inputs.push(map(random(dims, 4), |x| (v as f32).ln() + 0.5 + 0.1 * x));
        inputs.push(random(dims, 5));
        cases.push(op(Op::CrossEntropyGrad, inputs, 1));

        for (d_input, d_weight) in
            [(false, None), (true, None), (false, Some(false)), (true, Some(true)), (true, Some(false))]
        {
            let head = HeadLoss { chunk_rows, d_input, d_weight };
            let mut inputs = vec![wide(c, 6), random(&[v, c], 7), targets(dims, v, 8), weights()];
            let mut outputs = vec![random(dims, 9), random(&[chunk_rows, v], 10)];
            inputs.extend(head.has_gradient().then(|| random(dims, 11)));
            outputs.extend(d_input.then(|| wide(c, 12)));
            outputs.extend(d_weight.map(|_| random(&[v, c], 13)));
            cases.push(Case { kernel: Kernel::HeadLoss(head), inputs, outputs, terms: c + rows });
        }
    }
}

fn states(cases: &mut Vec<Case>) {
    for n in [1, 77, 40_000] {
        let case =
            |kernel| Case { kernel, inputs: vec![random(&[n], 1)], outputs: vec![random(&[n], 2)], terms: 1 };
        cases.push(case(Kernel::Cast));
        cases.push(case(Kernel::StateWrite { add: false }));
        cases.push(case(Kernel::StateWrite { add: true }));
        let gradients = map(random(&[n], 3), |x| x * 1e25);
        cases.push(Case {
            kernel: Kernel::GlobalNorm,
            inputs: vec![gradients],
            outputs: vec![random(&[1], 4)],
            terms: 1,
        });
    }
    // The last sample's rows reach past the end of the cache.
    let inputs = vec![random(&[3, 4, 5], 1), indices(&[3], vec![0, 3, 7])];
    cases.push(Case { kernel: Kernel::CacheAppend, inputs, outputs: vec![random(&[3, 9, 5], 2)], terms: 1 });

    let range = |start, len, weight_decay| UpdateRange { start, len, weight_decay };
    for (n, ranges) in
        [(5, vec![range(1, 3, 0.1)]), (40_000, vec![range(20_000, 19_000, 0.0), range(3, 16_500, 0.1)])]
    {
        for (clip, norm) in [(0.0, 3.0), (1.0, 3.0), (1.0, 0.5), (1.0, f32::NAN), (1.0, f32::INFINITY)] {
            let adamw = AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8, clip, ranges: Arc::from(ranges.clone()) };
            cases.push(Case {
                kernel: Kernel::AdamW(adamw),
                inputs: vec![random(&[n], 5), reals(&[1], vec![norm]), reals(&[1], vec![1e-2])],
                outputs: vec![
                    random(&[n], 6),
                    random(&[n], 7),
                    map(random(&[n], 8), |x| x * x),
                    indices(&[1], vec![4]),
                ],
                terms: 1,
            });
        }
    }
}
