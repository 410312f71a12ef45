//! What products are computed in: the one place where benches learn of a precision.

use super::limits::Limits;
use crate::failure::{Code, Failure, Result};
use ironmill_compute::{Attention, HeadLoss, Kernel, LossShape, Mask, Op};
use ironmill_graph::Passes;

/// The precisions that a bench can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Precision {
    /// Everything in single precision.
    Fp32,
    /// Products of bf16, everything else in single precision.
    Bf16,
}

impl Precision {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Precision::Fp32 => "fp32",
            Precision::Bf16 => "bf16",
        }
    }

    /// The passes that give a program this precision.
    pub fn passes(self) -> Result<Passes> {
        match self {
            Precision::Fp32 => Ok(Passes::ALL),
            Precision::Bf16 => {
                let message = "products of bf16 are not available in this version: use --precision fp32";
                Err(Failure::new(Code::NoDevice, message))
            }
        }
    }

    /// The most operations a second that the machine does in this precision.
    pub fn flops_per_s(self, limits: &Limits) -> f64 {
        match self {
            Precision::Fp32 => limits.peak.f32_flops_per_s,
            Precision::Bf16 => limits.peak.bf16_flops_per_s.unwrap_or(limits.peak.f32_flops_per_s),
        }
    }

    /// x·wᵀ.
    pub fn linear(self) -> Kernel {
        Kernel::Op(Op::Linear { bias: false })
    }

    /// The gradient of x.
    pub fn linear_grad_input(self) -> Kernel {
        Kernel::Op(Op::LinearGradInput)
    }

    /// The gradient of w, written as a training step writes it.
    pub fn linear_grad_weight(self) -> Kernel {
        Kernel::OpInto { op: Op::LinearGradWeight, add: false }
    }

    /// Causal attention of so many heads.
    pub fn attention(self, heads: usize) -> Attention {
        Attention { heads, kv_heads: heads, mask: Mask::Causal, cached: false, borders: false, window: 0 }
    }

    /// Head and loss with both gradients.
    pub fn head(self, chunk_rows: usize) -> Kernel {
        let loss = LossShape::default();
        Kernel::HeadLoss(HeadLoss { chunk_rows, loss, d_input: true, d_weight: Some(false) })
    }
}
