//! The mathematical operations: what a model may write, and the gradient ops that derivatives emit.
//!
//! An op is data: a name, its constants, and a rule that says from the operands' types whether it has a meaning and what
//! comes out. What it computes is written once, as textbook loops, in the reference backend. Shapes use these letters:
//! B samples, T positions, S cached positions, C channels (row length), H heads, D head size, V vocabulary, N = B·T rows.

mod attention;

pub use attention::{Attention, Mask};

use crate::{
    error::{Error, Result},
    tensor::{DType, Shape, TensorType},
};

/// A target with this id is not counted: its loss and gradient are zero.
pub const IGNORED: u32 = u32::MAX;

/// How a loss departs from plain cross-entropy.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LossShape {
    /// The share of the target's probability that is spread evenly over the vocabulary.
    pub label_smoothing: f32,
    /// The weight of the squared log-sum-exp, which keeps logits from drifting.
    pub z_loss: f32,
}

/// An operation on tensors. Operands are listed as `(inputs) → outputs`.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// Rows of a table: `(table [..,C], ids u32[..]) → [..,C]`; all dimensions of the table but the last count its rows.
    Embed,
    /// `(x [..,K], w [M,K], b [M] if bias) → x·wᵀ + b [..,M]`.
    Linear {
        /// Whether there is a bias operand.
        bias: bool,
        /// What x and w are rounded to (to nearest, ties to even) before they are multiplied; f32 rounds nothing. Sums
        /// and results stay in f32, and numbers too small to be normal may count as zero.
        products: DType,
    },
    /// `(x [..,C], gain [C], shift [C] if bias) → y [..,C], mean [N], rstd [N]`.
    LayerNorm {
        /// Added to the variance.
        eps: f32,
        /// Whether there is a shift operand.
        bias: bool,
    },
    /// Rows divided by their root mean square: `(x [..,C], gain [G]) → y [..,C], rstd [rows of G]`. G divides C, so that the
    /// heads of a row can be normalised each on its own.
    RmsNorm {
        /// Added to the mean square.
        eps: f32,
    },
    /// Rotary positions: `(x [B,T,H·D], positions u32[B,T], table [S,D]) → [B,T,H·D]`. Element i of a head and element i + D/2
    /// are turned by the angle whose cosine and sine are elements i and i + D/2 of the position's row of the table.
    Rope {
        /// Whether to turn back, which is the derivative.
        inverse: bool,
        /// Heads at the end of a row that stay as they are, such as values behind queries and keys.
        still: usize,
    },
    /// Columns of x in consecutive parts: `(x [..,ΣC]) → [..,C₀], [..,C₁] …`.
    Split {
        /// The columns of each part.
        sizes: Vec<usize>,
    },
    /// The inverse of `Split`.
    Concat,
    /// Softmax of scaled products:
    /// `(q [B,T,H·D], k [B,S,Hkv·D], v, places if cached, borders if any) → [B,T,H·D], log-sum-exp [B,H,T]`.
    Attention(Attention),
    /// `½x(1 + tanh(√(2/π)(x + 0.044715x³)))`, GPT-2's form.
    Gelu,
    /// `½x(1 + erf(x/√2))`, BERT's form.
    GeluErf,
    /// `max(x, 0)²`.
    ReluSquared,
    /// `(gate, up) → gate·σ(gate)·up`.
    SiluGate,
    /// `(a, b) → a + b`, equal shapes.
    Add,
    /// `(a, b) → a·b` element by element, equal shapes.
    Mul,
    /// `(x) → factor·x + offset`.
    Affine {
        /// What every element is multiplied with.
        factor: f32,
        /// What is added to it then.
        offset: f32,
    },
    /// Zeroes a share of the elements and scales the rest: `(x [B,..], key u32[3] = (key₀, key₁, step), samples u32[B]) → x`.
    ///
    /// The mask is a function of the key, the step, `number`, the sample's index and the element's index in the sample,
    /// so it is the same for any micro-batch, and the derivative is the op itself.
    Dropout {
        /// The share of elements to drop.
        probability: f32,
        /// Tells this dropout from the others of the program.
        number: u32,
    },
    /// `(logits [..,V], targets u32[..], weights [..]) → losses [..], log-sum-exp [..]`; the loss of an ignored target is 0.
    ///
    /// With label smoothing s and z-loss z: weight·((1 − s)·(lse − logit of target) + s·(lse − mean logit) + z·lse²).
    CrossEntropy(LossShape),
    /// `(x) → Σx [1]`.
    Sum,
    /// `(x [1]) → x in every element`.
    Broadcast {
        /// The shape to fill.
        shape: Shape,
    },

    /// `(ids, d_y [..,C]) → d_table [V,C]`.
    EmbedGrad {
        /// Rows of the table.
        rows: usize,
    },
    /// `(d_y [..,M], w [M,K]) → d_x [..,K]`.
    LinearGradInput {
        /// What both operands are rounded to before they are multiplied.
        products: DType,
    },
    /// `(d_y [..,M], x [..,K]) → d_w [M,K]`.
    LinearGradWeight {
        /// What both operands are rounded to before they are multiplied.
        products: DType,
    },
    /// `(d_y [..,M]) → d_b [M]`.
    LinearGradBias,
    /// `(d_y, x, gain, mean, rstd) → d_x`.
    LayerNormGradInput,
    /// `(d_y, x, mean, rstd) → d_gain [C], d_shift [C] if bias`.
    LayerNormGradParams {
        /// Whether the norm has a shift.
        bias: bool,
    },
    /// `(d_y, x, gain, rstd) → d_x`.
    RmsNormGradInput,
    /// `(d_y, x, rstd) → d_gain [G]`.
    RmsNormGradGain {
        /// Elements of the gain.
        columns: usize,
    },
    /// `(d_out, q, k, v, out, log-sum-exp, borders if any) → d_q, d_k, d_v`.
    AttentionGrad(Attention),
    /// `(x, d_y) → d_x`.
    GeluGrad,
    /// `(x, d_y) → d_x`.
    GeluErfGrad,
    /// `(x, d_y) → d_x`.
    ReluSquaredGrad,
    /// `(gate, up, d_y) → d_gate, d_up`.
    SiluGateGrad,
    /// `(logits, targets, weights, log-sum-exp, d_losses) → d_logits`.
    CrossEntropyGrad(LossShape),
}

impl Op {
    /// The op's name in errors and listings.
    pub fn name(&self) -> &'static str {
        match self {
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
            Op::EmbedGrad { .. } => "embed_grad",
            Op::LinearGradInput { .. } => "linear_grad_input",
            Op::LinearGradWeight { .. } => "linear_grad_weight",
            Op::LinearGradBias => "linear_grad_bias",
            Op::LayerNormGradInput => "layer_norm_grad_input",
            Op::LayerNormGradParams { .. } => "layer_norm_grad_params",
            Op::RmsNormGradInput => "rms_norm_grad_input",
            Op::RmsNormGradGain { .. } => "rms_norm_grad_gain",
            Op::AttentionGrad(_) => "attention_grad",
            Op::GeluGrad => "gelu_grad",
            Op::GeluErfGrad => "gelu_erf_grad",
            Op::ReluSquaredGrad => "relu_squared_grad",
            Op::SiluGateGrad => "silu_gate_grad",
            Op::CrossEntropyGrad(_) => "cross_entropy_grad",
        }
    }

    /// What the op rounds the operands of its products to, if it has products.
    pub fn products_mut(&mut self) -> Option<&mut DType> {
        match self {
            Op::Linear { products, .. } => Some(products),
            Op::LinearGradInput { products } | Op::LinearGradWeight { products } => Some(products),
            Op::Attention(attention) | Op::AttentionGrad(attention) => Some(&mut attention.products),
            _ => None,
        }
    }

    /// The types of the outputs, or why the operands do not fit.
    pub fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>> {
        let rule = Rule { op: self, inputs };
        match self {
            Op::Embed => {
                let [table, ids] = rule.operands()?;
                rule.ensure(table.shape.dims().len() >= 2, "the table must have rows and columns")?;
                rule.indices(1)?;
                let columns = table.shape.columns();
                Ok(vec![TensorType { shape: ids.shape.with_inner(columns), dtype: table.dtype }])
            }
            Op::Linear { bias, .. } => {
                let x = rule.at(0, 2 + usize::from(*bias))?;
                let w = rule.at(1, inputs.len())?;
                rule.ensure(w.shape.dims().len() == 2, "the weight must have two dimensions")?;
                rule.ensure(w.shape.columns() == x.shape.columns(), "rows of x and w must have one length")?;
                let outputs = w.shape.dims()[0];
                if *bias {
                    rule.ensure(
                        inputs[2].shape.dims() == [outputs],
                        "the bias must have a value per output",
                    )?;
                }
                Ok(vec![TensorType { shape: x.shape.with_columns(outputs), dtype: x.dtype }])
            }
            Op::LayerNorm { bias, .. } => {
                let x = rule.at(0, 2 + usize::from(*bias))?;
                for operand in &inputs[1..] {
                    rule.ensure(
                        operand.shape.dims() == [x.shape.columns()],
                        "gain and shift must have a value per column",
                    )?;
                }
                let rows = TensorType::new(&[x.shape.rows()], DType::F32);
                Ok(vec![x, rows, rows])
            }
            Op::Split { sizes } => {
                let [x] = rule.operands()?;
                rule.ensure(!sizes.is_empty(), "there must be a part")?;
                rule.ensure(
                    sizes.iter().sum::<usize>() == x.shape.columns(),
                    "the parts must add up to the columns",
                )?;
                Ok(sizes
                    .iter()
                    .map(|&size| TensorType { shape: x.shape.with_columns(size), dtype: x.dtype })
                    .collect())
            }
            Op::Concat => {
                let first = rule.at(0, inputs.len())?;
                let mut columns = 0;
                for part in inputs {
                    rule.ensure(
                        part.shape.without_columns() == first.shape.without_columns(),
                        "the parts must have the same rows",
                    )?;
                    columns += part.shape.columns();
                }
                Ok(vec![TensorType { shape: first.shape.with_columns(columns), dtype: first.dtype }])
            }
            Op::RmsNorm { .. } => {
                let [x, gain] = rule.operands()?;
                let rows = rule.grouped_rows(x, gain.shape.elements())?;
                rule.ensure(gain.shape.dims().len() == 1, "the gain must have one dimension")?;
                Ok(vec![x, TensorType::new(&[rows], DType::F32)])
            }
            Op::Rope { still, .. } => {
                let [x, positions, table] = rule.operands()?;
                rule.indices(1)?;
                let head_dim = table.shape.columns();
                rule.ensure(x.shape.dims().len() == 3, "x must be [B,T,H·D]")?;
                rule.ensure(
                    positions.shape == x.shape.without_columns(),
                    "there must be a position per row",
                )?;
                rule.ensure(
                    table.shape.dims().len() == 2 && head_dim % 2 == 0 && x.shape.columns() % head_dim == 0,
                    "the table must be [S,D] with D even and dividing the columns",
                )?;
                rule.ensure(still * head_dim <= x.shape.columns(), "no more heads can stay than there are")?;
                Ok(vec![x])
            }
            Op::Attention(attention) => {
                let q = rule.at(0, 3 + attention.extra_operands())?;
                rule.attention(attention, q, inputs[1], inputs[2])?;
                if attention.cached {
                    rule.indices(3)?;
                }
                if attention.borders {
                    rule.borders(q, inputs.len() - 1)?;
                }
                let dims = q.shape.dims();
                let statistics = TensorType::new(&[dims[0], attention.heads, dims[1]], DType::F32);
                Ok(vec![q, statistics])
            }
            Op::Gelu | Op::GeluErf | Op::ReluSquared | Op::Affine { .. } => {
                let [x] = rule.operands()?;
                Ok(vec![x])
            }
            Op::SiluGate => {
                let [gate, up] = rule.operands()?;
                rule.ensure(gate.shape == up.shape, "both must have one shape")?;
                Ok(vec![gate])
            }
            Op::Add | Op::Mul => {
                let [a, b] = rule.operands()?;
                rule.ensure(a.shape == b.shape, "both must have one shape")?;
                Ok(vec![a])
            }
            Op::Dropout { probability, .. } => {
                let [x, key, samples] = rule.operands()?;
                rule.ensure(
                    (0.0..1.0).contains(probability),
                    "the probability must be at least 0 and below 1",
                )?;
                rule.indices(1)?;
                rule.indices(2)?;
                rule.ensure(key.shape.dims() == [3], "the key must be three words")?;
                rule.ensure(
                    samples.shape.dims() == [x.shape.dims()[0]],
                    "there must be an index per sample",
                )?;
                Ok(vec![x])
            }
            Op::CrossEntropy(shape) => {
                let [logits, targets, weights] = rule.operands()?;
                rule.indices(1)?;
                rule.ensure(
                    targets.shape == logits.shape.without_columns(),
                    "there must be a target per row",
                )?;
                rule.ensure(weights.shape == targets.shape, "there must be a weight per target")?;
                rule.ensure(
                    (0.0..1.0).contains(&shape.label_smoothing) && shape.z_loss >= 0.0,
                    "label smoothing must be at least 0 and below 1, the z-loss at least 0",
                )?;
                let losses = TensorType { shape: targets.shape, dtype: DType::F32 };
                Ok(vec![losses, losses])
            }
            Op::Sum => {
                rule.operands::<1>()?;
                Ok(vec![TensorType::new(&[1], DType::F32)])
            }
            Op::Broadcast { shape } => {
                let [x] = rule.operands()?;
                rule.ensure(x.shape.elements() == 1, "only a single number can be broadcast")?;
                Ok(vec![TensorType { shape: *shape, dtype: x.dtype }])
            }
            Op::EmbedGrad { rows } => {
                let [ids, d_y] = rule.operands()?;
                rule.indices(0)?;
                rule.ensure(d_y.shape.without_columns() == ids.shape, "there must be a gradient row per id")?;
                Ok(vec![TensorType::new(&[*rows, d_y.shape.columns()], DType::F32)])
            }
            Op::LinearGradInput { .. } => {
                let [d_y, w] = rule.operands()?;
                rule.ensure(
                    w.shape.dims().len() == 2 && w.shape.dims()[0] == d_y.shape.columns(),
                    "the weight must have a row per output",
                )?;
                Ok(vec![TensorType { shape: d_y.shape.with_columns(w.shape.columns()), dtype: d_y.dtype }])
            }
            Op::LinearGradWeight { .. } => {
                let [d_y, x] = rule.operands()?;
                rule.ensure(d_y.shape.rows() == x.shape.rows(), "both must have the same rows")?;
                Ok(vec![TensorType::new(&[d_y.shape.columns(), x.shape.columns()], DType::F32)])
            }
            Op::LinearGradBias => {
                let [d_y] = rule.operands()?;
                Ok(vec![TensorType::new(&[d_y.shape.columns()], DType::F32)])
            }
            Op::LayerNormGradInput => {
                let [d_y, x, gain, mean, rstd] = rule.operands()?;
                rule.ensure(d_y.shape == x.shape, "gradient and input must have one shape")?;
                rule.ensure(
                    gain.shape.dims() == [x.shape.columns()],
                    "the gain must have a value per column",
                )?;
                rule.statistics(x, mean, rstd)?;
                Ok(vec![d_y])
            }
            Op::LayerNormGradParams { bias } => {
                let [d_y, x, mean, rstd] = rule.operands()?;
                rule.ensure(d_y.shape == x.shape, "gradient and input must have one shape")?;
                rule.statistics(x, mean, rstd)?;
                let row = TensorType::new(&[x.shape.columns()], DType::F32);
                Ok(vec![row; 1 + usize::from(*bias)])
            }
            Op::RmsNormGradInput => {
                let [d_y, x, gain, rstd] = rule.operands()?;
                rule.ensure(d_y.shape == x.shape, "gradient and input must have one shape")?;
                let rows = rule.grouped_rows(x, gain.shape.elements())?;
                rule.ensure(rstd.shape.dims() == [rows], "there must be a statistic per row")?;
                Ok(vec![d_y])
            }
            Op::RmsNormGradGain { columns } => {
                let [d_y, x, rstd] = rule.operands()?;
                rule.ensure(d_y.shape == x.shape, "gradient and input must have one shape")?;
                let rows = rule.grouped_rows(x, *columns)?;
                rule.ensure(rstd.shape.dims() == [rows], "there must be a statistic per row")?;
                Ok(vec![TensorType::new(&[*columns], DType::F32)])
            }
            Op::AttentionGrad(attention) => {
                let d_out = rule.at(0, 6 + usize::from(attention.borders))?;
                let [q, k, v, out] = [inputs[1], inputs[2], inputs[3], inputs[4]];
                rule.ensure(!attention.cached, "a cache has no gradient")?;
                rule.attention(attention, q, k, v)?;
                if attention.borders {
                    rule.borders(q, 6)?;
                }
                rule.ensure(
                    d_out.shape == q.shape && out.shape == q.shape,
                    "gradient, output and queries must have one shape",
                )?;
                Ok(vec![q, k, v])
            }
            Op::GeluGrad | Op::GeluErfGrad | Op::ReluSquaredGrad => {
                let [x, d_y] = rule.operands()?;
                rule.ensure(x.shape == d_y.shape, "gradient and input must have one shape")?;
                Ok(vec![d_y])
            }
            Op::SiluGateGrad => {
                let [gate, up, d_y] = rule.operands()?;
                rule.ensure(
                    gate.shape == up.shape && d_y.shape == up.shape,
                    "gradient and inputs must have one shape",
                )?;
                Ok(vec![d_y, d_y])
            }
            Op::CrossEntropyGrad(_) => {
                let [logits, targets, weights, log_sum_exp, d_losses] = rule.operands()?;
                rule.indices(1)?;
                for operand in [targets, weights, log_sum_exp, d_losses] {
                    rule.ensure(
                        operand.shape == logits.shape.without_columns(),
                        "there must be a value per row",
                    )?;
                }
                Ok(vec![logits])
            }
        }
    }
}

/// The checks that shape rules are made of, with the op and its operands for the message.
struct Rule<'a> {
    op: &'a Op,
    inputs: &'a [TensorType],
}

impl Rule<'_> {
    fn ensure(&self, holds: bool, requirement: &str) -> Result<()> {
        if holds {
            return Ok(());
        }
        let operands: Vec<String> = self.inputs.iter().map(ToString::to_string).collect();
        Err(Error::Shape {
            op: self.op.name(),
            detail: format!("{requirement}, got {}", operands.join(", ")),
        })
    }

    fn operands<const N: usize>(&self) -> Result<[TensorType; N]> {
        self.ensure(self.inputs.len() == N, &format!("takes {N} operands"))?;
        Ok(std::array::from_fn(|i| self.inputs[i]))
    }

    fn at(&self, index: usize, count: usize) -> Result<TensorType> {
        self.ensure(self.inputs.len() == count && index < count, &format!("takes {count} operands"))?;
        Ok(self.inputs[index])
    }

    fn indices(&self, index: usize) -> Result<()> {
        self.ensure(self.inputs[index].dtype == DType::U32, &format!("operand {index} must be u32"))
    }

    fn statistics(&self, x: TensorType, mean: TensorType, rstd: TensorType) -> Result<()> {
        let rows = [x.shape.rows()];
        self.ensure(
            mean.shape.dims() == rows && rstd.shape.dims() == rows,
            "there must be a statistic per row",
        )
    }

    /// How many groups of `columns` elements x has.
    fn grouped_rows(&self, x: TensorType, columns: usize) -> Result<usize> {
        self.ensure(
            columns > 0 && x.shape.columns().is_multiple_of(columns),
            "the gain must divide the columns",
        )?;
        Ok(x.shape.elements() / columns)
    }

    fn borders(&self, q: TensorType, index: usize) -> Result<()> {
        self.indices(index)?;
        self.ensure(self.inputs[index].shape == q.shape.without_columns(), "there must be a border per query")
    }

    fn attention(&self, attention: &Attention, q: TensorType, k: TensorType, v: TensorType) -> Result<()> {
        let (heads, kv_heads) = (attention.heads, attention.kv_heads);
        let [b, t, columns] = *q.shape.dims() else {
            return self.ensure(false, "queries must be [B,T,H·D]");
        };
        let [kb, s, kv_columns] = *k.shape.dims() else {
            return self.ensure(false, "keys must be [B,S,Hkv·D]");
        };
        self.ensure(
            heads > 0 && kv_heads > 0 && heads % kv_heads == 0,
            "heads must be a multiple of key heads",
        )?;
        self.ensure(
            columns % heads == 0 && kv_columns == columns / heads * kv_heads,
            "all heads must have one size",
        )?;
        self.ensure(
            k.shape == v.shape && (attention.cached || kb == b),
            "keys and values must have one shape and the queries' samples",
        )?;
        self.ensure(attention.cached || s == t, "without a cache there is a key per query")?;
        self.ensure(!attention.cached || attention.mask == Mask::Causal, "attention over a cache is causal")?;
        self.ensure(!(attention.cached && attention.borders), "a cache holds one document")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(op: Op, inputs: &[&[usize]], expected: &[&[usize]]) {
        let inputs: Vec<TensorType> = inputs.iter().map(|dims| TensorType::new(dims, DType::F32)).collect();
        let outputs = op.outputs(&inputs).unwrap();
        assert_eq!(outputs.iter().map(|t| t.shape.dims()).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn shape_rules_give_the_outputs() {
        check(Op::Linear { bias: true, products: DType::F32 }, &[&[2, 3, 4], &[5, 4], &[5]], &[&[2, 3, 5]]);
        check(Op::LayerNorm { eps: 1e-5, bias: false }, &[&[2, 3, 4], &[4]], &[&[2, 3, 4], &[6], &[6]]);
        check(Op::Split { sizes: vec![1, 3] }, &[&[2, 4]], &[&[2, 1], &[2, 3]]);
        check(Op::Concat, &[&[2, 1], &[2, 3]], &[&[2, 4]]);
        check(Op::Sum, &[&[2, 3]], &[&[1]]);
    }

    #[test]
    fn a_wrong_shape_is_an_error_that_names_the_shapes() {
        let x = TensorType::new(&[2, 3], DType::F32);
        let w = TensorType::new(&[5, 4], DType::F32);
        let message =
            Op::Linear { bias: false, products: DType::F32 }.outputs(&[x, w]).unwrap_err().to_string();
        assert!(
            message.contains("linear") && message.contains("f32[2, 3]") && message.contains("f32[5, 4]"),
            "{message}"
        );
        assert!(Op::Add.outputs(&[x]).is_err());
        assert!(Op::Linear { bias: true, products: DType::F32 }.outputs(&[]).is_err());
        assert!(Op::Concat.outputs(&[]).is_err());
        assert!(Op::Embed.outputs(&[w, x]).is_err(), "ids must be u32");
    }
}
