//! The op cases: one declaration serves derivatives and the comparison of backends.
//!
//! Shapes are odd on purpose: single rows and columns, lengths that are no multiple of any tile, and a few that cross the
//! tile borders of fast backends.

use ironmill_compute::{
    Attention, DType, IGNORED, LossShape, Mask, Op, Shape,
    philox::{normal_pair, philox},
};
use ironmill_graph::rope_table;

/// An op with operands to run it on.
pub struct Case {
    pub name: &'static str,
    pub op: Op,
    pub operands: Vec<Operand>,
    /// The most terms in a sum behind one element of a result or a gradient: k of the tolerance.
    pub reduction: usize,
}

/// The shape of an operand and what is in it.
pub struct Operand {
    pub dims: Vec<usize>,
    pub fill: Fill,
}

/// What an operand is filled with.
#[derive(Clone, Copy)]
pub enum Fill {
    /// Normal numbers, with respect to which the op is differentiated.
    Real,
    /// Numbers between 0.5 and 1.5 that are data: no gradient is asked for.
    Weight,
    /// Ids below a limit.
    Ids(usize),
    /// Ids below a limit, of which every third is ignored.
    Targets(usize),
    /// Ids that are all ignored.
    Ignored,
    /// Any words.
    Words,
    /// Cosines and sines of positions: data.
    Angles,
    /// Where the document of each position starts, for samples packed with documents of these lengths; see [`borders`].
    Borders(&'static [usize]),
}

impl Operand {
    pub fn dtype(&self) -> DType {
        match self.fill {
            Fill::Real | Fill::Weight | Fill::Angles => DType::F32,
            Fill::Ids(_) | Fill::Targets(_) | Fill::Ignored | Fill::Words | Fill::Borders(_) => DType::U32,
        }
    }

    /// The elements, all of them numbers of `f32` or `u32`, so that every backend sees the same.
    pub fn values(&self, stream: u32) -> Vec<f64> {
        let count = self.dims.iter().product();
        let word = |element: usize| philox([stream, 77], [element as u32, 0, 0, 0])[0];
        let id = |element: usize, below: usize| f64::from(word(element) % below as u32);
        match self.fill {
            Fill::Real => normals(stream, count),
            Fill::Weight => (0..count).map(|i| 0.5 + f64::from(word(i) >> 8) / f64::from(1 << 24)).collect(),
            Fill::Ids(below) => (0..count).map(|i| id(i, below)).collect(),
            Fill::Targets(below) => {
                (0..count).map(|i| if i % 3 == 1 { f64::from(IGNORED) } else { id(i, below) }).collect()
            }
            Fill::Ignored => vec![f64::from(IGNORED); count],
            Fill::Words => (0..count).map(|i| f64::from(word(i))).collect(),
            Fill::Angles => {
                let frequencies: Vec<f64> = (1..=self.dims[1] / 2).map(|i| 1.0 / i as f64).collect();
                rope_table(self.dims[0], &frequencies).into_iter().map(f64::from).collect()
            }
            Fill::Borders(lengths) => {
                let sample = |sample| borders(sample, self.dims[1], lengths);
                (0..self.dims[0]).flat_map(sample).map(|start| start as f64).collect()
            }
        }
    }
}

/// For every position of a sample, where its document starts. Documents have these lengths, again and again until the
/// sample is full, and every sample begins with the next of them; the last is cut.
pub fn borders(sample: usize, positions: usize, lengths: &[usize]) -> Vec<usize> {
    let mut starts = Vec::with_capacity(positions);
    let mut lengths = lengths.iter().cycle().skip(sample);
    while starts.len() < positions {
        let start = starts.len();
        let length = lengths.next().map_or(positions, |&length| length.min(positions - start));
        starts.resize(start + length, start);
    }
    starts
}

/// Normal numbers that `f32` holds exactly; streams are independent.
pub fn normals(stream: u32, count: usize) -> Vec<f64> {
    let pair = |i: usize| normal_pair(philox([stream, 55], [i as u32, 0, 0, 0]));
    (0..count.div_ceil(2))
        .flat_map(|i| <[f64; 2]>::from(pair(i)))
        .take(count)
        .map(|x| f64::from(x as f32))
        .collect()
}

/// Makes the list of differentiable ops and an exhaustive match over them from one table, so that a new op is a compile
/// error here, and a differentiable one without a case fails below.
macro_rules! ops {
    (differentiable { $($op:pat => $name:literal,)* } gradient { $($gradient:pat,)* }) => {
        const DIFFERENTIABLE: &[&str] = &[$($name),*];

        fn differentiable(op: &Op) -> Option<&'static str> {
            match op {
                $($op => Some($name),)*
                $($gradient => None,)*
            }
        }
    };
}

ops! {
    differentiable {
        Op::Embed => "embed",
        Op::Linear { .. } => "linear",
        Op::LayerNorm { .. } => "layer_norm",
        Op::RmsNorm { .. } => "rms_norm",
        Op::Rope { .. } => "rope",
        Op::Split { .. } => "split",
        Op::Concat => "concat",
        Op::Attention(_) => "attention",
        Op::Gelu => "gelu",
        Op::GeluErf => "gelu_erf",
        Op::ReluSquared => "relu_squared",
        Op::SiluGate => "silu_gate",
        Op::Add => "add",
        Op::Mul => "mul",
        Op::Affine { .. } => "affine",
        Op::Dropout { .. } => "dropout",
        Op::CrossEntropy(_) => "cross_entropy",
        Op::Sum => "sum",
        Op::Broadcast { .. } => "broadcast",
    }
    gradient {
        Op::EmbedGrad { .. },
        Op::LinearGradInput { .. },
        Op::LinearGradWeight { .. },
        Op::LinearGradBias,
        Op::LayerNormGradInput,
        Op::LayerNormGradParams { .. },
        Op::RmsNormGradInput,
        Op::RmsNormGradGain { .. },
        Op::AttentionGrad(_),
        Op::GeluGrad,
        Op::GeluErfGrad,
        Op::ReluSquaredGrad,
        Op::SiluGateGrad,
        Op::CrossEntropyGrad(_),
    }
}

#[test]
fn every_differentiable_op_has_a_case_and_no_case_is_a_gradient_op() {
    let mut covered: Vec<&str> = cases()
        .iter()
        .map(|case| differentiable(&case.op).unwrap_or_else(|| panic!("{} is a gradient op", case.name)))
        .collect();
    covered.dedup();
    assert_eq!(covered, DIFFERENTIABLE);
}

/// Cases in the making.
struct List(Vec<Case>);

impl List {
    fn case(&mut self, name: &'static str, op: Op, operands: Vec<Operand>, reduction: usize) {
        self.0.push(Case { name, op, operands, reduction });
    }
}

/// All cases, op by op in the order of the table above.
pub fn cases() -> Vec<Case> {
    let mut list = List(Vec::new());
    rows(&mut list);
    attentions(&mut list);
    elements(&mut list);
    losses(&mut list);
    list.0
}

fn rows(list: &mut List) {
    let embed = |rows, columns, ids: &[usize]| vec![real(&[rows, columns]), of(ids, Fill::Ids(rows))];
    list.case("embed", Op::Embed, embed(7, 5, &[3, 4]), 12);
    list.case("embed of one number", Op::Embed, embed(1, 1, &[3]), 3);
    list.case("embed, large", Op::Embed, embed(70, 130, &[3, 50]), 150);

    let linear = |x: &[usize], m| vec![real(x), real(&[m, x[x.len() - 1]])];
    let biased = |x: &[usize], m| vec![real(x), real(&[m, x[x.len() - 1]]), real(&[m])];
    list.case("linear", Op::Linear { bias: false, products: DType::F32 }, linear(&[2, 3, 5], 4), 6);
    list.case("linear with bias", Op::Linear { bias: true, products: DType::F32 }, biased(&[2, 3, 5], 4), 6);
    list.case("linear of one row", Op::Linear { bias: true, products: DType::F32 }, biased(&[1, 7], 3), 7);
    list.case(
        "linear of one column",
        Op::Linear { bias: false, products: DType::F32 },
        linear(&[5, 1], 1),
        5,
    );
    list.case("linear to one output", Op::Linear { bias: true, products: DType::F32 }, biased(&[3, 9], 1), 9);
    list.case(
        "linear, 70 x 130 x 50",
        Op::Linear { bias: true, products: DType::F32 },
        biased(&[70, 130], 50),
        130,
    );
    list.case(
        "linear, 130 x 33 x 129",
        Op::Linear { bias: false, products: DType::F32 },
        linear(&[2, 65, 33], 129),
        130,
    );
    list.case(
        "linear, 3 x 515 x 17",
        Op::Linear { bias: true, products: DType::F32 },
        biased(&[3, 515], 17),
        515,
    );

    let norm = |bias| Op::LayerNorm { eps: 1e-5, bias };
    let normed = |x: &[usize], bias: bool| {
        let columns = x[x.len() - 1];
        let mut operands = vec![real(x), real(&[columns])];
        operands.extend(bias.then(|| real(&[columns])));
        operands
    };
    list.case("layer_norm", norm(true), normed(&[2, 3, 5], true), 6);
    list.case("layer_norm without shift", norm(false), normed(&[3, 7], false), 7);
    list.case("layer_norm of one row", norm(true), normed(&[1, 6], true), 6);
    list.case("layer_norm of one column", norm(true), normed(&[4, 1], true), 4);
    list.case("layer_norm, large", norm(true), normed(&[70, 130], true), 130);

    let rms_norm = |eps| Op::RmsNorm { eps };
    let grouped = |x: &[usize], gain: usize| vec![real(x), real(&[gain])];
    list.case("rms_norm", rms_norm(1e-5), grouped(&[2, 3, 5], 5), 6);
    list.case("rms_norm of one row", rms_norm(1e-5), grouped(&[1, 7], 7), 7);
    list.case("rms_norm of each head", rms_norm(1e-5), grouped(&[2, 3, 12], 4), 18);
    list.case("rms_norm of each head, large", rms_norm(1e-5), grouped(&[2, 35, 130], 65), 140);
    // Of a single number little but eps is left.
    list.case("rms_norm of one column", rms_norm(0.5), grouped(&[2, 3], 1), 6);
    list.case("rms_norm, large", rms_norm(1e-5), grouped(&[70, 131], 131), 131);

    for (name, x, head_dim, positions, inverse, still) in [
        ("rope", [2, 3, 4], 4, 9, false, 0),
        ("rope, inverse", [2, 3, 4], 4, 9, true, 0),
        ("rope of several heads", [2, 5, 18], 6, 20, false, 0),
        ("rope of several heads, inverse", [2, 5, 18], 6, 20, true, 0),
        ("rope of all heads but one", [2, 5, 18], 6, 20, false, 1),
        ("rope of one pair", [1, 1, 2], 2, 3, false, 0),
        ("rope, large", [2, 70, 132], 66, 300, false, 0),
    ] {
        let table = of(&[positions, head_dim], Fill::Angles);
        let operands = vec![real(&x), of(&x[..2], Fill::Ids(positions)), table];
        list.case(name, Op::Rope { inverse, still }, operands, 1);
    }

    let split = |sizes: &[usize]| Op::Split { sizes: sizes.to_vec() };
    list.case("split", split(&[2, 3, 4]), vec![real(&[2, 3, 9])], 1);
    list.case("split into one part", split(&[9]), vec![real(&[2, 9])], 1);
    list.case("split, large", split(&[1, 64, 65]), vec![real(&[70, 130])], 1);

    list.case("concat", Op::Concat, vec![real(&[2, 3, 2]), real(&[2, 3, 1]), real(&[2, 3, 4])], 1);
    list.case("concat of one part", Op::Concat, vec![real(&[4, 3])], 1);
    list.case("concat, large", Op::Concat, vec![real(&[70, 51]), real(&[70, 79])], 1);
}

fn attentions(list: &mut List) {
    for (name, [b, t, heads, kv_heads, d], mask) in [
        ("attention, causal", [2, 5, 2, 2, 3], Mask::Causal),
        ("attention, full", [2, 5, 2, 2, 3], Mask::Full),
        ("attention, causal, shared keys", [2, 5, 4, 2, 2], Mask::Causal),
        ("attention, full, one key head", [1, 6, 3, 1, 3], Mask::Full),
        ("attention of one position", [3, 1, 2, 1, 5], Mask::Causal),
        ("attention of one channel", [2, 7, 1, 1, 1], Mask::Causal),
        ("attention, causal, large", [2, 131, 3, 3, 13], Mask::Causal),
        ("attention, full, shared keys, large", [1, 67, 4, 2, 17], Mask::Full),
        ("attention, causal, wide heads", [1, 70, 2, 1, 65], Mask::Causal),
    ] {
        let attention = Attention { heads, kv_heads, mask, ..PLAIN };
        list.0.push(attention_case(name, [b, t, d], attention, &[]));
    }
    let wide = Attention { heads: 2, kv_heads: 2, ..PLAIN };
    let shared = Attention { heads: 4, kv_heads: 2, ..PLAIN };
    let full = |attention| Attention { mask: Mask::Full, ..attention };
    let window = |window, attention| Attention { window, ..attention };
    for (name, dims, attention, documents) in [
        ("attention, causal, window of 1", [2, 5, 3], window(1, wide), &[][..]),
        ("attention, full, window of 1", [2, 5, 3], window(1, full(wide)), &[]),
        ("attention, causal, window of 3", [2, 7, 3], window(3, wide), &[]),
        ("attention, full, window of 3, shared keys", [2, 7, 2], window(3, full(shared)), &[]),
        ("attention, causal, window past the end", [2, 5, 3], window(100, wide), &[]),
        ("attention, full, window past the end", [2, 5, 3], window(100, full(wide)), &[]),
        ("attention, causal, window, large", [2, 131, 13], window(33, wide), &[]),
        ("attention, causal, documents", [2, 9, 3], wide, &[3, 1, 5]),
        ("attention, full, documents", [2, 9, 3], full(wide), &[3, 1, 5]),
        ("attention, causal, documents of one token", [2, 5, 3], wide, &[1]),
        ("attention, full, one document", [2, 5, 3], full(wide), &[5]),
        ("attention, causal, documents, shared keys", [3, 9, 2], shared, &[1, 4, 3]),
        ("attention, causal, documents and window", [2, 11, 3], window(3, wide), &[7, 1, 3]),
        ("attention, full, documents and window", [2, 11, 2], window(2, full(shared)), &[7, 1, 3]),
        ("attention, causal, documents across tiles", [2, 131, 5], shared, &[37, 1, 93]),
        ("attention, full, documents across tiles", [2, 131, 5], full(wide), &[63, 2, 66]),
        ("attention, causal, all of it, large", [2, 131, 5], window(40, shared), &[64, 67]),
        ("attention, full, all of it, large", [2, 131, 5], window(3, full(shared)), &[70, 1, 13]),
    ] {
        list.0.push(attention_case(name, dims, attention, documents));
    }
}

fn elements(list: &mut List) {
    list.case("gelu", Op::Gelu, vec![real(&[2, 3, 5])], 1);
    list.case("gelu of one number", Op::Gelu, vec![real(&[1])], 1);
    list.case("gelu, large", Op::Gelu, vec![real(&[70, 131])], 1);

    list.case("gelu_erf", Op::GeluErf, vec![real(&[2, 3, 5])], 1);
    list.case("gelu_erf of one number", Op::GeluErf, vec![real(&[1])], 1);
    list.case("gelu_erf, large", Op::GeluErf, vec![real(&[70, 131])], 1);

    list.case("relu_squared", Op::ReluSquared, vec![real(&[2, 3, 5])], 1);
    list.case("relu_squared, large", Op::ReluSquared, vec![real(&[70, 131])], 1);

    list.case("silu_gate", Op::SiluGate, vec![real(&[2, 3, 5]), real(&[2, 3, 5])], 1);
    list.case("silu_gate of one number", Op::SiluGate, vec![real(&[1]), real(&[1])], 1);
    list.case("silu_gate, large", Op::SiluGate, vec![real(&[70, 131]), real(&[70, 131])], 1);

    list.case("add", Op::Add, vec![real(&[2, 3, 5]), real(&[2, 3, 5])], 1);
    list.case("add of one number", Op::Add, vec![real(&[1]), real(&[1])], 1);
    list.case("add, large", Op::Add, vec![real(&[70, 131]), real(&[70, 131])], 1);

    list.case("mul", Op::Mul, vec![real(&[2, 3, 5]), real(&[2, 3, 5])], 1);
    list.case("mul, large", Op::Mul, vec![real(&[70, 131]), real(&[70, 131])], 1);

    let (scale, shift) = (Op::Affine { factor: -3.5, offset: 0.0 }, Op::Affine { factor: 1.0, offset: 1.0 });
    list.case("affine, a factor", scale, vec![real(&[2, 3, 5])], 1);
    list.case("affine, an offset", shift, vec![real(&[70, 131])], 1);

    for (name, probability, number, x) in [
        ("dropout, a tenth", 0.1, 0, &[3, 5][..]),
        ("dropout, a half", 0.5, 1, &[4, 3, 7]),
        ("dropout of one row", 0.5, 2, &[1, 9]),
        ("dropout, large", 0.1, 3, &[5, 7, 131]),
    ] {
        let operands = vec![real(x), of(&[3], Fill::Words), of(&x[..1], Fill::Words)];
        list.case(name, Op::Dropout { probability, number }, operands, 1);
    }
}

fn losses(list: &mut List) {
    let targets = |rows: &[usize], v, targets| {
        vec![real(&[rows, &[v]].concat()), of(rows, targets), of(rows, Fill::Weight)]
    };
    let loss = |label_smoothing, z_loss| Op::CrossEntropy(LossShape { label_smoothing, z_loss });
    let plain = || loss(0.0, 0.0);
    list.case("cross_entropy", plain(), targets(&[2, 3], 7, Fill::Ids(7)), 7);
    list.case("cross_entropy with ignored targets", plain(), targets(&[8], 5, Fill::Targets(5)), 5);
    list.case("cross_entropy, all ignored", plain(), targets(&[3], 5, Fill::Ignored), 5);
    list.case("cross_entropy of one row", plain(), targets(&[1], 9, Fill::Ids(9)), 9);
    list.case("cross_entropy of one choice", plain(), targets(&[4], 1, Fill::Ids(1)), 1);
    list.case("cross_entropy, large", plain(), targets(&[5, 14], 131, Fill::Targets(131)), 131);
    list.case("cross_entropy with smoothing", loss(0.1, 0.0), targets(&[2, 3], 7, Fill::Ids(7)), 7);
    list.case("cross_entropy with z-loss", loss(0.0, 0.01), targets(&[2, 3], 7, Fill::Ids(7)), 7);
    list.case("cross_entropy with both", loss(0.3, 0.1), targets(&[8], 5, Fill::Targets(5)), 5);
    list.case("cross_entropy with both, all ignored", loss(0.3, 0.1), targets(&[3], 5, Fill::Ignored), 5);
    list.case(
        "cross_entropy with both, large",
        loss(0.1, 1e-4),
        targets(&[5, 14], 131, Fill::Targets(131)),
        131,
    );

    list.case("sum", Op::Sum, vec![real(&[3, 5])], 15);
    list.case("sum of one number", Op::Sum, vec![real(&[1])], 1);
    list.case("sum, large", Op::Sum, vec![real(&[70, 131])], 70 * 131);

    let broadcast = |dims: &[usize]| Op::Broadcast { shape: Shape::new(dims) };
    list.case("broadcast", broadcast(&[3, 5]), vec![real(&[1])], 15);
    list.case("broadcast to one number", broadcast(&[1]), vec![real(&[1])], 1);
    list.case("broadcast, large", broadcast(&[70, 131]), vec![real(&[1])], 70 * 131);
}

/// Attention over whole sequences that sees everything before it; cases say where they differ.
pub const PLAIN: Attention = Attention {
    heads: 1,
    kv_heads: 1,
    mask: Mask::Causal,
    cached: false,
    borders: false,
    window: 0,
    products: DType::F32,
};

/// Attention of B samples, T positions and heads of size D; with lengths, inside documents of these.
pub fn attention_case(
    name: &'static str,
    [b, t, d]: [usize; 3],
    attention: Attention,
    documents: &'static [usize],
) -> Case {
    let Attention { heads, kv_heads, .. } = attention;
    let borders = !documents.is_empty();
    let keys = || real(&[b, t, kv_heads * d]);
    let mut operands = vec![real(&[b, t, heads * d]), keys(), keys()];
    operands.extend(borders.then(|| of(&[b, t], Fill::Borders(documents))));
    // A key's gradient sums over queries and the heads that share it; a score sums over channels.
    let reduction = (t * heads / kv_heads).max(d);
    Case { name, op: Op::Attention(Attention { borders, ..attention }), operands, reduction }
}

fn of(dims: &[usize], fill: Fill) -> Operand {
    Operand { dims: dims.to_vec(), fill }
}

fn real(dims: &[usize]) -> Operand {
    of(dims, Fill::Real)
}
