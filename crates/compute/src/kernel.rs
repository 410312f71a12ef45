//! What a backend runs: an op, a fused group of ops, a cast, a state write, an optimiser update.
//!
//! Backends match exhaustively on [`Kernel`], so a new one is a compile error wherever it is missing. A fused kernel has an
//! [`Expansion`] into plain kernels; the reference backend runs only that, which makes it the oracle of the fused one.

mod guard;
mod update;

pub use guard::{GUARD_REPORT, GUARD_STATISTICS, Guard, Verdict};
pub(crate) use guard::{Judgement, Observation};
pub use update::{Adam, Descend, Sgd, UpdateRange};
pub(crate) use update::{NORMALISE_EPS, average_decay};

use std::sync::Arc;

use crate::{
    draw::{Draw, LogProbabilities},
    op::{Attention, LossShape, Mask, Op},
    quantise::{GeluProduct, Quantise, QuantisedAttentionGrad, QuantisedNorm, QuantisedNormGrads, Source},
    tensor::{DType, Shape, TensorType},
};

/// A unit of work for a backend.
#[derive(Clone, Debug, PartialEq)]
pub enum Kernel {
    /// An op as it stands.
    Op(Op),
    /// `(x) → x` in the output's element type.
    Cast,
    /// `(x) → state`: overwrites it, or adds to it.
    StateWrite {
        /// Whether to add to what is there.
        add: bool,
    },
    /// `(new [B,T,C], places u32[B,2]) → cache state [R,S,C]`: positions `start..start + T` of the cache's row `row`, where
    /// (row, start) is the place of the sample. What lies outside of the cache is dropped.
    CacheAppend,
    /// `(moves u32[N,3]) → cache state [R,S,C]`: for each move (from, to, length) the first positions of one row of the cache
    /// become those of another. No row that a move writes is named by another one; a row outside of the cache moves nothing.
    CacheCopy,
    /// Logits that a row is drawn from after bias and penalties. See [`Penalties`](crate::Penalties).
    Adjust,
    /// Draws tokens and moves rows on. See [`Draw`].
    Draw(Draw),
    /// What a token that was drawn, and the likeliest ones, are likely to be. See [`LogProbabilities`].
    LogProbabilities(LogProbabilities),
    /// Fused: an op all of whose outputs are written into state, without an intermediate value.
    OpInto {
        /// The op.
        op: Op,
        /// Whether to add to what is there.
        add: bool,
    },
    /// Fused residual and norm: `(a, b, gain, shift if bias) → a + b, norm(a + b), mean, rstd`.
    AddLayerNorm {
        /// Added to the variance.
        eps: f32,
        /// Whether there is a shift operand.
        bias: bool,
    },
    /// The same with RMS norm: `(a, b, gain) → a + b, norm(a + b), rstd`.
    AddRmsNorm {
        /// Added to the mean square.
        eps: f32,
    },
    /// Layer norm behind a product that has left its bias: `(a, b, bias, gain, shift if any) → a + (b + bias), its norm, mean, rstd`.
    AddBiasedLayerNorm {
        /// Added to the variance.
        eps: f32,
        /// Whether there is a shift operand.
        shift: bool,
    },
    /// Fused gradient of a norm and of the residual around it: `(d_y, x, gain, mean, rstd, other) → other + d_x`.
    LayerNormGradAdd,
    /// The same with RMS norm: `(d_y, x, gain, rstd, other) → other + d_x`.
    RmsNormGradAdd,
    /// Fused gradients of a norm, its parameters and the residual around it. See [`NormGrads`].
    NormGrads(NormGrads),
    /// A gate whose operands are columns of one tensor: `(gate and up [..,2·H]) → [..,H]`.
    JointSiluGate,
    /// `(gate and up, d_y) → d_gate and d_up [..,2·H]`.
    JointSiluGateGrad,
    /// Fused product and activation: `(x, w, b if bias) → h = x·wᵀ + b, GELU(h)`.
    LinearGelu {
        /// Whether there is a bias operand.
        bias: bool,
        /// What x and w are rounded to before they are multiplied.
        products: DType,
        /// Whether GELU′(h), which is all that the gradient wants of h, is written in its place.
        slope: bool,
    },
    /// Fused gradient of an activation's argument: `(d_y, w, h) → GELU′(h)·(d_y·w)`.
    LinearGradGelu {
        /// What d_y and w are rounded to before they are multiplied.
        products: DType,
        /// Whether GELU′(h) is there in place of h.
        slope: bool,
    },
    /// The same, and the gradient of the bias of the product whose result h is, which is the sum of the rows of the first:
    /// `(d_y, w, h) → GELU′(h)·(d_y·w), d_bias state`.
    LinearGradGelus {
        /// What d_y and w are rounded to before they are multiplied.
        products: DType,
        /// Whether GELU′(h) is there in place of h.
        slope: bool,
        /// Whether sums are added to what is there.
        add: bool,
    },
    /// Fused product and gate: `(x, w, which gives gates and behind them as many ups) → slopes [..,2·H], SiLU(gate)·up [..,H]`. Slopes are
    /// what the gradient wants of gates and ups: up·SiLU′(gate) and, behind them, SiLU(gate).
    LinearGate {
        /// What x and w are rounded to before they are multiplied.
        products: DType,
    },
    /// Fused gradient of a gate's operands: `(d_y, w, slopes [..,2·H]) → d_gate and d_up [..,2·H]`, each its slope times d_y·w.
    LinearGradGate {
        /// What d_y and w are rounded to before they are multiplied.
        products: DType,
    },
    /// Attention whose queries, keys and values are columns of one tensor:
    /// `(qkv [B,T,(H + 2·Hkv)·D], borders if any) → [B,T,H·D], log-sum-exp [B,H,T]`.
    JointAttention(Attention),
    /// `(d_out, qkv, out, log-sum-exp, borders if any) → d_qkv`.
    JointAttentionGrad(Attention),
    /// The same, and the gradient of the bias of the product whose result qkv is, which is the sum of the rows of the first:
    /// `(d_out, qkv, out, log-sum-exp, borders if any) → d_qkv, d_bias state`.
    JointAttentionGrads {
        /// The attention.
        of: Attention,
        /// Whether sums are added to what is there.
        add: bool,
    },
    /// Attention over a cache that first takes in the keys and values beside the queries:
    /// `(qkv [B,T,(H + 2·Hkv)·D], places u32[B,2]) → [B,T,H·D], log-sum-exp [B,H,T], key cache state [R,S,Hkv·D], value cache`.
    CachedAttention(Attention),
    /// Fused head: product, loss and their gradients over a few rows at a time, so that logits never exist whole.
    /// See [`HeadLoss`].
    HeadLoss(HeadLoss),
    /// Numbers on their way to products of eight bits. See [`Quantise`].
    Quantise(Quantise),
    /// Weights on their way to products of eight bits, many at a time: `(w, …) → for each in turn what it gives alone, in e4m3`.
    QuantiseWeights(Arc<[Quantise]>),
    /// `(d_logits [N,V], targets [N]) → d_logits`, where each row's number at its target is rounded to the bits of e5m2, up or down by the
    /// row's place. To nearest, −(1 − p) would become −1 for every unlikely target, and the weight's gradient would add that error up over
    /// all rows of a token. A step of heads with products of eight bits: a card takes it while it writes their gradient's bytes.
    RoundTargets,
    /// A norm on its way to products of eight bits. See [`QuantisedNorm`].
    QuantisedNorm(QuantisedNorm),
    /// Gradients of a norm on their way to products of eight bits and beyond. See [`QuantisedNormGrads`].
    QuantisedNormGrads(QuantisedNormGrads),
    /// The gradient of an attention on its way to products of eight bits. See [`QuantisedAttentionGrad`].
    QuantisedAttentionGrad(QuantisedAttentionGrad),
    /// `(a [..,K], unit of a [1], b [M,K], unit of b [1], bias [M] if any) → a·bᵀ·units + bias [..,M]`, where both are of eight
    /// bits. The three products of a linear layer are all of this form, because whatever is needed transposed was written so.
    ScaledProduct {
        /// Whether there is a bias operand.
        bias: bool,
        /// Whether to add to what is there.
        add: bool,
    },
    /// A product of eight bits on its way through GELU to another one. See [`GeluProduct`].
    GeluProduct(GeluProduct),
    /// `(gradients) → √Σg² [1]`: not finite exactly when a gradient is not.
    GlobalNorm,
    /// Whether a step is applied, and what its gradients are multiplied with. See [`Guard`].
    Guard(Guard),
    /// One step of Adam or AdamW. See [`Adam`].
    Adam(Adam),
    /// One step of gradient descent with momentum. See [`Sgd`].
    Sgd(Sgd),
    /// `(gradients, scale [1]) → m state, ahead`: with g the scaled gradients, m ← decay·m + (1 − decay)·g, and
    /// ahead = decay·m + (1 − decay)·g. A refused step leaves m alone, and 0 lies ahead.
    Momentum {
        /// The share of m that stays.
        decay: f32,
    },
    /// `(x, norm [1]) → x / norm`, where a norm of 0 leaves 0.
    Normalise,
    /// `(x, y) → a·x + b·y`.
    Combine([f32; 2]),
    /// Parameters move along a direction. See [`Descend`].
    Descend(Descend),
    /// `(parameters, scale [1], step counter u32[1]) → average` state: a ← d·a + (1 − d)·p with d = min(decay, (1 + t)/(10 + t))
    /// after t updates. A refused step changes nothing.
    Average {
        /// The share of the average that stays.
        decay: f32,
    },
}

/// The least that a launch must do.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Floating-point operations of its matrix products.
    pub flops: f64,
    /// Bytes read and written.
    pub bytes: f64,
}

/// All gradients of a norm in one pass over its rows: of what it normalises, added to the gradient that flows around it; of its gain
/// and shift; and of the bias of the product whose result was normalised, which is the sum of the rows of the first:
/// `(d_y, x, gain, mean if centred, rstd, other) → other + d_x, d_gain, d_shift if any, d_bias if any`, all but the first state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NormGrads {
    /// Whether it is layer norm, which subtracts the mean, rather than RMS norm.
    pub centred: bool,
    /// Whether the norm has a shift.
    pub shift: bool,
    /// Whether the sum of the first output's rows is wanted.
    pub bias: bool,
    /// Whether sums are added to what is there.
    pub add: bool,
}

impl NormGrads {
    /// The op whose gradient flows on.
    pub fn input_op(&self) -> Op {
        if self.centred { Op::LayerNormGradInput } else { Op::RmsNormGradInput }
    }

    /// How many sums over rows there are.
    pub fn sums(&self) -> usize {
        1 + usize::from(self.shift) + usize::from(self.bias)
    }

    /// The op that sums the gradients of gain and shift, over rows of this many columns.
    pub fn params_op(&self, columns: usize) -> Op {
        if self.centred {
            Op::LayerNormGradParams { bias: self.shift }
        } else {
            Op::RmsNormGradGain { columns }
        }
    }
}

/// The constants of a fused head: `(x [..,C], w [V,C], targets, weights, d_losses if any gradient is wanted)
/// → losses [..], workspace [rows, V], d_x [..,C] if wanted, d_w state if wanted`.
#[derive(Clone, Debug, PartialEq)]
pub struct HeadLoss {
    /// Rows of logits that exist at a time.
    pub chunk_rows: usize,
    /// How the loss departs from plain cross-entropy.
    pub loss: LossShape,
    /// What operands of the three products are rounded to; e4m3 stands for products of eight bits, whose gradients are e5m2.
    pub products: DType,
    /// Whether the gradient of x is an output.
    pub d_input: bool,
    /// Whether the gradient of w is written into state, and if so whether it adds to what is there.
    pub d_weight: Option<bool>,
}

impl HeadLoss {
    /// Whether any gradient is computed.
    pub fn has_gradient(&self) -> bool {
        self.d_input || self.d_weight.is_some()
    }
}

impl Kernel {
    /// The kernel's name in errors and listings.
    pub fn name(&self) -> &'static str {
        match self {
            Kernel::Op(op) | Kernel::OpInto { op, .. } => op.name(),
            Kernel::Cast => "cast",
            Kernel::StateWrite { .. } => "state_write",
            Kernel::CacheAppend => "cache_append",
            Kernel::CacheCopy => "cache_copy",
            Kernel::Adjust => "adjust",
            Kernel::Draw(_) => "draw",
            Kernel::LogProbabilities(_) => "log_probabilities",
            Kernel::AddLayerNorm { .. } => "add_layer_norm",
            Kernel::AddRmsNorm { .. } => "add_rms_norm",
            Kernel::AddBiasedLayerNorm { .. } => "add_biased_layer_norm",
            Kernel::LayerNormGradAdd => "layer_norm_grad_add",
            Kernel::RmsNormGradAdd => "rms_norm_grad_add",
            Kernel::NormGrads(NormGrads { centred: true, .. }) => "layer_norm_grads",
            Kernel::NormGrads(_) => "rms_norm_grads",
            Kernel::JointSiluGate => "joint_silu_gate",
            Kernel::JointSiluGateGrad => "joint_silu_gate_grad",
            Kernel::LinearGelu { .. } => "linear_gelu",
            Kernel::LinearGradGelu { .. } => "linear_grad_gelu",
            Kernel::LinearGradGelus { .. } => "linear_grad_gelus",
            Kernel::LinearGate { .. } => "linear_gate",
            Kernel::LinearGradGate { .. } => "linear_grad_gate",
            Kernel::JointAttention(_) => "joint_attention",
            Kernel::JointAttentionGrad(_) => "joint_attention_grad",
            Kernel::JointAttentionGrads { .. } => "joint_attention_grads",
            Kernel::CachedAttention(_) => "cached_attention",
            Kernel::HeadLoss(_) => "head_loss",
            Kernel::Quantise(of) => of.name(),
            Kernel::QuantiseWeights(_) => "quantise_weights",
            Kernel::RoundTargets => "round_targets",
            Kernel::QuantisedNorm(of) => of.name(),
            Kernel::QuantisedNormGrads(of) => of.name(),
            Kernel::QuantisedAttentionGrad(_) => "quantise_attention_grad",
            Kernel::ScaledProduct { .. } => "scaled_product",
            Kernel::GeluProduct(of) => of.name(),
            Kernel::GlobalNorm => "global_norm",
            Kernel::Guard(_) => "guard",
            Kernel::Adam(_) => "adam",
            Kernel::Sgd(_) => "sgd",
            Kernel::Momentum { .. } => "momentum",
            Kernel::Normalise => "normalise",
            Kernel::Combine(_) => "combine",
            Kernel::Descend(_) => "descend",
            Kernel::Average { .. } => "average",
        }
    }

    /// Matrix products in one launch; the blocks inside an attention and the chunks of a head do not count as products of
    /// their own.
    pub fn matrix_products(&self) -> usize {
        match self {
            Kernel::Op(op) | Kernel::OpInto { op, .. } => match op {
                Op::Linear { .. } | Op::LinearGradInput { .. } | Op::LinearGradWeight { .. } => 1,
                _ => 0,
            },
            Kernel::LinearGelu { .. }
            | Kernel::LinearGradGelu { .. }
            | Kernel::LinearGradGelus { .. }
            | Kernel::LinearGate { .. }
            | Kernel::LinearGradGate { .. }
            | Kernel::ScaledProduct { .. }
            | Kernel::GeluProduct(_) => 1,
            Kernel::HeadLoss(head) => 1 + usize::from(head.d_input) + usize::from(head.d_weight.is_some()),
            _ => 0,
        }
    }

    /// What a launch must at least do: the operations of its products and the bytes of its operands.
    pub fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        let bytes = |of: &TensorType| of.shape.elements() as f64 * of.dtype.bytes() as f64;
        let product = |rows: usize, weight: TensorType| 2.0 * rows as f64 * weight.shape.elements() as f64;
        let seen = |attention: &Attention, out: TensorType, keys: usize| {
            // A score is a product of a head's size, and so is its share of the output; causal queries see half of the keys.
            let visible = if attention.mask == Mask::Causal && !attention.cached { 0.5 } else { 1.0 };
            4.0 * out.shape.elements() as f64 * keys as f64 * visible
        };
        let flops = match self {
            Kernel::Op(op) | Kernel::OpInto { op, .. } => match op {
                Op::Linear { .. } | Op::LinearGradInput { .. } => product(inputs[0].shape.rows(), inputs[1]),
                Op::LinearGradWeight { .. } => product(inputs[0].shape.rows(), outputs[0]),
                Op::Attention(of) => seen(of, outputs[0], inputs[1].shape.dims()[1]),
                Op::AttentionGrad(of) => 2.5 * seen(of, outputs[0], inputs[2].shape.dims()[1]),
                _ => 0.0,
            },
            Kernel::LinearGelu { .. }
            | Kernel::LinearGradGelu { .. }
            | Kernel::LinearGradGelus { .. }
            | Kernel::LinearGate { .. }
            | Kernel::LinearGradGate { .. } => product(inputs[0].shape.rows(), inputs[1]),
            Kernel::ScaledProduct { .. } | Kernel::GeluProduct(_) => {
                product(inputs[0].shape.rows(), inputs[2])
            }
            Kernel::JointAttention(of) => seen(of, outputs[0], inputs[0].shape.dims()[1]),
            Kernel::CachedAttention(of) => seen(of, outputs[0], outputs[2].shape.dims()[1]),
            Kernel::JointAttentionGrad(of)
            | Kernel::JointAttentionGrads { of, .. }
            | Kernel::QuantisedAttentionGrad(QuantisedAttentionGrad { of, .. }) => {
                2.5 * seen(of, inputs[0], inputs[1].shape.dims()[1])
            }
            Kernel::HeadLoss(_) => self.matrix_products() as f64 * product(inputs[0].shape.rows(), inputs[1]),
            _ => 0.0,
        };
        let adds = matches!(
            self,
            Kernel::OpInto { add: true, .. }
                | Kernel::StateWrite { add: true }
                | Kernel::ScaledProduct { add: true, .. }
                | Kernel::NormGrads(NormGrads { add: true, .. })
                | Kernel::QuantisedNormGrads(QuantisedNormGrads(NormGrads { add: true, .. }))
                | Kernel::JointAttentionGrads { add: true, .. }
                | Kernel::LinearGradGelus { add: true, .. }
        );
        let written: f64 = outputs.iter().map(bytes).sum();
        let read: f64 = match self {
            // Only the rows that are asked for.
            Kernel::Op(Op::Embed) => bytes(&inputs[1]) + written,
            _ => inputs.iter().map(bytes).sum(),
        };
        let kept = match self {
            // What a working copy held is not read.
            Kernel::Adam(_) => outputs[..4].iter().map(bytes).sum(),
            Kernel::Sgd(_) | Kernel::Descend(_) | Kernel::Average { .. } => written,
            // Only the momentum was there before.
            Kernel::Momentum { .. } => bytes(&outputs[0]),
            // The workspace of a head is its own.
            Kernel::HeadLoss(_) => -bytes(&outputs[1]),
            // Their first output is not state.
            Kernel::NormGrads(_) | Kernel::JointAttentionGrads { .. } | Kernel::LinearGradGelus { .. }
                if adds =>
            {
                outputs[1..].iter().map(bytes).sum()
            }
            Kernel::QuantisedNormGrads(of) if adds => outputs[1..1 + of.0.sums()].iter().map(bytes).sum(),
            _ if adds => written,
            _ => 0.0,
        };
        Work { flops, bytes: read + written + kept }
    }

    /// The plain kernels that a fused one stands for; none for a plain one.
    pub fn expansion(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Option<Expansion> {
        use Operand::{Input, Output};
        let mut expansion = Expansion::default();
        match self {
            Kernel::OpInto { op, add } => {
                let values: Vec<Operand> = outputs.iter().map(|&state| expansion.temporary(state)).collect();
                expansion.step(
                    Kernel::Op(op.clone()),
                    (0..inputs.len()).map(Input).collect(),
                    values.clone(),
                );
                for (index, value) in values.into_iter().enumerate() {
                    expansion.step(Kernel::StateWrite { add: *add }, vec![value], vec![Output(index)]);
                }
            }
            Kernel::AddLayerNorm { eps, bias } => {
                expansion.step(Kernel::Op(Op::Add), vec![Input(0), Input(1)], vec![Output(0)]);
                let mut operands = vec![Output(0)];
                operands.extend((2..inputs.len()).map(Input));
                let norm = Op::LayerNorm { eps: *eps, bias: *bias };
                expansion.step(Kernel::Op(norm), operands, vec![Output(1), Output(2), Output(3)]);
            }
            Kernel::AddRmsNorm { eps } => {
                expansion.step(Kernel::Op(Op::Add), vec![Input(0), Input(1)], vec![Output(0)]);
                let norm = Kernel::Op(Op::RmsNorm { eps: *eps });
                expansion.step(norm, vec![Output(0), Input(2)], vec![Output(1), Output(2)]);
            }
            &Kernel::AddBiasedLayerNorm { eps, shift } => {
                expand_biased_sum(&mut expansion, inputs);
                let operands = [Output(0)].into_iter().chain((3..inputs.len()).map(Input)).collect();
                let norm = Op::LayerNorm { eps, bias: shift };
                expansion.step(Kernel::Op(norm), operands, vec![Output(1), Output(2), Output(3)]);
            }
            Kernel::LayerNormGradAdd | Kernel::RmsNormGradAdd => {
                let is_layer_norm = *self == Kernel::LayerNormGradAdd;
                let op = if is_layer_norm { Op::LayerNormGradInput } else { Op::RmsNormGradInput };
                let d_x = expansion.temporary(outputs[0]);
                let other = inputs.len() - 1;
                expansion.step(Kernel::Op(op), (0..other).map(Input).collect(), vec![d_x]);
                expansion.step(Kernel::Op(Op::Add), vec![Input(other), d_x], vec![Output(0)]);
            }
            Kernel::NormGrads(of) => expand_norm_grads(&mut expansion, *of, inputs, outputs),
            Kernel::JointSiluGate => {
                let halves = expand_halves(&mut expansion, Input(0), inputs[0]);
                expansion.step(Kernel::Op(Op::SiluGate), halves.to_vec(), vec![Output(0)]);
            }
            Kernel::JointSiluGateGrad => {
                let [gate, up] = expand_halves(&mut expansion, Input(0), inputs[0]);
                let gradients = vec![expansion.temporary(inputs[1]), expansion.temporary(inputs[1])];
                let gradient = Kernel::Op(Op::SiluGateGrad);
                expansion.step(gradient, vec![gate, up, Input(1)], gradients.clone());
                expansion.step(Kernel::Op(Op::Concat), gradients, vec![Output(0)]);
            }
            &Kernel::LinearGelu { bias, products, slope } => {
                let operands = (0..inputs.len()).map(Input).collect();
                let h = if slope { expansion.temporary(outputs[0]) } else { Output(0) };
                expansion.step(Kernel::Op(Op::Linear { bias, products }), operands, vec![h]);
                expansion.step(Kernel::Op(Op::Gelu), vec![h], vec![Output(1)]);
                if slope {
                    expand_slope(&mut expansion, h, outputs[0]);
                }
            }
            &Kernel::LinearGradGelu { products, slope } => {
                expand_gelu_grad(&mut expansion, products, slope, outputs[0]);
            }
            &Kernel::LinearGradGelus { products, slope, add } => {
                expand_gelu_grad(&mut expansion, products, slope, outputs[0]);
                expand_bias_grad(&mut expansion, outputs[1], add);
            }
            &Kernel::LinearGate { products } => expand_gate(&mut expansion, products, outputs),
            &Kernel::LinearGradGate { products } => {
                let halves = expand_halves(&mut expansion, Input(2), inputs[2]);
                let half = with_columns(inputs[2], inputs[2].shape.columns() / 2);
                let [d_y, d_gate, d_up] = [0, 1, 2].map(|_| expansion.temporary(half));
                let product = Kernel::Op(Op::LinearGradInput { products });
                expansion.step(product, vec![Input(0), Input(1)], vec![d_y]);
                for (slope, gradient) in halves.into_iter().zip([d_gate, d_up]) {
                    expansion.step(Kernel::Op(Op::Mul), vec![slope, d_y], vec![gradient]);
                }
                expansion.step(Kernel::Op(Op::Concat), vec![d_gate, d_up], vec![Output(0)]);
            }
            Kernel::JointAttention(attention) => {
                let mut operands = expand_split(&mut expansion, attention, 0, inputs[0]);
                operands.extend((1..inputs.len()).map(Input));
                expansion.step(Kernel::Op(Op::Attention(*attention)), operands, vec![Output(0), Output(1)]);
            }
            Kernel::JointAttentionGrad(attention) => {
                expand_joint_grad(&mut expansion, attention, inputs, Output(0));
            }
            Kernel::JointAttentionGrads { of, add } => {
                expand_joint_grad(&mut expansion, of, inputs, Output(0));
                expand_bias_grad(&mut expansion, outputs[1], *add);
            }
            Kernel::CachedAttention(attention) => {
                let parts = expand_split(&mut expansion, attention, 0, inputs[0]);
                for (part, cache) in [(1, 2), (2, 3)] {
                    expansion.step(Kernel::CacheAppend, vec![parts[part], Input(1)], vec![Output(cache)]);
                }
                let operands = vec![parts[0], Output(2), Output(3), Input(1)];
                expansion.step(Kernel::Op(Op::Attention(*attention)), operands, vec![Output(0), Output(1)]);
            }
            Kernel::HeadLoss(head) if head.products.is_eight_bits() => {
                expand_eight_bit_head(&mut expansion, head, inputs);
            }
            Kernel::HeadLoss(head) => expand_head(&mut expansion, head, inputs),
            Kernel::Quantise(of) if of.source.op().is_some() || of.sums.is_some() => {
                let operands = (0..inputs.len()).map(Input).collect();
                expand_quantise(&mut expansion, of, (operands, inputs[0]), (0, outputs));
            }
            Kernel::QuantiseWeights(all) => {
                let mut outputs = (0..outputs.len()).map(Output);
                for (index, of) in all.iter().enumerate() {
                    let own = outputs.by_ref().take(of.output_count()).collect();
                    expansion.step(Kernel::Quantise(*of), vec![Input(index)], own);
                }
            }
            Kernel::QuantisedNorm(of) if of.adds => {
                if of.bias {
                    expand_biased_sum(&mut expansion, inputs);
                } else {
                    expansion.step(Kernel::Op(Op::Add), vec![Input(0), Input(1)], vec![Output(0)]);
                }
                let parameters = (of.before_gain()..inputs.len()).map(Input);
                let operands = [Output(0)].into_iter().chain(parameters).collect();
                let norm = Kernel::QuantisedNorm(QuantisedNorm { adds: false, bias: false, ..*of });
                expansion.step(norm, operands, (1..outputs.len()).map(Output).collect());
            }
            Kernel::QuantisedNormGrads(of) => {
                let (grads, _) = outputs.split_at(1 + of.0.sums());
                expand_norm_grads(&mut expansion, of.0, inputs, grads);
                let x = (vec![Output(0)], outputs[0]);
                expand_quantise(&mut expansion, &of.copies(), x, (grads.len(), outputs));
            }
            Kernel::QuantisedAttentionGrad(of) => {
                let gradient = expansion.temporary(inputs[1]);
                expand_joint_grad(&mut expansion, &of.of, inputs, gradient);
                let copies = of.copies(inputs[1].shape.dims()[1]);
                expand_quantise(&mut expansion, &copies, (vec![gradient, Input(0)], inputs[1]), (0, outputs));
            }
            Kernel::GeluProduct(of) => expand_gelu_product(&mut expansion, of, inputs, outputs),
            Kernel::Op(_)
            | Kernel::Quantise(_)
            | Kernel::RoundTargets
            | Kernel::QuantisedNorm(_)
            | Kernel::ScaledProduct { .. }
            | Kernel::Cast
            | Kernel::StateWrite { .. }
            | Kernel::CacheAppend
            | Kernel::CacheCopy
            | Kernel::Adjust
            | Kernel::Draw(_)
            | Kernel::LogProbabilities(_)
            | Kernel::GlobalNorm
            | Kernel::Guard(_)
            | Kernel::Adam(_)
            | Kernel::Sgd(_)
            | Kernel::Momentum { .. }
            | Kernel::Normalise
            | Kernel::Combine(_)
            | Kernel::Descend(_)
            | Kernel::Average { .. } => return None,
        }
        Some(expansion)
    }
}

/// The columns of queries, keys and values that lie side by side.
pub fn joint_parts(attention: &Attention, qkv: Shape) -> [usize; 3] {
    let Attention { heads, kv_heads, .. } = *attention;
    let head_dim = qkv.columns() / (heads + 2 * kv_heads).max(1);
    [heads * head_dim, kv_heads * head_dim, kv_heads * head_dim]
}

fn with_columns(of: TensorType, columns: usize) -> TensorType {
    TensorType { shape: of.shape.with_columns(columns), dtype: of.dtype }
}

/// The slope of GELU at its argument, which is its gradient where that of the result is one: the first output.
fn expand_slope(expansion: &mut Expansion, h: Operand, of: TensorType) {
    let ones = expansion.temporary(of);
    expansion.step(Kernel::Op(Op::Affine { factor: 0.0, offset: 1.0 }), vec![h], vec![ones]);
    expansion.step(Kernel::Op(Op::GeluGrad), vec![h, ones], vec![Operand::Output(0)]);
}

/// The gradient of an activation's argument: the first output.
fn expand_gelu_grad(expansion: &mut Expansion, products: DType, slope: bool, d_h: TensorType) {
    let d_y = expansion.temporary(d_h);
    let product = Kernel::Op(Op::LinearGradInput { products });
    expansion.step(product, vec![Operand::Input(0), Operand::Input(1)], vec![d_y]);
    let op = if slope { Op::Mul } else { Op::GeluGrad };
    expansion.step(Kernel::Op(op), vec![Operand::Input(2), d_y], vec![Operand::Output(0)]);
}

/// A product and its gate, the second output, with the gate's slopes, the first: its gradients where that of the result is one.
fn expand_gate(expansion: &mut Expansion, products: DType, outputs: &[TensorType]) {
    use Operand::{Input, Output};
    let product = expansion.temporary(outputs[0]);
    expansion.step(Kernel::Op(Op::Linear { bias: false, products }), vec![Input(0), Input(1)], vec![product]);
    let [gate, up] = expand_halves(expansion, product, outputs[0]);
    expansion.step(Kernel::Op(Op::SiluGate), vec![gate, up], vec![Output(1)]);
    let [ones, of_gate, of_up] = [0, 1, 2].map(|_| expansion.temporary(outputs[1]));
    expansion.step(Kernel::Op(Op::Affine { factor: 0.0, offset: 1.0 }), vec![gate], vec![ones]);
    expansion.step(Kernel::Op(Op::SiluGateGrad), vec![gate, up, ones], vec![of_gate, of_up]);
    expansion.step(Kernel::Op(Op::Concat), vec![of_gate, of_up], vec![Output(0)]);
}

/// The sum of the rows of the first output: the second.
fn expand_bias_grad(expansion: &mut Expansion, sums: TensorType, add: bool) {
    let d_bias = expansion.temporary(sums);
    expansion.step(Kernel::Op(Op::LinearGradBias), vec![Operand::Output(0)], vec![d_bias]);
    expansion.step(Kernel::StateWrite { add }, vec![d_bias], vec![Operand::Output(1)]);
}

/// The gradient of an attention whose queries, keys and values lie side by side.
fn expand_joint_grad(expansion: &mut Expansion, attention: &Attention, inputs: &[TensorType], to: Operand) {
    let mut operands = expand_split(expansion, attention, 1, inputs[1]);
    let gradients: Vec<Operand> = joint_parts(attention, inputs[1].shape)
        .map(|columns| expansion.temporary(with_columns(inputs[1], columns)))
        .into();
    operands.insert(0, Operand::Input(0));
    operands.extend((2..inputs.len()).map(Operand::Input));
    expansion.step(Kernel::Op(Op::AttentionGrad(*attention)), operands, gradients.clone());
    expansion.step(Kernel::Op(Op::Concat), gradients, vec![to]);
}

/// The first input and the second with its bias, the third, added up: the first output. A product over nothing is the bias in every row.
fn expand_biased_sum(expansion: &mut Expansion, inputs: &[TensorType]) {
    use Operand::{Input, Output};
    let whole = inputs[1].with_dtype(DType::F32);
    let nothing = [inputs[1].shape.rows(), inputs[2].shape.elements()]
        .map(|rows| expansion.temporary(TensorType::new(&[rows, 0], DType::F32)));
    let [biases, biased] = [0, 1].map(|_| expansion.temporary(whole));
    let product = Kernel::Op(Op::Linear { bias: true, products: DType::F32 });
    expansion.step(product, vec![nothing[0], nothing[1], Input(2)], vec![biases]);
    expansion.step(Kernel::Op(Op::Add), vec![Input(1), biases], vec![biased]);
    expansion.step(Kernel::Op(Op::Add), vec![Input(0), biased], vec![Output(0)]);
}

/// Splits an input into queries, keys and values.
fn expand_split(
    expansion: &mut Expansion,
    attention: &Attention,
    input: usize,
    qkv: TensorType,
) -> Vec<Operand> {
    let sizes = joint_parts(attention, qkv.shape);
    let parts: Vec<Operand> = sizes.map(|columns| expansion.temporary(with_columns(qkv, columns))).into();
    let split = Kernel::Op(Op::Split { sizes: sizes.to_vec() });
    expansion.step(split, vec![Operand::Input(input)], parts.clone());
    parts
}

/// Splits the first input into two halves of its columns.
fn expand_halves(expansion: &mut Expansion, whole: Operand, of: TensorType) -> [Operand; 2] {
    let half = of.shape.columns() / 2;
    let halves = [0, 1].map(|_| expansion.temporary(with_columns(of, half)));
    let split = Kernel::Op(Op::Split { sizes: vec![half, half] });
    expansion.step(split, vec![whole], halves.to_vec());
    halves
}

fn expand_norm_grads(
    expansion: &mut Expansion,
    of: NormGrads,
    inputs: &[TensorType],
    outputs: &[TensorType],
) {
    use Operand::{Input, Output};
    let other = inputs.len() - 1;
    let d_x = expansion.temporary(outputs[0]);
    expansion.step(Kernel::Op(of.input_op()), (0..other).map(Input).collect(), vec![d_x]);
    expansion.step(Kernel::Op(Op::Add), vec![Input(other), d_x], vec![Output(0)]);
    let sums: Vec<Operand> = outputs[1..].iter().map(|&state| expansion.temporary(state)).collect();
    let (params, bias) = sums.split_at(sums.len() - usize::from(of.bias));
    let operands = [0, 1].into_iter().chain(3..other).map(Input).collect();
    let columns = inputs[2].shape.elements();
    expansion.step(Kernel::Op(of.params_op(columns)), operands, params.to_vec());
    if of.bias {
        expansion.step(Kernel::Op(Op::LinearGradBias), vec![Output(0)], bias.to_vec());
    }
    for (index, sum) in sums.into_iter().enumerate() {
        expansion.step(Kernel::StateWrite { add: of.add }, vec![sum], vec![Output(1 + index)]);
    }
}

fn expand_head(expansion: &mut Expansion, head: &HeadLoss, inputs: &[TensorType]) {
    use Operand::{Input, Output};
    let (x, w, products) = (inputs[0], inputs[1], head.products);
    let logits_type = TensorType { shape: x.shape.with_columns(w.shape.dims()[0]), dtype: x.dtype };
    let row_type = TensorType { shape: x.shape.without_columns(), dtype: DType::F32 };
    let logits = expansion.temporary(logits_type);
    let log_sum_exp = expansion.temporary(row_type);
    expansion.step(Kernel::Op(Op::Linear { bias: false, products }), vec![Input(0), Input(1)], vec![logits]);
    expansion.step(
        Kernel::Op(Op::CrossEntropy(head.loss)),
        vec![logits, Input(2), Input(3)],
        vec![Output(0), log_sum_exp],
    );
    if !head.has_gradient() {
        return;
    }
    let d_logits = expansion.temporary(logits_type);
    expansion.step(
        Kernel::Op(Op::CrossEntropyGrad(head.loss)),
        vec![logits, Input(2), Input(3), log_sum_exp, Input(4)],
        vec![d_logits],
    );
    if head.d_input {
        expansion.step(
            Kernel::Op(Op::LinearGradInput { products }),
            vec![d_logits, Input(1)],
            vec![Output(2)],
        );
    }
    if let Some(add) = head.d_weight {
        let d_w = expansion.temporary(TensorType { shape: w.shape, dtype: DType::F32 });
        expansion.step(Kernel::Op(Op::LinearGradWeight { products }), vec![d_logits, Input(0)], vec![d_w]);
        let output = 2 + usize::from(head.d_input);
        expansion.step(Kernel::StateWrite { add }, vec![d_w], vec![Output(output)]);
    }
}

/// The same with products of eight bits.
fn expand_eight_bit_head(expansion: &mut Expansion, head: &HeadLoss, inputs: &[TensorType]) {
    use Operand::{Input, Output};
    let (x, w) = (inputs[0], inputs[1]);
    let logits_type = TensorType { shape: x.shape.with_columns(w.shape.dims()[0]), dtype: x.dtype };
    let row_type = TensorType { shape: x.shape.without_columns(), dtype: DType::F32 };
    let product = Kernel::ScaledProduct { bias: false, add: false };
    let [x_unit, x_rows, x_columns] = expand_copies(expansion, Input(0), x, DType::E4M3);
    let [w_unit, w_rows, w_columns] = expand_copies(expansion, Input(1), w, DType::E4M3);
    let [logits, log_sum_exp] = [logits_type, row_type].map(|of| expansion.temporary(of));
    expansion.step(product.clone(), vec![x_rows, x_unit, w_rows, w_unit], vec![logits]);
    let losses = Kernel::Op(Op::CrossEntropy(head.loss));
    expansion.step(losses, vec![logits, Input(2), Input(3)], vec![Output(0), log_sum_exp]);
    if !head.has_gradient() {
        return;
    }
    let [d_logits, rounded] = [logits_type; 2].map(|of| expansion.temporary(of));
    let operands = vec![logits, Input(2), Input(3), log_sum_exp, Input(4)];
    expansion.step(Kernel::Op(Op::CrossEntropyGrad(head.loss)), operands, vec![d_logits]);
    expansion.step(Kernel::RoundTargets, vec![d_logits, Input(2)], vec![rounded]);
    let [d_unit, d_rows, d_columns] = expand_copies(expansion, rounded, logits_type, DType::E5M2);
    if head.d_input {
        expansion.step(product.clone(), vec![d_rows, d_unit, w_columns, w_unit], vec![Output(2)]);
    }
    if let Some(add) = head.d_weight {
        let output = Output(2 + usize::from(head.d_input));
        let product = Kernel::ScaledProduct { bias: false, add };
        expansion.step(product, vec![d_columns, d_unit, x_columns, x_unit], vec![output]);
    }
}

/// The unit of a tensor and both of its copies.
fn expand_copies(expansion: &mut Expansion, tensor: Operand, x: TensorType, of: DType) -> [Operand; 3] {
    let quantise = Quantise { of, source: Source::Stored, rows: true, columns: true, sums: None };
    let results: Vec<Operand> = quantise.outputs(x).into_iter().map(|of| expansion.temporary(of)).collect();
    expansion.step(Kernel::Quantise(quantise), vec![tensor], results.clone());
    [results[0], results[1], results[2]]
}

/// Operands of one type become the fused kernel's outputs from the first of these on.
fn expand_quantise(
    expansion: &mut Expansion,
    of: &Quantise,
    (mut operands, x): (Vec<Operand>, TensorType),
    (first, outputs): (usize, &[TensorType]),
) {
    if let Some(op) = of.source.op() {
        let computed = expansion.temporary(x);
        expansion.step(Kernel::Op(op), operands, vec![computed]);
        operands = vec![computed];
    }
    let source = if of.source.op().is_some() { Source::Stored } else { of.source };
    let plain = Quantise { source, sums: None, ..*of };
    let end = first + plain.output_count();
    let results: Vec<Operand> = (first..end).map(Operand::Output).collect();
    if let Some(add) = of.sums {
        let (index, sums) = (end, expansion.temporary(outputs[end]));
        expansion.step(Kernel::Op(Op::LinearGradBias), operands[..1].to_vec(), vec![sums]);
        expansion.step(Kernel::StateWrite { add }, vec![sums], vec![Operand::Output(index)]);
    }
    expansion.step(Kernel::Quantise(plain), operands, results);
}

fn expand_gelu_product(
    expansion: &mut Expansion,
    of: &GeluProduct,
    inputs: &[TensorType],
    outputs: &[TensorType],
) {
    use Operand::{Input, Output};
    let product = Kernel::ScaledProduct { bias: of.bias(), add: false };
    let factors = (0..4 + usize::from(of.bias())).map(Input).collect();
    match of {
        GeluProduct::Forward { slope, .. } => {
            let h = if *slope { expansion.temporary(outputs[0]) } else { Output(0) };
            expansion.step(product, factors, vec![h]);
            expand_quantise(expansion, &of.quantise(), (vec![h], outputs[0]), (1, outputs));
            if *slope {
                expand_slope(expansion, h, outputs[0]);
            }
        }
        GeluProduct::Backward { .. } => {
            let h = inputs[4];
            let d_y = expansion.temporary(h);
            expansion.step(product, factors, vec![d_y]);
            expand_quantise(expansion, &of.quantise(), (vec![Input(4), d_y], h), (0, outputs));
        }
    }
}

/// An operand of an expansion's step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// An input of the fused kernel.
    Input(usize),
    /// An output of the fused kernel.
    Output(usize),
    /// A value that only the expansion knows.
    Temporary(usize),
}

/// A fused kernel written out as plain ones.
#[derive(Clone, Debug, Default)]
pub struct Expansion {
    /// Types of the temporaries.
    pub temporaries: Vec<TensorType>,
    /// The kernels in order, with their inputs and outputs.
    pub steps: Vec<(Kernel, Vec<Operand>, Vec<Operand>)>,
}

impl Expansion {
    fn temporary(&mut self, of: TensorType) -> Operand {
        self.temporaries.push(of);
        Operand::Temporary(self.temporaries.len() - 1)
    }

    fn step(&mut self, kernel: Kernel, inputs: Vec<Operand>, outputs: Vec<Operand>) {
        self.steps.push((kernel, inputs, outputs));
    }
}

/// Elements of logits that a fused head keeps at a time on a processor: every chunk packs the whole weight anew, so more are
/// faster, but past 64 MiB not by much.
pub const PROCESSOR_LOGITS: usize = 1 << 24;
/// The same on a card, which has memory to spare and needs large products to be busy.
pub const CARD_LOGITS: usize = 1 << 29;

/// Rows from which on a card's library multiplies faster when the norm behind a product adds its bias.
pub const CARD_BARE_ROWS: usize = 4096;

/// Rows of logits a fused head keeps at a time, so that their elements are at most so many, or 96 rows where even those are
/// more. Chunks are as equal as can be.
pub fn head_chunk_rows(x: Shape, vocabulary: usize, elements: usize) -> usize {
    /// Whole numbers of these are the fastest for a card's library.
    const WHOLE_ROWS: usize = 4096;
    let most = (elements / vocabulary.max(1)).clamp(96, (elements >> 15).max(96));
    let most = if most > WHOLE_ROWS { most / WHOLE_ROWS * WHOLE_ROWS } else { most };
    let rows = x.rows().max(1);
    rows.div_ceil(rows.div_ceil(most)).next_multiple_of(8).min(rows)
}

/// Rows of `vocabulary` elements of 16 bits that the workspace of a head of eight-bit products has: a chunk of logits, both copies of its
/// gradient, and both copies of x and of the weight.
pub fn eight_bit_workspace_rows(x: Shape, vocabulary: usize, chunk_rows: usize) -> usize {
    let copies = (x.rows() + vocabulary) * x.columns();
    2 * chunk_rows + copies.div_ceil(vocabulary)
}
