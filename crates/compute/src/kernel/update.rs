//! The optimisers over flat buffers.
//!
//! All take the number that gradients are multiplied with from a [`Guard`](super::Guard). Where it is 0 the step is refused:
//! nothing is written, and the counter that corrects the moments' bias does not advance.

use std::sync::Arc;

/// A run of parameters that one rule updates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UpdateRange {
    /// First element.
    pub start: usize,
    /// Elements.
    pub len: usize,
    /// Weight decay, before multiplication by the learning rate.
    pub weight_decay: f32,
    /// What the learning rate is multiplied with here.
    pub rate: f32,
}

/// Adam (Kingma & Ba, 2015) and AdamW (Loshchilov & Hutter, 2019):
/// `(gradients, scale [1], learning rate [1]) → parameters, first moment, second moment, step counter u32[1], working copy if any`,
/// all state. The working copy is of 16 bits and as long as the parameters; it takes what they become, rounded.
#[derive(Clone, Debug, PartialEq)]
pub struct Adam {
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added to the root of the second moment.
    pub eps: f32,
    /// Whether weight decay shrinks the parameter (AdamW) rather than adding to its gradient (Adam).
    pub decoupled: bool,
    /// What to update; elements outside every range (padding, frozen parameters) are never touched.
    pub ranges: Arc<[UpdateRange]>,
}

/// Stochastic gradient descent with momentum:
/// `(gradients, scale [1], learning rate [1]) → parameters, momentum, step counter u32[1]`, all state. Weight decay adds to
/// the gradient.
#[derive(Clone, Debug, PartialEq)]
pub struct Sgd {
    /// Decay of the running sum of gradients.
    pub momentum: f32,
    /// What to update.
    pub ranges: Arc<[UpdateRange]>,
}

/// The last part of a step of Muon:
/// `(direction, scale [1], learning rate [1]) → parameters`, state: with η the learning rate,
/// p ← p·(1 − η·weight decay) − η·length·direction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Descend {
    /// What the learning rate is multiplied with.
    pub length: f32,
    /// Weight decay, before multiplication by the learning rate.
    pub weight_decay: f32,
}

/// What [`Kernel::Normalise`](super::Kernel::Normalise) adds to the norm, so that nothing is divided by 0.
pub(crate) const NORMALISE_EPS: f32 = 1e-7;

/// The share of a running average that stays after so many updates: early on it is low, so that the average is soon one of
/// trained parameters.
pub(crate) fn average_decay(decay: f32, updates: f64) -> f64 {
    f64::from(decay).min((1.0 + updates) / (10.0 + updates))
}
