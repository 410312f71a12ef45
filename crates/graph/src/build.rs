//! The vocabulary a model is written in: one method an op, forward only.

use ironmill_compute::{Attention, DType, Kernel, Mask, Op, TensorType};

use crate::{
    error::Result,
    graph::{Graph, StateId, Tensor},
    parameters::Parameter,
};

/// The inputs that dropout draws its numbers from.
#[derive(Clone, Copy, Debug)]
pub struct Randomness {
    /// The key and the step: `u32[3]`.
    pub key: Tensor,
    /// The global index of each sample: `u32[B]`.
    pub samples: Tensor,
}

/// The query and key heads of an attention, and which keys a query sees.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    /// Query heads.
    pub queries: usize,
    /// Key and value heads.
    pub keys: usize,
    /// Which keys a query may see.
    pub mask: Mask,
}

impl Graph {
    /// A parameter: a view of the flat parameter buffer.
    pub fn parameter(&mut self, parameters: StateId, parameter: &Parameter) -> Tensor {
        let of = TensorType { shape: parameter.shape, dtype: DType::F32 };
        let tensor = self.state(parameters, parameter.offset, of);
        if parameter.trainable && !self.trainable.contains(&tensor) {
            self.trainable.push(tensor);
        }
        tensor
    }

    /// The rows of a table that ids name.
    pub fn embed(&mut self, table: Tensor, ids: Tensor) -> Result<Tensor> {
        self.op1(Op::Embed, &[table, ids])
    }

    /// x·wᵀ, plus a bias where there is one.
    pub fn linear(&mut self, x: Tensor, w: Tensor, bias: Option<Tensor>) -> Result<Tensor> {
        let mut inputs = vec![x, w];
        inputs.extend(bias);
        self.op1(Op::Linear { bias: bias.is_some() }, &inputs)
    }

    /// Rows brought to mean 0 and variance 1, then scaled and shifted.
    pub fn layer_norm(&mut self, x: Tensor, gain: Tensor, shift: Option<Tensor>, eps: f32) -> Result<Tensor> {
        let mut inputs = vec![x, gain];
        inputs.extend(shift);
        self.op1(Op::LayerNorm { eps, bias: shift.is_some() }, &inputs)
    }

    /// The columns of x in parts.
    pub fn split(&mut self, x: Tensor, sizes: &[usize]) -> Result<Vec<Tensor>> {
        self.op(Op::Split { sizes: sizes.to_vec() }, &[x])
    }

    /// Attention of queries over the keys of the same positions.
    pub fn attention(&mut self, q: Tensor, k: Tensor, v: Tensor, heads: Heads) -> Result<Tensor> {
        self.op1(Op::Attention(attention(heads, false)), &[q, k, v])
    }

    /// Appends rows to caches at each sample's own position, then attends over all that they hold.
    pub fn cached_attention(
        &mut self,
        [q, k, v]: [Tensor; 3],
        [k_cache, v_cache]: [Tensor; 2],
        starts: Tensor,
        heads: Heads,
    ) -> Result<Tensor> {
        self.push(Kernel::CacheAppend, vec![k, starts], vec![k_cache]);
        self.push(Kernel::CacheAppend, vec![v, starts], vec![v_cache]);
        self.op1(Op::Attention(attention(heads, true)), &[q, k_cache, v_cache, starts])
    }

    /// GPT-2's smooth step.
    pub fn gelu(&mut self, x: Tensor) -> Result<Tensor> {
        self.op1(Op::Gelu, &[x])
    }

    /// a + b.
    pub fn add(&mut self, a: Tensor, b: Tensor) -> Result<Tensor> {
        self.op1(Op::Add, &[a, b])
    }

    /// Zeroes a share of x at random; x itself when the share is 0.
    pub fn dropout(&mut self, x: Tensor, probability: f32, from: Randomness) -> Result<Tensor> {
        // The number is taken even when nothing is dropped, so that a mask does not depend on other layers' settings.
        let number = self.next_dropout();
        if probability == 0.0 {
            return Ok(x);
        }
        self.op1(Op::Dropout { probability, number }, &[x, from.key, from.samples])
    }

    /// The weighted loss of each target in nats; 0 for ignored ones.
    pub fn cross_entropy(&mut self, logits: Tensor, targets: Tensor, weights: Tensor) -> Result<Tensor> {
        self.op1(Op::CrossEntropy, &[logits, targets, weights])
    }

    /// The sum of all elements.
    pub fn sum(&mut self, x: Tensor) -> Result<Tensor> {
        self.op1(Op::Sum, &[x])
    }
}

fn attention(heads: Heads, cached: bool) -> Attention {
    Attention { heads: heads.queries, kv_heads: heads.keys, mask: heads.mask, cached }
}
