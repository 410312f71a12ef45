//! Every kernel on small odd shapes.

use std::sync::Arc;

use ironmill_compute::{
    Adam, Attention, DType, Descend, Draw, GeluProduct, Guard, HeadLoss, Kernel, LogProbabilities, LossShape,
    Mask, NormGrads, Op, Quantise, QuantisedAttentionGrad, QuantisedNorm, QuantisedNormGrads, Sgd, Shape,
    TensorType, UpdateRange, kernel::eight_bit_workspace_rows, quantise::Source,
};

use super::{Case, PRODUCTS, Tensor, borders, ids, indices, into_state, map, op, random, reals, targets};

/// All cases.
pub fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    rows(&mut cases);
    root_mean_squares(&mut cases);
    rotations(&mut cases);
    activations(&mut cases);
    products(&mut cases);
    attentions(&mut cases);
    cases.extend(attentions_in_whole_tiles());
    losses(&mut cases);
    states(&mut cases);
    cases
}

/// Rows of a table that few positions have, that no position has, and that hundreds have.
pub fn embedding_gradients() -> Vec<Case> {
    let few = [(1, 1, &[1][..]), (7, 33, &[5]), (300, 64, &[3, 170]), (65, 130, &[2, 3, 4])];
    let many = [(3, 24, &[3000][..]), (1, 7, &[2, 700]), (2, 2056, &[300]), (900, 16, &[40])];
    let of = |&(v, c, dims): &(usize, usize, &[usize])| {
        let d_y = random(Shape::new(dims).with_inner(c).dims(), 3);
        let positions = Shape::new(dims).elements().max(510);
        let grad = op(Op::EmbedGrad { rows: v }, vec![ids(dims, v, 4), d_y], 1 + positions / v);
        let [set, added] = into_state(&grad);
        [set, added, grad]
    };
    few.iter().chain(&many).flat_map(of).collect()
}

fn rows(cases: &mut Vec<Case>) {
    for (v, c, dims) in [(1, 1, &[1][..]), (7, 33, &[5]), (300, 64, &[3, 170]), (65, 130, &[2, 3, 4])] {
        cases.push(op(Op::Embed, vec![random(&[v, c], 1), ids(dims, v, 2)], 1));
    }
    cases.extend(embedding_gradients());
    // More rows than blocks of a card work on at a time, a block or a warp to each; and rows of which f32 is too long to be copied ahead.
    for (n, c) in [(1701, 1040), (1601, 600), (3, 2056)] {
        let statistics = [random(&[n], 6), map(random(&[n], 7), |x| 0.5 + x.abs())];
        let mut inputs = vec![random(&[n, c], 8), random(&[n, c], 9), random(&[c], 10)];
        inputs.extend(statistics);
        inputs.push(random(&[n, c], 11));
        norm_grads(cases, NormGrads { centred: true, shift: true, bias: false, add: false }, &inputs);
    }
    for dims in [&[1, 1][..], &[3, 5], &[2, 7, 33], &[1, 600, 64], &[3, 1031], &[2, 80, 257], &[9, 1600]] {
        let shape = Shape::new(dims);
        let (n, c) = (shape.rows(), shape.columns());
        for bias in [false, true] {
            let mut inputs = vec![random(dims, 1), random(&[c], 2)];
            inputs.extend(bias.then(|| random(&[c], 3)));
            cases.push(op(Op::LayerNorm { eps: 1e-5, bias }, inputs.clone(), c));
            inputs.insert(0, random(dims, 4));
            let mut outputs = op(Op::LayerNorm { eps: 1e-5, bias }, inputs[1..].to_vec(), c).outputs;
            outputs.insert(0, random(dims, 5));
            let kernel = Kernel::AddLayerNorm { eps: 1e-5, bias };
            cases.push(Case { kernel, inputs: inputs.clone(), outputs: outputs.clone(), terms: c });
            inputs.insert(2, random(&[c], 12));
            let kernel = Kernel::AddBiasedLayerNorm { eps: 1e-5, shift: bias };
            cases.push(Case { kernel, inputs, outputs, terms: c });
            let statistics = [random(&[n], 6), map(random(&[n], 7), |x| 0.5 + x.abs())];
            let mut inputs = vec![random(dims, 8), random(dims, 9)];
            inputs.extend(statistics.clone());
            let params = op(Op::LayerNormGradParams { bias }, inputs.clone(), n);
            cases.extend(into_state(&params));
            cases.push(params);
            inputs.insert(2, random(&[c], 10));
            cases.push(op(Op::LayerNormGradInput, inputs.clone(), c));
            inputs.push(random(dims, 11));
            let outputs = vec![random(dims, 12)];
            let grads = NormGrads { centred: true, shift: bias, bias: false, add: false };
            norm_grads(cases, grads, &inputs);
            cases.push(Case { kernel: Kernel::LayerNormGradAdd, inputs, outputs, terms: c });
        }
        cases.push(op(Op::Add, vec![random(dims, 14), random(dims, 15)], 1));
        cases.push(op(Op::Mul, vec![random(dims, 24), random(dims, 25)], 1));
        cases.push(op(Op::Affine { factor: -25.3, offset: 1.0 }, vec![random(dims, 26)], 1));
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
    // More elements in a sample than a tile has.
    let long = vec![random(&[2, 17_001], 25), indices(&[3], vec![1, 2, 3]), indices(&[2], vec![0, 9])];
    cases.push(op(Op::Dropout { probability: 0.5, number: 0 }, long, 1));
}

/// All gradients of a norm at once, with and without that of a bias and what is there.
fn norm_grads(cases: &mut Vec<Case>, plain: NormGrads, inputs: &[Tensor]) {
    let (rows, columns) = (inputs[0].of.shape, inputs[2].of.shape.elements());
    for (bias, add) in [(false, true), (columns == rows.columns(), false)] {
        let of = NormGrads { bias, add, ..plain };
        let mut outputs = vec![random(rows.dims(), 24)];
        outputs.extend((0..1 + u32::from(of.shift)).map(|index| random(&[columns], 25 + index)));
        outputs.extend(bias.then(|| random(&[rows.columns()], 27)));
        let terms = columns.max(rows.elements() / columns);
        cases.push(Case { kernel: Kernel::NormGrads(of), inputs: inputs.to_vec(), outputs, terms });
    }
}

/// The gain is as long as a row, or divides it: then every head of a row is normalised on its own.
fn root_mean_squares(cases: &mut Vec<Case>) {
    for (dims, gain) in [
        (&[1, 1][..], 1),
        (&[3, 5], 5),
        (&[1, 6], 6),
        (&[2, 7, 33], 11),
        (&[1, 600, 64], 16),
        (&[3, 1031], 1031),
        (&[2, 80, 260], 65),
        (&[2, 3, 258], 129),
    ] {
        let groups = dims.iter().product::<usize>() / gain;
        // A group of one number has almost no gradient: all of it cancels, unless eps counts for something.
        let eps = if gain == 1 { 0.5 } else { 1e-5 };
        cases.push(op(Op::RmsNorm { eps }, vec![random(dims, 1), random(&[gain], 2)], gain));
        let rstd = map(random(&[groups], 3), |x| 0.5 + x.abs());
        let inputs = vec![random(dims, 4), random(dims, 5), rstd.clone()];
        let d_gain = op(Op::RmsNormGradGain { columns: gain }, inputs, groups);
        cases.extend(into_state(&d_gain));
        cases.push(d_gain);
        let inputs = vec![random(dims, 6), random(dims, 7), random(&[gain], 8), rstd];
        cases.push(op(Op::RmsNormGradInput, inputs.clone(), gain));
        let inputs = [inputs, vec![random(dims, 9)]].concat();
        norm_grads(cases, NormGrads { centred: false, shift: false, bias: false, add: false }, &inputs);
        cases.push(Case {
            kernel: Kernel::RmsNormGradAdd,
            inputs,
            outputs: vec![random(dims, 10)],
            terms: gain,
        });
        let inputs = vec![random(dims, 11), random(dims, 12), random(&[gain], 13)];
        let outputs = vec![random(dims, 14), random(dims, 15), random(&[groups], 16)];
        cases.push(Case { kernel: Kernel::AddRmsNorm { eps }, inputs, outputs, terms: gain });
    }
}

/// Positions are drawn at random, so they neither start at zero nor grow.
fn rotations(cases: &mut Vec<Case>) {
    for (dims, head_dim, positions) in
        [([1, 1, 2], 2, 1), ([2, 5, 6], 2, 9), ([3, 7, 30], 10, 50), ([1, 300, 132], 66, 1000)]
    {
        for inverse in [false, true] {
            let table = map(random(&[positions, head_dim], 1), f32::sin);
            let inputs = vec![random(&dims, 2), ids(&dims[..2], positions, 3), table];
            cases.push(op(Op::Rope { inverse, still: usize::from(inverse) }, inputs.clone(), 1));
            cases.push(op(Op::Rope { inverse, still: 0 }, inputs, 1));
        }
    }
}

fn activations(cases: &mut Vec<Case>) {
    let alone =
        [(Op::Gelu, Op::GeluGrad), (Op::GeluErf, Op::GeluErfGrad), (Op::ReluSquared, Op::ReluSquaredGrad)];
    for dims in [&[1, 1][..], &[2, 7, 33], &[1, 600, 64], &[3, 1031]] {
        let wide = |salt| map(random(dims, salt), |x| 3.0 * x);
        for (forward, gradient) in alone.clone() {
            cases.push(op(forward, vec![wide(1)], 1));
            cases.push(op(gradient, vec![wide(2), random(dims, 3)], 1));
        }
        cases.push(op(Op::SiluGate, vec![wide(4), random(dims, 5)], 1));
        cases.push(op(Op::SiluGateGrad, vec![wide(6), random(dims, 7), random(dims, 8)], 1));
        let joint = Shape::new(dims).with_columns(2 * dims[dims.len() - 1]);
        let gate_up = vec![map(random(joint.dims(), 13), |x| 2.0 * x)];
        let outputs = vec![random(dims, 14)];
        cases.push(Case { kernel: Kernel::JointSiluGate, inputs: gate_up.clone(), outputs, terms: 1 });
        let inputs = [gate_up, vec![random(dims, 15)]].concat();
        let outputs = vec![random(joint.dims(), 16)];
        cases.push(Case { kernel: Kernel::JointSiluGateGrad, inputs, outputs, terms: 1 });
    }
    // Far from zero activations are 0 or x, their slopes 0 or 1, and nothing overflows on the way.
    let far = || reals(&[9], vec![-1e30, -90.0, -40.0, -9.0, -0.0, 0.0, 9.0, 40.0, 1e3]);
    for (forward, gradient) in alone {
        cases.push(op(forward, vec![far()], 1));
        cases.push(op(gradient, vec![far(), random(&[9], 9)], 1));
    }
    cases.push(op(Op::SiluGate, vec![far(), random(&[9], 10)], 1));
    cases.push(op(Op::SiluGateGrad, vec![far(), random(&[9], 11), random(&[9], 12)], 1));
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
        (40, 200, 10),
        (101, 2700, 10),
        (34, 33, 3101),
        (65, 450, 1600),
    ];
    for ((m, n, k), products) in shapes.into_iter().flat_map(|shape| PRODUCTS.map(|of| (shape, of))) {
        for bias in [false, true] {
            let mut inputs = vec![random(&[m, k], 1), random(&[n, k], 2)];
            inputs.extend(bias.then(|| random(&[n], 3)));
            cases.push(op(Op::Linear { bias, products }, inputs.clone(), k));
            let (kernel, outputs) =
                (Kernel::LinearGelu { bias, products, slope: false }, vec![random(&[m, n], 8); 2]);
            cases.push(Case { kernel, inputs, outputs, terms: k });
        }
        let inputs = vec![random(&[m, k], 9), random(&[k, n], 10), random(&[m, n], 11)];
        let (kernel, mut outputs) =
            (Kernel::LinearGradGelu { products, slope: false }, vec![random(&[m, n], 12)]);
        cases.push(Case { kernel, inputs: inputs.clone(), outputs: outputs.clone(), terms: k });
        let kernel = Kernel::LinearGradGelus { products, slope: false, add: m % 2 == 0 };
        outputs.push(random(&[n], 13));
        cases.push(Case { kernel, inputs, outputs, terms: k + m });
        cases.push(op(Op::LinearGradInput { products }, vec![random(&[m, k], 4), random(&[k, n], 5)], k));
        let weight = op(Op::LinearGradWeight { products }, vec![random(&[k, m], 6), random(&[k, n], 7)], k);
        cases.extend(into_state(&weight));
        cases.push(weight);
    }
}

/// Tensors on their way to products of eight bits: one tile and several, rests of tiles, and so many rows that not all are looked at.
pub fn quantised() -> Vec<Case> {
    let mut cases = Vec::new();
    for dims in [&[16, 16][..], &[2, 24, 80], &[128, 128], &[160, 272], &[2064, 32], &[3, 5, 16, 144]] {
        for (of, source) in [
            (DType::E4M3, Source::Stored),
            (DType::E4M3, Source::Gelu),
            (DType::E5M2, Source::Stored),
            (DType::E5M2, Source::GeluGrad),
            (DType::E5M2, Source::Slope),
            (DType::E5M2, Source::Bounded { powers: 6 }),
        ] {
            let inputs: Vec<_> = (1..=source.operands() as u32).map(|salt| random(dims, salt)).collect();
            for (rows, columns, sums) in [
                (true, true, None),
                (true, false, None),
                (false, true, Some(false)),
                (true, true, Some(true)),
            ] {
                let kernel = Quantise { of, source, rows, columns, sums };
                let out = kernel.outputs(inputs[0].of);
                let outputs = out.iter().map(|of| Tensor { of: *of, ..random(of.shape.dims(), 9) }).collect();
                let terms = inputs[0].of.shape.rows();
                cases.push(Case { kernel: Kernel::Quantise(kernel), inputs: inputs.clone(), outputs, terms });
            }
        }
    }
    cases
}

/// Weights that are quantised together: a few of all kinds of sizes and copies, and more than a warp has lanes.
pub fn quantised_weights() -> Vec<Case> {
    let few = [[16, 16], [2064, 32], [160, 272], [128, 128], [48, 400]].to_vec();
    let many = (0..40).map(|index| [16 + 16 * (index % 3), 32 + 64 * (index % 5)]).collect();
    [few, many]
        .into_iter()
        .map(|shapes: Vec<[usize; 2]>| {
            let copies = [(true, true), (true, false), (false, true)].into_iter().cycle();
            let (of, source) = (DType::E4M3, Source::Stored);
            let kernels: Vec<Quantise> = copies
                .take(shapes.len())
                .map(|(rows, columns)| Quantise { of, source, rows, columns, sums: None })
                .collect();
            let inputs: Vec<Tensor> = shapes.iter().zip(1..).map(|(dims, salt)| random(dims, salt)).collect();
            let out = kernels.iter().zip(&inputs).flat_map(|(kernel, weight)| kernel.outputs(weight.of));
            let outputs = out.map(|of| Tensor { of, ..random(of.shape.dims(), 99) }).collect();
            Case { kernel: Kernel::QuantiseWeights(kernels.into()), inputs, outputs, terms: 1 }
        })
        .collect()
}

/// Norms that write eight bits: parts of a block's rows and several blocks, parts of a warp's columns and several packs.
pub fn quantised_norms() -> Vec<Case> {
    let mut cases = Vec::new();
    for dims in [&[16, 16][..], &[2, 24, 80], &[160, 272], &[3, 5, 16, 768], &[48, 1600], &[16, 2048]] {
        for (centred, shift, adds, bias) in [
            (true, true, false, false),
            (true, true, true, false),
            (true, true, true, true),
            (true, false, true, false),
            (true, false, true, true),
            (false, false, false, false),
            (false, false, true, false),
        ] {
            for (rows, columns) in [(true, true), (true, false), (false, true)] {
                let kernel = QuantisedNorm { centred, shift, eps: 1e-5, adds, bias, rows, columns };
                let mut inputs: Vec<_> =
                    (1..=kernel.summands() as u32).map(|salt| random(dims, salt)).collect();
                let parameters = 1 + u32::from(shift) + u32::from(bias);
                inputs.extend((0..parameters).map(|salt| random(&dims[dims.len() - 1..], 3 + salt)));
                let types: Vec<_> = inputs.iter().map(|tensor| tensor.of).collect();
                let out = kernel.outputs(&types).expect("a norm's operands");
                let outputs = out.iter().map(|of| Tensor { of: *of, ..random(of.shape.dims(), 9) }).collect();
                let kernel = Kernel::QuantisedNorm(kernel);
                cases.push(Case { kernel, inputs, outputs, terms: dims[dims.len() - 1] });
            }
        }
    }
    cases
}

/// Gradients of norms that write eight bits, too: parts of a block's rows, several blocks, and more rows than those of a card have at a time.
pub fn quantised_norm_grads() -> Vec<Case> {
    let mut cases = Vec::new();
    for dims in [&[16, 16][..], &[2, 24, 80], &[160, 272], &[3, 16, 768], &[9_040, 48]] {
        let (n, c) = (Shape::new(dims).rows(), dims[dims.len() - 1]);
        for (centred, shift, bias, add) in [
            (true, true, true, false),
            (true, true, false, true),
            (true, false, true, true),
            (false, false, true, false),
            (false, false, false, true),
        ] {
            let kernel = QuantisedNormGrads(NormGrads { centred, shift, bias, add });
            let mut inputs = vec![random(dims, 8), random(dims, 9), random(&[c], 10)];
            inputs.extend(centred.then(|| random(&[n], 6)));
            inputs.push(map(random(&[n], 7), |x| 0.5 + x.abs()));
            inputs.push(random(dims, 11));
            let mut outputs = vec![random(dims, 24)];
            outputs.extend((25..).take(kernel.0.sums()).map(|salt| random(&[c], salt)));
            let copies = kernel.copies().outputs(inputs[0].of);
            outputs.extend(copies.iter().map(|of| Tensor { of: *of, ..random(of.shape.dims(), 9) }));
            let kernel = Kernel::QuantisedNormGrads(kernel);
            cases.push(Case { kernel, inputs, outputs, terms: c.max(n) });
        }
    }
    cases
}

/// Heads of eight-bit products, in one chunk and in several; with more rows than a card has in work at a time, and with longer ones than it
/// keeps.
pub fn eight_bit_heads() -> Vec<Case> {
    let mut cases = Vec::new();
    let sizes =
        [(16, 16, 16, 16), (48, 32, 80, 32), (272, 48, 1040, 96), (880, 16, 48, 592), (16, 16, 50_448, 16)];
    for (n, c, v, chunk_rows) in sizes {
        for (loss, d_input, d_weight) in [
            (LossShape::default(), true, Some(false)),
            (LossShape { label_smoothing: 0.1, z_loss: 1e-3 }, true, Some(true)),
            (LossShape::default(), false, None),
        ] {
            let head = HeadLoss { chunk_rows, loss, products: DType::E4M3, d_input, d_weight };
            let narrow = |tensor: Tensor| {
                let rounded = map(tensor, |x| DType::BF16.round(x.into()) as f32);
                Tensor { of: rounded.of.with_dtype(DType::BF16), ..rounded }
            };
            let mut inputs =
                vec![narrow(random(&[n, c], 1)), narrow(random(&[v, c], 2)), targets(&[n], v, 3)];
            inputs.push(map(random(&[n], 4), f32::abs));
            inputs.extend(head.has_gradient().then(|| random(&[n], 5)));
            let rows = eight_bit_workspace_rows(Shape::new(&[n, c]), v, chunk_rows);
            let mut outputs = vec![random(&[n], 6), narrow(random(&[rows, v], 7))];
            outputs.extend(d_input.then(|| narrow(random(&[n, c], 8))));
            outputs.extend(d_weight.map(|_| random(&[v, c], 9)));
            cases.push(Case { kernel: Kernel::HeadLoss(head), inputs, outputs, terms: c.max(v).max(n) });
        }
    }
    cases
}

/// How likely [`unlikely_targets`] are, and how many rows there are.
pub const UNLIKELY: (f64, usize) = (1.0 / 32.0, 480);

/// A head of eight bits in chunks whose logits are all alike: every row's target has the same gradient, −31/32, which lies between two
/// numbers of e5m2. The weight's gradient is their sum.
pub fn unlikely_targets() -> Case {
    let ((_, n), c, v, chunk_rows) = (UNLIKELY, 16, 32, 96);
    let loss = LossShape::default();
    let head = HeadLoss { chunk_rows, loss, products: DType::E4M3, d_input: false, d_weight: Some(false) };
    let same = |dims: &[usize], of: DType, x: f32| {
        let tensor = map(random(dims, 1), |_| x);
        Tensor { of: tensor.of.with_dtype(of), ..tensor }
    };
    let of_rows = same(&[n], DType::F32, 1.0);
    let inputs = vec![
        same(&[n, c], DType::BF16, 1.0),
        same(&[v, c], DType::BF16, 0.0),
        indices(&[n], vec![5; n]),
        of_rows.clone(),
        of_rows.clone(),
    ];
    let rows = eight_bit_workspace_rows(Shape::new(&[n, c]), v, chunk_rows);
    let outputs = vec![of_rows, same(&[rows, v], DType::BF16, 7.0), random(&[v, c], 9)];
    Case { kernel: Kernel::HeadLoss(head), inputs, outputs, terms: n }
}

/// A factor of eight bits.
fn factor(dims: &[usize], of: DType, salt: u32) -> Tensor {
    let rounded = map(random(dims, salt), |x| of.round(f64::from(8.0 * x)) as f32);
    Tensor { of: rounded.of.with_dtype(of), ..rounded }
}

/// The unit of one.
fn unit(power: i32) -> Tensor {
    reals(&[1], vec![2f32.powi(power)])
}

/// Products of eight bits in the forms that a linear layer has them in.
pub fn scaled_products() -> Vec<Case> {
    let mut cases = Vec::new();
    for (m, n, k) in [(16, 16, 16), (48, 80, 32), (32, 144, 272), (128, 256, 2064), (2048, 16, 48)] {
        for (of, bias, add) in [
            (DType::E4M3, false, false),
            (DType::E4M3, true, false),
            (DType::E5M2, false, false),
            (DType::E5M2, false, true),
        ] {
            let mut inputs =
                vec![factor(&[m, k], of, 1), unit(-3), factor(&[n, k], DType::E4M3, 2), unit(-5)];
            inputs.extend(bias.then(|| random(&[n], 3)));
            let outputs = vec![random(&[m, n], 4)];
            cases.push(Case { kernel: Kernel::ScaledProduct { bias, add }, inputs, outputs, terms: k });
        }
    }
    cases
}

/// Products of eight bits that go through GELU: in whole tiles, one and several, and so many rows that not all are looked at; and not.
pub fn gelu_products() -> Vec<Case> {
    let mut cases = Vec::new();
    for (m, n, k) in [(128, 128, 128), (384, 256, 272), (2176, 128, 48), (48, 80, 32)] {
        let plain = [
            GeluProduct::Forward { bias: false, slope: false },
            GeluProduct::Forward { bias: true, slope: false },
            GeluProduct::Backward { sums: None, slope: false },
            GeluProduct::Backward { sums: Some(true), slope: false },
        ];
        for of in plain.into_iter().chain(plain.map(GeluProduct::with_slope)) {
            let left = factor(&[m, k], of.quantise().of, 1);
            let mut inputs = vec![left, unit(-4), factor(&[n, k], DType::E4M3, 2), unit(-5)];
            match of {
                GeluProduct::Forward { bias, .. } => inputs.extend(bias.then(|| random(&[n], 3))),
                GeluProduct::Backward { .. } => inputs.push(map(random(&[m, n], 4), |x| 2.0 * x)),
            }
            let h = TensorType::new(&[m, n], DType::F32);
            let outputs =
                of.outputs(h).iter().map(|of| Tensor { of: *of, ..random(of.shape.dims(), 9) }).collect();
            cases.push(Case { kernel: Kernel::GeluProduct(of), inputs, outputs, terms: k + m });
        }
    }
    cases
}

/// Products of so many rows, which in halves may have kernels of their own: sums of one part and of several. The first rows are the same for
/// any number of them.
pub fn products_of_rows(m: usize) -> Vec<Case> {
    let mut cases = Vec::new();
    for (n, k) in [(64, 64), (76, 384), (200, 1536)] {
        let inputs = vec![random(&[m, k], 1), random(&[n, k], 2), random(&[n], 3)];
        let products = DType::F32;
        cases.push(op(Op::Linear { bias: false, products }, inputs[..2].to_vec(), k));
        let (kernel, outputs) =
            (Kernel::LinearGelu { bias: true, products, slope: false }, vec![random(&[m, n], 8); 2]);
        cases.push(Case { kernel, inputs, outputs, terms: k });
    }
    cases
}

/// Products with GELU and its slope, or as many that are large enough for a card to time the ways there are.
pub fn gelus_in_tiles(worth_timing: bool) -> Vec<Case> {
    let products = DType::F32;
    // Neither rows nor columns are whole tiles; in the second, every block has several of them.
    let of = |(m, n, k): (usize, usize, usize), slope: bool| {
        let inputs = vec![random(&[m, k], 1), random(&[n, k], 2), random(&[n], 3)];
        let kernel = Kernel::LinearGelu { bias: true, products, slope };
        let forward = Case { kernel, inputs, outputs: vec![random(&[m, n], 4); 2], terms: k };
        let inputs = vec![random(&[m, k], 5), random(&[k, n], 6), random(&[m, n], 7)];
        let (kernel, mut outputs) = (Kernel::LinearGradGelu { products, slope }, vec![random(&[m, n], 8)]);
        let backward = Case { kernel, inputs: inputs.clone(), outputs: outputs.clone(), terms: k };
        let kernel = Kernel::LinearGradGelus { products, slope, add: true };
        outputs.push(random(&[n], 9));
        [forward, backward, Case { kernel, inputs, outputs, terms: k + m }]
    };
    let [few, many] = match worth_timing {
        true => [(328, 1000, 520), (3000, 2200, 136)],
        false => [(200, 328, 200), (600, 712, 136)],
    };
    [of(few, false), of(few, true), of(many, false), of(many, true)].concat()
}

/// Products with a gate, or as many that are large enough for a card to time the ways there are: tiles that are not whole and several
/// to a block, and gates for whose halves there is no kernel of one or both ways.
pub fn gates_in_tiles(worth_timing: bool) -> Vec<Case> {
    let products = DType::F32;
    let of = |(m, half, k): (usize, usize, usize)| {
        let inputs = vec![random(&[m, k], 1), random(&[2 * half, k], 2)];
        let outputs = vec![random(&[m, 2 * half], 3), random(&[m, half], 4)];
        let forward = Case { kernel: Kernel::LinearGate { products }, inputs, outputs, terms: k };
        let inputs = vec![random(&[m, k], 5), random(&[k, half], 6), random(&[m, 2 * half], 7)];
        let (kernel, outputs) = (Kernel::LinearGradGate { products }, vec![random(&[m, 2 * half], 8)]);
        [forward, Case { kernel, inputs, outputs, terms: k }]
    };
    let shapes = match worth_timing {
        true => [(328, 1024, 520), (3000, 1152, 136), (1000, 1088, 136)],
        false => [(200, 128, 200), (600, 384, 136), (90, 192, 72)],
    };
    let odd = [(37, 50, 33), (20, 24, 64)];
    shapes.into_iter().chain(odd).flat_map(of).collect()
}

/// Gradients of weights whose tiles fill a card, though they are not whole and neither are the rows: one that is written, and one with rows
/// and columns changed over that is added.
pub fn weight_gradients_in_wide_tiles(worth_timing: bool) -> [Case; 2] {
    let products = DType::F32;
    let (terms, weight) = if worth_timing { (328, [1264, 5120]) } else { (72, [1000, 800]) };
    let of = |[rows, columns]: [usize; 2]| {
        let inputs = vec![random(&[terms, rows], 1), random(&[terms, columns], 2)];
        into_state(&op(Op::LinearGradWeight { products }, inputs, terms))
    };
    let ([set, _], [_, added]) = (of(weight), of([weight[1], weight[0]]));
    [set, added]
}

/// Rows that take the likeliest token, draw from all, and draw under each limit and all of them.
fn draws(cases: &mut Vec<Case>) {
    let limits = [
        [0.0, 0.0, 0.0],
        [1.0, 0.0, 0.0],
        [0.7, 0.0, 0.0],
        [1.5, 0.8, 0.0],
        [1.0, 0.0, 0.2],
        [0.9, 0.6, 0.01],
    ];
    let top_k = [0, 0, 5, 0, 0, 40];
    let rows = limits.len();
    for (vocabulary, seed) in [(1, 1), (37, 2), (1000, 3), (5003, 4), (50257, 5)] {
        let keys = (0..rows).flat_map(|row| [11, seed, row as u32, top_k[row]]).collect();
        let inputs = vec![
            random(&[rows, vocabulary], seed),
            reals(&[rows, 3], limits.concat()),
            indices(&[rows, 4], keys),
        ];
        let counting = |columns: usize| {
            indices(&[rows, columns], (0..(rows * columns) as u32).map(|i| 5 * i % 11).collect())
        };
        let outputs = [1, 1, 2, 2, 3].map(counting).into();
        cases.push(Case { kernel: Kernel::Draw(Draw { context: 9 }), inputs, outputs, terms: 1 });
    }
}

/// Likeliest tokens of few and many, where they are fewer than asked for, and where hundreds are equally likely.
fn log_probabilities(cases: &mut Vec<Case>) {
    let rows = 3;
    for (vocabulary, seed) in [(1, 1), (37, 2), (1000, 3), (5003, 4), (50257, 5)] {
        for (count, is_even) in [(1, false), (20, false), (20, true)] {
            let logits = match is_even {
                // Few numbers, each of them many times, so that ids decide.
                true => {
                    reals(&[rows, vocabulary], (0..rows * vocabulary).map(|at| (at * 7 % 5) as f32).collect())
                }
                false => random(&[rows, vocabulary], seed),
            };
            let inputs = vec![
                logits,
                indices(&[rows, 1], (0..rows).map(|row| (31 * row % vocabulary) as u32).collect()),
                indices(&[rows, 2], vec![9, 1, 9, 4, 9, 6]),
            ];
            let outputs = vec![
                indices(&[rows, 3 * count], vec![7; 3 * rows * count]),
                random(&[rows, 3 * (count + 1)], 6),
            ];
            let kernel = Kernel::LogProbabilities(LogProbabilities { count });
            cases.push(Case { kernel, inputs, outputs, terms: vocabulary });
        }
    }
}

/// Texts that end with a token of the prompt and with one that was written, under each penalty and all of them.
fn adjustments(cases: &mut Vec<Case>) {
    let penalties = [[0.0, 0.0, 0.0], [1.3, 0.0, 0.0], [1.0, 0.5, 0.0], [0.7, 0.25, -0.125]];
    let rows = penalties.len();
    for vocabulary in [1, 37, 1000] {
        let last = |row: usize| (13 * row % vocabulary) as u32;
        let inputs = vec![
            random(&[rows, vocabulary], 1),
            reals(&[rows, 3], penalties.concat()),
            indices(&[rows, 1], vec![4; rows]),
            indices(&[rows, 1], (0..rows).map(last).collect()),
            indices(&[rows, 2], (0..rows as u32).flat_map(|row| [3 + row, 9]).collect()),
            random(&[rows, vocabulary], 2),
        ];
        let seen = (0..(rows * vocabulary) as u32).map(|i| (i * i + i / 7) % 4).collect();
        let outputs = vec![indices(&[rows, vocabulary], seen), random(&[rows, vocabulary], 3)];
        cases.push(Case { kernel: Kernel::Adjust, inputs, outputs, terms: 1 });
    }
}

fn attentions(cases: &mut Vec<Case>) {
    let shapes = [
        (1, 1, 1, 1, 1),
        (2, 5, 2, 2, 3),
        (1, 65, 4, 2, 8),
        (2, 130, 3, 1, 16),
        (1, 64, 2, 2, 64),
        (1, 270, 2, 1, 8),
    ];
    for (b, t, heads, kv_heads, d) in shapes {
        let plain = Attention {
            heads,
            kv_heads,
            mask: Mask::Causal,
            cached: false,
            borders: false,
            window: 0,
            products: DType::F32,
        };
        for mask in [Mask::Causal, Mask::Full] {
            for products in PRODUCTS {
                whole_attention(cases, [b, t, d], Attention { mask, products, ..plain }, &[]);
            }
        }
        for window in [0, 3] {
            let products = PRODUCTS[window % 2];
            let attention = Attention { cached: true, window, products, ..plain };
            for (new, s) in [(1, t + 3), (t, t + 70), (t, t)] {
                let (q, kv) = (random(&[b, new, heads * d], 7), [b, s, kv_heads * d]);
                // One row of the cache more than there are samples, which take them from the last on.
                let kv = [b + 1, kv[1], kv[2]];
                let place = |sample: usize| [(b - sample) as u32, ((s - new) / (sample + 1)) as u32];
                let places = indices(&[b, 2], (0..b).flat_map(place).collect());
                let inputs = vec![q, random(&kv, 8), random(&kv, 9), places];
                cases.push(op(Op::Attention(attention), inputs.clone(), s));
                // The same with new keys and values beside the queries, the last sample's behind the end of the cache.
                let places = (0..b)
                    .flat_map(|sample| [(b - sample) as u32, ((s - new) / (sample + 1) + sample) as u32]);
                let inputs = vec![
                    random(&[b, new, (heads + 2 * kv_heads) * d], 5),
                    indices(&[b, 2], places.collect()),
                ];
                let outputs = vec![
                    random(&[b, new, heads * d], 1),
                    random(&[b, heads, new], 2),
                    random(&kv, 8),
                    random(&kv, 9),
                ];
                cases.push(Case { kernel: Kernel::CachedAttention(attention), inputs, outputs, terms: s });
            }
        }
    }
    // Heads that cards have kernels of their own for, over several tiles of which the last is not whole.
    for (t, heads, kv_heads, d) in [(200, 2, 1, 64), (150, 2, 2, 128)] {
        for mask in [Mask::Causal, Mask::Full] {
            let (cached, borders, window, products) = (false, false, 0, DType::F32);
            let attention = Attention { heads, kv_heads, mask, cached, borders, window, products };
            whole_attention(cases, [1, t, d], attention, &[]);
        }
    }
    // Documents and windows that begin and end inside blocks of queries, and some that span them.
    let documents: [&[usize]; 5] = [&[], &[1], &[3, 1, 7], &[64, 67], &[131]];
    for (index, lengths) in documents.into_iter().enumerate() {
        for window in [0, 1, 3, 70, 1000] {
            for mask in [Mask::Causal, Mask::Full] {
                let (heads, kv_heads) = [(2, 2), (3, 1), (4, 2)][index % 3];
                let borders = !lengths.is_empty();
                for products in PRODUCTS {
                    let attention =
                        Attention { heads, kv_heads, mask, cached: false, borders, window, products };
                    whole_attention(cases, [2, 131, 5], attention, lengths);
                }
            }
        }
    }
}

/// Heads of the usual sizes over several whole tiles of positions: what libraries of attention take.
pub fn attentions_in_whole_tiles() -> Vec<Case> {
    let mut cases = Vec::new();
    let (causal, full) = (Mask::Causal, Mask::Full);
    for (b, t, heads, kv_heads, d, mask) in
        [(1, 256, 2, 1, 64, causal), (2, 128, 1, 1, 128, causal), (2, 128, 1, 1, 128, full)]
    {
        let (borders, products) = (false, DType::F32);
        let attention = Attention { heads, kv_heads, mask, cached: false, borders, window: 0, products };
        whole_attention(&mut cases, [b, t, d], attention, &[]);
    }
    cases
}

/// Gradients of heads that one kernel of a card may compute: three blocks of keys and two, and more heads than multiprocessors.
pub fn grads_of_whole_heads() -> Vec<Case> {
    let mut cases = Vec::new();
    for (t, mask) in [(384, Mask::Causal), (256, Mask::Full)] {
        whole_attention(&mut cases, [1, t, 64], single_heads(1, mask), &[]);
    }
    let mut many = Vec::new();
    whole_attention(&mut many, [3, 128, 64], single_heads(MANY_HEADS / 3, Mask::Causal), &[]);
    let is_joint = |case: &Case| matches!(case.kernel, Kernel::JointAttentionGrads { .. });
    let is_gradient = |case: &Case| is_joint(case) || matches!(case.kernel, Kernel::Op(Op::AttentionGrad(_)));
    cases.into_iter().filter(is_gradient).chain(many.into_iter().filter(is_joint).take(1)).collect()
}

/// More heads than a card has multiprocessors, by so few that another round of whole heads is not worth it.
const MANY_HEADS: usize = 150;

/// The same for so many heads that every multiprocessor has some, one after another, with few and with many in the last round: too many
/// for the reference. In numbers of 16 bits, then of eight.
pub fn grads_of_many_heads(counts: [usize; 2]) -> [Vec<Case>; 2] {
    let (t, d) = (256, 64);
    let mut forms = [Vec::new(), Vec::new()];
    for (b, heads, mask) in [(3, counts[0], Mask::Causal), (2, counts[1], Mask::Full)] {
        let of = single_heads(heads, mask);
        let (wide, joint) = ([b, t, heads * d], [b, t, 3 * heads * d]);
        let log_sum_exp = map(random(&[b, heads, t], 6), |x| (t as f32).ln() + 1.0 + 0.1 * x);
        let inputs = vec![random(&wide, 4), random(&joint, 1), random(&wide, 5), log_sum_exp];
        let case = |kernel, outputs| Case { kernel, inputs: inputs.clone(), outputs, terms: t + d };
        let outputs = vec![random(&joint, 9), random(&joint[2..], 10)];
        forms[0].push(case(Kernel::JointAttentionGrads { of, add: false }, outputs));
        if mask == Mask::Causal {
            let of = QuantisedAttentionGrad { of, sums: Some(false) };
            let outputs = outputs_of(&of.copies(t).outputs(inputs[1].of));
            forms[1].push(case(Kernel::QuantisedAttentionGrad(of), outputs));
        }
    }
    forms
}

fn outputs_of(types: &[TensorType]) -> Vec<Tensor> {
    types.iter().map(|of| Tensor { of: *of, ..random(of.shape.dims(), 9) }).collect()
}

fn single_heads(heads: usize, mask: Mask) -> Attention {
    let (borders, products) = (false, DType::F32);
    Attention { heads, kv_heads: heads, mask, cached: false, borders, window: 0, products }
}

/// Heads wider than the matrix units of cards take.
pub fn attentions_of_wide_heads() -> Vec<Case> {
    let mut cases = Vec::new();
    for (b, t, window) in [(1, 70, 0), (2, 33, 5)] {
        let (mask, borders, products) = (Mask::Causal, false, DType::F32);
        let attention = Attention { heads: 2, kv_heads: 1, mask, cached: false, borders, window, products };
        whole_attention(&mut cases, [b, t, 256], attention, &[]);
        for new in [1, 17] {
            let (q, kv) = (random(&[b, new, 512], 7), [b, t, 256]);
            let place = |b: usize| [b as u32, ((t - new) / (b + 1)) as u32];
            let places = indices(&[b, 2], (0..b).flat_map(place).collect());
            let inputs = vec![q, random(&kv, 8), random(&kv, 9), places];
            cases.push(op(Op::Attention(Attention { cached: true, ..attention }), inputs, t));
        }
    }
    cases
}

/// Attention over whole sequences, forward and backward.
fn whole_attention(cases: &mut Vec<Case>, [b, t, d]: [usize; 3], attention: Attention, lengths: &[usize]) {
    let heads = attention.heads;
    let (wide, narrow) = ([b, t, heads * d], [b, t, attention.kv_heads * d]);
    let documents = || attention.borders.then(|| borders([b, t], lengths));
    let mut inputs = vec![random(&wide, 1), random(&narrow, 2), random(&narrow, 3)];
    inputs.extend(documents());
    cases.push(op(Op::Attention(attention), inputs, t));
    let mut inputs = vec![random(&wide, 4), random(&wide, 1), random(&narrow, 2), random(&narrow, 3)];
    inputs.push(random(&wide, 5));
    let usual = (t as f32).ln() + 1.0;
    inputs.push(map(random(&[b, heads, t], 6), |x| usual + 0.1 * x));
    inputs.extend(documents());
    cases.push(op(Op::AttentionGrad(attention), inputs.clone(), t + d));

    // The same side by side in one tensor.
    let joint = [b, t, (heads + 2 * attention.kv_heads) * d];
    let mut forward = vec![random(&joint, 1)];
    forward.extend(documents());
    let outputs = vec![random(&wide, 7), random(&[b, heads, t], 8)];
    let kernel = Kernel::JointAttention(attention);
    cases.push(Case { kernel, inputs: forward, outputs, terms: t });
    inputs.splice(1..4, [random(&joint, 1)]);
    let kernel = Kernel::JointAttentionGrad(attention);
    cases.push(Case { kernel, inputs: inputs.clone(), outputs: vec![random(&joint, 9)], terms: t + d });
    // What a query sees is all the same to sums. That those of keys are none holds for true results.
    if attention.window == 0 {
        inputs.splice(2..4, results_of(attention, &inputs[1], documents(), d));
        let kernel = Kernel::JointAttentionGrads { of: attention, add: b % 2 == 0 };
        let outputs = vec![random(&joint, 9), random(&joint[2..], 10)];
        cases.push(Case { kernel, inputs, outputs, terms: t + d });
    }
}

/// What an attention over heads of `d` elements side by side gives: the output and its log-sum-exp.
fn results_of(of: Attention, qkv: &Tensor, borders: Option<Tensor>, d: usize) -> [Tensor; 2] {
    let &[b, t, _] = qkv.of.shape.dims() else { panic!("samples, positions and columns") };
    let outputs = [&[b, t, of.heads * d][..], &[b, of.heads, t]].map(|dims| random(dims, 7));
    let inputs = [qkv.clone()].into_iter().chain(borders).collect();
    let case = Case { kernel: Kernel::JointAttention(of), inputs, outputs: outputs.to_vec(), terms: t };
    let mut results = case.expected().into_iter();
    outputs.map(|output| {
        let result = results.next().expect("an output").iter().map(|&x| x as f32).collect();
        Tensor { of: output.of, data: super::Data::Real(result) }
    })
}

/// Gradients of attentions that are written in eight bits: grouped heads and single ones, of both sizes, and parts of a block's queries.
pub fn quantised_attention_grads() -> Vec<Case> {
    let sizes = [(2, 128, 64, 2, 2), (3, 64, 64, 4, 2), (1, 192, 128, 1, 1), (2, 320, 128, 2, 1)];
    sizes.into_iter().flat_map(quantised_attention_grads_of).collect()
}

/// The same for heads whose gradients one kernel of a card may compute.
pub fn quantised_grads_of_whole_heads() -> Vec<Case> {
    let few = [(2, 128, 64, 1, 1), (1, 256, 64, 1, 1)].into_iter().flat_map(quantised_attention_grads_of);
    let many = quantised_attention_grads_of((3, 128, 64, MANY_HEADS / 3, MANY_HEADS / 3));
    few.chain(many.into_iter().skip(1).take(1)).collect()
}

fn quantised_attention_grads_of(
    (b, t, d, heads, kv_heads): (usize, usize, usize, usize, usize),
) -> Vec<Case> {
    let mut cases = Vec::new();
    for (mask, sums) in [
        (Mask::Causal, None),
        (Mask::Causal, Some(false)),
        (Mask::Causal, Some(true)),
        (Mask::Full, Some(false)),
    ] {
        let of = Attention {
            heads,
            kv_heads,
            mask,
            cached: false,
            borders: false,
            window: 0,
            products: DType::F32,
        };
        let qkv = random(&[b, t, (heads + 2 * kv_heads) * d], 1);
        let mut inputs = vec![random(&[b, t, heads * d], 4), qkv.clone()];
        inputs.extend(results_of(of, &qkv, None, d));
        let kernel = QuantisedAttentionGrad { of, sums };
        let outputs = outputs_of(&kernel.copies(t).outputs(qkv.of));
        let kernel = Kernel::QuantisedAttentionGrad(kernel);
        cases.push(Case { kernel, inputs, outputs, terms: t + d });
    }
    cases
}

/// Plain, each departure alone, and both.
const LOSSES: [LossShape; 4] = [
    LossShape { label_smoothing: 0.0, z_loss: 0.0 },
    LossShape { label_smoothing: 0.1, z_loss: 0.0 },
    LossShape { label_smoothing: 0.0, z_loss: 0.01 },
    LossShape { label_smoothing: 0.3, z_loss: 0.1 },
];

fn losses(cases: &mut Vec<Case>) {
    for (dims, v, c, chunk_rows) in
        [(&[1][..], 2, 1, 1), (&[2, 9], 65, 33, 5), (&[70], 301, 48, 40), (&[3, 4], 17_001, 3, 12)]
    {
        let rows: usize = dims.iter().product();
        let wide = |columns: usize, salt| random(Shape::new(dims).with_inner(columns).dims(), salt);
        let weights = || map(random(dims, 2), f32::abs);
        for shape in LOSSES {
            let mut inputs = vec![wide(v, 1), targets(dims, v, 3), weights()];
            cases.push(op(Op::CrossEntropy(shape), inputs.clone(), 4));
            inputs.push(map(random(dims, 4), |x| (v as f32).ln() + 0.5 + 0.1 * x));
            inputs.push(random(dims, 5));
            cases.push(op(Op::CrossEntropyGrad(shape), inputs, 1));
        }

        let wanted =
            [(false, None), (true, None), (false, Some(false)), (true, Some(true)), (true, Some(false))];
        let wanted = wanted.into_iter().flat_map(|wanted| PRODUCTS.map(|products| (wanted, products)));
        for (index, ((d_input, d_weight), products)) in wanted.enumerate() {
            let loss = LOSSES[index % LOSSES.len()];
            let head = HeadLoss { chunk_rows, loss, products, d_input, d_weight };
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
    // One sample's rows reach past the end of the cache, another has a row that there is not.
    let inputs = vec![random(&[4, 4, 5], 1), indices(&[4, 2], vec![3, 0, 0, 3, 1, 7, 9, 0])];
    cases.push(Case { kernel: Kernel::CacheAppend, inputs, outputs: vec![random(&[4, 9, 5], 2)], terms: 1 });
    let inputs = vec![indices(&[4, 3], vec![0, 2, 4, 0, 1, 99, 5, 3, 1, 4, 3, 0])];
    cases.push(Case { kernel: Kernel::CacheCopy, inputs, outputs: vec![random(&[5, 9, 6], 2)], terms: 1 });
    draws(cases);
    log_probabilities(cases);
    adjustments(cases);

    let range = |start, len, weight_decay, rate| UpdateRange { start, len, weight_decay, rate };
    for (n, ranges) in [
        (5, vec![range(1, 3, 0.1, 1.0)]),
        (40_000, vec![range(20_000, 19_000, 0.0, 0.5), range(3, 16_500, 0.1, 1.0)]),
    ] {
        for scale in [1.0, 0.3, 2e-3, 0.0] {
            let ranges: Arc<[UpdateRange]> = Arc::from(ranges.clone());
            let [scale, rate] = [scale, 1e-2].map(|x| reals(&[1], vec![x]));
            let inputs = vec![random(&[n], 5), scale, rate];
            let counter = || indices(&[1], vec![4]);
            for decoupled in [false, true] {
                let ranges = ranges.clone();
                let adam = Adam { beta1: 0.9, beta2: 0.95, eps: 1e-8, decoupled, ranges };
                let second = map(random(&[n], 8), |x| x * x);
                let outputs = vec![random(&[n], 6), random(&[n], 7), second, counter()];
                cases.push(Case { kernel: Kernel::Adam(adam), inputs: inputs.clone(), outputs, terms: 1 });
            }
            for momentum in [0.0, 0.9] {
                let sgd = Sgd { momentum, ranges: ranges.clone() };
                let outputs = vec![random(&[n], 6), random(&[n], 7), counter()];
                cases.push(Case { kernel: Kernel::Sgd(sgd), inputs: inputs.clone(), outputs, terms: 1 });
            }
        }
    }
    guards(cases);
    muon(cases);
}

/// Steps of Adam that keep a working copy, which only cards do.
pub fn adams_with_copies() -> Vec<Case> {
    let mut cases = Vec::new();
    states(&mut cases);
    cases.retain(|case| matches!(case.kernel, Kernel::Adam(_)));
    let with_copy = |case: &Case, of: DType| {
        let mut case = case.clone();
        let copy = map(random(case.inputs[0].of.shape.dims(), 9), |x| of.round(x.into()) as f32);
        case.outputs.push(Tensor { of: copy.of.with_dtype(of), ..copy });
        case
    };
    cases.iter().flat_map(|case| [DType::BF16, DType::F16].map(|of| with_copy(case, of))).collect()
}

/// What Muon does between its products, and running averages: applied and refused.
fn muon(cases: &mut Vec<Case>) {
    for dims in [&[1, 1][..], &[7, 11], &[200, 201]] {
        let mut case = |kernel, inputs, outputs| cases.push(Case { kernel, inputs, outputs, terms: 1 });
        let number = |x| reals(&[1], vec![x]);
        for scale in [1.0, 0.3, 0.0] {
            let inputs = vec![random(dims, 1), number(scale)];
            case(Kernel::Momentum { decay: 0.95 }, inputs, vec![random(dims, 2), random(dims, 3)]);
            let inputs = vec![random(dims, 1), number(scale), number(1e-2)];
            let descend = Descend { length: 3.0, weight_decay: 0.1 };
            case(Kernel::Descend(descend), inputs, vec![random(dims, 2)]);
            for updates in [0, 5, 100_000] {
                let inputs = vec![random(dims, 1), number(scale), indices(&[1], vec![updates])];
                case(Kernel::Average { decay: 0.99 }, inputs, vec![random(dims, 2)]);
            }
        }
        for norm in [0.0, 3.0] {
            let x = map(random(dims, 1), |x| if norm == 0.0 { 0.0 } else { x });
            case(Kernel::Normalise, vec![x, number(norm)], vec![random(dims, 2)]);
        }
        case(Kernel::Combine([3.5, -4.75]), vec![random(dims, 1), random(dims, 2)], vec![random(dims, 3)]);
    }
}

/// Steps of every verdict, before and after the warm-up, with and without holding.
fn guards(cases: &mut Vec<Case>) {
    let settled = vec![100.0, 3.0, 0.04, 2.0, 0.25, 0.0];
    let held = vec![100.0, 3.0, 0.04, 2.0, 0.25, 1.0];
    for statistics in [vec![0.0; 6], vec![3.0, 3.0, 0.04, 2.0, 0.25, 0.0], settled, held] {
        for (norm, loss, targets, exponent) in [
            (2.1, 6.2, 2.0, 0.0),
            (0.5, 6.2, 2.0, 0.0),
            (2.1, 0.0, 0.0, 0.0),
            (40.0, 6.2, 2.0, 4.0),
            (9.0, 6.2, 2.0, 0.0),
            (2.1, 16.0, 2.0, 0.0),
            (f32::NAN, 6.2, 2.0, 0.0),
            (f32::INFINITY, 6.2, 2.0, 3.0),
            (2.1, f32::NAN, 2.0, 3.0),
        ] {
            for (clip, holds) in [(1.0, false), (0.0, true)] {
                let guard = Guard { clip, loss_outlier: 6.0, norm_outlier: 8.0, warmup: 20, holds };
                let inputs = [norm, loss, targets, exponent].map(|x| reals(&[1], vec![x])).into();
                let outputs = vec![random(&[1], 1), random(&[4], 2), reals(&[6], statistics.clone())];
                cases.push(Case { kernel: Kernel::Guard(guard), inputs, outputs, terms: 1 });
            }
        }
    }
}
