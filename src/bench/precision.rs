//! What products are computed in: the one place where benches learn of a precision.

use super::limits::Limits;
use ironmill_compute::kernel::{CARD_BARE_ROWS, CARD_LOGITS};
use ironmill_compute::{Attention, DType, HeadLoss, Kernel, LossShape, Mask, Op};
use ironmill_graph::{EightBits, Passes};

/// The precisions that a bench can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Precision {
    /// Everything in single precision.
    Fp32,
    /// Products of bf16, everything else in single precision.
    Bf16,
    /// On a card: bf16, with products between embedding and head of eight bits.
    Fp8,
    /// The same with the head's products of eight bits, too.
    Fp8Head,
}

impl Precision {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Precision::Fp32 => "fp32",
            Precision::Bf16 => "bf16",
            Precision::Fp8 => "fp8",
            Precision::Fp8Head => "fp8-head",
        }
    }

    /// The passes that give a program this precision.
    pub fn passes(self) -> Passes {
        let precision = match self {
            Precision::Fp32 => ironmill_graph::Precision::F32,
            Precision::Bf16 | Precision::Fp8 | Precision::Fp8Head => {
                ironmill_graph::Precision::Products(DType::BF16)
            }
        };
        Passes { precision, ..Passes::ALL }
    }

    /// The passes of a program on a card, which keeps everything in [`Self::stored`].
    pub fn card_passes(self) -> Passes {
        let eight_bits = match self {
            Precision::Fp32 | Precision::Bf16 => EightBits::Nowhere,
            Precision::Fp8 => EightBits::Blocks,
            Precision::Fp8Head => EightBits::BlocksAndHead,
        };
        Passes { eight_bits, head_elements: CARD_LOGITS, bare_rows: CARD_BARE_ROWS, ..Passes::ALL }
    }

    /// The type that a card keeps activations and weights in.
    pub fn stored(self) -> DType {
        self.products()
    }

    /// The type that factors of products are rounded to.
    pub fn products(self) -> DType {
        match self {
            Precision::Fp32 => DType::F32,
            Precision::Bf16 | Precision::Fp8 | Precision::Fp8Head => DType::BF16,
        }
    }

    /// The most operations a second that the machine does in this precision.
    pub fn flops_per_s(self, limits: &Limits) -> f64 {
        match self {
            Precision::Fp32 => limits.peak.f32_flops_per_s,
            Precision::Bf16 | Precision::Fp8 | Precision::Fp8Head => {
                limits.peak.bf16_flops_per_s.unwrap_or(limits.peak.f32_flops_per_s)
            }
        }
    }

    /// x·wᵀ.
    pub fn linear(self) -> Kernel {
        Kernel::Op(Op::Linear { bias: false, products: self.products() })
    }

    /// The gradient of x.
    pub fn linear_grad_input(self) -> Kernel {
        Kernel::Op(Op::LinearGradInput { products: self.products() })
    }

    /// The gradient of w, written as a training step writes it.
    pub fn linear_grad_weight(self) -> Kernel {
        Kernel::OpInto { op: Op::LinearGradWeight { products: self.products() }, add: false }
    }

    /// Causal attention of so many heads.
    pub fn attention(self, heads: usize) -> Attention {
        let (mask, products) = (Mask::Causal, self.products());
        Attention { heads, kv_heads: heads, mask, cached: false, borders: false, window: 0, products }
    }

    /// Head and loss with both gradients.
    pub fn head(self, chunk_rows: usize) -> Kernel {
        let (loss, products) = (LossShape::default(), self.products());
        Kernel::HeadLoss(HeadLoss { chunk_rows, loss, products, d_input: true, d_weight: Some(false) })
    }
}
