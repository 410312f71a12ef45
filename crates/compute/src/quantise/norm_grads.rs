//! Gradients of norms that go on in sixteen bits and into products of eight.

use super::{Quantise, Source, suits};
use crate::{
    kernel::NormGrads,
    tensor::{DType, TensorType},
};

/// All gradients of a norm, the first in e5m2 as well: what [`NormGrads`] says, `→ unit [1], q [..,C], qᵀ [C,N]` behind its outputs.
///
/// The unit is that of the first output as it is stored, found in the same rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuantisedNormGrads(pub NormGrads);

impl QuantisedNormGrads {
    /// The longest rows, in bytes: a warp of a card keeps three sums of every column in its registers.
    pub const MOST_ROW_BYTES: usize = 768 * 2;

    /// Whether there is such a kernel for what is normalised and a gain.
    pub fn suits(x: TensorType, gain: TensorType) -> bool {
        let columns = x.shape.columns();
        let is_short = columns * x.dtype.bytes() <= Self::MOST_ROW_BYTES;
        is_short && gain.shape.elements() == columns && suits(x.shape)
    }

    /// The kernel's name in errors and listings.
    pub fn name(&self) -> &'static str {
        if self.0.centred { "quantise_layer_norm_grads" } else { "quantise_rms_norm_grads" }
    }

    /// What becomes of the first gradient.
    pub fn copies(&self) -> Quantise {
        Quantise { of: DType::E5M2, source: Source::Stored, rows: true, columns: true, sums: None }
    }
}
