//! The op cases: one declaration serves derivatives and the comparison of backends.
//!
//! Shapes are odd on purpose: single rows and columns, lengths that are no multiple of any tile, and a few that cross the
//! tile borders of fast backends.

use ironmill_compute::{
    Attention, DType, IGNORED, Mask, Op, Shape,
    philox::{normal_pair, philox},
};

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
}

impl Operand {
    pub fn dtype(&self) -> DType {
        match self.fill {
            Fill::Real | Fill::Weight => DType::F32,
            Fill::Ids(_) | Fill::Targets(_) | Fill::Ignored | Fill::Words => DType::U32,
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
        }
    }
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
        Op::Split { .. } => "split",
        Op::Concat => "concat",
        Op::Attention(_) => "attention",
        Op::Gelu => "gelu",
        Op::Add => "add",
        Op::Dropout { .. } => "dropout",
        Op::CrossEntropy => "cross_entropy",
        Op::Sum => "sum",
        Op::Broadcast { .. } => "broadcast",
    }
    gradient {
        Op::EmbedGrad { .. },
        Op::LinearGradInput,
        Op::LinearGradWeight,
        Op::LinearGradBias,
        Op::LayerNormGradInput,
        Op::LayerNormGradParams { .. },
        Op::AttentionGrad(_),
        Op::GeluGrad,
        Op::CrossEntropyGrad,
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

/// All cases, op by op in the order of the table above.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut case =
        |name, op, operands: Vec<Operand>, reduction| cases.push(Case { name, op, operands, reduction });

    let embed = |rows, columns, ids: &[usize]| vec![real(&[rows, columns]), of(ids, Fill::Ids(rows))];
    case("embed", Op::Embed, embed(7, 5, &[3, 4]), 12);
    case("embed of one number", Op::Embed, embed(1, 1, &[3]), 3);
    case("embed, large", Op::Embed, embed(70, 130, &[3, 50]), 150);

    let linear = |x: &[usize], m| vec![real(x), real(&[m, x[x.len() - 1]])];
    let biased = |x: &[usize], m| vec![real(x), real(&[m, x[x.len() - 1]]), real(&[m])];
    case("linear", Op::Linear { bias: false }, linear(&[2, 3, 5], 4), 6);
    case("linear with bias", Op::Linear { bias: true }, biased(&[2, 3, 5], 4), 6);
    case("linear of one row", Op::Linear { bias: true }, biased(&[1, 7], 3), 7);
    case("linear of one column", Op::Linear { bias: false }, linear(&[5, 1], 1), 5);
    case("linear to one output", Op::Linear { bias: true }, biased(&[3, 9], 1), 9);
    case("linear, 70 x 130 x 50", Op::Linear { bias: true }, biased(&[70, 130], 50), 130);
    case("linear, 130 x 33 x 129", Op::Linear { bias: false }, linear(&[2, 65, 33], 129), 130);
    case("linear, 3 x 515 x 17", Op::Linear { bias: true }, biased(&[3, 515], 17), 515);

    let norm = |bias| Op::LayerNorm { eps: 1e-5, bias };
    let normed = |x: &[usize], bias: bool| {
        let columns = x[x.len() - 1];
        let mut operands = vec![real(x), real(&[columns])];
        operands.extend(bias.then(|| real(&[columns])));
        operands
    };
    case("layer_norm", norm(true), normed(&[2, 3, 5], true), 6);
    case("layer_norm without shift", norm(false), normed(&[3, 7], false), 7);
    case("layer_norm of one row", norm(true), normed(&[1, 6], true), 6);
    case("layer_norm of one column", norm(true), normed(&[4, 1], true), 4);
    case("layer_norm, large", norm(true), normed(&[70, 130], true), 130);

    let split = |sizes: &[usize]| Op::Split { sizes: sizes.to_vec() };
    case("split", split(&[2, 3, 4]), vec![real(&[2, 3, 9])], 1);
    case("split into one part", split(&[9]), vec![real(&[2, 9])], 1);
    case("split, large", split(&[1, 64, 65]), vec![real(&[70, 130])], 1);

    case("concat", Op::Concat, vec![real(&[2, 3, 2]), real(&[2, 3, 1]), real(&[2, 3, 4])], 1);
    case("concat of one part", Op::Concat, vec![real(&[4, 3])], 1);
    case("concat, large", Op::Concat, vec![real(&[70, 51]), real(&[70, 79])], 1);

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
        let op = Op::Attention(Attention { heads, kv_heads, mask, cached: false });
        let keys = || real(&[b, t, kv_heads * d]);
        // A key's gradient sums over queries and the heads that share it; a score sums over channels.
        let reduction = (t * heads / kv_heads).max(d);
        case(name, op, vec![real(&[b, t, heads * d]), keys(), keys()], reduction);
    }

    case("gelu", Op::Gelu, vec![real(&[2, 3, 5])], 1);
    case("gelu of one number", Op::Gelu, vec![real(&[1])], 1);
    case("gelu, large", Op::Gelu, vec![real(&[70, 131])], 1);

    case("add", Op::Add, vec![real(&[2, 3, 5]), real(&[2, 3, 5])], 1);
    case("add of one number", Op::Add, vec![real(&[1]), real(&[1])], 1);
    case("add, large", Op::Add, vec![real(&[70, 131]), real(&[70, 131])], 1);

    for (name, probability, number, x) in [
        ("dropout, a tenth", 0.1, 0, &[3, 5][..]),
        ("dropout, a half", 0.5, 1, &[4, 3, 7]),
        ("dropout of one row", 0.5, 2, &[1, 9]),
        ("dropout, large", 0.1, 3, &[5, 7, 131]),
    ] {
        let operands = vec![real(x), of(&[3], Fill::Words), of(&x[..1], Fill::Words)];
        case(name, Op::Dropout { probability, number }, operands, 1);
    }

    let targets = |rows: &[usize], v, targets| {
        vec![real(&[rows, &[v]].concat()), of(rows, targets), of(rows, Fill::Weight)]
    };
    case("cross_entropy", Op::CrossEntropy, targets(&[2, 3], 7, Fill::Ids(7)), 7);
    case("cross_entropy with ignored targets", Op::CrossEntropy, targets(&[8], 5, Fill::Targets(5)), 5);
    case("cross_entropy, all ignored", Op::CrossEntropy, targets(&[3], 5, Fill::Ignored), 5);
    case("cross_entropy of one row", Op::CrossEntropy, targets(&[1], 9, Fill::Ids(9)), 9);
    case("cross_entropy of one choice", Op::CrossEntropy, targets(&[4], 1, Fill::Ids(1)), 1);
    case("cross_entropy, large", Op::CrossEntropy, targets(&[5, 14], 131, Fill::Targets(131)), 131);

    case("sum", Op::Sum, vec![real(&[3, 5])], 15);
    case("sum of one number", Op::Sum, vec![real(&[1])], 1);
    case("sum, large", Op::Sum, vec![real(&[70, 131])], 70 * 131);

    let broadcast = |dims: &[usize]| Op::Broadcast { shape: Shape::new(dims) };
    case("broadcast", broadcast(&[3, 5]), vec![real(&[1])], 15);
    case("broadcast to one number", broadcast(&[1]), vec![real(&[1])], 1);
    case("broadcast, large", broadcast(&[70, 131]), vec![real(&[1])], 70 * 131);
    cases
}

fn of(dims: &[usize], fill: Fill) -> Operand {
    Operand { dims: dims.to_vec(), fill }
}

fn real(dims: &[usize]) -> Operand {
    of(dims, Fill::Real)
}
